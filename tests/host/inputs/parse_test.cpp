#include "host/inputs/parse.h"

#include <ATen/ATen.h>

#include "host/inputs/input_flags.h"
#include "host/inputs/read.h"
#include "support/files.h"

namespace atelier::inputs {
namespace {

using Catch::Contains;
using nlohmann::json;

constexpr InputSpec kImage = {.name = "image", .kind = InputKind::kImage};
constexpr InputSpec kImages = {
    .name = "images", .kind = InputKind::kImage, .min_count = 2, .max_count = 3};
constexpr InputSpec kTexts = {.name = "texts", .kind = InputKind::kText, .max_count = 2};

InputSpec of(InputKind kind) {
  return {.name = "x", .kind = kind};
}

std::string refusal(const InputSpec& input, const json& given) {
  try {
    return "taken: " + parse_value(input, given).dump();
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kInvalidArgument);
    CHECK(!error.hint().empty());
    return error.what();
  }
}

TEST_CASE("Values are taken as JSON and as the text of a cell", "[inputs]") {
  CHECK(parse_value(of(InputKind::kInteger), 4) == 4);
  CHECK(parse_value(of(InputKind::kInteger), "-5") == -5);
  CHECK(parse_value(of(InputKind::kReal), 2) == 2.0);
  CHECK(parse_value(of(InputKind::kReal), "0.5") == 0.5);
  CHECK(parse_value(of(InputKind::kFlag), "True") == true);
  CHECK(parse_value(of(InputKind::kFlag), "0") == false);
  CHECK(parse_value(of(InputKind::kText), "[not a list]") == "[not a list]");
  CHECK(parse_value(kImage, "a.png") == "a.png");
  CHECK(parse_value(kImage, json::array({"a.png"})) == "a.png");
  CHECK(parse_value(kTexts, "one") == json::array({"one"}));
  CHECK(parse_value(kImages, "[\"a.png\", \"b.png\"]") == json::array({"a.png", "b.png"}));
  CHECK(texts_of(parse_value(kImages, json::array({"a", "b", "c"}))).size() == 3);
}

TEST_CASE("What an input is not is refused with what it is", "[inputs]") {
  CHECK_THAT(refusal(of(InputKind::kInteger), 1.5), Contains("1.5 is no whole number"));
  CHECK_THAT(refusal(of(InputKind::kInteger), UINT64_MAX), Contains("is no whole number"));
  CHECK_THAT(refusal(of(InputKind::kReal), "wide"), Contains("\"wide\" is no number"));
  CHECK_THAT(refusal(of(InputKind::kReal), "inf"), Contains("is no number"));
  CHECK_THAT(refusal(of(InputKind::kFlag), 2), Contains("2 is no truth value"));
  CHECK_THAT(refusal(of(InputKind::kText), 12), Contains("12 is no text"));
  CHECK_THAT(refusal(kTexts, json::array({1})), Contains("is no text and no list of texts"));
  CHECK_THAT(refusal(kImage, 3), Contains("3 is no path and no list of paths"));
  CHECK_THAT(refusal(kImage, "[a.png]"), Contains("is no list of paths"));
  CHECK_THAT(refusal(kImage, ""), Contains("is an empty path"));
  CHECK_THAT(refusal(kImage, "https://a/b.png"), Contains("is a web address"));
  CHECK_THAT(refusal(kImage, std::string("a\0b", 3)), Contains("holds a NUL byte"));
}

TEST_CASE("Counts are held on both sides", "[inputs]") {
  CHECK_THAT(refusal(kImage, json::array({"a", "b"})),
             Contains("2 files are given, one is expected"));
  CHECK_THAT(refusal(kImage, json::array()), Contains("0 files are given, one is expected"));
  CHECK_THAT(refusal(kImages, "a.png"), Contains("1 file is given, at least 2 are expected"));
  CHECK_THAT(refusal(kImages, json::array({"a", "b", "c", "d"})),
             Contains("4 files are given, at most 3 are expected"));
  CHECK_THAT(refusal(kTexts, json::array({"a", "b", "c"})),
             Contains("3 texts are given, at most 2 are expected"));
  CHECK_THAT(refusal(kTexts, json::array()), Contains("0 texts are given, at least one is"));
}

TEST_CASE("Parsed values become inputs of their kind", "[inputs]") {
  CHECK(std::get<int64_t>(to_input(of(InputKind::kInteger), 4)) == 4);
  CHECK(std::get<double>(to_input(of(InputKind::kReal), 4)) == 4.0);
  CHECK(std::get<bool>(to_input(of(InputKind::kFlag), true)));
  CHECK(std::get<std::string>(to_input(of(InputKind::kText), "a")) == "a");
  CHECK(std::get<std::vector<std::string>>(to_input(kTexts, json::array({"a", "b"}))) ==
        std::vector<std::string>{"a", "b"});
}

TEST_CASE("An input holds for the variants that its glob matches", "[inputs]") {
  InputSpec input = of(InputKind::kText);
  CHECK(holds_for(input, "plain"));
  CHECK(holds_for(input, ""));
  input.variants = "*-edit*";
  CHECK(holds_for(input, "a-edit-2"));
  CHECK(!holds_for(input, "plain"));
  CHECK(!holds_for(input, ""));
  CHECK_THAT(not_taken(input, "plain").what(), Contains("\"plain\" does not take it"));
  CHECK_THAT(not_taken(input, "").what(), Contains("only the variant \"*-edit*\" takes it"));
}

TEST_CASE("Contents tell values apart and nothing else", "[inputs]") {
  const at::Tensor zeros = at::zeros({2, 2});
  const std::vector<InputValue> values = {
      std::string(),
      std::string("a"),
      std::vector<std::string>{},
      std::vector<std::string>{"a"},
      std::vector<std::string>{"a", ""},
      int64_t{0},
      int64_t{1},
      0.0,
      1.0,
      false,
      true,
      zeros,
      at::ones({2, 2}),
      at::zeros({4}),
      at::zeros({2, 2}, at::kInt),
      std::vector<at::Tensor>{zeros},
      std::vector<at::Tensor>{zeros, zeros},
      std::vector<int64_t>{1, 0},
      std::vector<double>{1.0, 0.0},
      std::vector<double>{1.0},
  };
  std::set<std::string> seen;
  for (const InputValue& value : values) CHECK(seen.insert(content_of({{"x", value}})).second);
  CHECK(seen.insert(content_of({})).second);
  CHECK(seen.insert(content_of({{"y", values[0]}})).second);
  CHECK(seen.contains(content_of({{"x", at::zeros({2, 4}).slice(1, 0, 4, 2)}})));
}

TEST_CASE("An absent image is the first or the last frame of the target", "[inputs]") {
  InputSpec input = kImage;
  input.when_absent = WhenAbsent::kFirstFrame;
  const at::Tensor image = at::rand({3, 4, 4}), clip = at::rand({3, 5, 4, 4});
  CHECK(at::equal(std::get<at::Tensor>(when_absent(input, image)), image));
  CHECK(at::equal(std::get<at::Tensor>(when_absent(input, clip)), clip.select(1, 0)));
  input.when_absent = WhenAbsent::kLastFrame;
  CHECK(at::equal(std::get<at::Tensor>(when_absent(input, clip)), clip.select(1, 4)));
  input.max_count = 2;
  CHECK(std::get<std::vector<at::Tensor>>(when_absent(input, clip)).size() == 1);
}

TEST_CASE("Numbers may be lists", "[inputs]") {
  const InputSpec reals = {.name = "x", .kind = InputKind::kReal, .min_count = 2, .max_count = 3};
  const InputSpec integers = {.name = "x", .kind = InputKind::kInteger, .max_count = 3};
  CHECK(parse_value(reals, "1, 2.5") == json::array({1.0, 2.5}));
  CHECK(parse_value(reals, "[1, 2.5]") == json::array({1.0, 2.5}));
  CHECK(parse_value(reals, json::array({1, 2.5})) == json::array({1.0, 2.5}));
  CHECK(parse_value(reals, json::array({"1,2", "3"})) == json::array({1.0, 2.0, 3.0}));
  CHECK(parse_value(integers, 4) == json::array({4}));
  CHECK(parse_value(integers, "-1,0") == json::array({-1, 0}));
  CHECK_THAT(refusal(reals, 1), Contains("1 number is given, at least 2 are expected"));
  CHECK_THAT(refusal(integers, "1,2,3,4"), Contains("4 numbers are given, at most 3"));
  CHECK_THAT(refusal(integers, "1,2.5"), Contains("\"2.5\" is no whole number"));
  CHECK_THAT(refusal(integers, "[1,"), Contains("is no list of numbers"));
  CHECK_THAT(refusal(integers, "[1;2]"), Contains("is no list of numbers"));
  CHECK_THAT(refusal(reals, json::array({json::array({1}), 2})), Contains("[1] is no number"));
  CHECK(std::get<std::vector<double>>(to_input(reals, json::array({1.0, 2.5}))) ==
        std::vector<double>{1.0, 2.5});
  CHECK(std::get<std::vector<int64_t>>(to_input(integers, json::array({4}))) ==
        std::vector<int64_t>{4});
}

TEST_CASE("A text among choices is told with the nearest", "[inputs]") {
  constexpr std::string_view kChoices[] = {"left", "right"};
  InputSpec input = of(InputKind::kText);
  input.choices = kChoices;
  CHECK(parse_value(input, "left") == "left");
  const auto error = [&](const json& given) {
    try {
      parse_value(input, given);
    } catch (const Error& refused) {
      return std::string(refused.what());
    }
    return std::string();
  };
  CHECK_THAT(error("rihgt"),
             Contains("\"rihgt\" is not one of \"left\", \"right\"; did you mean right?"));
  CHECK_THAT(error(""), Contains("is not one of \"left\", \"right\""));
  input.max_count = 2;
  CHECK(parse_value(input, json::array({"left", "left"})).size() == 2);
  CHECK_THAT(error(json::array({"left", "up"})), Contains("\"up\" is not one of"));
}

TEST_CASE("Lists that belong together are equally long", "[inputs]") {
  const InputSpec specs[] = {
      kTexts, {.name = "scales", .kind = InputKind::kReal, .max_count = 9, .paired_with = "texts"}};
  json values = json::object();
  const auto wrong = [&] {
    return unpaired(specs, [&](std::string_view name) -> const json* {
      const auto found = values.find(name);
      return found == values.end() ? nullptr : &*found;
    });
  };
  CHECK(wrong().empty());
  values["texts"] = {"a", "b"};
  CHECK(wrong().empty());
  values["scales"] = {1.0, 2.0};
  CHECK(wrong().empty());
  values["scales"] = {1.0};
  REQUIRE(wrong().size() == 1);
  CHECK(wrong().front().first->name == "scales");
  CHECK_THAT(wrong().front().second.what(), Contains("1 number is given, and 2 of texts"));
  values.erase("texts");
  CHECK_THAT(wrong().front().second.what(), Contains("1 number is given, and none of texts"));
}

TEST_CASE("Lists that need each other are told once", "[inputs]") {
  InputSpec texts = kTexts;
  texts.paired_with = "scales";
  const InputSpec specs[] = {
      texts, {.name = "scales", .kind = InputKind::kReal, .max_count = 9, .paired_with = "texts"}};
  const json values = {{"texts", {"a", "b"}}, {"scales", {1.0}}};
  const auto wrong =
      unpaired(specs, [&](std::string_view name) { return &values.at(std::string(name)); });
  REQUIRE(wrong.size() == 1);
  CHECK_THAT(wrong.front().second.what(), Contains("2 texts are given, and 1 of scales"));
}

TEST_CASE("A text among others is not empty", "[inputs]") {
  CHECK_THROWS_WITH(parse_value(kTexts, json::array({"a", " "})), Contains("text 2 is empty"));
}

TEST_CASE("Files are images, clips or sounds", "[inputs]") {
  for (const auto kind : {InputKind::kImage, InputKind::kMask, InputKind::kVideo,
                          InputKind::kVideoMask, InputKind::kAudio})
    CHECK(is_file(kind));
  CHECK((is_clip(InputKind::kVideo) && is_clip(InputKind::kVideoMask)));
  CHECK_FALSE((is_clip(InputKind::kImage) || is_clip(InputKind::kAudio)));
  CHECK(
      (is_mask(InputKind::kMask) && is_mask(InputKind::kVideoMask) && !is_mask(InputKind::kImage)));
  CHECK((is_sound(InputKind::kAudio) && !is_sound(InputKind::kVideo)));
}

TEST_CASE("Flags follow kind and count", "[inputs]") {
  constexpr std::string_view kChoices[] = {"left", "right"};
  const InputSpec specs[] = {kImage,
                             kImages,
                             kTexts,
                             of(InputKind::kReal),
                             {.name = "reals", .kind = InputKind::kReal, .max_count = 2},
                             {.name = "integers", .kind = InputKind::kInteger, .max_count = 2},
                             {.name = "way", .kind = InputKind::kText, .choices = kChoices}};
  const auto flags = flags_of_inputs(specs, InputUse::kGenerate);
  REQUIRE(flags.size() == 7);
  CHECK((flags[4].kind == flags::FlagKind::kReals && flags[4].repeated));
  CHECK((flags[5].kind == flags::FlagKind::kIntegers && flags[5].repeated));
  CHECK(flags[6].choices == std::vector<std::string>{"left", "right"});
  CHECK((flags[0].value_name == "FILE" && !flags[0].repeated));
  CHECK((flags[1].value_name == "FILE" && flags[1].repeated));
  CHECK((flags[2].value_name.empty() && flags[2].repeated));
  CHECK(flags[3].kind == flags::FlagKind::kReal);
  CHECK(kind_name(kImages) == "images");
  CHECK(kind_name(kTexts) == "texts");
  CHECK(kind_name(of(InputKind::kFlag)) == "flag");
  CHECK(kind_name(of(InputKind::kVideoMask)) == "video mask");
}

}  // namespace
}  // namespace atelier::inputs
