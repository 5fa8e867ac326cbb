// AdamW with moments of 8 bits by the kernel of GPUs, played on the CPU, beside LibTorch's
// operators: the same bits. optimizer_test.cpp, which is part of this program, runs all of its
// cases on it, too.
#include <ATen/ATen.h>
#include <ATen/Context.h>

#include "atelier/ops/pointwise.h"

#include "host/optim/adamw_8bit_proof.h"
#include "host/optim/optimizer.h"
#include "sdk/cuda/row_player.h"
#include "support/catch.h"

namespace atelier::optim {
namespace {

// at::empty gives NaN: what a kernel leaves out shows.
const bool is_strict = [] {
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  at::globalContext().setDeterministicFillUninitializedMemory(true);
  return true;
}();

struct Case {
  at::ScalarType dtype;
  MasterWeights master_weights;
  bool is_shifted = false;          // leaves and gradients at addresses that are no multiple of 16
  bool has_wide_gradients = false;  // of float32
  double beta1 = 0.9, weight_decay = 0.1;
};

// `t` at an address that is no multiple of 16 bytes.
at::Tensor shifted(const at::Tensor& t) {
  at::Tensor room = at::empty({t.numel() + 1}, t.options());
  return room.narrow(0, 1, t.numel()).view(t.sizes()).copy_(t);
}

// LibTorch's kernel for the CPU fuses products and sums where a machine does, in whole vectors.
bool is_exact(const std::string& name) {
#if defined(__x86_64__)
  return name.find("tail") == std::string::npos && __builtin_cpu_supports("fma");
#else
  return false;
#endif
}

// Leaves, one of them a shard from the middle of a whole, and all state, after some steps.
NamedTensors stepped(const Case& c, ops::Kernels kernels) {
  ops::set_kernels(kernels);
  at::manual_seed(21);
  Group group{.parameters = {}, .weight_decay = c.weight_decay};
  const auto placed = [&](const at::Tensor& t) { return c.is_shifted ? shifted(t) : t; };
  const auto add = [&](const std::string& name, at::IntArrayRef sizes) {
    const at::Tensor value = at::randn(sizes).mul_(at::logspace(-3, 1, sizes.back()));
    group.parameters.push_back({name, placed(value.to(c.dtype)).requires_grad_()});
  };
  add("ragged", {67, 64});
  add("blocks", {32, 512});
  add("tiny", {40});
  add("shard", {5008});
  group.parameters.back().shard = Shard{{3, 4096}, 2048};
  add("tail", {67, 63});
  const auto optimizer = make_optimizer(
      {group},
      {.kind = Kind::kAdamW8bit, .beta1 = c.beta1, .master_weights = c.master_weights, .seed = 7},
      [](at::Tensor&) {});
  const int64_t before = ops::cuda::played().launches;
  for (int step = 0; step < 5; ++step) {
    for (Parameter& parameter : group.parameters) {
      const at::Tensor gradient =
          at::randn(parameter.leaf.sizes()) * at::rand(parameter.leaf.sizes()).pow_(6);
      parameter.leaf.mutable_grad() =
          placed(gradient.to(c.has_wide_gradients ? at::kFloat : c.dtype));
    }
    optimizer->step(1e-2, at::full({}, 1.7), at::full({}, step == 2 ? 1.0 : 0.0));
  }
  CHECK(ops::cuda::played().launches - before == (kernels == ops::Kernels::kFused ? 20 : 0));
  ops::set_kernels(ops::Kernels::kAuto);
  NamedTensors result = optimizer->state();
  for (const Parameter& parameter : group.parameters)
    result[parameter.name] = parameter.leaf.detach();
  return result;
}

TEST_CASE("The kernel passes the proof that atelier tune makes of it", "[optim]") {
  const int64_t before = ops::cuda::played().launches;
  const auto sizes = tune::small_sizes();
  CHECK(tune::prove(adamw_8bit_proof(), sizes, sizes.first(1), at::kCPU).problem == "");
  CHECK(ops::cuda::played().launches > before);
}

TEST_CASE("One kernel of AdamW with 8 bits gives the bits of LibTorch's operators", "[optim]") {
  const auto kFp32 = MasterWeights::kFp32, kStochastic = MasterWeights::kStochastic;
  for (const Case& c : {Case{at::kFloat, kFp32}, Case{at::kBFloat16, kFp32},
                        Case{at::kBFloat16, kStochastic}, Case{at::kHalf, kFp32},
                        Case{at::kHalf, kStochastic}, Case{at::kFloat, kFp32, /*is_shifted=*/true},
                        Case{at::kBFloat16, kFp32, /*is_shifted=*/true},
                        Case{at::kBFloat16, kStochastic, /*is_shifted=*/true},
                        Case{at::kBFloat16, kFp32, false, /*has_wide_gradients=*/true},
                        Case{.dtype = at::kFloat, .master_weights = kFp32, .beta1 = 0.3},
                        Case{.dtype = at::kFloat, .master_weights = kFp32, .weight_decay = 0}}) {
    INFO(toString(c.dtype) << ", stochastic " << (c.master_weights == kStochastic) << ", shifted "
                           << c.is_shifted << ", beta1 " << c.beta1);
    const NamedTensors fused = stepped(c, ops::Kernels::kFused),
                       composed = stepped(c, ops::Kernels::kComposed);
    REQUIRE(fused.size() == composed.size());
    for (const auto& [name, value] : composed) {
      INFO(name);
      const at::Tensor& given = fused.at(name);
      if (is_exact(name)) {
        CHECK(at::equal(given, value));
        continue;
      }
      // Codes move by one, and a weight by one place of its type.
      const bool is_code = value.scalar_type() == at::kByte;
      const double far = (given.to(at::kDouble) - value.to(at::kDouble)).abs().max().item<double>();
      const double unit = c.dtype == at::kFloat ? 1e-6 : c.dtype == at::kHalf ? 1e-3 : 8e-3;
      CHECK(far <= (is_code ? 1.0 : unit * value.to(at::kDouble).abs().max().item<double>()));
    }
  }
}

}  // namespace
}  // namespace atelier::optim
