#include "atelier/ops/linear.h"

#include <algorithm>
#include <cmath>
#include <mutex>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include "atelier/error.h"
#include "atelier/host/dry_run.h"
#include "atelier/host/leaf_scope.h"
#include "atelier/host/recompute_scope.h"
#include "atelier/host/sample_scope.h"
#include "atelier/host/stop.h"
#include "atelier/host/weight_state.h"
#include "atelier/ops/linears.h"

#include "ops/autograd_support.h"
#include "ops/eight_bit.h"

namespace atelier::ops {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// What one call of linears() knows beside its tensors.
struct LinearCall : torch::CustomClassHolder {
  // Edges are places in the list of differentiable inputs: {x, leaves of weights and biases,
  // a, b, a, b, ...}; -1: absent.
  struct Layer {
    WeightPtr weight, bias;
    int64_t weight_edge = -1, bias_edge = -1;
    int64_t weight_version = 0;        // of the leaf's values
    size_t first_share = 0, past = 0;  // its adapters
  };
  // An adapter that takes part. The rank-r products of all of them stand side by side.
  struct Share {
    double scale = 1.0, dropout = 0.0;
    uint64_t seed = 0;  // of its dropout's mask
    int64_t column = 0, rank = 0;
    int64_t number = -1;  // see Adapter
    Tensor of(const Tensor& low_rank) const { return low_rank.narrow(1, column, rank); }
  };
  bool differs_by_sample() const {
    return std::ranges::any_of(shares, [](const Share& share) { return share.number >= 0; });
  }
  std::vector<Layer> layers;
  std::vector<Share> shares;
  int64_t adapter_edge = 0;  // of the first a
  int64_t rank = 0;          // of all shares
};
using LinearCallPtr = c10::intrusive_ptr<LinearCall>;
using Layer = LinearCall::Layer;
using Share = LinearCall::Share;

Tensor rows_of(const Tensor& t) {
  return t.reshape({-1, t.size(-1)});
}

at::Generator seeded_generator(at::Device device, uint64_t seed) {
  at::Generator generator = device.is_cpu() ? at::detail::createCPUGenerator(seed)
                                            : at::globalContext()
                                                  .getAcceleratorHooksInterface(device.type())
                                                  .getNewGenerator(device.index());
  generator.set_current_seed(seed);
  return generator;
}

// What an adapter sees of x, or, of the gradient, what comes back through that: `t` times the
// dropout's mask.
Tensor dropped(const Share& share, const Tensor& t) {
  if (share.dropout == 0) return t;
  const double kept = 1.0 - share.dropout;
  Tensor mask = at::empty(t.sizes(), t.options());
  if (t.is_meta()) return mask;
  mask.bernoulli_(kept, seeded_generator(t.device(), share.seed)).div_(kept);
  return mask.mul_(t);
}

// x y in `dtype`. On a GPU the sums of 16-bit factors are float32, and leave as that.
Tensor product_in(at::ScalarType dtype, const Tensor& x, const Tensor& y) {
  if (x.is_cuda() && dtype == at::kFloat && x.element_size() == 2) return at::mm(x, y, at::kFloat);
  return at::mm(x, y).to(dtype);
}

std::vector<int64_t> with_last(const Tensor& t, int64_t width) {
  auto sizes = t.sizes().vec();
  sizes.back() = width;
  return sizes;
}

// For dry runs: `passes` products of `t`, [..., m], with a matrix of m columns and n rows.
void count_product(const Tensor& t, int64_t n, int passes = 1) {
  if (DryRun* dry = DryRun::of(t))
    dry->add_product(2.0 * passes * static_cast<double>(t.numel()) * static_cast<double>(n));
}

// x Wᵀ + bias of a weight that is drawn in pieces; undefined where it is not.
Tensor product_by_pieces(const Layer& layer, const Tensor& rows) {
  Tensor y;
  layer.weight->state().draw_pieces(0, [&](int64_t begin, const Tensor& piece) {
    if (!y.defined()) y = at::empty({rows.size(0), layer.weight->sizes()[0]}, rows.options());
    Tensor own = y.narrow(1, begin, piece.size(0));
    if (layer.bias) {
      at::addmm_out(own, layer.bias->draw().narrow(0, begin, piece.size(0)), rows, piece.t());
    } else {
      at::mm_out(own, rows, piece.t());
    }
  });
  return y;
}

// x Wᵀ + bias, in 8 bits where the weight is to be multiplied so.
Tensor base_product(const Layer& layer, const Tensor& rows) {
  const std::optional<RowCodes> codes = layer.weight->state().draw_codes();
  if (codes) return eight_bit_product(rows, *codes, layer.bias ? layer.bias->draw() : Tensor());
  if (const Tensor y = product_by_pieces(layer, rows); y.defined()) return y;
  const Tensor weight = layer.weight->draw();
  return layer.bias ? at::addmm(layer.bias->draw(), rows, weight.t()) : at::mm(rows, weight.t());
}

// Adds what comes back through a weight that is drawn in pieces to `sum`, which is made where it is
// not there yet; false, and nothing added, where it is not drawn so.
bool add_gradient_by_pieces(const Layer& layer, const Tensor& grad, Tensor& sum) {
  const bool is_first = !sum.defined();
  return layer.weight->state().draw_pieces(1, [&](int64_t begin, const Tensor& piece) {
    if (!sum.defined()) sum = at::empty({grad.size(0), layer.weight->sizes()[1]}, grad.options());
    Tensor own = sum.narrow(1, begin, piece.size(1));
    if (is_first) {
      at::mm_out(own, grad, piece);
    } else {
      own.addmm_(grad, piece);
    }
  });
}

// Adds what comes back through the weight to `sum`, which is made where it is not there yet.
void add_base_gradient(const Layer& layer, const Tensor& grad, Tensor& sum) {
  if (const std::optional<RowCodes> codes = layer.weight->state().draw_codes()) {
    const Tensor part = eight_bit_gradient(grad, *codes);
    sum = sum.defined() ? sum.add_(part) : part;
  } else if (!add_gradient_by_pieces(layer, grad, sum)) {
    const Tensor weight = layer.weight->draw();
    sum = sum.defined() ? sum.addmm_(grad, weight) : at::mm(grad, weight);
  }
}

// Adapters that see the same of x, and the columns of their rank-r products.
struct Run {
  size_t first, past;
  int64_t column, rank;
  Tensor of(const Tensor& low_rank) const { return low_rank.narrow(1, column, rank); }
};

// All adapters without a dropout that stand together, and each one that has it.
std::vector<Run> runs_of(const LinearCall& call) {
  std::vector<Run> runs;
  for (size_t i = 0; i < call.shares.size(); ++i) {
    const Share& share = call.shares[i];
    if (i > 0 && share.dropout == 0 && call.shares[i - 1].dropout == 0) {
      runs.back().past = i + 1;
      runs.back().rank += share.rank;
    } else {
      runs.push_back({i, i + 1, share.column, share.rank});
    }
  }
  return runs;
}

// The matrices a of a run, one below the other. `adapters`: a, b, a, b, ...
Tensor stacked(const Run& run, at::TensorList adapters) {
  if (run.past - run.first == 1) return adapters[2 * run.first];
  std::vector<Tensor> parts;
  for (size_t i = run.first; i < run.past; ++i) parts.push_back(adapters[2 * i]);
  return at::cat(parts, 0);
}

// Whether any of `adapters` is trained: of their matrices a (`which` is 0) or b (1).
bool any_trained(at::TensorList adapters, size_t which) {
  for (size_t i = which; i < adapters.size(); i += 2)
    if (adapters[i].requires_grad()) return true;
  return false;
}

// x aᵀ of all adapters, side by side: one product for a run.
Tensor shrink(const LinearCall& call, const Tensor& rows, at::TensorList adapters) {
  const std::vector<Run> runs = runs_of(call);
  Tensor low_rank;
  if (runs.size() > 1) low_rank = at::empty({rows.size(0), call.rank}, rows.options());
  for (const Run& run : runs) {
    const Tensor seen = dropped(call.shares[run.first], rows);
    const Tensor a = stacked(run, adapters).to(rows.scalar_type());
    if (runs.size() == 1) return at::mm(seen, a.t());
    Tensor part = run.of(low_rank);
    at::mm_out(part, seen, a.t());
  }
  return low_rank;
}

// Adds to y of one layer what its adapters make of `low_rank`, which shrink() gave.
void expand(const LinearCall& call, const Layer& layer, const Tensor& low_rank,
            at::TensorList adapters, Tensor& y) {
  for (size_t i = layer.first_share; i < layer.past; ++i) {
    const Share& share = call.shares[i];
    const Tensor own = share.of(low_rank);
    count_product(own, layer.weight->sizes()[0]);
    y.addmm_(own, adapters[2 * i + 1].to(y.scalar_type()).t(), 1, share.scale);
  }
}

// y of one layer. `low_rank`: what shrink() gave.
Tensor product(const LinearCall& call, const Layer& layer, const Tensor& rows,
               const Tensor& low_rank, at::TensorList adapters) {
  count_product(rows, layer.weight->sizes()[0]);
  Tensor y = base_product(layer, rows);
  expand(call, layer, low_rank, adapters, y);
  return y;
}

// {y of each layer, and the rank-r products of all adapters: undefined without any, and where only
// the one layer reads them}. `adapters`: a, b, a, b, ...
std::vector<Tensor> multiply(const LinearCall& call, const Tensor& x, at::TensorList adapters) {
  const DryRun::OwnCount own_count;
  const Tensor rows = rows_of(x);
  const bool has_shares = !call.shares.empty();
  const bool keeps_low_rank = has_shares && (call.layers.size() > 1 || any_trained(adapters, 1));
  std::vector<Tensor> result;
  Tensor low_rank;
  for (const Layer& layer : call.layers) {
    check_stop();
    const bool is_first = result.empty();
    const auto sizes = with_last(x, layer.weight->sizes()[0]);
    // The first layer's item has the rank-r products.
    const auto item = RecomputeScope::run("linear", [&](bool need_values) -> std::vector<Tensor> {
      if (is_first && has_shares && (need_values || keeps_low_rank)) {
        low_rank = shrink(call, rows, adapters);
        count_product(low_rank, x.size(-1));
      }
      const Tensor y = need_values
                           ? at::_unsafe_view(product(call, layer, rows, low_rank, adapters), sizes)
                           : stand_in(sizes, x.options());
      if (!is_first || !has_shares) return {y};
      return {y, keeps_low_rank ? low_rank : Tensor()};
    });
    result.push_back(item[0]);
    if (is_first && has_shares) low_rank = item[1];
  }
  result.push_back(low_rank);
  return result;
}

// Neighbouring rows that have the same adapters, as strong: the scale of each share, 0 where they
// do not have it.
struct RowGroup {
  int64_t begin, length;
  std::vector<double> scales;
};

std::vector<RowGroup> groups_of(const LinearCall& call, SampleScope& scope, const Tensor& x) {
  const auto scales_of = [&](int64_t sample) {
    std::vector<double> scales;
    for (const Share& share : call.shares)
      scales.push_back(share.scale *
                       (share.number < 0 ? 1.0 : scope.strength(sample, share.number)));
    return scales;
  };
  std::vector<std::vector<double>> scales;
  for (int64_t sample = 0; sample < scope.count(); ++sample) scales.push_back(scales_of(sample));
  const bool are_alike =
      std::ranges::all_of(scales, [&](const auto& one) { return one == scales.front(); });
  if (are_alike) return {{0, rows_of(x).size(0), scales.front()}};
  std::vector<RowGroup> groups;
  for (const auto& [sample, begin, length] : scope.stretches_of(x)) {
    // Rows that nobody reads may have what their neighbours have.
    const bool joins = !groups.empty() &&
                       (sample < 0 || groups.back().scales == scales[static_cast<size_t>(sample)]);
    if (joins) {
      groups.back().length += length;
    } else if (sample >= 0) {
      groups.push_back({begin, length, scales[static_cast<size_t>(sample)]});
    }
  }
  return groups;
}

// The shares of a layer that a group has.
std::vector<size_t> shares_of(const Layer& layer, const RowGroup& group) {
  std::vector<size_t> result;
  for (size_t i = layer.first_share; i < layer.past; ++i)
    if (group.scales[i] != 0) result.push_back(i);
  return result;
}

// Whether two groups are as long and have adapters of the same ranks in each layer.
bool are_batchable(const LinearCall& call, const RowGroup& one, const RowGroup& other) {
  const auto has_same_ranks = [&](const Layer& layer) {
    const auto rank_of = [&](size_t share) { return call.shares[share].rank; };
    return std::ranges::equal(shares_of(layer, one), shares_of(layer, other), {}, rank_of, rank_of);
  };
  return one.length == other.length && std::ranges::all_of(call.layers, has_same_ranks);
}

using Groups = std::span<const RowGroup>;

// `groups`, those together that stand one behind the other and are batchable.
std::vector<Groups> batches_of(const LinearCall& call, Groups groups) {
  std::vector<Groups> result;
  for (size_t i = 0; i < groups.size(); ++i) {
    const bool joins = i > 0 && groups[i - 1].begin + groups[i - 1].length == groups[i].begin &&
                       are_batchable(call, groups[i - 1], groups[i]);
    if (joins) {
      result.back() = groups.subspan(i - result.back().size(), result.back().size() + 1);
    } else {
      result.push_back(groups.subspan(i, 1));
    }
  }
  return result;
}

// The rows of a batch: [groups, rows of each, columns].
Tensor batch_of(Groups batch, const Tensor& rows) {
  const int64_t count = std::ssize(batch), length = batch[0].length;
  return rows.narrow(0, batch[0].begin, count * length).unflatten(0, {count, length});
}

// x aᵀ of the adapters that each group of a batch has, side by side: [groups, rows, ranks].
// Undefined where they have none.
Tensor shrink(const LinearCall& call, Groups batch, const Tensor& rows, at::TensorList adapters) {
  std::vector<Tensor> parts;
  for (const RowGroup& group : batch)
    for (const Layer& layer : call.layers)
      for (const size_t share : shares_of(layer, group)) parts.push_back(adapters[2 * share]);
  if (parts.empty()) return {};
  const Tensor a = at::cat(parts).to(rows.scalar_type()).unflatten(0, {std::ssize(batch), -1});
  return at::bmm(batch_of(batch, rows), a.transpose(1, 2));
}

// Adds to `y` of one layer what the adapters of each group make of `low_rank`, whose columns begin
// at `column` with this layer's.
void expand(const LinearCall& call, const Layer& layer, Groups batch, Tensor low_rank,
            int64_t& column, at::TensorList adapters, Tensor y) {
  std::vector<std::vector<size_t>> shares;
  for (const RowGroup& group : batch) shares.push_back(shares_of(layer, group));
  for (size_t j = 0; j < shares[0].size(); ++j) {
    const int64_t rank = call.shares[shares[0][j]].rank;
    const Tensor own = low_rank.narrow(2, column, rank);
    column += rank;
    count_product(own, layer.weight->sizes()[0]);
    const auto scale_of = [&](size_t group) { return batch[group].scales[shares[group][j]]; };
    double scale = scale_of(0);  // the product has one: the largest, so that no factor overflows
    for (size_t g = 1; g < batch.size(); ++g)
      if (std::abs(scale_of(g)) > std::abs(scale)) scale = scale_of(g);
    std::vector<Tensor> parts;
    for (size_t g = 0; g < batch.size(); ++g) {
      parts.push_back(adapters[2 * shares[g][j] + 1]);
      if (scale_of(g) != scale) own[static_cast<int64_t>(g)].mul_(scale_of(g) / scale);
    }
    const Tensor b = at::stack(parts).to(y.scalar_type());
    y.baddbmm_(own, b.transpose(1, 2), 1, scale);
  }
}

// y of each layer, where samples have adapters of their own. The layer's own product is one for all
// rows; those of adapters are made in the rows that have them alone, so that they cost what they
// cost each sample by itself, however many other adapters there are. Small products cost mostly
// their calls: samples of as many rows share one.
std::vector<Tensor> multiply_by_sample(const LinearCall& call, const Tensor& x,
                                       at::TensorList adapters, SampleScope& scope) {
  const DryRun::OwnCount own_count;
  const std::vector<RowGroup> groups = groups_of(call, scope, x);
  const Tensor rows = rows_of(x);
  std::vector<Tensor> result;
  for (const Layer& layer : call.layers) {
    check_stop();
    count_product(rows, layer.weight->sizes()[0]);
    result.push_back(base_product(layer, rows));
  }
  for (const Groups batch : batches_of(call, groups)) {
    const Tensor low_rank = shrink(call, batch, rows, adapters);
    if (!low_rank.defined()) continue;
    count_product(low_rank, x.size(-1));
    int64_t column = 0;
    for (size_t l = 0; l < result.size(); ++l)
      expand(call, call.layers[l], batch, low_rank, column, adapters, batch_of(batch, result[l]));
  }
  for (size_t l = 0; l < result.size(); ++l)
    result[l] = at::_unsafe_view(result[l], with_last(x, call.layers[l].weight->sizes()[0]));
  return result;
}

// One value of the generator that a recomputed block finds as it was.
uint64_t draw_seed() {
  auto* generator = at::get_generator_or_default<at::CPUGeneratorImpl>(
      std::nullopt, at::detail::getDefaultCPUGenerator());
  const std::lock_guard<std::mutex> lock(generator->mutex_);
  return generator->random64();
}

// The backward pass of one call.
class LinearGradients {
 public:
  LinearGradients(const LinearCall& call, AutogradContext* ctx, const variable_list& grads)
      : call_(call),
        ctx_(ctx),
        saved_(ctx->get_saved_variables()),
        adapters_(at::TensorList(saved_).slice(1, 2 * call.shares.size())),
        result_(call.adapter_edge + 2 * call.shares.size() + 1) {
    for (const Tensor& grad : grads) {
      grads_.push_back(grad.defined() ? rows_of(grad) : Tensor());
      if (grad.defined()) x_sizes_ = with_last(grad, call.layers[0].weight->sizes()[1]);
    }
    if (saved_[0].defined()) rows_ = rows_of(saved_[0]);
  }

  variable_list make() {
    const DryRun::OwnCount own_count;
    Tensor grad_low;
    for (size_t l = 0; l < grads_.size(); ++l) {
      if (!grads_[l].defined()) continue;
      const Layer& layer = call_.layers[l];
      add_base(layer, grads_[l]);
      if (layer.past > layer.first_share) add_expand(layer, grads_[l], grad_low);
    }
    if (grad_low.defined()) {
      for (const Run& run : runs_of(call_)) add_shrink(run, run.of(grad_low));
    }
    if (grad_x_.defined()) result_[0] = at::_unsafe_view(grad_x_, x_sizes_);
    return std::move(result_);
  }

 private:
  bool needed(int64_t edge) const { return edge >= 0 && ctx_->needs_input_grad(edge); }
  int64_t edge_of(size_t share) const {
    return call_.adapter_edge + 2 * static_cast<int64_t>(share);
  }

  void add_base(const Layer& layer, const Tensor& grad) {
    count_product(grad, layer.weight->sizes()[1], int{needed(0)} + int{needed(layer.weight_edge)});
    if (needed(0)) {
      if (layer.weight_edge >= 0 &&
          layer.weight->state().leaf()._version() != layer.weight_version) {
        throw Error(ErrorCode::kInternal,
                    "linear: weight '" + layer.weight->name() +
                        "' was changed between the forward and the backward pass");
      }
      add_base_gradient(layer, grad, grad_x_);
    }
    if (needed(layer.weight_edge)) result_[layer.weight_edge] = at::mm(grad.t(), rows_);
    if (needed(layer.bias_edge)) result_[layer.bias_edge] = grad.sum(0);
  }

  // The gradients of a layer's matrices b, and of its rank-r products into `grad_low`, which is
  // made where it is not there yet: zeros where another layer gets no gradient.
  void add_expand(const Layer& layer, const Tensor& grad, Tensor& grad_low) {
    if (!grad_low.defined()) {
      const bool all = std::ranges::all_of(grads_, [](const Tensor& t) { return t.defined(); });
      const std::array sizes = {grad.size(0), call_.rank};
      grad_low = all ? at::empty(sizes, grad.options()) : at::zeros(sizes, grad.options());
    }
    for (size_t i = layer.first_share; i < layer.past; ++i) {
      const Share& share = call_.shares[i];
      const Tensor& b = adapters_[2 * i + 1];
      if (needed(0) || needed(edge_of(i))) {
        Tensor part = share.of(grad_low);
        at::addmm_out(part, part, grad, b.to(grad.scalar_type()), 0, share.scale);
      }
      if (needed(edge_of(i) + 1)) {
        result_[edge_of(i) + 1] =
            product_in(b.scalar_type(), grad.t(), share.of(saved_.back())).mul_(share.scale);
      }
    }
  }

  // What comes back through a run's matrices a, and their gradients. `grad`: of its products.
  void add_shrink(const Run& run, const Tensor& grad) {
    const Share& first = call_.shares[run.first];
    const Tensor a = stacked(run, adapters_);
    if (needed(0) && first.dropout == 0) {
      grad_x_.addmm_(grad, a.to(grad.scalar_type()));
    } else if (needed(0)) {
      grad_x_.add_(dropped(first, at::mm(grad, a.to(grad.scalar_type()))));
    }
    Tensor of_run;
    for (size_t i = run.first; i < run.past; ++i) {
      if (!needed(edge_of(i))) continue;
      if (!of_run.defined()) of_run = product_in(a.scalar_type(), grad.t(), dropped(first, rows_));
      const Share& share = call_.shares[i];
      result_[edge_of(i)] = of_run.narrow(0, share.column - run.column, share.rank)
                                .to(adapters_[2 * i].scalar_type());
    }
  }

  const LinearCall& call_;
  AutogradContext* ctx_;
  variable_list saved_;  // x, where a gradient needs it, the adapters, their rank-r products
  at::TensorList adapters_;
  variable_list grads_, result_;
  std::vector<int64_t> x_sizes_;
  Tensor rows_, grad_x_;
};

struct LinearFunction : torch::autograd::Function<LinearFunction> {
  static variable_list forward(AutogradContext* ctx, at::TensorList inputs,
                               const LinearCallPtr& call) {
    const at::TensorList adapters = inputs.slice(call->adapter_edge);
    variable_list result = multiply(*call, inputs[0], adapters);
    const auto is_trained = [](const Layer& layer) { return layer.weight_edge >= 0; };
    const bool needs_x = any_trained(adapters, 0) || std::ranges::any_of(call->layers, is_trained);
    variable_list saved{needs_x ? inputs[0] : Tensor()};
    saved.insert(saved.end(), adapters.begin(), adapters.end());
    saved.push_back(any_trained(adapters, 1) ? result.back() : Tensor());
    result.pop_back();
    ctx->save_for_backward(std::move(saved));
    ctx->saved_data["call"] = c10::IValue::make_capsule(call);
    ctx->set_materialize_grads(false);
    return result;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    check_stop();
    const auto call =
        c10::static_intrusive_pointer_cast<LinearCall>(ctx->saved_data["call"].toCapsule());
    return LinearGradients(*call, ctx, grads).make();
  }
};

// Puts a layer into `call`, and its leaves behind `inputs`.
void add_layer(LinearCall& call, const LinearTerms& terms, variable_list& inputs) {
  const Tensor& x = inputs[0];
  const WeightPtr &weight = terms.weight, &bias = terms.bias;
  if (weight->sizes().size() != 2 || x.dim() < 1 || x.size(-1) != weight->sizes()[1]) {
    throw Error(ErrorCode::kInvalidArgument,
                c10::str("linear: x of shape ", x.sizes(), " does not fit weight '", weight->name(),
                         "' of shape ", weight->sizes()));
  }
  Layer& layer = call.layers.emplace_back(Layer{.weight = weight, .bias = bias});
  if (weight->state().leaf().defined()) {
    layer.weight_edge = std::ssize(inputs);
    layer.weight_version = weight->state().leaf()._version();
    inputs.push_back(LeafScope::place_of(weight->state().leaf()));
  }
  if (bias != nullptr && bias->state().leaf().defined()) {
    layer.bias_edge = std::ssize(inputs);
    inputs.push_back(LeafScope::place_of(bias->state().leaf()));
  }
}

bool takes_part(const Adapter& adapter, const SampleScope* scope) {
  if (adapter.number >= 0 && (scope == nullptr || !scope->is_used(adapter.number))) return false;
  return adapter.scale != 0;
}

// Puts the adapters of a layer into `call`, and their matrices behind `inputs`.
void add_adapters(LinearCall& call, Layer& layer, std::span<const Adapter> adapters,
                  const SampleScope* scope, variable_list& inputs) {
  layer.first_share = call.shares.size();
  for (const Adapter& adapter : adapters) {
    if (!takes_part(adapter, scope)) continue;
    call.shares.push_back({.scale = adapter.scale,
                           .dropout = adapter.dropout,
                           .seed = adapter.dropout == 0 ? 0 : draw_seed(),
                           .column = call.rank,
                           .rank = adapter.a.size(0),
                           .number = adapter.number});
    call.rank += adapter.a.size(0);
    inputs.push_back(LeafScope::place_of(adapter.a));
    inputs.push_back(LeafScope::place_of(adapter.b));
  }
  layer.past = call.shares.size();
}

// All `layers` as one operator.
variable_list apply(const Tensor& x, std::span<const LinearTerms> layers) {
  auto call = c10::make_intrusive<LinearCall>();
  variable_list inputs{x};
  for (const LinearTerms& terms : layers) add_layer(*call, terms, inputs);
  call->adapter_edge = std::ssize(inputs);
  SampleScope* const scope = SampleScope::current();
  for (size_t l = 0; l < layers.size(); ++l)
    add_adapters(*call, call->layers[l], layers[l].adapters, scope, inputs);
  if (call->differs_by_sample()) {
    if (needs_graph(inputs))
      throw Error(ErrorCode::kInternal, "linear: adapters of single samples have no gradients");
    if (std::ranges::any_of(call->shares, [](const Share& share) { return share.dropout != 0; }))
      throw Error(ErrorCode::kInternal, "linear: adapters of single samples have no dropout");
    return multiply_by_sample(*call, x, at::TensorList(inputs).slice(call->adapter_edge), *scope);
  }
  if (needs_graph(inputs)) return LinearFunction::apply(at::TensorList(inputs), call);
  variable_list result = multiply(*call, x, at::TensorList(inputs).slice(call->adapter_edge));
  result.pop_back();
  return result;
}

}  // namespace

Tensor linear(const Tensor& x, const WeightPtr& weight, const WeightPtr& bias,
              std::span<const Adapter> adapters) {
  const LinearTerms terms = {weight, bias, adapters};
  return apply(x, {&terms, 1})[0];
}

std::vector<Tensor> linears(const Tensor& x, std::span<const LinearTerms> layers) {
  const SampleScope* const scope = SampleScope::current();
  const bool has_adapters = std::ranges::any_of(layers, [&](const LinearTerms& terms) {
    return std::ranges::any_of(terms.adapters,
                               [&](const Adapter& adapter) { return takes_part(adapter, scope); });
  });
  if (has_adapters) return apply(x, layers);
  std::vector<Tensor> result;
  for (const LinearTerms& terms : layers) result.push_back(apply(x, {&terms, 1})[0]);
  return result;
}

}  // namespace atelier::ops
