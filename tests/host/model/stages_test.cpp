// The table of stages as the host reads it.
#include "host/model/stages.h"

#include "support/files.h"
#include "support/toy_family.h"

namespace atelier::model {
namespace {

// Two variants that read other inputs in the stage of one name.
class StagedToy final : public test::ToyFamily {
 public:
  std::span<const EncodeStage> encode_stages() const override {
    static constexpr std::string_view kEncoder[] = {"text_encoder"}, kVae[] = {"vae"};
    static constexpr std::string_view kPrompt[] = {"prompt"}, kImage[] = {"image"};
    static constexpr std::string_view kBoth[] = {"prompt", "references"};
    static constexpr EncodeStage kStages[] = {
        {.name = "text", .components = kEncoder, .inputs = kPrompt, .variants = "base"},
        {.name = "text", .components = kEncoder, .inputs = kBoth, .variants = "edit*"},
        {.name = "latents", .components = kVae, .inputs = kImage}};
    return kStages;
  }
};

TEST_CASE("Stages are those of the variant, in the order of the table", "[stages]") {
  const StagedToy toy;
  const std::vector<EncodeStage> base = encode_stages(toy, "base"),
                                 edit = encode_stages(toy, "edit-2");
  REQUIRE(base.size() == 2);
  REQUIRE(edit.size() == 2);
  CHECK_FALSE(reads(base[0], "references"));
  CHECK(reads(edit[0], "references"));
  CHECK(encode_stages(toy).size() == 1);  // of a denoiser that is not known
  CHECK(target_stage(base, toy.inputs()) == &base[1]);
  CHECK(target_stage(std::span(base).first(1), toy.inputs()) == nullptr);
  CHECK(target_input(toy.inputs())->name == "image");
  CHECK(target_input(toy.inputs().first(1)) == nullptr);
  CHECK(encodes(toy, "vae"));
  CHECK_FALSE(encodes(toy, "dit"));
  CHECK(encoded_by(base[0], toy.inputs()) == "texts");
  CHECK(encoded_by(base[1], toy.inputs()) == "images");
}

TEST_CASE("A stage gets what it reads, and the negative prompt in place of the other", "[stages]") {
  const StagedToy toy;
  const EncodeStage stage = encode_stages(toy, "base").front();
  const Inputs read = inputs_of(stage, {{"prompt", "a"}, {"strength", 0.5}});
  REQUIRE(read.size() == 1);
  const EncodeInputs negative = negative_of({.stage = stage.name, .values = read}, "b");
  CHECK(std::get<std::string>(negative.values.at("prompt")) == "b");
  CHECK(negative.is_negative);
}

}  // namespace
}  // namespace atelier::model
