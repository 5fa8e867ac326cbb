// Ranks that exchange tensors until something happens: group_tool N WORK [RANK] starts N of them.
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <string>
#include <thread>
#include <unistd.h>

#include <ATen/ATen.h>

#include "atelier/error.h"

#include "host/distributed/group.h"
#include "host/distributed/handshake.h"
#include "host/distributed/launch.h"
#include "host/report/error_line.h"

using namespace atelier;
using distributed::Group;

namespace {

void require(bool holds, const std::string& what) {
  if (!holds) throw Error(ErrorCode::kInternal, "not so: " + what);
}

at::Tensor counted(Group& group, int64_t count) {
  return at::arange(count, at::kFloat) + 100.0 * group.rank();
}

void check_exchanges(Group& group) {
  const int size = group.size(), rank = group.rank();
  const double ranks_sum = 100.0 * size * (size - 1) / 2;
  const at::Tensor sum = counted(group, 6);
  group.all_reduce(sum).wait();
  require(at::equal(sum, at::arange(6, at::kFloat) * size + ranks_sum), "all_reduce sums");
  const int64_t sent = 2 * 6 * 4 * (size - 1) / size;
  require(group.bytes_sent() == sent, "bytes of an all-reduce");

  const at::Tensor value = counted(group, 3);
  group.broadcast(value, size - 1).wait();
  require(at::equal(value, at::arange(3, at::kFloat) + 100.0 * (size - 1)), "broadcast");

  const at::Tensor whole = at::empty({size, 2});
  group.all_gather(whole, counted(group, 2)).wait();
  for (int r = 0; r < size; ++r)
    require(at::equal(whole[r], at::arange(2, at::kFloat) + 100.0 * r), "all_gather");

  const at::Tensor part = at::empty({3});
  group.reduce_scatter(part, counted(group, int64_t{3} * size)).wait();
  const at::Tensor places = at::arange(3, at::kFloat) + 3.0 * rank;
  require(at::equal(part, places * size + ranks_sum), "reduce_scatter");

  const at::Tensor out = at::empty({size});
  group.all_to_all(out, counted(group, size)).wait();
  require(at::equal(out, at::arange(size, at::kFloat) * 100 + rank), "all_to_all");

  const std::vector<std::string> said = group.say("I am " + std::to_string(rank));
  for (int r = 0; r < size; ++r)
    require(said.at(static_cast<size_t>(r)) == "I am " + std::to_string(r), "say");
}

void work(Group& group, const std::string& what, int rank) {
  if (what == "exchange") return check_exchanges(group);
  if (what == "compare")
    return require_same(group, {{"version", "1"},
                                {"--seed", group.rank() == rank ? "43" : "42"},
                                {"dataset", group.rank() == rank ? "b" : "a"}});
  if (what == "folder")
    return require_shared_folder(
        group, group.rank() == rank ? "/tmp" : std::getenv("ATELIER_TEST_FOLDER"));
  for (int step = 1; step < 1000; ++step) {
    group.set_place("step " + std::to_string(step));
    if (step == 5 && group.rank() == rank) {
      if (what == "kill") kill(getpid(), SIGKILL);
      if (what == "stop") kill(getpid(), SIGSTOP);
      if (what == "throw") throw Error(ErrorCode::kNumerics, "a loss of its own");
      if (what == "leave") std::_Exit(0);
    }
    // One that is busy elsewhere when another one goes.
    if (step == 5 && what == "kill" && group.rank() == 0 && group.size() > 2)
      std::this_thread::sleep_for(std::chrono::minutes(1));
    const at::Tensor sum = at::ones({1000});
    group.all_reduce(sum).wait();
  }
}

int run_rank(const std::string& what, int rank) {
  std::shared_ptr<Group> group;
  try {
    group = Group::meet(distributed::find_ranks(distributed::process_environment()),
                        {.meeting = std::chrono::seconds(4), .exchange = std::chrono::seconds(2)});
    work(*group, what, rank);
    group->part();
    std::puts("whole");
    return 0;
  } catch (const Error& error) {
    if (group && error.code() != ErrorCode::kPeerLost) group->give_up(error.message());
    std::fputs(report::error_line(error).c_str(), stderr);
    return exit_code(error.code());
  }
}

}  // namespace

int main(int count, char** words) {
  spdlog::set_default_logger(spdlog::stderr_color_mt("group_tool"));
  const std::vector<std::string> rest(words + 1, words + count);
  const std::string what = rest.at(1), rank = rest.size() > 2 ? rest[2] : "-1";
  if (rest.front() == "rank") return run_rank(what, std::stoi(rank));
  return distributed::launch({.nproc_per_node = std::stoi(rest.front()),
                              .command = {"/proc/self/exe", "rank", what, rank}});
}
