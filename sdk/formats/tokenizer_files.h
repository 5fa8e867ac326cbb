// Files of tokenizers: tokenizer.json, or vocab.json with merges.txt and what stands beside them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "formats/chars_map.h"
#include "formats/parse_error.h"

namespace atelier::formats {

// Ids are smaller than this, and no list is longer.
inline constexpr uint32_t kMaxTokens = 1U << 22;

struct BpeToken {
  std::string text;  // as in the file; byte-level vocabularies spell bytes as printable characters
  uint32_t id = 0;
};

// Two tokens and what they become, by id.
struct BpeMerge {
  uint32_t left = 0;
  uint32_t right = 0;
  uint32_t joined = 0;
};

// Byte-pair encoding.
struct BpeModel {
  std::vector<BpeToken> tokens;  // the vocabulary, by rising id; ids may have holes
  std::vector<BpeMerge> merges;  // strongest first; of a pair listed twice the later place holds
  std::optional<std::string> unk_token;
  std::string end_of_word_suffix;
  bool byte_fallback = false;
  bool ignore_merges = false;  // a whole word that is in the vocabulary is not merged up
};

// A text becomes the pieces whose log-probabilities have the largest sum.
struct UnigramModel {
  struct Piece {
    std::string text;  // UTF-8, not empty
    double score = 0;  // finite
  };
  std::vector<Piece> pieces;  // a piece's place is its id; of equal texts the last one holds
  uint32_t unknown = 0;       // id of what stands for characters without a piece
  bool byte_fallback = false;
};

// A token that is cut out of the text before it is split.
struct AddedToken {
  uint32_t id = 0;
  std::string text;
  bool is_special = false;
  bool is_normalized = false;   // matched in the normalised text instead of the raw one
  bool strips_left = false;     // takes the whitespace before it along
  bool strips_right = false;    // takes the whitespace after it along
  bool is_single_word = false;  // matched only where it is a whole word
};

// One step of the normalizer, data only: whether it is supported is for the tokenizer to say.
struct NormalizerStep {
  std::string type;  // "NFC", "Replace", "Prepend", "Precompiled", "Strip", …
  // For a Replace: a regular expression or literal text.
  std::string pattern;
  bool pattern_is_regex = false;
  std::string content;  // what a Replace puts there, or a Prepend in front
  CharsMap chars_map;   // of a Precompiled
  // For a Strip: the ends from which white space goes.
  bool strips_left = false;
  bool strips_right = false;
};

// One step of the pre-tokenizer, data only: whether it is supported is for the tokenizer to say.
struct PreTokenizerStep {
  std::string type;  // "Split", "ByteLevel", "Metaspace", "WhitespaceSplit", …
  // For a Split: a regular expression or literal text, and what becomes of a match ("Isolated").
  std::string pattern;
  bool pattern_is_regex = false;
  std::string behavior;
  bool is_inverted = false;
  // For a ByteLevel: a space put in front, and its own GPT-2 split.
  bool add_prefix_space = false;
  bool use_regex = false;
  // For a Metaspace: what a space becomes, where one is put in front ("always", "first", "never"),
  // and whether words begin there.
  std::string replacement;
  std::string prepend_scheme;
  bool splits = false;
};

struct TokenizerFiles {
  std::variant<BpeModel, UnigramModel> model;
  // By rising id; some are in the vocabulary too, with the same id.
  std::vector<AddedToken> added_tokens;

  // Whether the two lists below are known; only tokenizer.json holds them.
  bool has_pipeline = false;
  std::vector<NormalizerStep> normalizers;
  std::vector<PreTokenizerStep> pre_tokenizer;

  // From tokenizer_config.json.
  std::string tokenizer_class;
  std::optional<bool> add_prefix_space;
};

// Reads tokenizer.json. Throws ParseError: TOK_SYNTAX, TOK_UTF8, TOK_DEPTH, TOK_FORM, TOK_KIND
// (neither byte-pair nor unigram), TOK_DUPLICATE, TOK_ID, TOK_MERGE, TOK_PIECE, SP_CHARSMAP;
// JSON_DUPLICATE_KEY and JSON_TOO_LARGE outside the vocabulary.
TokenizerFiles parse_tokenizer_json(std::string_view text);

// Reads the older layout, which is byte-pair. `tokenizer_config` and `added_tokens` are the texts
// of the .json files of these names, absent where there is no file. Throws as above; messages start
// with the file's name, "merges.txt: ".
TokenizerFiles parse_bpe_files(std::string_view vocab, std::string_view merges,
                               std::optional<std::string_view> tokenizer_config = {},
                               std::optional<std::string_view> added_tokens = {});

}  // namespace atelier::formats
