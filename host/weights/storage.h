// How the weights of a component rest, in --dtype or in 8 or 4 bits with scales, and in what they
// are multiplied. Each is read here from its flag, by component.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "atelier/model.h"

namespace atelier::weights {

using DtypeByComponent = std::map<std::string, at::ScalarType, std::less<>>;

struct DtypeFlags {
  std::string all = "auto";  // of components that are not named, as dtype_named() takes it
  DtypeByComponent components = {};
};

// "bfloat16", "vae=float32" or "bfloat16,vae=float32". Throws Error{kInvalidArgument}.
DtypeFlags parse_dtypes(const std::string& text);

// "float32", "bfloat16" and "float16". Throws Error{kInvalidArgument} for another name.
at::ScalarType dtype_named(const std::string& name);
// Reads a dtype, and gives nullopt for "auto".
std::optional<at::ScalarType> dtype_or_auto(const std::string& name);
// Every text that dtype_or_auto() takes.
std::vector<std::string> dtype_choices();
// The inverse; LibTorch's name of others.
std::string dtype_name(at::ScalarType dtype);

enum class Storage {
  kPlain,  // in the compute dtype
  kBf16,   // the same, which has to be bfloat16; in requests only
  kFp8,    // float8_e4m3fn; tensors that are published so keep their bits
  kInt8,
  kNf4,  // 4 bits, as bitsandbytes stores them; tensors that are published so keep their bits
  kFp4,
  // Tensors that are published as float8_e4m3fn or packed (see Checkpoint::packed()) stay so,
  // others are plain.
  kPublished,
};

using StorageByComponent = std::map<std::string, Storage, std::less<>>;

// "dit=fp8", "text_encoder=published"; also int8, nf4, fp4, bf16 and plain. Throws
// Error{kInvalidArgument}.
StorageByComponent parse_storage(const std::vector<std::string>& entries);

std::string_view storage_name(Storage storage);
// The inverse, of a name that it gave.
Storage storage_named(std::string_view name);

enum class Compute {
  kPlain,  // in the compute dtype, whatever that is
  kBf16,   // the same, which has to be bfloat16
  kW8A8,   // products of 8-bit codes, where weights rest as such
};

using ComputeByComponent = std::map<std::string, Compute, std::less<>>;

// "dit=w8a8"; also bf16 and plain. Throws Error{kInvalidArgument}.
ComputeByComponent parse_compute(const std::vector<std::string>& entries);

std::string_view compute_name(Compute compute);

// What load_weights stores so, and how; other weights are plain.
struct WeightStorage {
  Storage storage = Storage::kPlain;
  std::set<const Weight*> weights = {};
  std::set<const Weight*> w8a8 = {};  // of `weights`, those that are multiplied as codes
};

// The matrices of linear layers inside the component's blocks: nearly all of its bytes, and no
// norm, bias, embedding, or layer at the model's ends. Rows of less than 16 values stay plain.
std::set<const Weight*> storable_weights(Model& model, std::string_view component);

// The ones of those that are worth multiplying in 8 bits: not what only the noise level reaches,
// whose products are of a few rows.
std::set<const Weight*> w8a8_weights(Model& model, std::string_view component);

}  // namespace atelier::weights
