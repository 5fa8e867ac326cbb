#include "host/distributed/group.h"

#include <utility>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "atelier/error.h"

#include "host/device/cuda.h"
#include "host/distributed/handshake.h"
#include "host/distributed/pace.h"
#include "host/distributed/peers.h"

namespace atelier::distributed {

using std::chrono::milliseconds;

struct Group::State {
  Ranks ranks;
  std::unique_ptr<Peers> peers;                  // null: there are none
  c10::intrusive_ptr<c10d::Backend> gloo, nccl;  // nccl: null without a GPU
  GroupOptions options;
  Pace pace;
  std::string place;
  int64_t bytes_sent = 0;

  void note(const std::string& exchange) const {
    peers->note(place.empty() ? exchange : place + ", " + exchange);
  }
  milliseconds first_limit() const {
    return options.exchange.count() > 0 ? options.exchange : options.meeting;
  }
  c10d::Backend& backend_of(const at::Tensor& tensor) const {
    return tensor.is_cuda() ? *nccl : *gloo;
  }
  template <typename F>
  Ticket exchange(const char* what, const at::Tensor& sent, F&& begin);
};

namespace {

// Calls `work`, and throws what fails in it as an Error that says who is lost.
template <typename F>
auto with_peers(Peers& peers, F&& work) {
  std::string reason;
  try {
    return work();
  } catch (const Error&) {
    throw;
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (const std::exception& error) {
    reason = error.what();
  }
  throw peers.lost(reason.substr(0, reason.find('\n')));  // a stack stands behind it
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
    state->peers = std::make_unique<Peers>(ranks, options.meeting);
    state->note("meeting");
    state->gloo = with_peers(*state->peers, [&] {
      const auto store = c10::make_intrusive<c10d::PrefixStore>("gloo", state->peers->store());
      return open_gloo(store, ranks, state->first_limit());
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

std::string Group::name_of(int rank) const {
  return state_->peers ? state_->peers->name_of(rank) : "rank " + std::to_string(rank);
}

void Group::set_place(std::string place) {
  state_->place = std::move(place);
}

void Group::begin_step(int64_t step) {
  set_place("step " + std::to_string(step));
  if (ranks().is_alone() || state_->options.exchange.count() > 0) return;
  state_->pace.begin_step(std::chrono::steady_clock::now());
  const auto limit = state_->pace.limit();
  if (!limit) return;
  state_->gloo->setTimeout(*limit);
  if (state_->nccl) state_->nccl->setTimeout(*limit);
}

bool Group::sends(at::Device device) const {
  return device.is_cpu() || (device.is_cuda() && state_->nccl != nullptr);
}

void Group::open_nccl(int gpu) {
  require_own_gpus(*this, device::gpu_identity(gpu));
  state_->note("meeting of GPUs");
  using Open = void (*)(const c10::intrusive_ptr<c10d::Store>&, int, int, int, milliseconds,
                        c10::intrusive_ptr<c10d::Backend>&);
  const auto open = reinterpret_cast<Open>(device::cuda_function("atelier_cuda_open_nccl"));
  with_peers(*state_->peers, [&] {
    const c10::intrusive_ptr<c10d::Store> store =
        c10::make_intrusive<c10d::PrefixStore>("nccl", state_->peers->store());
    open(store, rank(), size(), gpu, state_->first_limit(), state_->nccl);
  });
}

// Begins an exchange, and waits for it in the ticket, which does not outlive the group.
template <typename F>
Ticket Group::State::exchange(const char* what, const at::Tensor& sent, F&& begin) {
  note(std::string(what) + " of " + std::to_string(sent.numel()) + " " +
       at::toString(sent.scalar_type()));
  const c10::intrusive_ptr<c10d::Work> work = with_peers(*peers, begin);
  return Ticket([this, work] { with_peers(*peers, [&] { work->wait(); }); });
}

Ticket Group::all_reduce(const at::Tensor& value) {
  if (ranks().is_alone()) return {};
  state_->bytes_sent += 2 * static_cast<int64_t>(value.nbytes()) * (size() - 1) / size();
  return state_->exchange("all-reduce", value, [&] {
    std::vector<at::Tensor> values = {value};
    return state_->backend_of(value).allreduce(values);
  });
}

Ticket Group::broadcast(const at::Tensor& value, int root) {
  if (ranks().is_alone()) return {};
  if (rank() == root) state_->bytes_sent += static_cast<int64_t>(value.nbytes());
  const std::string what = "broadcast by rank " + std::to_string(root);
  return state_->exchange(what.c_str(), value, [&] {
    std::vector<at::Tensor> values = {value};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    return state_->backend_of(value).broadcast(values, options);
  });
}

Ticket Group::all_gather(const at::Tensor& whole, const at::Tensor& part) {
  if (ranks().is_alone()) {
    whole.view(-1).copy_(part.view(-1));
    return {};
  }
  state_->bytes_sent += static_cast<int64_t>(part.nbytes()) * (size() - 1);
  at::Tensor out = whole.view(-1), in = part.view(-1);
  return state_->exchange("all-gather", in,
                          [&] { return state_->backend_of(in)._allgather_base(out, in); });
}

Ticket Group::all_to_all(const at::Tensor& out, const at::Tensor& in) {
  if (ranks().is_alone()) {
    out.view(-1).copy_(in.view(-1));
    return {};
  }
  state_->bytes_sent += static_cast<int64_t>(in.nbytes()) * (size() - 1) / size();
  at::Tensor to = out.view(-1), from = in.view(-1);
  return state_->exchange("all-to-all", from, [&] {
    std::vector<int64_t> equal;  // none: parts of one size
    return state_->backend_of(from).alltoall_base(to, from, equal, equal);
  });
}

Ticket Group::reduce_scatter(const at::Tensor& part, const at::Tensor& whole) {
  if (ranks().is_alone()) {
    part.view(-1).copy_(whole.view(-1));
    return {};
  }
  if (whole.is_cuda()) {
    state_->bytes_sent += static_cast<int64_t>(part.nbytes()) * (size() - 1);
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

std::vector<std::string> Group::say(const std::string& text) {
  if (ranks().is_alone()) return {text};
  state_->note("agreement");
  return state_->peers->say(text);
}

void Group::compare() {
  if (ranks().is_alone()) return;
  const auto [count, hash] = state_->peers->noted();
  const at::Tensor mine = at::tensor({count, static_cast<int64_t>(hash)}, at::kLong);
  const at::Tensor all = at::empty({size(), 2}, at::kLong);
  all_gather(all, mine).wait();
  if (!at::equal(all, mine.expand({size(), 2}))) throw state_->peers->lost("exchanges differ");
}

void Group::give_up(std::string_view reason) {
  if (!ranks().is_alone()) state_->peers->give_up(reason);
}

void Group::part() {
  if (!ranks().is_alone()) state_->peers->part();
}

int run_with_others(const Ranks& ranks, const GroupOptions& options,
                    const std::function<int(Group&)>& work) {
  const std::shared_ptr<Group> group = Group::meet(ranks, options);
  try {
    if (options.gpu && !ranks.is_alone()) group->open_nccl(*options.gpu);
    return work(*group);
  } catch (const Error& error) {
    const bool is_shared = error.tag() == kSaidByFirst;
    if (is_shared && !group->is_first()) return exit_code(error.code());
    if (!is_shared && error.code() != ErrorCode::kPeerLost) group->give_up(error.message());
    throw;
  }
}

}  // namespace atelier::distributed
