#include "ops/attention_kernels.h"

#include <atomic>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/autograd.h>

#include "atelier/error.h"
#include "atelier/host/device_traits.h"
#include "atelier/host/dry_run.h"
#include "atelier/host/recompute_scope.h"
#include "atelier/host/upload.h"

#include "ops/autograd_support.h"
#include "ops/cpu_flash.h"
#include "ops/tiled_attention.h"

namespace atelier::ops {
namespace {

using at::Tensor;
using torch::autograd::variable_list;
using Kernel = AttentionKernel;

std::atomic<AttentionBackend> forced_backend{AttentionBackend::kAuto};

bool needs_tiles(const AttentionOptions& options) {
  return options.softcap > 0 || options.window > 0 || options.offset_bias.defined() ||
         options.query_sees.defined();
}

// What kernels of CUDA are chosen by.
AttentionCase case_of(const Tensor& q, const AttentionCall& call) {
  const bool is_uniform = call.q_rows.is_uniform() && call.k_rows.is_uniform();
  return {.capability = compute_capability(q.device()),
          .dtype = q.scalar_type(),
          .head_dim = q.size(2),
          .is_masked = needs_tiles(call.options),
          .is_uniform = is_uniform,
          .must_be_the_same = at::globalContext().deterministicAlgorithms(),
          .is_merged = call.is_merged};
}

// The kernel that --attention asks for. Throws where it cannot run.
Kernel forced_on_cuda(AttentionBackend forced, const AttentionCase& wanted) {
  const auto checked = [&](Kernel kernel, const char* backend, const char* needs) {
    if (!can_attend(kernel, wanted)) refuse_backend(backend, needs);
    return kernel;
  };
  switch (forced) {
    case AttentionBackend::kFlash:
      return checked(Kernel::kVarlenFlash, "flash",
                     "bfloat16 or float16, a head width of 8 to 256 in steps of 8, and a GPU of "
                     "compute capability 8.0 or newer");
    case AttentionBackend::kCudnn:
      return checked(Kernel::kCudnn, "cuDNN",
                     "bfloat16 or float16, a head width of 8 to 128 in steps of 8, and a GPU of "
                     "compute capability 9.0 or newer");
    default:
      return checked(Kernel::kEfficient, "efficient", "float32, bfloat16 or float16");
  }
}

// Samples that one kernel call takes: `count` of them, each `length` rows, from row `first`.
struct Rows {
  int64_t first, count, length;
  int64_t total() const { return count * length; }
  // [count, length, ...] of packed rows [N, ...].
  Tensor of(const Tensor& rows) const {
    return rows.narrow(0, first, total()).unflatten(0, {count, length});
  }
  // [count, H, length, d] of packed rows [N, H, d].
  Tensor heads_of(const Tensor& rows) const { return of(rows).transpose(1, 2); }
};
struct Piece {
  Rows queries, keys;
};

// All samples that have both queries and keys.
std::vector<Piece> pieces_of(const Segments& q_rows, const Segments& k_rows) {
  if (q_rows.total() == 0 || k_rows.total() == 0) return {};
  const int64_t count = q_rows.count();
  if (q_rows.is_uniform() && k_rows.is_uniform())
    return {{{0, count, q_rows.length(0)}, {0, count, k_rows.length(0)}}};
  std::vector<Piece> pieces;
  for (int64_t s = 0; s < count; ++s) {
    if (q_rows.length(s) > 0 && k_rows.length(s) > 0)
      pieces.push_back(
          {{q_rows.offset(s), 1, q_rows.length(s)}, {k_rows.offset(s), 1, k_rows.length(s)}});
  }
  return pieces;
}

// The columns of an offset bias that samples of a piece use.
Tensor columns_of(const Tensor& bias, const AttentionCall& call, const Piece& piece) {
  const int64_t count = piece.queries.length + piece.keys.length - 1;
  return bias.narrow(1, call.q_rows.longest() - piece.queries.length, count);
}

// The options of a piece: bias [H, L + S - 1], groups [B, L] and [B, S].
AttentionOptions options_of(const AttentionCall& call, const Tensor& bias, const Piece& piece) {
  AttentionOptions options = call.options;
  if (bias.defined()) options.offset_bias = columns_of(bias, call, piece);
  if (options.query_sees.defined()) {
    options.query_sees = piece.queries.of(options.query_sees);
    options.key_groups = piece.keys.of(options.key_groups);
  }
  return options;
}

// [B, K, L, d] with each key head `times` times.
Tensor repeat_heads(const Tensor& t, int64_t times) {
  return times == 1 ? t : t.repeat_interleave(times, 1);
}
Tensor sum_heads(const Tensor& t, int64_t times) {
  return times == 1 ? t : t.unflatten(1, {t.size(1) / times, times}).sum(2);
}

// What LibTorch's has no meta kernels for.
Tensor dry_math(const AttentionCall& call, const Tensor& q, const Tensor& k, const Tensor& v) {
  const int64_t times = q.size(1) / k.size(1);
  const double scale = call.scale().value_or(1.0);
  Tensor scores = at::matmul(q * scale, (repeat_heads(k, times) * scale).transpose(2, 3));
  if (call.options.causal) scores = scores + at::empty({q.size(2), k.size(2)}, q.options());
  return at::matmul(at::softmax(scores, -1), repeat_heads(v, times));
}

Tensor math(const AttentionCall& call, const Tensor& q, const Tensor& k, const Tensor& v) {
  if (q.is_meta()) return dry_math(call, q, k, v);
  return std::get<0>(at::_scaled_dot_product_attention_math(
      q, k, v, {}, 0.0, call.options.causal, {}, call.scale(), q.size(1) != k.size(1)));
}

// What LibTorch's CPU kernel computes with on each thread, `tiles` tiles of scores at once.
Tensor dry_buffer(const Tensor& q, const Tensor& k, int64_t tiles) {
  const DryRun* dry = DryRun::of(q);
  if (dry == nullptr || dry->like() != at::kCPU) return Tensor();
  const int64_t length = q.size(2);
  const int64_t split = length >= 768 ? 256 : length >= 192 ? 64 : 32;
  const int64_t rows = std::min(split, length), columns = std::min<int64_t>(512, k.size(2));
  return at::empty({at::get_num_threads(), rows * (tiles * columns + 2 + q.size(3))},
                   q.options().dtype(at::kFloat));
}

// [B, H, L, d] as [B, L, H, d] lies: what cuDNN shares its plans for.
Tensor packed(const Tensor& heads) {
  return heads.transpose(1, 2).contiguous().transpose(1, 2);
}

// {output [B, H, L, d], what the kernel's backward wants beside it}. `options`: of the piece.
std::vector<Tensor> dense_forward(const AttentionCall& call, const AttentionOptions& options,
                                  const Tensor& q, const Tensor& k, const Tensor& v) {
  const bool causal = call.options.causal;
  switch (call.kernel) {
    case Kernel::kCpuFlash: {
      auto [out, lse] = cpu_flash(q, k, v, causal, call.scale());
      return {out, lse};
    }
    case Kernel::kCudnn: {
      // LibTorch 2.11 has an entry for packed samples too, and builds its plan in every call.
      auto r = at::_scaled_dot_product_cudnn_attention(packed(q), packed(k), packed(v), {},
                                                       /*compute_log_sumexp=*/true, 0.0, causal,
                                                       false, call.scale());
      return {std::get<0>(r), std::get<1>(r), std::get<6>(r), std::get<7>(r)};
    }
    case Kernel::kEfficient: {
      const int64_t times = q.size(1) / k.size(1);
      auto [out, lse, seed, offset] = at::_scaled_dot_product_efficient_attention(
          q, repeat_heads(k, times), repeat_heads(v, times), {}, /*compute_log_sumexp=*/true, 0.0,
          causal, call.scale());
      return {out, lse, seed, offset};
    }
    case Kernel::kTiled: {
      auto [out, lse] = tiled_attention(q, k, v, options);
      return {out, lse};
    }
    case Kernel::kDry: {
      const Tensor buffer = dry_buffer(q, k, 1);
      return {empty_heads(q),
              at::empty({q.size(0), q.size(1), q.size(2)}, q.options().dtype(at::kFloat))};
    }
    default:
      return {math(call, q, k, v)};
  }
}

// How many tensors dense_forward() gives beside the output.
size_t extras_count(Kernel kernel) {
  switch (kernel) {
    case Kernel::kMath:
      return 0;
    case Kernel::kCpuFlash:
    case Kernel::kDry:
    case Kernel::kTiled:
      return 1;
    default:
      return 3;
  }
}

// Gradients of q, k and v. `extras`: what dense_forward() gave beside the output. Where
// `*grad_bias` is defined, that of the piece's bias is added to it.
std::tuple<Tensor, Tensor, Tensor> dense_backward(
    const AttentionCall& call, const AttentionOptions& options, const Tensor& grad, const Tensor& q,
    const Tensor& k, const Tensor& v, const Tensor& out, const Tensor* extras, Tensor* grad_bias) {
  const bool causal = call.options.causal;
  switch (call.kernel) {
    case Kernel::kCpuFlash:
      return cpu_flash_backward(grad, q, k, v, out, extras[0], causal, call.scale());
    case Kernel::kCudnn:
      return at::_scaled_dot_product_cudnn_attention_backward(
          grad, packed(q), packed(k), packed(v), out, extras[0], extras[1], extras[2], Tensor(),
          Tensor(), Tensor(), q.size(2), k.size(2), 0.0, causal, call.scale());
    case Kernel::kEfficient: {
      const int64_t times = q.size(1) / k.size(1);
      auto [grad_q, grad_k, grad_v, grad_bias] =
          at::_scaled_dot_product_efficient_attention_backward(
              grad, q, repeat_heads(k, times), repeat_heads(v, times), Tensor(), out, extras[0],
              extras[1], extras[2], 0.0, {true, true, true, false}, causal, call.scale());
      return {grad_q, sum_heads(grad_k, times), sum_heads(grad_v, times)};
    }
    case Kernel::kTiled:
      return tiled_attention_backward(grad, q, k, v, out, extras[0], options, grad_bias);
    case Kernel::kDry: {
      const Tensor buffer = dry_buffer(q, k, 2);
      return {empty_heads(q), empty_heads(k), empty_heads(v)};
    }
    default: {
      at::AutoGradMode enable(true);
      const variable_list in{q.detach().requires_grad_(), k.detach().requires_grad_(),
                             v.detach().requires_grad_()};
      const variable_list grads =
          torch::autograd::grad({math(call, in[0], in[1], in[2])}, in, {grad});
      return {grads[0], grads[1], grads[2]};
    }
  }
}

Tensor device_offsets(const Segments& rows, const Tensor& like) {
  return offsets_on(rows, like.device(), at::kInt);
}

// Puts the gradient of a piece, [B, H, L, d], to its rows of `whole`, that of `of`.
void put_piece(Tensor& whole, const Rows& rows, const Tensor& part, const Tensor& of) {
  put_rows(whole, rows.first, part.transpose(1, 2).flatten(0, 1), of);
}

}  // namespace

void set_attention_backend(AttentionBackend backend) {
  forced_backend = backend;
}

double flops_of(const AttentionCall& call, const Tensor& q) {
  double pairs = 0;
  for (int64_t s = 0; s < call.q_rows.count(); ++s)
    pairs +=
        static_cast<double>(call.q_rows.length(s)) * static_cast<double>(call.k_rows.length(s));
  return (call.options.causal ? 2.0 : 4.0) * pairs * static_cast<double>(q.size(1) * q.size(2));
}

void put_rows(Tensor& whole, int64_t first, const Tensor& part, const Tensor& of) {
  if (part.size(0) == of.size(0)) {
    whole = part;
    return;
  }
  if (!whole.defined()) whole = at::zeros(of.sizes(), of.options());
  whole.narrow(0, first, part.size(0)).copy_(part);
}

void refuse_backend(const char* backend, const char* needs) {
  throw Error(ErrorCode::kUnsupported,
              c10::str("attention: the ", backend, " back end needs ", needs),
              "let --attention auto choose");
}

AttentionKernel choose_kernel(const Tensor& q, const AttentionCall& call) {
  // What a kernel kept is read by its own backward alone.
  if (const auto recorded = attention_kernel_of(RecomputeScope::recorded())) return *recorded;
  if (needs_tiles(call.options)) return Kernel::kTiled;
  const AttentionBackend forced = forced_backend;
  if (forced == AttentionBackend::kMath) return Kernel::kMath;
  if (q.is_meta()) return Kernel::kDry;
  if (!q.is_cuda()) {
    if (forced == AttentionBackend::kEfficient) refuse_backend("efficient", "a CUDA device");
    if (forced == AttentionBackend::kCudnn) refuse_backend("cuDNN", "a CUDA device");
    return q.is_cpu() ? Kernel::kCpuFlash : Kernel::kMath;
  }
  const AttentionCase wanted = case_of(q, call);
  return forced == AttentionBackend::kAuto ? attention_kernel(wanted)
                                           : forced_on_cuda(forced, wanted);
}

std::vector<Tensor> attend(const AttentionCall& call, const Tensor& q, const Tensor& k,
                           const Tensor& v, const Tensor& bias) {
  const DryRun::OwnCount own_count;
  const int64_t n = q.size(0), width = q.size(1) * q.size(2);
  if (n == 0 || k.size(0) == 0) return {at::zeros({n, width}, q.options())};
  if (call.kernel == Kernel::kVarlenFlash) {
    auto [out, lse, rng_state, unused, mask] = at::_flash_attention_forward(
        q, k, v, device_offsets(call.q_rows, q), device_offsets(call.k_rows, q),
        call.q_rows.longest(), call.k_rows.longest(), 0.0, call.options.causal,
        /*return_debug_mask=*/false, call.scale());
    return {out.reshape({n, width}).tensor_data(), lse, rng_state, unused};
  }
  const std::vector<Piece> pieces = pieces_of(call.q_rows, call.k_rows);
  const bool whole = pieces.size() == 1 && pieces[0].queries.total() == n;
  std::vector<Tensor> result{whole ? Tensor() : at::zeros({n, width}, q.options())};
  for (const auto& piece : pieces) {
    const auto& [queries, keys] = piece;
    std::vector<Tensor> part =
        dense_forward(call, options_of(call, bias, piece), queries.heads_of(q), keys.heads_of(k),
                      keys.heads_of(v));
    const Tensor out = part[0].transpose(1, 2).reshape({queries.total(), width});
    if (whole) {
      result[0] = out.tensor_data();
    } else {
      result[0].narrow(0, queries.first, queries.total()).copy_(out);
    }
    for (size_t i = 1; i < part.size(); ++i) result.push_back(part[i].tensor_data());
  }
  return result;
}

std::tuple<Tensor, Tensor, Tensor> attend_backward(const AttentionCall& call, const Tensor& grad,
                                                   const Tensor& q, const Tensor& k,
                                                   const Tensor& v, const Tensor& bias,
                                                   const Tensor& out, const Tensor* extras,
                                                   const Tensor& grad_bias) {
  const DryRun::OwnCount own_count;
  if (call.kernel == Kernel::kVarlenFlash && q.size(0) > 0 && k.size(0) > 0)
    return at::_flash_attention_backward(
        grad, q, k, v, out, extras[0], device_offsets(call.q_rows, q),
        device_offsets(call.k_rows, q), call.q_rows.longest(), call.k_rows.longest(), 0.0,
        call.options.causal, extras[1], extras[2], call.scale());
  std::tuple<Tensor, Tensor, Tensor> result;
  for (const Piece& piece : pieces_of(call.q_rows, call.k_rows)) {
    const auto& [queries, keys] = piece;
    Tensor grad_columns = grad_bias.defined() ? columns_of(grad_bias, call, piece) : Tensor();
    auto [grad_q, grad_k, grad_v] = dense_backward(
        call, options_of(call, bias, piece), queries.heads_of(grad), queries.heads_of(q),
        keys.heads_of(k), keys.heads_of(v), queries.heads_of(out), extras, &grad_columns);
    extras += extras_count(call.kernel);
    put_piece(std::get<0>(result), queries, grad_q, q);
    put_piece(std::get<1>(result), keys, grad_k, k);
    put_piece(std::get<2>(result), keys, grad_v, v);
  }
  return result;
}

Tensor log_sum_exp_of(const AttentionCall& call, const std::vector<Tensor>& attended) {
  if (call.kernel == Kernel::kVarlenFlash) return attended[1].transpose(0, 1);
  std::vector<Tensor> rows;
  size_t next = 1;
  for (const Piece& piece : pieces_of(call.q_rows, call.k_rows)) {
    const Tensor sums = attended[next].narrow(2, 0, piece.queries.length);
    rows.push_back(sums.transpose(1, 2).flatten(0, 1));
    next += extras_count(call.kernel);
  }
  return rows.size() == 1 ? rows.front() : at::cat(rows);
}

std::vector<Tensor> extras_of(const AttentionCall& call, const Tensor& log_sum_exp) {
  if (call.kernel == Kernel::kVarlenFlash) {
    const auto unread = log_sum_exp.options().dtype(at::kUInt64);  // nothing is dropped out
    return {log_sum_exp.transpose(0, 1).contiguous(), at::empty({2}, unread),
            at::empty({}, unread)};
  }
  std::vector<Tensor> extras;
  for (const Piece& piece : pieces_of(call.q_rows, call.k_rows)) {
    const Tensor sums = piece.queries.heads_of(log_sum_exp.unsqueeze(2)).squeeze(3);
    if (call.kernel != Kernel::kEfficient) {
      extras.push_back(sums);
      continue;
    }
    constexpr int64_t kStep = 32;  // of the rows that the kernel has sums for; more are infinite
    const int64_t length = (sums.size(2) + kStep - 1) / kStep * kStep;
    extras.push_back(at::full({sums.size(0), sums.size(1), length}, INFINITY, sums.options()));
    extras.back().narrow(2, 0, sums.size(2)).copy_(sums);
    const auto unread = at::TensorOptions(at::kLong);
    extras.insert(extras.end(), {at::empty({}, unread), at::empty({}, unread)});
  }
  return extras;
}

}  // namespace atelier::ops
