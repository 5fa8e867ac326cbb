#include "host/model/random_weights.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "atelier/error.h"
#include "atelier/host/weight_state.h"

#include "formats/escape.h"
#include "memory/four_bit.h"
#include "memory/packed.h"
#include "memory/quantized_store.h"
#include "memory/transfer_device.h"

namespace atelier::model {

namespace {

// FNV-1a of the name, begun with the seed.
uint64_t seed_of(std::string_view name, uint64_t seed) {
  uint64_t hash = 14695981039346656037ULL ^ seed;
  for (const char letter : name) hash = (hash ^ static_cast<uint8_t>(letter)) * 1099511628211ULL;
  return hash & 0x7fffffffffffffffULL;  // as Python's generators take it
}

at::Tensor random_tensor(const std::string& name, const TensorMeta& meta, uint64_t seed,
                         at::Device device) {
  const at::TensorOptions options = at::TensorOptions(device).dtype(at::kFloat);
  if (!c10::isFloatingType(meta.dtype)) return at::zeros(meta.shape, options.dtype(meta.dtype));
  at::Generator generator = at::globalContext().defaultGenerator(device).clone();
  generator.set_current_seed(seed_of(name, seed));
  at::Tensor value = at::randn(meta.shape, generator, options);
  const int64_t numel = value.numel();
  const int64_t longest =
      meta.shape.empty() ? 1 : *std::max_element(meta.shape.begin(), meta.shape.end());
  if (numel == 0) return value.to(meta.dtype);
  if (numel != longest) {
    value.div_(std::sqrt(static_cast<double>(numel / meta.shape[0])));
  } else if (name.ends_with("bias")) {
    value.mul_(0.02);
  } else {
    value.mul_(0.1).add_(1.0);
  }
  return value.to(meta.dtype);
}

// The parts of published tensors that a weight is made of.
at::Tensor random_weight(const weights::BoundWeight& bound, const files::Checkpoint& checkpoint,
                         uint64_t seed, at::Device device) {
  at::Tensor whole;
  for (const weights::WeightSlice& slice : bound.slices) {
    at::Tensor part =
        random_tensor(slice.tensor, *checkpoint.index().find(slice.tensor), seed, device);
    if (slice.axis < 0) return part.view(bound.weight->sizes());
    if (!whole.defined()) whole = at::empty(bound.weight->sizes(), part.options());
    whole.narrow(slice.axis, slice.weight_start, slice.length)
        .copy_(part.narrow(slice.axis, slice.tensor_start, slice.length));
  }
  return whole;
}

at::Tensor on_host(const at::Tensor& value) {
  const memory::HostScope scope;
  return value.to(at::kCPU, /*non_blocking=*/false, /*copy=*/true);
}

}  // namespace

std::optional<uint64_t> random_weights_seed(const files::Checkpoint& checkpoint) {
  const auto found = checkpoint.metadata().find(kRandomWeightsKey);
  if (found == checkpoint.metadata().end()) return std::nullopt;
  const std::string& text = found->second;
  uint64_t seed = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), seed);
  if (failure != std::errc() || end != text.data() + text.size())
    throw Error(ErrorCode::kInvalidArgument,
                checkpoint.name() + ": " + kRandomWeightsKey + " is " +
                    formats::quote_and_escape(text) + ", and no number",
                "write a seed, 0 or more");
  return seed;
}

void refuse_random_weights(const files::Checkpoint& checkpoint) {
  if (!random_weights_seed(checkpoint)) return;
  throw Error(ErrorCode::kUnsupported,
              checkpoint.name() + ": has names and shapes, and no values (" + kRandomWeightsKey +
                  " in its metadata)",
              "pass a checkpoint with weights", "RANDOM_WEIGHTS");
}

void fill_randomly(const weights::WeightBinding& binding, const files::Checkpoint& checkpoint,
                   uint64_t seed, at::ScalarType dtype, at::Device device,
                   const std::function<void(int64_t)>& progress,
                   const weights::WeightStorage& resting,
                   const std::map<const Weight*, memory::Place>& places) {
  const at::NoGradGuard no_grad;
  int64_t bytes = 0;
  for (const weights::BoundWeight& bound : binding.weights) {
    Weight& weight = *bound.weight;
    const at::Tensor value = random_weight(bound, checkpoint, seed, device);
    bytes += static_cast<int64_t>(value.nbytes());
    const auto place = places.find(&weight);
    const bool leaves = place != places.end() && place->second != memory::Place::kDevice;
    const at::ScalarType type =
        value.is_floating_point() ? weight.drawn_dtype(dtype) : value.scalar_type();
    const bool is_stored = resting.weights.contains(&weight);
    const bool is_nf4 = resting.storage == weights::Storage::kNf4;
    const bool is_fp8 = resting.storage == weights::Storage::kFp8;
    if (is_stored && (is_nf4 || resting.storage == weights::Storage::kFp4)) {
      memory::Packed codes =
          memory::quantize_4bit(value, is_nf4 ? memory::Packing::kNf4 : memory::Packing::kFp4);
      if (leaves) std::ranges::transform(codes.parts, codes.parts.begin(), on_host);
      weight.state().set_store(std::make_shared<memory::PackedStore>(std::move(codes), type));
    } else if (is_stored && (is_fp8 || resting.storage == weights::Storage::kInt8)) {
      memory::Quantized codes = memory::quantize(
          value, is_fp8 ? memory::QuantizedKind::kFp8 : memory::QuantizedKind::kInt8);
      if (leaves) codes = {on_host(codes.codes), on_host(codes.scales)};
      weight.state().set_store(std::make_shared<memory::QuantizedStore>(
          std::move(codes), type, resting.w8a8.contains(&weight)));
    } else {
      weight.set(leaves ? on_host(value.to(type)) : value.to(type));
    }
    if (progress) progress(bytes);
  }
}

}  // namespace atelier::model
