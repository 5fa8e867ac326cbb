#include "host/serve/own_api.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "formats/base64.h"
#include "formats/escape.h"
#include "host/report/problems.h"
#include "host/serve/fields.h"
#include "host/serve/sglang_loras.h"

namespace atelier::serve {
namespace {

using http::Client;
using http::HttpError;
using http::Request;
using http::Response;
using nlohmann::json;

constexpr int64_t kMostPreviews = 1000;
constexpr int kMostPriority = 100;

Response reply_with(int status, const json& body) {
  Response reply = json_reply(body);
  reply.status = status;
  return reply;
}

// The job that a path names.
JobView job_of(const Request& request, const Jobs& jobs) {
  const std::string id(request.parameter("id"));
  std::optional<JobView> view = jobs.find(id);
  if (!view) throw HttpError(404, "there is no job " + formats::quote_and_escape(id));
  return *std::move(view);
}

// What POST /v1/jobs takes beside the names of the tables.
const std::vector<std::string>& own_fields() {
  static const std::vector<std::string> names = {"previews", "format", "priority", "deadline"};
  return names;
}

Asked asked_of(const Request& request, const Service& service) {
  Form form = read_form(request);
  Asked asked;
  asked.idempotency_key = request.header("idempotency-key");
  asked.survives = service.model.makes_clips;  // which take long
  if (const json value = form.take("previews"); !value.is_null())
    asked.previews = integer_of("previews", value, 0, kMostPreviews);
  if (const json value = form.take("format"); !value.is_null())
    asked.format = text_of("format", value);
  if (const json value = form.take("priority"); !value.is_null())
    asked.priority = static_cast<int>(integer_of("priority", value, -kMostPriority, kMostPriority));
  if (const json value = form.take("deadline"); !value.is_null()) {
    asked.deadline_s = real_of("deadline", value);
    if (*asked.deadline_s < 0) throw wrong("deadline", value.dump() + " is below 0");
  }
  for (const auto& [name, value] : form.fields.items())
    put_field(asked, name, value, service, own_fields());
  for (FormFile& file : form.files)
    put_file(asked, file.name, std::move(file.bytes), service.model, own_fields());
  return asked;
}

std::string event(std::string_view name, const json& data) {
  return "event: " + std::string(name) +
         "\ndata: " + data.dump(-1, ' ', false, json::error_handler_t::replace) + "\n\n";
}

bool is_over(const JobView& view) {
  return view.state != JobState::kQueued && view.state != JobState::kRunning;
}

// Tells of a job until it is over or the client is gone.
void tell(const Jobs& jobs, JobView view, Client& client) {
  constexpr std::chrono::seconds kLook{1};
  constexpr int kQuietLooks = 15;  // after which a comment shows that the line is there
  int64_t previews = 0;
  int quiet = 0;
  for (bool is_new = true;;) {
    if (is_new) {
      if (view.previews > previews && view.preview) {
        previews = view.previews;
        const json preview = {{"index", previews - 1},
                              {"b64_json", formats::encode_base64(*view.preview)}};
        if (!client.send(event("preview", preview))) return;
      }
      if (!client.send(event("job", view_json(view)))) return;
      if (is_over(view)) return;
      quiet = 0;
    } else if (++quiet % kQuietLooks == 0 && !client.send(": \n\n")) {
      return;
    }
    if (client.is_gone()) return;
    std::optional<JobView> next = jobs.wait(view.id, view.version, kLook);
    if (!next) return;  // it was removed
    is_new = next->version != view.version;
    view = *std::move(next);
  }
}

void add_jobs(http::Router& router, Service& service) {
  Jobs& jobs = service.jobs;
  router.add("POST", "/v1/jobs", [&](const Request& request, Client&) {
    const std::string id = jobs.submit(asked_of(request, service));
    const std::optional<JobView> view = jobs.find(id);
    if (!view) throw HttpError(410, "the job was removed");
    Response reply = reply_with(202, view_json(*view));
    reply.headers.emplace_back("Location", "/v1/jobs/" + id);
    return reply;
  });
  router.add("GET", "/v1/jobs", [&](const Request&, Client&) {
    json views = json::array();
    for (const JobView& view : jobs.list()) views.push_back(view_json(view));
    return json_reply({{"jobs", views}});
  });
  router.add("GET", "/v1/jobs/{id}", [&](const Request& request, Client&) {
    return json_reply(view_json(job_of(request, jobs)));
  });
  router.add("GET", "/v1/jobs/{id}/events", [&](const Request& request, Client&) {
    return Response{.content_type = "text/event-stream",
                    .headers = {{"Cache-Control", "no-store"}},
                    .stream = [&jobs, view = job_of(request, jobs)](Client& client) {
                      tell(jobs, view, client);
                    }};
  });
  router.add("POST", "/v1/jobs/{id}/cancel", [&](const Request& request, Client&) {
    const JobView view = job_of(request, jobs);
    if (!jobs.cancel(view.id)) throw HttpError(409, "the job is over");
    return json_reply(view_json(job_of(request, jobs)));
  });
  router.add("DELETE", "/v1/jobs/{id}", [&](const Request& request, Client&) {
    const std::string id = job_of(request, jobs).id;
    jobs.remove(id);
    return json_reply({{"id", id}, {"deleted", true}});
  });
}

void add_results(http::Router& router, Service& service) {
  Jobs& jobs = service.jobs;
  router.add("GET", "/v1/jobs/{id}/files/{n}", [&](const Request& request, Client&) {
    const JobView view = job_of(request, jobs);
    const std::string text(request.parameter("n"));
    if (view.files.empty()) throw HttpError(404, "the job has no files yet");
    const int64_t number =
        integer_of("files", text, 0, static_cast<int64_t>(view.files.size()) - 1);
    const JobFile& file = view.files[static_cast<size_t>(number)];
    return Response{.content_type = file.content_type, .file = file.path};
  });
  router.add("GET", "/v1/jobs/{id}/preview", [&](const Request& request, Client&) {
    const JobView view = job_of(request, jobs);
    if (!view.preview) throw HttpError(404, "there has been no preview of the job");
    return Response{.content_type = "image/jpeg",
                    .body = *view.preview,
                    .headers = {{"Cache-Control", "no-store"}}};
  });
}

void add_inputs(http::Router& router, Service& service) {
  router.add("GET", "/v1/inputs", [&](const Request&, Client&) {
    const ModelFacts& model = service.model;
    return json_reply({{"model", model.name},
                       {"family", model.family},
                       {"variant", model.variant},
                       {"clips", model.makes_clips},
                       {"defaults",
                        {{"height", model.height},
                         {"width", model.width},
                         {"num_frames", model.frames},
                         {"fps", model.fps}}},
                       {"settings", model.inputs.at("settings")},
                       {"inputs", model.inputs.at("inputs")},
                       {"schedules", model.schedules},
                       {"solvers", model.solvers}});
  });
}

// ---- LoRAs

json lora_json(const RegisteredLora& lora) {
  return {{"name", lora.name},
          {"loaded", lora.is_loaded},
          {"strength", lora.strength},
          {"metadata", lora.metadata}};
}

json list_of(const Loras& loras) {
  json list = json::array();
  for (const RegisteredLora& lora : loras.list()) list.push_back(lora_json(lora));
  return {{"loras", list}};
}

// The fields of a request that has none but these.
json fields_of(const Request& request, std::initializer_list<const char*> known) {
  Form form = read_form(request);
  if (!form.files.empty()) throw wrong(form.files.front().name, "no file is taken");
  const std::vector<std::string> names(known.begin(), known.end());
  for (const auto& [name, value] : form.fields.items()) {
    if (std::ranges::find(names, name) != names.end()) continue;
    const std::string nearest = report::nearest_name(name, names);
    throw wrong(name, nearest.empty() ? "is not known"
                                      : "is not known; did you mean " +
                                            formats::quote_and_escape(nearest) + "?");
  }
  return form.fields;
}

std::string required_text(const json& fields, const char* name) {
  if (!fields.contains(name)) throw wrong(name, "is missing");
  return text_of(name, fields[name]);
}

void add_loras(http::Router& router, Service& service) {
  Loras& loras = service.loras;
  router.add("GET", "/v1/loras",
             [&](const Request&, Client&) { return json_reply(list_of(loras)); });
  router.add("POST", "/v1/loras", [&](const Request& request, Client&) {
    const json fields = fields_of(request, {"name", "file", "component"});
    const std::string file = required_text(fields, "file");
    const std::string component =
        fields.contains("component") ? text_of("component", fields["component"]) : "";
    loras.add(required_text(fields, "name"), file, component);
    return reply_with(201, list_of(loras));
  });
  router.add("DELETE", "/v1/loras/{name}", [&](const Request& request, Client&) {
    loras.remove(std::string(request.parameter("name")));
    return json_reply(list_of(loras));
  });
  router.add("POST", "/v1/loras/{name}/load", [&](const Request& request, Client&) {
    double strength = 1.0;
    if (!request.body.empty()) {
      const json fields = fields_of(request, {"strength"});
      if (fields.contains("strength")) strength = real_of("strength", fields["strength"]);
    }
    loras.set_loaded(std::string(request.parameter("name")), /*is_loaded=*/true, strength);
    return json_reply(list_of(loras));
  });
  router.add("POST", "/v1/loras/{name}/unload", [&](const Request& request, Client&) {
    loras.set_loaded(std::string(request.parameter("name")), /*is_loaded=*/false, 0);
    return json_reply(list_of(loras));
  });
}

}  // namespace

json view_json(const JobView& view) {
  json files = json::array();
  for (size_t i = 0; i < view.files.size(); ++i)
    files.push_back({{"url", "/v1/jobs/" + view.id + "/files/" + std::to_string(i)},
                     {"content_type", view.files[i].content_type},
                     {"seed", view.files[i].seed}});
  const auto time_of = [](double seconds) { return seconds > 0 ? json(seconds) : json(); };
  return {{"id", view.id},
          {"state", state_name(view.state)},
          {"place", view.place},
          {"step", view.step},
          {"steps", view.steps},
          {"previews", view.previews},
          {"files", files},
          {"error", view.error.empty() ? json() : json(view.error)},
          {"error_code", view.error_status == 0 ? json() : json(view.error_status)},
          {"created", time_of(view.created_s)},
          {"started", time_of(view.started_s)},
          {"finished", time_of(view.finished_s)},
          {"settings", view.settings},
          {"api", view.api}};
}

void add_own_api(http::Router& router, Service& service) {
  add_jobs(router, service);
  add_results(router, service);
  add_inputs(router, service);
  add_loras(router, service);
  add_sglang_loras(router, service);
}

void add_status(http::Router& router, std::function<bool()> is_ready, const Metrics& metrics,
                const JobTable& jobs) {
  router.add("GET", "/health", [is_ready](const Request&, Client&) {
    if (is_ready()) return json_reply({{"status", "ok"}});
    Response reply = reply_with(503, {{"status", "the model is being read"}});
    reply.headers.emplace_back("Retry-After", "2");
    return reply;
  });
  router.add_open("/health");
  router.add("GET", "/metrics", [&](const Request&, Client&) {
    const auto [waiting, running] = jobs.waiting_and_running();
    return Response{.content_type = "text/plain; version=0.0.4; charset=utf-8",
                    .body = metrics.text(waiting, running)};
  });
}

}  // namespace atelier::serve
