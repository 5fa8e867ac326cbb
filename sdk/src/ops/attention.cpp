#include "atelier/ops/attention.h"

#include <atomic>

#include <ATen/Parallel.h>
#include <ATen/SDPBackend.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include "atelier/error.h"
#include "atelier/ops/dry_run.h"
#include "atelier/ops/recompute_scope.h"
#include "atelier/ops/stop.h"

#include "ops/autograd_support.h"
#include "ops/cpu_flash.h"
#include "ops/tiled_attention.h"

namespace atelier::ops {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

std::atomic<AttentionBackend> forced_backend{AttentionBackend::kAuto};

enum class Kernel {
  kCpuFlash,     // grouped keys native
  kVarlenFlash,  // CUDA, all samples in one call, grouped keys native
  kCudnn,        // CUDA, grouped keys native
  kEfficient,    // CUDA, keys repeated
  kMath,
  kDry,    // allocates what the flash kernels do, and computes nothing
  kTiled,  // with a soft cap or a window, grouped keys native
};

struct AttentionCall : torch::CustomClassHolder {
  Kernel kernel;
  AttentionOptions options;
  Segments rows;
  explicit AttentionCall(Segments segments) : rows(std::move(segments)) {}
  std::optional<double> scale() const {
    return options.scale == 0 ? std::nullopt : std::optional(options.scale);
  }
};
using AttentionCallPtr = c10::intrusive_ptr<AttentionCall>;

[[noreturn]] void refuse(const char* backend, const char* needs) {
  throw Error(ErrorCode::kUnsupported,
              c10::str("attention: the ", backend, " back end needs ", needs),
              "let --attention auto choose");
}

Kernel choose(const Tensor& q, const Tensor& k, const Tensor& v, const Segments& rows,
              AttentionOptions options) {
  if (options.softcap > 0 || options.window > 0) return Kernel::kTiled;
  const AttentionBackend forced = forced_backend;
  if (forced == AttentionBackend::kMath) return Kernel::kMath;
  if (q.is_meta()) return Kernel::kDry;
  if (!q.is_cuda()) {
    if (forced == AttentionBackend::kEfficient) refuse("efficient", "a CUDA device");
    if (forced == AttentionBackend::kCudnn) refuse("cuDNN", "a CUDA device");
    return q.is_cpu() ? Kernel::kCpuFlash : Kernel::kMath;
  }
  const bool half = q.scalar_type() == at::kHalf || q.scalar_type() == at::kBFloat16;
  const bool flash = half && q.size(2) <= 256 && q.size(2) % 8 == 0;
  switch (forced) {
    case AttentionBackend::kFlash:
      if (!flash) refuse("flash", "bfloat16 or float16 and a head width of 8 to 256 in steps of 8");
      return Kernel::kVarlenFlash;
    case AttentionBackend::kCudnn:
      if (!half) refuse("cuDNN", "bfloat16 or float16");
      return Kernel::kCudnn;
    case AttentionBackend::kEfficient:
      if (q.scalar_type() == at::kDouble) refuse("efficient", "float32, bfloat16 or float16");
      return Kernel::kEfficient;
    default:
      break;
  }
  if (q.scalar_type() == at::kDouble) return Kernel::kMath;
  if (!half) return Kernel::kEfficient;
  if (rows.is_uniform() && rows.count() > 0 && rows.total() > 0) {
    auto dense = [&](const Tensor& t) {
      return t.view({rows.count(), rows.length(0), t.size(1), t.size(2)}).transpose(1, 2);
    };
    const auto choice = at::_fused_sdp_choice(dense(q), dense(k), dense(v), {}, 0.0, options.causal,
                                              {}, q.size(1) != k.size(1));
    if (choice == static_cast<int64_t>(at::SDPBackend::cudnn_attention)) return Kernel::kCudnn;
  }
  return flash ? Kernel::kVarlenFlash : Kernel::kEfficient;
}

// Samples that one kernel call takes: `count` of them, each `length` rows, from row `first`.
struct Piece {
  int64_t first, count, length;
  // [count, H, length, d] of packed rows [N, H, d].
  Tensor of(const Tensor& rows) const {
    return rows.narrow(0, first, count * length)
        .view({count, length, rows.size(1), rows.size(2)})
        .transpose(1, 2);
  }
};

std::vector<Piece> pieces_of(const Segments& rows) {
  if (rows.total() == 0) return {};
  if (rows.is_uniform()) return {{0, rows.count(), rows.length(0)}};
  std::vector<Piece> pieces;
  for (int64_t s = 0; s < rows.count(); ++s) {
    if (rows.length(s) > 0) pieces.push_back({rows.offset(s), 1, rows.length(s)});
  }
  return pieces;
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

// Of one forward pass.
double flops_of(const AttentionCall& call, const Tensor& q) {
  double pairs = 0;
  for (int64_t s = 0; s < call.rows.count(); ++s) {
    const auto length = static_cast<double>(call.rows.length(s));
    pairs += length * length;
  }
  return (call.options.causal ? 2.0 : 4.0) * pairs * static_cast<double>(q.size(1) * q.size(2));
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

Tensor empty_heads(const Tensor& like) {  // [B, H, L, d], packed as [B, L, H, d]
  return at::empty({like.size(0), like.size(2), like.size(1), like.size(3)}, like.options())
      .transpose(1, 2);
}

// {output [B, H, L, d], what the kernel's backward wants beside it}
std::vector<Tensor> dense_forward(const AttentionCall& call, const Tensor& q, const Tensor& k,
                                  const Tensor& v) {
  const bool causal = call.options.causal;
  switch (call.kernel) {
    case Kernel::kCpuFlash: {
      auto [out, lse] = cpu_flash(q, k, v, causal, call.scale());
      return {out, lse};
    }
    case Kernel::kCudnn: {
      auto r = at::_scaled_dot_product_cudnn_attention(q, k, v, {}, /*compute_log_sumexp=*/true,
                                                       0.0, causal, false, call.scale());
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
      auto [out, lse] = tiled_attention(q, k, v, call.options);
      return {out, lse};
    }
    case Kernel::kDry: {
      const Tensor buffer = dry_buffer(q, k, 1);
      return {empty_heads(q),
              at::empty({q.size(0), q.size(2), q.size(1)}, q.options().dtype(at::kFloat))};
    }
    default:
      return {math(call, q, k, v)};
  }
}

// How many tensors dense_forward() gives beside the output.
size_t extras_of(Kernel kernel) {
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

std::tuple<Tensor, Tensor, Tensor> dense_backward(const AttentionCall& call, const Tensor& grad,
                                                  const Tensor& q, const Tensor& k, const Tensor& v,
                                                  const Tensor& out, const Tensor* extras) {
  const bool causal = call.options.causal;
  switch (call.kernel) {
    case Kernel::kCpuFlash:
      return cpu_flash_backward(grad, q, k, v, out, extras[0], causal, call.scale());
    case Kernel::kCudnn:
      return at::_scaled_dot_product_cudnn_attention_backward(
          grad, q, k, v, out, extras[0], extras[1], extras[2], Tensor(), Tensor(), Tensor(),
          q.size(2), k.size(2), 0.0, causal, call.scale());
    case Kernel::kEfficient: {
      const int64_t times = q.size(1) / k.size(1);
      auto [grad_q, grad_k, grad_v, grad_bias] =
          at::_scaled_dot_product_efficient_attention_backward(
              grad, q, repeat_heads(k, times), repeat_heads(v, times), Tensor(), out, extras[0],
              extras[1], extras[2], 0.0, {true, true, true, false}, causal, call.scale());
      return {grad_q, sum_heads(grad_k, times), sum_heads(grad_v, times)};
    }
    case Kernel::kTiled:
      return tiled_attention_backward(grad, q, k, v, out, extras[0], call.options);
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
  return rows.tensor().to(at::kInt).to(like.device());
}

// {output [N, H * d], what the kernel's backward wants beside it...}
std::vector<Tensor> attend(const AttentionCall& call, const Tensor& q, const Tensor& k,
                           const Tensor& v) {
  check_stop();
  return RecomputeScope::run("attention", [&](bool) -> std::vector<Tensor> {
    const int64_t n = q.size(0), width = q.size(1) * q.size(2);
    if (DryRun* dry = DryRun::of(q)) dry->add_attention(flops_of(call, q));
    if (n == 0) return {at::empty({0, width}, q.options())};
    if (call.kernel == Kernel::kVarlenFlash) {
      const Tensor offsets = device_offsets(call.rows, q);
      auto [out, lse, rng_state, unused, mask] = at::_flash_attention_forward(
          q, k, v, offsets, offsets, call.rows.longest(), call.rows.longest(), 0.0,
          call.options.causal, /*return_debug_mask=*/false, call.scale());
      return {out.reshape({n, width}).tensor_data(), lse, rng_state, unused};
    }
    const std::vector<Piece> pieces = pieces_of(call.rows);
    const bool whole = pieces.size() == 1 && pieces[0].count * pieces[0].length == n;
    std::vector<Tensor> result{whole ? Tensor() : at::empty({n, width}, q.options())};
    for (const Piece& piece : pieces) {
      std::vector<Tensor> part = dense_forward(call, piece.of(q), piece.of(k), piece.of(v));
      const Tensor out = part[0].transpose(1, 2).reshape({piece.count * piece.length, width});
      if (whole) {
        result[0] = out.tensor_data();
      } else {
        result[0].narrow(0, piece.first, piece.count * piece.length).copy_(out);
      }
      for (size_t i = 1; i < part.size(); ++i) result.push_back(part[i].tensor_data());
    }
    return result;
  });
}

struct AttentionFunction : torch::autograd::Function<AttentionFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& q, const Tensor& k, const Tensor& v,
                        const AttentionCallPtr& call) {
    std::vector<Tensor> result = attend(*call, q, k, v);
    variable_list saved{q, k, v};
    saved.insert(saved.end(), result.begin(), result.end());
    ctx->save_for_backward(std::move(saved));
    ctx->saved_data["call"] = c10::IValue::make_capsule(call);
    ctx->set_materialize_grads(false);
    return result[0];
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    if (!grads[0].defined()) return variable_list(4);
    check_stop();
    const auto call =
        c10::static_intrusive_pointer_cast<AttentionCall>(ctx->saved_data["call"].toCapsule());
    const variable_list saved = ctx->get_saved_variables();
    const Tensor &q = saved[0], &k = saved[1], &v = saved[2];
    const Tensor out = saved[3].view({q.size(0), q.size(1), v.size(2)});
    const Tensor grad = grads[0].contiguous().view(out.sizes());
    const Tensor* extras = saved.data() + 4;
    if (DryRun* dry = DryRun::of(q)) dry->add_attention(2.5 * flops_of(*call, q));
    if (q.size(0) == 0) return {at::zeros_like(q), at::zeros_like(k), at::zeros_like(v), Tensor()};
    if (call->kernel == Kernel::kVarlenFlash) {
      const Tensor offsets = device_offsets(call->rows, q);
      const int64_t longest = call->rows.longest();
      auto [grad_q, grad_k, grad_v] = at::_flash_attention_backward(
          grad, q, k, v, out, extras[0], offsets, offsets, longest, longest, 0.0,
          call->options.causal, extras[1], extras[2], call->scale());
      return {grad_q, grad_k, grad_v, Tensor()};
    }
    const std::vector<Piece> pieces = pieces_of(call->rows);
    variable_list result(4);
    for (const Piece& piece : pieces) {
      auto [grad_q, grad_k, grad_v] = dense_backward(
          *call, piece.of(grad), piece.of(q), piece.of(k), piece.of(v), piece.of(out), extras);
      extras += extras_of(call->kernel);
      const Tensor* parts[] = {&grad_q, &grad_k, &grad_v};
      for (int i = 0; i < 3; ++i) {
        const Tensor rows = parts[i]->transpose(1, 2).flatten(0, 1);
        if (rows.size(0) == saved[i].size(0)) {
          result[i] = rows;
          continue;
        }
        if (!result[i].defined()) result[i] = at::empty(saved[i].sizes(), saved[i].options());
        result[i].narrow(0, piece.first, rows.size(0)).copy_(rows);
      }
    }
    return result;
  }
};

}  // namespace

void set_attention_backend(AttentionBackend backend) {
  forced_backend = backend;
}
AttentionBackend attention_backend() {
  return forced_backend;
}

Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, const Segments& rows,
                 AttentionOptions options) {
  const bool fits = q.dim() == 3 && k.dim() == 3 && v.sizes() == k.sizes() &&
                    q.size(0) == rows.total() && k.size(0) == rows.total() &&
                    q.size(2) == k.size(2) && k.size(1) > 0 && q.size(1) % k.size(1) == 0;
  if (!fits) {
    throw Error(ErrorCode::kInvalidArgument,
                c10::str("attention: q ", q.sizes(), ", k ", k.sizes(), " and v ", v.sizes(),
                         " do not fit segments of ", rows.total(), " rows"));
  }
  if (options.softcap < 0 || options.window < 0 || (options.window > 0 && !options.causal)) {
    throw Error(ErrorCode::kInvalidArgument,
                c10::str("attention: soft cap ", options.softcap, " and window ", options.window,
                         options.causal ? "" : " without causal"),
                "both are 0 or more, and a window is causal");
  }
  // The kernels read whole head vectors.
  auto dense = [](const Tensor& t) { return t.stride(2) == 1 ? t : t.contiguous(); };
  const Tensor dense_q = dense(q), dense_k = dense(k), dense_v = dense(v);
  auto call = c10::make_intrusive<AttentionCall>(rows);
  call->options = options;
  call->kernel = choose(dense_q, dense_k, dense_v, rows, options);
  if (!needs_graph({q, k, v})) return attend(*call, dense_q, dense_k, dense_v)[0];
  return AttentionFunction::apply(dense_q, dense_k, dense_v, call);
}

}  // namespace atelier::ops
