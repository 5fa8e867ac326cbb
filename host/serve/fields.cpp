#include "host/serve/fields.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "formats/base64.h"
#include "formats/data_url.h"
#include "formats/escape.h"
#include "formats/json.h"
#include "formats/multipart.h"
#include "formats/utf8.h"
#include "host/report/problems.h"
#include "host/report/text.h"
#include "host/serve/work.h"

namespace atelier::serve {

using http::HttpError;
using nlohmann::json;

namespace {

constexpr const char* kMask = "inpaint_mask";

std::string shown(std::string_view text) {
  return formats::quote_and_escape(text);
}

std::string kind_of(const json& row) {
  return row.at("kind").get<std::string>();
}

bool is(const json& row, const char* what) {
  return row.value(what, false);
}

HttpError unknown(const std::string& name, const ModelFacts& model,
                  std::span<const std::string> also) {
  std::vector<std::string> known(also.begin(), also.end());
  for (const char* const table : {"settings", "inputs"}) {
    for (const json& row : model.inputs.at(table)) known.push_back(row.at("name"));
  }
  const std::string nearest = report::nearest_name(name, known);
  return wrong(name, nearest.empty() ? "is not known; GET /v1/inputs lists the names"
                                     : "is not known; did you mean " + shown(nearest) + "?");
}

// A text that is a number, as one; anything else as it is.
json number_in(const json& value) {
  if (!value.is_string()) return value;
  const auto& text = value.get_ref<const std::string&>();
  if (const auto number = report::parse_number<int64_t>(text)) return *number;
  if (const auto number = report::parse_number<uint64_t>(text)) return *number;
  if (const auto number = report::parse_number<double>(text)) return *number;
  return value;
}

json typed(const json& row, const json& value) {
  if (value.is_array()) {
    json list = json::array();
    for (const json& item : value) list.push_back(typed(row, item));
    return list;
  }
  const std::string kind = kind_of(row);
  if (kind == "integer" || kind == "real" || kind == "seed") return number_in(value);
  if (kind == "flag" && (value == "true" || value == "false")) return value == "true";
  return value;
}

std::string bytes_of_text(const std::string& name, std::string_view text) {
  if (text.starts_with("http://") || text.starts_with("https://"))
    throw wrong(name, "no address is fetched; send the file, or a data: URL");
  std::optional<std::string> bytes;
  try {
    bytes = formats::is_data_url(text) ? formats::parse_data_url(text).bytes
                                       : formats::decode_base64(text);
  } catch (const formats::ParseError& error) {
    throw wrong(name, error.what());
  }
  if (!bytes || bytes->empty()) throw wrong(name, "is no base64 of a file");
  return *std::move(bytes);
}

// {"job": "…", "file": 0}.
std::string bytes_of_result(const std::string& name, const json& value, const Jobs& jobs) {
  const json id = value.value("job", json());
  if (!id.is_string() || value.size() > (value.contains("file") ? 2U : 1U))
    throw wrong(name, R"(a file is "data:…;base64,…" or {"job": "ID", "file": 0})");
  const auto job = jobs.find(id.get_ref<const std::string&>());
  if (!job) throw wrong(name, "there is no job " + shown(id.get<std::string>()));
  if (job->files.empty()) throw wrong(name, "the job has no files yet");
  const int64_t number = integer_of(name, value.value("file", json(0)), 0,
                                    static_cast<int64_t>(job->files.size()) - 1);
  try {
    return bytes_of(job->files[static_cast<size_t>(number)]);
  } catch (const HttpError&) {
    throw wrong(name, "the file of that job is gone");
  }
}

bool is_image(const json& row) {
  return kind_of(row) == "image";
}

void put_files(Asked& asked, const std::string& name, std::vector<Upload> files, const json& row) {
  std::vector<Upload>& all = asked.uploads[name];
  for (Upload& file : files) all.push_back(std::move(file));
  if (all.size() > 1 && !is(row, "list")) throw wrong(name, "takes one file");
}

}  // namespace

http::Response json_reply(const json& body) {
  return {.body = body.dump(-1, ' ', false, json::error_handler_t::replace)};
}

HttpError wrong(std::string_view name, const std::string& problem) {
  return {400, std::string(name) + ": " + problem};
}

std::string text_of(std::string_view name, const json& value) {
  if (!value.is_string()) throw wrong(name, shown(value.dump()) + " is no text");
  return value.get<std::string>();
}

int64_t integer_of(std::string_view name, const json& given, int64_t least, int64_t most) {
  const json value = number_in(given);
  const std::string range =
      "a whole number from " + std::to_string(least) + " to " + std::to_string(most);
  if (!value.is_number()) throw wrong(name, shown(given.dump()) + " is not " + range);
  const auto number = value.get<double>();
  if (number != std::floor(number) || number < static_cast<double>(least) ||
      number > static_cast<double>(most))
    throw wrong(name, given.dump() + " is not " + range);
  return value.get<int64_t>();
}

double real_of(std::string_view name, const json& given) {
  const json value = number_in(given);
  if (!value.is_number() || !std::isfinite(value.get<double>()))
    throw wrong(name, shown(given.dump()) + " is no number");
  return value.get<double>();
}

bool flag_of(std::string_view name, const json& value) {
  if (value.is_boolean()) return value.get<bool>();
  if (value == "true" || value == 1) return true;
  if (value == "false" || value == 0) return false;
  throw wrong(name, shown(value.dump()) + " is neither true nor false");
}

namespace {

// A text of a form. "seed[]" is one of a list, whose other members have the same name.
void add_text(json& fields, std::string name, std::string text) {
  const bool is_listed = name.ends_with("[]");
  if (is_listed) name.resize(name.size() - 2);
  if (name.find('[') != std::string::npos && name != "input_reference[image_url]")
    throw wrong(name, "a form loses which of its values belong together; send " +
                          name.substr(0, name.find('[')) + " as a text of JSON");
  const auto found = fields.find(name);
  if (found == fields.end()) {
    fields[name] = is_listed ? json::array({std::move(text)}) : json(std::move(text));
    return;
  }
  if (!found->is_array()) *found = json::array({std::move(*found)});
  found->push_back(std::move(text));
}

Form read_multipart(const http::Request& request) {
  Form form;
  for (const auto& part : formats::parse_multipart(request.header("content-type"), request.body)) {
    if (part.file_name) {
      form.files.push_back({part.name, std::string(part.bytes)});
    } else if (formats::find_invalid_utf8(part.bytes) == std::string_view::npos) {
      add_text(form.fields, part.name, std::string(part.bytes));
    } else {
      throw wrong(part.name, "is no text; a file has a filename");
    }
  }
  return form;
}

}  // namespace

Form read_form(const http::Request& request) {
  try {
    if (request.header("content-type").starts_with("multipart/")) return read_multipart(request);
    Form form = {.fields = formats::parse_json(request.body)};
    if (!form.fields.is_object()) throw HttpError(400, "the body is no JSON object");
    for (auto field = form.fields.begin(); field != form.fields.end();)
      field = field->is_null() ? form.fields.erase(field) : std::next(field);
    return form;
  } catch (const formats::ParseError& error) {
    throw HttpError(400, std::string("the body: ") + error.what());
  }
}

json Form::take(std::string_view name) {
  const auto found = fields.find(name);
  if (found == fields.end()) return nullptr;
  json value = std::move(*found);
  fields.erase(found);
  return value;
}

const json* find_row(const ModelFacts& model, std::string_view name) {
  for (const char* const table : {"settings", "inputs"}) {
    for (const json& row : model.inputs.at(table)) {
      if (row.at("name").get_ref<const std::string&>() == name) return &row;
    }
  }
  return nullptr;
}

bool is_file_kind(std::string_view kind) {
  for (const std::string_view file : {"image", "mask", "video", "video_mask", "audio", "file"}) {
    if (kind == file) return true;
  }
  return false;
}

constexpr size_t kMostFiles = 64;  // of one input

std::vector<Upload> uploads_of(const std::string& name, const json& value, const Jobs& jobs) {
  std::vector<Upload> uploads;
  if (value.is_array()) {
    if (value.size() > kMostFiles)
      throw HttpError(413, name + ": more than " + std::to_string(kMostFiles) + " files");
    for (const json& item : value) {
      for (Upload& upload : uploads_of(name, item, jobs)) uploads.push_back(std::move(upload));
    }
  } else if (value.is_string()) {
    uploads.emplace_back(bytes_of_text(name, value.get_ref<const std::string&>()));
  } else {
    uploads.emplace_back(bytes_of_result(name, value.is_object() ? value : json::object(), jobs));
  }
  return uploads;
}

void put_field(Asked& asked, const std::string& name, const json& value, const Service& service,
               std::span<const std::string> also) {
  if (name == "loras") return put_loras(asked, name, value, service.loras);
  const json* const row = find_row(service.model, name);
  if (row == nullptr) throw unknown(name, service.model, also);
  if (!is_file_kind(kind_of(*row))) {
    asked.fields[name] = typed(*row, value);
  } else if (value != "") {
    put_files(asked, name, uploads_of(name, value, service.jobs), *row);
  }
}

void put_file(Asked& asked, const std::string& name, std::string bytes, const ModelFacts& model,
              std::span<const std::string> also) {
  const json* const row = find_row(model, name);
  if (row == nullptr) throw unknown(name, model, also);
  if (!is_file_kind(kind_of(*row))) throw wrong(name, "is a value, and came as a file");
  std::vector<Upload> one;
  one.emplace_back(std::move(bytes));
  put_files(asked, name, std::move(one), *row);
}

void add_lora(Asked& asked, const std::string& field, const std::string& name, double strength,
              const Loras& loras) {
  std::vector<std::string> known;
  for (const RegisteredLora& lora : loras.list()) known.push_back(lora.name);
  if (std::find(known.begin(), known.end(), name) == known.end()) {
    const std::string nearest = report::nearest_name(name, known);
    throw wrong(field, "no LoRA " + shown(name) + " is registered; " +
                           (nearest.empty() ? "GET /v1/loras lists those that are"
                                            : "did you mean " + shown(nearest) + "?"));
  }
  if (!asked.loras) asked.loras.emplace();
  for (const auto& [other, _] : *asked.loras) {
    if (other == name) throw wrong(field, shown(name) + " is named twice");
  }
  asked.loras->emplace_back(name, strength);
}

void put_loras(Asked& asked, const std::string& name, const json& given, const Loras& loras) {
  constexpr const char* kForm = R"([{"name": "a", "strength": 0.8}])";
  json value = given;
  if (value.is_string()) {
    try {
      value = formats::parse_json(value.get_ref<const std::string&>());
    } catch (const formats::ParseError& error) {
      throw wrong(name, std::string("is no JSON: ") + error.what() + "; write " + kForm);
    }
  }
  if (value.is_object()) value = json::array({value});
  if (!value.is_array()) throw wrong(name, std::string("write ") + kForm);
  if (!asked.loras) asked.loras.emplace();
  for (const json& item : value) {
    if (!item.is_object() || !item.contains("name"))
      throw wrong(name, std::string("write ") + kForm);
    for (const auto& [key, _] : item.items()) {
      if (key == "component")
        throw wrong(name, R"("component" is said once of a name, by POST /v1/loras; leave it out)");
      if (key != "name" && key != "strength")
        throw wrong(name, shown(key) + " is not known; write " + kForm);
    }
    add_lora(asked, name, text_of(name, item.at("name")),
             real_of(name, item.value("strength", json(1.0))), loras);
  }
}

PictureInputs picture_inputs(const ModelFacts& model, bool has_mask) {
  PictureInputs inputs;
  const json *list = nullptr, *first = nullptr;
  for (const json& row : model.inputs.at("inputs")) {
    if (!is_image(row)) continue;
    if (is(row, "starts")) {
      inputs.start = &row;
      continue;
    }
    if (is(row, "required") && inputs.shown == nullptr) inputs.shown = &row;
    if (is(row, "list") && list == nullptr) list = &row;
    if (first == nullptr) first = &row;
  }
  if (has_mask) return inputs;
  // What a model can be shown besides is for those who name it: it may be a control's.
  if (inputs.shown == nullptr && inputs.start == nullptr)
    inputs.shown = list != nullptr ? list : first;
  if (inputs.shown != nullptr) inputs.start = nullptr;
  return inputs;
}

bool put_pictures(Asked& asked, const std::string& field, std::vector<Upload> pictures,
                  std::optional<Upload> mask, const ModelFacts& model) {
  const auto [shown_row, start_row] = picture_inputs(model, mask.has_value());
  if (mask && start_row == nullptr)
    throw wrong("mask", "sampling of " + model.name + " does not begin from a picture");
  if (shown_row == nullptr && start_row == nullptr)
    throw wrong(field, model.name + " takes no pictures");
  if (pictures.empty()) throw wrong(field, "is missing");
  if (start_row != nullptr) {
    if (shown_row == nullptr && pictures.size() > 1)
      throw wrong(field,
                  model.name + " begins from one picture, not " + std::to_string(pictures.size()));
    put_files(asked, start_row->at("name"), {pictures.front()}, *start_row);
  }
  if (mask) {
    std::vector<Upload>& masks = asked.uploads[kMask];
    if (!masks.empty()) throw wrong("mask", std::string(kMask) + " is given beside it");
    masks.push_back(std::move(*mask));
  }
  if (shown_row != nullptr)
    put_files(asked, shown_row->at("name"), std::move(pictures), *shown_row);
  return start_row != nullptr;
}

}  // namespace atelier::serve
