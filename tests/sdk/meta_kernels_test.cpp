// LibTorch's operators on tensors without values, beside what they give on the CPU.
#include <functional>
#include <tuple>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "atelier/error.h"
#include "atelier/host/dry_run.h"

#include "support/catch.h"

using namespace atelier;
using at::Tensor;

namespace {

using Tensors = std::vector<Tensor>;
using at::kBFloat16, at::kBool, at::kComplexFloat, at::kFloat, at::kLong;

struct Input {
  std::vector<int64_t> sizes;
  at::ScalarType dtype = kFloat;
  at::MemoryFormat format = at::MemoryFormat::Contiguous;

  Tensor make(at::Device device) const {
    const bool is_real = at::isFloatingType(dtype) || at::isComplexType(dtype);
    const Tensor cpu = is_real ? at::rand(sizes).to(dtype) : at::zeros(sizes, dtype);
    const Tensor made =
        at::empty(sizes, at::TensorOptions(device).dtype(dtype).memory_format(format));
    if (!device.is_meta()) made.copy_(cpu);
    return is_real ? made.set_requires_grad(true) : made;
  }
};

struct Operator {
  const char* name;
  std::vector<Input> inputs;
  std::function<Tensors(const Tensors& in)> run;
};

Input channels_last(std::vector<int64_t> sizes) {
  return {std::move(sizes), kFloat, at::MemoryFormat::ChannelsLast};
}

template <typename... Some>
Tensors listed(const Some&... tensors) {
  return {tensors...};
}
template <typename... Some>
Tensors listed(const std::tuple<Some...>& tensors) {
  return std::apply([](const auto&... each) { return Tensors{each...}; }, tensors);
}
// A row's function of its inputs.
#define GIVES(...) [](const Tensors& in) { return listed(__VA_ARGS__); }

const std::vector<Operator>& operators() {
  static const Input kImage = {{2, 6, 9, 8}}, kRows = {{5, 8}}, kHeads = {{2, 4, 7, 16}};
  static const std::vector<Operator> kOperators = {
      // Elementwise.
      {"where", {{{5, 8}, kBool}, kRows, {{8}}}, GIVES(at::where(in[0], in[1], in[2]))},
      {"where with a number", {{{5, 1}, kBool}, kRows}, GIVES(at::where(in[0], in[1], 0.0))},
      {"where in bfloat16",
       {{{5, 8}, kBool}, {{5, 8}, kBFloat16}, kRows},
       GIVES(at::where(in[0], in[1], in[2]))},
      {"relu", {channels_last({2, 6, 9, 8})}, GIVES(at::relu(in[0]))},
      {"relu_", {kRows}, GIVES((in[0] * 2).relu_())},
      {"relu6", {kRows}, GIVES(at::relu6(in[0]))},
      {"prelu", {kImage, {{6}}}, GIVES(at::prelu(in[0], in[1]))},
      {"rrelu", {kRows}, GIVES(at::rrelu(in[0], 0.1, 0.3, true))},
      {"hardtanh", {kRows}, GIVES(at::hardtanh(in[0]))},
      {"hardswish", {kRows}, GIVES(at::hardswish(in[0]))},
      {"hardsigmoid", {kRows}, GIVES(at::hardsigmoid(in[0]))},
      {"log_sigmoid", {kRows}, GIVES(at::log_sigmoid(in[0]))},
      {"logit", {kRows}, GIVES(at::logit(in[0], 1e-6))},
      {"glu", {kRows}, GIVES(at::glu(in[0], -1))},
      {"celu", {kRows}, GIVES(at::celu(in[0]))},
      {"abs", {kRows}, GIVES(at::abs(in[0]))},
      {"nan_to_num", {kRows}, GIVES(at::nan_to_num(in[0]))},
      {"clamp", {kRows}, GIVES(at::clamp(in[0], 0.1, 0.7))},
      {"isnan", {kRows}, GIVES(at::isnan(in[0]))},
      {"isfinite", {kRows}, GIVES(at::isfinite(in[0]))},
      {"logical_not", {kRows}, GIVES(at::logical_not(in[0]))},
      {"logical_and", {kRows, {{8}}}, GIVES(at::logical_and(in[0], in[1]))},
      {"floor_divide", {{{5, 8}, kLong}}, GIVES(at::floor_divide(in[0], 3))},
      {"shifts", {{{5, 8}, kLong}}, GIVES(in[0].__lshift__(2), in[0].__rshift__(1))},
      {"dropout", {kRows}, GIVES(at::dropout(in[0], 0.5, true))},
      {"bernoulli", {kRows}, GIVES(at::bernoulli(in[0].detach()))},
      {"polar", {kRows, kRows}, GIVES(at::polar(in[0], in[1]))},
      {"complex", {kRows, kRows}, GIVES(at::complex(in[0], in[1]))},
      {"angle", {{{5, 8}, kComplexFloat}}, GIVES(at::angle(in[0]))},
      {"abs of complex numbers", {{{5, 8}, kComplexFloat}}, GIVES(at::abs(in[0]))},
      {"view_as_complex",
       {{{5, 4, 2}}, {{5, 4, 2}}},
       GIVES(at::view_as_real(at::view_as_complex(in[0]) * at::view_as_complex(in[1])))},
      {"addr", {{{5, 8}}, {{5}}, {{8}}}, GIVES(at::addr(in[0], in[1], in[2]))},
      {"masked_fill", {kRows, {{5, 8}, kBool}}, GIVES(at::masked_fill(in[0], in[1], 2.0))},
      // Reductions.
      {"max", {kRows}, GIVES(at::max(in[0]))},
      {"min", {kRows}, GIVES(at::min(in[0]))},
      {"max along an axis", {kImage}, GIVES(at::max(in[0], 1, true))},
      {"median", {kRows}, GIVES(at::median(in[0]))},
      {"median along an axis", {kRows}, GIVES(at::median(in[0], 1, false))},
      {"mode", {kRows}, GIVES(at::mode(in[0], 1, true))},
      {"kthvalue", {kRows}, GIVES(at::kthvalue(in[0], 3, 1))},
      {"aminmax", {kRows}, GIVES(at::aminmax(in[0].detach(), 1))},
      {"prod", {kRows}, GIVES(at::prod(in[0]))},
      {"var", {kImage}, GIVES(at::var(in[0], at::IntArrayRef{2, 3}, 1, true))},
      {"std", {kImage}, GIVES(at::std(in[0], at::IntArrayRef{1}, 0, false), at::std(in[0]))},
      {"var_mean", {kRows}, GIVES(at::var_mean(in[0], at::IntArrayRef{1}, 0, true))},
      {"std_mean", {kRows}, GIVES(at::std_mean(in[0], at::IntArrayRef{-1}, 0, true))},
      {"logsumexp", {kImage}, GIVES(at::logsumexp(in[0], at::IntArrayRef{1}, true))},
      {"logcumsumexp", {kRows}, GIVES(at::logcumsumexp(in[0], 1))},
      {"cummax", {kRows}, GIVES(at::cummax(in[0], 1))},
      {"nansum", {kRows}, GIVES(at::nansum(in[0], at::IntArrayRef{1}))},
      {"count_nonzero", {kRows}, GIVES(at::count_nonzero(in[0], std::optional<int64_t>(1)))},
      {"norms",
       {kRows},
       GIVES(at::norm(in[0]), at::linalg_vector_norm(in[0], 2, at::IntArrayRef{1}))},
      {"trace", {{{6, 6}}}, GIVES(at::trace(in[0]))},
      {"dot", {{{8}}, {{8}}}, GIVES(at::dot(in[0], in[1]))},
      // Rows and places.
      {"index_select", {kRows, {{3}, kLong}}, GIVES(at::index_select(in[0], 1, in[1]))},
      {"embedding", {kRows, {{2, 3}, kLong}}, GIVES(at::embedding(in[0], in[1]))},
      {"take", {kRows, {{2, 3}, kLong}}, GIVES(at::take(in[0], in[1]))},
      {"gather", {kRows, {{5, 3}, kLong}}, GIVES(at::gather(in[0], 1, in[1]))},
      {"index", {kRows, {{3}, kLong}}, GIVES(in[0].index({in[1]}))},
      {"index_add", {kRows, {{3}, kLong}, {{3, 8}}}, GIVES(at::index_add(in[0], 0, in[1], in[2]))},
      {"scatter",
       {kRows, {{5, 3}, kLong}, {{5, 3}}},
       GIVES(at::scatter_add(in[0], 1, in[1], in[2]))},
      {"roll", {kImage}, GIVES(at::roll(in[0], {1, 2}, {2, 3}))},
      {"flip", {kImage}, GIVES(at::flip(in[0], {1, 3}))},
      {"rot90", {kRows}, GIVES(at::rot90(in[0]))},
      {"repeat_interleave", {kRows}, GIVES(at::repeat_interleave(in[0], 3, 1))},
      {"tril", {{{6, 6}}}, GIVES(at::tril(in[0]))},
      {"sort", {kRows}, GIVES(at::sort(in[0], 1))},
      {"topk", {kRows}, GIVES(at::topk(in[0], 3))},
      {"searchsorted", {{{8}}, kRows}, GIVES(at::searchsorted(in[0].detach(), in[1].detach()))},
      {"bucketize", {{{8}}, kRows}, GIVES(at::bucketize(in[1].detach(), in[0].detach()))},
      {"unfold", {{{2, 12}}}, GIVES(in[0].unfold(1, 4, 2))},
      {"one_hot", {{{7}, kLong}}, GIVES(at::one_hot(in[0], 5))},
      // Layers.
      {"conv1d", {{{2, 6, 20}}, {{4, 6, 3}}, {{4}}}, GIVES(at::conv1d(in[0], in[1], in[2], 2, 1))},
      {"conv2d", {kImage, {{4, 6, 3, 3}}, {{4}}}, GIVES(at::conv2d(in[0], in[1], in[2], 2, 1))},
      {"conv2d, channels last",
       {channels_last({2, 6, 9, 8}), {{4, 6, 3, 3}}},
       GIVES(at::conv2d(in[0], in[1]))},
      {"conv2d with groups",
       {kImage, {{6, 1, 3, 3}}, {{6}}},
       GIVES(at::conv2d(in[0], in[1], in[2], 1, 1, 1, 6))},
      {"conv2d with dilation",
       {kImage, {{4, 6, 3, 3}}},
       GIVES(at::conv2d(in[0], in[1], {}, 1, 2, 2))},
      {"conv2d in bfloat16",
       {{{2, 6, 9, 8}, kBFloat16}, {{4, 6, 3, 3}, kBFloat16}},
       GIVES(at::conv2d(in[0], in[1]))},
      {"conv3d",
       {{{2, 3, 5, 6, 7}}, {{4, 3, 3, 3, 3}}, {{4}}},
       GIVES(at::conv3d(in[0], in[1], in[2], 1, 1))},
      {"conv_transpose1d",
       {{{2, 6, 20}}, {{6, 4, 4}}, {{4}}},
       GIVES(at::conv_transpose1d(in[0], in[1], in[2], 2, 1))},
      {"conv_transpose2d",
       {kImage, {{6, 4, 3, 3}}, {{8}}},
       GIVES(at::conv_transpose2d(in[0], in[1], in[2], 2, 1, 1, 2))},
      {"layer_norm", {kRows, {{8}}, {{8}}}, GIVES(at::layer_norm(in[0], {8}, in[1], in[2]))},
      {"layer_norm in bfloat16",
       {{{5, 8}, kBFloat16}, {{8}}, {{8}}},
       GIVES(at::native_layer_norm(in[0], {8}, in[1], in[2], 1e-5))},
      {"layer_norm without weights", {kImage}, GIVES(at::layer_norm(in[0], {9, 8}))},
      {"group_norm", {kImage, {{6}}, {{6}}}, GIVES(at::group_norm(in[0], 3, in[1], in[2]))},
      {"group_norm, channels last",
       {channels_last({2, 6, 9, 8}), {{6}}, {{6}}},
       GIVES(at::group_norm(in[0], 3, in[1], in[2]))},
      {"batch_norm",
       {kImage, {{6}}, {{6}}},
       GIVES(at::batch_norm(in[0], in[1], in[2], {}, {}, true, 0.1, 1e-5, false))},
      {"instance_norm",
       {kImage, {{6}}, {{6}}},
       GIVES(at::instance_norm(in[0], in[1], in[2], {}, {}, true, 0.1, 1e-5, false))},
      {"rms_norm", {kRows, {{8}}}, GIVES(at::rms_norm(in[0], {8}, in[1], 1e-6))},
      {"linear", {{{2, 5, 8}}, {{4, 8}}, {{4}}}, GIVES(at::linear(in[0], in[1], in[2]))},
      {"einsum", {{{2, 5, 8}}, {{4, 8}}}, GIVES(at::einsum("bij,kj->bik", {in[0], in[1]}))},
      {"softmax", {kRows}, GIVES(at::softmax(in[0], -1), at::log_softmax(in[0], 0))},
      {"lerp and logaddexp",
       {kRows, kRows, {{5, 1}}},
       GIVES(at::lerp(in[0], in[1], at::sigmoid(in[2])), at::logaddexp(in[0], in[1]))},
      {"attention",
       {kHeads, kHeads, kHeads},
       GIVES(at::scaled_dot_product_attention(in[0], in[1], in[2]))},
      {"attention of packed heads",
       {{{2, 7, 4, 16}}, {{2, 9, 4, 16}}, {{2, 9, 4, 16}}},
       GIVES(at::scaled_dot_product_attention(in[0].transpose(1, 2), in[1].transpose(1, 2),
                                              in[2].transpose(1, 2)))},
      {"attention with a mask",
       {kHeads, kHeads, kHeads, {{7, 7}, kBool}},
       GIVES(at::scaled_dot_product_attention(in[0], in[1], in[2], in[3]))},
      {"attention with shared keys",
       {kHeads, {{2, 2, 7, 16}}, {{2, 2, 7, 16}}},
       GIVES(at::scaled_dot_product_attention(in[0], in[1], in[2], {}, 0.0, true, {}, true))},
      {"reflection_pad1d", {{{2, 6, 9}}}, GIVES(at::reflection_pad1d(in[0], {2, 1}))},
      {"reflection_pad2d", {kImage}, GIVES(at::reflection_pad2d(in[0], {2, 1, 3, 0}))},
      {"replication_pad2d", {kImage}, GIVES(at::replication_pad2d(in[0], {2, 1, 3, 0}))},
      {"replication_pad3d",
       {{{2, 3, 5, 6, 7}}},
       GIVES(at::replication_pad3d(in[0], {1, 1, 1, 1, 2, 0}))},
      {"constant_pad_nd", {kImage}, GIVES(at::constant_pad_nd(in[0], {1, 2}))},
      {"avg_pool2d", {kImage}, GIVES(at::avg_pool2d(in[0], 2))},
      {"max_pool2d", {kImage}, GIVES(at::max_pool2d(in[0], 2))},
      {"max_pool3d", {{{2, 3, 5, 6, 7}}}, GIVES(at::max_pool3d(in[0], 2))},
      {"adaptive_avg_pool2d", {kImage}, GIVES(at::adaptive_avg_pool2d(in[0], {3, 2}))},
      {"adaptive_avg_pool3d",
       {{{2, 3, 5, 6, 7}}},
       GIVES(at::adaptive_avg_pool3d(in[0], {3, 2, 2}))},
      {"upsample_nearest2d", {kImage}, GIVES(at::upsample_nearest2d(in[0], {18, 16}))},
      {"upsample_bicubic2d", {kImage}, GIVES(at::upsample_bicubic2d(in[0], {18, 16}, false))},
      {"grid_sampler",
       {kImage, {{2, 4, 5, 2}}},
       GIVES(at::grid_sampler(in[0], in[1], 0, 0, false))},
      {"im2col", {kImage}, GIVES(at::im2col(in[0], {3, 3}, {1, 1}, {1, 1}, {2, 2}))},
      {"pixel_shuffle", {{{2, 8, 3, 3}}}, GIVES(at::pixel_shuffle(in[0], 2))},
      {"channel_shuffle", {kImage}, GIVES(at::channel_shuffle(in[0].detach(), 3))},
      // Distances and Fourier transforms.
      {"cdist", {{{2, 5, 8}}, {{2, 4, 8}}}, GIVES(at::cdist(in[0], in[1], 1.0))},
      {"fft_rfft", {{{3, 9}}}, GIVES(at::fft_rfft(in[0]))},
      {"fft_fft2", {kImage}, GIVES(at::fft_fft2(in[0]))},
      {"fft_irfft", {{{3, 5}, kComplexFloat}}, GIVES(at::fft_irfft(in[0]))},
      {"fft_ifft", {{{3, 5}, kComplexFloat}}, GIVES(at::fft_ifft(in[0]))},
      // Losses.
      {"mse_loss", {kRows, kRows}, GIVES(at::mse_loss(in[0], in[1]))},
      {"huber_loss", {kRows, kRows}, GIVES(at::huber_loss(in[0], in[1]))},
      {"smooth_l1_loss", {kRows, kRows}, GIVES(at::smooth_l1_loss(in[0], in[1]))},
      {"cross_entropy", {kRows, {{5}, kLong}}, GIVES(at::cross_entropy_loss(in[0], in[1]))},
      // Without rules of their own.
      {"cholesky_ex", {{{4, 4}}}, GIVES(std::get<0>(at::linalg_cholesky_ex(in[0])))},
      {"matrix_exp", {{{4, 4}}}, GIVES(at::linalg_matrix_exp(in[0].detach()))},
      {"multinomial", {kRows}, GIVES(at::multinomial(in[0].detach(), 3))},
      {"addbmm", {{{5, 8}}, {{3, 5, 4}}, {{3, 4, 8}}}, GIVES(at::addbmm(in[0], in[1], in[2]))},
      {"tril_indices", {kRows}, GIVES(at::tril_indices(4, 5, 0, in[0].options().dtype(kLong)))},
      {"linspace", {kRows}, GIVES(at::linspace(0, 1, 7, in[0].options().requires_grad(false)))},
      {"arange", {kRows}, GIVES(at::arange(7, in[0].options().requires_grad(false)))},
      {"randperm",
       {kRows},
       GIVES(at::randperm(7, in[0].options().requires_grad(false).dtype(kLong)))},
      {"eye", {kRows}, GIVES(at::eye(7, in[0].options().requires_grad(false)))},
  };
  return kOperators;
}

#undef GIVES

// Shapes, dtypes and strides of what an operator gives, and of the gradients that come back.
std::vector<std::string> described(const Operator& op, at::Device device) {
  Tensors inputs;
  for (const Input& input : op.inputs) inputs.push_back(input.make(device));
  std::vector<std::string> found;
  const auto add = [&](const char* what, const Tensor& t) {
    found.push_back(t.defined() ? c10::str(what, " ", t.scalar_type(), t.sizes(), t.strides())
                                : std::string(what));
  };
  Tensors outputs, gradients, leaves;
  for (const Tensor& output : op.run(inputs)) {
    add("gives", output);
    if (!output.requires_grad()) continue;
    outputs.push_back(output);
    gradients.push_back(at::ones_like(output));
  }
  for (const Tensor& input : inputs) {
    if (input.requires_grad()) leaves.push_back(input);
  }
  if (outputs.empty()) return found;
  for (const Tensor& grad : torch::autograd::grad(outputs, leaves, gradients, false, false, true))
    found.push_back(grad.defined() ? c10::str("gradient ", grad.scalar_type(), grad.sizes())
                                   : std::string("no gradient"));
  return found;
}

}  // namespace

TEST_CASE("Operators of LibTorch give without values what they give with them", "[dry_run]") {
  const ops::DryRun scope(at::kCPU);
  CHECK(operators().size() >= 60);
  for (const Operator& op : operators()) {
    INFO(op.name);
    std::vector<std::string> without;
    try {
      without = described(op, at::kMeta);
    } catch (const std::exception& error) {
      without = {std::string(error.what()).substr(0, 300)};
    }
    CHECK(without == described(op, at::kCPU));
  }
}

TEST_CASE("Shapes that are known cost nothing at any size", "[dry_run]") {
  const ops::DryRun scope(at::kCUDA);
  const at::TensorOptions options = at::TensorOptions(at::kMeta).dtype(kFloat);
  const int64_t side = int64_t{1} << 20;
  const Tensor huge = at::empty({1, 4, side, side}, options);
  CHECK(at::where(huge > 0, huge, 0.0).sizes() == huge.sizes());
  CHECK(at::relu(huge).sizes() == huge.sizes());
  CHECK(at::std(huge, at::IntArrayRef{-1}).sizes() == at::IntArrayRef({1, 4, side}));
  CHECK(at::conv2d(huge, at::empty({8, 4, 3, 3}, options)).size(3) == side - 2);
  const Tensor heads = at::empty({1, 8, side, 64}, options);
  CHECK(at::scaled_dot_product_attention(heads, heads, heads).sizes() == heads.sizes());
}

TEST_CASE("An operator that needs values is refused by its name", "[dry_run]") {
  const ops::DryRun scope(at::kCPU);
  const at::TensorOptions options = at::TensorOptions(at::kMeta).dtype(kFloat);
  const Tensor x = at::empty({4, 4}, options), mask = at::empty({4, 4}, options.dtype(kBool));
  const auto said = [](const std::function<void()>& run) -> std::string {
    try {
      run();
    } catch (const Error& error) {
      return error.code() == ErrorCode::kUnsupported ? error.message() : error.what();
    }
    return "nothing";
  };
  using Catch::StartsWith;
  CHECK_THAT(said([&] { x.max().item<float>(); }), StartsWith("Tensor::item() needs values"));
  CHECK_THAT(said([&] { at::equal(x, x); }), StartsWith("aten::equal needs values"));
  const std::string size = " gives a size that follows from values";
  CHECK_THAT(said([&] { at::nonzero(x); }), StartsWith("aten::nonzero" + size));
  CHECK_THAT(said([&] { at::masked_select(x, mask); }), StartsWith("aten::masked_select" + size));
  CHECK_THAT(said([&] { x.index({mask}); }), StartsWith("aten::nonzero" + size));
  CHECK_THAT(said([&] { at::repeat_interleave(at::empty({4}, options.dtype(kLong))); }),
             StartsWith("aten::repeat_interleave" + size));
  CHECK_THAT(said([&] { at::_unique2(x); }), StartsWith("aten::_unique2" + size));
}

TEST_CASE("An operator without known shapes is tried while it is small", "[dry_run]") {
  const ops::DryRun scope(at::kCPU);
  const auto histogram = [](int64_t count) {
    return at::histc(at::empty({count}, at::TensorOptions(at::kMeta).dtype(kFloat)), 10, 0, 1);
  };
  CHECK(histogram(1000).sizes() == at::IntArrayRef({10}));
  CHECK(histogram(1000).is_meta());
  CHECK_THROWS_WITH(histogram(int64_t{1} << 30),
                    Catch::StartsWith("aten::histc has no shapes for tensors without values, and "
                                      "4096 MiB are too many to try it; ") &&
                        Catch::Contains("[UNSUPPORTED]"));
}

TEST_CASE("A dry run counts LibTorch's own products", "[dry_run]") {
  const at::TensorOptions options = at::TensorOptions(at::kMeta).dtype(kFloat);
  const Tensor x = at::empty({2, 5, 8}, options).requires_grad_(),
               weight = at::empty({4, 8}, options).requires_grad_();
  const ops::DryRun scope(at::kCUDA);
  const Tensor y = at::linear(x, weight);
  CHECK(scope.product_flops() == 2.0 * 10 * 8 * 4);
  torch::autograd::grad({y}, {x, weight}, {at::empty_like(y)});
  CHECK(scope.product_flops() == 3 * 2.0 * 10 * 8 * 4);
  const Tensor q = at::empty({1, 2, 7, 16}, options), k = at::empty({1, 2, 9, 16}, options);
  at::scaled_dot_product_attention(q, k, k);
  CHECK(scope.attention_flops() == 4.0 * 2 * 7 * 9 * 16);
  CHECK(scope.product_flops() == 3 * 2.0 * 10 * 8 * 4);
  at::conv2d(at::empty({1, 6, 8, 8}, options), at::empty({6, 1, 3, 3}, options), {}, 1, 1, 1, 6);
  CHECK(scope.product_flops() == 3 * 2.0 * 10 * 8 * 4 + 2.0 * 6 * 8 * 8 * 9);
}
