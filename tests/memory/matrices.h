// Blocks whose products are known, for tests of weights that come and go.
#pragma once

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "atelier/block.h"
#include "atelier/nn/layers.h"

namespace atelier::test {

inline constexpr int64_t kSide = 32, kMatrixBytes = kSide * kSide * 4;

// Multiplies by a matrix of its own.
struct MatrixBlock : Block {
  nn::Linear linear{this, "linear", kSide, kSide, /*bias=*/false};
  std::function<void()> probe = [] {};

  MatrixBlock(nn::Module* parent, std::string name) : Block(parent, std::move(name)) {
    linear.weight->set(at::randn({kSide, kSide}) / std::sqrt(double{kSide}));
  }
  std::string_view kind() const override { return "matrix"; }
  Tensors forward(const Tensors& in) override {
    probe();
    return {linear.forward(in[0])};
  }
};

struct Matrices {
  DirectRunner direct;
  nn::Module root{nullptr, ""};
  std::vector<std::unique_ptr<MatrixBlock>> blocks;
  at::Tensor x;
  Tensors products;  // of each block with x

  explicit Matrices(int count, uint64_t seed = 3) {
    at::manual_seed(seed);
    x = at::randn({4, kSide});
    for (int i = 0; i < count; ++i) {
      blocks.push_back(std::make_unique<MatrixBlock>(&root, "blocks." + std::to_string(i)));
      products.push_back(direct.run(*blocks.back(), {x})[0]);
    }
  }
  std::vector<Block*> all() const {
    std::vector<Block*> result;
    for (const auto& block : blocks) result.push_back(block.get());
    return result;
  }
  Weight& weight(size_t i) { return *blocks[i]->linear.weight; }
  bool is_right(BlockRunner& runner, size_t i) {
    return at::equal(runner.run(*blocks[i], {x})[0], products[i]);
  }
  int wrong(BlockRunner& runner, const std::vector<int>& order) {
    int wrong = 0;
    for (const int i : order) wrong += !is_right(runner, i);
    return wrong;
  }
};

inline std::vector<int> forward_order(int count) {
  std::vector<int> order;
  for (int i = 0; i < count; ++i) order.push_back(i);
  return order;
}

}  // namespace atelier::test
