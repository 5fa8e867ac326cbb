#include "host/generate/session.h"

#include <filesystem>

#include "host/files/safetensors_writer.h"
#include "host/generate/fill_settings.h"
#include "host/media/png.h"
#include "tests/host/train/image_toy.h"
#include "tests/support/traced_graphs.h"

using namespace atelier;
using namespace atelier::generate;
using namespace atelier::order;
using test::Folder;
using test::read_bytes;

namespace {

// A model of files that is up, and a folder for what it makes.
struct Studio {
  Folder folder;
  std::unique_ptr<model::LoadedModel> model;
  plugins::Plugin plugin;
  Generation order{.plugin = &plugin};
  progress::Progress progress{progress::Options{.quiet = true}};
  std::optional<LoraSet> loras;

  explicit Studio(const model::PlaceByComponent& offload = {}) {
    plugin.file.family = "toy";
    plugin.file.version = "1.2";
    plugin.family = &test::image_toy();
    test::write_toy_model(folder / "model");
    // Random weights of the denoiser would make numbers that are not finite.
    test::write_toy_component(folder / "model/transformer/model.safetensors", "dit", 1, 0.01f);
    model = model::LoadedModel::open(test::image_toy(),
                                     {.model_paths = folder / "model",
                                      .dtype = "float32",
                                      .device = offload.empty() ? "cpu" : "simulated:1GiB",
                                      .placement = {.offload = offload}});
    loras.emplace(*model, lora::Mode::kHot, progress);
  }

  Settings settings(const std::string& output) const {
    Settings settings;
    settings.prompt = "a lighthouse";
    settings.negative_prompt = "grey";  // the toy encodes no empty text
    settings.num_frames = 1;
    settings.height = settings.width = 16;
    settings.seed = 7;
    settings.output = folder / output;
    return settings;
  }

  JobResult make(const Settings& settings) {
    Session session(*model, *loras, order, {}, {}, progress);
    JobResult result;
    session.run(settings, result);
    return result;
  }
  std::string bytes(const Settings& settings) {
    make(settings);
    return read_bytes(settings.output);
  }
};

test::TracedRecorder::Counts graphs_made;

// A recorder of all graphs of the CPU, which a session makes where it may.
std::unique_ptr<ops::GraphRecorder> make_traced_recorder(at::Device) {
  return std::make_unique<test::TracedRecorder>(graphs_made);
}

// A LoRA of a layer of the denoiser.
void write_lora(const std::string& path, const std::string& layer = "embed", int64_t width = 48) {
  const auto factor = [](at::IntArrayRef shape) { return at::full(shape, 0.25); };
  files::write_safetensors(path, {{"transformer." + layer + ".lora_A.weight", factor({2, width})},
                                  {"transformer." + layer + ".lora_B.weight", factor({32, 2})}});
}

}  // namespace

TEST_CASE("A session writes the images that are asked for, the same for the same seed",
          "[session]") {
  Studio studio;
  Settings settings = studio.settings("a.png");
  const JobResult result = studio.make(settings);
  CHECK(result.seed == 7);
  CHECK(result.output == std::vector<std::string>{settings.output});
  const std::string first = read_bytes(settings.output);
  CHECK(studio.bytes(studio.settings("b.png")) == first);
  settings.seed = 8;
  CHECK(studio.bytes(settings) != first);

  settings.num_images = 2;
  CHECK(studio.make(settings).output ==
        std::vector<std::string>{studio.folder / "a_0.png", studio.folder / "a_1.png"});
}

TEST_CASE("A seed that nobody gave is drawn and told", "[session]") {
  Studio studio;
  Settings settings = studio.settings("a.png");
  settings.seed.reset();
  const JobResult drawn = studio.make(settings);
  const std::string first = read_bytes(settings.output);
  REQUIRE(drawn.seed.has_value());
  settings.seed = drawn.seed;
  CHECK(studio.bytes(settings) == first);
  studio.order.leaves_out_metadata = true;
  CHECK(studio.bytes(settings) != first);  // the same image, which does not say how it was made
}

TEST_CASE("Images say how they were made unless they are not to", "[session]") {
  Studio studio;
  const Settings settings = studio.settings("a.png");
  studio.make(settings);
  const media::Text text = media::read_text(settings.output);
  REQUIRE(text.size() == 2);
  CHECK_THAT(text[0].second, Catch::Contains("a lighthouse"));
  CHECK_THAT(text[1].second, Catch::Contains("\"toy\"") && Catch::Contains("\"1.2\""));
  studio.order.leaves_out_metadata = true;
  studio.make(settings);
  CHECK(media::read_text(settings.output).empty());
}

TEST_CASE("Prompts that are encoded ahead make the same images", "[session]") {
  Studio studio;
  const Settings settings = studio.settings("a.png");
  const std::string expected = studio.bytes(settings);
  for (const bool keeps_all : {false, true}) {
    Session session(*studio.model, *studio.loras, studio.order, {.keeps_all = keeps_all}, {},
                    studio.progress);
    Job job;
    job.settings = settings;
    session.encode_ahead({&job, 1});
    CHECK(session.keeps_all() == keeps_all);
    JobResult result;
    session.run(settings, result);
    CHECK(read_bytes(settings.output) == expected);
    CHECK(studio.model->is_loaded("text_encoder") == keeps_all);
  }
}

TEST_CASE("LoRAs come with the request that names them and leave with the next", "[session]") {
  Studio studio;
  const std::string file = studio.folder / "style.safetensors";
  write_lora(file);
  const Settings plain = studio.settings("a.png");
  Settings styled = plain;
  styled.loras = {{"style", file, 1.0}};
  studio.order.leaves_out_metadata = true;
  const std::string expected = studio.bytes(plain);
  CHECK(studio.bytes(styled) != expected);
  CHECK(studio.bytes(plain) == expected);

  report::Problems problems;
  studio.loras->check(styled, {}, problems);
  CHECK(problems.empty());
  styled.loras = {{"none", studio.folder / "none.safetensors", 1.0}};
  studio.loras->check(styled, {"jobs.jsonl", 3}, problems);
  test::expect_error(ErrorCode::kNotFound, {"jobs.jsonl:3: loras", "none.safetensors"},
                     [&] { problems.throw_if_any(); });
}

TEST_CASE("A job that fails is told, and the next one runs", "[session]") {
  std::vector<JobResult> results;
  int made = 0;
  JobRunner runner(
      [&](const Settings& settings, JobResult& result) {
        if (settings.prompt == "too large") throw Error(ErrorCode::kOutOfMemory, "no room");
        if (settings.prompt == "stop") throw Error(ErrorCode::kCancelled, "stopped");
        result.seed = 5;
        ++made;
      },
      [&](const JobResult& result) { results.push_back(result); });
  const auto job = [](uint64_t line, const std::string& prompt) {
    Settings settings;
    settings.prompt = prompt;
    return Job{{"jobs.jsonl", line}, settings};
  };
  runner.run(job(1, "a cat"));
  CHECK(runner.exit_code() == 0);
  runner.run(job(2, "too large"));
  runner.refuse(3, Error(ErrorCode::kInvalidArgument, "no JSON"));
  runner.run(job(4, "a dog"));
  CHECK(made == 2);
  CHECK(runner.exit_code() == exit_code(ErrorCode::kOutOfMemory));  // the first counts
  REQUIRE(results.size() == 4);
  CHECK(results[0].error.empty());
  CHECK(results[0].seed == 5);
  CHECK_THAT(results[1].error, Catch::Contains("no room"));
  CHECK(results[2].line == 3);
  CHECK_THAT(results[2].error, Catch::Contains("no JSON"));
  // After this one the next would fare no better.
  test::expect_error(ErrorCode::kCancelled, {"stopped"}, [&] { runner.run(job(5, "stop")); });
  CHECK(results.size() == 5);
}

TEST_CASE(
    "Images have the same bytes when blocks are graphs, which go with the denoiser's last step",
    "[session][graphs]") {
  ops::register_graph_recorder(at::kCPU, &make_traced_recorder);
  const bool is_away = GENERATE(false, true);
  Studio studio(is_away ? model::PlaceByComponent{{"dit", memory::Place::kHost}}
                        : model::PlaceByComponent());
  const std::string file = studio.folder / "style.safetensors";
  write_lora(file, "blocks.1.down", 32);
  Settings settings = studio.settings("a.png");
  Settings styled = settings;
  styled.loras = {{"style", file, 1.0}};
  Settings stronger = settings;
  stronger.loras = {{"style", file, 3.0}};
  studio.order.leaves_out_metadata = true;
  Session session(*studio.model, *studio.loras, studio.order, {.graph_rows = INT64_MAX}, {},
                  studio.progress);
  std::set<std::string> seen;
  for (const Settings& each : {settings, styled, stronger, settings}) {
    const std::string expected = studio.bytes(each);
    const int before = graphs_made.recorded;
    JobResult result;
    session.run(each, result);
    CHECK(read_bytes(each.output) == expected);
    CHECK(graphs_made.recorded == before + 2);
    CHECK(graphs_made.live == 0);
    seen.insert(expected);
  }
  CHECK(seen.size() == 3);
}

TEST_CASE("A job that is stopped leaves no graphs, and the next one makes its own",
          "[session][graphs]") {
  ops::register_graph_recorder(at::kCPU, &make_traced_recorder);
  Studio studio;
  const Settings settings = studio.settings("a.png");
  const std::string expected = studio.bytes(settings);
  bool stops = true;
  int seen = 0;
  const auto is_cancelled = [&] {
    seen = std::max(seen, graphs_made.live);
    return stops && graphs_made.live > 0;
  };
  Session session(*studio.model, *studio.loras, studio.order, {.graph_rows = INT64_MAX},
                  {.is_cancelled = is_cancelled}, studio.progress);
  JobResult result;
  test::expect_error(ErrorCode::kCancelled, {"stopped"}, [&] { session.run(settings, result); });
  CHECK(seen > 0);
  CHECK(graphs_made.live == 0);
  stops = false;
  session.run(settings, result);
  CHECK(read_bytes(settings.output) == expected);
  CHECK(graphs_made.live == 0);
}

TEST_CASE("Jobs that are added together write what each writes alone", "[session]") {
  Studio studio;
  const std::string file = studio.folder / "style.safetensors";
  write_lora(file);
  studio.order.leaves_out_metadata = true;
  std::vector<Settings> all(3, studio.settings("a.png"));
  all[1].prompt = "a harbour";
  all[1].loras = {{"style", file, 1.0}};
  all[2].seed = 8;
  all[2].height = 32;
  std::vector<std::string> expected;
  for (const Settings& each : all) expected.push_back(studio.bytes(each));
  Session session(*studio.model, *studio.loras, studio.order, {.keeps_all = true, .max_batch = 3},
                  {}, studio.progress);
  std::vector<JobResult> results(all.size());
  std::vector<std::vector<std::string>> files(all.size());
  int64_t steps = 0, previews = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    all[i].output = studio.folder / ("together_" + std::to_string(i) + ".png");
    session.add(all[i],
                {.on_step = [&](int64_t step, int64_t) { steps = std::max(steps, step); },
                 .preview_every = 1,
                 .on_preview =
                     [&](int64_t, const at::Tensor& pixels) {
                       CHECK(pixels.size(0) == 3);
                       ++previews;
                     },
                 .on_file = [&files, i](const std::string& path) { files[i].push_back(path); },
                 .on_done = [&results, i](const JobResult& done) { results[i] = done; }});
  }
  CHECK_FALSE(session.is_idle());
  while (session.advance()) {
  }
  CHECK(session.is_idle());
  CHECK(steps > 1);
  CHECK(previews == 3 * steps);  // the autoencoder is there from the pictures before
  for (size_t i = 0; i < all.size(); ++i) {
    CHECK(results[i].error.empty());
    CHECK(results[i].seed == all[i].seed);
    CHECK(files[i] == std::vector<std::string>{all[i].output});
    CHECK(results[i].output == files[i]);
    CHECK(read_bytes(all[i].output) == expected[i]);
  }
}

TEST_CASE("A job that fails or is cancelled leaves the others as they are", "[session]") {
  Studio studio;
  studio.order.leaves_out_metadata = true;
  const Settings fine = studio.settings("fine.png");
  const std::string expected = studio.bytes(fine);
  std::filesystem::remove(fine.output);
  Session session(*studio.model, *studio.loras, studio.order, {.keeps_all = true, .max_batch = 3},
                  {}, studio.progress);
  Settings wrong = studio.settings("wrong.png"), left = studio.settings("left.png");
  wrong.loras = {{"none", studio.folder / "none.safetensors", 1.0}};
  CHECK_THROWS_AS(session.add(wrong, {}), Error);  // its files are read when it is added
  wrong.loras.clear();
  std::optional<JobResult> failed, done;
  const auto is_told = std::make_shared<bool>(false);
  session.add(wrong,
              {.on_step = [](int64_t,
                             int64_t) { throw Error(ErrorCode::kEnvironment, "the disk is full"); },
               .on_done = [&](const JobResult& result) { failed = result; }});
  session.add(fine, {.on_done = [&](const JobResult& result) { done = result; }});
  const uint64_t job =
      session.add(left, {.on_done = [is_told](const JobResult&) { *is_told = true; }});
  session.advance();
  session.cancel(job);
  while (session.advance()) {
  }
  REQUIRE(failed);
  CHECK_THAT(failed->error, Catch::Contains("the disk is full"));
  CHECK(failed->code == ErrorCode::kEnvironment);
  REQUIRE(done);
  CHECK(done->error.empty());
  CHECK_FALSE(done->code);
  CHECK(read_bytes(fine.output) == expected);
  CHECK_FALSE(*is_told);
  CHECK(is_told.use_count() == 1);  // nothing is held of the job
  CHECK_FALSE(std::filesystem::exists(left.output));
  CHECK_FALSE(std::filesystem::exists(wrong.output));
}

TEST_CASE("Weights that rest leave the device, and wake without their files", "[session]") {
  Studio studio({{"dit", memory::Place::kHost}});
  Settings settings = studio.settings("a.png");
  studio.order.leaves_out_metadata = true;
  Session session(*studio.model, *studio.loras, studio.order, {.keeps_all = true}, {},
                  studio.progress);
  JobResult result;
  session.run(settings, result);
  settings.prompt = "another prompt";
  session.run(settings, result);
  const std::string expected = read_bytes(settings.output);
  const auto held = [&] { return studio.model->transfer()->stats().live_bytes; };
  const int64_t before = held();
  session.rest();
  session.rest();
  CHECK(held() < before);
  for (const char* part : {"text_encoder", "vae"})
    std::filesystem::remove_all(studio.folder / ("model/" + std::string(part)));
  session.run(settings, result);
  CHECK(read_bytes(settings.output) == expected);
  settings.prompt = "a third prompt";
  CHECK_NOTHROW(session.run(settings, result));
}

TEST_CASE("A component that left and came back rests no more", "[session]") {
  Studio studio({{"dit", memory::Place::kHost}});
  model::RestingComponents resting(*studio.model);
  model::load_shown(*studio.model, "vae", studio.progress);
  resting.rest();
  CHECK(resting.is_resting("vae"));
  studio.model->unload_component("vae");
  CHECK_FALSE(resting.is_resting("vae"));
  model::load_shown(*studio.model, "vae", studio.progress);
  CHECK_FALSE(resting.is_resting("vae"));
  resting.rest();
  CHECK(resting.is_resting("vae"));
}

TEST_CASE("What is left open is what the model's folder says that it is for", "[session]") {
  const auto filled = [](const std::string& index, Settings settings = {}) {
    Studio studio;
    if (!index.empty()) test::write_bytes(studio.folder / "model/model_index.json", index);
    fill_target(settings, *studio.model);
    return settings;
  };
  const MediaTarget family = target_of(filled(""));
  CHECK(family.height == 1024);
  CHECK(target_of(filled(R"({"_class_name": "Toy"})")) == family);
  const Settings own =
      filled(R"({"_media_defaults": {"height": 32, "width": 48, "num_frames": 5, "fps": 8.5}})");
  CHECK(target_of(own) == MediaTarget{5, 32, 48});
  CHECK(own.fps == 8.5);
  CHECK(target_of(filled(R"({"_media_defaults": {"width": 48}})")) ==
        MediaTarget{family.frames, family.height, 48});
  Settings said;
  said.height = 64;
  CHECK(target_of(filled(R"({"_media_defaults": {"height": 32, "width": 48}})", said)) ==
        MediaTarget{family.frames, 64, 48});
}

TEST_CASE("A denoiser that is named beside a model's folder goes by what the folder says",
          "[session]") {
  const Studio studio;
  test::write_bytes(studio.folder / "model/model_index.json",
                    R"({"_media_defaults": {"height": 32, "width": 48}})");
  test::write_bytes(studio.folder / "model/scheduler/scheduler_config.json", R"({"shift": 8.0})");
  const auto filled = [&](const std::string& denoiser) {
    test::write_toy_component(studio.folder / denoiser, "dit", 2, 0.01f);
    const auto model = test::open_toy_model(R"([")" + (studio.folder / "model") + R"(", ")" +
                                            (studio.folder / denoiser) + R"("])");
    CHECK(model->find_part("dit")->checkpoint.files().front() == studio.folder / denoiser);
    Settings settings;
    settings.schedule = "diffusers";
    fill_target(settings, *model);
    fill_from_folder(settings, *model);
    return settings;
  };
  const Settings beside = filled("tuned.safetensors");
  CHECK(target_of(beside) == MediaTarget{1, 32, 48});
  CHECK(beside.flow_shift == 8.0);
  // One in another model's folder goes by its own.
  test::write_bytes(studio.folder / "other/model_index.json",
                    R"({"_media_defaults": {"width": 64}})");
  const Settings own = filled("other/transformer/model.safetensors");
  CHECK(target_of(own) == MediaTarget{1, 1024, 64});
  CHECK_FALSE(own.flow_shift);
}

TEST_CASE("A folder that says nonsense of its model is refused, and the entry is named",
          "[session]") {
  const auto [entries, what] = GENERATE(table<std::string, std::string>({
      {R"({"height": "big"})", "\"height\" is no whole number from 1 to 1000000"},
      {R"({"width": 0})", "\"width\" is no whole number from 1 to 1000000"},
      {R"({"num_frames": -5})", "\"num_frames\" is no whole number from 1 to 1000000"},
      {R"({"fps": 0})", "\"fps\" is no rate"},
      {R"({"depth": 3})", "\"depth\" is not known"},
      {R"([128, 128])", "_media_defaults is no JSON object"},
  }));
  Studio studio;
  test::write_bytes(studio.folder / "model/model_index.json",
                    "{\"_media_defaults\": " + entries + "}");
  Settings settings;
  test::expect_error(ErrorCode::kDataLoss, {"model/model_index.json: _media_defaults", what},
                     [&] { fill_target(settings, *studio.model); });
}

TEST_CASE("Who waits long for steps is told how long", "[session]") {
  CHECK(long_run_note(119).empty());
  CHECK(long_run_note(900).starts_with("note: the steps take about 15 min on this CPU"));
  CHECK(long_run_note(5 * 3600).find("about 5 hours") != std::string::npos);
}
