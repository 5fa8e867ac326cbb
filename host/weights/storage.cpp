#include "host/weights/storage.h"

#include <algorithm>
#include <utility>

#include "atelier/error.h"
#include "atelier/nn/layers.h"

#include "formats/escape.h"
#include "formats/list.h"
#include "host/report/problems.h"

namespace atelier::weights {

namespace {

constexpr int64_t kLeastColumns = 16;
constexpr const char* kAuto = "auto";

template <typename Kind>
using Names = std::vector<std::pair<std::string_view, Kind>>;

const Names<at::ScalarType> kDtypes = {
    {"float32", at::kFloat}, {"bfloat16", at::kBFloat16}, {"float16", at::kHalf}};
const Names<Storage> kStorages = {{"fp8", Storage::kFp8},    {"int8", Storage::kInt8},
                                  {"nf4", Storage::kNf4},    {"fp4", Storage::kFp4},
                                  {"bf16", Storage::kBf16},  {"published", Storage::kPublished},
                                  {"plain", Storage::kPlain}};
const Names<Compute> kComputes = {
    {"w8a8", Compute::kW8A8}, {"bf16", Compute::kBf16}, {"plain", Compute::kPlain}};

template <typename Kind>
std::string_view name_of(const Names<Kind>& names, Kind kind) {
  return std::ranges::find(names, kind, &std::pair<std::string_view, Kind>::second)->first;
}

// Entries of `flag`, "component=kind".
template <typename Kind>
std::map<std::string, Kind, std::less<>> parse_kinds(const std::string& flag,
                                                     const std::vector<std::string>& entries,
                                                     const Names<Kind>& names,
                                                     const std::string& example) {
  std::map<std::string, Kind, std::less<>> kinds;
  for (const std::string& entry : entries) {
    const std::string place = flag + " " + formats::quote_and_escape(entry) + ": ";
    const size_t equals = entry.find('=');
    if (equals == std::string::npos || equals == 0)
      throw Error(ErrorCode::kInvalidArgument, place + "no component and kind",
                  "write for instance " + example);
    const auto kind = std::ranges::find(names, std::string_view(entry).substr(equals + 1),
                                        &std::pair<std::string_view, Kind>::first);
    if (kind == names.end()) {
      std::vector<std::string> known;
      for (const auto& [name, value] : names) known.emplace_back(name);
      const std::string nearest = report::nearest_name(entry.substr(equals + 1), known);
      throw Error(ErrorCode::kInvalidArgument,
                  place + "the kind is not one of " + report::list_names(known),
                  nearest.empty() ? "use one of them" : "did you mean " + nearest + "?");
    }
    if (!kinds.emplace(entry.substr(0, equals), kind->second).second)
      throw Error(ErrorCode::kInvalidArgument, place + "the component is named twice",
                  "name it once");
  }
  return kinds;
}

}  // namespace

DtypeFlags parse_dtypes(const std::string& text) {
  DtypeFlags dtypes;
  std::vector<std::string> whole, entries;
  for (const std::string& word : formats::parse_list(text))
    (word.find('=') == std::string::npos ? whole : entries).push_back(word);
  if (whole.size() > 1)
    throw Error(ErrorCode::kInvalidArgument,
                "--dtype " + formats::quote_and_escape(text) + ": two dtypes for every component",
                "name one for all and others by component: bfloat16,vae=float32");
  if (!whole.empty()) dtypes.all = whole.front();
  dtypes.components = parse_kinds("--dtype", entries, kDtypes, "bfloat16,vae=float32");
  return dtypes;
}

at::ScalarType dtype_named(const std::string& name) {
  const auto found = std::ranges::find(kDtypes, std::string_view(name),
                                       &std::pair<std::string_view, at::ScalarType>::first);
  if (found == kDtypes.end())
    throw Error(ErrorCode::kInvalidArgument,
                "--dtype " + formats::quote_and_escape(name) + " is not known",
                "use auto, float32, bfloat16 or float16");
  return found->second;
}

std::optional<at::ScalarType> dtype_or_auto(const std::string& name) {
  if (name == kAuto) return std::nullopt;
  return dtype_named(name);
}

std::vector<std::string> dtype_choices() {
  std::vector<std::string> names = {kAuto};
  for (const auto& [name, dtype] : kDtypes) names.emplace_back(name);
  return names;
}

std::string dtype_name(at::ScalarType dtype) {
  const auto found =
      std::ranges::find(kDtypes, dtype, &std::pair<std::string_view, at::ScalarType>::second);
  return found == kDtypes.end() ? at::toString(dtype) : std::string(found->first);
}

StorageByComponent parse_storage(const std::vector<std::string>& entries) {
  return parse_kinds("--storage", entries, kStorages, "dit=fp8,text_encoder=int8");
}

std::string_view storage_name(Storage storage) {
  return name_of(kStorages, storage);
}

Storage storage_named(std::string_view name) {
  return std::ranges::find(kStorages, name, &std::pair<std::string_view, Storage>::first)->second;
}

ComputeByComponent parse_compute(const std::vector<std::string>& entries) {
  return parse_kinds("--compute", entries, kComputes, "dit=w8a8");
}

std::string_view compute_name(Compute compute) {
  return name_of(kComputes, compute);
}

std::set<const Weight*> storable_weights(Model& model, std::string_view component) {
  std::set<const Weight*> weights;
  for (Block* block : model.blocks(component)) {
    block->visit([&](nn::Module& module) {
      const auto* linear = dynamic_cast<const nn::Linear*>(&module);
      if (linear != nullptr && linear->in_features() >= kLeastColumns &&
          !linear->weight->keeps_float32())
        weights.insert(linear->weight.get());
    });
  }
  return weights;
}

std::set<const Weight*> w8a8_weights(Model& model, std::string_view component) {
  std::set<const Weight*> weights = storable_weights(model, component);
  for (const WeightPtr& weight : model.level_weights(component)) weights.erase(weight.get());
  return weights;
}

}  // namespace atelier::weights
