// Shape letters: N patches, L tokens of four patches, D width, d head width.
#include "vision.h"

#include <algorithm>
#include <string>

#include <ATen/ATen.h>

#include "atelier/block.h"
#include "atelier/component_family.h"
#include "atelier/config_fields.h"
#include "atelier/nn/waves.h"
#include "atelier/ops/attention.h"
#include "atelier/ops/pointwise.h"
#include "atelier/part_view.h"

#include "config.h"

namespace qwen_image {

using atelier::ConfigFields;
using atelier::Detection;
using atelier::kOwnConfig;
using atelier::PartView;
using atelier::Renamed;
using atelier::Segments;
using atelier::TensorIndex;
using atelier::Tensors;
using atelier::nn::Linear;
using atelier::nn::Module;
using atelier::nn::RMSNorm;
namespace ops = atelier::ops;

namespace {

constexpr int64_t kMerged = 4;
constexpr double kRopeTheta = 10000;
constexpr const char *kPatches = "patch_embed.proj.weight",
                     *kSecondFrame = "patch_embed.proj.weight.1";
using Shape = std::vector<int64_t>;

// Tokens of all pictures in the order of windows, and where patches of windows and of pictures
// begin.
struct Windows {
  at::Tensor order;  // int64 [L]
  std::vector<int64_t> window_lengths, picture_lengths;
};

Windows cut_windows(std::span<const PatchGrid> grids, int64_t side) {
  std::vector<int64_t> order;
  Windows windows;
  int64_t first = 0;
  for (const PatchGrid& grid : grids) {
    const int64_t H = grid.token_rows(), W = grid.token_columns();
    for (int64_t top = 0; top < H; top += side) {
      for (int64_t left = 0; left < W; left += side) {
        const int64_t bottom = std::min(top + side, H), right = std::min(left + side, W);
        for (int64_t y = top; y < bottom; ++y) {
          for (int64_t x = left; x < right; ++x) order.push_back(first + y * W + x);
        }
        windows.window_lengths.push_back((bottom - top) * (right - left) * kMerged);
      }
    }
    first += H * W;
    windows.picture_lengths.push_back(H * W * kMerged);
  }
  windows.order = at::tensor(order, at::kLong);
  return windows;
}

// Row and column of every patch, [N] float32 each, in the order of Patches.
std::pair<at::Tensor, at::Tensor> places(std::span<const PatchGrid> grids) {
  std::vector<at::Tensor> rows, columns;
  for (const PatchGrid& grid : grids) {
    const auto by_token = [&](const at::Tensor& place) {
      return place.expand({grid.rows, grid.columns})
          .reshape({grid.token_rows(), 2, grid.token_columns(), 2})
          .permute({0, 2, 1, 3})
          .reshape({-1});
    };
    rows.push_back(by_token(at::arange(grid.rows, at::kFloat).unsqueeze(1)));
    columns.push_back(by_token(at::arange(grid.columns, at::kFloat).unsqueeze(0)));
  }
  return {at::cat(rows), at::cat(columns)};
}

// Angles of patches in the order of windows, [N, d / 2]: half of them turn with the row, the others
// with the column.
at::Tensor angles_of(std::span<const PatchGrid> grids, const Windows& windows, int64_t head_dim) {
  const int64_t channels = head_dim / 2;
  const auto turned = [&](const at::Tensor& positions) {
    return atelier::nn::rope_angles(positions, channels, kRopeTheta);
  };
  const auto [rows, columns] = places(grids);
  return at::cat({turned(rows), turned(columns)}, 1)
      .view({-1, kMerged, channels})
      .index_select(0, windows.order)
      .reshape({-1, channels});
}

}  // namespace

// Inputs: patches [N, D], cosines and sines [N, d / 2], offsets of what sees each other. Output:
// patches.
class VisionBlock final : public atelier::Block {
 public:
  VisionBlock(Module* parent, int64_t number, const VisionConfig& c)
      : Block(parent, "blocks." + std::to_string(number)),
        head_dim_(c.width / c.heads),
        norm1_(this, "norm1", c.width),
        qkv_(this, "attn.qkv", c.width, 3 * c.width),
        proj_(this, "attn.proj", c.width, c.width),
        norm2_(this, "norm2", c.width),
        gate_(this, "mlp.gate_proj", c.width, c.mlp_width),
        up_(this, "mlp.up_proj", c.width, c.mlp_width),
        down_(this, "mlp.down_proj", c.mlp_width, c.width) {}
  ~VisionBlock() override = default;

  std::string_view kind() const override { return "vision"; }

  Tensors forward(const Tensors& in) override {
    const Segments rows = Segments::from_tensor(in[3]);
    at::Tensor x = in[0];
    {
      const at::Tensor qkv = qkv_.forward(norm1_.forward(x)).view({x.size(0), 3, -1, head_dim_});
      const auto turn = [&](int64_t part) {
        return ops::norm_rope(qkv.select(1, part).contiguous(), at::Tensor(), in[1], in[2],
                              ops::RopeLayout::kHalves);
      };
      x = x + proj_.forward(ops::attention(turn(0), turn(1), qkv.select(1, 2).contiguous(), rows));
    }
    const at::Tensor h = norm2_.forward(x);
    return {x + down_.forward(ops::swiglu(gate_.forward(h), up_.forward(h)))};
  }

 private:
  int64_t head_dim_;
  RMSNorm norm1_;
  Linear qkv_, proj_;
  RMSNorm norm2_;
  Linear gate_, up_, down_;
};

VisionTower::VisionTower(const VisionConfig& c, bool has_frames_apart)
    : Module(nullptr, "vision_tower"),
      config_(c),
      patch_embed_(declare(kPatches, has_frames_apart
                                         ? Shape{c.width, 3, kPatchPixels, kPatchPixels}
                                         : Shape{c.width, 3, kFrames, kPatchPixels, kPatchPixels})),
      second_frame_(has_frames_apart
                        ? declare(kSecondFrame, {c.width, 3, kPatchPixels, kPatchPixels})
                        : nullptr),
      merge_norm_(this, "merger.ln_q", c.width),
      merge_in_(this, "merger.mlp.0", kMerged * c.width, kMerged * c.width),
      merge_out_(this, "merger.mlp.2", kMerged * c.width, c.out_width) {
  for (int64_t i = 0; i < c.layers; ++i)
    blocks_.push_back(std::make_unique<VisionBlock>(this, i, c));
}

VisionTower::~VisionTower() = default;

at::Tensor VisionTower::patch_kernel() const {
  const at::Tensor kernel = patch_embed_->draw();
  return second_frame_ ? at::stack({kernel, second_frame_->draw()}, 2).flatten(1)
                       : kernel.flatten(1);
}

at::Tensor VisionTower::forward(const at::Tensor& patches, std::span<const PatchGrid> grids,
                                atelier::BlockRunner& runner) const {
  const at::Device device = patches.device();
  const Windows cut = cut_windows(grids, config_.window / (2 * kPatchPixels));
  const Segments windows(cut.window_lengths), pictures(cut.picture_lengths);
  const at::Tensor order = cut.order.to(device);
  const at::Tensor angles = angles_of(grids, cut, config_.width / config_.heads).to(device);
  const at::Tensor cos = at::cos(angles), sin = at::sin(angles);

  const at::Tensor kernel = patch_kernel();
  at::Tensor x = at::linear(patches.to(kernel.scalar_type()), kernel)
                     .view({-1, kMerged, config_.width})
                     .index({order})
                     .view({-1, config_.width});
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const Segments& rows = config_.sees_all[i] ? pictures : windows;
    x = runner.run(*blocks_[i], {x, cos, sin, rows.tensor()})[0];
  }
  const at::Tensor tokens = merge_norm_.forward(x).view({-1, kMerged * config_.width});
  const at::Tensor merged = merge_out_.forward(at::gelu(merge_in_.forward(tokens)));
  return merged.index({at::argsort(cut.order).to(device)});
}

// ---- Files ----

namespace {

constexpr const char *kConfig = "vision_config.", *kFirstGate = "blocks.0.mlp.gate_proj.weight";

struct Names {
  std::string_view spelling;
  const char* stem;
};
constexpr Names kNames[] = {{"disk", "visual."}, {"memory", "model.visual."}, {kLlamaCpp, ""}};

constexpr Renamed kLlamaCppNames[] = {
    {"patch_embed.proj.", "v.patch_embd."},
    {"blocks.", "v.blk."},
    {"norm1.", "ln1."},
    {"norm2.", "ln2."},
    {"attn.proj.", "attn_out."},
    {"mlp.gate_proj.", "ffn_gate."},
    {"mlp.up_proj.", "ffn_up."},
    {"mlp.down_proj.", "ffn_down."},
    {"merger.ln_q.", "v.post_ln."},
    {"merger.mlp.", "mm."},
};

bool is_gguf(const Names& names) {
  return names.spelling == kLlamaCpp;
}

std::string vision_name(const Names& names, const std::string& path) {
  return is_gguf(names) ? atelier::renamed(path, kLlamaCppNames) : names.stem + path;
}

const Names& names_of(const Detection& part) {
  return *std::ranges::find(kNames, part.spelling, &Names::spelling);
}

// nullopt: the widths are not the published ones, and no config says the rest.
std::optional<VisionConfig> read_vision(const PartView& view, const Names& names) {
  const TensorIndex& index = view.index();
  const std::string home = kConfig;
  const auto name = [&](const char* path) { return vision_name(names, path); };
  VisionConfig c;
  c.layers = view.block_count(name("blocks.{}.norm1.weight"));
  c.width = view.dim(name(kPatches), 0);
  c.mlp_width = view.dim(name(kFirstGate), 0);
  c.out_width = view.dim(name("merger.mlp.2.weight"), 0);
  const auto heads = index.config_integer(home + "num_heads");
  const bool is_published = c.width == 1280 && c.mlp_width == 3420 && c.layers == 32;
  if (!heads && !is_published) return std::nullopt;
  c.heads = heads.value_or(16);
  c.window = index.config_integer(home + "window_size").value_or(c.window);
  const std::vector<int64_t> full = index.config_integers(home + "fullatt_block_indexes")
                                        .value_or(std::vector<int64_t>{7, 15, 23, 31});
  c.sees_all.assign(static_cast<size_t>(c.layers), false);
  const bool fits = std::ranges::all_of(full, [&](int64_t i) { return i >= 0 && i < c.layers; });
  if (c.layers < 1 || c.heads < 1 || c.width % (4 * c.heads) != 0 || !fits ||
      c.window < 2 * kPatchPixels) {
    view.refuse(
        "has " + std::to_string(c.layers) + " layers of " + std::to_string(c.width) +
            " channels, which num_heads, window_size or fullatt_block_indexes in its config "
            "does not fit",
        kOwnConfig);
  }
  for (const int64_t i : full) c.sees_all[static_cast<size_t>(i)] = true;
  return c;
}

}  // namespace

std::optional<Detection> detect_vision(const TensorIndex& checkpoint) {
  static constexpr std::string_view kPrefixes[] = {"", "text_encoder."};
  for (const Names& names : kNames) {
    const std::string marker = vision_name(names, is_gguf(names) ? kSecondFrame : kPatches);
    const std::string_view markers[] = {marker};
    const auto prefix = atelier::find_prefix(checkpoint, kPrefixes, markers);
    if (!prefix) continue;
    const PartView view(checkpoint, *prefix, "vision tower");
    // Towers of Qwen2-VL and Qwen3-VL, whose GGUF files have such names, too, have no gates.
    if (is_gguf(names) && !view.contains(vision_name(names, kFirstGate))) continue;
    const auto config = read_vision(view, names);
    if (!config) return std::nullopt;
    Detection part =
        atelier::detection_of("vision_tower", std::string(names.spelling), *config, *prefix);
    if (!is_gguf(names)) part.owns = {std::string(names.stem) + "*"};
    return part;
  }
  return std::nullopt;
}

// The other fields are those of the language model beside it.
ConfigFields vision_fields(const Detection& part) {
  const auto c = atelier::config_of<VisionConfig>(part);
  ConfigFields vision;
  vision.told("depth", {c.layers})
      .told("hidden_size", {c.width})
      .told("intermediate_size", {c.mlp_width})
      .told("out_hidden_size", {c.out_width})
      .fixed("in_channels", {3})
      .fixed("in_chans", {3})
      .fixed("patch_size", {kPatchPixels})
      .fixed("spatial_patch_size", {kPatchPixels})
      .fixed("temporal_patch_size", {kFrames})
      .fixed("spatial_merge_size", {2})
      .fixed("hidden_act", {"silu"})
      .read({"num_heads", "window_size", "fullatt_block_indexes"});
  ConfigFields fields;
  fields.add(vision, kConfig).ignored({"*"});
  return fields;
}

// Queries, keys and values are apart in GGUF files.
atelier::WeightMap vision_map(const Detection& part) {
  constexpr std::string_view kJoined = ".attn.qkv.";
  const Names& names = names_of(part);
  const auto tower = make_vision(part);
  atelier::WeightMap map;
  tower->visit_weights([&](const std::string& path, atelier::Weight&) {
    const size_t joined = path.find(kJoined);
    if (!is_gguf(names) || joined == std::string::npos) {
      map.push_back({vision_name(names, path), path});
      return;
    }
    for (const char* one : {".attn_q.", ".attn_k.", ".attn_v."}) {
      std::string apart = path;
      apart.replace(joined, kJoined.size(), one);
      map.push_back({vision_name(names, apart), path, /*axis=*/0});
    }
  });
  return map;
}

std::unique_ptr<Module> make_vision(const Detection& part) {
  return std::make_unique<VisionTower>(atelier::config_of<VisionConfig>(part),
                                       is_gguf(names_of(part)));
}

}  // namespace qwen_image
