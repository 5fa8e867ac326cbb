// From what clients ask for to the work of a job, for a model of files.
#include "host/serve/translation.h"

#include <latch>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include <c10/util/ScopeExit.h>

#include "host/http/server.h"
#include "host/serve/inference.h"
#include "tests/host/train/image_toy.h"
#include "tests/support/http_errors.h"

namespace atelier::serve::of_translation {
namespace {

using nlohmann::json;
using test::Folder;
using test::refusal_of;

struct Desk {
  Folder folder;
  plugins::Plugin plugin;
  progress::Progress progress{progress::Options{.quiet = true}};
  report::Problems problems;
  order::Serving order;
  std::optional<check::OpenedGeneration> opened;
  Spool spool{""};
  std::optional<LoraNames> loras;
  std::optional<Translation> translation;

  Desk() {
    plugin.file.family = "toy";
    plugin.family = &test::image_toy();
    test::write_toy_model(folder / "model");
    order.generation = {.plugin = &plugin,
                        .load = model::LoadOptions{.model_paths = folder / "model",
                                                   .dtype = "float32",
                                                   .device = "cpu"},
                        .is_served = true};
    order.generation.base.negative_prompt = "grey";  // the toy encodes no empty text
    order.generation.base.height = order.generation.base.width = 16;
    order.generation.base.num_frames = 1;
    order.limits = {.max_pixels = 1024, .max_steps = 50, .max_images = 4};
    opened.emplace(order.generation, progress, problems);
    problems.throw_if_any();
    loras.emplace("", std::vector<lora::LoraRef>{{"style", folder / "loras/style.safetensors"}},
                  [](const lora::LoraRef&) {});
    translation.emplace(*opened, order, *loras, spool);
  }

  PreparedJob prepare(json fields, const SpooledFiles& files = {}, std::string format = "",
                      int64_t previews = 0) {
    Asked asked = {.fields = {{"prompt", "a cat"}},
                   .loras = std::vector<std::pair<std::string, double>>()};
    if (!fields.is_null()) asked.fields.update(fields);
    asked.format = std::move(format);
    asked.previews = previews;
    return translation->prepare("job_a", asked, files, /*loras=*/nullptr);
  }
  std::pair<int, std::string> refused(const json& fields, const SpooledFiles& files = {},
                                      const std::string& format = "") {
    const auto refusal = refusal_of([&] { prepare(fields, files, format); });
    return {refusal.status, refusal.message};
  }
};

TEST_CASE("A job has the server's settings where it says nothing, and is named by its id",
          "[serve]") {
  Desk desk;
  const PreparedJob job = desk.prepare({{"seed", 5}, {"num_inference_steps", 9}}, {}, "jpeg", 2);
  CHECK(job.settings.output == desk.spool.output_of("job_a", "jpg"));
  CHECK(job.settings.height == 16);
  CHECK(job.settings.seed == 5);
  CHECK(job.preview_every == 3);
  CHECK(job.shown.at("prompt") == "a cat");
  CHECK(job.shown.at("negative_prompt") == "grey");
  CHECK(job.shown.at("num_inference_steps") == 9);
  CHECK_FALSE(job.shown.contains("loras"));
  CHECK(desk.prepare({}).settings.output == desk.spool.output_of("job_a", "png"));
}

TEST_CASE("What is asked for beyond the limits is too large", "[serve]") {
  Desk desk;
  for (const json& fields :
       {json{{"height", 2048}}, json{{"height", 48}, {"width", 48}}, json{{"num_images", 5}},
        json{{"num_inference_steps", 51}}, json{{"batch_size", 2}}}) {
    INFO(fields.dump());
    CHECK(desk.refused(fields).first == 413);
  }
}

TEST_CASE("A size that makes nothing is the client's mistake", "[serve]") {
  Desk desk;
  for (const char* const name : {"height", "width", "num_frames"})
    CHECK(desk.refused({{name, -16}}) == std::pair(400, std::string(name) + ": -16 is below 1"));
}

TEST_CASE("A prompt that is too long is refused with what a client can do", "[serve]") {
  Desk desk;
  const auto [status, message] =
      desk.refused({{"prompt", std::string(test::kToyLongestText + 1, 'a')}});
  CHECK(status == 400);
  CHECK(message.starts_with("prompt: "));
  CHECK(message.ends_with("; shorten it; a server with --truncate_captions cuts it"));
}

TEST_CASE("What clients may not say, and files of the machine, are refused by name", "[serve]") {
  Desk desk;
  for (const char* const name : {"output", "loras", "latents", "inpaint_mask"}) {
    const auto [status, message] = desk.refused({{name, "/etc/passwd"}});
    INFO(message);
    CHECK(status == 400);
    CHECK(message.starts_with(std::string(name) + ": "));
  }
  CHECK(desk.refused({}, {{"prompt", {"/spool/a"}}}).first == 400);
  const auto [status, message] = desk.refused({}, {}, "gif");
  CHECK(status == 400);
  CHECK(message == "format: \"gif\" is none of a picture; use png or jpeg");
  CHECK(desk.refused({{"num_frames", 5}}, {}, "png").second ==
        "format: \"png\" is none of a clip; use mp4, webp or gif");
  CHECK(desk.refused({{"promt", "a"}}).second.find("\"prompt\"") != std::string::npos);
}

TEST_CASE("A LoRA that cannot be read is told without its folder", "[serve]") {
  Desk desk;
  Asked asked = {.fields = {{"prompt", "a"}}};
  const auto refusal =
      refusal_of([&] { desk.translation->prepare("job_a", asked, {}, /*loras=*/nullptr); });
  CHECK(refusal.status == 400);
  CHECK(refusal.message.find("style.safetensors") != std::string::npos);
  CHECK(refusal.message.find(desk.folder / "loras") == std::string::npos);
  asked.loras.emplace();  // none
  CHECK(desk.translation->prepare("job_a", asked, {}, nullptr).settings.loras.empty());
  // A job that survived has its own.
  const std::vector<lora::LoraRef> own = {{"look", desk.folder / "own/look.safetensors"}};
  const auto missing = refusal_of([&] { desk.translation->prepare("job_a", asked, {}, &own); });
  CHECK(missing.message.find("look.safetensors") != std::string::npos);
  CHECK(missing.message.find(desk.folder / "own") == std::string::npos);
}

// Makes no images: a step goes on until the test lets it end.
class HeldMaker : public Maker {
 public:
  uint64_t add(const order::Settings&, generate::JobHooks) override { return 1; }
  bool advance() override {
    begun.count_down();
    may_end.wait();
    return true;
  }
  void cancel(uint64_t) override {}
  void rest() override {}
  void check_device() override {}

  std::latch begun{1}, may_end{1};
};

TEST_CASE("Requests are answered while a step of another job runs", "[serve]") {
  Desk desk;
  Bell bell;
  Metrics metrics("toy");
  JobTable jobs(
      {}, desk.spool,
      [&](const std::string& id, const Asked& asked, const SpooledFiles& files,
          const std::vector<lora::LoraRef>* loras) {
        return desk.translation->prepare(id, asked, files, loras);
      },
      bell, metrics);
  jobs.open();
  HeldMaker maker;
  Inference inference(jobs, bell, maker, metrics, {});
  const auto asked = [](json fields) {
    fields["prompt"] = "a cat";
    return Asked{.fields = std::move(fields),
                 .loras = std::vector<std::pair<std::string, double>>()};
  };
  const std::string runs = jobs.submit(asked({}));
  const std::jthread worker([&] { inference.turn(); });
  const auto ends = c10::make_scope_exit([&] { maker.may_end.count_down(); });
  maker.begun.wait();
  const std::string waits = jobs.submit(asked({}));
  CHECK(jobs.find(runs)->state == JobState::kRunning);
  CHECK(jobs.find(waits)->place == 1);
  CHECK(refusal_of([&] { jobs.submit(asked({{"height", 12}})); }).message.starts_with("height: "));
  // One that names no LoRAs has the one that is loaded, whose file is not there.
  Asked styled = asked({});
  styled.loras.reset();
  CHECK(refusal_of([&] { jobs.submit(styled); }).message.starts_with("loras: "));
}

}  // namespace
}  // namespace atelier::serve::of_translation
