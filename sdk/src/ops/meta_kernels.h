// Kernels for tensors without values, of LibTorch's operators that have none of their own.
#pragma once

#include <ATen/core/dispatch/OperatorEntry.h>
#include <torch/library.h>

namespace atelier::ops {

// Registers a kernel for each operator that a dry run would end at, once: by the shapes that follow
// from shapes where these are known, else one that tries the operator on small tensors of zeros and
// ones. Operators that have a kernel for meta tensors keep it, so another LibTorch may have more of
// them. Nothing else is touched. Safe to call from several threads.
void add_meta_kernels();

// The operators whose shapes are worked out one by one: convolutions, norms, pads, Fourier
// transforms, attention, and what else the layers of models are made of.
class MetaLibrary;
void add_layer_kernels(MetaLibrary& library);

// Registers kernels for meta tensors in the namespace aten.
class MetaLibrary {
 public:
  MetaLibrary();

  // `name` with its overload, "where.self". Does nothing where LibTorch has such a kernel, or no
  // such operator.
  template <typename Kernel>
  void add(const char* name, Kernel kernel) {
    if (lacks(name)) library_.impl(name, kernel);
  }
  // An operator that LibTorch composes of others: `kernel` does so of others, with their gradients.
  template <typename Kernel>
  void add_composed(const char* name, Kernel kernel) {
    if (!lacks(name)) return;
    library_.impl(name, kernel);
    composed_.impl(name, kernel);
  }
  // The kernel that works the shapes out by the schema.
  void add_by_schema(const c10::OperatorName& name);

 private:
  static bool lacks(const char* name);

  torch::Library library_, composed_;
};

}  // namespace atelier::ops
