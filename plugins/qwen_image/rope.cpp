#include "rope.h"

#include <algorithm>

#include <ATen/ATen.h>

namespace qwen_image {
namespace {

constexpr double kPlacesTheta = 10000;

at::Tensor angles(const at::Tensor& positions, int64_t channels) {
  return atelier::nn::rope_angles(positions, channels, kPlacesTheta);
}

// The middle of an axis is at 0.
at::Tensor centered(int64_t length, const at::TensorOptions& options) {
  return at::arange(length, options) - (length - length / 2);
}

// Places along an axis of `length` for a picture that is stretched to it, rounded down: computed on
// the CPU, because devices differ in the last bit.
at::Tensor stretched(int64_t count, int64_t length, const at::TensorOptions& options) {
  const at::Tensor places = at::linspace(0, static_cast<double>(length - 1), count, at::kFloat);
  return places.floor().to(options.device()) - (length - length / 2);
}

}  // namespace

int64_t SampleRows::reference_rows() const {
  int64_t rows = 0;
  for (const auto& [height, width] : references) rows += height * width;
  return rows;
}

Rope Ropes::of(const std::vector<SampleRows>& samples, at::Device device) {
  return tables_.get({samples, device}, [&] { return make(samples, device); });
}

Rope Ropes::make(const std::vector<SampleRows>& samples, at::Device device) const {
  const auto [frame_axis, row_axis, column_axis] = axes_;
  const auto options = at::TensorOptions(device).dtype(at::kFloat);
  std::vector<at::Tensor> image_cos, image_sin, text;
  // One picture: its number stands where a clip has the frame.
  const auto add_picture = [&](int64_t number, const at::Tensor& row, const at::Tensor& column) {
    const int64_t H = row.size(0), W = column.size(0);
    const at::Tensor frames = angles(at::full({1}, number, options), frame_axis),
                     rows = angles(row, row_axis), columns = angles(column, column_axis);
    const auto waves = [&](at::Tensor (*wave)(const at::Tensor&)) {
      const auto grid = [&](const at::Tensor& axis, int64_t dim) {
        const at::Tensor of_axis = wave(axis);
        return of_axis.unsqueeze(dim).expand({H, W, of_axis.size(1)});
      };
      return at::cat({grid(frames, 0), grid(rows, 1), grid(columns, 0)}, 2).view({H * W, -1});
    };
    image_cos.push_back(waves(at::cos));
    image_sin.push_back(waves(at::sin));
  };
  for (const SampleRows& sample : samples) {
    const int64_t height = sample.height, width = sample.width;
    // Rows and columns count from the middle of each picture.
    const int64_t last = sample.pictures + std::ssize(sample.references) - 1;
    // The picture that layers are of stands in front of them.
    const auto place_of = [&](int64_t number) {
      return is_layered_ && number == last ? -1 : number;
    };
    int64_t number = 0;
    for (; number < sample.pictures; ++number)
      add_picture(place_of(number), centered(height, options), centered(width, options));
    int64_t start = std::max({height / 2, width / 2, is_layered_ ? last : 0});
    for (const auto& [H, W] : sample.references) {
      add_picture(place_of(number++),
                  sample.stretches ? stretched(H, height, options) : centered(H, options),
                  sample.stretches ? stretched(W, width, options) : centered(W, options));
      start = std::max({start, H / 2, W / 2});
    }
    // Texts follow on the diagonal behind the largest, each of them anew.
    const auto add_text = [&, first = start](int64_t length) {
      const at::Tensor places = at::arange(first, first + length, options);
      text.push_back(at::cat(
          {angles(places, frame_axis), angles(places, row_axis), angles(places, column_axis)}, 1));
    };
    for (const int64_t length : sample.entities) add_text(length);
    add_text(sample.text);
  }
  const at::Tensor packed = at::cat(text);
  return {at::cat(image_cos), at::cat(image_sin), at::cos(packed), at::sin(packed)};
}

}  // namespace qwen_image
