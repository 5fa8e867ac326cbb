// What the variants are given, and the stages that encode it.
#include "atelier/component_family.h"

#include "animate.h"
#include "config.h"
#include "tables.h"

namespace wan {
namespace {

using atelier::InputKind;
using atelier::InputSpec;
using atelier::InputUse;

// Clips beside the one that Animate makes have their tails mirrored, as published.
constexpr InputSpec beside(std::string_view name, InputKind kind, std::string_view help) {
  return {.name = name,
          .kind = kind,
          .variants = kAnimate,
          .help = help,
          .along_clip = true,
          .tail = atelier::Tail::kMirror};
}

constexpr InputSpec kAnimatePoseVideo = [] {
  InputSpec input = beside("animate_pose_video", InputKind::kVideo, "the pose to take, as drawn");
  input.required = true;
  return input;
}();
constexpr InputSpec kAnimateFaceVideo = [] {
  InputSpec input = beside("animate_face_video", InputKind::kVideo,
                           "the face whose expressions are taken, brought to 512 x 512");
  input.required = true;
  input.fit_height = input.fit_width = 512;
  return input;
}();

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
     .required_by = "*-i2v-*|wan2.2-animate-14b",
     .variants = "*i2v-*|wan2.2-animate-14b",
     .help = "the first frame, of Animate the character, stretched to the size of the clip",
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
    kAnimatePoseVideo,
    kAnimateFaceVideo,
    beside("animate_inpaint_video", InputKind::kVideo,
           "the clip in which the character takes somebody's place; needs the mask"),
    beside("animate_mask_video", InputKind::kVideoMask, "white where the character comes"),
    {.name = "segment_frame_length",
     .kind = InputKind::kInteger,
     .use = InputUse::kGenerate,
     .variants = kAnimate,
     .help = "frames that are made at a time of a longer clip, by default 77"},
    {.name = "prev_segment_conditioning_frames",
     .kind = InputKind::kInteger,
     .use = InputUse::kGenerate,
     .variants = kAnimate,
     .help = "frames that each segment shares with the one before, 1 or 5, by default 1"},
    {.name = "motion_bucket_id",
     .kind = InputKind::kReal,
     .variants = kSmallText,
     .help = "how much moves, from 0 to 100; needs the motion controller"},
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
constexpr std::string_view kMotionComponents[] = {"motion_controller"};
constexpr std::string_view kMotionInputs[] = {"motion_bucket_id"};

constexpr std::string_view kAdapterComponents[] = {kAnimateAdapter};
constexpr std::string_view kPoseInputs[] = {"animate_pose_video"};
constexpr std::string_view kFaceInputs[] = {"animate_face_video"};
constexpr std::string_view kAroundInputs[] = {"input_image", "animate_inpaint_video",
                                              "animate_mask_video"};
constexpr std::string_view kLearntInputs[] = {"video", "input_image"};

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
     .variants = "wan2.1-i2v-*b|wan2.2-animate-14b"},
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
    {.name = "animate_pose",
     .components = atelier::kLatentsComponents,
     .inputs = kPoseInputs,
     .sees_target = true,
     .variants = kAnimate,
     .per_piece = true},
    {.name = "animate_faces",
     .components = kAdapterComponents,
     .inputs = kFaceInputs,
     .sees_target = true,
     .variants = kAnimate,
     .per_branch = true,
     .per_piece = true},
    {.name = "animate_clip",
     .components = atelier::kLatentsComponents,
     .inputs = kAroundInputs,
     .sees_target = true,
     .variants = kAnimate,
     .per_piece = true},
    {.name = "latents",
     .components = atelier::kLatentsComponents,
     .inputs = kLearntInputs,
     .variants = kAnimate},
    {.name = "motion",
     .components = kMotionComponents,
     .inputs = kMotionInputs,
     .variants = kSmallText},
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
