#include "memory/staging_ring.h"

#include "support/tensors.h"

namespace atelier::memory {

TEST_CASE("A staging ring fills one part while the other is on its way", "[staging_ring]") {
  const auto clock = std::make_shared<VirtualClock>();
  const auto device =
      make_simulated_device({.bytes_per_second = 256, .poison = true, .clock = clock});
  StagingRing ring(*device, 256);
  CHECK(device->stats().host_bytes == 0);  // before it is needed
  std::vector<at::Tensor> arrived;
  for (int64_t i = 0; i < 5; ++i) {
    CHECK(ring.room() == 256);
    for (const int64_t bytes : {100, 96}) {
      arrived.push_back(at::empty({bytes}, at::kByte));
      std::memset(ring.take(arrived.back()), static_cast<int>(10 * i + 1), bytes);
    }
    CHECK(ring.room() == 256 - 128 - 128);
    ring.send();
  }
  CHECK(device->stats().host_bytes == 512);
  CHECK(device->stats().bytes_in == 5 * 196);
  ring.wait();
  for (size_t k = 0; k < arrived.size(); ++k)
    CHECK((arrived[k] == static_cast<int64_t>(10 * (k / 2) + 1)).all().item<bool>());
}

TEST_CASE("A staging ring has no room for more than a part", "[staging_ring]") {
  const auto device = make_simulated_device({});
  StagingRing ring(*device, 64);
  CHECK_THROWS_AS(ring.take(at::empty({65}, at::kByte)), Error);
  ring.send();  // nothing was taken
  CHECK(device->stats().bytes_in == 0);
}

}  // namespace atelier::memory
