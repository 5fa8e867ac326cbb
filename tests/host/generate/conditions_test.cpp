// What conditions decide: branches of guidance, sizes of latents, what is decoded, and pieces.
#include <set>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "atelier/error.h"
#include "atelier/named_inputs.h"

#include "host/generate/engine.h"
#include "host/random/noise.h"
#include "support/errors.h"

namespace atelier::generate::of_conditions {
namespace {

using Words = std::vector<std::string>;

constexpr std::string_view kNone[] = {""};
constexpr std::string_view kTexts[] = {"prompt"}, kStyles[] = {"style"}, kPoses[] = {"pose"},
                           kHints[] = {"hint"}, kControls[] = {"control"};
constexpr EncodeStage kStages[] = {
    {.name = "text", .components = kNone, .inputs = kTexts},
    {.name = "style", .components = kNone, .inputs = kStyles, .per_branch = true},
    {.name = "hint", .components = kControls, .inputs = kHints},
    {.name = "pose", .components = kNone, .inputs = kPoses, .per_branch = true, .per_piece = true}};
constexpr InputSpec kInputs[] = {
    {.name = "style", .kind = InputKind::kText},
    {.name = "negative_style", .kind = InputKind::kText, .negative_of = "style"},
    {.name = "hint", .kind = InputKind::kText},
    {.name = "pose", .kind = InputKind::kVideo, .along_clip = true}};

// The velocity of latents x is x - goal, where the goal is the sum of what the conditions hold:
// Euler ends at the goal, but for its rounding. A pixel is a tenth of its latent cell.
class VideoModel final : public Model {
 public:
  int64_t references = 0;      // latent frames before the clip's own
  int64_t decoded_before = 0;  // frames that decoding gives more, at the beginning
  bool makes_sound = false;
  Words encoded;                   // "style=blue", "style-=red" of the negative branch
  std::vector<at::Tensor> before;  // of each piece, as the stage of its own branch sees it
  std::vector<at::Tensor> noise;   // that sampling begins with
  std::vector<std::pair<int64_t, int64_t>> steps;

  nn::Module& component(std::string_view) override { throw Error(ErrorCode::kNotFound, "none"); }
  std::vector<Block*> blocks(std::string_view) override { return {}; }
  LatentSpec latent_spec() const override {
    return {.channels = 4,
            .spatial_stride = 8,
            .pixel_multiple = 8,
            .token_stride = 8,
            .takes_clips = true,
            .pixel_channels = 4};
  }
  std::vector<int64_t> latent_shape(const MediaTarget& target,
                                    const Conditioning& cond) const override {
    const auto found = cond.find("style");
    return {4, target.frames + (found == cond.end() ? 0 : references), target.height / 8,
            target.width / 8};
  }
  FinishedLatents to_decode(const at::Tensor& latents, const Conditioning&) const override {
    const at::Tensor clip = latents.narrow(2, references, latents.size(2) - references);
    if (decoded_before == 0) return {.latents_BCTHW = clip};
    const at::Tensor more = at::full_like(clip.narrow(2, 0, 1), 99.0);
    return {.latents_BCTHW = at::cat({more.repeat({1, 1, decoded_before, 1, 1}), clip}, 2),
            .skipped_frames = decoded_before};
  }
  Conditioning encode(const EncodeInputs& in, BlockRunner&) override {
    const std::string name = std::string(in.stage) + (in.is_negative ? "-=" : "=");
    if (in.stage != "pose") {
      const std::string& text = text_input(in.values, in.stage == "text" ? "prompt" : in.stage);
      encoded.push_back(name + text);
      return {{std::string(in.stage), at::full({1}, static_cast<double>(text.size()))}};
    }
    const at::Tensor pose = clip_input(in.values, "pose");
    CHECK(pose.size(1) == in.target.frames);
    if (in.piece) CHECK(in.piece->frames == in.target.frames);
    encoded.push_back(name + std::to_string(pose[0][0][0][0].item<float>()).substr(0, 4));
    if (!in.is_negative) before.push_back(in.before_CTHW);
    return {
        {"pose", in.is_negative ? at::zeros({in.target.frames}) : pose.select(0, 0).mean({1, 2})}};
  }
  // A sample for each latent frame.
  Sound decode_sound(const at::Tensor& latents, const Conditioning&, BlockRunner&) override {
    if (!makes_sound) return {};
    return {.samples_CN = latents[0].mean({0, 2, 3}).unsqueeze(0).to(at::kFloat), .sample_rate = 8};
  }
  TextLength text_length(const EncodeInputs&) const override { return {.tokens = 1, .limit = 9}; }
  at::Tensor denoise(const DenoiseInputs& in, BlockRunner&) override {
    steps.emplace_back(in.step, in.steps);
    if (in.sigma_B[0].item<float>() == 1.0F) noise.push_back(in.x_BCTHW[0].clone());
    at::Tensor v = in.x_BCTHW.clone();
    for (int64_t b = 0; b < v.size(0); ++b) {
      const Conditioning& cond = *in.cond[static_cast<size_t>(b)];
      for (const auto& [name, value] : cond)
        v[b].sub_(name == "pose" ? value.view({1, -1, 1, 1}) : value);
    }
    return v / in.sigma_B.view({-1, 1, 1, 1, 1});
  }
  void decode(const at::Tensor& latents, BlockRunner&, const FrameSink& sink) override {
    const at::Tensor pixels =
        (latents.to(at::kFloat) / 10).repeat_interleave(8, -2).repeat_interleave(8, -1);
    for (int64_t t = 0; t < pixels.size(2); t += 2)
      sink(pixels.narrow(2, t, std::min<int64_t>(2, pixels.size(2) - t)));
  }
  NamedTensors probe(std::string_view, const NamedTensors&, BlockRunner&) override { return {}; }
  std::vector<int64_t> tokenize(std::string_view) const override { return {}; }
};

const std::vector<model::PresentComponent> kComponents = {
    {"dit", {.name = "dit", .role = Role::kDenoiser}},
    {"control", {.name = "control", .role = Role::kControl, .beside = "dit"}}};

struct Bench {
  VideoModel model;
  progress::Progress progress{progress::Options{.quiet = true}};
  std::vector<at::Tensor> clips;
  std::vector<Sound> sounds;
  std::set<std::string> loaded;

  void run(const Request& request, const std::function<bool()>& is_cancelled = {}) {
    EngineModel of = {.model = model,
                      .stages = {.variant = "",
                                 .components = kComponents,
                                 .encoding = {std::begin(kStages), std::end(kStages)},
                                 .inputs = kInputs,
                                 .denoisers = {{.part = {.component = "dit"}}}},
                      .load = [this](std::string_view name) { loaded.emplace(name); },
                      .unload = [](std::string_view) {}};
    Engine engine(of, progress, is_cancelled);
    engine.run(
        request,
        [&](size_t index, int64_t first, const at::Tensor& pixels) {
          if (first == 0)
            clips.emplace_back(pixels);
          else
            clips.back() = at::cat({clips.back(), pixels}, 1);
          CHECK(index + 1 == clips.size());
          CHECK(clips.back().size(1) == first + pixels.size(1));
        },
        [&](size_t index, const Sound& sound) {
          CHECK(index == clips.size());
          CHECK(index == sounds.size());
          sounds.push_back(sound);
        });
  }
};

Request request_of(int64_t frames) {
  Request request;
  request.inputs["prompt"] = std::string("abc");
  request.sigmas = {1.0F, 0.5F, 0.0F};
  request.target = {frames, 16, 24};
  request.seeds = {5};
  return request;
}

// What each frame of a clip holds, times ten.
std::vector<double> values_of(const at::Tensor& clip_CTHW) {
  CHECK(clip_CTHW.size(0) == 4);
  std::vector<double> values;
  for (int64_t t = 0; t < clip_CTHW.size(1); ++t) {
    const at::Tensor frame = clip_CTHW.select(1, t) * 10;
    CHECK(frame.max().item<float>() - frame.min().item<float>() < 1e-4);
    values.push_back(std::round(frame.mean().item<double>() * 1000) / 1000);
  }
  return values;
}

using Values = std::vector<double>;

TEST_CASE("A stage of each branch runs for the negative one with what stands for its inputs there",
          "[generate]") {
  Bench bench;
  Request request = request_of(1);
  request.inputs["style"] = std::string("blue!");
  request.cfg_scale = 3.0;
  SECTION("which the user gives") {
    request.inputs["negative_style"] = std::string("red");
    request.negative_prompt = "n";
    bench.run(request);
    CHECK(bench.model.encoded == Words{"text=abc", "style=blue!", "text-=n", "style-=red"});
    CHECK(values_of(bench.clips.at(0)) == Values{4 + 3 * (8 - 4)});
  }
  SECTION("or an empty text") {
    bench.run(request);
    CHECK(bench.model.encoded == Words{"text=abc", "style=blue!", "text-=", "style-="});
    CHECK(values_of(bench.clips.at(0)) == Values{0 + 3 * 8});
  }
  SECTION("and not without guidance") {
    request.cfg_scale = 1.0;
    bench.run(request);
    CHECK(bench.model.encoded == Words{"text=abc", "style=blue!"});
  }
}

TEST_CASE("Conditions decide how many latents there are, and what is decoded of them",
          "[generate]") {
  Bench bench;
  bench.model.references = 2;
  bench.model.decoded_before = 3;
  Request request = request_of(3);
  request.inputs["style"] = std::string("blue!");
  SECTION("of noise that is drawn") {
    bench.run(request);
    const at::Tensor drawn = random::normal_noise({.seed = 5}, {4, 5, 2, 3});
    CHECK(at::equal(bench.model.noise.at(0), drawn));
    CHECK(values_of(bench.clips.at(0)) == Values{8, 8, 8});
  }
  SECTION("of noise that is given") {
    request.latents = at::randn({1, 4, 5, 2, 3});
    bench.run(request);
    CHECK(at::equal(bench.model.noise.at(0), request.latents[0]));
    request.latents = at::randn({1, 4, 3, 2, 3});
    const Error error = test::error_of([&] { bench.run(request); });
    CHECK(error.message().find("[1, 4, 5, 2, 3] expected") != std::string::npos);
  }
}

TEST_CASE("A sound that is made is there before the frames", "[generate]") {
  Bench bench;
  bench.model.makes_sound = true;
  bench.model.references = 2;
  Request request = request_of(3);
  request.seeds = {5, 9};
  request.inputs["style"] = std::string("blue!");
  bench.run(request);
  REQUIRE(bench.sounds.size() == 2);
  for (const Sound& sound : bench.sounds) {  // of the latents as they were denoised
    CHECK(sound.sample_rate == 8);
    CHECK(at::allclose(sound.samples_CN, at::full({1, 5}, 8.0), 0, 1e-4));
  }
}

TEST_CASE("The denoiser is told which step of how many it makes", "[generate]") {
  Bench bench;
  bench.run(request_of(1));
  CHECK(bench.model.steps == std::vector<std::pair<int64_t, int64_t>>{{0, 2}, {1, 2}});
}

// A clip of 8 frames in pieces of 4, of which 1 is shared; the last one ends two frames behind it.
Request in_pieces() {
  Request request = request_of(8);
  request.pieces = {{0, 4, 0}, {3, 4, 1}, {6, 4, 1}};
  request.read_beside = [](const Piece& piece) {
    at::Tensor pose = at::arange(piece.first, piece.first + piece.frames, at::kFloat);
    return Inputs{{"pose", pose.view({1, -1, 1, 1}).expand({3, -1, 16, 24}).contiguous()}};
  };
  return request;
}

TEST_CASE("A control comes where it is given something and is not idle", "[generate]") {
  const auto loaded = [](Request request, const std::set<std::string, std::less<>>& idle) {
    Bench bench;
    request.inputs["hint"] = std::string("here");
    request.idle_controls = idle;
    bench.run(request);
    return bench.loaded;
  };
  const std::set<std::string> alone = {"dit"}, both = {"dit", "control"};
  CHECK(loaded(request_of(1), {"control"}) == alone);
  CHECK(loaded(request_of(1), {"another"}) == both);
  CHECK(loaded(in_pieces(), {"control"}) == alone);
  CHECK(loaded(in_pieces(), {}) == both);
}

TEST_CASE("A clip is made piece by piece, each behind the frames that it shares", "[generate]") {
  Bench bench;
  Request request = in_pieces();
  request.seeds = {5, 9};
  bench.run(request);
  // The prompt has three letters, and each frame is its pose beside that.
  const Values whole = {3, 4, 5, 6, 7, 8, 9, 10};
  REQUIRE(bench.clips.size() == 2);
  for (const at::Tensor& clip : bench.clips) CHECK(values_of(clip) == whole);
  CHECK(bench.model.encoded == Words{"text=abc", "pose=0.00", "pose=3.00", "pose=6.00", "pose=0.00",
                                     "pose=3.00", "pose=6.00"});
  REQUIRE(bench.model.before.size() == 6);
  CHECK_FALSE(bench.model.before.at(0).defined());
  CHECK(values_of(bench.model.before.at(1)) == Values{6});
  CHECK(values_of(bench.model.before.at(2)) == Values{9});
  CHECK_FALSE(bench.model.before.at(3).defined());
  for (size_t i = 0; i < 6; ++i) {
    const uint64_t seed = (i < 3 ? 5 : 9) + i % 3;
    CHECK(at::equal(bench.model.noise.at(i), random::normal_noise({.seed = seed}, {4, 4, 2, 3})));
  }
}

TEST_CASE("Both branches of guidance have stages of each piece", "[generate]") {
  Bench bench;
  Request request = in_pieces();
  request.cfg_scale = 2.0;
  request.negative_prompt = "no";
  bench.run(request);
  // 2 * (3 + pose) - (2 + 0)
  CHECK(values_of(bench.clips.at(0)) == Values{4, 6, 8, 10, 12, 14, 16, 18});
}

TEST_CASE("A clip that is stopped leaves the pieces that are finished", "[generate]") {
  Bench bench;
  const auto stops = [&] { return bench.model.steps.size() >= 3; };
  const Error error = test::error_of([&] { bench.run(in_pieces(), stops); });
  CHECK(error.code() == ErrorCode::kCancelled);
  REQUIRE(bench.clips.size() == 1);
  CHECK(values_of(bench.clips.at(0)) == Values{3, 4, 5, 6});
}

}  // namespace
}  // namespace atelier::generate::of_conditions
