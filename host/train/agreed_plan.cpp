#include "host/train/agreed_plan.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace atelier::train {

using memory::ActivationBudget;
using nlohmann::json;
using parameters::Layout;

namespace {

json to_json(const Layout& layout) {
  const model::Placement& placement = layout.weights.placement;
  json result = {{"offload", placement.offload},
                 {"offload_others", placement.offload_others},
                 {"resident_blocks", placement.resident_blocks},
                 {"storage", layout.weights.storage},
                 {"optimizer", layout.optimizes_on_host},
                 {"checkpointing", layout.use_gradient_checkpointing}};
  if (placement.prefetch) result["prefetch"] = *placement.prefetch;
  if (placement.resident_denoiser_blocks)
    result["resident_denoiser_blocks"] = *placement.resident_denoiser_blocks;
  if (const auto& budget = layout.activation_budget)
    result["budget"] = {budget->kind, budget->fraction, budget->bytes};
  return result;
}

void from_json(const json& from, Layout& layout) {
  model::Placement& placement = layout.weights.placement;
  from["offload"].get_to(placement.offload);
  from["offload_others"].get_to(placement.offload_others);
  from["resident_blocks"].get_to(placement.resident_blocks);
  from["storage"].get_to(layout.weights.storage);
  from["optimizer"].get_to(layout.optimizes_on_host);
  from["checkpointing"].get_to(layout.use_gradient_checkpointing);
  const auto optional = [&](const char* name, std::optional<int64_t>& value) {
    value.reset();
    if (from.contains(name)) value = from[name].get<int64_t>();
  };
  optional("prefetch", placement.prefetch);
  optional("resident_denoiser_blocks", placement.resident_denoiser_blocks);
  layout.activation_budget.reset();
  if (from.contains("budget"))
    layout.activation_budget = {.kind = from["budget"][0].get<ActivationBudget::Kind>(),
                                .fraction = from["budget"][1].get<double>(),
                                .bytes = from["budget"][2].get<int64_t>()};
}

}  // namespace

std::string layout_text(const Layout& layout, int64_t room) {
  return json{{"room", room}, {"layout", to_json(layout)}}.dump();
}

const std::string& tightest_layout(const std::vector<std::string>& texts) {
  return *std::ranges::min_element(
      texts, {}, [](const std::string& text) { return json::parse(text)["room"].get<int64_t>(); });
}

bool take_layout(const std::string& text, Layout& layout) {
  const json said = json::parse(text)["layout"];
  if (said == to_json(layout)) return false;
  from_json(said, layout);
  return true;
}

}  // namespace atelier::train
