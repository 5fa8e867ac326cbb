#include <nlohmann/json.hpp>
#include <utility>

#include "formats/base64.h"
#include "formats/json_tree.h"
#include "formats/tokenizer_files.h"
#include "formats/tokenizer_parts.h"
#include "formats/utf8.h"

namespace atelier::formats {
namespace {

using nlohmann::json;

// tokenizer.json: vocabulary, merges and pieces are read as they come, everything else becomes a
// tree.
class TokenizerHandler : public PlainHandler {
 public:
  TokenizerHandler() : builder_({.max_depth = 32, .max_values = 2'000'000}) {}

  VocabularyReader reader;
  std::vector<TextMerge> merges;
  std::vector<UnigramModel::Piece> pieces;
  bool has_vocab = false;
  bool has_merges = false;
  bool has_pieces = false;

  json take_rest() { return builder_.take(); }

  void on_null() override {
    if (leaf("null")) rest().on_null();
  }
  void on_boolean(bool value) override {
    if (leaf("a boolean")) rest().on_boolean(value);
  }
  void on_negative(int64_t value) override {
    if (where_ == Where::kPiece) {
      set_score(static_cast<double>(value));
    } else if (leaf("a negative number")) {
      rest().on_negative(value);
    }
  }
  void on_real(double value, const std::string& text) override {
    if (where_ == Where::kPiece) {
      set_score(value);
    } else if (leaf("a number that is no 64-bit integer")) {
      rest().on_real(value, text);
    }
  }
  void on_unsigned(uint64_t value) override {
    if (where_ == Where::kVocab) {
      reader.on_id(*this, value);
    } else if (where_ == Where::kPiece) {
      set_score(static_cast<double>(value));
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
    } else if (where_ == Where::kPiece) {
      if (!pieces.back().text.empty() || value.empty()) wrong_piece(pieces.size() - 1);
      pieces.back().text = std::move(value);
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
    if (where_ == Where::kPieces) {
      where_ = Where::kPiece;
      has_score_ = false;
      if (pieces.size() >= kMaxTokens) {
        fail("TOK_PIECE", "more than " + std::to_string(kMaxTokens) + " pieces");
      }
      pieces.emplace_back();
      return;
    }
    if (where_ != Where::kRest) wrong("an array");
    if (depth_ == 2 && in_model_ && (key_ == "vocab" || key_ == "merges")) {
      where_ = key_ == "vocab" ? Where::kPieces : Where::kMerges;
      (key_ == "vocab" ? has_pieces : has_merges) = true;
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
    } else if (where_ == Where::kPiece) {
      if (!has_score_) wrong_piece(pieces.size() - 1);
      where_ = Where::kPieces;
    } else if (where_ == Where::kMerges || where_ == Where::kPieces) {
      where_ = Where::kRest;
    } else {
      --depth_;
      rest().on_end_array();
    }
  }

 protected:
  void wrong(const char* found) override {
    if (where_ == Where::kVocab) reader.wrong_value(*this, found);
    if (where_ == Where::kPieces) wrong_piece(pieces.size());
    if (where_ == Where::kPiece) wrong_piece(pieces.size() - 1);
    fail("TOK_MERGE", merge_name() + "is " + found);
  }

 private:
  enum class Where { kRest, kVocab, kMerges, kPair, kPieces, kPiece };

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

  [[noreturn]] void wrong_piece(size_t place) const {
    fail("TOK_PIECE",
         "piece " + std::to_string(place) + " is not a text and a number, in this order");
  }
  void set_score(double score) {
    if (pieces.back().text.empty() || has_score_) wrong_piece(pieces.size() - 1);
    pieces.back().score = score;
    has_score_ = true;
  }

  Where where_ = Where::kRest;
  int depth_ = 0;
  bool in_model_ = false;
  std::string key_;
  std::vector<std::string> pair_;
  bool has_score_ = false;  // the last of `pieces`
  JsonTreeBuilder builder_;
};

// "pattern": {"Regex": …} or {"String": …}.
template <class Step>
void read_pattern(const Fields& fields, const std::string& path, Step& step) {
  const json* pattern = fields.find("pattern");
  if (pattern == nullptr) return;
  const Fields kinds(*pattern, path);
  step.pattern_is_regex = kinds.find("Regex") != nullptr;
  step.pattern = kinds.string(step.pattern_is_regex ? "Regex" : "String");
}

CharsMap read_chars_map(const Fields& fields) {
  const std::string text = fields.string("precompiled_charsmap");
  const auto bytes = text.size() % 4 == 0 ? decode_base64(text) : std::nullopt;
  if (!bytes) throw ParseError("TOK_FORM", "normalizer.precompiled_charsmap is not base64");
  return CharsMap(*bytes);
}

void read_normalizer(const Fields& fields, std::vector<NormalizerStep>& normalizers) {
  NormalizerStep read;
  read.type = fields.string("type");
  if (read.type != "Sequence") {
    if (read.type == "Replace") read_pattern(fields, "normalizer.pattern", read);
    if (read.type == "Precompiled") read.chars_map = read_chars_map(fields);
    read.content = fields.string(read.type == "Prepend" ? "prepend" : "content");
    read.strips_left = fields.flag("strip_left", false);
    read.strips_right = fields.flag("strip_right", false);
    normalizers.push_back(std::move(read));
    return;
  }
  const json& steps = fields.at("normalizers");
  if (!steps.is_array()) fields.refuse("normalizers", steps, "an array");
  for (const json& step : steps) {
    read_normalizer(Fields(step, "normalizer.normalizers[]"), normalizers);
  }
}

void read_metaspace(const Fields& fields, PreTokenizerStep& step) {
  step.replacement = fields.string("replacement");
  step.prepend_scheme =
      fields.string("prepend_scheme", fields.flag("add_prefix_space", true) ? "always" : "never");
  step.splits = fields.flag("split", true);
  const bool is_one_character = !step.replacement.empty() &&
                                decode_utf8(step.replacement, 0).length == step.replacement.size();
  if (!is_one_character) {
    fields.refuse("replacement", fields.at("replacement"), "one character");
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
  if (step.type == "Metaspace") read_metaspace(fields, step);
  steps.push_back(std::move(step));
}

BpeModel read_bpe(const Fields& model, TokenizerHandler& handler) {
  if (!handler.has_vocab) throw ParseError("TOK_FORM", "model has no vocab");
  if (!handler.has_merges) {
    throw ParseError("TOK_KIND", "model has no merges: not a byte-pair tokenizer");
  }
  if (!model.string("continuing_subword_prefix").empty()) {
    throw ParseError("TOK_KIND", "model.continuing_subword_prefix is set, which is not supported");
  }
  if (model.find("dropout") != nullptr && model.at("dropout") != 0) {
    throw ParseError("TOK_KIND", "model.dropout is set: the same text would give different tokens");
  }
  BpeModel bpe;
  if (model.find("unk_token") != nullptr) bpe.unk_token = model.string("unk_token");
  bpe.end_of_word_suffix = model.string("end_of_word_suffix");
  bpe.byte_fallback = model.flag("byte_fallback", false);
  bpe.ignore_merges = model.flag("ignore_merges", false);
  return bpe;
}

UnigramModel read_unigram(const Fields& model, TokenizerHandler& handler) {
  if (!handler.has_pieces) throw ParseError("TOK_FORM", "model has no vocab of pieces and scores");
  UnigramModel unigram;
  unigram.pieces = std::move(handler.pieces);
  unigram.byte_fallback = model.flag("byte_fallback", false);
  const json* unknown = model.find("unk_id");
  if (unknown == nullptr) {
    throw ParseError("TOK_KIND",
                     "model has no unk_id: what a character without a piece becomes is not known");
  }
  if (!unknown->is_number_unsigned() || unknown->get<uint64_t>() >= unigram.pieces.size()) {
    throw ParseError("TOK_ID", "model.unk_id is not the id of one of the " +
                                   std::to_string(unigram.pieces.size()) + " pieces");
  }
  unigram.unknown = unknown->get<uint32_t>();
  return unigram;
}

std::vector<AddedToken> read_added_tokens(const Fields& root) {
  std::vector<AddedToken> added;
  const json* listed = root.find("added_tokens");
  if (listed == nullptr) return added;
  if (!listed->is_array()) root.refuse("added_tokens", *listed, "an array");
  for (const json& one : *listed) {
    const Fields fields(one, "added_tokens[]");
    const json& id = fields.at("id");
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= kMaxTokens) {
      throw ParseError("TOK_ID", "added " + token_name(fields.string("content")) +
                                     ": its id is not an integer below " +
                                     std::to_string(kMaxTokens));
    }
    added.push_back(read_added_token(fields, id.get<uint32_t>()));
  }
  return added;
}

}  // namespace

TokenizerFiles parse_tokenizer_json(std::string_view text) {
  TokenizerHandler handler;
  read_json(text, tokenizer_rules(), handler);
  const json rest = handler.take_rest();
  const Fields root(rest, "tokenizer.json");
  TokenizerFiles files;
  files.added_tokens = read_added_tokens(root);
  files.has_pipeline = true;
  if (const json* normalizer = root.find("normalizer")) {
    read_normalizer(Fields(*normalizer, "normalizer"), files.normalizers);
  }
  if (const json* pre_tokenizer = root.find("pre_tokenizer")) {
    read_pre_tokenizer(Fields(*pre_tokenizer, "pre_tokenizer"), files.pre_tokenizer);
  }

  const Fields model(root.at("model"), "model");
  const std::string type = model.string("type", handler.has_pieces ? "Unigram" : "BPE");
  if (type == "Unigram") {
    UnigramModel unigram = read_unigram(model, handler);
    check_added_tokens(files.added_tokens, unigram.pieces);
    files.model = std::move(unigram);
    return files;
  }
  if (type != "BPE") {
    throw ParseError("TOK_KIND",
                     "model.type is " + quote_and_escape(type) + ", not \"BPE\" or \"Unigram\"");
  }
  BpeModel bpe = read_bpe(model, handler);
  Vocabulary& vocabulary = handler.reader.vocabulary;
  check_added_tokens(files.added_tokens, vocabulary);
  bpe.merges = resolve_merges(handler.merges, vocabulary,
                              [](size_t i) { return "merge " + std::to_string(i); });
  bpe.tokens = vocabulary.take_by_id();
  files.model = std::move(bpe);
  return files;
}

}  // namespace atelier::formats
