// The block of the denoiser, which ControlNets are made of, too.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "atelier/block.h"
#include "atelier/nn/layers.h"
#include "atelier/segments.h"

#include "config.h"

namespace qwen_image {

inline constexpr int64_t kTimeChannels = 256;
inline constexpr double kNormEps = 1e-6;
// What embeds the noise level, in the denoiser and in ControlNets.
inline constexpr const char *kTimeIn = "time_text_embed.timestep_embedder.linear_1",
                            *kTimeOut = "time_text_embed.timestep_embedder.linear_2";

// Noise levels [B] as channels, [B, kTimeChannels] float32.
at::Tensor time_channels(const at::Tensor& sigma_B);
// Latents [B, C, T, H, W] to rows of tokens, [B T H W / 4, C * 4].
at::Tensor to_rows(const at::Tensor& x_BCTHW);

struct Modulation;

// Inputs: image rows [N, D], text rows [N, D], the noise level, cosines and sines of image rows and
// of text rows, offsets of image rows and of text rows. Rows of references follow their image's;
// where they have a level of their own, it and the offsets of images and of references follow. Rows
// of entities lie in front of their prompt's; where there are any, offsets of both and the groups
// of all rows follow, see groups_of(). What is not there is undefined.
// Outputs: image rows and text rows; of the last block image rows alone.
//
// The noise level is silu(time), [B, D] or in groups (see level_groups()), or what the block makes
// of it, prepared: the modulation of image rows, then that of text rows, [B, 12 D].
class DitBlock final : public atelier::Block {
 public:
  enum Input {
    kImage,
    kText,
    kLevel,
    kImageCos,
    kImageSin,
    kTextCos,
    kTextSin,
    kImageRows,
    kTextRows,
    kCleanLevel,
    kHalves,
    kEntityRows,
    kPromptRows,
    kGroups,
    kInputs
  };

  DitBlock(Module* parent, std::string name, const DitConfig& c, bool last);
  ~DitBlock() override;

  std::string_view kind() const override { return last_ ? "dit.last" : "dit"; }
  atelier::Tensors forward(const atelier::Tensors& in) override;

  std::vector<const atelier::nn::Linear*> level_layers() const { return {&img_mod_, &txt_mod_}; }

 private:
  // Modulations of image rows and of text rows; with a level of references, of each image and of
  // its references in turn.
  std::pair<Modulation, Modulation> modulations(const at::Tensor& level, const at::Tensor& clean,
                                                int64_t B) const;

  int64_t head_dim_;
  bool last_;
  atelier::nn::Linear img_mod_;
  atelier::nn::RMSNorm norm_q_, norm_k_;
  atelier::nn::Linear to_q_, to_k_, to_v_, add_q_, add_k_, add_v_, to_out_, to_add_out_;
  atelier::nn::RMSNorm norm_added_q_, norm_added_k_;
  atelier::nn::Linear img_up_, img_down_, txt_mod_, txt_up_, txt_down_;
};

}  // namespace qwen_image
