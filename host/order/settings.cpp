#include "host/order/settings.h"

#include <charconv>
#include <functional>

#include <c10/util/StringUtil.h>

#include "atelier/error.h"

#include "formats/escape.h"
#include "formats/json.h"
#include "formats/list.h"
#include "host/inputs/input_flags.h"
#include "host/inputs/parse.h"
#include "host/model/stages.h"
#include "host/sampling/solvers.h"

namespace atelier::order {
namespace {

using flags::FlagKind;
using nlohmann::json;

constexpr const char* kSolver = "solver";
constexpr const char* kLorasKey = "loras";  // of a line; on the command line it is --lora

std::string shown(std::string_view text) {
  return formats::quote_and_escape(text);
}

// A value of the wrong type; the place is put in front by the caller.
[[noreturn]] void wrong_type(const json& value, const std::string& wanted) {
  throw Error(ErrorCode::kInvalidArgument, inputs::shown(value) + " is no " + wanted);
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

void read(const json& value, std::string& to) {
  to = text_of(value);
}
void read(const json& value, std::optional<std::string>& to) {
  to = text_of(value);
}
void read(const json& value, int64_t& to) {
  to = integer_of(value);
}
void read(const json& value, std::optional<int64_t>& to) {
  to = integer_of(value);
}
void read(const json& value, std::optional<double>& to) {
  to = real_of(value);
}
void read(const json& value, std::optional<uint64_t>& to) {
  to = seed_of(value);
}
void read(const json& value, std::vector<double>& to) {
  to = reals_of(value);
}

// Adds solvers to those that --solver lists.
void add_solvers(flags::FlagSpec& flag, std::span<const SolverSpec> solvers) {
  constexpr std::string_view kEnd = "; by default what the schedule says";
  if (flag.help.ends_with(kEnd)) flag.help.resize(flag.help.size() - kEnd.size());
  for (const SolverSpec& solver : solvers) {
    flag.help += c10::str(flag.choices.empty() ? ": " : "; ", solver.name, ", ", solver.help);
    flag.choices.emplace_back(solver.name);
  }
  flag.help += kEnd;
}

flags::FlagSpec solver_flag() {
  flags::FlagSpec flag = {.name = kSolver, .help = "how a step goes on"};
  add_solvers(flag, sampling::solvers());
  return flag;
}

// A flag, and the setting that gets its value. Its preset is what Settings begin with.
struct Field {
  template <typename T>
  Field(flags::FlagSpec spec, T Settings::*member)
      : flag(std::move(spec)),
        set([member](Settings& s, const json& value) { read(value, s.*member); }) {}

  flags::FlagSpec flag;
  std::function<void(Settings&, const json&)> set;
};

const std::vector<Field>& fields() {
  static const std::vector<Field> table = {
      {{.name = "prompt", .help = "what the image shows"}, &Settings::prompt},
      {{.name = "negative_prompt", .help = "what the image does not show"},
       &Settings::negative_prompt},
      {{.name = "height",
        .kind = FlagKind::kInteger,
        .help = "pixels; by default what the model is for"},
       &Settings::height},
      {{.name = "width",
        .kind = FlagKind::kInteger,
        .help = "pixels; by default what the model is for"},
       &Settings::width},
      {{.name = "num_frames",
        .kind = FlagKind::kInteger,
        .help = "frames of a clip, 1: an image; by default what the model is for"},
       &Settings::num_frames},
      {{.name = "fps",
        .kind = FlagKind::kReal,
        .help = "frames per second of a clip's file; by default what the model is for"},
       &Settings::fps},
      {{.name = "seed",
        .kind = FlagKind::kSeed,
        .help = "of the first image, the next ones count up; -1 draws one",
        .preset = "-1"},
       &Settings::seed},
      {{.name = "num_inference_steps",
        .kind = FlagKind::kInteger,
        .help = "steps from noise to image; by default what the schedule says"},
       &Settings::num_inference_steps},
      {{.name = "cfg_scale",
        .kind = FlagKind::kReal,
        .help = "how far guidance moves away from the negative prompt; 1, or 0 where the family "
                "counts from 0, turns it off and saves half the work"},
       &Settings::cfg_scale},
      {{.name = "cfg_scale_2",
        .kind = FlagKind::kReal,
        .help = "the same of the denoiser of less noise, where a model has two; by default as "
                "cfg_scale where that is given, else what the schedule says"},
       &Settings::cfg_scale_2},
      {{.name = "cfg_trunc",
        .kind = FlagKind::kReal,
        .help = "guidance only while 1 - sigma is less than this: 0.25 guides the noisy part, and "
                "the other steps cost half; by default what the schedule says"},
       &Settings::cfg_trunc},
      {{.name = "cfg_renorm",
        .help = "what is guided is brought back to the length it has without guidance: clamp, over "
                "an image, where it is longer; row, along each row; none; by default what the "
                "schedule says",
        .choices = {"none", "clamp", "row"}},
       &Settings::cfg_renorm},
      {{.name = "cfg_renorm_ratio",
        .kind = FlagKind::kReal,
        .help = "of clamp: lengths above this times the one without guidance are brought back"},
       &Settings::cfg_renorm_ratio},
      {{.name = "num_images",
        .kind = FlagKind::kInteger,
        .help = "images of this prompt",
        .preset = "1"},
       &Settings::num_images},
      {{.name = "batch_size",
        .kind = FlagKind::kInteger,
        .help = "images that are denoised together; more need more memory",
        .preset = "1"},
       &Settings::batch_size},
      {{.name = "schedule",
        .help = "of the noise levels, by name; by default the first one for the model's variant"},
       &Settings::schedule},
      {solver_flag(), &Settings::solver},
      {{.name = "flow_shift",
        .kind = FlagKind::kReal,
        .help = "constant shift towards high noise, in place of the schedule's"},
       &Settings::flow_shift},
      {{.name = "switch_boundary",
        .kind = FlagKind::kReal,
        .help = "of two denoisers: the noise level, 1 being all noise, below which the second one "
                "takes over; by default what the model is for"},
       &Settings::switch_boundary},
      {{.name = "sigmas", .help = "the noise levels themselves, falling from 1: 1,0.75,0.5"},
       &Settings::sigmas},
      {{.name = "denoising_strength",
        .kind = FlagKind::kReal,
        .help = "part of the steps that change the input image or clip, in (0, 1] [0.6]"},
       &Settings::denoising_strength},
      {{.name = "inpaint_mask",
        .help = "image of the input image's shape: the image is made anew where it is white, and "
                "stays where it is black",
        .value_name = "FILE"},
       &Settings::inpaint_mask},
      {{.name = "latents",
        .help = "safetensors with the initial noise: tensor latents [images, C, T, H, W], of "
                "pictures also [images, C, H, W]",
        .value_name = "FILE"},
       &Settings::latents},
      {{.name = "output",
        .help = "file to write, over what is there: .png or .jpg; of a clip .mp4, .webp or .gif, "
                "or .png, "
                "whose frames are out_0000.png, … or a pattern out_%03d.png; several images: "
                "out_0.png, … or a pattern",
        .preset = "out.png",
        .value_name = "FILE"},
       &Settings::output},
  };
  return table;
}

const Field* find_field(std::string_view name) {
  for (const Field& field : fields()) {
    if (field.flag.name == name) return &field;
  }
  return nullptr;
}

Error unknown_name(const std::string& name, std::span<const InputSpec> inputs,
                   const Origin& place) {
  if (name == kStartName)
    return {ErrorCode::kInvalidArgument, place.of(name) + ": " + kNoStart, "leave it out"};
  std::vector<std::string> known = {kLorasKey};
  for (const flags::FlagSpec& flag : settings_flags(inputs)) known.push_back(flag.name);
  const std::string nearest = report::nearest_name(name, known);
  return {ErrorCode::kInvalidArgument, place.prefix() + shown(name) + " is not known",
          nearest.empty() ? "atelier generate --help lists the names"
                          : "did you mean " + shown(nearest) + "?"};
}

}  // namespace

std::string Origin::of(std::string_view field) const {
  return (is_command_line() ? "--" : prefix()) + std::string(field);
}

std::string Origin::prefix() const {
  return is_request ? "" : file + ":" + std::to_string(line) + ": ";
}

Error told_at(const Error& error, std::span<const InputSpec> inputs, const Origin& place) {
  std::string_view text = error.message();
  text.remove_prefix(text.starts_with("--") ? 2 : 0);
  const std::string_view name = text.substr(0, text.find_first_of(": "));
  const bool is_named = is_setting(name) || find_input_spec(inputs, name) != nullptr;
  const std::string before = place.is_command_line() ? "" : place.prefix();
  return {error.code(), is_named ? place.of(text) : before + error.message(), error.hint(),
          error.tag()};
}

std::string size_origin(const Settings& s, const Origin& place) {
  const std::string between = place.is_command_line() ? " --" : ", ";
  std::string text = place.of("height") + " " + std::to_string(*s.height) + between + "width " +
                     std::to_string(*s.width);
  if (s.num_frames.value_or(1) > 1) text += between + "num_frames " + std::to_string(*s.num_frames);
  return text;
}

MediaTarget target_of(const Settings& s) {
  return {s.num_frames.value(), s.height.value(), s.width.value()};
}

bool makes_too_many(const Settings& s) {
  return static_cast<double>(s.num_images) * static_cast<double>(s.num_frames.value_or(1)) >
         static_cast<double>(kMaxImages);
}

const InputSpec* find_input_spec(std::span<const InputSpec> inputs, std::string_view name) {
  for (const InputSpec& input : inputs) {
    if (input.name == name && input.use != InputUse::kTrain) return &input;
  }
  return nullptr;
}

bool has_start(const Settings& settings, std::span<const InputSpec> inputs) {
  const InputSpec* start = model::start_input(inputs);
  return start != nullptr && settings.family_inputs.contains(start->name);
}

bool is_setting(std::string_view name) {
  return find_field(name) != nullptr;
}

std::vector<flags::FlagSpec> settings_flags(std::span<const InputSpec> inputs,
                                            std::span<const SolverSpec> own_solvers) {
  std::vector<flags::FlagSpec> flags;
  for (const Field& field : fields()) {
    flags.push_back(field.flag);
    if (field.flag.name == kSolver && !own_solvers.empty()) add_solvers(flags.back(), own_solvers);
    const InputSpec* input = find_input_spec(inputs, field.flag.name);
    if (input && !input->help.empty()) flags.back().help = input->help;
  }
  const auto own = inputs::flags_of_inputs(inputs, InputUse::kGenerate, flags);
  flags.insert(flags.end(), own.begin(), own.end());
  return flags;
}

Settings settings_of(const flags::ParsedFlags& flags, std::span<const InputSpec> inputs,
                     report::Problems& problems) {
  json given = json::object();
  for (const flags::FlagSpec& flag : settings_flags(inputs)) {
    // A wrong value is a problem already.
    if (!flags.has(flag.name) || !flags.is_given(flag.name) || !flags.find_text(flag.name))
      continue;
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
  return settings_of(given, Settings{}, inputs, Origin{}, problems);
}

Settings settings_of(const json& line, const Settings& base, std::span<const InputSpec> inputs,
                     const Origin& place, report::Problems& problems) {
  Settings settings = base;
  if (!line.is_object()) {
    problems.add(place.prefix() + "a JSON object is expected", "write {\"prompt\": \"…\"}");
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
    const InputSpec* input = field ? nullptr : find_input_spec(inputs, name);
    if (!field && !input) {
      problems.add(unknown_name(name, inputs, place));
      continue;
    }
    try {
      if (field) {
        field->set(settings, value);
      } else if (inputs::is_file(input->kind) && value == "") {
        settings.family_inputs.erase(name);  // takes back what `base` says
      } else {
        settings.family_inputs[name] = inputs::parse_value(*input, value);
      }
    } catch (const Error& error) {
      problems.add(error.at(place.of(name)));
      if (name == "prompt" && !settings.prompt) settings.prompt = "";  // wrong, and not missing
    }
  }
  return settings;
}

}  // namespace atelier::order
