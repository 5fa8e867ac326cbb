// A blockwise ControlNet: for each block of the denoiser a small one, which adds to the image's
// rows what follows from them and from a picture.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "atelier/component_family.h"
#include "atelier/nn/layers.h"

namespace qwen_image {

struct BlockwiseConfig {
  int64_t layers, width;
  int64_t channels;  // of the picture's latents, with those of a mask behind them

  template <class Fields>
  void visit(Fields&& fields) {
    fields("layers", layers), fields("width", width), fields("channels", channels);
  }
};

// Inputs: rows of images and of the picture, [N, D] each. Output: what is added to the former. Of
// DiffSynth-Studio's BlockWiseControlBlock: output(gelu(input(rms(image) + rms(picture)))).
class BlockwiseBlock final : public atelier::Block {
 public:
  BlockwiseBlock(Module* parent, std::string name, int64_t width);
  ~BlockwiseBlock() override;

  std::string_view kind() const override { return "blockwise"; }
  atelier::Tensors forward(const atelier::Tensors& in) override;

 private:
  atelier::nn::RMSNorm x_rms_, y_rms_;
  atelier::nn::Linear input_, output_;
};

class Blockwise final : public atelier::nn::Module {
 public:
  explicit Blockwise(const BlockwiseConfig& config);
  ~Blockwise() override;

  int64_t channels() const { return channels_; }
  size_t layers() const { return blocks_.size(); }
  // Rows of a picture's latents, [N, channels * 4], as the blocks read them: [N, D].
  at::Tensor embed(const at::Tensor& rows) const { return img_in_.forward(rows); }
  BlockwiseBlock& block(size_t number) { return *blocks_[number]; }
  // The image's "rows" [B, h w / 4, D] and the picture's "control" [B, channels(), 1, h, w] become
  // "hints" [layers(), B, h w / 4, D]: what each block adds to such rows.
  atelier::NamedTensors probe(const atelier::NamedTensors& inputs, atelier::BlockRunner& runner);

 private:
  int64_t channels_;
  atelier::nn::Linear img_in_;
  std::vector<std::unique_ptr<BlockwiseBlock>> blocks_;
};

std::optional<atelier::Detection> detect_blockwise(const atelier::TensorIndex& checkpoint);
atelier::ConfigFields blockwise_fields(const atelier::Detection& part);
atelier::WeightMap blockwise_map(const atelier::Detection& part);

}  // namespace qwen_image
