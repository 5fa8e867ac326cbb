#include "host/optim/optimizer.h"

#include <barrier>
#include <limits>
#include <thread>

#include <ATen/ATen.h>

#include "atelier/error.h"

#include "host/optim/blockwise.h"
#include "memory/live_bytes.h"
#include "support/catch.h"

namespace atelier::optim {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr Kind kKinds[] = {Kind::kAdamW, Kind::kAdamW8bit, Kind::kAdafactor, Kind::kProdigy};
// Large enough for quantised moments, with a ragged last block; a matrix, a vector and a scalar.
const std::vector<std::vector<int64_t>> kShapes = {{67, 63}, {11, 5}, {13}, {}};
const std::vector<std::string> kNames = {"p0", "p1", "p2", "p3"};

struct Variant {
  Kind kind;
  at::ScalarType dtype;
  MasterWeights master_weights;
};

std::vector<Variant> variants() {
  std::vector<Variant> all;
  for (const Kind kind : kKinds) {
    all.push_back({kind, at::kFloat, MasterWeights::kFp32});
    for (const auto dtype : {at::kBFloat16, at::kHalf}) {
      all.push_back({kind, dtype, MasterWeights::kFp32});
      all.push_back({kind, dtype, MasterWeights::kStochastic});
    }
  }
  return all;
}

Options options_of(const Variant& variant) {
  Options options{.kind = variant.kind, .master_weights = variant.master_weights, .seed = 4};
  options.prodigy_d0 = 1e-2;
  options.prodigy_use_bias_correction = true;
  options.scale_parameter = true;
  return options;
}

// Leaves with random values, in two groups.
std::vector<Group> make_groups(at::ScalarType dtype) {
  at::manual_seed(11);
  std::vector<Group> groups = {{.parameters = {}, .weight_decay = 0.1},
                               {.parameters = {}, .lr_scale = 2.0}};
  for (size_t i = 0; i < kShapes.size(); ++i) {
    const at::Tensor leaf = at::randn(kShapes[i]).add_(0.1).to(dtype).requires_grad_();
    groups[i % 2].parameters.push_back({kNames[i], leaf});
  }
  return groups;
}

void set_gradients(const std::vector<Group>& groups, int step) {
  at::manual_seed(100 + step);
  for (const Group& group : groups) {
    for (Parameter parameter : group.parameters) {
      const at::Tensor& leaf = parameter.leaf;
      parameter.leaf.mutable_grad() = at::randn(leaf.sizes()).mul_(0.1).to(leaf.scalar_type());
    }
  }
}

void fill_gradients(const std::vector<Group>& groups, double value) {
  for (const Group& group : groups) {
    for (const Parameter& parameter : group.parameters) parameter.leaf.grad().fill_(value);
  }
}

const at::Tensor kOne = at::ones({});
const at::Tensor kZero = at::zeros({});

// The bytes of all leaves and of the whole state.
std::map<std::string, std::string> bytes_of(const std::vector<Group>& groups,
                                            const Optimizer& optimizer) {
  NamedTensors tensors = optimizer.state();
  for (const Group& group : groups) {
    for (const Parameter& parameter : group.parameters)
      tensors[parameter.name] = parameter.leaf.detach();
  }
  std::map<std::string, std::string> bytes;
  for (const auto& [name, value] : tensors) {
    bytes[name] = std::string(static_cast<const char*>(value.const_data_ptr()), value.nbytes());
  }
  return bytes;
}

TEST_CASE("A skipped step changes not a bit, whatever the gradients are", "[optim]") {
  const at::Tensor nan_scale = at::full({}, kNan);
  for (const Variant& variant : variants()) {
    const auto groups = make_groups(variant.dtype);
    const auto optimizer = make_optimizer(groups, options_of(variant));
    for (int step = 0; step < 3; ++step) {
      const auto before = bytes_of(groups, *optimizer);
      for (const double value : {kNan, 1.0, kInfinity, 0.0}) {
        set_gradients(groups, step);
        fill_gradients(groups, value);
        optimizer->step(1e-2, nan_scale, kOne);
        REQUIRE(bytes_of(groups, *optimizer) == before);
      }
      set_gradients(groups, step);
      optimizer->step(1e-2, kOne, kZero);
      const auto after = bytes_of(groups, *optimizer);
      CHECK(after.at("p0") != before.at("p0"));
      CHECK(after.at("p0.step") != before.at("p0.step"));
    }
  }
}

TEST_CASE("Gradients count divided by the scale", "[optim]") {
  for (const Variant& variant : variants()) {
    if (variant.dtype != at::kFloat) continue;
    const auto plain = make_groups(variant.dtype), scaled = make_groups(variant.dtype);
    const auto first = make_optimizer(plain, options_of(variant));
    const auto second = make_optimizer(scaled, options_of(variant));
    for (int step = 0; step < 3; ++step) {
      set_gradients(plain, step);
      set_gradients(scaled, step);
      for (const Group& group : scaled) {
        for (const Parameter& parameter : group.parameters) parameter.leaf.grad().mul_(8);
      }
      first->step(1e-2, kOne, kZero);
      second->step(1e-2, at::full({}, 8.0), kZero);
    }
    CHECK(bytes_of(plain, *first) == bytes_of(scaled, *second));
  }
}

TEST_CASE("A step in parts gives the bits of a whole one", "[optim]") {
  for (const Variant& variant : variants()) {
    const auto whole = make_groups(variant.dtype), parts = make_groups(variant.dtype);
    const auto first = make_optimizer(whole, options_of(variant));
    const auto second = make_optimizer(parts, options_of(variant));
    const bool has_parts = variant.kind == Kind::kAdamW || variant.kind == Kind::kAdamW8bit;
    REQUIRE(second->has_parts() == has_parts);
    if (!has_parts) {
      CHECK_THROWS_AS(second->step_part({}, 1e-2, kOne, kZero), Error);
      continue;
    }
    for (int step = 0; step < 3; ++step) {
      set_gradients(whole, step);
      set_gradients(parts, step);
      first->step(1e-2, kOne, kZero);
      // The parameters of the second group, then the first one of the first; the rest is left over.
      for (const std::vector<size_t>& places : {std::vector<size_t>{3, 2}, {0}}) {
        second->step_part(places, 1e-2, kOne, kZero);
        for (const size_t place : places) {
          at::Tensor leaf = parts[place / 2].parameters[place % 2].leaf;
          leaf.mutable_grad() = at::Tensor();
        }
      }
      second->step(1e-2, kOne, kZero);
      REQUIRE(bytes_of(whole, *first) == bytes_of(parts, *second));
    }
  }
}

TEST_CASE("Norms that were measured before count as gradients that are there", "[optim]") {
  const auto groups = make_groups(at::kBFloat16);
  set_gradients(groups, 0);
  const at::Tensor norm = measure_gradients(groups, {}, 1.0).norm;
  NamedTensors measured;
  for (const size_t place : {0, 3}) {
    Parameter parameter = groups[place / 2].parameters[place % 2];
    measured[parameter.name] = gradient_norms({parameter.leaf.grad()})[0];
    parameter.leaf.mutable_grad() = at::Tensor();
  }
  CHECK(at::equal(measure_gradients(groups, {}, 1.0, measured).norm, norm));
  CHECK(measure_gradients(groups, {}, 1.0).norm.item<float>() < norm.item<float>());
}

TEST_CASE("A parameter without a gradient is left alone", "[optim]") {
  for (const Variant& variant : variants()) {
    const auto groups = make_groups(variant.dtype);
    const auto optimizer = make_optimizer(groups, options_of(variant));
    set_gradients(groups, 0);
    optimizer->step(1e-2, kOne, kZero);
    const auto before = bytes_of(groups, *optimizer);
    set_gradients(groups, 1);
    Parameter dead = groups[0].parameters[0];
    dead.leaf.mutable_grad().reset();
    optimizer->step(1e-2, kOne, kZero);
    for (const auto& [name, bytes] : bytes_of(groups, *optimizer)) {
      if (name.starts_with("p0")) CHECK(bytes == before.at(name));
      if (name == "p1" || name == "p1.step") CHECK(bytes != before.at(name));
    }
  }
}

TEST_CASE("A state that is loaded goes on to the bit", "[optim]") {
  for (const Variant& variant : variants()) {
    const auto groups = make_groups(variant.dtype);
    const auto optimizer = make_optimizer(groups, options_of(variant));
    const auto run = [](const std::vector<Group>& groups, Optimizer& optimizer, int step) {
      set_gradients(groups, step);
      optimizer.step(1e-2, kOne, kZero);
      optimizer.step(1e-2, kOne, kOne);
    };
    run(groups, *optimizer, 0);
    run(groups, *optimizer, 1);
    NamedTensors saved;
    for (const auto& [name, value] : optimizer->state()) saved[name] = value.clone();
    const auto resumed_groups = make_groups(variant.dtype);
    for (size_t i = 0; i < groups.size(); ++i) {
      for (size_t k = 0; k < groups[i].parameters.size(); ++k) {
        resumed_groups[i].parameters[k].leaf.detach().copy_(groups[i].parameters[k].leaf.detach());
      }
    }
    const auto resumed = make_optimizer(resumed_groups, options_of(variant));
    resumed->load_state(saved);
    run(groups, *optimizer, 2);
    run(resumed_groups, *resumed, 2);
    CHECK(bytes_of(groups, *optimizer) == bytes_of(resumed_groups, *resumed));
  }
}

TEST_CASE("A state that does not fit is refused whole, with all that is wrong", "[optim]") {
  const auto groups = make_groups(at::kFloat);
  const auto optimizer = make_optimizer(groups, {.kind = Kind::kAdamW});
  NamedTensors state;
  for (const auto& [name, value] : optimizer->state()) state[name] = at::ones_like(value);
  state.erase("p3.step");
  state["p9.step"] = at::zeros({});
  state["p1.exp_avg"] = at::zeros({5, 11});
  state["p2.exp_avg"] = at::zeros({13}, at::kDouble);
  REQUIRE_THROWS_WITH(optimizer->load_state(state),
                      Catch::Contains(R"(missing "p3.step")") &&
                          Catch::Contains(R"(unexpected "p9.step")") &&
                          Catch::Contains(R"(another shape or type "p1.exp_avg", "p2.exp_avg")") &&
                          Catch::Contains("the first is Float [5, 11], expected Float [11, 5]"));
  for (const auto& [name, value] : optimizer->state()) CHECK(value.eq(0).all().item<bool>());
}

TEST_CASE("Leaves that no optimizer can move are refused by name", "[optim]") {
  const auto make = [](const at::Tensor& leaf) {
    return make_optimizer({{.parameters = {{"a.b", leaf}}}}, {});
  };
  REQUIRE_THROWS_WITH(make(at::ones({2}, at::kDouble)),
                      Catch::Contains(R"("a.b": Double cannot be trained)"));
  REQUIRE_THROWS_WITH(make(at::ones({2, 3}).t()),
                      Catch::Contains(R"("a.b": a tensor that is not contiguous)"));
  const at::Tensor leaf = at::ones({2});
  REQUIRE_THROWS_WITH(make_optimizer({{.parameters = {{"a", leaf}, {"a", leaf}}}}, {}),
                      Catch::Contains(R"("a.step")"));
}

TEST_CASE("bfloat16 weights move at a learning rate of 1e-5", "[optim]") {
  constexpr int kSteps = 50;
  constexpr double kRate = 1e-5;
  const at::Tensor start = at::full({20000}, 0.75).to(at::kBFloat16);
  REQUIRE(
      (start.to(at::kFloat) - kRate).to(at::kBFloat16).equal(start));  // plain rounding does not
  for (const Kind kind : kKinds) {
    for (const auto master_weights : {MasterWeights::kStochastic, MasterWeights::kFp32}) {
      const at::Tensor leaf = start.clone().requires_grad_();
      at::Tensor(leaf).mutable_grad() = at::full({20000}, 0.01).to(at::kBFloat16);
      Options options{.kind = kind, .master_weights = master_weights};
      options.prodigy_d0 = 1.0;
      options.prodigy_use_bias_correction = true;
      const auto optimizer = make_optimizer({{.parameters = {{"p", leaf}}}}, options);
      for (int step = 0; step < kSteps; ++step) optimizer->step(kRate, kOne, kZero);
      const at::Tensor value = leaf.detach().to(at::kDouble);
      const at::Tensor wanted = at::full({}, 0.75 - kRate * kSteps);  // a unit in each step
      if (master_weights == MasterWeights::kFp32) {
        CHECK(optimizer->state().at("p.master").allclose(wanted, 1e-4, 1e-5));
      } else {
        // Steps of 2^-8 down with a probability of rate / 2^-8 each: five standard errors.
        const double error = 5 * std::sqrt(kRate * kSteps * 0x1p-8 / 20000);
        CHECK(value.mean().item<double>() == Approx(wanted.item<double>()).margin(error));
        CHECK(value.min().item<double>() < 0.75);
      }
    }
  }
}

TEST_CASE("Stochastic rounding depends on the seed alone", "[optim]") {
  const auto run = [](uint64_t seed) {
    const auto groups = make_groups(at::kBFloat16);
    const auto optimizer =
        make_optimizer(groups, {.master_weights = MasterWeights::kStochastic, .seed = seed});
    for (int step = 0; step < 3; ++step) {
      set_gradients(groups, step);
      optimizer->step(1e-3, kOne, kZero);
    }
    return bytes_of(groups, *optimizer).at("p0");
  };
  CHECK(run(1) == run(1));
  CHECK(run(1) != run(2));
}

TEST_CASE("The state takes the bytes that the documentation says", "[optim]") {
  const int64_t size = 64 * 128;
  const auto bytes = [&](Kind kind, at::ScalarType dtype, MasterWeights master_weights) {
    const at::Tensor leaf = at::zeros({64, 128}, dtype);
    return make_optimizer({{.parameters = {{"p", leaf}}}},
                          {.kind = kind, .master_weights = master_weights})
        ->state_bytes();
  };
  constexpr auto kFp32 = MasterWeights::kFp32, kStochastic = MasterWeights::kStochastic;
  CHECK(bytes(Kind::kAdamW, at::kFloat, kFp32) == 8 * size + 4);
  CHECK(bytes(Kind::kAdamW, at::kBFloat16, kFp32) == 12 * size + 4);
  CHECK(bytes(Kind::kAdamW, at::kBFloat16, kStochastic) == 8 * size + 4 + 8);
  CHECK(bytes(Kind::kAdamW8bit, at::kFloat, kFp32) == 2 * size + 2 * 4 * size / 256 + 4);
  CHECK(bytes(Kind::kAdafactor, at::kFloat, kFp32) == 4 * (64 + 128) + 4);
  CHECK(bytes(Kind::kProdigy, at::kFloat, kFp32) == 16 * size + 4 + 3 * 8);
}

TEST_CASE("A step holds what its optimizer says", "[optim]") {
  for (const Variant& variant : variants()) {
    CAPTURE(int(variant.kind), variant.dtype, int(variant.master_weights));
    Group group;
    for (int i = 0; i < 3; ++i) {
      const at::Tensor leaf = at::randn({512, 256}).to(variant.dtype).requires_grad_();
      leaf.mutable_grad() = at::ones_like(leaf);
      group.parameters.push_back({"p" + std::to_string(i), leaf});
    }
    const auto optimizer = make_optimizer({group}, options_of(variant));
    optimizer->step(1e-3, kOne, kZero);  // makes what stays
    int64_t measured = 0;
    {
      const memory::LiveBytes bytes(at::kCPU);
      optimizer->step(1e-3, kOne, kZero);
      measured = bytes.peak();
    }
    constexpr int64_t kScalars = 16 << 10;
    CHECK(measured <= optimizer->step_bytes() + kScalars);
    CHECK(measured >= optimizer->step_bytes());
  }
}

TEST_CASE("Every optimizer goes down a bowl", "[optim]") {
  for (const Kind kind : kKinds) {
    at::manual_seed(1);
    const at::Tensor middle = at::randn({80, 64});
    const at::Tensor leaf = at::zeros({80, 64}).requires_grad_();
    Options options{.kind = kind};
    options.prodigy_d0 = 1e-3;
    const auto optimizer = make_optimizer({{.parameters = {{"p", leaf}}}}, options);
    const double rate = kind == Kind::kProdigy ? 1.0 : 0.02;
    for (int step = 0; step < 150; ++step) {
      at::Tensor(leaf).mutable_grad() = leaf.detach() - middle;
      optimizer->step(rate, kOne, kZero);
    }
    CHECK((leaf.detach() - middle).norm().item<double>() < 0.2 * middle.norm().item<double>());
  }
}

TEST_CASE("Prodigy waits where there is nothing to learn", "[optim]") {
  const auto groups = make_groups(at::kFloat);
  const auto optimizer = make_optimizer(groups, {.kind = Kind::kProdigy});
  CHECK(optimizer->metrics().at("d") == 1e-6);
  const auto before = bytes_of(groups, *optimizer);
  set_gradients(groups, 0);
  optimizer->step(0.0, kOne, kZero);  // the first step of a warm-up
  CHECK(bytes_of(groups, *optimizer) == before);
  fill_gradients(groups, 0.0);
  optimizer->step(1.0, kOne, kZero);
  CHECK(bytes_of(groups, *optimizer).at("p0") == before.at("p0"));
  CHECK(optimizer->metrics().at("d") == 1e-6);
}

TEST_CASE("Settings that make no sense are refused by name", "[optim]") {
  const auto refused = [](Kind kind, double Options::*number, double value) {
    Options options{.kind = kind};
    options.*number = value;
    try {
      make_optimizer({}, options);
    } catch (const Error& error) {
      return error.message();
    }
    return std::string();
  };
  CHECK(refused(Kind::kAdamW, &Options::beta2, 1.0) == "optimizer: beta2 is not in [0, 1)");
  CHECK(refused(Kind::kAdamW8bit, &Options::eps, 0.0) == "optimizer: eps is not above 0");
  CHECK(refused(Kind::kAdafactor, &Options::decay_rate, 0.8) ==
        "optimizer: decay_rate is not below 0");
  CHECK(refused(Kind::kAdafactor, &Options::clip_threshold, kNan) ==
        "optimizer: clip_threshold is not above 0");
  CHECK(refused(Kind::kProdigy, &Options::prodigy_d0, 0.0) == "optimizer: d0 is not above 0");
  CHECK(refused(Kind::kAdamW, &Options::prodigy_d0, 0.0).empty());
}

TEST_CASE("The gradient norm covers all parameters that have a gradient", "[optim]") {
  auto groups = make_groups(at::kFloat);
  set_gradients(groups, 0);
  Parameter dead = groups[0].parameters[1];
  dead.leaf.mutable_grad().reset();
  const at::Tensor narrow = at::zeros({4, 4}, at::kBFloat16);
  at::Tensor(narrow).mutable_grad() = at::full({4, 4}, 0.5).to(at::kBFloat16);
  groups.push_back({.parameters = {{"narrow", narrow}}});
  double squares = 0;
  for (const Group& group : groups) {
    for (const Parameter& parameter : group.parameters) {
      if (!parameter.leaf.grad().defined()) continue;
      squares += parameter.leaf.grad().to(at::kDouble).square().sum().item<double>();
    }
  }
  const GradientNorm norm = measure_gradients(groups, at::ones({}), 0.5);
  CHECK(norm.norm.scalar_type() == at::kFloat);
  CHECK(norm.norm.dim() == 0);
  CHECK(norm.norm.item<double>() == Approx(std::sqrt(squares)));
  CHECK(norm.grad_scale.item<double>() == Approx(std::sqrt(squares) / 0.5));
  CHECK(norm.is_skipped.item<float>() == 0.0f);
  CHECK(measure_gradients(groups, {}, 1e6).grad_scale.item<float>() == 1.0f);
  CHECK(measure_gradients(groups, {}, 0.0).grad_scale.item<float>() == 1.0f);
}

TEST_CASE("Norms of many bfloat16 gradients are summed in float32", "[optim]") {
  const at::Tensor leaf = at::zeros({1000, 1000}, at::kBFloat16);
  at::Tensor(leaf).mutable_grad() = at::full({1000, 1000}, 0.125).to(at::kBFloat16);
  const GradientNorm norm = measure_gradients({{.parameters = {{"p", leaf}}}}, {}, 1.0);
  CHECK(norm.norm.item<double>() == Approx(125.0).epsilon(1e-5));
}

TEST_CASE("A step whose loss or gradients are not finite is to be skipped", "[optim]") {
  const auto groups = make_groups(at::kFloat);
  const auto is_skipped = [&](const at::Tensor& loss) {
    return measure_gradients(groups, loss, 1.0).is_skipped.item<float>();
  };
  set_gradients(groups, 0);
  CHECK(is_skipped(at::ones({})) == 0.0f);
  CHECK(is_skipped(at::full({}, kNan)) == 1.0f);
  CHECK(is_skipped(at::full({}, kInfinity)) == 1.0f);
  for (const double value : {kNan, -kInfinity}) {
    set_gradients(groups, 0);
    groups[1].parameters[0].leaf.grad()[3][2] = value;
    CHECK(is_skipped({}) == 1.0f);
    CHECK(is_skipped(at::ones({})) == 1.0f);
  }
  const GradientNorm none = measure_gradients({}, {}, 1.0);
  CHECK(none.norm.item<float>() == 0.0f);
  CHECK(none.is_skipped.item<float>() == 0.0f);
}

// Two processes, each a thread, that add up what they have.
class TwoSums {
 public:
  Sum of(int rank) {
    return [this, rank](at::Tensor& value) {
      values_[rank] = value.clone();
      all_are_here_.arrive_and_wait();
      value.copy_(values_[0].add(values_[1]));
      all_are_here_.arrive_and_wait();
    };
  }

 private:
  std::barrier<> all_are_here_{2};
  at::Tensor values_[2];
};

// What of each leaf one of two processes has: large ones are cut, small ones are the second's.
std::vector<Group> shards_of(const std::vector<Group>& wholes, int rank) {
  std::vector<Group> shards = wholes;
  for (Group& group : shards) {
    for (Parameter& parameter : group.parameters) {
      const at::Tensor flat = parameter.leaf.detach().view(-1);
      const int64_t cut = flat.numel() < kLeastQuantized ? 0 : 3 * kQuantizedBlock;
      parameter.shard = {parameter.leaf.sizes().vec(), rank == 0 ? 0 : cut};
      parameter.leaf = rank == 0 ? flat.narrow(0, 0, cut) : flat.narrow(0, cut, flat.numel() - cut);
    }
  }
  return shards;
}

void give_gradients(const std::vector<Group>& wholes, const std::vector<Group>& shards) {
  for (size_t g = 0; g < wholes.size(); ++g) {
    for (size_t i = 0; i < wholes[g].parameters.size(); ++i) {
      const Parameter& shard = shards[g].parameters[i];
      at::Tensor(shard.leaf).mutable_grad() = wholes[g].parameters[i].leaf.grad().view(-1).narrow(
          0, shard.shard->begin, shard.leaf.numel());
    }
  }
}

TEST_CASE("Shards of tensors move as the tensors do", "[optim]") {
  for (const Variant& variant : variants()) {
    if (!moves_shards(variant.kind)) continue;
    const auto wholes = make_groups(variant.dtype), shared = make_groups(variant.dtype);
    const auto one = make_optimizer(wholes, options_of(variant));
    TwoSums sums;
    std::vector<Group> shards[2];
    std::unique_ptr<Optimizer> two[2];
    for (int rank = 0; rank < 2; ++rank) {
      shards[rank] = shards_of(shared, rank);
      two[rank] = make_optimizer(shards[rank], options_of(variant), sums.of(rank));
    }
    for (int step = 0; step < 4; ++step) {
      set_gradients(wholes, step);
      const GradientNorm norm = measure_gradients(wholes, {}, 0.1);
      one->step(1e-2, kOne, norm.is_skipped);
      set_gradients(shared, step);
      const auto work = [&](int rank) {
        give_gradients(shared, shards[rank]);
        const GradientNorm same = measure_gradients(shards[rank], {}, 0.1, {}, sums.of(rank));
        two[rank]->step(1e-2, kOne, same.is_skipped);
        return same.norm.item<float>();
      };
      float other = 0;
      std::thread thread([&] { other = work(1); });
      const float mine = work(0);
      thread.join();
      CHECK(mine == other);
      CHECK(mine == Approx(norm.norm.item<float>()).epsilon(1e-5));
    }
    const bool is_exact = variant.kind != Kind::kProdigy;  // whose sums are rounded otherwise
    for (size_t g = 0; g < wholes.size(); ++g) {
      for (size_t i = 0; i < wholes[g].parameters.size(); ++i) {
        const at::Tensor expected = wholes[g].parameters[i].leaf,
                         got = shared[g].parameters[i].leaf;
        const bool is_same =
            is_exact ? at::equal(expected, got) : at::allclose(expected, got, 1e-2, 1e-6);
        CHECK(is_same);
      }
    }
    // Each value of the state is there once, in shards.
    const Shards cuts = two[1]->shards();
    for (const auto& [name, value] : one->state()) {
      const auto cut = cuts.find(name);
      if (cut == cuts.end()) continue;
      const at::Tensor joined = at::cat({two[0]->state().at(name), two[1]->state().at(name)});
      CHECK(cut->second.begin == two[0]->state().at(name).numel());
      CHECK(joined.numel() == value.numel());
      if (is_exact) CHECK(at::equal(joined, value.view(-1)));
    }
  }
}

TEST_CASE("Shards take their share of the optimizer's memory", "[optim]") {
  const at::Tensor leaf = at::zeros({1024, 1024}, at::kBFloat16);
  const auto bytes = [&](const Parameter& parameter) {
    return static_cast<double>(make_optimizer({{.parameters = {parameter}}}, {})->state_bytes());
  };
  const double whole = bytes({"p", leaf});
  CHECK(whole == Approx(12.0 * leaf.numel()).epsilon(1e-3));  // masters and two moments
  for (const int64_t parts : {2, 4, 8}) {
    const int64_t count = leaf.numel() / parts;
    const Parameter shard = {"p", leaf.view(-1).narrow(0, count, count), {{{1024, 1024}, count}}};
    CHECK(bytes(shard) == Approx(whole / parts).epsilon(1e-3));
  }
}

TEST_CASE("An optimizer that needs whole matrices refuses shards", "[optim]") {
  const Parameter shard = {"p", at::zeros({10}), {{{5, 4}, 10}}};
  REQUIRE_THROWS_WITH(make_optimizer({{.parameters = {shard}}}, {.kind = Kind::kAdafactor}),
                      Catch::Contains("whole tensors"));
}

}  // namespace
}  // namespace atelier::optim
