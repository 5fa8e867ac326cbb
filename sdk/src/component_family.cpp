#include "atelier/component_family.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "atelier/component_model.h"
#include "atelier/error.h"

#include "formats/escape.h"
#include "formats/glob.h"

namespace atelier {
namespace {

using formats::quote_and_escape;

// "a, b and c".
std::string list_text(std::span<const std::string_view> names) {
  std::string text;
  for (size_t i = 0; i < names.size(); ++i) {
    text += i == 0 ? "" : i + 1 < names.size() ? ", " : " and ";
    text += names[i];
  }
  return text;
}

// A name that goes on from the first variant's is one of the family's, too.
void check_variant(const std::string& variant, std::span<const std::string_view> variants) {
  if (std::find(variants.begin(), variants.end(), variant) != variants.end()) return;
  const bool is_ours = variant.starts_with(std::string(variants.front()) + "-");
  throw Error(
      is_ours ? ErrorCode::kUnsupported : ErrorCode::kInvalidArgument,
      "variant " + quote_and_escape(variant) + (is_ours ? " is not run yet" : " is not known"),
      (variants.size() == 1 ? "the variant is " : "variants are ") + list_text(variants));
}

// The row of `one`'s architecture that a path names; null when it names none.
const ComponentRow* find_named(std::span<const ComponentRow> rows, const ComponentRow& one,
                               std::string path) {
  while (!path.empty()) {
    const size_t slash = path.rfind('/');
    const std::string name = path.substr(slash == std::string::npos ? 0 : slash + 1);
    std::vector<const ComponentRow*> named;
    for (const ComponentRow& row : rows) {
      if (row.detect == one.detect && is_called(row.spec, name)) named.push_back(&row);
    }
    if (named.size() == 1) return named.front();
    path.resize(slash == std::string::npos ? 0 : slash);
  }
  return nullptr;
}

}  // namespace

ComponentFamily::ComponentFamily(std::span<const ComponentRow> rows,
                                 std::span<const std::string_view> variants)
    : rows_(rows), variants_(variants) {
  for (const ComponentRow& row : rows) specs_.push_back(row.spec);
}

ComponentFamily::~ComponentFamily() = default;

const ComponentRow& ComponentFamily::row(std::string_view component) const {
  for (const ComponentRow& row : rows_) {
    if (row.spec.name == spec_name(component) && row.make) return row;
  }
  throw Error(ErrorCode::kInternal,
              "the family has no component '" + std::string(component) + "' with tensors");
}

std::optional<Detection> ComponentFamily::detect(const TensorIndex& checkpoint,
                                                 const DetectHint& hint) const {
  std::optional<Detection> part;
  const ComponentRow* found = nullptr;
  for (const bool denoises : {true, false}) {
    for (const ComponentRow& row : rows_) {
      if (part || !row.detect || (row.spec.role == Role::kDenoiser) != denoises) continue;
      if ((part = row.detect(checkpoint))) found = &row;
    }
  }
  if (!part) return part;
  if (!hint.component.empty() && hint.component != part->component) {
    const bool is_alike = std::any_of(rows_.begin(), rows_.end(), [&](const ComponentRow& row) {
      return row.spec.name == hint.component && row.detect == found->detect;
    });
    if (!is_alike) {
      throw Error(ErrorCode::kInvalidArgument, "the tensors are those of the " + part->component +
                                                   ", and it was given as " +
                                                   quote_and_escape(hint.component));
    }
    part->component = hint.component;
  }
  if (!hint.variant.empty()) {
    check_variant(hint.variant, variants_);
    part->variant = hint.variant;
  }
  if (part->variant.empty()) part->variant = variants_.front();
  return part;
}

void ComponentFamily::assign(std::span<FoundPart> parts) const {
  for (FoundPart& found : parts) {
    if (!found.hint.component.empty()) continue;
    if (const ComponentSpec* named = named_by_path(found)) found.part.component = named->name;
  }
}

const ComponentSpec* ComponentFamily::named_by_path(const FoundPart& found) const {
  const ComponentRow* named = find_named(rows_, row(found.part.component), found.path);
  return named ? &named->spec : nullptr;
}

ConfigFields ComponentFamily::config_fields(const Detection& part) const {
  return row(part.component).config_fields(part);
}

WeightMap ComponentFamily::weight_map(const Detection& part) const {
  return row(part.component).weight_map(part);
}

std::vector<std::string> ComponentFamily::spellings(const Detection& part) const {
  std::vector<std::string> result;
  for (const char* spelling : row(part.component).spellings) {
    if (spelling) result.emplace_back(spelling);
  }
  return result.empty() ? ModelFamily::spellings(part) : result;
}

std::vector<Detection> ComponentFamily::tiny_parts() const {
  std::vector<Detection> parts;
  for (const ComponentRow& row : rows_) {
    if (!row.tiny) continue;
    parts.push_back(row.tiny());
    parts.back().component = row.spec.name;
    if (parts.back().variant.empty()) parts.back().variant = variants_.front();
  }
  return parts;
}

Conditioning ComponentFamily::example_conditioning(const Detection& denoiser, int64_t tokens,
                                                   at::ScalarType dtype) const {
  const std::unique_ptr<nn::Module> module = row(denoiser.component).make(denoiser);
  Conditioning cond;
  for (const ConditioningEntry& entry : dynamic_cast<Denoiser&>(*module).entries()) {
    if (entry.width > 0)
      cond.emplace(entry.name, at::randn({tokens, entry.width}, at::kFloat).to(dtype));
  }
  return cond;
}

namespace {

std::string_view without_end_dots(std::string_view text) {
  if (text.starts_with('.')) text.remove_prefix(1);
  if (text.ends_with('.')) text.remove_suffix(1);
  return text;
}

}  // namespace

std::string renamed(const std::string& name, std::span<const Renamed> rows) {
  std::string out;
  for (std::string_view rest = name; !rest.empty();) {
    std::string_view taken = rest.substr(0, rest.find('.')), put = taken;
    for (const Renamed& row : rows) {
      const std::string_view from = without_end_dots(row.from);
      if (!rest.starts_with(from) || (rest.size() > from.size() && rest[from.size()] != '.'))
        continue;
      taken = rest.substr(0, from.size());
      put = without_end_dots(row.to);
      break;
    }
    if (!out.empty() && !put.empty()) out += '.';
    out += put;
    rest.remove_prefix(std::min(taken.size() + 1, rest.size()));
  }
  return out;
}

WeightMap named_weights(nn::Module& module,
                        const std::function<std::string(const std::string& path)>& published) {
  WeightMap map;
  module.visit_weights([&](const std::string& path, Weight&) {
    map.push_back({published ? published(path) : path, path});
  });
  return map;
}

}  // namespace atelier
