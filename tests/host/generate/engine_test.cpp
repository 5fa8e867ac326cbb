#include "host/generate/engine.h"

#include <cmath>
#include <type_traits>

#include <ATen/ATen.h>

#include "atelier/error.h"
#include "atelier/host/stop.h"

#include "host/generate/guidance.h"
#include "host/model/stages.h"
#include "host/random/noise.h"
#include "host/sampling/sigma_schedule.h"
#include "host/sampling/solvers.h"
#include "support/files.h"
#include "support/models.h"
#include "tests/host/generate/fake_model.h"

namespace atelier::generate {
namespace {

using namespace order;
using namespace sampling;

static_assert(!std::is_copy_constructible_v<Engine> && !std::is_move_constructible_v<Engine>);

using Words = std::vector<std::string>;

struct Bench {
  FakeModel model;
  Words log;
  progress::Progress progress{progress::Options{.quiet = true}};
  bool keeps_all = false;
  int64_t calls = 0;  // with frames

  std::vector<at::Tensor> run(const Request& request, std::function<bool()> is_cancelled = {}) {
    Engine engine(fake_engine(model, log, keeps_all), progress, std::move(is_cancelled));
    std::vector<at::Tensor> images;
    engine.run(request, [&](size_t index, int64_t first, const at::Tensor& pixels) {
      if (first == 0) {
        REQUIRE(index == images.size());
        images.push_back(pixels);
      } else {
        REQUIRE(index + 1 == images.size());
        REQUIRE(first == images.back().size(1));
        images.back() = at::cat({images.back(), pixels}, 1);
      }
      ++calls;
    });
    return images;
  }
};

std::vector<float> plain_sigmas(int steps) {
  return make_sigmas(ScheduleDefaults{}, {.num_steps = steps});
}

Request request_of(const std::string& prompt, int steps, std::vector<uint64_t> seeds) {
  Request request;
  request.inputs["prompt"] = prompt;
  request.sigmas = plain_sigmas(steps);
  request.target = {1, 32, 48};
  request.seeds = std::move(seeds);
  return request;
}

at::Tensor decoded(const at::Tensor& latents_CTHW) {
  FakeModel model;
  DirectRunner runner;
  return test::decode(model, latents_CTHW.unsqueeze(0), runner)[0];
}

// Euler on v = rate x + c, step by step in double precision.
at::Tensor euler(at::Tensor x, const std::vector<float>& sigmas, double rate, double c) {
  x = x.to(at::kDouble);
  for (size_t i = 0; i + 1 < sigmas.size(); ++i) {
    x = x + (static_cast<double>(sigmas[i + 1]) - sigmas[i]) * (rate * x + c);
  }
  return x.to(at::kFloat);
}

TEST_CASE("Euler follows its closed form", "[generate]") {
  Bench bench;
  const auto images = bench.run(request_of("four", 10, {7}));
  REQUIRE(images.size() == 1);
  REQUIRE(images[0].sizes() == at::IntArrayRef({3, 1, 32, 48}));
  const at::Tensor noise = random::normal_noise({.seed = 7}, {4, 1, 4, 6});
  // Ten steps of -0.1 on v = x / 2 + c: (1 - 0.05)^10 x + 2 c ((1 - 0.05)^10 - 1).
  const double factor = std::pow(0.95, 10), c = 4 / 100.0;
  const at::Tensor want = decoded(noise * factor + 2 * c * (factor - 1));
  REQUIRE(at::allclose(images[0], want, 0, 1e-6));
  std::vector<float> levels = plain_sigmas(10);
  levels.pop_back();
  REQUIRE(bench.model.sigmas_seen == levels);
}

TEST_CASE("Images are made with the quick sums of 8-bit products, and nothing behind them is",
          "[generate]") {
  Bench bench;
  bench.run(request_of("four", 10, {7}));
  CHECK(bench.model.calls_with_fast_sums == 1 + 10);  // of the encoder, and of the denoiser
  CHECK_FALSE(ops::FastSums::are_allowed());
  Bench ahead;
  const Request request = request_of("four", 10, {7});
  Engine(fake_engine(ahead.model, ahead.log), ahead.progress).encode_ahead({&request, 1});
  CHECK(ahead.model.calls_with_fast_sums == 1);
  CHECK_FALSE(ops::FastSums::are_allowed());
}

TEST_CASE("Guidance moves away from the negative prompt", "[generate]") {
  for (const bool batches_cfg : {true, false}) {
    Bench bench;
    Request request = request_of("sixteen letters.", 5, {1, 2});
    request.negative_prompt = "bad";
    request.cfg_scale = 4.0;
    request.batches_cfg = batches_cfg;
    request.batch_size = 2;
    const auto images = bench.run(request);
    REQUIRE(bench.model.rows_seen ==
            (batches_cfg ? std::vector<int64_t>(5, 4) : std::vector<int64_t>(10, 2)));
    const double c = 0.03 + 4.0 * (0.16 - 0.03);
    for (size_t i = 0; i < 2; ++i) {
      const at::Tensor noise = random::normal_noise({.seed = request.seeds[i]}, {4, 1, 4, 6});
      REQUIRE(at::allclose(images[i], decoded(euler(noise, request.sigmas, 0.5, c)), 0, 1e-6));
    }
  }
}

TEST_CASE("The scale that turns guidance off is the family's", "[generate]") {
  for (const double scale : {0.0, 1.0}) {
    Bench bench;
    Request request = request_of("prompt", 3, {1});
    request.cfg_scale = scale;
    request.cfg_off = 0.0;
    request.batches_cfg = false;
    bench.run(request);
    CHECK(bench.model.rows_seen == std::vector<int64_t>(scale == 0.0 ? 3 : 6, 1));
  }
}

TEST_CASE("Guidance ends where it is truncated, and rows fall with it", "[generate]") {
  for (const bool batches_cfg : {true, false}) {
    Bench bench;
    Request request = request_of("sixteen letters.", 10, {1, 2});
    request.negative_prompt = "bad";
    request.cfg_scale = 4.0;
    request.cfg_trunc = 0.25;  // 1 - sigma is 0, 0.1, 0.2, 0.3, ...
    request.batches_cfg = batches_cfg;
    request.batch_size = 2;
    const auto images = bench.run(request);
    std::vector<int64_t> rows =
        batches_cfg ? std::vector<int64_t>(3, 4) : std::vector<int64_t>(6, 2);
    rows.resize(rows.size() + 7, 2);
    REQUIRE(bench.model.rows_seen == rows);
    for (size_t i = 0; i < 2; ++i) {
      at::Tensor x = random::normal_noise({.seed = request.seeds[i]}, {4, 1, 4, 6});
      const std::vector<float>& all = request.sigmas;
      x = euler(x, {all.begin(), all.begin() + 4}, 0.5, 0.03 + 4.0 * (0.16 - 0.03));
      x = euler(x, {all.begin() + 3, all.end()}, 0.5, 0.16);
      REQUIRE(at::allclose(images[i], decoded(x), 0, 1e-6));
    }
  }
}

TEST_CASE("Where no step is guided the negative prompt is not encoded", "[generate]") {
  Bench bench;
  Request request = request_of("prompt", 10, {3});
  request.negative_prompt = "negative";
  request.cfg_scale = 4.0;
  request.cfg_trunc = 0.25;
  request.sigmas = keep_last_steps(request.sigmas, 0.5);
  request.input_pixels = at::zeros({3, 1, 32, 48});
  bench.run(request);
  REQUIRE(bench.model.prompts_encoded == Words{"prompt"});
  REQUIRE(bench.model.rows_seen == std::vector<int64_t>(5, 1));
}

TEST_CASE("Guided velocities are brought back to the length without guidance", "[generate]") {
  // Both forms, written out.
  const auto clamped = [](const at::Tensor& guided, const at::Tensor& with, double ratio) {
    const double most = ratio * with.norm().item<double>(), has = guided.norm().item<double>();
    return has >= most ? guided * (most / has) : guided;
  };
  const auto by_row = [](const at::Tensor& guided, const at::Tensor& with) {
    return guided * (at::norm(with, 2, {-1}, true) / at::norm(guided, 2, {-1}, true));
  };
  const at::Tensor noise = random::normal_noise({.seed = 5}, {4, 1, 4, 6});
  for (const bool batches_cfg : {true, false}) {
    for (const auto& [renorm, ratio] : {std::pair{CfgRenorm::kClamp, 1.0},
                                        {CfgRenorm::kClamp, 0.7},
                                        {CfgRenorm::kClamp, 9.0},
                                        {CfgRenorm::kRow, 1.0}}) {
      Bench bench;
      Request request = request_of(std::string(90, 'x'), 4, {5, 6});
      request.negative_prompt = "bad";
      request.cfg_scale = 4.0;
      request.cfg_renorm = renorm;
      request.cfg_renorm_ratio = ratio;
      request.batches_cfg = batches_cfg;
      request.batch_size = 2;  // each sample has a length of its own
      const auto images = bench.run(request);
      at::Tensor x = noise.to(at::kDouble);
      bool was_longer = false;
      for (size_t i = 0; i < 4; ++i) {
        const at::Tensor with = 0.5 * x + 0.9, without = 0.5 * x + 0.03;
        const at::Tensor guided = without + 4.0 * (with - without);
        was_longer |= guided.norm().item<double>() > ratio * with.norm().item<double>();
        const at::Tensor v =
            renorm == CfgRenorm::kRow ? by_row(guided, with) : clamped(guided, with, ratio);
        x = x + (static_cast<double>(request.sigmas[i + 1]) - request.sigmas[i]) * v;
      }
      CHECK(was_longer == (ratio < 9.0));
      CHECK(at::allclose(images[0], decoded(x.to(at::kFloat)), 0, 1e-6));
    }
  }
  const at::Tensor none = at::zeros({1, 4, 1, 4, 6});
  for (const CfgRenorm renorm : {CfgRenorm::kClamp, CfgRenorm::kRow})
    CHECK(at::equal(renormed(none, none, renorm, 1.0), none));
}

TEST_CASE("Without guidance the negative prompt is not encoded", "[generate]") {
  Bench bench;
  Request request = request_of("prompt", 2, {0});
  request.negative_prompt = "negative";
  bench.run(request);
  REQUIRE(bench.model.prompts_encoded == Words{"prompt"});
  request.cfg_scale = 2.0;
  bench.run(request);
  REQUIRE(bench.model.prompts_encoded == Words{"prompt", "prompt", "negative"});
}

TEST_CASE("A batch equals its images one by one, to the bit", "[generate]") {
  std::vector<at::Tensor> one_by_one, batched, alone;
  Request request = request_of("prompt", 4, {5, 6, 7, 8, 9});
  request.cfg_scale = 3.0;
  one_by_one = Bench().run(request);
  request.batch_size = 2;
  batched = Bench().run(request);
  REQUIRE(batched.size() == 5);
  for (size_t i = 0; i < 5; ++i) {
    REQUIRE(at::equal(one_by_one[i], batched[i]));
    Request single = request;
    single.seeds = {request.seeds[i]};
    REQUIRE(at::equal(Bench().run(single)[0], batched[i]));
  }
  REQUIRE_FALSE(at::equal(batched[0], batched[1]));
}

TEST_CASE("Latents from a file take the place of the seed", "[generate]") {
  Request request = request_of("prompt", 3, {1, 2});
  request.latents = at::stack({random::normal_noise({.seed = 2}, {4, 1, 4, 6}),
                               random::normal_noise({.seed = 1}, {4, 1, 4, 6})});
  const at::Tensor before = request.latents.clone();
  const auto given = Bench().run(request);
  REQUIRE(at::equal(request.latents, before));
  request.latents = at::Tensor();
  const auto drawn = Bench().run(request);
  REQUIRE(at::equal(given[0], drawn[1]));
  REQUIRE(at::equal(given[1], drawn[0]));

  request.latents = at::zeros({1, 4, 1, 4, 6});
  REQUIRE_THROWS_WITH(Bench().run(request),
                      Catch::Contains("[1, 4, 1, 4, 6], [2, 4, 1, 4, 6] expected"));
}

TEST_CASE("Image to image starts between the image and noise", "[generate]") {
  Request request = request_of("prompt", 10, {3});
  request.sigmas = keep_last_steps(request.sigmas, 0.3);
  REQUIRE(request.sigmas.front() == Approx(0.3));
  request.input_pixels = at::full({3, 1, 32, 48}, 0.5);
  Bench bench;
  const auto images = bench.run(request);
  const at::Tensor noise = random::normal_noise({.seed = 3}, {4, 1, 4, 6});
  at::Tensor clean = at::full({4, 1, 4, 6}, 0.25);
  clean[3] = 0.0;
  const at::Tensor start = 0.3 * noise + 0.7 * clean;
  REQUIRE(at::allclose(images[0], decoded(euler(start, request.sigmas, 0.5, 0.06)), 0, 1e-6));
  REQUIRE(bench.model.denoise_calls == 3);

  request.input_pixels = at::zeros({3, 1, 32, 32});
  REQUIRE_THROWS_AS(Bench().run(request), Error);
}

TEST_CASE("Tiling the VAE changes nothing where its output is local", "[generate]") {
  Request request = request_of("prompt", 2, {3});
  request.target = {1, 96, 128};
  request.input_pixels = at::rand({3, 1, 96, 128}) * 2 - 1;
  request.sigmas = keep_last_steps(request.sigmas, 0.5);
  const auto whole = Bench().run(request);
  request.tiling = Tiling{.size = 64, .stride = 48};
  REQUIRE(at::allclose(Bench().run(request)[0], whole[0], 0, 1e-6));
}

TEST_CASE("The text encoder leaves before the denoiser comes", "[generate]") {
  Bench bench;
  bench.run(request_of("prompt", 1, {1}));
  REQUIRE(bench.log == Words{"+text_encoder", "-text_encoder", "+dit", "+vae"});

  Bench all;
  all.keeps_all = true;
  all.run(request_of("prompt", 1, {1}));
  REQUIRE(all.log == Words{"+text_encoder", "+dit", "+vae"});

  Bench image;
  Request request = request_of("prompt", 1, {1});
  request.input_pixels = at::zeros({3, 1, 32, 48});
  image.run(request);
  REQUIRE(image.log == Words{"+text_encoder", "+vae", "-text_encoder", "+dit", "+vae"});
}

TEST_CASE("Prompts are encoded once per content", "[generate]") {
  FakeModel model;
  Words log;
  progress::Progress progress{progress::Options{.quiet = true}};
  Engine engine(fake_engine(model, log), progress);
  const auto ignore = [](size_t, int64_t, const at::Tensor&) {};
  Request request = request_of("a", 1, {1});
  request.cfg_scale = 2.0;
  engine.run(request, ignore);
  engine.run(request, ignore);
  REQUIRE(model.prompts_encoded == Words{"a", ""});
  // The second run does not bring the text encoder back.
  REQUIRE(std::count(log.begin(), log.end(), "+text_encoder") == 2);
  request.inputs["no_stage_reads_it"] = 0.5;
  engine.run(request, ignore);
  REQUIRE(model.prompts_encoded == Words{"a", ""});
  request.inputs["strength"] = 0.5;
  engine.run(request, ignore);
  REQUIRE(model.prompts_encoded == Words{"a", "", "a", ""});
  const Request ahead[] = {request_of("b", 1, {1}), request_of("c", 1, {1})};
  engine.encode_ahead(ahead);
  engine.run(ahead[1], ignore);
  REQUIRE(model.prompts_encoded == Words{"a", "", "a", "", "b", "c"});
  Request changed = ahead[1];
  changed.encoder_state = "another encoder";
  engine.run(changed, ignore);
  engine.run(ahead[1], ignore);
  REQUIRE(model.prompts_encoded == Words{"a", "", "a", "", "b", "c", "c"});
}

TEST_CASE("Noise levels are prepared once for all images of a request, and forgotten after it",
          "[generate]") {
  Bench bench;
  Request request = request_of("prompt", 3, {1, 2, 3});
  request.cfg_scale = 2;
  bench.run(request);  // the model checks the level of each call
  CHECK(bench.model.times_prepared == 1);
  CHECK(bench.model.denoise_calls == 9);
  CHECK(bench.model.levels.empty());

  CHECK_THROWS_AS(bench.run(request, [&] { return bench.model.denoise_calls >= 11; }), Error);
  CHECK(bench.model.times_prepared == 2);
  CHECK(bench.model.levels.empty());
}

TEST_CASE("What sees the target is encoded again for another one", "[generate]") {
  for (const bool sees_target : {false, true}) {
    Bench bench;
    EngineModel of = fake_engine(bench.model, bench.log);
    of.stages.encoding[0].sees_target = sees_target;
    Engine engine(std::move(of), bench.progress);
    Request request = request_of("a", 1, {1});
    for (const MediaTarget& target :
         {MediaTarget{1, 32, 48}, MediaTarget{1, 32, 32}, MediaTarget{3, 32, 32}}) {
      request.target = target;
      engine.run(request, [](size_t, int64_t, const at::Tensor&) {});
    }
    CHECK(bench.model.prompts_encoded.size() == (sees_target ? 3 : 1));
  }
}

TEST_CASE("The denoiser's blocks are run by the engine's runner", "[generate]") {
  Bench bench;
  DirectRunner runner;
  EngineModel of = fake_engine(bench.model, bench.log);
  of.runner = &runner;
  Engine engine(of, bench.progress);
  engine.run(request_of("prompt", 2, {1}), [](size_t, int64_t, const at::Tensor&) {});
  REQUIRE(bench.model.runners.size() == 3);
  for (const BlockRunner* used : bench.model.runners) CHECK(used == &runner);
}

TEST_CASE("Cancelling stops at the edge of a step and keeps what is finished", "[generate]") {
  Bench bench;
  int64_t finished = 0;
  Engine engine(fake_engine(bench.model, bench.log), bench.progress,
                [&] { return bench.model.denoise_calls >= 6; });
  try {
    engine.run(request_of("prompt", 4, {1, 2, 3}),
               [&](size_t, int64_t, const at::Tensor&) { ++finished; });
    FAIL("not cancelled");
  } catch (const Error& error) {
    REQUIRE(error.code() == ErrorCode::kCancelled);
  }
  REQUIRE(finished == 1);
  REQUIRE(bench.model.denoise_calls == 6);
}

TEST_CASE("Work asks whether it is to stop, and what asks is gone behind it", "[generate]") {
  Bench bench;
  bool is_loading = false;
  EngineModel of = fake_engine(bench.model, bench.log);
  of.load = [&](std::string_view) {
    is_loading = true;
    ops::check_stop();
    is_loading = false;
  };
  Engine engine(std::move(of), bench.progress, [&] { return is_loading; });
  REQUIRE_THROWS_WITH(
      engine.run(request_of("a", 2, {1}), [](size_t, int64_t, const at::Tensor&) {}),
      Catch::Contains("stopped by the user"));
  REQUIRE(is_loading);
  REQUIRE_NOTHROW(ops::check_stop());
}

TEST_CASE("An image of values that are not finite is an error", "[generate]") {
  Bench bench;
  Request request = request_of("prompt", 2, {0});
  request.latents = at::full({1, 4, 1, 4, 6}, std::nan(""));
  try {
    bench.run(request);
    FAIL("it was made");
  } catch (const Error& error) {
    REQUIRE(error.code() == ErrorCode::kNumerics);
  }
}

TEST_CASE("Half precision sees rounded latents and float32 sums", "[generate]") {
  Bench bench;
  EngineModel of = fake_engine(bench.model, bench.log);
  of.stages.denoisers.front().dtype = of.decoder_dtype = at::kBFloat16;
  Engine engine(of, bench.progress);
  const Request request = request_of("prompt", 20, {4});
  at::Tensor image;
  engine.run(request, [&](size_t, int64_t, const at::Tensor& pixels) { image = pixels; });
  at::Tensor x = random::normal_noise({.seed = 4}, {4, 1, 4, 6});
  for (size_t i = 0; i < 20; ++i) {
    at::Tensor v = x.to(at::kBFloat16) * 0.5;
    v.add_(6.0 / 100);
    x = x + v.to(at::kFloat) * (static_cast<double>(request.sigmas[i + 1]) - request.sigmas[i]);
  }
  REQUIRE(at::allclose(image, decoded(x.to(at::kBFloat16)), 0, 1e-6));
}

TEST_CASE("Each denoiser runs at the noise levels of its range, with its own levels",
          "[generate]") {
  Bench bench;
  EngineModel of = two_denoisers(bench.model, bench.log);
  Engine engine(std::move(of), bench.progress);
  std::vector<at::Tensor> images;
  const auto keep = [&](size_t, int64_t, const at::Tensor& pixels) { images.push_back(pixels); };
  engine.run(request_of("four", 4, {7}), keep);  // 1, 0.75, 0.5, 0.25
  CHECK(bench.model.denoisers_seen == Words{"dit", "dit", "dit", "dit_low"});
  CHECK(bench.model.times_prepared == 2);
  CHECK(bench.log ==
        Words{"+text_encoder", "-text_encoder", "-dit_low", "+dit", "-dit", "+dit_low", "+vae"});
  // The fake computes the same in both, so that the image is that of one denoiser.
  Bench one;
  CHECK(at::equal(images[0], one.run(request_of("four", 4, {7}))[0]));
  // A second image begins with the first denoiser again.
  bench.model.denoisers_seen.clear();
  engine.run(request_of("four", 4, {8}), keep);
  CHECK(bench.model.denoisers_seen == Words{"dit", "dit", "dit", "dit_low"});
}

TEST_CASE("Where one denoiser follows another is the user's choice", "[generate]") {
  Bench bench;
  Request request = request_of("four", 4, {7});  // 1, 0.75, 0.5, 0.25
  for (const auto& [boundary, seen] :
       {std::pair(0.75, Words{"dit", "dit", "dit_low", "dit_low"}),
        std::pair(0.76, Words{"dit", "dit_low", "dit_low", "dit_low"}),
        std::pair(0.0, Words(4, "dit"))}) {
    INFO(boundary);
    request.switch_boundary = boundary;
    bench.model.denoisers_seen.clear();
    Engine engine(two_denoisers(bench.model, bench.log), bench.progress);
    engine.run(request, [](size_t, int64_t, const at::Tensor&) {});
    CHECK(bench.model.denoisers_seen == seen);
  }
  // The level that the denoiser is told counts, as where published samplers compare timesteps.
  request.sigmas = {0.9F, 0.7509F, 0.0F};
  request.switch_boundary = 0.7505;
  request.whole_timesteps = true;
  bench.model.denoisers_seen.clear();
  Engine engine(two_denoisers(bench.model, bench.log), bench.progress);
  engine.run(request, [](size_t, int64_t, const at::Tensor&) {});
  CHECK(bench.model.denoisers_seen == Words{"dit", "dit_low"});
}

TEST_CASE("The next denoiser is told before the last call of the one before", "[generate]") {
  for (const bool batches_cfg : {true, false}) {
    Bench bench;
    Words told;
    EngineModel of = two_denoisers(bench.model, bench.log);
    of.hand_over = [&](std::string_view from, std::string_view to) {
      told.push_back(c10::str(from, ">", to, " after ", bench.model.denoise_calls));
    };
    Engine engine(std::move(of), bench.progress);
    Request request = request_of("four", 4, {7});
    request.cfg_scale = 3.0;
    request.batches_cfg = batches_cfg;
    engine.run(request, [](size_t, int64_t, const at::Tensor&) {});
    CHECK(told == Words{batches_cfg ? "dit>dit_low after 2" : "dit>dit_low after 5"});
    CHECK(bench.model.denoisers_seen.size() == (batches_cfg ? 4 : 8));
  }
}

TEST_CASE("All images pass the first denoiser before the second one is loaded", "[generate]") {
  const std::vector<uint64_t> seeds = {7, 8, 9};
  at::Tensor free = at::ones({1, 1, 4, 6});
  free.narrow(3, 0, 2).zero_();
  for (const SolverSpec& solver : solvers()) {
    INFO(solver.name);
    const auto run = [&](Bench& bench, EngineModel of, std::vector<uint64_t> drawn) {
      bench.model.known = GivenLatents{at::full({4, 1, 4, 6}, 0.75), free, /*is_noised=*/true};
      Request request = request_of("four", 4, std::move(drawn));  // 1, 0.75, 0.5, 0.25
      request.solver = solver;
      Engine engine(std::move(of), bench.progress);
      std::vector<at::Tensor> images;
      engine.run(request, [&](size_t index, int64_t, const at::Tensor& pixels) {
        CHECK(index == images.size());
        images.push_back(pixels);
      });
      return images;
    };
    Bench bench;
    const auto images = run(bench, two_denoisers(bench.model, bench.log), seeds);
    CHECK(bench.log == Words{"+text_encoder", "-text_encoder", "-dit_low", "+dit", "-dit",
                             "+dit_low", "+vae", "+vae", "+vae"});
    CHECK(bench.model.times_prepared == 2);
    for (size_t i = 0; i < seeds.size(); ++i) {
      Bench alone;
      CHECK(at::equal(images.at(i),
                      run(alone, two_denoisers(alone.model, alone.log), {seeds[i]})[0]));
    }
    // Where both may stay, an image is done before the next one begins.
    Bench both;
    EngineModel of = two_denoisers(both.model, both.log);
    of.stays = {"dit", "dit_low"};
    const auto one_by_one = run(both, of, seeds);
    const Words steps = {"dit", "dit", "dit", "dit_low"};
    CHECK(Words(both.model.denoisers_seen.begin(), both.model.denoisers_seen.begin() + 4) == steps);
    for (size_t i = 0; i < seeds.size(); ++i) CHECK(at::equal(images[i], one_by_one.at(i)));
  }
}

// A solver on v = rate x + c, as the engine has it.
at::Tensor solved(std::string_view solver, at::Tensor x, const std::vector<float>& sigmas,
                  double rate, double c) {
  const auto walker = find_solver(solver).make(sigmas, x);
  for (size_t i = 0; i + 1 < sigmas.size(); ++i) walker->step(x, x * rate + c);
  return x;
}

TEST_CASE("Every solver goes on over guidance, starts, batches and denoisers", "[generate]") {
  for (const SolverSpec& solver : solvers()) {
    INFO(solver.name);
    Request request = request_of("four", 6, {7, 8, 9});
    request.solver = solver;
    const std::vector<at::Tensor> alone = Bench().run(request);
    const at::Tensor noise = random::normal_noise({.seed = 7}, {4, 1, 4, 6});
    CHECK(at::allclose(
        alone[0], decoded(solved(solver.name, noise.clone(), request.sigmas, 0.5, 0.04)), 0, 1e-6));
    CHECK(at::equal(alone[0], Bench().run(request_of("four", 6, {7}))[0]) ==
          (solver.name == "euler"));
    request.batch_size = 2;
    const std::vector<at::Tensor> batched = Bench().run(request);
    for (size_t i = 0; i < 3; ++i) CHECK(at::equal(alone[i], batched[i]));

    // What is remembered goes on from one denoiser to the next.
    Bench two;
    Engine engine(two_denoisers(two.model, two.log), two.progress);
    engine.run(request, [&](size_t i, int64_t, const at::Tensor& pixels) {
      CHECK(at::equal(pixels, alone[i]));
    });

    Request start = request_of("four", 6, {7});
    start.solver = solver;
    start.sigmas = keep_last_steps(start.sigmas, 0.5);
    start.input_pixels = at::zeros({3, 1, 32, 48});
    CHECK(at::allclose(
        Bench().run(start)[0],
        decoded(solved(solver.name, noise * start.sigmas.front(), start.sigmas, 0.5, 0.04)), 0,
        1e-6));

    // Guided or not, what is known stays.
    Bench known;
    known.model.known = GivenLatents{.values_CTHW = at::full({4, 1, 4, 6}, 0.25),
                                     .free_1THW = at::zeros({1, 1, 4, 6})};
    request.cfg_scale = 3.0;
    request.cfg_trunc = 0.5;
    const at::Tensor kept = known.run(request)[0];
    CHECK(at::equal(kept, decoded(at::full({4, 1, 4, 6}, 0.25))));
  }
}

TEST_CASE("A denoiser may be told whole thousandths of the levels", "[generate]") {
  Bench bench;
  Request request = request_of("four", 3, {7});
  request.sigmas = {0.9996F, 0.7501F, 0.25F, 0.0F};
  request.whole_timesteps = true;
  const at::Tensor image = bench.run(request)[0];  // the model checks what was prepared
  CHECK(bench.model.sigmas_seen == std::vector<float>{0.999F, 0.75F, 0.25F});
  CHECK(bench.model.next_sigmas_seen == std::vector<float>{0.75F, 0.25F, 0.0F});
  const at::Tensor noise = random::normal_noise({.seed = 7}, {4, 1, 4, 6});
  CHECK(at::allclose(image, decoded(euler(noise, request.sigmas, 0.5, 0.04)), 0, 1e-6));
}

TEST_CASE("A noise level without a denoiser says what is missing", "[generate]") {
  Bench bench;
  EngineModel of = fake_engine(bench.model, bench.log);
  of.stages.denoisers = {{{.component = "dit"}, {.low = 0.5, .high = 1.0}}};
  Engine engine(std::move(of), bench.progress);
  test::expect_error(ErrorCode::kNotFound, {"noise level 0.25", "--model_paths"}, [&] {
    engine.run(request_of("four", 4, {7}), [](size_t, int64_t, const at::Tensor&) {});
  });
}

TEST_CASE("Latents that are given stay as they are", "[generate]") {
  for (const bool is_noised : {false, true}) {
    Bench bench;
    at::Tensor free = at::ones({1, 1, 4, 6});
    free.narrow(3, 0, 2).zero_();
    const at::Tensor values = at::full({4, 1, 4, 6}, 0.75);
    bench.model.known = GivenLatents{values, free, is_noised};
    const at::Tensor image = bench.run(request_of("four", 3, {7}))[0];
    CHECK(at::equal(image.narrow(3, 0, 16), at::full({3, 1, 32, 16}, 0.75 / 4)));
    Bench plain;
    CHECK(at::equal(image.narrow(3, 16, 32),
                    plain.run(request_of("four", 3, {7}))[0].narrow(3, 16, 32)));
  }
}

TEST_CASE("What a mask keeps of an image has the noise of each level, and none at the end",
          "[generate]") {
  Request request = request_of("prompt", 10, {3});
  request.sigmas = keep_last_steps(request.sigmas, 0.3);
  request.input_pixels = at::full({3, 1, 32, 48}, 0.5);
  const std::vector<at::Tensor> anew = Bench().run(request);
  // Cells are what their corners say: the third column of them is not masked.
  request.inpaint_mask = at::ones({1, 32, 48});
  request.inpaint_mask.narrow(2, 0, 15).fill_(0.49);
  Bench bench;
  const at::Tensor image = bench.run(request)[0];
  const at::Tensor noise = random::normal_noise({.seed = 3}, {4, 1, 4, 6});
  at::Tensor clean = at::full({4, 1, 4, 6}, 0.25);
  clean[3] = 0.0;
  for (size_t i = 0; i < 3; ++i) {
    const double sigma = request.sigmas[i];
    const at::Tensor kept = sigma * noise + (1 - sigma) * clean;
    REQUIRE(at::allclose(bench.model.latents_seen.at(i)[0].narrow(3, 0, 2), kept.narrow(3, 0, 2), 0,
                         1e-6));
  }
  CHECK(at::equal(image.narrow(3, 0, 16), decoded(clean).narrow(3, 0, 16)));
  CHECK(at::equal(image.narrow(3, 16, 32), anew[0].narrow(3, 16, 32)));
}

TEST_CASE("Each denoiser is given latents in its own dtype", "[generate]") {
  Bench bench;
  EngineModel of = two_denoisers(bench.model, bench.log);
  of.stages.denoisers[0].dtype = at::kBFloat16;
  Engine engine(std::move(of), bench.progress);
  engine.run(request_of("four", 4, {7}), [](size_t, int64_t, const at::Tensor&) {});
  CHECK(bench.model.dtypes_seen ==
        std::vector<at::ScalarType>{at::kBFloat16, at::kBFloat16, at::kBFloat16, at::kFloat});
}

TEST_CASE("A model that decodes another number of frames is told", "[generate]") {
  for (const int64_t more : {-1, 1}) {
    Bench bench;
    bench.model.frames_more = more;
    Request request = request_of("four", 1, {7});
    request.target.frames = 3;
    test::expect_error(ErrorCode::kInternal, {"gives " + std::to_string(3 + more) + " frames of 3"},
                       [&] { bench.run(request); });
  }
}

TEST_CASE("Frames are handed on in order as they are decoded", "[generate]") {
  Request request = request_of("four", 3, {7, 8});
  request.target.frames = 5;
  Bench whole, parts;
  const std::vector<at::Tensor> clips = whole.run(request);
  REQUIRE(clips.size() == 2);
  CHECK(clips[0].sizes() == at::IntArrayRef({3, 5, 32, 48}));
  CHECK(whole.calls == 2);
  parts.model.decodes_in_parts = true;
  const std::vector<at::Tensor> again = parts.run(request);
  CHECK(parts.calls == 10);
  for (size_t i = 0; i < 2; ++i) CHECK(at::equal(clips[i], again[i]));
  request.tiling = Tiling{.size = 32, .stride = 16};
  CHECK(at::allclose(parts.run(request)[1], clips[1], 0, 1e-6));
}

TEST_CASE("Frames that come one by one are one clip", "[generate]") {
  FakeModel model;
  DirectRunner runner;
  const at::Tensor latents = at::randn({2, 4, 5, 4, 6});
  const at::Tensor whole = model::decode_whole(model, latents, runner, at::kCPU);
  CHECK(whole.sizes() == at::IntArrayRef({2, 3, 5, 32, 48}));
  model.decodes_in_parts = true;
  CHECK(at::equal(model::decode_whole(model, latents, runner, at::kCPU), whole));
}

}  // namespace
}  // namespace atelier::generate
