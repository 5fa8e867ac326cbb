#include "addition.h"

#include <ATen/ATen.h>

#include "dit_block.h"

namespace wan {

at::Tensor Pass::placed(const at::Tensor& of_tokens) const {
  std::vector<at::Tensor> all;
  const int64_t count = frames * height * width;
  const auto zeros = [&](int64_t rows_there) {
    std::vector<int64_t> shape = of_tokens.sizes().vec();
    shape[0] = rows_there;
    if (rows_there > 0) all.push_back(at::zeros(shape, of_tokens.options()));
  };
  for (size_t b = 0; b < front.size(); ++b) {
    zeros(front[b]);
    all.push_back(of_tokens.narrow(0, static_cast<int64_t>(b) * count, count));
    zeros(behind[b]);
  }
  return rows.take(all.size() == front.size() ? of_tokens : at::cat(all));
}

std::vector<Stretch> Addition::front(const atelier::DenoiseInputs&, int64_t) {
  return {};
}

std::vector<Stretch> Addition::behind(const atelier::DenoiseInputs&, int64_t) {
  return {};
}

at::Tensor Addition::frame_positions(const at::Tensor& counted_T) const {
  return counted_T;
}

void Addition::begin(Pass&) {}

bool Addition::replace(int64_t, DitBlock&, Pass&) {
  return false;
}

void Addition::after(int64_t, Pass&) {}

}  // namespace wan
