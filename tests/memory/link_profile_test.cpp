#include "memory/link_profile.h"

#include "atelier/error.h"

#include "support/catch.h"

namespace atelier::memory {
namespace {

TEST_CASE("An exchange costs a latency for each pass and its bytes at the slowest rate",
          "[links]") {
  const LinkProfile links = {"test", 4, 1.0, 100.0, 10.0, 40.0};
  CHECK(exchange_seconds(links, nearest_ranks(links, 1), 80.0) == 0.0);
  CHECK(exchange_seconds(links, nearest_ranks(links, 4), 80.0) ==
        Approx(3 * 1.0 + 0.75 * 80 / 100));
  // Two machines: one pass crosses, and all cards of a machine send together.
  CHECK(exchange_seconds(links, nearest_ranks(links, 8), 80.0) ==
        Approx(6 * 1.0 + 10.0 + 7.0 / 8 * 80 / 40));
  // One rank of each machine has its part of the cards.
  CHECK(exchange_seconds(links, one_of_each_machine(2), 80.0) == Approx(10.0 + 0.5 * 80 / 10));
}

TEST_CASE("Links are read as they are measured", "[links]") {
  const LinkProfile links = parse_links(
      R"({"name": "a", "ranks_per_machine": 2, "local_latency_us": 4, "local_gb_per_s": 3,
          "collectives": [{"name": "all-reduce"}]})",
      "net.json");
  CHECK(links.ranks_per_machine == 2);
  CHECK(links.local_latency_seconds == Approx(4e-6));
  CHECK(links.local_bytes_per_second == Approx(3e9));
  CHECK(links.remote_bytes_per_second == 0.0);
}

TEST_CASE("A file of links that is none is refused with the way to one", "[links]") {
  const auto [json, wrong] = GENERATE(table<std::string, std::string>({
      {"", "no JSON object"},
      {"[1]", "no JSON object"},
      {R"({"ranks_per_machine": 2, "local_latency_us": 4})", "\"local_gb_per_s\" is missing"},
      {R"({"ranks_per_machine": 2, "local_latency_us": 4, "local_gb_per_s": -1})",
       "no number above 0"},
      {R"({"ranks_per_machine": 2, "local_latency_us": "4", "local_gb_per_s": 1})",
       "no number above 0"},
      {R"({"ranks_per_machine": 2, "local_latency_us": 4, "local_gb_per_s": 1, "remote_gb_per_s": 1})",
       "\"remote_latency_us\" is missing"},
      {R"({"ranks_per_machine": 0.5, "local_latency_us": 4, "local_gb_per_s": 1})",
       "no whole number"},
      {R"({"ranks_per_machine": 1e30, "local_latency_us": 4, "local_gb_per_s": 1})", "above 1024"},
      {R"({"speed": 3})", "\"speed\" is not known"},
  }));
  try {
    parse_links(json, "net.json");
    FAIL(json << " was read");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kInvalidArgument);
    CHECK_THAT(error.what(), Catch::Contains("net.json: ") && Catch::Contains(wrong) &&
                                 Catch::Contains("doctor --comm --json"));
  }
}

}  // namespace
}  // namespace atelier::memory
