#include "host/train/run_checks.h"

#include <chrono>
#include <unistd.h>

#include "host/samples/cache_manifest.h"
#include "run_toy.h"

namespace atelier::train {
namespace {

using order::Stage;
using order::Training;

namespace fs = std::filesystem;
using namespace std::chrono_literals;

// What is wrong, one a line; empty: nothing.
std::string text_of(const report::Problems& problems) {
  return test::message_of([&] { problems.throw_if_any(); });
}

struct OutputFolder {
  test::Folder folder;
  Training config;

  OutputFolder() {
    config.output.output_path = folder / "run";
    config.effective_toml = "seed = 42\n";
  }
  void write(const std::string& name, const std::string& bytes = "x") const {
    test::write_bytes(folder / ("run/" + name), bytes);
  }
  std::string check() const {
    report::Problems problems;
    check_output_folder(config, problems);
    return text_of(problems);
  }
};

TEST_CASE("A folder that is empty or not there is free for a run", "[run_checks]") {
  const OutputFolder output;
  CHECK(output.check().empty());
  fs::create_directories(output.config.output.output_path);
  CHECK(output.check().empty());
}

TEST_CASE("What is no folder is no place for a run", "[run_checks]") {
  OutputFolder output;
  test::write_bytes(output.config.output.output_path, "");
  CHECK_THAT(output.check(), Catch::StartsWith("--output_path: ") &&
                                 Catch::Contains("run: is no folder; name a folder"));
  output.config.output.output_path = output.folder / std::string(300, 'x');
  CHECK_THAT(output.check(), Catch::StartsWith("--output_path: ") &&
                                 Catch::Contains("File name too long; name a folder"));
}

TEST_CASE("A folder that may not be written into is told before anything begins", "[run_checks]") {
  OutputFolder output;
  fs::permissions(output.folder.path(), fs::perms(0555));
  const uid_t user = geteuid();
  if (user == 0) REQUIRE(seteuid(65534) == 0);  // root may write anywhere
  const std::string said = output.check();
  REQUIRE(seteuid(user) == 0);
  fs::permissions(output.folder.path(), fs::perms(0755));
  CHECK_THAT(said, Catch::StartsWith("--output_path: cannot write into the folder ") &&
                       Catch::Contains("change its permissions"));
}

TEST_CASE("A folder with weights of others is refused, and what lies there is named",
          "[run_checks]") {
  const OutputFolder output;
  output.write("step-5.safetensors");
  CHECK_THAT(output.check(), Catch::StartsWith("--output_path: ") &&
                                 Catch::Contains("holds files of another run or of a model") &&
                                 Catch::Contains("step-5.safetensors") &&
                                 Catch::Contains("move them away, or choose another folder"));
}

TEST_CASE("A folder with states to resume says how to go on", "[run_checks]") {
  OutputFolder output;
  output.write("checkpoints/step-00000005/MANIFEST.json");
  CHECK_THAT(output.check(), Catch::Contains("go on with that run by --resume") &&
                                 Catch::Contains(output.config.output.output_path));
  output.config.output.is_resumed = true;
  output.config.resume = output.config.output.output_path;
  CHECK(output.check().empty());
}

TEST_CASE("A run that was started once more before its first save has its folder still",
          "[run_checks]") {
  OutputFolder output;
  output.write("config.toml", output.config.effective_toml);
  output.write("loss.csv");
  CHECK(output.check().empty());
  output.config.effective_toml = "seed = 43\n";
  CHECK_THAT(output.check(), Catch::Contains("config.toml") && Catch::Contains("loss.csv"));
  output.config.stage = Stage::kDataProcess;  // encodes there and saves nothing
  CHECK(output.check().empty());
}

TEST_CASE("Of a run that has weights and no state, the weights are offered", "[run_checks]") {
  OutputFolder output;
  output.config.output.is_resumed = true;
  output.config.lora.base_models = {"dit"};
  output.write("config.toml", output.config.effective_toml);
  output.write("step-10.safetensors");
  output.write("step-4.safetensors");
  const std::string folder = output.config.output.output_path;
  fs::last_write_time(folder + "/step-4.safetensors",
                      fs::last_write_time(folder + "/step-10.safetensors") - 1h);
  CHECK_THAT(output.check(), Catch::Contains("begin with the weights by --config " + folder +
                                             "/config.toml --lora_checkpoint " + folder +
                                             "/step-10.safetensors --output_path FOLDER"));
  output.config.lora.base_models.clear();
  fs::remove(folder + "/config.toml");
  CHECK_THAT(output.check(), Catch::Contains("the weights by --resume_from_checkpoint " + folder));
  for (const char* name : {"step-10.safetensors", "step-4.safetensors"})
    fs::remove(folder + "/" + name);
  output.write("step-4-00001-of-00002.safetensors");
  CHECK_THAT(output.check(), Catch::Contains("; move them away, or choose another folder"));
}

TEST_CASE("A run that has no state yet is begun again where it is", "[run_checks]") {
  const OutputFolder output;
  output.write("config.toml", "seed = 43\n");
  CHECK_THAT(output.check(), Catch::Contains("begin that run again by --resume " +
                                             output.config.output.output_path + ", move them"));
}

TEST_CASE("While a run writes into its folder, that is what is wrong with it", "[run_checks]") {
  const OutputFolder output;
  output.write("config.toml", "seed = 43\n");
  {
    const run::RunFolder other(output.config.output.output_path);
    CHECK_THAT(output.check(), Catch::Contains("run: another run writes here: ") &&
                                   Catch::Contains("wait for its end") &&
                                   !Catch::Contains("config.toml"));
  }
  CHECK_THAT(output.check(), Catch::Contains("holds files of another run"));
}

TEST_CASE("A cache that cannot be written is told before anything begins", "[run_checks]") {
  OutputFolder output;
  const auto check = [&] {
    report::Problems problems;
    check_cache_folder(output.config, problems);
    return text_of(problems);
  };
  output.config.cache_path = output.config.output.output_path + "/cache";
  CHECK(check().empty());
  output.config.cache_path = output.folder / "file";
  test::write_bytes(output.config.cache_path, "");
  CHECK_THAT(check(), Catch::StartsWith("--cache_path: ") &&
                          Catch::Contains("file: is no folder; name a folder"));
  output.config.cache_path = output.folder / "file/below";
  CHECK_THAT(check(), Catch::StartsWith("--cache_path: ") && Catch::Contains("name a folder"));
  output.config.stage = Stage::kTrain;  // only reads
  CHECK(check().empty());
}

TEST_CASE("A cache in a folder that is read-only has to be there already", "[run_checks]") {
  OutputFolder output;
  output.config.cache_path = output.folder / "cache";
  const auto check = [&] {
    const uid_t user = geteuid();
    if (user == 0) REQUIRE(seteuid(65534) == 0);  // root may write anywhere
    report::Problems problems;
    check_cache_folder(output.config, problems);
    REQUIRE(seteuid(user) == 0);
    return text_of(problems);
  };
  fs::permissions(output.folder.path(), fs::perms(0555));
  CHECK_THAT(check(), Catch::StartsWith("--cache_path: cannot write into the folder ") &&
                          Catch::Contains("choose another one"));
  fs::permissions(output.folder.path(), fs::perms(0755));
  test::write_bytes(samples::Manifest::path(output.config.cache_path), "{}");
  fs::permissions(output.config.cache_path, fs::perms(0555));
  CHECK(check().empty());
  fs::permissions(output.config.cache_path, fs::perms(0755));
}

// A run that was saved after its first step, and another one that wants to go on from there.
struct Resumed : test::RunToy {
  static constexpr const char* kToml =
      "plugin = \"toy\"\n"
      "lora_base_model = [\"dit\"]\n"
      "lora_rank = 4\n"
      "optimizer_type = \"adamw\"\n";
  std::unique_ptr<run::RunFolder> run_folder;

  Resumed() {
    train_lora();
    save(kToml);
  }
  // The state of a run with this configuration.
  void save(const std::string& toml) {
    config.effective_toml = toml;
    run_folder.reset();
    run_folder = std::make_unique<run::RunFolder>(config.output.output_path);
    RunState state(parts(*run_folder), selection());
    state.counters().step = ++step;
    state.save("step-" + std::to_string(step));
  }
  run::SavedState saved() const {
    return run::find_state(config.output.output_path, [](const std::string&) {});
  }
  // What is wrong when a run with `toml` in place of its own goes on.
  std::string check(const std::string& toml) {
    config.effective_toml = toml;
    report::Problems problems;
    check_resume(saved(), *model, selection(), config, problems);
    return text_of(problems);
  }
  int step = 0;
};

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  REQUIRE(text.find(from) != std::string::npos);
  return text.replace(text.find(from), from.size(), to);
}

TEST_CASE("A run goes on as it was, and with what may change", "[run_checks]") {
  Resumed run;
  CHECK(run.check(Resumed::kToml).empty());
  CHECK(run.check(Resumed::kToml + std::string("learning_rate = 0.5\n")).empty());
}

TEST_CASE("What a run cannot change is refused with the flag and both values", "[run_checks]") {
  Resumed run;
  CHECK_THAT(run.check(replaced(Resumed::kToml, "\"adamw\"", "\"lion\"")),
             Catch::Contains("--optimizer_type: \"lion\", and the run that is resumed has "
                             "\"adamw\"; leave it out, or begin another run"));
  run.train_lora(/*rank=*/8);
  CHECK_THAT(run.check(replaced(Resumed::kToml, "lora_rank = 4", "lora_rank = 8")),
             Catch::Contains("--lora_rank: \"8\", and the run that is resumed has \"4\""));
  run.config.lora.base_models.clear();
  run.config.trainable_models = {"dit"};
  CHECK_THAT(
      run.check(replaced(Resumed::kToml, "lora_base_model", "trainable_models")),
      Catch::Contains("--trainable_models: \"dit\", and the run that is resumed has none") &&
          Catch::Contains("--lora_base_model: none, and the run that is resumed has \"dit\""));
}

TEST_CASE("The factor of a LoRA stays what it was when it was learnt", "[run_checks]") {
  Resumed run;
  CHECK(run.check(Resumed::kToml + std::string("lora_alpha = 4.0\n")).empty());  // the rank
  CHECK_THAT(run.check(Resumed::kToml + std::string("lora_alpha = 32.0\n")),
             Catch::Contains("--lora_alpha: \"32\", and the run that is resumed has \"4\"; "
                             "leave it out, or begin another run"));
  const std::string rooted = Resumed::kToml + std::string("use_rslora = true\n");
  CHECK_THAT(run.check(rooted), Catch::Contains("--use_rslora: \"true\", and the run that"));
  run.save(rooted);
  CHECK(run.check(rooted).empty());
  CHECK_THAT(run.check(Resumed::kToml), Catch::Contains("--use_rslora: none, and the run that"));
}

TEST_CASE("A preset LoRA may be moved, but neither changed nor left out", "[run_checks]") {
  Resumed run;
  const auto with = [&](const std::string& name) {
    return Resumed::kToml +
           ("preset_lora_model = \"dit\"\npreset_lora_path = \"" + (run.folder / name) + "\"\n");
  };
  test::write_bytes(run.folder / "a.safetensors", "one");
  test::write_bytes(run.folder / "b.safetensors", "one");
  test::write_bytes(run.folder / "c.safetensors", "two");
  CHECK_THAT(run.check(with("a.safetensors")),
             Catch::Contains("--preset_lora_path: \"") &&
                 Catch::Contains("and the run that is resumed has none"));
  run.save(with("a.safetensors"));
  CHECK(run.check(with("a.safetensors")).empty());
  CHECK(run.check(with("b.safetensors")).empty());
  CHECK_THAT(run.check(with("c.safetensors")), Catch::Contains("--preset_lora_path: "));
  CHECK_THAT(run.check(Resumed::kToml), Catch::Contains("--preset_lora_path: none, and the run"));
  fs::remove(run.folder / "a.safetensors");
  CHECK(run.check(with("b.safetensors")).empty());
}

TEST_CASE("Tensors that only one of the runs trains are named where no flag differs",
          "[run_checks]") {
  Resumed run;
  run.config.lora.target_modules = {"q"};
  CHECK_THAT(run.check(Resumed::kToml),
             Catch::Contains("--resume: ") &&
                 Catch::Contains("trains other tensors: \"dit.blocks.") && Catch::Contains("down"));
}

TEST_CASE("An average and master weights cannot be had afterwards", "[run_checks]") {
  Resumed run;
  run.config.ema_decay = 0.9;
  CHECK_THAT(run.check(Resumed::kToml + std::string("ema_decay = 0.9\n")),
             Catch::Contains("--ema_decay: \"0.9\", and the run that is resumed has none"));
  run.config.ema_decay = 0.0;
  run.config.lora.base_models.clear();
  run.config.trainable_models = {"dit"};
  const std::string whole = "plugin = \"toy\"\ntrainable_models = [\"dit\"]\n";
  run.save(whole);
  CHECK(run.check(whole).empty());
  CHECK_THAT(run.check(whole + "master_weights = \"stochastic\"\n"),
             Catch::Contains("--master_weights: \"stochastic\", and the run that is resumed has"));
}

TEST_CASE("A run on other weights, or of another family, is refused", "[run_checks]") {
  Resumed run;
  test::write_toy_component(run.folder / "model/transformer/model.safetensors", "dit", 2, {}, 0.15);
  run.open();
  CHECK_THAT(run.check(Resumed::kToml),
             Catch::Contains("--resume: ") &&
                 Catch::Contains("is of a run on other weights than those of") &&
                 Catch::Contains("transformer") &&
                 Catch::Contains("pass the model files that the run began with"));
  run::SavedState other = run.saved();
  other.facts["family"] = "another";
  report::Problems problems;
  check_resume(other, *run.model, run.selection(), run.config, problems);
  CHECK(problems.size() == 1);  // nothing else is looked at
  CHECK_THAT(text_of(problems), Catch::Contains("--plugin: \"toy\""));
}

}  // namespace
}  // namespace atelier::train
