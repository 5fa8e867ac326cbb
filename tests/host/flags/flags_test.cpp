#include "host/flags/flags.h"

#include <algorithm>
#include <sstream>

#include "host/inputs/input_flags.h"
#include "host/model/model_flags.h"
#include "host/report/error_line.h"
#include "host/report/problems.h"
#include "host/report/text.h"
#include "support/files.h"
#include "support/toy_family.h"

using namespace atelier;
using namespace atelier::flags;
using test::expect_error;

namespace {

CommandSpec command() {
  CommandSpec spec{"paint", "Paints."};
  spec.flags = {
      {.name = "prompt", .help = "what to paint", .required = true},
      {.name = "num_inference_steps", .kind = FlagKind::kInteger, .help = "steps", .preset = "50"},
      {.name = "cfg_scale", .kind = FlagKind::kReal, .help = "guidance", .preset = "4"},
      {.name = "seed", .kind = FlagKind::kInteger, .help = "of the noise"},
      {.name = "tiled", .kind = FlagKind::kFlag, .help = "in tiles", .preset = "false"},
      {.name = "lora", .help = "added", .repeated = true},
      {.name = "layers", .kind = FlagKind::kList, .help = "which", .preset = "a,b"},
      {.name = "options", .kind = FlagKind::kJson, .help = "more"},
      {.name = "dtype", .help = "of weights", .preset = "auto", .choices = {"auto", "float32"}}};
  return spec;
}

ParsedFlags parse(const std::vector<std::string>& arguments, const CommandSpec& spec = command()) {
  return parse_flags(spec, arguments);
}

}  // namespace

TEST_CASE("Values follow their flag or an equals sign", "[flags]") {
  const ParsedFlags flags =
      parse({"--prompt", "a red cat", "--num_inference_steps=7", "--cfg_scale", "-1.5", "--seed",
             "-3", "--tiled", "--lora", "a", "--lora=b=c", "--options", R"({"a": [1, 2]})"});
  CHECK(flags.text("prompt") == "a red cat");
  CHECK(flags.integer("num_inference_steps") == 7);
  CHECK(flags.real("cfg_scale") == -1.5);
  CHECK(flags.integer("seed") == -3);
  CHECK(flags.flag("tiled"));
  CHECK(flags.texts("lora") == std::vector<std::string>{"a", "b=c"});
  CHECK(flags.json("options")["a"][1] == 2);
  CHECK(flags.text("dtype") == "auto");
  CHECK(!flags.is_given("dtype"));
  CHECK(flags.is_given("seed"));
  CHECK_THROWS_AS(flags.text("no_such"), Error);
}

TEST_CASE("Whole numbers may be several, between commas", "[flags]") {
  CommandSpec spec{"cut", "Cuts."};
  spec.flags = {{.name = "lengths", .kind = FlagKind::kIntegers, .help = "of pieces"}};
  using Numbers = std::vector<int64_t>;
  CHECK(parse({"--lengths", "81"}, spec).integers("lengths") == Numbers{81});
  CHECK(parse({"--lengths", "1, 25,+45"}, spec).integers("lengths") == Numbers{1, 25, 45});
  CHECK(parse({"--lengths", "[1, 25]"}, spec).integers("lengths") == Numbers{1, 25});
  CHECK(parse({}, spec).integers("lengths").empty());
  expect_error(ErrorCode::kInvalidArgument, {"--lengths: \"2.5\" is no whole number"}, [&] {
    parse({"--lengths", "1,2.5"}, spec);
  });
  for (const char* wrong : {"", "1,", "[]", "[1"}) {
    CAPTURE(wrong);
    expect_error(ErrorCode::kInvalidArgument, {"is no whole number"}, [&] {
      parse({"--lengths", wrong}, spec);
    });
  }
  CHECK(help_text(spec).find("--lengths N,N") != std::string::npos);
}

TEST_CASE("The flags that are typed most have one letter", "[flags]") {
  const ParsedFlags flags = parse({"-p", "a red cat", "-S", "-3", "-C", "-1.5", "-s", "7"});
  CHECK(flags.text("prompt") == "a red cat");
  CHECK(flags.integer("seed") == -3);
  CHECK(flags.real("cfg_scale") == -1.5);
  CHECK(flags.integer("num_inference_steps") == 7);
  CHECK(peek_flag(std::vector<std::string>{"-m", "a"}, "model_paths") == "a");
  CHECK(help_text(command()).find("what to paint (required)") == std::string::npos);
  CHECK(help_text(command()).find("what to paint (or -p) (required)") != std::string::npos);
  using Code = ErrorCode;
  expect_error(Code::kInvalidArgument, {"--prompt: a value is missing"}, [] {
    parse({"-p", "-s", "3"});
  });
  expect_error(Code::kInvalidArgument, {"--seed: given twice"}, [] {
    parse({"-p", "x", "-S", "1", "--seed", "2"});
  });
  // Values of a list that is given twice are one list, of which nothing is missing.
  const CommandSpec drawing = {
      "draw",
      "Draws.",
      {{.name = "model_paths", .help = ""}, {.name = "ids", .kind = FlagKind::kList, .help = ""}}};
  report::Problems problems;
  const std::vector<std::string> words = {"--model_paths", "a", "--ids", "1",
                                          "--model_paths", "b", "--ids", "2"};
  const ParsedFlags parsed = parse_flags(drawing, words, {}, problems);
  CHECK(parsed.text("model_paths") == "a,b");
  CHECK(parsed.list("ids") == std::vector<std::string>{"1", "2"});
  expect_error(
      Code::kInvalidArgument,
      {"--model_paths: given twice; give it once, with commas between: a,b", "--ids: given"},
      [&] { problems.throw_if_any(); });
  // A command without the flag has no such name.
  expect_error(Code::kInvalidArgument, {"\"-o\" is no flag of paint"}, [] { parse({"-o", "x"}); });
}

TEST_CASE("Choices by component are checked one by one", "[flags]") {
  CommandSpec spec = command();
  spec.flags.back().by_component = true;
  for (const char* right : {"auto", "float32", "auto,vae=float32", "vae=float32,dit=auto"})
    CHECK(parse({"--prompt", "x", "--dtype", right}, spec).text("dtype") == right);
  for (const char* wrong : {"flaot32", "auto,vae=flaot32", "vae=flaot32,auto"}) {
    INFO(wrong);
    expect_error(ErrorCode::kInvalidArgument, {"\"flaot32\"", "did you mean float32?"}, [&] {
      parse({"--prompt", "x", "--dtype", wrong}, spec);
    });
  }
  CHECK_THROWS_AS(parse({"--prompt", "x", "--dtype", "vae=float32"}), Error);
}

TEST_CASE("A value may be empty, look like a flag, or stand for false", "[flags]") {
  CHECK(parse({"--prompt="}).text("prompt").empty());
  CHECK(parse({"--prompt", ""}).text("prompt").empty());
  CHECK(parse({"--prompt", "--not a flag"}).text("prompt") == "--not a flag");
  CHECK(parse({"--prompt", "-"}).text("prompt") == "-");
  CHECK(parse({"--prompt=--seed"}).text("prompt") == "--seed");
  CHECK(!parse({"--prompt=x", "--tiled", "false"}).flag("tiled"));
  CHECK(!parse({"--prompt=x", "--tiled=0"}).flag("tiled"));
  CHECK(parse({"--tiled", "--prompt=x"}).flag("tiled"));
  CHECK(!parse({"--prompt=x"}).find_integer("seed").has_value());
}

TEST_CASE("Values of a file stand below those of the command line", "[flags]") {
  const std::vector<GivenValue> below = {
      {"seed", "7", "run.toml:1: seed"},           {"seed", "8", "old.toml:1: seed"},
      {"cfg_scale", "2", "run.toml:2: cfg_scale"}, {"lora", "a", "run.toml:4: lora"},
      {"lora", "b", "run.toml:4: lora"},           {"prompt", "cat", "run.toml:3: prompt"}};
  report::Problems problems;
  const std::vector<std::string> arguments = {"--cfg_scale", "3"};
  const ParsedFlags flags = parse_flags(command(), arguments, below, problems);
  CHECK(problems.empty());
  CHECK(flags.integer("seed") == 7);
  CHECK(flags.real("cfg_scale") == 3);
  CHECK(flags.text("prompt") == "cat");
  CHECK(flags.texts("lora") == std::vector<std::string>{"a", "b"});
  CHECK(flags.is_given("seed"));
  CHECK(flags.place("seed") == "run.toml:1: seed");
  CHECK(flags.place("cfg_scale") == "--cfg_scale");
  CHECK(flags.place("dtype") == "--dtype");
}

TEST_CASE("A wrong value is told by its place, and the preset stays", "[flags]") {
  const std::vector<GivenValue> below = {{"cfg_scale", "much", "run.toml:2: cfg_scale"}};
  report::Problems problems;
  const std::vector<std::string> arguments = {"--prompt", "x", "--num_inference_steps", "many"};
  const ParsedFlags flags = parse_flags(command(), arguments, below, problems);
  CHECK(problems.size() == 2);
  CHECK(flags.real("cfg_scale") == 4);
  CHECK(flags.integer("num_inference_steps") == 50);
  expect_error(ErrorCode::kInvalidArgument,
               {"--num_inference_steps: \"many\" is no whole number",
                "run.toml:2: cfg_scale: \"much\" is no number"},
               [&] { problems.throw_if_any(); });
}

TEST_CASE("A list is cut at its commas", "[flags]") {
  using List = std::vector<std::string>;
  CHECK(parse({"--prompt=x"}).list("layers") == List{"a", "b"});
  CHECK(parse({"--prompt=x", "--layers", " to_q, to_k ,,to_out.0"}).list("layers") ==
        List{"to_q", "to_k", "to_out.0"});
  CHECK(parse({"--prompt=x", "--layers="}).list("layers").empty());
}

TEST_CASE("A list may be JSON, whose texts may hold commas", "[flags]") {
  using List = std::vector<std::string>;
  CHECK(parse({"--prompt=x", "--layers", R"(["a","b"])"}).list("layers") == List{"a", "b"});
  CHECK(parse({"--prompt=x", R"(--layers=["a, b", ["c"]])"}).list("layers") == List{"a, b", "c"});
  expect_error(ErrorCode::kInvalidArgument, {"--layers: ", "is no JSON list of texts"}, [] {
    parse({"--prompt=x", "--layers", "[a, b]"});
  });
}

TEST_CASE("A seed has 64 bits, and -1 stands for none", "[flags]") {
  CommandSpec spec = command();
  spec.flags.push_back({.name = "noise", .kind = FlagKind::kSeed, .help = "seed", .preset = "-1"});
  const auto seed = [&](const std::string& text) {
    return parse({"--prompt=x", "--noise", text}, spec).seed("noise");
  };
  CHECK(seed("18446744073709551615") == UINT64_MAX);
  CHECK(seed("9223372036854775808") == uint64_t{1} << 63);
  CHECK(!seed("-1"));
  CHECK(!parse({"--prompt=x"}, spec).seed("noise"));
  for (const char* text : {"18446744073709551616", "-2", "1.5", "", "0x10"})
    expect_error(ErrorCode::kInvalidArgument, {"--noise: ", "is no seed"}, [&] { seed(text); });
}

TEST_CASE("Flags and words of other programs are answered with those of this one", "[flags]") {
  CommandSpec spec = command();
  spec.others = {{"guidance_scale", true, "use --cfg_scale"},
                 {"compile", false, "leave it out", "a compiler"}};
  expect_error(ErrorCode::kInvalidArgument,
               {"4 mistakes", "--guidance_scale is no flag of paint; use --cfg_scale",
                "--compile is a flag of a compiler; leave it out",
                "--dtype: \"fp32\" is not one of \"auto\", \"float32\"; did you mean float32?",
                "--sead is not known to paint; did you mean --seed?"},
               [&] {
                 parse({"--prompt=x", "--guidance_scale", "3", "4", "--compile", "--dtype", "fp32",
                        "--sead", "1"},
                       spec);
               });
  CHECK(nearest_choice("bf16", {"auto", "bfloat16"}) == "bfloat16");
  CHECK(nearest_choice("bf16", {"fp8", "int8"}).empty());
  CHECK(nearest_choice("cosin", {"linear", "cosine"}) == "cosine");
}

TEST_CASE("Every mistake is named, with the flag that was meant", "[flags]") {
  expect_error(ErrorCode::kInvalidArgument,
               {"6 mistakes", "--promt is not known to paint; did you mean --prompt?",
                "--steps is not known", "did you mean --num_inference_steps?",
                "--cfg_scale: \"much\" is no number",
                "--dtype: \"int4\" is not one of \"auto\", \"float32\"",
                "--options: ", "--prompt is missing"},
               [] {
                 parse({"--promt", "cat", "--steps", "5", "--cfg_scale", "much", "--dtype=int4",
                        "--options", "{"});
               });
  expect_error(ErrorCode::kInvalidArgument, {"--seed: a value is missing"}, [] {
    parse({"--prompt=x", "--seed"});
  });
  expect_error(ErrorCode::kInvalidArgument, {"--seed: a value is missing"}, [] {
    parse({"--seed", "--prompt", "x"});
  });
  expect_error(ErrorCode::kInvalidArgument, {"--seed: given twice"}, [] {
    parse({"--prompt=x", "--seed", "1", "--seed", "2"});
  });
  expect_error(ErrorCode::kInvalidArgument, {"\"99999999999999999999\" is no whole number"}, [] {
    parse({"--prompt=x", "--seed", "99999999999999999999"});
  });
  for (const char* text : {"1.5", "0x10", "1 ", "", "one"})
    expect_error(ErrorCode::kInvalidArgument, {"is no whole number"}, [&] {
      parse({"--prompt=x", "--seed", text});
    });
  for (const char* text : {"nan", "inf", "1e999", "1,5", ""})
    expect_error(ErrorCode::kInvalidArgument, {"is no number"}, [&] {
      parse({"--prompt=x", "--cfg_scale", text});
    });
  expect_error(ErrorCode::kInvalidArgument, {"takes flags only"}, [] {
    parse({"--prompt=x", "cat"});
  });
  expect_error(ErrorCode::kInvalidArgument, {"\"-x\""}, [] { parse({"--prompt=x", "-x", "3"}); });
  expect_error(ErrorCode::kInvalidArgument, {R"(\x1b)"}, [] {
    parse({"--prompt=x", "--\x1b[31m", "3"});
  });
}

TEST_CASE("Arguments without a flag are counted", "[flags]") {
  CommandSpec spec = command();
  spec.flags.front().required = false;
  spec.positional = "FILE...";
  spec.min_positional = 1;
  spec.max_positional = 2;
  CHECK(parse({"a", "--seed", "3", "b"}, spec).positional() == std::vector<std::string>{"a", "b"});
  CHECK(parse({"--tiled", "a"}, spec).positional() == std::vector<std::string>{"a"});
  CHECK(parse({"--", "--seed", "-x"}, spec).positional() ==
        std::vector<std::string>{"--seed", "-x"});
  expect_error(ErrorCode::kInvalidArgument, {"FILE... is missing"}, [&] { parse({}, spec); });
  expect_error(ErrorCode::kInvalidArgument, {"\"c\" is one too many"}, [&] {
    parse({"a", "b", "c"}, spec);
  });
}

TEST_CASE("A flag can be read before the others are known", "[flags]") {
  const std::vector<std::string> arguments = {"--unknown", "3",          "--plugin",
                                              "a",         "--plugin=b", "--help"};
  CHECK(peek_flag(arguments, "plugin") == "b");
  CHECK(!peek_flag(arguments, "plug").has_value());
  CHECK(wants_help(arguments));
}

TEST_CASE("A family's inputs become flags", "[flags]") {
  const test::ToyFamily family;
  const std::vector<FlagSpec> flags = inputs::flags_of_inputs(family.inputs(), InputUse::kGenerate);
  REQUIRE(flags.size() == 3);  // the training input is none
  CHECK(flags[0].name == "prompt");
  CHECK(!flags[0].required);
  CHECK(flags[1].kind == FlagKind::kReal);
  CHECK(flags[2].repeated);
  CHECK_THAT(flags[2].help, Catch::Contains("edit*"));
  CHECK(inputs::flags_of_inputs(family.inputs(), InputUse::kGenerate, flags).empty());
  CHECK(inputs::flags_of_inputs(family.inputs(), InputUse::kTrain).size() == 3);
}

TEST_CASE("Help lists every flag with its preset", "[flags]") {
  const std::string help = help_text(command());
  for (const char* part :
       {"atelier paint", "--prompt TEXT", "(required)", "--num_inference_steps N", "[50]",
        "--dtype auto|float32", "(may be repeated)"})
    CHECK_THAT(help, Catch::Contains(part));
}

TEST_CASE("Help has no line of more than a hundred columns", "[flags]") {
  CommandSpec spec = command();
  std::string words;
  for (int i = 0; i < 40; ++i) words += "words é ";
  spec.summary = words + "\n" + words;
  spec.flags.push_back({.name = "long", .help = words, .value_name = "FILE"});
  FlagSpec many = {.name = "sampling", .help = "how"};
  for (int i = 0; i < 20; ++i) many.choices.push_back("choice_" + std::to_string(i));
  spec.flags.push_back(many);
  std::stringstream help(help_text(spec));
  size_t count = 0;
  for (std::string line; std::getline(help, line); ++count) {
    const auto columns = std::count_if(line.begin(), line.end(), [](char c) {
      return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
    });
    CHECK(columns <= 100);
    CHECK(!line.ends_with(' '));
  }
  CHECK(count > 25);
  CHECK_THAT(help_text(spec), Catch::Contains("--long FILE"));
  CHECK_THAT(help_text(spec), Catch::Contains("choice_19\n"));
}

TEST_CASE("Hints are globs with a component and a variant", "[flags]") {
  const auto hints = model::parse_hints(
      nlohmann::json::parse(R"({"*high*": {"component": "dit", "variant": "v"}})"));
  CHECK(hints.at("*high*").variant == "v");
  for (const char* text :
       {"[]", R"({"a": 1})", R"({"a": {"color": "b"}})", R"({"a": {"variant": 2}})"})
    expect_error(ErrorCode::kInvalidArgument, {"--model_hints"},
                 [&] { model::parse_hints(nlohmann::json::parse(text)); });
}

TEST_CASE("An error is one line of at most 400 bytes", "[errors]") {
  CHECK(report::error_line(Error(ErrorCode::kNotFound, "a: b", "do c")) ==
        "error: a: b; do c [NOT_FOUND]\n");
  CHECK(report::error_line(Error(ErrorCode::kDataLoss, "a", "", "ST_X")) == "error: a [ST_X]\n");
  CHECK(report::error_line(Error(ErrorCode::kDataLoss, "a", "", "ST_X"), "warning") ==
        "warning: a [ST_X]\n");
  CHECK(report::error_line(Error(ErrorCode::kInvalidArgument, "2 mistakes:\n  one\n  two")) ==
        "error: 2 mistakes: [INVALID_ARGUMENT]\n  one\n  two\n");
  std::string message;
  for (int i = 0; i < 300; ++i) message += "中";
  const std::string line = report::error_line(Error(ErrorCode::kNotFound, message, "hint"));
  const size_t end = line.find('\n');
  CHECK(end <= 400);
  CHECK(line.substr(0, end).ends_with("… [NOT_FOUND]"));
  CHECK_THAT(line.substr(end), Catch::Contains(message + "; hint"));
}

TEST_CASE("An error does not steer the terminal, and none is endless", "[errors]") {
  CHECK(report::error_line(
            Error(ErrorCode::kNotFound, "\033[2Ja\x07.so: \x7f\xff\n  b\x1b", "c\rd\ne")) ==
        "error: \\x1b[2Ja\\x07.so: \\x7f\\xff; c\\rd e [NOT_FOUND]\n  b\\x1b\n");
  const std::string line = report::error_line(Error(
      ErrorCode::kInvalidArgument, "f:1: seed: " + std::string(1'000'000, '9') + " is wrong"));
  CHECK(line.size() <= 2500);
  CHECK_THAT(line, Catch::Contains("9…9"));
  CHECK(line.ends_with("9 is wrong\n"));
}

TEST_CASE("Several problems become one error, one problem stays itself", "[errors]") {
  report::Problems none;
  none.throw_if_any();
  report::Problems one;
  one.add("a: wrong", "mend it", ErrorCode::kNotFound);
  expect_error(ErrorCode::kNotFound, {"a: wrong; mend it [NOT_FOUND]"},
               [&] { one.throw_if_any(); });
  one.collect([] { throw Error(ErrorCode::kDataLoss, "b: broken"); });
  expect_error(ErrorCode::kNotFound, {"2 mistakes:", "\n  a: wrong; mend it", "\n  b: broken"},
               [&] { one.throw_if_any(); });
  CHECK(report::nearest_name("--hight", {"height", "width"}) == "height");
  CHECK(report::nearest_name("num-images", {"num_images", "image"}) == "num_images");
  CHECK(report::nearest_name("zzz", {"height", "width"}).empty());
  CHECK(report::nearest_name("trian", {"plan", "train"}) == "train");
  CHECK(report::nearest_name("", {"a"}).empty());
  CHECK(report::bytes_text(1) == "1 byte");
  CHECK(report::bytes_text(1536) == "1.50 KiB");
  CHECK(report::bytes_text(uint64_t{41} << 30) == "41.0 GiB");
  CHECK(report::list_names({"a", "b", "c"}, 2) == "\"a\", \"b\" and 1 more");

  one.add("a: wrong", "mend it");
  CHECK(one.size() == 2);  // it is told once
  report::Problems many;
  for (int i = 0; i < 250; ++i) many.add(std::to_string(i) + ": wrong");
  expect_error(ErrorCode::kInvalidArgument, {"250 mistakes:", "\n  199: wrong\n  and 50 more"},
               [&] { many.throw_if_any(); });

  report::Problems more;
  more.add("c: late");
  more.collect([&] { one.throw_if_any(); });
  REQUIRE(more.size() == 3);
  expect_error(ErrorCode::kInvalidArgument, {"3 mistakes:", "\n  c: late", "\n  a: wrong; mend it"},
               [&] { more.throw_if_any(); });
}
