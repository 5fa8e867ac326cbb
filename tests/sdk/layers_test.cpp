#include "atelier/nn/layers.h"

#include "support/tensors.h"

namespace atelier::nn {
namespace {

using at::Tensor;

struct Tree : Module {
  Linear plain{this, "plain", 4, 4}, time{this, "time", 4, 8, true, {.keeps_float32 = true}};
  LayerNorm norm{this, "norm", 4, 1e-6, {.keeps_float32 = true}};
  Conv3d conv{this, "conv", 2, 3, {3, 1, 2}, {.stride = {1, 1, 2}, .padding = {1, 0, 0}}};
  GroupNorm groups{this, "groups", 4, 2, 1e-6};
  Conv1d line{this, "line", 4, 6, 3, {.padding = 1, .groups = 2}};
  Conv2d deep{this, "deep", 4, 4, 3, {.groups = 4}, /*bias=*/false};
  WeightPtr table = declare("table", {6, 4}, {.keeps_float32 = true});
  Tree() : Module(nullptr, "") {}
};

}  // namespace

TEST_CASE("Weights say which of them stay float32", "[nn]") {
  Tree tree;
  std::vector<std::string> kept, others;
  tree.visit_weights([&](const std::string& path, Weight& weight) {
    (weight.keeps_float32() ? kept : others).push_back(path);
  });
  CHECK(kept ==
        std::vector<std::string>{"table", "time.weight", "time.bias", "norm.weight", "norm.bias"});
  CHECK(others == std::vector<std::string>{"plain.weight", "plain.bias", "conv.weight", "conv.bias",
                                           "groups.weight", "groups.bias", "line.weight",
                                           "line.bias", "deep.weight"});
}

TEST_CASE("Layers are their operators on their weights", "[nn]") {
  at::manual_seed(0);
  Tree tree;
  tree.visit_weights(
      [](const std::string&, Weight& weight) { weight.set(at::randn(weight.sizes())); });
  const auto drawn = [&](const char* path) { return tree.find_weight(path)->draw(); };

  const Tensor x = at::randn({3, 2, 4}).to(at::kBFloat16);
  const Tensor normal =
      at::layer_norm(x.to(at::kFloat), {4}, drawn("norm.weight"), drawn("norm.bias"), 1e-6);
  CHECK(tree.norm.forward(x).scalar_type() == at::kBFloat16);
  CHECK(test::error(tree.norm.forward(x), normal) < 4e-3);

  const Tensor frames = at::randn({1, 2, 4, 5, 6});
  CHECK(test::error(tree.conv.forward(frames),
                    at::conv3d(frames, drawn("conv.weight"), drawn("conv.bias"), {1, 1, 2},
                               {1, 0, 0})) < 1e-6);

  const Tensor row = at::randn({2, 4, 7}), image = at::randn({2, 4, 5, 6});
  CHECK(test::error(tree.line.forward(row),
                    at::conv1d(row, drawn("line.weight"), drawn("line.bias"), 1, 1, 1, 2)) < 1e-6);
  CHECK(test::error(tree.deep.forward(image),
                    at::conv2d(image, drawn("deep.weight"), /*bias=*/{}, /*stride=*/{1, 1},
                               at::IntArrayRef{0, 0}, {1, 1}, 4)) < 1e-6);
  const Tensor grouped =
      at::group_norm(image, 2, drawn("groups.weight"), drawn("groups.bias"), 1e-6);
  CHECK(test::error(tree.groups.forward(image), grouped) < 1e-6);
  CHECK(test::error(tree.groups.forward(image, /*silu=*/true), at::silu(grouped)) < 1e-6);
}

}  // namespace atelier::nn
