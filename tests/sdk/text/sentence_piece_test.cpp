#include <cstring>
#include <nlohmann/json.hpp>

#include "atelier/error.h"
#include "atelier/text/tokenizer.h"

#include "support/files.h"

namespace atelier::text {
namespace {

using Catch::Contains;
using nlohmann::json;
using Ids = std::vector<int64_t>;

constexpr int kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6;

// Writes protobuf messages whose fields have numbers below 16 or are given as two bytes.
struct Proto {
  std::string bytes;
  Proto& number(int field, int value) {
    if (field >= 16) return tag(field, 0), bytes += static_cast<char>(value), *this;
    bytes += {static_cast<char>(field << 3), static_cast<char>(value)};
    return *this;
  }
  Proto& text(int field, const std::string& content) {
    REQUIRE(content.size() < 128);
    bytes += {static_cast<char>(field << 3 | 2), static_cast<char>(content.size())};
    bytes += content;
    return *this;
  }
  void tag(int field, int wire) {
    const int value = field << 3 | wire;
    bytes += {static_cast<char>((value & 0x7F) | 0x80), static_cast<char>(value >> 7)};
  }
};

// A model as Gemma's: <pad> 0, <eos> 1, <bos> 2, <unk> 3, then what is added, then 256 bytes.
struct Model {
  Proto pieces;
  int size = 0;
  int kind = 2;
  bool byte_fallback = true, adds_prefix = false, trims = false;

  Model() {
    for (const char* control : {"<pad>", "<eos>", "<bos>"}) add(control, kControl);
    add("<unk>", kUnknown);
  }
  // Each piece has a lower score than the one before.
  int add(const std::string& text, int type = kNormal) {
    return add_scored(text, static_cast<float>(-size), type);
  }
  int add_scored(const std::string& text, float score, int type = kNormal) {
    std::string four(4, '\0');
    std::memcpy(four.data(), &score, 4);
    Proto piece;
    piece.text(1, text);
    piece.bytes += '\x15' + four;
    pieces.text(1, piece.number(3, type).bytes);
    return size++;
  }
  std::string bytes() {
    Model whole = *this;
    for (int byte = 0; byte_fallback && byte < 256; ++byte) {
      char name[8];
      std::snprintf(name, sizeof(name), "<0x%02X>", byte);
      whole.add(name, kByte);
    }
    Proto trainer, normalizer;
    trainer.number(3, kind).number(35, byte_fallback);
    normalizer.number(3, adds_prefix).number(4, trims);
    return whole.pieces.text(2, trainer.bytes).text(3, normalizer.bytes).bytes;
  }
};

// Writes a file into the folder. Returns its path.
std::string written(const test::Folder& folder, const std::string& name, const std::string& bytes) {
  test::write_bytes(folder / name, bytes);
  return folder / name;
}

std::shared_ptr<const Tokenizer> load(Model model) {
  const test::Folder folder;
  return Tokenizer::load(written(folder, "tokenizer.model", model.bytes()));
}

Error model_error_of(const std::string& path) {
  return test::error_of([&] { Tokenizer::load(path); });
}

}  // namespace

TEST_CASE("Merges of a SentencePiece model go by score, then from the left", "[tokenizer]") {
  Model model;
  const int a = model.add("a"), b = model.add("b"), bb = model.add("bb"), ab = model.add("ab");
  const auto tokenizer = load(model);
  CHECK(tokenizer->encode("ab") == Ids{ab});
  CHECK(tokenizer->encode("abb") == Ids{a, bb});
  CHECK(tokenizer->encode("bbb") == Ids{bb, b});
  CHECK(tokenizer->encode("").empty());
  CHECK(tokenizer->size() == model.size + 256);
}

TEST_CASE("Spaces of a SentencePiece model are spelled U+2581", "[tokenizer]") {
  Model model;
  const int space = model.add("\u2581"), a = model.add("a"), space_a = model.add("\u2581a");
  CHECK(load(model)->encode(" a a  ") == Ids{space_a, space_a, space, space});
  model.adds_prefix = true;
  CHECK(load(model)->encode("a a") == Ids{space_a, space_a});
  model.trims = true;
  CHECK(load(model)->encode("  a   a  ") == Ids{space_a, space_a});
  CHECK(load(model)->encode("   ").empty());
  model.adds_prefix = false;
  CHECK(load(model)->encode(" a") == Ids{a});
}

TEST_CASE("Symbols of the user are cut out whole, control symbols are text", "[tokenizer]") {
  Model model;
  const int mask = model.add("<m>", kUserDefined), line = model.add("\n", kUserDefined),
            lines = model.add("\n\n", kUserDefined), a = model.add("a"), b = model.add("b"),
            a_line = model.add("a\n");
  const auto tokenizer = load(model);
  CHECK(tokenizer->encode("a<m>b\n\n\n") == Ids{a, mask, b, lines, line});
  CHECK(tokenizer->encode("a\n") == Ids{a, line});
  CHECK(tokenizer->id("a\n") == a_line);
  CHECK(tokenizer->id("<bos>") == 2);
  CHECK(tokenizer->id("<nothing>") == std::nullopt);
  const Ids spelled = tokenizer->encode("<bos>");
  CHECK(spelled.size() == 5);
  CHECK(std::count(spelled.begin(), spelled.end(), 2) == 0);
}

TEST_CASE("A character without a piece is its bytes, or one unknown token", "[tokenizer]") {
  Model model;
  const int a = model.add("a");
  const int byte = model.size;  // the first of them
  const auto tokenizer = load(model);
  CHECK(tokenizer->encode("a\u00e9") == Ids{a, byte + 0xC3, byte + 0xA9});
  CHECK(tokenizer->encode("\xFF") == Ids{byte + 0xEF, byte + 0xBF, byte + 0xBD});
  CHECK(tokenizer->id("<0x0A>") == byte + 10);
  model.byte_fallback = false;
  CHECK(load(model)->encode("xya\u00e9\u00e9a") == Ids{3, a, 3, a});
}

TEST_CASE("A piece that is not for use is taken apart again", "[tokenizer]") {
  Model model;
  const int a = model.add("a"), b = model.add("b");
  model.add("ab", kUnused);
  const int aba = model.add("aba");
  const auto tokenizer = load(model);
  CHECK(tokenizer->encode("ab") == Ids{a, b});
  CHECK(tokenizer->encode("aba") == Ids{aba});
}

TEST_CASE("A unigram model cuts where the sum of scores is largest", "[tokenizer]") {
  Model model;
  model.kind = 1;
  model.byte_fallback = false;
  const int a = model.add_scored("a", -1), b = model.add_scored("b", -1),
            ab = model.add_scored("ab", -3), aab = model.add_scored("aab", -2.5F),
            line = model.add_scored("<n>", -50, kUserDefined);
  model.add_scored("abab", 5, kUnused);
  auto tokenizer = load(model);
  CHECK(tokenizer->encode("ab") == Ids{a, b});  // better than one piece
  CHECK(tokenizer->encode("aab") == Ids{aab});
  CHECK(tokenizer->encode("abab") == Ids{a, b, a, b});  // what is not for use is not used
  CHECK(tokenizer->encode("").empty());
  CHECK(tokenizer->id("ab") == ab);
  // Symbols of the user win whatever their score, control symbols are text.
  CHECK(tokenizer->encode("a<n>b") == Ids{a, line, b});
  CHECK(tokenizer->encode("<bos>a") == Ids{3, b, 3, a});
  // Unknown characters that follow each other are one token, or their bytes.
  CHECK(tokenizer->encode("xya\u00e9\u00e9a") == Ids{3, a, 3, a});
  model.byte_fallback = true;
  const int byte = model.size;
  CHECK(load(model)->encode("a\u00e9x") == Ids{a, byte + 0xC3, byte + 0xA9, byte + 'x'});
}

TEST_CASE("Of cuts with equal sums the one that is found first stays", "[tokenizer]") {
  Model model;
  model.kind = 1;
  const int a = model.add_scored("a", -1), aa = model.add_scored("aa", -2);
  const auto tokenizer = load(model);
  CHECK(tokenizer->encode("aa") == Ids{aa});
  CHECK(tokenizer->encode("aaa") == Ids{a, aa});
  // A difference that float32 rounds away.
  model.add_scored("b", -1.0e8F);
  const int bb = model.add_scored("bb", -2.0e8F), c = model.add_scored("c", -0.25F);
  CHECK(load(model)->encode("bbc") == Ids{bb, c});
}

TEST_CASE("SentencePiece models that cannot be read are refused", "[tokenizer]") {
  const test::Folder folder;
  for (const auto& [kind, name] : {std::pair(3, "word"), std::pair(4, "character")}) {
    Model model;
    model.kind = kind;
    const Error error = model_error_of(written(folder, "a.model", model.bytes()));
    CHECK(error.code() == ErrorCode::kUnsupported);
    CHECK_THAT(error.what(), Contains("a.model") && Contains(name));
  }
  const Error damaged = model_error_of(written(folder, "b.model", Model().bytes() + "\x0A\x7F"));
  CHECK(damaged.code() == ErrorCode::kDataLoss);
  CHECK_THAT(damaged.what(), Contains("b.model:byte "));
  CHECK(model_error_of(folder / "c.model").code() == ErrorCode::kNotFound);
}

TEST_CASE("A folder's tokenizer.json comes before its tokenizer.model", "[tokenizer]") {
  const test::Folder folder;
  Model model;
  const int a = model.add("a");
  written(folder, "tokenizer.model", model.bytes());
  CHECK(Tokenizer::load(folder.path())->encode("a") == Ids{a});
  written(folder, "tokenizer.json", "{");
  CHECK_THAT(model_error_of(folder.path()).what(), Contains("tokenizer.json"));
}

TEST_CASE("tokenizer.json with byte fallback spells spaces and bytes as it says", "[tokenizer]") {
  json vocab = {{"<unk>", 0}, {"\u2581", 1}, {"a", 2}, {"\u2581a", 3}, {"aa", 4}};
  for (int byte = 0; byte < 256; ++byte) {
    char name[8];
    std::snprintf(name, sizeof(name), "<0x%02X>", byte);
    vocab[name] = 10 + byte;
  }
  const json replace = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}};
  json file = {{"normalizer", replace},
               {"pre_tokenizer",
                {{"type", "Split"},
                 {"pattern", {{"String", " "}}},
                 {"behavior", "MergedWithPrevious"},
                 {"invert", false}}},
               {"model",
                {{"type", "BPE"},
                 {"byte_fallback", true},
                 {"fuse_unk", true},
                 {"unk_token", "<unk>"},
                 {"vocab", vocab},
                 {"merges", {"\u2581 a", "a a"}}}}};
  const test::Folder folder;
  const auto encode = [&](const std::string& text) {
    return Tokenizer::load(written(folder, "tokenizer.json", file.dump()))->encode(text);
  };
  CHECK(encode(" a aaa\u00e9") == Ids{3, 3, 4, 10 + 0xC3, 10 + 0xA9});
  CHECK(encode("").empty());
  file["normalizer"] = {{"type", "Sequence"},
                        {"normalizers", {{{"type", "Prepend"}, {"prepend", "\u2581"}}, replace}}};
  file["pre_tokenizer"] = nullptr;
  CHECK(encode("a a") == Ids{3, 3});
  CHECK(encode("").empty());

  const auto refused = [&](const char* pointer, const json& value) {
    json changed = file;
    changed[json::json_pointer(pointer)] = value;
    return model_error_of(written(folder, "tokenizer.json", changed.dump())).code();
  };
  CHECK(refused("/model/byte_fallback", false) == ErrorCode::kUnsupported);
  json missing = vocab;
  missing.erase("<0x0A>");
  CHECK(refused("/model/vocab", missing) == ErrorCode::kUnsupported);
  CHECK(refused("/normalizer/normalizers/1/pattern", {{"Regex", " "}}) == ErrorCode::kUnsupported);
}

TEST_CASE("tokenizer.json of a unigram model is read with Metaspace", "[tokenizer]") {
  const json vocab = json::array(
      {{"<unk>", 0}, {"\u2581", -3}, {"a", -2}, {"\u2581a", -2.5}, {"b", -4}, {"aa", -3.5}});
  json file = {{"normalizer", nullptr},
               {"pre_tokenizer",
                {{"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", "always"}}},
               {"model", {{"type", "Unigram"}, {"unk_id", 0}, {"vocab", vocab}}},
               {"added_tokens", {{{"id", 6}, {"content", "<x>"}}}}};
  const test::Folder folder;
  const auto encode = [&](const std::string& text) {
    return Tokenizer::load(written(folder, "tokenizer.json", file.dump()))->encode(text);
  };
  CHECK(encode("a aaa") == Ids{3, 3, 5});
  CHECK(encode("") == Ids{});
  CHECK(encode("  a") == Ids{1, 3});
  CHECK(encode("a<x>a") == Ids{3, 6, 3});
  CHECK(encode("\u00e9\u00e8 b") == Ids{1, 0, 1, 4});
  CHECK(encode("<unk>a") == Ids{1, 0, 2});  // is no added token: a piece like any other

  json& scheme = file["pre_tokenizer"]["prepend_scheme"];
  scheme = "first";
  CHECK(encode("a<x>a") == Ids{3, 6, 2});
  CHECK(encode("<x>a") == Ids{6, 2});
  scheme = "never";
  CHECK(encode("a a") == Ids{2, 3});
  scheme = "always";
  file["pre_tokenizer"]["split"] = false;
  CHECK(encode("\u00e9 \u00e9") == Ids{1, 0, 1, 0});
  file["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers", {{{"type", "WhitespaceSplit"}}, file["pre_tokenizer"]}}};
  CHECK(encode(" a\n\u3000b ") == Ids{3, 1, 4});
  file["normalizer"] = {
      {"type", "Sequence"},
      {"normalizers",
       {{{"type", "Strip"}, {"strip_left", true}, {"strip_right", true}},
        {{"type", "Replace"}, {"pattern", {{"Regex", " {2,}"}}}, {"content", "b"}}}}};
  CHECK(encode("\u2003 a   a a \n") == Ids{3, 4, 2, 3});

  const auto refused = [&](const char* pointer, const json& value) {
    json changed = file;
    changed[json::json_pointer(pointer)] = value;
    return model_error_of(written(folder, "tokenizer.json", changed.dump())).code();
  };
  CHECK(refused("/pre_tokenizer/pretokenizers/1/prepend_scheme", "first") ==
        ErrorCode::kUnsupported);
  CHECK(refused("/pre_tokenizer/pretokenizers/1/prepend_scheme", "other") ==
        ErrorCode::kUnsupported);
  CHECK(refused("/pre_tokenizer/pretokenizers/0/type", "Metaspace") == ErrorCode::kDataLoss);
  CHECK(refused("/pre_tokenizer", {{"type", "ByteLevel"}}) == ErrorCode::kUnsupported);
  CHECK(refused("/model/vocab", {{"a"}}) == ErrorCode::kDataLoss);
  CHECK(refused("/model/unk_id", nullptr) == ErrorCode::kUnsupported);
  file["pre_tokenizer"] = {
      {"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", "first"}};
  CHECK(model_error_of(written(folder, "tokenizer.json", file.dump())).code() ==
        ErrorCode::kUnsupported);
}

TEST_CASE("A unigram tokenizer.json spells unknown characters in bytes where it has them",
          "[tokenizer]") {
  const json vocab = json::array({{"<unk>", 0}, {"a", -1}, {"<0xC3>", -5}, {"<0xA9>", -5}});
  const json file = {
      {"model", {{"type", "Unigram"}, {"unk_id", 0}, {"vocab", vocab}, {"byte_fallback", true}}}};
  const test::Folder folder;
  const auto tokenizer = Tokenizer::load(written(folder, "tokenizer.json", file.dump()));
  CHECK(tokenizer->encode("a\u00e9\u00e9") == Ids{1, 2, 3, 2, 3});
  CHECK(tokenizer->encode("a\u00e9\u00e8") == Ids{1, 0});  // one byte has none
}

}  // namespace atelier::text
