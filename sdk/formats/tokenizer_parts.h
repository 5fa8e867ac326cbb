// What the parsers of tokenizer files share: vocabularies, merges, and fields of their objects.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/escape.h"
#include "formats/json_reader.h"
#include "formats/tokenizer_files.h"

namespace atelier::formats {

using TextMerge = std::pair<std::string, std::string>;

// "token \"a\"", for messages.
std::string token_name(std::string_view text);

JsonRules tokenizer_rules();

// Tokens by text, in an open table whose slots fit the cache: loading looks up four tokens for each
// merge.
class Vocabulary {
 public:
  enum class Added { kYes, kTextTwice, kIdTwice };

  Added add(std::string&& text, uint32_t id) {
    if (id < id_used_.size() && id_used_[id]) return Added::kIdTwice;
    if (2 * (tokens_.size() + 1) > slots_.size()) grow();
    const uint32_t hash = hash_of(text);
    Slot& slot = slots_[find_slot(text, hash)];
    if (slot.token != kNone) return Added::kTextTwice;
    slot = {hash, static_cast<uint32_t>(tokens_.size())};
    tokens_.push_back({std::move(text), id});
    if (id >= id_used_.size()) id_used_.resize(std::max<size_t>(id + 1, id_used_.size() * 2));
    id_used_[id] = true;
    return Added::kYes;
  }

  bool has_id(uint32_t id) const { return id < id_used_.size() && id_used_[id]; }
  size_t size() const { return tokens_.size(); }

  std::optional<uint32_t> find(std::string_view text) const {
    if (tokens_.empty()) return std::nullopt;
    const Slot& slot = slots_[find_slot(text, hash_of(text))];
    if (slot.token == kNone) return std::nullopt;
    return tokens_[slot.token].id;
  }

  // Leaves the vocabulary empty.
  std::vector<BpeToken> take_by_id() {
    slots_.clear();
    id_used_.clear();
    std::vector<BpeToken> tokens = std::move(tokens_);
    tokens_.clear();
    std::sort(tokens.begin(), tokens.end(),
              [](const BpeToken& left, const BpeToken& right) { return left.id < right.id; });
    return tokens;
  }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Slot {
    uint32_t hash = 0;
    uint32_t token = kNone;  // place in tokens_
  };

  static uint32_t hash_of(std::string_view text) {
    return static_cast<uint32_t>(KeyedHash{}(text));
  }

  // The slot that holds `text`, or the empty one where it belongs.
  size_t find_slot(std::string_view text, uint32_t hash) const {
    const size_t mask = slots_.size() - 1;
    size_t at = hash & mask;
    while (slots_[at].token != kNone &&
           (slots_[at].hash != hash || tokens_[slots_[at].token].text != text)) {
      at = (at + 1) & mask;
    }
    return at;
  }

  void grow() {
    const std::vector<Slot> old =
        std::exchange(slots_, std::vector<Slot>(std::max<size_t>(1024, slots_.size() * 2)));
    for (const Slot& slot : old) {
      if (slot.token == kNone) continue;
      size_t at = slot.hash & (slots_.size() - 1);
      while (slots_[at].token != kNone) at = (at + 1) & (slots_.size() - 1);
      slots_[at] = slot;
    }
  }

  std::vector<BpeToken> tokens_;
  std::vector<Slot> slots_;
  std::vector<bool> id_used_;
};

// Reads {"token": id, …}, one key and value at a time.
class VocabularyReader {
 public:
  void on_key(const JsonHandler& at, std::string& key) {
    if (vocabulary.size() >= kMaxTokens) {
      at.fail("TOK_ID", "the vocabulary holds more than " + std::to_string(kMaxTokens) + " tokens");
    }
    key_ = std::move(key);
  }
  void on_id(const JsonHandler& at, uint64_t id) {
    if (id >= kMaxTokens) {
      at.fail("TOK_ID", token_name(key_) + ": id " + std::to_string(id) + " is not below " +
                            std::to_string(kMaxTokens));
    }
    std::string text = key_;
    switch (vocabulary.add(std::move(text), static_cast<uint32_t>(id))) {
      case Vocabulary::Added::kYes:
        break;
      case Vocabulary::Added::kTextTwice:
        at.fail("TOK_DUPLICATE", token_name(key_) + " is listed twice");
      case Vocabulary::Added::kIdTwice:
        at.fail("TOK_ID",
                token_name(key_) + ": id " + std::to_string(id) + " belongs to another token too");
    }
  }
  [[noreturn]] void wrong_value(const JsonHandler& at, const char* found) const {
    at.fail("TOK_FORM", token_name(key_) + ": its id is " + found + ", not an integer from 0");
  }

  Vocabulary vocabulary;

 private:
  std::string key_;
};

// A handler for which all values but the ones of interest are wrong.
class PlainHandler : public JsonHandler {
 public:
  void on_null() override { wrong("null"); }
  void on_boolean(bool) override { wrong("a boolean"); }
  void on_unsigned(uint64_t) override { wrong("a number"); }
  void on_negative(int64_t) override { wrong("a negative number"); }
  void on_real(double, const std::string&) override { wrong("a number that is no 64-bit integer"); }
  void on_string(std::string&) override { wrong("a string"); }
  void on_start_object() override { wrong("an object"); }
  void on_key(std::string&) override {}
  void on_end_object() override {}
  void on_start_array() override { wrong("an array"); }
  void on_end_array() override {}

 protected:
  virtual void wrong(const char* found) = 0;
};

// Splits "left right" at its one space; false when it is not that.
bool split_merge(std::string_view text, TextMerge& merge);

// Replaces texts by ids. `where` names a merge by its place in the list.
std::vector<BpeMerge> resolve_merges(const std::vector<TextMerge>& merges,
                                     const Vocabulary& vocabulary,
                                     const std::function<std::string(size_t)>& where);

// Reads optional fields of one object, naming them in errors by their path.
class Fields {
 public:
  Fields(const nlohmann::json& object, std::string path) : object_(object), path_(std::move(path)) {
    if (!object_.is_object()) {
      throw ParseError("TOK_FORM", path_ + " is " + object_.type_name() + ", not an object");
    }
  }

  // Null counts as absent.
  const nlohmann::json* find(const char* name) const {
    const auto found = object_.find(name);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  const nlohmann::json& at(const char* name) const {
    const nlohmann::json* value = find(name);
    if (value == nullptr) throw ParseError("TOK_FORM", path_ + " has no " + name);
    return *value;
  }
  std::string string(const char* name, const std::string& otherwise = {}) const {
    const nlohmann::json* value = find(name);
    if (value == nullptr) return otherwise;
    if (!value->is_string()) refuse(name, *value, "a string");
    return value->get<std::string>();
  }
  bool flag(const char* name, bool otherwise) const {
    const nlohmann::json* value = find(name);
    if (value == nullptr) return otherwise;
    if (!value->is_boolean()) refuse(name, *value, "true or false");
    return value->get<bool>();
  }
  [[noreturn]] void refuse(const char* name, const nlohmann::json& value,
                           const char* wanted) const {
    throw ParseError("TOK_FORM",
                     path_ + '.' + name + " is " + value.type_name() + ", not " + wanted);
  }

 private:
  const nlohmann::json& object_;
  std::string path_;
};

AddedToken read_added_token(const Fields& fields, uint32_t id);

// Checks added tokens among themselves and against the vocabulary, and sorts them by id.
void check_added_tokens(std::vector<AddedToken>& added_tokens, const Vocabulary& vocabulary);
void check_added_tokens(std::vector<AddedToken>& added_tokens,
                        const std::vector<UnigramModel::Piece>& pieces);

}  // namespace atelier::formats
