// Parts of the engine by themselves.
#include <ATen/ATen.h>

#include "host/generate/denoisers.h"
#include "host/generate/lora_use.h"
#include "host/generate/piece_walk.h"
#include "host/generate/trajectory.h"
#include "host/random/noise.h"
#include "support/errors.h"
#include "tests/host/generate/fake_model.h"

namespace atelier::generate::of_parts {
namespace {

using Words = std::vector<std::string>;

struct Parts {
  FakeModel model;
  Words log;
  progress::Progress progress{progress::Options{.quiet = true}};
  EngineModel of = fake_engine(model, log);

  Request request(std::vector<float> sigmas, std::vector<uint64_t> seeds = {1}) const {
    Request request;
    request.inputs["prompt"] = std::string("four");
    request.sigmas = std::move(sigmas);
    request.target = {1, 32, 48};
    request.seeds = std::move(seeds);
    return request;
  }
  static Trajectory begin(Request request, const EngineModel& of, size_t first, int64_t count) {
    return {std::make_shared<const Material>(Material{std::move(request), {}, {}}), first, count,
            of};
  }
};

TEST_CASE("A trajectory begins with the noise of its seeds and ends behind its last step",
          "[generate]") {
  Parts parts;
  Trajectory two =
      Parts::begin(parts.request({1.0F, 0.5F, 0.25F, 0.0F}, {5, 6, 7}), parts.of, 1, 2);
  CHECK(two.count() == 2);
  for (int64_t i = 0; i < 2; ++i) {
    const auto seed = static_cast<uint64_t>(6 + i);
    CHECK(at::equal(two.x_BCTHW()[i], random::normal_noise({.seed = seed}, {4, 1, 4, 6})));
  }
  const at::Tensor begin = two.x_BCTHW().clone();
  two.advance(at::ones_like(begin));
  CHECK(at::allclose(two.x_BCTHW(), begin - 0.5, 0, 1e-6));
  CHECK(two.sigma() == 0.5F);
  CHECK(two.next_sigma() == 0.25F);
  CHECK(at::equal(two.level(2, 4), at::full({4}, 0.25F)));
  two.skip([](int64_t step) { return step == 2; });
  CHECK(two.step() == 2);
  two.skip([](int64_t) { return false; });
  CHECK(two.is_through());
}

TEST_CASE("A trajectory that waits on the host goes on as one that does not", "[generate]") {
  Parts parts;
  parts.model.known = GivenLatents{at::full({4, 1, 4, 6}, 0.75), at::zeros({1, 1, 4, 6}), true};
  Request request = parts.request({1.0F, 0.75F, 0.5F, 0.25F, 0.0F});
  request.solver = sampling::find_solver("unipc");
  Trajectory waits = Parts::begin(request, parts.of, 0, 1);
  Trajectory goes_on = Parts::begin(request, parts.of, 0, 1);
  while (!goes_on.is_through()) {
    for (Trajectory* const one : {&waits, &goes_on}) one->advance(one->x_BCTHW() / 2);
    const auto own = static_cast<int64_t>(waits.x_BCTHW().nbytes());
    CHECK(waits.put_aside() > 3 * own);  // what is known, its noise, and what the solver remembers
    waits.bring_back();
    CHECK(at::equal(waits.x_BCTHW(), goes_on.x_BCTHW()));
  }
}

TEST_CASE("A denoiser's levels are computed once, and again where LoRAs change", "[generate]") {
  class Loras final : public RequestLoras {
   public:
    uint64_t now = 0;
    void use(const generate::Loras&) override { ++now; }
    void read(const generate::Loras&) override {}
    bool changes_others(const generate::Loras&) override { return true; }
    bool can_share(std::span<const generate::Loras>) override { return true; }
    std::optional<ops::SampleStrengths> use_each(std::span<const generate::Loras>) override {
      return std::nullopt;
    }
    uint64_t version() const override { return now; }
  };
  Parts parts;
  Loras loras;
  parts.of.loras = &loras;
  EngineContext context(parts.of, parts.progress, {});
  Denoisers denoisers(context);
  const Request one = parts.request({1.0F, 0.5F, 0.0F}), other = parts.request({1.0F, 0.0F});
  const std::vector<Denoisers::Step> first = {{&one, 0}}, second = {{&one, 1}};
  const std::vector<Denoisers::Step> both = {{&one, 1}, {&other, 0}};
  denoisers.use(first);
  denoisers.use(second);
  CHECK(parts.model.times_prepared == 1);
  CHECK(denoisers.level_of(one, 1) == 1);
  denoisers.use(both);
  CHECK_FALSE(denoisers.level_of(one, 1));
  CHECK(parts.model.levels.empty());
  denoisers.use(second);
  CHECK(parts.model.times_prepared == 2);
  ++loras.now;
  denoisers.use(second);
  CHECK(parts.model.times_prepared == 3);
  CHECK(parts.log == Words{"+dit"});
  denoisers.forget();
  CHECK(denoisers.current() == nullptr);
  CHECK(parts.model.levels.empty());
}

TEST_CASE("Two denoisers that stay keep the levels of each", "[generate]") {
  Parts parts;
  EngineModel two = two_denoisers(parts.model, parts.log);
  const bool stay = GENERATE(true, false);
  if (stay) two.stays = {"dit", "dit_low"};
  EngineContext context(two, parts.progress, {});
  Denoisers denoisers(context);
  const Request request = parts.request({1.0F, 0.75F, 0.25F, 0.0F});
  const std::vector<Denoisers::Step> high = {{&request, 0}}, low = {{&request, 2}};
  for (int turn = 0; turn < 3; ++turn) {
    denoisers.use(high);
    CHECK(denoisers.level_of(request, 0) == 0);
    denoisers.use(low);
    CHECK(denoisers.level_of(request, 2) == 0);
  }
  CHECK(parts.model.times_prepared == (stay ? 2 : 6));
}

TEST_CASE("Controls are there for whichever request is given their input", "[generate]") {
  static constexpr InputSpec kInputs[] = {
      {.name = "pose", .kind = InputKind::kImage, .per_instance_of = "control"}};
  Parts parts;
  parts.of.stages.inputs = kInputs;
  parts.of.stages.components.push_back(
      {"control", {.name = "control", .role = Role::kControl, .beside = "dit"}});
  EngineContext context(parts.of, parts.progress, {});
  Denoisers denoisers(context);
  const Request plain = parts.request({1.0F, 0.0F});
  Request posed = plain;
  posed.inputs["pose"] = at::zeros({3, 32, 48});
  const std::vector<Denoisers::Step> one = {{&plain, 0}}, both = {{&plain, 0}, {&posed, 0}};
  denoisers.use(one);
  CHECK(parts.log == Words{"-control", "+dit"});
  parts.log.clear();
  denoisers.use(both);
  CHECK(parts.log == Words{"+dit", "+control"});
}

TEST_CASE("The same LoRAs are used once, and again where their files may have changed",
          "[generate]") {
  class Counted final : public RequestLoras {
   public:
    int64_t calls = 0, of_each = 0;
    bool fails = false;
    void use(const Loras&) override {
      ++calls;
      if (fails) throw Error(ErrorCode::kDataLoss, "cut off");
    }
    void read(const Loras&) override {}
    bool changes_others(const Loras&) override { return true; }
    bool can_share(std::span<const Loras>) override { return true; }
    std::optional<ops::SampleStrengths> use_each(std::span<const Loras> sets) override {
      ++of_each;
      return ops::SampleStrengths(sets.size(), std::vector<double>{1.0});
    }
    uint64_t version() const override { return 0; }
  };
  Counted counted;
  LoraUse loras(&counted);
  const Loras style = {{.name = "style"}}, none;
  loras.use(style);
  loras.use(style);
  CHECK(counted.calls == 1);
  loras.use(style, /*anew=*/true);
  CHECK(counted.calls == 2);
  counted.fails = true;
  CHECK_THROWS_AS(loras.use(none), Error);
  counted.fails = false;
  loras.use(style);  // what is in use is not known
  CHECK(counted.calls == 4);
  CHECK(loras.can_share({style, none}));
  loras.share_no_more();
  CHECK_FALSE(loras.can_share({style, none}));
  CHECK(loras.can_share({style, style}));

  Parts parts;
  Request one = parts.request({1.0F, 0.0F}), other = one;
  one.loras = style;
  const Trajectory a = Parts::begin(one, parts.of, 0, 1), b = Parts::begin(other, parts.of, 0, 1);
  const std::vector<const Trajectory*> same = {&a, &a}, mixed = {&a, &b};
  CHECK(loras.use_each(same) == nullptr);
  for (int step = 0; step < 3; ++step) {
    const ops::SampleStrengths* const strengths = loras.use_each(mixed);
    REQUIRE(strengths != nullptr);
    CHECK(strengths->size() == 2);
  }
  CHECK(counted.of_each == 1);
  loras.use(style);
  CHECK(counted.calls == 5);
  loras.use_each(mixed);
  CHECK(counted.of_each == 2);
}

TEST_CASE("Frames of a piece become those of its clip, and its last ones go to the next",
          "[generate]") {
  Parts parts;
  Request request = parts.request({1.0F, 0.0F}, {5, 9});
  request.target.frames = 6;
  request.pieces = {{0, 4, 0}, {3, 4, 1}};
  EngineContext context(parts.of, parts.progress, {});
  Encoder encoder(context);
  PieceWalk walk(request, context);
  using Told = std::vector<std::vector<int64_t>>;  // image, first frame, frames
  Told told;
  const OnFrames on_frames = [&](size_t index, int64_t first, const at::Tensor& pixels) {
    told.push_back({static_cast<int64_t>(index), first, pixels.size(1)});
  };
  std::vector<uint64_t> seeds;
  while (!walk.is_at_end()) {
    const Material made = walk.encode(encoder, {{{"clip", at::ones({1})}}, {}});
    CHECK(made.cond.with.contains("clip"));
    CHECK(made.request.target.frames == 4);
    seeds.push_back(made.request.seeds.at(0));
    walk.into(on_frames)(0, 0, at::zeros({3, 3, 32, 48}));
    walk.into(on_frames)(0, 3, at::zeros({3, 1, 32, 48}));
    walk.next();
  }
  CHECK(seeds == std::vector<uint64_t>{5, 6, 9, 10});
  CHECK(told == Told{{0, 0, 3}, {0, 3, 1}, {0, 4, 2}, {1, 0, 3}, {1, 3, 1}, {1, 4, 2}});
}

TEST_CASE("LoRAs that are in use are not looked at again: their files may be others, or gone",
          "[generate]") {
  class OfFiles final : public RequestLoras {
   public:
    std::vector<std::string> used, of_encoders = {"words"};
    std::string gone;
    void use(const Loras& set) override { used.push_back(set.empty() ? "none" : set[0].name); }
    void read(const Loras&) override {}
    bool changes_others(const Loras& set) override {
      if (set.empty()) return false;
      if (set[0].name == gone) throw Error(ErrorCode::kNotFound, gone + " is gone");
      return std::ranges::find(of_encoders, set[0].name) != of_encoders.end();
    }
    bool can_share(std::span<const Loras>) override { return true; }
    std::optional<ops::SampleStrengths> use_each(std::span<const Loras>) override { return {}; }
    uint64_t version() const override { return 0; }
  };
  OfFiles files;
  LoraUse loras(&files);
  const Loras style = {{.name = "style"}}, words = {{.name = "words"}}, none;
  loras.use(style);
  files.gone = "style";
  loras.use_beside(none, /*anew=*/true);  // stays: it changes denoisers alone
  CHECK(files.used == std::vector<std::string>{"style"});
  loras.use(words);
  files.of_encoders.clear();  // a file that changes the denoiser alone took its place
  loras.use_beside(none, /*anew=*/true);
  CHECK(files.used.back() == "none");
}

}  // namespace
}  // namespace atelier::generate::of_parts
