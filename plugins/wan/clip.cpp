// Shape letters: N rows of an image, D width, d head width, H and W height and width.
#include "clip.h"

#include <algorithm>
#include <cmath>

#include <ATen/ATen.h>

#include "atelier/block.h"
#include "atelier/component_family.h"
#include "atelier/config_fields.h"
#include "atelier/error.h"
#include "atelier/ops/attention.h"
#include "atelier/part_view.h"

namespace wan {

using atelier::ConfigFields;
using atelier::Detection;
using atelier::kOwnConfig;
using atelier::PartView;
using atelier::Segments;
using atelier::TensorIndex;
using atelier::Tensors;
using atelier::WeightMap;
using atelier::nn::LayerNorm;
using atelier::nn::Linear;
using atelier::nn::Module;
namespace ops = atelier::ops;

namespace {

// Statistics of the pixels in [0, 1], by channel.
constexpr double kMean[] = {0.48145466, 0.4578275, 0.40821073};
constexpr double kStd[] = {0.26862954, 0.26130258, 0.27577711};

at::Tensor per_channel(const double (&values)[3], const at::Tensor& like) {
  return at::tensor(at::ArrayRef<double>(values), at::kDouble).to(like.options()).view({3, 1, 1});
}

// [3, side, side], normalised, in float32. Pixels are whole levels of 255 behind the scaling, as in
// the published pipeline, which scales stored images.
at::Tensor prepared(const at::Tensor& image, int64_t side) {
  const at::Tensor x = image.to(at::kFloat);
  const int64_t H = x.size(1), W = x.size(2);
  const int64_t height = H <= W ? side : side * H / W, width = H <= W ? side * W / H : side;
  const at::Tensor scaled =
      at::_upsample_bicubic2d_aa(x.unsqueeze(0), {height, width}, /*align_corners=*/false)[0];
  const at::Tensor cut =
      scaled.narrow(1, (height - side) / 2, side).narrow(2, (width - side) / 2, side);
  const at::Tensor levels = at::round(at::clamp(cut * 127.5 + 127.5, 0, 255)) / 255;
  return (levels - per_channel(kMean, levels)) / per_channel(kStd, levels);
}

}  // namespace

// Inputs and output: rows [N, D].
class ClipBlock final : public atelier::Block {
 public:
  ClipBlock(Module* parent, std::string name, const ClipConfig& c)
      : Block(parent, std::move(name)),
        heads_(c.heads),
        norm1_(this, "norm1", c.width, c.eps),
        to_qkv_(this, "attn.to_qkv", c.width, 3 * c.width),
        proj_(this, "attn.proj", c.width, c.width),
        norm2_(this, "norm2", c.width, c.eps),
        up_(this, "mlp.0", c.width, c.mlp_width),
        down_(this, "mlp.2", c.mlp_width, c.width) {}
  ~ClipBlock() override = default;

  std::string_view kind() const override { return "clip"; }

  Tensors forward(const Tensors& in) override {
    const int64_t N = in[0].size(0);
    const at::Tensor qkv = to_qkv_.forward(norm1_.forward(in[0])).view({N, 3, heads_, -1});
    const at::Tensor attended = ops::attention(qkv.select(1, 0), qkv.select(1, 1), qkv.select(1, 2),
                                               Segments::uniform(1, N));
    const at::Tensor x = in[0] + proj_.forward(attended);
    return {x + down_.forward(at::gelu(up_.forward(norm2_.forward(x))))};
  }

 private:
  int64_t heads_;
  LayerNorm norm1_;
  Linear to_qkv_, proj_;
  LayerNorm norm2_;
  Linear up_, down_;
};

int64_t ClipConfig::image_side() const {
  return patch * std::llround(std::sqrt(static_cast<double>(rows - 1)));
}

ClipVision::ClipVision(const ClipConfig& c)
    : Module(nullptr, "image_encoder"),
      config_(c),
      cls_embedding_(declare("cls_embedding", c.has_batch_axes ? std::vector<int64_t>{1, 1, c.width}
                                                               : std::vector<int64_t>{c.width})),
      pos_embedding_(declare("pos_embedding", c.has_batch_axes
                                                  ? std::vector<int64_t>{1, c.rows, c.width}
                                                  : std::vector<int64_t>{c.rows, c.width})),
      patch_embedding_(declare("patch_embedding.weight", {c.width, 3, c.patch, c.patch})),
      pre_norm_(this, "pre_norm", c.width, c.eps) {
  for (int64_t i = 0; i + 1 < c.layers; ++i)
    blocks_.push_back(std::make_unique<ClipBlock>(this, "transformer." + std::to_string(i), c));
}

ClipVision::~ClipVision() = default;

at::Tensor ClipVision::forward(const at::Tensor& image, atelier::BlockRunner& runner) const {
  const at::Tensor positions = pos_embedding_->draw().view({config_.rows, config_.width});
  const at::Tensor pixels = prepared(image, config_.image_side()).to(positions.options());
  const at::Tensor patches =
      ops::conv2d(pixels.unsqueeze(0), patch_embedding_, nullptr, {.stride = config_.patch});
  const at::Tensor rows =
      at::cat({cls_embedding_->draw().view({1, config_.width}), patches[0].flatten(1).t()});
  at::Tensor x = pre_norm_.forward(rows + positions);
  for (const auto& block : blocks_) x = runner.run(*block, {x})[0];
  return x;
}

// ---- Files ----

namespace {

struct ClipNames {
  const char *spelling, *stem, *layers, *patch, *positions, *up;
};
constexpr ClipNames kClipNames[] = {
    {"original", "visual.", "transformer.{}.norm1.weight", "patch_embedding.weight",
     "pos_embedding", "transformer.0.mlp.0.weight"},
    {"transformers", "vision_model.", "encoder.layers.{}.layer_norm1.weight",
     "embeddings.patch_embedding.weight", "embeddings.position_embedding.weight",
     "encoder.layers.0.mlp.fc1.weight"},
    {"transformers_bare", "", "encoder.layers.{}.layer_norm1.weight",
     "embeddings.patch_embedding.weight", "embeddings.position_embedding.weight",
     "encoder.layers.0.mlp.fc1.weight"},
};

ClipConfig read_clip(const PartView& view, const ClipNames& names) {
  const std::string stem = names.stem;
  ClipConfig c;
  const TensorIndex& index = view.index();
  const int64_t there = view.block_count(stem + names.layers);
  c.layers = index.config_integer("num_hidden_layers").value_or(there);
  c.width = view.dim(stem + names.patch, 0);
  c.patch = view.dim(stem + names.patch, 2);
  c.mlp_width = view.dim(stem + names.up, 0);
  c.has_batch_axes = std::string_view(names.spelling) == "original";
  c.rows = view.dim(stem + names.positions, c.has_batch_axes ? 1 : 0);
  view.require_config(c.width == 1280 && c.mlp_width == 5120, "num_attention_heads");
  c.heads = index.config_integer("num_attention_heads").value_or(16);
  c.eps = index.config_real("layer_norm_eps").value_or(1e-5);
  if (c.heads < 1 || c.width % c.heads != 0 || !(c.eps >= 0)) {
    view.refuse("has " + std::to_string(c.width) + " channels, which num_attention_heads or " +
                    "layer_norm_eps in its config does not fit",
                kOwnConfig);
  }
  // The last layer is not run, so a file may lack it.
  if (c.layers < 2 || there < c.layers - 1 || there > c.layers) {
    view.refuse("has " + std::to_string(there) + " layers, num_hidden_layers is " +
                    std::to_string(c.layers),
                kOwnConfig);
  }
  const int64_t across = c.image_side() / c.patch;
  if (across * across + 1 != c.rows)
    view.refuse("has positions for " + std::to_string(c.rows - 1) +
                " patches, which no square has");
  return c;
}

// The module's name of what transformers calls `name`, behind the stem; q, k and v are one.
constexpr atelier::Renamed kClipOutsideBlocks[] = {
    {"cls_embedding", "embeddings.class_embedding"},
    {"pos_embedding", "embeddings.position_embedding.weight"},
    {"patch_embedding.weight", "embeddings.patch_embedding.weight"},
    {"pre_norm.", "pre_layrnorm."},
};
constexpr atelier::Renamed kClipInBlocks[] = {
    {"transformer.", "encoder.layers."},
    {".norm1.", ".layer_norm1."},
    {".norm2.", ".layer_norm2."},
    {".attn.proj.", ".self_attn.out_proj."},
    {".mlp.0.", ".mlp.fc1."},
    {".mlp.2.", ".mlp.fc2."},
};

void add_rows(WeightMap& map, const std::string& stem, const std::string& path) {
  constexpr std::string_view kQkv = ".attn.to_qkv.";
  if (!path.starts_with("transformer.")) {
    map.push_back({stem + atelier::renamed(path, kClipOutsideBlocks), path});
  } else if (path.find(kQkv) == std::string::npos) {
    map.push_back({stem + atelier::renamed(path, kClipInBlocks), path});
  } else {
    for (const char* part : {"q", "k", "v"}) {
      std::string name = atelier::renamed(path, kClipInBlocks);
      name.replace(name.find(kQkv), kQkv.size(), ".self_attn." + std::string(part) + "_proj.");
      map.push_back({stem + name, path, /*axis=*/0});
    }
  }
}

}  // namespace

std::optional<Detection> detect_clip(const TensorIndex& checkpoint) {
  static constexpr std::string_view kPrefixes[] = {"", "image_encoder.", "model."};
  for (const ClipNames& names : kClipNames) {
    const std::string marker = std::string(names.stem) + names.patch;
    const std::string_view markers[] = {marker};
    const auto prefix = atelier::find_prefix(checkpoint, kPrefixes, markers);
    if (!prefix) continue;
    const PartView view(checkpoint, *prefix, "image encoder");
    view.refuse_quantised();
    if (!checkpoint.config().empty() && !checkpoint.config().contains("hidden_act"))
      view.refuse("has no hidden_act in its config, which means quick_gelu", atelier::kOwnConfig);
    return atelier::detection_of("image_encoder", names.spelling, read_clip(view, names), *prefix);
  }
  return std::nullopt;
}

namespace {

// What a folder says of how images are brought to the encoder.
ConfigFields processor_fields(int64_t side) {
  const auto reals = [](const double(&values)[3]) {
    return std::vector<double>(std::begin(values), std::end(values));
  };
  ConfigFields fields;
  fields.told("size.shortest_edge", {side})
      .told("crop_size.height", {side})
      .told("crop_size.width", {side})
      .fixed("image_mean", {reals(kMean)})
      .fixed("image_std", {reals(kStd)})
      .fixed("resample", {3})
      .ignored({"rescale_factor", "do_convert_rgb", "image_processor_type",
                "feature_extractor_type", "processor_class", "_*", "data_format",
                "input_data_format", "default_to_square", "device", "return_tensors",
                "disable_grouping"});
  for (const char* on : {"do_resize", "do_center_crop", "do_normalize", "do_rescale"})
    fields.fixed(on, {true});
  return fields;
}

}  // namespace

ConfigFields clip_fields(const Detection& part) {
  const auto c = atelier::config_of<ClipConfig>(part);
  ConfigFields fields;
  fields.of_transformers({"clip_vision_model"})
      .ignored({"projection_dim", "attention_dropout", "dropout", "initializer_factor",
                "initializer_range"})
      .told("hidden_size", {c.width})
      .told("intermediate_size", {c.mlp_width})
      .told("patch_size", {c.patch})
      .told("image_size", {c.image_side()})
      .fixed("num_channels", {3})
      .fixed("hidden_act", {"gelu"})
      .read({"num_hidden_layers", "num_attention_heads", "layer_norm_eps"})
      .add(processor_fields(c.image_side()), "image_processor.");
  return fields;
}

WeightMap clip_map(const Detection& part) {
  const auto config = atelier::config_of<ClipConfig>(part);
  ClipVision clip(config);
  const bool is_original = part.spelling == "original";
  const std::string stem = is_original                       ? "visual."
                           : part.spelling == "transformers" ? "vision_model."
                                                             : "";
  WeightMap map;
  clip.visit_weights([&](const std::string& path, atelier::Weight&) {
    if (is_original) {
      map.push_back({stem + path, path});
    } else {
      add_rows(map, stem, path);
    }
  });
  // Behind the states that are read.
  const std::string last = std::to_string(config.layers - 1);
  if (is_original) {
    for (const char* unused : {"visual.post_norm.*", "visual.head", "textual.*", "log_scale"})
      map.push_back({unused});
    map.push_back({"visual.transformer." + last + ".*"});
  } else {
    map.push_back({stem + "encoder.layers." + last + ".*"});
    map.push_back({stem + "post_layernorm.*"});
    map.push_back({stem + "embeddings.position_ids"});
  }
  return map;
}

}  // namespace wan
