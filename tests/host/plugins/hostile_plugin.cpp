// Does what HOSTILE says, "where what": in its constructor, when it is opened, or when it is asked
// for its components or inputs ("constructor", "open", "asked"). With a file's name in
// HOSTILE_AFTER it is good until that is there, and makes it: it is opened twice, for a trial and
// to stay.
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <unistd.h>

#include "atelier/model_family.h"

namespace {

[[gnu::noinline]] int descend(int depth) {
  volatile char frame[4096];
  frame[0] = static_cast<char>(depth);
  return depth < 0 ? 0 : descend(depth + 1) + frame[0];
}

void take_all_memory() {
  for (size_t size = size_t{64} << 20;;) std::memset(new char[size], 1, size);
}

void act(const std::string& where) {
  const char* said = std::getenv("HOSTILE");
  const std::string wanted = said == nullptr ? "" : said;
  if (!wanted.starts_with(where + " ")) return;
  if (const char* after = std::getenv("HOSTILE_AFTER"); after != nullptr) {
    if (access(after, F_OK) != 0) {
      std::ofstream{after};
      return;
    }
  }
  const std::string what = wanted.substr(where.size() + 1);
  if (what == "exit") std::exit(0);
  if (what == "quick_exit") std::quick_exit(0);
  if (what == "_exit") _exit(0);
  if (what == "abort") std::abort();
  if (what == "stack") descend(0);
  if (what == "memory") take_all_memory();
  if (what == "loop") {
    for (;;) pause();
  }
  if (what == "throw") throw 5;
  if (what == "throw std") throw std::runtime_error("a bad\nday");
}

using namespace atelier;

// It never comes to a model.
struct HostileFamily final : ModelFamily {
  std::string_view name() const override { return "fake"; }
  std::string_view help() const override { return "nothing"; }
  std::span<const ComponentSpec> components() const override {
    act("asked");
    return {};
  }
  std::span<const EncodeStage> encode_stages() const override { return {}; }
  std::span<const InputSpec> inputs() const override {
    act("asked");
    return {};
  }
  std::span<const ScheduleDefaults> schedules() const override { return {}; }
  std::optional<Detection> detect(const TensorIndex&, const DetectHint&) const override {
    return std::nullopt;
  }
  ConfigFields config_fields(const Detection&) const override { return {}; }
  WeightMap weight_map(const Detection&) const override { return {}; }
  LoraTargets lora_targets(const Detection&) const override { return {}; }
  std::unique_ptr<Model> make_model(std::span<const Detection>,
                                    const ModelOptions&) const override {
    return nullptr;
  }
  std::vector<Detection> tiny_parts() const override { return {}; }
  Conditioning example_conditioning(const Detection&, int64_t, at::ScalarType) const override {
    return {};
  }
};

void* open_hostile(char*, size_t) noexcept {
  act("open");
  static HostileFamily family;
  return static_cast<ModelFamily*>(&family);
}

[[maybe_unused]] const int constructed = (act("constructor"), 0);

}  // namespace

#define FAKE_ABI ATELIER_ABI
#define FAKE_OPEN open_hostile
#include "fake_plugin.h"
