#include "atelier/nn/module.h"

#include <algorithm>

namespace atelier::nn {

Module::Module(Module* parent, std::string name) : name_(std::move(name)), parent_(parent) {
  if (parent_ != nullptr) parent_->children_.push_back(this);
}

Module::~Module() {
  if (parent_ == nullptr) return;
  auto& siblings = parent_->children_;
  siblings.erase(std::remove(siblings.begin(), siblings.end(), this), siblings.end());
}

std::string Module::path() const {
  if (parent_ == nullptr) return {};
  const std::string above = parent_->path();
  return above.empty() ? name_ : above + "." + name_;
}

void Module::visit(const std::function<void(Module&)>& visitor) {
  visitor(*this);
  for (Module* child : children_) child->visit(visitor);
}

void Module::visit_weights(const std::function<void(const std::string&, Weight&)>& visitor) {
  for (const WeightPtr& weight : weights_) visitor(weight->name(), *weight);
  for (Module* child : children_)
    child->visit_weights([&](const std::string& path, Weight& weight) {
      visitor(child->name_ + "." + path, weight);
    });
}

WeightPtr Module::find_weight(std::string_view path) {
  for (const WeightPtr& weight : weights_)
    if (weight->name() == path) return weight;
  for (Module* child : children_) {
    const std::string& name = child->name_;
    if (path.size() > name.size() && path.starts_with(name) && path[name.size()] == '.')
      if (WeightPtr found = child->find_weight(path.substr(name.size() + 1))) return found;
  }
  return nullptr;
}

WeightPtr Module::declare(std::string name, std::vector<int64_t> shape, WeightOptions options) {
  return weights_.emplace_back(
      std::make_shared<Weight>(std::move(name), std::move(shape), options));
}

}  // namespace atelier::nn
