#include "atelier/ops/attention.h"

#include <cmath>

#include <torch/csrc/autograd/custom_function.h>

#include "atelier/error.h"
#include "atelier/host/dry_run.h"
#include "atelier/host/recompute_scope.h"
#include "atelier/host/stop.h"

#include "ops/attention_kernels.h"
#include "ops/autograd_support.h"
#include "ops/merged_attention.h"
#include "ops/shared_attention.h"

namespace atelier::ops {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using AttentionCallPtr = c10::intrusive_ptr<AttentionCall>;

// One operator of a recompute scope.
std::vector<Tensor> attend_once(const AttentionCall& call, const Tensor& q, const Tensor& k,
                                const Tensor& v, const Tensor& bias) {
  check_stop();
  return RecomputeScope::run(attention_item(call.kernel), [&](bool) {
    if (DryRun* dry = DryRun::of(q)) dry->add_attention(flops_of(call, q));
    return attend(call, q, k, v, bias);
  });
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
  if (k_rows.is_shared() && !q_rows.is_shared())
    throw Error(ErrorCode::kUnsupported,
                "attention: keys that are shared out among ranks, and queries that are not",
                "take the queries' rows of the same SharedRows");
}

void check_bias(const Tensor& q, const AttentionCall& call) {
  const Tensor& bias = call.options.offset_bias;
  const std::array<int64_t, 2> wanted = {
      q.size(1), std::max<int64_t>(0, call.q_rows.longest() + call.k_rows.longest() - 1)};
  if (bias.defined() && (bias.sizes() != wanted || !at::isFloatingType(bias.scalar_type())))
    throw Error(ErrorCode::kInvalidArgument,
                c10::str("attention: offset_bias is ", toString(bias.scalar_type()), bias.sizes(),
                         ", expected ", at::IntArrayRef(wanted), ", heads by offsets"));
}

void check_groups(const Tensor& q, const Tensor& k, const Tensor& sees, const Tensor& groups) {
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

void check_set(const Tensor& q, const Segments& q_rows, const KeySet& set) {
  check(q, set.k, set.v, AttentionCall(q_rows, set.rows, {}));
  check_groups(q, set.k, set.query_sees, set.key_groups);
  constexpr double kMostBias = 1e6;  // far beyond any score, and a float32 beside them
  if (!(std::abs(set.score_bias) <= kMostBias))
    throw Error(ErrorCode::kInvalidArgument,
                c10::str("attention: a score_bias of ", set.score_bias),
                "query_sees and key_groups are for keys that are not seen");
}

struct AttentionFunction : torch::autograd::Function<AttentionFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& q, const Tensor& k, const Tensor& v,
                        const std::optional<Tensor>& bias, const AttentionCallPtr& call) {
    std::vector<Tensor> result = attend_once(*call, q, k, v, bias.value_or(Tensor()));
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
    if (DryRun* dry = DryRun::of(q)) dry->add_attention(2.5 * flops_of(*call, q));
    if (bias.defined() && ctx->needs_input_grad(3)) result[3] = at::zeros_like(bias, wide(q));
    std::tie(result[0], result[1], result[2]) =
        attend_backward(*call, grad, q, k, v, bias, out, saved.data() + 5, result[3]);
    for (int i = 0; i < 3; ++i)
      if (!result[i].defined()) result[i] = at::zeros_like(saved[i]);
    if (result[3].defined()) result[3] = result[3].to(bias.scalar_type());
    return result;
  }
};

}  // namespace

Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, const Segments& rows,
                 AttentionOptions options) {
  return attention(q, k, v, rows, rows, std::move(options));
}

Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, const Segments& q_rows,
                 const Segments& k_rows, AttentionOptions options) {
  auto call = c10::make_intrusive<AttentionCall>(q_rows, k_rows, std::move(options));
  check(q, k, v, *call);
  check_groups(q, k, call->options.query_sees, call->options.key_groups);
  if (k_rows.is_shared()) return shared_attention(q, k, v, q_rows, k_rows, call->options);
  check_bias(q, *call);
  // The kernels read whole head vectors.
  auto dense = [](const Tensor& t) { return t.stride(2) == 1 ? t : t.contiguous(); };
  const Tensor dense_q = dense(q), dense_k = dense(k), dense_v = dense(v);
  call->kernel = choose_kernel(dense_q, *call);
  const Tensor bias = std::exchange(call->options.offset_bias, Tensor());
  if (!needs_graph({q, k, v, bias})) return attend_once(*call, dense_q, dense_k, dense_v, bias)[0];
  return AttentionFunction::apply(dense_q, dense_k, dense_v,
                                  bias.defined() ? std::optional(bias) : std::nullopt, call);
}

Tensor attention(const Tensor& q, const Segments& q_rows, std::span<const KeySet> sets,
                 double scale) {
  if (sets.empty())
    throw Error(ErrorCode::kInvalidArgument, "attention: no set of keys", "give one or more");
  for (const KeySet& set : sets) check_set(q, q_rows, set);
  if (sets.size() > 1) return merged_attention(q, q_rows, sets, {.scale = scale});
  const KeySet& set = sets.front();  // its bias is added to all scores, which changes no weight
  return attention(q, set.k, set.v, q_rows, set.rows,
                   {.scale = scale, .query_sees = set.query_sees, .key_groups = set.key_groups});
}

}  // namespace atelier::ops
