#include "formats/tokenizer_files.h"

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "formats/escape.h"
#include "formats/git_lfs.h"
#include "formats/json_tree.h"
#include "formats/utf8.h"

namespace atelier::formats {
namespace {

using nlohmann::json;
using TextMerge = std::pair<std::string, std::string>;

std::string token(std::string_view text) {
  return "token " + quote_and_escape(text);
}

JsonRules tokenizer_rules() {
  return {.max_depth = 32, .tag_prefix = "TOK_"};
}

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
      at.fail("TOK_ID", token(key_) + ": id " + std::to_string(id) + " is not below " +
                            std::to_string(kMaxTokens));
    }
    std::string text = key_;
    switch (vocabulary.add(std::move(text), static_cast<uint32_t>(id))) {
      case Vocabulary::Added::kYes:
        break;
      case Vocabulary::Added::kTextTwice:
        at.fail("TOK_DUPLICATE", token(key_) + " is listed twice");
      case Vocabulary::Added::kIdTwice:
        at.fail("TOK_ID",
                token(key_) + ": id " + std::to_string(id) + " belongs to another token too");
    }
  }
  [[noreturn]] void wrong_value(const JsonHandler& at, const char* found) const {
    at.fail("TOK_FORM", token(key_) + ": its id is " + found + ", not an integer from 0");
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

// vocab.json and added_tokens.json: one flat object.
class FlatVocabularyHandler : public PlainHandler {
 public:
  VocabularyReader reader;

  void on_unsigned(uint64_t value) override {
    if (!is_open_) wrong("a number");
    reader.on_id(*this, value);
  }
  void on_start_object() override {
    if (is_open_) wrong("an object");
    is_open_ = true;
  }
  void on_key(std::string& key) override { reader.on_key(*this, key); }

 protected:
  void wrong(const char* found) override {
    if (is_open_) reader.wrong_value(*this, found);
    fail("TOK_FORM", std::string("is ") + found + ", not an object of tokens and ids");
  }

 private:
  bool is_open_ = false;
};

// Splits "left right" at its one space.
bool split_merge(std::string_view text, TextMerge& merge) {
  const size_t space = text.find(' ');
  if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos) {
    return false;
  }
  merge = {std::string(text.substr(0, space)), std::string(text.substr(space + 1))};
  return !merge.first.empty() && !merge.second.empty();
}

// tokenizer.json: vocabulary and merges are read as they come, everything else becomes a tree.
class TokenizerHandler : public PlainHandler {
 public:
  TokenizerHandler() : builder_({.max_depth = 32, .max_values = 2'000'000}) {}

  VocabularyReader reader;
  std::vector<TextMerge> merges;
  bool has_vocab = false;
  bool has_merges = false;

  json take_rest() { return builder_.take(); }

  void on_null() override {
    if (leaf("null")) rest().on_null();
  }
  void on_boolean(bool value) override {
    if (leaf("a boolean")) rest().on_boolean(value);
  }
  void on_negative(int64_t value) override {
    if (leaf("a negative number")) rest().on_negative(value);
  }
  void on_real(double value, const std::string& text) override {
    if (leaf("a number that is no 64-bit integer")) rest().on_real(value, text);
  }
  void on_unsigned(uint64_t value) override {
    if (where_ == Where::kVocab) {
      reader.on_id(*this, value);
    } else if (leaf("a number")) {
      rest().on_unsigned(value);
    }
  }
  void on_string(std::string& value) override {
    if (where_ == Where::kMerges) {
      TextMerge merge;
      if (!split_merge(value, merge)) {
        fail("TOK_MERGE",
             merge_name() + quote_and_escape(value) + " is not two tokens and a space");
      }
      add(std::move(merge));
    } else if (where_ == Where::kPair) {
      if (pair_.size() == 2) wrong("of more than two tokens");
      pair_.push_back(std::move(value));
    } else if (leaf("a string")) {
      rest().on_string(value);
    }
  }

  void on_start_object() override {
    if (where_ != Where::kRest) wrong("an object");
    if (depth_ == 2 && in_model_ && key_ == "vocab") {
      where_ = Where::kVocab;
      has_vocab = true;
      rest().on_null();
      return;
    }
    rest().on_start_object();
    ++depth_;
    if (depth_ == 2) in_model_ = key_ == "model";
  }
  void on_key(std::string& key) override {
    if (where_ == Where::kVocab) {
      reader.on_key(*this, key);
      return;
    }
    if (depth_ <= 2) key_ = key;
    rest().on_key(key);
  }
  void on_end_object() override {
    if (where_ == Where::kVocab) {
      where_ = Where::kRest;
      return;
    }
    if (depth_ == 2) in_model_ = false;
    --depth_;
    rest().on_end_object();
  }

  void on_start_array() override {
    if (where_ == Where::kMerges) {
      where_ = Where::kPair;
      pair_.clear();
      return;
    }
    if (where_ != Where::kRest) wrong("an array");
    if (depth_ == 2 && in_model_ && key_ == "vocab") {
      fail("TOK_KIND",
           "model.vocab is an array: a unigram (SentencePiece) tokenizer, not byte-pair");
    }
    if (depth_ == 2 && in_model_ && key_ == "merges") {
      where_ = Where::kMerges;
      has_merges = true;
      rest().on_null();
      return;
    }
    rest().on_start_array();
    ++depth_;
  }
  void on_end_array() override {
    if (where_ == Where::kPair) {
      where_ = Where::kMerges;
      if (pair_.size() != 2 || pair_[0].empty() || pair_[1].empty()) {
        fail("TOK_MERGE", merge_name() + "is not two tokens");
      }
      add({std::move(pair_[0]), std::move(pair_[1])});
    } else if (where_ == Where::kMerges) {
      where_ = Where::kRest;
    } else {
      --depth_;
      rest().on_end_array();
    }
  }

 protected:
  void wrong(const char* found) override {
    if (where_ == Where::kVocab) reader.wrong_value(*this, found);
    fail("TOK_MERGE", merge_name() + "is " + found);
  }

 private:
  enum class Where { kRest, kVocab, kMerges, kPair };

  // Whether a plain value goes to the tree; refuses it inside vocabulary and merges.
  bool leaf(const char* found) {
    if (where_ != Where::kRest) wrong(found);
    if (depth_ == 0) fail("TOK_FORM", std::string("is ") + found + ", not an object");
    return true;
  }
  JsonTreeBuilder& rest() {
    share_position(builder_);
    return builder_;
  }
  std::string merge_name() const { return "merge " + std::to_string(merges.size()) + " "; }
  void add(TextMerge&& merge) {
    if (merges.size() >= kMaxTokens) {
      fail("TOK_MERGE", "more than " + std::to_string(kMaxTokens) + " merges");
    }
    merges.push_back(std::move(merge));
  }

  Where where_ = Where::kRest;
  int depth_ = 0;
  bool in_model_ = false;
  std::string key_;
  std::vector<std::string> pair_;
  JsonTreeBuilder builder_;
};

// Reads optional fields of one object, naming them in errors by their path.
class Fields {
 public:
  Fields(const json& object, std::string path) : object_(object), path_(std::move(path)) {
    if (!object_.is_object()) {
      throw ParseError("TOK_FORM", path_ + " is " + object_.type_name() + ", not an object");
    }
  }

  // Null counts as absent.
  const json* find(const char* name) const {
    const auto found = object_.find(name);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  const json& at(const char* name) const {
    const json* value = find(name);
    if (value == nullptr) throw ParseError("TOK_FORM", path_ + " has no " + name);
    return *value;
  }
  std::string string(const char* name, const std::string& otherwise = {}) const {
    const json* value = find(name);
    if (value == nullptr) return otherwise;
    if (!value->is_string()) refuse(name, *value, "a string");
    return value->get<std::string>();
  }
  bool flag(const char* name, bool otherwise) const {
    const json* value = find(name);
    if (value == nullptr) return otherwise;
    if (!value->is_boolean()) refuse(name, *value, "true or false");
    return value->get<bool>();
  }
  [[noreturn]] void refuse(const char* name, const json& value, const char* wanted) const {
    throw ParseError("TOK_FORM",
                     path_ + '.' + name + " is " + value.type_name() + ", not " + wanted);
  }

 private:
  const json& object_;
  std::string path_;
};

AddedToken read_added_token(const Fields& fields, uint32_t id) {
  AddedToken added;
  added.id = id;
  added.text = fields.string("content");
  added.is_special = fields.flag("special", false);
  added.is_normalized = fields.flag("normalized", !added.is_special);
  added.strips_left = fields.flag("lstrip", false);
  added.strips_right = fields.flag("rstrip", false);
  added.is_single_word = fields.flag("single_word", false);
  return added;
}

// Checks added tokens among themselves and against the vocabulary, and sorts them by id.
void check_added_tokens(std::vector<AddedToken>& added_tokens, const Vocabulary& vocabulary) {
  std::stable_sort(
      added_tokens.begin(), added_tokens.end(),
      [](const AddedToken& left, const AddedToken& right) { return left.id < right.id; });
  SeenKeys texts;
  for (size_t i = 0; i < added_tokens.size(); ++i) {
    const AddedToken& added = added_tokens[i];
    const std::string name = "added " + token(added.text) + " with id " + std::to_string(added.id);
    if (added.text.empty()) throw ParseError("TOK_FORM", name + " has no text");
    if (i > 0 && added_tokens[i - 1].id == added.id) {
      throw ParseError("TOK_ID",
                       name + ": added " + token(added_tokens[i - 1].text) + " has the same id");
    }
    if (!texts.insert(added.text)) throw ParseError("TOK_DUPLICATE", name + " is listed twice");
    const std::optional<uint32_t> id = vocabulary.find(added.text);
    if (id && *id != added.id) {
      throw ParseError("TOK_ID", name + ": the vocabulary gives it id " + std::to_string(*id));
    }
    if (!id && vocabulary.has_id(added.id)) {
      throw ParseError("TOK_ID", name + ": the vocabulary gives that id to another token");
    }
  }
}

// Replaces texts by ids. `where` names a merge by its place in the list.
std::vector<BpeMerge> resolve(const std::vector<TextMerge>& merges, const Vocabulary& vocabulary,
                              const std::function<std::string(size_t)>& where) {
  std::vector<BpeMerge> resolved;
  resolved.reserve(merges.size());
  std::string joined;
  for (size_t i = 0; i < merges.size(); ++i) {
    const auto find = [&](const std::string& text) {
      const std::optional<uint32_t> id = vocabulary.find(text);
      if (!id) {
        throw ParseError("TOK_MERGE", where(i) + " (" + quote_and_escape(merges[i].first, 50) +
                                          " and " + quote_and_escape(merges[i].second, 50) +
                                          "): " + token(text) + " is not in the vocabulary");
      }
      return *id;
    };
    joined.assign(merges[i].first).append(merges[i].second);
    const uint32_t left = find(merges[i].first);
    const uint32_t right = find(merges[i].second);
    resolved.push_back({left, right, find(joined)});
  }
  return resolved;
}

// "pattern": {"Regex": …} or {"String": …}.
template <class Step>
void read_pattern(const Fields& fields, const std::string& path, Step& step) {
  const json* pattern = fields.find("pattern");
  if (pattern == nullptr) return;
  const Fields kinds(*pattern, path);
  step.pattern_is_regex = kinds.find("Regex") != nullptr;
  step.pattern = kinds.string(step.pattern_is_regex ? "Regex" : "String");
}

void read_normalizer(const Fields& fields, std::vector<NormalizerStep>& normalizers) {
  NormalizerStep read;
  read.type = fields.string("type");
  if (read.type != "Sequence") {
    if (read.type == "Replace") read_pattern(fields, "normalizer.pattern", read);
    read.content = fields.string(read.type == "Prepend" ? "prepend" : "content");
    normalizers.push_back(std::move(read));
    return;
  }
  const json& steps = fields.at("normalizers");
  if (!steps.is_array()) fields.refuse("normalizers", steps, "an array");
  for (const json& step : steps) {
    read_normalizer(Fields(step, "normalizer.normalizers[]"), normalizers);
  }
}

void read_pre_tokenizer(const Fields& fields, std::vector<PreTokenizerStep>& steps) {
  PreTokenizerStep step;
  step.type = fields.string("type");
  if (step.type == "Sequence") {
    const json& inner = fields.at("pretokenizers");
    if (!inner.is_array()) fields.refuse("pretokenizers", inner, "an array");
    for (const json& one : inner) {
      read_pre_tokenizer(Fields(one, "pre_tokenizer.pretokenizers[]"), steps);
    }
    return;
  }
  read_pattern(fields, "pre_tokenizer.pattern", step);
  step.behavior = fields.string("behavior");
  step.is_inverted = fields.flag("invert", false);
  step.add_prefix_space = fields.flag("add_prefix_space", step.type == "ByteLevel");
  step.use_regex = fields.flag("use_regex", step.type == "ByteLevel");
  steps.push_back(std::move(step));
}

void read_model(const Fields& model, BpeFiles& files) {
  const std::string type = model.string("type", "BPE");
  if (type != "BPE") {
    throw ParseError("TOK_KIND", "model.type is " + quote_and_escape(type) + ", not \"BPE\"");
  }
  if (!model.string("continuing_subword_prefix").empty()) {
    throw ParseError("TOK_KIND", "model.continuing_subword_prefix is set, which is not supported");
  }
  if (model.find("dropout") != nullptr && model.at("dropout") != 0) {
    throw ParseError("TOK_KIND", "model.dropout is set: the same text would give different tokens");
  }
  if (model.find("unk_token") != nullptr) files.unk_token = model.string("unk_token");
  files.end_of_word_suffix = model.string("end_of_word_suffix");
  files.byte_fallback = model.flag("byte_fallback", false);
  files.ignore_merges = model.flag("ignore_merges", false);
}

// Runs `read` on one of several texts, and puts its name before what goes wrong.
template <typename Read>
auto named(const char* name, Read read) {
  try {
    return read();
  } catch (const ParseError& error) {
    throw ParseError(error.tag, std::string(name) + ": " + error.what(), error.hint, error.byte,
                     error.line);
  }
}

std::vector<TextMerge> read_merges(std::string_view text, std::vector<uint64_t>& lines) {
  if (const auto pointer = find_git_lfs_pointer(text, "TOK_")) throw *pointer;
  if (const size_t bad = find_invalid_utf8(text); bad != std::string_view::npos) {
    throw ParseError("TOK_UTF8", "is not UTF-8", {}, bad, line_of(text, bad));
  }
  std::vector<TextMerge> merges;
  uint64_t line = 0;
  for (size_t start = 0; start < text.size();) {
    ++line;
    size_t end = text.find('\n', start);
    if (end == std::string_view::npos) end = text.size();
    std::string_view row = text.substr(start, end - start);
    if (!row.empty() && row.back() == '\r') row.remove_suffix(1);
    if (!row.empty() && !(line == 1 && row.starts_with("#version"))) {
      TextMerge merge;
      if (!split_merge(row, merge)) {
        throw ParseError("TOK_MERGE", quote_and_escape(row) + " is not two tokens and a space", {},
                         start, line);
      }
      if (merges.size() >= kMaxTokens) {
        throw ParseError("TOK_MERGE", "more than " + std::to_string(kMaxTokens) + " merges", {},
                         start, line);
      }
      merges.push_back(std::move(merge));
      lines.push_back(line);
    }
    start = end + 1;
  }
  return merges;
}

uint32_t read_decimal_id(const std::string& text) {
  const bool is_decimal =
      !text.empty() && text.size() <= 9 &&
      std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; }) &&
      (text.size() == 1 || text[0] != '0');
  const uint64_t id = is_decimal ? std::stoull(text) : kMaxTokens;
  if (id >= kMaxTokens) {
    throw ParseError("TOK_ID", "added_tokens_decoder: key " + quote_and_escape(text) +
                                   " is not an id below " + std::to_string(kMaxTokens));
  }
  return static_cast<uint32_t>(id);
}

// The texts that tokenizer_config.json calls special: eos_token, additional_special_tokens, ….
std::set<std::string> read_special_texts(const json& config) {
  std::set<std::string> texts;
  const auto add = [&](const json& value) {
    if (value.is_string()) texts.insert(value.get<std::string>());
    if (value.is_object() && value.contains("content") && value["content"].is_string()) {
      texts.insert(value["content"].get<std::string>());
    }
  };
  for (const char* name : {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token",
                           "cls_token", "mask_token"}) {
    if (const auto found = config.find(name); found != config.end()) add(*found);
  }
  for (const char* name : {"additional_special_tokens", "extra_special_tokens"}) {
    if (const auto found = config.find(name); found != config.end()) {
      for (const json& value : *found) add(value);
    }
  }
  return texts;
}

}  // namespace

BpeFiles parse_tokenizer_json(std::string_view text) {
  TokenizerHandler handler;
  read_json(text, tokenizer_rules(), handler);
  const json rest = handler.take_rest();
  const Fields root(rest, "tokenizer.json");
  BpeFiles files;
  read_model(Fields(root.at("model"), "model"), files);
  if (!handler.has_vocab) throw ParseError("TOK_FORM", "model has no vocab");
  if (!handler.has_merges) {
    throw ParseError("TOK_KIND", "model has no merges: not a byte-pair tokenizer");
  }

  if (const json* added_tokens = root.find("added_tokens")) {
    if (!added_tokens->is_array()) root.refuse("added_tokens", *added_tokens, "an array");
    for (const json& one : *added_tokens) {
      const Fields fields(one, "added_tokens[]");
      const json& id = fields.at("id");
      if (!id.is_number_unsigned() || id.get<uint64_t>() >= kMaxTokens) {
        throw ParseError("TOK_ID", "added " + token(fields.string("content")) +
                                       ": its id is not an integer below " +
                                       std::to_string(kMaxTokens));
      }
      files.added_tokens.push_back(read_added_token(fields, id.get<uint32_t>()));
    }
  }
  check_added_tokens(files.added_tokens, handler.reader.vocabulary);

  files.has_pipeline = true;
  if (const json* normalizer = root.find("normalizer")) {
    read_normalizer(Fields(*normalizer, "normalizer"), files.normalizers);
  }
  if (const json* pre_tokenizer = root.find("pre_tokenizer")) {
    read_pre_tokenizer(Fields(*pre_tokenizer, "pre_tokenizer"), files.pre_tokenizer);
  }

  files.merges = resolve(handler.merges, handler.reader.vocabulary,
                         [](size_t i) { return "merge " + std::to_string(i); });
  files.tokens = handler.reader.vocabulary.take_by_id();
  return files;
}

BpeFiles parse_bpe_files(std::string_view vocab, std::string_view merges,
                         std::optional<std::string_view> tokenizer_config,
                         std::optional<std::string_view> added_tokens) {
  BpeFiles files;
  FlatVocabularyHandler vocab_handler;
  named("vocab.json", [&] { read_json(vocab, tokenizer_rules(), vocab_handler); });
  const Vocabulary& vocabulary = vocab_handler.reader.vocabulary;

  json config = json::object();
  if (tokenizer_config) {
    named("tokenizer_config.json", [&] {
      config = parse_json(*tokenizer_config);
      const Fields fields(config, "the text");
      files.tokenizer_class = fields.string("tokenizer_class");
      if (fields.find("add_prefix_space") != nullptr) {
        files.add_prefix_space = fields.flag("add_prefix_space", false);
      }
      if (const json* decoder = fields.find("added_tokens_decoder")) {
        if (!decoder->is_object()) fields.refuse("added_tokens_decoder", *decoder, "an object");
        for (const auto& [key, value] : decoder->items()) {
          const Fields entry(value, "added_tokens_decoder." + quote_and_escape(key));
          files.added_tokens.push_back(read_added_token(entry, read_decimal_id(key)));
        }
      }
    });
  }

  if (added_tokens) {
    named("added_tokens.json", [&] {
      FlatVocabularyHandler handler;
      read_json(*added_tokens, tokenizer_rules(), handler);
      const std::set<std::string> special = read_special_texts(config);
      SeenKeys described;
      for (const AddedToken& one : files.added_tokens) {
        described.insert(one.text + '\0' + std::to_string(one.id));
      }
      for (BpeToken& one : handler.reader.vocabulary.take_by_id()) {
        if (!described.insert(one.text + '\0' + std::to_string(one.id))) continue;
        AddedToken added;
        added.id = one.id;
        added.is_special = special.contains(one.text);
        added.is_normalized = !added.is_special;
        added.text = std::move(one.text);
        files.added_tokens.push_back(std::move(added));
      }
    });
  }
  named(tokenizer_config ? "tokenizer_config.json" : "added_tokens.json",
        [&] { check_added_tokens(files.added_tokens, vocabulary); });

  named("merges.txt", [&] {
    std::vector<uint64_t> lines;
    const std::vector<TextMerge> texts = read_merges(merges, lines);
    files.merges =
        resolve(texts, vocabulary, [&](size_t i) { return "line " + std::to_string(lines[i]); });
  });
  files.tokens = vocab_handler.reader.vocabulary.take_by_id();
  return files;
}

}  // namespace atelier::formats
