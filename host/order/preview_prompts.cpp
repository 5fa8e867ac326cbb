#include "host/order/preview_prompts.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "atelier/error.h"

#include "formats/escape.h"
#include "host/inputs/parse.h"
#include "host/model/stages.h"
#include "host/order/output_paths.h"
#include "host/report/open_failure.h"
#include "host/report/text.h"
#include "host/samples/cache_manifest.h"

namespace atelier::order {
namespace {

using samples::CacheItem;
using samples::Manifest;

using nlohmann::json;

enum class Value { kText, kInteger, kReal };

struct Switch {
  std::string_view name;
  Value value;
  std::string_view setting;  // of a line of JSON
  // What it is called elsewhere: for a switch that is not known.
  std::string_view others[3];
};

constexpr Switch kSwitches[] = {
    {"w", Value::kInteger, "width", {"width"}},
    {"h", Value::kInteger, "height", {"height"}},
    {"d", Value::kInteger, "seed", {"seed"}},
    {"s", Value::kInteger, "num_inference_steps", {"steps", "num_inference_steps"}},
    {"l", Value::kReal, "cfg_scale", {"cfg", "cfg_scale", "scale"}},
    {"n", Value::kText, "negative_prompt", {"neg", "negative", "negative_prompt"}},
    {"fs", Value::kReal, "flow_shift", {"shift", "flow_shift", "discrete_flow_shift"}},
    {"i", Value::kText, kStartName, {"image", "input_image", "image_path"}},
    {"ctr", Value::kReal, "cfg_trunc", {"trunc", "cfg_trunc", "cfg_trunc_ratio"}},
    {"rcfg", Value::kReal, "cfg_renorm_ratio", {"renorm", "cfg_renorm_ratio", "renorm_cfg"}},
    {"f", Value::kInteger, "num_frames", {"frames", "num_frames", "frame_count"}},
    {"ci", Value::kText, "", {"control_image", "control_image_path", "edit_image"}},
};

constexpr const char* kHelp =
    "the switches are --w, --h, --d (seed), --s (steps), --l (CFG scale), --n (negative prompt), "
    "--fs (flow shift), --ctr (CFG truncation), --rcfg (CFG renorm ratio), --i (input image), "
    "--f (frames) and --ci (a picture to go by); a .jsonl file can name every setting";

constexpr std::string_view kBlank = " \t\r";

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(kBlank);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlank) + 1 - begin);
}

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return result;
}

std::string dashed(std::string_view name) {
  return formats::quote_and_escape("--" + std::string(name));
}

// Throws Error{kInvalidArgument} when the whole text is no such number.
template <typename T>
T number_of(std::string_view text, const char* wanted) {
  const auto number = report::parse_number<T>(text);
  if (number && std::isfinite(static_cast<double>(*number))) return *number;
  throw Error(ErrorCode::kInvalidArgument,
              formats::quote_and_escape(text) + " is no " + std::string(wanted));
}

json value_of(const Switch& known, std::string_view text) {
  switch (known.value) {
    case Value::kText:
      return std::string(text);
    case Value::kInteger:
      if (text.starts_with('-')) return number_of<int64_t>(text, "whole number");
      return number_of<uint64_t>(text, "whole number");
    case Value::kReal:
      return number_of<double>(text, "number");
  }
  throw Error(ErrorCode::kInternal, "sample prompts: unknown kind of value");
}

[[noreturn]] void refuse(std::string_view name) {
  if (name == "g") {
    throw Error(ErrorCode::kUnsupported, "embedded guidance is not supported",
                "leave it out; --l sets the scale of classifier-free guidance");
  }
  std::vector<std::string> others;
  for (const Switch& known : kSwitches) {
    for (const std::string_view other : known.others) {
      if (!other.empty()) others.emplace_back(other);
    }
  }
  const std::string nearest = name.size() < 3 ? "" : report::nearest_name(name, others);
  for (const Switch& known : kSwitches) {
    if (nearest.empty() || std::ranges::find(known.others, nearest) == std::end(known.others)) {
      continue;
    }
    throw Error(ErrorCode::kInvalidArgument, "is not known",
                "did you mean " + dashed(known.name) + "?");
  }
  throw Error(ErrorCode::kInvalidArgument, "is not known", kHelp);
}

// The family's list of pictures to go by.
std::string_view pictures_input(std::span<const InputSpec> inputs) {
  const auto found = std::ranges::find_if(inputs, [](const InputSpec& input) {
    return input.kind == InputKind::kImage && input.role == InputRole::kCondition &&
           input.use != InputUse::kTrain && inputs::is_list(input);
  });
  if (found == inputs.end())
    throw Error(ErrorCode::kUnsupported, "this family takes no pictures to go by", "leave it out");
  return found->name;
}

// Puts one switch, "w 1024", into a line of JSON.
void add_switch(std::string_view text, std::span<const InputSpec> inputs, json& line) {
  const size_t end = std::min(text.find_first_of(kBlank), text.size());
  const std::string name = lower(text.substr(0, end));
  const auto known = std::ranges::find(kSwitches, name, &Switch::name);
  if (known == std::end(kSwitches)) refuse(name);
  json value = value_of(*known, trimmed(text.substr(end)));
  std::string setting(known->setting);
  const InputSpec* start = model::start_input(inputs);
  if (name == "i" && start != nullptr && !find_input_spec(inputs, setting)) setting = start->name;
  if (name == "ci") {
    line[std::string(pictures_input(inputs))].push_back(std::move(value));
    return;
  }
  if (name == "rcfg") {  // 0 turns it off
    line["cfg_renorm"] = value == 0 ? "none" : "clamp";
    if (value == 0) return;
  }
  line[setting] = std::move(value);
}

bool is_json_object(std::string_view line) {
  return line.starts_with('{') &&
         json::parse(line, nullptr, /*allow_exceptions=*/false).is_object();
}

Job parse_line(std::string_view text, const Origin& place, const Settings& base,
               std::span<const InputSpec> inputs, report::Problems& problems) {
  std::string padded = " ";  // a line may begin with a switch
  padded += text;
  size_t end = std::min(padded.find(" --"), padded.size());
  json line = json::object();
  const std::string_view prompt = trimmed(std::string_view(padded).substr(0, end));
  if (!prompt.empty()) line["prompt"] = std::string(prompt);
  while (end < padded.size()) {
    const size_t begin = end + 3;
    end = std::min(padded.find(" --", begin), padded.size());
    const std::string_view part = std::string_view(padded).substr(begin, end - begin);
    try {
      add_switch(part, inputs, line);
    } catch (const Error& error) {
      const size_t length = std::min(part.find_first_of(kBlank), part.size());
      problems.add(error.at(place.file + ":" + std::to_string(place.line) + ": " +
                            dashed(part.substr(0, length))));
    }
  }
  Job job = {place, settings_of(line, base, inputs, place, problems)};
  job.settings.output = with_number(base.output, place.line);
  return job;
}

std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const auto fail = [&] {
    const int why = errno;
    throw Error(report::open_failure(why), "--sample_prompts: " + path + ": " + std::strerror(why));
  };
  if (!file) fail();
  std::string text;
  char part[1 << 14];
  while (file.read(part, sizeof part) || file.gcount() > 0) {
    text.append(part, static_cast<size_t>(file.gcount()));
  }
  if (file.bad()) fail();  // of a folder as well
  return text;
}

// What most samples of a cache are. A cache of pieces of several lengths says them in a list.
std::optional<MediaTarget> commonest_target(const Manifest& manifest) {
  std::map<MediaTarget, int64_t> counts;
  for (const CacheItem& item : manifest.items) ++counts[item.target];
  if (counts.empty()) return std::nullopt;
  const bool has_lengths =
      manifest.options.is_object() && manifest.options.value("num_frames", json()).is_array();
  if (has_lengths) {
    const int64_t longest = counts.rbegin()->first.frames;
    std::erase_if(counts, [&](const auto& entry) { return entry.first.frames != longest; });
  }
  return std::ranges::max_element(counts, {}, [](const auto& entry) { return entry.second; })
      ->first;
}

// What most samples of a dataset are; nullopt where it has none.
std::optional<MediaTarget> commonest_target(const data::Dataset& dataset) {
  const std::vector<data::BucketCount> buckets = dataset.buckets();
  if (buckets.empty()) return std::nullopt;
  if (dataset.options().clips.lengths().size() == 1) return buckets.front().target;
  return std::ranges::max(buckets, {}, [](const auto& bucket) { return bucket.target.frames; })
      .target;
}

}  // namespace

std::optional<MediaTarget> preview_target(const Training& config, const data::Dataset* dataset) {
  const std::optional<MediaTarget> learnt =
      dataset == nullptr ? std::nullopt : commonest_target(*dataset);
  // Previews are images where there is no dataset to say how long most clips are.
  if (config.dataset.height && config.dataset.width)
    return MediaTarget{learnt ? learnt->frames : 1, *config.dataset.height, *config.dataset.width};
  if (dataset != nullptr) return learnt;
  if (!config.dataset.dataset_base_path.empty()) return std::nullopt;  // it could not be opened
  return commonest_target(Manifest::read(config.cache_path));
}

std::vector<Job> parse_sample_prompts(std::string_view text, const std::string& name,
                                      const Settings& base, std::span<const InputSpec> inputs,
                                      report::Problems& problems) {
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);  // editors of Windows write a mark
  std::vector<Job> jobs;
  uint64_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = trimmed(text.substr(begin, end - begin));
    begin = end + 1;
    ++number;
    if (line.empty() || line.front() == '#') continue;
    if (is_json_object(line)) {
      problems.add(name + ":" + std::to_string(number) +
                       ": is a line of JSON, and this file holds one prompt a line",
                   "call the file .jsonl");
      return {};  // the others are such lines too
    }
    jobs.push_back(parse_line(line, {name, number}, base, inputs, problems));
  }
  if (jobs.empty()) {
    problems.add(name + ": no prompts", "write one prompt a line: a red fox --w 1024 --h 768");
  }
  return jobs;
}

std::vector<Job> read_sample_prompts(const std::string& path, const Settings& base,
                                     std::span<const InputSpec> inputs,
                                     report::Problems& problems) {
  std::vector<Job> jobs;
  problems.collect([&] {
    const std::string extension = lower(std::filesystem::path(path).extension().string());
    if (extension == ".json" || extension == ".toml") {
      throw Error(ErrorCode::kUnsupported, "--sample_prompts: " + path + ": no file of prompts",
                  "write one prompt a line into a .txt file, or one JSON object a line into a "
                  ".jsonl file");
    }
    const std::string text = read_text(path);
    const auto parse = extension == ".jsonl" ? parse_jobs : parse_sample_prompts;
    jobs = parse(text, path, base, inputs, problems);
  });
  return jobs;
}

}  // namespace atelier::order
