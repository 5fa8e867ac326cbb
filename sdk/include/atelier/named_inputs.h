// What a model is given by name, checked: tensors of Model::probe() and of conditionings, and
// inputs. Every error names the tensor or the input, Error{kInvalidArgument}.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "atelier/conditioning.h"
#include "atelier/export.h"
#include "atelier/input.h"
#include "atelier/segments.h"

namespace atelier {

// "[2, 16]", as in messages.
ATELIER_API std::string shape_text(const at::Tensor& tensor);

// Throws when there is none of that name, or it has another number of axes.
ATELIER_API const at::Tensor& named_tensor(const NamedTensors& inputs, std::string_view name,
                                           int64_t dims);

// Throws when `inputs` has a tensor whose name is not in `known`.
ATELIER_API void allow_only(const NamedTensors& inputs, const std::vector<std::string_view>& known);

// int64 [B], each from 1 to L: how many of the L rows of each sample count. All of them where there
// is none of that name.
ATELIER_API std::vector<int64_t> lengths_of(const NamedTensors& inputs, std::string_view name,
                                            int64_t B, int64_t L);

// The first rows of each sample of a padded [B, L, ...], one behind the other.
ATELIER_API at::Tensor pack_rows(const at::Tensor& padded, const std::vector<int64_t>& lengths);

// The inverse of pack_rows(): [N, D] to [B, L, D], with zeros behind each sample's rows.
ATELIER_API at::Tensor pad_rows(const at::Tensor& packed, const Segments& rows, int64_t L);

// Rows of all samples, one behind the other, and where each sample's begin.
struct PackedRows {
  at::Tensor values;
  Segments rows;
  std::vector<int64_t> lengths;  // of each sample
};

// Entry `name`, [L, ...], of each sample's conditioning.
ATELIER_API PackedRows pack_entry(std::span<const Conditioning* const> cond, std::string_view name);

// Null when there is no input of that name, or it is of another kind.
template <class Value>
const Value* find_input(const Inputs& inputs, std::string_view name) {
  const auto found = inputs.find(name);
  return found == inputs.end() ? nullptr : std::get_if<Value>(&found->second);
}

// An image or a clip as [channels, T, H, W], or a list of images of one size, which are its frames.
// Throws when there is none of that name, or it has another shape.
ATELIER_API at::Tensor clip_input(const Inputs& inputs, std::string_view name,
                                  int64_t channels = 3);

// Throws when there is no text of that name.
ATELIER_API const std::string& text_input(const Inputs& inputs, std::string_view name);

}  // namespace atelier
