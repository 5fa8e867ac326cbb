#include "host/lora/targets.h"

#include <algorithm>
#include <optional>
#include <set>

#include "atelier/error.h"

#include "formats/escape.h"
#include "host/files/file_reader.h"
#include "host/model/components.h"
#include "host/report/problems.h"
#include "host/weights/published_tensors.h"
#include "host/weights/weight_binding.h"

namespace atelier::lora {

using formats::quote_and_escape;
using model::LoadedModel;
using model::LoadedPart;

namespace {

// Endings of a layer's tensors, and of a parameter that is no layer's: "blocks.0.modulation".
constexpr std::string_view kEndings[] = {".weight", ".bias", ""};
constexpr size_t kShown = 3;  // names in an error

// "blocks.0.up" of "blocks.0.up.weight".
std::string layer_of(const std::string& name) {
  const auto* const ending =
      std::ranges::find_if(kEndings, [&](std::string_view one) { return name.ends_with(one); });
  return name.substr(0, name.size() - ending->size());
}

void set_shape(Target& target, const std::vector<int64_t>& shape) {
  target.shape = shape;
  target.out = shape.empty() ? 1 : shape[0];
  target.in = target.out == 0 ? 0 : c10::multiply_integers(shape) / target.out;
}

// The linear layers of a component, by their matrices.
class Linears {
 public:
  explicit Linears(nn::Module& root) {
    root.visit([&](nn::Module& module) {
      auto* linear = dynamic_cast<nn::Linear*>(&module);
      if (linear != nullptr) by_weight_.emplace(linear->weight.get(), linear);
    });
  }
  // Null when the weight is no such matrix.
  nn::Linear* find(const Weight& weight) const {
    const auto found = by_weight_.find(&weight);
    return found == by_weight_.end() ? nullptr : found->second;
  }

 private:
  std::map<const Weight*, nn::Linear*> by_weight_;
};

// "tensor X: [2, 64], [2, 32] expected".
std::string expected_text(const std::string& tensor, const std::vector<int64_t>& is,
                          const std::vector<int64_t>& expected) {
  return "tensor " + quote_and_escape(tensor) + ": " + c10::str(at::IntArrayRef(is)) + ", " +
         c10::str(at::IntArrayRef(expected)) + " expected";
}

// The text where a layer's addition does not fit its target; empty where it does.
std::string misfit(const LoraLayer& layer, const Target& target) {
  if (layer.shape == target.shape) return {};
  if (layer.form == LayerForm::kLora || layer.form == LayerForm::kLoha) {
    if (layer.in != target.in)
      return expected_text(layer.down, {layer.rank, layer.in}, {layer.rank, target.in});
    return expected_text(layer.up, {layer.out, layer.rank}, {target.out, layer.rank});
  }
  return expected_text(layer.any_tensor(), layer.shape, target.shape);
}

// DoRA's lengths are of whole rows or columns of the named matrix: where the model keeps it as
// several layers, those must not be cut.
void check_magnitude(const std::string& path, const LoraLayer& layer, const Target& target) {
  if (layer.magnitude.empty()) return;
  for (const TargetSlice& slice : target.slices) {
    if (slice.axis < 0 || slice.axis == layer.magnitude_axis) continue;
    if (slice.length == target.shape[static_cast<size_t>(slice.axis)]) continue;
    throw Error(ErrorCode::kUnsupported,
                path + ": tensor " + quote_and_escape(layer.magnitude) +
                    ": DoRA over several layers of " + target.component + " is not supported",
                "merge it into the model in the program that it was made with", "LORA_KIND");
  }
}

}  // namespace

NamedTargets spelled_targets(LoadedModel& model, const LoadedPart& part,
                             const std::string& spelling) {
  nn::Module& root = model.model().component(part.detection.component);
  const Linears linears(root);
  const bool is_own = spelling == part.detection.spelling;
  Detection detection = part.detection;
  detection.spelling = spelling;
  if (!is_own) detection.prefix.clear();
  const WeightMap rules = model.family().weight_map(detection);
  // Where no checkpoint has this spelling, the table says what one would hold.
  const TensorIndex index =
      is_own ? part.checkpoint.index() : weights::published_index(root, rules);
  const auto binding = weights::bind_weights(rules, detection.prefix, index, root);
  NamedTargets targets;
  for (const weights::BoundWeight& bound : binding.weights) {
    for (const weights::WeightSlice& slice : bound.slices) {
      Target& target = targets[slice.tensor.substr(detection.prefix.size())];
      target.component = detection.component;
      set_shape(target, index.find(slice.tensor)->shape);
      target.slices.push_back({bound.weight, linears.find(*bound.weight), layer_of(bound.path),
                               slice.axis, slice.tensor_start, slice.weight_start, slice.length});
    }
  }
  return targets;
}

namespace {

bool is_linear(const Target& target) {
  return target.shape.size() == 2 &&
         std::all_of(target.slices.begin(), target.slices.end(),
                     [](const TargetSlice& slice) { return slice.linear != nullptr; });
}

// The names of a component's layers: those of its checkpoint first, where they and others differ.
NamedTargets all_targets(LoadedModel& model, const LoadedPart& part, bool has_spellings) {
  NamedTargets targets = spelled_targets(model, part, part.detection.spelling);
  if (has_spellings) {
    for (const std::string& spelling : model.family().spellings(part.detection)) {
      if (spelling != part.detection.spelling)
        targets.merge(spelled_targets(model, part, spelling));
    }
  }
  nn::Module& root = model.model().component(part.detection.component);
  const Linears linears(root);
  root.visit_weights([&](const std::string& path, Weight& weight) {
    Target target = {
        part.detection.component, {}, 0, 0, {{&weight, linears.find(weight), layer_of(path)}}};
    set_shape(target, weight.sizes().vec());
    targets.emplace(path, std::move(target));
  });
  return targets;
}

// "blocks.0.up" of "dit.blocks.0.up"; a file of one control fits its other ones, too. Empty: the
// name does not begin with the component's.
std::string_view named(const std::string& component, std::string_view name) {
  for (const std::string& own : {component, std::string(spec_name(component))})
    if (name.starts_with(own + ".")) return name.substr(own.size() + 1);
  return {};
}

}  // namespace

Targets::Component Targets::table_of(LoadedModel& model, const LoadedPart& part) {
  Component component;
  component.name = part.detection.component;
  component.saved_name = model::saved_name(model.family(), model.stages(), component.name);
  size_t text_encoders = 0;
  for (const ComponentSpec& spec : model.family().components()) {
    if (spec.name == spec_name(component.name)) {
      component.is_denoiser = spec.role == Role::kDenoiser;
      if (spec.role == Role::kControl) component.beside = spec.beside;
      if (spec.role == Role::kTextEncoder) component.text_encoder = text_encoders;
    }
    if (spec.role == Role::kTextEncoder) ++text_encoders;
  }
  if (component.is_denoiser)
    component.file_prefix = model.family().lora_targets(part.detection).file_prefix;
  component.by_name = all_targets(
      model, part,
      component.is_denoiser || !component.beside.empty() || component.text_encoder.has_value());
  for (auto found = component.by_name.cbegin(); found != component.by_name.cend(); ++found) {
    component.by_flat_name.emplace(formats::flat_lora_name(found->first), found);
    if (found->second.slices.front().linear != nullptr)
      component.widest = std::max({component.widest, found->second.in, found->second.out});
  }
  return component;
}

Targets::Targets(LoadedModel& model) : family_(model.family()) {
  for (const LoadedPart& part : model.parts()) components_.push_back(table_of(model, part));
  for (const model::RangedDenoiser& denoiser : model.stages().denoisers)
    denoisers_.push_back(denoiser.part);
  std::stable_partition(components_.begin(), components_.end(),
                        [](const Component& component) { return component.is_denoiser; });
}

std::optional<Targets::Found> Targets::find_in(const Component& component, std::string_view name,
                                               std::string_view ending) {
  using Owner = formats::LoraLayerName::Owner;
  const auto find = [&](const auto& table, std::string text) { return table.find(text += ending); };
  // Files of some tools have several prefixes: "base_model.model.transformer.".
  for (int i = 0; i < 4; ++i) {
    if (const auto found = find(component.by_name, std::string(name));
        found != component.by_name.end())
      return Found{&component, found};
    const auto prefix = formats::without_lora_prefix(name);
    if (const std::string_view own = named(component.name, name); !own.empty()) {
      name = own;
    } else if (!component.file_prefix.empty() && name.starts_with(component.file_prefix)) {
      name.remove_prefix(component.file_prefix.size());
    } else if (prefix && (prefix->owner == Owner::kUnsaid ||
                          (prefix->owner == Owner::kDenoiser &&
                           (component.is_denoiser || !component.beside.empty())) ||
                          (prefix->owner == Owner::kTextEncoder &&
                           component.text_encoder == prefix->text_encoder))) {
      name = prefix->path;
      if (!prefix->is_flat) continue;
      const auto found =
          component.by_flat_name.find(formats::flat_lora_name(std::string(name).append(ending)));
      if (found == component.by_flat_name.end()) return std::nullopt;
      return Found{&component, found->second};
    } else {
      return std::nullopt;
    }
  }
  return std::nullopt;
}

// The first of several components that have a layer; where that is a control, the first one beside
// each denoiser. A denoiser that `component` names has its own controls alone.
std::vector<Targets::Found> Targets::first_of_each(std::span<const Found> all,
                                                   std::string_view component) {
  std::vector<Found> first;
  const bool is_denoiser = std::ranges::any_of(all, [&](const Found& one) {
    return !component.empty() && one.component->beside == component;
  });
  for (const Found& one : all) {
    const std::string& beside = one.component->beside;
    if (is_denoiser && beside == component) return {one};
    const bool is_new = std::ranges::none_of(
        first, [&](const Found& other) { return other.component->beside == beside; });
    const bool is_beside = !first.empty() && !first.front().component->beside.empty();
    if (first.empty() || (is_new && is_beside && !beside.empty())) first.push_back(one);
  }
  return first;
}

std::vector<Targets::Found> Targets::find_all(std::string_view name, std::string_view ending,
                                              std::string_view component) const {
  std::vector<Found> denoisers, others;
  for (const Component& one : components_) {
    const auto found = find_in(one, name, ending);
    if (!found) continue;
    if (one.name == component) return {*found};
    (one.is_denoiser ? denoisers : others).push_back(*found);
  }
  const bool is_for_another = !component.empty() && component != kEveryDenoiser;
  if (!denoisers.empty()) return is_for_another ? std::vector<Found>() : denoisers;
  return first_of_each(others, component);
}

const Target* Targets::find(std::string_view name, std::string_view component) const {
  const std::vector<Found> all = find_all(name, ".weight", component);
  return all.empty() ? nullptr : &all.front().target->second;
}

std::optional<Targets::LayerName> Targets::find_name(std::string_view name,
                                                     std::string_view component) const {
  for (const std::string_view ending : kEndings) {
    const std::vector<Found> all = find_all(name, ending, component);
    if (!all.empty())
      return LayerName{all.front().component->name, layer_of(all.front().target->first)};
  }
  return std::nullopt;
}

const Targets::Component* Targets::find_component(std::string_view name) const {
  const auto found = std::ranges::find(components_, name, &Component::name);
  return found == components_.end() ? nullptr : &*found;
}

void Targets::check_base(const LoraFile& file, const Component& said) const {
  const auto& metadata = file.tensors().metadata();
  const auto base = metadata.find("base");
  const std::string& denoiser = said.beside.empty() ? said.name : said.beside;
  const std::string trained = base == metadata.end() ? std::string() : denoiser_of(base->second);
  const bool is_of_denoiser = said.is_denoiser || !said.beside.empty();
  if (!is_of_denoiser || trained.empty() || trained == denoiser) return;
  throw Error(ErrorCode::kInvalidArgument,
              files::display_path(file.path()) + ": says that it is for " + said.name +
                  ", and was trained on " + quote_and_escape(base->second) + ", which is " +
                  trained,
              "say behind the file which one it is for, FILE@COMPONENT", "LORA_COMPONENT");
}

std::string Targets::component_of(const LoraFile& file, std::string_view asked) const {
  std::vector<std::string> names;
  for (const Component& component : components_) names.push_back(component.name);
  if (!asked.empty()) {
    if (asked == kEveryDenoiser || find_component(asked) != nullptr) return std::string(asked);
    const std::string nearest = report::nearest_name(std::string(asked), names);
    throw Error(ErrorCode::kNotFound,
                files::display_path(file.path()) + ": component " + quote_and_escape(asked) +
                    " is none of the model; there are " + report::list_names(names),
                nearest.empty() ? "name one of them" : "did you mean " + nearest + "?",
                "LORA_COMPONENT");
  }
  const std::string said = file.component();
  if (const Component* const own = find_component(said)) {
    check_base(file, *own);
    return said;
  }
  if (const auto alone = std::ranges::find(components_, said, &Component::saved_name);
      !said.empty() && alone != components_.end())
    return alone->name;
  if (model::find_component(family_, said) != nullptr)
    throw Error(ErrorCode::kNotFound,
                files::display_path(file.path()) + ": is for the component " + said +
                    ", and the model is open without it",
                "pass its files as well, or put the LoRA into another one, FILE@COMPONENT",
                "LORA_COMPONENT");
  return denoiser_of(file.path());
}

std::string Targets::denoiser_of(const std::string& path) const {
  std::vector<FoundPart> parts;
  for (const Detection& denoiser : denoisers_) parts.push_back({denoiser, path, {}});
  family_.assign(parts);
  std::set<std::string> named;
  for (const FoundPart& found : parts) named.insert(found.part.component);
  return named.size() == 1 && parts.size() > 1 ? *named.begin() : std::string();
}

// One file, layer by layer.
class Targets::Matching {
 public:
  Matching(const Targets& targets, const LoraFile& file, std::string component)
      : targets_(targets),
        file_(file),
        component_(std::move(component)),
        path_(files::display_path(file.path())) {}

  void add_layer(size_t index) {
    const LoraLayer& layer = file_.layers()[index];
    const bool is_any_weight =
        layer.form == LayerForm::kNone || layer.form == LayerForm::kDifference;
    std::vector<Found> found = targets_.find_all(layer.name, ".weight", component_);
    if (found.empty() && layer.form == LayerForm::kDifference)
      found = targets_.find_all(layer.name, "", component_);
    if (!is_any_weight)
      std::erase_if(found, [](const Found& one) { return !is_linear(one.target->second); });
    if (found.empty()) match_.unmatched.push_back(layer.name);
    if (found.size() > 1 && component_.empty()) refuse_ambiguous(layer, found);
    for (const Found& one : found) {
      if (layer.form == LayerForm::kNone || add_weight(index, one)) add_bias(index, one);
    }
  }

  Match finish() {
    refuse_misfits();
    const bool is_for_one = !component_.empty() && component_ != kEveryDenoiser;
    if (match_.pairs.empty() && match_.biases.empty())
      throw Error(ErrorCode::kInvalidArgument,
                  path_ + ": none of its " + std::to_string(file_.layers().size()) +
                      " layers is one of " + (is_for_one ? component_ + " of " : std::string()) +
                      std::string(targets_.family_.name()) + ": " +
                      report::list_names(match_.unmatched, kShown),
                  "use a LoRA of this model", "LORA_NO_MATCH");
    match_.unmatched.insert(match_.unmatched.end(), file_.unknown().begin(), file_.unknown().end());
    return std::move(match_);
  }

 private:
  // Experts have layers of the same names, and a LoRA of one does harm in the other.
  [[noreturn]] void refuse_ambiguous(const LoraLayer& layer,
                                     const std::vector<Found>& found) const {
    std::vector<std::string> names;
    for (const Found& one : found) names.push_back(one.component->name);
    const std::string denoisers = report::list_names(names);
    names.emplace_back(kEveryDenoiser);
    throw Error(ErrorCode::kInvalidArgument,
                path_ + ": does not say which denoiser it is for: " + quote_and_escape(layer.name) +
                    " is a layer of " + denoisers,
                "say it behind the file, " + path_ + "@COMPONENT, which is one of " +
                    report::list_names(names),
                "LORA_COMPONENT");
  }

  // Whether it fits.
  bool add_weight(size_t index, const Found& found) {
    const LoraLayer& layer = file_.layers()[index];
    const Target& target = found.target->second;
    if (std::string text = misfit(layer, target); !text.empty()) {
      misfits_.push_back(std::move(text));
      return false;
    }
    check_rank(layer, *found.component);
    check_magnitude(path_, layer, target);
    add(match_.pairs, index, target);
    return true;
  }

  void add_bias(size_t index, const Found& found) {
    const LoraLayer& layer = file_.layers()[index];
    if (layer.bias.empty()) return;
    const std::vector<Found> biases = targets_.find_all(layer.name, ".bias", found.component->name);
    if (biases.empty())
      throw Error(ErrorCode::kInvalidArgument,
                  path_ + ": tensor " + quote_and_escape(layer.bias) +
                      ": the layer has no bias in " + std::string(targets_.family_.name()),
                  "use a LoRA of this model", "LORA_SHAPE");
    const Target& bias = biases.front().target->second;
    const TensorMeta& meta = *file_.tensors().index().find(layer.bias);
    if (bias.out == meta.shape[0]) {
      add(match_.biases, index, bias);
    } else {
      misfits_.push_back(expected_text(layer.bias, meta.shape, bias.shape));
    }
  }

  void add(std::vector<Match::Pair>& pairs, size_t index, const Target& target) {
    const auto [other, is_new] = named_.emplace(&target, index);
    if (!is_new)
      throw Error(ErrorCode::kInvalidArgument,
                  path_ + ": " + quote_and_escape(file_.layers()[other->second].name) + " and " +
                      quote_and_escape(file_.layers()[index].name) + " are one layer of " +
                      target.component,
                  "the file names a layer in two ways: save it again", "LORA_TWICE");
    pairs.push_back({index, &target});
  }

  // One rank for all layers goes beyond narrow ones, but not beyond all of them.
  void check_rank(const LoraLayer& layer, const Component& component) const {
    if (layer.rank <= component.widest) return;
    throw Error(ErrorCode::kInvalidArgument,
                path_ + ": layer " + quote_and_escape(layer.name) + ": rank " +
                    std::to_string(layer.rank) + ", and no layer of " + component.name +
                    " is wider than " + std::to_string(component.widest),
                "the file is damaged, or no LoRA", "LORA_RANK");
  }

  void refuse_misfits() const {
    if (misfits_.empty()) return;
    std::string message = path_ + ": is made for another model: ";
    for (size_t i = 0; i < std::min(misfits_.size(), kShown); ++i)
      message += (i > 0 ? "; " : "") + misfits_[i];
    if (misfits_.size() > kShown)
      message += "; and " + std::to_string(misfits_.size() - kShown) + " more";
    throw Error(ErrorCode::kInvalidArgument, message, "use a LoRA of this model", "LORA_SHAPE");
  }

  const Targets& targets_;
  const LoraFile& file_;
  std::string component_;
  std::string path_;
  Match match_;
  std::map<const Target*, size_t> named_;  // layer of the file that a target was named by
  std::vector<std::string> misfits_;
};

Match Targets::match(const LoraFile& file, std::string_view component) const {
  Matching matching(*this, file, component_of(file, component));
  for (size_t i = 0; i < file.layers().size(); ++i) matching.add_layer(i);
  return matching.finish();
}

}  // namespace atelier::lora
