#include "host/distributed/shards.h"

#include <ATen/ATen.h>

#include "atelier/block.h"

#include "memory/live_bytes.h"
#include "support/catch.h"

namespace atelier::distributed {
namespace {

const std::vector<std::vector<int64_t>> kSizes = {{7}, {96, 96}, {}, {5, 3}, {4096}, {0}, {63, 67}};

std::vector<at::Tensor> tensors(at::ScalarType dtype = at::kFloat) {
  std::vector<at::Tensor> tensors;
  for (const auto& sizes : kSizes) tensors.push_back(at::zeros(sizes, dtype));
  return tensors;
}

struct EmptyBlock final : Block {
  EmptyBlock() : Block(nullptr, "block") {}
  std::string_view kind() const override { return "empty"; }
  Tensors forward(const Tensors& in) override { return in; }
};

TEST_CASE("Parts hold each number of each tensor once, in order", "[shards]") {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const auto all = tensors(dtype);
    for (const int parts : {2, 3, 4, 8}) {
      const FlatLayout layout(all, parts);
      for (size_t i = 0; i < all.size(); ++i) {
        int64_t next = 0;
        for (int part = 0; part < parts; ++part) {
          const auto extent = layout.extent(i, part);
          if (extent.count == 0) continue;
          CHECK(extent.begin == next);
          const int64_t length = layout.buckets()[layout.bucket_of(i)].count / parts;
          CHECK(extent.at + extent.count <= length);
          next += extent.count;
        }
        CHECK(next == all[i].numel());
      }
    }
  }
}

TEST_CASE("Pieces begin at whole blocks, and parts are made up of whole KiB", "[shards]") {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const auto all = tensors(dtype);
    const FlatLayout layout(all, 4);
    for (const auto& bucket : layout.buckets())
      CHECK(bucket.count * bucket.options.dtype().itemsize() % (4 * kPartBytes) == 0);
    for (size_t i = 0; i < all.size(); ++i) {
      const int64_t block = all[i].numel() < kLeastInBlocks ? kSmallBlockNumbers : kBlockNumbers;
      for (int part = 0; part < 4; ++part) CHECK(layout.extent(i, part).begin % block == 0);
    }
  }
}

TEST_CASE("Of one part tensors lie without gaps, the last one first", "[shards]") {
  const auto all = tensors();
  const FlatLayout layout(all, 1);
  REQUIRE(layout.buckets().size() == 1);
  int64_t next = 0;
  size_t tensor = all.size();
  for (const auto& place : layout.buckets().front().positions) {
    CHECK(place.tensor == --tensor);
    CHECK(place.begin == next);
    next += all[place.tensor].numel();
  }
  CHECK(layout.buckets().front().count == next);
}

TEST_CASE("Tensors that are cut already have a bucket for each block and dtype", "[shards]") {
  const EmptyBlock one, other;
  const auto cut = [](const Block& block, at::ScalarType dtype, int64_t first, int64_t second) {
    return FlatLayout::Cut{
        &block, dtype, {{.begin = 0, .count = first}, {.begin = first, .count = second}}};
  };
  const FlatLayout layout({cut(one, at::kFloat, 6, 4), cut(one, at::kHalf, 1, 0),
                           cut(one, at::kFloat, 33, 90), cut(other, at::kFloat, 0, 5)});
  CHECK(layout.parts() == 2);
  CHECK(layout.tensors() == 4);
  REQUIRE(layout.buckets().size() == 3);
  CHECK(layout.bucket_of(2) == layout.bucket_of(0));
  CHECK(layout.buckets()[0].block == &one);
  CHECK(layout.buckets()[2].block == &other);
  CHECK(layout.buckets()[0].count == 2 * (32 + 96));  // as long as the longest part
  CHECK(layout.extent(2, 0).at == 32);
  CHECK(layout.extent(2, 1).begin == 33);
  CHECK(layout.extent(2, 1).at == 32);
  CHECK(layout.extent(3, 0).count == 0);
}

TEST_CASE("Buckets hold one dtype each, and 25 MiB where no tensor is larger", "[shards]") {
  std::vector<at::Tensor> all;
  for (const int64_t mib : {10, 10, 10, 40, 1}) all.push_back(at::empty({mib << 18}, at::kFloat));
  all.push_back(at::empty({100}, at::kHalf));
  const FlatLayout layout(all, 2);
  std::vector<std::vector<size_t>> found;
  for (const auto& bucket : layout.buckets()) {
    found.emplace_back();
    for (const auto& place : bucket.positions) found.back().push_back(place.tensor);
  }
  CHECK(found == std::vector<std::vector<size_t>>{{5}, {4}, {3}, {2, 1}, {0}});
}

TEST_CASE("What buckets that follow each other have at most", "[shards]") {
  std::vector<at::Tensor> all;
  for (const int64_t mib : {20, 30, 40, 50, 15}) all.push_back(at::empty({mib << 18}, at::kFloat));
  const FlatLayout layout(all, 1);  // the last one first
  const auto mib = [&](size_t count, size_t passes) {
    return layout.most_bytes(count, passes) >> 20;
  };
  CHECK(mib(1, 1) == 50);
  CHECK(mib(2, 1) == 90);
  CHECK(mib(3, 1) == 120);
  CHECK(mib(9, 1) == 155);
  CHECK(mib(4, 2) == 140);  // 30, 20, 15 and 50 are less
  CHECK(mib(6, 3) == 155 + 50);
  CHECK(FlatLayout({}, 2).most_bytes(4) == 0);
}

TEST_CASE("What is let go gives its memory back, whoever holds it still", "[shards]") {
  const memory::LiveBytes bytes(at::kCPU);
  at::Tensor sent = at::ones({1 << 20}), sum;
  const at::Tensor held = sent;  // as a thread of Gloo holds it
  CHECK(bytes.now() >= 4 << 20);
  let_go(sent);
  CHECK(!sent.defined());
  CHECK(bytes.now() < 1 << 20);

  at::Tensor part = at::ones({1 << 20});
  add_to_sum(sum, part, at::kCPU, /*on_host=*/false);
  CHECK(sum.is_same(part));
  at::Tensor more = at::ones({1 << 20});
  const at::Tensor held_too = more;
  add_to_sum(sum, more, at::kCPU, /*on_host=*/false);
  CHECK(sum.sum().item<double>() == 2 << 20);
  CHECK(bytes.now() < 5 << 20);
}

}  // namespace
}  // namespace atelier::distributed
