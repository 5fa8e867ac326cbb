#include "host/serve/sdapi.h"

#include <chrono>
#include <memory>
#include <utility>

#include "formats/escape.h"
#include "host/report/problems.h"
#include "host/serve/fields.h"
#include "host/serve/sdapi_fields.h"
#include "host/serve/work.h"

namespace atelier::serve {

using http::Client;
using http::HttpError;
using http::Request;
using http::Response;
using nlohmann::json;

namespace {

// Options that clients read or set. What they may be set to changes nothing: they are of another
// program's samplers and folders.
json options_of(const ModelFacts& model) {
  return {{"sd_model_checkpoint", model.name},
          {"sd_checkpoint_hash", nullptr},
          {"sd_vae", "Automatic"},
          {"samples_format", "png"},
          {"CLIP_stop_at_last_layers", 1}};
}

class Sdapi {
 public:
  explicit Sdapi(Service& service) : service_(service) {}

  Response make(const Request& request, Client& client, bool is_img2img);
  Response interrupt();
  Response set_options(const Request& request) const;
  Response refresh_loras() const;
  Response progress(const Request& request) const;

  json options() const { return options_of(service_.model); }
  json models() const;
  json samplers() const;
  json schedulers() const;
  json loras() const;

 private:
  Service& service_;
};

Response Sdapi::make(const Request& request, Client& client, bool is_img2img) {
  SdRequest asked = read_sd(read_form(request).fields, service_, is_img2img);
  try {
    Work work(service_.jobs, std::vector<Asked>{asked.asked});
    asked.asked.uploads.clear();
    // One that was interrupted gives what was finished.
    return json_reply(sd_reply(asked, work.wait(client).front(), service_.model));
  } catch (const HttpError& error) {
    throw HttpError(error.status(), in_words_of(asked, error.what()), error.headers());
  }
}

Response Sdapi::interrupt() {
  for (const JobView& view : service_.jobs.list()) {
    if (view.api == "sdapi" && view.state == JobState::kRunning) service_.jobs.cancel(view.id);
  }
  return json_reply(json::object());
}

Response Sdapi::set_options(const Request& request) const {
  const json known = options(), given = read_form(request).fields;
  for (const auto& [name, value] : given.items()) {
    if (!known.contains(name)) {
      std::vector<std::string> names;
      for (const auto& [other, _] : known.items()) names.push_back(other);
      const std::string nearest = report::nearest_name(name, names);
      throw wrong(name, "is not known" + (nearest.empty() ? "; GET /sdapi/v1/options lists what is"
                                                          : "; did you mean " + nearest + "?"));
    }
    if (name == "sd_model_checkpoint" && value != service_.model.name)
      throw HttpError(404, name + ": " + value.dump() + " is not served, " +
                               formats::quote_and_escape(service_.model.name) + " is");
  }
  return json_reply(nullptr);
}

// Who lists the LoRAs looks for new ones.
Response Sdapi::refresh_loras() const {
  service_.loras.list();
  return json_reply(nullptr);
}

Response Sdapi::progress(const Request& request) const {
  const auto skips = request.query.find("skip_current_image");
  const bool with_preview =
      skips == request.query.end() || !flag_of("skip_current_image", skips->second);
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  return json_reply(sd_progress(service_.jobs.list(), with_preview, now.count()));
}

json Sdapi::models() const {
  const std::string& name = service_.model.name;
  return json::array({{{"title", name},
                       {"model_name", name},
                       {"hash", nullptr},
                       {"sha256", nullptr},
                       {"filename", name},
                       {"config", nullptr}}});
}

json Sdapi::samplers() const {
  json all = json::array();
  for (const std::string& solver : service_.model.solvers)
    all.push_back({{"name", sampler_title(solver)},
                   {"aliases", json::array({solver})},
                   {"options", json::object()}});
  return all;
}

json Sdapi::schedulers() const {
  const auto row = [](const std::string& name, const std::string& label) -> json {
    return {{"name", name},
            {"label", label},
            {"aliases", nullptr},
            {"default_rho", -1},
            {"need_inner_model", false}};
  };
  json all = json::array({row("automatic", "Automatic")});
  for (const json& schedule : service_.model.schedules)
    all.push_back(row(schedule.at("name"), schedule.at("name")));
  return all;
}

json Sdapi::loras() const {
  json all = json::array();
  for (const RegisteredLora& lora : service_.loras.list())
    all.push_back({{"name", lora.name},
                   {"alias", lora.name},
                   {"path", ""},
                   {"metadata", lora.metadata.is_null() ? json::object() : lora.metadata}});
  return all;
}

}  // namespace

Response sdapi_error(int status, const std::string& message) {
  Response response = json_reply({{"error", status >= 500 ? "RuntimeError" : "HTTPException"},
                                  {"detail", message},
                                  {"body", ""},
                                  {"errors", message}});
  response.status = status;
  return response;
}

void add_sdapi(http::Router& router, Service& service) {
  const auto api = std::make_shared<Sdapi>(service);
  const auto get = [&](const char* path, std::function<json()> value) {
    router.add("GET", std::string("/sdapi/v1/") + path,
               [value = std::move(value)](const Request&, Client&) { return json_reply(value()); });
  };
  router.add("POST", "/sdapi/v1/txt2img", [api](const Request& request, Client& client) {
    return api->make(request, client, false);
  });
  router.add("POST", "/sdapi/v1/img2img", [api](const Request& request, Client& client) {
    return api->make(request, client, true);
  });
  router.add("POST", "/sdapi/v1/interrupt",
             [api](const Request&, Client&) { return api->interrupt(); });
  router.add("POST", "/sdapi/v1/options",
             [api](const Request& request, Client&) { return api->set_options(request); });
  router.add("POST", "/sdapi/v1/refresh-loras",
             [api](const Request&, Client&) { return api->refresh_loras(); });
  router.add("GET", "/sdapi/v1/progress",
             [api](const Request& request, Client&) { return api->progress(request); });
  get("options", [api] { return api->options(); });
  get("sd-models", [api] { return api->models(); });
  get("samplers", [api] { return api->samplers(); });
  get("schedulers", [api] { return api->schedulers(); });
  get("loras", [api] { return api->loras(); });
  // There is nothing that enlarges pictures, and one VAE, the model's.
  get("upscalers", [] {
    return json::array({{{"name", "None"},
                         {"model_name", nullptr},
                         {"model_path", nullptr},
                         {"model_url", nullptr},
                         {"scale", 1}}});
  });
  get("latent-upscale-modes", [] { return json::array(); });
  get("sd-vae", [] { return json::array(); });
  // webuiapi looks there at its start for extensions that it knows.
  get("scripts", [] { return json{{"txt2img", json::array()}, {"img2img", json::array()}}; });
  router.on_error("/sdapi", sdapi_error);
}

}  // namespace atelier::serve
