// Where classifier-free guidance is used, and what becomes of a guided velocity.
#pragma once

#include <ATen/core/Tensor.h>

#include "atelier/schedule.h"

namespace atelier::generate {

// Whether the step that begins at `sigma` is guided: see ScheduleDefaults::cfg_trunc.
bool is_guided_at(double sigma, double cfg_trunc);

// `guided` with the length that `renorm` gives it beside `with`, the velocity with the prompt:
// clamp makes a sample shorter where it is longer than ratio * |with|, row gives each row along the
// last axis the length of with's. Both float32 [B, C, T, H, W]. Returns a tensor like them.
at::Tensor renormed(const at::Tensor& guided_BCTHW, const at::Tensor& with_BCTHW, CfgRenorm renorm,
                    double ratio);

}  // namespace atelier::generate
