#include "memory/run_order.h"

#include "support/catch.h"

namespace atelier::memory {
namespace {

using Blocks = std::vector<int64_t>;

struct Guessed {
  RunOrder order;
  int64_t last = -1;

  explicit Guessed(int64_t blocks) : order(blocks) {}

  // How many of the blocks of `pass` were not the first guess. One that runs on needs none.
  int wrong(const Blocks& pass) {
    int wrong = 0;
    for (const int64_t block : pass) {
      const Blocks next = order.next(1);
      if (block != last && (next.empty() || next[0] != block)) ++wrong;
      order.add(block);
      last = block;
    }
    return wrong;
  }
};

}  // namespace

TEST_CASE("Before anything was learnt the next block in running order comes next", "[order]") {
  RunOrder order(5);
  CHECK(order.next(3) == Blocks{0, 1, 2});
  order.add(0);
  CHECK(order.next(2) == Blocks{1, 2});
  order.add(1);
  order.add(2);
  CHECK(order.next(3) == Blocks{3, 4, 0});
  CHECK(order.next(9) == Blocks{3, 4, 0, 1});  // the one that runs is left out
}

TEST_CASE("After the last block of a pass the first of the next comes", "[order]") {
  Guessed order(4);
  for (int pass = 0; pass < 3; ++pass) CHECK(order.wrong({0, 1, 2, 3}) == 0);
  CHECK(order.order.next(2) == Blocks{0, 1});
}

TEST_CASE("A backward pass is gone through in its own order", "[order]") {
  Guessed order(5);
  const Blocks step = {0, 1, 2, 3, 4, 4, 3, 2, 1, 0};
  CHECK(order.wrong(step) == 1);  // where the direction changes
  for (int i = 0; i < 3; ++i) CHECK(order.wrong(step) == 0);
}

TEST_CASE("Blocks that run twice are followed in both directions", "[order]") {
  Guessed order(4);
  const Blocks step = {0, 0, 1, 1, 2, 2, 3, 3, 3, 3, 2, 2, 1, 1, 0, 0};
  order.wrong(step);
  order.wrong(step);
  for (int i = 0; i < 3; ++i) CHECK(order.wrong(step) == 0);
}

TEST_CASE("An order of its own is learnt in one pass", "[order]") {
  Guessed order(6);
  const Blocks pass = {0, 3, 1, 5, 2, 4};
  CHECK(order.wrong(pass) > 0);
  order.wrong(pass);
  CHECK(order.wrong(pass) == 0);
  // Another one takes its place.
  const Blocks other = {5, 4, 3, 2, 1, 0};
  for (int i = 0; i < 2; ++i) order.wrong(other);
  CHECK(order.wrong(other) == 0);
}

TEST_CASE("A block that runs alone has no next one", "[order]") {
  RunOrder order(3);
  for (int i = 0; i < 6; ++i) order.add(1);
  CHECK(order.next(2).empty());
  RunOrder one(1);
  one.add(0);
  CHECK(one.next(2).empty());
}

}  // namespace atelier::memory
