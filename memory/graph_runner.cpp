#include "memory/graph_runner.h"

#include <algorithm>
#include <bit>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "atelier/error.h"
#include "atelier/host/sample_scope.h"
#include "atelier/host/sequence_scope.h"
#include "atelier/host/stop.h"
#include "atelier/host/upload.h"
#include "atelier/host/weight_state.h"
#include "atelier/nn/layers.h"

namespace atelier::memory {
namespace {

using at::Tensor;

int64_t proven_rows = 0;

// A denoiser may have blocks of text, of an image and of both, and run with both halves of guidance
// in one call and with each alone.
constexpr size_t kMostForms = 16;

// Alignment of memory that LibTorch gives, at least. Products choose their kernels by up to 256.
int64_t alignment_of(const Tensor& t) {
  return t.is_cpu() ? 64 : 256;
}

// Lengths of samples and the like, which operators read on the host.
bool is_of_host(const Tensor& t) {
  return t.is_cpu() && at::isIntegralType(t.scalar_type(), /*includeBool=*/true);
}

int64_t offset_of(const Tensor& t) {
  return static_cast<int64_t>(reinterpret_cast<uintptr_t>(t.const_data_ptr()) % alignment_of(t));
}

void add_to(std::vector<int64_t>& key, at::IntArrayRef numbers) {
  key.push_back(std::ssize(numbers));
  key.insert(key.end(), numbers.begin(), numbers.end());
}

std::vector<int64_t> key_of(const Tensors& inputs) {
  std::vector<int64_t> key;
  for (const Tensor& t : inputs) {
    key.push_back(t.defined() ? static_cast<int64_t>(t.scalar_type()) : -1);
    if (!t.defined()) continue;
    add_to(key, t.sizes());
    key.push_back(is_of_host(t));
    if (is_of_host(t)) {
      const Tensor values = t.to(at::kLong).contiguous();
      add_to(key, {values.const_data_ptr<int64_t>(), static_cast<size_t>(values.numel())});
    } else {
      add_to(key, t.strides());
      key.push_back(offset_of(t));
    }
  }
  return key;
}

// What a block's graph has fixed of its weights and of its LoRAs; nullopt where it has a dropout,
// whose mask is another one each time. Another LoRA in the place of one that went is read from
// there.
std::optional<std::vector<int64_t>> weights_of(Block& block) {
  std::vector<int64_t> key;
  bool has_dropout = false;
  block.visit([&](nn::Module& module) {
    for (const WeightPtr& weight : module.weights()) key.push_back(weight->state().version());
    const auto* linear = dynamic_cast<const nn::Linear*>(&module);
    if (linear == nullptr) return;
    key.push_back(std::ssize(linear->adapters));
    for (const ops::Adapter& adapter : linear->adapters) {
      for (const Tensor* factor : {&adapter.a, &adapter.b}) {
        key.push_back(static_cast<int64_t>(reinterpret_cast<uintptr_t>(factor->const_data_ptr())));
        add_to(key, factor->sizes());
        add_to(key, factor->strides());
        key.push_back(static_cast<int64_t>(factor->scalar_type()));
      }
      key.push_back(std::bit_cast<int64_t>(adapter.scale));
      key.push_back(adapter.number);
      has_dropout |= adapter.dropout != 0;
    }
  });
  return has_dropout ? std::nullopt : std::optional(std::move(key));
}

// Memory as `like` lies in its own.
Tensor buffer_like(const Tensor& like) {
  if (!like.defined() || is_of_host(like)) return like;
  const auto item = static_cast<int64_t>(like.element_size());
  const int64_t alignment = alignment_of(like);
  const Tensor whole = at::empty({like.numel() + alignment / item}, like.options());
  const int64_t shift = (offset_of(like) - offset_of(whole) + alignment) % alignment;
  return whole.as_strided(like.sizes(), like.strides(), shift / item);
}

// One launch for all tensors of a dtype.
void copy_into(const Tensors& buffers, const Tensors& inputs) {
  std::map<at::ScalarType, std::pair<Tensors, Tensors>> by_dtype;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined() || is_of_host(inputs[i])) continue;
    auto& [to, from] = by_dtype[inputs[i].scalar_type()];
    to.push_back(buffers[i]);
    from.push_back(inputs[i]);
  }
  for (const auto& [dtype, tensors] : by_dtype)
    at::_foreach_copy_(tensors.first, tensors.second, /*non_blocking=*/true);
}

}  // namespace

void set_proven_graph_rows(int64_t rows) {
  proven_rows = rows;
}

int64_t graph_rows(GraphChoice choice, at::Device device) {
  if (choice != GraphChoice::kAuto) return choice == GraphChoice::kOn ? INT64_MAX : 0;
  return device.is_cpu() ? 0 : proven_rows;
}

GraphRunner::GraphRunner(BlockRunner& inner) : inner_(inner) {}

GraphRunner::~GraphRunner() = default;

void GraphRunner::begin(Options options) {
  end();
  options_ = std::move(options);
  stats_ = {};
}

void GraphRunner::end() {
  forms_.clear();
  options_.recorder.reset();
}

bool GraphRunner::can_record(const Tensors& inputs) const {
  if (options_.recorder == nullptr || at::GradMode::is_enabled()) return false;
  if (SequenceScope::current() != nullptr) return false;  // ranks exchange rows within a block
  // How strong each sample's adapters are would be fixed.
  if (ops::SampleScope::current() != nullptr) return false;
  const at::DeviceType device = options_.recorder->device().type();
  const auto is_bound = [&](const Tensor& t) {
    return !t.defined() || is_of_host(t) ||
           (t.device().type() == device && t.is_non_overlapping_and_dense() && !t.is_inference());
  };
  return !inputs.empty() && inputs[0].defined() && inputs[0].dim() > 0 && !is_of_host(inputs[0]) &&
         inputs[0].size(0) <= options_.most_rows && std::ranges::all_of(inputs, is_bound);
}

GraphRunner::Form& GraphRunner::form_of(const Tensors& inputs) {
  Key key = key_of(inputs);
  const auto found = std::ranges::find(forms_, key, &Form::key);
  if (found != forms_.end()) {
    forms_.splice(forms_.begin(), forms_, found);
    return forms_.front();
  }
  if (forms_.size() == kMostForms) forms_.pop_back();
  return forms_.emplace_front(Form{.key = std::move(key), .buffers = {}, .blocks = {}});
}

Tensors GraphRunner::run(Block& block, const Tensors& inputs) {
  if (!can_record(inputs)) return inner_.run(block, inputs);
  std::optional<Key> weights = weights_of(block);
  if (!weights) return inner_.run(block, inputs);
  Form& form = form_of(inputs);
  Known& known = form.blocks[&block];
  if (known.weights != weights) {
    known = {.weights = std::move(weights), .by_place = {}};
    if (options_.runs_first) return inner_.run(block, inputs);
  }
  const std::shared_ptr<void> held = inner_.hold(block);
  Recorded& recorded = known.by_place[held.get()];
  if (recorded.graph == nullptr) {
    try {
      recorded = record(block, form, inputs);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kCancelled) throw;
      give_up(error.message());
    } catch (const std::exception& error) {
      give_up(error.what());
    }
    if (options_.recorder == nullptr) return inner_.run(block, inputs);
  }
  ops::check_stop();
  copy_into(form.buffers, inputs);
  ++stats_.replayed;
  Tensors outputs;
  for (const Tensor& output : recorded.graph->replay())
    outputs.push_back(output.defined() ? output.clone() : output);
  return outputs;
}

GraphRunner::Recorded GraphRunner::record(Block& block, Form& form, const Tensors& inputs) {
  if (form.buffers.empty()) {
    Tensors buffers;
    for (const Tensor& input : inputs) buffers.push_back(buffer_like(input));
    form.buffers = std::move(buffers);
  }
  Recorded recorded;
  const ops::RecordedUploads uploads;
  recorded.graph =
      options_.recorder->record([&block, &form] { return block.forward(form.buffers); });
  recorded.uploads = uploads.kept();
  ++stats_.recorded;
  return recorded;
}

void GraphRunner::give_up(const std::string& reason) {
  const auto warn = std::move(options_.warn);
  end();
  if (warn)
    warn("warning: blocks run without CUDA graphs from now on: " +
         reason.substr(0, reason.find('\n')));
}

}  // namespace atelier::memory
