#include "memory/generators.h"

#include <algorithm>
#include <mutex>

#include <ATen/ATen.h>
#include <ATen/Context.h>

#include "memory/transfer_device.h"

namespace atelier::memory {
namespace {

// In the host's memory: a device that is full does not keep it from being put back.
at::Tensor state_of(const at::Generator& generator) {
  const HostScope host;
  at::Generator g = generator;
  std::lock_guard lock(g.mutex());
  return g.get_state();
}

void set_state(const at::Generator& generator, const at::Tensor& state) {
  at::Generator g = generator;
  std::lock_guard lock(g.mutex());
  g.set_state(state);
}

}  // namespace

Generators Generators::capture(const std::vector<at::Tensor>& inputs) {
  Generators result;
  result.add(at::Device(at::kCPU));
  for (const at::Tensor& t : inputs) {
    if (!t.defined() || t.is_cpu()) continue;
    const bool known = std::any_of(result.entries_.begin(), result.entries_.end(),
                                   [&](const Entry& e) { return e.device == t.device(); });
    if (!known) result.add(t.device());
  }
  return result;
}

void Generators::keep_used() {
  std::erase_if(entries_, [](const Entry& e) { return at::equal(e.state, state_of(e.generator)); });
}

void Generators::swap_states() {
  for (Entry& e : entries_) {
    const at::Tensor wanted = e.state;
    e.state = state_of(e.generator);
    set_state(e.generator, wanted);
  }
}

int64_t Generators::bytes() const {
  int64_t bytes = 0;
  for (const Entry& e : entries_) bytes += static_cast<int64_t>(e.state.nbytes());
  return bytes;
}

void Generators::add(at::Device device) {
  const at::Generator generator = at::globalContext().defaultGenerator(device);
  entries_.push_back({device, generator, state_of(generator)});
}

}  // namespace atelier::memory
