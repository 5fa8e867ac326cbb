// What a plugin's functions give, looked at before the host computes with it.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "atelier/model_family.h"

namespace atelier::plugins {

// Each throws Error{kEnvironment} with `place`, the plugin's file, where its value is one that no
// plugin may give.

// Tables and texts: they are read to their end, so that one which is not there crashes here.
void check_output(const std::string& place, std::string_view text);
void check_output(const std::string& place, std::span<const ComponentSpec> components);
void check_output(const std::string& place, std::span<const InputSpec> inputs);
void check_output(const std::string& place, std::span<const EncodeStage> stages);
void check_output(const std::string& place, std::span<const ScheduleDefaults> schedules);
void check_output(const std::string& place, std::span<const SolverSpec> solvers);

void check_output(const std::string& place, const std::vector<Block*>& blocks);
void check_output(const std::string& place, const std::vector<WeightPtr>& weights);
void check_output(const std::string& place, const LatentSpec& spec);
void check_output(const std::string& place, const MediaTarget& target);
void check_output(const std::string& place, const TextLength& length);
void check_output(const std::string& place, const NamedTensors& tensors);
void check_output(const std::string& place, const std::optional<GivenLatents>& given);

void expect_model(const std::string& place, const Model* model);

// Sides of latents: [C, T, H, W].
void check_latent_shape(const std::string& place, const std::vector<int64_t>& shape);

// A tensor that has the shape and dtype of another one.
void check_like(const std::string& place, const at::Tensor& tensor, const at::Tensor& like);
// One for each call, as its latents.
void check_velocities(const std::string& place, const std::vector<at::Tensor>& velocities,
                      std::span<const DenoiseInputs> calls);

// Clean latents of this shape.
void check_latents(const std::string& place, const NamedTensors& encoded, at::IntArrayRef shape);

// Latents of as many samples as there were.
void check_finished(const std::string& place, const FinishedLatents& finished,
                    const at::Tensor& like);

// Float samples at a rate, or no sound.
void check_sound(const std::string& place, const Sound& sound);

// Pieces that follow on each other to the target's end; none are a whole clip.
void check_pieces(const std::string& place, const std::vector<Piece>& pieces,
                  const MediaTarget& target);

// The frames that decode() hands on, one call after the other.
class FrameCheck {
 public:
  FrameCheck(std::string place, const at::Tensor& latents_BCTHW, const LatentSpec& spec);

  void add(const at::Tensor& pixels_BCTHW);
  // Behind the last ones: all frames of the latents, or one of each latent frame that was decoded
  // alone. A dry run, on meta tensors, may leave out what is like the rest.
  void end() const;

 private:
  std::string place_;
  int64_t batch_, latent_frames_, frames_, height_, width_, channels_;
  bool is_dry_;
  int64_t done_ = 0;
};

}  // namespace atelier::plugins
