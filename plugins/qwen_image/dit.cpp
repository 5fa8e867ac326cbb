// Shape letters: B samples, C latent channels, T frames, H and W latent height and width, D width,
// d head width, N packed rows: of all samples, image rows and text rows apart.
#include "dit.h"

#include <algorithm>
#include <optional>

#include <ATen/ATen.h>

#include "atelier/named_inputs.h"
#include "atelier/ops/pointwise.h"

#include "controls.h"
#include "dit_block.h"
#include "layered.h"
#include "regions.h"

namespace qwen_image {

using atelier::Segments;
using atelier::SharedRows;
using atelier::Tensors;
namespace ops = atelier::ops;

Dit::Dit(const DitConfig& c)
    : Denoiser(nullptr, "dit"),
      config_(c),
      time_in_(this, kTimeIn, kTimeChannels, c.width),
      time_out_(this, kTimeOut, c.width, c.width),
      txt_norm_(this, "txt_norm", c.text_width, kNormEps),
      img_in_(this, "img_in", c.channels * kPatch * kPatch, c.width),
      txt_in_(this, "txt_in", c.text_width, c.width),
      norm_out_(this, "norm_out.linear", c.width, 2 * c.width),
      proj_out_(this, "proj_out", c.width, c.channels * kPatch * kPatch),
      levels_(time_channels, time_in_, time_out_, {&norm_out_}),
      ropes_(c) {
  for (int64_t i = 0; i < kMaxReferences; ++i) reference_names_.push_back(reference_name(i));
  entries_ = {{.width = c.text_width},
              {.name = kStretchedPlaces},
              {.name = kCleanPictures},
              {.name = kNoisyPictures}};
  for (const std::string& name : reference_names_) entries_.push_back({.name = name});
  for (const ControlKind& kind : {kBlockwiseKind, kControlNetKind}) {
    for (int64_t i = 0; i < kMaxControls; ++i) {
      control_names_.push_back(control_name(kind, i));
      control_names_.push_back(control_scale_name(kind, i));
      control_names_.push_back(control_window_name(kind, i));
    }
  }
  for (const std::string& name : control_names_) entries_.push_back({.name = name});
  entries_.push_back({.name = kControlPrompt});
  entries_.push_back({.name = kKeepsLength});
  if (c.layered) {
    added_time_ = std::make_unique<atelier::nn::Embedding>(this, kAddedTime, 2, c.width);
    levels_.add_row(*added_time_);
  }
  for (int64_t i = 0; i < kMaxEntities; ++i) entity_names_.push_back(entity_name(i));
  for (const std::string& name : entity_names_) entries_.push_back({.name = name});
  entries_.push_back({.name = kRegions});
  entries_.push_back({.name = kEntitiesOfPrompt});
  for (int64_t i = 0; i < c.layers; ++i) {
    blocks_.push_back(std::make_unique<DitBlock>(this, "transformer_blocks." + std::to_string(i), c,
                                                 i + 1 == c.layers));
    levels_.add(*blocks_.back(), blocks_.back()->level_layers());
  }
}

Dit::~Dit() = default;

std::string reference_name(int64_t number) {
  return "reference_" + std::to_string(number + 1);
}

namespace {

// All samples of `calls`, one after the other.
at::Tensor rows_of(std::span<const atelier::DenoiseInputs> calls) {
  Tensors rows;
  for (const atelier::DenoiseInputs& in : calls) rows.push_back(to_rows(in.x_BCTHW));
  return rows.size() == 1 ? rows.front() : at::cat(rows);
}

// Rows of tokens of all samples, back to latents as those of each call.
std::vector<at::Tensor> to_latents(const at::Tensor& rows,
                                   std::span<const atelier::DenoiseInputs> calls) {
  std::vector<at::Tensor> result;
  int64_t first = 0;
  for (const atelier::DenoiseInputs& in : calls) {
    const auto& x = in.x_BCTHW;
    const int64_t B = x.size(0), C = x.size(1), T = x.size(2), H = x.size(3) / kPatch,
                  W = x.size(4) / kPatch, count = B * T * H * W;
    const at::Tensor own = calls.size() == 1 ? rows : rows.narrow(0, first, count).clone();
    result.push_back(own.view({B, T, H, W, C, kPatch, kPatch})
                         .permute({0, 4, 1, 2, 5, 3, 6})
                         .reshape({B, C, T, H * kPatch, W * kPatch}));
    first += count;
  }
  return result;
}

// The images of all samples in tokens, and their texts.
std::vector<SampleRows> images_of(std::span<const atelier::DenoiseInputs> calls,
                                  const Texts& texts) {
  std::vector<SampleRows> samples;
  for (const atelier::DenoiseInputs& in : calls) {
    for (int64_t b = 0; b < in.x_BCTHW.size(0); ++b)
      samples.push_back({.height = in.x_BCTHW.size(3) / kPatch,
                         .width = in.x_BCTHW.size(4) / kPatch,
                         .text = texts.prompts[samples.size()],
                         .pictures = in.x_BCTHW.size(2),
                         .entities = texts.entities[samples.size()]});
  }
  return samples;
}

Segments image_segments(const std::vector<SampleRows>& samples) {
  std::vector<int64_t> lengths;
  for (const SampleRows& sample : samples) lengths.push_back(sample.own_rows());
  return Segments(lengths);
}

// Offsets of what is modulated alike: each sample's image, then its references.
Segments halves(const Segments& image, const Segments& references) {
  std::vector<int64_t> lengths;
  for (int64_t s = 0; s < image.count(); ++s) {
    lengths.push_back(image.length(s));
    lengths.push_back(references.length(s));
  }
  return Segments(lengths);
}

// For all samples: the rows of their references.
struct References {
  std::vector<at::Tensor> rows;
  std::vector<int64_t> lengths;
};

// The noise level of each sample's references: 0 where they are clean, which is the prepared one
// `clean_level`, and the image's where they are not. None where all have the image's.
struct ReferenceLevels {
  at::Tensor sigma_B;
  std::vector<std::optional<int64_t>> prepared;
};

std::optional<ReferenceLevels> levels_of_references(const atelier::CallSamples& samples,
                                                    bool are_clean, int64_t clean_level) {
  std::vector<float> kept;
  ReferenceLevels levels{.sigma_B = {}, .prepared = samples.levels};
  for (size_t s = 0; s < samples.cond.size(); ++s) {
    const atelier::Conditioning& one = *samples.cond[s];
    kept.push_back(one.contains(kNoisyPictures) || (!are_clean && !one.contains(kCleanPictures)));
    if (kept.back() == 0 && levels.prepared[s]) levels.prepared[s] = clean_level;
  }
  if (std::ranges::count(kept, 1.0F) == std::ssize(kept)) return std::nullopt;
  levels.sigma_B = std::ranges::count(kept, 0.0F) == std::ssize(kept)
                       ? at::zeros_like(samples.sigma_B)
                       : samples.sigma_B * at::tensor(kept).to(samples.sigma_B.device());
  return levels;
}

// Says in `samples` what their references are.
References references_of(std::span<const atelier::Conditioning* const> cond,
                         std::vector<SampleRows>& samples, const at::TensorOptions& options) {
  References result;
  for (size_t s = 0; s < cond.size(); ++s) {
    samples[s].stretches = cond[s]->contains(kStretchedPlaces);
    for (int64_t i = 0; cond[s]->contains(reference_name(i)); ++i) {
      const at::Tensor& latents = atelier::named_tensor(*cond[s], reference_name(i), 4);
      samples[s].references.emplace_back(latents.size(2) / kPatch, latents.size(3) / kPatch);
      result.rows.push_back(to_rows(latents.to(options).unsqueeze(0)));
    }
    result.lengths.push_back(samples[s].reference_rows());
  }
  return result;
}

std::vector<Pass::Sample> pass_samples(std::span<const atelier::DenoiseInputs> calls) {
  std::vector<Pass::Sample> samples;
  for (const atelier::DenoiseInputs& in : calls)
    for (const atelier::Conditioning* cond : in.cond)
      samples.push_back({.cond = cond, .step = in.step, .steps = in.steps});
  return samples;
}

}  // namespace

at::Tensor Dit::denoise(const atelier::DenoiseInputs& in, atelier::BlockRunner& runner) {
  return denoise_all({&in, 1}, runner).front();
}

std::vector<at::Tensor> Dit::denoise_all(std::span<const atelier::DenoiseInputs> calls,
                                         atelier::BlockRunner& runner) {
  const atelier::CallSamples all = atelier::samples_of(calls);
  const at::TensorOptions options = calls.front().x_BCTHW.options();
  const at::ScalarType dtype = calls.front().x_BCTHW.scalar_type();
  const Texts texts = texts_of(all.cond);
  std::vector<SampleRows> samples = images_of(calls, texts);
  const References references = references_of(all.cond, samples, options);
  const SharedRows& text_rows = texts.rows;
  const SharedRows own_rows(image_segments(samples)), reference_rows(Segments(references.lengths));
  const bool has_references = !references.rows.empty();
  const SharedRows image_rows = has_references ? join(own_rows, reference_rows) : own_rows;
  const Rope table = ropes_.of(samples, options.device());
  const auto level = levels_.step(all.sigma_B, dtype, all.levels);
  std::optional<atelier::nn::NoiseLevels::Step> clean;
  const auto of_references = levels_of_references(all, config_.clean_references, clean_level_);
  if (has_references && of_references)
    clean = levels_.step(of_references->sigma_B, dtype, of_references->prepared);

  const at::Tensor latents = own_rows.take(rows_of(calls));
  at::Tensor rows = latents;
  if (has_references) {
    rows = atelier::join_rows(rows, own_rows.rows(), reference_rows.take(at::cat(references.rows)),
                              reference_rows.rows());
  }
  at::Tensor image = img_in_.forward(rows);
  at::Tensor text = txt_in_.forward(txt_norm_.forward(text_rows.take(texts.values.to(dtype))));
  Tensors context(DitBlock::kInputs);
  context[DitBlock::kImageCos] = image_rows.take(table.image_cos);
  context[DitBlock::kImageSin] = image_rows.take(table.image_sin);
  context[DitBlock::kTextCos] = text_rows.take(table.text_cos);
  context[DitBlock::kTextSin] = text_rows.take(table.text_sin);
  context[DitBlock::kImageRows] = image_rows.rows().tensor();
  context[DitBlock::kTextRows] = text_rows.rows().tensor();
  if (clean) context[DitBlock::kHalves] = halves(own_rows.rows(), reference_rows.rows()).tensor();
  if (texts.has_entities) {
    context[DitBlock::kEntityRows] = texts.entity_rows.rows().tensor();
    context[DitBlock::kPromptRows] = texts.prompt_rows.rows().tensor();
    context[DitBlock::kGroups] =
        join(text_rows, image_rows).take(groups_of(all.cond, samples, options.device()));
  }
  if (!clean && !texts.has_entities) context.resize(DitBlock::kCleanLevel);
  Pass pass{.samples = pass_samples(calls),
            .lengths = samples,
            .runner = runner,
            .own = own_rows,
            .references = has_references ? &reference_rows : nullptr,
            .latents = latents,
            .sigma_B = all.sigma_B,
            .image = std::move(image)};
  for (const auto& addition : additions_) addition->begin(pass);
  for (size_t i = 0; i < blocks_.size(); ++i) {
    Tensors inputs = context;
    inputs[DitBlock::kImage] = pass.image;
    inputs[DitBlock::kText] = text;
    inputs[DitBlock::kLevel] = level.of_block(i);
    if (clean) inputs[DitBlock::kCleanLevel] = clean->of_block(i);
    Tensors out = runner.run(*blocks_[i], inputs);
    pass.image = std::move(out[0]);
    text = out.size() > 1 ? std::move(out[1]) : at::Tensor();
    for (const auto& addition : additions_) addition->after(static_cast<int64_t>(i), pass);
  }
  image = pass.own_image();

  const std::vector<at::Tensor> ends = level.of_end().chunk(2, 1);  // scale, then shift
  image = proj_out_.forward(ops::norm_modulate(image, ends[1], ends[0], own_rows.rows(), kNormEps));
  return to_latents(own_rows.gather(image), calls);
}

}  // namespace qwen_image
