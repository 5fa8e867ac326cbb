#include "host/distributed/launch.h"

#include <chrono>
#include <csignal>
#include <filesystem>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include "support/files.h"

using namespace atelier;
using distributed::launch;
using distributed::LaunchOptions;
using test::Folder;
using test::read_bytes;

namespace {

LaunchOptions shell(const Folder& folder, int count, const std::string& script) {
  return {.nproc_per_node = count,
          .command = {"sh", "-c", "cd '" + folder.path() + "'; " + script}};
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

bool wait_for(const std::function<bool()>& holds) {
  for (int i = 0; i < 500; ++i) {
    if (holds()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return false;
}

bool is_alive(pid_t process) {
  return kill(process, 0) == 0;
}

}  // namespace

TEST_CASE("Each process gets its place, and all of them the same meeting place") {
  const Folder folder;
  LaunchOptions plan = shell(folder, 3,
                             "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE > $LOCAL_RANK; "
                             "echo $MASTER_ADDR:$MASTER_PORT > at.$RANK");
  plan.nnodes = 2;
  plan.node_rank = 1;
  plan.master_addr = "node0";
  plan.master_port = 29511;
  REQUIRE(launch(plan) == 0);
  REQUIRE(read_bytes(folder / "0") == "3/6 0/3\n");
  REQUIRE(read_bytes(folder / "2") == "5/6 2/3\n");
  REQUIRE(read_bytes(folder / "at.4") == "node0:29511\n");
}

TEST_CASE("On one machine a free port is found") {
  const Folder folder;
  REQUIRE(launch(shell(folder, 2, "echo $MASTER_PORT > $RANK")) == 0);
  REQUIRE(read_bytes(folder / "0") == read_bytes(folder / "1"));
  REQUIRE(std::stoi(read_bytes(folder / "0")) > 1023);
}

TEST_CASE("The first failure's code is given, and the others end soon") {
  const Folder folder;
  const auto begin = std::chrono::steady_clock::now();
  REQUIRE(launch(shell(folder, 3,
                       "echo $$ > $RANK; [ $RANK != 1 ] || { sleep 0.2; exit 3; }; "
                       "trap '' TERM; sleep 60 & wait; sleep 60")) == 3);
  REQUIRE(seconds_since(begin) < 8);
  REQUIRE_FALSE(is_alive(std::stoi(read_bytes(folder / "0"))));
}

TEST_CASE("A process that a signal ends is a lost peer") {
  const Folder folder;
  REQUIRE(launch(shell(folder, 2, "[ $RANK = 0 ] || kill -9 $$; sleep 60")) == 6);
}

TEST_CASE("A process that is asked to stop before it can see to it leads with that signal") {
  const Folder folder;
  const auto begin = std::chrono::steady_clock::now();
  REQUIRE(launch(shell(folder, 2, "[ $RANK = 0 ] || kill -INT $$; sleep 60")) == 130);
  REQUIRE(launch(shell(folder, 2, "[ $RANK = 0 ] || { kill -HUP $$; sleep 60; }; exit 6")) == 129);
  REQUIRE(seconds_since(begin) < 15);
}

TEST_CASE("An error of its own leads, whoever ended first because of it") {
  const Folder folder;
  REQUIRE(launch(shell(folder, 3, "[ $RANK != 2 ] || { sleep 1; exit 5; }; exit 6")) == 5);
  REQUIRE(launch(shell(folder, 2, "[ $RANK = 0 ] || { sleep 1; kill -9 $$; }; exit 6")) == 6);
}

TEST_CASE("A program that does not exist") {
  REQUIRE(launch({.nproc_per_node = 2, .command = {"/no/such/program"}}) == 127);
}

TEST_CASE("Signals reach every process, and what they end with is given") {
  const Folder folder;
  const int signal = GENERATE(SIGTERM, SIGHUP);
  const pid_t launcher = fork();
  if (launcher == 0)
    _exit(launch(
        shell(folder, 2, "trap 'exit 75' TERM HUP; echo > $RANK; while :; do sleep 0.05; done")));
  REQUIRE(wait_for([&] {
    return std::filesystem::exists(folder / "0") && std::filesystem::exists(folder / "1");
  }));
  kill(launcher, signal);
  int status = 0;
  waitpid(launcher, &status, 0);
  REQUIRE(WIFEXITED(status));
  REQUIRE(WEXITSTATUS(status) == 75);
}

TEST_CASE("A signal that is passed on and ends the processes is told as shells do") {
  const Folder folder;
  const pid_t launcher = fork();
  if (launcher == 0) _exit(launch(shell(folder, 2, "echo > $RANK; exec sleep 60")));
  REQUIRE(wait_for([&] {
    return std::filesystem::exists(folder / "0") && std::filesystem::exists(folder / "1");
  }));
  kill(launcher, SIGTERM);
  int status = 0;
  waitpid(launcher, &status, 0);
  REQUIRE(WIFEXITED(status));
  REQUIRE(WEXITSTATUS(status) == 128 + SIGTERM);
}

TEST_CASE("Processes end with the launcher, whatever ends it") {
  const Folder folder;
  const pid_t launcher = fork();
  if (launcher == 0) _exit(launch(shell(folder, 2, "echo $$ > $RANK; exec sleep 60")));
  REQUIRE(wait_for(
      [&] { return !read_bytes(folder / "0").empty() && !read_bytes(folder / "1").empty(); }));
  kill(launcher, SIGKILL);
  waitpid(launcher, nullptr, 0);
  for (const char* rank : {"0", "1"}) {
    const pid_t process = std::stoi(read_bytes(folder / rank));
    REQUIRE(wait_for([&] { return !is_alive(process); }));
  }
}
