// A tree of named modules and their weights. Modules hold no values: see weight.h.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "atelier/weight.h"

namespace atelier::nn {

// Children are plain members, constructed with their parent and their name:
//
//   struct Mlp : nn::Module {
//     nn::Linear up, down;
//     Mlp(Module* parent, std::string name, int64_t width)
//         : Module(parent, std::move(name)), up(this, "up", width, 4 * width), down(this, "down", 4
//         * width, width) {}
//   };
//
// A name may hold dots ("blocks.0"). Modules do not move: the tree holds pointers to them.
class ATELIER_API Module {
 public:
  // `parent` may be null for the root. It outlives this module.
  Module(Module* parent, std::string name);
  virtual ~Module();
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  const std::string& name() const { return name_; }
  // Joined with dots from below the root: "transformer_blocks.0.attn.to_q". Empty for the root.
  std::string path() const;

  const std::vector<Module*>& children() const { return children_; }
  // Its own weights only, in order of declaration.
  const std::vector<WeightPtr>& weights() const { return weights_; }

  // Visits this module and all below it, in order of declaration.
  void visit(const std::function<void(Module&)>& visitor);
  // Visits every weight below, with its path from this module: "attn.to_q.weight".
  void visit_weights(const std::function<void(const std::string& path, Weight& weight)>& visitor);

  // Returns null when there is no weight at `path`, counted from this module.
  WeightPtr find_weight(std::string_view path);

 protected:
  WeightPtr declare(std::string name, std::vector<int64_t> shape, WeightOptions options = {});

 private:
  std::string name_;
  Module* parent_;
  std::vector<Module*> children_;
  std::vector<WeightPtr> weights_;
};

}  // namespace atelier::nn
