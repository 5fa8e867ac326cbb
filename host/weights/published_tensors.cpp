#include "host/weights/published_tensors.h"

#include <algorithm>
#include <map>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "atelier/error.h"

#include "host/weights/block_numbers.h"
#include "memory/residency.h"

namespace atelier::weights {

at::Tensor PublishedTensor::value() const {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> parts;
  for (const Source& source : sources) {
    at::Tensor part = source.weight->draw().detach();
    if (source.length >= 0) part = part.narrow(axis, source.start, source.length);
    parts.push_back(std::move(part));
  }
  return parts.size() == 1 ? parts.front() : at::cat(parts, axis);
}

namespace {

// Lays out the published tensors of a component, row by row of its table.
class Layout {
 public:
  Layout(nn::Module& module, const WeightMap& rules, const std::string& prefix,
         const TensorIndex* published)
      : rules_(rules), prefix_(prefix), published_(published) {
    module.visit_weights([&](const std::string& path, Weight& weight) {
      weights_.push_back({path, &weight});
      for (const WeightRule& rule : rules) {
        if (!rule.to.empty() && match_blocks(rule.to, path)) ++weights_.back().tensors;
      }
      if (weights_.back().tensors == 0)
        throw Error(ErrorCode::kInternal, "weight '" + path + "' has no row in the table");
    });
  }

  std::vector<PublishedTensor> lay_out() {
    for (const WeightRule& rule : rules_) {
      if (rule.to.empty()) continue;
      for (Joined& joined : weights_) {
        if (const auto numbers = match_blocks(rule.to, joined.path))
          add(rule, prefix_ + fill_blocks(rule.from, *numbers), joined);
      }
    }
    std::vector<PublishedTensor> out;
    for (auto& [name, tensor] : tensors_) out.push_back(std::move(tensor));
    return out;
  }

 private:
  struct Joined {
    std::string path;
    Weight* weight;
    int64_t tensors = 0;  // that it is joined from
    int64_t taken = 0;    // along the axis, of a weight that is cut
  };

  void add(const WeightRule& rule, const std::string& name, Joined& joined) {
    const at::IntArrayRef sizes = joined.weight->sizes();
    PublishedTensor& tensor = tensors_[name];
    const bool is_new = tensor.sources.empty();
    if (is_new) {
      tensor.name = name;
      tensor.shape = sizes.vec();
    }
    tensor.axis = rule.axis;
    PublishedTensor::Source source{joined.path, joined.weight, 0, -1};
    const auto axis = static_cast<size_t>(std::max(rule.axis, 0));
    if (joined.tensors > 1) cut(source, rule, name, joined);
    const int64_t length = rule.axis < 0 ? 0 : source.length >= 0 ? source.length : sizes[axis];
    if (rule.axis >= 0) tensor.shape[axis] = is_new ? length : tensor.shape[axis] + length;
    tensor.sources.push_back(std::move(source));
  }

  // The part of a weight that the tensor `name` is.
  void cut(PublishedTensor::Source& source, const WeightRule& rule, const std::string& name,
           Joined& joined) const {
    const auto axis = static_cast<size_t>(std::max(rule.axis, 0));
    const int64_t whole = joined.weight->sizes()[axis];
    const TensorMeta* meta = published_ == nullptr ? nullptr : published_->find(name);
    if (meta == nullptr && rule.length == 0 && whole % joined.tensors != 0)
      throw Error(ErrorCode::kInternal, "weight '" + joined.path + "' cannot be cut into " +
                                            std::to_string(joined.tensors) + " equal tensors");
    source.start = joined.taken;
    source.length = meta != nullptr   ? meta->shape.at(axis)
                    : rule.length > 0 ? rule.length
                                      : whole / joined.tensors;
    joined.taken += source.length;
    if (joined.taken > whole)
      throw Error(ErrorCode::kInternal,
                  "weight '" + joined.path + "' is shorter than its published tensors");
  }

  const WeightMap& rules_;
  const std::string& prefix_;
  const TensorIndex* published_;
  std::vector<Joined> weights_;
  std::map<std::string, PublishedTensor> tensors_;  // by name; sources in table order
};

}  // namespace

std::vector<PublishedTensor> published_tensors(nn::Module& module, const WeightMap& rules,
                                               const std::string& prefix,
                                               const TensorIndex* published) {
  std::vector<PublishedTensor> tensors = Layout(module, rules, prefix, published).lay_out();
  for (PublishedTensor& tensor : tensors)
    tensor.dtype = memory::drawn_dtype(*tensor.sources.front().weight);
  return tensors;
}

TensorIndex published_index(nn::Module& module, const WeightMap& rules) {
  const std::string prefix;
  TensorIndex::Tensors tensors;
  for (const PublishedTensor& tensor : Layout(module, rules, prefix, nullptr).lay_out())
    tensors[tensor.name] = {tensor.dtype, tensor.shape};
  return TensorIndex(std::move(tensors));
}

}  // namespace atelier::weights
