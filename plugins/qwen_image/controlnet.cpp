// Shape letters: those of dit.cpp.
#include "controlnet.h"

#include <algorithm>
#include <map>

#include <ATen/ATen.h>

#include "atelier/error.h"
#include "atelier/named_inputs.h"
#include "atelier/ops/pointwise.h"

#include "dit.h"
#include "dit_block.h"

namespace qwen_image {

using atelier::ConfigFields;
using atelier::Detection;
using atelier::PartView;
using atelier::Segments;
using atelier::SharedRows;
using atelier::Tensors;
using atelier::WeightMap;
using atelier::nn::Linear;
namespace ops = atelier::ops;

ControlNet::ControlNet(const ControlNetConfig& c)
    : Module(nullptr, ""),
      channels_(c.control_channels),
      time_in_(this, kTimeIn, kTimeChannels, c.blocks.width),
      time_out_(this, kTimeOut, c.blocks.width, c.blocks.width),
      txt_norm_(this, "txt_norm", c.blocks.text_width, kNormEps),
      img_in_(this, "img_in", c.blocks.channels * kPatch * kPatch, c.blocks.width),
      txt_in_(this, "txt_in", c.blocks.text_width, c.blocks.width),
      control_in_(this, "controlnet_x_embedder", c.control_channels * kPatch * kPatch,
                  c.blocks.width),
      levels_(time_channels, time_in_, time_out_, {}),
      ropes_(c.blocks) {
  for (int64_t i = 0; i < c.blocks.layers; ++i) {
    const std::string number = std::to_string(i);
    blocks_.push_back(std::make_unique<DitBlock>(this, "transformer_blocks." + number, c.blocks,
                                                 i + 1 == c.blocks.layers));
    outputs_.push_back(std::make_unique<Linear>(this, "controlnet_blocks." + number, c.blocks.width,
                                                c.blocks.width));
    levels_.add(*blocks_.back(), blocks_.back()->level_layers());
  }
}

ControlNet::~ControlNet() = default;

at::Tensor Pass::own_image() const {
  return references ? atelier::split_rows(image, own.rows(), references->rows()).first : image;
}

void Pass::add(const at::Tensor& values, const Scales& scales) {
  const at::Tensor gate =
      scales.of_samples_B.to(image.scalar_type()).unsqueeze(1).expand({-1, image.size(1)});
  const at::Tensor heard =
      scales.silent_N1.defined() ? values.masked_fill(scales.silent_N1, 0) : values;
  if (references == nullptr) {
    image = ops::gate_residual(image, heard, gate, own.rows());
    return;
  }
  const auto [first, rest] = atelier::split_rows(image, own.rows(), references->rows());
  image = atelier::join_rows(ops::gate_residual(first, heard, gate, own.rows()), own.rows(), rest,
                             references->rows());
}

namespace {

Segments text_segments(const std::vector<SampleRows>& samples) {
  std::vector<int64_t> lengths;
  for (const SampleRows& sample : samples) lengths.push_back(sample.text);
  return Segments(lengths);
}

// The rows of samples for which something does not count.
at::Tensor silent_rows(const std::vector<bool>& is_counted, const Pass& pass) {
  const auto options = pass.image.options().dtype(at::kBool);
  Tensors silent;
  for (size_t s = 0; s < is_counted.size(); ++s) {
    const int64_t rows = pass.own.rows().length(static_cast<int64_t>(s));
    silent.push_back(at::full({rows, 1}, !is_counted[s], options));
  }
  return at::cat(silent);
}

// How much picture `number` counts.
Scales scales_of(const ControlKind& kind, const Pass& pass, int64_t number) {
  const auto options = pass.image.options().dtype(at::kFloat);
  Tensors scales;
  std::vector<bool> is_counted;
  for (const Pass::Sample& sample : pass.samples) {
    is_counted.push_back(counts(kind, *sample.cond, number, sample.step, sample.steps));
    scales.push_back(is_counted.back()
                         ? sample.cond->at(control_scale_name(kind, number)).to(options)
                         : at::zeros({1}, options));
  }
  const auto count = std::ranges::count(is_counted, true);
  if (count == 0) return {};
  return {
      .of_samples_B = at::cat(scales),
      .silent_N1 = count == std::ssize(is_counted) ? at::Tensor() : silent_rows(is_counted, pass)};
}

// The rows of picture `number` beside those of each sample's image; zeros where it has none.
at::Tensor rows_of_picture(const ControlKind& kind, const Pass& pass, int64_t number,
                           int64_t channels) {
  Tensors rows;
  for (size_t s = 0; s < pass.samples.size(); ++s) {
    const atelier::Conditioning& cond = *pass.samples[s].cond;
    const std::string name = control_name(kind, number);
    const int64_t length = pass.lengths[s].height * pass.lengths[s].width;
    const auto options = pass.latents.options();
    if (!cond.contains(name)) {
      rows.push_back(at::zeros({length, channels * kPatch * kPatch}, options));
      continue;
    }
    const at::Tensor& latents = atelier::named_tensor(cond, name, 4);
    rows.push_back(to_rows(latents.to(options).unsqueeze(0)));
    if (latents.size(0) != channels || rows.back().size(0) != length) {
      throw atelier::Error(atelier::ErrorCode::kInvalidArgument,
                           name + " of shape " + atelier::shape_text(latents) +
                               " does not fit an image of " + std::to_string(length) + " tokens",
                           "its sides are those of the image");
    }
  }
  return pass.own.take(at::cat(rows));
}

}  // namespace

ControlNetHints::ControlNetHints(ControlNet& net, int64_t number, int64_t layers)
    : net_(net), number_(number) {
  const auto blocks = static_cast<int64_t>(net.layers());
  interval_ = (layers + blocks - 1) / blocks;
}

void ControlNetHints::begin(Pass& pass) {
  scales_ = scales_of(kControlNetKind, pass, number_);
  if (!scales_.of_samples_B.defined()) return;
  // It follows the prompt on both branches of guidance, and sees no references.
  Tensors prompts;
  std::vector<SampleRows> samples;
  for (size_t s = 0; s < pass.samples.size(); ++s) {
    const atelier::Conditioning& cond = *pass.samples[s].cond;
    const bool is_negative = cond.contains(kControlPrompt);
    prompts.push_back(
        atelier::named_tensor(cond, is_negative ? kControlPrompt : atelier::kPromptEmbeds, 2));
    samples.push_back({.height = pass.lengths[s].height,
                       .width = pass.lengths[s].width,
                       .text = prompts.back().size(0)});
  }
  pass_.emplace(net_, ControlNetPass::Inputs{.latents = pass.latents,
                                             .picture = rows_of_picture(kControlNetKind, pass,
                                                                        number_, net_.channels()),
                                             .sigma_B = pass.sigma_B,
                                             .prompts = std::move(prompts),
                                             .samples = std::move(samples),
                                             .own = pass.own});
}

void ControlNetHints::after(int64_t index, Pass& pass) {
  if (!scales_.of_samples_B.defined()) return;
  if (index % interval_ == 0) hint_ = pass_->next(pass.runner);
  pass.add(hint_, scales_);
}

ControlNetPass::ControlNetPass(ControlNet& net, const Inputs& in)
    : net_(net),
      level_(net.levels_.step(in.sigma_B, in.latents.scalar_type(), std::nullopt)),
      image_(net.img_in_.forward(in.latents) + net.control_in_.forward(in.picture)) {
  const SharedRows texts(text_segments(in.samples));
  const Rope rope = net.ropes_.of(in.samples, image_.device());
  const at::Tensor prompts = at::cat(in.prompts).to(image_.scalar_type());
  text_ = net.txt_in_.forward(net.txt_norm_.forward(texts.take(prompts)));
  context_ = {in.own.take(rope.image_cos), in.own.take(rope.image_sin), texts.take(rope.text_cos),
              texts.take(rope.text_sin),   in.own.rows().tensor(),      texts.rows().tensor()};
}

at::Tensor ControlNetPass::next(atelier::BlockRunner& runner) {
  Tensors inputs = {std::move(image_), std::move(text_), level_.of_block(number_)};
  inputs.insert(inputs.end(), context_.begin(), context_.end());
  Tensors out = runner.run(*net_.blocks_[number_], inputs);
  image_ = std::move(out[0]);
  text_ = out.size() > 1 ? std::move(out[1]) : at::Tensor();
  return net_.outputs_[number_++]->forward(image_);
}

atelier::NamedTensors ControlNet::probe(const atelier::NamedTensors& inputs,
                                        atelier::BlockRunner& runner) {
  atelier::allow_only(inputs, {"latents", "control", "sigma", "prompt_embeds"});
  const at::Tensor& latents = atelier::named_tensor(inputs, "latents", 5);
  const at::Tensor& prompts = atelier::named_tensor(inputs, "prompt_embeds", 3);
  const int64_t B = latents.size(0), H = latents.size(3) / kPatch, W = latents.size(4) / kPatch;
  const SharedRows own(Segments::uniform(B, H * W));
  const SampleRows rows = {.height = H, .width = W, .text = prompts.size(1)};
  ControlNetPass pass(*this, {.latents = to_rows(latents),
                              .picture = to_rows(atelier::named_tensor(inputs, "control", 5)),
                              .sigma_B = atelier::named_tensor(inputs, "sigma", 1).to(at::kFloat),
                              .prompts = prompts.unbind(),
                              .samples = std::vector(static_cast<size_t>(B), rows),
                              .own = own});
  Tensors hints;
  for (size_t i = 0; i < layers(); ++i) hints.push_back(pass.next(runner).view({B, H * W, -1}));
  return {{"hints", at::stack(hints)}};
}

void BlockwiseHints::begin(Pass& pass) {
  for (size_t i = 0; i < nets_.size(); ++i) {
    if (nets_[i] == nullptr) continue;
    const auto number = static_cast<int64_t>(i);
    const Scales scales = scales_of(kBlockwiseKind, pass, number);
    if (!scales.of_samples_B.defined()) continue;
    const at::Tensor rows = rows_of_picture(kBlockwiseKind, pass, number, nets_[i]->channels());
    active_.push_back({nets_[i], scales, nets_[i]->embed(rows)});
  }
}

void BlockwiseHints::after(int64_t index, Pass& pass) {
  const at::Tensor seen = active_.empty() ? at::Tensor() : pass.own_image();
  for (const Active& one : active_) {
    atelier::Block& block = one.net->block(static_cast<size_t>(index));
    pass.add(pass.runner.run(block, {seen, one.picture})[0], one.scales);
  }
}

std::optional<Detection> detect_controlnet(const atelier::TensorIndex& checkpoint) {
  static constexpr std::string_view kPrefixes[] = {"", "controlnet."};
  static constexpr std::string_view kMarkers[] = {kControlNetMark};
  const auto prefix = atelier::find_prefix(checkpoint, kPrefixes, kMarkers);
  if (!prefix) return std::nullopt;
  const PartView view(checkpoint, *prefix, "ControlNet");
  view.refuse_quantised();
  const ControlNetConfig config = {
      .blocks = read_blocks(view),
      .control_channels =
          view.parts(kControlNetMark, 1, kPatch * kPatch, "the file may be damaged")};
  return atelier::detection_of(kControlNet, "diffusers", config, *prefix);
}

ConfigFields controlnet_fields(const Detection& part) {
  const auto c = atelier::config_of<ControlNetConfig>(part);
  ConfigFields fields;
  fields.of_diffusers({"QwenImageControlNetModel"})
      .ignored({"pooled_projection_dim", "guidance_embeds", "zero_cond_t", "use_additional_t_cond",
                "use_layer3d_rope"})
      .told("num_layers", {c.blocks.layers})
      .told("num_attention_heads", {c.blocks.heads})
      .told("attention_head_dim", {c.blocks.head_dim})
      .told("joint_attention_dim", {c.blocks.text_width})
      .told("in_channels", {c.blocks.channels * kPatch * kPatch})
      .told("out_channels", {c.blocks.channels})
      .told("extra_condition_channels",
            {(c.control_channels - c.blocks.channels) * kPatch * kPatch})
      .fixed("patch_size", {kPatch})
      .read({"axes_dims_rope"});
  return fields;
}

WeightMap controlnet_map(const Detection& part) {
  ControlNet net(atelier::config_of<ControlNetConfig>(part));
  return atelier::named_weights(net);
}

namespace {

[[noreturn]] void refuse_control(const Detection& control, const std::string& what) {
  throw atelier::Error(atelier::ErrorCode::kInvalidArgument,
                       "the " + control.component + " is not made for the dit: " + what,
                       "pass one that is made for this model");
}

std::string unlike(const char* what, int64_t own, int64_t other) {
  return "it has " + std::to_string(own) + " " + what + ", the dit " + std::to_string(other);
}

// Its latents are those of the denoiser, maybe with a mask.
void check_channels(const Detection& control, int64_t own, const DitConfig& dit) {
  if (own != dit.channels && own != dit.channels + 1)
    refuse_control(control, unlike("channels", own, dit.channels));
}

void check_control(const Detection& control, const DitConfig& dit) {
  if (atelier::spec_name(control.component) == kBlockwise) {
    const auto c = atelier::config_of<BlockwiseConfig>(control);
    if (c.layers != dit.layers) refuse_control(control, unlike("blocks", c.layers, dit.layers));
    if (c.width != dit.width) refuse_control(control, unlike("channels a row", c.width, dit.width));
    return check_channels(control, c.channels, dit);
  }
  if (atelier::spec_name(control.component) != kControlNet) return;
  const auto c = atelier::config_of<ControlNetConfig>(control);
  if (c.blocks.width != dit.width)
    refuse_control(control, unlike("channels a row", c.blocks.width, dit.width));
  if (c.blocks.text_width != dit.text_width)
    refuse_control(control, unlike("channels of a text", c.blocks.text_width, dit.text_width));
  if (c.blocks.layers > dit.layers)
    refuse_control(control, unlike("blocks", c.blocks.layers, dit.layers));
  check_channels(control, c.control_channels, dit);
}

}  // namespace

void check_controls(std::span<const Detection> parts) {
  const auto dit = std::ranges::find(parts, "dit", &Detection::component);
  if (dit == parts.end()) return;
  for (const Detection& part : parts) check_control(part, dit_config(*dit));
}

std::vector<bool> mask_readers(std::span<const Detection> parts, const ControlKind& kind) {
  std::map<std::string, bool> readers;
  for (const Detection& part : parts) {
    if (atelier::spec_name(part.component) != kind.component) continue;
    const bool is_blockwise = kind.component == std::string_view(kBlockwise);
    const int64_t channels = is_blockwise
                                 ? atelier::config_of<BlockwiseConfig>(part).channels
                                 : atelier::config_of<ControlNetConfig>(part).control_channels;
    readers[part.component] = channels % 2 != 0;
  }
  std::vector<bool> result;
  for (const auto& [name, reads] : readers) result.push_back(reads);
  return result;
}

}  // namespace qwen_image
