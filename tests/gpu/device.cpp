#define CATCH_CONFIG_RUNNER  // tests/gpu has a main() of its own
#include "gpu/device.h"

#include <iostream>

#include <ATen/Context.h>

#include "host/device/cuda.h"

namespace atelier::test {
namespace {

std::string named_device = "cuda", shapes = "small", named_kernels = "auto";
at::Device chosen = at::kCPU;

std::string text(const Comparison& found) {
  std::ostringstream out;
  out << "values " << found.value_error << ", gradients " << found.gradient_error;
  return out.str();
}

}  // namespace

at::Device device() {
  return chosen;
}

bool has_model_shapes() {
  return shapes == "model";
}

at::Tensor noise(at::IntArrayRef sizes) {
  return at::randn(sizes, at::kDouble);
}

WeightPtr weight_of(const at::Tensor& value, Tensors* leaves) {
  WeightPtr weight = make_weight(value.detach().clone());
  if (leaves != nullptr) {
    weight->state().set_trainable(true);
    leaves->push_back(weight->state().leaf());
  }
  return weight;
}

Comparison compare(const Operator& op, at::ScalarType dtype, at::Device where) {
  return tune::compare(op, dtype, where,
                       named_kernels == "fused" ? ops::Kernels::kFused : ops::Kernels::kAuto);
}

void check(const Operator& op) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const Comparison found = compare(op, dtype, device());
    INFO(op.name << ", " << toString(dtype) << ": " << text(found));
    CHECK(found.value_error <= bound(dtype) * op.slack);
    CHECK(found.gradient_error <= 2 * bound(dtype) * op.slack);
    CHECK(found.values_repeat);
    if (op.repeats) {
      CHECK(found.gradients_repeat);
      continue;
    }
    const Deterministic deterministic;
    CHECK(compare(op, dtype, device()).gradients_repeat);
  }
}

Deterministic::Deterministic() {
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  at::globalContext().setDeterministicCuDNN(true);
}

Deterministic::~Deterministic() {
  at::globalContext().setDeterministicAlgorithms(false, /*warn_only=*/false);
  at::globalContext().setDeterministicCuDNN(false);
}

namespace {

int run_tests(int argc, char** argv) {
  Catch::Session session;
  session.cli(session.cli() |
              Catch::clara::Opt(named_device,
                                "cuda|cuda:N|cpu")["--device"]("what is compared with the CPU") |
              Catch::clara::Opt(shapes, "small|model")["--shapes"]("sizes of the tensors") |
              Catch::clara::Opt(named_kernels, "auto|fused")["--kernels"](
                  "fused: those that are not proven, too"));
  if (const int code = session.applyCommandLine(argc, argv); code != 0) return code;
  if (named_device != "cpu" && !device::open_cuda().usable) {
    std::cout << "skipped: no GPU can be used: " << device::open_cuda().reason << "\n";
    return 77;
  }
  chosen = device::choose(named_device);
  return session.run();
}

}  // namespace
}  // namespace atelier::test

int main(int argc, char** argv) {
  // Products of a deterministic run; read when cuBLAS is loaded.
  setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
  try {
    return atelier::test::run_tests(argc, argv);
  } catch (const atelier::Error& error) {
    std::cerr << "error: " << error.what() << "\n";
    return atelier::exit_code(error.code());
  }
}
