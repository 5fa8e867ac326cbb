// Shape letters: N rows of this rank, n the most rows of a rank, H heads, K key heads, d head
// width.
#include "ops/ring_attention.h"

#include <functional>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

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

using RingPtr = c10::intrusive_ptr<AttentionCall>;  // its rows are shared out

// Samples that follow each other, of which this rank has queries and another one has keys.
struct Meeting {
  AttentionCall call;
  int64_t first_query, first_key;
  Tensor queries(const Tensor& t) const { return t.narrow(0, first_query, call.q_rows.total()); }
  Tensor keys(const Tensor& t) const { return t.narrow(0, first_key, call.k_rows.total()); }
};

std::vector<Meeting> meetings(const AttentionCall& ring, int64_t rank) {
  const Segments& rows = ring.q_rows;
  std::vector<Meeting> result;
  std::vector<int64_t> queries, keys;  // of the samples of the next one
  const auto close = [&](int64_t end) {
    if (queries.empty()) return;
    AttentionCall call(Segments(queries), Segments(keys), ring.options);
    call.kernel = ring.kernel;
    const int64_t first = end - std::ssize(queries);
    result.push_back({std::move(call), rows.offset(first), rows.offset_of(rank, first)});
    queries.clear(), keys.clear();
  };
  for (int64_t s = 0; s < rows.count(); ++s) {
    const int64_t of_rank = rows.offset_of(rank, s + 1) - rows.offset_of(rank, s);
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
// next ones are on their way meanwhile.
template <typename F>
void visit_keys(const Tensor& own, SequenceGroup& group, F&& visit) {
  const int64_t P = group.size();
  Tensor held = own;
  for (int64_t step = 0; step < P; ++step) {
    const bool is_last = step + 1 == P;
    const auto next = is_last ? std::function<Tensor()>() : group.pass_on(held);
    visit(held, (group.rank() - step + P) % P);
    if (!is_last) held = next();
  }
}

// What the keys of some ranks gave, in wide(q).
struct Merged {
  Tensor out;          // [N, H, d]
  Tensor log_sum_exp;  // [N, H]

  explicit Merged(const Tensor& q)
      : out(at::zeros(q.sizes(), q.options().dtype(wide(q)))),
        log_sum_exp(at::full({q.size(0), q.size(1)}, -INFINITY, out.options())) {}

  void add(const Meeting& meeting, const std::vector<Tensor>& attended) {
    const Tensor sums = log_sum_exp_of(meeting.call, attended);
    const Tensor merged_sums = meeting.queries(log_sum_exp), merged = meeting.queries(out);
    // 1 where nothing was before.
    const Tensor weight = at::sigmoid(sums - merged_sums).unsqueeze(2);
    merged.lerp_(attended[0].view(merged.sizes()).to(merged.scalar_type()), weight);
    merged_sums.copy_(at::logaddexp(merged_sums, sums));
  }
};

// {output [N, H * d], log-sum-exp [N, H]}.
std::vector<Tensor> go_around(const AttentionCall& ring, const Tensor& q, const Tensor& k,
                              const Tensor& v) {
  check_stop();
  return RecomputeScope::run(attention_item(ring.kernel), [&](bool) -> std::vector<Tensor> {
    Merged merged(q);
    visit_keys(packed(k, v, ring.q_rows), group_of(ring.q_rows),
               [&](const Tensor& keys, int64_t rank) {
                 for (const Meeting& meeting : meetings(ring, rank))
                   merged.add(meeting, attend(meeting.call, meeting.queries(q),
                                              meeting.keys(keys[0]), meeting.keys(keys[1]), {}));
               });
    return {merged.out.to(q.scalar_type()).flatten(1).tensor_data(), merged.log_sum_exp};
  });
}

// What the backward pass knows beside keys, [N, H, ...] each.
struct Queries {
  Tensor grad, q, out, log_sum_exp;
};

// Gradients of the keys and values of a rank, [2, n, K, d] in wide(q); those of the queries are
// added to `grad_q`.
Tensor meet_back(const AttentionCall& ring, const Queries& own, const Tensor& keys, int64_t rank,
                 const Tensor& grad_q) {
  const Tensor grads = at::zeros(keys.sizes(), grad_q.options());
  for (const Meeting& meeting : meetings(ring, rank)) {
    const std::vector<Tensor> extras = extras_of(meeting.call, meeting.queries(own.log_sum_exp));
    const auto [of_q, of_k, of_v] = attend_backward(
        meeting.call, meeting.queries(own.grad), meeting.queries(own.q), meeting.keys(keys[0]),
        meeting.keys(keys[1]), {}, meeting.queries(own.out), extras.data(), {});
    meeting.queries(grad_q).add_(of_q);
    meeting.keys(grads[0]).copy_(of_k);
    meeting.keys(grads[1]).copy_(of_v);
  }
  return grads;
}

// Gradients of q, k and v.
variable_list go_back(const AttentionCall& ring, const Queries& own, const Tensor& k,
                      const Tensor& v) {
  SequenceGroup& group = group_of(ring.q_rows);
  const Tensor grad_q = at::zeros(own.q.sizes(), own.q.options().dtype(wide(own.q)));
  Tensor grads;                      // of own keys and values
  std::function<Tensor()> arriving;  // those of other ranks' that the previous rank has added to
  visit_keys(packed(k, v, ring.q_rows), group, [&](const Tensor& keys, int64_t rank) {
    Tensor sums = meet_back(ring, own, keys, rank, grad_q);
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
  return {grad_q.to(own.q.scalar_type()), of_rows(0), of_rows(1)};
}

struct RingFunction : torch::autograd::Function<RingFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& q, const Tensor& k, const Tensor& v,
                        const RingPtr& ring) {
    const std::vector<Tensor> result = go_around(*ring, q, k, v);
    ctx->save_for_backward({q, k, v, result[0], result[1]});
    ctx->saved_data["ring"] = c10::IValue::make_capsule(ring);
    return result[0];
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    check_stop();
    const auto ring =
        c10::static_intrusive_pointer_cast<AttentionCall>(ctx->saved_data["ring"].toCapsule());
    const variable_list saved = ctx->get_saved_variables();
    const Tensor &q = saved[0], &k = saved[1], &v = saved[2];
    const Queries own = {grads[0].contiguous().view(q.sizes()), q, saved[3].view(q.sizes()),
                         saved[4]};
    variable_list result = go_back(*ring, own, k, v);
    result.emplace_back();
    return result;
  }
};

// One whose log-sum-exp is known.
AttentionKernel kernel_for(const Tensor& q, const AttentionCall& ring) {
  const AttentionKernel kernel = choose_kernel(q, ring);
  if (kernel == AttentionKernel::kCudnn)
    refuse_backend("cuDNN", "a number of --sequence_parallel that divides the key heads");
  return kernel == AttentionKernel::kMath ? AttentionKernel::kTiled : kernel;
}

}  // namespace

Tensor ring_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Segments& rows,
                      const AttentionOptions& options) {
  auto ring = c10::make_intrusive<AttentionCall>(rows, rows, options);
  const Tensor dense_q = q.stride(2) == 1 ? q : q.contiguous();
  ring->is_merged = true;
  ring->kernel = kernel_for(dense_q, *ring);
  if (!needs_graph({q, k, v})) return go_around(*ring, dense_q, k, v)[0];
  return RingFunction::apply(dense_q, k, v, ring);
}

}  // namespace atelier::ops
