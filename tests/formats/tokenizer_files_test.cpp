#include "formats/tokenizer_files.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <string>

#include "formats/expect_error.h"

namespace atelier::formats {
namespace {

constexpr char kVocab[] = R"({"a":0,"b":1,"c":2,"ab":3,"abc":5})";

// A tokenizer.json whose model is of the given vocabulary and merges; `rest` goes before the model.
std::string tokenizer(const std::string& vocab, const std::string& merges,
                      const std::string& rest = "") {
  return "{" + rest + R"("model":{"type":"BPE","vocab":)" + vocab + R"(,"merges":)" + merges + "}}";
}

std::string tag_of_tokenizer(const std::string& text) {
  return error_of([&] { parse_tokenizer_json(text); }).tag;
}

std::string tag_of_vocab(const std::string& vocab) {
  return tag_of_tokenizer(tokenizer(vocab, "[]"));
}
std::string tag_of_merges(const std::string& merges) {
  return tag_of_tokenizer(tokenizer(kVocab, merges));
}
std::string tag_of_added(const std::string& added) {
  return tag_of_tokenizer(tokenizer(kVocab, "[]", "\"added_tokens\":" + added + ","));
}

const BpeModel& bpe(const TokenizerFiles& files) {
  return std::get<BpeModel>(files.model);
}

// A tokenizer.json whose model is of the given pieces; `rest` goes before the model.
std::string unigram(const std::string& pieces, const std::string& options = R"(,"unk_id":0)",
                    const std::string& rest = "") {
  return "{" + rest + R"("model":{"type":"Unigram","vocab":)" + pieces + options + "}}";
}

bool same_merges(const std::vector<BpeMerge>& merges) {
  return merges.size() == 2 && merges[0].left == 0 && merges[0].right == 1 &&
         merges[0].joined == 3 && merges[1].left == 3 && merges[1].right == 2 &&
         merges[1].joined == 5;
}

}  // namespace

TEST_CASE("tokenizer.json is read in both spellings of merges", "[tokenizer]") {
  for (const char* merges :
       {R"(["a b","ab c"])", R"([["a","b"],["ab","c"]])", R"(["a b",["ab","c"]])"}) {
    const TokenizerFiles files = parse_tokenizer_json(tokenizer(kVocab, merges));
    CHECK(same_merges(bpe(files).merges));
    REQUIRE(bpe(files).tokens.size() == 5);
    CHECK(bpe(files).tokens[3].text == "ab");
    CHECK(bpe(files).tokens[4].text == "abc");
    CHECK(bpe(files).tokens[4].id == 5);
    CHECK(files.has_pipeline);
    CHECK(files.normalizers.empty());
    CHECK(files.pre_tokenizer.empty());
  }
}

TEST_CASE("The order of fields in tokenizer.json does not matter", "[tokenizer]") {
  const TokenizerFiles files = parse_tokenizer_json(
      R"({"model":{"merges":["a b","ab c"],"ignore_merges":true,"byte_fallback":true,"unk_token":"a",)"
      R"("end_of_word_suffix":"</w>","dropout":null,"continuing_subword_prefix":"","vocab":)" +
      std::string(kVocab) + R"(},"version":"1.0","truncation":{"model":{"vocab":[1]}}})");
  CHECK(same_merges(bpe(files).merges));
  CHECK(bpe(files).ignore_merges);
  CHECK(bpe(files).byte_fallback);
  CHECK(bpe(files).unk_token == "a");
  CHECK(bpe(files).end_of_word_suffix == "</w>");
  // Old files name no type.
  CHECK(tag_of_tokenizer(R"({"model":{"vocab":{"a":0},"merges":[]}})") == "accepted");
}

TEST_CASE("Added tokens, normalizer and pre-tokenizer come along", "[tokenizer]") {
  const TokenizerFiles files = parse_tokenizer_json(tokenizer(
      kVocab, R"(["a b"])",
      R"("added_tokens":[)"
      R"({"id":8,"content":"<two>","single_word":true,"lstrip":true,"rstrip":true,"normalized":true,"special":false},)"
      R"({"id":7,"content":"<|one|>","special":true},{"id":2,"content":"c"}],)"
      R"("normalizer":{"type":"Sequence","normalizers":[{"type":"NFC"},{"type":"Sequence","normalizers":[{"type":"Lowercase"}]}]},)"
      R"("pre_tokenizer":{"type":"Sequence","pretokenizers":[)"
      R"({"type":"Split","pattern":{"Regex":"\\s+|\\p{L}+"},"behavior":"Isolated","invert":true},)"
      R"({"type":"Split","pattern":{"String":" "},"behavior":"Removed"},)"
      R"({"type":"ByteLevel","add_prefix_space":false,"trim_offsets":false,"use_regex":false}]},)"));
  REQUIRE(files.added_tokens.size() == 3);
  CHECK(files.added_tokens[0].text == "c");
  CHECK(files.added_tokens[0].is_normalized);
  CHECK(files.added_tokens[1].text == "<|one|>");
  CHECK(files.added_tokens[1].is_special);
  CHECK_FALSE(files.added_tokens[1].is_normalized);
  CHECK_FALSE(files.added_tokens[1].strips_left);
  const AddedToken& two = files.added_tokens[2];
  CHECK(two.id == 8);
  CHECK((two.is_single_word && two.strips_left && two.strips_right && two.is_normalized));
  REQUIRE(files.normalizers.size() == 2);
  CHECK(files.normalizers[0].type == "NFC");
  CHECK(files.normalizers[1].type == "Lowercase");
  REQUIRE(files.pre_tokenizer.size() == 3);
  CHECK(files.pre_tokenizer[0].pattern == "\\s+|\\p{L}+");
  CHECK(files.pre_tokenizer[0].pattern_is_regex);
  CHECK(files.pre_tokenizer[0].behavior == "Isolated");
  CHECK(files.pre_tokenizer[0].is_inverted);
  CHECK(files.pre_tokenizer[1].pattern == " ");
  CHECK_FALSE(files.pre_tokenizer[1].pattern_is_regex);
  CHECK(files.pre_tokenizer[2].type == "ByteLevel");
  CHECK_FALSE(files.pre_tokenizer[2].use_regex);
  CHECK_FALSE(files.pre_tokenizer[2].add_prefix_space);
  const TokenizerFiles plain = parse_tokenizer_json(
      tokenizer(kVocab, "[]", R"("normalizer":null,"pre_tokenizer":{"type":"ByteLevel"},)"));
  REQUIRE(plain.pre_tokenizer.size() == 1);
  CHECK(plain.pre_tokenizer[0].use_regex);
  CHECK(plain.pre_tokenizer[0].add_prefix_space);
}

TEST_CASE("The vocabulary's ids are checked", "[tokenizer]") {
  CHECK(tag_of_vocab("{}") == "accepted");
  CHECK(tag_of_vocab(R"({"a":4194303})") == "accepted");
  CHECK(tag_of_vocab(R"({"a":4194304})") == "TOK_ID");
  CHECK(tag_of_vocab(R"({"a":18446744073709551615})") == "TOK_ID");
  CHECK(tag_of_vocab(R"({"a":0,"b":0})") == "TOK_ID");
  CHECK(tag_of_vocab(R"({"a":0,"a":1})") == "TOK_DUPLICATE");
  CHECK(tag_of_vocab(R"({"a":0,"\u0061":1})") == "TOK_DUPLICATE");
  for (const char* id : {"-1", "-0", "1.0", "null", "true", "\"1\"", "[1]", "{}"}) {
    CHECK(tag_of_vocab(std::string("{\"a\":") + id + "}") == "TOK_FORM");
  }
}

TEST_CASE("A merge of what is not in the vocabulary is named", "[tokenizer]") {
  CHECK(tag_of_merges("[]") == "accepted");
  for (const char* merges : {R"(["a"])", R"(["a b c"])", R"([" a"])", R"(["a "])", R"([""])",
                             R"([["a"]])", R"([["a","b","c"]])", R"([["a",""]])", R"([[]])", "[1]",
                             "[null]", R"([["a",1]])", R"([[["a"],"b"]])", R"([{"a":"b"}])"}) {
    CAPTURE(merges);
    CHECK(tag_of_merges(merges) == "TOK_MERGE");
  }
  const ParseError part =
      error_of([] { parse_tokenizer_json(tokenizer(kVocab, R"(["a b","a \u001bz"])")); });
  CHECK(part.tag == "TOK_MERGE");
  CHECK(std::string(part.what()).find("merge 1") != std::string::npos);
  CHECK(std::string(part.what()).find(R"(token "\x1bz" is not in the vocabulary)") !=
        std::string::npos);
  const ParseError joined = error_of([] { parse_tokenizer_json(tokenizer(kVocab, R"(["b c"])")); });
  CHECK(std::string(joined.what()).find(R"(token "bc")") != std::string::npos);
}

TEST_CASE("Added tokens must agree with the vocabulary and each other", "[tokenizer]") {
  CHECK(tag_of_added("[]") == "accepted");
  CHECK(tag_of_added("null") == "accepted");
  CHECK(tag_of_added(R"([{"id":3,"content":"ab"}])") == "accepted");
  CHECK(tag_of_added(R"([{"id":4,"content":"x"}])") == "accepted");
  CHECK(tag_of_added(R"([{"id":4,"content":"ab"}])") == "TOK_ID");
  CHECK(tag_of_added(R"([{"id":3,"content":"x"}])") == "TOK_ID");
  CHECK(tag_of_added(R"([{"id":9,"content":"x"},{"id":9,"content":"y"}])") == "TOK_ID");
  CHECK(tag_of_added(R"([{"id":9,"content":"x"},{"id":10,"content":"x"}])") == "TOK_DUPLICATE");
  CHECK(tag_of_added(R"([{"id":4194304,"content":"x"}])") == "TOK_ID");
  CHECK(tag_of_added(R"([{"id":-1,"content":"x"}])") == "TOK_ID");
  CHECK(tag_of_added(R"([{"id":9,"content":""}])") == "TOK_FORM");
  CHECK(tag_of_added(R"([{"id":9}])") == "TOK_FORM");
  CHECK(tag_of_added(R"([{"content":"x"}])") == "TOK_FORM");
  CHECK(tag_of_added(R"([{"id":9,"content":1}])") == "TOK_FORM");
  CHECK(tag_of_added(R"([{"id":9,"content":"x","special":1}])") == "TOK_FORM");
  CHECK(tag_of_added(R"([1])") == "TOK_FORM");
  CHECK(tag_of_added(R"({})") == "TOK_FORM");
}

TEST_CASE("Tokenizers of another kind are named", "[tokenizer]") {
  CHECK(tag_of_tokenizer("") == "TOK_SYNTAX");
  CHECK(tag_of_tokenizer("[]") == "TOK_FORM");
  CHECK(tag_of_tokenizer("1") == "TOK_FORM");
  CHECK(tag_of_tokenizer("{}") == "TOK_FORM");
  CHECK(tag_of_tokenizer(R"({"model":[]})") == "TOK_FORM");
  CHECK(tag_of_tokenizer(R"({"model":{"type":"BPE"}})") == "TOK_FORM");
  CHECK(tag_of_tokenizer(R"({"model":{"type":"BPE","vocab":1,"merges":[]}})") == "TOK_FORM");
  CHECK(tag_of_tokenizer(R"({"model":{"type":"Unigram","vocab":{"a":0}}})") == "TOK_FORM");
  CHECK(tag_of_tokenizer(R"({"model":{"type":"BPE","vocab":[["a",0]],"merges":[]}})") ==
        "TOK_FORM");
  CHECK(tag_of_tokenizer(R"({"model":{"type":"WordPiece","vocab":{"a":0}}})") == "TOK_KIND");
  CHECK(tag_of_tokenizer(R"({"model":{"vocab":{"a":0}}})") == "TOK_KIND");
  CHECK(tag_of_tokenizer(
            R"({"model":{"vocab":{"a":0},"merges":[],"continuing_subword_prefix":"##"}})") ==
        "TOK_KIND");
  CHECK(tag_of_tokenizer(R"({"model":{"vocab":{"a":0},"merges":[],"dropout":0.1}})") == "TOK_KIND");
  CHECK(tag_of_tokenizer(R"({"model":{"vocab":{"a":0},"vocab":{"b":0},"merges":[]}})") ==
        "JSON_DUPLICATE_KEY");
  CHECK(tag_of_tokenizer(tokenizer(kVocab, "[]", R"("normalizer":[],)")) == "TOK_FORM");
  CHECK(tag_of_tokenizer(tokenizer(kVocab, "[]", R"("normalizer":{"type":"Sequence"},)")) ==
        "TOK_FORM");
  CHECK(tag_of_tokenizer(tokenizer(
            kVocab, "[]", R"("pre_tokenizer":{"type":"Sequence","pretokenizers":[1]},)")) ==
        "TOK_FORM");
  CHECK(tag_of_tokenizer(tokenizer(
            kVocab, "[]", R"("pre_tokenizer":{"type":"Split","pattern":"x"},)")) == "TOK_FORM");
  CHECK(tag_of_tokenizer(tokenizer(kVocab, "[]",
                                   "\"x\":" + std::string(40, '[') + std::string(40, ']') + ",")) ==
        "TOK_DEPTH");
}

TEST_CASE("A unigram model is read with its pipeline", "[tokenizer]") {
  const TokenizerFiles files = parse_tokenizer_json(unigram(
      R"([["<unk>",0],["a",-1.5],["\u2581b",-2],["a",-0.0]])",
      R"(,"unk_id":0,"byte_fallback":true)",
      R"("added_tokens":[{"id":0,"content":"<unk>","special":true},{"id":7,"content":"<x>"}],)"
      R"("normalizer":{"type":"Sequence","normalizers":[)"
      R"({"type":"Precompiled","precompiled_charsmap":"BAAAAAAAAAB4AA=="},)"
      R"({"type":"Strip","strip_left":false,"strip_right":true},)"
      R"({"type":"Replace","pattern":{"Regex":" {2,}"},"content":"\u2581"}]},)"
      R"("pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"WhitespaceSplit"},)"
      R"({"type":"Metaspace","replacement":"\u2581","prepend_scheme":"first","split":false}]},)"));
  const auto& model = std::get<UnigramModel>(files.model);
  REQUIRE(model.pieces.size() == 4);
  CHECK(model.pieces[1].text == "a");
  CHECK(model.pieces[1].score == -1.5);
  CHECK(model.pieces[2].text == "\u2581b");
  CHECK(model.unknown == 0);
  CHECK(model.byte_fallback);
  CHECK(files.added_tokens.size() == 2);
  REQUIRE(files.normalizers.size() == 3);
  CHECK_FALSE(files.normalizers[1].strips_left);
  CHECK(files.normalizers[1].strips_right);
  CHECK(files.normalizers[2].pattern_is_regex);
  REQUIRE(files.pre_tokenizer.size() == 2);
  CHECK(files.pre_tokenizer[1].replacement == "\u2581");
  CHECK(files.pre_tokenizer[1].prepend_scheme == "first");
  CHECK_FALSE(files.pre_tokenizer[1].splits);
}

TEST_CASE("Unigram models that are wrong are refused", "[tokenizer]") {
  const std::string good = R"([["<unk>",0],["a",-1.5]])";
  CHECK(tag_of_tokenizer(unigram(good)) == "accepted");
  CHECK(tag_of_tokenizer(unigram(good, "")) == "TOK_KIND");
  CHECK(tag_of_tokenizer(unigram(good, R"(,"unk_id":null)")) == "TOK_KIND");
  for (const char* id : {"2", "-1", "0.5", "\"0\"", "4294967296"}) {
    CHECK(tag_of_tokenizer(unigram(good, std::string(",\"unk_id\":") + id)) == "TOK_ID");
  }
  CHECK(tag_of_tokenizer(unigram(good, R"(,"unk_id":0,"byte_fallback":1)")) == "TOK_FORM");
  for (const char* piece : {"1", "null", "\"a\"", "{}", "[]", R"(["a"])", "[1]", R"([1,"a"])",
                            R"(["a","b"])", R"(["a",1,2])", R"(["a",1,"b"])", R"(["",1])",
                            R"(["a",null])", R"(["a",[1]])", R"(["a",{}])", R"(["a",true])"}) {
    CAPTURE(piece);
    CHECK(tag_of_tokenizer(unigram(std::string(R"([["<unk>",0],)") + piece + "]")) == "TOK_PIECE");
  }
  const ParseError error =
      error_of([] { parse_tokenizer_json(unigram(R"([["<unk>",0],["a"]])")); });
  CHECK(std::string(error.what()).find("piece 1 ") != std::string::npos);
  CHECK(tag_of_tokenizer(R"({"model":{"vocab":[["a",0]],"vocab":[["b",0]],"unk_id":0}})") ==
        "JSON_DUPLICATE_KEY");

  const auto with = [&](const char* rest) {
    return tag_of_tokenizer(unigram(good, R"(,"unk_id":0)", rest));
  };
  CHECK(with(R"("added_tokens":[{"id":1,"content":"b"}],)") == "TOK_ID");
  CHECK(with(R"("added_tokens":[{"id":2,"content":"a"}],)") == "TOK_ID");
  CHECK(with(R"("added_tokens":[{"id":2,"content":"b"}],)") == "accepted");
  for (const char* text : {"BAA", "BAAA=", "BA==BAAA", "B\u00e4AA", "BAAAAAAAAAB4AA=", "===="}) {
    CAPTURE(text);
    const std::string rest =
        std::string(R"("normalizer":{"type":"Precompiled","precompiled_charsmap":")") + text +
        "\"},";
    CHECK(with(rest.c_str()) == "TOK_FORM");
  }
  CHECK(with(R"("normalizer":{"type":"Precompiled"},)") == "SP_CHARSMAP");
  CHECK(with(R"("normalizer":{"type":"Precompiled","precompiled_charsmap":"BAAAAAAAAAB4eA=="},)") ==
        "SP_CHARSMAP");
  CHECK(with(R"("pre_tokenizer":{"type":"Metaspace"},)") == "TOK_FORM");
  CHECK(with(R"("pre_tokenizer":{"type":"Metaspace","replacement":"ab"},)") == "TOK_FORM");
}

TEST_CASE("A unigram tokenizer.json cut short is refused wherever it ends", "[tokenizer]") {
  const std::string whole = unigram(R"([["<unk>",0],["a",-1.5],["\u00e9",-2e0]])");
  for (size_t size = 0; size < whole.size(); ++size) {
    CHECK(tag_of_tokenizer(whole.substr(0, size)) != "accepted");
  }
}

TEST_CASE("vocab.json and merges.txt are read with what stands beside them", "[tokenizer]") {
  const TokenizerFiles files = parse_bpe_files(
      kVocab, "#version: 0.2\na b\r\n\nab c\n",
      R"({"tokenizer_class":"SomeTokenizer","add_prefix_space":false,"eos_token":"<e>",)"
      R"("additional_special_tokens":["<s>"],"pad_token":{"content":"<p>"},"model_max_length":1e30,)"
      R"("added_tokens_decoder":{"10":{"content":"<e>","special":true,"lstrip":false,"normalized":false},)"
      R"("9":{"content":"<n>","lstrip":true}}})",
      R"({"<s>":11,"<e>":10,"<plain>":12,"<p>":13})");
  CHECK(same_merges(bpe(files).merges));
  CHECK(bpe(files).tokens.size() == 5);
  CHECK_FALSE(files.has_pipeline);
  CHECK(files.tokenizer_class == "SomeTokenizer");
  CHECK(files.add_prefix_space == false);
  REQUIRE(files.added_tokens.size() == 5);
  CHECK(files.added_tokens[0].text == "<n>");
  CHECK(files.added_tokens[0].strips_left);
  CHECK(files.added_tokens[1].text == "<e>");
  CHECK(files.added_tokens[1].is_special);
  CHECK(files.added_tokens[2].text == "<s>");
  CHECK(files.added_tokens[2].is_special);
  CHECK(files.added_tokens[3].text == "<plain>");
  CHECK_FALSE(files.added_tokens[3].is_special);
  CHECK(files.added_tokens[3].is_normalized);
  CHECK(files.added_tokens[4].is_special);
  CHECK(same_merges(bpe(parse_bpe_files(kVocab, "a b\nab c")).merges));
}

TEST_CASE("Errors of the older layout name the file and the line", "[tokenizer]") {
  const auto error = [](const std::string& vocab, const std::string& merges,
                        std::optional<std::string> config = {},
                        std::optional<std::string> added = {}) {
    const ParseError found = error_of([&] {
      parse_bpe_files(vocab, merges,
                      config ? std::optional<std::string_view>(*config) : std::nullopt,
                      added ? std::optional<std::string_view>(*added) : std::nullopt);
    });
    const std::string what = found.what();
    return found.tag + " " + what.substr(0, what.find(':'));
  };
  CHECK(error(kVocab, "a b\n") == "accepted accepted");
  CHECK(error("", "") == "TOK_SYNTAX vocab.json");
  CHECK(error("[]", "") == "TOK_FORM vocab.json");
  CHECK(error("3", "") == "TOK_FORM vocab.json");
  CHECK(error(R"({"a":{}})", "") == "TOK_FORM vocab.json");
  CHECK(error(R"({"a":0,"b":0})", "") == "TOK_ID vocab.json");
  CHECK(error(kVocab, "a\n") == "TOK_MERGE merges.txt");
  CHECK(error(kVocab, "a b\n#version: 0.2\nx\n") == "TOK_MERGE merges.txt");
  CHECK(error(kVocab, "a z\n") == "TOK_MERGE merges.txt");
  CHECK(error(kVocab, "a \xff\n") == "TOK_UTF8 merges.txt");
  CHECK(error(kVocab, "", "[]") == "TOK_FORM tokenizer_config.json");
  CHECK(error(kVocab, "", "{") == "JSON_SYNTAX tokenizer_config.json");
  CHECK(error(kVocab, "", R"({"added_tokens_decoder":{"x":{"content":"a"}}})") ==
        "TOK_ID tokenizer_config.json");
  CHECK(error(kVocab, "", R"({"added_tokens_decoder":{"07":{"content":"a"}}})") ==
        "TOK_ID tokenizer_config.json");
  CHECK(error(kVocab, "", R"({"added_tokens_decoder":{"4194304":{"content":"q"}}})") ==
        "TOK_ID tokenizer_config.json");
  CHECK(error(kVocab, "", R"({"added_tokens_decoder":{"7":"q"}})") ==
        "TOK_FORM tokenizer_config.json");
  CHECK(error(kVocab, "", R"({"added_tokens_decoder":[]})") == "TOK_FORM tokenizer_config.json");
  CHECK(error(kVocab, "", {}, R"({"x":1})") == "TOK_ID added_tokens.json");
  CHECK(error(kVocab, "", {}, R"({"x":"1"})") == "TOK_FORM added_tokens.json");
  const ParseError line = error_of([] { parse_bpe_files(kVocab, "#version\na b\n\na c\n"); });
  CHECK(std::string(line.what()).find("line 4") != std::string::npos);
  CHECK(std::string(line.what()).find("\"ac\"") != std::string::npos);
}

TEST_CASE("A vocabulary of published size is read whole", "[tokenizer]") {
  // Tokens are merged from decimal digits: "12" and "3" make "123".
  nlohmann::json vocab = nlohmann::json::object();
  nlohmann::json merges = nlohmann::json::array();
  uint32_t next = 0;
  for (int i = 0; i < 10; ++i) vocab[std::to_string(i)] = next++;
  std::string merges_text;
  for (int i = 10; i < 150'000; ++i) {
    const std::string whole = std::to_string(i);
    vocab[whole] = next++;
    merges.push_back({whole.substr(0, whole.size() - 1), whole.substr(whole.size() - 1)});
    merges_text += whole.substr(0, whole.size() - 1) + " " + whole.substr(whole.size() - 1) + "\n";
  }
  const std::string vocab_text = vocab.dump();
  const TokenizerFiles one = parse_tokenizer_json(tokenizer(vocab_text, merges.dump()));
  const TokenizerFiles two = parse_bpe_files(vocab_text, merges_text);
  for (const TokenizerFiles* files : {&one, &two}) {
    REQUIRE(bpe(*files).tokens.size() == 150'000);
    REQUIRE(bpe(*files).merges.size() == 149'990);
    CHECK(bpe(*files).tokens[123'456].text == "123456");
    CHECK(bpe(*files).merges[123'446].joined == 123'456);
    CHECK(bpe(*files).merges[123'446].left == 12'345);
    CHECK(bpe(*files).merges[123'446].right == 6);
  }
}

TEST_CASE("Every cut of the tokenizer's files is refused", "[tokenizer]") {
  const std::string text =
      tokenizer(kVocab, R"(["a b",["ab","c"]])", R"("added_tokens":[{"id":9,"content":"x"}],)");
  CHECK(tag_of_tokenizer(text) == "accepted");
  for (size_t i = 0; i < text.size(); ++i) CHECK(tag_of_tokenizer(text.substr(0, i)) != "accepted");
}

}  // namespace atelier::formats
