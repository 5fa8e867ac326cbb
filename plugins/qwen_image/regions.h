// Regions of the image that have prompts of their own, the entities of EliGen.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "atelier/conditioning.h"
#include "atelier/input.h"
#include "atelier/segments.h"
#include "atelier/shared_rows.h"

namespace qwen_image {

struct SampleRows;

// Each entity is a bit of the sets that ops::attention() has for groups, of which there are 63; two
// stay free.
inline constexpr int64_t kMaxEntities = 61;
inline constexpr const char *kEntityPrompts = "eligen_entity_prompts",
                            *kEntityMasks = "eligen_entity_masks",
                            *kEntitiesOnNegative = "eligen_enable_on_negative";
inline constexpr const char* kEntities = "entities";  // the stage that encodes them

// Entries of a conditioning: the embeddings of entity `number`, [L, text_width]; where entities
// are, see regions_of(); and, where their words are those of the prompt, as many as there are: a
// tensor without values, [0, n].
std::string entity_name(int64_t number);
inline constexpr const char *kRegions = "regions", *kEntitiesOfPrompt = "entities_of_prompt";

// Throws Error{kInvalidArgument} where prompts and masks are not as many as each other.
void check_entities(const atelier::Inputs& values);

// Which masks show each token of an image of height x width tokens, as bits: int64
// [1, height, width] on the masks' device.
//
// masks: [3, H, W] in [-1, 1], of any size. They are stretched to latent cells by the nearest
// pixel, to Pillow's bits, and a token is shown where the mean color of one of its cells is above
// 0.
at::Tensor regions_of(std::span<const at::Tensor> masks, int64_t height, int64_t width);

// The texts of packed samples: of each its entities, and its prompt behind them.
struct Texts {
  std::vector<std::vector<int64_t>> entities;  // rows of each sample's entities
  std::vector<int64_t> prompts;                // rows of each sample's prompt
  at::Tensor values;                           // embeddings, [N, text_width], on all ranks together
  atelier::SharedRows entity_rows, prompt_rows;
  atelier::SharedRows rows;  // both
  bool has_entities;         // whether any sample has some
};
Texts texts_of(std::span<const atelier::Conditioning* const> cond);

// The groups of all rows, int64 [N]: of each sample its entities, its prompt, its image and its
// references. A row of an entity has its bit, one of the image those of the entities that are seen
// there, others have none. Throws Error{kInvalidArgument} for regions of another size.
at::Tensor groups_of(std::span<const atelier::Conditioning* const> cond,
                     const std::vector<SampleRows>& samples, at::Device device);

// Attention among rows of samples, packed by join(entity_rows, other_rows): the prompt, the image
// and its references see each other, and rows of the image the entities of their groups, too. An
// entity sees itself and its rows of the image. groups: see groups_of(). Shapes are those of
// ops::attention().
at::Tensor attend_in_regions(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                             const atelier::Segments& entity_rows,
                             const atelier::Segments& other_rows, const at::Tensor& groups);

}  // namespace qwen_image
