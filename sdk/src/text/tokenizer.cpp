#include "atelier/text/tokenizer.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
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

// The pipeline that vocab.json and merges.txt leave to the class of the tokenizer.
void add_pipeline_of_class(formats::BpeFiles& files) {
  std::string_view name = files.tokenizer_class;
  if (name.ends_with("Fast")) name.remove_suffix(4);
  formats::PreTokenizerStep bytes;
  bytes.type = "ByteLevel";
  bytes.add_prefix_space = files.add_prefix_space.value_or(false);
  if (name == "GPT2Tokenizer") {
    bytes.use_regex = true;
    files.pre_tokenizer = {bytes};
  } else if (name == "Qwen2Tokenizer") {
    files.normalizers.emplace_back().type = "NFC";
    formats::PreTokenizerStep split{.type = "Split",
                                    .pattern = std::string(SplitPattern::kSingleDigits),
                                    .pattern_is_regex = true,
                                    .behavior = "Isolated"};
    files.pre_tokenizer = {split, bytes};
  } else {
    const std::string what =
        name.empty() ? "no tokenizer_class"
                     : "tokenizer_class " + formats::quote_and_escape(files.tokenizer_class);
    throw Error(ErrorCode::kUnsupported,
                "tokenizer_config.json: " + what + " says how the text is split",
                "vocab.json and merges.txt are read for Qwen2Tokenizer and GPT2Tokenizer; save "
                "others as tokenizer.json",
                "TOK_KIND");
  }

  // Both classes cut this token out, also where no file lists it as an added one.
  constexpr std::string_view kEnd = "<|endoftext|>";
  const auto is_listed = [&](const formats::AddedToken& t) { return t.text == kEnd; };
  if (std::any_of(files.added_tokens.begin(), files.added_tokens.end(), is_listed)) return;
  for (const formats::BpeToken& token : files.tokens) {
    if (token.text != kEnd) continue;
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

std::variant<formats::BpeFiles, formats::SentencePieceModel> read_tokenizer(const fs::path& place) {
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
class __attribute__((visibility("hidden"))) Tokenizer::BpePipeline final : public Tokenizer::Impl {
 public:
  explicit BpePipeline(const formats::BpeFiles& files);
  void append_tokens(std::string_view text, std::vector<int64_t>& ids) const override;
  std::optional<int64_t> id(std::string_view token) const override;
  int64_t size() const override { return size_; }

 private:
  TokenIds vocabulary_;  // what merges may give
  TokenIds added_;
  int64_t size_ = 0;
  AddedTokens raw_;  // looked for in the text as it is
  Normalizer normalize_;
  AddedTokens normalized_;  // looked for after normalisation
  Pretokenizer words_;
  std::optional<Bpe> bpe_;
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
  SentencePieceBpe pieces_;
};

Tokenizer::BpePipeline::BpePipeline(const formats::BpeFiles& files)
    : normalize_(files.normalizers), words_(files.pre_tokenizer) {
  if (!words_.is_byte_level() && !files.byte_fallback) {
    throw Error(ErrorCode::kUnsupported,
                "the tokenizer has neither a ByteLevel step nor byte_fallback",
                "what becomes of a character without a token is not known then", "TOK_KIND");
  }
  vocabulary_.reserve(files.tokens.size());
  for (const formats::BpeToken& token : files.tokens) {
    vocabulary_.emplace(token.text, token.id);
    size_ = std::max(size_, int64_t{token.id} + 1);
  }
  bpe_.emplace(files, vocabulary_,
               words_.is_byte_level() ? Bpe::Alphabet::kBytes : Bpe::Alphabet::kCharacters);
  for (const formats::AddedToken& token : files.added_tokens) {
    added_.emplace(token.text, token.id);
    size_ = std::max(size_, int64_t{token.id} + 1);
    if (token.is_normalized) {
      normalized_.add(normalize_(token.text), token);
    } else {
      raw_.add(token.text, token);
    }
  }
}

void Tokenizer::BpePipeline::append_tokens(std::string_view text, std::vector<int64_t>& ids) const {
  std::string valid;
  if (formats::find_invalid_utf8(text) != std::string_view::npos) {
    valid = replace_invalid_utf8(text);
    text = valid;
  }
  Bpe::Scratch scratch;
  const auto append_word = [&](std::string_view word) { bpe_->append_tokens(word, scratch, ids); };
  for (const AddedTokens::Piece& raw : raw_.cut(text)) {
    if (raw.id) {
      ids.push_back(*raw.id);
      continue;
    }
    const std::string normalized = normalize_(raw.text);
    for (const AddedTokens::Piece& piece : normalized_.cut(normalized)) {
      if (piece.id) {
        ids.push_back(*piece.id);
      } else {
        words_.for_each_word(piece.text, append_word);
      }
    }
  }
}

std::optional<int64_t> Tokenizer::BpePipeline::id(std::string_view token) const {
  for (const TokenIds* ids : {&added_, &vocabulary_}) {
    if (const auto it = ids->find(token); it != ids->end()) return it->second;
  }
  return std::nullopt;
}

Tokenizer::Tokenizer() = default;
Tokenizer::~Tokenizer() = default;

std::shared_ptr<const Tokenizer> Tokenizer::load(const std::string& path) {
  const fs::path place = find_place(path);
  std::variant<formats::BpeFiles, formats::SentencePieceModel> files = read_tokenizer(place);
  const std::shared_ptr<Tokenizer> tokenizer(new Tokenizer);
  try {
    if (auto* model = std::get_if<formats::SentencePieceModel>(&files)) {
      tokenizer->impl_ = std::make_unique<PiecePipeline>(std::move(*model));
    } else {
      formats::BpeFiles& bpe = std::get<formats::BpeFiles>(files);
      if (!bpe.has_pipeline) add_pipeline_of_class(bpe);
      tokenizer->impl_ = std::make_unique<BpePipeline>(bpe);
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
