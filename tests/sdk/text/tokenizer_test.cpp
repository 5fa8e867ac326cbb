#include "atelier/text/tokenizer.h"

#include <chrono>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "atelier/error.h"

#include "support/files.h"

namespace atelier::text {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Strings = std::vector<std::string>;
using test::Folder;

const std::string kSingleDigits =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";
const std::string kThreeDigits =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// How a byte-level vocabulary spells raw bytes.
std::string spell(const std::string& bytes) {
  static const Strings table = [] {
    Strings spellings;
    int next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      const bool is_printable = (byte > 0x20 && byte < 0x7F) || (byte > 0xA0 && byte != 0xAD);
      const int c = is_printable ? byte : next++;
      spellings.push_back(c < 0x80 ? std::string(1, static_cast<char>(c))
                                   : std::string{static_cast<char>(0xC0 | c >> 6),
                                                 static_cast<char>(0x80 | (c & 0x3F))});
    }
    return spellings;
  }();
  std::string text;
  for (const char c : bytes) text += table[static_cast<uint8_t>(c)];
  return text;
}

// A tokenizer whose ids 0 to 255 are the bytes; each merge, of raw bytes, adds one token.
struct Files {
  std::vector<std::pair<std::string, std::string>> merges;
  json added = json::array();
  std::string pattern = kSingleDigits;
  bool is_nfc = true;
  json model_options = json::object();

  void add_token(const std::string& content, const json& flags = json::object()) {
    json token = {{"id", 256 + merges.size() + added.size()},
                  {"content", content},
                  {"single_word", false},
                  {"lstrip", false},
                  {"rstrip", false},
                  {"normalized", false},
                  {"special", true}};
    token.update(flags);
    added.push_back(token);
  }

  json vocab() const {
    json tokens = json::object();
    for (int byte = 0; byte < 256; ++byte) {
      tokens[spell(std::string(1, static_cast<char>(byte)))] = byte;
    }
    for (const auto& [left, right] : merges) {
      const size_t id = tokens.size();
      tokens[spell(left + right)] = id;
    }
    return tokens;
  }

  json pre_tokenizer() const {
    const json split = {{"type", "Split"},
                        {"pattern", {{"Regex", pattern}}},
                        {"behavior", "Isolated"},
                        {"invert", false}};
    const json bytes = {{"type", "ByteLevel"},
                        {"add_prefix_space", false},
                        {"trim_offsets", true},
                        {"use_regex", false}};
    return {{"type", "Sequence"}, {"pretokenizers", {split, bytes}}};
  }

  json tokenizer_json() const {
    json model = {{"type", "BPE"}, {"vocab", vocab()}, {"merges", json::array()}};
    for (const auto& [left, right] : merges) {
      model["merges"].push_back({spell(left), spell(right)});
    }
    model.update(model_options);
    return {{"version", "1.0"},
            {"added_tokens", added},
            {"normalizer", is_nfc ? json{{"type", "NFC"}} : json(nullptr)},
            {"pre_tokenizer", pre_tokenizer()},
            {"model", model}};
  }

  void write_old_layout(const Folder& folder, const std::string& tokenizer_class) const {
    test::write_bytes(folder / "vocab.json", vocab().dump());
    std::string lines = "#version: 0.2\n";
    for (const auto& [left, right] : merges) lines += spell(left) + ' ' + spell(right) + '\n';
    test::write_bytes(folder / "merges.txt", lines);
    json config = {{"tokenizer_class", tokenizer_class}};
    for (json token : added) {
      const std::string id = token["id"].dump();
      token.erase("id");
      config["added_tokens_decoder"][id] = token;
    }
    test::write_bytes(folder / "tokenizer_config.json", config.dump());
  }
};

std::shared_ptr<const Tokenizer> load(const json& tokenizer_json) {
  const Folder folder;
  test::write_bytes(folder / "tokenizer.json", tokenizer_json.dump());
  return Tokenizer::load(folder.path());
}

// Shows what each token of `text` stands for.
class Reader {
 public:
  explicit Reader(const Files& files) : tokenizer_(load(files.tokenizer_json())) {
    for (int byte = 0; byte < 256; ++byte) bytes_[byte] = std::string(1, static_cast<char>(byte));
    for (const auto& [left, right] : files.merges) {
      const auto id = static_cast<int64_t>(bytes_.size());
      bytes_[id] = left + right;
    }
    for (const json& token : files.added) {
      bytes_[token["id"]] = "[" + token["content"].get<std::string>() + "]";
    }
  }

  Strings operator()(const std::string& text) const {
    Strings tokens;
    for (const int64_t id : tokenizer_->encode(text)) tokens.push_back(bytes_.at(id));
    return tokens;
  }

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::map<int64_t, std::string> bytes_;
};

Error error_of(const std::string& path, const std::optional<ByteLevelRules>& rules = {}) {
  return test::error_of([&] { Tokenizer::load(path, rules); });
}

Error error_of(const json& tokenizer_json) {
  const Folder folder;
  test::write_bytes(folder / "tokenizer.json", tokenizer_json.dump());
  return error_of(folder / "tokenizer.json");
}

using Catch::Matchers::Contains;

TEST_CASE("Pairs merge by rank, and from left to right where ranks are equal", "[tokenizer]") {
  Files files;
  files.merges = {{"a", "a"}, {"b", "c"}, {"a", "b"}, {"aa", "aa"}, {"ab", "c"}};
  const Reader read(files);
  CHECK(read("aaa") == Strings{"aa", "a"});
  CHECK(read("aaaa") == Strings{"aaaa"});
  CHECK(read("aaaaaaa") == Strings{"aaaa", "aa", "a"});
  CHECK(read("abc") == Strings{"a", "bc"});
  CHECK(read("abd") == Strings{"ab", "d"});
  CHECK(read("").empty());
}

TEST_CASE("A text is split before it is merged", "[tokenizer]") {
  Files files;
  files.merges = {{"1", "2"}, {" ", "b"},  {" ", " "},  {"'", "S"},
                  {"S", "x"}, {"a", "\n"}, {"!", "\n"}, {"\n", "\n"}};
  SECTION("single digits") {
    const Reader read(files);
    CHECK(read("12") == Strings{"1", "2"});
    CHECK(read("a  b") == Strings{"a", " ", " b"});
    CHECK(read("a   b") == Strings{"a", "  ", " b"});
    CHECK(read("I'Sx") == Strings{"I", "'S", "x"});
    CHECK(read("a\n") == Strings{"a", "\n"});
    CHECK(read("!\n\n") == Strings{"!\n", "\n"});
  }
  SECTION("groups of three digits") {
    files.pattern = kThreeDigits;
    CHECK(Reader(files)("1212") == Strings{"12", "1", "2"});
  }
}

TEST_CASE("Letters and white space are those of Unicode 16", "[tokenizer]") {
  Files files;
  files.merges = {{"a", "\xF0"}, {"a", "\xE1"}, {"a", "\xC2"}, {"a", "\xE2"}};
  const Reader read(files);
  // U+31350 is a letter since Unicode 15, and U+2EBF0 since 15.1.
  CHECK(read("a\U00031350") == Strings{"a\xF0", "\xB1", "\x8D", "\x90"});
  CHECK(read("a\U0002EBF0") == Strings{"a\xF0", "\xAE", "\xAF", "\xB0"});
  CHECK(read("a\U0001F600") == Strings{"a", "\xF0", "\x9F", "\x98", "\x80"});
  // U+180E is no white space and U+0085 is; neither goes with the letter.
  CHECK(read("a\u180E") == Strings{"a", "\xE1", "\xA0", "\x8E"});
  CHECK(read("a\u0085") == Strings{"a", "\xC2", "\x85"});
  CHECK(read("a\u2003") == Strings{"a", "\xE2", "\x80", "\x83"});
}

TEST_CASE("Text is composed where the file says NFC", "[tokenizer]") {
  Files files;
  files.merges = {{"\xC3", "\xA9"}};
  CHECK(Reader(files)("e\u0301") == Strings{"\u00E9"});
  CHECK(Reader(files)("\u212B") == Strings{"\xC3", "\x85"});
  CHECK(Reader(files)("\u1100\u1161\u11A8") == Strings{"\xEA", "\xB0", "\x81"});
  // Dot below comes before dot above; a composition that is excluded stays apart.
  CHECK(Reader(files)("q\u0307\u0323") == Strings{"q", "\xCC", "\xA3", "\xCC", "\x87"});
  CHECK(Reader(files)("\uFB1D") == Strings{"\xD7", "\x99", "\xD6", "\xB4"});
  files.is_nfc = false;
  CHECK(Reader(files)("e\u0301") == Strings{"e", "\xCC", "\x81"});
}

TEST_CASE("Added tokens are cut out, the longest first", "[tokenizer]") {
  Files files;
  files.merges = {{"z", "<"}, {">", "a"}};
  for (const char* token : {"<|x|>", "<|x|><|y|>", "<|y|>", "<|"}) files.add_token(token);
  const Reader read(files);
  CHECK(read("<|x|><|x|>") == Strings{"[<|x|>]", "[<|x|>]"});
  CHECK(read("<|x|><|y|><|y|>") == Strings{"[<|x|><|y|>]", "[<|y|>]"});
  CHECK(read("<|z<|x|>a") == Strings{"[<|]", "z", "[<|x|>]", "a"});
  CHECK(read("<<|x|>>a") == Strings{"<", "[<|x|>]", ">a"});
  CHECK(read("|x|>") == Strings{"|", "x", "|", ">"});
}

TEST_CASE("Added tokens take white space along where they say so", "[tokenizer]") {
  Files files;
  files.add_token("<L>", {{"lstrip", true}});
  files.add_token("<R>", {{"rstrip", true}});
  files.add_token("<N>");
  const Reader read(files);
  CHECK(read("a \u3000\n<L> b") == Strings{"a", "[<L>]", " ", "b"});
  CHECK(read("a <R> \u00A0b") == Strings{"a", " ", "[<R>]", "b"});
  CHECK(read("<R> <L>") == Strings{"[<R>]", "[<L>]"});
  CHECK(read(" <N> ") == Strings{" ", "[<N>]", " "});
  CHECK(read("  <L>") == Strings{"[<L>]"});
}

TEST_CASE("Single words are matched only where they stand alone", "[tokenizer]") {
  Files files;
  files.add_token("cat", {{"single_word", true}});
  const Reader read(files);
  CHECK(read("cat") == Strings{"[cat]"});
  CHECK(read("(cat)cat") == Strings{"(", "[cat]", ")", "[cat]"});
  CHECK(read("cats") == Strings{"c", "a", "t", "s"});
  CHECK(read("_cat") == Strings{"_", "c", "a", "t"});
  CHECK(read("\u00E9cat") == Strings{"\xC3", "\xA9", "c", "a", "t"});
  CHECK(read("cat\u0301").front() == "c");
}

TEST_CASE("Normalised added tokens are looked for after NFC, others before", "[tokenizer]") {
  Files files;
  files.add_token("Cafe\u0301", {{"normalized", true}});
  files.add_token("re\u0301", {{"normalized", false}});
  const Reader read(files);
  CHECK(read("Caf\u00E9") == Strings{"[Cafe\u0301]"});
  CHECK(read("Cafe\u0301") == Strings{"[Cafe\u0301]"});
  CHECK(read("re\u0301") == Strings{"[re\u0301]"});
  CHECK(read("r\u00E9") == Strings{"r", "\xC3", "\xA9"});
}

TEST_CASE("What is not UTF-8 becomes U+FFFD", "[tokenizer]") {
  const Reader read(Files{});
  const Strings one = {"\xEF", "\xBF", "\xBD"};
  const auto times = [&](int count) {
    Strings all;
    for (int i = 0; i < count; ++i) all.insert(all.end(), one.begin(), one.end());
    return all;
  };
  CHECK(read("\xFF") == times(1));
  CHECK(read("\xE4\xB8") == times(1));  // the beginning of a character
  CHECK(read("\xF0\x9F\x98") == times(1));
  CHECK(read("\xED\xA0\x80") == times(3));      // a surrogate
  CHECK(read("\xC0\xAF") == times(2));          // too long a form
  CHECK(read("\xF4\x90\x80\x80") == times(4));  // above U+10FFFF
  CHECK(read(std::string("\0", 1)) == Strings{std::string("\0", 1)});
}

TEST_CASE("Both layouts of one tokenizer give the same ids", "[tokenizer]") {
  Files files;
  files.merges = {{"c", "a"}, {"ca", "t"}, {" ", "cat"}, {"\xC3", "\xA9"}, {"1", "2"}};
  files.add_token("<|endoftext|>");
  files.add_token("<|im_start|>");
  const std::string text = "<|im_start|>12 cats, e\u0301 cat<|endoftext|>\r\n";
  const auto expected = load(files.tokenizer_json())->encode(text);

  const Folder folder;
  files.write_old_layout(folder, "SomeTokenizerFast");
  const auto tokenizer =
      Tokenizer::load(folder.path(), ByteLevelRules{"SomeTokenizer", true, true});
  CHECK(tokenizer->encode(text) == expected);
  CHECK(tokenizer->size() == 256 + 5 + 2);
  CHECK(tokenizer->id("<|im_start|>") == 262);
  CHECK(tokenizer->id("\u0120cat") == 258);
  CHECK(tokenizer->id(" cat") == std::nullopt);

  // Where both are there, tokenizer.json is read.
  Files other = files;
  other.add_token("dog");
  test::write_bytes(folder / "tokenizer.json", other.tokenizer_json().dump());
  CHECK(Tokenizer::load(folder.path())->id("dog") == 263);
}

TEST_CASE("How text is split without tokenizer.json is told by who loads it", "[tokenizer]") {
  Files files;
  files.merges = {{"1", "2"}, {"\xC3", "\xA9"}, {" ", "a"}, {"'", "S"}};
  const Folder folder;
  files.write_old_layout(folder, "GPT2Tokenizer");
  const ByteLevelRules rules{.tokenizer_class = "GPT2Tokenizer"};
  auto tokenizer = Tokenizer::load(folder.path(), rules);
  CHECK(tokenizer->encode("12") == std::vector<int64_t>{256});
  CHECK(tokenizer->encode("e\u0301") == std::vector<int64_t>{'e', 0xCC, 0x81});
  CHECK(tokenizer->encode("a'S") == std::vector<int64_t>{'a', '\'', 'S'});  // not a contraction

  test::write_bytes(folder / "tokenizer_config.json",
                    R"({"tokenizer_class": "GPT2TokenizerFast", "add_prefix_space": true})");
  tokenizer = Tokenizer::load(folder.path(), rules);
  CHECK(tokenizer->encode("a") == std::vector<int64_t>{258});
  CHECK(tokenizer->encode(" a") == std::vector<int64_t>{258});
  CHECK(tokenizer->encode("\n") == std::vector<int64_t>{' ', '\n'});

  files.write_old_layout(folder, "OtherTokenizer");
  const Error other = error_of(folder.path(), rules);
  CHECK(other.code() == ErrorCode::kUnsupported);
  CHECK_THAT(other.what(), Contains("\"OtherTokenizer\"") &&
                               Contains("GPT2Tokenizer is expected") && Contains("tokenizer.json"));
  CHECK(Tokenizer::load(folder.path(), ByteLevelRules{})->size() == 260);

  fs::remove(folder / "tokenizer_config.json");
  CHECK_THAT(error_of(folder.path(), rules).what(), Contains("no tokenizer_class"));
  const Error untold = error_of(folder.path());
  CHECK(untold.code() == ErrorCode::kUnsupported);
  CHECK_THAT(untold.what(), Contains("do not say how the text is split"));
}

TEST_CASE("Tokens that the rules name are cut out where no file lists them", "[tokenizer]") {
  Files files;
  files.merges = {{"<", "e"}, {"<e", ">"}};
  const Folder folder;
  files.write_old_layout(folder, "SomeTokenizer");
  const std::string text = "a<e>b";
  const auto ids = [&](const std::array<std::string_view, 4>& tokens) {
    return Tokenizer::load(folder.path(),
                           ByteLevelRules{.single_digits = true, .added_tokens = tokens})
        ->encode(text);
  };
  CHECK(ids({}) == std::vector<int64_t>{'a', 256, '>', 'b'});
  CHECK(ids({"<e>", "<none>"}) == std::vector<int64_t>{'a', 257, 'b'});
}

TEST_CASE("Whole words stay whole where merges are ignored", "[tokenizer]") {
  Files files;
  files.merges = {{"c", "d"}, {"ab", "cd"}, {"a", "b"}};  // by rank: a, b, cd before ab
  files.model_options = {{"ignore_merges", true}};
  files.add_token("ef", {{"single_word", true}});
  const Reader read(files);
  CHECK(read("abcd") == Strings{"abcd"});
  CHECK(read("efg ef") == Strings{"e", "f", "g", " ", "[ef]"});
  CHECK(read("(ef0") == Strings{"(", "e", "f", "0"});  // an added token is no word of the model
}

TEST_CASE("Bytes without a token are the unknown token, or left out", "[tokenizer]") {
  json file = Files{}.tokenizer_json();
  file["model"]["vocab"].erase("z");
  CHECK(load(file)->encode("azb") == std::vector<int64_t>{'a', 'b'});
  file["model"]["vocab"]["<unk>"] = 256;
  file["model"]["unk_token"] = "<unk>";
  CHECK(load(file)->encode("azb") == std::vector<int64_t>{'a', 256, 'b'});
  file["model"]["unk_token"] = "<none>";
  CHECK(error_of(file).code() == ErrorCode::kUnsupported);
}

TEST_CASE("A split pattern that is not known is shown, and never run", "[tokenizer]") {
  Files files;
  files.pattern = "(a+)+$";
  const Error error = error_of(files.tokenizer_json());
  CHECK(error.code() == ErrorCode::kUnsupported);
  CHECK_THAT(error.what(), Contains("tokenizer.json: ") && Contains("\"(a+)+$\""));
}

TEST_CASE("Tokenizers of another kind are refused", "[tokenizer]") {
  const json good = Files{}.tokenizer_json();
  const auto refused = [&](const char* pointer, const json& value) {
    json file = good;
    file[json::json_pointer(pointer)] = value;
    return error_of(file).code();
  };
  CHECK(refused("/model/type", "WordPiece") == ErrorCode::kUnsupported);
  CHECK(refused("/model/end_of_word_suffix", "</w>") == ErrorCode::kUnsupported);
  CHECK(refused("/normalizer", {{"type", "Lowercase"}}) == ErrorCode::kUnsupported);
  CHECK(refused("/pre_tokenizer", nullptr) == ErrorCode::kUnsupported);
  CHECK(refused("/pre_tokenizer", {{"type", "Whitespace"}}) == ErrorCode::kUnsupported);
  CHECK(refused("/pre_tokenizer/pretokenizers/0/type", "Digits") == ErrorCode::kUnsupported);
  CHECK(refused("/pre_tokenizer/pretokenizers/0/behavior", "MergedWithNext") ==
        ErrorCode::kUnsupported);
  CHECK(refused("/pre_tokenizer/pretokenizers/0/pattern", {{"String", " "}}) ==
        ErrorCode::kUnsupported);
}

TEST_CASE("What is missing or broken is named with its file", "[tokenizer]") {
  const Folder folder;
  Error error = error_of(folder.path());
  CHECK(error.code() == ErrorCode::kNotFound);
  CHECK_THAT(error.what(), Contains("tokenizer.json") && Contains("vocab.json"));

  error = error_of(folder / "none.json");
  CHECK(error.code() == ErrorCode::kNotFound);
  CHECK_THAT(error.what(), Contains("none.json: no such file"));

  Files files;
  files.merges = {{"a", "b"}};
  files.write_old_layout(folder, "SomeTokenizer");
  fs::remove(folder / "merges.txt");
  error = error_of(folder.path());
  CHECK(error.code() == ErrorCode::kNotFound);
  CHECK_THAT(error.what(), Contains("merges.txt"));

  test::write_bytes(folder / "merges.txt", "#version: 0.2\na b\nabc\n");
  error = error_of(folder.path());
  CHECK(error.code() == ErrorCode::kDataLoss);
  CHECK_THAT(error.what(), Contains("/merges.txt:3: "));

  test::write_bytes(folder / "merges.txt", "a b\na nothing\n");
  error = error_of(folder.path());
  CHECK(error.code() == ErrorCode::kDataLoss);
  CHECK_THAT(error.what(), Contains("merges.txt") && Contains("nothing"));

  test::write_bytes(folder / "vocab.json", R"({"a": 1, "b": 1})");
  error = error_of(folder.path());
  CHECK(error.code() == ErrorCode::kDataLoss);
  CHECK_THAT(error.what(), Contains("/vocab.json"));

  json no_bytes = files.tokenizer_json();
  no_bytes["model"]["vocab"] = {{"\u4E00", 0}};
  no_bytes["model"]["merges"] = json::array();
  CHECK(error_of(no_bytes).code() == ErrorCode::kDataLoss);
}

TEST_CASE("A tokenizer.json cut short is refused wherever it ends", "[tokenizer]") {
  Files files;
  files.merges = {{"a", "b"}};
  files.add_token("<|x|>");
  const std::string whole = files.tokenizer_json().dump();
  const Folder folder;
  for (size_t size = 0; size < whole.size(); size += 37) {
    test::write_bytes(folder / "tokenizer.json", whole.substr(0, size));
    const Error error = error_of(folder.path());
    CHECK(error.code() == ErrorCode::kDataLoss);
    CHECK_THAT(error.what(), Contains("tokenizer.json:"));
  }
}

TEST_CASE("A word of a million characters takes no longer than many short ones", "[tokenizer]") {
  constexpr size_t kLength = 1'000'000;
  Files files;
  for (std::string run = "a"; run.size() < 512; run += run) files.merges.emplace_back(run, run);
  files.add_token("<|x|>");
  const auto tokenizer = load(files.tokenizer_json());
  const auto start = std::chrono::steady_clock::now();
  const auto count = [&](const std::string& text) { return tokenizer->encode(text).size(); };

  CHECK(count(std::string(kLength, 'a')) == kLength / 512 + 1);  // 1,000,000 = 1953 * 512 + 64
  CHECK(count(std::string(kLength, ' ')) == kLength);
  CHECK(count(std::string(kLength, ' ') + "b") == kLength + 1);
  CHECK(count(std::string(kLength / 4, '\xFF')) == 3 * kLength / 4);
  CHECK(count(std::string(kLength / 4, '<')) == kLength / 4);
  std::string marks = "a";
  for (size_t i = 0; i < kLength / 8; ++i) marks += "\u0301\u0323";
  CHECK(count(marks) == marks.size());  // a with dot below has three bytes: one more, two fewer

  // A quadratic step anywhere would take hours.
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(60));
}

TEST_CASE("Threads that share a tokenizer get the same ids", "[tokenizer]") {
  Files files;
  files.merges = {{"c", "a"}, {"ca", "t"}, {" ", "cat"}};
  files.add_token("<|x|>");
  const auto tokenizer = load(files.tokenizer_json());
  const std::string text = "<|x|> cat e\u0301 \xFF 123 cats";
  const auto expected = tokenizer->encode(text);
  std::vector<int> wrong(4, 0);
  std::vector<std::thread> threads;
  for (int& count : wrong) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) count += tokenizer->encode(text) == expected ? 0 : 1;
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == std::vector<int>(4, 0));
}

}  // namespace
}  // namespace atelier::text
