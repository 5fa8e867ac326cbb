// The camera of Wan-Fun: how it moves through a clip, and what the denoiser makes of that.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "atelier/block.h"
#include "atelier/nn/layers.h"

#include "addition.h"
#include "config.h"

namespace wan {

// Conditioning: the lens and the place of the camera in each frame, float32 [frames,
// kCameraNumbers]: focal lengths and centre in pixels, along width and height in turn, and where
// the camera stands, to the right, down and ahead of the first frame's.
inline constexpr const char* kCamera = "camera";
inline constexpr int64_t kCameraNumbers = 7;

// What the adapter reads of a latent frame: rays of its frames, and pixels of each latent cell
// along each side.
inline constexpr int64_t kRayChannels = 6 * kFrameStride, kCameraCell = 8;

// The first weight of the adapter.
inline constexpr const char* kCameraWeight = "control_adapter.conv.weight";

inline constexpr std::string_view kDirections[] = {
    "Left", "Right", "Up", "Down", "LeftUp", "LeftDown", "RightUp", "RightDown", "In", "Out"};
inline constexpr double kCameraSpeed = 1.0 / 54;  // by which published clips pan

// The numbers of a pose, as RealEstate10K writes them: a time, focal lengths and centre as parts of
// width and height, two zeros, and three rows of the matrix from the world to the camera.
inline constexpr int64_t kPoseNumbers = 19;

// Places of the lens in the 19 numbers of a pose.
inline constexpr size_t kFocalXAt = 1, kFocalYAt = 2, kCentreXAt = 3, kCentreYAt = 4;

// kCamera of a clip in which the camera moves by `speed` with each frame. `origin`: the pose of the
// first frame, for pictures of 16:9; empty: the published one. How it is turned and where it stands
// are no matter: places count from there.
at::Tensor camera_path(std::string_view direction, double speed, const std::vector<double>& origin,
                       const atelier::MediaTarget& target);

// The rays of light through pixels whose centres are at x_W and y_H: of each camera, what they turn
// around and where they go to (Plücker coordinates). cameras_FN: float32 [F, kCameraNumbers].
// Returns float32 [F, 6, H, W].
at::Tensor camera_rays(const at::Tensor& cameras_FN, const at::Tensor& x_W, const at::Tensor& y_H);

// Rays to the rows of the latents' tokens. Inputs: cameras float32 [B, frames, kCameraNumbers],
// centres of columns of pixels float32 [W], and of rows of them [H]. Output: rows [B T H' W', D].
class CameraAdapter final : public atelier::Block {
 public:
  CameraAdapter(Module* parent, const DitConfig& config);
  ~CameraAdapter() override;

  std::string_view kind() const override { return "camera"; }
  atelier::Tensors forward(const atelier::Tensors& in) override;

 private:
  atelier::nn::Conv2d in_, middle_, out_;
};

// Adds them to the tokens in front of the first block.
class CameraControl final : public Addition {
 public:
  CameraControl(atelier::nn::Module* parent, const DitConfig& config);
  ~CameraControl() override;

  void begin(Pass& pass) override;

 private:
  CameraAdapter adapter_;
};

}  // namespace wan
