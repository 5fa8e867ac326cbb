// What training changed in a model, as a LoRA.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "host/lora/lora_writer.h"
#include "host/model/model_loader.h"

namespace atelier::lora {

struct ExtractOptions {
  int64_t rank = 32;  // layers with a shorter side have that one
  // Ends of layers' paths at a dot, or globs over whole paths; empty: every linear layer.
  std::vector<std::string> target_modules = {};
  Format format = Format::kDiffusers;
  at::ScalarType dtype = at::kFloat;
};

struct ExtractReport {
  struct Kind {
    std::string name;  // "transformer_blocks.{}.attn.to_q"
    size_t layers = 0;
    double squared_change = 0.0, squared_error = 0.0;
    // What the LoRA lacks of the change: roots of sums of squares.
    double relative_error() const;
  };
  std::vector<std::string> files;  // that were written
  std::vector<Kind> kinds;         // of the LoRA, by name
  Kind total;
  // Weights that changed and are not in the LoRA, by their paths in the component.
  std::vector<std::string> left_out;
  double squared_left_out = 0.0;
};

struct ExtractProgress {
  size_t done = 0, total = 0;  // weights
};

// Writes the best LoRA of options.rank for tuned - base, of every component that both have, to
// `output`. Where several denoisers differ, whose layers have the same names, each component has a
// file of its own, see files::path_of_component(). One weight of each model is in memory. Throws
// Error{kInvalidArgument} when the models differ in names or shapes, when nothing that is targeted
// differs, for rank 0 and for a file that is there, and what write_lora throws.
ExtractReport extract(model::LoadedModel& base, model::LoadedModel& tuned,
                      const std::string& output, const ExtractOptions& options,
                      const std::function<void(const ExtractProgress&)>& progress = {});

}  // namespace atelier::lora
