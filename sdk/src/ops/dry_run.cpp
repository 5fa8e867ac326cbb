#include "atelier/host/dry_run.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/record_function.h>

#include "ops/meta_kernels.h"

namespace atelier::ops {
namespace {

thread_local DryRun* current_run = nullptr;
thread_local int own_counts = 0;

// A product of LibTorch's, and the place of its first factor among its arguments.
struct Product {
  std::string_view name;
  size_t first;
};
constexpr std::array kProducts = {Product{"aten::mm", 0},     Product{"aten::bmm", 0},
                                  Product{"aten::addmm", 1},  Product{"aten::baddbmm", 1},
                                  Product{"aten::addmm_", 1}, Product{"aten::baddbmm_", 1},
                                  Product{"aten::addbmm", 1}, Product{"aten::mv", 0},
                                  Product{"aten::addmv", 1},  Product{"aten::dot", 0}};

std::unique_ptr<at::ObserverContext> count_product(const at::RecordFunction& call) {
  if (own_counts > 0) return nullptr;
  const auto product = std::ranges::find(kProducts, call.name(), &Product::name);
  if (product == kProducts.end()) return nullptr;
  const at::Tensor& a = call.inputs()[product->first].toTensor();
  const at::Tensor& b = call.inputs()[product->first + 1].toTensor();
  const int64_t columns = b.dim() == 1 ? 1 : b.size(-1);
  if (DryRun* dry = DryRun::of(a))
    dry->add_product(2.0 * static_cast<double>(a.numel()) * static_cast<double>(columns));
  return nullptr;
}

}  // namespace

DryRun::DryRun(at::DeviceType like, Scratch scratch) : like_(like), scratch_(std::move(scratch)) {
  add_meta_kernels();
  watch_ = at::addThreadLocalCallback(at::RecordFunctionCallback(&count_product)
                                          .needsInputs(true)
                                          .scopes({at::RecordScope::FUNCTION}));
  current_run = this;
}

DryRun::~DryRun() {
  current_run = nullptr;
  at::removeCallback(watch_);
}

at::Tensor DryRun::scratch_of(const at::Tensor& x, const Convolution& convolution) const {
  if (like_ != at::kCPU || !scratch_) return {};
  return at::empty({scratch_(convolution)},
                   x.options().dtype(at::kByte).memory_format(std::nullopt));
}

bool DryRun::is_on() {
  return current_run != nullptr;
}

DryRun::OwnCount::OwnCount() {
  ++own_counts;
}

DryRun::OwnCount::~OwnCount() {
  --own_counts;
}

DryRun* DryRun::of(const at::Tensor& x) {
  return x.is_meta() ? current_run : nullptr;
}

}  // namespace atelier::ops
