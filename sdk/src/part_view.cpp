#include "atelier/part_view.h"

#include <algorithm>

#include "atelier/error.h"

#include "formats/escape.h"

namespace atelier {
namespace {

using formats::quote_and_escape;

std::string text(int64_t value) {
  return std::to_string(value);
}

constexpr std::pair<std::string_view, const char*> kQuantised[] = {
    {".comfy_quant", "ComfyUI's mixed precision (comfy_quant)"},
    {"scaled_fp8", "scaled FP8 (scaled_fp8)"},
    {".scale_weight", "scaled FP8 (scale_weight)"},
    {".weight_scale", "FP8 or INT8 with scales (weight_scale)"},
    {".weight_scale_2", "NVFP4 (weight_scale_2)"},
    {".weight_scale_inv", "block-scaled FP8 (weight_scale_inv)"},
    {"bitsandbytes__nf4", "bitsandbytes NF4"},
    {"bitsandbytes__fp4", "bitsandbytes FP4"},
    {".absmax", "bitsandbytes NF4 or FP4 (absmax)"},
    {".quant_map", "bitsandbytes NF4 or FP4 (quant_map)"},
    {".SCB", "bitsandbytes INT8 (SCB)"},
    {".wscales", "SVDQuant (wscales)"},
    {".qweight", "packed integers (qweight)"},
};

}  // namespace

std::optional<std::string> find_prefix(const TensorIndex& index,
                                       std::span<const std::string_view> prefixes,
                                       std::span<const std::string_view> markers) {
  for (const std::string_view prefix : prefixes) {
    for (const std::string_view marker : markers) {
      if (index.contains(std::string(prefix).append(marker))) return std::string(prefix);
    }
  }
  return std::nullopt;
}

std::optional<PartSpelling> find_spelling(const TensorIndex& index,
                                          std::span<const std::string_view> prefixes,
                                          std::span<const std::string_view> original,
                                          std::span<const std::string_view> diffusers) {
  for (const bool is_original : {true, false}) {
    for (const std::string_view prefix : prefixes) {
      const auto is_there = [&](std::string_view marker) {
        return index.contains(std::string(prefix).append(marker));
      };
      if (std::ranges::all_of(is_original ? original : diffusers, is_there))
        return PartSpelling{std::string(prefix), is_original};
    }
  }
  return std::nullopt;
}

void refuse_kind(const std::string& what, const std::string& hint) {
  throw Error(ErrorCode::kUnsupported, "this is " + what, hint);
}

PartView::PartView(const TensorIndex& index, std::string prefix, std::string what)
    : index_(index), prefix_(std::move(prefix)), what_(std::move(what)) {}

bool PartView::contains(std::string_view name) const {
  return index_.contains(full_name(name));
}

int64_t PartView::block_count(std::string_view pattern) const {
  return index_.block_count(full_name(pattern));
}

int64_t PartView::dim(std::string_view name, size_t axis) const {
  const TensorMeta* meta = index_.find(full_name(name));
  if (!meta) {
    throw Error(ErrorCode::kNotFound,
                "tensor " + quote_and_escape(full_name(name)) + ": missing from the " + what_,
                "pass every shard of the checkpoint, or its index file");
  }
  if (axis >= meta->shape.size() || meta->shape[axis] < 1) {
    throw Error(ErrorCode::kInvalidArgument, "tensor " + quote_and_escape(full_name(name)) +
                                                 ": has " + std::to_string(meta->shape.size()) +
                                                 " axes, which is no weight of the " + what_);
  }
  return meta->shape[axis];
}

int64_t PartView::parts(std::string_view name, size_t axis, int64_t unit,
                        const std::string& hint) const {
  const int64_t length = dim(name, axis);
  if (unit < 1 || length % unit != 0) {
    refuse("has " + text(length) + " in tensor " + quote_and_escape(full_name(name)) +
               ", no multiple of " + text(unit),
           hint);
  }
  return length / unit;
}

void PartView::refuse(const std::string& message, const std::string& hint) const {
  throw Error(ErrorCode::kInvalidArgument, "the " + what_ + " " + message, hint);
}

void PartView::refuse_quantised() const {
  const auto refuse_as = [&](const std::string& name, const std::string& how) {
    throw Error(ErrorCode::kUnsupported,
                "tensor " + quote_and_escape(name) + ": the " + what_ + " is quantised" + how,
                "use the bf16, fp16, fp32 or plain fp8 file");
  };
  std::string integers;  // told only when no marker tells more
  for (auto it = index_.tensors().lower_bound(prefix_);
       it != index_.tensors().end() && it->first.starts_with(prefix_); ++it) {
    const auto& [name, meta] = *it;
    for (const auto& [marker, format] : kQuantised) {
      if (name.ends_with(marker)) refuse_as(name, std::string(" as ") + format);
    }
    if (integers.empty() && name.ends_with(".weight") && !at::isFloatingType(meta.dtype))
      integers = name;
  }
  if (!integers.empty()) {
    refuse_as(integers,
              std::string(", its weights are ") + c10::toString(index_.find(integers)->dtype));
  }
}

void PartView::refuse_kinds(std::span<const UnsupportedKind> kinds) const {
  for (const auto& [sign, what, hint] : kinds) {
    if (contains(sign) || index_.config_flag(sign).value_or(false)) refuse_kind(what, hint);
  }
}

void PartView::require_config(bool has_published_widths, const char* fields) const {
  if (has_published_widths || !index_.config().empty()) return;
  refuse(
      std::string("has no config, and other widths than the published one, so nothing tells its ") +
          fields,
      "put its config.json beside it, or name the folder of its model too");
}

void PartView::check_heads(int64_t heads, int64_t kv_heads, int64_t head_dim) const {
  if (kv_heads > 0 && heads % kv_heads == 0 && head_dim % 2 == 0) return;
  refuse("has " + text(heads) + " heads of " + text(head_dim) + " and keys for " + text(kv_heads),
         kOwnConfig);
}

std::array<int64_t, 3> PartView::rope_axes(const std::string& field, int64_t head_dim,
                                           std::array<int64_t, 3> otherwise) const {
  const auto given = index_.config_integers(field);
  const std::vector<int64_t> axes =
      given.value_or(std::vector<int64_t>(otherwise.begin(), otherwise.end()));
  int64_t sum = 0;
  bool is_good = axes.size() == 3;
  for (const int64_t axis : axes) {
    is_good = is_good && axis > 0 && axis % 2 == 0 && axis <= head_dim;
    sum += axis;
  }
  if (!is_good || sum != head_dim) {
    refuse("has heads of " + text(head_dim) + ", which " +
               (given ? field + " in config.json does not add up to"
                      : "do not tell how positions are split over them"),
           given ? field + " takes three even numbers that add up to the head's width"
                 : "put the checkpoint's config.json with " + field + " beside it");
  }
  return {axes[0], axes[1], axes[2]};
}

std::optional<std::vector<bool>> PartView::layer_windows(const std::string& field,
                                                         int64_t layers) const {
  if (index_.has_null(field)) return std::nullopt;
  const auto kinds = index_.config_texts(field);
  if (!kinds) return std::nullopt;
  std::vector<bool> windowed;
  for (const std::string& kind : *kinds) {
    if (kind != "sliding_attention" && kind != "full_attention") {
      refuse_kind("a " + what_ + " with " + field + " of " + to_text(kind),
                  "sliding_attention and full_attention are computed");
    }
    windowed.push_back(kind == "sliding_attention");
  }
  if (std::ssize(windowed) != layers) {
    refuse("has " + text(layers) + " layers and " + text(std::ssize(windowed)) + " layer_types",
           kOwnConfig);
  }
  return windowed;
}

}  // namespace atelier
