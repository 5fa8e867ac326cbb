// The table of stages as the host reads it.
#include "host/model/stages.h"

#include <utility>

#include "host/model/residents.h"
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
  const Stages stages = stages_of(toy, {});
  REQUIRE(stages.target_stage() != nullptr);
  CHECK(stages.target_stage()->name == "latents");
  CHECK(stages.is_target(base[1]));
  CHECK_FALSE(stages.is_target(base[0]));
  CHECK(target_input(toy.inputs())->name == "image");
  CHECK(target_input(toy.inputs().first(1)) == nullptr);
  CHECK(encodes(toy, "vae"));
  CHECK_FALSE(encodes(toy, "dit"));
  CHECK(encoded_by(base[0], toy.inputs()) == "texts");
  CHECK(encoded_by(base[1], toy.inputs()) == "images");
}

TEST_CASE("A noise level has the denoiser whose range holds it, the noisier one at the border",
          "[stages]") {
  const std::vector<RangedDenoiser> denoisers = {{{.component = "high"}, {.low = 0.9, .high = 1.0}},
                                                 {{.component = "low"}, {.low = 0.0, .high = 0.9}}};
  CHECK(denoiser_at(denoisers, 1.0F).name() == "high");
  CHECK(denoiser_at(denoisers, 0.9F).name() == "high");  // which is below the double 0.9
  CHECK(denoiser_at(denoisers, 0.89F).name() == "low");
  CHECK(denoiser_at(denoisers, 0.0F).name() == "low");
  CHECK(denoiser_at(std::span(denoisers).last(1), 0.9F).name() == "low");
  test::expect_error(ErrorCode::kNotFound, {"noise level 0.5"},
                     [&] { denoiser_at(std::span(denoisers).first(1), 0.5F); });
}

// The toy with a second denoiser, for the levels below 0.9.
class ExpertsToy final : public test::ToyFamily {
 public:
  std::span<const ComponentSpec> components() const override {
    static const ComponentSpec kParts[] = {{.name = "dit", .role = Role::kDenoiser},
                                           {.name = "dit2", .role = Role::kDenoiser}};
    return kParts;
  }
  SigmaRange sigma_range(const Detection& denoiser) const override {
    return denoiser.component == "dit2" ? SigmaRange{.low = 0, .high = 0.9}
                                        : SigmaRange{.low = 0.9, .high = 1};
  }
};

TEST_CASE("Experts change where model_index.json of their folder says it", "[stages]") {
  const test::Folder folder;
  std::vector<LoadedPart> parts;
  for (const auto& [name, place] :
       {std::pair("dit2", "m/transformer_2"), std::pair("dit", "m/transformer")}) {
    const std::string file = folder / place + "/model.safetensors";
    test::write_raw_safetensors(file, R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
                                "1234");
    parts.push_back({{.component = name}, files::Checkpoint::open(file, {file})});
  }
  const auto boundary = [&] {
    const Stages stages = stages_of(ExpertsToy(), parts);
    REQUIRE(stages.denoisers.size() == 2);
    CHECK(stages.denoisers[0].name() == "dit");
    CHECK(stages.denoisers[0].range.low == stages.denoisers[1].range.high);
    return stages.denoisers[0].range.low;
  };
  CHECK(boundary() == 0.9);
  test::write_bytes(folder / "m/model_index.json", R"({"boundary_ratio": null})");
  CHECK(boundary() == 0.9);
  test::write_bytes(folder / "m/model_index.json", R"({"boundary_ratio": 0.5})");
  CHECK(boundary() == 0.5);
  test::write_bytes(folder / "m/model_index.json", R"({"boundary_ratio": 1.5})");
  test::expect_error(ErrorCode::kInvalidArgument, {"model_index.json", "boundary_ratio is 1.5"},
                     [&] { stages_of(ExpertsToy(), parts); });
}

TEST_CASE("Components come for their work and leave when it is done", "[stages]") {
  const StagedToy toy;
  std::vector<std::string> log;
  const auto write = [&log](const char* sign) {
    return [&log, sign](std::string_view name) { log.push_back(sign + std::string(name)); };
  };
  std::vector<ComponentSpec> components(toy.components().begin(), toy.components().end());
  components.push_back({.name = "dit_low", .role = Role::kDenoiser});
  using Log = std::vector<std::string>;
  const auto take = [&log] { return std::exchange(log, {}); };
  const std::vector<EncodeStage> stages = encode_stages(toy, "base");

  Residents residents(components, write("+"), write("-"));
  residents.encode(stages[0]);
  CHECK(take() == Log{"+text_encoder"});
  residents.encode(stages[1]);
  CHECK(take() == Log{"+vae"});
  residents.end_encoding();
  CHECK(take() == Log{"-text_encoder"});
  residents.denoise("dit");
  CHECK(take() == Log{"-dit_low", "+dit"});
  residents.denoise("dit_low");
  CHECK(take() == Log{"-dit", "+dit_low"});
  residents.decode();
  CHECK(take() == Log{"+vae"});
  residents.end();
  CHECK(take() == Log{"-text_encoder", "-vae", "-dit", "-dit_low"});

  Residents some(components, write("+"), write("-"), {"dit", "text_encoder"});
  some.end_encoding();
  some.denoise("dit_low");
  CHECK(take() == Log{"+dit_low"});
  some.end();
  CHECK(take() == Log{"-vae", "-dit_low"});

  int64_t asked = 0;
  CHECK_THROWS_AS(residents.encode(stages[0],
                                   [&] {
                                     ++asked;
                                     throw Error(ErrorCode::kCancelled, "stopped");
                                   }),
                  Error);
  CHECK(asked == 1);
  CHECK(take().empty());
}

TEST_CASE("A stage gets what it reads, and the negative prompt in place of the other", "[stages]") {
  const StagedToy toy;
  const EncodeStage stage = encode_stages(toy, "base").front();
  const Inputs read = inputs_of(stage, {{"prompt", "a"}, {"strength", 0.5}});
  REQUIRE(read.size() == 1);
  const EncodeInputs negative = negative_of({.stage = stage.name, .values = read}, "b", {}, {});
  CHECK(std::get<std::string>(negative.values.at("prompt")) == "b");
  CHECK(negative.is_negative);
}

}  // namespace
}  // namespace atelier::model
