#include "host/order/serving.h"

#include "support/catch.h"

using namespace atelier;
using namespace atelier::order;

namespace {

std::vector<std::string> names_of(const std::vector<Excess>& all) {
  std::vector<std::string> names;
  for (const Excess& excess : all) names.emplace_back(excess.name);
  return names;
}

using Names = std::vector<std::string>;
constexpr RequestLimits kLimits = {
    .max_pixels = 1024, .max_frames = 8, .max_steps = 50, .max_images = 4};

TEST_CASE("What is beyond the limits of a request is told, all of it", "[serving]") {
  Settings settings;
  CHECK(beyond(kLimits, 1, settings).empty());
  settings.num_images = 5;
  settings.batch_size = 2;
  settings.num_inference_steps = 51;
  settings.num_frames = 9;
  settings.height = settings.width = 48;
  const std::vector<Excess> all = beyond(kLimits, 1, settings);
  CHECK(names_of(all) ==
        Names{"num_images", "batch_size", "num_inference_steps", "num_frames", "height"});
  CHECK(all.front().text() == "5 is more than 4, the most that this server makes");
  CHECK(all.back().text() ==
        "2304 pixels in all is more than 1024, the most that this server makes");
}

TEST_CASE("Sides whose product no number holds are told as sides", "[serving]") {
  Settings settings;
  settings.height = settings.width = INT64_MAX;
  CHECK(names_of(beyond(kLimits, 1, settings)) == Names{"height", "width"});
}

TEST_CASE("A server does not begin with settings that it would refuse", "[serving]") {
  report::Problems problems;
  const std::vector<std::string> said = {
      "--num_inference_steps", "500", "--num_images", "50", "--height", "4096", "--width", "4096",
      "--num_frames",          "9",   "--max_frames", "8"};
  read_serving({said, serve_command(nullptr), problems}, nullptr, "", problems);
  std::string message;
  try {
    problems.throw_if_any();
  } catch (const Error& error) {
    message = error.what();
  }
  for (const char* each :
       {"--num_inference_steps: 500 is more than 200, the most that this server makes; use less, "
        "or "
        "raise --max_steps",
        "--num_images: 50 is more than 16", "--height: 16777216 pixels in all is more than 4194304",
        "--num_frames: 9 is more than 8", "raise --max_frames"})
    CHECK_THAT(message, Catch::Contains(each));
}

}  // namespace
