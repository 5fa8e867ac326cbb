// The frame of a family: a table with one row for each of its components.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "atelier/architecture.h"
#include "atelier/nn/module.h"
#include "atelier/text/tokenizer.h"

namespace atelier {

// All that a family says of one component. Of a component without tensors only `spec` is set.
struct ComponentRow {
  ComponentSpec spec;
  // Says whether a checkpoint holds this component, see ModelFamily::detect. The variant may be
  // left empty. Components of one architecture (two expert denoisers) have one function: it names
  // the first of them, and `spec.paths` or the hint another.
  std::optional<Detection> (*detect)(const TensorIndex& checkpoint) = nullptr;
  // See ModelFamily.
  ConfigFields (*config_fields)(const Detection& part) = nullptr;
  WeightMap (*weight_map)(const Detection& part) = nullptr;
  // The module, with its weights declared: make_part() below.
  std::unique_ptr<nn::Module> (*make)(const Detection& part) = nullptr;
  // One of ModelFamily::tiny_parts(); null: there is none.
  Detection (*tiny)() = nullptr;
  // See ModelFamily::spellings; empty: that of the checkpoint alone.
  std::array<const char*, 4> spellings = {};
  // For a text encoder: the component that is its tokenizer.
  std::string_view tokenizer = {};
  // How that one's vocab.json is split, where the family takes one; see text::Tokenizer::load.
  std::optional<text::ByteLevelRules> tokenizer_rules = std::nullopt;
};

// ComponentRow::make of a module that is made of a struct of numbers, see architecture.h.
template <class Part, class Config>
std::unique_ptr<nn::Module> make_part(const Detection& part) {
  return std::make_unique<Part>(config_of<Config>(part));
}

// A family whose components are rows of a table. What is left to the family: its name, inputs,
// schedules, LoRA targets, the model, and what else differs from ModelFamily's defaults.
class ATELIER_API ComponentFamily : public ModelFamily {
 public:
  ~ComponentFamily() override;

  std::span<const ComponentSpec> components() const override { return specs_; }

  // Asks the rows, denoisers first. Refuses hints that contradict what is found. A checkpoint is
  // the first variant unless the row or the hint says another.
  std::optional<Detection> detect(const TensorIndex& checkpoint,
                                  const DetectHint& hint) const override;
  // By ComponentSpec::paths; of the names in a path the last one counts that fits one row alone.
  void assign(std::span<FoundPart> parts) const override;
  ConfigFields config_fields(const Detection& part) const override;
  WeightMap weight_map(const Detection& part) const override;
  std::vector<std::string> spellings(const Detection& part) const override;
  std::vector<Detection> tiny_parts() const override;

  // The rows that the denoiser reads, see Denoiser::entries(), of normal size.
  Conditioning example_conditioning(const Detection& denoiser, int64_t tokens,
                                    at::ScalarType dtype) const override;

 protected:
  // Both tables are static: the family does not copy them.
  ComponentFamily(std::span<const ComponentRow> rows, std::span<const std::string_view> variants);

  std::span<const ComponentRow> rows() const { return rows_; }

  // The component of a part's architecture that its path names, see assign(); null: none.
  const ComponentSpec* named_by_path(const FoundPart& found) const;

 private:
  const ComponentRow& row(std::string_view component) const;

  std::span<const ComponentRow> rows_;
  std::span<const std::string_view> variants_;
  std::vector<ComponentSpec> specs_;
};

// ---- Stages and inputs that most families have ----

inline constexpr std::string_view kTextComponents[] = {"tokenizer", "text_encoder"};
inline constexpr std::string_view kLatentsComponents[] = {"vae"};
inline constexpr std::string_view kPromptInput[] = {"prompt"};
inline constexpr std::string_view kImageInput[] = {"image"}, kVideoInput[] = {"video"};

// The prompt's stage, and the one that gives the latents of the image or clip that training learns.
inline constexpr EncodeStage kTextStage = {"text", kTextComponents, kPromptInput};
inline constexpr EncodeStage kImageStage = {"latents", kLatentsComponents, kImageInput};
inline constexpr EncodeStage kVideoStage = {"latents", kLatentsComponents, kVideoInput};

// The image that training learns, and the one that sampling begins from.
inline constexpr InputSpec kTargetImage = {.name = "image",
                                           .kind = InputKind::kImage,
                                           .required = true,
                                           .use = InputUse::kTrain,
                                           .help = "the image to learn",
                                           .role = InputRole::kTarget};
inline constexpr InputSpec kStartImage = {
    .name = "input_image",
    .kind = InputKind::kImage,
    .use = InputUse::kGenerate,
    .help = "image to start from, scaled and cropped to --height and --width",
    .role = InputRole::kStart};

// ---- Weight tables that follow from a module's own names ----

struct Renamed {
  std::string_view from, to;
};

// `name` with the parts between its dots replaced: where whole parts are those of a row's `from`,
// they become those of its `to`, by the first row that fits there, and what was replaced is not
// looked at again. Dots at the ends of `from` and `to` are for the reader.
ATELIER_API std::string renamed(const std::string& name, std::span<const Renamed> rows);

// One row for each weight of `module`: `published` gives the checkpoint's name for a weight's path.
// Without it the names are the same.
ATELIER_API WeightMap named_weights(
    nn::Module& module, const std::function<std::string(const std::string& path)>& published = {});

}  // namespace atelier
