#include "host/plugins/output_checks.h"

#include <ATen/ATen.h>

#include "support/errors.h"

namespace atelier::plugins {
namespace {

constexpr const char* kPlace = "\"/odd.so\"";

// What is said of a value that no plugin may give; empty where it may.
template <class Check>
std::string refusal(Check check) {
  const std::string message = test::message_of(check);
  if (!message.empty()) {
    CHECK_THAT(message, Catch::StartsWith(kPlace) && Catch::Contains("PLUGIN_"));
  }
  return message;
}

TEST_CASE("Pieces follow on each other to the end of the clip", "[plugins]") {
  const auto said = [](const std::vector<Piece>& pieces, int64_t frames) {
    return refusal([&] { check_pieces(kPlace, pieces, {frames, 16, 16}); });
  };
  CHECK(said({}, 9).empty());
  CHECK(said({{0, 5, 0}, {4, 5, 1}}, 9).empty());
  CHECK(said({{0, 77, 0}, {4, 153, 73}}, 150).empty());
  CHECK_THAT(said({{0, 5, 0}, {6, 5, 0}}, 11), Catch::Contains("frame 5 is next"));
  CHECK_THAT(said({{0, 5, 0}, {3, 5, 1}}, 8), Catch::Contains("frame 5 is next"));
  CHECK_THAT(said({{0, 5, 1}}, 5), Catch::Contains("of which 1 are those before"));
  CHECK_THAT(said({{0, 5, 0}, {0, 5, 5}}, 5), Catch::Contains("of which 5 are those before"));
  CHECK_THAT(said({{0, 5, 0}}, 6), Catch::Contains("pieces of 5 frames, 6 are made"));
}

TEST_CASE("Finished latents are those of as many samples", "[plugins]") {
  const at::Tensor like = at::zeros({2, 4, 3, 2, 2});
  const auto said = [&](const at::Tensor& latents, int64_t skipped = 0) {
    return refusal([&] { check_finished(kPlace, {latents, skipped}, like); });
  };
  CHECK(said(like).empty());
  CHECK(said(at::zeros({2, 4, 5, 2, 2}), 8).empty());
  CHECK_THAT(said(at::zeros({1, 4, 3, 2, 2})), Catch::Contains("made of"));
  CHECK_THAT(said(like.to(at::kLong)), Catch::Contains("made of"));
  CHECK_THAT(said(like, -1), Catch::Contains("-1 skipped frames"));
  CHECK_FALSE(said(at::Tensor()).empty());
}

TEST_CASE("A sound is samples at a rate, or none", "[plugins]") {
  const auto said = [](const at::Tensor& samples, int64_t rate) {
    return refusal([&] { check_sound(kPlace, {samples, rate}); });
  };
  CHECK(said({}, 0).empty());
  CHECK(said(at::zeros({2, 100}), 24000).empty());
  CHECK_THAT(said(at::zeros({100}), 24000), Catch::Contains("samples] expected"));
  CHECK_THAT(said(at::zeros({3, 100}), 24000), Catch::Contains("samples] expected"));
  CHECK_THAT(said(at::zeros({1, 100}), 0), Catch::Contains("at 0 samples per second"));
}

TEST_CASE("Frames have the channels that were said", "[plugins]") {
  LatentSpec spec = {.channels = 4, .spatial_stride = 8, .temporal_stride = 4};
  spec.pixel_channels = 5;
  CHECK_THAT(refusal([&] { check_output(kPlace, spec); }), Catch::Contains("pixel_channels 5"));
  spec.pixel_channels = 4;
  const at::Tensor latents = at::zeros({1, 4, 3, 1, 1});
  const auto said = [&](std::initializer_list<int64_t> frames, int64_t channels) {
    return refusal([&] {
      FrameCheck check(kPlace, latents, spec);
      for (const int64_t count : frames) check.add(at::zeros({1, channels, count, 8, 8}));
      check.end();
    });
  };
  CHECK(said({1, 4, 4}, 4).empty());
  CHECK(said({1, 1, 1}, 4).empty());  // each latent frame alone
  CHECK_THAT(said({9}, 3), Catch::Contains("expected"));
  CHECK_THAT(said({1, 4}, 4), Catch::Contains("5 frames, 9 expected"));
  CHECK_THAT(said({9, 9}, 4), Catch::Contains("18 frames, 9 expected"));
}

}  // namespace
}  // namespace atelier::plugins
