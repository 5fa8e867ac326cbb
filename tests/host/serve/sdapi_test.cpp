#include "host/serve/sdapi.h"

#include "fake_service.h"
#include "formats/base64.h"
#include "host/media/decode.h"
#include "host/media/png.h"
#include "host/serve/sdapi_fields.h"
#include "support/catch.h"
#include "support/files.h"
#include "support/http_errors.h"

namespace atelier::serve {
namespace {

using nlohmann::json;
using test::refusal_of;
using Uses = std::vector<std::pair<std::string, double>>;

TEST_CASE("LoRAs are taken out of prompts", "[serve]") {
  const auto taken = [](std::string prompt) {
    const Uses loras = take_loras("prompt", prompt);
    std::string text = "'" + prompt + "'";
    for (const auto& [name, strength] : loras) text += " " + name + "=" + json(strength).dump();
    return text;
  };
  CHECK(taken("a cat") == "'a cat'");
  CHECK(taken("a cat <lora:style:0.8>, night") == "'a cat, night' style=0.8");
  CHECK(taken("<lora:style> a cat") == "'a cat' style=1.0");
  CHECK(taken("a <lora:b:-1.5> c <lora:d:2> ") == "'a c ' b=-1.5 d=2.0");
  CHECK(taken("<lora:style:1>") == "'' style=1.0");
  CHECK(taken("  <lora:a:1><lora:b:1>x") == "'x' a=1.0 b=1.0");
  CHECK(taken("<b>bold</b>") == "'<b>bold</b>'");
  for (const char* const bad : {"<lora:>", "<lora::1>", "<lora:a:b>", "<lora:a:1:2>", "<lora:a:>"})
    CHECK(refusal_of([&] { taken(bad); }).message ==
          "prompt: \"" + std::string(bad) + "\" is none; write <lora:name> or <lora:name:0.8>");
  CHECK(refusal_of([&] { taken("a <lora:b:1"); }).message == "prompt: a <lora:…> lacks its >");
}

// What webuiapi 0.9.17 sends where its user gives a prompt alone, with every field that it has.
json webuiapi_txt2img() {
  return json::parse(R"({"enable_hr": false, "hr_scale": 2, "hr_upscaler": "Latent",
    "hr_second_pass_steps": 0, "hr_resize_x": 0, "hr_resize_y": 0, "hr_checkpoint_name": null,
    "hr_sampler_name": null, "hr_scheduler": null, "hr_prompt": "", "hr_negative_prompt": "",
    "denoising_strength": 0.7, "firstphase_width": 0, "firstphase_height": 0, "prompt": "a cat",
    "styles": [], "seed": -1, "subseed": -1, "subseed_strength": 0.0, "seed_resize_from_h": 0,
    "seed_resize_from_w": 0, "batch_size": 1, "n_iter": 1, "steps": 20, "cfg_scale": 7.0,
    "width": 512, "height": 512, "restore_faces": false, "tiling": false,
    "do_not_save_samples": false, "do_not_save_grid": false, "negative_prompt": "", "eta": 1.0,
    "s_churn": 0, "s_tmax": 0, "s_tmin": 0, "s_noise": 1, "override_settings": {},
    "override_settings_restore_afterwards": true, "sampler_name": "Euler a",
    "scheduler": "automatic", "sampler_index": "Euler a", "script_name": null, "script_args": [],
    "send_images": true, "save_images": false, "alwayson_scripts": {}})");
}

TEST_CASE("Fields of the web UI become a job's", "[serve]") {
  FakeService fake;
  const SdRequest request = read_sd(webuiapi_txt2img(), fake.service, false);
  CHECK(request.asked.fields == json{{"prompt", "a cat"},
                                     {"negative_prompt", ""},
                                     {"num_images", 1},
                                     {"num_inference_steps", 20},
                                     {"cfg_scale", 7.0},
                                     {"width", 512},
                                     {"height", 512},
                                     {"seed", -1}});
  CHECK(request.asked.api == "sdapi");
  CHECK(request.asked.previews > 0);
  CHECK_FALSE(request.asked.loras);
  CHECK(request.parameters == webuiapi_txt2img());

  const SdRequest other = read_sd({{"prompt", "a <lora:style:0.5>"},
                                   {"negative_prompt", "<lora:Detail> b"},
                                   {"batch_size", 2},
                                   {"n_iter", 3},
                                   {"sampler_name", "dpm++ 2m"},
                                   {"scheduler", "few"},
                                   {"steps", "4"},
                                   {"flow_shift", 3},
                                   {"override_settings", {{"samples_format", "jpg"}}}},
                                  fake.service, false);
  CHECK(other.asked.fields == json{{"prompt", "a"},
                                   {"negative_prompt", "b"},
                                   {"num_images", 6},
                                   {"solver", "dpm++"},
                                   {"schedule", "Few"},
                                   {"num_inference_steps", 4},
                                   {"flow_shift", 3}});
  CHECK(other.asked.loras == Uses{{"style", 0.5}, {"Detail", 1.0}});
  CHECK(other.asked.format == "jpeg");

  FakeService clips(facts(/*makes_clips=*/true));
  CHECK(read_sd({{"prompt", "a"}}, clips.service, false).asked.fields["num_frames"] == 1);
}

TEST_CASE("What the web UI has and this server has not is refused", "[serve]") {
  FakeService fake;
  const auto refused = [&](const char* name, const json& value) {
    json fields = webuiapi_txt2img();
    fields[name] = value;
    return refusal_of([&] { read_sd(fields, fake.service, false); }).message;
  };
  CHECK(refused("enable_hr", true) ==
        "enable_hr: no second pass enlarges pictures; width and height say their size");
  CHECK(refused("tiling", true) == "tiling: pictures that repeat are not made");
  CHECK(refused("subseed_strength", 0.5) == "subseed_strength: noise of two seeds is not mixed");
  CHECK(refused("styles", {"a"}) == "styles: no texts are kept under names");
  CHECK(refused("script_name", "x/y/z plot") == "script_name: there are no scripts");
  CHECK(refused("sampler_name", "DPM++ 2M Karras") ==
        R"(sampler_name: there is no "DPM++ 2M Karras", there are "Euler", "UniPC", "DPM++ 2M")");
  CHECK(refused("scheduler", "karras") ==
        R"(scheduler: there is no "karras", there are "automatic", "default", "Few")");
  CHECK(refused("prompt", "<lora:stile:1>") ==
        R"(prompt: no LoRA "stile" is registered; did you mean "style"?)");
  CHECK(refused("batch_size", 0) == "batch_size: 0 is not a whole number from 1 to 1000");
  CHECK(refused("cfg_scal", 1) == R"(cfg_scal: is not known; did you mean "cfg_scale"?)");
  CHECK(refused("send_image", false) == R"(send_image: is not known; did you mean "send_images"?)");
  const auto other = refusal_of([&] {
    read_sd({{"override_settings", {{"sd_model_checkpoint", "v1-5.safetensors"}}}}, fake.service,
            false);
  });
  CHECK(other.status == 404);
  CHECK(refusal_of([&] { read_sd(json::array(), fake.service, false); }).status == 400);
}

TEST_CASE("What nobody meant has no effect on a job of the web UI", "[serve]") {
  FakeService fake;
  const json plain = read_sd({{"prompt", "a"}}, fake.service, false).asked.fields;
  for (const SdField& field : ignored_sd_fields()) {
    const json value = field.is_any ? json("anything") : json(false);
    const SdRequest request =
        read_sd({{"prompt", "a"}, {std::string(field.name), value}}, fake.service, false);
    CHECK(request.asked.fields == plain);
  }
}

TEST_CASE("Pictures and masks of the web UI are where sampling begins", "[serve]") {
  FakeService fake;
  media::Image image(2, 1);
  image.rgb = {0, 0, 0, 255, 255, 255};
  const std::string mask = media::encode_png(image);
  json fields = {{"prompt", "a"},
                 {"init_images", {"data:image/png;base64,YQ=="}},
                 {"mask", formats::encode_base64(mask)},
                 {"denoising_strength", 0.75},
                 {"mask_blur", 4},
                 {"resize_mode", 0}};
  SdRequest request = read_sd(fields, fake.service, true);
  CHECK(request.asked.fields ==
        json{{"prompt", "a"}, {"num_images", 1}, {"denoising_strength", 0.75}});
  CHECK(request.asked.uploads.at("input_image").front().bytes() == "a");
  CHECK(request.asked.uploads.at("inpaint_mask").front().bytes() == mask);
  CHECK_FALSE(request.parameters.contains("init_images"));
  CHECK_FALSE(request.parameters.contains("mask"));

  fields["inpainting_mask_invert"] = 1;
  const std::string turned =
      read_sd(fields, fake.service, true).asked.uploads.at("inpaint_mask").front().bytes();
  CHECK(
      media::decode_image({reinterpret_cast<const uint8_t*>(turned.data()), turned.size()}, "mask")
          .rgb == std::vector<uint8_t>{255, 255, 255, 0, 0, 0});

  FakeService editing(editing_facts());
  fields.erase("mask");
  request = read_sd(fields, editing.service, true);
  CHECK(request.asked.uploads.at("edit_image").size() == 1);
  CHECK_FALSE(request.asked.fields.contains("denoising_strength"));

  CHECK(refusal_of([&] {
          read_sd({{"prompt", "a"}}, fake.service, true);
        }).message == "init_images: is missing");
  fields["init_images"] = {"YQ==", "YQ=="};
  CHECK(refusal_of([&] { read_sd(fields, fake.service, true); }).message ==
        "init_images: tiny begins from one picture, not 2");
}

TEST_CASE("Replies say what the web UI's say", "[serve]") {
  FakeService fake;
  const test::Folder folder;
  const media::Image image(8, 8);
  const std::string first = media::encode_png(image, {{"parameters", "a cat\nSteps: 4, Seed: 7"}});
  test::write_bytes(folder / "0.png", first);
  test::write_bytes(folder / "1.png", media::encode_png(image));
  const JobView view = {
      .state = JobState::kDone,
      .files = {{.path = folder / "0.png", .seed = 7}, {.path = folder / "1.png", .seed = 8}},
      .settings = {{"width", 96},
                   {"height", 64},
                   {"num_inference_steps", 4},
                   {"cfg_scale", 2.5},
                   {"solver", "dpm++"},
                   {"schedule", "Few"},
                   {"seed", 7}}};
  SdRequest request = read_sd({{"prompt", "a cat"}, {"batch_size", 2}}, fake.service, false);
  const json reply = sd_reply(request, view, fake.service.model);
  CHECK(reply["images"][0] == formats::encode_base64(first));
  CHECK(reply["images"].size() == 2);
  CHECK(reply["parameters"] == json{{"prompt", "a cat"}, {"batch_size", 2}});
  const json info = json::parse(reply["info"].get<std::string>());
  CHECK(info["all_seeds"] == json{7, 8});
  CHECK(info["seed"] == 7);
  CHECK(info["all_prompts"] == json{"a cat", "a cat"});
  CHECK(info["infotexts"] == json{"a cat\nSteps: 4, Seed: 7", ""});
  CHECK(info["sampler_name"] == "DPM++ 2M");
  CHECK(info["extra_generation_params"]["Schedule type"] == "Few");
  CHECK(info["steps"] == 4);
  CHECK(info["width"] == 96);
  request.sends_images = false;
  CHECK(sd_reply(request, view, fake.service.model)["images"].empty());
}

TEST_CASE("Options may be set to what they are, and a model that is served", "[serve]") {
  FakeService fake;
  http::Router router;
  add_sdapi(router, fake.service);
  const auto set = [&](const json& options) {
    FakeClient client;
    const http::Response response = router.answer(
        {.method = "POST", .path = "/sdapi/v1/options", .body = options.dump()}, client);
    return std::to_string(response.status) + " " + response.body;
  };
  CHECK(set({{"sd_model_checkpoint", "tiny"}, {"CLIP_stop_at_last_layers", 2}}) == "200 null");
  CHECK(set({{"sd_model_checkpoint", "v1-5"}}).starts_with("404 "));
  CHECK(set({{"sd_vea", "None"}}).find("sd_vea: is not known; did you mean sd_vae?") !=
        std::string::npos);
}

TEST_CASE("Progress is that of the job that began first", "[serve]") {
  JobView running = {
      .id = "b", .state = JobState::kRunning, .step = 1, .steps = 4, .started_s = 100};
  running.api = "sdapi";
  running.preview = std::make_shared<const std::string>("small");
  JobView later = running, queued = {.id = "d", .api = "sdapi"}, other = running;
  later.id = "c";
  later.started_s = 101;
  other.api = "openai";
  other.started_s = 1;
  const json said = sd_progress({queued, later, other, running}, true, 110);
  CHECK(said["progress"] == 0.25);
  CHECK(said["eta_relative"] == 30.0);
  CHECK(said["current_image"] == formats::encode_base64("small"));
  CHECK(said["state"]["job"] == "b");
  CHECK(said["state"]["job_count"] == 3);
  CHECK(said["state"]["sampling_step"] == 1);
  CHECK(sd_progress({running}, false, 110)["current_image"].is_null());
  const json idle = sd_progress({other}, true, 110);
  CHECK(idle["progress"] == 0.0);
  CHECK(idle["state"]["job_count"] == 0);
}

}  // namespace
}  // namespace atelier::serve
