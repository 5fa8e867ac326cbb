// Processes that write lines, end, and do not end in time.
#include "host/cli/child.h"

#include <csignal>
#include <functional>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include "support/catch.h"

namespace atelier::cli {
namespace {

// A process that does `work`, which writes to the descriptor that it is given.
Child started(const std::function<int(int output)>& work) {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const pid_t process = fork();
  if (process == 0) {
    close(ends[0]);
    _exit(work(ends[1]));
  }
  close(ends[1]);
  return {process, ends[0]};
}

void say(int output, const std::string& text) {
  [[maybe_unused]] const ssize_t written = write(output, text.data(), text.size());
}

struct Followed {
  std::vector<std::string> lines;
  std::optional<int> status;
};
Followed followed(Limit limit, double seconds, const std::function<int(int)>& work) {
  Followed result;
  result.status = follow(started(work), limit, seconds,
                         [&](const std::string& line) { result.lines.push_back(line); });
  return result;
}

}  // namespace

TEST_CASE("Lines of a process are told as they come, in whatever pieces", "[child]") {
  const Followed whole = followed(Limit::kWhole, 1e12, [](int output) {  // longer than clocks count
    say(output, "one\ntw");
    say(output, "o\nno end");
    return 3;
  });
  CHECK(whole.lines == std::vector<std::string>{"one", "two"});
  REQUIRE(whole.status.has_value());
  CHECK(WEXITSTATUS(*whole.status) == 3);
}

TEST_CASE("A process that crashes says by which signal", "[child]") {
  const Followed crashed = followed(Limit::kWhole, 60, [](int) {
    signal(SIGSEGV, SIG_DFL);
    raise(SIGSEGV);
    return 0;
  });
  REQUIRE(crashed.status.has_value());
  CHECK(WIFSIGNALED(*crashed.status));
}

TEST_CASE("A process that takes longer than it may is killed", "[child]") {
  const auto slow = [](int output) {
    say(output, "one\n");
    sleep(600);
    return 0;
  };
  for (const Limit limit : {Limit::kWhole, Limit::kEachLine}) {
    const Followed late = followed(limit, 0.5, slow);
    CHECK(late.lines == std::vector<std::string>{"one"});
    CHECK_FALSE(late.status.has_value());
  }
}

TEST_CASE("A limit for each line begins anew with every one", "[child]") {
  const auto steady = [](int output) {
    for (int i = 0; i < 4; ++i) {
      sleep(1);
      say(output, "line\n");
    }
    return 0;
  };
  CHECK(followed(Limit::kEachLine, 3, steady).status.has_value());
  CHECK_FALSE(followed(Limit::kWhole, 3, steady).status.has_value());
}

}  // namespace atelier::cli
