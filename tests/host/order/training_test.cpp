#include "host/order/training.h"

#include <algorithm>
#include <map>
#include <set>

#include "host/run/run_folder.h"
#include "support/files.h"
#include "support/toy_family.h"

using namespace atelier;
using namespace atelier::order;
using namespace atelier::samples;
using Catch::Contains;
using test::Folder;
using test::write_bytes;

namespace {

using Arguments = std::vector<std::string>;

const Arguments kLora = {"--plugin",          "toy", "--dataset_base_path", "data",
                         "--lora_base_model", "dit"};

Arguments operator+(Arguments a, const Arguments& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

Training parse(const Arguments& arguments, std::string_view command = "train") {
  const test::ToyFamily family;
  report::Problems problems;
  Training config =
      read_training({arguments, train_command(nullptr), problems}, &family, problems, command);
  problems.throw_if_any();
  return config;
}

// Mistakes of these flags behind a command line that is right; each of `parts` is told.
void expect_wrong(const Arguments& more, const std::vector<std::string>& parts,
                  ErrorCode code = ErrorCode::kInvalidArgument) {
  test::expect_error(code, parts, [&] { parse(kLora + more); });
}

// How many notes hold `part`.
int64_t count_notes(const Training& config, const std::string& part) {
  return std::count_if(config.notes.begin(), config.notes.end(), [&](const std::string& note) {
    return note.find(part) != std::string::npos;
  });
}

// Every value of a configuration, as TOML and as the fields that are not in it.
std::string all_of(const Training& c) {
  return c.effective_toml + "|" + c.cache_path + "|" + c.dataset.dataset_base_path + "|" +
         std::to_string(c.learning_rate) + "|" + std::to_string(c.lora.rank);
}

// A run's folder with one checkpoint of this configuration.
void write_run(const std::string& folder, int64_t step, const std::string& toml) {
  run::RunFolder run(folder);
  run.save(step, {.tensors = {}, .texts = {{"config.toml", toml}}}, nlohmann::json::object(), 0);
}

}  // namespace

TEST_CASE("A LoRA run takes its settings from the flags", "[config]") {
  const Training c = parse(kLora + Arguments{"--lora_target_modules",
                                             "to_q, to_k,to_v",
                                             "--lora_rank=8",
                                             "--lora_alpha",
                                             "4",
                                             "--learning_rate",
                                             "1e-3",
                                             "--seed",
                                             "7",
                                             "--batch_size",
                                             "2",
                                             "--gradient_accumulation_steps",
                                             "3",
                                             "--dataset_repeat",
                                             "50",
                                             "--max_pixels",
                                             "65536",
                                             "--height",
                                             "64",
                                             "--width",
                                             "32",
                                             "--save_steps",
                                             "100",
                                             "--lr_scheduler",
                                             "cosine",
                                             "--lr_warmup_steps",
                                             "10",
                                             "--optimizer_type",
                                             "Adafactor",
                                             "--optimizer_args",
                                             "scale_parameter=true,clip_threshold=2",
                                             "--timestep_sampling",
                                             "logit_normal",
                                             "--logit_mean",
                                             "-0.5",
                                             "--weighting_scheme",
                                             "cosmap",
                                             "--lora_format",
                                             "kohya",
                                             "--validate",
                                             "full",
                                             "--output_path",
                                             "out",
                                             "--enable_tensorboard_log=false",
                                             "--enable_csv_log",
                                             "--attention",
                                             "math",
                                             "--deterministic",
                                             "--threads",
                                             "2",
                                             "--model_paths",
                                             "[\"a\"]"});
  CHECK(c.lora.target_modules == std::vector<std::string>{"to_q", "to_k", "to_v"});
  CHECK(c.lora.base_models == std::vector<std::string>{"dit"});
  CHECK(c.lora.rank == 8);
  CHECK(c.lora.alpha == 4.0);
  CHECK(c.lora.format == lora::Format::kKohya);
  CHECK(c.learning_rate == 1e-3);
  CHECK(c.seed == 7);
  CHECK(c.order.seed == 7);
  CHECK(c.optimizer.seed == 7);
  CHECK(c.order.batch_size == 2);
  CHECK(c.order.gradient_accumulation_steps == 3);
  CHECK(c.order.dataset_repeat == 50);
  CHECK(c.dataset.max_pixels == 65536);
  CHECK(c.dataset.height == 64);
  CHECK(c.dataset.width == 32);
  CHECK(c.dataset.decode_all);
  CHECK(c.dataset.dataset_base_path == "data");
  CHECK(c.output.save_steps == 100);
  CHECK(c.lr_schedule.kind == "cosine");
  CHECK(c.lr_schedule.warmup_steps == 10);
  CHECK(c.optimizer.kind == optim::Kind::kAdafactor);
  CHECK(c.optimizer.scale_parameter);
  CHECK(c.optimizer.clip_threshold == 2.0);
  CHECK(c.timesteps.sampling == TimestepSampling::kLogitNormal);
  CHECK(c.timesteps.logit_mean == -0.5);
  CHECK(c.timesteps.weighting == Weighting::kCosmap);
  CHECK(!c.log.tensorboard);
  CHECK(c.log.csv);
  CHECK((c.process.attention == ops::AttentionBackend::kMath));
  CHECK(c.process.is_deterministic);
  CHECK(c.process.threads == 2);
  CHECK(c.model.model_paths == "[\"a\"]");
  CHECK(c.cache_path == "out/cache");
  CHECK(c.notes.empty());
}

TEST_CASE("Flags that are not given leave a configuration as it is made", "[config]") {
  const Training c = parse(kLora), made;
  CHECK(c.seed == made.seed);
  CHECK(c.learning_rate == made.learning_rate);
  CHECK(c.weight_decay == made.weight_decay);
  CHECK(c.optimizer.eps == made.optimizer.eps);
  CHECK(c.timesteps.mode_scale == made.timesteps.mode_scale);
  CHECK(c.dataset.data_file_keys == made.dataset.data_file_keys);
  CHECK(c.dataset.max_pixels == made.dataset.max_pixels);
  CHECK(c.dataset_num_workers == made.dataset_num_workers);
  CHECK(c.output.output_path == made.output.output_path);
  CHECK(c.output.save_state == made.output.save_state);
  CHECK(c.log.tensorboard == made.log.tensorboard);
  CHECK(c.validation.steps == made.validation.steps);
  CHECK(c.lora.target_modules.empty());
  CHECK(!c.lora.alpha);
  CHECK(!c.max_train_steps);
  CHECK(!c.output.save_steps);
}

TEST_CASE("A command line of DiffSynth-Studio is read as it stands", "[config]") {
  const Training c = parse({"--plugin",
                            "toy",
                            "--dataset_base_path",
                            "data/example_image_dataset",
                            "--dataset_metadata_path",
                            "data/example_image_dataset/metadata.csv",
                            "--max_pixels",
                            "1048576",
                            "--dataset_repeat",
                            "50",
                            "--model_id_with_origin_paths",
                            "Qwen/Qwen-Image:transformer/diffusion_pytorch_model*.safetensors,"
                            "Qwen/Qwen-Image:text_encoder/model*.safetensors,"
                            "Qwen/Qwen-Image:vae/diffusion_pytorch_model.safetensors",
                            "--learning_rate",
                            "1e-5",
                            "--num_epochs",
                            "2",
                            "--remove_prefix_in_ckpt",
                            "pipe.dit.",
                            "--output_path",
                            "./models/train/Qwen-Image_full",
                            "--trainable_models",
                            "dit",
                            "--use_gradient_checkpointing",
                            "--find_unused_parameters"});
  CHECK(c.trainable_models == std::vector<std::string>{"dit"});
  CHECK(c.lora.base_models.empty());
  CHECK(c.num_epochs == 2);
  CHECK(c.learning_rate == 1e-5);
  CHECK(c.use_gradient_checkpointing);
  CHECK(c.model.model_id_with_origin_paths.starts_with("Qwen/Qwen-Image:transformer/"));
  CHECK(c.notes.size() == 2);
  CHECK(count_notes(c, "--find_unused_parameters has no effect") == 1);
  CHECK(count_notes(c, "--remove_prefix_in_ckpt has no effect") == 1);

  const Training both = parse(
      {"--plugin", "toy", "--dataset_base_path", "data", "--trainable_models",
       "text_encoder,dit.blocks.0", "--lora_base_model", "dit", "--lora_target_modules", "to_q",
       "--fp8_models", "a,b", "--enable_model_cpu_offload", "--use_gradient_checkpointing_offload",
       "--param_size_threshold", "100", "--initialize_model_on_cpu", "--enable_wandb_log"});
  CHECK(both.trainable_models == std::vector<std::string>{"text_encoder", "dit.blocks.0"});
  CHECK(both.lora.target_modules == std::vector<std::string>{"to_q"});
  CHECK(both.use_gradient_checkpointing);
  CHECK(both.offloads_activations);
  CHECK(both.notes.size() == 3);
  CHECK(both.model.fp8_models == std::vector<std::string>{"a", "b"});
  CHECK(count_notes(both, "--enable_tensorboard_log") == 1);
}

TEST_CASE("An activation budget wins over checkpointing, and says so", "[config]") {
  const std::vector<std::string> words = {"--plugin",          "toy", "--dataset_base_path", "data",
                                          "--lora_base_model", "dit"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), words.begin(), words.end());
    return parse(more);
  };
  CHECK_FALSE(with({}).activation_budget);
  const Training c = with({"--activation_memory_budget", "12GiB", "--use_gradient_checkpointing"});
  CHECK(c.activation_budget.value().bytes == int64_t{12} << 30);
  CHECK(count_notes(c, "--use_gradient_checkpointing has no effect beside") == 1);
  CHECK(with({"--activation_memory_budget", "0.5"}).notes.empty());
  expect_wrong({"--activation_memory_budget", "12"},
               {"--activation_memory_budget: \"12\"", "a number from 0 to 1"});
}

TEST_CASE("What would change the result is refused, with what to use", "[config]") {
  expect_wrong({"--customized_optimizer", "lion_pytorch.Lion", "--quant_options", "dit:nf4",
                "--num_frames", "0"},
               {"3 mistakes", "--customized_optimizer: ", "use --optimizer_type",
                "--quant_options \"dit:nf4\": the method is not one of \"bitsandbytes_nf4\"",
                "--num_frames: 0 is "},
               ErrorCode::kUnsupported);
}

TEST_CASE("Flags of other trainers are answered with what they are here", "[config]") {
  test::expect_error(ErrorCode::kInvalidArgument,
                     {"14 mistakes",
                      "--network_dim is a flag of kohya's trainers; use --lora_rank",
                      "--network_args",
                      "--lora_target_modules",
                      "--gemma2",
                      "--model_paths",
                      "--cache_latents",
                      "--gradient_checkpointing",
                      "use --use_gradient_checkpointing",
                      "--save_every_n_steps",
                      "use --save_steps",
                      "--timestep_sampling: \"nextdit_shift\"",
                      "did you mean uniform_dynamic_shift?",
                      "--network_module",
                      "--output_dir",
                      "--config_file is a flag of a launcher, not of train; atelier launch",
                      "--num_processes",
                      "--mixed_precision",
                      "--dtype",
                      "--lr is a flag of other trainers; use --learning_rate",
                      "--use_bf16 is a flag of other trainers; use --dtype bfloat16"},
                     [] {
                       parse(kLora + Arguments{"--network_module",
                                               "networks.lora_lumina",
                                               "--network_dim=16",
                                               "--network_args",
                                               "attn_dim=8",
                                               "mlp_dim=4",
                                               "--gemma2",
                                               "a.st",
                                               "--cache_latents",
                                               "--gradient_checkpointing",
                                               "--save_every_n_steps",
                                               "100",
                                               "--timestep_sampling",
                                               "nextdit_shift",
                                               "--output_dir",
                                               "out",
                                               "--config_file",
                                               "zero2.yaml",
                                               "--num_processes=8",
                                               "--mixed_precision",
                                               "bf16",
                                               "--lr",
                                               "1",
                                               "--use_bf16"});
                     });
  // A value with an equals sign is no flag.
  CHECK(parse(kLora + Arguments{"--output_path", "a="}).output.output_path == "a=");
  // Names of one meaning stay.
  const Training c = parse(
      kLora + Arguments{"--timestep_sampling", "sigmoid_dynamic_shift", "--sigmoid_scale", "0.5"});
  CHECK(c.timesteps.sampling == TimestepSampling::kSigmoidDynamicShift);
  CHECK(c.timesteps.sigmoid_scale == 0.5);
}

TEST_CASE("Without a family the rest of a command line is checked", "[config]") {
  report::Problems problems;
  const Arguments arguments = {"--learning_rate",   "much", "--batch_size",        "0",
                               "--lora_rnk",        "4",    "--dataset_base_path", "absent",
                               "--lora_base_model", "dit"};
  read_training({arguments, train_command(nullptr), problems}, nullptr, problems);
  test::expect_error(ErrorCode::kInvalidArgument,
                     {"--learning_rate: \"much\" is no number", "--batch_size: 0 is less than 1",
                      "--lora_rnk is not known to train; did you mean --lora_rank?",
                      "--dataset_base_path: absent is not there"},
                     [&] { problems.throw_if_any(); });
}

TEST_CASE("A seed of 64 bits goes through a configuration file", "[config]") {
  const Folder folder;
  const Training c = parse(kLora + Arguments{"--seed", "18446744073709551615"});
  CHECK(c.seed == UINT64_MAX);
  write_bytes(folder / "run.toml", c.effective_toml);
  CHECK(parse({"--config", folder / "run.toml"}).seed == UINT64_MAX);
  expect_wrong({"--seed", "-1"}, {"--seed: -1 is less than 0"});
}

TEST_CASE("Lists are JSON or cut at commas, on the command line and in a file", "[config]") {
  const Folder folder;
  using List = std::vector<std::string>;
  const Training c = parse(kLora + Arguments{"--fp8_models", R"(["a,1","b"])",
                                             "--lora_target_modules", R"(["to_q", "to_k"])"});
  CHECK(c.model.fp8_models == List{"a,1", "b"});
  CHECK(c.lora.target_modules == List{"to_q", "to_k"});
  write_bytes(folder / "run.toml", c.effective_toml);
  const Training again = parse({"--config", folder / "run.toml"});
  CHECK(again.model.fp8_models == c.model.fp8_models);
  CHECK(again.lora.target_modules == c.lora.target_modules);
}

TEST_CASE("Lengths of pieces are one number or several, on the command line and in a file",
          "[config]") {
  const Folder folder;
  using Numbers = std::vector<int64_t>;
  CHECK(parse(kLora).dataset.clips.num_frames.empty());
  for (const auto& [text, numbers, written] :
       {std::tuple("81", Numbers{81}, "num_frames = 81\n"),
        std::tuple("1,25,45", Numbers{1, 25, 45}, "num_frames = [1, 25, 45]\n")}) {
    const Training c = parse(kLora + Arguments{"--num_frames", text});
    CHECK(c.dataset.clips.num_frames == numbers);
    CHECK_THAT(c.effective_toml, Contains(written));
    write_bytes(folder / "run.toml", c.effective_toml);
    const Training again = parse({"--config", folder / "run.toml"});
    CHECK(again.dataset.clips.num_frames == numbers);
    CHECK(again.effective_toml == c.effective_toml);
  }
  expect_wrong({"--num_frames", "5,0,-3"},
               {"--num_frames: 0 is less than 1", "--num_frames: -3 is less than 1"});
  write_bytes(folder / "wrong.toml", "num_frames = [1, \"a\"]\n");
  expect_wrong({"--config", folder / "wrong.toml"},
               {"wrong.toml:1: num_frames: is a list with text"});
  write_bytes(folder / "wrong.toml", "num_frames = true\n");
  expect_wrong({"--config", folder / "wrong.toml"}, {"is not a whole number or a list of them"});
}

TEST_CASE("A family without images beside the ones to learn takes no control files", "[config]") {
  expect_wrong({"--control_path", "b", "--validation_control_path", "c",
                "--validation_dataset_base_path", "d"},
               {"--control_path: this model is trained with no images",
                "--validation_control_path: this model is trained with no images"},
               ErrorCode::kUnsupported);
  expect_wrong({"--validation_control_path", "c"},
               {"--validation_control_path: there is no dataset to validate on"});
}

TEST_CASE("A configuration file gives what the command line leaves out", "[config]") {
  const Folder folder;
  write_bytes(folder / "run.toml", R"(# of a run
learning_rate = 5e-4
weight_decay = 0
seed = 3
lora_rank = 4
use_rslora = true
lora_target_modules = ["to_q", "to_k"]
data_file_keys = "image,control"
model_paths = ["a", ["b-1", "b-2"]]
model_hints = { "*x*" = { component = "dit" } }
output_path = "runs/\u00fc"
)");
  const Training c = parse(kLora + Arguments{"--config", folder / "run.toml", "--lora_rank", "16"});
  CHECK(c.learning_rate == 5e-4);
  CHECK(c.weight_decay == 0.0);
  CHECK(c.seed == 3);
  CHECK(c.lora.rank == 16);
  CHECK(c.lora.use_rslora);
  CHECK(c.lora.target_modules == std::vector<std::string>{"to_q", "to_k"});
  CHECK(c.dataset.data_file_keys == std::vector<std::string>{"image", "control"});
  CHECK(c.model.model_paths == R"(["a",["b-1","b-2"]])");
  CHECK(c.model.hints.at("*x*").component == "dit");
  CHECK(c.output.output_path == "runs/ü");
}

TEST_CASE("Mistakes of a configuration file name its lines", "[config]") {
  const Folder folder;
  const std::string file = folder / "run.toml";
  write_bytes(file, R"(learning_rat = 1e-4
lora_rank = "eight"
seed = 1.5
use_rslora = 1
output_path = 3
lora_target_modules = ["a", 2]
trainable_models = ["a,b"]
num_epochs = 0
lora_alpha = inf
task = "stf"

[optimizer]
kind = "AdamW"
)");
  expect_wrong(
      {"--config", file},
      {"11 mistakes", file + ":1: \"learning_rat\" is not known; did you mean learning_rate?",
       file + ":2: lora_rank: text is not a whole number", file + ":3: seed: a number is not",
       file + ":4: use_rslora: a whole number is not true or false",
       file + ":5: output_path: a whole number is not text",
       file + ":6: lora_target_modules: is a list with a whole number",
       file + ":7: trainable_models: \"a,b\" is no component",
       file + ":8: num_epochs: 0 is less than 1",
       file + ":9: lora_alpha: ", file + ":10: task: \"stf\" is not one of",
       file + ":12: \"optimizer\" is not known; keys stand at the top level"});
  write_bytes(file, "network_dim = 8\n\nmax_train_epochs = 2\nlr = 1e-4\n");
  expect_wrong({"--config", file},
               {file + ":1: \"network_dim\" is a flag of kohya's trainers; use --lora_rank",
                file + ":3: \"max_train_epochs\" is a flag of kohya's trainers; use --num_epochs",
                file + ":4: \"lr\" is a flag of other trainers; use --learning_rate"});
  write_bytes(file, "seed = 1\nlora_rank = \n");
  expect_wrong({"--config", file}, {file + ":2: ", "TOML is expected"});
  std::string deep = "model_paths";
  for (int i = 0; i < 200'000; ++i) deep += ".a";
  write_bytes(file, "\n" + deep + " = 1\n");
  expect_wrong({"--config", file},
               {file + ":2: a name has more than 16 parts", "TOML is expected"});
  write_bytes(file, "seed = 1\nseed = 2\n");
  expect_wrong({"--config", file}, {file + ":2: "});
  write_bytes(file, "config = \"other.toml\"\n");
  expect_wrong({"--config", file}, {file + ":1: config: a configuration names no other"});
  expect_wrong({"--config", folder / "none.toml"}, {"none.toml: No such file"},
               ErrorCode::kNotFound);
  expect_wrong({"--config", folder.path()}, {"--config: ", "it is no regular file"});
}

TEST_CASE("The effective configuration gives the same configuration again", "[config]") {
  const Folder folder;
  write_bytes(folder / "p\"1\x7f\n.txt", "a lighthouse");
  write_bytes(folder / "lora.safetensors", "");
  const Arguments given = kLora + Arguments{"--learning_rate",
                                            "3e-4",
                                            "--lora_alpha",
                                            "1",
                                            "--adam_epsilon",
                                            "1e-10",
                                            "--lora_dropout",
                                            "0.1",
                                            "--sample_prompts",
                                            folder / "p\"1\x7f\n.txt",
                                            "--sample_at_first",
                                            "--model_hints",
                                            R"({"*": {"component": "dit"}})",
                                            "--model_paths",
                                            R"(["a", ["b"]])",
                                            "--data_file_keys",
                                            "",
                                            "--max_train_steps",
                                            "20",
                                            "--lora_target_modules",
                                            "to_q,to_k",
                                            "--save_state=false",
                                            "--fp8_models",
                                            "x",
                                            "--lora_checkpoint",
                                            folder / "lora.safetensors",
                                            "--dtype",
                                            "float32",
                                            "--logit_std",
                                            "2"};
  const Training first = parse(given);
  CHECK_THAT(first.effective_toml, Contains("learning_rate = 3e-04") && Contains("seed = 42\n") &&
                                       Contains("lora_target_modules = [\"to_q\", \"to_k\"]") &&
                                       Contains("lora_alpha = 1.0\n") &&
                                       Contains("data_file_keys = []") &&
                                       Contains("plugin = \"toy\""));
  CHECK(first.effective_toml.find("\nconfig = ") == std::string::npos);
  write_bytes(folder / "effective.toml", first.effective_toml);
  const Training second = parse({"--config", folder / "effective.toml"});
  CHECK(second.effective_toml == first.effective_toml);
  write_bytes(folder / "again.toml", second.effective_toml);
  CHECK(all_of(parse({"--config", folder / "again.toml"})) == all_of(second));
  CHECK(second.previews.prompts_file == first.previews.prompts_file);
  CHECK(second.model.hints.at("*").component == "dit");
  CHECK(second.dataset.data_file_keys.empty());
  CHECK(second.optimizer.eps == 1e-10);
  CHECK(!second.output.save_state);
  CHECK(second.lora.alpha == 1.0);
  CHECK(second.max_train_steps == 20);
  CHECK(second.notes.size() == first.notes.size());
}

TEST_CASE("The effective configuration means the same in any folder", "[config]") {
  const Folder folder;
  const test::fs::path before = test::fs::current_path();
  test::fs::current_path(folder.path());
  const std::string here = test::fs::current_path().string();
  write_bytes(here + "/models/near_by/image/a.safetensors", "");
  const Training first =
      parse(kLora + Arguments{"--model_paths", R"(["a", ["./b-1", "/c/b-*"]])", "--fp8_models",
                              "a,near_by/image:a.safetensors", "--plugin_path", "plugins:/d",
                              "--model_id_with_origin_paths",
                              "near_by/image:a.safetensors,far/away:*.safetensors", "--model_hints",
                              R"({"x/y": {"component": "dit"}, "*z": {"component": "vae"}})",
                              "--output_path", "../runs/one", "--report_memory", "memory.csv"});
  write_bytes(here + "/effective.toml", first.effective_toml);
  test::fs::current_path(before);
  const Training c = parse({"--config", folder / "effective.toml"});
  CHECK(c.dataset.dataset_base_path == here + "/data");
  CHECK(c.output.output_path == here + "/../runs/one");  // ".." may lead through a link
  CHECK(c.memory.report == here + "/memory.csv");
  CHECK(c.model.model_paths == "[\"" + here + "/a\",[\"" + here + "/b-1\",\"/c/b-*\"]]");
  const std::string near_by = here + "/models/near_by/image:a.safetensors";
  CHECK(c.model.model_id_with_origin_paths == near_by + ",far/away:*.safetensors");
  CHECK(c.model.fp8_models == std::vector<std::string>{here + "/a", near_by});
  CHECK(c.model.hints.at("*x/y").component == "dit");
  CHECK(c.model.hints.at("*z").component == "vae");
  CHECK_THAT(first.effective_toml,
             Contains("plugin_path = \"" + here + "/plugins:/d\"") && Contains("plugin = \"toy\""));
}

TEST_CASE("A resumed run brings its configuration below all others", "[config]") {
  const Folder folder;
  write_bytes(folder / "lora.safetensors", "");
  const Training first =
      parse(kLora + Arguments{"--lora_rank", "4", "--learning_rate", "2e-4", "--num_epochs", "3",
                              "--weight_decay", "0.5", "--output_path", folder / "elsewhere",
                              "--cache_path", folder / "elsewhere/encoded", "--lora_checkpoint",
                              folder / "lora.safetensors"});
  write_run(folder / "out", 10, first.effective_toml);
  write_bytes(folder / "more.toml", "num_epochs = 5\nweight_decay = 0.01\n");

  const Training c = parse(
      {"--resume", folder / "out", "--config", folder / "more.toml", "--learning_rate", "1e-4"});
  CHECK(c.resume == folder / "out");
  CHECK(c.lora.rank == 4);
  CHECK(c.inherited.contains("lora_rank"));
  CHECK_FALSE(c.inherited.contains("num_epochs"));     // --config says it
  CHECK_FALSE(c.inherited.contains("learning_rate"));  // the command line says it
  CHECK(c.lora.base_models == std::vector<std::string>{"dit"});
  CHECK(c.dataset.dataset_base_path == test::fs::absolute("data").string());
  CHECK(c.learning_rate == 1e-4);
  CHECK(c.num_epochs == 5);
  CHECK(c.weight_decay == 0.01);  // of --config, though it is the preset
  CHECK(c.lora.checkpoint.empty());
  CHECK(c.output.output_path == folder / "out");  // where the run is now
  CHECK(c.cache_path == folder / "out/encoded");
  CHECK(c.output.is_resumed);
  CHECK_FALSE(parse({"--resume", folder / "out", "--output_path", folder / "b"}).output.is_resumed);
  CHECK(c.notes.empty());
  report::Problems problems;
  CHECK(Words({"--resume", folder / "out"}, train_command(nullptr), problems).find("plugin") ==
        "toy");

  expect_wrong({"--resume", folder / "out", "--lora_checkpoint", folder / "lora.safetensors"},
               {"--lora_checkpoint: the run that is resumed brings its own values"});
  expect_wrong({"--resume", folder / "none"}, {"none"}, ErrorCode::kNotFound);
}

TEST_CASE("Epochs that are said take the place of the steps of the run that is resumed",
          "[config]") {
  const Folder folder;
  const std::string run =
      parse(kLora + Arguments{"--lora_rank", "4", "--max_train_steps", "4"}).effective_toml;
  write_run(folder / "saved", 4, run);
  write_bytes(folder / "begun/config.toml", run);
  write_bytes(folder / "more.toml", "num_epochs = 2\n");
  for (const char* name : {"saved", "begun"}) {
    const Arguments resume = {"--resume", folder / name};
    CHECK(parse(resume).max_train_steps == 4);
    CHECK(
        parse(resume + Arguments{"--num_epochs", "2", "--max_train_steps", "9"}).max_train_steps ==
        9);
    for (const Arguments& epochs :
         {Arguments{"--num_epochs", "2"}, Arguments{"--config", folder / "more.toml"}}) {
      const Training c = parse(resume + epochs);
      CHECK(c.num_epochs == 2);
      CHECK(!c.max_train_steps);
      CHECK_THAT(c.effective_toml, !Contains("max_train_steps"));
    }
  }
}

TEST_CASE("A run without a checkpoint begins again with its configuration", "[config]") {
  const Folder folder;
  write_bytes(folder / "lora.safetensors", "");
  const Training first =
      parse(kLora + Arguments{"--lora_rank", "4", "--output_path", folder / "out",
                              "--lora_checkpoint", folder / "lora.safetensors"});
  write_bytes(folder / "out/config.toml", first.effective_toml);
  test::fs::rename(folder / "out", folder / "moved");
  const Training c = parse({"--resume", folder / "moved", "--learning_rate", "1e-3"});
  CHECK(c.resume.empty());
  CHECK(c.output.is_resumed);
  CHECK(c.output.output_path == folder / "moved");
  CHECK(c.lora.rank == 4);
  CHECK(c.learning_rate == 1e-3);
  CHECK(c.lora.checkpoint == folder / "lora.safetensors");  // it begins from the beginning
  CHECK(count_notes(c, "no checkpoint in " + (folder / "moved") + ", training begins from the") ==
        1);
}

TEST_CASE("A run that has weights and no checkpoint is not said to begin again", "[config]") {
  const Folder folder;
  write_bytes(folder / "out/config.toml", parse(kLora).effective_toml);
  write_bytes(folder / "out/step-4.safetensors", "");
  CHECK(parse({"--resume", folder / "out"}).notes.empty());  // and is refused by its folder
  CHECK(count_notes(parse({"--resume", folder / "out", "--output_path", folder / "new"}),
                    "training begins from the beginning") == 1);
}

TEST_CASE("The latest checkpoint is that of the output folder, if there is one", "[config]") {
  const Folder folder;
  const Arguments latest = kLora + Arguments{"--output_path", folder / "out", "--resume", "latest"};
  const Training fresh = parse(latest);
  CHECK(fresh.resume.empty());
  CHECK(count_notes(fresh, "--resume latest: no checkpoint in") == 1);
  write_run(folder / "out", 3, parse(kLora + Arguments{"--lora_rank", "4"}).effective_toml);
  const Training resumed = parse(latest);
  CHECK(resumed.resume == folder / "out");
  CHECK(resumed.lora.rank == 4);
  CHECK(resumed.notes.empty());
  // What a run begins with may stay on a line that also goes on with it.
  write_bytes(folder / "lora.safetensors", "");
  const Arguments begun = latest + Arguments{"--lora_checkpoint", folder / "lora.safetensors"};
  CHECK(parse(begun).lora.checkpoint.empty());
  CHECK(parse(begun).resume == folder / "out");
  write_run(folder / "other", 5, parse(kLora + Arguments{"--lora_rank", "8"}).effective_toml);
  test::fs::copy(folder / "other/checkpoints/step-00000005",
                 folder / "out/checkpoints/step-00000005");
  for (const Arguments& arguments : {latest, Arguments{"--resume", folder / "out"}})
    expect_wrong(arguments, {"out/checkpoints/step-00000005: is of another run than"});
}

TEST_CASE("What is trained must be said, and be there", "[config]") {
  const Arguments none = {"--plugin", "toy", "--dataset_base_path", "data"};
  test::expect_error(ErrorCode::kInvalidArgument,
                     {"nothing is trained", "--lora_base_model dit", "--trainable_models dit"},
                     [&] { parse(none); });
  CHECK(parse(none + Arguments{"--task", "sft:data_process"}).stage == Stage::kDataProcess);
  CHECK(parse(none, "cache").stage == Stage::kDataProcess);
  CHECK(parse(none + Arguments{"--dry_run"}, "cache").dry_run);
  test::expect_error(
      ErrorCode::kInvalidArgument,
      {"3 mistakes", "\"text_encodr\" is no component of toy", "did you mean text_encoder?",
       "\"text_encoder\"", "--lora_base_model: \"tokenizer\" is no component",
       "--preset_lora_model: \"unet\""},
      [&] {
        parse(none + Arguments{"--trainable_models", "text_encodr.table", "--lora_base_model",
                               "tokenizer", "--preset_lora_path", "/", "--preset_lora_model",
                               "unet"});
      });
  expect_wrong({"--trainable_models", "dit"}, {"\"dit\" is trained whole and gets a LoRA"});
}

TEST_CASE("Numbers outside their range are all told at once", "[config]") {
  expect_wrong({"--lora_rank",
                "0",
                "--batch_size",
                "0",
                "--save_steps",
                "0",
                "--learning_rate",
                "0",
                "--lora_dropout",
                "1",
                "--caption_dropout_rate",
                "1.5",
                "--adam_beta2",
                "1",
                "--ema_decay",
                "-0.1",
                "--min_timestep_boundary",
                "0.5",
                "--max_timestep_boundary",
                "0.5",
                "--dataset_num_workers",
                "-1",
                "--validation_timesteps",
                "1001",
                "--seed",
                "-1",
                "--lr_warmup_steps",
                "-5",
                "--lr_scheduler",
                "cosin"},
               {"--lora_rank: 0 is less than 1", "--batch_size: 0", "--save_steps: 0",
                "--learning_rate: 0 is outside (0, inf)", "--lora_dropout: 1 is outside [0, 1)",
                "--caption_dropout_rate: 1.5 is outside [0, 1]", "--adam_beta2", "--ema_decay",
                "--min_timestep_boundary: 0.5 is not below --max_timestep_boundary 0.5",
                "--dataset_num_workers: -1", "--validation_timesteps: 1001 is more than 1000",
                "--seed: -1", "--lr_warmup_steps: -5 is less than 0", "--lr_scheduler: "});
  expect_wrong(
      {"--num_epochs", "2147483648", "--batch_size", "2147483648", "--gradient_accumulation_steps",
       "9223372036854775807", "--dataset_repeat", "4294967296"},
      {"--num_epochs: 2147483648 is more than 2147483647", "--batch_size: 2147483648",
       "--gradient_accumulation_steps: ", "--dataset_repeat: 4294967296 is more than"});
}

TEST_CASE("Flags that need or exclude one another are told with both names", "[config]") {
  const Folder folder;
  write_bytes(folder / "file", "x");
  expect_wrong({"--height", "64"}, {"--height: is given without --width"});
  expect_wrong({"--height", "64", "--width", "64", "--enable_bucket"},
               {"--enable_bucket: all images have one size"});
  expect_wrong({"--enable_bucket", "--min_bucket_reso", "4096"},
               {"--min_bucket_reso: 4096 is more than --max_bucket_reso 2048"});
  expect_wrong({"--preset_lora_path", folder / "file"}, {"give --preset_lora_model dit"});
  expect_wrong({"--preset_lora_model", "dit"}, {"give --preset_lora_path FILE"});
  expect_wrong({"--lora_checkpoint", folder / "none"}, {"--lora_checkpoint: ", "is not there"},
               ErrorCode::kNotFound);
  expect_wrong({"--resume_from_checkpoint", folder / "file"},
               {"holds one component, and 0 are trained", "--lora_checkpoint"});
  expect_wrong({"--sample_prompts", folder / "file"}, {"--sample_every_n_steps"});
  expect_wrong({"--sample_every_n_steps", "5"}, {"give --sample_prompts FILE"});
  expect_wrong({"--validation_steps", "5"}, {"give --validation_dataset_base_path"});
  expect_wrong({"--extra_inputs", "count,edit_image"},
               {"\"edit_image\" is no input of toy; they are \"prompt\", \"count\""});
  expect_wrong({"--optimizer_args", "betas=0.9"}, {"\"betas\" is not known", "--adam_beta1"});
  expect_wrong({"--optimizer_args", "d_coef=x"}, {"d_coef: \"x\" is no number"});
  expect_wrong({"--optimizer_args", "decouple=False"},
               {"decouple: \"False\" is not done, as weight decay is decoupled", "leave it out"});
  expect_wrong({"--optimizer_args", "weight_decay=0.2"},
               {"weight_decay: it is a flag here", "use --weight_decay 0.2"});
  // What published lines of Prodigy and Adafactor say, and is done anyway.
  CHECK(parse(kLora + Arguments{"--optimizer_type", "Prodigy", "--weight_decay", "0.2",
                                "--optimizer_args",
                                "decouple=True,weight_decay=0.2,eps=1e-8,slice_p=1,growth_rate=inf,"
                                "relative_step=False,d_coef=2"})
            .optimizer.prodigy_d_coef == 2);
  CHECK(parse(kLora + Arguments{"--task", "direct_distill", "--extra_inputs",
                                "seed,rand_device,num_inference_steps,cfg_scale"})
            .dataset.extra_inputs.empty());
}

TEST_CASE("Wrong values are told together with everything else", "[config]") {
  test::expect_error(ErrorCode::kInvalidArgument,
                     {"5 mistakes", "--lora_rnk is not known to train; did you mean --lora_rank?",
                      "--learning_rate: \"fast\" is no number", "--dataset_base_path is missing",
                      "nothing is trained", "--model_hints"},
                     [] {
                       parse({"--lora_rnk", "4", "--learning_rate", "fast", "--model_hints", "[]"});
                     });
  expect_wrong({"--output_path", "a\xff"}, {"--output_path: byte 1 is no UTF-8"});
}

TEST_CASE("Flags that other flags make meaningless are noted", "[config]") {
  const Training c = parse({"--plugin", "toy", "--dataset_base_path", "data", "--trainable_models",
                            "dit", "--logit_mean", "1", "--lora_rank", "4", "--bucket_reso_steps",
                            "32", "--lr_scheduler_power", "2", "--optimizer_type", "Prodigy"});
  CHECK(c.notes.size() == 5);
  CHECK(count_notes(c, "--logit_mean has no effect without --timestep_sampling logit_normal") == 1);
  CHECK(count_notes(c, "--lora_rank has no effect without --lora_base_model") == 1);
  CHECK(count_notes(c, "--learning_rate: Prodigy") == 1);
}

TEST_CASE("The second stage finds a cache where the first one was told to write", "[config]") {
  const Folder folder;
  const Arguments train = {"--plugin",           "toy", "--task",        "sft:train",
                           "--lora_base_model",  "dit", "--output_path", folder / "second",
                           "--dataset_base_path"};
  write_bytes(folder / "cache/manifest.json", "{}");
  write_bytes(folder / "first/cache/manifest.json", "{}");
  write_bytes(folder / "images/a.txt", "a");
  Training c = parse(train + Arguments{folder / "cache"});
  CHECK(c.stage == Stage::kTrain);
  CHECK(c.cache_path == folder / "cache");
  CHECK(c.dataset.dataset_base_path.empty());
  CHECK(parse(train + Arguments{folder / "first"}).cache_path == folder / "first/cache");

  CHECK(count_notes(c, "keep their sizes") == 0);
  const Arguments sizes = {"--height",           "64",   "--width", "64", "--num_frames", "5",
                           "--frame_extraction", "chunk"};
  CHECK(count_notes(parse(train + Arguments{folder / "cache"} + sizes),
                    "--height, --width, --num_frames, --frame_extraction: samples that a cache has "
                    "keep their sizes; say them where the cache is filled") == 1);

  c = parse(train + Arguments{folder / "images", "--cache_path", folder / "cache"});
  CHECK(c.cache_path == folder / "cache");
  CHECK(c.dataset.dataset_base_path == folder / "images");
  c = parse(train + Arguments{"data", "--dataset_metadata_path", "data/metadata.csv"});
  CHECK(c.cache_path == folder / "second/cache");
  CHECK(c.dataset.dataset_base_path == "data");
  test::expect_error(ErrorCode::kNotFound,
                     {"--dataset_base_path: ", "is no cache", "run --task sft:data_process first"},
                     [&] { parse(train + Arguments{folder / "images"}); });
  CHECK(parse({"--plugin", "toy", "--task", "sft:train", "--lora_base_model", "dit", "--cache_path",
               folder / "cache"})
            .cache_path == folder / "cache");
}

TEST_CASE("The document of training has every flag once, under its heading", "[config]") {
  const std::string text = test::read_bytes(ATELIER_SOURCE_DIR "/docs/training.md");
  const flags::CommandSpec command = train_command(nullptr, "cache");
  std::map<std::string, int> rows;
  std::string group;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("## ")) group.clear();
    if (line.starts_with("### ")) group = line.substr(4);
    if (group.empty() || !line.starts_with("| `--")) continue;
    const std::string name = line.substr(5, line.find('`', 5) - 5);
    INFO(name);
    ++rows[name];
    const auto flag = std::find_if(command.flags.begin(), command.flags.end(),
                                   [&](const flags::FlagSpec& f) { return f.name == name; });
    REQUIRE(flag != command.flags.end());
    CHECK(flag->group == group);
    if (flag->preset && !flag->preset->empty())
      CHECK_THAT(line, Contains("| " + *flag->preset + " |"));
  }
  for (const flags::FlagSpec& flag : command.flags) {
    INFO(flag.name);
    CHECK(rows[flag.name] == 1);
  }
}

TEST_CASE("What other programs' flags are called here are flags of train", "[config]") {
  const flags::CommandSpec command = train_command(nullptr);
  int64_t renamed = 0;
  for (const flags::OtherFlag& other : command.others) {
    if (!other.use.starts_with("use --")) continue;
    INFO(other.name);
    const size_t end = other.use.find_first_of(" :,", 6);
    CHECK(flags::find_flag(command, std::string_view(other.use).substr(6, end - 6)) != nullptr);
    ++renamed;
  }
  CHECK(renamed > 40);
}
