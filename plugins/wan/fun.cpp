#include "fun.h"

#include <string>

#include <ATen/ATen.h>

#include "atelier/error.h"

#include "camera.h"
#include "dit.h"

namespace wan {

using atelier::PartView;
using atelier::Tensors;
using std::to_string;

namespace {

constexpr const char* kReferenceWeight = "ref_conv.weight";
constexpr int64_t kSmallWidth = 1536;  // of 1.3B

[[noreturn]] void refuse_fun(const DitConfig& c) {
  atelier::refuse_kind(
      "a Wan-Fun DiT with " + to_string(c.channels + c.given_channels) + " input and " +
          to_string(c.channels) + " output channels" +
          (c.image_width > 0 ? " that is shown images" : ""),
      "of Wan-Fun, InP, Control and Camera of 1.3B, 14B and A14B are loaded so far");
}

}  // namespace

void read_fun(const PartView& view, DitConfig& c) {
  const bool has_camera = view.contains(kCameraWeight);
  const bool has_reference = view.contains(kReferenceWeight);
  const bool is_expert = c.image_width == 0;
  const int64_t known = c.channels + (is_expert ? kFrameStride : 0);  // frames known, and latents
  const bool has_control = c.given_channels == c.channels + known;
  if (!has_camera && !has_reference && !has_control) return;
  const bool fits = has_camera ? c.given_channels == known && !has_reference
                               : has_control && (has_reference || !is_expert);
  if (!fits || c.image_rows > 0 || c.channels == kWideChannels) refuse_fun(c);
  c.has_camera = has_camera;
  c.has_reference = has_reference;
  c.control_channels = has_control ? c.channels : 0;
  c.given_channels = known;
}

std::optional<std::string_view> fun_variant(const DitConfig& c) {
  const bool is_small = c.width <= kSmallWidth, is_expert = c.image_width == 0;
  if (c.has_camera) {
    if (is_expert) return kCameraExperts;
    return is_small ? "wan2.1-fun-camera-1.3b" : "wan2.1-fun-camera-14b";
  }
  if (c.control_channels == 0) return std::nullopt;
  if (is_expert) return kControlExperts;
  if (c.has_reference)
    return is_small ? "wan2.1-fun-control-v1.1-1.3b" : "wan2.1-fun-control-v1.1-14b";
  return is_small ? "wan2.1-fun-control-1.3b" : "wan2.1-fun-control-14b";
}

atelier::PackedRows shown_rows(const atelier::DenoiseInputs& in, int64_t width) {
  std::vector<atelier::Conditioning> shown;
  for (const atelier::Conditioning* cond : in.cond) {
    at::Tensor rows = at::zeros({1, width}, in.x_BCTHW.options());
    if (cond->contains(kImageEmbeds)) rows = atelier::named_tensor(*cond, kImageEmbeds, 2);
    if (rows.size(1) != width) {
      throw atelier::Error(atelier::ErrorCode::kInvalidArgument,
                           "image_embeds of shape " + atelier::shape_text(rows) + ", " +
                               to_string(width) + " values a row are read");
    }
    shown.push_back({{kImageEmbeds, rows}});
  }
  std::vector<const atelier::Conditioning*> pointers;
  for (const atelier::Conditioning& cond : shown) pointers.push_back(&cond);
  return atelier::pack_entry(pointers, kImageEmbeds);
}

ReferenceFrame::ReferenceFrame(atelier::nn::Module* parent, const DitConfig& c)
    : head_dim_(c.head_dim()),
      patches_(parent, "ref_conv", c.channels, c.width, c.patch, {.stride = c.patch}) {}

ReferenceFrame::~ReferenceFrame() = default;

at::Tensor ReferenceFrame::frame_positions(const at::Tensor& counted_T) const {
  return counted_T + 1;
}

std::vector<Stretch> ReferenceFrame::front(const atelier::DenoiseInputs& in, int64_t sample) {
  const at::Tensor& x = in.x_BCTHW;
  const atelier::Conditioning& cond = *in.cond[static_cast<size_t>(sample)];
  at::Tensor latents = at::zeros({x.size(1), x.size(3), x.size(4)}, x.options());
  if (cond.contains(kReference)) {
    const at::Tensor& given = atelier::named_tensor(cond, kReference, 3);
    if (given.sizes() != latents.sizes()) {
      throw atelier::Error(atelier::ErrorCode::kInvalidArgument,
                           "reference_latents of shape " + atelier::shape_text(given) +
                               ", they do not fit latents of shape " + atelier::shape_text(x));
    }
    latents = given.to(x.scalar_type());
  }
  const at::Tensor patches = patches_.forward(latents.unsqueeze(0));  // [1, D, H, W] of tokens
  const int64_t H = patches.size(2), W = patches.size(3);
  const auto angles = [=, head_dim = head_dim_, device = x.device()] {
    const auto options = at::TensorOptions(device).dtype(at::kDouble);
    return token_angles(at::zeros({1}, options), H, W, head_dim);
  };
  return {{.rows_LD = patches.permute({0, 2, 3, 1}).flatten(0, 2), .angles = angles}};
}

}  // namespace wan
