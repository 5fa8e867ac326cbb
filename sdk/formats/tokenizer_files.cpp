#include "formats/tokenizer_files.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "formats/git_lfs.h"
#include "formats/json.h"
#include "formats/tokenizer_parts.h"
#include "formats/utf8.h"

namespace atelier::formats {
namespace {

using nlohmann::json;

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

TokenizerFiles parse_bpe_files(std::string_view vocab, std::string_view merges,
                               std::optional<std::string_view> tokenizer_config,
                               std::optional<std::string_view> added_tokens) {
  TokenizerFiles files;
  BpeModel bpe;
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
    bpe.merges = resolve_merges(texts, vocabulary,
                                [&](size_t i) { return "line " + std::to_string(lines[i]); });
  });
  bpe.tokens = vocab_handler.reader.vocabulary.take_by_id();
  files.model = std::move(bpe);
  return files;
}

}  // namespace atelier::formats
