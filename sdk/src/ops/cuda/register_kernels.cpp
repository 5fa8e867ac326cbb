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

void register_kernels(at::DeviceType device,
                      const std::function<bool(std::string_view op)>& is_proven) {
  const auto add = [&](std::string_view op, auto& table, const auto& kernels) {
    table.add(device, kernels, is_proven(op));
  };
  add("gate_residual", gate_residual_kernels, gate_residual);
  add("gate_residual_norm_modulate", gate_residual_norm_modulate_kernels,
      gate_residual_norm_modulate);
  add("norm_modulate", norm_modulate_kernels, norm_modulate);
  add("layer_norm", layer_norm_kernels, layer_norm);
  add("rms_norm", rms_norm_kernels, rms_norm);
  add("rms_norm_modulate", rms_norm_modulate_kernels, rms_norm_modulate);
  add("rms_gate_residual", rms_gate_residual_kernels, rms_gate_residual);
  add("rms_gate_residual_norm_modulate", rms_gate_residual_norm_modulate_kernels,
      rms_gate_residual_norm_modulate);
  add("norm_rope", norm_rope_kernels, norm_rope);
  add("swiglu", swiglu_kernels, swiglu);
  add("gelu_tanh", gelu_tanh_kernels, gelu_tanh);
  add("channel_norm", channel_norm_kernels, channel_norm);
  add("group_norm", group_norm_kernels, group_norm);
  add("row_codes", row_codes_kernels, row_codes);
  add("adamw_8bit", adamw_8bit_kernels, adamw_8bit);
}

}  // namespace atelier::ops::cuda
