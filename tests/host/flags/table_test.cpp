#include "host/flags/table.h"

#include "atelier/error.h"

#include "host/flags/process_flags.h"
#include "support/catch.h"

namespace atelier::flags {
namespace {

enum class Color { kRed, kBlue };

struct Variables {
  std::string name = "none", word = "a";
  std::vector<std::string> parts = {"x", "y"};
  int64_t count = 3;
  int workers = 2;
  std::optional<int64_t> steps;
  double rate = 1e-4;
  std::optional<double> alpha;
  bool is_on = true, is_host = false;
  uint64_t seed = 42;
  Color color = Color::kBlue;
};

Table table_of(Variables& v) {
  Table table;
  table.group("First")
      .text("name", v.name, "what it is called", "FILE")
      .word("word", v.word, {"a", "b"}, "one of two")
      .list("parts", v.parts, "several")
      .number("count", v.count, "how many", between(1, 5))
      .number("workers", v.workers, "threads")
      .number("steps", v.steps, "at most", at_least(1))
      .group("Second")
      .number("rate", v.rate, "how fast", kPositive)
      .number("alpha", v.alpha, "of the rate", kPartBelowOne)
      .flag("is_on", v.is_on, "whether")
      .flag("is_host", v.is_host, "where")
      .also("on_host", v.is_host, "the same")
      .seed("seed", v.seed, "of noise", at_least(0))
      .choice("color", v.color, {{"red", Color::kRed}, {"blue", Color::kBlue}}, "of the sky");
  return table;
}

ParsedFlags parse(const Table& table, const std::vector<std::string>& arguments) {
  CommandSpec command;
  command.flags = table.specs();
  return parse_flags(command, arguments);
}

std::string problem_of(const std::vector<std::string>& arguments) {
  Variables variables;
  const Table table = table_of(variables);
  report::Problems problems;
  table.read(parse(table, arguments), problems);
  try {
    problems.throw_if_any();
  } catch (const Error& error) {
    return error.message();
  }
  return "";
}

}  // namespace

TEST_CASE("Presets are what the variables hold", "[table]") {
  Variables variables;
  std::string presets;
  for (const FlagSpec& spec : table_of(variables).specs())
    presets += spec.name + "=" + spec.preset.value_or("nothing") + " ";
  CHECK(presets ==
        "name=none word=a parts=x,y count=3 workers=2 steps=nothing rate=1e-04 alpha=nothing "
        "is_on=true is_host=false on_host=false seed=42 color=blue ");
}

TEST_CASE("Rows say kind, choices, place in the help and what stands for the value", "[table]") {
  Variables variables;
  const std::vector<FlagSpec> specs = table_of(variables).specs();
  CHECK(specs[0].value_name == "FILE");
  CHECK(specs[0].group == "First");
  CHECK(specs[1].choices == std::vector<std::string>{"a", "b"});
  CHECK(specs[3].kind == FlagKind::kInteger);
  CHECK(specs[5].kind == FlagKind::kInteger);
  CHECK(specs[6].kind == FlagKind::kReal);
  CHECK(specs[6].group == "Second");
  CHECK(specs[7].kind == FlagKind::kReal);
  CHECK(specs.back().choices == std::vector<std::string>{"red", "blue"});
}

TEST_CASE("Values go where their rows say", "[table]") {
  Variables v;
  const Table table = table_of(v);
  report::Problems problems;
  table.read(parse(table, {"--name",        "n",         "--word",  "b",
                           "--parts",       "p",         "--count", "4",
                           "--workers",     "7",         "--steps", "9",
                           "--rate",        "0.5",       "--alpha", "0.25",
                           "--is_on=false", "--on_host", "--seed",  "18446744073709551615",
                           "--color",       "red"}),
             problems);
  CHECK(problems.empty());
  CHECK(v.name == "n");
  CHECK(v.word == "b");
  CHECK(v.parts == std::vector<std::string>{"p"});
  CHECK(v.count == 4);
  CHECK(v.workers == 7);
  CHECK(v.steps == 9);
  CHECK(v.rate == 0.5);
  CHECK(v.alpha == 0.25);
  CHECK(!v.is_on);
  CHECK(v.is_host);
  CHECK(v.seed == UINT64_MAX);
  CHECK((v.color == Color::kRed));
}

TEST_CASE("Without flags the variables stay as they are", "[table]") {
  Variables v;
  const Table table = table_of(v);
  report::Problems problems;
  table.read(parse(table, {}), problems);
  CHECK(problems.empty());
  CHECK(v.name == "none");
  CHECK(v.parts == std::vector<std::string>{"x", "y"});
  CHECK(v.count == 3);
  CHECK(!v.steps);
  CHECK(v.rate == 1e-4);
  CHECK(v.is_on);
  CHECK(!v.is_host);
  CHECK(v.seed == 42);
  CHECK((v.color == Color::kBlue));
}

TEST_CASE("Kernels are chosen by a word, or by the names that atelier tune has", "[table]") {
  const auto chosen = [](const std::string& text) {
    ProcessSettings settings;
    Table table;
    add_process_flags(table, settings);
    report::Problems problems;
    table.read(parse(table, {"--kernels", text}), problems);
    problems.throw_if_any();
    return settings.kernels;
  };
  using Names = std::vector<std::string>;
  CHECK((chosen("fused").form == ops::Kernels::kFused));
  CHECK((chosen("composed").form == ops::Kernels::kComposed));
  CHECK_FALSE(chosen("auto").named.has_value());
  CHECK(chosen("none").named == Names{});
  CHECK(chosen("swiglu,norm_rope").named == Names{"swiglu", "norm_rope"});
  CHECK(chosen("cudnn_attention_128").named == Names{"cudnn_attention_128"});
  for (const std::string text : {"auto", "fused", "composed", "none", "swiglu,norm_rope"}) {
    CHECK(kernels_text(chosen(text)) == text);
    CHECK((text == "fused" || text == "composed" || chosen(text).form == ops::Kernels::kAuto));
  }
}

TEST_CASE("Numbers out of range are told with the range", "[table]") {
  CHECK(problem_of({"--count", "5", "--rate", "3", "--alpha", "0"}).empty());
  CHECK(problem_of({"--count", "0"}) == "--count: 0 is less than 1");
  CHECK(problem_of({"--count", "6"}) == "--count: 6 is more than 5");
  CHECK(problem_of({"--steps", "-2"}) == "--steps: -2 is less than 1");
  CHECK(problem_of({"--seed", "-1"}) == "--seed: -1 is less than 0");
  CHECK(problem_of({"--rate", "0"}) == "--rate: 0 is outside (0, inf)");
  CHECK(problem_of({"--alpha", "1"}) == "--alpha: 1 is outside [0, 1)");
  CHECK(problem_of({"--alpha", "-0.5"}) == "--alpha: -0.5 is outside [0, 1)");
}

TEST_CASE("A preset stands in for a number out of range", "[table]") {
  Variables variables;
  const Table table = table_of(variables);
  report::Problems problems;
  table.read(parse(table, {"--count", "6", "--rate", "-1", "--workers", "4"}), problems);
  CHECK(problems.size() == 2);
  CHECK(variables.count == 3);
  CHECK(variables.rate == 1e-4);
  CHECK(variables.workers == 4);
}

}  // namespace atelier::flags
