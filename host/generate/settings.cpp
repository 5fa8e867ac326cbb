#include "host/generate/settings.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <unistd.h>

#include <ATen/ATen.h>

#include "atelier/error.h"

#include "formats/escape.h"
#include "formats/glob.h"
#include "formats/json.h"
#include "formats/list.h"
#include "formats/utf8.h"
#include "host/files/checkpoint.h"
#include "host/generate/sigma_schedule.h"
#include "host/media/decode.h"
#include "host/media/pixels.h"
#include "host/media/resize.h"
#include "host/model/model_flags.h"

namespace atelier::generate {
namespace {

using flags::FlagKind;
using nlohmann::json;

constexpr int64_t kMaxSteps = 1000;         // as many as models learn levels
constexpr int64_t kMaxSide = 65'536;        // pixels
constexpr const char* kLorasKey = "loras";  // of a line; on the command line it is --lora

std::string shown(std::string_view text) {
  return formats::quote_and_escape(text);
}

// A value of the wrong type; the place is put in front by the caller.
[[noreturn]] void wrong_type(const json& value, const std::string& wanted) {
  throw Error(ErrorCode::kInvalidArgument, shown(value.dump()) + " is no " + wanted);
}

std::string text_of(const json& value) {
  if (!value.is_string()) wrong_type(value, "text");
  return value.get<std::string>();
}

int64_t integer_of(const json& value) {
  const bool fits = value.is_number_integer() &&
                    !(value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{INT64_MAX});
  if (!fits) wrong_type(value, "whole number");
  return value.get<int64_t>();
}

// nullopt is -1.
std::optional<uint64_t> seed_of(const json& value) {
  if (value.is_number_unsigned()) return value.get<uint64_t>();
  const int64_t number = value.is_number_integer() ? value.get<int64_t>() : -2;
  if (number < -1) wrong_type(value, "seed: a whole number from 0 to 2^64 - 1, or -1");
  if (number == -1) return std::nullopt;
  return static_cast<uint64_t>(number);
}

double real_of(const json& value) {
  if (!value.is_number()) wrong_type(value, "number");
  return value.get<double>();
}

// "1,0.75,0.5" or [1, 0.75, 0.5].
std::vector<double> reals_of(const json& value) {
  std::vector<double> reals;
  if (value.is_array()) {
    for (const json& item : value) reals.push_back(real_of(item));
    return reals;
  }
  const std::string text = text_of(value);
  try {
    if (text.starts_with('[')) return reals_of(formats::parse_json(text));
  } catch (const formats::ParseError&) {
    wrong_type(value, "list of numbers, such as 1,0.75,0.5");
  }
  for (const std::string& part : formats::parse_list(text)) {
    double real = 0;
    const char* const end = part.data() + part.size();
    const auto [stop, failure] = std::from_chars(part.data(), end, real);
    if (failure != std::errc() || stop != end)
      wrong_type(value, "list of numbers, such as 1,0.75,0.5");
    reals.push_back(real);
  }
  return reals;
}

struct Field {
  flags::FlagSpec flag;
  void (*set)(Settings&, const json&);
};

const std::vector<Field>& fields() {
  static const std::vector<Field> table = {
      {{.name = "prompt", .help = "what the picture shows"},
       [](Settings& s, const json& v) { s.prompt = text_of(v); }},
      {{.name = "negative_prompt", .help = "what the picture does not show"},
       [](Settings& s, const json& v) { s.negative_prompt = text_of(v); }},
      {{.name = "height", .kind = FlagKind::kInteger, .help = "pixels", .preset = "1024"},
       [](Settings& s, const json& v) { s.height = integer_of(v); }},
      {{.name = "width", .kind = FlagKind::kInteger, .help = "pixels", .preset = "1024"},
       [](Settings& s, const json& v) { s.width = integer_of(v); }},
      {{.name = "seed",
        .kind = FlagKind::kSeed,
        .help = "of the first picture, the next ones count up; -1 draws one",
        .preset = "-1"},
       [](Settings& s, const json& v) { s.seed = seed_of(v); }},
      {{.name = "num_inference_steps",
        .kind = FlagKind::kInteger,
        .help = "steps from noise to picture; by default what the schedule says"},
       [](Settings& s, const json& v) { s.num_inference_steps = integer_of(v); }},
      {{.name = "cfg_scale",
        .kind = FlagKind::kReal,
        .help = "how far guidance moves away from the negative prompt; 1 turns it off and saves "
                "half the work"},
       [](Settings& s, const json& v) { s.cfg_scale = real_of(v); }},
      {{.name = "cfg_trunc",
        .kind = FlagKind::kReal,
        .help = "guidance only while 1 - sigma is less than this: 0.25 guides the noisy part, and "
                "the other steps cost half; by default what the schedule says"},
       [](Settings& s, const json& v) { s.cfg_trunc = real_of(v); }},
      {{.name = "cfg_renorm",
        .help = "what is guided is brought back to the length it has without guidance: clamp, over "
                "a picture, where it is longer; row, along each row; none; by default what the "
                "schedule says",
        .choices = {"none", "clamp", "row"}},
       [](Settings& s, const json& v) { s.cfg_renorm = text_of(v); }},
      {{.name = "cfg_renorm_ratio",
        .kind = FlagKind::kReal,
        .help = "of clamp: lengths above this times the one without guidance are brought back"},
       [](Settings& s, const json& v) { s.cfg_renorm_ratio = real_of(v); }},
      {{.name = "num_images",
        .kind = FlagKind::kInteger,
        .help = "pictures of this prompt",
        .preset = "1"},
       [](Settings& s, const json& v) { s.num_images = integer_of(v); }},
      {{.name = "batch_size",
        .kind = FlagKind::kInteger,
        .help = "pictures that are denoised together; more need more memory",
        .preset = "1"},
       [](Settings& s, const json& v) { s.batch_size = integer_of(v); }},
      {{.name = "schedule", .help = "of the noise levels, by name; by default the family's first"},
       [](Settings& s, const json& v) { s.schedule = text_of(v); }},
      {{.name = "flow_shift",
        .kind = FlagKind::kReal,
        .help = "constant shift towards high noise, in place of the schedule's"},
       [](Settings& s, const json& v) { s.flow_shift = real_of(v); }},
      {{.name = "sigmas", .help = "the noise levels themselves, falling from 1: 1,0.75,0.5"},
       [](Settings& s, const json& v) { s.sigmas = reals_of(v); }},
      {{.name = "input_image",
        .help = "picture to start from, scaled and cropped to --height and --width",
        .value_name = "FILE"},
       [](Settings& s, const json& v) { s.input_image = text_of(v); }},
      {{.name = "denoising_strength",
        .kind = FlagKind::kReal,
        .help = "part of the steps that change the input image, in (0, 1] [0.6]"},
       [](Settings& s, const json& v) { s.denoising_strength = real_of(v); }},
      {{.name = "latents",
        .help = "safetensors with the initial noise: tensor latents [pictures, C, T, H, W]",
        .value_name = "FILE"},
       [](Settings& s, const json& v) { s.latents = text_of(v); }},
      {{.name = "output",
        .help = "PNG to write, over what is there; several pictures: out_0.png, … or a pattern "
                "out_%03d.png",
        .preset = "out.png",
        .value_name = "FILE"},
       [](Settings& s, const json& v) { s.output = text_of(v); }},
  };
  return table;
}

const Field* find_field(std::string_view name) {
  for (const Field& field : fields()) {
    if (field.flag.name == name) return &field;
  }
  return nullptr;
}

const InputSpec* find_input(std::span<const InputSpec> inputs, std::string_view name) {
  for (const InputSpec& input : inputs) {
    if (input.name == name && input.use != InputUse::kTrain) return &input;
  }
  return nullptr;
}

void check_input_type(const InputSpec& input, const json& value) {
  switch (input.kind) {
    case InputKind::kInteger:
      integer_of(value);
      return;
    case InputKind::kReal:
      real_of(value);
      return;
    case InputKind::kFlag:
      if (!value.is_boolean()) wrong_type(value, "true or false");
      return;
    case InputKind::kImageList:
      if (!value.is_array()) wrong_type(value, "list of paths");
      for (const json& item : value) text_of(item);
      return;
    default:
      text_of(value);
  }
}

// Position and length of the one %d or %03d of a pattern.
struct Pattern {
  size_t begin = std::string::npos, length = 0;
  int width = 0;
};

std::optional<Pattern> find_pattern(const std::string& output) {
  const size_t begin = output.find('%');
  if (begin == std::string::npos) return std::nullopt;
  size_t end = begin + 1;
  while (end < output.size() && std::isdigit(static_cast<unsigned char>(output[end]))) ++end;
  if (end >= output.size() || output[end] != 'd' || end - begin > 3) return std::nullopt;
  const int width = end > begin + 1 ? std::stoi(output.substr(begin + 1, end - begin - 1)) : 0;
  return Pattern{begin, end + 1 - begin, width};
}

void check_output_path(const std::string& output, const std::string& place,
                       report::Problems& problems) {
  const std::filesystem::path path(output);
  std::string extension = path.extension().string();
  std::transform(extension.begin(), extension.end(), extension.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (extension != ".png") {
    problems.add(place + ": " + shown(output) + " does not end in .png",
                 "pictures are written as PNG");
  }
  std::filesystem::path folder = path.parent_path();
  if (folder.empty()) folder = ".";
  std::error_code code;
  if (!std::filesystem::is_directory(folder, code)) {
    problems.add(place + ": there is no folder " + shown(folder.string()), "create it first");
  } else if (::access(folder.c_str(), W_OK | X_OK) != 0) {
    problems.add(place + ": cannot write into the folder " + shown(folder.string()),
                 "choose another one, or change its permissions");
  }
}

void check_range(bool is_right, const std::string& place, const std::string& value,
                 const std::string& what, report::Problems& problems) {
  if (!is_right) problems.add(place + ": " + value + " is " + what);
}

constexpr std::pair<std::string_view, CfgRenorm> kRenorms[] = {
    {"none", CfgRenorm::kNone}, {"clamp", CfgRenorm::kClamp}, {"row", CfgRenorm::kRow}};

std::optional<CfgRenorm> find_renorm(std::string_view name) {
  for (const auto& [known, renorm] : kRenorms) {
    if (known == name) return renorm;
  }
  return std::nullopt;
}

void check_guidance(const Settings& s, CfgRenorm preset, const Place& place,
                    report::Problems& problems) {
  check_range(s.cfg_trunc.value_or(1.0) >= 0, place.of("cfg_trunc"),
              std::to_string(s.cfg_trunc.value_or(1.0)), "below 0", problems);
  const auto renorm = s.cfg_renorm.empty() ? preset : find_renorm(s.cfg_renorm);
  if (!renorm) {
    problems.add(place.of("cfg_renorm") + ": " + shown(s.cfg_renorm) + " is not known",
                 "use none, clamp or row");
  }
  if (!s.cfg_renorm_ratio) return;
  check_range(*s.cfg_renorm_ratio > 0, place.of("cfg_renorm_ratio"),
              std::to_string(*s.cfg_renorm_ratio), "not above 0", problems);
  if (s.cfg_renorm.empty() && preset != CfgRenorm::kClamp) {
    problems.add(place.of("cfg_renorm_ratio") + ": nothing is clamped",
                 "set " + place.of("cfg_renorm") + " to clamp, or leave it out");
  }
}

at::Tensor read_pixels(const std::string& path) {
  return media::to_pixels(media::read_picture(path));
}

at::Tensor read_mask(const std::string& path) {
  const at::Tensor rgb = (read_pixels(path) + 1.0) / 2.0;
  return (0.299 * rgb[0] + 0.587 * rgb[1] + 0.114 * rgb[2]).unsqueeze(0);
}

bool is_file(InputKind kind) {
  return kind != InputKind::kText && kind != InputKind::kInteger && kind != InputKind::kReal &&
         kind != InputKind::kFlag;
}

InputValue input_value(const InputSpec& input, const json& value) {
  switch (input.kind) {
    case InputKind::kText:
      return text_of(value);
    case InputKind::kInteger:
      return integer_of(value);
    case InputKind::kReal:
      return real_of(value);
    case InputKind::kFlag:
      return value.get<bool>();
    case InputKind::kImage:
      return read_pixels(text_of(value));
    case InputKind::kMask:
      return read_mask(text_of(value));
    case InputKind::kImageList: {
      std::vector<at::Tensor> pictures;
      for (const json& path : value) pictures.push_back(read_pixels(text_of(path)));
      return pictures;
    }
    case InputKind::kVideo:
    case InputKind::kAudio:
      break;
  }
  throw Error(ErrorCode::kUnsupported,
              "input " + shown(input.name) + ": videos and sound cannot be read by this build");
}

// Nearest multiples below and above, the lower one only when it is a size.
std::string nearest_sizes(int64_t size, int64_t multiple) {
  const int64_t below = size / multiple * multiple;
  if (size < multiple) return std::to_string(multiple);
  return std::to_string(below) + " or " + std::to_string(below + multiple);
}

void check_size(int64_t size, int64_t multiple, const std::string& place,
                report::Problems& problems) {
  check_range(size <= kMaxSide, place, std::to_string(size), "above " + std::to_string(kMaxSide),
              problems);
  if (size > kMaxSide || (size > 0 && size % multiple == 0)) return;
  problems.add(
      place + ": " + std::to_string(size) + " is no multiple of " + std::to_string(multiple),
      "use " + nearest_sizes(size, multiple));
}

files::Checkpoint open_latents(const std::string& path) {
  files::Checkpoint file = files::Checkpoint::open(path, std::vector<std::string>{path});
  if (!file.index().contains("latents")) {
    throw Error(ErrorCode::kNotFound, path + ": tensor \"latents\" is missing");
  }
  return file;
}

std::string shape_text(at::IntArrayRef shape) {
  std::string text;
  for (const int64_t size : shape) text += (text.empty() ? "" : ", ") + std::to_string(size);
  return "[" + text + "]";
}

int64_t tokens_of(const Settings& s, const LatentSpec& spec) {
  return (s.height / spec.token_stride) * (s.width / spec.token_stride);
}

std::vector<int64_t> latents_shape(const Settings& settings, const LatentSpec& spec) {
  std::vector<int64_t> shape = Generator::latent_shape(spec, settings.height, settings.width);
  shape.insert(shape.begin(), settings.num_images);
  return shape;
}

}  // namespace

std::string Place::of(std::string_view field) const {
  if (file.empty()) return "--" + std::string(field);
  return file + ":" + std::to_string(line) + ": " + std::string(field);
}

std::string size_place(const Settings& s, const Place& place) {
  const std::string between = place.file.empty() ? " --" : ", ";
  return place.of("height") + " " + std::to_string(s.height) + between + "width " +
         std::to_string(s.width);
}

std::vector<flags::FlagSpec> settings_flags(std::span<const InputSpec> inputs) {
  std::vector<flags::FlagSpec> flags;
  for (const Field& field : fields()) {
    flags.push_back(field.flag);
    const InputSpec* input = find_input(inputs, field.flag.name);
    if (input && !input->help.empty()) flags.back().help = input->help;
  }
  const auto own = model::flags_of_inputs(inputs, InputUse::kGenerate, flags);
  flags.insert(flags.end(), own.begin(), own.end());
  return flags;
}

Settings settings_of(const flags::ParsedFlags& flags, std::span<const InputSpec> inputs,
                     report::Problems& problems) {
  json given = json::object();
  for (const flags::FlagSpec& flag : settings_flags(inputs)) {
    // A wrong value is a problem already.
    if (!flags.is_given(flag.name) || !flags.find_text(flag.name)) continue;
    switch (flag.kind) {
      case FlagKind::kInteger:
        given[flag.name] = flags.integer(flag.name);
        break;
      case FlagKind::kReal:
        given[flag.name] = flags.real(flag.name);
        break;
      case FlagKind::kFlag:
        given[flag.name] = flags.flag(flag.name);
        break;
      case FlagKind::kSeed:
        if (const auto seed = flags.seed(flag.name)) given[flag.name] = *seed;
        break;
      default:
        if (flag.repeated) {
          given[flag.name] = flags.texts(flag.name);
        } else {
          given[flag.name] = flags.text(flag.name);
        }
    }
  }
  return settings_of(given, Settings{}, inputs, Place{}, problems);
}

Settings settings_of(const json& line, const Settings& base, std::span<const InputSpec> inputs,
                     const Place& place, report::Problems& problems) {
  Settings settings = base;
  if (!line.is_object()) {
    problems.add(place.file + ":" + std::to_string(place.line) + ": a JSON object is expected",
                 "write {\"prompt\": \"…\"}");
    return settings;
  }
  for (const auto& [name, value] : line.items()) {
    if (name == kLorasKey) {
      try {
        settings.loras = lora::parse_uses(value, base.lora_dir);
      } catch (const Error& error) {
        problems.add(error.at(place.of(name)));
      }
      continue;
    }
    const Field* field = find_field(name);
    const InputSpec* input = field ? nullptr : find_input(inputs, name);
    if (!field && !input) {
      std::vector<std::string> known = {kLorasKey};
      for (const flags::FlagSpec& flag : settings_flags(inputs)) known.push_back(flag.name);
      const std::string nearest = report::nearest_name(name, known);
      problems.add(
          place.file + ":" + std::to_string(place.line) + ": " + shown(name) + " is not known",
          nearest.empty() ? "atelier generate --help lists the names"
                          : "did you mean " + shown(nearest) + "?");
      continue;
    }
    try {
      if (field) {
        field->set(settings, value);
      } else {
        check_input_type(*input, value);
        settings.family_inputs[name] = value;
      }
    } catch (const Error& error) {
      problems.add(error.at(place.of(name)));
    }
  }
  return settings;
}

void check_settings(const Settings& s, const ModelFamily* family, const Place& place,
                    report::Problems& problems) {
  const std::span<const InputSpec> inputs =
      family ? family->inputs() : std::span<const InputSpec>();
  if (s.prompt.empty() && family != nullptr) {
    const auto found = find_input(inputs, "prompt");
    if (!found || found->required) {
      problems.add(place.of("prompt") + " is missing", found ? std::string(found->help) : "");
    }
  }
  for (const auto& [name, text] :
       {std::pair{"prompt", &s.prompt}, {"negative_prompt", &s.negative_prompt}}) {
    if (const size_t at = formats::find_invalid_utf8(*text); at != std::string::npos) {
      problems.add(place.of(name) + ": byte " + std::to_string(at) + " is no UTF-8");
    }
  }
  check_range(s.num_images >= 1, place.of("num_images"), std::to_string(s.num_images), "below 1",
              problems);
  check_range(s.num_images <= kMaxImages, place.of("num_images"), std::to_string(s.num_images),
              "above " + std::to_string(kMaxImages), problems);
  check_range(s.batch_size >= 1, place.of("batch_size"), std::to_string(s.batch_size), "below 1",
              problems);
  check_range(s.batch_size <= kMaxImages, place.of("batch_size"), std::to_string(s.batch_size),
              "above " + std::to_string(kMaxImages), problems);
  const ScheduleDefaults* schedule = nullptr;
  // Messages about schedules begin with the flag's name already.
  const auto collect = [&](auto&& check) {
    try {
      check();
    } catch (const Error& error) {
      problems.add(place.file.empty() ? error
                                      : error.at(place.file + ":" + std::to_string(place.line)));
    }
  };
  if (family != nullptr)
    collect([&] { schedule = &find_schedule(family->schedules(), s.schedule); });
  // Numbers are checked even where the schedule's name is wrong.
  const ScheduleDefaults any;
  if (!schedule) schedule = &any;
  collect([&] {
    const auto steps = s.num_inference_steps.value_or(schedule->num_inference_steps);
    make_sigmas(*schedule,
                {.num_steps = static_cast<int>(std::clamp<int64_t>(steps, -1, kMaxSteps)),
                 .tokens = 4096,
                 .flow_shift = s.flow_shift,
                 .sigmas = s.sigmas});
  });
  check_guidance(s, schedule->cfg_renorm, place, problems);
  if (s.denoising_strength) collect([&] { keep_last_steps({1.0f, 0.0f}, *s.denoising_strength); });
  const int64_t num_steps = s.num_inference_steps.value_or(1);
  check_range(num_steps <= kMaxSteps, place.of("num_inference_steps"), std::to_string(num_steps),
              "above " + std::to_string(kMaxSteps), problems);
  if (s.denoising_strength && s.input_image.empty()) {
    problems.add(place.of("denoising_strength") + ": there is no input image to start from",
                 "give one with " + place.of("input_image"));
  }
  if (!s.input_image.empty()) {
    try {
      media::probe_picture(s.input_image);
    } catch (const Error& error) {
      problems.add(error.at(place.of("input_image")));
    }
  }
  for (const InputSpec& input : inputs) {
    const auto given = s.family_inputs.find(input.name);
    if (given == s.family_inputs.end() || input.use == InputUse::kTrain) continue;
    std::vector<std::string> paths;
    if (input.kind == InputKind::kImage || input.kind == InputKind::kMask)
      paths = {given->get<std::string>()};
    if (input.kind == InputKind::kImageList) paths = given->get<std::vector<std::string>>();
    for (const std::string& path : paths) {
      try {
        media::probe_picture(path);
      } catch (const Error& error) {
        problems.add(error.at(place.of(input.name)));
      }
    }
  }
}

void check_output(const Settings& s, const Place& place, report::Problems& problems) {
  check_output_path(s.output, place.of("output"), problems);
}

void check_sizes(const Settings& s, const ModelFamily& family, const LatentSpec& spec,
                 const Place& place, report::Problems& problems) {
  const size_t before = problems.size();
  check_size(s.height, spec.pixel_multiple, place.of("height"), problems);
  check_size(s.width, spec.pixel_multiple, place.of("width"), problems);
  if (problems.size() > before || s.flow_shift || !s.sigmas.empty()) return;
  for (const ScheduleDefaults& schedule : family.schedules()) {
    const bool is_first = &schedule == &family.schedules().front();
    if (s.schedule.empty() ? !is_first : s.schedule != schedule.name) continue;
    try {
      make_sigmas(schedule,
                  {.num_steps = schedule.num_inference_steps, .tokens = tokens_of(s, spec)});
    } catch (const Error& error) {
      problems.add(error.at(size_place(s, place)));
    }
  }
}

void check_against_model(const Settings& s, const ModelFamily& family, const Model& model,
                         std::string_view variant, const Place& place, report::Problems& problems) {
  const LatentSpec spec = model.latent_spec();
  const size_t before = problems.size();
  check_sizes(s, family, spec, place, problems);
  for (const InputSpec& input : family.inputs()) {
    if (!input.required || input.use == InputUse::kTrain || find_field(input.name)) continue;
    if (!formats::glob_match(input.variants, variant) || s.family_inputs.contains(input.name))
      continue;
    problems.add(place.of(input.name) + " is missing", std::string(input.help));
  }
  if (s.latents.empty()) return;
  try {
    const files::Checkpoint file = open_latents(s.latents);
    const std::vector<int64_t>& shape = file.index().find("latents")->shape;
    const std::vector<int64_t> wanted = latents_shape(s, spec);
    if (shape != wanted && problems.size() == before) {
      problems.add(place.of("latents") + ": " + s.latents + ": tensor \"latents\": shape " +
                       shape_text(shape) + ", " + shape_text(wanted) + " expected",
                   "that is [pictures, channels, frames, height, width] at this size");
    }
  } catch (const Error& error) {
    problems.add(error.at(place.of("latents")));
  }
}

std::vector<std::string> output_paths(const std::string& output, int64_t num_images) {
  const std::optional<Pattern> pattern = find_pattern(output);
  std::vector<std::string> paths;
  for (int64_t i = 0; i < num_images; ++i) {
    if (pattern) {
      char number[40];
      std::snprintf(number, sizeof number, "%0*lld", pattern->width, static_cast<long long>(i));
      std::string path = output;
      paths.push_back(path.replace(pattern->begin, pattern->length, number));
    } else {
      paths.push_back(num_images == 1 ? output : with_number(output, static_cast<uint64_t>(i)));
    }
  }
  return paths;
}

std::string with_number(const std::string& path, uint64_t number) {
  const std::filesystem::path given(path);
  const std::string name =
      given.stem().string() + "_" + std::to_string(number) + given.extension().string();
  return (given.parent_path() / name).string();
}

std::vector<float> sigmas_of(const Settings& s, const ModelFamily& family, const LatentSpec& spec) {
  const ScheduleDefaults& schedule = find_schedule(family.schedules(), s.schedule);
  std::vector<float> sigmas = make_sigmas(
      schedule,
      {.num_steps = static_cast<int>(s.num_inference_steps.value_or(schedule.num_inference_steps)),
       .tokens = tokens_of(s, spec),
       .flow_shift = s.flow_shift,
       .sigmas = s.sigmas});
  if (s.input_image.empty()) return sigmas;
  return keep_last_steps(std::move(sigmas), s.denoising_strength.value_or(kDefaultStrength));
}

double cfg_scale_of(const Settings& s, const ModelFamily& family) {
  return s.cfg_scale.value_or(find_schedule(family.schedules(), s.schedule).cfg_scale);
}

std::string_view renorm_name(CfgRenorm renorm) {
  return std::ranges::find(kRenorms, renorm, &std::pair<std::string_view, CfgRenorm>::second)
      ->first;
}

Inputs value_inputs(const Settings& s, const ModelFamily& family) {
  Inputs inputs = {{"prompt", s.prompt}};
  for (const InputSpec& input : family.inputs()) {
    const auto given = s.family_inputs.find(input.name);
    if (given == s.family_inputs.end() || input.use == InputUse::kTrain || is_file(input.kind))
      continue;
    inputs[std::string(input.name)] = input_value(input, *given);
  }
  return inputs;
}

Request make_request(const Settings& s, const ModelFamily& family, const Model& model,
                     uint64_t seed) {
  Request request;
  request.inputs = value_inputs(s, family);
  for (const InputSpec& input : family.inputs()) {
    const auto given = s.family_inputs.find(input.name);
    if (given == s.family_inputs.end() || input.use == InputUse::kTrain || !is_file(input.kind))
      continue;
    request.inputs[std::string(input.name)] = input_value(input, *given);
  }
  request.negative_prompt = s.negative_prompt;
  request.cfg_scale = cfg_scale_of(s, family);
  const ScheduleDefaults& schedule = find_schedule(family.schedules(), s.schedule);
  request.cfg_trunc = s.cfg_trunc.value_or(schedule.cfg_trunc);
  request.cfg_renorm = find_renorm(s.cfg_renorm).value_or(schedule.cfg_renorm);
  request.cfg_renorm_ratio = s.cfg_renorm_ratio.value_or(schedule.cfg_renorm_ratio);
  request.sigmas = sigmas_of(s, family, model.latent_spec());
  request.height = s.height;
  request.width = s.width;
  for (int64_t i = 0; i < s.num_images; ++i)
    request.seeds.push_back(seed + static_cast<uint64_t>(i));
  request.batch_size = s.batch_size;
  if (!s.latents.empty()) request.latents = open_latents(s.latents).read("latents", at::kFloat);
  if (!s.input_image.empty()) {
    const media::Picture picture = media::read_picture(s.input_image);
    request.input_pixels =
        media::to_pixels(
            media::crop_and_resize(picture, static_cast<int>(s.width), static_cast<int>(s.height)))
            .unsqueeze(1);
  }
  return request;
}

}  // namespace atelier::generate
