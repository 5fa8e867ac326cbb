#include "host/model/memory_holders.h"

#include <algorithm>
#include <map>

#include "host/report/problems.h"
#include "host/report/text.h"
#include "host/weights/weight_loading.h"

namespace atelier::model {
namespace {

// What a component's weights take as they are stored.
class WeightBytes {
 public:
  WeightBytes(LoadedModel& model, std::string_view component) : model_(model) {
    const weights::WeightStorage stored = model.weight_storage(component);
    const files::Checkpoint& checkpoint = model.find_part(component)->checkpoint;
    for (const weights::BoundWeight& bound : model.binding(component).weights) {
      for (const int64_t bytes :
           weights::resting_bytes(bound, checkpoint, model.dtype(component), stored))
        bytes_[bound.weight] += bytes;
    }
  }

  // The bytes of the weights of `module` that are always on the device.
  int64_t resident(nn::Module& module) const {
    int64_t bytes = 0;
    module.visit_weights([&](const std::string&, Weight& weight) {
      if (weight.is_loaded() && !model_.is_streamed(weight)) bytes += bytes_.at(&weight);
    });
    return bytes;
  }

 private:
  LoadedModel& model_;
  std::map<const Weight*, int64_t> bytes_;
};

}  // namespace

std::vector<Holder> weight_holders(LoadedModel& model) {
  std::vector<Holder> holders;
  for (const LoadedPart& part : model.parts()) {
    const std::string& name = part.detection.component;
    if (!model.is_loaded(name)) continue;
    const WeightBytes bytes(model, name);
    Holder holder = {"weights of " + name, bytes.resident(model.model().component(name))};
    if (const memory::Residency* residency = model.residency(name)) {
      const memory::Residency::Stats stats = residency->stats();
      int64_t slots = stats.device_bytes - stats.away_bytes;
      for (Block* block : model.model().blocks(name)) slots -= bytes.resident(*block);
      holder.device_bytes += slots;
      holder.host_bytes = stats.host_bytes;
      holder.detail = report::bytes_text(slots) + " of that in slots for blocks that come and go";
    }
    holders.push_back(std::move(holder));
  }
  return holders;
}

std::vector<std::string> holder_lines(const std::vector<Holder>& holders,
                                      const memory::DeviceBytes& device) {
  std::vector<std::string> lines;
  int64_t known = 0;
  for (const Holder& holder : holders) {
    known += holder.device_bytes;
    if (holder.device_bytes == 0 && holder.host_bytes == 0) continue;
    std::string line = "memory: " + holder.name + ": " + report::bytes_text(holder.device_bytes);
    if (holder.host_bytes > 0)
      line += ", " + report::bytes_text(holder.host_bytes) + " on the host";
    if (!holder.detail.empty()) line += " (" + holder.detail + ")";
    lines.push_back(std::move(line));
  }
  std::string line = "memory: the device: at most " + report::bytes_text(device.peak) + " at once";
  if (device.capacity > 0) line += ", of " + report::bytes_text(device.capacity);
  const int64_t taken = device.when_refused > 0 ? device.when_refused : device.peak;
  if (taken > known) line += "; " + report::bytes_text(taken - known) + " were none of these";
  lines.push_back(std::move(line));
  return lines;
}

std::vector<std::string> flags_for_weights(LoadedModel& model) {
  if (model.device().is_cpu() && !model.is_simulated()) return {};
  std::string largest;
  int64_t most = 0;
  for (const LoadedPart& part : model.parts()) {
    const std::string& name = part.detection.component;
    if (!model.is_loaded(name) || model.model().blocks(name).empty()) continue;
    const int64_t bytes = WeightBytes(model, name).resident(model.model().component(name));
    if (bytes <= most) continue;
    largest = name;
    most = bytes;
  }
  if (largest.empty()) return {};
  std::vector<std::string> flags;
  if (!model.is_streamed(largest)) flags.push_back("--offload " + largest + "=host");
  if (model.storage(largest) == weights::Storage::kPlain &&
      !weights::storable_weights(model.model(), largest).empty())
    flags.push_back("--storage " + largest + "=fp8");
  return flags;
}

std::string PinningProblem::news(const memory::TransferDevice::Stats& stats) {
  if (stats.pageable_bytes == 0 || is_said_) return "";
  is_said_ = true;
  return report::bytes_text(stats.pageable_bytes) + " of " + report::bytes_text(stats.host_bytes) +
         " that blocks rest in on the host could not be pinned: copies are slower, and the program "
         "waits for them; raise the limit of locked memory (ulimit -l), or keep more on the device";
}

std::string hint_of(const std::vector<std::string>& flags) {
  std::string hint = "use ";
  for (size_t i = 0; i < flags.size(); ++i)
    hint += (i == 0 ? "" : i + 1 == flags.size() ? " or " : ", ") + flags[i];
  return hint;
}

}  // namespace atelier::model
