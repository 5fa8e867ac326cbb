#include "atelier/text/tokenizer.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <utility>
#include <variant>

#include "atelier/error.h"

#include "formats/escape.h"
#include "formats/parse_error.h"
#include "formats/sentencepiece_model.h"
#include "formats/tokenizer_files.h"
#include "formats/utf8.h"
#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/normalizer.h"
#include "text/pretokenizer.h"
#include "text/sentence_piece.h"
#include "text/unicode.h"
#include "text/unigram.h"

namespace atelier::text {
namespace {

namespace fs = std::filesystem;

constexpr uintmax_t kMaxFileBytes = 512 << 20;
constexpr size_t kMaxTextBytes = 256 << 20;

std::string read_file(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found) {
    throw Error(ErrorCode::kNotFound, path.string() + ": no such file");
  }
  if (!fs::is_regular_file(status)) {
    throw Error(ErrorCode::kInvalidArgument, path.string() + ": not a regular file");
  }
  const uintmax_t size = fs::file_size(path, error);
  if (!error && size > kMaxFileBytes) {
    throw Error(ErrorCode::kDataLoss, path.string() + ": " + std::to_string(size) +
                                          " bytes are too many for a tokenizer");
  }
  std::ifstream file(path, std::ios::binary);
  std::string bytes(error ? 0 : size, '\0');
  if (!file || !file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()))) {
    throw Error(ErrorCode::kEnvironment, path.string() + ": cannot be read",
                "check the file's permissions");
  }
  return bytes;
}

std::optional<std::string> read_file_if_there(const fs::path& path) {
  std::error_code error;
  if (!fs::exists(path, error)) return std::nullopt;
  return read_file(path);
}

// `file`: empty where the parser's message begins with the file's name.
Error to_error(const formats::ParseError& e, const fs::path& folder, std::string file) {
  std::string message = e.what();
  if (file.empty()) {
    const size_t end = message.find(": ");
    file = message.substr(0, end);
    message = end == std::string::npos ? "is not readable" : message.substr(end + 2);
  }
  std::string place = (folder / file).string();
  if (e.line) {
    place += ":" + std::to_string(*e.line);
  } else if (e.byte) {
    place += ":byte " + std::to_string(*e.byte);
  }
  const ErrorCode code = e.tag == "TOK_KIND" ? ErrorCode::kUnsupported : ErrorCode::kDataLoss;
  return Error(code, place + ": " + message, e.hint, e.tag);
}

// Adds the pipeline that vocab.json and merges.txt do not hold.
void add_pipeline(formats::TokenizerFiles& files, const std::optional<ByteLevelRules>& rules) {
  const auto unsupported = [](const std::string& message) {
    return Error(ErrorCode::kUnsupported, message, "save it as tokenizer.json", "TOK_KIND");
  };
  if (!rules) throw unsupported("vocab.json and merges.txt do not say how the text is split");
  std::string_view name = files.tokenizer_class;
  if (name.ends_with("Fast")) name.remove_suffix(4);
  if (!rules->tokenizer_class.empty() && name != rules->tokenizer_class) {
    throw unsupported(
        "tokenizer_config.json: " +
        (name.empty() ? "no tokenizer_class"
                      : "tokenizer_class " + formats::quote_and_escape(files.tokenizer_class)) +
        ", " + std::string(rules->tokenizer_class) + " is expected");
  }

  if (rules->nfc) files.normalizers.emplace_back().type = "NFC";
  if (rules->single_digits) {
    formats::PreTokenizerStep& split = files.pre_tokenizer.emplace_back();
    split.type = "Split";
    split.pattern = SplitPattern::kSingleDigits;
    split.pattern_is_regex = true;
    split.behavior = "Isolated";
  }
  formats::PreTokenizerStep& bytes = files.pre_tokenizer.emplace_back();
  bytes.type = "ByteLevel";
  bytes.add_prefix_space = files.add_prefix_space.value_or(false);
  bytes.use_regex = !rules->single_digits;

  for (const formats::BpeToken& token : std::get<formats::BpeModel>(files.model).tokens) {
    const auto& wanted = rules->added_tokens;
    if (std::find(wanted.begin(), wanted.end(), token.text) == wanted.end()) continue;
    const auto is_same = [&](const formats::AddedToken& t) { return t.text == token.text; };
    if (std::any_of(files.added_tokens.begin(), files.added_tokens.end(), is_same)) continue;
    files.added_tokens.push_back({.id = token.id, .text = token.text, .is_special = true});
  }
}

// The file that is read, or the folder of vocab.json and merges.txt.
fs::path find_place(const fs::path& given) {
  std::error_code error;
  if (given.filename() == "vocab.json" && fs::is_regular_file(given, error)) {
    return given.parent_path();
  }
  if (!fs::is_directory(given, error)) return given;
  for (const char* name : {"tokenizer.json", "tokenizer.model", "spiece.model"}) {
    if (fs::exists(given / name, error)) return given / name;
  }
  for (const char* name : {"vocab.json", "merges.txt"}) {
    if (fs::exists(given / name, error)) continue;
    throw Error(ErrorCode::kNotFound,
                given.string() + ": no tokenizer.json, no tokenizer.model and no " + name,
                "a tokenizer is tokenizer.json, tokenizer.model, or vocab.json with merges.txt");
  }
  return given;
}

std::variant<formats::TokenizerFiles, formats::SentencePieceModel> read_tokenizer(
    const fs::path& place) {
  if (fs::is_directory(place)) {
    const std::string vocab = read_file(place / "vocab.json");
    const std::string merges = read_file(place / "merges.txt");
    const auto config = read_file_if_there(place / "tokenizer_config.json");
    const auto added = read_file_if_there(place / "added_tokens.json");
    try {
      return formats::parse_bpe_files(vocab, merges, config, added);
    } catch (const formats::ParseError& e) {
      throw to_error(e, place, "");
    }
  }
  const std::string bytes = read_file(place);
  try {
    if (place.extension() == ".model") return formats::parse_sentencepiece_model(bytes);
    return formats::parse_tokenizer_json(bytes);
  } catch (const formats::ParseError& e) {
    throw to_error(e, place.parent_path(), place.filename().string());
  }
}

}  // namespace

struct Tokenizer::Impl {
  virtual ~Impl() = default;
  virtual void append_tokens(std::string_view text, std::vector<int64_t>& ids) const = 0;
  virtual std::optional<int64_t> id(std::string_view token) const = 0;
  virtual int64_t size() const = 0;
};

// tokenizer.json, or vocab.json with merges.txt.
class __attribute__((visibility("hidden"))) Tokenizer::Pipeline final : public Tokenizer::Impl {
 public:
  explicit Pipeline(const formats::TokenizerFiles& files);
  void append_tokens(std::string_view text, std::vector<int64_t>& ids) const override;
  std::optional<int64_t> id(std::string_view token) const override;
  int64_t size() const override { return size_; }

 private:
  void read(const formats::BpeModel& model);
  void read(const formats::UnigramModel& model);
  void add(std::string_view token, uint32_t id, TokenIds& ids);
  void append_words(std::string_view text, bool begins_text, std::vector<int64_t>& ids) const;

  TokenIds vocabulary_;  // what the model gives
  TokenIds added_;
  int64_t size_ = 0;
  AddedTokens raw_;  // looked for in the text as it is
  Normalizer normalize_;
  AddedTokens normalized_;  // looked for after normalisation
  Pretokenizer words_;
  std::optional<Bpe> bpe_;  // one of these two
  std::optional<Unigram> unigram_;
};

// A SentencePiece model.
class __attribute__((visibility("hidden"))) Tokenizer::PiecePipeline final
    : public Tokenizer::Impl {
 public:
  explicit PiecePipeline(formats::SentencePieceModel model) : pieces_(std::move(model)) {}
  void append_tokens(std::string_view text, std::vector<int64_t>& ids) const override {
    pieces_.append_tokens(text, ids);
  }
  std::optional<int64_t> id(std::string_view token) const override { return pieces_.id(token); }
  int64_t size() const override { return pieces_.size(); }

 private:
  SentencePieceEncoder pieces_;
};

Tokenizer::Pipeline::Pipeline(const formats::TokenizerFiles& files)
    : normalize_(files.normalizers), words_(files.pre_tokenizer) {
  if (words_.has_first_word() && normalize_.strips_left()) {
    throw Error(ErrorCode::kUnsupported,
                "a Metaspace of the first word behind a Strip from the left is not supported",
                "save the tokenizer with prepend_scheme always", "TOK_KIND");
  }
  std::visit([this](const auto& model) { read(model); }, files.model);
  std::vector<AddedTokens::Entry> raw, normalized;
  for (const formats::AddedToken& token : files.added_tokens) {
    add(token.text, token.id, added_);
    if (token.is_normalized) {
      normalized.push_back({normalize_(token.text), &token});
    } else {
      raw.push_back({token.text, &token});
    }
  }
  raw_ = AddedTokens(raw);
  normalized_ = AddedTokens(normalized);
}

void Tokenizer::Pipeline::add(std::string_view token, uint32_t id, TokenIds& ids) {
  ids.insert_or_assign(std::string(token), id);
  size_ = std::max(size_, int64_t{id} + 1);
}

void Tokenizer::Pipeline::read(const formats::BpeModel& model) {
  if (!words_.is_byte_level() && !model.byte_fallback) {
    throw Error(ErrorCode::kUnsupported,
                "the tokenizer has neither a ByteLevel step nor byte_fallback",
                "what becomes of a character without a token is not known then", "TOK_KIND");
  }
  vocabulary_.reserve(model.tokens.size());
  for (const formats::BpeToken& token : model.tokens) add(token.text, token.id, vocabulary_);
  bpe_.emplace(model, vocabulary_,
               words_.is_byte_level() ? Bpe::Alphabet::kBytes : Bpe::Alphabet::kCharacters);
}

void Tokenizer::Pipeline::read(const formats::UnigramModel& model) {
  constexpr double kUnknownPenalty = 10.0;
  if (words_.is_byte_level()) {
    throw Error(ErrorCode::kUnsupported, "a unigram model behind a ByteLevel step is not supported",
                "unigram models are read with Metaspace", "TOK_KIND");
  }
  vocabulary_.reserve(model.pieces.size());
  double lowest = std::numeric_limits<double>::max();
  for (uint32_t id = 0; id < model.pieces.size(); ++id) {
    add(model.pieces[id].text, id, vocabulary_);
    lowest = std::min(lowest, model.pieces[id].score);
  }
  std::vector<Unigram::Piece> pieces;
  for (uint32_t id = 0; id < model.pieces.size(); ++id) {
    const auto& [text, score] = model.pieces[id];
    if (vocabulary_.find(text)->second == id) pieces.push_back({text, id, score});
  }
  Unigram::Rules rules{model.unknown, lowest - kUnknownPenalty, /*is_single_precision=*/false};
  if (model.byte_fallback) {
    auto& byte_ids = rules.byte_ids.emplace();
    for (size_t byte = 0; byte < byte_ids.size(); ++byte) {
      const auto known = vocabulary_.find(formats::piece_of_byte(static_cast<uint8_t>(byte)));
      byte_ids[byte] = known == vocabulary_.end() ? Unigram::kNone : known->second;
    }
  }
  unigram_.emplace(pieces, rules);
}

void Tokenizer::Pipeline::append_words(std::string_view text, bool begins_text,
                                       std::vector<int64_t>& ids) const {
  Bpe::Scratch scratch;
  words_.for_each_word(text, begins_text, [&](std::string_view word) {
    bpe_ ? bpe_->append_tokens(word, scratch, ids) : unigram_->append_tokens(word, ids);
  });
}

void Tokenizer::Pipeline::append_tokens(std::string_view text, std::vector<int64_t>& ids) const {
  std::string valid;
  if (formats::find_invalid_utf8(text) != std::string_view::npos) {
    valid = replace_invalid_utf8(text);
    text = valid;
  }
  bool begins_text = true;
  for (const AddedTokens::Piece& raw : raw_.cut(text)) {
    if (raw.id) {
      ids.push_back(*raw.id);
    } else {
      const std::string normalized = normalize_(raw.text);
      for (const AddedTokens::Piece& piece : normalized_.cut(normalized)) {
        if (piece.id) {
          ids.push_back(*piece.id);
        } else {
          append_words(piece.text, begins_text, ids);
        }
        begins_text = false;
      }
    }
    begins_text = false;
  }
}

std::optional<int64_t> Tokenizer::Pipeline::id(std::string_view token) const {
  for (const TokenIds* ids : {&added_, &vocabulary_}) {
    if (const auto it = ids->find(token); it != ids->end()) return it->second;
  }
  return std::nullopt;
}

Tokenizer::Tokenizer() = default;
Tokenizer::~Tokenizer() = default;

std::shared_ptr<const Tokenizer> Tokenizer::load(const std::string& path,
                                                 const std::optional<ByteLevelRules>& rules) {
  const fs::path place = find_place(path);
  std::variant<formats::TokenizerFiles, formats::SentencePieceModel> files = read_tokenizer(place);
  const std::shared_ptr<Tokenizer> tokenizer(new Tokenizer);
  try {
    if (auto* model = std::get_if<formats::SentencePieceModel>(&files)) {
      tokenizer->impl_ = std::make_unique<PiecePipeline>(std::move(*model));
    } else {
      formats::TokenizerFiles& read = std::get<formats::TokenizerFiles>(files);
      if (!read.has_pipeline) add_pipeline(read, rules);
      tokenizer->impl_ = std::make_unique<Pipeline>(read);
    }
  } catch (const Error& e) {
    throw e.at(place.string());
  }
  return tokenizer;
}

std::vector<int64_t> Tokenizer::encode(std::string_view text) const {
  if (text.size() > kMaxTextBytes) {
    throw Error(ErrorCode::kInvalidArgument,
                "a text of " + std::to_string(text.size()) + " bytes is too long to tokenize");
  }
  std::vector<int64_t> ids;
  impl_->append_tokens(text, ids);
  return ids;
}

std::optional<int64_t> Tokenizer::id(std::string_view token) const {
  return impl_->id(token);
}

int64_t Tokenizer::size() const {
  return impl_->size();
}

}  // namespace atelier::text
