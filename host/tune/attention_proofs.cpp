#include <algorithm>
#include <array>

#include "atelier/ops/attention.h"

#include "host/tune/kernel_proofs.h"

namespace atelier::tune {
namespace {

// Which back end attends while it lives.
class ChosenAttention {
 public:
  explicit ChosenAttention(ops::AttentionBackend backend) { ops::set_attention_backend(backend); }
  ~ChosenAttention() { ops::set_attention_backend(ops::AttentionBackend::kAuto); }
  ChosenAttention(const ChosenAttention&) = delete;
  ChosenAttention& operator=(const ChosenAttention&) = delete;
};

// Samples of several rows, of one length or of different ones.
Segments lengths_of(const Sizes& sizes, bool is_uniform) {
  std::vector<int64_t> lengths;
  std::ranges::copy_if(sizes.samples, std::back_inserter(lengths), [](int64_t n) { return n > 1; });
  const int64_t longest = std::ranges::max(lengths);
  if (is_uniform) return Segments::uniform(2, longest);
  if (std::ranges::min(lengths) == longest) lengths.back() -= longest / 16;
  return Segments(lengths);
}

// What is left of the heads of long samples, so that a proof takes seconds: each is a multiple of
// three.
int64_t query_heads(const Sizes& sizes, const Segments& rows) {
  constexpr int64_t kLong = 8192, kFew = 6;
  return rows.longest() < kLong ? sizes.heads : kFew;
}

// Heads of 96 share keys by three in a published denoiser.
int64_t key_heads(int64_t heads, int64_t head_dim) {
  return head_dim == 96 ? heads / 3 : heads;
}

// Calls of a step's blocks in a generation of 20 steps.
constexpr int64_t kRunsAPlan = 600;

// By cuDNN where fused kernels run, by flash where composed ones do, and in float64 by the formula.
template <int64_t kWidth, bool kIsUniform>
std::vector<Operator> attention(const Sizes& sizes, const Noise& noise) {
  const Segments rows = lengths_of(sizes, kIsUniform);
  const int64_t n = rows.total(), heads = query_heads(sizes, rows);
  const int64_t keys = key_heads(heads, kWidth);
  const auto run = [rows](const Tensors& in) {
    using enum ops::AttentionBackend;
    const bool is_exact = in[0].scalar_type() == at::kDouble;
    const ChosenAttention choice(is_exact                                 ? kMath
                                 : ops::kernels() == ops::Kernels::kFused ? kCudnn
                                                                          : kFlash);
    return Traced{{ops::attention(in[0], in[1], in[2], rows)}, in};
  };
  return {
      {.name = "attention",
       .inputs = {noise({n, heads, kWidth}), noise({n, keys, kWidth}), noise({n, keys, kWidth})},
       .run = run,
       .slack = 2.0,
       .repeats = false,
       .runs_a_plan = kRunsAPlan}};
}

constexpr std::array kAttentionProofs = {
    AttentionProof{{"cudnn_attention_96_equal_lengths", attention<96, true>, true}, 96, true},
    AttentionProof{{"cudnn_attention_96", attention<96, false>, true}, 96, false},
    AttentionProof{{"cudnn_attention_128_equal_lengths", attention<128, true>, true}, 128, true},
    AttentionProof{{"cudnn_attention_128", attention<128, false>, true}, 128, false},
};

}  // namespace

std::span<const AttentionProof> attention_proofs() {
  return kAttentionProofs;
}

}  // namespace atelier::tune
