// 8-bit weights, copies beside the computing, limits of memory, and optimizers, on a device and on
// the CPU.
#include <cfloat>

#include <ATen/DeviceAccelerator.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "atelier/host/scaled_products.h"
#include "atelier/ops/linear.h"
#include "atelier/ops/pointwise.h"

#include "gpu/device.h"
#include "host/device/cuda.h"
#include "host/optim/optimizer.h"
#include "host/plugins/guard.h"
#include "memory/clock.h"
#include "memory/live_bytes.h"
#include "memory/quantized_store.h"
#include "memory/transfer_device.h"

#ifdef ATELIER_HAS_CUDA_KERNELS
extern "C" int atelier_hold_up(int device, void* stream, long long nanoseconds);
#endif

namespace atelier {
namespace {

using at::Tensor;
using memory::QuantizedKind;
using test::Tensors;

constexpr QuantizedKind kKinds[] = {QuantizedKind::kFp8, QuantizedKind::kInt8};

// Rows and columns of different sizes, as activations have them.
Tensor activations(int64_t rows, int64_t columns) {
  return at::randn({rows, columns}) * at::pow(10.0, at::linspace(-2, 2, rows)).unsqueeze(1) *
         at::linspace(0.2, 3, columns);
}

// x quantised by row in float32, in float64: codes and scales.
std::pair<Tensor, Tensor> quantized_rows(const Tensor& x, QuantizedKind kind) {
  const Tensor values = x.to(at::kFloat);
  const double limit = kind == QuantizedKind::kFp8 ? 448 : 127;
  const Tensor scales = at::clamp_min(values.abs().amax(1) / limit, FLT_MIN);
  const Tensor codes = at::clamp(values / scales.unsqueeze(1), -limit, limit);
  const Tensor rounded =
      kind == QuantizedKind::kFp8 ? codes.to(at::kFloat8_e4m3fn).to(at::kFloat) : at::round(codes);
  return {rounded.to(at::kDouble), scales.to(at::kDouble)};
}

// The part of values that differ by more than `step` of the largest one. Codes that lie between two
// are rounded either way by devices whose division differs in the last bit.
double part_beyond(const Tensor& got, const Tensor& want, double step) {
  const Tensor far = (got.cpu().to(at::kDouble) - want).abs() > step * want.abs().amax(1, true);
  return far.to(at::kDouble).mean().item<double>();
}

constexpr double kHeldUp_s = 0.05;

// What is queued on `where` from now on begins late: after kHeldUp_s where there are kernels of our
// own, else after as long as some products take.
void hold_up(at::Device where) {
#ifdef ATELIER_HAS_CUDA_KERNELS
  if (where.is_cuda()) {
    const c10::Stream stream = c10::impl::VirtualGuardImpl(where.type()).getStream(where);
    REQUIRE(atelier_hold_up(stream.device_index(), stream.native_handle(),
                            static_cast<int64_t>(1e9 * kHeldUp_s)) == 0);
    return;
  }
#endif
  const int64_t n = where.is_cuda() ? 4096 : 64;
  const Tensor a = at::ones({n, n}, at::TensorOptions(where).dtype(at::kFloat));
  for (int i = 0; i < 30; ++i) at::mm(a, a);
}

// Whether the time of hold_up() is known.
bool is_held_up_exactly() {
#ifdef ATELIER_HAS_CUDA_KERNELS
  return test::device().is_cuda();
#else
  return false;
#endif
}

Tensor as_floats(const Tensor& bytes) {
  return bytes.view(at::kFloat);
}

// While it lives, LibTorch's allocator gives so many bytes more: that of the GPU, or that of the
// CPU for a simulated device.
class Limited {
 public:
  explicit Limited(int64_t bytes) {
    if (test::device().is_cpu()) {
      memory::LiveBytes::install();
      simulated_ = memory::make_simulated_device({.capacity = bytes});
      return;
    }
    at::accelerator::emptyCache();
    before_ = reserved();
    device::limit_memory(test::device(), before_ + bytes);
  }
  ~Limited() {
    if (!simulated_) device::limit_memory(test::device(), INT64_MAX);
  }
  Limited(const Limited&) = delete;
  Limited& operator=(const Limited&) = delete;

  int64_t taken() const {
    return simulated_ ? simulated_->stats().peak_bytes : reserved() - before_;
  }

 private:
  static int64_t reserved() {
    constexpr auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    return at::accelerator::getDeviceStats(test::device().index()).reserved_bytes[all].current;
  }

  std::unique_ptr<memory::TransferDevice> simulated_;
  int64_t before_ = 0;
};

constexpr int kSteps = 4;

// How far leaves may be from the CPU's, relative to the largest value. A GPU draws other numbers
// than the CPU to round by: each step may round a bfloat16 up where the other one rounds it down.
double bound_of(const optim::Options& options, at::ScalarType dtype) {
  if (dtype == at::kFloat) return 1e-4;
  const bool is_drawn = options.master_weights == optim::MasterWeights::kStochastic;
  return is_drawn && !test::device().is_cpu() ? kSteps * 0x1p-7 : 1e-2;
}

// Leaves after some steps on `where`.
Tensors stepped(const optim::Options& options, at::ScalarType dtype, at::Device where) {
  at::manual_seed(5);
  std::vector<optim::Group> groups(1);
  groups[0].weight_decay = 0.1;
  const std::vector<std::vector<int64_t>> shapes = {{64, 48}, {300}, {2, 256, 20}};
  for (const auto& shape : shapes)
    groups[0].parameters.push_back({std::to_string(groups[0].parameters.size()),
                                    test::trained(at::randn(shape).to(dtype).to(where))});
  const auto optimizer = optim::make_optimizer(groups, options);
  for (int step = 0; step < kSteps; ++step) {
    for (const optim::Parameter& parameter : groups[0].parameters)
      parameter.leaf.mutable_grad() = at::randn(parameter.leaf.sizes()).to(dtype).to(where);
    const optim::GradientNorm norm = optim::measure_gradients(groups, {}, 1.0);
    optimizer->step(options.kind == optim::Kind::kProdigy ? 1.0 : 1e-2, norm.grad_scale,
                    norm.is_skipped);
  }
  Tensors leaves;
  for (const optim::Parameter& parameter : groups[0].parameters)
    leaves.push_back(parameter.leaf.detach().cpu());
  return leaves;
}

}  // namespace

TEST_CASE("Codes of weights are the CPU's", "[gpu][eight_bit]") {
  at::manual_seed(1);
  for (const QuantizedKind kind : kKinds) {
    const Tensor value = activations(70, 300).to(at::kBFloat16);
    const memory::Quantized here = memory::quantize(value, kind),
                            there = memory::quantize(value.to(test::device()), kind);
    CHECK(at::equal(there.codes.cpu().view(at::kByte), here.codes.view(at::kByte)));
    CHECK(at::equal(there.scales.cpu(), here.scales));
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf})
      CHECK(at::equal(memory::dequantize(there, dtype).cpu(), memory::dequantize(here, dtype)));
  }
}

TEST_CASE("8-bit products equal their formula in float64", "[gpu][eight_bit]") {
  at::manual_seed(2);
  const bool large = test::has_model_shapes();
  for (const QuantizedKind kind : kKinds) {
    for (const auto& [rows, in, out] : {std::array<int64_t, 3>{6, 48, 24},
                                        {1, 17, 5},
                                        {40, 300, 33},
                                        large ? std::array<int64_t, 3>{1000, 3072, 12288}
                                              : std::array<int64_t, 3>{64, 96, 128}}) {
      const memory::Quantized w = memory::quantize(activations(out, in), kind);
      for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
        INFO(rows << " x " << in << " x " << out << ", " << toString(dtype));
        auto weight = std::make_shared<Weight>("weight", w.codes.sizes().vec());
        weight->state().set_store(std::make_shared<memory::QuantizedStore>(
            memory::Quantized{w.codes.to(test::device()), w.scales.to(test::device())}, dtype,
            /*is_w8a8=*/true));
        const Tensor x = activations(rows, in).to(dtype), grad = activations(rows, out).to(dtype);
        const Tensor leaf = test::trained(x.to(test::device()));
        const Tensor y = ops::linear(leaf, weight);
        const Tensor grad_x = torch::autograd::grad({y}, {leaf}, {grad.to(test::device())})[0];
        const auto [codes, scales] = quantized_rows(x, kind);
        const Tensor codes_w = w.codes.to(at::kFloat).to(at::kDouble),
                     scales_w = w.scales.to(at::kDouble);
        const Tensor want = at::mm(codes, codes_w.t()) * scales.unsqueeze(1) * scales_w;
        const auto [grad_codes, grad_scales] = quantized_rows(grad.to(at::kFloat) * w.scales, kind);
        const Tensor want_grad = at::mm(grad_codes, codes_w) * grad_scales.unsqueeze(1);
        const double step = dtype == at::kFloat ? 1e-5 : 8e-3;
        CHECK(part_beyond(y, want, step) < 0.02);
        CHECK(part_beyond(grad_x, want_grad, step) < 0.02);
        CHECK(test::error(y.cpu(), want) < 0.02);
        CHECK(test::error(grad_x.cpu(), want_grad) < 0.02);
        CHECK(at::equal(ops::linear(leaf.detach(), weight), y));
        const ops::FastSums images;
        const Tensor fast = ops::linear(leaf.detach(), weight);
        CHECK(test::error(fast.cpu(), want) < 0.02);
        CHECK(at::equal(ops::linear(leaf.detach(), weight), fast));
      }
    }
  }
}

TEST_CASE("Codes that norms and GELU make are those of their rows", "[gpu][eight_bit]") {
  at::manual_seed(3);
  const at::NoGradGuard no_grad;
  const int64_t width = test::has_model_shapes() ? 3072 : 96;
  const auto noise = [&](int64_t rows) {
    return at::randn({rows, width}).to(test::device(), at::kBFloat16);
  };
  const Tensor x = noise(64), y = noise(64), a = noise(2), b = noise(2), c = noise(2);
  const Segments rows({24, 40});
  for (const QuantizedKind kind : kKinds) {
    auto weight = std::make_shared<Weight>("weight", std::vector<int64_t>{48, width});
    weight->state().set_store(std::make_shared<memory::QuantizedStore>(
        memory::quantize(activations(48, width).to(test::device()), kind), at::kBFloat16,
        /*is_w8a8=*/true));
    // From the second time on, codes are made behind them.
    for (int repeat = 0; repeat < 3; ++repeat) {
      const Tensor gated = std::get<1>(ops::gate_residual_norm_modulate(x, y, c, a, b, rows));
      for (const Tensor& made : {ops::norm_modulate(x, a, b, rows), gated, ops::gelu_tanh(x)})
        CHECK(at::equal(ops::linear(made, weight), ops::linear(made.clone(), weight)));
    }
  }
}

TEST_CASE("Copies come in order behind a device that is late", "[gpu][copies]") {
  const auto transfer = memory::make_transfer_device(test::device());
  const int64_t count = 1 << 16, bytes = count * 4;
  const Tensor in = transfer->host_memory(bytes), out = transfer->host_memory(bytes),
               next = transfer->host_memory(bytes), there = transfer->device_memory(bytes);
  as_floats(next).fill_(-1);
  for (int round = 0; round < 4; ++round) {
    as_floats(in).fill_(round + 1);
    // In, computed with, out, and overwritten: each waits for the one before, and nobody else does.
    const double begin_s = memory::seconds_now();
    const memory::Ticket arrived = transfer->copy_in(in, there, transfer->computed());
    transfer->compute_after(arrived);
    hold_up(test::device());
    as_floats(there).mul_(2);
    const memory::Ticket left = transfer->copy_out(there, out, transfer->computed());
    transfer->compute_after(transfer->copy_in(next, there, left));
    const Tensor seen = as_floats(there).clone();
    const double queued_s = memory::seconds_now() - begin_s;
    transfer->wait(left);
    INFO("round " << round << ", queued for " << queued_s << " s");
    CHECK(at::equal(as_floats(out), at::full({count}, 2.0f * static_cast<float>(round + 1))));
    CHECK(at::equal(seen.cpu(), at::full({count}, -1.0f)));
    if (!is_held_up_exactly()) continue;
    CHECK(memory::seconds_now() - begin_s >= kHeldUp_s);
    if (round > 0) CHECK(queued_s < kHeldUp_s);  // the first round loads kernels
  }
  CHECK(transfer->stats().bytes_in == 8 * bytes);
  CHECK(transfer->stats().bytes_out == 4 * bytes);
}

TEST_CASE("Memory beyond a limit is refused, and given again when it is free", "[gpu][limit]") {
  constexpr int64_t kPiece = int64_t{64} << 20;
  const auto piece = [](int64_t count) {
    return at::empty({count * kPiece}, at::TensorOptions(test::device()).dtype(at::kByte));
  };
  const auto is_refused = [&](int64_t count) {
    try {
      piece(count);
      return false;
    } catch (...) {
      return plugins::out_of_memory().has_value();
    }
  };
  {
    const Limited limited(4 * kPiece);
    const Tensor held = piece(2);
    CHECK(is_refused(3));
    {
      const Tensor more = piece(1);
      CHECK(is_refused(2));
    }
    CHECK_FALSE(is_refused(1));
    CHECK(limited.taken() <= 4 * kPiece);
  }
  CHECK_FALSE(is_refused(6));
}

TEST_CASE("Optimizers move leaves as they do on the CPU", "[gpu][optimizers]") {
  using optim::Kind;
  for (const Kind kind : {Kind::kAdamW, Kind::kAdamW8bit, Kind::kAdafactor, Kind::kProdigy}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      for (const auto master : {optim::MasterWeights::kFp32, optim::MasterWeights::kStochastic}) {
        if (kind == Kind::kProdigy && master == optim::MasterWeights::kStochastic) continue;
        INFO("kind " << static_cast<int>(kind) << ", " << toString(dtype) << ", stochastic "
                     << (master == optim::MasterWeights::kStochastic));
        const optim::Options options = {
            .kind = kind, .master_weights = master, .seed = 3, .prodigy_d0 = 1e-2};
        const Tensors here = stepped(options, dtype, at::kCPU),
                      there = stepped(options, dtype, test::device());
        CHECK(test::error(there, here) < bound_of(options, dtype));
        CHECK(test::same_bits(stepped(options, dtype, test::device()), there));
        // They did move, and to the same side.
        at::manual_seed(5);
        const Tensor start = at::randn({64, 48}).to(dtype).to(at::kDouble);
        const Tensor one = here[0].to(at::kDouble) - start,
                     other = there[0].to(at::kDouble) - start;
        CHECK(test::error(there[0], start) > 1e-3);
        CHECK((one * other).sum().item<double>() >
              0.7 * (one.norm() * other.norm()).item<double>());
      }
    }
  }
}

}  // namespace atelier
