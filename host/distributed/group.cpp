#include "host/distributed/group.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <numeric>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/ivalue.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupWrapper.hpp>
#include <torch/csrc/distributed/c10d/debug.h>

#include "atelier/error.h"

#include "host/device/cuda.h"
#include "host/distributed/pace.h"
#include "host/distributed/peers.h"
#include "memory/clock.h"

namespace atelier::distributed {

using std::chrono::milliseconds;

using BackendPtr = c10::intrusive_ptr<c10d::Backend>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

namespace {

constexpr milliseconds kPatience = std::chrono::hours(1);
constexpr milliseconds kCallOffLook(50);  // between two looks whether work is called off

// Gloo, of which exchanges that are under way can be ended.
class GlooTransport final : public c10d::ProcessGroupGloo {
 public:
  using ProcessGroupGloo::ProcessGroupGloo;
  // Nothing comes any more, and memory that was given is not written.
  void abort() override {
    for (const auto& context : contexts_) context->closeConnections();
  }
};

// Whether an exchange in host memory has come to its end.
class Arrival {
 public:
  explicit Arrival(c10d::Work& work) {
    work.getFuture()->addCallback([state = state_](c10::ivalue::Future&) {
      const std::lock_guard lock(state->mutex);
      state->is_there = true;
      state->changed.notify_all();
    });
  }
  // Whether it is there within `time`.
  bool wait(milliseconds time) const {
    std::unique_lock lock(state_->mutex);
    return state_->changed.wait_for(lock, time, [&] { return state_->is_there; });
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    bool is_there = false;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

Error called_off() {
  return {ErrorCode::kCancelled, "another rank cannot go on with this"};
}

}  // namespace

// What the group of all ranks has in common with the smaller ones.
struct Group::Run {
  GroupOptions options;
  std::unique_ptr<Peers> peers;      // null: there are none
  std::vector<BackendPtr> backends;  // of all groups
  Pace pace;
  std::string place;
  milliseconds limit{0};  // of an exchange, at the moment
  int64_t bytes_sent = 0;
  std::atomic<double> seconds_waited = 0.0;
  int64_t work = 0;  // whose begin_work() came last
  std::atomic<bool> is_leaving = false, has_left = false;

  c10::intrusive_ptr<c10d::Store> store(const std::string& name) const {
    return c10::make_intrusive<c10d::PrefixStore>(name, peers->store());
  }
  void set_timeout(milliseconds timeout) const {
    for (const BackendPtr& backend : backends) backend->setTimeout(timeout);
  }
  bool is_called_off() const { return peers && peers->is_called_off(work); }
  template <typename F>
  auto with_peers(F&& exchange);
  bool can_exchange();
  void wait(c10d::Work& work, const Arrival* arrival);
};

struct Group::State {
  Ranks ranks;
  std::vector<int> members;  // of the run, by rank
  std::string name;          // empty: of all ranks
  std::shared_ptr<Run> run;
  BackendPtr gloo, nccl;  // nccl: null without a GPU
  int64_t bytes_sent = 0;

  bool is_of_all() const { return name.empty(); }
  void note(const std::string& exchange) const {
    if (!run->peers) return;
    const std::string what = is_of_all() ? exchange : name + ", " + exchange;
    run->peers->note(run->place.empty() ? what : run->place + ", " + what, name);
  }
  void count(int64_t bytes) {
    bytes_sent += bytes;
    run->bytes_sent += bytes;
  }
  c10d::Backend& backend_of(const at::Tensor& tensor) const {
    return tensor.is_cuda() ? *nccl : *gloo;
  }
  template <typename F>
  Ticket exchange(const char* what, const at::Tensor& sent, F&& begin);
};

// Calls `exchange`, and throws what fails in it as an Error that says who is lost.
template <typename F>
auto Group::Run::with_peers(F&& exchange) {
  std::string reason;
  try {
    return exchange();
  } catch (const Error&) {
    throw;
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (const std::exception& error) {
    reason = error.what();
  }
  if (is_called_off()) {
    is_leaving = true;
    throw called_off();
  }
  if (peers == nullptr) throw Error(ErrorCode::kInternal, reason);
  throw peers->lost(reason.substr(0, reason.find('\n')));  // a stack stands behind it
}

// Whether exchanges are made; false while this rank is leaving.
bool Group::Run::can_exchange() {
  if (has_left) throw Error(ErrorCode::kInternal, "an exchange behind the end of all of them");
  if (is_leaving) return false;
  if (!is_called_off()) return true;
  is_leaving = true;
  throw called_off();
}

// Waits for an exchange. `arrival`: null where the GPU waits.
void Group::Run::wait(c10d::Work& work, const Arrival* arrival) {
  if (is_leaving) return;
  const double begin = memory::seconds_now();
  while (arrival != nullptr && !arrival->wait(kCallOffLook)) can_exchange();
  with_peers([&] { work.wait(); });
  seconds_waited += memory::seconds_now() - begin;
}

namespace {

c10::intrusive_ptr<c10d::Backend> open_gloo(const c10::intrusive_ptr<c10d::Store>& store,
                                            const Ranks& ranks, milliseconds limit) {
  auto options = c10d::ProcessGroupGloo::Options::create(limit);
  const auto interface = process_environment()("GLOO_SOCKET_IFNAME");
  options->devices.push_back(
      interface ? c10d::ProcessGroupGloo::createDeviceForInterface(*interface)
                : c10d::ProcessGroupGloo::createDefaultDevice());
  return c10::make_intrusive<GlooTransport>(store, ranks.rank, ranks.size, options);
}

}  // namespace

std::shared_ptr<Group> Group::meet(const Ranks& ranks, const GroupOptions& options) {
  auto state = std::make_unique<State>();
  state->ranks = ranks;
  state->run = std::make_shared<Run>();
  state->run->options = options;
  state->run->limit = options.exchange.count() > 0 ? options.exchange : options.meeting;
  state->members.resize(static_cast<size_t>(ranks.size));
  std::iota(state->members.begin(), state->members.end(), 0);
  if ((!ranks.is_alone() || options.even_alone) && !options.transport)
    state->run->peers = std::make_unique<Peers>(ranks, options.meeting, options.exchange);
  std::shared_ptr<Group> group(new Group(std::move(state)));
  group->open_gloo();
  return group;
}

std::shared_ptr<Group> Group::among(const std::vector<std::vector<int>>& groups,
                                    const std::string& name) {
  auto state = std::make_unique<State>();
  state->run = state_->run;
  const auto mine = std::ranges::find_if(
      groups, [&](const auto& members) { return std::ranges::count(members, rank()) == 1; });
  TORCH_CHECK(mine != groups.end(), "rank ", rank(), " is in none of the groups");
  for (const int member : *mine) state->members.push_back(state_->members.at(member));
  state->ranks = ranks();
  state->ranks.size = static_cast<int>(mine->size());
  state->ranks.rank = static_cast<int>(std::ranges::find(*mine, rank()) - mine->begin());
  state->name = name + " of ranks";
  for (const int member : state->members) state->name += " " + std::to_string(member);
  std::shared_ptr<Group> group(new Group(std::move(state)));
  group->open_gloo();
  if (state_->nccl) group->open_nccl();
  return group;
}

std::shared_ptr<Group> Group::neighbours(int size, const std::string& name) {
  std::vector<std::vector<int>> groups(static_cast<size_t>(this->size() / size));
  for (int rank = 0; rank < this->size(); ++rank)
    groups[static_cast<size_t>(rank / size)].push_back(rank);
  return among(groups, name);
}

Group::Group(std::unique_ptr<State> state) : state_(std::move(state)) {}
Group::~Group() = default;

const Ranks& Group::ranks() const {
  return state_->ranks;
}

int64_t Group::bytes_sent() const {
  return state_->is_of_all() ? state_->run->bytes_sent : state_->bytes_sent;
}

double Group::seconds_waited() const {
  return state_->run->seconds_waited;
}

std::string Group::name_of(int rank) const {
  const int member = state_->members.at(static_cast<size_t>(rank));
  const auto& peers = state_->run->peers;
  return peers ? peers->name_of(member) : "rank " + std::to_string(member);
}

void Group::set_place(std::string place) {
  state_->run->place = std::move(place);
}

void Group::begin_step(int64_t step) {
  set_place("step " + std::to_string(step));
  Run& run = *state_->run;
  if (ranks().is_alone() || run.options.exchange.count() > 0) return;
  run.pace.begin_step(std::chrono::steady_clock::now());
  const auto limit = run.pace.limit();
  if (!limit) return;
  run.limit = *limit;
  run.set_timeout(*limit);
}

TimeoutExtension::TimeoutExtension(Group* group) : group_(group) {
  if (group_) group_->state_->run->set_timeout(kPatience);
}

TimeoutExtension::~TimeoutExtension() {
  if (group_) group_->state_->run->set_timeout(group_->state_->run->limit);
}

bool Group::sends(at::Device device) const {
  return device.is_cpu() || (device.is_cuda() && state_->nccl != nullptr);
}

// One rank alone has all that would be exchanged.
bool Group::exchanges() const {
  return !ranks().is_alone() || state_->run->options.even_alone;
}

void Group::open_gloo() {
  if (!exchanges()) return;
  Run& run = *state_->run;
  if (run.options.transport) {
    state_->gloo = run.options.transport(rank(), size());
    return;
  }
  state_->note("meeting");
  const auto open = [&](const std::string& name) {
    BackendPtr backend = run.with_peers([&] {
      return distributed::open_gloo(run.store(name + " " + state_->name), ranks(), run.limit);
    });
    run.backends.push_back(backend);
    return backend;
  };
  state_->gloo = open("gloo");
  // TORCH_DISTRIBUTED_DEBUG=DETAIL, as in PyTorch: each exchange is compared before it is made.
  if (c10d::debug_level() == c10d::DebugLevel::Detail)
    state_->gloo = c10::make_intrusive<c10d::ProcessGroupWrapper>(state_->gloo, open("comparing"));
}

std::optional<int> Group::gpu() const {
  return state_->run->options.gpu;
}

void Group::meet_gpus() {
  if (gpu()) open_nccl();
}

void Group::open_nccl() {
  if (!exchanges()) return;
  Run& run = *state_->run;
  state_->note("meeting of GPUs");
  using Open =
      void (*)(const c10::intrusive_ptr<c10d::Store>&, int, int, int, milliseconds, BackendPtr&);
  const auto open = reinterpret_cast<Open>(device::cuda_function("atelier_cuda_open_nccl"));
  run.with_peers([&] {
    open(run.store("nccl " + state_->name), rank(), size(), *run.options.gpu, run.limit,
         state_->nccl);
  });
  run.backends.push_back(state_->nccl);
}

// Begins an exchange, and waits for it in the ticket.
template <typename F>
Ticket Group::State::exchange(const char* what, const at::Tensor& sent, F&& begin) {
  if (!run->can_exchange()) return {};
  note(std::string(what) + " of " + std::to_string(sent.numel()) + " " +
       at::toString(sent.scalar_type()));
  const WorkPtr work = run->with_peers(begin);
  std::shared_ptr<const Arrival> arrival;
  if (run->peers && sent.is_cpu()) arrival = std::make_shared<const Arrival>(*work);
  return Ticket([run = run, work, arrival] { run->wait(*work, arrival.get()); });
}

Ticket Group::all_reduce(const at::Tensor& value) {
  if (!exchanges()) return {};
  state_->count(2 * static_cast<int64_t>(value.nbytes()) * (size() - 1) / size());
  return state_->exchange("all-reduce", value, [&] {
    std::vector<at::Tensor> values = {value};
    return state_->backend_of(value).allreduce(values);
  });
}

Ticket Group::broadcast(const at::Tensor& value, int root) {
  if (!exchanges()) return {};
  if (rank() == root) state_->count(static_cast<int64_t>(value.nbytes()));
  const std::string what = "broadcast by rank " + std::to_string(root);
  return state_->exchange(what.c_str(), value, [&] {
    std::vector<at::Tensor> values = {value};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    return state_->backend_of(value).broadcast(values, options);
  });
}

Ticket Group::all_gather(const at::Tensor& whole, const at::Tensor& part) {
  return all_gather(whole, part, "");
}

Ticket Group::all_gather(const at::Tensor& whole, const at::Tensor& part, const std::string& what) {
  if (!exchanges()) {
    whole.view(-1).copy_(part.view(-1));
    return {};
  }
  state_->count(static_cast<int64_t>(part.nbytes()) * (size() - 1));
  at::Tensor out = whole.view(-1), in = part.view(-1);
  const std::string exchange = "all-gather" + (what.empty() ? what : " of " + what + ",");
  return state_->exchange(exchange.c_str(), in,
                          [&] { return state_->backend_of(in)._allgather_base(out, in); });
}

Ticket Group::all_to_all(const at::Tensor& out, const at::Tensor& in) {
  if (!exchanges()) {
    out.view(-1).copy_(in.view(-1));
    return {};
  }
  state_->count(static_cast<int64_t>(in.nbytes()) * (size() - 1) / size());
  at::Tensor to = out.view(-1), from = in.view(-1);
  return state_->exchange("all-to-all", from, [&] {
    std::vector<int64_t> equal;  // none: parts of one size
    return state_->backend_of(from).alltoall_base(to, from, equal, equal);
  });
}

Ticket Group::pass_on(const at::Tensor& out, const at::Tensor& in) {
  if (!exchanges()) {
    out.view(-1).copy_(in.view(-1));
    return {};
  }
  state_->count(static_cast<int64_t>(in.nbytes()));
  at::Tensor to = out.view(-1), from = in.view(-1);
  std::vector<int64_t> sent(static_cast<size_t>(size())), received = sent;
  sent[static_cast<size_t>((rank() + 1) % size())] = from.numel();
  received[static_cast<size_t>((rank() + size() - 1) % size())] = to.numel();
  return state_->exchange("pass to the next rank", from, [&] {
    return state_->backend_of(from).alltoall_base(to, from, received, sent);
  });
}

Ticket Group::reduce_scatter(const at::Tensor& part, const at::Tensor& whole) {
  if (!exchanges()) {
    part.view(-1).copy_(whole.view(-1));
    return {};
  }
  if (whole.is_cuda()) {
    state_->count(static_cast<int64_t>(part.nbytes()) * (size() - 1));
    at::Tensor out = part.view(-1), in = whole.view(-1);
    return state_->exchange("reduce-scatter", in,
                            [&] { return state_->nccl->_reduce_scatter_base(out, in); });
  }
  // Gloo's own is an all-reduce of the whole: it sends twice as much.
  const at::Tensor parts = at::empty({size(), part.numel()}, whole.options());
  auto arrived = std::make_shared<Ticket>(all_to_all(parts, whole));
  return Ticket([arrived, parts, part] {
    arrived->wait();
    at::Tensor sum = part.view(-1);
    sum.copy_(parts[0]);
    for (int64_t r = 1; r < parts.size(0); ++r) sum.add_(parts[r]);
  });
}

std::vector<std::string> Group::gather_texts(const std::string& text) {
  if (!exchanges()) return {text};
  if (!state_->run->peers) return std::vector<std::string>(static_cast<size_t>(size()), text);
  state_->note("agreement");
  return state_->run->peers->gather_texts(text);
}

void Group::compare() {
  if (!state_->run->peers || state_->run->is_leaving) return;
  const auto [count, hash] = state_->run->peers->noted(state_->name);
  const at::Tensor mine = at::tensor({count, static_cast<int64_t>(hash)}, at::kLong);
  const at::Tensor all = at::empty({size(), 2}, at::kLong);
  all_gather(all, mine).wait();
  if (!at::equal(all, mine.expand({size(), 2}))) throw state_->run->peers->lost("exchanges differ");
}

std::array<double, 3> Group::made() const {
  if (!state_->run->peers) return {};
  const auto [count, hash] = state_->run->peers->noted(state_->name);
  constexpr int kHalf = 32;  // of the bits, which a double holds
  return {static_cast<double>(count), static_cast<double>(hash >> kHalf),
          static_cast<double>(hash & UINT32_MAX)};
}

void Group::compare(const at::Tensor& made_by_rank) {
  if (!state_->run->peers) return;
  const at::Tensor of_group = made_by_rank.index_select(0, at::tensor(state_->members));
  if (!at::equal(of_group, of_group[rank()].expand_as(of_group)))
    throw state_->run->peers->lost("exchanges differ");
}

void Group::begin_work() {
  ++state_->run->work;
}

void Group::call_off() {
  Run& run = *state_->run;
  if (run.peers) run.peers->call_off(run.work);
  run.is_leaving = true;
}

bool Group::is_called_off() const {
  return state_->run->is_called_off();
}

// Exchanges that are under way end when they are given up by all. Their threads wait on for what
// does not come, so they are kept to the end of the process.
void Group::leave() {
  gather_texts("");
  Run& run = *state_->run;
  run.has_left = true;
  for (const BackendPtr& backend : run.backends) backend->abort();
  static auto& kept = *new std::vector<BackendPtr>;
  kept = run.backends;
}

void Group::give_up(std::string_view reason) {
  if (state_->run->peers) state_->run->peers->give_up(reason);
}

void Group::part() {
  if (state_->run->peers) state_->run->peers->part();
}

int run_with_others(const Ranks& ranks, const GroupOptions& options,
                    const std::function<int(Group&)>& work) {
  const std::shared_ptr<Group> group = Group::meet(ranks, options);
  try {
    return work(*group);
  } catch (const Error& error) {
    const bool is_found_for_all = error.tag() == kSaidByFirst;
    const bool is_shared = is_found_for_all || error.tag() == kRanksDiffer;
    if (error.tag() == kRanksDiffer) group->part();  // all have found it, and none is lost
    if (is_shared && !group->is_first()) return exit_code(error.code());
    if (is_found_for_all) throw Error(error.code(), error.message(), error.hint());
    if (!is_shared && error.code() != ErrorCode::kPeerLost) group->give_up(error.message());
    throw;
  }
}

}  // namespace atelier::distributed
