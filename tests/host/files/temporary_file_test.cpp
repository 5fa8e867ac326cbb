#include "host/files/temporary_file.h"

#include <algorithm>
#include <optional>
#include <set>

#include "host/files/safetensors_writer.h"
#include "support/files.h"

using namespace atelier;
using namespace atelier::files;
using test::Folder;
using test::write_bytes;

namespace {

std::set<std::string> names_in(const std::string& folder) {
  std::set<std::string> names;
  for (const auto& entry : test::fs::directory_iterator(folder))
    names.insert(entry.path().filename().string());
  return names;
}

}  // namespace

TEST_CASE("Everything unfinished has one kind of name, and nothing else has it", "[writer]") {
  const test::fs::path path = temporary_path("a/b/out.png");
  CHECK(path.parent_path() == "a/b");
  CHECK(path.filename().string().ends_with("-out.png"));
  CHECK(is_temporary(path.filename().string()));
  CHECK(temporary_path("a/b/out.png") != path);
  CHECK(test::fs::path(temporary_path(std::string(255, 'x'))).filename().string().size() <= 255);
  for (const char* name :
       {"out.png", ".tmp-1234abcd-out.png", ".atelier-tmp-", ".atelier-tmp-notes",
        ".atelier-tmp-1234ABCD-out.png", ".atelier-tmp-1234abc-out.png"})
    CHECK_FALSE(is_temporary(name));
}

TEST_CASE("What a dead program left is removed, what a living one writes stays", "[writer]") {
  Folder folder;
  const std::string left = folder / ".atelier-tmp-0123abcd-out.png";
  const std::string others = folder / ".atelier-tmp-notes";
  write_bytes(left, "half an image");
  write_bytes(others, "of the user");
  write_bytes(folder / ".atelier-tmp-0123abcd-folder/x", "of a run, whose lock is another");
  std::optional<TemporaryFile> living(std::in_place, folder / "living.txt");
  CHECK(!test::fs::exists(left));  // already the first file in a folder sees to it
  write_bytes(left, "again");
  living->write("text", 4);
  remove_abandoned(folder.path());
  CHECK(!test::fs::exists(left));
  CHECK(test::fs::exists(others));
  CHECK(test::fs::exists(folder / ".atelier-tmp-0123abcd-folder/x"));
  living->place();
  CHECK(test::read_bytes(folder / "living.txt") == "text");
  remove_abandoned(folder / "nowhere");
}

TEST_CASE("A file that is given up leaves nothing", "[writer]") {
  Folder folder;
  CHECK_THROWS_AS(write_file(folder / "a.txt",
                             [](const auto& write) {
                               write("x", 1);
                               throw std::runtime_error("no more");
                             }),
                  std::runtime_error);
  CHECK(names_in(folder.path()).empty());
  write_file(folder / "a.txt", "whole");
  CHECK(names_in(folder.path()) == std::set<std::string>{"a.txt"});
}
