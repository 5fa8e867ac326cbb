#include "host/report/say_once.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <optional>
#include <sys/wait.h>
#include <unistd.h>

#include "support/catch.h"

namespace atelier::report {
namespace {

// How often each line is written to stderr by three processes, each of which does `say(number)`.
std::map<std::string, int> said_by_three(const std::string& value,
                                         const std::function<void(int)>& say) {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  for (int number = 0; number < 3; ++number) {
    if (fork() != 0) continue;
    dup2(ends[1], STDERR_FILENO);
    setenv(SharedMessages::kVariable, value.c_str(), /*overwrite=*/1);
    say(number);
    _exit(0);
  }
  close(ends[1]);
  std::map<std::string, int> lines;
  std::FILE* const out = fdopen(ends[0], "r");
  char line[4096];
  while (std::fgets(line, sizeof(line), out) != nullptr) ++lines[line];
  std::fclose(out);
  while (wait(nullptr) > 0) {
  }
  return lines;
}

using Lines = std::map<std::string, int>;

TEST_CASE("What several processes say alike is said once, and everything else by each") {
  const SharedMessages said;
  const Lines lines = said_by_three(said.value(), [](int number) {
    say_once("error: the same\n  and its second line\n");
    say_once("error: of " + std::to_string(number) + "\n");
    say_once("the same\n");  // a part of another one
  });
  REQUIRE(lines == Lines{{"error: the same\n", 1},
                         {"  and its second line\n", 1},
                         {"error: of 0\n", 1},
                         {"error: of 1\n", 1},
                         {"error: of 2\n", 1},
                         {"the same\n", 1}});
}

TEST_CASE("What others have said is found behind much else") {
  const SharedMessages said;
  const Lines lines = said_by_three(said.value(), [](int number) {
    for (int i = 0; i < 200; ++i)
      say_once("line " + std::to_string(i) + std::string(100, '.') + " of " +
               std::to_string(number) + "\n");
    say_once("the end\n");
  });
  REQUIRE(lines.size() == 601);
  REQUIRE(std::ranges::all_of(lines, [](const auto& line) { return line.second == 1; }));
}

TEST_CASE("Where nothing is shared, or something else has that number, each says it") {
  std::FILE* const other = std::tmpfile();
  const std::string value =
      GENERATE_COPY("", "-1", "no number", "77777", std::to_string(fileno(other)));
  REQUIRE(said_by_three(value, [](int) { say_once("the same\n"); }) == Lines{{"the same\n", 3}});
  std::fclose(other);
}

}  // namespace
}  // namespace atelier::report
