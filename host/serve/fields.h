// What requests say, whichever API they are of, and how it becomes a job's: by the names of the
// settings and inputs tables.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "host/http/message.h"
#include "host/http/server.h"
#include "host/serve/jobs.h"

namespace atelier::serve {

struct FormFile {
  std::string name;  // of the field, as it was written: "image[]"
  std::string bytes;
};

// The body of a request. Fields of a form are texts; one that comes several times is a list.
struct Form {
  nlohmann::json fields = nlohmann::json::object();  // nulls are left out
  std::vector<FormFile> files = {};                  // in the order they came

  // The field's value, which is then no longer among them; null where there is none.
  nlohmann::json take(std::string_view name);
};

// Reads a JSON object or multipart/form-data. Throws HttpError 400 for what is neither, and for
// "lora[][name]" and the like: a form loses which values belong together.
Form read_form(const http::Request& request);

// The row of a setting or an input; null: there is none of that name.
const nlohmann::json* find_row(const ModelFacts& model, std::string_view name);
// Whether values of that kind are files.
bool is_file_kind(std::string_view kind);

// Puts one named value into a job, as POST /v1/jobs takes it. Values of files are "data:" URLs,
// plain base64, {"job": "…", "file": 0} or lists of these; texts that are numbers count as numbers
// where the table says so. `also`: other names of the API, for messages alone. Throws HttpError 400
// that begins with the name.
void put_field(Asked& asked, const std::string& name, const nlohmann::json& value,
               const Service& service, std::span<const std::string> also = {});
// Puts a file that came along into a job, by its field.
void put_file(Asked& asked, const std::string& name, std::string bytes, const ModelFacts& model,
              std::span<const std::string> also = {});

// The files that a value stands for.
std::vector<Upload> uploads_of(const std::string& name, const nlohmann::json& value,
                               const Jobs& jobs);

// Adds the LoRAs of [{"name": "a", "strength": 0.8}], of one such object or of its text. Throws
// HttpError 400 for names that are not registered, with the nearest one.
void put_loras(Asked& asked, const std::string& name, const nlohmann::json& value,
               const Loras& loras);
// Adds one LoRA, as put_loras() does.
void add_lora(Asked& asked, const std::string& field, const std::string& name, double strength,
              const Loras& loras);

// Which inputs take the pictures of an API that has but one word for them.
struct PictureInputs {
  const nlohmann::json* shown = nullptr;  // what the model is shown
  const nlohmann::json* start = nullptr;  // what sampling begins from
};
// `has_mask`: a part of the picture is made anew, which needs one that sampling begins from. Both
// are null where the model takes no pictures.
PictureInputs picture_inputs(const ModelFacts& model, bool has_mask);
// Puts pictures where picture_inputs() says, and the mask beside them; white is made anew. Returns
// whether sampling begins from the first of them. Throws HttpError 400, which names `field`.
bool put_pictures(Asked& asked, const std::string& field, std::vector<Upload> pictures,
                  std::optional<Upload> mask, const ModelFacts& model);

// Values of fields as one type. Throw HttpError 400 that begins with the name.
std::string text_of(std::string_view name, const nlohmann::json& value);
int64_t integer_of(std::string_view name, const nlohmann::json& value, int64_t least, int64_t most);
double real_of(std::string_view name, const nlohmann::json& value);
bool flag_of(std::string_view name, const nlohmann::json& value);

http::Response json_reply(const nlohmann::json& body);

// HttpError 400: "NAME: PROBLEM".
http::HttpError wrong(std::string_view name, const std::string& problem);

}  // namespace atelier::serve
