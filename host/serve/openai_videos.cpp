#include "host/serve/openai_videos.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "host/media/clip.h"
#include "host/media/clip_writer.h"
#include "host/media/jpeg.h"
#include "host/report/text.h"
#include "host/serve/openai_fields.h"

namespace atelier::serve {

using http::HttpError;
using nlohmann::json;

namespace {

constexpr double kMostSeconds = 3600;
constexpr const char* kReference = "input_reference";
const std::array<std::string, 6> kVideoNames = {"model",    "size",          "seconds",
                                                kReference, "output_format", "prompt"};

std::string clip_format_of(const json& value) {
  const std::string preferred(media::preferred_clip_format().extension.substr(1));
  if (value.is_null() || value == "") return preferred;
  const std::string format = text_of("output_format", value);
  if (media::find_clip_format("clip." + format) == nullptr)
    throw wrong("output_format", value.dump() + " is none of mp4, webp, gif");
  return format;
}

void put_seconds(Asked& asked, const json& seconds, const ModelFacts& model) {
  if (seconds.is_null()) return;
  if (asked.fields.contains("num_frames"))
    throw wrong("seconds", "num_frames is given beside it; send one of them");
  const double length = real_of("seconds", seconds);
  const double fps = real_of("fps", asked.fields.value("fps", json(model.fps)));
  if (length <= 0 || length > kMostSeconds)
    throw wrong("seconds", seconds.dump() + " is not above 0 and at most 3600");
  if (fps <= 0) throw wrong("seconds", "the model has no frame rate; send num_frames or fps");
  asked.fields["num_frames"] = frames_of(length, fps, model);
}

// A file of a form, a data: URL, or {"image_url": "data:…"}, in a form
// "input_reference[image_url]".
void put_reference(Asked& asked, Form& form, const Service& service) {
  std::vector<Upload> pictures;
  const auto end =
      std::stable_partition(form.files.begin(), form.files.end(),
                            [](const FormFile& file) { return file.name != kReference; });
  for (auto file = end; file != form.files.end(); ++file)
    pictures.emplace_back(std::move(file->bytes));
  form.files.erase(end, form.files.end());
  json value = form.take(kReference);
  if (value.is_object() && value.contains("image_url")) value = value["image_url"];
  if (json url = form.take(std::string(kReference) + "[image_url]"); !url.is_null())
    value = std::move(url);
  if (!value.is_null()) {
    for (Upload& upload : uploads_of(kReference, value, service.jobs))
      pictures.push_back(std::move(upload));
  }
  if (!pictures.empty())
    put_pictures(asked, kReference, std::move(pictures), std::nullopt, service.model);
}

const char* status_of(JobState state) {
  switch (state) {
    case JobState::kQueued:
      return "queued";
    case JobState::kRunning:
      return "in_progress";
    case JobState::kDone:
      return "completed";
    case JobState::kFailed:
    case JobState::kCancelled:
      return "failed";
  }
  return "failed";
}

json error_of(const JobView& view) {
  if (view.state == JobState::kCancelled)
    return {{"code", "cancelled"}, {"message", "the job was cancelled"}};
  if (view.state != JobState::kFailed) return nullptr;
  const char* const code = view.error_status == 507   ? "out_of_memory"
                           : view.error_status >= 500 ? "server_error"
                                                      : "invalid_request";
  return {{"code", code}, {"message", view.error}};
}

int64_t progress_of(const JobView& view) {
  if (view.state == JobState::kDone) return 100;
  return view.steps > 0 ? 100 * view.step / view.steps : 0;
}

std::string seconds_of(const JobView& view, const ModelFacts& model) {
  if (const json asked = view.note.value("seconds", json()); asked.is_string())
    return asked.get<std::string>();
  const auto number = [&](const char* name, double preset) {
    const json value = view.settings.is_object() ? view.settings.value(name, json()) : json();
    return value.is_number() ? value.get<double>() : preset;
  };
  const double frames = number("num_frames", static_cast<double>(model.frames));
  const double fps = number("fps", model.fps);
  return report::number_text(fps > 0 ? std::round(frames / fps * 1000) / 1000 : 0.0);
}

}  // namespace

int64_t frames_of(double seconds, double fps, const ModelFacts& model) {
  const auto steps = std::llround(seconds * fps / static_cast<double>(model.frame_step));
  return std::max<int64_t>(steps, 0) * model.frame_step + 1;
}

Asked read_video(Form form, const Service& service) {
  if (!service.model.makes_clips)
    throw HttpError(400, "model: " + service.model.name +
                             " makes pictures; POST /v1/images/generations asks for them");
  Asked asked = {.api = "videos", .survives = true};
  check_model(form.take("model"), service.model);
  asked.format = clip_format_of(form.take("output_format"));
  const json size = form.take("size"), seconds = form.take("seconds");
  asked.note = {
      {"size", size},
      {"seconds", seconds.is_null() || seconds.is_string() ? seconds : json(seconds.dump())},
      {"prompt", form.fields.value("prompt", json())}};
  put_size(asked, size);
  put_reference(asked, form, service);
  put_rest(asked, std::move(form), service, kVideoNames);
  put_seconds(asked, seconds, service.model);
  return asked;
}

json video_reply(const JobView& view, const ModelFacts& model) {
  const auto moment = [](double seconds) {
    return seconds > 0 ? json(static_cast<int64_t>(seconds)) : json();
  };
  return {{"id", view.id},
          {"object", "video"},
          {"model", model.name},
          {"status", status_of(view.state)},
          {"progress", progress_of(view)},
          {"created_at", static_cast<int64_t>(view.created_s)},
          {"completed_at", moment(view.finished_s)},
          {"expires_at", nullptr},
          {"prompt", view.note.value("prompt", json())},
          {"seconds", seconds_of(view, model)},
          {"size", size_of(view.settings, model)},
          {"error", error_of(view)}};
}

json videos_page(const std::vector<JobView>& views,
                 const std::map<std::string, std::string, std::less<>>& query,
                 const ModelFacts& model) {
  const auto asked = [&](const char* name) {
    const auto found = query.find(name);
    return found == query.end() ? std::string() : found->second;
  };
  const std::string order = asked("order"), after = asked("after"), most = asked("limit");
  if (!order.empty() && order != "asc" && order != "desc")
    throw wrong("order", "asc or desc is expected");
  std::vector<const JobView*> videos;
  for (const JobView& view : views) {
    if (view.api == "videos") videos.push_back(&view);
  }
  if (order == "asc") std::reverse(videos.begin(), videos.end());
  auto begin = videos.begin();
  if (!after.empty()) {
    begin = std::find_if(begin, videos.end(), [&](const JobView* v) { return v->id == after; });
    if (begin == videos.end()) throw wrong("after", "there is no such video");
    ++begin;
  }
  const int64_t limit = most.empty() ? 20 : integer_of("limit", most, 1, 100);
  const auto end = begin + std::min<int64_t>(limit, videos.end() - begin);
  json data = json::array();
  for (auto view = begin; view != end; ++view) data.push_back(video_reply(**view, model));
  return {{"object", "list"},
          {"has_more", end != videos.end()},
          {"first_id", data.empty() ? json() : data.front()["id"]},
          {"last_id", data.empty() ? json() : data.back()["id"]},
          {"data", data}};
}

std::string thumbnail_of(const std::string& path) {
  std::string jpeg;
  constexpr int64_t kFirst[] = {0};
  media::open_clip(path)->read(
      kFirst, [&](const media::Image& frame) { jpeg = media::encode_jpeg(frame); });
  return jpeg;
}

}  // namespace atelier::serve
