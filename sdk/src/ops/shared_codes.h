// Codes of 8 bits that the products which read the same rows share, and the operators that make
// them on the way.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "ops/pointwise_kernels.h"

namespace atelier::ops {

// Codes of the rows that this thread's next products read: q, k and v read the same ones, and an
// operator in front of a product may have made them. Only kernels of our own make such codes.
class SharedCodes {
 public:
  static SharedCodes& of_thread();

  // Which codes products of rows like these asked for; nullopt where none did, where codes were
  // made in vain of late, or where they are too many to be held until other rows come.
  std::optional<at::ScalarType> wanted(const at::Tensor& rows, bool is_for_one) const;

  // rows: of which `codes` are, as they are now. is_for_one: a single product reads them.
  void put(const at::Tensor& rows, RowCodes codes, bool is_for_one);

  // For a product of `rows`, [N, D].
  std::optional<RowCodes> find(const at::Tensor& rows, at::ScalarType type);

  // No codes are held any more: those of work that was recorded lie in the memory of its graph.
  void forget() { entries_.clear(); }

 private:
  struct Entry {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    const void* data;
    int64_t version;
    bool is_for_one;
    RowCodes codes;
  };
  struct Interest {
    at::ScalarType type;
    int made_in_vain = 0;
  };
  std::vector<Entry> entries_;             // the last two: those of images and of text
  std::map<int64_t, Interest> interests_;  // by the width of rows
};

// The forward passes of these operators by the kernels of x's device, which make codes as well
// where products want them. Arguments as PointwiseKernels takes them; x of gelu_tanh is contiguous.
at::Tensor run_norm_modulate(const at::Tensor& x, const at::Tensor& shift, const at::Tensor& scale,
                             const Segments& rows, double eps, const PointwiseKernels& kernels);
std::array<at::Tensor, 2> run_gate_residual_norm_modulate(
    const at::Tensor& x, const at::Tensor& y, const at::Tensor& gate, const at::Tensor& shift,
    const at::Tensor& scale, const Segments& rows, double eps, const PointwiseKernels& kernels);
at::Tensor run_gelu_tanh(const at::Tensor& x, const PointwiseKernels& kernels);

}  // namespace atelier::ops
