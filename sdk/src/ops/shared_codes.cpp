#include "ops/shared_codes.h"

#include <algorithm>

#include <ATen/ATen.h>

namespace atelier::ops {
namespace {

using at::Tensor;

constexpr size_t kMostEntries = 2;
// Codes that nothing may read any more are held until others come.
constexpr int64_t kMostHeld = int64_t{1} << 26;
constexpr int kMostInVain = 4;

// Which codes `rows` are to be given by this kernel; nullopt where there is none.
template <typename Kernel>
std::optional<at::ScalarType> codes_for(const Tensor& rows, Kernel PointwiseKernels::*kernel,
                                        bool is_for_one) {
  const PointwiseKernels* kernels = kernels_in_use(rows);
  if (kernels == nullptr || kernels->*kernel == nullptr) return std::nullopt;
  if (rows.size(-1) * rows.element_size() > kernels->widest_codes_bytes) return std::nullopt;
  return SharedCodes::of_thread().wanted(rows, is_for_one);
}

}  // namespace

SharedCodes& SharedCodes::of_thread() {
  static thread_local SharedCodes codes;
  return codes;
}

std::optional<at::ScalarType> SharedCodes::wanted(const Tensor& rows, bool is_for_one) const {
  const auto found = interests_.find(rows.size(-1));
  if (found == interests_.end() || found->second.made_in_vain >= kMostInVain) return std::nullopt;
  if (rows.is_inference() || (!is_for_one && rows.numel() > kMostHeld)) return std::nullopt;
  return found->second.type;
}

void SharedCodes::put(const Tensor& rows, RowCodes codes, bool is_for_one) {
  const at::ScalarType type = codes.codes.scalar_type();
  const auto interest = interests_.try_emplace(rows.size(-1), Interest{type}).first;
  ++interest->second.made_in_vain;
  if (entries_.size() == kMostEntries) entries_.erase(entries_.begin());
  entries_.push_back({rows.storage().getWeakStorageImpl(), rows.const_data_ptr(),
                      static_cast<int64_t>(rows._version()), is_for_one, std::move(codes)});
}

std::optional<RowCodes> SharedCodes::find(const Tensor& rows, at::ScalarType type) {
  interests_[rows.size(1)] = {type};
  std::erase_if(entries_, [](const Entry& entry) { return entry.storage.expired(); });
  const auto found = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) {
    return !rows.is_inference() && rows.is_contiguous() && entry.data == rows.const_data_ptr() &&
           entry.version == static_cast<int64_t>(rows._version()) &&
           entry.codes.codes.sizes() == rows.sizes() && entry.codes.codes.scalar_type() == type;
  });
  if (found == entries_.end()) return std::nullopt;
  const RowCodes codes = found->codes;
  if (found->is_for_one) entries_.erase(found);
  return codes;
}

Tensor run_norm_modulate(const Tensor& x, const Tensor& shift, const Tensor& scale,
                         const Segments& rows, double eps, const PointwiseKernels& kernels) {
  const auto type = codes_for(x, &PointwiseKernels::norm_modulate_codes, /*is_for_one=*/false);
  if (!type) return kernels.norm_modulate(x, shift, scale, rows, eps);
  auto [out, codes] = kernels_in_use(x)->norm_modulate_codes(x, shift, scale, rows, eps, *type);
  SharedCodes::of_thread().put(out, codes, /*is_for_one=*/false);
  return out;
}

std::array<Tensor, 2> run_gate_residual_norm_modulate(const Tensor& x, const Tensor& y,
                                                      const Tensor& gate, const Tensor& shift,
                                                      const Tensor& scale, const Segments& rows,
                                                      double eps, const PointwiseKernels& kernels) {
  const auto type =
      codes_for(x, &PointwiseKernels::gate_residual_norm_modulate_codes, /*is_for_one=*/false);
  if (!type) return kernels.gate_residual_norm_modulate(x, y, gate, shift, scale, rows, eps);
  auto [sum, coded] = kernels_in_use(x)->gate_residual_norm_modulate_codes(x, y, gate, shift, scale,
                                                                           rows, eps, *type);
  SharedCodes::of_thread().put(coded.rows, coded.codes, /*is_for_one=*/false);
  return {sum, coded.rows};
}

Tensor run_gelu_tanh(const Tensor& x, const PointwiseKernels& kernels) {
  const auto type = codes_for(x, &PointwiseKernels::gelu_tanh_codes, /*is_for_one=*/true);
  if (!type) return kernels.gelu_tanh(x);
  const Tensor rows = x.view({-1, x.size(-1)});
  auto [out, codes] = kernels_in_use(x)->gelu_tanh_codes(rows, *type);
  SharedCodes::of_thread().put(out, codes, /*is_for_one=*/true);
  return out.view(x.sizes());
}

}  // namespace atelier::ops
