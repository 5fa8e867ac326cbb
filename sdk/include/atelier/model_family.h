// The interface that a plugin implements: one diffusion-model family.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "atelier/checkpoint.h"
#include "atelier/component.h"
#include "atelier/config_fields.h"
#include "atelier/input.h"
#include "atelier/lora.h"
#include "atelier/model.h"
#include "atelier/schedule.h"
#include "atelier/solver.h"
#include "atelier/weight_map.h"

namespace atelier {

// What a checkpoint turned out to be.
struct Detection {
  std::string component = {};  // "dit"
  std::string variant = {};    // shown to the user, and stored in what is saved
  std::string prefix =
      {};  // what comes before every name of the weight table: "model.diffusion_model."
  std::string spelling = {};  // which of the family's tables fits: "diffusers", "original"
  // Architecture numbers: {"layers": 60}; what a checkpoint of this shape needs to be made again.
  TensorIndex::Config config = {};
  // Globs over names without `prefix`: the tensors of this component, where a file holds those of
  // others too and no prefix tells them apart. Empty: all tensors that have the prefix.
  std::vector<std::string> owns = {};

  // Throws Error{kInternal} when the number is absent.
  ATELIER_API int64_t integer(std::string_view key) const;
  ATELIER_API double real(std::string_view key) const;
};

// What the user said about a file; empty where nothing was said. Some checkpoints differ in use and
// not in tensors.
struct DetectHint {
  std::string component = {}, variant = {};
};

// A part of a checkpoint that was recognised.
struct FoundPart {
  Detection part;
  std::string path;  // of the checkpoint's first file, absolute
  DetectHint hint;   // what the user said about it
  // What files of the model's folder say beside the component's own: "scheduler.shift" of
  // scheduler/scheduler_config.json, "model_index.…" of model_index.json, and "image_processor.…"
  // and "processor.…" of preprocessor_config.json and processor_config.json. Empty without them.
  TensorIndex::Config folder = {};
};

struct ModelOptions {
  // Paths of components without tensors, by name: {"tokenizer": folder or file}. May lack entries:
  // what needs them then throws.
  std::map<std::string, std::string, std::less<>> files = {};
  // Texts of too many tokens are cut, and not refused: see Model::encode.
  bool cuts_texts = false;
};

// Stateless, and safe to call from several threads. Spans and string_views that it returns live as
// long as the process, because plugins are never unloaded.
class ATELIER_API ModelFamily {
 public:
  virtual ~ModelFamily();

  // ---- What there is: data, answered without loading anything ----

  virtual std::string_view name() const = 0;
  virtual std::string_view help() const = 0;  // one line: which published models
  virtual std::span<const ComponentSpec> components() const = 0;
  virtual std::span<const InputSpec> inputs() const = 0;
  virtual std::span<const EncodeStage> encode_stages() const = 0;
  // The first of those for a variant is the default; the others are chosen by name with --schedule.
  virtual std::span<const ScheduleDefaults> schedules() const = 0;
  // The noise levels that training draws from: 1000 steps of this schedule, its
  // num_inference_steps, cfg_scale and solver aside. By default the first of schedules() for the
  // denoiser's variant.
  virtual ScheduleDefaults training_schedule(const Detection& denoiser) const;
  // Solvers of its own that --solver lists beside the host's; their names are not the host's. By
  // default none.
  virtual std::span<const SolverSpec> solvers() const;
  virtual MediaDefaults media_defaults(const Detection& denoiser) const;  // by default 1024x1024
  virtual SigmaRange sigma_range(const Detection& denoiser) const;        // by default [0, 1]

  // ---- What a checkpoint is ----

  // Says which component a checkpoint holds, from names and shapes, from config.json where shapes
  // cannot tell, and from `hint` where nothing can. The fields that it reads are rows kRead of
  // config_fields(). Returns nullopt when it is none of this
  // family's. Throws Error{kUnsupported} when it is one of this family's that cannot be loaded, and
  // Error{kInvalidArgument} when the tensors contradict the hint.
  virtual std::optional<Detection> detect(const TensorIndex& checkpoint,
                                          const DetectHint& hint) const = 0;

  // Says which part is which where tensors cannot tell and paths can: two denoisers of one
  // architecture in folders called high_noise_model and low_noise_model. Is called with all
  // parts that the user named, in any order, before one is chosen for each component, and again
  // with the denoisers the other way round, to see whether the order decided; or with the parts of
  // one file, where nothing else is looked at. May change component, variant and
  // config of each; what its hint says stays all the same. By default nothing is changed.
  virtual void assign(std::span<FoundPart> parts) const;

  // Every field that the config.json of such a part may have: the host refuses others. Rows kTold
  // have the numbers of `part`.
  virtual ConfigFields config_fields(const Detection& part) const = 0;

  // Covers every tensor of the checkpoint once, without its prefix, and every weight of the
  // component once.
  virtual WeightMap weight_map(const Detection& part) const = 0;
  virtual LoraTargets lora_targets(const Detection& denoiser) const = 0;
  // Spellings of Detection::spelling that weight_map() knows for a component: LoRA files may use
  // any of them, whichever the loaded checkpoint has. By default that one alone.
  virtual std::vector<std::string> spellings(const Detection& part) const;

  // ---- How it runs ----

  // Makes the modules of `parts` with their weights declared; the host then fills them through
  // weight_map. Any subset of the components may be given. Throws Error{kInvalidArgument} when the
  // parts do not belong together.
  virtual std::unique_ptr<Model> make_model(std::span<const Detection> parts,
                                            const ModelOptions& options) const = 0;

  // ---- For tests ----

  // One tiny architecture of every component with tensors, that belong together: the conformance
  // suite runs on them with random weights. config holds "head_dim" and the like as detect() would
  // give them.
  virtual std::vector<Detection> tiny_parts() const = 0;

  // What the stages would give for a prompt of `tokens` tokens, with random values of normal size
  // in `dtype`.
  virtual Conditioning example_conditioning(const Detection& denoiser, int64_t tokens,
                                            at::ScalarType dtype) const = 0;
};

}  // namespace atelier
