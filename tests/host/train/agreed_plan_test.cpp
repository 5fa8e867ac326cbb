#include "host/train/agreed_plan.h"

#include "support/catch.h"

namespace atelier::train {
namespace {

using order::Training;

Training placed() {
  Training config;
  config.model.placement = {.offload = {{"dit", memory::Place::kHost}},
                            .resident_blocks = {{"dit", 3}},
                            .resident_denoiser_blocks = 2,
                            .prefetch = 1};
  config.model.storage = {{"text_encoder", weights::Storage::kFp8}};
  config.activation_budget = {.kind = memory::ActivationBudget::Kind::kBytes, .bytes = 1'000'000};
  config.offload.optimizer = true;
  return config;
}

}  // namespace

TEST_CASE("A process takes the placement of another one", "[agreed_plan]") {
  const Training theirs = placed();
  Training mine;
  mine.use_gradient_checkpointing = true;
  mine.seed = 7;
  CHECK(take_placement(placement_text(theirs, 10), mine));
  CHECK((mine.model.placement.offload == theirs.model.placement.offload));
  CHECK(mine.model.placement.resident_blocks == theirs.model.placement.resident_blocks);
  CHECK(mine.model.placement.resident_denoiser_blocks == 2);
  CHECK(mine.model.placement.prefetch == 1);
  CHECK((mine.model.storage == theirs.model.storage));
  CHECK((mine.activation_budget->kind == memory::ActivationBudget::Kind::kBytes));
  CHECK(mine.activation_budget->bytes == 1'000'000);
  CHECK(mine.offload.optimizer);
  CHECK(!mine.use_gradient_checkpointing);
  CHECK(mine.seed == 7);
  CHECK(!take_placement(placement_text(theirs, 20), mine));

  CHECK(take_placement(placement_text(Training(), 10), mine));
  CHECK(mine.model.placement.offload.empty());
  CHECK(!mine.model.placement.resident_denoiser_blocks);
  CHECK(!mine.activation_budget);
}

TEST_CASE("The process with the least room decides", "[agreed_plan]") {
  const Training one, other = placed();
  const std::vector<std::string> texts = {placement_text(one, 30), placement_text(other, 20),
                                          placement_text(one, 20)};
  CHECK(tightest_placement(texts) == texts[1]);
  CHECK(tightest_placement({texts[0]}) == texts[0]);
}

}  // namespace atelier::train
