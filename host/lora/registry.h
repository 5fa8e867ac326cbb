// LoRAs of one model, loaded and taken away while it stays.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "atelier/host/sample_scope.h"

#include "host/lora/added_weight.h"
#include "host/lora/lora_file.h"
#include "host/lora/selection.h"
#include "host/lora/targets.h"
#include "host/model/model_loader.h"

namespace atelier::lora {

// How a LoRA changes a linear layer. What is no product of two factors is always added to the
// weight.
enum class Mode {
  kHot,   // its product is added to the layer's: nothing to compute when it comes, goes or changes
  kMerge  // it is added to the weight: nothing to compute in the layer's product
};

// Puts adapters into the linear layers, and additions behind weights (see added_weight.h), and
// takes out only its own. The base weights are never written: without LoRAs a model gives its own
// bits. LoRAs stay when a component's weights leave and come back. Those that add to the product of
// one layer are stacked to one there, in the order of load() or use(), which decides the last bits.
// Not thread-safe: check() alone may be called from several threads, also while another call runs.
class Registry {
 public:
  struct Options {
    Mode mode = Mode::kHot;
    // The most bytes of files that are not in use and stay in memory for the next call, on the
    // compute device; the one that was used longest ago goes first.
    int64_t idle_bytes = int64_t{4} << 30;
  };

  // `model` outlives the registry.
  explicit Registry(model::LoadedModel& model) : Registry(model, Options()) {}
  Registry(model::LoadedModel& model, Options options);
  ~Registry();
  Registry(const Registry&) = delete;
  Registry& operator=(const Registry&) = delete;

  // Reads headers and matches names and shapes; no values. Returns the layers and tensors of the
  // file that are nothing in this model. Throws what LoraFile::open and Targets::match throw.
  std::vector<std::string> check(const LoraRef& use);

  // What `set` does to one component, as a text: equal for sets that do the same, and empty for
  // those that leave it as it is. Results that the component gave are stale when it changed.
  std::string fingerprint(std::span<const LoraRef> set, std::string_view component);

  // Adds a LoRA behind those that are there. Throws what check() throws, and
  // Error{kInvalidArgument} when the name is taken for this component or the strength is not
  // finite; the set is then as before.
  void load(const LoraRef& use);
  // Unloads all LoRAs of a name that several components have. Throws Error{kNotFound} naming those
  // that there are.
  void unload(std::string_view name);

  // For a LoRA that will be loaded: makes what it adds to the values of `weights`, which are
  // loaded, a part of these values, for weights that are trained where nothing can be added to
  // them. load() leaves that out then. Throws as load().
  void merge(const LoraRef& use, const std::set<Weight*>& weights);

  // Makes `set` the LoRAs in use, in this order. Throws as load().
  void use(std::span<const LoraRef> set);

  // Reads the values of `set` that are not in memory yet, as the files are now; what is in use
  // stays. Throws as load().
  void read_ahead(std::span<const LoraRef> set);

  // Whether samples with these sets can be in one call of the denoiser: sets differ in nothing but
  // products that are added to layers'. Reads headers. Throws as check().
  bool can_share(std::span<const std::vector<LoraRef>> sets);

  // Makes ready for calls whose sample s has sets[s]. Sets that are all the same are in use then,
  // as by use(), and there is nothing to return. Otherwise products are in no use but within an
  // ops::SampleScope of the strengths that are returned; what is added to weights, which is the
  // same in all sets, is in use. Does little where the LoRAs of all sets together are those of the
  // call before, whichever samples have them. load() and unload() begin without any LoRA
  // afterwards. Throws as load(), and Error{kInvalidArgument} unless can_share(); all is then as
  // before.
  std::optional<ops::SampleStrengths> use_each(std::span<const std::vector<LoraRef>> sets);

  // Changes when LoRAs that are in use do: levels that were prepared before (see
  // Model::prepare_levels()) are stale then. LoRAs that only samples have change nothing in them.
  uint64_t version() const { return version_; }

  // The bytes of all that is in memory, in use and idle: the values of the files, those that are
  // stacked once more, and the sums with those weights that are added to, which are made when such
  // a weight is first drawn.
  int64_t bytes() const;

 private:
  struct Adapter {
    nn::Linear* linear;
    at::Tensor a, b;
    double scale;  // at strength 1
  };
  struct WeightAddition {
    Weight* weight;
    Addition addition;  // at strength 1
  };
  struct Values {
    std::vector<Adapter> adapters;
    std::vector<WeightAddition> additions;
    int64_t bytes = 0;
  };
  struct Loaded {
    LoraFile file;
    Match match;
    std::optional<Values> values = {};  // once it is used
    uint64_t id = 0;                    // of this reading of the file
    uint64_t last_use = 0;
    std::pair<int64_t, int64_t> stamp;  // of the file: changes when it is written again
  };
  using LoadedPtr = std::shared_ptr<Loaded>;

  // A LoRA and how strong it is.
  struct Use {
    LoadedPtr loaded;
    double strength;
    bool operator==(const Use&) const = default;
  };

  LoadedPtr open(const LoraRef& use);
  // What a set does: its LoRAs, each once, without those of strength 0.
  std::vector<Use> open_set(std::span<const LoraRef> set);
  bool adds_to_weights(const Loaded& loaded) const;
  std::vector<Use> adding_to_weights(std::vector<Use> uses) const;
  bool can_share(const std::vector<std::vector<Use>>& sets) const;
  // The LoRAs of all sets, each once, as strong as it adds to weights.
  std::vector<Use> all_of(const std::vector<std::vector<Use>>& sets) const;
  void use_by_sample(const std::vector<Use>& all);
  std::vector<Use> used_now() const;
  void forget_samples();
  void read(Loaded& loaded) const;
  void add_to_products(Values& values, const LoraFile& file, const Match::Pair& pair) const;
  void add_to_weights(Values& values, const Difference& difference, const Target& target) const;
  void place();
  void note_version();
  void place_adapters();
  void place_numbered();
  void place_additions();
  void drop_idle();

  model::LoadedModel& model_;
  Options options_;
  Targets targets_;
  mutable std::mutex files_mutex_;  // of what check() shares with other calls: the table of files
  std::map<std::pair<std::string, std::string>, LoadedPtr> files_;  // by path and component
  std::vector<LoraRef> in_use_;
  std::vector<LoadedPtr> used_;  // of in_use_
  // Products of used_ are numbered by their place there and those of samples; the strengths of
  // in_use_ are those with which it adds to weights.
  bool is_by_sample_ = false;
  std::vector<std::pair<nn::Linear*, at::Tensor>> placed_;  // layer and the adapter's `a`
  int64_t stacked_bytes_ = 0;                               // of what was made for placed_
  std::set<Weight*> added_;                                 // that are added to
  std::set<Weight*> merged_;                                // see merge()
  std::atomic<uint64_t> clock_ = 0;
  uint64_t version_ = 0;
  std::vector<std::pair<uint64_t, double>> noted_;  // by id, what version_ is the number of
  std::shared_ptr<const model::LoadedModel::Listener> listener_;
};

}  // namespace atelier::lora
