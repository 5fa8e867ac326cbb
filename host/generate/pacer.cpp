#include "host/generate/pacer.h"

#include <utility>

#include <c10/core/impl/VirtualGuardImpl.h>

namespace atelier::generate {

void Pacer::step() {
  if (device_.is_cpu() || device_.is_meta()) return;
  c10::Event event(device_.type());
  event.record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  if (previous_) previous_->synchronize();
  previous_.emplace(std::move(event));
}

}  // namespace atelier::generate
