#include "host/check/size_guard.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "host/generate/input_files.h"
#include "host/inputs/parse.h"
#include "host/model/media_defaults.h"
#include "host/model/stages.h"
#include "host/plan/dry_model.h"
#include "host/plan/phases.h"
#include "host/plan/run_sizes.h"
#include "host/plugins/guard.h"
#include "host/report/text.h"
#include "memory/activation_budget.h"

namespace atelier::check {
namespace {

using model::LoadedModel;
using model::MemoryLimits;
using order::Settings;
using order::Tiling;
using plan::DryModel;
using plan::DryPass;
using plan::SizedRun;

constexpr std::array<int64_t, 4> kSides = {512, 576, 1024, 4096};  // of the images that are tried
constexpr int64_t kTokens = 16;                                    // of their texts
// Bytes for a pixel of a finished image: three numbers, and the bytes that are written.
constexpr double kPixelBytes = 3.0 * 4.0 + 3.0;
// What is counted and what is taken differ by less.
constexpr double kCertain = 0.95;

std::string shown(double bytes) {
  return report::bytes_text(static_cast<int64_t>(std::min(bytes, 9e18)));
}

constexpr const char* kTag = "PLAN_DOES_NOT_FIT";

// A bound and no promise: whether a smaller size fits, the plan of the run says.
std::string at_most(const std::string& size) {
  return size.empty() ? "" : ": none above " + size + " of this shape fits";
}

// The sides that are tried, as multiples of what the family takes.
std::vector<int64_t> sides_of(const LoadedModel& model) {
  const int64_t multiple = model.model().latent_spec().pixel_multiple;
  std::vector<int64_t> sides;
  for (const int64_t wanted : kSides) {
    const int64_t side = std::max<int64_t>(1, wanted / multiple) * multiple;
    if (sides.empty() || side > sides.back()) sides.push_back(side);
  }
  return sides;
}

double area_of(int64_t side) {
  return static_cast<double>(side) * static_cast<double>(side);
}

// What helps where a training takes too much at any size.
constexpr const char* kSmallerTraining =
    "train a LoRA with --lora_base_model, or fewer components with --trainable_models";

// Among all that a plan may choose, or a flag may say without changing what is learnt, the
// configuration that takes the least of the device: nothing stays there that can be computed again
// or, with `on_host`, wait on the host.
order::Training least_config(const order::Training& config, bool on_host) {
  order::Training least = config;
  least.activation_budget.reset();
  least.use_gradient_checkpointing = true;
  least.offloads_activations = on_host;
  least.order.batch_size = 1;
  return least;
}

// The images and clips, without values, that the model cannot do without and that come to the size
// of what is made: a denoiser may need what is made of them.
Inputs needed_pictures(const LoadedModel& model, DryModel& dry, int64_t side) {
  Inputs pictures;
  const model::Stages& stages = model.stages();
  for (const InputSpec& input : stages.inputs) {
    const bool is_clip = input.kind == InputKind::kVideo;
    const bool follows = input.fit != InputFit::kAsIs && input.fit_height == 0;
    if (!(is_clip || input.kind == InputKind::kImage) || input.role != InputRole::kCondition ||
        !follows || input.max_count > 1 || !inputs::is_required(input, stages.variant))
      continue;
    std::vector<int64_t> shape = {input.channels, side, side};
    if (is_clip) shape.insert(shape.begin() + 1, 1);
    pictures.emplace(input.name, dry.tensor(shape, at::kFloat));
  }
  return pictures;
}

// What a denoiser is given of them and of a text; empty: nothing of them. What cannot be made of
// them alone is left out.
Conditioning encoded_pictures(const LoadedModel& model, DryModel& dry, int64_t side) {
  // Where frames are pictures, those beside them would count as often: the bound leaves them out.
  if (model::media_defaults(model).frames_are_pictures) return {};
  const at::NoGradGuard no_grad;
  Conditioning all;
  const Inputs pictures = needed_pictures(model, dry, side);
  for (const EncodeStage& stage : model.stages().encoding) {
    const Inputs values = model::inputs_of(stage, pictures);
    if (values.empty() || model.stages().is_target(stage) || model::is_prompted(stage)) continue;
    try {
      dry.measure([&](BlockRunner& runner) {
        all.merge(model::encode(dry.model(),
                                {.stage = stage.name,
                                 .values = values,
                                 .target = {1, side, side},
                                 .fps = model.stages().fps},
                                runner, at::kMeta));
      });
    } catch (const Error&) {  // the denoiser says what it lacks
    }
  }
  if (const auto* denoiser = model.stages().first(); denoiser != nullptr && !all.empty())
    all.merge(plan::example_text(dry, model, denoiser->part, kTokens));
  return all;
}

}  // namespace

double BytesOfSize::at(double pixels) const {
  double least = 0.0;
  for (size_t i = 0; i < tried_.size() && tried_[i].first <= pixels; ++i) {
    const auto& [area, bytes] = tried_[i];
    least = std::max(least, bytes);
    if (i == 0) continue;
    const auto& [smaller, fewer] = tried_[i - 1];
    least = std::max(least, bytes + (bytes - fewer) / (area - smaller) * (pixels - area));
  }
  return least;
}

SizeGuard::SizeGuard(LoadedModel& model, const MemoryLimits& limits) : model_(model) {
  basis_.profile = memory::known_profile("h200").value();  // times do not matter
  basis_.counts_scratch = false;                           // the least is enough
  find_limits(limits);
  if (!try_dry_run([&] { measure(); })) work_.clear();
}

bool SizeGuard::try_dry_run(const std::function<void()>& run) {
  try {
    plugins::guard("a dry run", run);
    return true;
  } catch (const Error& error) {
    unchecked_ = error.message();
    return false;
  }
}

void SizeGuard::find_limits(const MemoryLimits& limits) {
  const auto set = [](Limit& limit, int64_t bytes, const std::string& before,
                      const std::string& behind = "") {
    limit = {static_cast<double>(bytes), before + " " + shown(static_cast<double>(bytes)) + behind};
  };
  has_said_ = limits.vram || limits.host_memory;
  const bool is_elsewhere = limits.device_profile.has_value();
  const auto& simulated = model_.simulated();
  is_host_ = !is_elsewhere && !simulated && model_.device().is_cpu();
  basis_.like = is_elsewhere ? at::kCUDA : model_.device().type();
  if (limits.host_memory) {
    set(host_, *limits.host_memory, "--host_memory is");
  } else if (is_elsewhere) {
    host_ = {INFINITY, ""};
  } else {
    set(host_, memory::free_bytes(at::kCPU), "the host has", " free");
  }
  if (limits.vram) {
    set(device_, *limits.vram, "--vram is");
  } else if (is_elsewhere) {
    set(device_, limits.device_profile->memory_bytes, limits.device_profile->name + " has");
  } else if (simulated) {
    device_ = {INFINITY, ""};
    if (simulated->capacity < INT64_MAX)
      set(device_, simulated->capacity, "the simulated device has");
  } else if (!is_host_) {
    set(device_, memory::free_bytes(model_.device()), "the device has", " free");
  } else {
    device_ = host_;
  }
  if (is_host_ && host_.bytes < device_.bytes) device_ = host_;
}

void SizeGuard::measure() {
  const at::NoGradGuard no_grad;
  DryModel dry(model_, basis_.like, basis_.counts_scratch);
  const auto add = [&](const char* name, const auto& call) {
    for (const int64_t side : sides_of(model_)) {
      const DryPass pass = dry.measure([&](BlockRunner& runner) { call(side, runner); });
      work_[name].add(area_of(side), static_cast<double>(pass.peak_bytes));
    }
  };
  const auto latents = [&](int64_t side, at::ScalarType dtype, const Conditioning& cond = {}) {
    std::vector<int64_t> shape = dry.model().latent_shape({1, side, side}, cond);
    shape.insert(shape.begin(), 1);
    return dry.tensor(shape, dtype);
  };
  const model::Stages& stages = model_.stages();
  const EncodeStage* target = stages.target_stage();
  const auto is_there = [&](std::string_view name) { return model_.find_part(name) != nullptr; };
  if (target != nullptr && std::ranges::any_of(target->components, is_there)) {
    add("encode an image", [&](int64_t side, BlockRunner& runner) {
      const at::Tensor pixels =
          dry.tensor({stages.target_input->channels, 1, side, side}, at::kFloat);
      model::encode(dry.model(), stages.target_inputs(pixels), runner, at::kMeta);
    });
  }
  if (const model::RangedDenoiser* denoiser = stages.first()) {
    const Conditioning text = plan::example_text(dry, model_, denoiser->part, kTokens);
    Conditioning given;
    const Conditioning* const cond = &given;
    const auto denoise = [&](int64_t side, BlockRunner& runner) {
      const at::Tensor x = latents(side, dry.dtype(), given);
      dry.model().denoise({.x_BCTHW = x,
                           .sigma_B = dry.tensor({1}, at::kFloat),
                           .cond = std::span(&cond, 1),
                           .denoiser = denoiser->name()},
                          runner);
    };
    for (const int64_t side : sides_of(model_)) {
      given = encoded_pictures(model_, dry, side);
      if (given.empty()) given = text;
      const DryPass pass = dry.measure([&](BlockRunner& runner) { denoise(side, runner); });
      work_["denoise"].add(area_of(side), static_cast<double>(pass.peak_bytes));
    }
  }
  const auto decodes = [](const ComponentSpec& spec) { return spec.role == Role::kVae; };
  if (!plan::components_where(model_, decodes).empty()) {
    add("decode", [&](int64_t side, BlockRunner& runner) {
      model::decode_whole(dry.model(), latents(side, model_.decoder_dtype()), runner, at::kMeta);
    });
  }
}

SizeGuard::Size SizeGuard::size_of(const MediaTarget& target) const {
  return {target.height, target.width, model_.model().latent_shape(target, {}).at(1)};
}

SizeGuard::Need SizeGuard::most_of(const Settings& settings, const Size& size,
                                   const std::optional<Tiling>& tiling) const {
  const auto count =
      static_cast<double>(std::clamp<int64_t>(settings.batch_size, 1, settings.num_images));
  // Pixels of one frame that the VAE works on, and bytes beside those.
  double at_once = size.pixels(), whole = 0;
  if (tiling && (tiling->size < size.height || tiling->size < size.width)) {
    at_once = static_cast<double>(std::min(size.height, tiling->size)) *
              static_cast<double>(std::min(size.width, tiling->size));
    whole = kPixelBytes * size.pixels();
  }
  Need most = {"hold", kPixelBytes * size.pixels()};
  const auto consider = [&](const char* name, double pixels, double beside) {
    const auto found = work_.find(name);
    if (found == work_.end()) return;
    const double bytes = found->second.at(pixels) + beside;
    if (bytes > most.bytes) most = {name, bytes};
  };
  consider("denoise", count * size.latent_pixels(), 0);
  consider("decode", at_once, whole);
  if (order::has_start(settings, model_.family().inputs()))
    consider("encode an image", at_once, whole);
  return most;
}

template <typename F>
std::string SizeGuard::size_that_fits(const Size& size, const F& need) const {
  const int64_t multiple = model_.model().latent_spec().pixel_multiple;
  const auto scaled = [&](double scale) {
    const auto side = [&](int64_t length) {
      return static_cast<int64_t>(static_cast<double>(length) * scale) / multiple * multiple;
    };
    return Size{side(size.height), side(size.width), size.latent_frames};
  };
  double low = 0, high = 1;
  for (int i = 0; i < 40; ++i) {
    const double middle = (low + high) / 2;
    (kCertain * need(scaled(middle)) > device_.bytes ? high : low) = middle;
  }
  const Size found = scaled(low);
  const bool is_known = found.latent_pixels() >= area_of(kSides.front());
  return is_known ? report::size_text(found.height, found.width) : "";
}

void SizeGuard::check(const Settings& settings, const order::Origin& place,
                      const std::optional<Tiling>& tiling, bool may_tile,
                      report::Problems& problems) const {
  if (work_.empty()) return;
  const Size size = size_of(generate::made_at_once(settings, model_.family(), model_.model()));
  if (size.latent_pixels() < area_of(kSides.front())) return;
  const Need need = most_of(settings, size, tiling);
  const double pixels = kPixelBytes * size.pixels();
  const bool is_too_much = kCertain * need.bytes > device_.bytes;
  if (!is_too_much && kCertain * pixels <= host_.bytes) return;
  const auto bytes_of = [&](const Size& other) { return most_of(settings, other, tiling).bytes; };
  std::string hint;
  if (const double in_tiles = most_of(settings, size, Tiling()).bytes;
      is_too_much && may_tile && !tiling && kCertain * in_tiles <= device_.bytes)
    hint = "--tiled needs " + shown(in_tiles) + "; or ";
  const std::string fitting = is_too_much ? size_that_fits(size, bytes_of) : "";
  hint += "use a smaller size" + at_most(fitting);
  if (size.latent_frames > 1 && !model::media_defaults(model_).frames_are_pictures)
    hint += "; or fewer frames";
  problems.add(Error(ErrorCode::kOutOfMemory,
                     order::size_origin(settings, place) + ": to " +
                         (is_too_much ? need.what : std::string("hold")) + " " +
                         report::size_text(size.height, size.width) + " pixels takes " +
                         shown(is_too_much ? need.bytes : pixels) + " at least, and " +
                         (is_too_much ? device_ : host_).text,
                     hint, kTag));
}

template <typename F>
void SizeGuard::refuse_largest(const data::Dataset& dataset, const std::string& work, const F& need,
                               report::Problems& problems, const Remedy& remedy) const {
  const data::Item* largest = nullptr;
  int64_t count = 0;
  for (const data::Item& item : dataset.items()) {
    const Size size = size_of(item.target);
    if (kCertain * need(size) <= device_.bytes) continue;
    ++count;
    if (largest == nullptr || size.latent_pixels() > size_of(largest->target).latent_pixels())
      largest = &item;
  }
  if (largest == nullptr) return;
  const Size size = size_of(largest->target);
  const data::DatasetOptions& options = dataset.options();
  const std::string fitting = size_that_fits(size, need);
  const std::string others = count > 1 ? ", one of " + std::to_string(count) + " such rows," : "";
  std::string flags =
      options.height ? "use a smaller --height and --width" : "use a smaller --max_pixels";
  if (largest->target.frames > 1 && !model::media_defaults(model_).frames_are_pictures)
    flags = "use a smaller --num_frames; or " + flags;
  flags += at_most(fitting);
  if (!remedy.flags.empty()) flags = remedy.flags + (remedy.is_size_in_vain ? "" : "; or " + flags);
  problems.add(Error(ErrorCode::kOutOfMemory,
                     largest->place + ": to " + work + " " +
                         report::size_text(size.height, size.width) + " pixels" + others +
                         " takes " + shown(need(size)) + " at least, and " + device_.text,
                     flags, kTag));
}

void SizeGuard::check(const data::Dataset& dataset, report::Problems& problems) const {
  const auto encode = work_.find("encode an image");
  if (encode == work_.end()) return;
  refuse_largest(dataset, "encode",
                 [&](const Size& size) { return encode->second.at(size.pixels()); }, problems, {});
}

void SizeGuard::check(const data::Dataset& dataset, const order::Training& config,
                      const parameters::Selection& selection, report::Problems& problems) {
  if (work_.empty()) return;
  const size_t before = problems.size();
  if (config.stage != order::Stage::kTrain) check(dataset, problems);
  if (config.stage == order::Stage::kDataProcess || problems.size() > before) return;
  const bool on_host = !is_host_;
  const order::Training least = least_config(config, on_host);
  BytesOfSize step;
  const auto measure_steps = [&] {
    const auto encoded = [&](int64_t side) {
      DryModel dry(model_, basis_.like, basis_.counts_scratch);
      return encoded_pictures(model_, dry, side);
    };
    for (const int64_t side : sides_of(model_)) {
      const SizedRun sized = size_training(model_,
                                           {.config = &least,
                                            .selection = &selection,
                                            .target = {1, side, side},
                                            .encoded = encoded(side),
                                            .on_host = on_host},
                                           basis_);
      const auto& strategies = sized.run.phases.back().strategies;
      const auto cheapest = std::ranges::min(strategies, {}, &memory::Strategy::device_bytes);
      step.add(area_of(side), static_cast<double>(cheapest.device_bytes));
    }
  };
  if (!try_dry_run(measure_steps)) return;
  const auto count = static_cast<double>(std::max<int64_t>(1, config.order.batch_size));
  Remedy remedy;
  if (count > 1) remedy.flags = "use a smaller --batch_size";
  if (kCertain * step.at(area_of(sides_of(model_).front())) > device_.bytes)
    remedy = {kSmallerTraining, /*is_size_in_vain=*/true};
  refuse_largest(
      dataset,
      "train on" + (count > 1 ? " " + std::to_string(config.order.batch_size) + " times" : ""),
      [&](const Size& size) { return step.at(count * size.latent_pixels()); }, problems, remedy);
}

}  // namespace atelier::check
