#include "memory/packed.h"

#include "atelier/ops/linears.h"

#include "memory/four_bit.h"
#include "memory/live_bytes.h"
#include "memory/meta_bytes.h"
#include "memory/packed_loops.h"
#include "support/tensors.h"

using namespace atelier;
using memory::Packed;
using memory::PackedLoops;
using memory::PackedStore;
using memory::Packing;
using test::error_of;
using test::mentions;
using test::same_bits;
using test::seeded;

namespace {

constexpr at::ScalarType kDtypes[] = {at::kFloat, at::kBFloat16, at::kHalf};

at::Tensor random_bytes(at::IntArrayRef sizes, uint64_t seed) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  return at::randint(0, 256, sizes, generator, at::TensorOptions(at::kByte));
}

// A matrix of every packing of GGUF, with any codes and finite scales.
Packed gguf_matrix(Packing packing, int64_t rows, int64_t columns) {
  const memory::BlockSize block = memory::block_size(packing);
  at::Tensor blocks = random_bytes({rows * columns / block.values, block.bytes}, 3);
  // Where float16 numbers may stand, their exponents are small.
  for (const int64_t at : {int64_t{1}, int64_t{3}, block.bytes - 3, block.bytes - 1}) {
    at::Tensor high = blocks.select(1, at);
    high.bitwise_and_(0xbf);
  }
  return {packing, {rows, columns}, {blocks.view({rows, -1})}};
}

std::vector<Packed> matrices(int64_t rows, int64_t columns) {
  std::vector<Packed> all;
  for (int i = 0; i <= static_cast<int>(Packing::kQ6_K); ++i)
    all.push_back(gguf_matrix(static_cast<Packing>(i), rows, columns));
  for (const Packing packing : {Packing::kNf4, Packing::kFp4})
    all.push_back(memory::quantize_4bit(seeded({rows, columns}), packing));
  all.push_back({Packing::kInt8,
                 {rows, columns},
                 {random_bytes({rows, columns}, 4).view(at::kChar), seeded({rows}).abs()}});
  all.push_back({Packing::kNvfp4,
                 {rows, columns},
                 {random_bytes({rows, columns / 2}, 5),
                  seeded({rows, columns / 16}).abs().to(at::kFloat8_e4m3fn), at::full({1}, 0.01f)},
                 16});
  all.push_back({Packing::kMxfp8,
                 {rows, columns},
                 {seeded({rows, columns}).to(at::kFloat8_e4m3fn),
                  random_bytes({rows, columns / 32}, 6).bitwise_and(15).add_(115)},
                 32});
  return all;
}

bool same_values(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
         at::equal(a.isnan(), b.isnan()) && at::equal(a.nan_to_num(0), b.nan_to_num(0));
}

}  // namespace

TEST_CASE("The loops of the CPU give what LibTorch's operators give, to the bit", "[packed]") {
  for (const Packed& matrix : matrices(6, 512)) {
    for (const at::ScalarType dtype : kDtypes) {
      INFO(memory::packing_name(matrix.packing) << " as " << c10::toString(dtype));
      const at::Tensor value = memory::unpack(matrix, dtype);
      CHECK(value.sizes() == at::IntArrayRef{6, 512});
      CHECK(value.isnan().logical_not().any().item<bool>());
      CHECK(same_values(value, memory::unpack_composed(matrix, dtype)));
    }
  }
}

TEST_CASE("Loops of every instruction set that this machine has give the same", "[packed]") {
  const Packed matrix = memory::quantize_4bit(seeded({4, 256}), Packing::kNf4);
  const Packed plain = memory::rows_of(matrix, 0, 4);
  std::vector<const PackedLoops*> sets = {PackedLoops::baseline};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    sets.push_back(PackedLoops::avx2);
  if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
    sets.push_back(PackedLoops::avx512);
#endif
  for (size_t element = 0; element < std::size(kDtypes); ++element) {
    at::Tensor expected = memory::unpack_composed(matrix, kDtypes[element]);
    for (const PackedLoops* set : sets) {
      at::Tensor out = at::empty_like(expected);
      set[element].four_bit(
          plain.parts[0].const_data_ptr<uint8_t>(), plain.parts[1].const_data_ptr<float>(),
          plain.parts[2].const_data_ptr<float>(), 64, out.numel(), 8, out.mutable_data_ptr());
      CHECK(same_bits({out}, {expected}));
    }
    for (int i = 0; i <= static_cast<int>(Packing::kQ6_K); ++i) {
      const Packed blocks = gguf_matrix(static_cast<Packing>(i), 3, 256);
      expected = memory::unpack_composed(blocks, kDtypes[element]);
      for (const PackedLoops* set : sets) {
        at::Tensor out = at::empty_like(expected);
        set[element].blocks[i](blocks.parts[0].const_data_ptr<uint8_t>(),
                               out.numel() / memory::block_size(blocks.packing).values, 8,
                               out.mutable_data_ptr());
        INFO(memory::packing_name(blocks.packing));
        CHECK(same_values(out, expected));
      }
    }
  }
}

TEST_CASE("Rows of codes can be cut and joined", "[packed]") {
  for (const Packed& matrix : matrices(6, 512)) {
    INFO(memory::packing_name(matrix.packing));
    const at::Tensor whole = memory::unpack(matrix, at::kFloat);
    REQUIRE(memory::can_be_cut(matrix) == (matrix.packing != Packing::kNvfp4));
    if (!memory::can_be_cut(matrix)) continue;
    const std::vector<Packed> pieces = {memory::rows_of(matrix, 4, 2),
                                        memory::rows_of(matrix, 0, 3)};
    CHECK(same_values(memory::unpack(pieces[0], at::kFloat), whole.narrow(0, 4, 2)));
    const Packed joined = memory::joined_rows(pieces);
    CHECK(joined.shape == std::vector<int64_t>{5, 512});
    CHECK(same_values(memory::unpack(joined, at::kFloat),
                      at::cat({whole.narrow(0, 4, 2), whole.narrow(0, 0, 3)})));
  }
  CHECK_FALSE(memory::can_be_cut(memory::quantize_4bit(seeded({4, 48}), Packing::kNf4)));
}

TEST_CASE("Four bits keep a value to a part of the largest of its block", "[packed]") {
  const at::Tensor weight = seeded({64, 256}) * at::pow(10.0, at::linspace(-3, 2, 64)).unsqueeze(1);
  for (const Packing packing : {Packing::kNf4, Packing::kFp4}) {
    const Packed packed = memory::quantize_4bit(weight, packing);
    CHECK(packed.bytes() < weight.numel() * 0.52 + 2500);
    const at::Tensor far = (memory::unpack(packed, at::kFloat) - weight).abs().view({-1, 64});
    const at::Tensor largest = weight.abs().view({-1, 64}).amax(1, true);
    const at::Tensor off = largest.view({-1}).max() * 0.008;  // of scales that are codes
    CHECK((far <= largest * 0.17 + off).all().item<bool>());
    const Packed outline = memory::outline_4bit(weight.sizes(), packing);
    REQUIRE(outline.parts.size() == packed.parts.size());
    for (size_t i = 0; i < packed.parts.size(); ++i) {
      CHECK(outline.parts[i].sizes() == packed.parts[i].sizes());
      CHECK(outline.parts[i].scalar_type() == packed.parts[i].scalar_type());
    }
  }
}

TEST_CASE("What is not finite is not stored in four bits", "[packed]") {
  at::Tensor weight = seeded({4, 64});
  weight[2][3] = INFINITY;
  const Error error = error_of([&] { memory::quantize_4bit(weight, Packing::kNf4); });
  CHECK(mentions(error, "not finite"));
  CHECK(mentions(error, "4 bits"));
}

TEST_CASE("A layer over codes multiplies by their values, and passes gradients on", "[packed]") {
  for (const Packed& matrix : matrices(6, 512)) {
    INFO(memory::packing_name(matrix.packing));
    const at::Tensor value = memory::unpack(matrix, at::kFloat).nan_to_num(0);
    if (!same_values(value, memory::unpack(matrix, at::kFloat))) continue;
    auto weight = std::make_shared<Weight>("weight", value.sizes().vec());
    weight->state().set_store(std::make_shared<PackedStore>(matrix, at::kFloat));
    const at::Tensor x = test::trained(seeded({3, 512}, 9));
    const at::Tensor y = ops::linear(x, weight, nullptr, {});
    const at::Tensor plain = at::mm(x, value.t());
    CHECK(test::error(y, plain) < 1e-6);
    CHECK(test::error(test::gradients({y}, {x}), test::gradients({plain}, {x})) < 1e-6);
    const auto store = weight->state().store();
    std::vector<at::Tensor> copies;
    for (const at::Tensor& part : store->parts()) copies.push_back(part.clone());
    CHECK(same_bits({store->over(copies)->draw()}, {value}));
    CHECK(same_bits({weight->draw_rows(at::tensor({4, 1}))},
                    {value.index_select(0, at::tensor({4, 1}))}));
  }
}

TEST_CASE("Pieces along rows and columns are those of the whole", "[packed]") {
  for (const Packed& matrix : matrices(1100, 1280)) {
    const PackedStore store(matrix, at::kBFloat16);
    const at::Tensor whole = memory::unpack(matrix, at::kBFloat16);
    for (const int64_t axis : {0, 1}) {
      INFO(memory::packing_name(matrix.packing) << " along " << axis);
      int64_t end = 0, count = 0;
      const bool has_pieces = store.draw_pieces(axis, [&](int64_t begin, const at::Tensor& piece) {
        CHECK(begin == end);
        CHECK(same_values(piece, whole.narrow(axis, begin, piece.size(axis))));
        end += piece.size(axis);
        ++count;
      });
      CHECK(has_pieces == (matrix.packing <= Packing::kFp4));
      CHECK(end == (has_pieces ? matrix.shape[axis] : 0));
      CHECK(count == (has_pieces ? 2 : 0));  // the last one is shorter
    }
  }
}

TEST_CASE("A store without values takes the memory that one with values takes", "[packed]") {
  const auto dtype = GENERATE(at::kBFloat16, at::kFloat);
  const bool draws_whole = GENERATE(false, true);
  for (const Packed& matrix : matrices(1100, 1280)) {
    if (matrix.packing > Packing::kFp4) continue;  // there are no loops for it
    INFO(memory::packing_name(matrix.packing));
    const auto draw = [&](const PackedStore& store) {
      for (const int64_t axis : {0, 1}) {
        if (draws_whole || !store.draw_pieces(axis, [](int64_t, const at::Tensor&) {}))
          store.draw();
      }
    };
    const PackedStore store(matrix, dtype), dry(memory::outline(matrix), dtype, at::kCPU);
    const memory::LiveBytes live(at::kCPU);
    const memory::MetaBytes meta;
    draw(store);
    draw(dry);
    CHECK(live.peak() > 0);
    CHECK(meta.peak() == live.peak());
  }
}

TEST_CASE("Pieces of a high matrix have fewer columns, for each thread", "[packed]") {
  const Packed matrix = memory::quantize_4bit(seeded({5000, 2048}), Packing::kNf4);
  const at::Tensor whole = memory::unpack(matrix, at::kBFloat16);
  const PackedStore store(matrix, at::kBFloat16);
  const auto widths = [&](int threads) {
    std::vector<int64_t> all;
    at::set_num_threads(threads);
    store.draw_pieces(1, [&](int64_t begin, const at::Tensor& piece) {
      all.push_back(piece.size(1));
      CHECK(same_bits({piece}, {whole.narrow(1, begin, piece.size(1))}));
    });
    at::set_num_threads(1);
    return all;
  };
  CHECK(widths(1) == std::vector<int64_t>{640, 640, 640, 128});
  CHECK(widths(3) == std::vector<int64_t>{1920, 128});  // threads begin inside a row
}

TEST_CASE("A product in pieces has the bits of the product over the whole weight", "[packed]") {
  for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{2500, 1280}, {1200, 4096}}) {
    for (const Packing packing : {Packing::kNf4, Packing::kQ4_K, Packing::kQ8_0}) {
      INFO(memory::packing_name(packing) << " " << rows << " x " << columns);
      const bool is_gguf = packing != Packing::kNf4;
      const Packed packed = is_gguf ? gguf_matrix(packing, rows, columns)
                                    : memory::quantize_4bit(seeded({rows, columns}), packing);
      const WeightPtr weight = std::make_shared<Weight>("weight", packed.shape);
      weight->state().set_store(std::make_shared<PackedStore>(packed, at::kBFloat16));
      const at::Tensor whole = memory::unpack(packed, at::kBFloat16);
      const WeightPtr bias = std::make_shared<Weight>("bias", std::vector<int64_t>{rows});
      bias->set(seeded({rows}).to(at::kBFloat16));
      for (const int64_t tokens : {1, 3, 77, 512}) {
        INFO(tokens << " tokens");
        const at::Tensor x = seeded({tokens, columns}).to(at::kBFloat16);
        CHECK(same_bits({ops::linear(x, weight, nullptr, {})}, {at::mm(x, whole.t())}));
        CHECK(
            same_bits({ops::linear(x, weight, bias, {})}, {at::addmm(bias->draw(), x, whole.t())}));
      }
    }
  }
}

TEST_CASE("Gradients in pieces have the bits of those over whole weights", "[packed]") {
  struct Layer {
    WeightPtr packed, plain, bias;
    std::vector<ops::Adapter> adapters;
  };
  const auto layer_of = [](Packing packing, int64_t rows, int64_t columns, uint64_t seed) {
    const Packed matrix = packing == Packing::kNf4
                              ? memory::quantize_4bit(seeded({rows, columns}, seed), packing)
                              : gguf_matrix(packing, rows, columns);
    Layer layer;
    layer.packed = std::make_shared<Weight>("packed", matrix.shape);
    layer.packed->state().set_store(std::make_shared<PackedStore>(matrix, at::kBFloat16));
    layer.plain = test::make_weight(memory::unpack(matrix, at::kBFloat16));
    layer.bias = test::make_weight(seeded({rows}).to(at::kBFloat16));
    for (const int64_t rank : {4, 3})
      layer.adapters.push_back({.a = test::trained(seeded({rank, columns}, seed + 1)),
                                .b = test::trained(seeded({rows, rank}, seed + 2)),
                                .scale = 0.5});
    return layer;
  };
  // Neither axis is whole pieces, and layers of one input differ in height and packing.
  const std::vector<Layer> layers = {layer_of(Packing::kNf4, 1100, 1280, 1),
                                     layer_of(Packing::kQ8_0, 640, 1280, 11),
                                     layer_of(Packing::kQ4_0, 96, 1280, 21)};
  for (const int64_t tokens : {1, 3, 77, 512}) {
    for (const size_t count : {1, 3}) {
      for (const bool has_adapters : {false, true}) {
        INFO(tokens << " tokens, " << count << " layers, adapters: " << has_adapters);
        const auto results = [&](WeightPtr Layer::*weight) {
          std::vector<at::Tensor> inputs = {
              test::trained(seeded({2, tokens, 1280}, 9).to(at::kBFloat16))};
          std::vector<ops::LinearTerms> terms;
          for (const Layer& layer : std::span(layers).first(count)) {
            auto& own = terms.emplace_back(ops::LinearTerms{layer.*weight, layer.bias, {}});
            if (!has_adapters) continue;
            own.adapters = layer.adapters;
            for (const ops::Adapter& adapter : layer.adapters)
              inputs.insert(inputs.end(), {adapter.a, adapter.b});
          }
          std::vector<at::Tensor> all = ops::linears(inputs[0], terms);
          const std::vector<at::Tensor> gradients = test::gradients(all, inputs);
          all.insert(all.end(), gradients.begin(), gradients.end());
          return all;
        };
        CHECK(same_bits(results(&Layer::packed), results(&Layer::plain)));
      }
    }
  }
}

TEST_CASE("What pieces win nothing for is drawn whole", "[packed]") {
  const Packed packed = memory::quantize_4bit(seeded({2500, 1280}), Packing::kNf4);
  const auto never = [](int64_t, const at::Tensor&) { FAIL("a piece is drawn"); };
  for (const int64_t axis : {0, 1})
    CHECK_FALSE(PackedStore(packed, at::kFloat).draw_pieces(axis, never));
  CHECK_FALSE(PackedStore(memory::rows_of(packed, 0, 64), at::kBFloat16).draw_pieces(0, never));
  const Packed narrow = memory::quantize_4bit(seeded({2500, 256}), Packing::kNf4);
  CHECK_FALSE(PackedStore(narrow, at::kBFloat16).draw_pieces(1, never));
}
