#include "controls.h"

#include <algorithm>
#include <cmath>

#include <ATen/ATen.h>

#include "atelier/error.h"
#include "atelier/named_inputs.h"

namespace qwen_image {

using atelier::Conditioning;
using atelier::Error;
using atelier::ErrorCode;
using atelier::find_input;
using atelier::Inputs;
using std::to_string;

namespace {

using Pictures = std::vector<at::Tensor>;

// How near a step has to be to a bound that it counts as there.
constexpr double kNear = 1e-4;
constexpr double kParts = 1e6;  // of the way, in which windows are counted

template <class Value>
std::vector<Value> list_of(const Inputs& values, const char* name) {
  const auto* given = find_input<std::vector<Value>>(values, name);
  return given ? *given : std::vector<Value>();
}

// Value `i` of a list of numbers; one number counts for all.
double number_of(const std::vector<double>& values, size_t i, double otherwise) {
  if (values.empty()) return otherwise;
  return values.size() == 1 ? values[0] : values.at(i);
}

int64_t parts_of(double number) {
  return std::llround(number * kParts);
}

// As a window has it: see control_window_name().
double rounded(double number) {
  return static_cast<double>(parts_of(number)) / kParts;
}

void check_numbers(const char* name, size_t numbers, size_t pictures) {
  if (numbers <= 1 || numbers == pictures) return;
  throw Error(ErrorCode::kInvalidArgument,
              std::string(name) + ": " + to_string(numbers) + " numbers are given for " +
                  to_string(pictures) + " pictures",
              "give one for all, or one for each");
}

// The picture [3, H, W] in [-1, 1], black where the mask [1, H, W] in [0, 1] is above `level`.
at::Tensor without_masked(const at::Tensor& picture, const at::Tensor& mask, double level) {
  return at::where(mask > level, at::full({}, -1.0, picture.options()), picture);
}

// The mask's channel of latents [C, 1, H, W]: 1 where the picture stays, by the nearest pixel.
at::Tensor kept_channel(const at::Tensor& mask, const at::Tensor& latents) {
  const std::array size = {latents.size(2), latents.size(3)};
  const at::Tensor cells = at::upsample_nearest2d(mask.unsqueeze(0), size);  // [1, 1, H, W]
  return (1.0 - cells).to(latents.scalar_type());
}

// A picture as its ControlNet reads it: [channels, 1, H, W].
using EncodePicture = std::function<at::Tensor(const at::Tensor& picture)>;

at::Tensor control_latents(const ControlKind& kind, const at::Tensor& picture,
                           const at::Tensor* mask, const EncodePicture& encode) {
  if (mask == nullptr) return encode(picture);
  const at::Tensor latents = encode(without_masked(picture, *mask, kind.mask_level));
  const at::Tensor levels = kind.mask_is_sharp ? (*mask >= 0.5).to(at::kFloat) : *mask;
  return at::cat({latents, kept_channel(levels, latents)});
}

}  // namespace

std::string control_name(const ControlKind& kind, int64_t number) {
  return kind.component + ("_" + to_string(number));
}

std::string control_scale_name(const ControlKind& kind, int64_t number) {
  return control_name(kind, number) + "_scale";
}

std::string control_window_name(const ControlKind& kind, int64_t number) {
  return control_name(kind, number) + "_window";
}

bool is_active(const ControlKind& kind, double start, double end, int64_t step, int64_t steps) {
  const auto number = static_cast<double>(step), all = static_cast<double>(steps);
  if (!kind.counts_down)
    return steps == 0 || (number / all >= start && (number + 1.0) / all <= end);
  const double left = steps == 0 ? 0.0 : (all - 1.0 - number) / std::max(all - 1.0, 1.0);
  return left <= start + kNear && left >= end - kNear;
}

bool counts(const ControlKind& kind, const Conditioning& cond, int64_t number, int64_t step,
            int64_t steps) {
  const auto window = cond.find(control_window_name(kind, number));
  if (window == cond.end()) return false;
  const auto part = [&](int64_t axis) {
    return static_cast<double>(window->second.size(axis)) / kParts;
  };
  return is_active(kind, part(1), part(2), step, steps);
}

bool counts(const ControlKind& kind, size_t net, size_t nets, const Inputs& values, int64_t step,
            int64_t steps) {
  const auto scales = list_of<double>(values, kind.scale),
             starts = list_of<double>(values, kind.start), ends = list_of<double>(values, kind.end);
  const size_t pictures = list_of<at::Tensor>(values, kind.image).size();
  for (size_t i = 0; i < pictures; ++i) {
    if ((nets > 1 && i != net) || number_of(scales, i, 1.0) == 0) continue;
    const double start = rounded(number_of(starts, i, kind.usual_start)),
                 end = rounded(number_of(ends, i, kind.usual_end));
    if (is_active(kind, start, end, step, steps)) return true;
  }
  return false;
}

Conditioning encode_controls(const ControlKind& kind, const std::vector<bool>& reads_mask,
                             const Inputs& values, const EncodePicture& encode) {
  const Pictures pictures = list_of<at::Tensor>(values, kind.image),
                 masks = list_of<at::Tensor>(values, kind.mask);
  const auto scales = list_of<double>(values, kind.scale),
             starts = list_of<double>(values, kind.start), ends = list_of<double>(values, kind.end);
  Conditioning cond;
  size_t next_mask = 0;
  for (size_t i = 0; i < pictures.size(); ++i) {
    const bool is_masked = reads_mask[reads_mask.size() == 1 ? 0 : i];
    const at::Tensor* const mask = is_masked ? &masks.at(next_mask++) : nullptr;
    const auto number = static_cast<int64_t>(i);
    const double scale = number_of(scales, i, 1.0);
    if (scale == 0) continue;
    cond.emplace(control_name(kind, number), control_latents(kind, pictures[i], mask, encode));
    cond.emplace(control_scale_name(kind, number), at::full({1}, scale, at::kFloat));
    cond.emplace(control_window_name(kind, number),
                 at::empty({0, parts_of(number_of(starts, i, kind.usual_start)),
                            parts_of(number_of(ends, i, kind.usual_end))}));
  }
  return cond;
}

void check_control_inputs(const ControlKind& kind, const std::vector<bool>& reads_mask,
                          const Inputs& values) {
  const size_t pictures = list_of<at::Tensor>(values, kind.image).size(),
               masks = list_of<at::Tensor>(values, kind.mask).size(), nets = reads_mask.size();
  if (nets == 0) return;
  if (pictures > 0 && pictures != nets && nets != 1) {
    throw Error(ErrorCode::kInvalidArgument,
                std::string(kind.image) + ": " + to_string(pictures) + " pictures are given for " +
                    to_string(nets) + " ControlNets",
                "give one for each, in the order of their files");
  }
  const auto readers = static_cast<size_t>(std::ranges::count(reads_mask, true));
  const size_t wanted = nets == 1 ? readers * pictures : (pictures > 0 ? readers : 0);
  if (masks != wanted) {
    throw Error(ErrorCode::kInvalidArgument,
                std::string(kind.mask) + ": " + to_string(masks) + " masks are given, " +
                    to_string(wanted) + " expected",
                "give one for each picture of a ControlNet that is made for inpainting");
  }
  for (const char* name : {kind.scale, kind.start, kind.end})
    check_numbers(name, list_of<double>(values, name).size(), pictures);
  for (const char* name : {kind.start, kind.end}) {
    for (const double part : list_of<double>(values, name)) {
      if (!(part >= 0 && part <= 1))
        throw Error(ErrorCode::kInvalidArgument,
                    std::string(name) + ": " + to_string(part) + " is no number from 0 to 1");
    }
  }
}

}  // namespace qwen_image
