#include "host/order/words.h"

#include "host/order/training.h"
#include "support/files.h"

using namespace atelier;
using namespace atelier::order;
using test::Folder;
using test::write_bytes;

namespace {

using Arguments = std::vector<std::string>;

std::optional<std::string> find(const Arguments& arguments, std::string_view name) {
  report::Problems problems;
  const Words words(arguments, train_command(nullptr), problems);
  problems.throw_if_any();
  return words.find(name);
}

TEST_CASE("A flag is found on the command line, in a file or nowhere", "[words]") {
  const Folder folder;
  const std::string file = folder / "run.toml";
  write_bytes(file, "plugin = \"toy\"\nedit_image = \"of the family\"\n");
  CHECK(find({"--plugin", "a", "--config", file}, "plugin") == "a");
  CHECK(find({"--config=" + file}, "plugin") == "toy");
  CHECK(!find({"--config=" + file}, "plugin_path"));
  CHECK(!find({"--seed", "1"}, "plugin"));
}

TEST_CASE("A file that cannot be read is one problem, and says nothing", "[words]") {
  const Folder folder;
  const std::string file = folder / "run.toml";
  write_bytes(file, "plugin = toy\n");
  for (const auto& [path, code] : {std::pair(file, ErrorCode::kInvalidArgument),
                                   std::pair(folder / "none.toml", ErrorCode::kNotFound)}) {
    report::Problems problems;
    const Words words({"--config", path}, train_command(nullptr), problems);
    CHECK(!words.is_whole());
    CHECK(!words.find("plugin"));
    CHECK(words.below(train_command(nullptr), problems).values.empty());
    CHECK(problems.size() == 1);
    test::expect_error(code, {path}, [&] { problems.throw_if_any(); });
  }
}

TEST_CASE("Mistakes in the values of a file are told once, with the family's flags", "[words]") {
  const Folder folder;
  const std::string file = folder / "run.toml";
  write_bytes(file, "plugin = \"toy\"\nseed = \"x\"\nconfig = \"b.toml\"\n");
  report::Problems problems;
  const Words words({"--config", file}, train_command(nullptr), problems);
  CHECK(problems.empty());
  CHECK(words.is_whole());
  const Words::Below below = words.below(train_command(nullptr), problems);
  CHECK(below.values.front().name == "plugin");
  CHECK(below.first_resumed == below.values.size());
  test::expect_error(ErrorCode::kInvalidArgument,
                     {file + ":3: config: a configuration names no other"},
                     [&] { problems.throw_if_any(); });
}

TEST_CASE("What is said for the user stands in front, and he says it otherwise", "[words]") {
  report::Problems problems;
  Words words({"--plugin", "mine"}, train_command(nullptr), problems);
  words.set("plugin", "other");
  CHECK(words.find("plugin") == "mine");
  CHECK(words.command_line() == Arguments{"--plugin", "other", "--plugin", "mine"});
}

}  // namespace
