#include "host/model/media_defaults.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "atelier/error.h"

#include "formats/escape.h"
#include "formats/json.h"
#include "host/files/file_reader.h"

namespace atelier::model {
namespace {

namespace fs = std::filesystem;
using formats::quote_and_escape;
using nlohmann::json;

constexpr const char* kKey = "_media_defaults";
constexpr int64_t kMost = 1'000'000;  // pixels of a side, and frames

// Puts one entry in its place.
void take(MediaDefaults& defaults, const std::string& name, const json& value) {
  const bool is_count = value.is_number_unsigned() && value > 0 && value <= kMost;
  const auto count = [&](int64_t& to) {
    if (!is_count) throw Error(ErrorCode::kDataLoss, "is no whole number from 1 to 1000000");
    to = value.get<int64_t>();
  };
  if (name == "height") return count(defaults.target.height);
  if (name == "width") return count(defaults.target.width);
  if (name == "num_frames") return count(defaults.target.frames);
  if (name != "fps") throw Error(ErrorCode::kDataLoss, "is not known");
  if (!value.is_number() || value <= 0) throw Error(ErrorCode::kDataLoss, "is no rate");
  defaults.fps = value.get<double>();
}

// What the file says of itself; nothing where it is not there or has no such entry.
void take_file(MediaDefaults& defaults, const std::string& path) {
  std::error_code failure;
  if (!fs::is_regular_file(path, failure)) return;
  json index;
  try {
    index = formats::parse_json(files::read_text_file(path));
  } catch (const formats::ParseError& error) {
    throw files::at_file(path, error, ErrorCode::kDataLoss);
  }
  if (!index.is_object() || !index.contains(kKey)) return;
  const std::string place = files::display_path(path) + ": " + kKey;
  const auto wrong = [&](const std::string& what) {
    return Error(ErrorCode::kDataLoss, place + what,
                 "it holds height, width, num_frames and fps, as numbers", "INDEX_FORM");
  };
  if (!index.at(kKey).is_object()) throw wrong(" is no JSON object");
  for (const auto& [name, value] : index.at(kKey).items()) {
    try {
      take(defaults, name, value);
    } catch (const Error& error) {
      throw wrong(": " + quote_and_escape(name) + " " + error.message());
    }
  }
}

}  // namespace

MediaDefaults media_defaults(const LoadedModel& model) {
  const RangedDenoiser* const denoiser = model.stages().first();
  if (denoiser == nullptr) return {};
  MediaDefaults defaults = model.family().media_defaults(denoiser->part);
  const LoadedPart* const part = model.find_part(denoiser->name());
  if (part == nullptr || part->checkpoint.files().empty()) return defaults;
  take_file(defaults, (fs::path(part->model_folder()) / "model_index.json").string());
  return defaults;
}

}  // namespace atelier::model
