#include "atelier/ops/attention.h"

#include <atomic>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include "atelier/error.h"
#include "atelier/host/attention_rules.h"
#include "atelier/host/device_traits.h"
#include "atelier/host/dry_run.h"
#include "atelier/host/recompute_scope.h"
#include "atelier/host/stop.h"
#include "atelier/host/upload.h"

#include "ops/autograd_support.h"
#include "ops/cpu_flash.h"
#include "ops/shared_attention.h"
#include "ops/tiled_attention.h"

namespace atelier::ops {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

std::atomic<AttentionBackend> forced_backend{AttentionBackend::kAuto};

using Kernel = AttentionKernel;

// What one call of attention() knows beside its differentiable tensors, of which the bias is one.
struct AttentionCall : torch::CustomClassHolder {
  Kernel kernel;
  AttentionOptions options;
  Segments q_rows, k_rows;
  AttentionCall(Segments queries, Segments keys, AttentionOptions options)
      : options(std::move(options)), q_rows(std::move(queries)), k_rows(std::move(keys)) {}
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
          .must_be_the_same = at::globalContext().deterministicAlgorithms()};
}

// The kernel that --attention asks for. Throws where it cannot run.
Kernel forced_on_cuda(AttentionBackend forced, const AttentionCase& wanted) {
  const auto checked = [&](Kernel kernel, const char* backend, const char* needs) {
    if (!can_attend(kernel, wanted)) refuse(backend, needs);
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

Kernel choose(const Tensor& q, const AttentionCall& call) {
  // What a kernel kept is read by its own backward alone.
  if (const auto recorded = attention_kernel_of(RecomputeScope::recorded())) return *recorded;
  if (needs_tiles(call.options)) return Kernel::kTiled;
  const AttentionBackend forced = forced_backend;
  if (forced == AttentionBackend::kMath) return Kernel::kMath;
  if (q.is_meta()) return Kernel::kDry;
  if (!q.is_cuda()) {
    if (forced == AttentionBackend::kEfficient) refuse("efficient", "a CUDA device");
    if (forced == AttentionBackend::kCudnn) refuse("cuDNN", "a CUDA device");
    return q.is_cpu() ? Kernel::kCpuFlash : Kernel::kMath;
  }
  const AttentionCase wanted = case_of(q, call);
  return forced == AttentionBackend::kAuto ? attention_kernel(wanted)
                                           : forced_on_cuda(forced, wanted);
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

// The operations of one forward pass.
double flops_of(const AttentionCall& call, const Tensor& q) {
  double pairs = 0;
  for (int64_t s = 0; s < call.q_rows.count(); ++s)
    pairs +=
        static_cast<double>(call.q_rows.length(s)) * static_cast<double>(call.k_rows.length(s));
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

// {output [Nq, H * d], what the kernel's backward wants beside it...}. `bias` may be undefined.
std::vector<Tensor> attend(const AttentionCall& call, const Tensor& q, const Tensor& k,
                           const Tensor& v, const Tensor& bias) {
  check_stop();
  return RecomputeScope::run(attention_item(call.kernel), [&](bool) -> std::vector<Tensor> {
    const int64_t n = q.size(0), width = q.size(1) * q.size(2);
    if (DryRun* dry = DryRun::of(q)) dry->add_attention(flops_of(call, q));
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
  });
}

// Puts the gradient of a piece, [B, H, L, d], to its rows of `whole`, that of `of`, which is made
// where it is not there yet.
void put_rows(Tensor& whole, const Rows& rows, const Tensor& part, const Tensor& of) {
  const Tensor packed = part.transpose(1, 2).flatten(0, 1);
  if (rows.total() == of.size(0)) {
    whole = packed;
    return;
  }
  if (!whole.defined()) whole = at::zeros(of.sizes(), of.options());
  whole.narrow(0, rows.first, rows.total()).copy_(packed);
}

// Throws where the arguments of attention() do not fit together.
void check(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionCall& call) {
  const Segments &q_rows = call.q_rows, &k_rows = call.k_rows;
  const bool fits = q.dim() == 3 && k.dim() == 3 && v.sizes() == k.sizes() &&
                    q.size(0) == q_rows.total() && k.size(0) == k_rows.total() &&
                    q_rows.count() == k_rows.count() && q.size(2) == k.size(2) && k.size(1) > 0 &&
                    q.size(1) % k.size(1) == 0;
  if (!fits) {
    throw Error(ErrorCode::kInvalidArgument,
                c10::str("attention: q ", q.sizes(), ", k ", k.sizes(), " and v ", v.sizes(),
                         " do not fit ", q_rows.count(), " and ", k_rows.count(), " segments of ",
                         q_rows.total(), " and ", k_rows.total(), " rows"));
  }
  const AttentionOptions& options = call.options;
  if (options.softcap < 0 || options.window < 0 || (options.window > 0 && !options.causal)) {
    throw Error(ErrorCode::kInvalidArgument,
                c10::str("attention: soft cap ", options.softcap, " and window ", options.window,
                         options.causal ? "" : " without causal"),
                "both are 0 or more, and a window is causal");
  }
  if (options.causal && !at::equal(q_rows.tensor(), k_rows.tensor()))
    throw Error(ErrorCode::kInvalidArgument, "attention: causal between rows of two kinds",
                "causal needs as many keys as queries in each sample");
}

void check_masks(const Tensor& q, const Tensor& k, const AttentionCall& call) {
  const Tensor &bias = call.options.offset_bias, &sees = call.options.query_sees,
               &groups = call.options.key_groups;
  const std::array<int64_t, 2> wanted = {
      q.size(1), std::max<int64_t>(0, call.q_rows.longest() + call.k_rows.longest() - 1)};
  if (bias.defined() && (bias.sizes() != wanted || !at::isFloatingType(bias.scalar_type())))
    throw Error(ErrorCode::kInvalidArgument,
                c10::str("attention: offset_bias is ", toString(bias.scalar_type()), bias.sizes(),
                         ", expected ", at::IntArrayRef(wanted), ", heads by offsets"));
  const auto is_of = [](const Tensor& sets, const Tensor& rows) {
    return sets.defined() && sets.sizes() == at::IntArrayRef(rows.size(0)) &&
           sets.scalar_type() == at::kLong;
  };
  if ((sees.defined() || groups.defined()) && !(is_of(sees, q) && is_of(groups, k)))
    throw Error(ErrorCode::kInvalidArgument,
                c10::str("attention: query_sees and key_groups are not int64 [", q.size(0),
                         "] and [", k.size(0), "]"),
                "give both, one set a row");
}

struct AttentionFunction : torch::autograd::Function<AttentionFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& q, const Tensor& k, const Tensor& v,
                        const std::optional<Tensor>& bias, const AttentionCallPtr& call) {
    std::vector<Tensor> result = attend(*call, q, k, v, bias.value_or(Tensor()));
    variable_list saved{q, k, v, bias.value_or(Tensor())};
    saved.insert(saved.end(), result.begin(), result.end());
    ctx->save_for_backward(std::move(saved));
    ctx->saved_data["call"] = c10::IValue::make_capsule(call);
    ctx->set_materialize_grads(false);
    return result[0];
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    variable_list result(5);
    if (!grads[0].defined()) return result;
    check_stop();
    const auto call =
        c10::static_intrusive_pointer_cast<AttentionCall>(ctx->saved_data["call"].toCapsule());
    const variable_list saved = ctx->get_saved_variables();
    const Tensor &q = saved[0], &k = saved[1], &v = saved[2], &bias = saved[3];
    const Tensor out = saved[4].view({q.size(0), q.size(1), v.size(2)});
    const Tensor grad = grads[0].contiguous().view(out.sizes());
    const Tensor* extras = saved.data() + 5;
    if (DryRun* dry = DryRun::of(q)) dry->add_attention(2.5 * flops_of(*call, q));
    if (call->kernel == Kernel::kVarlenFlash && q.size(0) > 0 && k.size(0) > 0) {
      auto [grad_q, grad_k, grad_v] = at::_flash_attention_backward(
          grad, q, k, v, out, extras[0], device_offsets(call->q_rows, q),
          device_offsets(call->k_rows, q), call->q_rows.longest(), call->k_rows.longest(), 0.0,
          call->options.causal, extras[1], extras[2], call->scale());
      return {grad_q, grad_k, grad_v, Tensor(), Tensor()};
    }
    if (bias.defined() && ctx->needs_input_grad(3)) result[3] = at::zeros_like(bias, wide(q));
    for (const Piece& piece : pieces_of(call->q_rows, call->k_rows)) {
      const auto& [queries, keys] = piece;
      Tensor grad_bias = result[3].defined() ? columns_of(result[3], *call, piece) : Tensor();
      auto [grad_q, grad_k, grad_v] = dense_backward(
          *call, options_of(*call, bias, piece), queries.heads_of(grad), queries.heads_of(q),
          keys.heads_of(k), keys.heads_of(v), queries.heads_of(out), extras, &grad_bias);
      extras += extras_of(call->kernel);
      put_rows(result[0], queries, grad_q, q);
      put_rows(result[1], keys, grad_k, k);
      put_rows(result[2], keys, grad_v, v);
    }
    for (int i = 0; i < 3; ++i)
      if (!result[i].defined()) result[i] = at::zeros_like(saved[i]);
    if (result[3].defined()) result[3] = result[3].to(bias.scalar_type());
    return result;
  }
};

}  // namespace

void set_attention_backend(AttentionBackend backend) {
  forced_backend = backend;
}

Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, const Segments& rows,
                 AttentionOptions options) {
  return attention(q, k, v, rows, rows, std::move(options));
}

Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, const Segments& q_rows,
                 const Segments& k_rows, AttentionOptions options) {
  if (k_rows.is_shared()) return shared_attention(q, k, v, q_rows, k_rows, options);
  auto call = c10::make_intrusive<AttentionCall>(q_rows, k_rows, std::move(options));
  check(q, k, v, *call);
  check_masks(q, k, *call);
  // The kernels read whole head vectors.
  auto dense = [](const Tensor& t) { return t.stride(2) == 1 ? t : t.contiguous(); };
  const Tensor dense_q = dense(q), dense_k = dense(k), dense_v = dense(v);
  call->kernel = choose(dense_q, *call);
  const Tensor bias = std::exchange(call->options.offset_bias, Tensor());
  if (!needs_graph({q, k, v, bias})) return attend(*call, dense_q, dense_k, dense_v, bias)[0];
  return AttentionFunction::apply(dense_q, dense_k, dense_v,
                                  bias.defined() ? std::optional(bias) : std::nullopt, call);
}

}  // namespace atelier::ops
