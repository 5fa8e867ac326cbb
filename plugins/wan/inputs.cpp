// What the variants are given, and the stages that encode it.
#include "atelier/component_family.h"

#include "config.h"
#include "music.h"
#include "tables.h"

namespace wan {
namespace {

using atelier::InputKind;
using atelier::InputSpec;
using atelier::InputUse;

constexpr InputSpec kInputs[] = {
    {.name = "prompt",
     .kind = InputKind::kText,
     .required = true,
     .help = "what is to be seen; at most 512 tokens"},
    {.name = "negative_prompt",
     .kind = InputKind::kText,
     .use = InputUse::kGenerate,
     .help = "what is not to be seen; the published one when empty"},
    {.name = "input_image",
     .kind = InputKind::kImage,
     .required = true,
     .required_by = "*-i2v-*",
     .variants = "*i2v-*",
     .help = "the first frame, stretched to the size of the clip",
     .fit = atelier::InputFit::kStretch,
     .when_absent = atelier::WhenAbsent::kFirstFrame},
    {.name = "end_image",
     .kind = InputKind::kImage,
     .required = true,
     .required_by = "*-flf2v",
     .variants = "*-i2v-*",
     .help = "the last frame, stretched to the size of the clip",
     .fit = atelier::InputFit::kStretch,
     .when_absent = atelier::WhenAbsent::kLastFrame},
    {.name = "motion_bucket_id",
     .kind = InputKind::kReal,
     .variants = kSmallText,
     .help = "how much moves, from 0 to 100; needs the motion controller"},
    {.name = "wantodance_music_path",
     .kind = InputKind::kAudio,
     .required = true,
     .variants = kDancers,
     .help = "the music; of the local model as long as the clip",
     .channels = 1,
     .sample_rate = music::kSampleRate,
     .is_soundtrack = true},
    {.name = "wantodance_reference_image",
     .kind = InputKind::kImage,
     .required = true,
     .variants = kDancers,
     .help = "who dances, scaled into the size of the clip; gray where it is not covered",
     .fit = atelier::InputFit::kPad,
     .pad_level = 127},
    {.name = "wantodance_keyframes",
     .kind = InputKind::kVideo,
     .required = true,
     .required_by = kDancerLocal,
     .variants = kDancers,
     .help =
         "a clip of key frames in their places; of n pictures of the global model 4 (n - 1) + 1 "
         "frames, without it the reference image and nothing else",
     .fit = atelier::InputFit::kPad,
     .pad_level = 127},
    {.name = "wantodance_keyframes_mask",
     .kind = InputKind::kInteger,
     .required = true,
     .required_by = kDancerLocal,
     .variants = kDancers,
     .help = "for each frame of them 1 if it is one, else 0; without it the first frame is",
     .max_count = 65'536},
    {.name = "wantodance_fps",
     .kind = InputKind::kReal,
     .variants = kDancers,
     .help =
         "frames per second, as the prompt has them behind 帧率是; 30 of the local model, of the "
         "global one without it 149 frames for the whole music"},
    {.name = "framewise_decoding",
     .kind = InputKind::kFlag,
     .variants = kDancerGlobal,
     .help = "each picture goes through the VAE alone, which is always so"},
    {.name = "input_video",
     .kind = InputKind::kVideo,
     .use = InputUse::kGenerate,
     .help = "a clip to change, or an image, scaled and cropped to the size of what is made",
     .role = atelier::InputRole::kStart},
    {.name = "video",
     .kind = InputKind::kVideo,
     .required = true,
     .use = InputUse::kTrain,
     .help = "the clip or image to learn",
     .role = atelier::InputRole::kTarget},
};

constexpr std::string_view kImagesComponents[] = {"image_encoder"};
constexpr std::string_view kImagesInputs[] = {"input_image", "end_image"};
constexpr std::string_view kFirstImageInputs[] = {"input_image"};
constexpr std::string_view kKeyframesComponents[] = {"image_encoder", "vae"};
constexpr std::string_view kMusicInputs[] = {"wantodance_music_path", "wantodance_fps"};
constexpr std::string_view kReferenceInputs[] = {"wantodance_reference_image"};
constexpr std::string_view kKeyframesInputs[] = {
    "wantodance_keyframes", "wantodance_keyframes_mask", "wantodance_reference_image",
    "framewise_decoding"};
constexpr std::string_view kMotionComponents[] = {"motion_controller"};
constexpr std::string_view kMotionInputs[] = {"motion_bucket_id"};

constexpr atelier::EncodeStage kStages[] = {
    atelier::kTextStage,
    {.name = "images",
     .components = kImagesComponents,
     .inputs = kImagesInputs,
     .variants = "wan2.1-i2v-*-flf2v"},
    // Without positions the rows of two images could not be told apart: the last one is in the
    // given clip alone, as VideoX-Fun has it.
    {.name = "first_image",
     .components = kImagesComponents,
     .inputs = kFirstImageInputs,
     .variants = "wan2.1-i2v-*b"},
    {.name = "given_clip",
     .components = atelier::kLatentsComponents,
     .inputs = kImagesInputs,
     .sees_target = true,
     .variants = "*-i2v-*"},
    {.name = "first_frame",
     .components = atelier::kLatentsComponents,
     .inputs = kFirstImageInputs,
     .sees_target = true,
     .variants = "*-ti2v-*"},
    {.name = "motion",
     .components = kMotionComponents,
     .inputs = kMotionInputs,
     .variants = kSmallText},
    {.name = "music",
     .components = {},
     .inputs = kMusicInputs,
     .sees_target = true,
     .variants = kDancers,
     .per_piece = true},
    {.name = "reference",
     .components = kImagesComponents,
     .inputs = kReferenceInputs,
     .variants = kDancers},
    {.name = "keyframes",
     .components = kKeyframesComponents,
     .inputs = kKeyframesInputs,
     .sees_target = true,
     .variants = kDancers,
     .per_piece = true},
    atelier::kVideoStage,
};

}  // namespace

std::span<const InputSpec> input_table() {
  return kInputs;
}

std::span<const atelier::EncodeStage> stage_table() {
  return kStages;
}

}  // namespace wan
