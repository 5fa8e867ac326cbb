#include "host/lora/respell.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <string>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "atelier/error.h"

#include "formats/escape.h"
#include "host/lora/targets.h"

namespace atelier::lora {

namespace {

using formats::quote_and_escape;
using model::LoadedModel;
using model::LoadedPart;

// Rows of a model's layer, and where they are in the factors that are added to them.
struct Addition {
  const LayerWeights* layer;
  int64_t layer_rows;     // of all that is added, to one layer or several
  int64_t first, length;  // of the model's layer
  int64_t up_first;
};

// Rows of a layer to be written.
struct Rows {
  const LayerWeights* layer;
  int64_t layer_rows, first, length, up_first;
};

// nullopt when the family has no such spelling.
std::optional<NamedTargets> targets_in(LoadedModel& model, const LoadedPart& part,
                                       std::string_view spelling) {
  const std::vector<std::string> known = model.family().spellings(part.detection);
  if (std::find(known.begin(), known.end(), spelling) == known.end()) return std::nullopt;
  return spelled_targets(model, part, std::string(spelling));
}

double scale_of(const LayerWeights& layer) {
  const auto rank = static_cast<double>(layer.down.size(0));
  return layer.alpha / (layer.use_rslora ? std::sqrt(rank) : rank);
}

[[noreturn]] void refuse(const LayerWeights& layer, const std::string& what) {
  throw Error(ErrorCode::kUnsupported, "layer " + quote_and_escape(layer.path) + ": " + what,
              "write it in the spelling that it has", "LORA_FORMAT");
}

void check_rows(const Target& target, const LayerWeights& layer) {
  for (const TargetSlice& slice : target.slices) {
    if (slice.axis > 0 && slice.length != target.shape[static_cast<size_t>(slice.axis)])
      refuse(layer, "its columns are several layers of the model");
  }
}

// Removes columns of `up` that are all zero, where this leaves the scale as it is.
LayerWeights without_idle_ranks(LayerWeights layer) {
  const int64_t rank = layer.down.size(0);
  const at::Tensor used = layer.up.ne(0).any(0).nonzero().flatten();
  const int64_t left = used.numel();
  if (left == 0 || left == rank || layer.use_rslora) return layer;
  const double alpha = layer.alpha * static_cast<double>(left) / static_cast<double>(rank);
  if (alpha / static_cast<double>(left) != scale_of(layer)) return layer;
  layer.down = layer.down.index_select(0, used);
  layer.up = layer.up.index_select(1, used);
  layer.alpha = alpha;
  return layer;
}

// Part of the rows of one layer: `down` is shared.
LayerWeights cut(const Rows& rows) {
  LayerWeights layer = *rows.layer;
  layer.up = layer.up.narrow(0, rows.up_first, rows.length);
  for (auto& [name, lengths] : layer.others)
    lengths = lengths.narrow(0, rows.up_first, rows.length);
  return without_idle_ranks(std::move(layer));
}

bool shares_down(const LayerWeights& a, const LayerWeights& b) {
  return scale_of(a) == scale_of(b) && a.down.scalar_type() == b.down.scalar_type() &&
         at::equal(a.down, b.down);
}

// The lengths of DoRA of layers beside each other; none where none is DoRA.
NamedTensors join_lengths(const std::vector<Rows>& parts, int64_t out) {
  NamedTensors joined;
  int64_t num_rows = 0;
  for (const Rows& part : parts) {
    for (const auto& [name, lengths] : part.layer->others) {
      at::Tensor& all = joined[name];
      if (!all.defined()) all = at::empty({out, 1}, lengths.options());
      all.narrow(0, part.first, part.length).copy_(lengths.narrow(0, part.up_first, part.length));
      num_rows += part.length;
    }
  }
  if (!joined.empty() && num_rows != out)
    refuse(*parts.front().layer, "it is one layer with others that are no DoRA");
  return joined;
}

// Layers beside each other in one of `out` rows.
LayerWeights join(const std::vector<Rows>& parts, int64_t out) {
  std::vector<const LayerWeights*> sources;  // whose `down` stand beside each other
  std::vector<size_t> source_of;             // by part
  for (const Rows& part : parts) {
    size_t i = 0;
    while (i < sources.size() && sources[i] != part.layer && !shares_down(*sources[i], *part.layer))
      ++i;
    if (i == sources.size()) sources.push_back(part.layer);
    source_of.push_back(i);
  }
  std::vector<at::Tensor> downs;
  std::vector<int64_t> begin;
  int64_t rank = 0;
  for (const LayerWeights* source : sources) {
    begin.push_back(rank);
    rank += source->down.size(0);
    downs.push_back(source->down);
  }
  const LayerWeights& first = *sources.front();
  const bool is_one_scale =
      std::all_of(sources.begin(), sources.end(),
                  [&](const LayerWeights* source) { return scale_of(*source) == scale_of(first); });
  LayerWeights joined = first;
  joined.others = join_lengths(parts, out);
  joined.down = downs.size() == 1 ? downs.front() : at::cat(downs, 0);
  joined.up = at::zeros({out, rank}, first.up.options());
  for (size_t i = 0; i < parts.size(); ++i) {
    const LayerWeights& layer = *parts[i].layer;
    at::Tensor values = layer.up.narrow(0, parts[i].up_first, parts[i].length);
    if (!is_one_scale) values = values.to(at::kDouble) * scale_of(layer);
    joined.up.narrow(0, parts[i].first, parts[i].length)
        .narrow(1, begin[source_of[i]], layer.down.size(0))
        .copy_(values);
  }
  if (sources.size() > 1) {
    const auto ranks = static_cast<double>(rank);
    joined.alpha = !is_one_scale ? ranks
                   : first.use_rslora
                       ? scale_of(first) * ranks
                       : first.alpha * ranks / static_cast<double>(first.down.size(0));
    joined.use_rslora = false;
  }
  return joined;
}

// What is added to each layer of the model, by its weight.
using AdditionsOfWeight = std::map<const Weight*, std::vector<Addition>>;

// The rows of `target` that something is added to, by their place in it.
std::vector<Rows> rows_of(const Target& target, const AdditionsOfWeight& additions) {
  std::vector<Rows> rows;
  for (const TargetSlice& slice : target.slices) {
    const auto found = additions.find(slice.weight);
    if (found == additions.end()) continue;
    const bool is_whole = slice.axis < 0;
    const int64_t begin = is_whole ? 0 : slice.layer_start;
    const int64_t end = begin + (is_whole ? target.out : slice.length);
    for (const Addition& addition : found->second) {
      const int64_t first = std::max(begin, addition.first);
      const int64_t last = std::min(end, addition.first + addition.length);
      if (first >= last) continue;
      rows.push_back({addition.layer, addition.layer_rows,
                      (is_whole ? 0 : slice.name_start) + first - begin, last - first,
                      addition.up_first + first - addition.first});
    }
  }
  return rows;
}

LayerWeights spelled(const std::string& name, const Target& target, const std::vector<Rows>& rows) {
  const Rows& first = rows.front();
  const bool is_one = rows.size() == 1 && first.length == target.out;
  LayerWeights layer;
  if (is_one && first.layer_rows == target.out) {
    layer = *first.layer;
  } else {
    for (const Rows& part : rows) {
      if (!part.layer->down.defined() ||
          (!part.layer->others.empty() && !part.layer->is_dora_of_rows()))
        refuse(*part.layer, "in this form it cannot be cut or joined, and " +
                                quote_and_escape(name) + " is not the same layer");
    }
    layer = is_one ? cut(first) : join(rows, target.out);
  }
  layer.path = name;
  return layer;
}

}  // namespace

std::vector<LayerWeights> respell(std::vector<LayerWeights> layers, LoadedModel& model,
                                  Format format) {
  const at::NoGradGuard no_grad;
  const Targets targets(model);
  std::vector<LayerWeights> result;
  for (const LoadedPart& part : model.parts()) {
    const std::string& component = part.detection.component;
    const bool is_used = std::any_of(layers.begin(), layers.end(), [&](const LayerWeights& layer) {
      return layer.component == component;
    });
    if (!is_used) continue;
    const auto names = targets_in(model, part, formats::lora_spelling(format).layers);
    AdditionsOfWeight additions;
    for (const LayerWeights& layer : layers) {
      if (layer.component != component) continue;
      const Target* target = targets.find(layer.path, component);
      if (!names || target == nullptr) {
        result.push_back(layer);
        continue;
      }
      check_rows(*target, layer);
      for (const TargetSlice& slice : target->slices) {
        const bool is_whole = slice.axis != 0;
        additions[slice.weight].push_back({&layer, target->out, is_whole ? 0 : slice.layer_start,
                                           is_whole ? target->out : slice.length,
                                           is_whole ? 0 : slice.name_start});
      }
    }
    if (!names) continue;
    for (const auto& [name, target] : *names) {
      constexpr std::string_view kWeight = ".weight";
      if (!name.ends_with(kWeight)) continue;
      const std::vector<Rows> rows = rows_of(target, additions);
      if (rows.empty()) continue;
      check_rows(target, *rows.front().layer);
      result.push_back(spelled(name.substr(0, name.size() - kWeight.size()), target, rows));
    }
  }
  const auto is_of_model = [&](const LayerWeights& layer) {
    return model.find_part(layer.component) != nullptr;
  };
  std::copy_if(layers.begin(), layers.end(), std::back_inserter(result),
               [&](const LayerWeights& layer) { return !is_of_model(layer); });
  return result;
}

}  // namespace atelier::lora
