#include "host/checkpoint/storage.h"

#include "atelier/error.h"
#include "atelier/nn/layers.h"

#include "formats/escape.h"
#include "host/report/problems.h"

namespace atelier::checkpoint {

namespace {

constexpr int64_t kLeastColumns = 16;

const std::map<std::string, Storage, std::less<>>& storages() {
  static const std::map<std::string, Storage, std::less<>> names = {
      {"plain", Storage::kPlain},
      {"fp8", Storage::kFp8},
      {"int8", Storage::kInt8},
      {"published", Storage::kPublished}};
  return names;
}

}  // namespace

StorageByComponent parse_storage(const std::vector<std::string>& entries) {
  StorageByComponent storage;
  for (const std::string& entry : entries) {
    const std::string place = "--storage " + formats::quote_and_escape(entry) + ": ";
    const size_t equals = entry.find('=');
    if (equals == std::string::npos || equals == 0)
      throw Error(ErrorCode::kInvalidArgument, place + "no component and kind",
                  "write for instance dit=fp8,text_encoder=int8");
    const auto kind = storages().find(entry.substr(equals + 1));
    if (kind == storages().end())
      throw Error(ErrorCode::kInvalidArgument, place + "the kind is not known",
                  "use fp8, int8, published or plain");
    if (!storage.emplace(entry.substr(0, equals), kind->second).second)
      throw Error(ErrorCode::kInvalidArgument, place + "the component is named twice",
                  "name it once");
  }
  return storage;
}

std::string_view storage_name(Storage storage) {
  for (const auto& [name, value] : storages()) {
    if (value == storage) return name;
  }
  return "plain";
}

std::set<const Weight*> storable_weights(Model& model, std::string_view component) {
  std::set<const Weight*> weights;
  for (Block* block : model.blocks(component)) {
    block->visit([&](nn::Module& module) {
      const auto* linear = dynamic_cast<const nn::Linear*>(&module);
      if (linear != nullptr && linear->in_features() >= kLeastColumns)
        weights.insert(linear->weight.get());
    });
  }
  return weights;
}

}  // namespace atelier::checkpoint
