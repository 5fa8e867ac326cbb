// A family for FakeModel: two schedules, and one input of its own.
#pragma once

#include "atelier/model_family.h"

#include "tests/host/generate/fake_model.h"

namespace atelier::generate {

class FakeFamily final : public ModelFamily {
 public:
  std::string_view name() const override { return "fake"; }
  std::string_view help() const override { return "closed forms"; }
  std::span<const ComponentSpec> components() const override { return {}; }
  std::span<const InputSpec> inputs() const override {
    static constexpr InputSpec kInputs[] = {
        {.name = "prompt", .kind = InputKind::kText, .required = true},
        {.name = "negative_prompt", .kind = InputKind::kText, .use = InputUse::kGenerate},
        {.name = "edit_strength", .kind = InputKind::kReal, .required = true, .variants = "pl*"},
        {.name = "edit_image", .kind = InputKind::kImage, .required = true, .variants = "*edit*"},
        {.name = "mask", .kind = InputKind::kMask, .use = InputUse::kTrain},
        {.name = "begin",
         .kind = InputKind::kImage,
         .use = InputUse::kGenerate,
         .role = InputRole::kStart},
    };
    return kInputs;
  }
  std::span<const EncodeStage> encode_stages() const override { return kStages; }
  std::span<const ScheduleDefaults> schedules() const override {
    static constexpr ScheduleDefaults kSchedules[] = {
        {.name = "plain"},
        {.name = "fast",
         .num_inference_steps = 4,
         .cfg_scale = 1.0,
         .shift = {.kind = SigmaShift::Kind::kConstant, .value = 3.0},
         .cfg_trunc = 0.25,
         .cfg_renorm = CfgRenorm::kClamp,
         .cfg_renorm_ratio = 0.9,
         .solver = "unipc"},
    };
    return kSchedules;
  }
  std::optional<Detection> detect(const TensorIndex&, const DetectHint&) const override {
    return {};
  }
  ConfigFields config_fields(const Detection&) const override { return {}; }
  WeightMap weight_map(const Detection&) const override { return {}; }
  LoraTargets lora_targets(const Detection&) const override { return {}; }
  std::unique_ptr<Model> make_model(std::span<const Detection>,
                                    const ModelOptions&) const override {
    return std::make_unique<FakeModel>();
  }
  std::vector<Detection> tiny_parts() const override { return {}; }
  Conditioning example_conditioning(const Detection&, int64_t, at::ScalarType) const override {
    return {};
  }
};

}  // namespace atelier::generate
