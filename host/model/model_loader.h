// From what the user named to a model: files are found, recognised, checked all at once, and loaded
// part by part.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "atelier/model_family.h"

#include "host/files/checkpoint.h"
#include "host/model/placement.h"
#include "host/model/quant_options.h"
#include "host/model/recognition.h"
#include "host/model/stages.h"
#include "host/progress/progress.h"
#include "host/weights/storage.h"
#include "host/weights/weight_binding.h"
#include "memory/residency.h"
#include "memory/transfer_device.h"

namespace atelier::model {

struct LoadOptions {
  // JSON as on the command line: a path, or a list of paths and of lists of paths (the shards of
  // one checkpoint). A plain path that is no JSON is taken as it is. Paths may hold globs, and name
  // files, component folders and model folders.
  std::string model_paths = {};
  // "org/name:glob,org/name:glob": published files, found under the model base path or in a hub
  // cache.
  std::string model_id_with_origin_paths = {};
  // Folder or file of the tokenizer; empty: looked for beside the text encoder and in the model
  // folder.
  std::string tokenizer_path = {};
  // What the user said about files, by a glob over their paths.
  DetectHints hints = {};
  // Parts of another model whose configs files without one may take: see detect_parts().
  std::vector<LoadedPart> lenders = {};
  // "auto", "float32", "bfloat16" or "float16": of every weight. auto is bfloat16 on CUDA, and on
  // the CPU the dtype that the denoiser is published in.
  std::string dtype = "auto";
  // The dtypes of components that have another one.
  weights::DtypeByComponent dtypes = {};
  // "auto", "cpu", "cuda", "cuda:1", or a simulated device (see host/device/simulated_device.h),
  // which computes on the CPU. auto takes the first GPU; a GPU that cannot be used is an error.
  std::string device = "auto";
  // The components that will be used; others are not looked for. Empty: all that the family
  // requires.
  std::vector<std::string> components = {};
  // How weights rest, by component: see WeightStorage.
  weights::StorageByComponent storage = {};
  // The kind of arithmetic for products with a component's weights, by component.
  weights::ComputeByComponent compute = {};
  // Entries of the two lists above whose components are stored as Storage::kFp8, where `storage`
  // does not name them.
  std::vector<std::string> fp8_models = {};
  // How components of single entries are stored, where `storage` does not name them.
  std::vector<QuantOption> quant_options = {};
  // Where blocks rest that are not always on the device.
  Placement placement = {};
  // Texts of too many tokens are cut, and not refused: see ModelOptions.
  bool cuts_texts = false;
  // Model::prepare_levels() is called before the denoiser is run: what only levels reach comes to
  // the device then, and not with its block.
  bool prepares_levels = false;
  // Whether those that are there of several denoisers are enough.
  bool one_denoiser_is_enough = false;
};

struct LoadProgress {
  std::string_view component;
  int64_t bytes_done = 0, bytes_total = 0;  // of the files
  double seconds = 0.0;                     // since the component's load began
  bool done = false;                        // true in the last call
};
// Called from the thread that called load_component, a few times a second.
using LoadProgressCallback = std::function<void(const LoadProgress&)>;

// A model whose parts are known and whose weights come and go. Not thread-safe, but for what does
// not change once it is open: family(), stages(), parts(), find_part() and files() may be called
// from several threads at any time, and of model() what its own rule allows.
class LoadedModel {
 public:
  // Reads headers only, and reports everything that is wrong with the files in one error: unknown
  // checkpoints, two for one component, required ones that are missing, LoRA files, and missing,
  // unexpected or mis-shaped tensors. `family` outlives the model.
  static std::unique_ptr<LoadedModel> open(const ModelFamily& family, const LoadOptions& request);
  // Makes a model without files, for its sizes and declarations only.
  static std::unique_ptr<LoadedModel> open_empty(const ModelFamily& family);
  ~LoadedModel();

  const ModelFamily& family() const { return family_; }
  Model& model() { return *model_; }
  const Model& model() const { return *model_; }
  // What the parts do; they are those that the model was opened with.
  const Stages& stages() const { return stages_; }
  at::Device device() const { return device_; }
  // The denoiser's dtype, which latents and activations between components have.
  at::ScalarType dtype() const;
  // The dtype in which a component computes. Weights that keep float32 are drawn in float32.
  at::ScalarType dtype(std::string_view component) const;
  // What latents are given to Model::decode() in.
  at::ScalarType decoder_dtype() const;

  const std::vector<LoadedPart>& parts() const { return parts_; }
  // How the weights of a component are stored.
  weights::Storage storage(std::string_view component) const;
  weights::Compute compute(std::string_view component) const;
  // For load_weights: what load_component passes to it, and what it would pass for another storage.
  weights::WeightStorage weight_storage(std::string_view component);
  weights::WeightStorage weight_storage(std::string_view component, weights::Storage storage);
  // How the weights of a component that was given are made of its tensors.
  const weights::WeightBinding& binding(std::string_view component) const {
    return bindings_.find(component)->second;
  }

  // Runs the blocks of every component, wherever their weights are. It lives as long as the model.
  BlockRunner& runner();
  // Blocks with one of these stay on the device, unless they are divided. No component is loaded.
  void keep_on_device(const std::set<const Weight*>& weights);
  // Puts this layout in the place of that which the model was opened with. No component is loaded.
  // Throws as open() does for what is wrong with it.
  void rearrange(const WeightLayout& layout);
  // Whether a component has blocks that come to the device when they run.
  bool is_streamed(std::string_view component) const;
  // Whether the weight comes with its block.
  bool is_streamed(const Weight& weight) const { return places_.contains(&weight); }
  // Whether each of several processes has a part of its blocks, which come from all of them.
  bool is_divided(std::string_view component) const;
  // Meets those processes: before such a component is loaded.
  void meet(std::shared_ptr<memory::SlabPeers> peers) { peers_ = std::move(peers); }
  // Blocks that rest in host memory are there once for all processes that use `slabs`, but for
  // those of `own`, components that are written to. Before components are loaded. May be null.
  void share_host(std::shared_ptr<memory::SharedSlabs> slabs,
                  std::set<std::string, std::less<>> own = {});
  // Before a divided component is loaded: `change` is called with each of its blocks while that has
  // all of its weights, on the host, and may put other values there.
  using BlockChange = std::function<void(Block& block)>;
  void change_divided(std::string_view component, BlockChange change) {
    changes_[std::string(component)] = std::move(change);
  }
  // Null for a component that is not loaded or not streamed.
  memory::Residency* residency(std::string_view component);
  // A device of host memory, which may be limited.
  bool is_simulated() const { return simulated_.has_value(); }
  // What the device is simulated by; nullopt: it is a real one.
  const std::optional<memory::SimulatedDeviceOptions>& simulated() const { return simulated_; }
  // Null when nothing is streamed and the device is no simulated device.
  memory::TransferDevice* transfer() { return transfer_.get(); }
  // What the user should know about the places that were asked for: one line each.
  const std::vector<std::string>& notes() const { return notes_; }
  // How blocks came and went, one line for each component of which some did, and what a simulated
  // device had to hold.
  std::vector<std::string> streaming_report() const;

  // Null when the model was made without it.
  const LoadedPart* find_part(std::string_view component) const;
  // Paths of components without tensors, by name: {"tokenizer": folder or file}.
  const std::map<std::string, std::string, std::less<>>& files() const { return files_; }

  // Fills the weights of one component; does nothing when they are there. Peak memory is that of
  // the weights. Throws Error{kNotFound} for a component that the model was made without.
  void load_component(std::string_view name, const LoadProgressCallback& progress = {});
  // Loads it with the weights of another checkpoint, which take the place of those that are there.
  void load_component_from(std::string_view name, const weights::WeightBinding& binding,
                           const files::Checkpoint& checkpoint,
                           const LoadProgressCallback& progress = {});
  // Drops the weights of one component.
  void unload_component(std::string_view name);
  bool is_loaded(std::string_view name) const;

  // Called with the name of a component whose weights have just come.
  using Listener = std::function<void(std::string_view component)>;
  // `listener` is called for as long as what is returned is held.
  [[nodiscard]] std::shared_ptr<const Listener> on_loaded(Listener listener);

 private:
  class Opening;
  class Runner;

  explicit LoadedModel(const ModelFamily& family);
  PlacedComponents placed_components();
  void place_blocks();
  // Takes out of `stored` what its quant option leaves plain.
  void leave_plain(std::string_view component, std::set<const Weight*>& stored) const;
  void fill(std::string_view name, const weights::WeightBinding& binding,
            const files::Checkpoint& checkpoint, const std::function<void(int64_t)>& progress);
  std::set<const Weight*> filled_by_block(std::string_view name,
                                          const files::Checkpoint& checkpoint);
  memory::SlabSharing slab_sharing(std::string_view name, const files::Checkpoint& checkpoint);
  void drop_residency(std::string_view name);
  void stream_residencies();

  const ModelFamily& family_;
  std::unique_ptr<memory::TransferDevice> transfer_;  // null: nothing is streamed
  std::vector<LoadedPart> parts_;
  std::map<std::string, std::string, std::less<>> files_;
  std::unique_ptr<Model> model_;
  Stages stages_;
  at::Device device_ = at::kCPU;
  at::ScalarType dtype_ = at::kFloat;  // of components that `dtypes_` does not name
  weights::DtypeByComponent dtypes_;
  weights::StorageByComponent storage_;
  weights::ComputeByComponent compute_;
  std::map<std::string, weights::WeightBinding, std::less<>> bindings_;  // by component
  std::map<std::string, QuantOption, std::less<>> quant_options_;        // by component
  std::map<std::string, bool, std::less<>> loaded_;
  std::vector<std::weak_ptr<const Listener>> listeners_;

  std::optional<memory::SimulatedDeviceOptions> simulated_;
  bool prepares_levels_ = false;
  std::map<std::string, memory::ResidencyPlan, std::less<>> plans_;  // by component
  std::map<const Weight*, memory::Place> places_;                    // of streamed blocks
  std::vector<std::string> notes_;
  std::map<std::string, std::unique_ptr<memory::Residency>, std::less<>> residencies_;
  std::map<std::string, memory::Residency::Stats, std::less<>> past_;  // of those that are gone
  std::unique_ptr<Runner> runner_;
  std::shared_ptr<memory::SlabPeers> peers_;                      // of divided blocks
  std::shared_ptr<memory::SharedSlabs> slabs_;                    // null: each process has its own
  std::set<std::string, std::less<>> unshared_;                   // components that are not there
  std::map<std::string, BlockChange, std::less<>> changes_ = {};  // by component
};

// Loads a component with a line of progress; `on_bytes` is called while it is read.
void load_shown(LoadedModel& model, std::string_view component, progress::Progress& progress,
                const std::function<void()>& on_bytes = {});

}  // namespace atelier::model
