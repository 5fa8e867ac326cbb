#include "atelier/nn/waves.h"

#include <cmath>

#include <ATen/ATen.h>

#include "atelier/error.h"

namespace atelier::nn {

at::Tensor time_channels(const at::Tensor& position_B, int64_t channels, double scale) {
  const int64_t half = channels / 2;
  const at::Tensor frequency = at::exp(at::arange(half, position_B.options()) *
                                       (-std::log(10000.0) / static_cast<double>(half)));
  const at::Tensor angle = position_B.unsqueeze(1) * frequency * scale;
  return at::cat({at::cos(angle), at::sin(angle)}, 1);
}

at::Tensor rope_angles(const at::Tensor& positions_N, int64_t channels, double theta) {
  const at::Tensor exponent =
      at::arange(0, channels, 2, positions_N.options()) / static_cast<double>(channels);
  return at::outer(positions_N, at::reciprocal(at::pow(theta, exponent)));
}

Waves row_waves(const Segments& rows, int64_t head_dim, double theta, at::Device device) {
  const auto options = at::TensorOptions(device).dtype(at::kFloat);
  std::vector<at::Tensor> positions;
  for (int64_t s = 0; s < rows.count(); ++s)
    positions.push_back(at::arange(rows.length(s), options));
  const at::Tensor angle = rope_angles(at::cat(positions), head_dim, theta);
  return {at::cos(angle), at::sin(angle)};
}

Waves axis_waves(const at::Tensor& positions_NA, std::span<const int64_t> channels, double theta,
                 at::Device device) {
  if (positions_NA.dim() != 2 || positions_NA.size(1) != std::ssize(channels))
    throw Error(ErrorCode::kInvalidArgument,
                c10::str("axis_waves: positions of shape ", positions_NA.sizes(), " and ",
                         channels.size(), " axes"));
  std::vector<at::Tensor> angles;
  for (size_t axis = 0; axis < channels.size(); ++axis)
    angles.push_back(
        rope_angles(positions_NA.select(1, static_cast<int64_t>(axis)), channels[axis], theta));
  const at::Tensor angle = at::cat(angles, 1);
  return {at::cos(angle).to(device, at::kFloat), at::sin(angle).to(device, at::kFloat)};
}

}  // namespace atelier::nn
