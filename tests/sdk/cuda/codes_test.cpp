// Codes of 8 bits by the kernels of GPUs, played on the CPU, beside LibTorch's operators: the same
// bits. And the group norm of images.
#include <cfloat>
#include <cmath>
#include <random>
#include <vector>

#include "atelier/host/packed_codes.h"
#include "atelier/host/row_codes.h"
#include "atelier/ops/linear.h"
#include "atelier/ops/pointwise.h"

#include "ops/cuda/row_codes.h"
#include "ops/gelu_tanh.h"
#include "ops/layer_norm.h"
#include "ops/row_codes.h"
#include "sdk/cuda/row_player.h"
#include "support/tensors.h"

namespace atelier::ops {
namespace {

using at::Tensor;
using test::error;
using test::same_bits;

constexpr at::ScalarType kTypes[] = {at::kFloat, at::kBFloat16, at::kHalf};
constexpr at::ScalarType kCodes[] = {at::kFloat8_e4m3fn, at::kChar};

RowCodes composed_codes(const Tensor& rows, const Tensor& factor, at::ScalarType type) {
  const double limit = type == at::kChar ? 127.0 : 448.0;
  const Tensor values = factor.defined() ? rows.to(at::kFloat) * factor : rows.to(at::kFloat);
  const Tensor scales = values.abs().amax(1).div_(limit).clamp_min_(FLT_MIN);
  Tensor codes = at::div(values, scales.unsqueeze(1));
  if (type == at::kChar) codes.round_();
  return {codes.clamp_(-limit, limit).to(type), scales};
}

RowCodes room_for_codes(const Tensor& rows, at::ScalarType type) {
  return {at::empty(rows.sizes(), at::kByte).view(type), at::empty({rows.size(0)})};
}

RowCodes quantized(const Tensor& rows, const Tensor& factor, at::ScalarType type) {
  RowCodes codes = room_for_codes(rows, type);
  row_codes_kernels.of(rows)->quantize(rows, factor, codes);
  return codes;
}

void check_same(const RowCodes& given, const RowCodes& want) {
  CHECK(same_bits({given.scales}, {want.scales}));
  CHECK(at::equal(given.codes.view(at::kByte), want.codes.view(at::kByte)));
}

// At an address that is no multiple of 16 bytes, with rows further apart than they are wide.
Tensor apart(const Tensor& t) {
  Tensor room = at::empty({t.size(0), t.size(1) + 3}, t.options());
  return room.narrow(1, 1, t.size(1)).copy_(t);
}

// Rows of different sizes, one of zeros and one that is tiny.
Tensor rows_of(int64_t count, int64_t width) {
  Tensor rows = at::randn({count, width}) * at::pow(10.0, at::linspace(-3, 3, count)).unsqueeze(1);
  if (count > 2) {
    rows[0].zero_();
    rows[1].mul_(1e-37);
  }
  return rows;
}

// A weight that products read as codes.
class CodeStore : public WeightStore {
 public:
  explicit CodeStore(RowCodes codes) : codes_(std::move(codes)) {}
  Tensor draw() const override { return dequantize_rows(codes_, at::kBFloat16); }
  std::optional<RowCodes> draw_codes() const override { return codes_; }

 private:
  RowCodes codes_;
};

WeightPtr coded_weight(int64_t out, int64_t in, at::ScalarType type) {
  auto weight = std::make_shared<Weight>("weight", std::vector<int64_t>{out, in});
  weight->state().set_store(
      std::make_shared<CodeStore>(composed_codes(at::randn({out, in}), {}, type)));
  return weight;
}

int64_t launches() {
  return cuda::played().launches;
}

}  // namespace

TEST_CASE("Played codes of rows are those of LibTorch's operators", "[ops][cuda]") {
  at::manual_seed(1);
  for (const int64_t width : {1, 7, 8, 31, 256, 1000, 4096}) {
    const Tensor factor = at::randn({width});
    for (const at::ScalarType dtype : kTypes) {
      const Tensor rows = rows_of(5, width).to(dtype);
      for (const at::ScalarType type : kCodes) {
        INFO("width " << width << ", " << toString(dtype) << ", " << toString(type));
        check_same(quantized(rows, {}, type), composed_codes(rows, {}, type));
        check_same(quantized(apart(rows), {}, type), composed_codes(rows, {}, type));
        check_same(quantized(rows, factor, type), composed_codes(rows, factor, type));
      }
    }
  }
}

TEST_CASE("Rows that are not finite have scales that are not", "[ops][cuda]") {
  for (const at::ScalarType type : kCodes) {
    Tensor rows = at::randn({4, 600});
    rows[1][599] = NAN;
    rows[2][0] = INFINITY;
    const RowCodes codes = quantized(rows, {}, type), want = composed_codes(rows, {}, type);
    CHECK(at::equal(codes.scales.isfinite(), want.scales.isfinite()));
    CHECK(codes.scales[1].isnan().item<bool>());
    const Tensor values = dequantize_rows(codes, at::kFloat);
    CHECK(values[2][0].isnan().item<bool>());
    CHECK(values[0].isfinite().all().item<bool>());
  }
}

TEST_CASE("Norms and GELU write codes of what they give", "[ops][cuda]") {
  at::manual_seed(2);
  const Segments rows({3, 0, 2});
  for (const int64_t width : {24, 31, 520, 3072}) {
    for (const at::ScalarType dtype : kTypes) {
      const Tensor x = at::randn({5, width}).to(dtype), y = at::randn({5, width}).to(dtype),
                   a = at::randn({3, width}).to(dtype), b = at::randn({3, width}).to(dtype),
                   c = at::randn({3, width}).to(dtype);
      Tensor out = at::empty_like(x), coded = at::empty_like(x), sum = at::empty_like(x),
             coded_sum = at::empty_like(x);
      for (const at::ScalarType type : kCodes) {
        INFO("width " << width << ", " << toString(dtype) << ", " << toString(type));
        RowCodes codes = room_for_codes(x, type);
        norm_modulate_kernels.of(x)->forward_codes(x, a, b, rows, 1e-6, coded, codes);
        norm_modulate_kernels.of(x)->forward(x, a, b, rows, 1e-6, out);
        CHECK(same_bits({coded}, {out}));
        check_same(codes, composed_codes(coded, {}, type));
        const auto& gated = *gate_residual_norm_modulate_kernels.of(x);
        gated.forward_codes(x, y, c, a, b, rows, 1e-6, coded_sum, coded, codes);
        gated.forward(x, y, c, a, b, rows, 1e-6, sum, out);
        CHECK(same_bits({coded_sum, coded}, {sum, out}));
        check_same(codes, composed_codes(coded, {}, type));
        gelu_tanh_kernels.of(x)->forward_codes(x, coded, codes);
        gelu_tanh_kernels.of(x)->forward(x, out);
        CHECK(same_bits({coded}, {out}));
        check_same(codes, composed_codes(coded, {}, type));
      }
    }
  }
}

TEST_CASE("Every code is drawn as its value, in one pass", "[ops][cuda]") {
  at::manual_seed(3);
  for (const at::ScalarType type : kCodes) {
    for (const int64_t width : {256, 31, 5}) {
      const Tensor bytes = at::arange(4 * width).remainder(256).to(at::kByte).view({4, width});
      const RowCodes codes = {bytes.view(type), at::tensor({1.0f, 0.37f, 1e-3f, 5e4f})};
      for (const at::ScalarType dtype : kTypes) {
        const Tensor want = (codes.codes.to(at::kFloat) * codes.scales.unsqueeze(1)).to(dtype);
        Tensor given = at::empty(want.sizes(), want.options());
        row_codes_kernels.of(given)->draw(codes, given);
        CHECK(at::equal(given.isnan(), want.isnan()));
        CHECK(at::equal(given.nan_to_num(0), want.nan_to_num(0)));
      }
    }
  }
}

// tests/memory/packed_kernel_test.cpp compares every packing with LibTorch's operators; here the
// sanitizers see what is read and written.
TEST_CASE("Blocks of small codes are drawn from their own bytes", "[ops][cuda]") {
  const std::pair<int64_t, int64_t> sizes[] = {{32, 18},   {32, 20},  {32, 22},   {32, 24},
                                               {32, 34},   {256, 84}, {256, 110}, {256, 144},
                                               {256, 176}, {256, 210}};
  for (const at::ScalarType dtype : kTypes) {
    for (int i = 0; i <= static_cast<int>(Packing::kQ6_K); ++i) {
      for (const int64_t blocks : {1, 3, 70}) {
        // Scales of zero.
        const Tensor bytes = at::zeros({blocks, sizes[i].second}, at::kByte);
        Tensor out = at::full({blocks, sizes[i].first}, 7, dtype);
        const PackedCodes codes = {static_cast<Packing>(i), bytes};
        REQUIRE(has_kernel_for(codes, dtype));
        CHECK_FALSE(has_kernel_for(codes, at::kDouble));
        draw_packed_codes(codes, out);
        CHECK(at::equal(out, at::zeros_like(out)));
      }
    }
    for (const int64_t count : {1, 2, 7, 8, 9, 64, 65, 4001}) {
      const Tensor bytes = at::randint(0, 256, {(count + 1) / 2}, at::kByte);
      const Tensor values = at::randn({16}), scales = at::randn({(count + 63) / 64});
      Tensor out = at::empty({count}, dtype);
      draw_packed_codes({Packing::kNf4, bytes, values, scales, 64}, out);
      const Tensor halves = at::stack({bytes.bitwise_right_shift(4), bytes.bitwise_and(15)}, 1);
      const Tensor want = values.index_select(0, halves.view({-1}).narrow(0, 0, count).to(at::kInt))
                              .mul(scales.repeat_interleave(64).narrow(0, 0, count));
      CHECK(same_bits({out}, {want.to(dtype)}));
    }
  }
}

TEST_CASE("Quotients are those of a division, beside every tie of codes and in every range",
          "[ops][cuda]") {
  // Quotients halfway between two codes, where the last bit of a quotient decides.
  std::vector<float> ties;
  for (int code = 0; code < 127; ++code) {
    ties.push_back(static_cast<float>(code) + 0.5f);
    if (code < 126)
      ties.push_back((cuda::value_of(code, false) + cuda::value_of(code + 1, false)) / 2);
  }
  std::mt19937 random(9);
  std::uniform_real_distribution<float> mantissas(1, 2);
  int64_t compared = 0, different = 0;
  for (int exponent = -126; exponent < 119; ++exponent) {
    const float scale = std::ldexp(mantissas(random), exponent);
    const cuda::Divisor by = cuda::divisor(scale);
    for (const float tie : ties) {
      float v = tie * scale;
      for (int i = 0; i < 3; ++i) v = std::nextafter(v, 0.0f);
      for (int i = 0; i < 7; ++i, v = std::nextafter(v, HUGE_VALF)) {
        for (const float value : {v, -v}) {
          ++compared;
          different += cuda::quotient(value, by) != value / scale;
        }
      }
    }
  }
  CHECK(compared > 800000);
  CHECK(different == 0);
  const cuda::Divisor one = cuda::divisor(1.0f), infinite = cuda::divisor(HUGE_VALF);
  CHECK((cuda::code_of(NAN, one, false) & 0x7f) == 0x7f);
  CHECK(cuda::code_of(NAN, one, true) == 0);
  CHECK(cuda::code_of(3.0f, infinite, false) == 0);
  CHECK(cuda::code_of(-0.0f, one, false) == 0x80);
  CHECK((cuda::code_of(HUGE_VALF, infinite, false) & 0x7f) == 0x7f);
}

TEST_CASE("Sums of products are scaled in one pass", "[ops][cuda]") {
  at::manual_seed(4);
  for (const int64_t width : {1, 8, 30, 300, 2056}) {
    const Tensor sums =
        at::randint(-2000000, 2000000, {6, width + 5}, at::kInt).narrow(1, 0, width);
    const Tensor row_scales = at::rand({6}), column_scales = at::rand({width});
    for (const at::ScalarType dtype : kTypes) {
      const Tensor bias = at::randn({width}).to(dtype);
      Tensor want = sums.to(at::kFloat)
                        .mul_(row_scales.unsqueeze(1))
                        .mul_(column_scales.unsqueeze(0))
                        .to(dtype);
      Tensor given = at::empty({6, width}, dtype);
      row_codes_kernels.of(sums)->scale_sums(sums, row_scales, column_scales, {}, given);
      CHECK(same_bits({given}, {want}));
      row_codes_kernels.of(sums)->scale_sums(sums, row_scales, column_scales, bias, given);
      CHECK(same_bits({given}, {want.add_(bias)}));
    }
  }
}

TEST_CASE("Products in 8 bits are the same to the bit, and share codes", "[ops][cuda]") {
  at::manual_seed(5);
  const at::NoGradGuard no_grad;
  const Segments rows({33});
  // Widths that other tests do not have: what products asked for is known by them.
  const Tensor x = at::randn({33, 88}).to(at::kBFloat16), a = at::randn({1, 88}).to(at::kBFloat16),
               b = at::randn({1, 88}).to(at::kBFloat16);
  auto bias = std::make_shared<Weight>("bias", std::vector<int64_t>{72});
  bias->set(at::randn({72}).to(at::kBFloat16));
  for (const at::ScalarType type : kCodes) {
    const WeightPtr q = coded_weight(72, 88, type), k = coded_weight(32, 88, type),
                    down = coded_weight(64, 72, type);
    std::array<std::vector<Tensor>, 2> results;
    for (const Kernels choice : {Kernels::kFused, Kernels::kComposed}) {
      std::vector<Tensor>& result = results[choice == Kernels::kComposed];
      for (int repeat = 0; repeat < 2; ++repeat) {
        set_kernels(Kernels::kFused);
        const Tensor normed = norm_modulate(x, a, b, rows);
        const Tensor hidden = gelu_tanh(at::ones({33, 72}, at::kBFloat16).cumsum(1) / 20);
        set_kernels(choice);
        const int64_t before = launches();
        result = {linear(normed, q, bias), linear(normed, k, nullptr),
                  linear(hidden, down, nullptr)};
        // Each int8 product has one launch behind it. The norm and GELU made codes the second time.
        const int64_t scaling = type == at::kChar ? 3 : 0, quantising = repeat == 0 ? 2 : 0;
        CHECK(launches() - before == (choice == Kernels::kFused ? scaling + quantising : 0));
      }
    }
    set_kernels(Kernels::kAuto);
    CHECK(same_bits(results[0], results[1]));
  }
}

TEST_CASE("Codes of rows that were overwritten are not used", "[ops][cuda]") {
  at::manual_seed(6);
  const at::NoGradGuard no_grad;
  const WeightPtr weight = coded_weight(16, 40, at::kChar);
  Tensor x = at::randn({40, 40});
  linear(x, weight, nullptr);
  x.mul_(3);
  const Tensor given = linear(x, weight, nullptr);
  set_kernels(Kernels::kComposed);
  CHECK(same_bits({given}, {linear(x, weight, nullptr)}));
  set_kernels(Kernels::kAuto);
}

TEST_CASE("Sums of int8 codes are exact however large they are", "[ops]") {
  // Each code is 127 and each scale 1.
  for (const int64_t width : {40, 2048, 4099}) {
    const auto weight = std::make_shared<Weight>("weight", std::vector<int64_t>{16, width});
    const Tensor codes = at::full({16, width}, 127, at::kChar);
    weight->state().set_store(
        std::make_shared<CodeStore>(RowCodes{codes, at::ones({16}, at::kFloat)}));
    const Tensor x = at::full({8, width}, 127, at::kFloat);
    const Tensor got = linear(x, weight, nullptr);
    CHECK(at::equal(got, at::full({8, 16}, static_cast<float>(127 * 127 * width))));
  }
}

TEST_CASE("The played group norm is near float64, wherever the mean lies", "[ops][cuda]") {
  at::manual_seed(7);
  for (const auto& [images, channels, height, width] :
       {std::array<int64_t, 4>{1, 32, 9, 7}, {3, 12, 5, 5}, {2, 128, 33, 20}}) {
    for (const double mean : {0.0, 300.0}) {
      for (const bool silu : {false, true}) {
        const Tensor exact = at::randn({images, channels, height, width}, at::kDouble) + mean,
                     weight = at::randn({channels}), bias = at::randn({channels});
        const Tensor x = exact.to(at::kFloat).contiguous(at::MemoryFormat::ChannelsLast);
        const int64_t before = launches();
        const Tensor given = group_norm(x, weight, bias, 4, 1e-6, silu);
        CHECK(launches() == before + 2);
        CHECK(given.is_contiguous(at::MemoryFormat::ChannelsLast));
        const Tensor want = group_norm(x.to(at::kDouble).contiguous(), weight.to(at::kDouble),
                                       bias.to(at::kDouble), 4, 1e-6, silu);
        CHECK(error(given, want) < (mean == 0 ? 5e-6 : 2e-4));
      }
    }
  }
}

TEST_CASE("The played group norm's gradients are near float64, wherever the mean lies",
          "[ops][cuda]") {
  at::manual_seed(8);
  for (const auto& [images, channels, height, width] :
       {std::array<int64_t, 4>{1, 32, 9, 7}, {3, 12, 5, 5}, {2, 128, 33, 20}, {70, 8, 3, 1}}) {
    for (const double mean : {0.0, 300.0}) {
      for (const bool silu : {false, true}) {
        test::Tensors in, exact;
        for (const Tensor& t : {at::randn({images, channels, height, width}) + mean,
                                at::randn({channels}), at::randn({channels})}) {
          const bool is_image = t.dim() == 4;
          in.push_back(test::trained(is_image ? t.contiguous(at::MemoryFormat::ChannelsLast) : t));
          exact.push_back(test::trained(t.to(at::kDouble)));
        }
        const auto normed = [silu = silu](const test::Tensors& of) {
          return group_norm(of[0], of[1], of[2], 4, 1e-6, silu);
        };
        const Tensor out = normed(in);
        const int64_t before = launches();
        const test::Tensors given = test::gradients({out}, in);
        CHECK(launches() == before + 3);
        CHECK(given[0].is_contiguous(at::MemoryFormat::ChannelsLast));
        const test::Tensors want = test::gradients({normed(exact)}, exact);
        for (size_t i = 0; i < in.size(); ++i)
          CHECK(error(given[i], want[i]) < (mean == 0 ? 1e-5 : 2e-4));
        CHECK(same_bits(test::gradients({normed(in)}, in), given));
        // Gradients of the weight and the bias alone.
        const int64_t between = launches();
        const test::Tensors affine =
            test::gradients({normed({in[0].detach(), in[1], in[2]})}, {in[1], in[2]});
        CHECK(launches() == between + 4);
        CHECK(same_bits(affine, {given[1], given[2]}));
      }
    }
  }
}

}  // namespace atelier::ops
