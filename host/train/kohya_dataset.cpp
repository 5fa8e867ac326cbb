#include "host/train/kohya_dataset.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <string_view>

#include "atelier/error.h"

#include "formats/escape.h"
#include "formats/list.h"
#include "host/files/file_reader.h"
#include "host/flags/compat_flags.h"
#include "host/report/text.h"

#define TOML_HEADER_ONLY 1
#include <toml++/toml.h>

namespace atelier::train {
namespace {

// Keys that a flag stands for. Others are those of the command line.
constexpr std::pair<std::string_view, std::string_view> kKeys[] = {
    {"image_dir", "dataset_base_path"},
    {"batch_size", "batch_size"},
    {"num_repeats", "dataset_repeat"},
    {"caption_extension", "caption_extension"},
    {"enable_bucket", "enable_bucket"},
    {"min_bucket_reso", "min_bucket_reso"},
    {"max_bucket_reso", "max_bucket_reso"},
    {"bucket_reso_steps", "bucket_reso_steps"},
    {"bucket_no_upscale", "bucket_no_upscale"},
    {"caption_dropout_rate", "caption_dropout_rate"},
    {"alpha_mask", "alpha_mask"},
};

std::string quote(std::string_view text) {
  return formats::quote_and_escape(text);
}

int64_t pixels_of(const std::string& text) {
  const int64_t pixels = report::parse_number<int64_t>(text).value_or(0);
  if (pixels < 1 || pixels > 1'000'000)
    throw Error(ErrorCode::kInvalidArgument, quote(text) + " is no number of pixels");
  return pixels;
}

// One dataset's settings: those of its subset above its own, and [general] below both.
class Reader {
 public:
  Reader(std::string place, report::Problems& problems)
      : place_(std::move(place)), problems_(problems) {}

  FlagValues read(const toml::table& file) {
    const toml::table* dataset = one_of(file, "datasets");
    const toml::table* subset = dataset == nullptr ? nullptr : one_of(*dataset, "subsets");
    for (const auto& [key, node] : file) {
      if (key.str() != "general" && key.str() != "datasets") lost(key.str());
    }
    // The first that says something counts.
    for (const toml::table* table : {subset, dataset, file["general"].as_table()}) {
      if (table == nullptr) continue;
      for (const auto& [key, node] : *table) {
        if (node.is_array_of_tables() || !seen(key.str())) continue;
        take(std::string(key.str()), node);
      }
    }
    finish();
    return std::move(values_);
  }

 private:
  const toml::table* one_of(const toml::table& table, std::string_view key) {
    const toml::array* all = table[key].as_array();
    const size_t count = all == nullptr ? 0 : all->size();
    if (count == 1) return all->front().as_table();
    problems_.add(place_ + ": holds " + std::to_string(count) + " [[" + std::string(key) +
                      "]], and a run has one",
                  count == 0 ? "write [[datasets]] and [[datasets.subsets]]"
                             : "join them into one folder, or one metadata file with all rows");
    return nullptr;
  }

  // True at first sight.
  bool seen(std::string_view key) {
    if (std::find(seen_.begin(), seen_.end(), key) != seen_.end()) return false;
    seen_.emplace_back(key);
    return true;
  }

  void lost(std::string_view key, std::string_view why = "nothing here corresponds to it") {
    problems_.add(place_ + ": " + std::string(key) + " is left out: " + std::string(why));
  }

  void take(const std::string& key, const toml::node& node) {
    if (key == "resolution") {
      resolution_ = text_of(node);
      return;
    }
    const auto* known = std::find_if(std::begin(kKeys), std::end(kKeys),
                                     [&](const auto& k) { return k.first == key; });
    if (known != std::end(kKeys)) {
      values_.emplace_back(known->second, text_of(node));
      return;
    }
    // Off, zero and empty are what is done without it.
    const std::string text = text_of(node);
    if (text.empty() || text == "false" || text == "0" || text == "0.0") return;
    if (key == "metadata_file") {
      lost(key,
           "--dataset_metadata_path reads csv, json lists and jsonl with columns image and "
           "prompt");
      return;
    }
    if (key == "class_tokens") {
      lost(key, "each image has a caption file");
      return;
    }
    const flags::CompatFlag* flag = flags::find_compat_flag(key, flags::kKohya);
    if (flag != nullptr && flag->fate == flags::CompatFate::kIdle) return;
    if (flag == nullptr || flag->fate != flags::CompatFate::kLost) return lost(key);
    lost(key, flag->text);
  }

  // As it would be written on the command line; lists between commas.
  std::string text_of(const toml::node& node) {
    if (const auto text = node.value_exact<std::string>()) return *text;
    if (const auto integer = node.value_exact<int64_t>()) return std::to_string(*integer);
    if (const auto flag = node.value_exact<bool>()) return *flag ? "true" : "false";
    if (const auto real = node.value_exact<double>()) return report::number_text(*real);
    std::string out;
    if (const toml::array* array = node.as_array()) {
      for (const toml::node& item : *array)
        out.append(out.empty() ? "" : ",").append(text_of(item));
    }
    return out;
  }

  void finish() {
    const bool has_buckets =
        std::find(values_.begin(), values_.end(),
                  std::pair<std::string, std::string>("enable_bucket", "true")) != values_.end();
    if (!resolution_) return;
    try {
      for (auto& value : flags_of_resolution(*resolution_, has_buckets))
        values_.push_back(std::move(value));
    } catch (const Error& error) {
      problems_.add(error.at(place_ + ": resolution"));
    }
  }

  std::string place_;
  report::Problems& problems_;
  FlagValues values_;
  std::vector<std::string> seen_;
  std::optional<std::string> resolution_;
};

}  // namespace

FlagValues read_kohya_dataset(const std::string& path, report::Problems& problems) {
  const std::string place = "--dataset_config: " + files::display_path(path);
  std::string text;
  try {
    text = files::read_text_file(path);
  } catch (const Error& error) {
    problems.add("--dataset_config: " + error.message(),
                 "run this where the file is, or add --dataset_base_path FOLDER", error.code());
    return {};
  }
  try {
    return Reader(place, problems).read(toml::parse(text));
  } catch (const toml::parse_error& error) {
    problems.add(place + ":" + std::to_string(error.source().begin.line) + ": " +
                     std::string(error.description()),
                 "TOML is expected");
    return {};
  }
}

FlagValues flags_of_resolution(const std::string& text, bool has_buckets) {
  const std::vector<std::string> sides = formats::parse_list(text);
  if (sides.empty() || sides.size() > 2)
    throw Error(ErrorCode::kInvalidArgument, quote(text) + " is no size",
                "write 1024, or 1024,768 with the width first");
  const int64_t width = pixels_of(sides.front()), height = pixels_of(sides.back());
  if (has_buckets) return {{"max_pixels", std::to_string(width * height)}};
  return {{"height", std::to_string(height)}, {"width", std::to_string(width)}};
}

}  // namespace atelier::train
