// What the variants are given, and the stages that encode it.
#include "atelier/component_family.h"

#include "animate.h"
#include "camera.h"
#include "config.h"
#include "fun.h"
#include "longcat.h"
#include "music.h"
#include "s2v_stages.h"
#include "tables.h"

namespace wan {
namespace {

using atelier::InputKind;
using atelier::InputSpec;
using atelier::InputUse;

constexpr std::string_view kVaces = "*-vace-*";
// V1.1 of Wan-Fun Control, and the models behind it.
constexpr std::string_view kTakesReference = "*-fun-control-v1.1-*|wan2.2-fun-control-*",
                           kTakesCamera = "*-fun-camera-*";

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
     .required_by = "*-i2v-*|*-fun-camera-*|wan2.2-animate-14b|*-s2v-*",
     .variants = "*i2v-*|*-fun-*|wan2.2-animate-14b|longcat-video|*-s2v-*",
     .help =
         "the first frame, of Animate the character and of S2V who speaks, stretched to the size "
         "of the clip",
     .fit = atelier::InputFit::kStretch,
     .when_absent = atelier::WhenAbsent::kFirstFrame},
    {.name = "end_image",
     .kind = InputKind::kImage,
     .required = true,
     .required_by = "*-flf2v",
     .variants = "*-i2v-*|wan2.2-fun-*",
     .help = "the last frame, stretched to the size of the clip",
     .fit = atelier::InputFit::kStretch,
     .when_absent = atelier::WhenAbsent::kLastFrame},
    {.name = "control_video",
     .kind = InputKind::kVideo,
     .variants = "*-fun-control-*",
     .help = "the clip to follow, such as one of poses, depths or edges, of as many frames",
     .along_clip = true},
    {.name = "reference_image",
     .kind = InputKind::kImage,
     .variants = kTakesReference,
     .help = "who or what is seen, stretched to the size of the clip",
     .fit = atelier::InputFit::kStretch},
    {.name = "camera_control_direction",
     .kind = InputKind::kText,
     .required = true,
     .variants = kTakesCamera,
     .help = "where the camera goes",
     .choices = kDirections},
    {.name = "camera_control_speed",
     .kind = InputKind::kReal,
     .variants = kTakesCamera,
     .help = "how far it goes with each frame (default 1/54)"},
    {.name = "camera_control_origin",
     .kind = InputKind::kReal,
     .variants = kTakesCamera,
     .help = "the pose of the first frame, of which the lens counts; the published one when empty",
     .min_count = kPoseNumbers,
     .max_count = kPoseNumbers},
    {.name = "longcat_video",
     .kind = InputKind::kVideo,
     .variants = kLongCat,
     .help = "frames that the clip begins with, a multiple of 4 and one, stretched to its size",
     .fit = atelier::InputFit::kStretch,
     .filter = atelier::ResizeFilter::kLanczos},
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
    {.name = "vace_video",
     .kind = InputKind::kVideo,
     .variants = kVaces,
     .help = "a clip to follow: edges, depth, poses, or what is changed where the mask is white",
     .along_clip = true},
    {.name = "vace_video_mask",
     .kind = InputKind::kVideoMask,
     .variants = kVaces,
     .help = "a clip or a picture, white where vace_video is made anew; everywhere without it",
     .along_clip = true,
     .tail = atelier::Tail::kRepeat},
    {.name = "vace_reference_image",
     .kind = InputKind::kImage,
     .variants = kVaces,
     .help = "pictures of what is in the clip, scaled to fit in it, white beside them",
     .max_count = 16,
     .fit = atelier::InputFit::kAsIs},
    {.name = "vace_scale",
     .kind = InputKind::kReal,
     .use = InputUse::kGenerate,
     .variants = kVaces,
     .help = "how much vace_video and the others count, 1 where nothing is said: one number, or "
             "one for each block of the VACE",
     .max_count = 64},
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
    {.name = "vap_video",
     .kind = InputKind::kVideo,
     .variants = kShown,
     .help = "a clip that shows what is to happen; needs the branch of Video-As-Prompt",
     .fit = atelier::InputFit::kStretch},
    {.name = "vap_prompt",
     .kind = InputKind::kText,
     .variants = kShown,
     .help = "what is seen in that clip"},
    {.name = "negative_vap_prompt",
     .kind = InputKind::kText,
     .use = InputUse::kGenerate,
     .variants = kShown,
     .help = "its text on the negative branch",
     .negative_of = "vap_prompt"},
    {.name = "animate2_reference_image",
     .kind = InputKind::kImage,
     .required = true,
     .variants = kAnyDriven,
     .help = "who acts, and where; scaled until it lies within the clip, with black bars beside it",
     .fit = atelier::InputFit::kPad,
     .filter = atelier::ResizeFilter::kBicubic},
    {.name = "animate2_reference_video",
     .kind = InputKind::kVideo,
     .required = true,
     .variants = kAnyDriven,
     .help = "the clip that is followed, at 24 frames per second, scaled in the same way",
     .fit = atelier::InputFit::kPad,
     .fps = 24.0,
     .along_clip = true,
     .tail = atelier::Tail::kMirror},
    {.name = "animate2_prompt_ref",
     .kind = InputKind::kText,
     .variants = kAnyDriven,
     .help = "what is seen in the clip that is followed; the published one when empty"},
    {.name = "animate2_offload_kv",
     .kind = InputKind::kFlag,
     .use = InputUse::kGenerate,
     .variants = kAnyDriven,
     .help = "keep no keys and values of the clip that is followed: 32 GB less for 81 frames of "
             "640 x 800, and each step computes them again"},
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
     .help = "a clip of poses to follow, at 16 frames a second or those of --fps",
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
// What is known of a clip is known of the one that is its prompt, too.
constexpr std::string_view kGivenInputs[] = {"input_image", "end_image", "vap_video"};
constexpr std::string_view kFirstImageInputs[] = {"input_image"};
constexpr std::string_view kKeyframesComponents[] = {"image_encoder", "vae"};
constexpr std::string_view kMusicInputs[] = {"wantodance_music_path", "wantodance_fps"};
constexpr std::string_view kDancedInputs[] = {"wantodance_reference_image"};
constexpr std::string_view kKeyframesInputs[] = {
    "wantodance_keyframes", "wantodance_keyframes_mask", "wantodance_reference_image",
    "framewise_decoding"};
constexpr std::string_view kVaceComponents[] = {"vae", "vace", "vace2"};
constexpr std::string_view kVaceInputs[] = {"vace_video", "vace_video_mask", "vace_reference_image",
                                            "vace_scale"};
constexpr std::string_view kControlInputs[] = {"control_video"};
constexpr std::string_view kReferenceInputs[] = {"reference_image"};
constexpr std::string_view kShownInputs[] = {"reference_image", "input_image"};
constexpr std::string_view kCameraInputs[] = {"camera_control_direction", "camera_control_speed",
                                              "camera_control_origin"};
constexpr std::string_view kKnownInputs[] = {"longcat_video", "input_image"};
constexpr std::string_view kAudioComponents[] = {"audio_encoder"};
constexpr std::string_view kAudioInputs[] = {"input_audio"};
constexpr std::string_view kSpeechInputs[] = {"input_image", "s2v_pose_video", "motion_video",
                                              "init_first_frame"};
constexpr std::string_view kMotionComponents[] = {"motion_controller"};
constexpr std::string_view kMotionInputs[] = {"motion_bucket_id"};

constexpr std::string_view kVapComponents[] = {"vae", "vap"};
constexpr std::string_view kVapInputs[] = {"vap_video"};
constexpr std::string_view kVapTextInputs[] = {"vap_prompt", "vap_video"};
constexpr std::string_view kDrivenImageInputs[] = {"animate2_reference_image"};
constexpr std::string_view kDrivingInputs[] = {"animate2_reference_video"};
constexpr std::string_view kDrivenInputs[] = {"animate2_reference_image",
                                              "animate2_reference_video"};
// The text has one of its own where none is given: its stage runs where there is an image.
constexpr std::string_view kDrivingTextInputs[] = {
    "animate2_prompt_ref", "animate2_reference_image", "animate2_offload_kv"};
// What training learns, and what stands in front of it.
constexpr std::string_view kTargetInputs[] = {"video", "vace_reference_image",
                                              "animate2_reference_image"};

constexpr std::string_view kAdapterComponents[] = {kAnimateAdapter};
constexpr std::string_view kAnimatePoseInputs[] = {"animate_pose_video"};
constexpr std::string_view kAnimateFaceInputs[] = {"animate_face_video"};
constexpr std::string_view kAnimateClipInputs[] = {"input_image", "animate_inpaint_video",
                                                   "animate_mask_video"};
constexpr std::string_view kAnimateTargetInputs[] = {"video", "input_image"};

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
     .inputs = kGivenInputs,
     .sees_target = true,
     .variants = "*-i2v-*|wan2.2-fun-*"},
    {.name = kShownStage,
     .components = kImagesComponents,
     .inputs = kShownInputs,
     .variants = "wan2.1-fun-*"},
    {.name = kControlStage,
     .components = atelier::kLatentsComponents,
     .inputs = kControlInputs,
     .sees_target = true,
     .variants = "*-fun-control-*"},
    {.name = kReferenceStage,
     .components = atelier::kLatentsComponents,
     .inputs = kReferenceInputs,
     .sees_target = true,
     .variants = kTakesReference},
    {.name = kStartStage,
     .components = atelier::kLatentsComponents,
     .inputs = kFirstImageInputs,
     .sees_target = true,
     .variants = "wan2.1-fun-*"},
    {.name = kCameraStage,
     .components = {},
     .inputs = kCameraInputs,
     .sees_target = true,
     .variants = kTakesCamera},
    {.name = "first_frame",
     .components = atelier::kLatentsComponents,
     .inputs = kFirstImageInputs,
     .sees_target = true,
     .variants = "*-ti2v-*"},
    {.name = "known_clip",
     .components = atelier::kLatentsComponents,
     .inputs = kKnownInputs,
     .sees_target = true,
     .variants = kLongCat},
    // What a piece has from the one before it, in the place of the known clip.
    {.name = "continued_clip",
     .components = atelier::kLatentsComponents,
     .inputs = {},
     .variants = kLongCat,
     .per_piece = true},
    {.name = "motion",
     .components = kMotionComponents,
     .inputs = kMotionInputs,
     .variants = kSmallText},
    {.name = "music",
     .components = {},
     .inputs = kMusicInputs,
     .sees_target = true,
     .variants = kDancers,
     .per_branch = true,
     .per_piece = true},
    {.name = "dancer",
     .components = kImagesComponents,
     .inputs = kDancedInputs,
     .variants = kDancers},
    {.name = "keyframes",
     .components = kKeyframesComponents,
     .inputs = kKeyframesInputs,
     .sees_target = true,
     .variants = kDancers,
     .per_piece = true},
    {.name = "speaker",
     .components = atelier::kLatentsComponents,
     .inputs = kFirstImageInputs,
     .sees_target = true,
     .variants = kSpeech},
    // The rate of what is made belongs to its size.
    {.name = "audio",
     .components = kAudioComponents,
     .inputs = kAudioInputs,
     .sees_target = true,
     .variants = kSpeech,
     .per_branch = true},
    {.name = "speech",
     .components = atelier::kLatentsComponents,
     .inputs = kSpeechInputs,
     .sees_target = true,
     .variants = kSpeech,
     .per_piece = true},
    {.name = "vace",
     .components = kVaceComponents,
     .inputs = kVaceInputs,
     .sees_target = true,
     .variants = kVaces},
    {.name = "vap_text",
     .components = atelier::kTextComponents,
     .inputs = kVapTextInputs,
     .variants = kShown,
     .per_branch = true},
    {.name = "vap_image",
     .components = kImagesComponents,
     .inputs = kVapInputs,
     .variants = kShown},
    {.name = "vap",
     .components = kVapComponents,
     .inputs = kVapInputs,
     .sees_target = true,
     .variants = kShown},
    {.name = "driving_text",
     .components = atelier::kTextComponents,
     .inputs = kDrivingTextInputs,
     .variants = kAnyDriven,
     .per_branch = true},
    {.name = "driven_image",
     .components = kImagesComponents,
     .inputs = kDrivenImageInputs,
     .variants = kAnyDriven},
    {.name = "driving_frame",
     .components = kImagesComponents,
     .inputs = kDrivingInputs,
     .variants = kAnyDriven,
     .per_piece = true},
    {.name = "driving",
     .components = atelier::kLatentsComponents,
     .inputs = kDrivenInputs,
     .sees_target = true,
     .variants = kAnyDriven,
     .per_piece = true},
    {.name = "animate_pose",
     .components = atelier::kLatentsComponents,
     .inputs = kAnimatePoseInputs,
     .sees_target = true,
     .variants = kAnimate,
     .per_piece = true},
    {.name = "animate_faces",
     .components = kAdapterComponents,
     .inputs = kAnimateFaceInputs,
     .sees_target = true,
     .variants = kAnimate,
     .per_branch = true,
     .per_piece = true},
    {.name = "animate_clip",
     .components = atelier::kLatentsComponents,
     .inputs = kAnimateClipInputs,
     .sees_target = true,
     .variants = kAnimate,
     .per_piece = true},
    {.name = "latents",
     .components = atelier::kLatentsComponents,
     .inputs = kAnimateTargetInputs,
     .variants = kAnimate},
    {.name = "latents", .components = atelier::kLatentsComponents, .inputs = kTargetInputs},
};

}  // namespace

std::span<const InputSpec> input_table() {
  return kInputs;
}

std::span<const atelier::EncodeStage> stage_table() {
  return kStages;
}

}  // namespace wan
