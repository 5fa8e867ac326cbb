#include "vap.h"

#include <ATen/ATen.h>

#include "atelier/part_view.h"

#include "side_stream.h"

namespace wan {

using atelier::Detection;
using atelier::PartView;
using atelier::TensorIndex;
using atelier::Tensors;

namespace {

constexpr std::string_view kMarkers[] = {"patch_embedding_mot_ref.weight"};

int64_t branch_layers(const PartView& view) {
  int64_t layers = 0;
  const auto has = [&](int64_t block) {
    return view.contains("blocks." + std::to_string(block) + ".scale_shift_table_mot_ref");
  };
  while (has(layers * kVapStride)) ++layers;
  return layers;
}

}  // namespace

Vap::Vap(const DitConfig& c)
    : Module(nullptr, "vap"), config_(c), embeddings_(this, c), images_(this, "img_emb", c) {
  for (int64_t i = 0; i < c.layers; ++i)
    blocks_.push_back(std::make_unique<DitBlock>(this, "blocks." + std::to_string(i), c));
}

Vap::~Vap() = default;

// ---- Beside the denoiser ----

VapBranch::~VapBranch() = default;

// Frames of the branch lie in front of those that are made.
void VapBranch::begin(Pass& pass) {
  const DitConfig& c = vap_.config();
  const at::Tensor& x = pass.in.x_BCTHW;
  const auto clips = [&](const char* name, int64_t channels) {
    return side_clips(pass, name, {channels, x.size(2), x.size(3), x.size(4)},
                      "the clip that is followed has as many frames as the one that is made");
  };
  const at::Tensor clip =
      at::cat({clips(kVapClip, c.channels), clips(kVapKnown, c.given_channels)}, 1);
  const auto options = at::TensorOptions(x.device()).dtype(at::kDouble);
  branch_ = inputs_of({.embeddings = vap_.embeddings(),
                       .images = vap_.images(),
                       .head_dim = c.head_dim(),
                       .clip_BCTHW = clip,
                       .frames = at::arange(-pass.frames, 0, options),
                       .text = kVapEmbeds,
                       .image = kVapImage},
                      pass);
}

bool VapBranch::replace(int64_t index, DitBlock& block, Pass& pass) {
  const int64_t i = index / kVapStride;
  if (index % kVapStride != 0 || i >= vap_.layers()) return false;
  DitBlock& own = vap_.block(i);
  const Tensors keys = pass.runner.run(own, {branch_.begin(), branch_.begin() + DitBlock::kText});
  Tensors inputs = {pass.x};
  inputs.insert(inputs.end(), pass.context.begin(), pass.context.end());
  inputs.insert(inputs.end(), {keys[0], keys[1], branch_[DitBlock::kOffsets]});
  const Tensors made = pass.runner.run(block, inputs);
  pass.x = made[0];
  if (i + 1 == vap_.layers()) return true;  // nothing reads the branch's rows behind its last block
  inputs = branch_;
  inputs.insert(inputs.end(), {made[1], made[2], pass.rows.rows().tensor()});
  branch_[DitBlock::kRows] = pass.runner.run(own, inputs)[0];
  return true;
}

// ---- Files ----

std::vector<std::string> without_vap(const TensorIndex& checkpoint, const std::string& prefix) {
  if (!checkpoint.contains(prefix + std::string(kMarkers[0]))) return {};
  return {"patch_embedding.*", "condition_embedder.*", "scale_shift_table",
          "proj_out.*",        "blocks.*.attn1.*",     "blocks.*.attn2.*",
          "blocks.*.norm2.*",  "blocks.*.ffn.*",       "blocks.*.scale_shift_table"};
}

std::optional<Detection> detect_vap(const TensorIndex& checkpoint) {
  const auto prefix = atelier::find_prefix(checkpoint, kPrefixes, kMarkers);
  if (!prefix) return std::nullopt;
  const PartView view(checkpoint, *prefix, "branch of Video-As-Prompt");
  view.refuse_quantised();
  const std::string embedder = "condition_embedder_mot_ref.";
  DitConfig c{};
  c.layers = branch_layers(view);
  c.width = view.dim("patch_embedding_mot_ref.weight", 0);
  c.patch = view.dim("patch_embedding_mot_ref.weight", 3);
  c.mlp_width = view.dim("blocks.0.ffn_mot_ref.net.0.proj.weight", 0);
  c.text_width = view.dim(embedder + "text_embedder.linear_1.weight", 1);
  c.time_width = view.dim(embedder + "time_embedder.linear_1.weight", 1);
  c.image_width = view.dim(embedder + "image_embedder.norm1.weight", 0);
  // Latents of the clip, a mask of its frames, and latents of what is known of it.
  c.channels = (view.dim("patch_embedding_mot_ref.weight", 1) - kFrameStride) / 2;
  c.given_channels = c.channels + kFrameStride;
  c.heads = read_heads(view, c.width);
  c.norm_eps = read_eps(view);
  Detection part = atelier::parts::brief_detection_of("vap", "diffusers", c, *prefix);
  part.owns = {"*_mot_ref*"};
  return part;
}

}  // namespace wan
