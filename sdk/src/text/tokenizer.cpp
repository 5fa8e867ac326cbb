#include "atelier/text/tokenizer.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <utility>

#include "atelier/error.h"

#include "formats/escape.h"
#include "formats/parse_error.h"
#include "formats/tokenizer_files.h"
#include "formats/utf8.h"
#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/pretokenizer.h"
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
    files.normalizers = {"NFC"};
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

bool has_nfc(const std::vector<std::string>& normalizers) {
  for (const std::string& type : normalizers) {
    if (type == "NFC") continue;
    throw Error(ErrorCode::kUnsupported,
                "normalizer: " + formats::quote_and_escape(type, 40) + " is not supported",
                "only NFC, or none, can be read", "TOK_KIND");
  }
  return !normalizers.empty();
}

}  // namespace

struct Tokenizer::Impl {
  explicit Impl(const formats::BpeFiles& files)
      : is_nfc(has_nfc(files.normalizers)), words(files.pre_tokenizer) {
    vocabulary.reserve(files.tokens.size());
    for (const formats::BpeToken& token : files.tokens) {
      vocabulary.emplace(token.text, token.id);
      size = std::max(size, int64_t{token.id} + 1);
    }
    bpe.emplace(files, vocabulary);
    for (const formats::AddedToken& token : files.added_tokens) {
      added.emplace(token.text, token.id);
      size = std::max(size, int64_t{token.id} + 1);
      if (token.is_normalized) {
        normalized.add(normalize(token.text), token);
      } else {
        raw.add(token.text, token);
      }
    }
  }

  std::string normalize(std::string_view text) const {
    return is_nfc ? to_nfc(text) : std::string(text);
  }

  TokenIds vocabulary;  // what merges may give
  TokenIds added;
  int64_t size = 0;
  AddedTokens raw;  // looked for in the text as it is
  bool is_nfc;
  AddedTokens normalized;  // looked for after normalisation
  Pretokenizer words;
  std::optional<Bpe> bpe;
};

Tokenizer::Tokenizer() = default;
Tokenizer::~Tokenizer() = default;

std::shared_ptr<const Tokenizer> Tokenizer::load(const std::string& path) {
  std::error_code error;
  const fs::path given(path);
  fs::path folder = given;
  fs::path place = given;  // of an error that no single line causes
  formats::BpeFiles files;
  if (!fs::is_directory(given, error) || fs::exists(given / "tokenizer.json", error)) {
    if (fs::is_directory(given, error)) place = given / "tokenizer.json";
    const std::string bytes = read_file(place);
    try {
      files = formats::parse_tokenizer_json(bytes);
    } catch (const formats::ParseError& e) {
      throw to_error(e, place.parent_path(), place.filename().string());
    }
  } else {
    for (const char* name : {"vocab.json", "merges.txt"}) {
      if (fs::exists(folder / name, error)) continue;
      throw Error(ErrorCode::kNotFound, folder.string() + ": no tokenizer.json and no " + name,
                  "a tokenizer is tokenizer.json, or vocab.json with merges.txt");
    }
    const std::string vocab = read_file(folder / "vocab.json");
    const std::string merges = read_file(folder / "merges.txt");
    const auto config = read_file_if_there(folder / "tokenizer_config.json");
    const auto added = read_file_if_there(folder / "added_tokens.json");
    try {
      files = formats::parse_bpe_files(vocab, merges, config, added);
    } catch (const formats::ParseError& e) {
      throw to_error(e, folder, "");
    }
  }

  const std::shared_ptr<Tokenizer> tokenizer(new Tokenizer);
  try {
    if (!files.has_pipeline) add_pipeline_of_class(files);
    tokenizer->impl_ = std::make_unique<Impl>(files);
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
  std::string valid;
  if (formats::find_invalid_utf8(text) != std::string_view::npos) {
    valid = replace_invalid_utf8(text);
    text = valid;
  }

  std::vector<int64_t> ids;
  Bpe::Scratch scratch;
  const auto append_word = [&](std::string_view word) {
    impl_->bpe->append_tokens(word, scratch, ids);
  };
  for (const AddedTokens::Piece& raw : impl_->raw.cut(text)) {
    if (raw.id) {
      ids.push_back(*raw.id);
      continue;
    }
    const std::string normalized = impl_->normalize(raw.text);
    for (const AddedTokens::Piece& piece : impl_->normalized.cut(normalized)) {
      if (piece.id) {
        ids.push_back(*piece.id);
      } else {
        impl_->words.for_each_word(piece.text, append_word);
      }
    }
  }
  return ids;
}

std::optional<int64_t> Tokenizer::id(std::string_view token) const {
  for (const TokenIds* ids : {&impl_->added, &impl_->vocabulary}) {
    if (const auto it = ids->find(token); it != ids->end()) return it->second;
  }
  return std::nullopt;
}

int64_t Tokenizer::size() const {
  return impl_->size;
}

}  // namespace atelier::text
