// 8-bit weights, copies beside the computing, and optimizers, on a device and on the CPU.
#include <cfloat>

#include "atelier/ops/linear.h"

#include "gpu/device.h"
#include "host/optim/optimizer.h"
#include "memory/quantized_store.h"
#include "memory/transfer_device.h"

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

// Work that keeps the device busy for some milliseconds behind which copies have to wait.
Tensor delayed(const Tensor& value) {
  const int64_t n = value.is_cuda() ? 4096 : 64;
  const Tensor a =
      at::full({n, n}, 1.0 / static_cast<double>(n), value.options().dtype(at::kFloat));
  Tensor product = a;
  for (int i = 0; i < 30; ++i) product = at::mm(product, a);
  return value + product[0][0] * static_cast<double>(n) - 1.0;
}

Tensor as_floats(const Tensor& bytes) {
  return bytes.view(at::kFloat);
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
  for (int step = 0; step < 4; ++step) {
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
      }
    }
  }
}

TEST_CASE("Copies come in order behind a device that is late", "[gpu][copies]") {
  const auto transfer = memory::make_transfer_device(test::device());
  const int64_t count = 1 << 16, bytes = count * 4;
  const Tensor in = transfer->host_memory(bytes), out = transfer->host_memory(bytes),
               there = transfer->device_memory(bytes);
  for (int round = 0; round < 4; ++round) {
    as_floats(in).fill_(round + 1);
    // In, computed with, out, and overwritten: each waits for the one before, and nobody else does.
    const memory::Ticket arrived = transfer->copy_in(in, there, transfer->computed());
    transfer->compute_after(arrived);
    as_floats(there).copy_(delayed(as_floats(there) * 2));
    const memory::Ticket left = transfer->copy_out(there, out, transfer->computed());
    const Tensor next = transfer->host_memory(bytes);
    as_floats(next).fill_(-1);
    transfer->compute_after(transfer->copy_in(next, there, left));
    const Tensor seen = as_floats(there).clone();
    transfer->wait(left);
    INFO("round " << round);
    CHECK((as_floats(out) - 2 * (round + 1)).abs().max().item<double>() < 0.1);
    CHECK(at::equal(seen.cpu(), at::full({count}, -1.0f)));
  }
  CHECK(transfer->stats().bytes_in == 8 * bytes);
  CHECK(transfer->stats().bytes_out == 4 * bytes);
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
        CHECK(test::error(there, here) < (dtype == at::kFloat ? 1e-4 : 1e-2));
        CHECK(test::same_bits(stepped(options, dtype, test::device()), there));
        at::manual_seed(5);
        CHECK(test::error(there[0], at::randn({64, 48})) > 1e-3);  // they did move
      }
    }
  }
}

}  // namespace atelier
