#include "host/optim/optimizer_base.h"

#include <algorithm>

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include "atelier/error.h"

#include "host/random/counter.h"
#include "host/report/problems.h"

namespace atelier::optim {
namespace {

void check_leaf(const Parameter& parameter) {
  const at::Tensor& leaf = parameter.leaf;
  const auto dtype = leaf.scalar_type();
  const bool is_known = dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf;
  if (is_known && leaf.is_contiguous()) return;
  throw Error(ErrorCode::kUnsupported,
              "parameter " + report::list_names({parameter.name}) + ": " +
                  (is_known ? "a tensor that is not contiguous" : c10::toString(dtype)) +
                  " cannot be trained",
              is_known ? "" : "train it in float32, bfloat16 or float16");
}

std::string describe(const at::Tensor& tensor) {
  std::string text = c10::toString(tensor.scalar_type());
  text += " [";
  for (const int64_t size : tensor.sizes()) {
    if (text.back() != '[') text += ", ";
    text += std::to_string(size);
  }
  return text + "]";
}

}  // namespace

StepScalars::StepScalars(const at::Tensor& grad_scale, const at::Tensor& is_skipped) {
  devices_.emplace_back(
      grad_scale.device(),
      OnDevice{grad_scale, is_skipped, is_skipped.to(at::kBool), is_skipped.neg().add_(1)});
}

const StepScalars::OnDevice& StepScalars::on(at::Device device) {
  for (const auto& [known, scalars] : devices_) {
    if (known == device) return scalars;
  }
  const OnDevice& first = devices_.front().second;
  OnDevice here{first.grad_scale.to(device), first.is_skipped.to(device), first.keeps.to(device),
                first.count.to(device)};
  return devices_.emplace_back(device, std::move(here)).second;
}

OptimizerBase::OptimizerBase(const std::vector<Group>& groups, const Options& options)
    : options_(options) {
  const at::NoGradGuard no_grad;
  for (const Group& group : groups) {
    for (const Parameter& parameter : group.parameters) add_slot(parameter, group);
  }
}

void OptimizerBase::add_slot(const Parameter& parameter, const Group& group) {
  check_leaf(parameter);
  Slot slot{.name = parameter.name,
            .leaf = parameter.leaf,
            .dtype = parameter.dtype(),
            .master = {},
            .step = {},
            .lr_scale = group.lr_scale,
            .weight_decay = group.weight_decay,
            .index = static_cast<uint32_t>(slots_.size()),
            .whole_numel = parameter.whole_numel(),
            .shard = parameter.shard};
  slot.step = add_zeros(slot, "step", {});
  if (slot.dtype != at::kFloat) {
    if (options_.master_weights == MasterWeights::kFp32) {
      slot.master = add_part(slot, "master", slot.leaf.detach().to(at::kFloat));
    } else if (!rounding_step_.defined()) {
      rounding_step_ = add_state("rounding_step", at::zeros({}, at::kLong));
    }
  }
  slots_.push_back(std::move(slot));
}

at::Tensor OptimizerBase::add_state(const std::string& name, at::Tensor value) {
  if (!state_.emplace(name, value).second) {
    throw Error(ErrorCode::kInvalidArgument,
                "optimizer: two parameters have state of the name " + report::list_names({name}));
  }
  return value;
}

std::string state_name(const Slot& slot, std::string_view what) {
  std::string name = slot.name + ".";
  name += what;
  return name;
}

at::Tensor OptimizerBase::add_part(const Slot& slot, std::string_view what, at::Tensor value,
                                   int64_t per) {
  const std::string name = state_name(slot, what);
  if (slot.shard) {
    Shard& shard = shards_[name] = *slot.shard;
    if (per > 1) shard = {{(slot.whole_numel + per - 1) / per}, shard.begin / per};
  }
  return add_state(name, std::move(value));
}

at::Tensor OptimizerBase::add_zeros(const Slot& slot, std::string_view what,
                                    at::IntArrayRef shape) {
  return add_state(state_name(slot, what),
                   at::zeros(shape, slot.leaf.options().dtype(at::kFloat).requires_grad(false)));
}

at::Tensor OptimizerBase::add_zeros_like(const Slot& slot, std::string_view what,
                                         at::ScalarType dtype) {
  return add_part(
      slot, what,
      at::zeros(slot.leaf.sizes(), slot.leaf.options().dtype(dtype).requires_grad(false)));
}

at::Tensor OptimizerBase::moved_value(const Slot& slot) const {
  return slot.master.defined() ? slot.master : slot.leaf.detach().to(at::kFloat);
}

RoundingKey OptimizerBase::rounding_key(const Slot& slot) const {
  return {.seed = random::stream_seed(options_.seed, random::Stream::kRounding),
          .parameter = slot.index,
          .step = static_cast<uint32_t>(*rounding_step_.const_data_ptr<int64_t>()),
          .first = static_cast<uint64_t>(slot.shard ? slot.shard->begin : 0)};
}

void OptimizerBase::store(const Slot& slot, const at::Tensor& value) {
  if (slot.leaf.scalar_type() == at::kFloat) return;
  if (slot.master.defined()) {
    slot.leaf.detach().copy_(value);
    return;
  }
  const RoundingKey key = rounding_key(slot);
  const at::Device device = slot.leaf.device();
  if (device.is_cpu()) {
    round_stochastically(value, key, slot.leaf.detach());
    return;
  }
  auto found = std::find_if(generators_.begin(), generators_.end(),
                            [&](const auto& entry) { return entry.first == device; });
  if (found == generators_.end()) {
    generators_.emplace_back(device, at::globalContext().defaultGenerator(device).clone());
    found = generators_.end() - 1;
  }
  round_stochastically(value, key, found->second, slot.leaf.detach());
}

at::Tensor OptimizerBase::gradient(const Slot& slot) {
  return slot.leaf.grad().detach().to(at::kFloat).contiguous();
}

void OptimizerBase::end_step(const at::Tensor& is_skipped) {
  if (!rounding_step_.defined()) return;
  // On a device the value is not known here: there skipped steps count as well.
  const bool counts = !is_skipped.is_cpu() || *is_skipped.const_data_ptr<float>() == 0.0f;
  *rounding_step_.mutable_data_ptr<int64_t>() += counts ? 1 : 0;
}

void OptimizerBase::load_state(const NamedTensors& state) {
  copy_state("optimizer state", state, state_);
}

int64_t OptimizerBase::state_bytes() const {
  int64_t bytes = 0;
  for (const auto& [name, value] : state_) bytes += static_cast<int64_t>(value.nbytes());
  return bytes;
}

int64_t OptimizerBase::step_bytes() const {
  int64_t most = 0;
  for (size_t i = 0; i < slots_.size(); ++i) most = std::max(most, bytes_of_copies(i));
  return most;
}

void copy_state(const std::string& what, const NamedTensors& from, const NamedTensors& to) {
  std::vector<std::string> missing, unexpected, other;
  std::string first_other;
  for (const auto& [name, mine] : to) {
    const auto found = from.find(name);
    if (found == from.end()) {
      missing.push_back(name);
    } else if (found->second.sizes() != mine.sizes() ||
               found->second.scalar_type() != mine.scalar_type()) {
      if (other.empty()) {
        first_other = describe(found->second) + ", expected " + describe(mine);
      }
      other.push_back(name);
    }
  }
  for (const auto& [name, value] : from) {
    if (!to.contains(name)) unexpected.push_back(name);
  }
  std::string problem;
  const auto add = [&](const char* kind, const std::vector<std::string>& names) {
    if (names.empty()) return;
    problem += (problem.empty() ? " " : "; ") + std::string(kind) + " " + report::list_names(names);
  };
  add("missing", missing);
  add("unexpected", unexpected);
  add("of another shape or type", other);
  if (!other.empty()) problem += " (the first is " + first_other + ")";
  if (!problem.empty()) {
    throw Error(ErrorCode::kInvalidArgument, what + ":" + problem,
                "resume with the optimizer, the master weights and the trained parameters of the "
                "run that saved it");
  }
  const at::NoGradGuard no_grad;
  for (const auto& [name, mine] : to) at::Tensor(mine).copy_(from.find(name)->second);
}

void assign_unless(const at::Tensor& keeps, at::Tensor target, const at::Tensor& value) {
  // Scalars of float64 beside a parameter of no axes make a float64 of it.
  at::where_out(target, keeps, target, value.to(target.scalar_type()));
}

}  // namespace atelier::optim
