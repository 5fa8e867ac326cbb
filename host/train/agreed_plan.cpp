#include "host/train/agreed_plan.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace atelier::train {

using order::Training;

using memory::ActivationBudget;
using nlohmann::json;

namespace {

json to_json(const Training& config) {
  const model::Placement& placement = config.model.placement;
  json result = {{"offload", placement.offload},
                 {"offload_others", placement.offload_others},
                 {"resident_blocks", placement.resident_blocks},
                 {"prefetch", placement.prefetch},
                 {"storage", config.model.storage},
                 {"optimizer", config.offload.optimizer},
                 {"checkpointing", config.use_gradient_checkpointing}};
  if (placement.resident_denoiser_blocks)
    result["resident_denoiser_blocks"] = *placement.resident_denoiser_blocks;
  if (const auto& budget = config.activation_budget)
    result["budget"] = {budget->kind, budget->fraction, budget->bytes};
  return result;
}

void from_json(const json& from, Training& config) {
  model::Placement& placement = config.model.placement;
  from["offload"].get_to(placement.offload);
  from["offload_others"].get_to(placement.offload_others);
  from["resident_blocks"].get_to(placement.resident_blocks);
  from["prefetch"].get_to(placement.prefetch);
  from["storage"].get_to(config.model.storage);
  from["optimizer"].get_to(config.offload.optimizer);
  from["checkpointing"].get_to(config.use_gradient_checkpointing);
  placement.resident_denoiser_blocks.reset();
  if (from.contains("resident_denoiser_blocks"))
    placement.resident_denoiser_blocks = from["resident_denoiser_blocks"].get<int64_t>();
  config.activation_budget.reset();
  if (from.contains("budget"))
    config.activation_budget = {.kind = from["budget"][0].get<ActivationBudget::Kind>(),
                                .fraction = from["budget"][1].get<double>(),
                                .bytes = from["budget"][2].get<int64_t>()};
}

}  // namespace

std::string placement_text(const Training& config, int64_t room) {
  return json{{"room", room}, {"placement", to_json(config)}}.dump();
}

const std::string& tightest_placement(const std::vector<std::string>& texts) {
  return *std::ranges::min_element(
      texts, {}, [](const std::string& text) { return json::parse(text)["room"].get<int64_t>(); });
}

bool take_placement(const std::string& text, Training& config) {
  const json placement = json::parse(text)["placement"];
  if (placement == to_json(config)) return false;
  from_json(placement, config);
  return true;
}

}  // namespace atelier::train
