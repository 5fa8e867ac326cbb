#include "host/parameters/arriving_values.h"

#include <string>

#include "atelier/error.h"

#include "support/catch.h"

namespace atelier::parameters {
namespace {

struct Idle final : Block {
  Idle() : Block(nullptr, "idle") {}
  Tensors forward(const Tensors& inputs) override { return inputs; }
  std::string_view kind() const override { return "idle"; }
};

// Two blocks, and buckets of which the later ones have what comes earlier: of the second block, of
// both, and of the first one with what is outside.
struct Arriving {
  Idle first, second, other;
  std::string log;  // "2+" where a bucket begins to come, "2" where it is there
  ArrivingValues values = {{{&first, &second}, {{&second}, {&first, &second}, {nullptr, &first}}},
                           [this](size_t bucket) {
                             const std::string name = std::to_string(bucket);
                             log += name + "+ ";
                             return [this, name] { log += name + " "; };
                           }};

  // What has happened since the last call.
  std::string happened() { return std::exchange(log, {}); }
};

TEST_CASE("Values are on their way while the block before runs", "[arriving]") {
  Arriving a;
  a.values.open({true, true, true});
  CHECK(a.happened() == "2+ ");  // what is needed before any block
  a.values.await(nullptr);
  CHECK(a.happened() == "1+ 2 ");
  a.values.await(&a.first);
  CHECK(a.happened() == "0+ 1 ");
  a.values.await(&a.second);
  CHECK(a.happened() == "0 ");
  // They have come.
  a.values.await(&a.first);
  a.values.complete();
  CHECK(a.happened().empty());
}

TEST_CASE("Their order does not depend on which blocks run", "[arriving]") {
  Arriving a;
  a.values.open({true, true, true});
  a.values.await(&a.second);
  CHECK(a.happened() == "2+ 1+ 0+ 2 1 0 ");
  a.values.open({true, true, true});
  a.values.await(&a.other);  // of which nothing is trained
  a.values.complete();
  CHECK(a.happened() == "2+ 1+ 0+ 2 1 0 ");
}

TEST_CASE("What did not move does not come, and what comes is there before more does",
          "[arriving]") {
  Arriving a;
  a.values.complete();  // nothing was opened
  CHECK(a.happened().empty());
  a.values.open({true, false, true});
  a.values.await(&a.first);
  CHECK(a.happened() == "2+ 0+ 2 ");
  a.values.open({false, false, true});
  CHECK(a.happened() == "0 2+ ");
  a.values.complete();
  CHECK(a.happened() == "2 ");
}

TEST_CASE("What fails to come is not waited for again", "[arriving]") {
  Idle block;
  int arrived = 0;
  const auto bring = [&](size_t bucket) -> std::function<void()> {
    return [&arrived, bucket] {
      if (bucket == 1) throw Error(ErrorCode::kCancelled, "called off");
      ++arrived;
    };
  };
  ArrivingValues values({{&block}, {{&block}, {nullptr}}}, bring);
  values.open({true, true});
  CHECK_THROWS_AS(values.await(nullptr), Error);
  values.complete();
  CHECK(arrived == 1);
}

}  // namespace
}  // namespace atelier::parameters
