#include "host/serve/openai.h"

#include <filesystem>
#include <memory>
#include <optional>
#include <utility>

#include "atelier/error.h"

#include "formats/escape.h"
#include "host/serve/fields.h"
#include "host/serve/openai_fields.h"
#include "host/serve/openai_images.h"
#include "host/serve/openai_retries.h"
#include "host/serve/openai_videos.h"
#include "host/serve/work.h"

namespace atelier::serve {

using http::Client;
using http::HttpError;
using http::Request;
using http::Response;
using nlohmann::json;

namespace {

constexpr const char* kPollAfterMs = "1000";  // for clients that wait for a clip

// The field that a message begins with; "" where it begins with something else.
std::string field_of(const std::string& message) {
  const size_t end = message.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_[]");
  return end != 0 && end != std::string::npos && message.compare(end, 2, ": ") == 0
             ? message.substr(0, end)
             : std::string();
}

const char* code_of(int status, const std::string& field) {
  if (status == 401) return "invalid_api_key";
  if (status == 404) return field == "model" ? "model_not_found" : "not_found";
  if (status == 429) return "rate_limit_exceeded";
  if (status == 507) return "out_of_memory";
  return nullptr;
}

const char* type_of(int status) {
  if (status == 429) return "rate_limit_error";
  return status >= 500 ? "server_error" : "invalid_request_error";
}

// Jobs of one request have keys of their own.
void set_key(std::vector<Asked>& jobs, const Request& request) {
  const std::string key(request.header("idempotency-key"));
  if (key.empty()) return;
  for (size_t i = 0; i < jobs.size(); ++i)
    jobs[i].idempotency_key = jobs.size() == 1 ? key : key + "/" + std::to_string(i);
}

class OpenAi {
 public:
  explicit OpenAi(Service& service) : service_(service) {}

  Response images(const Request& request, Client& client, bool is_edit);
  Response models() const;
  Response model(const Request& request) const;
  Response create_video(const Request& request);
  Response video(const Request& request) const;
  Response videos(const Request& request) const;
  Response content(const Request& request) const;
  Response remove_video(const Request& request);

 private:
  // Shared, for streams go on when the handler has returned.
  std::shared_ptr<Work> work_of(const Request& request, const Form& form, ImagesRequest& images);
  Response stream_of(std::shared_ptr<Work> work, ImagesRequest images) const;
  JobView find_video(const Request& request) const;
  static Response thumbnail(const JobFile& file);
  json model_object() const;

  Service& service_;
  Retries retries_;
};

std::shared_ptr<Work> OpenAi::work_of(const Request& request, const Form& form,
                                      ImagesRequest& images) {
  std::shared_ptr<Work> work;
  const auto are_done = [&](const Retries::Ids& ids) {
    for (const std::string& id : ids) {
      const auto view = service_.jobs.find(id);
      if (!view || view->state != JobState::kDone) return false;
    }
    return true;
  };
  const Retries::Ids ids = retries_.submit(request, form, are_done, [&] {
    work = std::make_shared<Work>(service_.jobs, std::move(images.jobs));
    return work->ids();
  });
  return work != nullptr ? work : std::make_shared<Work>(service_.jobs, ids);
}

Response OpenAi::images(const Request& request, Client& client, bool is_edit) {
  Form form = read_form(request);
  ImagesRequest images = read_images(form, service_, is_edit);
  set_key(images.jobs, request);
  auto work = work_of(request, form, images);
  if (images.is_stream) return stream_of(std::move(work), std::move(images));
  const std::vector<JobView> views = work->wait(client);
  for (const JobView& view : views) {
    if (view.state != JobState::kDone) throw HttpError(410, "the job was cancelled");
  }
  return json_reply(images_reply(images, views, service_.model, request.header("host")));
}

Response OpenAi::stream_of(std::shared_ptr<Work> work, ImagesRequest images) const {
  const ModelFacts& model = service_.model;
  const auto send = [work = std::move(work), images = std::move(images), &model](Client& client) {
    int64_t partials = 0;
    std::vector<int64_t> previews(work->ids().size());
    std::vector<size_t> files(work->ids().size());
    const auto on_change = [&](size_t index, const JobView& view) {
      if (view.previews > previews[index] && view.preview != nullptr &&
          partials < images.most_partials) {
        previews[index] = view.previews;
        client.send(partial_event(images, view, partials++, model));
      }
      for (; files[index] < view.files.size(); ++files[index])
        client.send(completed_event(images, view, view.files[files[index]], model));
    };
    try {
      for (const JobView& view : work->wait(client, on_change)) {
        if (view.state != JobState::kDone) throw HttpError(410, "the job was cancelled");
      }
    } catch (const HttpError& error) {
      client.send("event: error\ndata: " + openai_error(error.status(), error.what()).body +
                  "\n\n");
    }
  };
  return {.content_type = "text/event-stream",
          .headers = {{"Cache-Control", "no-cache"}},
          .stream = send};
}

json OpenAi::model_object() const {
  return {{"id", service_.model.name},
          {"object", "model"},
          {"created", static_cast<int64_t>(service_.model.started_s)},
          {"owned_by", service_.model.family}};
}

Response OpenAi::models() const {
  return json_reply({{"object", "list"}, {"data", json::array({model_object()})}});
}

Response OpenAi::model(const Request& request) const {
  check_model(std::string(request.parameter("id")), service_.model);
  return json_reply(model_object());
}

Response OpenAi::create_video(const Request& request) {
  Form form = read_form(request);
  std::vector<Asked> asked = {read_video(form, service_)};
  set_key(asked, request);
  const auto is_known = [&](const Retries::Ids& ids) {
    const auto view = service_.jobs.find(ids.front());
    return view && view->state != JobState::kCancelled;
  };
  const Retries::Ids ids = retries_.submit(request, form, is_known, [&] {
    return Retries::Ids{service_.jobs.submit(std::move(asked.front()))};
  });
  const auto view = service_.jobs.find(ids.front());
  if (!view) throw HttpError(410, "the job was removed");
  Response made = json_reply(video_reply(*view, service_.model));
  made.headers.emplace_back("openai-poll-after-ms", kPollAfterMs);
  return made;
}

JobView OpenAi::find_video(const Request& request) const {
  const std::string id(request.parameter("id"));
  auto view = service_.jobs.find(id);
  if (!view || view->api != "videos")
    throw HttpError(404, "there is no video " + formats::quote_and_escape(id));
  return std::move(*view);
}

Response OpenAi::video(const Request& request) const {
  const JobView view = find_video(request);
  Response found = json_reply(video_reply(view, service_.model));
  if (view.state == JobState::kQueued || view.state == JobState::kRunning)
    found.headers.emplace_back("openai-poll-after-ms", kPollAfterMs);
  return found;
}

Response OpenAi::videos(const Request& request) const {
  return json_reply(videos_page(service_.jobs.list(), request.query, service_.model));
}

// Nothing is told of the file but that it is not there or cannot be read.
Response OpenAi::thumbnail(const JobFile& file) {
  if (!std::filesystem::exists(file.path))
    throw HttpError(410, "the file is gone; results are kept for a while only");
  try {
    return {.content_type = "image/jpeg", .body = thumbnail_of(file.path)};
  } catch (const Error&) {
    throw HttpError(500, "the clip cannot be read, so it has no thumbnail",
                    {{"x-should-retry", "false"}});
  }
}

Response OpenAi::content(const Request& request) const {
  const JobView view = find_video(request);
  const auto asked = request.query.find("variant");
  const std::string variant = asked == request.query.end() ? "video" : asked->second;
  if (variant != "video" && variant != "thumbnail")
    throw wrong("variant", "video or thumbnail is expected");
  if (view.state != JobState::kDone || view.files.empty()) {
    const json said = video_reply(view, service_.model);
    throw HttpError(400,
                    "the video is not there: its status is " + said["status"].get<std::string>());
  }
  const JobFile& file = view.files.front();
  if (variant == "thumbnail") return thumbnail(file);
  return {.content_type = file.content_type, .file = file.path};
}

Response OpenAi::remove_video(const Request& request) {
  const JobView view = find_video(request);
  const bool is_removed = service_.jobs.remove(view.id);
  return json_reply({{"id", view.id}, {"object", "video.deleted"}, {"deleted", is_removed}});
}

}  // namespace

Response openai_error(int status, const std::string& message) {
  const std::string field = field_of(message);
  const char* const code = code_of(status, field);
  Response response = json_reply({{"error",
                                   {{"message", message},
                                    {"type", type_of(status)},
                                    {"param", field.empty() ? json() : json(field)},
                                    {"code", code == nullptr ? json() : json(code)}}}});
  response.status = status;
  return response;
}

void add_openai(http::Router& router, Service& service) {
  const auto api = std::make_shared<OpenAi>(service);
  router.add("POST", "/v1/images/generations", [api](const Request& request, Client& client) {
    return api->images(request, client, false);
  });
  router.add("POST", "/v1/images/edits", [api](const Request& request, Client& client) {
    return api->images(request, client, true);
  });
  router.add("GET", "/v1/models", [api](const Request&, Client&) { return api->models(); });
  router.add("GET", "/v1/models/{id}",
             [api](const Request& request, Client&) { return api->model(request); });
  router.add("POST", "/v1/videos",
             [api](const Request& request, Client&) { return api->create_video(request); });
  router.add("GET", "/v1/videos",
             [api](const Request& request, Client&) { return api->videos(request); });
  router.add("GET", "/v1/videos/{id}",
             [api](const Request& request, Client&) { return api->video(request); });
  router.add("GET", "/v1/videos/{id}/content",
             [api](const Request& request, Client&) { return api->content(request); });
  router.add("DELETE", "/v1/videos/{id}",
             [api](const Request& request, Client&) { return api->remove_video(request); });
  for (const char* const prefix : {"/v1/images", "/v1/videos", "/v1/models"})
    router.on_error(prefix, openai_error);
}

}  // namespace atelier::serve
