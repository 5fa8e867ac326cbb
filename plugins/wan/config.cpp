#include "config.h"

#include <algorithm>

#include "atelier/error.h"
#include "atelier/part_view.h"
#include "atelier/parts/causal_vae.h"

#include "dancer.h"
#include "fun.h"
#include "longcat.h"
#include "vap.h"

namespace wan {

using atelier::ConfigValue;
using atelier::Detection;
using atelier::kOwnConfig;
using atelier::PartSpelling;
using atelier::PartView;
using atelier::refuse_kind;
using atelier::TensorIndex;
using std::to_string;

namespace {

constexpr int64_t kPublishedHeadDim = 128;
constexpr const char* kKnownKinds =
    "text-to-video and image-to-video checkpoints are loaded so far";

// A tensor of the adapter that lies in files of Wan2.2-Animate.
constexpr const char* kAnimateMarker = "pose_patch_embedding.weight";

constexpr std::string_view kOriginalMarkers[] = {"blocks.0.cross_attn.norm_k.weight"};
constexpr std::string_view kDiffusersMarkers[] = {
    "condition_embedder.text_embedder.linear_1.weight"};
// Names of Wan2.2-Animate-2. Outside of blocks diffusers has those of the original repository.
constexpr std::string_view kDrivenMarkers[] = {"blocks.0.block.cross_attn.norm_k.weight"};
constexpr std::string_view kDrivenDiffusersMarkers[] = {"blocks.0.self_attn.to_q.weight"};

// What models that are shown images have: an image encoder's rows, and channels of what is known.
void read_images(const PartView& view, const PartSpelling& names, DitConfig& c) {
  const std::string norm =
      names.of("img_emb.proj.0.weight", "condition_embedder.image_embedder.norm1.weight");
  const std::string positions =
      names.of("img_emb.emb_pos", "condition_embedder.image_embedder.pos_embed");
  c.image_width = view.contains(norm) ? view.dim(norm, 0) : 0;
  c.image_rows = view.contains(positions) ? view.dim(positions, 1) : 0;
  if (!dances(view)) read_fun(view, c);
  const bool is_given =
      c.given_channels == c.channels + kFrameStride && c.channels != kWideChannels;
  if (is_given || fun_variant(c) || (c.given_channels == 0 && c.image_width == 0)) return;
  refuse_kind("a Wan DiT with " + to_string(c.channels + c.given_channels) + " input and " +
                  to_string(c.channels) + " output channels" +
                  (c.image_width > 0 ? " that is shown images" : ""),
              kKnownKinds);
}

// Behind which blocks of Wan2.2-S2V-14B sound is heard.
const std::vector<int64_t> kAudioBlocks = {0, 4, 8, 12, 16, 20, 24, 27, 30, 33, 36, 39};

// What a model that hears has.
void read_audio(const PartView& view, DitConfig& c) {
  const std::string encoder = "casual_audio_encoder.";
  if (!view.contains(encoder + "weights")) return;
  c.audio_states = view.dim(encoder + "weights", 1);
  c.audio_width = view.dim(encoder + "encoder.conv1_local.conv.weight", 1);
  const int64_t channels = view.dim(encoder + "encoder.conv1_global.conv.weight", 0);
  c.audio_tokens = view.parts(encoder + "encoder.conv1_local.conv.weight", 0, channels);
  c.audio_blocks = view.index().config_integers("audio_inject_layers").value_or(kAudioBlocks);
  const int64_t injectors = view.block_count("audio_injector.injector.{}.q.weight");
  const bool rise = std::ranges::is_sorted(c.audio_blocks, std::ranges::less_equal());
  if (injectors != std::ssize(c.audio_blocks) || !rise || c.audio_blocks.front() < 0 ||
      c.audio_blocks.back() >= c.layers) {
    view.refuse("has " + to_string(c.layers) + " blocks and hears behind " + to_string(injectors) +
                    " of them, which audio_inject_layers in its config does not fit",
                kOwnConfig);
  }
  if (c.width % 4 != 0 || channels != c.width / 4 || c.patch != 2)
    view.refuse("has an audio encoder or patches of another size than it hears with");
}

// `inner`: what stands between the number of a block and its names.
DitConfig read_dit(const PartView& view, const PartSpelling& names, const std::string& inner = {}) {
  const std::string block = "blocks.0." + inner;
  DitConfig c{};
  c.layers = view.block_count("blocks.{}." + inner + names.of("modulation", "scale_shift_table"));
  c.width = view.dim("patch_embedding.weight", 0);
  c.patch = view.dim("patch_embedding.weight", 3);
  c.mlp_width = view.dim(block + names.of("ffn.0.weight", "ffn.net.0.proj.weight"), 0);
  c.text_width = view.dim(
      names.of("text_embedding.0.weight", "condition_embedder.text_embedder.linear_1.weight"), 1);
  c.time_width = view.dim(
      names.of("time_embedding.0.weight", "condition_embedder.time_embedder.linear_1.weight"), 1);
  c.channels = view.parts(names.of("head.head.weight", "proj_out.weight"), 0, c.patch * c.patch);
  c.given_channels = view.dim("patch_embedding.weight", 1) - c.channels;
  read_images(view, names, c);
  read_audio(view, c);
  if (dances(view)) read_dance(view, c);
  if (view.dim("patch_embedding.weight", 2) != 1 || c.time_width % 2 != 0)
    view.refuse("has patches of several frames, or an odd width of time");
  view.require_config(
      (c.width == 1536 || c.width == 3072 || c.width == 5120) && c.text_width == 4096,
      "num_heads and eps");
  c.heads = read_heads(view, c.width);
  c.norm_eps = read_eps(view);
  return c;
}

std::string_view variant_of(const DitConfig& c) {
  if (c.music_channels > 0) return kDancerLocal;
  if (const auto fun = fun_variant(c)) return *fun;
  if (c.image_rows > 0) return "wan2.1-i2v-14b-flf2v";
  if (c.image_width > 0) return c.width < 5120 ? "wan2.1-i2v-1.3b" : "wan2.1-i2v-14b";
  if (c.given_channels > 0) return "wan2.2-i2v-a14b";
  if (c.audio_states > 0) return kSpeech;
  if (c.channels == kWideChannels) return kWide;
  return c.width < 5120 ? "wan2.1-t2v-1.3b" : "wan2.1-t2v-14b";
}

// A denoiser that was trained is saved without the adapter, and with the config of both.
bool is_animate(const PartView& view) {
  if (view.contains(kAnimateMarker)) return true;
  const TensorIndex::Config& config = view.index().config();
  const auto kind = config.find("_class_name");
  return kind != config.end() && (kind->second == ConfigValue("WanAnimateTransformer3DModel") ||
                                  kind->second == ConfigValue("WanAnimateModel"));
}

// Globs over the names of a denoiser in whose file a control lies, too.
std::vector<std::string> names_beside_control(const PartSpelling& names) {
  if (!names.is_original)
    return {"blocks.*", "patch_embedding.*", "condition_embedder.*", "scale_shift_table",
            "proj_out.*"};
  return {"blocks.*",         "patch_embedding.*", "text_embedding.*",
          "time_embedding.*", "time_projection.*", "head.*",
          "img_emb.*"};
}

// Wan2.2-Animate-2.
std::optional<Detection> detect_driven(const TensorIndex& checkpoint) {
  const auto names =
      atelier::find_spelling(checkpoint, kPrefixes, kDrivenMarkers, kDrivenDiffusersMarkers);
  if (!names) return std::nullopt;
  const PartView view(checkpoint, names->prefix, "DiT");
  view.refuse_quantised();
  DitConfig config = read_dit(view, {.prefix = names->prefix}, names->of("block.", ""));
  config.is_driven = true;
  if (config.image_width == 0) view.refuse("has no image embedding");
  return atelier::parts::brief_detection_of("dit", names->name(), config, names->prefix);
}

}  // namespace

int64_t read_heads(const PartView& view, int64_t width) {
  const TensorIndex& index = view.index();
  auto said = index.config_integer("num_heads");
  if (!said) said = index.config_integer("num_attention_heads");
  const int64_t heads = said ? *said : width / kPublishedHeadDim;
  if (heads < 1 || width % heads != 0 || width / heads % 2 != 0 || width / heads < 6)
    view.refuse("has " + to_string(width) + " channels for " + to_string(heads) + " heads",
                kOwnConfig);
  return heads;
}

double read_eps(const PartView& view) {
  const double eps = view.index().config_real("eps").value_or(1e-6);
  if (!(eps >= 0)) view.refuse("has an eps below 0 in its config", kOwnConfig);
  return eps;
}

std::optional<Detection> detect_dit(const TensorIndex& checkpoint) {
  if (auto longcat = detect_longcat(checkpoint)) return longcat;
  if (auto driven = detect_driven(checkpoint)) {
    driven->variant = kDriven;
    return driven;
  }
  const auto names =
      atelier::find_spelling(checkpoint, kPrefixes, kOriginalMarkers, kDiffusersMarkers);
  if (!names) return std::nullopt;
  const PartView view(checkpoint, names->prefix, "DiT");
  view.refuse_quantised();
  const DitConfig config = read_dit(view, *names);
  Detection part = atelier::parts::brief_detection_of("dit", names->name(), config, names->prefix);
  part.variant = variant_of(config);
  part.owns = without_vap(checkpoint, names->prefix);
  if (is_animate(view)) part.variant = kAnimate;
  if (view.contains("vace_patch_embedding.weight") || view.contains(kAnimateMarker))
    part.owns = names_beside_control(*names);
  return part;
}

std::optional<Detection> detect_vae(const TensorIndex& checkpoint) {
  const auto file = atelier::parts::find_causal_vae(checkpoint);
  if (!file) return std::nullopt;
  if (file->image_channels == 4)
    refuse_kind("a VAE of pictures with transparency", "clips have three channels");
  return atelier::parts::detect_causal_vae(checkpoint, *file);
}

}  // namespace wan
