#include "host/train/agreed_plan.h"

#include "support/catch.h"

namespace atelier::train {
namespace {

using parameters::Layout;

Layout placed() {
  Layout layout;
  layout.weights.placement = {.offload = {{"dit", memory::Place::kHost}},
                              .resident_blocks = {{"dit", 3}},
                              .resident_denoiser_blocks = 2,
                              .prefetch = 1};
  layout.weights.storage = {{"text_encoder", weights::Storage::kFp8}};
  layout.activation_budget = {.kind = memory::ActivationBudget::Kind::kBytes, .bytes = 1'000'000};
  layout.optimizes_on_host = true;
  return layout;
}

}  // namespace

TEST_CASE("A process takes the layout of another one", "[agreed_plan]") {
  const Layout theirs = placed();
  Layout mine;
  mine.use_gradient_checkpointing = true;
  CHECK(take_layout(layout_text(theirs, 10), mine));
  CHECK((mine.weights.placement.offload == theirs.weights.placement.offload));
  CHECK(mine.weights.placement.resident_blocks == theirs.weights.placement.resident_blocks);
  CHECK(mine.weights.placement.resident_denoiser_blocks == 2);
  CHECK(mine.weights.placement.prefetch == 1);
  CHECK((mine.weights.storage == theirs.weights.storage));
  CHECK((mine.activation_budget->kind == memory::ActivationBudget::Kind::kBytes));
  CHECK(mine.activation_budget->bytes == 1'000'000);
  CHECK(mine.optimizes_on_host);
  CHECK(!mine.use_gradient_checkpointing);
  CHECK(!take_layout(layout_text(theirs, 20), mine));

  CHECK(take_layout(layout_text(Layout(), 10), mine));
  CHECK(mine.weights.placement.offload.empty());
  CHECK(!mine.weights.placement.resident_denoiser_blocks);
  CHECK(!mine.activation_budget);
}

TEST_CASE("The process with the least room decides", "[agreed_plan]") {
  const Layout one, other = placed();
  const std::vector<std::string> texts = {layout_text(one, 30), layout_text(other, 20),
                                          layout_text(one, 20)};
  CHECK(tightest_layout(texts) == texts[1]);
  CHECK(tightest_layout({texts[0]}) == texts[0]);
}

}  // namespace atelier::train
