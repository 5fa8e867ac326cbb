#include "host/plan/dry_exchange.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include <ATen/ATen.h>

#include "host/parameters/trained.h"
#include "memory/divided_slab.h"

namespace atelier::plan {
namespace {

using at::Tensor;
using distributed::FlatLayout;
using model::LoadedModel;
using optim::Parameter;
using parameters::ExchangedTensor;
using parameters::ExchangedTensors;
using parameters::ExchangePlan;
using parameters::RankMode;
using parameters::Selection;
using parameters::TrainedBlocks;

Tensor meta(at::IntArrayRef sizes, at::ScalarType dtype) {
  return at::empty(sizes, at::TensorOptions(at::kMeta).dtype(dtype));
}

Tensor value_of(LoadedModel& model, const std::string& component, const Weight& weight) {
  return meta(weight.sizes(), weight.drawn_dtype(model.dtype(component)));
}

// What each part has of the weights of a block, as Residency divides them.
std::map<const Weight*, FlatLayout::Cut> cuts_of(LoadedModel& model, const std::string& component,
                                                 Block& block, int64_t parts) {
  memory::SlabLayout layout;
  std::map<const Weight*, memory::SlabSlice> slices;
  block.visit_weights([&](const std::string&, const Weight& weight) {
    slices.emplace(&weight, memory::add_divided(layout, value_of(model, component, weight)));
  });
  const int64_t bytes = memory::part_bytes(layout.bytes(), parts);
  std::map<const Weight*, FlatLayout::Cut> cuts;
  for (const auto& [weight, slice] : slices) {
    FlatLayout::Cut& cut = cuts[weight];
    cut = {&block, at::TensorOptions(at::kMeta).dtype(slice.dtype), {}};
    for (int64_t part = 0; part < parts; ++part) {
      const auto [begin, count] = memory::numbers_in(slice, bytes, part);
      cut.extents.push_back({.begin = begin, .count = count});
    }
  }
  return cuts;
}

// Tensors on their way into a plan.
struct Trained {
  std::vector<optim::Group> groups;  // all that is trained, in the optimizer's order
  std::vector<Tensor> leaves = {};   // of these, what is whole
  std::vector<ExchangedTensor> wholes = {};
  std::vector<FlatLayout::Cut> cuts = {};  // and what is divided
  std::vector<ExchangedTensor> divided = {};
};

std::vector<optim::Group> groups_of(LoadedModel& model, const Selection& selection,
                                    const order::Training& config) {
  std::vector<Parameter> weights, a, b;
  for (const auto& [component, path, weight] : selection.weights)
    weights.push_back({component + "." + path, value_of(model, component, *weight)});
  for (const auto& layer : selection.layers) {
    const std::string name = layer.component + "." + layer.path;
    a.push_back(
        {name + ".lora_A", meta({config.lora.rank, layer.linear->in_features()}, at::kFloat)});
    b.push_back(
        {name + ".lora_B", meta({layer.linear->out_features(), config.lora.rank}, at::kFloat)});
  }
  return parameters::optimizer_groups(config, std::move(weights), std::move(a), std::move(b));
}

Trained trained_tensors(LoadedModel& model, const Selection& selection,
                        const order::Training& config, const TrainedBlocks& blocks,
                        const std::vector<memory::PlannedComponent>& components) {
  std::map<const Weight*, FlatLayout::Cut> cuts;
  for (const memory::PlannedComponent& component : components) {
    const bool trains_weights =
        std::ranges::find(selection.weights, component.name,
                          &Selection::TrainedWeight::component) != selection.weights.end();
    if (component.shards == 1 || !trains_weights) continue;
    for (Block* block : model.model().blocks(component.name))
      cuts.merge(cuts_of(model, component.name, *block, component.shards));
  }
  std::map<std::string, const Weight*> weights;
  for (const auto& [component, path, weight] : selection.weights)
    weights.emplace(component + "." + path, weight);
  Trained trained = {.groups = groups_of(model, selection, config)};
  for (const optim::Group& group : trained.groups) {
    for (const Parameter& parameter : group.parameters) {
      const auto weight = weights.find(parameter.name);
      const auto cut = weight == weights.end() ? cuts.end() : cuts.find(weight->second);
      const ExchangedTensor& known = blocks.tensors.at(parameter.name);
      if (cut == cuts.end()) {
        trained.leaves.push_back(parameter.leaf);
        trained.wholes.push_back(known);
      } else {
        trained.cuts.push_back(cut->second);
        trained.divided.push_back(known);
      }
    }
  }
  return trained;
}

// The part of a group that has most bytes of all that is exchanged.
int fullest_part(const ExchangePlan& plan) {
  std::vector<int64_t> bytes(static_cast<size_t>(plan.mode.parts()));
  for (const ExchangedTensors* exchanged : {&plan.wholes, &plan.divided}) {
    const FlatLayout& layout = exchanged->layout;
    for (size_t tensor = 0; tensor < layout.tensors(); ++tensor) {
      const int64_t itemsize = layout.buckets()[layout.bucket_of(tensor)].itemsize();
      for (int part = 0; part < plan.mode.parts(); ++part)
        bytes[static_cast<size_t>(part)] += layout.extent(tensor, part).count * itemsize;
    }
  }
  return static_cast<int>(std::ranges::max_element(bytes) - bytes.begin());
}

// What the optimizer moves beside what the model computes with: of wholes that rest on the host,
// the factors, which are on the device; of shards that are moved there, all that is whole on the
// device and has no master, which is one of the optimizer's states.
double copied_bytes(const ExchangePlan& plan, const std::vector<optim::Group>& groups,
                    const std::vector<optim::Group>& moved, const Selection& selection) {
  std::set<std::string> left_out;
  if (plan.wholes_on_host) {
    for (const auto& trained : selection.weights)
      left_out.insert(trained.component + "." + trained.path);
  } else if (!parameters::has_shards_on_host(plan.mode, plan.wholes_on_host)) {
    return 0.0;
  }
  for (const ExchangedTensor& tensor : plan.divided.tensors) left_out.insert(tensor.name);
  double bytes = 0;
  for (const optim::Group& group : plan.wholes_on_host ? groups : moved) {
    for (const Parameter& parameter : group.parameters) {
      if (!left_out.contains(parameter.name) && !parameter.master_of)
        bytes += static_cast<double>(parameter.leaf.nbytes());
    }
  }
  return bytes;
}

MovedBytes moved_bytes(const ExchangePlan& plan, const std::vector<optim::Group>& groups,
                       const Selection& selection, const optim::Options& options) {
  const std::vector<optim::Group> moved =
      parameters::moved_by(plan, groups, fullest_part(plan), options.master_weights);
  const auto optimizer = optim::make_optimizer(moved, options);
  MovedBytes bytes = {.copies = copied_bytes(plan, groups, moved, selection),
                      .states = static_cast<double>(optimizer->state_bytes()),
                      .step = static_cast<double>(optimizer->step_bytes())};
  for (const optim::Group& group : moved) {
    for (const Parameter& parameter : group.parameters)
      bytes.numbers += static_cast<double>(parameter.leaf.numel());
  }
  return bytes;
}

}  // namespace

DryExchange dry_exchange(LoadedModel& model, const Selection& selection,
                         const order::Training& config, const RankMode& mode, bool rests_on_host,
                         const std::vector<memory::PlannedComponent>& components) {
  RankMode summing = parameters::summing_mode(mode, selection.weights.empty());
  if (summing.group == 1) summing.zero_stage = 0;
  const TrainedBlocks blocks(model, selection);
  Trained trained = trained_tensors(model, selection, config, blocks, components);
  ExchangePlan plan(
      summing, parameters::has_wholes_on_host(summing, mode.on_host, rests_on_host),
      ExchangedTensors(FlatLayout(trained.leaves, summing.parts()), std::move(trained.wholes)),
      ExchangedTensors(FlatLayout(trained.cuts), std::move(trained.divided)), blocks.blocks);
  const MovedBytes moved = moved_bytes(plan, trained.groups, selection, config.optimizer);
  return {std::move(plan), moved};
}

}  // namespace atelier::plan
