// A ControlNet as diffusers has it: a few of the denoiser's own blocks, run on the image that is
// made and a picture, which add to the denoiser's rows at regular intervals.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "atelier/component_family.h"
#include "atelier/nn/layers.h"
#include "atelier/nn/level_rows.h"
#include "atelier/shared_rows.h"

#include "addition.h"
#include "blockwise.h"
#include "config.h"
#include "controls.h"
#include "rope.h"

namespace qwen_image {

class DitBlock;

// Numbers of a ControlNet: those of its blocks, and the channels of the picture's latents, with
// those of a mask behind them.
struct ControlNetConfig {
  DitConfig blocks;
  int64_t control_channels;

  template <class Fields>
  void visit(Fields&& fields) {
    blocks.visit(fields), fields("control_channels", control_channels);
  }
};

class ControlNet final : public atelier::nn::Module {
 public:
  explicit ControlNet(const ControlNetConfig& config);
  ~ControlNet() override;

  int64_t channels() const { return channels_; }
  size_t layers() const { return blocks_.size(); }
  // "latents" [B, C, 1, h, w], the picture's "control" [B, channels(), 1, h, w], "sigma" [B] and
  // "prompt_embeds" [B, L, D'] become "hints" [layers(), B, h w / 4, D].
  atelier::NamedTensors probe(const atelier::NamedTensors& inputs, atelier::BlockRunner& runner);

 private:
  friend class ControlNetPass;

  int64_t channels_;
  atelier::nn::Linear time_in_, time_out_;
  atelier::nn::RMSNorm txt_norm_;
  atelier::nn::Linear img_in_, txt_in_, control_in_;
  std::vector<std::unique_ptr<DitBlock>> blocks_;
  std::vector<std::unique_ptr<atelier::nn::Linear>> outputs_;
  atelier::nn::NoiseLevels levels_;
  Ropes ropes_;
};

// Runs the blocks of a ControlNet one after the other, so that one block's rows are held at a time.
class ControlNetPass {
 public:
  // What packed samples are made of: rows of the image and of the picture, [N, C * 4] each, which
  // are those of `own`; the noise level; and the prompt of each sample, [L, D].
  struct Inputs {
    at::Tensor latents, picture, sigma_B;
    atelier::Tensors prompts;
    std::vector<SampleRows> samples;  // of the images alone, with those prompts
    const atelier::SharedRows& own;
  };
  ControlNetPass(ControlNet& net, const Inputs& in);

  // What the next block gives, [N, D].
  at::Tensor next(atelier::BlockRunner& runner);

 private:
  ControlNet& net_;
  size_t number_ = 0;
  atelier::nn::NoiseLevels::Step level_;
  at::Tensor image_, text_;
  atelier::Tensors context_;  // what its blocks read beside image, text and level
};

// Adds what one picture gives through one ControlNet. Each block runs where what it gives is first
// added.
class ControlNetHints final : public Addition {
 public:
  // `layers`: blocks of the denoiser.
  ControlNetHints(ControlNet& net, int64_t number, int64_t layers);

  void begin(Pass& pass) override;
  void after(int64_t index, Pass& pass) override;

 private:
  ControlNet& net_;
  int64_t number_, interval_;
  Scales scales_;  // in this step
  std::optional<ControlNetPass> pass_;
  at::Tensor hint_;
};

// Adds what pictures give through blockwise ControlNets, number by number: all of them read the
// same rows of the image.
class BlockwiseHints final : public Addition {
 public:
  explicit BlockwiseHints(std::vector<Blockwise*> nets) : nets_(std::move(nets)) {}

  void begin(Pass& pass) override;
  void after(int64_t index, Pass& pass) override;

 private:
  // One that counts for some sample in this step.
  struct Active {
    Blockwise* net;
    Scales scales;
    at::Tensor picture;
  };
  std::vector<Blockwise*> nets_;  // by the numbers of pictures; null: there is none
  std::vector<Active> active_;
};

std::optional<atelier::Detection> detect_controlnet(const atelier::TensorIndex& checkpoint);
atelier::ConfigFields controlnet_fields(const atelier::Detection& part);
atelier::WeightMap controlnet_map(const atelier::Detection& part);
// Throws Error{kInvalidArgument} where a ControlNet among the parts of a model is not made for its
// denoiser.
void check_controls(std::span<const atelier::Detection> parts);
// Whether each ControlNet of a kind among the parts, in the order of their files, reads a mask: its
// latents have a channel more than the denoiser's, which are an even number.
std::vector<bool> mask_readers(std::span<const atelier::Detection> parts, const ControlKind& kind);

}  // namespace qwen_image
