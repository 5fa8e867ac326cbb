#include "blockwise.h"

#include <ATen/ATen.h>

#include "atelier/named_inputs.h"
#include "atelier/part_view.h"

#include "config.h"
#include "dit_block.h"

namespace qwen_image {

using atelier::ConfigFields;
using atelier::Detection;
using atelier::PartView;
using atelier::Tensors;

namespace {

constexpr double kRmsEps = 1e-6;
constexpr std::string_view kMarkers[] = {"controlnet_blocks.0.x_rms.weight"};
// As DiffSynth-Studio saves one that was trained beside others, too.
constexpr std::string_view kPrefixes[] = {"", "pipe.blockwise_controlnet.models.0.",
                                          "blockwise_controlnet.models.0.", "models.0."};

}  // namespace

BlockwiseBlock::BlockwiseBlock(Module* parent, std::string name, int64_t width)
    : Block(parent, std::move(name)),
      x_rms_(this, "x_rms", width, kRmsEps),
      y_rms_(this, "y_rms", width, kRmsEps),
      input_(this, "input_proj", width, width),
      output_(this, "output_proj", width, width) {}

BlockwiseBlock::~BlockwiseBlock() = default;

Tensors BlockwiseBlock::forward(const Tensors& in) {
  const at::Tensor seen = x_rms_.forward(in[0]) + y_rms_.forward(in[1]);
  return {output_.forward(at::gelu(input_.forward(seen)))};
}

Blockwise::Blockwise(const BlockwiseConfig& c)
    : Module(nullptr, ""),
      channels_(c.channels),
      img_in_(this, "img_in", c.channels * kPatch * kPatch, c.width) {
  for (int64_t i = 0; i < c.layers; ++i)
    blocks_.push_back(
        std::make_unique<BlockwiseBlock>(this, "controlnet_blocks." + std::to_string(i), c.width));
}

Blockwise::~Blockwise() = default;

atelier::NamedTensors Blockwise::probe(const atelier::NamedTensors& inputs,
                                       atelier::BlockRunner& runner) {
  atelier::allow_only(inputs, {"rows", "control"});
  const at::Tensor& rows = atelier::named_tensor(inputs, "rows", 3);
  const at::Tensor picture = embed(to_rows(atelier::named_tensor(inputs, "control", 5)));
  Tensors hints;
  for (const auto& block : blocks_)
    hints.push_back(runner.run(*block, {rows.flatten(0, 1), picture})[0].view_as(rows));
  return {{"hints", at::stack(hints)}};
}

std::optional<Detection> detect_blockwise(const atelier::TensorIndex& checkpoint) {
  const auto prefix = atelier::find_prefix(checkpoint, kPrefixes, kMarkers);
  if (!prefix) return std::nullopt;
  const PartView view(checkpoint, *prefix, "blockwise ControlNet");
  view.refuse_quantised();
  return atelier::detection_of(
      kBlockwise, "diffsynth",
      BlockwiseConfig{
          .layers = view.block_count("controlnet_blocks.{}.x_rms.weight"),
          .width = view.dim("img_in.weight", 0),
          .channels = view.parts("img_in.weight", 1, kPatch * kPatch, "the file may be damaged")},
      *prefix);
}

ConfigFields blockwise_fields(const Detection&) {
  return {};  // it is published without a config
}

atelier::WeightMap blockwise_map(const Detection& part) {
  Blockwise net(atelier::config_of<BlockwiseConfig>(part));
  return atelier::named_weights(net);
}

}  // namespace qwen_image
