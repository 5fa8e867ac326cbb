#include "ops/meta_kernels.h"

#include <algorithm>
#include <array>

#include <ATen/ATen.h>
#include <ATen/TensorIterator.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/Resize.h>

#include "atelier/error.h"
#include "atelier/host/dry_run.h"

namespace atelier::ops {
namespace {

using at::Tensor;
using c10::DispatchKey;
using c10::IValue;
using c10::OperatorHandle;
using Sizes = std::vector<int64_t>;

// What operators that are tried on real tensors may read, in bytes: more takes too long.
constexpr int64_t kMostTriedBytes = int64_t{64} << 20;

// ---- How shapes follow from shapes ----

enum class Rule {
  kBroadcast,  // the operands, as in elementwise operators
  kReduce,     // the first operand without the axes `dim`, all where there is none
  kLikeSelf,   // the operand `self`, or the first one, and its dtype
};

struct Row {
  std::string_view name;  // without overload and "_"
  Rule rule;
};

constexpr std::array kRows = {
    Row{"__lshift__", Rule::kBroadcast},
    Row{"__rshift__", Rule::kBroadcast},
    Row{"_add_relu", Rule::kBroadcast},
    Row{"_prelu_kernel", Rule::kBroadcast},
    Row{"_prelu_kernel_backward", Rule::kBroadcast},
    Row{"abs", Rule::kBroadcast},
    Row{"angle", Rule::kBroadcast},
    Row{"bernoulli", Rule::kBroadcast},
    Row{"binomial", Rule::kBroadcast},
    Row{"complex", Rule::kBroadcast},
    Row{"conj_physical", Rule::kBroadcast},
    Row{"floor_divide", Rule::kBroadcast},
    Row{"frexp", Rule::kBroadcast},
    Row{"hardswish", Rule::kBroadcast},
    Row{"hardswish_backward", Rule::kBroadcast},
    Row{"hardtanh", Rule::kBroadcast},
    Row{"hardtanh_backward", Rule::kBroadcast},
    Row{"huber_loss_backward", Rule::kBroadcast},
    Row{"isnan", Rule::kBroadcast},
    Row{"log_sigmoid_backward", Rule::kLikeSelf},
    Row{"log_sigmoid_forward", Rule::kBroadcast},
    Row{"logical_and", Rule::kBroadcast},
    Row{"logical_not", Rule::kBroadcast},
    Row{"logical_or", Rule::kBroadcast},
    Row{"logical_xor", Rule::kBroadcast},
    Row{"logit", Rule::kBroadcast},
    Row{"mse_loss_backward", Rule::kBroadcast},
    Row{"mvlgamma", Rule::kBroadcast},
    Row{"nan_to_num", Rule::kBroadcast},
    Row{"native_dropout", Rule::kBroadcast},
    Row{"native_dropout_backward", Rule::kBroadcast},
    Row{"poisson", Rule::kBroadcast},
    Row{"polar", Rule::kBroadcast},
    Row{"relu", Rule::kBroadcast},
    Row{"remainder", Rule::kBroadcast},
    Row{"rrelu_with_noise", Rule::kBroadcast},
    Row{"rsub", Rule::kBroadcast},
    Row{"smooth_l1_loss_backward", Rule::kBroadcast},
    Row{"where", Rule::kBroadcast},

    Row{"count_nonzero", Rule::kReduce},
    Row{"dot", Rule::kReduce},
    Row{"max", Rule::kReduce},
    Row{"median", Rule::kReduce},
    Row{"min", Rule::kReduce},
    Row{"mode", Rule::kReduce},
    Row{"nanmedian", Rule::kReduce},
    Row{"nansum", Rule::kReduce},
    Row{"prod", Rule::kReduce},
    Row{"std", Rule::kReduce},
    Row{"std_mean", Rule::kReduce},
    Row{"trace", Rule::kReduce},
    Row{"var", Rule::kReduce},
    Row{"var_mean", Rule::kReduce},
    Row{"vdot", Rule::kReduce},

    Row{"_adaptive_avg_pool2d_backward", Rule::kLikeSelf},
    Row{"_adaptive_avg_pool3d_backward", Rule::kLikeSelf},
    Row{"_logcumsumexp", Rule::kLikeSelf},
    Row{"_masked_softmax", Rule::kLikeSelf},
    Row{"_masked_softmax_backward", Rule::kLikeSelf},
    Row{"adaptive_avg_pool3d_backward", Rule::kLikeSelf},
    Row{"channel_shuffle", Rule::kLikeSelf},
    Row{"flip", Rule::kLikeSelf},
    Row{"glu_backward", Rule::kLikeSelf},
    Row{"max_pool3d_with_indices_backward", Rule::kLikeSelf},
    Row{"reflection_pad2d_backward", Rule::kLikeSelf},
    Row{"replication_pad2d_backward", Rule::kLikeSelf},
    Row{"replication_pad3d_backward", Rule::kLikeSelf},
    Row{"roll", Rule::kLikeSelf},
};

// ---- One call ----

// The arguments of a call, by the schema of its operator.
class Call {
 public:
  Call(const OperatorHandle& op, torch::jit::Stack& stack)
      : op_(op),
        schema_(op.schema()),
        stack_(stack),
        arguments_(torch::jit::last(stack, schema_.arguments().size())) {}

  const OperatorHandle& op() const { return op_; }
  std::string name() const { return schema_.name(); }
  // "relu" of "aten::relu_".
  std::string_view base_name() const;
  bool has_tag(at::Tag tag) const { return op_.hasTag(tag); }

  bool is_written(size_t i) const {
    const c10::AliasInfo* alias = schema_.arguments()[i].alias_info();
    return alias != nullptr && alias->isWrite();
  }
  // What only takes results: out, grad_input, ...
  bool is_out(size_t i) const { return is_written(i) && schema_.arguments()[i].kwarg_only(); }
  // Null where there is no argument of that name.
  const IValue* find(std::string_view argument) const;
  size_t num_arguments() const { return arguments_.size(); }
  const IValue& argument(size_t i) const { return arguments_[i]; }

  // What is read.
  std::vector<Tensor> operands() const;
  std::vector<Tensor> outs() const;
  size_t num_results() const { return schema_.returns().size(); }

  // Takes the arguments off the stack and puts the results there.
  void give(std::vector<IValue> results) {
    torch::jit::drop(stack_, schema_.arguments().size());
    for (IValue& result : results) stack_.push_back(std::move(result));
  }

 private:
  const OperatorHandle& op_;
  const c10::FunctionSchema& schema_;
  torch::jit::Stack& stack_;
  at::ArrayRef<IValue> arguments_;
};

std::string_view Call::base_name() const {
  std::string_view name = schema_.name();
  name.remove_prefix(name.find("::") + 2);
  if (name.ends_with('_') && !name.ends_with("__")) name.remove_suffix(1);
  return name;
}

const IValue* Call::find(std::string_view argument) const {
  const std::optional<int> index = schema_.argumentIndexWithName(argument);
  return index ? &arguments_[static_cast<size_t>(*index)] : nullptr;
}

std::vector<Tensor> tensors_of(const IValue& value) {
  if (value.isTensor())
    return value.toTensor().defined() ? std::vector{value.toTensor()} : std::vector<Tensor>{};
  if (value.isTensorList()) return value.toTensorVector();
  std::vector<Tensor> tensors;
  if (!value.isList()) return tensors;
  for (const IValue& item : value.toListRef()) {
    for (Tensor& tensor : tensors_of(item)) tensors.push_back(std::move(tensor));
  }
  return tensors;
}

std::vector<Tensor> Call::operands() const {
  std::vector<Tensor> tensors;
  for (size_t i = 0; i < arguments_.size(); ++i) {
    if (is_out(i)) continue;
    for (Tensor& tensor : tensors_of(arguments_[i])) tensors.push_back(std::move(tensor));
  }
  return tensors;
}

std::vector<Tensor> Call::outs() const {
  std::vector<Tensor> tensors;
  for (size_t i = 0; i < arguments_.size(); ++i) {
    if (is_out(i)) tensors.push_back(arguments_[i].toTensor());
  }
  return tensors;
}

// ---- What cannot be ----

[[noreturn]] void refuse_values(const Call& call) {
  const bool is_item = call.base_name() == "_local_scalar_dense";
  throw Error(ErrorCode::kUnsupported,
              (is_item ? "Tensor::item()" : call.name()) +
                  (call.has_tag(at::Tag::dynamic_output_shape) ? " gives a size that follows from"
                                                               : " needs") +
                  " values, and tensors of a dry run have none",
              DryRun::kHint);
}

[[noreturn]] void refuse_size(const Call& call, int64_t bytes) {
  throw Error(ErrorCode::kUnsupported,
              c10::str(call.name(), " has no shapes for tensors without values, and ", bytes >> 20,
                       " MiB are too many to try it"),
              DryRun::kHint);
}

// ---- Trying ----

// Zeros, or ones of floats, on the CPU.
Tensor twin_of(const Tensor& tensor, bool is_single) {
  if (!tensor.defined() || tensor.is_cpu()) return tensor;
  const at::TensorOptions options = tensor.options().device(at::kCPU);
  const Tensor twin = is_single ? at::empty(Sizes(static_cast<size_t>(tensor.dim()), 1), options)
                                : at::empty_strided(tensor.sizes(), tensor.strides(), options);
  return tensor.is_floating_point() || tensor.is_complex() ? twin.fill_(1) : twin.zero_();
}

IValue twin_of(const IValue& value, bool is_single) {
  if (value.isTensor()) return twin_of(value.toTensor(), is_single);
  if (value.isDevice()) return at::Device(at::kCPU);
  if (value.isTensorList()) {
    c10::List<Tensor> twins;
    for (const Tensor& tensor : value.toTensorVector()) twins.push_back(twin_of(tensor, is_single));
    return twins;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> twins;
    for (const std::optional<Tensor>& tensor : value.toOptionalTensorVector())
      twins.push_back(tensor ? std::optional(twin_of(*tensor, is_single)) : std::nullopt);
    return twins;
  }
  return value;
}

// Warnings about zeros and ones are nobody's business.
class NoWarnings final : public c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

// What the operator gives on the CPU for tensors of the same sizes, or of one element each.
torch::jit::Stack try_on_cpu(const Call& call, bool is_single) {
  torch::jit::Stack stack;
  for (size_t i = 0; i < call.num_arguments(); ++i)
    stack.push_back(twin_of(call.argument(i), is_single));
  NoWarnings no_warnings;
  const c10::WarningUtils::WarningHandlerGuard guard(&no_warnings);
  try {
    call.op().callBoxed(stack);
  } catch (const c10::Error& error) {
    std::string said = error.what_without_backtrace();
    said.erase(std::min(said.find('\n'), said.size()));
    throw Error(ErrorCode::kUnsupported,
                call.name() +
                    " has no shapes for tensors without values, and failed on zeros and "
                    "ones: " +
                    said,
                DryRun::kHint);
  }
  return stack;
}

at::TensorOptions meta(at::ScalarType dtype) {
  return at::TensorOptions(at::kMeta).dtype(dtype);
}

IValue without_values(const IValue& made) {
  if (made.isTensor()) {
    const Tensor& tensor = made.toTensor();
    if (!tensor.defined()) return made;
    return at::empty_strided(tensor.sizes(), tensor.strides(), meta(tensor.scalar_type()));
  }
  if (!made.isTensorList()) return made;
  c10::List<Tensor> list;
  for (const Tensor& tensor : made.toTensorVector())
    list.push_back(without_values(tensor).toTensor());
  return list;
}

// Runs the operator on real tensors of the same sizes.
void run_as_tried(Call& call) {
  int64_t bytes = 0;
  for (const Tensor& tensor : call.operands()) bytes += static_cast<int64_t>(tensor.nbytes());
  if (bytes > kMostTriedBytes) refuse_size(call, bytes);
  const torch::jit::Stack made = try_on_cpu(call, /*is_single=*/false);
  const std::vector<Tensor> outs = call.outs();
  std::vector<IValue> results;
  for (size_t i = 0; i < made.size(); ++i) {
    if (i >= outs.size()) {
      results.push_back(without_values(made[i]));
      continue;
    }
    at::native::resize_output(outs[i], made[i].toTensor().sizes());
    results.emplace_back(outs[i]);
  }
  call.give(std::move(results));
}

// ---- By a rule ----

// An elementwise result, with the strides that LibTorch gives it.
Tensor broadcast(const Call& call, at::ScalarType dtype) {
  at::TensorIteratorConfig config;
  config.set_check_mem_overlap(false)
      .allow_cpu_scalars(true)
      .check_all_same_dtype(false)
      .declare_static_dtype_and_device(dtype, at::kMeta)
      .add_owned_output(Tensor());
  for (const Tensor& operand : call.operands()) config.add_owned_const_input(operand);
  return config.build().output();
}

// The first operand's sizes without the axes that the arguments name.
Sizes reduced(const Call& call) {
  const Tensor self = call.operands().front();
  std::vector<int64_t> axes;
  if (const IValue* dim = call.find("dim")) {
    if (dim->isInt()) axes = {dim->toInt()};
    if (dim->isIntList()) axes = dim->toIntVector();
  }
  const IValue* keepdim = call.find("keepdim");
  const bool keeps = keepdim != nullptr && keepdim->toBool();
  std::vector<bool> goes(static_cast<size_t>(self.dim()), axes.empty());
  for (const int64_t axis : axes)
    if (self.dim() > 0) goes[static_cast<size_t>(at::maybe_wrap_dim(axis, self.dim()))] = true;
  Sizes sizes;
  for (int64_t i = 0; i < self.dim(); ++i) {
    if (!goes[static_cast<size_t>(i)]) sizes.push_back(self.size(i));
    if (goes[static_cast<size_t>(i)] && keeps) sizes.push_back(1);
  }
  return sizes;
}

Tensor result_of(const Call& call, Rule rule, at::ScalarType dtype) {
  if (rule == Rule::kReduce) return at::empty(reduced(call), meta(dtype));
  if (rule == Rule::kBroadcast) return broadcast(call, dtype);
  const IValue* self = call.find("self");
  return at::empty_like(self != nullptr ? self->toTensor() : call.operands().front());
}

void run_by_rule(Call& call, Rule rule) {
  std::vector<IValue> results;
  const std::vector<Tensor> outs = call.outs();
  for (const Tensor& out : outs) {
    at::native::resize_output(out, result_of(call, rule, out.scalar_type()).sizes());
    results.emplace_back(out);
  }
  if (!outs.empty()) return call.give(std::move(results));
  if (rule == Rule::kLikeSelf) {
    results.emplace_back(result_of(call, rule, at::kFloat));
    return call.give(std::move(results));
  }
  for (const IValue& single : try_on_cpu(call, /*is_single=*/true))
    results.emplace_back(result_of(call, rule, single.toTensor().scalar_type()));
  call.give(std::move(results));
}

// Whether a call changes operands and gives nothing else.
bool is_in_place(const Call& call) {
  bool writes = false;
  for (size_t i = 0; i < call.num_arguments(); ++i) writes |= call.is_written(i);
  const auto& returns = call.op().schema().returns();
  return writes && call.outs().empty() &&
         std::ranges::all_of(returns, [](const c10::Argument& given) {
           return given.alias_info() != nullptr && given.alias_info()->isWrite();
         });
}

void run_in_place(Call& call) {
  std::vector<IValue> results;
  for (size_t i = 0; i < call.num_arguments() && results.size() < call.num_results(); ++i) {
    if (call.is_written(i)) results.push_back(call.argument(i));
  }
  call.give(std::move(results));
}

void run_by_schema(const OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  Call call(op, *stack);
  if (call.has_tag(at::Tag::dynamic_output_shape) || call.has_tag(at::Tag::data_dependent_output))
    refuse_values(call);
  if (is_in_place(call)) return run_in_place(call);
  const auto row = std::ranges::find(kRows, call.base_name(), &Row::name);
  if (row != kRows.end()) return run_by_rule(call, row->rule);
  run_as_tried(call);
}

// Whether LibTorch ends at meta tensors: their own kernel is none, and no other one is composed of
// operators that may have one.
bool ends_at_meta(const OperatorHandle& op) {
  if (!op.hasSchema() || !op.hasKernelForDispatchKey(DispatchKey::CPU)) return false;
  constexpr std::array kHelp = {DispatchKey::Meta, DispatchKey::CompositeImplicitAutograd,
                                DispatchKey::CompositeExplicitAutograd,
                                DispatchKey::CompositeExplicitAutogradNonFunctional};
  return std::ranges::none_of(kHelp,
                              [&](DispatchKey key) { return op.hasKernelForDispatchKey(key); });
}

}  // namespace

MetaLibrary::MetaLibrary()
    : library_(torch::Library::IMPL, "aten", DispatchKey::Meta, __FILE__, __LINE__),
      composed_(torch::Library::IMPL, "aten", DispatchKey::AutogradMeta, __FILE__, __LINE__) {}

void MetaLibrary::add_by_schema(const c10::OperatorName& name) {
  const std::string full = c10::toString(name);
  library_.impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&run_by_schema>());
}

bool MetaLibrary::lacks(const char* name) {
  const std::string_view text = name;
  const size_t dot = text.find('.');
  const c10::OperatorName full("aten::" + std::string(text.substr(0, dot)),
                               dot == text.npos ? "" : std::string(text.substr(dot + 1)));
  const auto op = c10::Dispatcher::singleton().findSchema(full);
  return op && !op->hasKernelForDispatchKey(DispatchKey::Meta);
}

void add_meta_kernels() {
  static const MetaLibrary& library = []() -> MetaLibrary& {
    auto& made = *new MetaLibrary;  // plugins' threads may outlive static objects
    add_layer_kernels(made);
    c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
    for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
      if (!name.name.starts_with("aten::")) continue;
      const auto op = dispatcher.findSchema(name);
      if (op && ends_at_meta(*op)) made.add_by_schema(name);
    }
    return made;
  }();
  (void)library;
}

}  // namespace atelier::ops
