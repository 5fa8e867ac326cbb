// Requests of the web UI of Automatic1111, as its clients send them: txt2img and img2img.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "host/serve/fields.h"
#include "host/serve/jobs.h"

namespace atelier::serve {

// A field that clients always send, and that changes nothing here: as long as it has a value that
// means "not", or whatever it is.
struct SdField {
  std::string_view name;
  std::string_view why;
  bool is_any = true;  // false: values other than null, false, 0, "" and empty lists are refused
};
std::span<const SdField> ignored_sd_fields();

struct SdRequest {
  Asked asked = {};
  nlohmann::json parameters = {};  // given back: what was sent, without pictures
  int64_t batch_size = 1, n_iter = 1;
  bool sends_images = true;
};

// Throws HttpError 400 that begins with the field, 404 for another model.
SdRequest read_sd(nlohmann::json fields, const Service& service, bool is_img2img);

// Takes "<lora:name:0.8>" out of a prompt, with the spaces before it. Throws HttpError 400 for one
// that is none, naming `field`.
std::vector<std::pair<std::string, double>> take_loras(std::string_view field, std::string& prompt);

// As samplers and schedulers are called there: "Euler".
std::string sampler_title(std::string_view solver);
// Our solver of such a name; "": the schedule's own. Throws HttpError 400.
std::string solver_of(const nlohmann::json& sampler, const ModelFacts& model);

// A message about a setting, which begins with its name, under the name that the client gave it.
std::string in_words_of(const SdRequest& request, std::string message);

// The reply for a job that is over.
nlohmann::json sd_reply(const SdRequest& request, const JobView& view, const ModelFacts& model);

// GET progress, of all jobs of this API; `now_s`: seconds of the system's clock.
nlohmann::json sd_progress(const std::vector<JobView>& views, bool with_preview, double now_s);

}  // namespace atelier::serve
