#include "host/distributed/group.h"

#include <utility>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <torch/csrc/distributed/c10d/control_collectives/StoreCollectives.hpp>

#include "atelier/error.h"

namespace atelier::distributed {

using std::chrono::milliseconds;

struct Group::State {
  Ranks ranks;
  GroupOptions options;
  c10::intrusive_ptr<c10d::Store> store;
  c10::intrusive_ptr<c10d::Backend> backend;
  std::unique_ptr<c10d::StoreCollectives> control;
  int64_t bytes_sent = 0, said = 0;
};

namespace {

// The first line of what c10d says, which carries a stack behind it.
std::string first_line(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

// Calls `work`, and throws what fails in it as an Error of this program.
template <typename F>
auto with_peers(const Ranks& ranks, std::string_view what, F&& work) {
  try {
    return work();
  } catch (const Error&) {
    throw;
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (const std::exception& error) {
    throw Error(ErrorCode::kPeerLost,
                "rank " + std::to_string(ranks.rank) + " of " + std::to_string(ranks.size) + ", " +
                    std::string(what) + ": " + first_line(error),
                "look at what the other ranks said last");
  }
}

c10::intrusive_ptr<c10d::Store> open_store(const Ranks& ranks, milliseconds limit) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(ranks.port);
  options.isServer = !ranks.has_agent_store && ranks.is_first();
  options.numWorkers = static_cast<size_t>(ranks.size);
  options.multiTenant = true;
  options.timeout = limit;
  return c10::make_intrusive<c10d::TCPStore>(ranks.address, options);
}

c10::intrusive_ptr<c10d::Backend> open_gloo(const c10::intrusive_ptr<c10d::Store>& store,
                                            const Ranks& ranks, milliseconds limit) {
  auto options = c10d::ProcessGroupGloo::Options::create(limit);
  const auto interface = process_environment()("GLOO_SOCKET_IFNAME");
  options->devices.push_back(
      interface ? c10d::ProcessGroupGloo::createDeviceForInterface(*interface)
                : c10d::ProcessGroupGloo::createDefaultDevice());
  return c10::make_intrusive<c10d::ProcessGroupGloo>(store, ranks.rank, ranks.size, options);
}

}  // namespace

std::shared_ptr<Group> Group::meet(const Ranks& ranks, const GroupOptions& options) {
  auto state = std::make_unique<State>();
  state->ranks = ranks;
  state->options = options;
  if (!ranks.is_alone()) {
    const std::string place = ranks.address + ":" + std::to_string(ranks.port);
    with_peers(ranks, "meeting at " + place, [&] {
      const auto whole = open_store(ranks, options.meeting);
      // What an earlier attempt of a restarted run left in the agent's store is not read.
      state->store = c10::make_intrusive<c10d::PrefixStore>(
          "atelier/" + std::to_string(ranks.restarts), whole);
      state->control =
          std::make_unique<c10d::StoreCollectives>(state->store, ranks.rank, ranks.size);
      state->backend = open_gloo(c10::make_intrusive<c10d::PrefixStore>("gloo", state->store),
                                 ranks, options.exchange);
    });
  }
  return std::shared_ptr<Group>(new Group(std::move(state)));
}

Group::Group(std::unique_ptr<State> state) : state_(std::move(state)) {}
Group::~Group() = default;

const Ranks& Group::ranks() const {
  return state_->ranks;
}

int64_t Group::bytes_sent() const {
  return state_->bytes_sent;
}

namespace {

// Begins an exchange, and waits for it in the ticket.
template <typename F>
Ticket exchange(const Ranks& ranks, std::string_view what, F&& begin,
                std::function<void()> finish = {}) {
  const c10::intrusive_ptr<c10d::Work> work = with_peers(ranks, what, begin);
  return Ticket([&ranks, what, work, finish = std::move(finish)] {
    with_peers(ranks, what, [&] { work->wait(); });
    if (finish) finish();
  });
}

}  // namespace

Ticket Group::all_reduce(const at::Tensor& value) {
  if (ranks().is_alone()) return {};
  state_->bytes_sent += 2 * static_cast<int64_t>(value.nbytes()) * (size() - 1) / size();
  return exchange(ranks(), "all-reduce", [&] {
    std::vector<at::Tensor> values = {value};
    return state_->backend->allreduce(values);
  });
}

Ticket Group::broadcast(const at::Tensor& value, int root) {
  if (ranks().is_alone()) return {};
  if (rank() == root) state_->bytes_sent += static_cast<int64_t>(value.nbytes());
  return exchange(ranks(), "broadcast", [&] {
    std::vector<at::Tensor> values = {value};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    return state_->backend->broadcast(values, options);
  });
}

Ticket Group::all_gather(const at::Tensor& whole, const at::Tensor& part) {
  if (ranks().is_alone()) {
    whole.view(-1).copy_(part.view(-1));
    return {};
  }
  state_->bytes_sent += static_cast<int64_t>(part.nbytes()) * (size() - 1);
  at::Tensor out = whole.view(-1), in = part.view(-1);
  return exchange(ranks(), "all-gather",
                  [&] { return state_->backend->_allgather_base(out, in); });
}

Ticket Group::all_to_all(const at::Tensor& out, const at::Tensor& in) {
  if (ranks().is_alone()) {
    out.view(-1).copy_(in.view(-1));
    return {};
  }
  state_->bytes_sent += static_cast<int64_t>(in.nbytes()) * (size() - 1) / size();
  at::Tensor to = out.view(-1), from = in.view(-1);
  return exchange(ranks(), "all-to-all", [&] {
    std::vector<int64_t> equal;  // none: parts of one size
    return state_->backend->alltoall_base(to, from, equal, equal);
  });
}

// Gloo's own is an all-reduce of the whole: it sends twice as much.
Ticket Group::reduce_scatter(const at::Tensor& part, const at::Tensor& whole) {
  if (ranks().is_alone()) {
    part.view(-1).copy_(whole.view(-1));
    return {};
  }
  const at::Tensor parts = at::empty({size(), part.numel()}, whole.options());
  auto arrived = std::make_shared<Ticket>(all_to_all(parts, whole));
  return Ticket([arrived, parts, part] {
    arrived->wait();
    at::Tensor sum = part.view(-1);
    sum.copy_(parts[0]);
    for (int64_t r = 1; r < parts.size(0); ++r) sum.add_(parts[r]);
  });
}

std::vector<std::string> Group::say(const std::string& text) {
  if (ranks().is_alone()) return {text};
  return with_peers(ranks(), "agreement", [&] {
    const std::vector<uint8_t> mine(text.begin(), text.end());
    const auto all = state_->control->allGather("say/" + std::to_string(state_->said++), mine,
                                                state_->options.exchange);
    std::vector<std::string> texts;
    for (const std::vector<uint8_t>& one : all) texts.emplace_back(one.begin(), one.end());
    return texts;
  });
}

}  // namespace atelier::distributed
