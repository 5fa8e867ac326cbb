// Requests that share an engine: who is denoised with whom, who waits, and who leaves.
#include <cmath>
#include <map>
#include <numeric>

#include <ATen/ATen.h>

#include "atelier/error.h"
#include "atelier/host/sample_scope.h"

#include "host/generate/engine.h"
#include "host/sampling/sigma_schedule.h"
#include "support/errors.h"
#include "tests/host/generate/fake_model.h"

namespace atelier::generate::of_packing {
namespace {

using Words = std::vector<std::string>;
using Rows = std::vector<int64_t>;

Request request_of(const std::string& prompt, int steps, std::vector<uint64_t> seeds,
                   MediaTarget target = {1, 32, 48}) {
  Request request;
  request.inputs["prompt"] = prompt;
  request.sigmas = sampling::make_sigmas(ScheduleDefaults{}, {.num_steps = steps});
  request.target = target;
  request.seeds = std::move(seeds);
  return request;
}

// What an engine said of each request.
struct Told {
  std::vector<at::Tensor> images = {};
  std::vector<std::pair<int64_t, int64_t>> steps = {};
  std::vector<std::pair<int64_t, at::Tensor>> previews = {};
  bool is_done = false;
  std::optional<Error> failure = {};
};

struct Studio {
  FakeModel model;
  Words log;
  progress::Progress progress{progress::Options{.quiet = true}};
  EngineModel of;
  std::optional<Engine> engine;
  std::map<uint64_t, Told> told;
  std::vector<uint64_t> ended;  // in this order

  explicit Studio(bool keeps_all = true, Packing packing = {.max_batch = 4})
      : of(fake_engine(model, log, keeps_all)) {
    open(packing);
  }
  // With two denoisers, which come and go.
  static std::unique_ptr<Studio> of_two() {
    auto studio = std::make_unique<Studio>(/*keeps_all=*/false);
    const EngineModel two = two_denoisers(studio->model, studio->log);
    studio->of.stages = two.stages;
    studio->open({.max_batch = 2});
    return studio;
  }
  void open(Packing packing, std::function<bool()> is_cancelled = {}) {
    engine.emplace(of, progress, std::move(is_cancelled), packing);
  }

  uint64_t add(const Request& request, int64_t preview_every = 0) {
    const auto id = std::make_shared<uint64_t>(0);
    *id = engine->add(
        request,
        {.on_frames = [this, id](size_t, int64_t,
                                 const at::Tensor& pixels) { told[*id].images.push_back(pixels); },
         .on_step = [this, id](int64_t step,
                               int64_t steps) { told[*id].steps.emplace_back(step, steps); },
         .preview_every = preview_every,
         .on_preview =
             [this, id](int64_t step, const at::Tensor& pixels) {
               told[*id].previews.emplace_back(step, pixels);
             },
         .on_done =
             [this, id] {
               told[*id].is_done = true;
               ended.push_back(*id);
             },
         .on_failed =
             [this, id](std::exception_ptr failure) {
               ended.push_back(*id);
               told[*id].failure = test::error_of([&] { std::rethrow_exception(failure); });
             }});
    return *id;
  }
  void advance(int times) {
    for (int i = 0; i < times; ++i) REQUIRE(engine->advance());
  }
  void finish() {
    while (engine->advance()) {
    }
    CHECK(engine->is_idle());
  }
};

std::vector<at::Tensor> alone(const Request& request) {
  Studio studio;
  const uint64_t id = studio.add(request);
  studio.finish();
  return studio.told[id].images;
}

void check_equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  REQUIRE(a.size() == b.size());
  for (size_t i = 0; i < a.size(); ++i) CHECK(at::equal(a[i], b[i]));
}

TEST_CASE("Requests that agree make their steps in one call, and each has its own picture",
          "[generate]") {
  Studio studio;
  Request one = request_of("a cat", 3, {1}), other = request_of("two dogs", 3, {2});
  other.cfg_scale = 3.0;
  other.negative_prompt = "grey";
  const uint64_t a = studio.add(one), b = studio.add(other);
  studio.finish();
  CHECK(studio.model.rows_seen == Rows{3, 3, 3});
  check_equal(studio.told[a].images, alone(one));
  check_equal(studio.told[b].images, alone(other));
}

TEST_CASE("A request joins the others between two steps and leaves them when it is done",
          "[generate]") {
  Studio studio;
  const Request slow = request_of("slow", 6, {1}), quick = request_of("quick", 2, {2});
  const uint64_t a = studio.add(slow);
  studio.advance(3);  // encoded, and two steps
  const uint64_t b = studio.add(quick);
  studio.finish();
  CHECK(studio.ended == std::vector<uint64_t>{b, a});
  CHECK(studio.told[b].steps == std::vector<std::pair<int64_t, int64_t>>{{1, 2}, {2, 2}});
  CHECK(studio.told[a].steps.size() == 6);
  check_equal(studio.told[a].images, alone(slow));
  check_equal(studio.told[b].images, alone(quick));
  CHECK(studio.log == Words{"+text_encoder", "+dit", "+text_encoder", "+vae", "+vae"});
}

TEST_CASE("Pictures of other sizes are calls of their own, made together", "[generate]") {
  Studio studio;
  const Request wide = request_of("wide", 3, {1}), tall = request_of("tall", 3, {2}, {1, 64, 32});
  const uint64_t a = studio.add(wide), b = studio.add(tall);
  studio.finish();
  CHECK(studio.model.rows_seen == Rows(6, 1));
  check_equal(studio.told[a].images, alone(wide));
  check_equal(studio.told[b].images, alone(tall));
}

TEST_CASE("No more is denoised together than there is room for", "[generate]") {
  const auto most_rows = [](Packing packing, std::vector<Request> requests) {
    Studio studio(/*keeps_all=*/true, packing);
    int64_t most = 0;
    for (const Request& request : requests) studio.add(request);
    while (studio.engine->advance()) {
      const int64_t rows =
          std::accumulate(studio.model.rows_seen.begin(), studio.model.rows_seen.end(), int64_t{0});
      studio.model.rows_seen.clear();
      most = std::max(most, rows);
    }
    CHECK(studio.ended.size() == requests.size());
    return most;
  };
  const std::vector<Request> five(5, request_of("a", 4, {1}));
  CHECK(most_rows({.max_batch = 3}, five) == 3);
  CHECK(most_rows({}, five) == 1);                                  // each has batches of one
  CHECK(most_rows({.max_batch = 8, .max_tokens = 13}, five) == 2);  // of six tokens each
  CHECK(most_rows({.max_batch = 8, .max_tokens = 3}, five) == 1);   // alone it may have more
  Request four = request_of("a", 4, {1, 2, 3, 4});
  CHECK(most_rows({.max_batch = 4}, {four}) == 4);
  four.batch_size = 2;
  CHECK(most_rows({.max_batch = 2}, {four, four}) == 2);
}

TEST_CASE("A request that is cancelled leaves within one step, and the others go on",
          "[generate]") {
  Studio studio;
  const Request kept = request_of("kept", 5, {1});
  const uint64_t a = studio.add(kept), b = studio.add(request_of("left", 5, {2}));
  studio.advance(5);
  const size_t steps = studio.told[b].steps.size();
  CHECK(steps > 0);
  studio.engine->cancel(b);
  studio.engine->cancel(99);
  studio.finish();
  CHECK(studio.told[b].steps.size() == steps);
  CHECK_FALSE(studio.told[b].is_done);
  CHECK_FALSE(studio.told[b].failure);
  CHECK(studio.told[b].images.empty());
  check_equal(studio.told[a].images, alone(kept));
}

TEST_CASE("A request may be cancelled by what is told of it", "[generate]") {
  Studio studio;
  uint64_t id = 0;
  int64_t steps = 0;
  id = studio.engine->add(request_of("a", 5, {1}), {.on_step = [&](int64_t step, int64_t) {
                            steps = step;
                            if (step == 2) studio.engine->cancel(id);
                          }});
  studio.finish();
  CHECK(steps == 2);
}

TEST_CASE("Nothing more is told of a request that was cancelled by what is told of it",
          "[generate]") {
  Studio studio;
  studio.of.is_resident = [](std::string_view) { return true; };
  studio.open({.max_batch = 4});
  const std::string where = GENERATE("preview", "frames", "last frames");
  Words told;
  uint64_t id = 0;
  const auto tell = [&](const std::string& what) {
    told.push_back(what);
    const bool is_last = std::ranges::count(told, what) == 2;
    if (what == where || (where == "last frames" && what == "frames" && is_last))
      studio.engine->cancel(id);
  };
  Request two = request_of("a", 1, {1, 2});
  two.batch_size = 2;
  id = studio.engine->add(two, {.on_frames = [&](auto...) { tell("frames"); },
                                .on_step = [&](auto...) { tell("step"); },
                                .preview_every = 1,
                                .on_preview = [&](auto...) { tell("preview"); },
                                .on_done = [&] { tell("done"); },
                                .on_failed = [&](auto) { tell("failed"); }});
  studio.finish();
  const Words all = {"preview", "step", "frames", "frames"};
  const ptrdiff_t count = where == "preview" ? 1 : where == "frames" ? 3 : 4;
  CHECK(told == Words(all.begin(), all.begin() + count));
}

TEST_CASE("A request that fails fails alone", "[generate]") {
  Studio studio;
  const Request fine = request_of("fine", 3, {1});
  Request wrong = request_of("wrong", 3, {2});
  SECTION("before it begins") {
    wrong.latents = at::zeros({1, 4, 1, 2, 2});
  }
  SECTION("where it is decoded") {
    wrong.latents = at::full({1, 4, 1, 4, 6}, std::nan(""));
  }
  SECTION("where it has no denoiser") {
    wrong.sigmas = {2.0F, 0.0F};
  }
  const uint64_t a = studio.add(fine), b = studio.add(wrong);
  studio.finish();
  CHECK(studio.told[b].failure);
  CHECK_FALSE(studio.told[b].is_done);
  CHECK(studio.told[a].is_done);
  check_equal(studio.told[a].images, alone(fine));
}

TEST_CASE("A call that fails for several is made for each alone", "[generate]") {
  Studio studio;
  const Request fine = request_of("fine", 4, {1}), wrong = request_of("wrong!", 4, {2});
  SECTION("one of which is to blame") {
    studio.model.before_denoise = [](const DenoiseInputs& in) {
      for (const Conditioning* cond : in.cond)
        if (cond->at("letters").item<double>() == 6) throw Error(ErrorCode::kInternal, "no");
    };
    const uint64_t a = studio.add(fine), b = studio.add(wrong);
    studio.finish();
    REQUIRE(studio.told[b].failure);
    CHECK(studio.told[b].failure->code() == ErrorCode::kInternal);
    check_equal(studio.told[a].images, alone(fine));
  }
  SECTION("which do not fit at once, and those behind them are fewer") {
    size_t failures = 0;
    studio.model.before_denoise = [&](const DenoiseInputs& in) {
      if (in.x_BCTHW.size(0) < 2) return;
      ++failures;
      throw Error(ErrorCode::kOutOfMemory, "no room");
    };
    std::vector<uint64_t> ids;
    for (const Request& request : {fine, wrong, fine, wrong}) ids.push_back(studio.add(request));
    studio.finish();
    CHECK(failures == 1);
    for (size_t i = 0; i < ids.size(); ++i) {
      CHECK(studio.told[ids[i]].is_done);
      check_equal(studio.told[ids[i]].images, alone(i % 2 == 0 ? fine : wrong));
    }
  }
}

TEST_CASE("Who stops the engine ends all requests", "[generate]") {
  Studio studio;
  studio.open({.max_batch = 2}, [&] { return studio.model.denoise_calls >= 3; });
  for (uint64_t seed = 0; seed < 4; ++seed) studio.add(request_of("a", 4, {seed}));
  studio.finish();
  CHECK(studio.ended.size() == 4);
  for (const auto& [id, told] : studio.told) {
    REQUIRE(told.failure);
    CHECK(told.failure->code() == ErrorCode::kCancelled);
  }
}

TEST_CASE("Where components leave, a request waits until the others are through", "[generate]") {
  Studio studio(/*keeps_all=*/false);
  const uint64_t a = studio.add(request_of("first", 3, {1}));
  studio.advance(2);
  const uint64_t b = studio.add(request_of("second", 3, {2}));
  const uint64_t c = studio.add(request_of("third", 3, {3}));
  studio.finish();
  CHECK(studio.ended == std::vector<uint64_t>{a, b, c});
  // Requests that waited are encoded one behind the other and denoised together.
  CHECK(studio.log == Words{"+text_encoder", "-text_encoder", "+dit", "+vae", "+text_encoder",
                            "+text_encoder", "-text_encoder", "+dit", "+vae", "+vae"});
  CHECK(studio.model.rows_seen == Rows{1, 1, 1, 2, 2, 2});
}

TEST_CASE("All requests pass the first of two denoisers before the second one is loaded",
          "[generate]") {
  const std::unique_ptr<Studio> two = Studio::of_two();
  Studio& studio = *two;
  std::vector<Request> requests;  // 1, 0.75, 0.5, 0.25
  for (uint64_t seed = 0; seed < 5; ++seed) requests.push_back(request_of("four", 4, {seed}));
  for (const Request& request : requests) studio.add(request);
  studio.finish();
  CHECK(studio.ended == std::vector<uint64_t>{1, 2, 3, 4, 5});
  CHECK(std::ranges::count(studio.log, "+dit") == 1);
  CHECK(std::ranges::count(studio.log, "+dit_low") == 1);
  CHECK(studio.model.rows_seen == Rows{2, 2, 2, 2, 2, 2, 1, 1, 1, 2, 2, 1});
  for (uint64_t id = 1; id <= 5; ++id) check_equal(studio.told[id].images, alone(requests[id - 1]));
}

TEST_CASE("Levels are computed ahead where all have the same ones", "[generate]") {
  Studio studio;
  studio.add(request_of("a", 4, {1}));
  studio.add(request_of("b", 4, {2}));
  studio.finish();
  CHECK(studio.model.times_prepared == 1);
  bool has_level = true;
  studio.model.before_denoise = [&](const DenoiseInputs& in) { has_level &= bool(in.level); };
  studio.add(request_of("a", 4, {1}));
  studio.add(request_of("b", 5, {2}));
  studio.finish();
  CHECK_FALSE(has_level);
  CHECK(studio.model.levels.empty());
}

// LoRAs whose names begin with "w" add to weights.
class FakeLoras final : public RequestLoras {
 public:
  Words used;
  uint64_t changes = 0;
  bool changes_all = true;
  static std::string name(const Loras& set) { return set.empty() ? "none" : set[0].name; }
  void use(const Loras& set) override {
    if (used.empty() || used.back() != name(set)) ++changes;
    used.push_back(name(set));
  }
  void read(const Loras& set) override { used.push_back("read " + name(set)); }
  bool changes_others(const Loras&) override { return changes_all; }
  bool can_share(std::span<const Loras> sets) override {
    return std::ranges::none_of(sets, [](const Loras& set) { return name(set)[0] == 'w'; });
  }
  std::optional<ops::SampleStrengths> use_each(std::span<const Loras> sets) override {
    ops::SampleStrengths strengths;
    for (const Loras& set : sets) strengths.push_back({set.empty() ? 0.0 : set[0].strength});
    used.push_back("each");
    return strengths;
  }
  uint64_t version() const override { return changes; }
};

TEST_CASE("Samples of one call have the LoRAs of their requests", "[generate]") {
  Studio studio;
  FakeLoras loras;
  studio.of.loras = &loras;
  studio.open({.max_batch = 4});
  std::vector<std::vector<double>> seen;  // of each row of calls with a scope
  studio.model.before_denoise = [&](const DenoiseInputs& in) {
    const ops::SampleScope* const scope = ops::SampleScope::current();
    if (scope == nullptr) return;
    std::vector<double>& rows = seen.emplace_back();
    CHECK(scope->count() == in.x_BCTHW.size(0));
    for (int64_t i = 0; i < scope->count(); ++i) rows.push_back(scope->strength(i, 0));
  };
  Request one = request_of("one", 2, {1, 2}), other = request_of("other", 2, {3});
  one.batch_size = 2;
  one.loras = {{.name = "style", .strength = 0.5}};
  other.loras = {{.name = "style", .strength = 2.0}};
  one.cfg_scale = other.cfg_scale = 3.0;
  SECTION("at strengths of their own") {
    studio.add(one);
    studio.advance(1);
    studio.add(other);
    studio.finish();
    CHECK(std::ranges::count(loras.used, "each") == 1);
    const std::vector<double> rows = {0.5, 0.5, 2.0, 0.5, 0.5, 2.0};
    CHECK(seen == std::vector<std::vector<double>>{rows, rows});
  }
  SECTION("or wait for each other where these add to weights") {
    other.loras[0].name = "weights";
    studio.add(one);
    studio.add(other);
    studio.finish();
    CHECK(seen.empty());
    CHECK(std::ranges::count(loras.used, "each") == 0);
    CHECK(studio.ended == std::vector<uint64_t>{1, 2});
  }
  SECTION("or are in use for all that have the same") {
    other.loras = one.loras;
    studio.add(one);
    studio.add(other);
    studio.finish();
    CHECK(seen.empty());
    CHECK(loras.changes == 1);
  }
}

TEST_CASE("What is encoded and decoded beside others leaves LoRAs of denoisers in use",
          "[generate]") {
  Studio studio;
  FakeLoras loras;
  loras.changes_all = GENERATE(false, true);
  studio.of.loras = &loras;
  studio.open({.max_batch = 4});
  Request slow = request_of("slow", 6, {1}), quick = request_of("quick", 2, {2});
  slow.loras = {{.name = "a"}};
  quick.loras = {{.name = "b"}};
  studio.add(slow);
  studio.advance(3);  // encoded, and two steps
  studio.add(quick);
  studio.finish();
  CHECK(loras.used == (loras.changes_all ? Words{"a", "b", "each", "b", "a"}
                                         : Words{"a", "read b", "each", "a"}));
}

TEST_CASE("A small picture shows what a step says of the end", "[generate]") {
  Studio studio;
  Request request = request_of("four", 4, {7}, {1, 32, 1024});
  SECTION("where the autoencoder is there") {
    studio.of.is_resident = [](std::string_view component) { return component == "vae"; };
    studio.open({});
    const uint64_t id = studio.add(request, /*preview_every=*/2);
    studio.finish();
    const auto& previews = studio.told[id].previews;
    REQUIRE(previews.size() == 2);
    CHECK(previews[0].first == 2);
    CHECK(previews[1].first == 4);
    for (const auto& [step, pixels] : previews) {
      CHECK(pixels.sizes() == at::IntArrayRef({3, 8, 256}));  // 1 x 32 cells
    }
    // v = x / 2 + 0.04 at 0.25, so that the last picture is that of x - v / 4.
    const at::Tensor x = studio.model.latents_seen.back();
    const at::Tensor clean = at::avg_pool2d((x - (x / 2 + 0.04) / 4).select(2, 0), {4, 4});
    const at::Tensor wanted =
        clean[0].narrow(0, 0, 3).repeat_interleave(8, 1).repeat_interleave(8, 2);
    CHECK(at::allclose(previews[1].second, wanted / 4, 0, 1e-6));
  }
  SECTION("also where several pictures of one request make their steps together") {
    studio.of.is_resident = [](std::string_view) { return true; };
    studio.open({.max_batch = 2});
    request.seeds = {7, 8};
    const uint64_t id = studio.add(request, /*preview_every=*/3);
    studio.finish();
    Rows steps;
    for (const auto& [step, pixels] : studio.told[id].previews) steps.push_back(step);
    CHECK(steps == Rows{3, 6});
    CHECK(studio.told[id].steps.size() == 8);
  }
  SECTION("and nothing is loaded for it") {
    studio.of.is_resident = [](std::string_view) { return false; };
    studio.open({});
    const uint64_t id = studio.add(request, /*preview_every=*/1);
    studio.finish();
    CHECK(studio.told[id].previews.empty());
    CHECK(studio.told[id].is_done);
  }
}

}  // namespace
}  // namespace atelier::generate::of_packing
