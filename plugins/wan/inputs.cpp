// What the variants are given, and the stages that encode it.
#include "atelier/component_family.h"

#include "longcat.h"
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
     .variants = "*i2v-*|longcat-video",
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
constexpr std::string_view kKnownInputs[] = {"longcat_video", "input_image"};
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
