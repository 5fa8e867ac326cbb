#include "host/parameters/host_gradients.h"

#include <cmath>
#include <limits>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "atelier/error.h"

#include "support/catch.h"

namespace atelier::parameters {
namespace {

struct NoBlock final : Block {
  NoBlock() : Block(nullptr, "") {}
  Tensors forward(const Tensors& inputs) override { return inputs; }
  std::string_view kind() const override { return "none"; }
};

struct NoGradient : torch::autograd::Function<NoGradient> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) {
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list&) {
    return {at::Tensor()};
  }
};

std::unique_ptr<memory::TransferDevice> make_transfer_device() {
  return memory::make_simulated_device({.bytes_per_second = 1e8, .poison = true});
}

// Four parameters: two of a block, two of another.
struct Trained {
  std::vector<optim::Group> groups{{.parameters = {}, .weight_decay = 0.1}};
  std::unique_ptr<optim::Optimizer> optimizer;

  explicit Trained(at::ScalarType dtype = at::kBFloat16) {
    at::manual_seed(5);
    for (int i = 0; i < 4; ++i) {
      const at::Tensor value = at::randn({7, 5 + i}).to(dtype);
      groups[0].parameters.push_back({"p" + std::to_string(i), value});
    }
    optimizer = optim::make_optimizer(groups, {});
  }
  const at::Tensor& value(size_t i) const { return groups[0].parameters[i].leaf; }
};

// As it might come out of a backward pass: not contiguous.
at::Tensor gradient(const at::Tensor& like, int seed) {
  at::manual_seed(100 + seed);
  return at::randn({like.size(1), like.size(0)}).to(like.scalar_type()).t();
}

// Trained tensors whose gradients come through a HostGradients.
struct Host : Trained {
  std::unique_ptr<memory::TransferDevice> transfer = make_transfer_device();
  NoBlock blocks[2];
  HostGradients gradients{*transfer};
  std::vector<std::shared_ptr<GradientSink>> sinks;

  explicit Host(at::ScalarType dtype = at::kBFloat16) : Trained(dtype) {
    for (size_t i = 0; i < 4; ++i)
      sinks.push_back(gradients.add(groups[0].parameters[i], i, &blocks[i / 2]));
  }

  // A pass in which each block runs `runs` times, the last one first in the backward pass.
  void pass(const std::vector<at::Tensor>& given, int runs, float loss = 1.0F,
            std::optional<HostGradients::Move> move = {}) {
    gradients.begin_pass();
    for (int run = 0; run < runs; ++run) {
      for (const NoBlock& block : blocks) gradients.expect(block);
    }
    gradients.begin_backward(at::full({}, loss), move);
    for (int run = 0; run < runs; ++run) {
      for (const size_t i : {3, 2, 1, 0}) sinks[i]->add(given[i]);
    }
    gradients.finish();
  }
  std::optional<HostGradients::Move> move() { return HostGradients::Move{optimizer.get(), 1e-2}; }
};

std::vector<at::Tensor> gradients_of(const Trained& trained, int seed) {
  std::vector<at::Tensor> all;
  for (size_t i = 0; i < 4; ++i) all.push_back(gradient(trained.value(i), seed * 10 + int(i)));
  return all;
}

bool equal_state(const Trained& a, const Trained& b) {
  NamedTensors mine = a.optimizer->state(), theirs = b.optimizer->state();
  for (size_t i = 0; i < 4; ++i) {
    mine["value " + std::to_string(i)] = a.value(i);
    theirs["value " + std::to_string(i)] = b.value(i);
  }
  return std::all_of(mine.begin(), mine.end(), [&](const auto& entry) {
    return at::equal(entry.second, theirs.at(entry.first));
  });
}

TEST_CASE("Gradients are added up on the host in the parameter's dtype", "[host gradients]") {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    Host host(dtype);
    const auto first = gradients_of(host, 1), second = gradients_of(host, 2);
    host.pass(first, 1);
    host.pass(second, 1);
    for (size_t i = 0; i < 4; ++i) CHECK(at::equal(host.value(i).grad(), first[i] + second[i]));
    CHECK_FALSE(host.gradients.has_moved());
    host.gradients.clear();
    CHECK_FALSE(host.value(0).grad().defined());
  }
}

TEST_CASE("Gradients of one block at most are on their way behind the next one's",
          "[host gradients]") {
  const auto transfer = memory::make_simulated_device({.bytes_per_second = 2e5});  // 0.1 s each
  HostGradients gradients(*transfer);
  NoBlock blocks[3];
  std::vector<optim::Parameter> parameters;
  std::vector<std::shared_ptr<GradientSink>> sinks;
  for (size_t i = 0; i < 3; ++i) {
    parameters.push_back({"p" + std::to_string(i), at::zeros({100, 50})});
    sinks.push_back(gradients.add(parameters[i], i, &blocks[i]));
  }
  gradients.begin_pass();
  for (const NoBlock& block : blocks) gradients.expect(block);
  gradients.begin_backward(at::ones({}), {});
  std::vector<at::Tensor> given;
  for (size_t i = 0; i < 3; ++i) {
    given.push_back(at::ones({100, 50}));
    sinks[i]->add(given[i]);
    // A copy holds what it copies until it is done.
    for (size_t before = 0; before < i; ++before) CHECK(given[before].storage().use_count() == 1);
    CHECK(given[i].storage().use_count() > 1);
  }
  gradients.finish();
  gradients.clear();
}

TEST_CASE("Memory for gradients is used again from step to step", "[host gradients]") {
  Host host;
  int64_t bytes = 0;
  for (int step = 0; step < 4; ++step) {
    for (int batch = 0; batch < 3; ++batch) host.pass(gradients_of(host, batch), 1);
    host.gradients.clear();
    if (step == 0) bytes = host.transfer->stats().host_bytes;
  }
  CHECK(bytes > 0);
  CHECK(host.transfer->stats().host_bytes <= 2 * bytes);
  CHECK(host.transfer->stats().bytes_out > 8 * bytes / 2);
}

TEST_CASE("A leaf's gradients leave it once in a backward pass", "[host gradients]") {
  const auto transfer = make_transfer_device();
  HostGradients gradients(*transfer);
  const at::Tensor leaf = at::randn({3, 4}).requires_grad_(), plain = leaf.detach().clone();
  plain.requires_grad_(true);
  const at::Tensor value = leaf.detach().clone();
  send_gradients(leaf, gradients.add({"leaf", value}, 0, nullptr));
  for (int pass = 0; pass < 2; ++pass) {
    const at::Tensor x = at::randn({3, 4});
    gradients.begin_pass();
    const at::Tensor loss = (leaf * x).sum() + (leaf * leaf).sum();
    gradients.begin_backward(loss);
    loss.backward();
    gradients.finish();
    ((plain * x).sum() + (plain * plain).sum()).backward();
    CHECK_FALSE(leaf.grad().defined());
  }
  CHECK(at::equal(value.grad(), plain.grad()));
  // A node that has no gradient for it.
  gradients.clear();
  gradients.begin_pass();
  gradients.begin_backward(at::ones({}));
  NoGradient::apply(leaf).sum().backward();
  gradients.finish();
  CHECK_FALSE(value.grad().defined());
  keep_gradients(leaf);
  leaf.sum().backward();
  CHECK(leaf.grad().defined());
}

TEST_CASE("A step on the way gives the bits of one after it", "[host gradients]") {
  Trained after;
  Host on_the_way;
  for (int step = 0; step < 3; ++step) {
    // Two passes; in the second one each block runs twice.
    const auto first = gradients_of(after, 2 * step), second = gradients_of(after, 2 * step + 1);
    for (size_t i = 0; i < 4; ++i) {
      at::Tensor leaf = after.value(i);
      leaf.mutable_grad() = (first[i] + second[i] + second[i]).contiguous();
    }
    const auto norm = optim::measure_gradients(after.groups, {}, 0);
    after.optimizer->step(1e-2, norm.grad_scale, norm.is_skipped);

    on_the_way.pass(first, 1);
    on_the_way.pass(second, 2, 1.0F, on_the_way.move());
    CHECK(on_the_way.gradients.has_moved());
    for (size_t i = 0; i < 4; ++i) CHECK_FALSE(on_the_way.value(i).grad().defined());
    const auto measured =
        optim::measure_gradients(on_the_way.groups, {}, 0, on_the_way.gradients.norms());
    on_the_way.optimizer->step(1e-2, measured.grad_scale, measured.is_skipped);
    on_the_way.gradients.clear();
    CHECK(at::equal(measured.norm, norm.norm));
    REQUIRE(equal_state(after, on_the_way));
  }
}

TEST_CASE("On the way, no block moves by gradients or a loss that are not finite",
          "[host gradients]") {
  const Trained before;
  Host host;
  std::vector<at::Tensor> given = gradients_of(host, 0);
  host.pass(given, 1, NAN, host.move());
  CHECK_FALSE(host.gradients.has_moved());
  CHECK(equal_state(before, host));
  host.gradients.clear();

  given[1].index_put_({2, 3}, at::full({}, NAN).to(at::kBFloat16));
  host.pass(given, 1, 1.0F, host.move());
  CHECK(host.gradients.has_moved());
  for (const size_t i : {0, 1}) CHECK(at::equal(host.value(i), before.value(i)));
  for (const size_t i : {2, 3}) CHECK_FALSE(at::equal(host.value(i), before.value(i)));
  const auto measured = optim::measure_gradients(host.groups, {}, 0, host.gradients.norms());
  CHECK(measured.is_skipped.item<float>() == 1);
}

TEST_CASE("A block whose gradients did not all come is left to the end of the step",
          "[host gradients]") {
  const Trained before;
  Host host;
  host.gradients.begin_pass();
  for (const NoBlock& block : host.blocks) host.gradients.expect(block);
  host.gradients.begin_backward(at::ones({}), host.move());
  const auto given = gradients_of(host, 0);
  for (const size_t i : {3, 2, 1}) host.sinks[i]->add(given[i]);
  host.gradients.finish();
  CHECK_FALSE(at::equal(host.value(2), before.value(2)));
  CHECK(at::equal(host.value(1), before.value(1)));
  CHECK(at::equal(host.value(1).grad(), given[1]));
  CHECK_FALSE(host.value(0).grad().defined());
}

TEST_CASE("A step that is given up says whether a block had moved, and no other one moves",
          "[host gradients]") {
  const Trained before;
  Host host;
  const auto given = gradients_of(host, 0);
  host.gradients.begin_pass();
  for (const NoBlock& block : host.blocks) host.gradients.expect(block);
  host.gradients.begin_backward(at::ones({}), host.move());
  for (const size_t i : {3, 2, 1}) host.sinks[i]->add(given[i]);
  const bool has_moved = host.gradients.give_up();
  for (const size_t i : {2, 3}) CHECK(at::equal(host.value(i), before.value(i)) != has_moved);
  for (const size_t i : {0, 1}) CHECK(at::equal(host.value(i), before.value(i)));
  host.gradients.clear();
  for (size_t i = 0; i < 4; ++i) CHECK_FALSE(host.value(i).grad().defined());
  host.pass(given, 1);
  CHECK(at::equal(host.value(1).grad(), given[1]));
}

TEST_CASE("What goes wrong beside the backward pass is thrown at its end", "[host gradients]") {
  Host host;
  const auto prodigy = optim::make_optimizer(host.groups, {.kind = optim::Kind::kProdigy});
  const HostGradients::Move wrong{prodigy.get(), 1.0};  // its steps have no parts
  CHECK_THROWS_AS(host.pass(gradients_of(host, 0), 1, 1.0F, wrong), Error);
  host.gradients.clear();
  host.pass(gradients_of(host, 0), 1);
  CHECK(host.value(0).grad().defined());
}

}  // namespace
}  // namespace atelier::parameters
