#include "host/lora/registry.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <set>
#include <sys/stat.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "atelier/error.h"

#include "formats/escape.h"
#include "host/report/problems.h"

namespace atelier::lora {

using formats::quote_and_escape;

namespace {

// Length and time of the last change; {0, 0} for a file that is not there.
std::pair<int64_t, int64_t> stamp_of(const std::string& path) {
  struct stat found = {};
  if (stat(path.c_str(), &found) != 0) return {};
  return {found.st_size, found.st_mtim.tv_sec * 1'000'000'000 + found.st_mtim.tv_nsec};
}

void check_strength(const LoraRef& use) {
  if (std::isfinite(use.strength)) return;
  throw Error(ErrorCode::kInvalidArgument,
              "LoRA " + quote_and_escape(use.name) + ": strength is not finite",
              "1 adds it as it was trained", "LORA_STRENGTH");
}

void check_name(const std::vector<LoraRef>& taken, const LoraRef& use) {
  for (const LoraRef& other : taken) {
    if (other.name == use.name && other.component == use.component)
      throw Error(ErrorCode::kInvalidArgument,
                  "LoRA " + quote_and_escape(use.name) + ": given twice",
                  "give it once, with one strength", "LORA_TWICE");
  }
}

// `part` of a larger matrix of zeros, along `axis`.
at::Tensor widened(const at::Tensor& part, int axis, int64_t start, int64_t total) {
  if (part.size(axis) == total) return part.contiguous();
  std::vector<int64_t> shape = part.sizes().vec();
  shape[static_cast<size_t>(axis)] = total;
  at::Tensor whole = at::zeros(shape, part.options());
  whole.narrow(axis, start, part.size(axis)).copy_(part);
  return whole;
}

// One adapter that adds what all of `parts` add, of the sum of their ranks. Its scale is that of
// the first one, whose values it has unchanged.
ops::Adapter stacked(const std::vector<ops::Adapter>& parts) {
  std::vector<at::Tensor> down, up;
  for (const ops::Adapter& part : parts) {
    down.push_back(part.a);
    up.push_back(part.scale == parts[0].scale ? part.b : part.b * (part.scale / parts[0].scale));
  }
  return {at::cat(down, 0), at::cat(up, 1), parts[0].scale};
}

}  // namespace

Registry::Registry(model::LoadedModel& model, Options options)
    : model_(model),
      options_(options),
      targets_(model),
      listener_(model.on_loaded([this](std::string_view) { place_additions(); })) {}

Registry::~Registry() {
  in_use_.clear();
  used_.clear();
  place();
}

Registry::LoadedPtr Registry::open(const LoraRef& use) {
  const std::pair key(use.path, use.component);
  const std::lock_guard lock(files_mutex_);
  const auto known = files_.find(key);
  if (known != files_.end()) {
    if (known->second->stamp == stamp_of(known->second->file.path())) return known->second;
    files_.erase(known);
  }
  LoraFile file = LoraFile::open(use.path);
  Match match = targets_.match(file, use.component);
  const auto stamp = stamp_of(file.path());
  auto loaded = std::make_shared<Loaded>(Loaded{.file = std::move(file),
                                                .match = std::move(match),
                                                .id = ++clock_,
                                                .last_use = clock_,
                                                .stamp = stamp});
  files_.emplace(key, loaded);
  return loaded;
}

void Registry::read(Loaded& loaded) const {
  if (loaded.values) return;
  const at::NoGradGuard no_grad;
  const LoraFile& file = loaded.file;
  Values values;
  for (const Match::Pair& pair : loaded.match.pairs) {
    const LoraLayer& layer = file.layers()[pair.layer];
    if (options_.mode == Mode::kHot && layer.is_product()) {
      add_to_products(values, file, pair);
    } else {
      add_to_weights(values, file.read_difference(layer), *pair.target);
    }
  }
  for (const Match::Pair& pair : loaded.match.biases)
    add_to_weights(values, file.read_bias(file.layers()[pair.layer]), *pair.target);
  loaded.values = std::move(values);
}

void Registry::add_to_products(Values& values, const LoraFile& file,
                               const Match::Pair& pair) const {
  const LoraLayer& layer = file.layers()[pair.layer];
  const at::ScalarType dtype = model_.dtype(pair.target->component);
  const at::Tensor down = file.read_down(layer, dtype).to(model_.device());
  const at::Tensor up = file.read_up(layer, dtype).to(model_.device());
  for (const TargetSlice& slice : pair.target->slices) {
    Adapter adapter = {slice.linear, down, up, layer.scale};
    if (slice.axis == 0) {
      adapter.b = widened(up.narrow(0, slice.name_start, slice.length), 0, slice.layer_start,
                          slice.linear->out_features());
    } else if (slice.axis == 1) {
      adapter.a = widened(down.narrow(1, slice.name_start, slice.length), 1, slice.layer_start,
                          slice.linear->in_features());
    }
    values.bytes += static_cast<int64_t>(adapter.a.nbytes() + adapter.b.nbytes());
    values.adapters.push_back(std::move(adapter));
  }
}

void Registry::add_to_weights(Values& values, const Difference& difference,
                              const Target& target) const {
  const auto shared = std::make_shared<const Difference>(difference.to(model_.device()));
  values.bytes += shared->bytes();
  for (const TargetSlice& slice : target.slices)
    values.additions.push_back({slice.weight,
                                {.difference = shared,
                                 .axis = slice.axis,
                                 .difference_start = slice.name_start,
                                 .weight_start = slice.layer_start,
                                 .length = slice.length}});
}

std::vector<std::string> Registry::check(const LoraRef& use) {
  return open(use)->match.unmatched;
}

std::string Registry::fingerprint(std::span<const LoraRef> set, std::string_view component) {
  std::string text;
  for (const LoraRef& use : set) {
    if (use.strength == 0) continue;
    const LoadedPtr loaded = open(use);
    const auto changes_it = [&](const std::vector<Match::Pair>& pairs) {
      return std::any_of(pairs.begin(), pairs.end(), [&](const Match::Pair& pair) {
        return pair.target->component == component;
      });
    };
    if (changes_it(loaded->match.pairs) || changes_it(loaded->match.biases))
      text += c10::str(loaded->id, "*", std::bit_cast<uint64_t>(use.strength), ";");
  }
  return text;
}

void Registry::load(const LoraRef& use) {
  forget_samples();
  check_strength(use);
  check_name(in_use_, use);
  const LoadedPtr loaded = open(use);
  if (use.strength != 0) read(*loaded);
  loaded->last_use = ++clock_;
  in_use_.push_back(use);
  used_.push_back(loaded);
  place();
  drop_idle();
}

void Registry::unload(std::string_view name) {
  forget_samples();
  const size_t before = in_use_.size();
  for (size_t i = before; i-- > 0;) {
    if (in_use_[i].name != name) continue;
    used_.erase(used_.begin() + static_cast<ptrdiff_t>(i));
    in_use_.erase(in_use_.begin() + static_cast<ptrdiff_t>(i));
  }
  if (in_use_.size() == before) {
    std::vector<std::string> names;
    for (const LoraRef& use : in_use_) names.push_back(use.name);
    throw Error(ErrorCode::kNotFound,
                "LoRA " + quote_and_escape(name) + " is not loaded" +
                    (names.empty() ? std::string() : "; there are " + report::list_names(names)),
                "load it first", "LORA_NAME");
  }
  place();
  drop_idle();
}

// The sum is that of AddedWeight, on the compute device.
void Registry::merge(const LoraRef& use, const std::set<Weight*>& weights) {
  const at::NoGradGuard no_grad;
  check_strength(use);
  const LoadedPtr loaded = open(use);
  if (use.strength == 0) return;
  read(*loaded);
  std::map<Weight*, std::vector<Addition>> wanted;
  for (const WeightAddition& of : loaded->values->additions) {
    if (!weights.contains(of.weight)) continue;
    wanted[of.weight].push_back(of.addition);
    wanted[of.weight].back().strength = use.strength;
  }
  for (auto& [weight, additions] : wanted) {
    const at::Device place = weight->draw().device();
    weight->set(weight->draw().to(model_.device()));
    set_additions(*weight, this, std::move(additions), /*keeps_sum=*/false);
    weight->set(weight->draw().to(place));
    merged_.insert(weight);
  }
}

void Registry::use(std::span<const LoraRef> set) {
  std::vector<LoraRef> names;
  std::vector<LoadedPtr> used;
  for (const LoraRef& use : set) {
    check_strength(use);
    check_name(names, use);
    names.push_back(use);
    used.push_back(open(use));
  }
  for (size_t i = 0; i < set.size(); ++i) {
    if (set[i].strength != 0) read(*used[i]);
    used[i]->last_use = ++clock_;
  }
  if (!is_by_sample_ && names == in_use_ && used == used_) return;
  in_use_ = std::move(names);
  used_ = std::move(used);
  is_by_sample_ = false;
  place();
  drop_idle();
}

void Registry::read_ahead(std::span<const LoraRef> set) {
  for (const Use& use : open_set(set)) {
    read(*use.loaded);
    use.loaded->last_use = ++clock_;
  }
  drop_idle();
}

std::vector<Registry::Use> Registry::open_set(std::span<const LoraRef> set) {
  std::vector<LoraRef> names;
  std::vector<Use> uses;
  for (const LoraRef& use : set) {
    check_strength(use);
    check_name(names, use);
    names.push_back(use);
    const LoadedPtr loaded = open(use);
    if (use.strength == 0) continue;
    const auto known = std::ranges::find(uses, loaded, &Use::loaded);
    if (known == uses.end()) {
      uses.push_back({loaded, use.strength});
    } else {
      known->strength += use.strength;
    }
  }
  return uses;
}

bool Registry::adds_to_weights(const Loaded& loaded) const {
  const auto adds = [&](const Match::Pair& pair) {
    return options_.mode == Mode::kMerge || !loaded.file.layers()[pair.layer].is_product();
  };
  return !loaded.match.biases.empty() || std::ranges::any_of(loaded.match.pairs, adds);
}

std::vector<Registry::Use> Registry::adding_to_weights(std::vector<Use> uses) const {
  std::erase_if(uses, [&](const Use& use) { return !adds_to_weights(*use.loaded); });
  return uses;
}

bool Registry::can_share(const std::vector<std::vector<Use>>& sets) const {
  return std::ranges::all_of(sets, [&](const std::vector<Use>& set) {
    return adding_to_weights(set) == adding_to_weights(sets.front());
  });
}

bool Registry::can_share(std::span<const std::vector<LoraRef>> sets) {
  std::vector<std::vector<Use>> all;
  for (const std::vector<LoraRef>& set : sets) all.push_back(open_set(set));
  return can_share(all);
}

std::vector<Registry::Use> Registry::used_now() const {
  std::vector<Use> uses;
  for (size_t i = 0; i < used_.size(); ++i) uses.push_back({used_[i], in_use_[i].strength});
  return uses;
}

void Registry::forget_samples() {
  if (!is_by_sample_) return;
  in_use_.clear();
  used_.clear();
  is_by_sample_ = false;
  place();
}

std::optional<ops::SampleStrengths> Registry::use_each(std::span<const std::vector<LoraRef>> sets) {
  std::vector<std::vector<Use>> all;
  for (const std::vector<LoraRef>& set : sets) all.push_back(open_set(set));
  if (!can_share(all)) {
    throw Error(ErrorCode::kInvalidArgument,
                "samples of one call have LoRAs that add to weights, and not the same ones",
                "make calls of samples with the same LoRAs");
  }
  if (std::ranges::all_of(all, [&](const auto& set) { return set == all.front(); })) {
    use(sets.empty() ? std::span<const LoraRef>() : sets.front());
    return std::nullopt;
  }
  use_by_sample(all_of(all));
  ops::SampleStrengths strengths;
  for (const std::vector<Use>& set : all) {
    std::vector<double>& of_sample = strengths.emplace_back(used_.size());
    for (const Use& use : set) {
      const auto found = std::ranges::find(used_, use.loaded);
      of_sample[static_cast<size_t>(found - used_.begin())] = use.strength;
    }
  }
  return strengths;
}

std::vector<Registry::Use> Registry::all_of(const std::vector<std::vector<Use>>& sets) const {
  std::vector<Use> all;
  for (const std::vector<Use>& set : sets) {
    for (const Use& use : set) {
      if (std::ranges::find(all, use.loaded, &Use::loaded) == all.end())
        all.push_back({use.loaded, adds_to_weights(*use.loaded) ? use.strength : 1.0});
    }
  }
  return all;
}

void Registry::use_by_sample(const std::vector<Use>& all) {
  for (const Use& use : all) {
    read(*use.loaded);
    use.loaded->last_use = ++clock_;
  }
  const std::vector<Use> now = used_now();
  if (is_by_sample_ && now.size() == all.size() && std::ranges::is_permutation(now, all) &&
      adding_to_weights(now) == adding_to_weights(all))
    return;
  in_use_.clear();
  used_.clear();
  for (const Use& use : all) {
    in_use_.push_back({.name = use.loaded->file.path(), .strength = use.strength});
    used_.push_back(use.loaded);
  }
  is_by_sample_ = true;
  place();
  drop_idle();
}

void Registry::place() {
  place_adapters();
  place_additions();
  note_version();
}

void Registry::note_version() {
  std::vector<Use> uses = used_now();
  if (is_by_sample_) uses = adding_to_weights(std::move(uses));
  std::vector<std::pair<uint64_t, double>> all;
  for (const Use& use : uses)
    if (use.strength != 0) all.emplace_back(use.loaded->id, use.strength);
  // What else these do is in no use where products are those of samples.
  if (is_by_sample_ && !all.empty()) all.emplace_back(0, 0.0);
  if (std::exchange(noted_, all) != all) ++version_;
}

void Registry::place_adapters() {
  std::set<nn::Linear*> touched;
  std::set<const void*> ours;
  for (const auto& [linear, a] : placed_) {
    touched.insert(linear);
    ours.insert(a.unsafeGetTensorImpl());
  }
  for (nn::Linear* linear : touched)
    std::erase_if(linear->adapters, [&](const ops::Adapter& adapter) {
      return ours.contains(adapter.a.unsafeGetTensorImpl());
    });
  placed_.clear();
  stacked_bytes_ = 0;
  if (is_by_sample_) return place_numbered();
  std::map<nn::Linear*, std::vector<ops::Adapter>> wanted;
  for (size_t i = 0; i < in_use_.size(); ++i) {
    if (in_use_[i].strength == 0) continue;
    for (const Adapter& adapter : used_[i]->values->adapters) {
      const double scale = in_use_[i].strength * adapter.scale;
      if (scale != 0) wanted[adapter.linear].push_back({adapter.a, adapter.b, scale});
    }
  }
  const at::NoGradGuard no_grad;
  for (const auto& [linear, parts] : wanted) {
    const ops::Adapter adapter = parts.size() == 1 ? parts[0] : stacked(parts);
    if (parts.size() > 1)
      stacked_bytes_ += static_cast<int64_t>(adapter.a.nbytes() + adapter.b.nbytes());
    linear->adapters.push_back(adapter);
    placed_.emplace_back(linear, adapter.a);
  }
}

void Registry::place_numbered() {
  for (size_t i = 0; i < used_.size(); ++i) {
    for (const Adapter& adapter : used_[i]->values->adapters) {
      adapter.linear->adapters.push_back({.a = adapter.a,
                                          .b = adapter.b,
                                          .scale = adapter.scale,
                                          .number = static_cast<int64_t>(i)});
      placed_.emplace_back(adapter.linear, adapter.a);
    }
  }
}

void Registry::place_additions() {
  std::map<Weight*, std::vector<Addition>> wanted;
  for (Weight* weight : added_) wanted[weight];
  for (size_t i = 0; i < in_use_.size(); ++i) {
    if (in_use_[i].strength == 0) continue;
    for (const WeightAddition& of : used_[i]->values->additions) {
      if (merged_.contains(of.weight)) continue;
      Addition addition = of.addition;
      addition.strength = in_use_[i].strength;
      wanted[of.weight].push_back(std::move(addition));
    }
  }
  added_.clear();
  for (auto& [weight, additions] : wanted) {
    if (!additions.empty()) added_.insert(weight);
    set_additions(*weight, this, std::move(additions),
                  /*keeps_sum=*/!model_.is_streamed(*weight));
  }
}

void Registry::drop_idle() {
  const auto is_used = [&](const LoadedPtr& loaded) {
    return std::find(used_.begin(), used_.end(), loaded) != used_.end();
  };
  const std::lock_guard lock(files_mutex_);
  while (true) {
    int64_t idle = 0;
    LoadedPtr oldest;
    for (const auto& [path, loaded] : files_) {
      if (!loaded->values || is_used(loaded)) continue;
      idle += loaded->values->bytes;
      if (oldest == nullptr || loaded->last_use < oldest->last_use) oldest = loaded;
    }
    if (idle <= options_.idle_bytes) return;
    oldest->values.reset();
  }
}

int64_t Registry::bytes() const {
  std::set<const Loaded*> all;
  const std::lock_guard lock(files_mutex_);
  for (const auto& [path, loaded] : files_) all.insert(loaded.get());
  for (const LoadedPtr& loaded : used_) all.insert(loaded.get());
  int64_t total = stacked_bytes_;
  for (const Loaded* loaded : all)
    if (loaded->values) total += loaded->values->bytes;
  for (const Weight* weight : added_) total += added_bytes(*weight);
  return total;
}

}  // namespace atelier::lora
