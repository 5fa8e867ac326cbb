// Shape letters: those of dit.cpp; N rows, L prompt rows in probe() alone.
#include "vace.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "atelier/error.h"
#include "atelier/named_inputs.h"
#include "atelier/ops/pointwise.h"

namespace wan {

using atelier::Segments;
using atelier::Tensors;
namespace ops = atelier::ops;

namespace {

// The numbers of the denoiser's blocks, which those of a VACE are made like.
DitConfig block_config(const VaceConfig& c) {
  DitConfig block = {};
  block.width = c.width;
  block.heads = c.heads;
  block.mlp_width = c.mlp_width;
  block.norm_eps = c.norm_eps;
  return block;
}

// What a DitBlock reads without images.
Tensors inputs_of(const at::Tensor& rows, std::span<const at::Tensor> context) {
  Tensors inputs = {rows};
  inputs.insert(inputs.end(), context.begin(), context.begin() + DitBlock::kTextOffsets);
  return inputs;
}

}  // namespace

VaceBlock::VaceBlock(Module* parent, std::string name, const DitConfig& c, bool is_first)
    : DitBlock(parent, std::move(name), c),
      before_(is_first
                  ? std::make_unique<atelier::nn::Linear>(this, "before_proj", c.width, c.width)
                  : nullptr),
      after_(this, "after_proj", c.width, c.width) {}

VaceBlock::~VaceBlock() = default;

Tensors VaceBlock::forward(const Tensors& in) {
  if (!before_) {
    const at::Tensor rows = DitBlock::forward(in)[0];
    return {after_.forward(rows), rows};
  }
  Tensors own(in.begin(), in.end() - 1);
  own[kRows] = before_->forward(in[kRows]) + in.back();
  const at::Tensor rows = DitBlock::forward(own)[0];
  return {after_.forward(rows), rows};
}

Vace::Vace(const VaceConfig& c)
    : Module(nullptr, ""),
      channels_(c.channels),
      patch_(c.patch),
      head_dim_(c.width / c.heads),
      places_(c.places),
      patches_(this, "vace_patch_embedding", c.channels, c.width, {1, c.patch, c.patch},
               {.stride = {1, c.patch, c.patch}}) {
  for (size_t i = 0; i < places_.size(); ++i)
    blocks_.push_back(std::make_unique<VaceBlock>(this, "vace_blocks." + std::to_string(i),
                                                  block_config(c), /*is_first=*/i == 0));
}

Vace::~Vace() = default;

at::Tensor Vace::patches(const at::Tensor& clip_BCTHW) const {
  return patches_.forward(clip_BCTHW).permute({0, 2, 3, 4, 1}).flatten(0, 3);
}

atelier::NamedTensors Vace::probe(const atelier::NamedTensors& inputs,
                                  atelier::BlockRunner& runner) {
  atelier::allow_only(inputs, {"rows", "control", "time", "text"});
  const at::Tensor& control = atelier::named_tensor(inputs, "control", 5);
  const at::Tensor& rows = atelier::named_tensor(inputs, "rows", 3);
  const at::Tensor& text = atelier::named_tensor(inputs, "text", 3);
  const int64_t B = control.size(0), T = control.size(2), H = control.size(3) / patch_,
                W = control.size(4) / patch_;
  const at::Tensor angles =
      token_angles(at::arange(T, at::TensorOptions(control.device()).dtype(at::kDouble)), H, W,
                   head_dim_)
          .repeat({B, 1});
  const Tensors context = {at::cos(angles).to(at::kFloat),
                           at::sin(angles).to(at::kFloat),
                           Segments::uniform(B, T * H * W).tensor(),
                           Segments::uniform(B, T * H * W).tensor(),
                           atelier::named_tensor(inputs, "time", 2).to(at::kFloat),
                           text.flatten(0, 1),
                           Segments::uniform(B, text.size(1)).tensor()};
  Tensors hints;
  at::Tensor x = patches(control);
  for (size_t i = 0; i < blocks_.size(); ++i) {
    Tensors in = inputs_of(x, context);
    if (i == 0) in.push_back(rows.flatten(0, 1));
    const Tensors out = runner.run(*blocks_[i], in);
    hints.push_back(out[0].view_as(rows));
    x = out[1];
  }
  return {{"hints", at::stack(hints)}};
}

namespace {

// What is followed beside latents of one sample, [channels, T, H, W]: pictures in front, of which
// nothing is made anew.
at::Tensor followed(const atelier::Conditioning& cond, int64_t channels) {
  const at::Tensor& clip = atelier::named_tensor(cond, kVaceClip, 4);
  const auto found = cond.find(kVaceReferences);
  if (found == cond.end()) return clip;
  const at::Tensor& pictures = found->second;
  std::vector<int64_t> rest = pictures.sizes().vec();
  rest[0] = channels - pictures.size(0);
  return at::cat({at::cat({pictures, at::zeros(rest, pictures.options())}), clip}, 1);
}

}  // namespace

VaceHints::VaceHints(Vace& vace, const atelier::DenoiseInputs& in) : vace_(vace) {
  const auto blocks = std::ssize(vace.places());
  std::vector<int64_t> sizes = in.x_BCTHW.sizes().slice(1).vec();
  sizes[0] = vace.channels();
  const auto options = in.x_BCTHW.options();
  Tensors clips, scales;
  for (const atelier::Conditioning* cond : in.cond) {
    const bool is_followed = cond->contains(kVaceClip);
    clips.push_back(is_followed ? followed(*cond, vace.channels()).to(options)
                                : at::zeros(sizes, options));
    if (clips.back().sizes() != sizes) {
      throw atelier::Error(
          atelier::ErrorCode::kInvalidArgument,
          "vace_clip and vace_references of shape " + atelier::shape_text(clips.back()) +
              ", they do not fit latents of shape " + atelier::shape_text(in.x_BCTHW));
    }
    const auto said = cond->find(kVaceScale);
    const at::Tensor scale =
        said == cond->end() ? at::full({1}, is_followed ? 1.0 : 0.0, options) : said->second;
    scales.push_back(scale.to(options.dtype(at::kFloat)).expand({blocks}));
  }
  clip_BCTHW_ = at::stack(clips);
  scale_BL_ = at::stack(scales);
}

void VaceHints::begin(Pass& pass) {
  rows_ = pass.placed(vace_.patches(clip_BCTHW_));
  first_ = pass.x;
  next_ = 0;
}

void VaceHints::after(int64_t index, Pass& pass) {
  const auto is_there = [&] { return next_ < vace_.places().size(); };
  if (!is_there() || vace_.places()[next_] != index) return;
  Tensors inputs = inputs_of(rows_, pass.context);
  if (next_ == 0) inputs.push_back(std::move(first_));
  rows_ = at::Tensor();
  Tensors outputs = pass.runner.run(vace_.block(next_), inputs);
  const at::Tensor scale = scale_BL_.select(1, static_cast<int64_t>(next_)).unsqueeze(1);
  pass.x =
      ops::gate_residual(pass.x, outputs[0], scale.expand({-1, pass.x.size(1)}), pass.rows.rows());
  ++next_;
  if (is_there()) rows_ = std::move(outputs[1]);
}

}  // namespace wan
