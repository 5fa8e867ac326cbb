#include <torch/csrc/autograd/custom_function.h>

#include "atelier/error.h"
#include "atelier/host/leaf_scope.h"
#include "atelier/host/recompute_scope.h"
#include "atelier/host/upload.h"
#include "atelier/host/weight_state.h"
#include "atelier/ops/linear.h"

#include "ops/autograd_support.h"

namespace atelier::ops {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

Tensor gather(const Tensor& ids, const WeightPtr& table) {
  auto sizes = ids.sizes().vec();
  sizes.push_back(table->sizes()[1]);
  return RecomputeScope::run("embedding", [&](bool need_values) -> std::vector<Tensor> {
    if (!need_values) return {stand_in(sizes, table->draw_rows(ids.new_empty({0})).options())};
    return {at::_unsafe_view(table->draw_rows(ids.reshape({-1})), sizes)};
  })[0];
}

struct EmbeddingFunction : torch::autograd::Function<EmbeddingFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& leaf, const Tensor& ids,
                        const WeightPtr& table) {
    ctx->saved_data["count"] = leaf.size(0);
    ctx->save_for_backward({ids});
    ctx->set_materialize_grads(false);
    return gather(ids, table);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    variable_list result(3);
    if (!grads[0].defined()) return result;
    const Tensor ids = upload(ctx->get_saved_variables()[0], grads[0].device());
    result[0] = at::embedding_dense_backward(grads[0].contiguous(), ids,
                                             ctx->saved_data["count"].toInt(), /*padding_idx=*/-1,
                                             /*scale_grad_by_freq=*/false);
    return result;
  }
};

}  // namespace

Tensor embedding(const Tensor& ids, const WeightPtr& table) {
  if (table->sizes().size() != 2 || ids.scalar_type() != at::kLong) {
    throw Error(ErrorCode::kInvalidArgument,
                c10::str("embedding: ids of ", toString(ids.scalar_type()), " into weight '",
                         table->name(), "' of shape ", table->sizes()),
                "ids are int64, the table is [count, width]");
  }
  if (!needs_graph({table->state().leaf()})) return gather(ids, table);
  return EmbeddingFunction::apply(LeafScope::place_of(table->state().leaf()), ids, table);
}

}  // namespace atelier::ops
