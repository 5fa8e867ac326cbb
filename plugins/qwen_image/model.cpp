#include "model.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "atelier/error.h"
#include "atelier/named_inputs.h"

#include "blockwise.h"
#include "config.h"
#include "controlnet.h"
#include "dit.h"
#include "layered.h"
#include "regions.h"
#include "text_encoder.h"
#include "vision.h"

namespace qwen_image {

using atelier::Error;
using atelier::ErrorCode;

namespace {

constexpr const char *kPictures = "edit_image", *kVisionTower = "vision_tower";

// Without a denoiser that which the text encoder reads prompts for.
std::string variant_of(std::span<const atelier::Detection> parts) {
  std::string variant;
  for (const atelier::Detection& part : parts) {
    if (part.component == "dit") return part.variant;
    if (part.component == "text_encoder") variant = part.variant;
  }
  return variant;
}

Wording wording_of(std::string_view variant) {
  if (!edits(variant)) return Wording::kImage;
  return variant == kOnePictureVariant ? Wording::kPicture : Wording::kPictures;
}

bool is_set(const atelier::Inputs& inputs, std::string_view flag, bool otherwise) {
  const bool* given = atelier::find_input<bool>(inputs, flag);
  return given ? *given : otherwise;
}

std::vector<PatchGrid> grids_of(const at::Tensor& grid_P3) {
  std::vector<PatchGrid> grids;
  const at::Tensor grid = grid_P3.to(at::kCPU, at::kLong).contiguous();
  for (int64_t i = 0; i < grid.size(0); ++i)
    grids.push_back({grid[i][1].item<int64_t>(), grid[i][2].item<int64_t>()});
  return grids;
}

std::vector<PictureRows> picture_rows(const std::vector<int64_t>& starts,
                                      const std::vector<PatchGrid>& grids) {
  std::vector<PictureRows> rows;
  for (size_t i = 0; i < starts.size(); ++i)
    rows.push_back({starts[i], grids[i].token_rows(), grids[i].token_columns()});
  return rows;
}

// Layers are frames to the SDK.
atelier::LatentSpec latents_of(std::span<const atelier::Detection> parts) {
  atelier::LatentSpec spec;
  spec.takes_clips = has_layers(parts);
  return spec;
}

// The component of file `number` of a kind, from 0 on.
std::string component_of(const ControlKind& kind, int64_t number) {
  return number == 0 ? kind.component : kind.component + ("." + std::to_string(number));
}

// Rows behind the template's beginning.
at::Tensor behind(const at::Tensor& hidden, int64_t skip) {
  return hidden.narrow(0, skip, hidden.size(0) - skip).clone();
}

}  // namespace

QwenImage::QwenImage(std::span<const atelier::ComponentRow> rows,
                     std::span<const atelier::Detection> parts,
                     const atelier::ModelOptions& options)
    : ComponentModel(rows, parts, options, latents_of(parts)),
      blockwise_masks_(mask_readers(parts, kBlockwiseKind)),
      controlnet_masks_(mask_readers(parts, kControlNetKind)),
      is_layered_(has_layers(parts)),
      variant_(variant_of(parts)) {
  check_controls(parts);
  check_layers(parts);
  if (!has_tokenizer()) return;
  prompts_.emplace(tokenizer(), wording_of(variant_));
  entity_prompts_.emplace(tokenizer(), Wording::kImage);
}

QwenImage::~QwenImage() = default;

const PromptTemplate& QwenImage::prompts() const {
  tokenizer();  // or throws
  return *prompts_;
}

PictureRules QwenImage::rules_of(const atelier::Inputs& inputs) const {
  PictureRules rules;
  if (variant_ == kOnePictureVariant) rules.vision_area = 0;
  rules.resizes = is_set(inputs, "edit_image_auto_resize", true);
  return rules;
}

std::vector<at::Tensor> QwenImage::pictures_of(const atelier::Inputs& inputs) const {
  const auto* pictures = atelier::find_input<std::vector<at::Tensor>>(inputs, kPictures);
  if (!pictures || !edits(variant_)) return {};
  if (variant_ == kOnePictureVariant && pictures->size() > 1) {
    throw Error(ErrorCode::kInvalidArgument,
                std::string(kPictures) + ": " + std::to_string(pictures->size()) +
                    " pictures are given, " + variant_ + " changes one",
                "give one, or use a later model");
  }
  const PictureRules rules = rules_of(inputs);
  for (const at::Tensor& picture : *pictures) rules.check(size_of(picture));
  return *pictures;
}

atelier::MediaTarget QwenImage::target(const atelier::Inputs& inputs,
                                       const atelier::MediaTarget& asked) const {
  for (const ControlKind& kind : {kBlockwiseKind, kControlNetKind})
    check_control_inputs(kind, readers(kind), inputs);
  if (is_layered_) return layered_target(inputs, asked, variant_);
  const std::vector<at::Tensor> pictures = pictures_of(inputs);
  if (pictures.empty()) return asked;
  const PictureSize size = PictureRules().for_vae(size_of(pictures.back()));
  return {asked.frames, asked.height > 0 ? asked.height : size.height,
          asked.width > 0 ? asked.width : size.width};
}

bool QwenImage::runs(std::string_view control, const atelier::Inputs& inputs, int64_t step,
                     int64_t steps) const {
  const ControlKind& kind =
      atelier::spec_name(control) == kBlockwise ? kBlockwiseKind : kControlNetKind;
  const size_t nets = readers(kind).size();
  size_t net = 0;
  while (net + 1 < nets && component_of(kind, static_cast<int64_t>(net)) != control) ++net;
  return counts(kind, net, nets, inputs, step, steps);
}

atelier::Conditioning QwenImage::encode(const atelier::EncodeInputs& in,
                                        atelier::BlockRunner& runner) {
  if (in.stage == "latents") return encode_target(in.values, runner);
  if (in.stage == "references")
    return is_layered_ ? encode_layer_input(in.values, runner) : encode_references(in, runner);
  if (in.stage == kEntities) return encode_entities(in, runner);
  for (const ControlKind& kind : {kBlockwiseKind, kControlNetKind})
    if (in.stage == kind.component) return encode_pictures(kind, in.values, runner);
  return encode_text(in, runner);
}

atelier::Conditioning QwenImage::encode_target(const atelier::Inputs& values,
                                               atelier::BlockRunner& runner) {
  constexpr const char* kImage = "image";
  std::vector<at::Tensor> pictures;
  if (const auto* one = atelier::find_input<at::Tensor>(values, kImage)) pictures = {*one};
  if (const auto* all = atelier::find_input<std::vector<at::Tensor>>(values, kImage))
    pictures = *all;
  if (pictures.empty()) throw Error(ErrorCode::kInvalidArgument, "image: missing");
  if (!is_layered_ && pictures.size() > 1)
    throw Error(ErrorCode::kInvalidArgument,
                "image: " + std::to_string(pictures.size()) + " pictures, and one is made",
                "several are layers, of qwen-image-layered");
  std::vector<at::Tensor> latents;  // one after the other, with the memory of one
  for (const at::Tensor& picture : pictures) {
    const at::Tensor pixels = is_layered_ ? picture : over_white(picture);
    latents.push_back(encode_latents({{kImage, pixels}}, kImage, runner).at("latents"));
  }
  return {{"latents", latents.size() == 1 ? latents.front() : at::cat(latents, 1)}};
}

atelier::Conditioning QwenImage::encode_layer_input(const atelier::Inputs& values,
                                                    atelier::BlockRunner& runner) {
  if (!values.contains(kLayerInput))
    throw Error(ErrorCode::kInvalidArgument, std::string(kLayerInput) + ": missing",
                "give the picture that is taken apart");
  atelier::Conditioning cond;
  for (const char* name : {kContext, kLayerInput}) {
    if (values.contains(name))
      cond.emplace(reference_name(std::ssize(cond)),
                   encode_latents(values, name, runner).at("latents"));
  }
  if (is_set(values, kNormalize, false)) cond.emplace(kKeepsLength, at::ones({1}, at::kFloat));
  return cond;
}

void QwenImage::decode(const at::Tensor& latents_BCTHW, atelier::BlockRunner& runner,
                       const atelier::FrameSink& sink) {
  if (!is_layered_) return ComponentModel::decode(latents_BCTHW, runner, sink);
  for (const at::Tensor& frame : latents_BCTHW.split(1, 2))
    ComponentModel::decode(frame, runner, sink);
}

atelier::Conditioning QwenImage::encode_text(const atelier::EncodeInputs& in,
                                             atelier::BlockRunner& runner) {
  const std::vector<at::Tensor> pictures = pictures_of(in.values);
  std::vector<int64_t> ids =
      prompts().tokens(atelier::text_input(in.values, "prompt"), std::ssize(pictures));
  const int64_t skip = prompts().skip();
  // The template's end goes first.
  cut_to_limit(ids, text_length(in));
  at::Tensor hidden;
  if (pictures.empty()) {
    hidden = encode_ids("text_encoder", ids, runner);
  } else {
    const Patches patches = patches_of(pictures, rules_of(in.values));
    const at::Tensor rows =
        loaded<VisionTower>(kVisionTower).forward(patches.values, patches.grids, runner);
    hidden = read_with_pictures(std::move(ids), patches.grids, rows, runner);
  }
  return {{atelier::kPromptEmbeds, behind(hidden, skip)}};
}

// Words of entities are encoded as those of an image that is made of them, whatever the variant.
atelier::Conditioning QwenImage::encode_entities(const atelier::EncodeInputs& in,
                                                 atelier::BlockRunner& runner) {
  prompts();  // or throws
  check_entities(in.values);
  const bool is_repeated = in.is_negative && is_set(in.values, kEntitiesOnNegative, false);
  const auto* texts = atelier::find_input<std::vector<std::string>>(in.values, kEntityPrompts);
  if (texts == nullptr || (in.is_negative && !is_repeated)) return {};
  const auto& masks = std::get<std::vector<at::Tensor>>(in.values.find(kEntityMasks)->second);
  const int64_t stride = latent_spec().token_stride;
  atelier::Conditioning cond = {
      {kRegions, regions_of(masks, in.target.height / stride, in.target.width / stride)}};
  if (is_repeated) cond.emplace(kEntitiesOfPrompt, at::empty({0, std::ssize(*texts)}));
  if (in.is_negative) return cond;
  for (size_t i = 0; i < texts->size(); ++i) {
    std::vector<int64_t> ids = entity_prompts_->tokens((*texts)[i]);
    const int64_t skip = entity_prompts_->skip();
    cut_to_limit(ids, {.tokens = std::ssize(ids) - skip, .limit = kLongestPrompt}, " of an entity");
    const at::Tensor hidden = encode_ids("text_encoder", ids, runner);
    cond.emplace(entity_name(static_cast<int64_t>(i)), behind(hidden, skip));
  }
  return cond;
}

at::Tensor QwenImage::read_with_pictures(std::vector<int64_t> ids,
                                         const std::vector<PatchGrid>& grids,
                                         const at::Tensor& rows, atelier::BlockRunner& runner) {
  std::vector<int64_t> counts;
  for (const PatchGrid& grid : grids) counts.push_back(grid.tokens());
  const std::vector<int64_t> starts =
      spread_pictures(ids, *tokenizer().id("<|image_pad|>"), counts);
  return loaded<TextEncoder>("text_encoder")
      .forward(at::tensor(ids, at::kLong), picture_rows(starts, grids), rows, runner);
}

atelier::Conditioning QwenImage::encode_references(const atelier::EncodeInputs& in,
                                                   atelier::BlockRunner& runner) {
  if (const auto* picture = atelier::find_input<at::Tensor>(in.values, kContext)) {
    const atelier::Inputs opaque = {{kContext, over_white(*picture)}};
    return {{reference_name(0), encode_latents(opaque, kContext, runner).at("latents")}};
  }
  atelier::Conditioning cond;
  for (const at::Tensor& picture : pictures_of(in.values)) {
    const at::Tensor pixels = pixels_for_vae(picture, rules_of(in.values));
    cond.emplace(reference_name(std::ssize(cond)),
                 encode_latents({{kPictures, pixels}}, kPictures, runner).at("latents"));
  }
  if (is_set(in.values, "edit_rope_interpolation", false))
    cond.emplace(kStretchedPlaces, at::ones({1}, at::kFloat));
  if (const bool* is_clean = atelier::find_input<bool>(in.values, "zero_cond_t"))
    cond.emplace(*is_clean ? kCleanPictures : kNoisyPictures, at::ones({1}, at::kFloat));
  return cond;
}

const std::vector<bool>& QwenImage::readers(const ControlKind& kind) const {
  return kind.component == kBlockwiseKind.component ? blockwise_masks_ : controlnet_masks_;
}

atelier::Conditioning QwenImage::encode_pictures(const ControlKind& kind,
                                                 const atelier::Inputs& values,
                                                 atelier::BlockRunner& runner) {
  check_control_inputs(kind, readers(kind), values);
  return encode_controls(kind, readers(kind), values, [&](const at::Tensor& picture) {
    return encode_latents({{kind.image, picture}}, kind.image, runner).at("latents");
  });
}

std::vector<std::unique_ptr<Addition>> QwenImage::controls_of(
    std::span<const atelier::DenoiseInputs> calls) {
  const auto is_given = [&](const ControlKind& kind, int64_t number) {
    return std::ranges::any_of(calls, [&](const atelier::DenoiseInputs& in) {
      return std::ranges::any_of(in.cond, [&](const atelier::Conditioning* cond) {
        return cond->contains(control_name(kind, number));
      });
    });
  };
  // One ControlNet alone has all pictures.
  const auto net_of = [&](const ControlKind& kind, int64_t number) {
    return component_of(kind, readers(kind).size() > 1 ? number : 0);
  };
  std::vector<std::unique_ptr<Addition>> controls;
  std::vector<Blockwise*> nets;  // null: nobody has that picture
  for (int64_t i = 0; i < kMaxControls; ++i)
    nets.push_back(is_given(kBlockwiseKind, i) ? &loaded<Blockwise>(net_of(kBlockwiseKind, i))
                                               : nullptr);
  controls.push_back(std::make_unique<BlockwiseHints>(std::move(nets)));
  const int64_t layers = loaded<Dit>(calls.front().denoiser).layers();
  for (int64_t i = 0; i < kMaxControls; ++i) {
    if (is_given(kControlNetKind, i))
      controls.push_back(std::make_unique<ControlNetHints>(
          loaded<ControlNet>(net_of(kControlNetKind, i)), i, layers));
  }
  return controls;
}

at::Tensor QwenImage::denoise(const atelier::DenoiseInputs& in, atelier::BlockRunner& runner) {
  return denoise_all({&in, 1}, runner).front();
}

std::vector<at::Tensor> QwenImage::denoise_all(std::span<const atelier::DenoiseInputs> calls,
                                               atelier::BlockRunner& runner) {
  if (calls.empty()) return {};
  const auto controls = controls_of(calls);
  const Dit::With with(loaded<Dit>(calls.front().denoiser), controls);
  return ComponentModel::denoise_all(calls, runner);
}

// The longest of entities counts.
atelier::TextLength QwenImage::text_length(const atelier::EncodeInputs& in) const {
  if (in.stage == kEntities) {
    prompts();  // or throws
    int64_t longest = 0;
    const auto* texts = atelier::find_input<std::vector<std::string>>(in.values, kEntityPrompts);
    for (const std::string& text : texts ? *texts : std::vector<std::string>())
      longest = std::max(longest, std::ssize(entity_prompts_->tokens(text)));
    return {.tokens = longest - entity_prompts_->skip(), .limit = kLongestPrompt};
  }
  const std::vector<int64_t> ids = prompts().tokens(atelier::text_input(in.values, "prompt"));
  return {.tokens = std::ssize(ids) - prompts().skip(), .limit = kLongestPrompt};
}

void QwenImage::prepare_levels(std::string_view denoiser, std::span<const float> sigmas,
                               atelier::BlockRunner& runner) {
  auto& dit = loaded<Dit>(denoiser);
  std::vector<float> levels(sigmas.begin(), sigmas.end());
  if (edits(variant_) || dit.has_clean_references()) levels.push_back(0.0f);
  ComponentModel::prepare_levels(denoiser, levels, runner);
  dit.set_clean_level(std::ssize(sigmas));
}

at::Tensor QwenImage::guide(const atelier::GuideInputs& in, atelier::BlockRunner&) {
  const at::Tensor with = in.with_BCTHW.to(at::kFloat), without = in.without_BCTHW.to(at::kFloat);
  const at::Tensor combined = without + (with - without) * in.scale;
  const bool keeps_length = !is_layered_ || in.step.cond.front()->contains(kKeepsLength);
  if (!keeps_length) return combined.to(in.with_BCTHW.scalar_type());
  const int64_t B = with.size(0), T = with.size(2), H = with.size(3) / kPatch,
                W = with.size(4) / kPatch;
  const auto tokens = [&](const at::Tensor& v) { return v.view({B, -1, T, H, kPatch, W, kPatch}); };
  // The squares of a token's values, summed: [B, 1, T, H, 1, W, 1].
  const auto squares = [&](const at::Tensor& v) {
    return tokens(v).square().sum({1, 4, 6}, /*keepdim=*/true);
  };
  const at::Tensor ratio = at::sqrt(squares(with) / squares(combined).clamp_min(1e-30));
  return (tokens(combined) * ratio).view(with.sizes()).to(in.with_BCTHW.scalar_type());
}

atelier::NamedTensors QwenImage::probe(std::string_view component,
                                       const atelier::NamedTensors& inputs,
                                       atelier::BlockRunner& runner) {
  if (atelier::spec_name(component) == kBlockwise)
    return loaded<Blockwise>(component).probe(inputs, runner);
  if (atelier::spec_name(component) == kControlNet)
    return loaded<ControlNet>(component).probe(inputs, runner);
  if (component == kVisionTower && inputs.contains("image")) {
    atelier::allow_only(inputs, {"image"});
    const at::Tensor images[] = {atelier::named_tensor(inputs, "image", 3)};
    const Patches patches = patches_of(images, rules_of({}));
    const PatchGrid& grid = patches.grids.front();
    return {{"pixel_values", patches.values},
            {"grid", at::tensor({int64_t{1}, grid.rows, grid.columns}, at::kLong).unsqueeze(0)}};
  }
  if (component == kVisionTower) {
    atelier::allow_only(inputs, {"pixel_values", "grid"});
    const auto grids = grids_of(atelier::named_tensor(inputs, "grid", 2));
    return {
        {"picture_embeds", loaded<VisionTower>(component).forward(
                               atelier::named_tensor(inputs, "pixel_values", 2), grids, runner)}};
  }
  if (component == "text_encoder" && inputs.contains("picture_embeds")) {
    atelier::allow_only(inputs, {"input_ids", "picture_embeds", "grid", "picture_starts"});
    const at::Tensor& ids = atelier::named_tensor(inputs, "input_ids", 2);
    const at::Tensor starts =
        atelier::named_tensor(inputs, "picture_starts", 1).to(at::kCPU, at::kLong).contiguous();
    const int64_t* first = starts.const_data_ptr<int64_t>();
    const auto pictures = picture_rows({first, first + starts.numel()},
                                       grids_of(atelier::named_tensor(inputs, "grid", 2)));
    const at::Tensor hidden = loaded<TextEncoder>(component).forward(
        ids[0], pictures, atelier::named_tensor(inputs, "picture_embeds", 2), runner);
    return {{"hidden", hidden.unsqueeze(0)}, {"places", token_places(ids.size(1), pictures)}};
  }
  return ComponentModel::probe(component, inputs, runner);
}

}  // namespace qwen_image
