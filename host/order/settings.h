// What the user asks for, as flags or as a line of a prompts file.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "atelier/model_family.h"

#include "host/flags/flags.h"
#include "host/lora/selection.h"
#include "host/report/problems.h"

namespace atelier::order {

// Images, or clips, of one prompt.
struct Settings {
  std::optional<std::string> prompt;  // may be empty
  std::string negative_prompt;
  // Frames, and pixels; see fill_target() for those that are open.
  std::optional<int64_t> num_frames, height, width;
  // Frames per second of a clip's file; nullopt: the model is for no rate, see fill_target().
  std::optional<double> fps;
  std::optional<uint64_t> seed;                // drawn at random when absent; image i has seed + i
  std::optional<int64_t> num_inference_steps;  // of the schedule when absent
  std::optional<double> cfg_scale;             // of the schedule when absent
  std::optional<double> cfg_scale_2;           // of the second denoiser; cfg_scale when absent
  std::optional<double> cfg_trunc;             // the same
  std::string cfg_renorm;                      // none, clamp or row; empty: of the schedule
  std::optional<double> cfg_renorm_ratio;      // of the schedule when absent
  int64_t num_images = 1;
  int64_t batch_size = 1;
  std::string schedule;  // empty: the first one for the model's variant
  std::string solver;    // empty: of the schedule
  std::optional<double> flow_shift;
  std::optional<double> switch_boundary;  // see Request
  std::vector<double> sigmas;
  std::optional<double> denoising_strength;  // kDefaultStrength when absent
  std::string inpaint_mask;                  // image file; see Request
  std::string latents;                       // safetensors file
  std::string output = "out.png";
  std::vector<lora::LoraRef> loras;
  std::string lora_dir;  // where lines of a prompts file find theirs
  // Inputs of the family, by name, as inputs::parse_value() gives them.
  nlohmann::json family_inputs = nlohmann::json::object();
};

// Tiles that the VAE works in, in pixels; both are multiples of its stride. Neighbours overlap by
// at least size - stride.
struct Tiling {
  int64_t size = 256;
  int64_t stride = 192;
};

inline constexpr double kDefaultStrength = 0.6;
// What families call the image that sampling begins from, and what those without one say to it.
inline constexpr const char* kStartName = "input_image";
inline constexpr const char* kNoStart = "this family does not start from an image";
inline constexpr int64_t kMaxImages = 100'000;  // of one prompt, each frame of a clip counted

// Where a value was written: names it in messages as "--height", as "jobs.jsonl:3: height", or, of
// a request, as "height".
struct Origin {
  std::string file = {};  // empty: the command line, or a request
  uint64_t line = 0;
  bool is_request = false;  // of a client of a server

  std::string of(std::string_view field) const;
  // What stands before a message about all of it: "jobs.jsonl:3: "; "" of a request.
  std::string prefix() const;
  // Whether values are those of the command line.
  bool is_command_line() const { return file.empty() && !is_request; }
};

// What is made, of settings that fill_target() has filled.
MediaTarget target_of(const Settings& settings);

// Whether images and frames, as far as they are said, are more than kMaxImages.
bool makes_too_many(const Settings& settings);

// `error`, which a model's family has of the inputs of `place`, with that place: where it begins
// with the name of an input or a setting, with or without dashes, it begins as Origin::of() does.
Error told_at(const Error& error, std::span<const InputSpec> inputs, const Origin& place);

// Names the size of an image: "--height 64 --width 96", "jobs.jsonl:3: height 64, width 96".
std::string size_origin(const Settings& settings, const Origin& place);

// One flag, and one key of a line, per setting; then those of the family. Solvers of its own are
// choices of --solver.
std::vector<flags::FlagSpec> settings_flags(std::span<const InputSpec> inputs,
                                            std::span<const SolverSpec> own_solvers = {});

// The input of that name that images are made with; null: there is none.
const InputSpec* find_input_spec(std::span<const InputSpec> inputs, std::string_view name);

// Whether there is an image that sampling begins from.
bool has_start(const Settings& settings, std::span<const InputSpec> inputs);

// Whether settings_flags() has it whatever the family.
bool is_setting(std::string_view name);

// The settings that the flags of a command ask for, as far as it has those of settings_flags().
Settings settings_of(const flags::ParsedFlags& flags, std::span<const InputSpec> inputs,
                     report::Problems& problems);

// `base` with the values of one line. Unknown keys and values of the wrong type become problems.
Settings settings_of(const nlohmann::json& line, const Settings& base,
                     std::span<const InputSpec> inputs, const Origin& place,
                     report::Problems& problems);

}  // namespace atelier::order
