// Ranks that exchange tensors until something happens: group_tool N WORK [RANK] starts N of them.
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cxxabi.h>
#include <exception>
#include <functional>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <string>
#include <thread>
#include <unistd.h>

#include <ATen/ATen.h>

#include "atelier/block.h"
#include "atelier/error.h"
#include "atelier/host/sequence_scope.h"
#include "atelier/ops/attention.h"
#include "atelier/shared_rows.h"

#include "host/distributed/group.h"
#include "host/distributed/handshake.h"
#include "host/distributed/launch.h"
#include "host/distributed/peers.h"
#include "host/distributed/sequence.h"
#include "host/distributed/shards.h"
#include "host/parameters/gradient_sums.h"
#include "host/report/error_line.h"
#include "memory/device_meter.h"

using namespace atelier;
using distributed::Group;
using distributed::Ticket;

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

  const at::Tensor arrived = at::empty({5}), further = at::empty({2});
  const int64_t before = group.bytes_sent();
  Ticket first = group.pass_on(arrived, counted(group, 5));
  Ticket second = group.pass_on(further, counted(group, 2));
  second.wait();
  first.wait();
  const double of_previous = 100.0 * ((rank + size - 1) % size);
  require(at::equal(arrived, at::arange(5, at::kFloat) + of_previous), "pass_on");
  require(at::equal(further, at::arange(2, at::kFloat) + of_previous), "another pass_on");
  require(group.bytes_sent() - before == 7 * 4, "bytes that are passed on");

  const std::vector<std::string> said = group.gather_texts("I am " + std::to_string(rank));
  for (int r = 0; r < size; ++r)
    require(said.at(static_cast<size_t>(r)) == "I am " + std::to_string(r), "say");
}

// Groups of four ranks or more: the even ones, the odd ones, and neighbours.
void check_smaller_groups(Group& group) {
  const int size = group.size(), rank = group.rank();
  std::vector<std::vector<int>> halves(2), pairs(static_cast<size_t>(size) / 2);
  for (int r = 0; r < size; ++r) {
    halves[static_cast<size_t>(r % 2)].push_back(r);
    pairs[static_cast<size_t>(r / 2)].push_back(size - 1 - r);
  }
  const int64_t before = group.bytes_sent();
  const auto half = group.among(halves, "halves"), pair = group.among(pairs, "pairs");
  require(half->size() == size / 2 && half->rank() == rank / 2, "place in a smaller group");
  require(half->name_of(half->rank()) == group.name_of(rank), "name in a smaller group");

  // Parts of one size with another number of exchanges in each group.
  for (int i = 0; i <= rank % 2; ++i) {
    const at::Tensor sum = at::full({3 + rank % 2}, rank, at::kFloat);
    half->all_reduce(sum).wait();
    const int of_others = rank % 2 == 0 ? 0 : size / 2;
    require(sum[0].item<int>() == size / 2 * (size / 2 - 1) + of_others, "sum of a smaller group");
  }
  half->compare();
  const at::Tensor both = at::empty({2, 1});
  pair->all_gather(both, at::full({1}, rank, at::kFloat)).wait();
  require(both[pair->rank()].item<int>() == rank, "own part");
  require(both.sum().item<int>() == rank + (rank % 2 == 0 ? rank + 1 : rank - 1), "both parts");
  require(pair->bytes_sent() == 4, "bytes of a smaller group");
  require(group.bytes_sent() == before + half->bytes_sent() + 4, "bytes of all groups");

  const auto own = group.among(
      [&] {
        std::vector<std::vector<int>> alone;
        for (int r = 0; r < size; ++r) alone.push_back({r});
        return alone;
      }(),
      "own");
  own->all_reduce(at::ones({1})).wait();
  require(own->bytes_sent() == 0, "a rank alone sends nothing");
  group.compare();
}

struct EmptyBlock final : Block {
  EmptyBlock() : Block(nullptr, "block") {}
  std::string_view kind() const override { return "empty"; }
  Tensors forward(const Tensors& in) override { return in; }
};

// Pairs that each have a block among them, whose second tensor gets gradients on the last rank
// alone, and the third one nowhere.
void check_block_gradients(Group& group) {
  const distributed::ShardGroups groups = distributed::ShardGroups::make(group, 2);
  const EmptyBlock block;
  const auto cut = [&](at::ScalarType dtype) {
    return distributed::FlatLayout::Cut{
        &block, dtype, {{.begin = 0, .count = 6}, {.begin = 6, .count = 4}}};
  };
  const distributed::FlatLayout divided({cut(at::kFloat), cut(at::kFloat), cut(at::kBFloat16)});
  const parameters::ExchangePlan plan({.ranks = group.size(), .zero_stage = 3, .group = 2},
                                      /*rest_on_host=*/false,
                                      parameters::ExchangedTensors(distributed::FlatLayout({}, 2)),
                                      parameters::ExchangedTensors(divided));
  const size_t first = 0, second = 1, third = 2;
  parameters::GradientSums gradients(group, groups, plan, {}, {});
  const at::Tensor numbers = at::arange(10, at::kFloat).view({2, 5});
  for (int step = 0; step < 2; ++step) {
    gradients.open("");
    for (int run = 0; run < 2; ++run) {
      gradients.take(first, numbers * (group.rank() + 1));
      if (group.rank() == group.size() - 1) gradients.take(second, at::ones({2, 5}));
      gradients.send(block);
    }
    gradients.send_rest();
    gradients.gather_status({}, {});
    gradients.finish();
    const bool is_first = groups.shards->rank() == 0;
    const auto own = [&](const at::Tensor& whole) {
      return is_first ? whole.view(-1).narrow(0, 0, 6) : whole.view(-1).narrow(0, 6, 4);
    };
    const int ranks_sum = group.size() * (group.size() + 1) / 2;
    require(at::equal(gradients.divided_shard(first), own(numbers * 2 * ranks_sum)),
            "sums of a block");
    require(at::equal(gradients.divided_shard(second), own(at::full({2, 5}, 2.0))), "of one rank");
    require(!gradients.divided_shard(third).defined(), "of no rank");
    gradients.clear();
  }
}

// Leaves of several buckets, and what a step's gradients of them take.
struct Leaves {
  static constexpr int64_t kCount = 10, kNumbers = int64_t{1} << 20, kBytes = 4 * kCount * kNumbers;
  std::vector<at::Tensor> tensors;

  Leaves() {
    for (int64_t i = 0; i < kCount; ++i) tensors.push_back(at::zeros({kNumbers}));
  }
  ~Leaves() { clear(); }
  Leaves(const Leaves&) = delete;
  Leaves& operator=(const Leaves&) = delete;

  parameters::ExchangedTensors exchanged(int parts) const {
    return parameters::ExchangedTensors(distributed::FlatLayout(tensors, parts));
  }
  void clear() {
    for (at::Tensor& leaf : tensors) leaf.mutable_grad() = at::Tensor();
  }
  // A gradient of `value`s in one more pass.
  void add(double value) {
    for (at::Tensor& leaf : tensors) {
      at::Tensor& gradient = leaf.mutable_grad();
      gradient = gradient.defined() ? gradient.add_(value) : at::full_like(leaf, value);
    }
  }
};

// `seen`: bytes. A thread of Gloo lets go of an exchange's tensors a moment after it has ended.
void require_bytes(const std::function<int64_t()>& seen, double expected, const std::string& what) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  const auto is_far = [&] {
    return std::abs(static_cast<double>(seen()) - expected) > 0.01 * expected;
  };
  while (is_far() && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  require(!is_far(), what + ": " + std::to_string(seen()) + " bytes");
}

// While the optimizer works, each rank has the gradients of the table: whole ones, once, or its
// part.
void check_gradient_bytes(Group& group) {
  const memory::DeviceMeter meter(at::kCPU, nullptr);
  Leaves leaves;
  const int64_t before = meter.bytes().live;
  const auto held = [&] { return meter.bytes().live - before; };
  const int64_t size = group.size();
  const auto sum = static_cast<double>(size * (size + 1) / 2);
  {
    const parameters::ExchangePlan plan({.ranks = group.size()}, /*rest_on_host=*/true,
                                        leaves.exchanged(/*parts=*/1));
    parameters::GradientSums sums(group, {}, plan, leaves.tensors, {});
    leaves.add(static_cast<double>(group.rank() + 1));
    std::vector<at::Tensor> buffers;  // which somebody keeps, as pinned memory is kept
    for (const at::Tensor& leaf : leaves.tensors) buffers.push_back(leaf.grad());
    sums.open("step");
    sums.pass(/*is_last=*/true, [] {});
    sums.send_rest();
    sums.gather_status({}, {});
    sums.finish();
    require_bytes(held, Leaves::kBytes, "sums in kept memory");
    for (size_t i = 0; i < buffers.size(); ++i) {
      require(leaves.tensors[i].grad().is_same(buffers[i]), "kept memory");
      require(buffers[i].eq(sum).all().item<bool>(), "sums in it");
    }
    leaves.clear();
  }
  const auto groups = distributed::ShardGroups::make(group, group.size());
  for (const bool each_pass : {false, true}) {
    const parameters::ExchangePlan plan(
        {.ranks = group.size(), .zero_stage = 2, .group = group.size()},
        /*rest_on_host=*/!each_pass, leaves.exchanged(group.size()));
    parameters::GradientSums sums(group, groups, plan, leaves.tensors, {});
    sums.open("step", /*passes=*/2);
    for (const bool is_last : {false, true}) {
      leaves.add(static_cast<double>(group.rank() + 1));
      if (is_last && !each_pass) require_bytes(held, Leaves::kBytes, "sums of passes");
      sums.pass(is_last, [] {});
    }
    sums.send_rest();
    sums.gather_status({}, {});
    sums.finish();
    const double part = static_cast<double>(Leaves::kBytes) / static_cast<double>(size);
    require_bytes(held, part, "sums of a part");
    require_bytes([&] { return sums.sum_bytes(); }, part, "told sums");
    require(sums.bytes_under_way() == 0, "nothing under way");
    for (size_t i = 0; i < leaves.tensors.size(); ++i)
      require(sums.shard(i).eq(2 * sum).all().item<bool>(), "sums of both passes");
  }
}

// Attention among rows of which each rank has a part; the ranks divide the key heads, or not.
void check_sequence(SequenceGroup& sequence, Group& group, int64_t key_heads) {
  const int64_t P = group.size(), rows = 8 * P, heads = 2 * key_heads, width = 4;
  at::manual_seed(1);
  const at::Tensor q = at::randn({rows, heads, width}), k = at::randn({rows, key_heads, width}),
                   v = at::randn({rows, key_heads, width});
  const at::Tensor alone = ops::attention(q, k, v, Segments({rows}));
  const SequenceScope scope(sequence);
  const SharedRows shared(Segments({rows}));
  const int64_t before = group.bytes_sent();
  const at::Tensor own =
      ops::attention(shared.take(q), shared.take(k), shared.take(v), shared.rows());
  const int64_t columns = key_heads % P == 0 ? 2 * (heads + key_heads) / P : 2 * key_heads;
  const int64_t pass = (P - 1) * rows / P * columns * width * 4;
  require(group.bytes_sent() - before == pass, "bytes of a pass of attention");
  require(at::allclose(shared.gather(own), alone, 0, 1e-5), "attention of all rows");
}

// Says when it happens what the others are to end after.
void tell_event() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  std::printf("event %.3f\n", std::chrono::duration<double>(now).count());
  std::fflush(stdout);
}

// What one rank does at step 5; the others only exchange.
void happen(Group& group, const std::string& what) {
  tell_event();
  if (what == "kill") kill(getpid(), SIGKILL);
  if (what == "stop") kill(getpid(), SIGSTOP);
  if (what == "throw") throw Error(ErrorCode::kNumerics, "a loss of its own");
  if (what == "sleep") std::this_thread::sleep_for(std::chrono::minutes(1));
  if (what == "other size") group.all_reduce(at::ones({999})).wait();
  if (what == "other type") group.all_reduce(at::ones({1000}, at::kInt)).wait();
  if (what == "other exchange") group.broadcast(at::ones({1000}), group.rank()).wait();
  if (what == "agreement") group.gather_texts("");
}

void run_steps(Group& group, const std::string& what, int rank) {
  for (int step = 1; step < 1000; ++step) {
    group.begin_step(step);
    if (step == 5 && group.rank() == rank) happen(group, what);
    // One that is busy elsewhere when another one goes.
    if (step == 5 && what == "kill" && group.rank() == 0 && group.size() > 2)
      std::this_thread::sleep_for(std::chrono::minutes(1));
    if (step == 5 && what == "stop" && group.size() > 2 && group.rank() != rank)
      group.gather_texts("");  // for which there is no limit
    const at::Tensor sum = at::ones({1000});
    group.all_reduce(sum).wait();
    group.compare();
  }
}

// One rank cannot go on while the others exchange: all leave, in whatever exchange they are, and
// tell each other that they have.
void call_off(Group& group, bool is_the_one) {
  const auto half = group.neighbours(2, "halves");
  for (int work = 1; work < 5; ++work) {
    group.begin_work();
    group.all_reduce(at::ones({1000})).wait();
  }
  group.begin_work();
  const at::Tensor whole = at::empty({2, 1 << 20}), all = at::ones({1 << 20});
  const at::Tensor part = at::ones({1 << 20});
  bool is_thrown = false;
  try {
    if (is_the_one) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      group.call_off();
    }
    Ticket ahead = half->all_gather(whole, part);
    for (int i = 0; i < 3; ++i) group.all_reduce(all).wait();
    ahead.wait();
  } catch (const Error& error) {
    is_thrown = error.code() == ErrorCode::kCancelled;
  }
  require(is_thrown != is_the_one, "the others leave, and the one exchanges nothing");
  require(group.is_called_off(), "all know it");
  half->all_reduce(all).wait();  // nothing happens
  group.leave();
  is_thrown = false;
  try {
    group.all_reduce(all).wait();
  } catch (const Error& error) {
    is_thrown = error.code() == ErrorCode::kInternal;
  }
  require(is_thrown, "no exchange behind the end");
  require(group.gather_texts("saved").size() == static_cast<size_t>(group.size()), "say");
}

int work(Group& group, const std::string& what, int rank) {
  std::printf("process %d\n", getpid());
  std::fflush(stdout);
  const bool is_the_one = group.rank() == rank;
  if (what == "exchange") {
    check_exchanges(group);
    if (group.size() >= 4) check_smaller_groups(group);
    check_block_gradients(group);
    const auto sequence = distributed::make_sequence(group, group.size());
    check_sequence(*sequence, group, group.size());
    check_sequence(*sequence, group, 1);
  } else if (what == "bytes of gradients") {
    check_gradient_bytes(group);
  } else if (what == "late in a smaller group") {
    const auto half = group.among({{0, 1}, {2, 3}}, "halves");
    group.begin_step(5);
    if (is_the_one) happen(group, "sleep");
    half->all_reduce(at::ones({8})).wait();
    group.all_reduce(at::ones({1000})).wait();
  } else if (what == "late while others have patience") {
    const auto half = group.among({{0, 1}}, "halves");
    group.begin_step(5);
    {
      const distributed::TimeoutExtension patience(&group);
      if (is_the_one) std::this_thread::sleep_for(std::chrono::seconds(6));
      half->all_reduce(at::ones({8})).wait();
    }
    if (is_the_one) happen(group, "sleep");
    group.all_reduce(at::ones({1000})).wait();
  } else if (what.starts_with("ring, ")) {
    const auto sequence = distributed::make_sequence(group, group.size());
    group.begin_step(5);
    if (is_the_one) happen(group, what.substr(std::string("ring, ").size()));
    const bool is_other = is_the_one && what == "ring, other pass";
    sequence->pass_on(at::ones({is_other ? 9 : 8}))();
    group.compare();
  } else if (what == "other block") {
    group.begin_step(5);
    const at::Tensor all = at::empty({group.size(), 8});
    group.all_gather(all, at::ones({8}), is_the_one ? "block 2" : "block 1").wait();
    const auto made = group.made();  // which ranks may tell each other in any way
    const at::Tensor told = at::zeros({group.size(), 3}, at::kDouble);
    for (int64_t i = 0; i < 3; ++i) told[group.rank()][i] = made.at(static_cast<size_t>(i));
    group.all_reduce(told).wait();
    group.compare(told);
  } else if (what == "call off") {
    call_off(group, is_the_one);
  } else if (what == "compare") {
    require_same(group, {{"version", "1"},
                         {"--seed", is_the_one ? "43" : "42"},
                         {"dataset", is_the_one ? "b" : "a"}});
  } else if (what == "gpus") {
    require_own_gpus(group, "GPU-" + std::to_string(is_the_one ? 0 : group.rank()));
  } else if (what == "folder that is read") {
    require_shared_folder(group, "cache_path", is_the_one ? "/nowhere" : "/proc", true);
  } else if (what == "folder") {
    require_shared_folder(group, "output_path",
                          is_the_one ? "/tmp" : std::getenv("ATELIER_TEST_FOLDER"));
  } else {
    run_steps(group, what, rank);
  }
  group.part();
  std::puts("whole");
  return 0;
}

std::chrono::seconds seconds_of(const char* variable) {
  const char* const text = std::getenv(variable);
  return std::chrono::seconds(text == nullptr ? 60 : std::stoi(text));
}

int run_rank(const std::string& what, int rank) {
  try {
    return distributed::run_with_others(distributed::find_ranks(distributed::process_environment()),
                                        {.meeting = seconds_of("ATELIER_TEST_MEETING"),
                                         .exchange = seconds_of("ATELIER_TEST_LIMIT")},
                                        [&](Group& group) { return work(group, what, rank); });
  } catch (const Error& error) {
    std::fputs(report::error_line(error).c_str(), stderr);
    return exit_code(error.code());
  }
}

// As the program does: a thread of Gloo may throw.
[[noreturn]] void on_terminate() {
  try {
    std::rethrow_exception(std::current_exception());
  } catch (const std::exception& exception) {
    const auto error = distributed::Peers::error_of_transport(*abi::__cxa_current_exception_type(),
                                                              exception.what());
    if (error) {
      std::fputs(report::error_line(*error).c_str(), stderr);
      std::_Exit(exit_code(error->code()));
    }
  }
  std::abort();
}

}  // namespace

int main(int count, char** words) {
  std::set_terminate(on_terminate);
  spdlog::set_default_logger(spdlog::stderr_color_mt("group_tool"));
  const std::vector<std::string> rest(words + 1, words + count);
  const std::string what = rest.at(1), rank = rest.size() > 2 ? rest[2] : "-1";
  if (rest.front() == "rank") return run_rank(what, std::stoi(rank));
  return distributed::launch({.nproc_per_node = std::stoi(rest.front()),
                              .command = {"/proc/self/exe", "rank", what, rank}});
}
