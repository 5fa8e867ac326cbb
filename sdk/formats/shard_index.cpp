#include "formats/shard_index.h"

#include <algorithm>
#include <set>
#include <utility>

#include "formats/escape.h"
#include "formats/json_reader.h"

namespace atelier::formats {
namespace {

bool is_shard_name(std::string_view name) {
  constexpr std::string_view kSuffix = ".safetensors";
  if (name.size() <= kSuffix.size() || !name.ends_with(kSuffix)) return false;
  return std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '.' || c == '-';
  });
}

class IndexHandler : public JsonHandler {
 public:
  ShardIndex index;
  bool has_weight_map = false;

  void on_null() override { other("null"); }
  void on_boolean(bool) override { other("a boolean"); }
  void on_negative(int64_t) override { other("a number"); }
  void on_unsigned(uint64_t value) override {
    if (where_ == Where::kMetadata && skip_ == 0 && key_ == "total_size") index.total_size = value;
    other("a number");
  }
  void on_real(double value, const std::string&) override {
    // Some writers put the size as 4.1e10.
    if (where_ == Where::kMetadata && skip_ == 0 && key_ == "total_size" && value >= 0 &&
        value < 0x1p63) {
      index.total_size = static_cast<uint64_t>(value);
    }
    other("a number");
  }

  void on_string(std::string& value) override {
    if (skip_ > 0 || where_ != Where::kWeightMap) {
      other("a string");
      return;
    }
    if (!is_shard_name(value)) {
      const bool is_pickle = value.ends_with(".bin") || value.ends_with(".pt");
      fail("INDEX_SHARD_NAME",
           "tensor " + quote_and_escape(key_) + ": shard " + quote_and_escape(value) +
               " is not a plain name of a .safetensors file",
           is_pickle ? "use the safetensors files of the model, pickles are never read"
                     : "shards lie beside the index; only letters, digits and _.- are allowed");
    }
    index.weight_map.emplace(std::move(key_), std::move(value));
  }

  void on_start_object() override {
    if (skip_ == 0 && where_ == Where::kOutside) {
      where_ = Where::kRoot;
    } else if (skip_ == 0 && where_ == Where::kRoot && key_ == "weight_map") {
      where_ = Where::kWeightMap;
      has_weight_map = true;
    } else if (skip_ == 0 && where_ == Where::kRoot && key_ == "metadata") {
      where_ = Where::kMetadata;
    } else {
      other("an object");
      ++skip_;
    }
  }

  void on_key(std::string& key) override {
    if (skip_ > 0) return;
    const bool is_new = where_ == Where::kWeightMap ? !index.weight_map.contains(key)
                        : where_ == Where::kRoot    ? root_keys_.insert(key)
                                                    : metadata_keys_.insert(key);
    if (!is_new) {
      fail("INDEX_DUPLICATE", (where_ == Where::kWeightMap ? "tensor " : "key ") +
                                  quote_and_escape(key) + " is listed twice");
    }
    key_ = std::move(key);
  }

  void on_end_object() override {
    if (skip_ > 0) {
      --skip_;
    } else {
      where_ = where_ == Where::kRoot ? Where::kOutside : Where::kRoot;
    }
  }

  void on_start_array() override {
    other("an array");
    ++skip_;
  }
  void on_end_array() override { --skip_; }

 private:
  enum class Where { kOutside, kRoot, kMetadata, kWeightMap };

  void other(const char* found) const {
    if (skip_ > 0) return;
    if (where_ == Where::kOutside) {
      fail("INDEX_FORM", std::string("is ") + found + ", not an object");
    }
    if (where_ == Where::kRoot && key_ == "weight_map") {
      fail("INDEX_FORM", std::string("weight_map is ") + found + ", not an object");
    }
    if (where_ == Where::kWeightMap) {
      fail("INDEX_FORM",
           "tensor " + quote_and_escape(key_) + ": its shard is " + found + ", not a name");
    }
  }

  Where where_ = Where::kOutside;
  int skip_ = 0;
  std::string key_;
  SeenKeys root_keys_;
  SeenKeys metadata_keys_;
};

}  // namespace

ShardIndex parse_shard_index(std::string_view text) {
  IndexHandler handler;
  read_json(text, {.max_depth = 32, .tag_prefix = "INDEX_"}, handler);
  if (!handler.has_weight_map) {
    throw ParseError("INDEX_FORM", "has no weight_map", "this is not the index of a checkpoint");
  }
  if (handler.index.weight_map.empty()) {
    throw ParseError("INDEX_FORM", "weight_map is empty");
  }
  std::set<std::string> shards;
  for (const auto& [name, shard] : handler.index.weight_map) shards.insert(shard);
  handler.index.shards.assign(shards.begin(), shards.end());
  return std::move(handler.index);
}

}  // namespace atelier::formats
