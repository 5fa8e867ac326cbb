#include "host/serve/openai.h"

#include <latch>
#include <thread>

#include "fake_service.h"
#include "formats/base64.h"
#include "host/media/decode.h"
#include "host/media/png.h"
#include "host/serve/openai_fields.h"
#include "host/serve/openai_images.h"
#include "host/serve/openai_retries.h"
#include "host/serve/openai_videos.h"
#include "support/catch.h"
#include "support/files.h"
#include "support/http_errors.h"

namespace atelier::serve {
namespace {

using nlohmann::json;
using test::refusal_of;

ImagesRequest read(FakeService& fake, json fields, std::vector<FormFile> files = {},
                   bool is_edit = false) {
  return read_images({std::move(fields), std::move(files)}, fake.service, is_edit);
}

std::string refused(FakeService& fake, const json& fields) {
  return refusal_of([&] { read(fake, fields); }).message;
}

TEST_CASE("OpenAI's fields of a picture become a job's", "[serve]") {
  FakeService fake;
  const ImagesRequest request = read(fake, {{"model", "tiny"},
                                            {"prompt", "a cat"},
                                            {"n", 2},
                                            {"size", "96x64"},
                                            {"quality", "high"},
                                            {"output_format", "jpeg"},
                                            {"user", "me"},
                                            {"moderation", "low"},
                                            {"background", "opaque"},
                                            {"seed", 7},
                                            {"guidance_scale", 3.5},
                                            {"num_inference_steps", 4},
                                            {"lora", {{{"name", "style"}, {"strength", 0.5}}}}});
  REQUIRE(request.jobs.size() == 1);
  const Asked& asked = request.jobs.front();
  CHECK(asked.fields == json{{"prompt", "a cat"},
                             {"num_images", 2},
                             {"width", 96},
                             {"height", 64},
                             {"seed", 7},
                             {"cfg_scale", 3.5},
                             {"num_inference_steps", 4}});
  CHECK(asked.format == "jpeg");
  CHECK(asked.api == "openai");
  CHECK(asked.loras == std::vector<std::pair<std::string, double>>{{"style", 0.5}});
  CHECK_FALSE(asked.survives);
  CHECK(request.quality == "high");
  CHECK_FALSE(request.is_stream);
}

TEST_CASE("What a client leaves open is left to the model", "[serve]") {
  FakeService fake;
  const ImagesRequest request = read(fake, {{"prompt", "a cat"}, {"size", "auto"}});
  CHECK(request.jobs.front().fields == json{{"prompt", "a cat"}});
  CHECK(request.jobs.front().format == "png");
  CHECK(request.quality.is_null());
}

TEST_CASE("A stream has as many partial pictures as are asked for", "[serve]") {
  FakeService fake;
  const auto most = [&](json fields) {
    fields.update({{"stream", true}, {"partial_images", 2}});
    return read(fake, fields).most_partials;
  };
  CHECK(most({{"prompt", "a"}}) == 2);
  CHECK(most({{"prompt", "a"}, {"n", "3"}}) == 6);
  CHECK(most({{"prompt", "a"}, {"seed", {1, 2}}}) == 4);
}

TEST_CASE("A list of seeds makes a job for each", "[serve]") {
  FakeService fake;
  const ImagesRequest request = read(fake, {{"prompt", "a"}, {"n", 2}, {"seed", {5, 9}}});
  REQUIRE(request.jobs.size() == 2);
  CHECK(request.jobs[0].fields == json{{"prompt", "a"}, {"seed", 5}});
  CHECK(request.jobs[1].fields == json{{"prompt", "a"}, {"seed", 9}});
  CHECK(refused(fake, {{"n", 3}, {"seed", {5, 9}}}) ==
        "seed: 2 seeds for 3 pictures: each of a list makes one");
  CHECK(refused(fake, {{"seed", json::array()}}) == "seed: a list has one seed or more");
  CHECK(refused(fake, {{"seed", std::vector<int>(17, 1)}}) ==
        "seed: 17 pictures are more than 16, the most that this server makes");
}

TEST_CASE("A model of clips makes pictures of one frame", "[serve]") {
  FakeService fake(facts(/*makes_clips=*/true));
  CHECK(read(fake, {{"prompt", "a"}}).jobs.front().fields["num_frames"] == 1);
  CHECK(refused(fake, {{"num_frames", 5}}) ==
        "num_frames: pictures have one frame; POST /v1/videos makes clips");
}

TEST_CASE("What cannot be done for OpenAI's clients is refused", "[serve]") {
  FakeService fake;
  CHECK(refused(fake, {{"output_format", "webp"}}) ==
        "output_format: webp pictures are not written; use png or jpeg");
  CHECK(refused(fake, {{"output_format", "bmp"}}) ==
        R"(output_format: "bmp" is none of png, jpeg)");
  CHECK(refused(fake, {{"background", "transparent"}}) ==
        "background: pictures are opaque; leave it out");
  CHECK(refused(fake, {{"size", "64"}}) == R"(size: "64" is no size: auto, or 1024x768)");
  CHECK(refused(fake, {{"size", "0x64"}}) == R"(size: "0x64" is no size: auto, or 1024x768)");
  CHECK(refused(fake, {{"size", "64x64"}, {"width", 96}}) ==
        "width: 96 is not what another field says of width, 64; send one of them");
  CHECK(refused(fake, {{"guidance_scale", 3}, {"true_cfg_scale", 4}}) ==
        "true_cfg_scale: 4 is not what another field says of cfg_scale, 3; send one of them");
  CHECK(refused(fake, {{"partial_images", 1}}) == R"(partial_images: needs "stream": true)");
  CHECK(refused(fake, {{"partial_images", 4}, {"stream", true}}) ==
        "partial_images: 4 is not a whole number from 0 to 3");
  CHECK(refused(fake, {{"stream", true}, {"response_format", "url"}}) ==
        "response_format: a stream sends the pictures themselves; use b64_json");
  CHECK(refused(fake, {{"frame_count", 4}}).starts_with("frame_count: is of GIF pictures"));
  CHECK(refused(fake, {{"negativ_prompt", "x"}}) ==
        R"(negativ_prompt: is not known; did you mean "negative_prompt"?)");
  CHECK(refused(fake, {{"partial_image", 1}}) ==
        R"(partial_image: is not known; did you mean "partial_images"?)");
  const auto other = refusal_of([&] { read(fake, {{"model", "dall-e-3"}}); });
  CHECK(other.status == 404);
  CHECK(other.message == R"(model: "dall-e-3" is not served, "tiny" is; leave it out, or start )"
                         "the server with another --served_name");
}

TEST_CASE("No field of OpenAI's is in two tables", "[serve]") {
  std::vector<std::string> names;
  for (const OpenAiField& field : ignored_openai_fields()) names.emplace_back(field.name);
  for (const OpenAiField& field : refused_openai_fields()) names.emplace_back(field.name);
  for (const OpenAiAlias& alias : openai_aliases()) names.emplace_back(alias.name);
  std::sort(names.begin(), names.end());
  CHECK(std::adjacent_find(names.begin(), names.end()) == names.end());
}

std::string png(int width, int height, uint8_t value, const media::Image* alpha = nullptr) {
  media::Image image(width, height);
  std::fill(image.rgb.begin(), image.rgb.end(), value);
  return media::encode_png(image, {}, alpha);
}

TEST_CASE("Pictures of an edit are files or values, and masks are turned round", "[serve]") {
  FakeService fake;
  media::Image alpha(2, 1);
  std::fill(alpha.rgb.begin(), alpha.rgb.begin() + 3, 255);  // the left pixel is opaque
  const ImagesRequest request =
      read(fake, {{"prompt", "a"}}, {{"image", png(2, 1, 9)}, {"mask", png(2, 1, 9, &alpha)}},
           /*is_edit=*/true);
  const Asked& asked = request.jobs.front();
  CHECK(asked.fields == json{{"prompt", "a"}, {"denoising_strength", 1.0}});
  CHECK(asked.uploads.at("input_image").front().bytes() == png(2, 1, 9));
  const std::string& mask = asked.uploads.at("inpaint_mask").front().bytes();
  const media::Image decoded =
      media::decode_image({reinterpret_cast<const uint8_t*>(mask.data()), mask.size()}, "mask");
  CHECK(decoded.rgb == std::vector<uint8_t>{0, 0, 0, 255, 255, 255});

  const ImagesRequest opaque =
      read(fake, {{"denoising_strength", "0.5"}, {"image", formats::encode_base64(png(2, 1, 9))}},
           {{"mask", png(2, 1, 255)}}, /*is_edit=*/true);
  CHECK(opaque.jobs.front().fields["denoising_strength"] == 0.5);
  CHECK(opaque.jobs.front().uploads.at("inpaint_mask").front().bytes() == png(2, 1, 255));

  FakeService editing(editing_facts());
  const ImagesRequest several =
      read(editing, {{"prompt", "a"}}, {{"image[]", "one"}, {"image[]", "two"}}, true);
  CHECK(several.jobs.front().uploads.at("edit_image").size() == 2);
  CHECK(several.jobs.front().fields == json{{"prompt", "a"}});

  CHECK(refusal_of([&] {
          read(fake, {{"prompt", "a"}}, {}, true);
        }).message == "image: is missing");
  CHECK(refusal_of([&] {
          read(fake, json::object(), {{"image", "a"}, {"mask", "no picture"}}, true);
        }).status == 400);
}

JobView done_view(const test::Folder& folder) {
  test::write_bytes(folder / "0.png", "zero");
  test::write_bytes(folder / "1.png", "one");
  return {.id = "job0",
          .state = JobState::kDone,
          .files = {{.path = folder / "0.png", .content_type = "image/png", .seed = 7},
                    {.path = folder / "1.png", .content_type = "image/png", .seed = 8}},
          .settings = {{"width", 96}, {"height", 64}}};
}

TEST_CASE("Replies with pictures have OpenAI's form", "[serve]") {
  const test::Folder folder;
  ImagesRequest request = {.quality = "low"};
  const json reply = images_reply(request, {done_view(folder)}, facts(), "here:1");
  CHECK(reply["data"] ==
        json{{{"b64_json", "emVybw=="}, {"seed", 7}}, {{"b64_json", "b25l"}, {"seed", 8}}});
  CHECK(reply["size"] == "96x64");
  CHECK(reply["quality"] == "low");
  CHECK(reply["output_format"] == "png");
  CHECK(reply["created"].is_number_integer());
  CHECK_FALSE(reply.contains("usage"));
  request.wants_urls = true;
  CHECK(images_reply(request, {done_view(folder)}, facts(), "here:1")["data"][1] ==
        json{{"url", "http://here:1/v1/jobs/job0/files/1"}, {"seed", 8}});
}

TEST_CASE("Events of a stream have OpenAI's form", "[serve]") {
  const test::Folder folder;
  JobView view = done_view(folder);
  view.preview = std::make_shared<const std::string>("small");
  const ImagesRequest request = {.is_edit = true};
  const auto parsed = [](const std::string& event) {
    const size_t data = event.find("\ndata: ");
    json body = json::parse(event.substr(data + 7));
    CHECK(event.substr(0, data) == "event: " + body["type"].get<std::string>());
    CHECK(event.ends_with("}\n\n"));
    return body;
  };
  const json partial = parsed(partial_event(request, view, 1, facts()));
  CHECK(partial["type"] == "image_edit.partial_image");
  CHECK(partial["partial_image_index"] == 1);
  CHECK(partial["b64_json"] == formats::encode_base64("small"));
  CHECK(partial["output_format"] == "jpeg");
  CHECK(partial["quality"] == "auto");
  const json completed = parsed(completed_event({}, view, view.files[1], facts()));
  CHECK(completed["type"] == "image_generation.completed");
  CHECK(completed["b64_json"] == "b25l");
  CHECK(completed["usage"]["total_tokens"] == 0);
}

TEST_CASE("Seconds of a clip are as many frames as the model makes", "[serve]") {
  const ModelFacts model = facts(/*makes_clips=*/true);
  CHECK(frames_of(5, 16, model) == 81);
  CHECK(frames_of(4, 16, model) == 65);
  CHECK(frames_of(1, 15, model) == 17);
  CHECK(frames_of(0.01, 16, model) == 1);
}

TEST_CASE("OpenAI's fields of a clip become a job's, which survives", "[serve]") {
  FakeService fake(facts(/*makes_clips=*/true));
  const auto read = [&](json fields, std::vector<FormFile> files = {}) {
    return read_video({std::move(fields), std::move(files)}, fake.service);
  };
  const Asked asked =
      read({{"prompt", "a cat"}, {"seconds", "4"}, {"size", "96x64"}, {"model", "tiny"}},
           {{"input_reference", "picture"}});
  CHECK(asked.fields ==
        json{{"prompt", "a cat"}, {"num_frames", 65}, {"width", 96}, {"height", 64}});
  CHECK(asked.uploads.at("input_image").front().bytes() == "picture");
  CHECK(asked.survives);
  CHECK(asked.api == "videos");
  CHECK(read({{"seconds", 2}, {"fps", "8"}}).fields == json{{"fps", 8}, {"num_frames", 17}});
  for (const json& reference :
       {json("data:image/png;base64,YQ=="), json{{"image_url", "data:image/png;base64,YQ=="}}})
    CHECK(read({{"input_reference", reference}}).uploads.at("input_image").front().bytes() == "a");
  CHECK(read({{"input_reference[image_url]", "data:image/png;base64,YQ=="}})
            .uploads.at("input_image")
            .front()
            .bytes() == "a");

  const auto refused = [&](const json& fields) {
    return refusal_of([&] { read(fields); }).message;
  };
  CHECK(refused({{"seconds", "4"}, {"num_frames", 5}}) ==
        "seconds: num_frames is given beside it; send one of them");
  CHECK(refused({{"seconds", -1}}) == "seconds: -1 is not above 0 and at most 3600");
  CHECK(refused({{"output_format", "png"}}) == R"(output_format: "png" is none of mp4, webp, gif)");
  CHECK(refused({{"secconds", 1}}) == R"(secconds: is not known; did you mean "seconds"?)");
  FakeService pictures;
  CHECK(refusal_of([&] { read_video({{{"prompt", "a"}}}, pictures.service); }).status == 400);
}

JobView video_view(const std::string& id, JobState state) {
  return {.id = id,
          .state = state,
          .step = 3,
          .steps = 12,
          .created_s = 1234.5,
          .settings = {{"width", 96}, {"height", 64}, {"num_frames", 33}, {"fps", 16}},
          .note = {{"prompt", "a cat"}, {"seconds", nullptr}},
          .api = "videos"};
}

TEST_CASE("A clip's job is told in OpenAI's form", "[serve]") {
  const ModelFacts model = facts(/*makes_clips=*/true);
  JobView view = video_view("v", JobState::kRunning);
  json video = video_reply(view, model);
  CHECK(video == json{{"id", "v"},
                      {"object", "video"},
                      {"model", "tiny"},
                      {"status", "in_progress"},
                      {"progress", 25},
                      {"created_at", 1234},
                      {"completed_at", nullptr},
                      {"expires_at", nullptr},
                      {"prompt", "a cat"},
                      {"seconds", "2.063"},
                      {"size", "96x64"},
                      {"error", nullptr}});
  view.note["seconds"] = "2";
  view.state = JobState::kDone;
  view.finished_s = 1300;
  video = video_reply(view, model);
  CHECK(video["seconds"] == "2");
  CHECK(video["status"] == "completed");
  CHECK(video["progress"] == 100);
  CHECK(video["completed_at"] == 1300);
  view.state = JobState::kFailed;
  view.error = "does not fit";
  view.error_status = 507;
  CHECK(video_reply(view, model)["error"] ==
        json{{"code", "out_of_memory"}, {"message", "does not fit"}});
  view.state = JobState::kCancelled;
  CHECK(video_reply(view, model)["status"] == "failed");
  CHECK(video_reply(view, model)["error"]["code"] == "cancelled");
}

TEST_CASE("Clips are listed page by page", "[serve]") {
  std::vector<JobView> views;
  for (const char* const id : {"d", "c", "b", "a"})
    views.push_back(video_view(id, JobState::kQueued));
  views[1].api = "jobs";  // and no clip's
  const auto page = [&](std::map<std::string, std::string, std::less<>> query) {
    const json said = videos_page(views, query, facts(true));
    std::string ids;
    for (const json& video : said["data"]) ids += video["id"].get<std::string>();
    return ids + (said["has_more"] == true ? " and more" : "") + " " + said["last_id"].dump();
  };
  CHECK(page({}) == R"(dba "a")");
  CHECK(page({{"limit", "2"}}) == R"(db and more "b")");
  CHECK(page({{"limit", "2"}, {"after", "b"}}) == R"(a "a")");
  CHECK(page({{"order", "asc"}, {"limit", "1"}}) == R"(a and more "a")");
  CHECK(page({{"after", "a"}}) == " null");
  CHECK(refusal_of([&] { page({{"after", "c"}}); }).message == "after: there is no such video");
  CHECK(refusal_of([&] { page({{"limit", "0"}}); }).status == 400);
  CHECK(refusal_of([&] { page({{"order", "up"}}); }).status == 400);
}

TEST_CASE("A clip's thumbnail is its first frame", "[serve]") {
  const test::Folder folder;
  test::write_bytes(folder / "clip.png", png(8, 8, 200));
  const std::string jpeg = thumbnail_of(folder / "clip.png");
  const media::Image image = media::decode_image(
      {reinterpret_cast<const uint8_t*>(jpeg.data()), jpeg.size()}, "thumbnail");
  CHECK(image.width == 8);
  CHECK(std::abs(image.rgb.front() - 200) < 3);
}

TEST_CASE("Errors have OpenAI's form", "[serve]") {
  const auto error = [](int status, const std::string& message) {
    const http::Response response = openai_error(status, message);
    CHECK(response.status == status);
    json said = json::parse(response.body)["error"];
    CHECK(said["message"] == message);
    said.erase("message");
    return said;
  };
  const auto form = [](const char* type, json param, json code) -> json {
    return {{"type", type}, {"param", std::move(param)}, {"code", std::move(code)}};
  };
  CHECK(error(400, "size: no size") == form("invalid_request_error", "size", nullptr));
  CHECK(error(400, "Nothing of it") == form("invalid_request_error", nullptr, nullptr));
  CHECK(error(404, "model: none") == form("invalid_request_error", "model", "model_not_found"));
  CHECK(error(404, "no route") == form("invalid_request_error", nullptr, "not_found"));
  CHECK(error(401, "no key") == form("invalid_request_error", nullptr, "invalid_api_key"));
  CHECK(error(429, "full") == form("rate_limit_error", nullptr, "rate_limit_exceeded"));
  CHECK(error(500, "a bug") == form("server_error", nullptr, nullptr));
  CHECK(error(507, "out") == form("server_error", nullptr, "out_of_memory"));
}

TEST_CASE("A later try has the jobs of an earlier one", "[serve]") {
  Retries retries;
  int made = 0;
  const auto send = [&](const char* tries, const json& fields, bool is_usable = true) {
    http::Request request = {.method = "POST", .path = "/v1/videos"};
    if (*tries != '\0') request.headers["x-stainless-retry-count"] = tries;
    return retries
        .submit(
            request, {fields}, [&](const Retries::Ids&) { return is_usable; },
            [&] { return Retries::Ids{std::to_string(made++)}; })
        .front();
  };
  CHECK(send("0", {{"prompt", "a"}}) == "0");
  CHECK(send("1", {{"prompt", "a"}}) == "0");
  CHECK(send("2", {{"prompt", "a"}}) == "0");
  CHECK(send("1", {{"prompt", "b"}}) == "1");         // of which there was no earlier try
  CHECK(send("0", {{"prompt", "a"}}) == "2");         // asked for once more
  CHECK(send("", {{"prompt", "a"}}) == "3");          // by a client that does not count
  CHECK(send("1", {{"prompt", "a"}}, false) == "4");  // whose job was cancelled
}

TEST_CASE("A try behind one that was refused makes its own job", "[serve]") {
  Retries retries;
  const auto send = [&](const char* tries, const char* id) {
    const http::Request request = {.path = "/v1/videos",
                                   .headers = {{"x-stainless-retry-count", tries}}};
    return retries.submit(
        request, {}, [](const Retries::Ids&) { return true; },
        [&]() -> Retries::Ids {
          if (*id == '\0') throw http::HttpError(429, "full");
          return {id};
        });
  };
  CHECK(send("0", "one").front() == "one");
  CHECK(refusal_of([&] { send("0", ""); }).status == 429);  // another client's
  CHECK(send("1", "two").front() == "two");
  CHECK(send("1", "three").front() == "two");
}

TEST_CASE("A try waits for an earlier one that makes its jobs, and other requests do not",
          "[serve]") {
  Retries retries;
  const auto send = [&](const char* prompt, const char* tries, const auto& submit) {
    const http::Request request = {.path = "/v1/videos",
                                   .headers = {{"x-stainless-retry-count", tries}}};
    return retries
        .submit(
            request, {{{"prompt", prompt}}}, [](const Retries::Ids&) { return true; }, submit)
        .front();
  };
  std::latch is_submitting(1), may_end(1);
  std::string first_id, second_id;
  std::thread first([&] {
    first_id = send("a", "0", [&]() -> Retries::Ids {
      is_submitting.count_down();
      may_end.wait();
      return {"first"};
    });
  });
  is_submitting.wait();
  std::thread second(
      [&] { second_id = send("a", "1", []() -> Retries::Ids { return {"second"}; }); });
  CHECK(send("b", "0", []() -> Retries::Ids { return {"other"}; }) == "other");
  may_end.count_down();
  first.join();
  second.join();
  CHECK(first_id == "first");
  CHECK(second_id == "first");
}

}  // namespace
}  // namespace atelier::serve
