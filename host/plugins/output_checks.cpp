#include "host/plugins/output_checks.h"

#include <ATen/ATen.h>

#include "atelier/error.h"

#include "formats/escape.h"

namespace atelier::plugins {

namespace {

constexpr size_t kMostRows = 4096;      // of a table
constexpr size_t kMostLetters = 65536;  // of a text
constexpr int64_t kMostOfSide = int64_t{1} << 24;
constexpr int64_t kMostOfLatents = int64_t{1} << 40;

[[noreturn]] void gives(const std::string& place, const std::string& what) {
  throw Error(ErrorCode::kEnvironment, place + ": it gives " + what, "ask its author",
              "PLUGIN_WRONG");
}

void expect_output(bool is_right, const std::string& place, const std::string& what) {
  if (!is_right) gives(place, what);
}

std::string shape_of(at::IntArrayRef sizes) {
  std::string text = "[";
  for (size_t i = 0; i < sizes.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(sizes[i]);
  return text + "]";
}

std::string described(const at::Tensor& tensor) {
  return c10::toString(tensor.scalar_type()) + shape_of(tensor.sizes());
}

void expect_tensor(const std::string& place, const std::string& what, const at::Tensor& tensor) {
  expect_output(tensor.defined(), place, what + " undefined");
}

template <typename Row>
void expect_rows(const std::string& place, std::span<const Row> rows) {
  expect_output(rows.size() <= kMostRows, place, std::to_string(rows.size()) + " entries");
}

}  // namespace

void check_output(const std::string& place, std::string_view text) {
  expect_output(text.size() <= kMostLetters, place,
                "a text of " + std::to_string(text.size()) + " bytes");
  for (const char letter : text) [[maybe_unused]] volatile const char read = letter;
}

void check_output(const std::string& place, std::span<const ComponentSpec> components) {
  expect_rows(place, components);
  for (const ComponentSpec& spec : components) {
    for (const std::string_view text : {spec.name, spec.help, spec.variants, spec.beside})
      check_output(place, text);
  }
}

void check_output(const std::string& place, std::span<const InputSpec> inputs) {
  expect_rows(place, inputs);
  for (const InputSpec& spec : inputs) {
    for (const std::string_view text : {spec.name, spec.required_by, spec.variants, spec.help,
                                        spec.paired_with, spec.negative_of, spec.per_instance_of})
      check_output(place, text);
    for (const std::string_view choice : spec.choices) check_output(place, choice);
  }
}

void check_output(const std::string& place, std::span<const EncodeStage> stages) {
  expect_rows(place, stages);
  for (const EncodeStage& stage : stages) {
    for (const std::string_view text : {stage.name, stage.variants}) check_output(place, text);
    for (const auto& names : {stage.components, stage.inputs}) {
      expect_rows(place, names);
      for (const std::string_view name : names) check_output(place, name);
    }
  }
}

void check_output(const std::string& place, std::span<const ScheduleDefaults> schedules) {
  expect_rows(place, schedules);
  for (const ScheduleDefaults& schedule : schedules) {
    for (const std::string_view text :
         {schedule.name, schedule.variants, schedule.help, schedule.solver})
      check_output(place, text);
  }
}

void check_output(const std::string& place, std::span<const SolverSpec> solvers) {
  for (const SolverSpec& solver : solvers) {
    for (const std::string_view text : {solver.name, solver.title, solver.help})
      check_output(place, text);
    expect_output(!solver.name.empty() && solver.make != nullptr, place,
                  "a solver without a name or a function");
  }
}

void check_output(const std::string& place, const std::vector<Block*>& blocks) {
  for (const Block* block : blocks) expect_output(block != nullptr, place, "a block that is null");
}

void check_output(const std::string& place, const std::vector<WeightPtr>& weights) {
  for (const WeightPtr& weight : weights)
    expect_output(weight != nullptr, place, "a weight that is null");
}

void check_output(const std::string& place, const LatentSpec& spec) {
  for (const auto& [what, value] :
       {std::pair("channels", spec.channels), std::pair("spatial_stride", spec.spatial_stride),
        std::pair("temporal_stride", spec.temporal_stride),
        std::pair("pixel_multiple", spec.pixel_multiple),
        std::pair("token_stride", spec.token_stride)})
    expect_output(value >= 1 && value <= kMostOfSide, place,
                  std::string(what) + " " + std::to_string(value));
  expect_output(spec.pixel_channels == 3 || spec.pixel_channels == 4, place,
                "pixel_channels " + std::to_string(spec.pixel_channels));
  expect_output(spec.pixel_multiple % spec.spatial_stride == 0, place,
                "pixel_multiple " + std::to_string(spec.pixel_multiple) +
                    ", which is no multiple of spatial_stride " +
                    std::to_string(spec.spatial_stride));
}

void check_output(const std::string& place, const MediaTarget& target) {
  for (const int64_t side : {target.frames, target.height, target.width})
    expect_output(side >= 0, place,  // a size that was asked for may be too large, which is told
                  std::to_string(target.frames) + " frames of " + std::to_string(target.width) +
                      "x" + std::to_string(target.height));
}

void check_output(const std::string& place, const TextLength& length) {
  expect_output(
      length.tokens >= 0 && length.limit >= 0, place,
      std::to_string(length.tokens) + " tokens of at most " + std::to_string(length.limit));
}

void check_output(const std::string& place, const NamedTensors& tensors) {
  for (const auto& [name, tensor] : tensors)
    expect_tensor(place, formats::quote_and_escape(name, 200), tensor);
}

void check_output(const std::string& place, const std::optional<GivenLatents>& given) {
  if (!given) return;
  expect_tensor(place, "known latents", given->values_CTHW);
  expect_tensor(place, "a mask", given->free_1THW);
}

void expect_model(const std::string& place, const Model* model) {
  expect_output(model != nullptr, place, "no model");
}

void check_latent_shape(const std::string& place, const std::vector<int64_t>& shape) {
  bool is_right = shape.size() == 4;
  int64_t numel = 1;
  for (const int64_t side : shape)
    is_right = is_right && side >= 0 && !__builtin_mul_overflow(numel, side, &numel);
  expect_output(is_right && numel <= kMostOfLatents, place, "latents " + shape_of(shape));
}

void check_like(const std::string& place, const at::Tensor& tensor, const at::Tensor& like) {
  expect_tensor(place, "a velocity", tensor);
  expect_output(tensor.scalar_type() == like.scalar_type() && tensor.sizes() == like.sizes(), place,
                described(tensor) + ", " + described(like) + " expected");
}

void check_velocities(const std::string& place, const std::vector<at::Tensor>& velocities,
                      std::span<const DenoiseInputs> calls) {
  expect_output(velocities.size() == calls.size(), place,
                std::to_string(velocities.size()) + " velocities of " +
                    std::to_string(calls.size()) + " calls");
  for (size_t i = 0; i < calls.size(); ++i) check_like(place, velocities[i], calls[i].x_BCTHW);
}

void check_latents(const std::string& place, const NamedTensors& encoded, at::IntArrayRef shape) {
  const auto latents = encoded.find("latents");
  expect_output(latents != encoded.end(), place, "no \"latents\" for what is to be learnt");
  expect_output(
      latents->second.is_floating_point() && latents->second.sizes() == shape, place,
      "latents " + described(latents->second) + ", Float" + shape_of(shape) + " expected");
}

void check_finished(const std::string& place, const FinishedLatents& finished,
                    const at::Tensor& like) {
  const at::Tensor& latents = finished.latents_BCTHW;
  expect_tensor(place, "latents", latents);
  expect_output(latents.is_floating_point() && latents.dim() == 5 &&
                    latents.size(0) == like.size(0) && latents.size(2) >= 1,
                place, "latents " + described(latents) + ", made of " + described(like));
  expect_output(finished.skipped_frames >= 0, place,
                std::to_string(finished.skipped_frames) + " skipped frames");
}

void check_sound(const std::string& place, const Sound& sound) {
  if (!sound.samples_CN.defined()) return;
  const at::Tensor& samples = sound.samples_CN;
  expect_output(samples.scalar_type() == at::kFloat && samples.dim() == 2 &&
                    (samples.size(0) == 1 || samples.size(0) == 2) && sound.sample_rate > 0,
                place,
                "a sound " + described(samples) + " at " + std::to_string(sound.sample_rate) +
                    " samples per second, Float[1 or 2, samples] expected");
}

void check_pieces(const std::string& place, const std::vector<Piece>& pieces,
                  const MediaTarget& target) {
  int64_t end = 0;
  for (const Piece& piece : pieces) {
    const bool is_first = &piece == &pieces.front();
    expect_output(piece.shared >= 0 && piece.shared < piece.frames &&
                      piece.first + piece.shared == end && (!is_first || piece.shared == 0) &&
                      piece.frames <= kMostOfSide,
                  place,
                  "a piece of " + std::to_string(piece.frames) + " frames from frame " +
                      std::to_string(piece.first) + ", of which " + std::to_string(piece.shared) +
                      " are those before; frame " + std::to_string(end) + " is next");
    end = piece.first + piece.frames;
  }
  expect_output(pieces.empty() || end >= target.frames, place,
                "pieces of " + std::to_string(end) + " frames, " + std::to_string(target.frames) +
                    " are made");
}

FrameCheck::FrameCheck(std::string place, const at::Tensor& latents_BCTHW, const LatentSpec& spec)
    : place_(std::move(place)),
      batch_(latents_BCTHW.size(0)),
      latent_frames_(latents_BCTHW.size(2)),
      frames_(1 + (latent_frames_ - 1) * spec.temporal_stride),
      height_(latents_BCTHW.size(3) * spec.spatial_stride),
      width_(latents_BCTHW.size(4) * spec.spatial_stride),
      channels_(spec.pixel_channels),
      is_dry_(latents_BCTHW.is_meta()) {}

void FrameCheck::add(const at::Tensor& pixels_BCTHW) {
  expect_tensor(place_, "frames", pixels_BCTHW);
  const bool is_clip = pixels_BCTHW.dim() == 5;
  done_ += is_clip ? pixels_BCTHW.size(2) : 0;
  const std::vector<int64_t> wanted = {batch_, channels_, is_clip ? pixels_BCTHW.size(2) : frames_,
                                       height_, width_};
  expect_output(pixels_BCTHW.scalar_type() == at::kFloat && pixels_BCTHW.sizes() == wanted, place_,
                "frames " + described(pixels_BCTHW) + ", Float" +
                    shape_of({batch_, channels_, frames_, height_, width_}) + " expected");
  expect_output(done_ <= frames_, place_,
                std::to_string(done_) + " frames, " + std::to_string(frames_) + " expected");
}

void FrameCheck::end() const {
  expect_output(done_ == frames_ || done_ == latent_frames_ || (is_dry_ && done_ > 0), place_,
                std::to_string(done_) + " frames, " + std::to_string(frames_) + " expected");
}

}  // namespace atelier::plugins
