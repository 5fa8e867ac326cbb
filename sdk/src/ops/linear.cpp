#include "atelier/ops/linear.h"

#include <mutex>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include "atelier/error.h"
#include "atelier/host/dry_run.h"
#include "atelier/host/leaf_scope.h"
#include "atelier/host/recompute_scope.h"
#include "atelier/host/stop.h"
#include "atelier/host/weight_state.h"

#include "ops/autograd_support.h"
#include "ops/eight_bit.h"

namespace atelier::ops {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// What one call of linear() knows beside its tensors.
struct LinearCall : torch::CustomClassHolder {
  WeightPtr weight, bias;
  // The scales of the adapters that take part.
  std::vector<double> scales;
  std::vector<double> dropouts;
  std::vector<uint64_t> seeds;  // of their dropouts' masks; 0 without dropout
  // Places in the list of differentiable inputs {x, weight's leaf, bias's leaf, a, b, a, b, ...};
  // -1: absent.
  int64_t weight_edge = -1, bias_edge = -1;
  int64_t adapter_edge = 0;    // of the first a
  int64_t weight_version = 0;  // of the leaf's values
};
using LinearCallPtr = c10::intrusive_ptr<LinearCall>;

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

// What adapter `i` sees of x, or, of the gradient, what comes back through that: `t` times the
// dropout's mask.
Tensor dropped(const LinearCall& call, size_t i, const Tensor& t) {
  if (call.dropouts[i] == 0) return t;
  const double kept = 1.0 - call.dropouts[i];
  Tensor mask = at::empty(t.sizes(), t.options());
  if (t.is_meta()) return mask;
  mask.bernoulli_(kept, seeded_generator(t.device(), call.seeds[i])).div_(kept);
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

// x Wᵀ + bias, in 8 bits where the weight is to be multiplied so.
Tensor base_product(const LinearCall& call, const Tensor& rows) {
  const std::optional<RowCodes> codes = call.weight->state().draw_codes();
  if (!codes) {
    const Tensor weight = call.weight->draw();
    return call.bias ? at::addmm(call.bias->draw(), rows, weight.t()) : at::mm(rows, weight.t());
  }
  Tensor y = eight_bit_product(rows, *codes);
  return call.bias ? y.add_(call.bias->draw()) : y;
}

Tensor base_gradient(const LinearCall& call, const Tensor& grad) {
  const std::optional<RowCodes> codes = call.weight->state().draw_codes();
  return codes ? eight_bit_gradient(grad, *codes) : at::mm(grad, call.weight->draw());
}

// {y, and x aᵀ of each adapter, undefined where b is not trained}. `adapters`: a, b, a, b, ...
std::vector<Tensor> multiply(const LinearCall& call, const Tensor& x, at::TensorList adapters) {
  check_stop();
  return RecomputeScope::run("linear", [&](bool need_values) {
    const auto sizes = with_last(x, call.weight->sizes()[0]);
    const Tensor rows = rows_of(x);
    std::vector<Tensor> low_rank(call.scales.size());
    for (size_t i = 0; i < call.scales.size(); ++i) {
      if (need_values || adapters[2 * i + 1].requires_grad()) {
        low_rank[i] = at::mm(dropped(call, i, rows), adapters[2 * i].to(rows.scalar_type()).t());
        count_product(low_rank[i], x.size(-1) + sizes.back());
      }
    }
    std::vector<Tensor> result;
    if (!need_values) {
      result.push_back(stand_in(sizes, x.options()));
    } else {
      count_product(x, sizes.back());
      Tensor y = base_product(call, rows);
      for (size_t i = 0; i < call.scales.size(); ++i) {
        y.addmm_(low_rank[i], adapters[2 * i + 1].to(rows.scalar_type()).t(), 1, call.scales[i]);
      }
      result.push_back(at::_unsafe_view(y, sizes));
    }
    for (size_t i = 0; i < call.scales.size(); ++i) {
      result.push_back(adapters[2 * i + 1].requires_grad() ? low_rank[i] : Tensor());
    }
    return result;
  });
}

// One value of the generator that a recomputed block finds as it was.
uint64_t draw_seed() {
  auto* generator = at::get_generator_or_default<at::CPUGeneratorImpl>(
      std::nullopt, at::detail::getDefaultCPUGenerator());
  const std::lock_guard<std::mutex> lock(generator->mutex_);
  return generator->random64();
}

struct LinearFunction : torch::autograd::Function<LinearFunction> {
  static Tensor forward(AutogradContext* ctx, at::TensorList inputs, const LinearCallPtr& call) {
    const at::TensorList adapters = inputs.slice(call->adapter_edge);
    std::vector<Tensor> result = multiply(*call, inputs[0], adapters);
    bool needs_x = call->weight_edge >= 0;
    for (size_t i = 0; i < adapters.size(); i += 2) needs_x |= adapters[i].requires_grad();
    variable_list saved{needs_x ? inputs[0] : Tensor()};
    saved.insert(saved.end(), adapters.begin(), adapters.end());
    saved.insert(saved.end(), result.begin() + 1, result.end());
    ctx->save_for_backward(std::move(saved));
    ctx->saved_data["call"] = c10::IValue::make_capsule(call);
    ctx->set_materialize_grads(false);
    return result[0];
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    check_stop();
    const auto call =
        c10::static_intrusive_pointer_cast<LinearCall>(ctx->saved_data["call"].toCapsule());
    const size_t count = call->scales.size();
    variable_list result(call->adapter_edge + 2 * count + 1);
    if (!grads[0].defined()) return result;
    auto needed = [&](int64_t edge) { return edge >= 0 && ctx->needs_input_grad(edge); };
    const variable_list saved = ctx->get_saved_variables();
    const Tensor& x = saved[0];
    const Tensor* adapters = saved.data() + 1;
    const Tensor* low_rank = adapters + 2 * count;

    const Tensor grad = rows_of(grads[0]);
    count_product(grad, call->weight->sizes()[1], int{needed(0)} + int{needed(call->weight_edge)});
    const Tensor rows = x.defined() ? rows_of(x) : Tensor();
    Tensor grad_x;
    if (needed(0)) {
      if (call->weight_edge >= 0 &&
          call->weight->state().leaf()._version() != call->weight_version) {
        throw Error(ErrorCode::kInternal,
                    "linear: weight '" + call->weight->name() +
                        "' was changed between the forward and the backward pass");
      }
      grad_x = base_gradient(*call, grad);
    }
    for (size_t i = 0; i < count; ++i) {
      const Tensor &a = adapters[2 * i], &b = adapters[2 * i + 1];
      const int64_t edge = call->adapter_edge + 2 * i;
      if (needed(0) || needed(edge)) {
        const Tensor grad_low = at::mm(grad, b.to(grad.scalar_type())).mul_(call->scales[i]);
        if (needed(0) && call->dropouts[i] == 0) {
          grad_x.addmm_(grad_low, a.to(grad.scalar_type()));
        } else if (needed(0)) {
          grad_x.add_(dropped(*call, i, at::mm(grad_low, a.to(grad.scalar_type()))));
        }
        if (needed(edge))
          result[edge] = product_in(a.scalar_type(), grad_low.t(), dropped(*call, i, rows));
      }
      if (needed(edge + 1)) {
        result[edge + 1] = product_in(b.scalar_type(), grad.t(), low_rank[i]).mul_(call->scales[i]);
      }
    }
    if (needed(0)) result[0] = at::_unsafe_view(grad_x, with_last(grads[0], grad_x.size(1)));
    if (needed(call->weight_edge)) result[call->weight_edge] = at::mm(grad.t(), rows);
    if (needed(call->bias_edge)) result[call->bias_edge] = grad.sum(0);
    return result;
  }
};

}  // namespace

Tensor linear(const Tensor& x, const WeightPtr& weight, const WeightPtr& bias,
              std::span<const Adapter> adapters) {
  if (weight->sizes().size() != 2 || x.dim() < 1 || x.size(-1) != weight->sizes()[1]) {
    throw Error(ErrorCode::kInvalidArgument,
                c10::str("linear: x of shape ", x.sizes(), " does not fit weight '", weight->name(),
                         "' of shape ", weight->sizes()));
  }
  auto call = c10::make_intrusive<LinearCall>();
  call->weight = weight;
  call->bias = bias;
  variable_list inputs{x};
  if (weight->state().leaf().defined()) {
    call->weight_edge = inputs.size();
    call->weight_version = weight->state().leaf()._version();
    inputs.push_back(LeafScope::place_of(weight->state().leaf()));
  }
  if (bias != nullptr && bias->state().leaf().defined()) {
    call->bias_edge = inputs.size();
    inputs.push_back(LeafScope::place_of(bias->state().leaf()));
  }
  call->adapter_edge = inputs.size();
  for (const Adapter& adapter : adapters) {
    if (adapter.scale == 0) continue;
    call->scales.push_back(adapter.scale);
    call->dropouts.push_back(adapter.dropout);
    call->seeds.push_back(adapter.dropout == 0 ? 0 : draw_seed());
    inputs.push_back(LeafScope::place_of(adapter.a));
    inputs.push_back(LeafScope::place_of(adapter.b));
  }
  if (!needs_graph(inputs)) {
    return multiply(*call, x, at::TensorList(inputs).slice(call->adapter_edge))[0];
  }
  return LinearFunction::apply(at::TensorList(inputs), call);
}

}  // namespace atelier::ops
