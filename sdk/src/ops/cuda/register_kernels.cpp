#include "ops/cuda/register_kernels.h"

#include "ops/adamw_8bit.h"
#include "ops/channel_norm.h"
#include "ops/gate_residual.h"
#include "ops/gelu_tanh.h"
#include "ops/group_norm.h"
#include "ops/layer_norm.h"
#include "ops/norm_rope.h"
#include "ops/rms_norm.h"
#include "ops/row_codes.h"
#include "ops/swiglu.h"

namespace atelier::ops::cuda {

void register_kernels(at::DeviceType device, bool are_proven) {
  gate_residual_kernels.add(device, gate_residual, are_proven);
  gate_residual_norm_modulate_kernels.add(device, gate_residual_norm_modulate, are_proven);
  norm_modulate_kernels.add(device, norm_modulate, are_proven);
  layer_norm_kernels.add(device, layer_norm, are_proven);
  rms_norm_kernels.add(device, rms_norm, are_proven);
  rms_norm_modulate_kernels.add(device, rms_norm_modulate, are_proven);
  rms_gate_residual_kernels.add(device, rms_gate_residual, are_proven);
  rms_gate_residual_norm_modulate_kernels.add(device, rms_gate_residual_norm_modulate, are_proven);
  norm_rope_kernels.add(device, norm_rope, are_proven);
  swiglu_kernels.add(device, swiglu, are_proven);
  gelu_tanh_kernels.add(device, gelu_tanh, are_proven);
  channel_norm_kernels.add(device, channel_norm, are_proven);
  group_norm_kernels.add(device, group_norm, are_proven);
  row_codes_kernels.add(device, row_codes, are_proven);
  adamw_8bit_kernels.add(device, adamw_8bit, are_proven);
}

}  // namespace atelier::ops::cuda
