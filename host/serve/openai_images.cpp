#include "host/serve/openai_images.h"

#include <array>
#include <chrono>
#include <optional>
#include <utility>

#include "formats/base64.h"
#include "host/serve/masks.h"
#include "host/serve/openai_fields.h"
#include "host/serve/work.h"

namespace atelier::serve {

using nlohmann::json;

namespace {

constexpr int64_t kMostPartials = 3;  // as OpenAI's
const std::array<std::string, 10> kImageNames = {
    "model",           "size",  "stream", "partial_images", "output_format", "background",
    "response_format", "image", "mask",   "prompt"};

int64_t now_s() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::string choice_of(const char* name, const json& value, const char* preset,
                      std::initializer_list<const char*> choices) {
  if (value.is_null() || value == "") return preset;
  std::string all;
  for (const char* const choice : choices) {
    if (value == choice) return choice;
    all += (all.empty() ? "" : ", ") + std::string(choice);
  }
  throw wrong(name, value.dump() + " is none of " + all);
}

std::string format_of(const json& value) {
  for (const char* const other : {"webp", "gif", "svg"}) {
    if (value == other)
      throw wrong("output_format",
                  std::string(other) + " pictures are not written; use png or jpeg");
  }
  return choice_of("output_format", value, "png", {"png", "jpeg"});
}

// The pictures and the mask of an edit, as files of a form or as values of JSON. Whether there is a
// mask.
bool put_edited(Asked& asked, Form& form, const Service& service) {
  std::vector<Upload> pictures;
  std::optional<Upload> mask;
  std::vector<FormFile> rest;
  for (FormFile& file : form.files) {
    if (file.name == "image" || file.name == "image[]") {
      pictures.emplace_back(std::move(file.bytes));
    } else if (file.name == "mask") {
      mask = mask_of_transparent(Upload(std::move(file.bytes)));
    } else {
      rest.push_back(std::move(file));
    }
  }
  form.files = std::move(rest);
  if (const json value = form.take("image"); !value.is_null()) {
    for (Upload& upload : uploads_of("image", value, service.jobs))
      pictures.push_back(std::move(upload));
  }
  if (const json value = form.take("mask"); !value.is_null()) {
    std::vector<Upload> masks = uploads_of("mask", value, service.jobs);
    if (masks.size() != 1) throw wrong("mask", "takes one file");
    mask = mask_of_transparent(std::move(masks.front()));
  }
  const bool has_mask = mask.has_value();
  put_pictures(asked, "image", std::move(pictures), std::move(mask), service.model);
  return has_mask;
}

void put_stream(ImagesRequest& images, Asked& asked, Form& form) {
  if (const json stream = form.take("stream"); !stream.is_null())
    images.is_stream = flag_of("stream", stream);
  if (const json partials = form.take("partial_images"); !partials.is_null())
    asked.previews = integer_of("partial_images", partials, 0, kMostPartials);
  if (asked.previews > 0 && !images.is_stream)
    throw wrong("partial_images", "needs \"stream\": true");
  if (images.is_stream && images.wants_urls)
    throw wrong("response_format", "a stream sends the pictures themselves; use b64_json");
}

// A model of clips makes one frame.
void make_still(Asked& asked, const ModelFacts& model) {
  if (!model.makes_clips) return;
  const json frames = asked.fields.value("num_frames", json(1));
  if (frames != 1)
    throw wrong("num_frames", "pictures have one frame; POST /v1/videos makes clips");
  asked.fields["num_frames"] = 1;
}

// Tokens of OpenAI's prices: none are counted here. The events of a stream have to have them, by
// the types of OpenAI's clients, and replies do not.
json usage() {
  return {{"input_tokens", 0},
          {"input_tokens_details", {{"image_tokens", 0}, {"text_tokens", 0}}},
          {"output_tokens", 0},
          {"total_tokens", 0}};
}

std::string_view background_of(const ModelFacts& model) {
  return model.has_transparency ? "transparent" : "opaque";
}

std::string_view event_kind(const ImagesRequest& request) {
  return request.is_edit ? "image_edit" : "image_generation";
}

json event_of(const ImagesRequest& request, const char* name, const JobView& view,
              const ModelFacts& model) {
  json event = {{"type", std::string(event_kind(request)) + "." + name},
                {"created_at", now_s()},
                {"background", background_of(model)},
                {"quality", request.quality.is_null() ? json("auto") : request.quality},
                {"size", size_of(view.settings, model)}};
  if (!request.safety_identifier.is_null()) event["safety_identifier"] = request.safety_identifier;
  return event;
}

std::string sent(const json& event) {
  return "event: " + event.at("type").get<std::string>() +
         "\ndata: " + event.dump(-1, ' ', false, json::error_handler_t::replace) + "\n\n";
}

}  // namespace

ImagesRequest read_images(Form form, const Service& service, bool is_edit) {
  ImagesRequest images = {.is_edit = is_edit};
  Asked asked = {.api = "openai"};
  check_model(form.take("model"), service.model);
  const std::string background =
      choice_of("background", form.take("background"), "auto", {"auto", "opaque", "transparent"});
  if (background != "auto" && background != background_of(service.model))
    throw wrong("background", std::string("pictures are ") +
                                  std::string(background_of(service.model)) + "; leave it out");
  images.output_format = asked.format = format_of(form.take("output_format"));
  images.wants_urls = choice_of("response_format", form.take("response_format"), "b64_json",
                                {"b64_json", "url"}) == "url";
  images.quality = form.fields.value("quality", json());
  if (images.quality == "standard" || images.quality == "hd" || images.quality == "auto")
    images.quality = nullptr;
  images.safety_identifier =
      form.fields.value("safety_identifier", form.fields.value("user", json()));
  put_stream(images, asked, form);
  put_size(asked, form.take("size"));
  const bool has_mask = is_edit && put_edited(asked, form, service);
  const json seed = form.fields.value("seed", json());
  if (seed.is_array()) form.fields.erase("seed");
  put_rest(asked, std::move(form), service, kImageNames);
  make_still(asked, service.model);
  // Nothing is left of what stood where the mask is, as at OpenAI's.
  if (has_mask && !asked.fields.contains("denoising_strength"))
    asked.fields["denoising_strength"] = 1.0;
  images.jobs = by_seeds(std::move(asked), seed, service.model);
  for (const Asked& job : images.jobs) {
    const json count = job.fields.value("num_images", json(1));
    images.most_partials += job.previews * (count.is_number_integer() ? count.get<int64_t>() : 1);
  }
  return images;
}

json images_reply(const ImagesRequest& request, const std::vector<JobView>& views,
                  const ModelFacts& model, std::string_view host) {
  json data = json::array();
  for (const JobView& view : views) {
    for (size_t i = 0; i < view.files.size(); ++i) {
      json image = {{"seed", view.files[i].seed}};
      if (request.wants_urls) {
        image["url"] =
            "http://" + std::string(host) + "/v1/jobs/" + view.id + "/files/" + std::to_string(i);
      } else {
        image["b64_json"] = formats::encode_base64(bytes_of(view.files[i]));
      }
      data.push_back(std::move(image));
    }
  }
  json reply = {{"created", now_s()},
                {"data", std::move(data)},
                {"background", background_of(model)},
                {"output_format", request.output_format},
                {"size", size_of(views.front().settings, model)}};
  if (!request.quality.is_null()) reply["quality"] = request.quality;
  if (!request.safety_identifier.is_null()) reply["safety_identifier"] = request.safety_identifier;
  return reply;
}

std::string partial_event(const ImagesRequest& request, const JobView& view, int64_t index,
                          const ModelFacts& model) {
  json event = event_of(request, "partial_image", view, model);
  event["b64_json"] = formats::encode_base64(*view.preview);
  event["partial_image_index"] = index;
  event["output_format"] = "jpeg";  // what previews are, whatever is asked for
  return sent(event);
}

std::string completed_event(const ImagesRequest& request, const JobView& view, const JobFile& file,
                            const ModelFacts& model) {
  json event = event_of(request, "completed", view, model);
  event["b64_json"] = formats::encode_base64(bytes_of(file));
  event["output_format"] = request.output_format;
  event["usage"] = usage();
  return sent(event);
}

}  // namespace atelier::serve
