// Pictures as OpenAI's API asks for them and gives them: /v1/images/generations and
// /v1/images/edits.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "host/serve/fields.h"
#include "host/serve/jobs.h"

namespace atelier::serve {

// What a client asks for, and how it wants it.
struct ImagesRequest {
  std::vector<Asked> jobs = {};  // one, or one for each of a list of seeds
  bool is_edit = false;
  bool is_stream = false;
  bool wants_urls = false;
  int64_t most_partials = 0;  // pictures of a stream that are not finished
  std::string output_format = "png";
  nlohmann::json quality = {}, safety_identifier = {};  // given back; null: not said
};

// Throws HttpError 400 that begins with the field, 404 for another model.
ImagesRequest read_images(Form form, const Service& service, bool is_edit);

// The reply for jobs that are done. `host`: of this server, as the client wrote it, for URLs.
nlohmann::json images_reply(const ImagesRequest& request, const std::vector<JobView>& views,
                            const ModelFacts& model, std::string_view host);

// Events of a stream, whole: "event: image_generation.partial_image\ndata: {…}\n\n".
std::string partial_event(const ImagesRequest& request, const JobView& view, int64_t index,
                          const ModelFacts& model);
std::string completed_event(const ImagesRequest& request, const JobView& view, const JobFile& file,
                            const ModelFacts& model);

}  // namespace atelier::serve
