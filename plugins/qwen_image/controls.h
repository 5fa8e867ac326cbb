// What ControlNets are given: pictures to follow, and how much and how long they count.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "atelier/conditioning.h"
#include "atelier/input.h"

namespace qwen_image {

inline constexpr int64_t kMaxControls = 4;  // files of one kind of ControlNet, and pictures

// One kind of ControlNet: its component, and the names of its inputs.
struct ControlKind {
  const char *component, *image, *mask, *scale, *start, *end;
  // Where nothing is said; see is_active().
  double usual_start, usual_end;
  bool counts_down;  // start and end are parts of the way that is left, not of that behind
  // The picture is black where the mask is above this, and the mask is black or white alone.
  double mask_level;
  bool mask_is_sharp;
};

inline constexpr ControlKind kBlockwiseKind = {"blockwise_controlnet",
                                               "blockwise_controlnet_image",
                                               "blockwise_controlnet_inpaint_mask",
                                               "blockwise_controlnet_scale",
                                               "blockwise_controlnet_start",
                                               "blockwise_controlnet_end",
                                               1.0,
                                               0.0,
                                               true,
                                               0.0,
                                               false};
inline constexpr ControlKind kControlNetKind = {"controlnet",
                                                "control_image",
                                                "control_mask",
                                                "controlnet_conditioning_scale",
                                                "control_guidance_start",
                                                "control_guidance_end",
                                                0.0,
                                                1.0,
                                                false,
                                                0.5,
                                                true};

// Entries of a conditioning: the latents that picture `number` of a kind gives, [C, 1, H, W], with
// a mask one channel more; its scale, float32 [1]; and its window, a tensor without values whose
// sizes are 0, start and end in millionths: steps branch by it, and sizes are known everywhere.
std::string control_name(const ControlKind& kind, int64_t number);
std::string control_scale_name(const ControlKind& kind, int64_t number);
std::string control_window_name(const ControlKind& kind, int64_t number);
// Likewise, on the negative branch of guidance, the embeddings of the prompt: ControlNets of
// diffusers follow them on both branches.
inline constexpr const char* kControlPrompt = "control_prompt_embeds";

// Whether a picture counts in step `step` of `steps`, as the published pipelines have it: counted
// down, (steps - 1 - step) / (steps - 1) lies from end to start; else the whole step lies from
// start to end of all. Of 0 steps, as in training, the step counted down is the last, and the other
// has no bounds.
bool is_active(const ControlKind& kind, double start, double end, int64_t step, int64_t steps);

// Whether a sample has such a picture, and it counts in that step.
bool counts(const ControlKind& kind, const atelier::Conditioning& cond, int64_t number,
            int64_t step, int64_t steps);

// Whether a sample's picture counts in that step: that of file `net` of `nets` of the kind, or any
// where there is one file.
bool counts(const ControlKind& kind, size_t net, size_t nets, const atelier::Inputs& values,
            int64_t step, int64_t steps);

// What pictures give: see control_name(). `reads_mask`: of each ControlNet of the kind, in the
// order of their files; one alone has all pictures. A picture whose scale is 0 gives nothing.
// `encode` gives the latents of a picture.
atelier::Conditioning encode_controls(
    const ControlKind& kind, const std::vector<bool>& reads_mask, const atelier::Inputs& values,
    const std::function<at::Tensor(const at::Tensor& picture)>& encode);
// Throws Error{kInvalidArgument} where pictures, masks and numbers are not as many as each other.
void check_control_inputs(const ControlKind& kind, const std::vector<bool>& reads_mask,
                          const atelier::Inputs& values);

}  // namespace qwen_image
