// Components that take turns on the device.
#include "memory/matrices.h"
#include "memory/residency.h"
#include "support/files.h"

namespace atelier::memory {
namespace {

using test::kMatrixBytes;
using test::Matrices;

constexpr int kBlocks = 8, kSecondsOfStep = 2 * kBlocks;

struct Options {
  int64_t resident = 6, prefetch = 1;
  Place others = Place::kHost;
  double matrices_per_second = 1.0;
  bool takes_turns = true;

  int64_t blocks_there() const { return resident + std::min(kBlocks - resident, prefetch + 1); }
};

// Two components of equal blocks, which compute for a second each, within the memory of one.
struct Experts {
  DirectRunner direct;
  Matrices nets[2] = {Matrices(kBlocks, 3), Matrices(kBlocks, 4)};
  std::shared_ptr<VirtualClock> clock = std::make_shared<VirtualClock>();
  std::unique_ptr<TransferDevice> transfer;
  std::unique_ptr<Residency> residencies[2];
  std::unique_ptr<StreamingRunner> runner;

  explicit Experts(const Options& options) {
    transfer = make_simulated_device(
        {.capacity = options.blocks_there() * kMatrixBytes * (options.takes_turns ? 1 : 2) + 1024,
         .bytes_per_second = options.matrices_per_second * double{kMatrixBytes},
         .poison = true,
         .clock = clock});
    const auto turns = std::make_shared<ResidencyGroup>();
    for (int i = 0; i < 2; ++i) {
      ResidencyPlan plan =
          spread_residents(kBlocks, options.resident, options.others, options.prefetch);
      if (options.takes_turns) take_turns(plan, turns, options.others);
      residencies[i] = std::make_unique<Residency>(nets[i].all(), plan, *transfer);
      for (auto& block : nets[i].blocks) block->probe = [this] { clock->advance(1); };
    }
    runner = std::make_unique<StreamingRunner>(
        direct, std::vector{residencies[0].get(), residencies[1].get()});
  }

  // A forward and a backward pass of one, behind which comes a step of `next`. Returns how long
  // they take.
  double step(int expert, std::optional<int> next = std::nullopt) {
    const double start = clock->now();
    CHECK(nets[expert].wrong(*runner, test::forward_order(kBlocks)) == 0);
    if (next) residencies[*next]->expect();
    for (int i = kBlocks; i-- > 0;) CHECK(nets[expert].is_right(*runner, i));
    return clock->now() - start;
  }

  // Seconds of the steps of `experts`, one behind the other.
  double steps(const std::vector<int>& experts, bool is_told = true) {
    double seconds = 0;
    for (size_t i = 0; i < experts.size(); ++i) {
      const bool is_last = i + 1 == experts.size();
      seconds +=
          step(experts[i], is_told && !is_last ? std::optional(experts[i + 1]) : std::nullopt);
    }
    return seconds;
  }

  int64_t there(int expert) const {
    const Residency::Stats stats = residencies[expert]->stats();
    return (stats.device_bytes - stats.away_bytes) / kMatrixBytes;
  }
};

const std::vector<int> kDrawn = {0, 1, 1, 0, 1, 0, 0, 0, 1, 0};

}  // namespace

TEST_CASE("Components that take turns compute the same bits in the memory of one", "[residency]") {
  for (const Place others : {Place::kHost, Place::kDisk}) {
    for (const int64_t resident : {0, 3, 6, 7, 8}) {
      for (const int64_t prefetch : {0, 1, 3}) {
        for (const bool is_told : {true, false}) {
          const Options options = {resident, prefetch, others};
          INFO("resident " << resident << ", prefetch " << prefetch << ", told " << is_told);
          Experts experts(options);
          CHECK(experts.transfer->stats().live_bytes == 0);
          experts.steps(kDrawn, is_told);
          CHECK(experts.transfer->stats().peak_bytes <= experts.transfer->stats().capacity);
          CHECK(experts.there(0) == options.blocks_there());
          CHECK(experts.there(1) == 0);
        }
      }
    }
  }
}

TEST_CASE("The next component's blocks come into the places of those that ran", "[residency]") {
  Experts experts({.resident = kBlocks});
  experts.steps({0, 1});
  std::vector<std::pair<int64_t, int64_t>> there;
  for (auto& block : experts.nets[1].blocks) {
    block->probe = [&] { there.emplace_back(experts.there(1), experts.there(0)); };
  }
  experts.step(1, /*next=*/0);
  REQUIRE(there.size() == 2 * kBlocks);
  for (int64_t i = 0; i < kBlocks; ++i) {
    CHECK(there[i] == std::pair<int64_t, int64_t>(kBlocks, 0));
    CHECK(there[kBlocks + i] == std::pair<int64_t, int64_t>(kBlocks - i, i));
  }
}

TEST_CASE("Turns that are told ahead hide their copies", "[residency]") {
  for (const auto& [resident, rate] :
       {std::pair(0, 2.0), {4, 2.0}, {6, 2.0}, {6, 1.0}, {8, 1.0}, {8, 0.25}}) {
    INFO("resident " << resident << ", rate " << rate);
    const auto seconds = [&](const std::vector<int>& experts, bool takes_turns, bool is_told) {
      Experts scene(
          {.resident = resident, .matrices_per_second = rate, .takes_turns = takes_turns});
      scene.steps({0, 1, 0, 1});  // learns the order
      return scene.steps(experts, is_told);
    };
    const std::vector<int> drawn = {1, 0, 1, 0, 1, 0, 1};
    const double one = seconds({1, 1, 1, 1, 1, 1, 1}, /*takes_turns=*/false, /*is_told=*/false);
    const double two = seconds(drawn, /*takes_turns=*/true, /*is_told=*/true);
    const double untold = seconds(drawn, /*takes_turns=*/true, /*is_told=*/false);
    CHECK(one == Approx(7 * kSecondsOfStep));
    // All blocks come in every turn, beside computing.
    const double copying = 7 * kBlocks / rate;
    CHECK(two == Approx(std::max(one, copying)).epsilon(0.05));
    CHECK(untold > two);
  }
}

TEST_CASE("A turn that was told and does not come costs time and nothing else", "[residency]") {
  for (const int64_t resident : {0, 5, 8}) {
    Experts experts({.resident = resident});
    for (const int run : {0, 0, 1, 0, 1, 1}) experts.step(run, /*next=*/1 - run);
    experts.step(1, /*next=*/0);
    CHECK(experts.nets[1].wrong(*experts.runner, {3, 4, 0, 7, 7, 2}) == 0);
    CHECK(experts.nets[0].wrong(*experts.runner, {3, 4, 0, 7, 7, 2}) == 0);
    CHECK(experts.transfer->stats().peak_bytes <= experts.transfer->stats().capacity);
  }
}

TEST_CASE("What the host writes while a component is away is drawn in its turn", "[residency]") {
  Experts experts({.resident = 6});
  experts.steps({1, 0});
  for (const size_t i : {size_t{0}, size_t{5}}) {
    const at::Tensor value = experts.residencies[1]->host_value(experts.nets[1].weight(i));
    value.mul_(2);
    experts.residencies[1]->refresh(*experts.nets[1].blocks[i]);
    experts.nets[1].products[i].mul_(2);
  }
  experts.step(1);
}

}  // namespace atelier::memory
