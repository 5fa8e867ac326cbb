// Defaults of a rectified-flow sampler. The user can override most fields.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace atelier {

// Moves sampling steps towards high noise: s' = a s / (1 + (a - 1) s), s in [0, 1].
struct SigmaShift {
  enum class Kind { kNone, kConstant, kByTokens, kFunction };
  Kind kind = Kind::kNone;
  double value = 1.0;  // kConstant: a
  // kByTokens: log a, on the line through (base_tokens, base) and (max_tokens, max); not clamped
  // outside.
  double base = 0.5, max = 1.15;
  int64_t base_tokens = 256, max_tokens = 4096;
  // kFunction: a, above 0, of a sample's denoiser tokens and the number of steps.
  double (*function)(int64_t tokens, int64_t steps) = nullptr;
  // The tokens are those of one frame, where frames are pictures of one result.
  bool of_one_frame = false;
};

// What becomes of a guided velocity v that is made of `with` and `without` the prompt.
enum class CfgRenorm {
  kNone,
  kClamp,  // v is made shorter where it is longer than ratio * |with|, over the whole sample
  kRow,    // v gets the length of `with` along the latent's last axis
};

// Where the levels of N steps lie before they are shifted: evenly from `high` down to `low`, which
// is what a step behind the last one would begin at.
struct SigmaGrid {
  double high = 1.0, low = 0.0;
  // Levels lie on those of so many steps, each on the next one towards more noise; 0: between them,
  // too.
  int64_t cells = 0;
};

// sigma_i = high - (high - low) i / N for i = 0 .. N-1, shifted, then stretched so that the last
// one is `terminal_sigma` (when above 0), then 0 is appended.
struct ScheduleDefaults {
  std::string_view name = "default";  // chosen with --schedule
  std::string_view variants = "*";    // globs over the denoiser's Detection::variant, bars between
  int num_inference_steps = 30;
  double cfg_scale = 4.0;
  // The scale at which Model::guide() gives the velocity with the prompt: the one without is not
  // computed then.
  double cfg_off = 1.0;
  // The scale of the denoiser of less noise, where a model has two; none: the same.
  std::optional<double> cfg_scale_2 = std::nullopt;
  SigmaShift shift = {};
  double terminal_sigma = 0.0;
  // Guidance is used while 1 - sigma is less than this: 1 at all steps, 0.25 in the noisy part.
  double cfg_trunc = 1.0;
  CfgRenorm cfg_renorm = CfgRenorm::kNone;
  double cfg_renorm_ratio = 1.0;  // kClamp
  std::string_view help = {};
  std::string_view solver = "euler";  // one of those that --solver lists
  SigmaGrid grid = {};
  // The denoiser is told the level in whole thousandths, rounded down, where its published sampler
  // counts in integer timesteps; the solver goes on with the level itself.
  bool whole_timesteps = false;
};

// The noise levels that a denoiser covers. Families with one denoiser have [0, 1].
struct SigmaRange {
  double low = 0.0, high = 1.0;
};

}  // namespace atelier
