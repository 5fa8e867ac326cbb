// Tensors that a model is given by name, checked: Model::probe() and the like. Every error names
// the tensor, Error{kInvalidArgument}.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "atelier/conditioning.h"
#include "atelier/export.h"

namespace atelier {

// "[2, 16]", as in messages.
ATELIER_API std::string shape_text(const at::Tensor& tensor);

// Throws when there is none of that name, or it has another number of axes.
ATELIER_API const at::Tensor& named_tensor(const NamedTensors& inputs, std::string_view name,
                                           int64_t dims);

// Throws when there is one beside `known`.
ATELIER_API void allow_only(const NamedTensors& inputs,
                            std::initializer_list<std::string_view> known);

// int64 [B], each from 1 to L: how many of the L rows of each sample count. All of them where there
// is none of that name.
ATELIER_API std::vector<int64_t> lengths_of(const NamedTensors& inputs, std::string_view name,
                                            int64_t B, int64_t L);

// The first rows of each sample of a padded [B, L, ...], one behind the other.
ATELIER_API at::Tensor pack_rows(const at::Tensor& padded, const std::vector<int64_t>& lengths);

}  // namespace atelier
