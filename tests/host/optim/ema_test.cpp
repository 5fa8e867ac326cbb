#include "host/optim/ema.h"

#include <ATen/ATen.h>

#include "atelier/error.h"

#include "memory/transfer_device.h"
#include "support/catch.h"

namespace atelier::optim {
namespace {

std::vector<Group> groups_of(const std::vector<at::Tensor>& leaves) {
  Group group;
  for (const char* name : {"p0", "p1"}) {
    if (group.parameters.size() == leaves.size()) break;
    group.parameters.push_back({name, leaves[group.parameters.size()]});
  }
  return {group};
}

NamedTensors copy_of(const NamedTensors& tensors) {
  NamedTensors copies;
  for (const auto& [name, value] : tensors) copies[name] = value.clone();
  return copies;
}

TEST_CASE("The average follows the leaf, slower with every step", "[optim]") {
  const at::Tensor leaf = at::zeros({3}).requires_grad_();
  Ema ema(groups_of({leaf}), 0.15);
  double average = 0;
  int n = 0;
  for (const double value : {1.0, 2.0, 5.0, -1.0}) {
    leaf.detach().fill_(value);
    ema.update();
    const double decay = std::min(0.15, (1.0 + n) / (10.0 + n));  // 0.1, then 0.15
    average = decay * average + (1 - decay) * value;
    CHECK(ema.state().at("p0")[1].item<double>() == Approx(average));
    CHECK(ema.state().at("num_updates").item<int64_t>() == ++n);
  }
}

TEST_CASE("Of components that take turns the average of one moves, and counts its steps",
          "[optim]") {
  const auto leaf = [] { return at::zeros({3}).requires_grad_(); };
  const Group group = {{{"a.x", leaf()}, {"b.x", leaf()}, {"text.x", leaf()}}};
  Ema turns({group}, 0.9, nullptr, {{"a", "a"}, {"b", "b"}});
  std::map<std::string, std::unique_ptr<Ema>> alone;  // each of the steps that move it
  for (const Parameter& parameter : group.parameters)
    alone[parameter.name] = std::make_unique<Ema>(std::vector{Group{{parameter}}}, 0.9);
  double value = 0;
  for (const std::string moved : {"a", "b", "b", "a", "b"}) {
    value += 1;
    for (const Parameter& parameter : group.parameters) {
      if (!parameter.name.starts_with(moved) && parameter.name != "text.x") continue;
      parameter.leaf.detach().fill_(value);
      alone[parameter.name]->update();
    }
    const NamedTensors before = copy_of(turns.state());
    turns.update(moved);
    const std::string idle = moved == "a" ? "b" : "a";
    for (const std::string& name : {idle + ".x", "num_updates." + idle})
      CHECK(at::equal(turns.state().at(name), before.at(name)));
  }
  for (const auto& [name, ema] : alone)
    CHECK(at::equal(turns.state().at(name), ema->state().at(name)));
  CHECK(turns.state().at("num_updates.b").item<int64_t>() == 3);
  CHECK(turns.state().at("num_updates").item<int64_t>() == 5);
}

// Counts what it is asked for.
class CountingDevice final : public memory::TransferDevice {
 public:
  int copies = 0, waits_of_computing = 0, waits_of_host = 0;

  at::Device device() const override { return inner_->device(); }
  at::Tensor device_memory(int64_t bytes) override { return inner_->device_memory(bytes); }
  at::Tensor host_memory(int64_t bytes) override { return inner_->host_memory(bytes); }
  at::Tensor pin(std::shared_ptr<void> memory, int64_t bytes) override {
    return inner_->pin(std::move(memory), bytes);
  }
  memory::Ticket copy_in(const at::Tensor& from, const at::Tensor& to,
                         const memory::Ticket& after) override {
    return inner_->copy_in(from, to, after);
  }
  memory::Ticket copy_out(const at::Tensor& from, const at::Tensor& to,
                          const memory::Ticket& after) override {
    ++copies;
    return inner_->copy_out(from, to, after);
  }
  memory::Ticket exchange(const std::function<std::function<void()>()>& begin, const at::Tensor& to,
                          const memory::Ticket& after) override {
    return inner_->exchange(begin, to, after);
  }
  memory::Ticket computed() override { return inner_->computed(); }
  void compute_after(const memory::Ticket& ticket) override {
    ++waits_of_computing;
    inner_->compute_after(ticket);
  }
  void wait(const memory::Ticket& ticket) override {
    ++waits_of_host;
    inner_->wait(ticket);
  }
  Stats stats() const override { return inner_->stats(); }

 private:
  std::unique_ptr<memory::TransferDevice> inner_ = memory::make_simulated_device({});
};

TEST_CASE("A leaf is read from its device while nobody waits, and then written again", "[optim]") {
  const at::Tensor wide = at::zeros({500, 40}), narrow = at::ones({9}).to(at::kBFloat16);
  CountingDevice device;
  Ema ema(groups_of({wide, narrow}), 0.1, &device);
  wide.fill_(4);
  ema.read();
  CHECK(device.copies == 2);
  CHECK(device.waits_of_computing + device.waits_of_host == 0);
  ema.release();
  CHECK(device.waits_of_computing == 1);
  wide.fill_(1000);
  CHECK(device.waits_of_host == 0);
  ema.update();
  CHECK(device.waits_of_host == 1);
  CHECK(ema.state().at("p0").equal(at::full({500, 40}, 0.9f * 4)));
  CHECK(ema.state().at("p1").equal(at::ones({9})));
}

TEST_CASE("Leaves have the average after a swap and their own bits after another", "[optim]") {
  at::manual_seed(2);
  const at::Tensor wide = at::randn({5, 3}).requires_grad_();
  const at::Tensor narrow = at::randn({9}).to(at::kBFloat16).requires_grad_();
  Ema ema(groups_of({wide, narrow}), 0.9);
  wide.detach().add_(1);
  narrow.detach().add_(1);
  ema.update();
  const NamedTensors state = copy_of(ema.state());
  const at::Tensor wide_before = wide.detach().clone(), narrow_before = narrow.detach().clone();
  ema.swap();
  CHECK(wide.detach().equal(state.at("p0")));
  CHECK(narrow.detach().equal(state.at("p1").to(at::kBFloat16)));
  CHECK_FALSE(wide.detach().equal(wide_before));
  ema.swap();
  CHECK(wide.detach().equal(wide_before));
  CHECK(narrow.detach().equal(narrow_before));
  for (const auto& [name, value] : ema.state()) CHECK(value.equal(state.at(name)));
}

TEST_CASE("An average that is loaded goes on to the bit", "[optim]") {
  at::manual_seed(3);
  const std::vector<at::Tensor> leaves = {at::randn({7}), at::randn({2, 2}).to(at::kHalf)};
  Ema whole(groups_of(leaves), 0.99);
  const auto move = [&](Ema& ema, double by) {
    for (const at::Tensor& leaf : leaves) leaf.detach().add_(by);
    ema.update();
  };
  move(whole, 0.1);
  const NamedTensors saved = copy_of(whole.state());
  Ema resumed(groups_of(leaves), 0.99);
  resumed.load_state(saved);
  move(whole, 0.1);
  resumed.update();
  for (const auto& [name, value] : whole.state()) CHECK(value.equal(resumed.state().at(name)));
}

TEST_CASE("An average of other parameters is refused", "[optim]") {
  Ema ema(groups_of({at::ones({3})}), 0.9);
  const NamedTensors other = {{"p0", at::zeros({4})}, {"q", at::zeros({1})}};
  REQUIRE_THROWS_WITH(ema.load_state(other), Catch::Contains(R"(missing "num_updates")") &&
                                                 Catch::Contains(R"(unexpected "q")") &&
                                                 Catch::Contains("Float [4], expected Float [3]"));
  CHECK(ema.state().at("p0").equal(at::ones({3})));
}

}  // namespace
}  // namespace atelier::optim
