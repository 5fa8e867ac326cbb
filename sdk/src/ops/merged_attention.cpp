// Shape letters: N queries of this rank, P ranks, n the most keys of a rank, H heads, K key heads,
// d head width.
#include "ops/merged_attention.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "atelier/host/dry_run.h"
#include "atelier/host/recompute_scope.h"
#include "atelier/host/sequence_scope.h"
#include "atelier/host/stop.h"

#include "ops/attention_kernels.h"
#include "ops/autograd_support.h"
#include "ops/shared_attention.h"

namespace atelier::ops {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// What a call knows beside its differentiable tensors: q, then k and v of each set.
struct MergedCall : torch::CustomClassHolder {
  AttentionKernel kernel = AttentionKernel::kTiled;  // of sets without groups
  Segments q_rows;
  AttentionOptions options;  // of all sets
  std::vector<KeySet> sets;  // without k and v; key_groups: [P, n], of a set that is here [1, Nk]
  MergedCall(Segments queries, AttentionOptions options)
      : q_rows(std::move(queries)), options(std::move(options)) {}
};
using MergedCallPtr = c10::intrusive_ptr<MergedCall>;

// ---- Who meets ----

// Samples that follow each other, of which this rank has queries and a rank has keys of a set.
struct Meeting {
  AttentionCall call;
  int64_t first_query, first_key;
  double score_bias;

  Tensor queries(const Tensor& t) const { return t.narrow(0, first_query, call.q_rows.total()); }
  Tensor keys(const Tensor& t) const { return t.narrow(0, first_key, call.k_rows.total()); }

  Meeting(const MergedCall& merged, const KeySet& set, int64_t rank, AttentionCall&& of_samples,
          int64_t query, int64_t key)
      : call(std::move(of_samples)),
        first_query(query),
        first_key(key),
        score_bias(set.score_bias) {
    call.kernel = merged.kernel;
    if (!set.query_sees.defined()) return;
    call.kernel = AttentionKernel::kTiled;
    call.options.query_sees = queries(set.query_sees);
    call.options.key_groups = keys(set.key_groups[rank]);
  }
};

std::vector<Meeting> meetings(const MergedCall& merged, const KeySet& set, int64_t rank) {
  const Segments& rows = merged.q_rows;
  const auto key_offset = [&](int64_t s) {
    return set.rows.is_shared() ? set.rows.offset_of(rank, s) : set.rows.offset(s);
  };
  std::vector<Meeting> result;
  std::vector<int64_t> queries, keys;  // of the samples of the next one
  const auto close = [&](int64_t end) {
    if (queries.empty()) return;
    const int64_t first = end - std::ssize(queries);
    result.emplace_back(merged, set, rank,
                        AttentionCall(Segments(queries), Segments(keys), merged.options),
                        rows.offset(first), key_offset(first));
    queries.clear(), keys.clear();
  };
  for (int64_t s = 0; s < rows.count(); ++s) {
    const int64_t of_rank = key_offset(s + 1) - key_offset(s);
    if (rows.length(s) == 0 || of_rank == 0) {
      close(s);
    } else {
      queries.push_back(rows.length(s));
      keys.push_back(of_rank);
    }
  }
  close(rows.count());
  return result;
}

// What goes around: [2, n, K, d].
Tensor packed(const Tensor& k, const Tensor& v, const Segments& rows) {
  const Tensor both = at::empty({2, most_rows(rows), k.size(1), k.size(2)}, k.options());
  both[0].narrow(0, 0, k.size(0)).copy_(k);
  both[1].narrow(0, 0, v.size(0)).copy_(v);
  return both;
}

// Calls `visit` with the keys and values of each rank, this one's first, and with its number. The
// next ones are on their way meanwhile. A set that is not shared out is visited once, as rank 0's.
template <typename F>
void visit_keys(const KeySet& set, const Tensor& k, const Tensor& v, F&& visit) {
  if (!set.rows.is_shared()) {
    visit(k, v, int64_t{0});
    return;
  }
  SequenceGroup& group = group_of(set.rows);
  const int64_t P = group.size();
  Tensor held = packed(k, v, set.rows);
  for (int64_t step = 0; step < P; ++step) {
    const bool is_last = step + 1 == P;
    const auto next = is_last ? std::function<Tensor()>() : group.pass_on(held);
    visit(held[0], held[1], (group.rank() - step + P) % P);
    if (!is_last) held = next();
  }
}

// ---- Forward ----

// What some of the keys gave, in wide(q).
class Merged {
 public:
  explicit Merged(const Tensor& q)
      : out_(at::zeros(q.sizes(), q.options().dtype(wide(q)))),
        log_sum_exp_(at::full({q.size(0), q.size(1)}, kNothing, out_.options())) {}

  void add(const Meeting& meeting, const std::vector<Tensor>& attended) {
    Tensor sums = log_sum_exp_of(meeting.call, attended);
    if (meeting.call.options.query_sees.defined())
      sums = sums.masked_fill(sums == INFINITY, -INFINITY);  // rows that see none of these keys
    if (meeting.score_bias != 0) sums = sums + meeting.score_bias;
    const Tensor merged_sums = meeting.queries(log_sum_exp_), merged = meeting.queries(out_);
    const Tensor weight = at::sigmoid(sums - merged_sums).unsqueeze(2);
    merged.lerp_(attended[0].view(merged.sizes()).to(merged.scalar_type()), weight);
    merged_sums.copy_(at::logaddexp(merged_sums, sums));
  }

  // {output [N, H * d], log-sum-exp [N, H], infinite for rows that see no key}.
  std::vector<Tensor> take(at::ScalarType dtype) {
    log_sum_exp_.masked_fill_(log_sum_exp_ == kNothing, INFINITY);
    return {out_.to(dtype).flatten(1).tensor_data(), log_sum_exp_};
  }

 private:
  // The log-sum-exp of no key. Beside it any sum weighs 1; an infinite one would have no difference
  // to that of a row which sees no key.
  static constexpr double kNothing = -1e30;

  Tensor out_;          // [N, H, d]
  Tensor log_sum_exp_;  // [N, H]
};

// One operator of a recompute scope. `in`: q, and k and v of each set. Returns what Merged gives.
std::vector<Tensor> attend_once(const MergedCall& call, at::TensorList in) {
  check_stop();
  const Tensor& q = in[0];
  return RecomputeScope::run(attention_item(call.kernel), [&](bool) {
    Merged merged(q);
    for (size_t i = 0; i < call.sets.size(); ++i) {
      const KeySet& set = call.sets[i];
      visit_keys(set, in[2 * i + 1], in[2 * i + 2],
                 [&](const Tensor& k, const Tensor& v, int64_t rank) {
                   for (const Meeting& meeting : meetings(call, set, rank)) {
                     if (DryRun* dry = DryRun::of(q)) dry->add_attention(flops_of(meeting.call, q));
                     merged.add(meeting, attend(meeting.call, meeting.queries(q), meeting.keys(k),
                                                meeting.keys(v), {}));
                   }
                 });
    }
    return merged.take(q.scalar_type());
  });
}

// ---- Backward ----

// What the backward pass knows beside keys, [N, H, ...] each.
struct Queries {
  Tensor grad, q, out, log_sum_exp;
};

// Gradients of keys and values, [n, K, d] each, of which `rank` has rows; those of the queries are
// added to `grad_q`, in wide(q).
std::pair<Tensor, Tensor> meet_back(const MergedCall& call, const KeySet& set, const Queries& own,
                                    const Tensor& k, const Tensor& v, int64_t rank,
                                    const Tensor& grad_q) {
  Tensor grad_k, grad_v;
  for (const Meeting& meeting : meetings(call, set, rank)) {
    if (DryRun* dry = DryRun::of(k)) dry->add_attention(2.5 * flops_of(meeting.call, own.q));
    const Tensor sums = meeting.queries(own.log_sum_exp) - meeting.score_bias;
    const std::vector<Tensor> extras = extras_of(meeting.call, sums);
    const auto [of_q, of_k, of_v] = attend_backward(
        meeting.call, meeting.queries(own.grad), meeting.queries(own.q), meeting.keys(k),
        meeting.keys(v), {}, meeting.queries(own.out), extras.data(), {});
    meeting.queries(grad_q).add_(of_q);
    put_rows(grad_k, meeting.first_key, of_k, k);
    put_rows(grad_v, meeting.first_key, of_v, v);
  }
  if (!grad_k.defined()) return {at::zeros_like(k), at::zeros_like(v)};
  return {grad_k, grad_v};
}

// Gradients of this rank's keys and values of a set, shared out or not.
std::pair<Tensor, Tensor> go_back(const MergedCall& call, const KeySet& set, const Queries& own,
                                  const Tensor& k, const Tensor& v, const Tensor& grad_q) {
  if (!set.rows.is_shared()) return meet_back(call, set, own, k, v, 0, grad_q);
  SequenceGroup& group = group_of(set.rows);
  Tensor grads;                      // of own keys and values, [2, n, K, d] in wide(q)
  std::function<Tensor()> arriving;  // those of other ranks' that the previous rank has added to
  visit_keys(set, k, v, [&](const Tensor& keys, const Tensor& values, int64_t rank) {
    const auto [of_k, of_v] = meet_back(call, set, own, keys, values, rank, grad_q);
    Tensor sums = at::stack({of_k, of_v}).to(grad_q.scalar_type());
    if (rank == group.rank()) {
      grads = std::move(sums);
      return;
    }
    if (arriving) sums.add_(arriving());
    arriving = group.pass_on(sums.to(keys.scalar_type()));
  });
  if (arriving) grads.add_(arriving());
  const auto of_rows = [&](int64_t which) {
    return grads[which].narrow(0, 0, k.size(0)).to(k.scalar_type());
  };
  return {of_rows(0), of_rows(1)};
}

struct MergedFunction : torch::autograd::Function<MergedFunction> {
  static Tensor forward(AutogradContext* ctx, at::TensorList in, const MergedCallPtr& call) {
    const std::vector<Tensor> result = attend_once(*call, in);
    variable_list saved = in.vec();
    saved.insert(saved.end(), result.begin(), result.end());
    ctx->save_for_backward(std::move(saved));
    ctx->saved_data["call"] = c10::IValue::make_capsule(call);
    return result[0];
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    check_stop();
    const auto call =
        c10::static_intrusive_pointer_cast<MergedCall>(ctx->saved_data["call"].toCapsule());
    const variable_list saved = ctx->get_saved_variables();
    const Tensor &q = saved[0], &out = saved[saved.size() - 2];
    const Queries own = {grads[0].contiguous().view(q.sizes()), q, out.view(q.sizes()),
                         saved.back()};
    const Tensor grad_q = at::zeros(q.sizes(), q.options().dtype(wide(q)));
    variable_list result(1);
    for (size_t i = 0; i < call->sets.size(); ++i) {
      auto [grad_k, grad_v] =
          go_back(*call, call->sets[i], own, saved[2 * i + 1], saved[2 * i + 2], grad_q);
      result.push_back(std::move(grad_k));
      result.push_back(std::move(grad_v));
    }
    result[0] = grad_q.to(q.scalar_type());
    result.emplace_back();
    return result;
  }
};

// ---- One call ----

// A kernel whose log-sum-exp is known, for sets without groups.
AttentionKernel kernel_for(const Tensor& q, const MergedCall& call) {
  const auto plain =
      std::ranges::find_if(call.sets, [](const KeySet& set) { return !set.query_sees.defined(); });
  if (plain == call.sets.end()) return AttentionKernel::kTiled;
  AttentionCall wanted(call.q_rows, plain->rows, call.options);
  wanted.is_merged = true;
  const AttentionKernel kernel = choose_kernel(q, wanted);
  if (kernel == AttentionKernel::kCudnn)
    refuse_backend("cuDNN",
                   "all keys in one set, and a number of --sequence_parallel that divides "
                   "the key heads");
  return kernel == AttentionKernel::kMath ? AttentionKernel::kTiled : kernel;
}

KeySet without_keys(KeySet set) {
  set.k = set.v = Tensor();
  if (Tensor& groups = set.key_groups; groups.defined())
    groups = set.rows.is_shared() ? gather_ranks(groups, set.rows) : groups.unsqueeze(0);
  return set;
}

}  // namespace

Tensor merged_attention(const Tensor& q, const Segments& q_rows, std::span<const KeySet> sets,
                        const AttentionOptions& options) {
  auto call = c10::make_intrusive<MergedCall>(q_rows, options);
  // The kernels read whole head vectors.
  const auto dense = [](const Tensor& t) { return t.stride(2) == 1 ? t : t.contiguous(); };
  variable_list in{dense(q)};
  for (const KeySet& set : sets) {
    call->sets.push_back(without_keys(set));
    in.push_back(dense(set.k));
    in.push_back(dense(set.v));
  }
  call->kernel = kernel_for(in[0], *call);
  if (!needs_graph(in)) return attend_once(*call, in)[0];
  return MergedFunction::apply(at::TensorList(in), call);
}

}  // namespace atelier::ops
