// Shape letters: B samples, F frames, T latent frames, H and W pixels, h and w latent cells, N the
// numbers of a camera, D width.
#include "camera.h"

#include <array>

#include <ATen/ATen.h>

#include "atelier/error.h"
#include "atelier/named_inputs.h"

namespace wan {

using atelier::Tensors;

namespace {

constexpr double kFocalX = 0.532139961, kFocalY = 0.946026558, kCentre = 0.5;
constexpr double kPictureRatio = 16.0 / 9;  // of those that focal lengths are parts of

// Where the camera goes: to the right, down, and ahead.
std::array<double, 3> step_of(std::string_view direction) {
  const auto along = [&](std::string_view one) {
    return direction.find(one) == direction.npos ? 0.0 : 1.0;
  };
  return {along("Right") - along("Left"), along("Down") - along("Up"), along("In") - along("Out")};
}

}  // namespace

at::Tensor camera_path(std::string_view direction, double speed, const std::vector<double>& origin,
                       const atelier::MediaTarget& target) {
  const auto number = [&](size_t at, double published) {
    return origin.empty() ? published : origin[at];
  };
  const auto W = static_cast<double>(target.width), H = static_cast<double>(target.height);
  double focal_x = number(kFocalXAt, kFocalX), focal_y = number(kFocalYAt, kFocalY);
  // The picture of the lens covers the clip's, and what lies beyond is cut off.
  if (kPictureRatio > W / H) {
    focal_x = H * kPictureRatio * focal_x / W;
  } else {
    focal_y = W / kPictureRatio * focal_y / H;
  }
  const std::vector<double> lens = {focal_x * W, focal_y * H, number(kCentreXAt, kCentre) * W,
                                    number(kCentreYAt, kCentre) * H};
  const auto options = at::TensorOptions().dtype(at::kDouble);
  const at::Tensor frames = at::arange(target.frames, options).unsqueeze(1);
  const at::Tensor step = at::tensor(step_of(direction), options) * speed;
  return at::cat({at::tensor(lens, options).expand({target.frames, -1}), frames * step}, 1)
      .to(at::kFloat);
}

at::Tensor camera_rays(const at::Tensor& cameras_FN, const at::Tensor& x_W, const at::Tensor& y_H) {
  const int64_t F = cameras_FN.size(0), H = y_H.size(0), W = x_W.size(0);
  const auto number = [&](int64_t at) { return cameras_FN.select(1, at).view({F, 1, 1}); };
  const at::Tensor x = ((x_W.view({1, 1, W}) - number(2)) / number(0)).expand({F, H, W});
  const at::Tensor y = ((y_H.view({1, H, 1}) - number(3)) / number(1)).expand({F, H, W});
  const at::Tensor to = at::stack({x, y, at::ones_like(x)}, 1);
  const at::Tensor rays = to / to.norm(2, {1}, /*keepdim=*/true);
  const at::Tensor place = cameras_FN.narrow(1, 4, 3).view({F, 3, 1, 1});
  return at::cat({at::linalg_cross(place.expand_as(rays), rays, 1), rays}, 1);
}

CameraAdapter::CameraAdapter(Module* parent, const DitConfig& c)
    : Block(parent, "control_adapter"),
      in_(this, "conv", kRayChannels * kCameraCell * kCameraCell, c.width, c.patch,
          {.stride = c.patch}),
      middle_(this, "residual_blocks.0.conv1", c.width, c.width, 3, {.padding = 1}),
      out_(this, "residual_blocks.0.conv2", c.width, c.width, 3, {.padding = 1}) {}

CameraAdapter::~CameraAdapter() = default;

Tensors CameraAdapter::forward(const Tensors& in) {
  const at::Tensor &cameras = in[0], &x_W = in[1], &y_H = in[2];
  const at::ScalarType dtype = in_.weight->draw().scalar_type();
  const int64_t B = cameras.size(0), T = latent_frames_of(cameras.size(1));
  Tensors cells;  // of each latent frame, in turn: rays of all pixels of a clip need not fit
  for (int64_t t = 0; t < T; ++t) {
    // The first frame counts as many as a latent frame has.
    const at::Tensor here = t == 0 ? cameras.narrow(1, 0, 1).expand({-1, kFrameStride, -1})
                                   : cameras.narrow(1, kFrameStride * (t - 1) + 1, kFrameStride);
    const at::Tensor rays = camera_rays(here.flatten(0, 1), x_W, y_H)
                                .unflatten(0, {B, kFrameStride})
                                .transpose(1, 2)
                                .flatten(1, 2);
    cells.push_back(in_.forward(at::pixel_unshuffle(rays, kCameraCell).to(dtype)));
  }
  const at::Tensor x = at::stack(cells, 1).flatten(0, 1);  // [B T, D, h, w] of the tokens
  const at::Tensor more = out_.forward(at::relu(middle_.forward(x)));
  return {(x + more).permute({0, 2, 3, 1}).flatten(0, 2)};
}

CameraControl::CameraControl(atelier::nn::Module* parent, const DitConfig& config)
    : adapter_(parent, config) {}

CameraControl::~CameraControl() = default;

void CameraControl::begin(Pass& pass) {
  const at::Tensor& latents = pass.in.x_BCTHW;
  const int64_t frames = frames_of(pass.frames);
  Tensors cameras;
  for (const atelier::Conditioning* cond : pass.in.cond) {
    cameras.push_back(atelier::named_tensor(*cond, kCamera, 2).to(at::kFloat));
    const bool fits = cameras.back().size(0) == frames && cameras.back().size(1) == kCameraNumbers;
    if (fits) continue;
    throw atelier::Error(atelier::ErrorCode::kInvalidArgument,
                         "camera of shape " + atelier::shape_text(cameras.back()) +
                             ", it does not fit latents of shape " + atelier::shape_text(latents));
  }
  const auto centres = [&](int64_t cells) {
    return at::arange(cells * kCameraCell, latents.options().dtype(at::kFloat)) + 0.5;
  };
  const Tensors inputs = {at::stack(cameras), centres(latents.size(4)), centres(latents.size(3))};
  pass.x = pass.x + pass.placed(pass.runner.run(adapter_, inputs)[0]);
}

}  // namespace wan
