// A checkpoint as the detection of one component reads it.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "atelier/checkpoint.h"
#include "atelier/export.h"

namespace atelier {

// What the hint of an error says when the config contradicts the tensors, or lacks what they leave
// open.
inline constexpr const char* kOwnConfig = "put the checkpoint's own config.json beside it";

// The first of `prefixes` behind which one of `markers` is a tensor; nullopt when none is.
ATELIER_API std::optional<std::string> find_prefix(const TensorIndex& index,
                                                   std::span<const std::string_view> prefixes,
                                                   std::span<const std::string_view> markers);

// How a checkpoint spells a part: as its authors published it, or as diffusers does.
struct PartSpelling {
  std::string prefix;
  bool is_original = true;

  const char* of(const char* original, const char* diffusers) const {
    return is_original ? original : diffusers;
  }
  const char* name() const { return of("original", "diffusers"); }
};

// What stands in front of a denoiser's names in published files.
inline constexpr std::string_view kDenoiserPrefixes[] = {
    "", "model.diffusion_model.", "diffusion_model.", "transformer.", "module."};

// The spelling whose markers are all tensors behind one of `prefixes`, the original one first;
// nullopt when there is none.
ATELIER_API std::optional<PartSpelling> find_spelling(const TensorIndex& index,
                                                      std::span<const std::string_view> prefixes,
                                                      std::span<const std::string_view> original,
                                                      std::span<const std::string_view> diffusers);

// A kind of checkpoint that a family knows and does not run: `sign` is a tensor that it has, or a
// flag that is on in its config.
struct UnsupportedKind {
  const char *sign, *what, *hint;
};

// Throws Error{kUnsupported}: "this is WHAT".
[[noreturn]] ATELIER_API void refuse_kind(const std::string& what, const std::string& hint);

// The tensors whose names begin with `prefix`, named without it. Errors name the tensor as the file
// does and say what it should be part of: `what` is "DiT" or "text encoder". The index outlives the
// view.
class ATELIER_API PartView {
 public:
  PartView(const TensorIndex& index, std::string prefix, std::string what);

  const TensorIndex& index() const { return index_; }
  const std::string& prefix() const { return prefix_; }
  bool contains(std::string_view name) const;
  // See TensorIndex::block_count.
  int64_t block_count(std::string_view pattern) const;

  // Returns the length of one axis, 1 or more. Throws Error{kNotFound} when the tensor is absent,
  // and Error{kInvalidArgument} when it has no such axis.
  int64_t dim(std::string_view name, size_t axis) const;

  // Returns the length of one axis in units of `unit`. Throws Error{kInvalidArgument} when it is no
  // multiple of it.
  int64_t parts(std::string_view name, size_t axis, int64_t unit,
                const std::string& hint = {}) const;

  // Throws Error{kInvalidArgument}: "the WHAT MESSAGE".
  [[noreturn]] void refuse(const std::string& message, const std::string& hint = {}) const;

  // Throws Error{kUnsupported} when the weights are quantised in a way that the host has not
  // already resolved: plain floating tensors, 8-bit ones among them, are read.
  void refuse_quantised() const;

  // Throws refuse_kind() of the first of `kinds` whose sign the part has.
  void refuse_kinds(std::span<const UnsupportedKind> kinds) const;

  // `fields` of the config are read, because shapes do not tell them. Without a config they are
  // those of the published model, in a checkpoint that has its widths; throws
  // Error{kInvalidArgument} for other widths.
  void require_config(bool has_published_widths, const char* fields) const;

  // Throws Error{kInvalidArgument} unless every head of keys serves as many heads of queries, and
  // heads have pairs of channels to rotate.
  void check_heads(int64_t heads, int64_t kv_heads, int64_t head_dim) const;

  // Channels of a head that each of the three axes of a position rotates: the config's `field`, or
  // `otherwise`. Throws Error{kInvalidArgument} unless they are even and add up to `head_dim`.
  std::array<int64_t, 3> rope_axes(const std::string& field, int64_t head_dim,
                                   std::array<int64_t, 3> otherwise) const;

  // Which layers of a language model look back a window only, where transformers' list `field` (one
  // kind a layer) says it; nullopt when it does not. Throws Error{kUnsupported} for kinds that are
  // not computed, and Error{kInvalidArgument} when there are not `layers` of them.
  std::optional<std::vector<bool>> layer_windows(const std::string& field, int64_t layers) const;

 private:
  std::string full_name(std::string_view name) const { return prefix_ + std::string(name); }

  const TensorIndex& index_;
  std::string prefix_, what_;
};

}  // namespace atelier
