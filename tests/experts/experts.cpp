// A family that is none of the published ones: two expert denoisers of one architecture, with a
// control beside each, latents of clips, optional images beside the prompt, and an autoencoder that
// another family has too. It is written in the frame of the SDK alone; nothing outside this folder
// knows it.
#include <ATen/ATen.h>

#include "atelier/component_model.h"
#include "atelier/error.h"
#include "atelier/named_inputs.h"
#include "atelier/nn/layers.h"
#include "atelier/nn/waves.h"
#include "atelier/ops/attention.h"
#include "atelier/ops/pointwise.h"
#include "atelier/parts/causal_vae.h"
#include "atelier/plugin.h"

#include "tests/support/byte_encoder.h"

namespace {
using namespace atelier;
using parts::CausalVae;
using test::Bytes;
using test::StackConfig;
using test::WidthConfig;

constexpr int64_t kChannels = 16, kStride = 2, kFrameStride = 2, kHeadDim = 16, kTimeChannels = 32;
constexpr double kBoundary = 0.5;  // noise levels above it are the first expert's
constexpr std::string_view kVariants[] = {"experts", "experts-fast"};
constexpr const char *kReference = "reference", *kSides = "sides", *kAid = "aid",
                     *kBeside = "beside", *kLabels = "labels";
constexpr std::string_view kDirections[] = {"left", "right"};

constexpr InputSpec kInputs[] = {
    {.name = "prompt", .kind = InputKind::kText, .required = true, .help = "what is to be seen"},
    {.name = "first_image",
     .kind = InputKind::kImage,
     .help = "an image to begin with; none: the prompt alone",
     .fit = InputFit::kStretch,
     .when_absent = WhenAbsent::kFirstFrame},
    {.name = "side_images",
     .kind = InputKind::kImage,
     .variants = "experts",
     .help = "images to look at, with even sides",
     .max_count = 2,
     .fit = InputFit::kAsIs},
    {.name = "draft",
     .kind = InputKind::kVideo,
     .use = InputUse::kGenerate,
     .help = "a clip to change",
     .role = InputRole::kStart},
    {.name = "aid", .kind = InputKind::kInteger, .help = "how much the aids help"},
    {.name = "music",
     .kind = InputKind::kAudio,
     .help = "a sound beside the clip",
     .channels = 1,
     .along_clip = true,
     .tail = Tail::kZero,
     .is_soundtrack = true},
    {.name = "guide",
     .kind = InputKind::kVideo,
     .help = "a clip beside the clip",
     .fps = 4,
     .along_clip = true,
     .tail = Tail::kMirror},
    {.name = "panel",
     .kind = InputKind::kImage,
     .help = "an image of any shape",
     .fit = InputFit::kPad,
     .filter = ResizeFilter::kLanczos,
     .pad_level = 127,
     .fit_height = 8,
     .fit_width = 12},
    {.name = "direction",
     .kind = InputKind::kText,
     .help = "where it goes",
     .choices = kDirections},
    {.name = "labels", .kind = InputKind::kText, .help = "texts beside the prompt", .max_count = 3},
    {.name = "label_scales",
     .kind = InputKind::kReal,
     .help = "how much each of labels counts",
     .max_count = 3,
     .paired_with = "labels"},
    {.name = "looped",
     .kind = InputKind::kFlag,
     .variants = "loops*",
     .help = "of a variant that is not there"},
    {.name = "image",
     .kind = InputKind::kVideo,
     .required = true,
     .use = InputUse::kTrain,
     .help = "the image or clip to learn",
     .role = InputRole::kTarget},
};
constexpr std::string_view kTextEncoder[] = {"text_encoder"}, kVae[] = {"vae"},
                           kEye[] = {"image_encoder"}, kPrompt[] = {"prompt"},
                           kFirst[] = {"first_image"}, kSideImages[] = {"side_images"},
                           kImage[] = {"image"}, kAids[] = {"aid_high", "aid_low"},
                           kAidInput[] = {"aid"},
                           kAround[] = {"music", "guide", "panel", "direction"},
                           kTexts[] = {"labels", "label_scales"};
constexpr EncodeStage kStages[] = {
    {.name = "text", .components = kTextEncoder, .inputs = kPrompt},
    {.name = "reference", .components = kVae, .inputs = kFirst},
    {.name = "sides", .components = kEye, .inputs = kSideImages, .variants = "experts"},
    {.name = "aid", .components = kAids, .inputs = kAidInput},
    {.name = "beside", .components = {}, .inputs = kAround},
    {.name = "labels", .components = kTextEncoder, .inputs = kTexts},
    {.name = "latents", .components = kVae, .inputs = kImage},
};
constexpr ScheduleDefaults kSchedules[] = {
    {.variants = "experts", .num_inference_steps = 4},
    {.variants = "experts-fast",
     .num_inference_steps = 3,
     .cfg_scale = 1,
     .shift = {.kind = SigmaShift::Kind::kConstant, .value = 3},
     .solver = "unipc",
     .grid = {.high = 0.999},
     .whole_timesteps = true},
};

// Looks at images beside the prompt. Published alone, and inside the text encoder's file.
struct Eye final : nn::Module {
  nn::Linear eye;
  explicit Eye(const WidthConfig& c)
      : Module(nullptr, ""), eye(this, "eye", 3 * kStride * kStride, c.width) {}
  at::Tensor forward(const at::Tensor& image_CHW) {  // to [cells, width]
    return eye.forward(at::pixel_unshuffle(image_CHW, kStride).flatten(1).t());
  }
};

// Inputs: rows [N, D], the noise level (see nn::NoiseLevels), offsets of the samples.
struct ExpertBlock final : Block {
  nn::Linear modulation, qkv, out, up, down;
  ExpertBlock(Module* parent, std::string name, int64_t width)
      : Block(parent, std::move(name)),
        modulation(this, "modulation", width, 2 * width),
        qkv(this, "qkv", width, 3 * width),
        out(this, "out", width, width),
        up(this, "up", width, 2 * width),
        down(this, "down", 2 * width, width) {}
  std::string_view kind() const override { return "expert"; }
  Tensors forward(const Tensors& in) override {
    const Segments rows = Segments::from_tensor(in[2]);
    const bool is_prepared = in[1].size(-1) == modulation.out_features();
    const std::vector<at::Tensor> level =
        (is_prepared ? in[1] : nn::of_levels(modulation, in[1], rows.count())).chunk(2, 1);
    const at::Tensor h = ops::norm_modulate(in[0], level[0], level[1], rows);
    const at::Tensor heads = qkv.forward(h).view({h.size(0), 3, -1, kHeadDim});
    const at::Tensor x = in[0] + out.forward(ops::attention(heads.select(1, 0), heads.select(1, 1),
                                                            heads.select(1, 2), rows));
    return {x + down.forward(ops::gelu_tanh(up.forward(x)))};
  }
};

// Changes the rows of what is made.
struct Aid final : nn::Module {
  nn::Linear aid;
  explicit Aid(const WidthConfig& c) : Module(nullptr, ""), aid(this, "aid", 1, c.width) {}
};

at::Tensor time_of(const at::Tensor& sigma_B) {
  return nn::time_channels(sigma_B, kTimeChannels, 1000.0);
}

struct Expert final : Denoiser {
  nn::Linear embed, time_in, time_out, end, unembed;
  std::vector<std::unique_ptr<ExpertBlock>> layers;
  nn::NoiseLevels noise_levels;
  Aid* aid = nullptr;  // of the model
  explicit Expert(const StackConfig& c)
      : Denoiser(nullptr, ""),
        embed(this, "embed", kChannels, c.width),
        time_in(this, "time_in", kTimeChannels, c.width),
        time_out(this, "time_out", c.width, c.width),
        end(this, "end", c.width, 2 * c.width),
        unembed(this, "unembed", c.width, kChannels),
        noise_levels(time_of, time_in, time_out, {&end}) {
    for (int64_t i = 0; i < c.layers; ++i) {
      layers.push_back(std::make_unique<ExpertBlock>(this, "blocks." + std::to_string(i), c.width));
      noise_levels.add(*layers.back(), {&layers.back()->modulation});
    }
  }
  int64_t channels() const override { return kChannels; }
  int64_t patch() const override { return 1; }
  at::ScalarType dtype() const override { return embed.weight->draw().scalar_type(); }
  std::vector<ConditioningEntry> entries() const override {
    return {{.width = embed.out_features()},
            {.name = kReference},
            {.name = kSides},
            {.name = kBeside},
            {.name = kLabels}};
  }
  nn::NoiseLevels* levels() override { return &noise_levels; }

  at::Tensor denoise(const DenoiseInputs& in, BlockRunner& runner) override {
    // Each sample's rows: its prompt, the cells of its images where there are any, its latents.
    std::vector<at::Tensor> context;
    std::vector<int64_t> lengths;
    for (const Conditioning* cond : in.cond) {
      context.push_back(named_tensor(*cond, kPromptEmbeds, 2));
      if (cond->contains(kLabels))
        context.back() = at::cat({context.back(), named_tensor(*cond, kLabels, 2)});
      for (const char* images : {kReference, kSides, kBeside}) {
        if (!cond->contains(images)) continue;
        const at::Tensor cells = named_tensor(*cond, images, 2);
        context.back() = at::cat({context.back(), embed.forward(cells.to(context.back().dtype()))});
      }
      lengths.push_back(context.back().size(0));
    }
    const at::Tensor cells = in.x_BCTHW.permute({0, 2, 3, 4, 1});
    at::Tensor x = embed.forward(cells.flatten(1, 3));
    if (aid != nullptr && in.cond.front()->contains(kAid))
      x = x + aid->aid.forward(in.cond.front()->at(kAid).to(x.scalar_type()));
    const Segments context_rows(lengths), rows = Segments::uniform(x.size(0), x.size(1));
    const auto level = noise_levels.step(in.sigma_B, x.scalar_type(), in.level);
    at::Tensor joint = join_rows(at::cat(context), context_rows, x.flatten(0, 1), rows);
    const at::Tensor offsets = join(context_rows, rows).tensor();
    for (size_t i = 0; i < layers.size(); ++i)
      joint = runner.run(*layers[i], {joint, level.of_block(i), offsets})[0];
    const std::vector<at::Tensor> ends = level.of_end().chunk(2, 1);
    const at::Tensor made = split_rows(joint, context_rows, rows).second;
    const at::Tensor v = unembed.forward(ops::norm_modulate(made, ends[0], ends[1], rows));
    return v.view(cells.sizes()).permute({0, 4, 1, 2, 3}).contiguous();
  }
};

// The shared autoencoder takes images: a latent frame is one image of a clip, which stands for
// itself and the one before it.
struct Experts final : ComponentModel {
  Experts(std::span<const ComponentRow> rows, std::span<const Detection> parts,
          const ModelOptions& options, const LatentSpec& latents)
      : ComponentModel(rows, parts, options, latents) {
    const auto find = [&](const char* name) {
      return std::ranges::find(parts, name, &Detection::component) == parts.end()
                 ? nullptr
                 : &component(name);
    };
    for (const auto& [name, beside] :
         {std::pair("dit", "aid_high"), std::pair("dit_low", "aid_low")})
      if (auto* expert = dynamic_cast<Expert*>(find(name)))
        expert->aid = dynamic_cast<Aid*>(find(beside));
  }

  std::vector<int64_t> tokenize(std::string_view text) const override {
    return {reinterpret_cast<const uint8_t*>(text.data()),
            reinterpret_cast<const uint8_t*>(text.data()) + text.size()};
  }
  // Without a size, what is made has that of the first image to look at.
  MediaTarget target(const Inputs& inputs, const MediaTarget& asked) const override {
    const auto* sides = find_input<std::vector<at::Tensor>>(inputs, "side_images");
    if (sides == nullptr || asked.height > 0 || asked.width > 0) return asked;
    return {asked.frames, sides->front().size(1), sides->front().size(2)};
  }
  static std::string text_of(const EncodeInputs& in) {
    if (in.stage != "labels") return text_input(in.values, "prompt") + '\n';
    std::string longest;
    for (const std::string& text : *find_input<std::vector<std::string>>(in.values, "labels"))
      if (text.size() >= longest.size()) longest = text + '\n';
    return longest;
  }
  TextLength text_length(const EncodeInputs& in) const override {
    return {.tokens = std::ssize(text_of(in)), .limit = 64};
  }
  Conditioning encode(const EncodeInputs& in, BlockRunner& runner) override {
    if (in.stage == "text") {
      std::vector<int64_t> ids = tokenize(text_of(in));
      cut_to_limit(ids, text_length(in));
      return {{kPromptEmbeds, encode_ids("text_encoder", ids, runner)}};
    }
    if (in.stage == "latents")
      return {{"latents", latents_of(clip_input(in.values, "image"), runner)}};
    if (in.stage == "reference")
      return {
          {kReference, latents_of(clip_input(in.values, "first_image"), runner).flatten(1).t()}};
    if (in.stage == "aid")
      return {{kAid, at::tensor({static_cast<float>(*find_input<int64_t>(in.values, "aid"))})}};
    if (in.stage == "beside") return {{kBeside, beside_of(in)}};
    if (in.stage == "labels") return {{kLabels, labels_of(in, runner)}};
    std::vector<at::Tensor> cells;  // [cells, C] of each image
    for (const at::Tensor& side : *find_input<std::vector<at::Tensor>>(in.values, "side_images"))
      cells.push_back(loaded<Eye>("image_encoder").forward(side));
    return {{kSides, at::cat(cells)}};
  }
  // Rows [N, C] of all that stands beside.
  static at::Tensor beside_of(const EncodeInputs& in) {
    std::vector<at::Tensor> rows;
    if (const auto* music = find_input<at::Tensor>(in.values, "music"))
      rows.push_back(at::adaptive_avg_pool1d(music->abs(), {2 * kChannels}).view({2, kChannels}));
    if (const auto* guide = find_input<at::Tensor>(in.values, "guide"))
      rows.push_back(at::adaptive_avg_pool2d(guide->mean(0), {4, 4}).flatten(1));
    if (const auto* panel = find_input<at::Tensor>(in.values, "panel"))
      rows.push_back(at::adaptive_avg_pool2d(*panel, {4, 4}).flatten(1));
    if (const auto* direction = find_input<std::string>(in.values, "direction"))
      rows.push_back(at::full({1, kChannels}, *direction == "left" ? -1.0 : 1.0));
    return at::cat(rows);
  }
  at::Tensor labels_of(const EncodeInputs& in, BlockRunner& runner) {
    const auto* scales = find_input<std::vector<double>>(in.values, "label_scales");
    const auto& labels = *find_input<std::vector<std::string>>(in.values, "labels");
    std::vector<at::Tensor> rows;
    for (size_t i = 0; i < labels.size(); ++i) {
      std::vector<int64_t> ids = tokenize(labels[i] + '\n');
      cut_to_limit(ids, {.tokens = std::ssize(ids), .limit = text_length(in).limit});
      rows.push_back(encode_ids("text_encoder", ids, runner) * (scales ? scales->at(i) : 1.0));
    }
    return at::cat(rows);
  }
  NamedTensors probe(std::string_view name, const NamedTensors& in, BlockRunner& runner) override {
    if (name.starts_with("aid")) {
      allow_only(in, {"aid"});
      return {{"rows", loaded<Aid>(name).aid.forward(named_tensor(in, "aid", 1))}};
    }
    if (name != "image_encoder") return ComponentModel::probe(name, in, runner);
    allow_only(in, {"image"});
    return {{"cells", loaded<Eye>(name).forward(named_tensor(in, "image", 3))}};
  }
  at::Tensor latents_of(const at::Tensor& pixels, BlockRunner& runner) {  // [3, T, H, W]
    if (pixels.size(2) % kStride != 0 || pixels.size(3) % kStride != 0)
      throw Error(ErrorCode::kInvalidArgument, "height and width must be multiples of 2");
    const at::Tensor kept = pixels.slice(1, 0, std::nullopt, kFrameStride);
    return loaded<CausalVae>("vae")
        .encode(kept.transpose(0, 1).unsqueeze(2), runner)
        .squeeze(2)
        .transpose(0, 1)
        .contiguous();
  }
  void decode(const at::Tensor& latents_BCTHW, BlockRunner& runner,
              const FrameSink& sink) override {
    for (int64_t t = 0; t < latents_BCTHW.size(2); ++t) {
      const auto twice = [&](const at::Tensor& frame) {
        sink(t == 0 ? frame : frame.repeat_interleave(kFrameStride, 2));
      };
      loaded<CausalVae>("vae").decode(latents_BCTHW.narrow(2, t, 1), runner, twice);
    }
  }
};

std::optional<Detection> detect_bytes(const TensorIndex& in) {
  if (!in.contains("bytes.weight")) return std::nullopt;
  Detection part = detection_of("text_encoder", "plain", WidthConfig{in.dim("bytes.weight", 1)});
  part.owns = {"bytes.*"};
  return part;
}
std::optional<Detection> detect_eye(const TensorIndex& in) {
  if (!in.contains("eye.weight")) return std::nullopt;
  return detection_of("image_encoder", "plain", WidthConfig{in.dim("eye.weight", 0)});
}
std::optional<Detection> detect_vae(const TensorIndex& in) {
  const auto file = parts::find_causal_vae(in);
  return file ? std::optional(parts::detect_causal_vae(in, *file)) : std::nullopt;
}
// The experts' tensors do not say which is which: names of files and folders do, see the table.
std::optional<Detection> detect_expert(const TensorIndex& in) {
  const int64_t layers = in.block_count("blocks.{}.modulation.weight");
  if (layers == 0 || !in.contains("unembed.weight")) return std::nullopt;
  return detection_of("dit", "plain", StackConfig{in.dim("unembed.weight", 1), layers});
}
std::optional<Detection> detect_aid(const TensorIndex& in) {
  if (!in.contains("aid.weight")) return std::nullopt;
  return detection_of("aid_high", "plain", WidthConfig{in.dim("aid.weight", 0)});
}
ConfigFields told_fields(const Detection& part) {
  ConfigFields fields;
  for (const auto& [number, value] : part.config) fields.told(number, {value});
  return fields;
}
ConfigFields vae_fields(const Detection& part) {
  return parts::causal_vae_fields(part, {"AutoencoderOfExperts"});
}
template <class Part, class Config>
WeightMap map_of(const Detection& part) {
  return named_weights(*make_part<Part, Config>(part));
}
Detection tiny_expert() {
  return detection_of("", "plain", StackConfig{32, 2});
}
Detection tiny_vae() {
  return parts::detection_of_causal_vae({.channels = kChannels,
                                         .widths = {8, 8},
                                         .base_width = 8,
                                         .res_blocks = 1,
                                         .temporal = {true},
                                         .mean = parts::kCausalVaeMean,
                                         .std = parts::kCausalVaeStd},
                                        "diffusers");
}

constexpr ComponentRow kRows[] = {
    {.spec = {.name = "text_encoder", .role = Role::kTextEncoder, .help = "a vector for each byte"},
     .detect = detect_bytes,
     .config_fields = told_fields,
     .weight_map = map_of<Bytes, WidthConfig>,
     .make = make_part<Bytes, WidthConfig>,
     .tiny = [] { return detection_of("", "plain", WidthConfig{32}); }},
    {.spec = {.name = "image_encoder",
              .role = Role::kImageEncoder,
              .required = false,
              .help = "a vector for each cell of side images",
              .variants = "experts"},
     .detect = detect_eye,
     .config_fields = told_fields,
     .weight_map = map_of<Eye, WidthConfig>,
     .make = make_part<Eye, WidthConfig>,
     .tiny = [] { return detection_of("", "plain", WidthConfig{kChannels}); }},
    {.spec = {.name = "vae", .role = Role::kVae, .help = "the autoencoder of several families"},
     .detect = detect_vae,
     .config_fields = vae_fields,
     .weight_map = parts::causal_vae_map,
     .make = parts::make_causal_vae,
     .tiny = tiny_vae},
    {.spec = {.name = "dit",
              .role = Role::kDenoiser,
              .help = "the expert of much noise",
              .paths = {"*high_noise*", "dit"}},
     .detect = detect_expert,
     .config_fields = told_fields,
     .weight_map = map_of<Expert, StackConfig>,
     .make = make_part<Expert, StackConfig>,
     .tiny = tiny_expert},
    {.spec = {.name = "dit_low",
              .role = Role::kDenoiser,
              .help = "the expert of little noise",
              .paths = {"*low_noise*", "dit_low", "transformer_2"}},
     .detect = detect_expert,
     .config_fields = told_fields,
     .weight_map = map_of<Expert, StackConfig>,
     .make = make_part<Expert, StackConfig>,
     .tiny = tiny_expert},
    {.spec = {.name = "aid_high",
              .role = Role::kControl,
              .required = false,
              .help = "helps the expert of much noise",
              .paths = {"aid_high"},
              .beside = "dit"},
     .detect = detect_aid,
     .config_fields = told_fields,
     .weight_map = map_of<Aid, WidthConfig>,
     .make = make_part<Aid, WidthConfig>,
     .tiny = [] { return detection_of("", "plain", WidthConfig{32}); }},
    {.spec = {.name = "aid_low",
              .role = Role::kControl,
              .required = false,
              .help = "helps the expert of little noise",
              .paths = {"aid_low"},
              .beside = "dit_low"},
     .detect = detect_aid,
     .config_fields = told_fields,
     .weight_map = map_of<Aid, WidthConfig>,
     .make = make_part<Aid, WidthConfig>,
     .tiny = [] { return detection_of("", "plain", WidthConfig{32}); }},
};

struct Family final : ComponentFamily {
  Family() : ComponentFamily(kRows, kVariants) {}
  std::string_view name() const override { return "experts"; }
  std::string_view help() const override { return "two experts, for tests"; }
  std::span<const InputSpec> inputs() const override { return kInputs; }
  std::span<const EncodeStage> encode_stages() const override { return kStages; }
  std::span<const ScheduleDefaults> schedules() const override { return kSchedules; }
  SigmaRange sigma_range(const Detection& denoiser) const override {
    if (denoiser.component == "dit_low") return {.low = 0, .high = kBoundary};
    return {.low = kBoundary, .high = 1};
  }
  MediaDefaults media_defaults(const Detection& denoiser) const override {
    if (denoiser.variant == "experts-fast") return {.target = {1, 24, 16}};
    return {.target = {1, 16, 32}, .fps = 8};
  }
  LoraTargets lora_targets(const Detection& denoiser) const override {
    return {denoiser.component, {"blocks.*.qkv", "blocks.*.out"}, {}, "transformer."};
  }
  std::unique_ptr<Model> make_model(std::span<const Detection> parts,
                                    const ModelOptions& options) const override {
    const LatentSpec latents = {kChannels,           kStride, kFrameStride, kStride, kStride,
                                /*takes_clips=*/true};
    return std::make_unique<Experts>(rows(), parts, options, latents);
  }
};

}  // namespace

ATELIER_PLUGIN(Family, "experts", "0.1.0")
