// Packed weights drawn by the kernel of GPUs, played on the CPU, beside LibTorch's operators.
#include "atelier/ops/linear.h"
#include "atelier/ops/pointwise.h"

#include "memory/four_bit.h"
#include "memory/packed.h"
#include "sdk/cuda/row_player.h"
#include "support/tensors.h"

namespace atelier::memory {
namespace {

using at::Tensor;
using test::same_bits;
using test::seeded;

constexpr at::ScalarType kDtypes[] = {at::kFloat, at::kBFloat16, at::kHalf};

Tensor random_bytes(at::IntArrayRef sizes, uint64_t seed) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  return at::randint(0, 256, sizes, generator, at::TensorOptions(at::kByte));
}

// Any bytes: scales are of every size, infinite ones and NaN among them.
Packed gguf_matrix(Packing packing, int64_t rows, int64_t columns) {
  const BlockSize block = block_size(packing);
  const Tensor blocks = random_bytes({rows, columns / block.values * block.bytes}, 3 + rows);
  return {packing, {rows, columns}, {blocks}};
}

// Any codes of nf4, with scales that are numbers of every size; they run on over rows.
Packed four_bit_matrix(int64_t rows, int64_t columns, int64_t block) {
  const int64_t count = rows * columns;
  Tensor scales = seeded({1, (count + block - 1) / block}, 7);
  scales.view({-1})[0] = 1e-42f;
  if (scales.numel() > 2) {
    scales.view({-1})[1] = NAN;
    scales.view({-1})[2] = INFINITY;
  }
  return {Packing::kNf4,
          {rows, columns},
          {random_bytes({1, (count + 1) / 2}, 5), four_bit_values(Packing::kNf4), scales},
          block};
}

// NaN is NaN, and zeros have their signs.
bool same_values(const Tensor& a, const Tensor& b) {
  const auto bits = a.scalar_type() == at::kFloat ? at::kInt : at::kShort;
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
         at::equal(a.isnan(), b.isnan()) &&
         at::equal(a.masked_fill(a.isnan(), 0).view(bits), b.masked_fill(b.isnan(), 0).view(bits));
}

int64_t launches() {
  return ops::cuda::played().launches;
}

void check_drawn(const Packed& packed, at::ScalarType dtype, int64_t expected_launches = 1) {
  INFO(packing_name(packed.packing) << " " << packed.shape << " as " << c10::toString(dtype));
  const int64_t before = launches();
  const Tensor value = unpack(packed, dtype);
  CHECK(launches() - before == expected_launches);
  CHECK(same_values(value, unpack_composed(packed, dtype)));
}

}  // namespace

TEST_CASE("The played kernel draws blocks of GGUF in one pass, to the bit", "[packed][cuda]") {
  for (int i = 0; i <= static_cast<int>(Packing::kQ6_K); ++i) {
    const auto packing = static_cast<Packing>(i);
    const int64_t values = block_size(packing).values;
    for (const auto& [rows, blocks] :
         {std::pair<int64_t, int64_t>{1, 1}, {1, 3}, {3, 5}, {700, 1}, {64, 24}}) {
      for (const at::ScalarType dtype : kDtypes)
        check_drawn(gguf_matrix(packing, rows, blocks * values), dtype);
    }
  }
}

TEST_CASE("The played kernel draws codes of 4 bits in one pass, to the bit", "[packed][cuda]") {
  for (const at::ScalarType dtype : kDtypes) {
    for (const int64_t block : {8, 64, 128, 4096}) {
      for (const auto& [rows, columns] :
           {std::pair<int64_t, int64_t>{1, 1}, {1, 7}, {1, 64}, {3, 101}, {5, 256}, {300, 768}})
        check_drawn(four_bit_matrix(rows, columns, block), dtype);
    }
    for (const Packing packing : {Packing::kNf4, Packing::kFp4})
      check_drawn(quantize_4bit(seeded({40, 320}), packing), dtype);  // scales are codes, too
  }
}

TEST_CASE("What the kernel does not take is drawn otherwise", "[packed][cuda]") {
  check_drawn(four_bit_matrix(3, 96, 48), at::kBFloat16, 0);  // no power of two
  check_drawn(four_bit_matrix(3, 96, 4), at::kBFloat16, 0);
  Packed odd = gguf_matrix(Packing::kQ8_0, 3, 64);  // codes at an odd address
  Tensor room = at::empty({odd.parts[0].numel() + 1}, at::kByte);
  odd.parts[0] = room.narrow(0, 1, odd.parts[0].numel()).view({3, -1}).copy_(odd.parts[0]);
  check_drawn(odd, at::kFloat, 0);
  ops::set_kernels(ops::Kernels::kComposed);
  check_drawn(gguf_matrix(Packing::kQ4_K, 3, 256), at::kFloat, 0);
  ops::set_kernels(ops::Kernels::kAuto);
  const Packed outlined = outline(gguf_matrix(Packing::kQ4_K, 3, 256));
  const int64_t before = launches();
  CHECK(unpack(outlined, at::kBFloat16).is_meta());
  CHECK(launches() == before);
  check_drawn(gguf_matrix(Packing::kQ4_K, 0, 256), at::kBFloat16, 0);
}

TEST_CASE("A layer draws its codes by the kernel in both passes", "[packed][cuda]") {
  const Packed packed = quantize_4bit(seeded({48, 320}), Packing::kNf4);
  const Tensor plain = unpack_composed(packed, at::kFloat);
  auto weight = std::make_shared<Weight>("weight", packed.shape);
  weight->state().set_store(std::make_shared<PackedStore>(packed, at::kFloat));
  const Tensor x = test::trained(seeded({5, 320}, 9));
  const int64_t before = launches();
  const Tensor y = ops::linear(x, weight);
  const std::vector<Tensor> gradients = test::gradients({y}, {x});
  CHECK(launches() - before == 2);
  const Tensor z = ops::linear(x, test::make_weight(plain));
  CHECK(same_bits({y}, {z}));
  CHECK(same_bits(gradients, test::gradients({z}, {x})));
}

}  // namespace atelier::memory
