// The table of stages as the host reads it.
#include "host/model/stages.h"

#include <utility>

#include "host/model/components.h"
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
    static constexpr std::string_view kBehind[] = {"image", "references"};
    static constexpr EncodeStage kStages[] = {
        {.name = "text", .components = kEncoder, .inputs = kPrompt, .variants = "base"},
        {.name = "text", .components = kEncoder, .inputs = kBoth, .variants = "edit*"},
        {.name = "latents", .components = kVae, .inputs = kBehind, .variants = "edit*"},
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
  CHECK_FALSE(reads(base[1], "references"));
  CHECK(reads(edit[1], "references"));
  CHECK(encode_stages(toy).size() == 1);  // of a denoiser that is not known
  const Stages stages = stages_of(toy, {});
  REQUIRE(stages.target_stage() != nullptr);
  CHECK(stages.target_stage()->name == "latents");
  CHECK(stages.is_target(base[1]));
  CHECK_FALSE(stages.is_target(base[0]));
  CHECK(target_input(toy.inputs())->name == "image");
  CHECK(target_input(toy.inputs().first(1)) == nullptr);
  CHECK(encodes(toy, *find_component(toy, "vae")));
  CHECK_FALSE(encodes(toy, *find_component(toy, "dit")));
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

// The toy with two denoisers and controls beside them.
class ControlledToy final : public test::ToyFamily {
 public:
  std::span<const ComponentSpec> components() const override {
    static const ComponentSpec kParts[] = {
        {.name = "dit", .role = Role::kDenoiser},
        {.name = "dit2", .role = Role::kDenoiser},
        {.name = "net", .role = Role::kControl, .beside = "dit", .max_count = 3},
        {.name = "vace", .role = Role::kControl, .beside = "dit"},
        {.name = "vace2", .role = Role::kControl, .beside = "dit2"},
        {.name = "free", .role = Role::kControl, .beside = "dit"}};
    return kParts;
  }
  std::span<const InputSpec> inputs() const override {
    static const InputSpec kInputs[] = {
        {.name = "hint", .kind = InputKind::kImage, .max_count = 3, .per_instance_of = "net"},
        {.name = "clip", .kind = InputKind::kVideo},
        {.name = "prompt", .kind = InputKind::kText}};
    return kInputs;
  }
  std::span<const EncodeStage> encode_stages() const override {
    static constexpr std::string_view kOfClip[] = {"vae", "vace", "vace2"}, kClip[] = {"clip"},
                                      kOfText[] = {"text_encoder"}, kText[] = {"prompt"};
    static constexpr EncodeStage kStages[] = {{"text", kOfText, kText}, {"clip", kOfClip, kClip}};
    return kStages;
  }
  LoraTargets lora_targets(const Detection& denoiser) const override {
    return {denoiser.variant, {}, {}, {}};
  }
};

TEST_CASE("What is saved of a denoiser alone says which one it is", "[stages]") {
  const ControlledToy toy;
  const auto saved = [&](const std::string& said, std::string_view component) {
    Stages stages;
    stages.denoisers.push_back({{.component = "dit", .variant = said}});
    return saved_name(toy, stages, component);
  };
  CHECK(saved("dit", "dit") == "dit");
  CHECK(saved("dit", "vace") == "vace");
  CHECK(saved("dit2", "dit") == "dit2");
  CHECK(saved("dit2", "vace") == "vace2");
  CHECK(saved("", "dit").empty());
  CHECK(saved("", "vace").empty());
  CHECK(saved("none of the family's", "dit") == "dit");
  Stages both;
  for (const char* name : {"dit", "dit2"})
    both.denoisers.push_back({{.component = name, .variant = "dit2"}});
  CHECK(saved_name(toy, both, "dit") == "dit");
}

TEST_CASE("Files of one control are components of their own", "[stages]") {
  const ControlledToy toy;
  CHECK(component_names(toy) ==
        std::vector<std::string>{"dit", "dit2", "net", "net.1", "net.2", "vace", "vace2", "free"});
  CHECK(find_component(toy, "net.2")->name == "net");
  for (const char* name : {"net.3", "net.0", "net.01", "net.", "vace.1", "dit.1"})
    CHECK(find_component(toy, name) == nullptr);
  CHECK(has_twin(toy, "net.1"));
  CHECK(component_of("net") == "net");
  CHECK(component_of("net.1") == "net.1");
  CHECK(component_of("net.1.blocks.0") == "net.1");
  CHECK(component_of("net.blocks.0") == "net");
  CHECK(instance_name("net", 0) == "net");
}

TEST_CASE("A control runs beside its denoiser where an input of its is given", "[stages]") {
  const ControlledToy toy;
  std::vector<LoadedPart> parts;
  const test::Folder folder;
  const std::string file = folder / "m.safetensors";
  test::write_raw_safetensors(file, R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
                              "1234");
  for (const char* name : {"net", "dit", "net.1", "vace", "vace2", "free"})
    parts.push_back({{.component = name}, files::Checkpoint::open(file, {file})});
  const Stages stages = stages_of(toy, parts);
  using Names = std::vector<std::string>;
  const auto beside = [&](const char* denoiser, const char* input) {
    return stages.controls_beside(denoiser, Inputs{{input, std::string()}});
  };
  CHECK(beside("dit", "hint") == Names{"net", "net.1", "free"});
  CHECK(beside("dit", "clip") == Names{"vace", "free"});
  CHECK(beside("dit", "prompt") == Names{"free"});
  CHECK(beside("dit2", "clip") == Names{"vace2"});
  CHECK(beside("dit2", "hint").empty());
  // What a stage gives for a control is encoded without it.
  const auto vae = ComponentSpec{.name = "vae", .role = Role::kVae};
  CHECK(uses(stages.encoding[1], vae));
  CHECK_FALSE(uses(stages.encoding[1], *find_component(toy, "vace")));
  CHECK_FALSE(encodes(toy, *find_component(toy, "vace")));

  std::vector<std::string> log;
  const auto write = [&log](const char* sign) {
    return [&log, sign](std::string_view name) { log.push_back(sign + std::string(name)); };
  };
  Residents residents(stages.components, write("+"), write("-"));
  residents.denoise("dit", {"net", "net.1"});
  CHECK(std::exchange(log, {}) == Names{"-vace", "-vace2", "-free", "+dit", "+net", "+net.1"});
  residents.denoise("dit2", {"vace2"});
  CHECK(std::exchange(log, {}) == Names{"-dit", "-net", "-net.1", "-vace", "-free", "+vace2"});
}

TEST_CASE("Components come for their work and leave when it is done", "[stages]") {
  const StagedToy toy;
  std::vector<std::string> log;
  const auto write = [&log](const char* sign) {
    return [&log, sign](std::string_view name) { log.push_back(sign + std::string(name)); };
  };
  std::vector<PresentComponent> components;
  for (const ComponentSpec& spec : toy.components())
    components.push_back({std::string(spec.name), spec});
  components.push_back({"dit_low", {.name = "dit_low", .role = Role::kDenoiser}});
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
  residents.denoise("dit", {});
  CHECK(take() == Log{"-dit_low", "+dit"});
  residents.denoise("dit_low", {});
  CHECK(take() == Log{"-dit", "+dit_low"});
  residents.decode();
  CHECK(take() == Log{"+vae"});
  residents.end();
  CHECK(take() == Log{"-text_encoder", "-vae", "-dit", "-dit_low"});

  Residents some(components, write("+"), write("-"), {"dit", "text_encoder"});
  some.end_encoding();
  some.denoise("dit_low", {});
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
