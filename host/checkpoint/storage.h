// How the weights of a component rest: in --dtype, or in 8 bits with a scale a row.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "atelier/model.h"

namespace atelier::checkpoint {

enum class Storage {
  kPlain,  // in the compute dtype
  kFp8,    // float8_e4m3fn; tensors that are published so keep their bits
  kInt8,
  kPublished,  // tensors that are published as float8_e4m3fn stay so, others are plain
};

using StorageByComponent = std::map<std::string, Storage, std::less<>>;

// "dit=fp8", "text_encoder=published"; also int8 and plain. Throws Error{kInvalidArgument}.
StorageByComponent parse_storage(const std::vector<std::string>& entries);

std::string_view storage_name(Storage storage);

// What load_weights stores so, and how; other weights are plain.
struct StoragePlan {
  Storage storage = Storage::kPlain;
  std::set<const Weight*> weights = {};
};

// The matrices of linear layers inside the component's blocks: nearly all of its bytes, and no
// norm, bias, embedding, or layer at the model's ends. Rows of less than 16 values stay plain.
std::set<const Weight*> storable_weights(Model& model, std::string_view component);

}  // namespace atelier::checkpoint
