#include "memory/gradient_probe.h"

#include "support/tensors.h"

namespace atelier::memory {
namespace {

Tensors with(const Tensors& given, double value) {
  Tensors changed;
  for (const at::Tensor& t : given) changed.push_back(t.defined() ? t.clone() : t);
  changed.back().view(-1)[1] = value;
  return changed;
}

// As a device that adds up in another order gives them.
Tensors in_another_order(const Tensors& given) {
  Tensors changed;
  for (const at::Tensor& t : given) changed.push_back(t.defined() ? t * (1 + 0x1p-7) : t);
  return changed;
}

}  // namespace

TEST_CASE("On the host any other bit is a gradient that read the probe", "[gradient_probe]") {
  at::manual_seed(1);
  const Tensors given = {at::randn({3, 4}), at::Tensor(), at::randn({5})};
  for (const Probe probe : {Probe::kNaN, Probe::kLarge}) {
    CHECK_FALSE(are_touched(given, given, probe));
    CHECK(are_touched(in_another_order(given), given, probe));
    CHECK(are_touched(with(given, NAN), given, probe));
    CHECK(are_touched({given[0], given[2], given[2]}, given, probe));
  }
}

TEST_CASE("Elsewhere NaN decides, whatever the order of sums", "[gradient_probe]") {
  at::manual_seed(2);
  const Tensors given = {at::randn({3, 4}).to(at::kBFloat16), at::Tensor(),
                         at::randn({5}).to(at::kBFloat16)};
  CHECK_FALSE(are_touched(in_another_order(given), given, Probe::kNaN, false));
  CHECK_FALSE(
      are_touched(with(given, 1e3), given, Probe::kNaN, false));  // its order, for all we know
  CHECK(are_touched(with(given, NAN), given, Probe::kNaN, false));
  // A gradient that overflowed anyway tells nothing new.
  const Tensors spoilt = with(given, NAN);
  CHECK_FALSE(are_touched(in_another_order(spoilt), spoilt, Probe::kNaN, false));
}

TEST_CASE("Elsewhere large values change a gradient by far", "[gradient_probe]") {
  at::manual_seed(3);
  const Tensors given = {at::randn({3, 4}).to(at::kBFloat16), at::empty({0})};
  CHECK_FALSE(are_touched(in_another_order(given), given, Probe::kLarge, false));
  Tensors far = {given[0] + 1e30, given[1]};
  CHECK(are_touched(far, given, Probe::kLarge, false));
  far[0] = given[0] * INFINITY;
  CHECK(are_touched(far, given, Probe::kLarge, false));
}

}  // namespace atelier::memory
