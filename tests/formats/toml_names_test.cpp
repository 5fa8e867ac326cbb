#include "formats/toml_names.h"

#include <catch2/catch.hpp>

#include "formats/parse_error.h"

namespace atelier::formats {

namespace {

// "a.a.a" of so many parts.
std::string name_of(size_t parts, const std::string& part = "a") {
  std::string name = part;
  while (--parts > 0) name += "." + part;
  return name;
}

// The line of the name that is refused; 0: none is.
uint64_t refused_line(const std::string& text, const std::string& tag = "TOML_DEPTH") {
  try {
    check_toml_names(text);
    return 0;
  } catch (const ParseError& error) {
    CHECK(error.tag == tag);
    return error.line.value_or(0);
  }
}

}  // namespace

TEST_CASE("A name of many parts is refused wherever TOML has names", "[toml]") {
  const std::string most = name_of(kMaxTomlParts), more = name_of(kMaxTomlParts + 1);
  for (const std::string& name : {more, name_of(kMaxTomlParts + 1, "\"b.c\""),
                                  name_of(kMaxTomlParts + 1, " 'd' "), name_of(1'000'000)}) {
    INFO(name.substr(0, 60));
    CHECK(refused_line("x = 1\n" + name + " = 1\n") == 2);
    CHECK(refused_line("[" + name + "]\n") == 1);
    CHECK(refused_line("[[ " + name + "]]") == 1);
    CHECK(refused_line("a = [\n{b = 1, " + name + " = 2}]") == 2);
    for (const char* text : {R"("")", R"("\"")", R"("""x"""")", R"("""x""""")", "'''x''''", "'\\'",
                             "\"\"\"a\n\"b\\\"\"\"\"", "'''\n'a'''", "1 # \"\n"})
      CHECK(refused_line("a = [{b = " + std::string(text) + "," + name + " = 2}]") > 0);
  }
  CHECK(refused_line(most + " = 1\n[" + most + "]\n{" + most + " = 1.5, " + most + "=2}") == 0);
}

TEST_CASE("What is not ASCII stands in quotes", "[toml]") {
  for (const std::string text : {"\xC3\xA9 = 1", "a = \xC2\xA0 1", "[a.\xC8\xAD]", "a = \xFF"})
    CHECK(refused_line("b = 1\n" + text, "TOML_CHARACTER") == 2);
  CHECK(refused_line("\xEF\xBB\xBF\"\xC3\xA9\" = '\xE4\xB8\xAD' # \xC3\xA9\n") == 0);
}

TEST_CASE("Dots in strings, comments and numbers are no names", "[toml]") {
  const std::string dots = name_of(100, "../x");
  for (const std::string& text :
       {"a = \"" + dots + "\"", "a = '" + dots + "'", "a = \"\"\"\n" + dots + "\n\"\"\"",
        "a = '''\n" + dots + "'\n'''", "# " + dots, "\"" + dots + "\" = 1", "a = 1 # " + dots,
        "a = [" + name_of(100, "1.5,1") + "]", std::string("a = \"\\\"...................\"")}) {
    INFO(text);
    CHECK(refused_line(text) == 0);
  }
}

}  // namespace atelier::formats
