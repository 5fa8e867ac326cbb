#include "regions.h"

#include <ATen/ATen.h>

#include "atelier/component_model.h"
#include "atelier/error.h"
#include "atelier/named_inputs.h"
#include "atelier/ops/attention.h"

#include "dit.h"

namespace qwen_image {

using atelier::Conditioning;
using atelier::Error;
using atelier::ErrorCode;
using atelier::Segments;
using atelier::SharedRows;
using atelier::Tensors;
namespace ops = atelier::ops;

namespace {

// The pixel that Pillow's nearest filter takes for each of `count` cells along `length` pixels: it
// adds the step up.
at::Tensor nearest_pixels(int64_t length, int64_t count) {
  std::vector<int64_t> pixels;
  const double step = static_cast<double>(length) / static_cast<double>(count);
  double place = 0.5 * step;
  for (int64_t i = 0; i < count; ++i, place += step)
    pixels.push_back(std::min(static_cast<int64_t>(place), length - 1));
  return at::tensor(pixels, at::kLong);
}

// Whether each token is shown, int64 [height, width].
at::Tensor tokens_of(const at::Tensor& mask, int64_t height, int64_t width) {
  const at::Tensor rows = nearest_pixels(mask.size(1), height * kPatch).to(mask.device()),
                   columns = nearest_pixels(mask.size(2), width * kPatch).to(mask.device());
  const at::Tensor cells = mask.index_select(1, rows).index_select(2, columns).mean(0) > 0;
  return cells.view({height, kPatch, width, kPatch}).to(at::kLong).amax({1, 3});
}

int64_t count_of(const Conditioning& cond) {
  if (const auto repeated = cond.find(kEntitiesOfPrompt); repeated != cond.end())
    return repeated->second.size(1);
  int64_t count = 0;
  while (cond.contains(entity_name(count))) ++count;
  return count;
}

const at::Tensor& embeddings_of(const Conditioning& cond, int64_t number) {
  const bool is_repeated = cond.contains(kEntitiesOfPrompt);
  return atelier::named_tensor(cond, is_repeated ? atelier::kPromptEmbeds : entity_name(number), 2);
}

const at::Tensor& regions_in(const Conditioning& cond, const SampleRows& sample) {
  const at::Tensor& regions = atelier::named_tensor(cond, kRegions, 3);
  if (regions.sizes() == at::IntArrayRef({1, sample.height, sample.width})) return regions;
  throw Error(ErrorCode::kInvalidArgument,
              std::string(kRegions) + " of shape " + atelier::shape_text(regions) + ", [1, " +
                  std::to_string(sample.height) + ", " + std::to_string(sample.width) +
                  "] expected",
              "they are encoded for the size of the image");
}

}  // namespace

std::string entity_name(int64_t number) {
  return "entity_" + std::to_string(number + 1);
}

void check_entities(const atelier::Inputs& values) {
  const auto* prompts = atelier::find_input<std::vector<std::string>>(values, kEntityPrompts);
  const auto* masks = atelier::find_input<std::vector<at::Tensor>>(values, kEntityMasks);
  const size_t words = prompts ? prompts->size() : 0, shown = masks ? masks->size() : 0;
  if (words == shown) return;
  throw Error(ErrorCode::kInvalidArgument,
              std::string(kEntityMasks) + ": " + std::to_string(shown) + " masks are given for " +
                  std::to_string(words) + " of " + kEntityPrompts,
              "give as many of both");
}

at::Tensor regions_of(std::span<const at::Tensor> masks, int64_t height, int64_t width) {
  at::Tensor regions = at::zeros({1, height, width}, masks.front().options().dtype(at::kLong));
  for (size_t i = 0; i < masks.size(); ++i)
    regions += tokens_of(masks[i], height, width) * (int64_t{1} << i);
  return regions;
}

Texts texts_of(std::span<const Conditioning* const> cond) {
  const atelier::PackedRows prompts = atelier::pack_entry(cond, atelier::kPromptEmbeds);
  std::vector<std::vector<int64_t>> lengths;
  Tensors embeddings;
  std::vector<int64_t> totals;
  for (const Conditioning* const one : cond) {
    auto& own = lengths.emplace_back();
    int64_t& total = totals.emplace_back(0);
    for (int64_t i = 0, count = count_of(*one); i < count; ++i) {
      embeddings.push_back(embeddings_of(*one, i).to(prompts.values.options()));
      own.push_back(embeddings.back().size(0));
      total += own.back();
    }
  }
  const Segments entities(totals);
  const SharedRows prompt_rows(prompts.rows);
  Texts texts = {.entities = std::move(lengths),
                 .prompts = prompts.lengths,
                 .values = prompts.values,
                 .entity_rows = SharedRows(entities),
                 .prompt_rows = prompt_rows,
                 .rows = prompt_rows,
                 .has_entities = !embeddings.empty()};
  if (texts.has_entities) {
    texts.values = atelier::join_rows(at::cat(embeddings), entities, prompts.values, prompts.rows);
    texts.rows = join(texts.entity_rows, prompt_rows);
  }
  return texts;
}

at::Tensor groups_of(std::span<const Conditioning* const> cond,
                     const std::vector<SampleRows>& samples, at::Device device) {
  const auto options = at::TensorOptions(device).dtype(at::kLong);
  Tensors groups;
  for (size_t s = 0; s < samples.size(); ++s) {
    const SampleRows& sample = samples[s];
    for (size_t i = 0; i < sample.entities.size(); ++i)
      groups.push_back(at::full({sample.entities[i]}, int64_t{1} << i, options));
    groups.push_back(at::zeros({sample.text}, options));
    groups.push_back(sample.entities.empty() ? at::zeros({sample.own_rows()}, options)
                                             : regions_in(*cond[s], sample).to(options).flatten());
    groups.push_back(at::zeros({sample.reference_rows()}, options));
  }
  return at::cat(groups);
}

// No mask of all rows is made: what all see runs on kernels without one, under one softmax with the
// few keys of entities.
at::Tensor attend_in_regions(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                             const Segments& entity_rows, const Segments& other_rows,
                             const at::Tensor& groups) {
  const auto split = [&](const at::Tensor& t) {
    return atelier::split_rows(t, entity_rows, other_rows);
  };
  const auto [entity_q, other_q] = split(q);
  const auto [entity_k, other_k] = split(k);
  const auto [entity_v, other_v] = split(v);
  const auto [entity_groups, other_groups] = split(groups);
  const ops::KeySet sets[] = {{other_k, other_v, other_rows},
                              {entity_k, entity_v, entity_rows, other_groups, entity_groups}};
  const at::Tensor of_others = ops::attention(other_q, other_rows, sets);
  const at::Tensor of_entities =
      ops::attention(entity_q, k, v, entity_rows, atelier::join(entity_rows, other_rows),
                     {.query_sees = entity_groups, .key_groups = groups});
  return atelier::join_rows(of_entities, entity_rows, of_others, other_rows);
}

}  // namespace qwen_image
