// Weights of files that have names and shapes and no values, for measurements.
#pragma once

#include <functional>
#include <map>
#include <optional>

#include "host/files/checkpoint.h"
#include "host/weights/storage.h"
#include "host/weights/weight_binding.h"
#include "memory/residency.h"

namespace atelier::model {

// The key of `__metadata__` that says so; its value is a seed. The tensors of such a file are a
// hole, so that a model of 40 GB takes as much of the disk as its header.
inline constexpr const char* kRandomWeightsKey = "atelier.random_weights";

// The seed of such a checkpoint; nullopt for all others.
// Throws Error{kInvalidArgument} when it is no number.
std::optional<uint64_t> random_weights_seed(const files::Checkpoint& checkpoint);

// Throws Error{kUnsupported} for such a checkpoint: its tensors would be read as zeros.
void refuse_random_weights(const files::Checkpoint& checkpoint);

// Fills the weights, and stores and places them as weights::load_weights does. Every published
// tensor depends on its name, its shape and the seed alone: normal numbers of LibTorch's generator
// on `device`, so that Python makes the same ones there (bench/random_models.py). Matrices keep the
// size of what they multiply, scales are near 1, biases small.
void fill_randomly(const weights::WeightBinding& binding, const files::Checkpoint& checkpoint,
                   uint64_t seed, at::ScalarType dtype, at::Device device,
                   const std::function<void(int64_t bytes_done)>& progress,
                   const weights::WeightStorage& resting,
                   const std::map<const Weight*, memory::Place>& places);

}  // namespace atelier::model
