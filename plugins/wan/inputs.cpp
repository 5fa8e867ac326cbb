// What the variants are given, and the stages that encode it.
#include "atelier/component_family.h"

#include "config.h"
#include "s2v_stages.h"
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
     .required_by = "*-i2v-*|*-s2v-*",
     .variants = "*i2v-*|*-s2v-*",
     .help = "the first frame, or who speaks in wan2.2-s2v-14b, stretched to the size of the clip",
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
    {.name = "input_audio",
     .kind = InputKind::kAudio,
     .required = true,
     .variants = kSpeech,
     .help = "what is said or sung, as long as the clip; the clip's file has it, too",
     .channels = 1,
     .is_soundtrack = true},
    {.name = "s2v_pose_video",
     .kind = InputKind::kVideo,
     .variants = kSpeech,
     .help = "a clip of poses to follow, at 16 frames a second",
     .fps = kSpeechFps,
     .along_clip = true,
     .tail = atelier::Tail::kMinusOne},
    {.name = "motion_video",
     .kind = InputKind::kVideo,
     .use = InputUse::kGenerate,
     .variants = kSpeech,
     .help = "a clip to follow on, of which the last 73 frames are seen",
     .fps = kSpeechFps},
    {.name = "init_first_frame",
     .kind = InputKind::kFlag,
     .use = InputUse::kGenerate,
     .variants = kSpeech,
     .help = "the clip begins with the image"},
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
constexpr std::string_view kAudioComponents[] = {"audio_encoder"};
constexpr std::string_view kAudioInputs[] = {"input_audio"};
constexpr std::string_view kSpeechInputs[] = {"input_image", "s2v_pose_video", "motion_video",
                                              "init_first_frame"};
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
    {.name = "reference",
     .components = atelier::kLatentsComponents,
     .inputs = kFirstImageInputs,
     .sees_target = true,
     .variants = kSpeech},
    {.name = "audio",
     .components = kAudioComponents,
     .inputs = kAudioInputs,
     .variants = kSpeech,
     .per_branch = true},
    {.name = "speech",
     .components = atelier::kLatentsComponents,
     .inputs = kSpeechInputs,
     .sees_target = true,
     .variants = kSpeech,
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
