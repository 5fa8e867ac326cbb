#include "memory/packed.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <mutex>
#include <sys/mman.h>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include "atelier/error.h"
#include "atelier/host/packed_codes.h"

#include "memory/four_bit.h"
#include "memory/packed_loops.h"

namespace atelier::memory {
namespace {

using at::Tensor;

struct PackingRow {
  Packing packing;
  std::string_view name;
  BlockSize block = {};
};
constexpr PackingRow kPackings[] = {
    {Packing::kQ4_0, "Q4_0", {32, 18}},
    {Packing::kQ4_1, "Q4_1", {32, 20}},
    {Packing::kQ5_0, "Q5_0", {32, 22}},
    {Packing::kQ5_1, "Q5_1", {32, 24}},
    {Packing::kQ8_0, "Q8_0", {32, 34}},
    {Packing::kQ2_K, "Q2_K", {256, 84}},
    {Packing::kQ3_K, "Q3_K", {256, 110}},
    {Packing::kQ4_K, "Q4_K", {256, 144}},
    {Packing::kQ5_K, "Q5_K", {256, 176}},
    {Packing::kQ6_K, "Q6_K", {256, 210}},
    {Packing::kNf4, "nf4"},
    {Packing::kFp4, "fp4"},
    {Packing::kInt8, "int8"},
    {Packing::kNvfp4, "nvfp4"},
    {Packing::kMxfp8, "mxfp8"},
};

const PackingRow& row_of(Packing packing) {
  return kPackings[static_cast<size_t>(packing)];
}

bool is_gguf(Packing packing) {
  return row_of(packing).block.values > 0;
}
bool is_4_bit(Packing packing) {
  return packing == Packing::kNf4 || packing == Packing::kFp4;
}

// Values that one task of the CPU makes, and those that are float32 at once on a device.
constexpr int64_t kTaskValues = 32'768, kDeviceValues = int64_t{1} << 24;

// Rows or columns of a piece of a matrix for each thread: fewer, and the product reads its other
// factor too often; more, and the piece leaves the cache. A piece of columns has about
// kPieceValues values where it may: of a high matrix it has fewer columns, down to kLeastColumns.
constexpr int64_t kPieceRows = 768, kLeastColumns = 256, kPieceValues = int64_t{3} << 20;

// What is fetched while values are made, as long before its turn as it takes to come: so many bytes
// behind those that are read or, of a piece of columns, so many rows.
constexpr int64_t kBytesAhead = 4096, kRowsAhead = 12;

// Instruction sets.

const PackedLoops& loops_for(at::ScalarType dtype) {
  const size_t element = dtype == at::kFloat ? 0 : dtype == at::kBFloat16 ? 1 : 2;
#if defined(__x86_64__)
  static const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                               __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("f16c");
  static const bool has_avx512 =
      has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl");
  if (has_avx512) return PackedLoops::avx512[element];
  if (has_avx2) return PackedLoops::avx2[element];
#endif
  return PackedLoops::baseline[element];
}

// The scales of 4-bit codes as float32.
Tensor scales_of(const Packed& packed) {
  const std::vector<Tensor>& parts = packed.parts;
  if (parts.size() == 3) return parts[2];
  const Tensor &codes = parts[2], &values = parts[3], &scales = parts[4], &offset = parts[5];
  if (codes.is_meta()) return at::empty(codes.sizes(), values.options());
  if (codes.is_cpu() && codes.is_contiguous()) {
    Tensor result = at::empty(codes.sizes(), values.options());
    loops_for(at::kFloat)
        .scales(codes.const_data_ptr<uint8_t>(), values.contiguous().const_data_ptr<float>(),
                scales.contiguous().const_data_ptr<float>(), kScaleBlock,
                *offset.const_data_ptr<float>(), codes.numel(), result.mutable_data_ptr<float>());
    return result;
  }
  const int64_t count = codes.numel(), whole = scales.numel() * kScaleBlock;
  Tensor result = values.index_select(0, codes.reshape({-1}).to(at::kInt));
  if (whole != count) result = at::constant_pad_nd(result, {0, whole - count});
  result = result.view({-1, kScaleBlock}).mul_(scales.unsqueeze(1)).view({-1}).narrow(0, 0, count);
  return result.add_(offset).view(codes.sizes());
}

// Rows of `bytes` as float32 numbers that lie in them as float16.
Tensor halves_in(const Tensor& blocks, int64_t at) {
  return blocks.narrow(1, at, 2).contiguous().view(at::kHalf).to(at::kFloat);
}

// The bits of `bytes`, [n, k], from each of `shifts` on: [n, shifts, k].
Tensor shifted(const Tensor& bytes, std::initializer_list<int64_t> shifts, int64_t mask) {
  std::vector<Tensor> parts;
  for (const int64_t shift : shifts)
    parts.push_back(bytes.bitwise_right_shift(shift).bitwise_and_(mask));
  return at::stack(parts, 1);
}

// Codes, [n, values], with a scale and an offset that is taken away for each group: [n, groups].
struct Groups {
  Tensor codes, scales, offsets = {};
};

Tensor halves(const Tensor& bytes) {
  return shifted(bytes, {0, 4}, 15).flatten(1);
}
// `count` codes of two bits, 128 in 32 bytes.
Tensor quarters(const Tensor& bytes) {
  return shifted(bytes.reshape({-1, 32}), {0, 2, 4, 6}, 3).view({bytes.size(0), -1});
}
// Codes that stand in runs of 32, plus `bit` where the number of their run is set in `bytes`.
Tensor bits_of_runs(const Tensor& bytes, int64_t bit) {
  return shifted(bytes, {0, 1, 2, 3, 4, 5, 6, 7}, 1).flatten(1).mul_(bit);
}
Tensor fifth_bits(const Tensor& bytes) {
  const Tensor bits = shifted(bytes, {0, 1, 2, 3, 4, 5, 6, 7}, 1);  // [n, 8, 4]
  return bits.transpose(1, 2).reshape({bytes.size(0), 32}).mul_(16);
}
// 8 scales and 8 offsets of 6 bits in 12 bytes.
std::pair<Tensor, Tensor> six_bits(const Tensor& bytes) {
  const Tensor a = bytes.narrow(1, 0, 4), b = bytes.narrow(1, 4, 4), c = bytes.narrow(1, 8, 4);
  const auto high = [](const Tensor& t) { return t.bitwise_right_shift(2).bitwise_and_(48); };
  return {at::cat({a.bitwise_and(63), c.bitwise_and(15).bitwise_or_(high(a))}, 1),
          at::cat({b.bitwise_and(63), c.bitwise_right_shift(4).bitwise_or_(high(b))}, 1)};
}

Tensor floats(const Tensor& codes, int64_t subtracted = 0) {
  const Tensor result = codes.to(at::kFloat);
  return subtracted == 0 ? result : result - static_cast<double>(subtracted);
}

Groups q3_k(const Tensor& in) {
  const Tensor bytes = in.narrow(1, 96, 12);
  const Tensor low = shifted(bytes.narrow(1, 0, 8), {0, 4}, 15).flatten(1);
  const Tensor high = shifted(bytes.narrow(1, 8, 4), {0, 2, 4, 6}, 3).flatten(1);
  const Tensor scales = halves_in(in, 108) * floats(low + high * 16, 32);
  const Tensor codes = quarters(in.narrow(1, 32, 64)) + bits_of_runs(in.narrow(1, 0, 32), 4);
  return {floats(codes, 4), scales};
}

Groups q6_k(const Tensor& in) {
  const int64_t n = in.size(0);
  const Tensor low = shifted(in.narrow(1, 0, 128).reshape({-1, 64}), {0, 4}, 15).view({n, 256});
  const Tensor high = quarters(in.narrow(1, 128, 64)).mul_(16);
  const Tensor scales = in.narrow(1, 192, 16).contiguous().view(at::kChar).to(at::kFloat);
  return {floats(low + high, 32), halves_in(in, 208) * scales};
}

// `in`: blocks, uint8 [n, bytes of one].
Groups groups_of(Packing packing, const Tensor& in) {
  const int64_t n = in.size(0);
  const auto long_halves = [&](int64_t at) {
    return shifted(in.narrow(1, at, 128).reshape({-1, 32}), {0, 4}, 15).view({n, 256});
  };
  switch (packing) {
    case Packing::kQ4_0:
      return {floats(halves(in.narrow(1, 2, 16)), 8), halves_in(in, 0)};
    case Packing::kQ4_1:
      return {floats(halves(in.narrow(1, 4, 16))), halves_in(in, 0), halves_in(in, 2).neg_()};
    case Packing::kQ5_0:
      return {floats(halves(in.narrow(1, 6, 16)) + fifth_bits(in.narrow(1, 2, 4)), 16),
              halves_in(in, 0)};
    case Packing::kQ5_1:
      return {floats(halves(in.narrow(1, 8, 16)) + fifth_bits(in.narrow(1, 4, 4))),
              halves_in(in, 0), halves_in(in, 2).neg_()};
    case Packing::kQ8_0:
      return {floats(in.narrow(1, 2, 32).contiguous().view(at::kChar)), halves_in(in, 0)};
    case Packing::kQ2_K: {
      const Tensor bytes = in.narrow(1, 0, 16);
      return {floats(quarters(in.narrow(1, 16, 64))),
              halves_in(in, 80) * floats(bytes.bitwise_and(15)),
              halves_in(in, 82) * floats(bytes.bitwise_right_shift(4))};
    }
    case Packing::kQ3_K:
      return q3_k(in);
    case Packing::kQ4_K:
    case Packing::kQ5_K: {
      const auto [scales, offsets] = six_bits(in.narrow(1, 4, 12));
      const bool is_five = packing == Packing::kQ5_K;
      Tensor codes = long_halves(is_five ? 48 : 16);
      if (is_five) codes = codes + bits_of_runs(in.narrow(1, 16, 32), 16);
      return {floats(codes), halves_in(in, 0) * floats(scales), halves_in(in, 2) * floats(offsets)};
    }
    default:
      return q6_k(in);
  }
}

// Values of blocks, float32 [n, values].
Tensor unpack_blocks(Packing packing, const Tensor& in) {
  const Groups groups = groups_of(packing, in);
  const Tensor codes = groups.codes.view({in.size(0), groups.scales.size(1), -1});
  Tensor values = codes * groups.scales.unsqueeze(2);
  if (groups.offsets.defined()) values = values - groups.offsets.unsqueeze(2);
  return values.flatten(1);
}

// The codes of 4 bits in `bytes`, int32 [2 * bytes].
Tensor half_bytes(const Tensor& bytes) {
  const Tensor flat = bytes.reshape({-1});
  return at::stack({flat.bitwise_right_shift(4), flat.bitwise_and(15)}, 1).view({-1}).to(at::kInt);
}

// `values`, flat, each times the scale of its run of `block`; the last run may be shorter.
Tensor scaled(const Tensor& values, const Tensor& scales, int64_t block) {
  const int64_t count = values.numel(), whole = count / block * block;
  Tensor result = at::empty_like(values);
  const auto put = [&](int64_t begin, int64_t length, const Tensor& by) {
    Tensor part = result.narrow(0, begin, length).view({by.numel(), -1});
    at::mul_out(part, values.narrow(0, begin, length).view({by.numel(), -1}), by.unsqueeze(1));
  };
  if (whole > 0) put(0, whole, scales.narrow(0, 0, whole / block));
  if (whole < count) put(whole, count - whole, scales.narrow(0, whole / block, 1));
  return result;
}

// The values of e2m1, by code.
Tensor e2m1_values(at::Device device) {
  const std::array<float, 16> values = {0.f,  0.5f,  1.f,  1.5f,  2.f,  3.f,  4.f,  6.f,
                                        -0.f, -0.5f, -1.f, -1.5f, -2.f, -3.f, -4.f, -6.f};
  return at::tensor(at::ArrayRef<float>(values)).to(device);
}

// Two to the exponents of e8m0, float32.
Tensor powers_of_two(const Tensor& exponents) {
  const Tensor bits = exponents.to(at::kInt).bitwise_left_shift(23);
  const Tensor smallest = at::full({1}, 0x00400000, bits.options());  // 2^-127
  const Tensor nan = at::full({1}, 0x7fc00000, bits.options());
  return at::where(exponents == 255, nan, at::where(exponents == 0, smallest, bits))
      .view(at::kFloat);
}

// The scales of a packing that is no GGUF, float32 and flat, one for each `block` values.
struct Scales {
  Tensor values;
  int64_t block;
};
Scales all_scales(const Packed& packed) {
  const std::vector<Tensor>& parts = packed.parts;
  switch (packed.packing) {
    case Packing::kInt8:
      return {parts[1], parts[0].size(1)};
    case Packing::kNvfp4:
      return {(parts[1].to(at::kFloat) * parts[2]).view({-1}), 16};
    case Packing::kMxfp8:
      return {powers_of_two(parts[1]).view({-1}), 32};
    default:
      return {scales_of(packed).view({-1}), packed.block};
  }
}

// `count` codes from `begin` on as float32, before they are scaled.
Tensor code_values(const Packed& packed, int64_t begin, int64_t count) {
  const Tensor codes = packed.parts[0].view({-1});
  if (packed.packing == Packing::kInt8 || packed.packing == Packing::kMxfp8)
    return codes.narrow(0, begin, count).to(at::kFloat);
  const Tensor table = is_4_bit(packed.packing) ? packed.parts[1] : e2m1_values(codes.device());
  const Tensor bytes = codes.narrow(0, begin / 2, (count + 1) / 2);
  return table.index_select(0, half_bytes(bytes)).narrow(0, 0, count);
}

}  // namespace

// Memory of the CPU for values that are drawn, one at a time: those of the next draw stand where
// the last ones stood once they are let go. Pages new from the system take as long to get as values
// to make. Safe to use from several threads.
class DrawnMemory {
 public:
  explicit DrawnMemory(at::DeviceType device) : device_(device) {}
  Tensor take(at::IntArrayRef sizes, at::ScalarType dtype) {
    const int64_t bytes =
        c10::multiply_integers(sizes) * static_cast<int64_t>(c10::elementSize(dtype));
    const std::lock_guard lock(mutex_);
    const bool is_held = memory_.defined() && memory_.storage().use_count() > 1;
    if (bytes < kLeastBytes || is_held) return at::empty(sizes, options(dtype));
    if (!memory_.defined() || memory_.numel() - kPageBytes < bytes) renew(bytes);
    return memory_.narrow(0, begin_, bytes).view(dtype).view(sizes);
  }

 private:
  static constexpr int64_t kLeastBytes = int64_t{1} << 20;  // smaller ones are not mapped anew
  static constexpr int64_t kPageBytes = int64_t{2} << 20;   // of a huge page

  // In huge pages: a product reads a column of the weight from as many pages as it has rows, and
  // those of 4 KiB are more than the processor knows the places of.
  void renew(int64_t bytes) {
    memory_ = at::empty({bytes + kPageBytes}, options(at::kByte));
    if (device_ == at::kMeta) return;
    auto* data = static_cast<char*>(memory_.mutable_data_ptr());
    begin_ = -reinterpret_cast<intptr_t>(data) & (kPageBytes - 1);
    madvise(data + begin_, static_cast<size_t>(bytes),
            MADV_HUGEPAGE);  // slower where it is refused
  }

  at::TensorOptions options(at::ScalarType dtype) const {
    return at::TensorOptions(device_).dtype(dtype);
  }

  const at::DeviceType device_;
  std::mutex mutex_;
  Tensor memory_;
  int64_t begin_ = 0;  // of what is aligned in it
};

namespace {

// Memory of the processor, or without values. It is there as long as a store is.
std::shared_ptr<DrawnMemory> drawn_memory(bool is_meta) {
  static std::mutex mutex;
  static std::array<std::weak_ptr<DrawnMemory>, 2> all;
  const std::lock_guard lock(mutex);
  std::weak_ptr<DrawnMemory>& known = all[is_meta ? 1 : 0];
  std::shared_ptr<DrawnMemory> memory = known.lock();
  if (memory == nullptr)
    known = memory = std::make_shared<DrawnMemory>(is_meta ? at::kMeta : at::kCPU);
  return memory;
}

// Whether loops of our own take it, which are for the CPU.
bool has_loops(const Packed& packed, at::ScalarType dtype, at::DeviceType device) {
  if (device != at::kCPU || dtype == at::kDouble) return false;
  if (!packed.parts.front().is_contiguous()) return false;
  if (is_gguf(packed.packing)) return true;
  const int64_t count = c10::multiply_integers(packed.shape);
  return is_4_bit(packed.packing) && packed.block % 32 == 0 && count % packed.block == 0;
}

// Which values of a tensor are drawn: `count` stretches of as many values, one for each row of a
// matrix or one of all. They begin and end with a block.
struct Stretches {
  int64_t begin = 0, length = 0, count = 1;
  int64_t distance = 0;  // from one to the next
};

Stretches all_of(const Packed& packed) {
  return {.length = c10::multiply_integers(packed.shape)};
}
Stretches stretches_along(const Packed& packed, int64_t axis, int64_t begin, int64_t length) {
  const int64_t rows = packed.shape[0], columns = packed.shape[1];
  if (axis == 0) return {.begin = begin * columns, .length = length * columns};
  return {.begin = begin, .length = length, .count = rows, .distance = columns};
}

// Calls work(first block in the tensor, first block in what is drawn, how many) for blocks that
// stand together, of `values` each.
template <typename Work>
void for_blocks(const Stretches& stretches, int64_t values, const Work& work) {
  const int64_t length = stretches.length / values, distance = stretches.distance / values;
  at::parallel_for(0, stretches.count * length, std::max<int64_t>(1, kTaskValues / values),
                   [&](int64_t begin, int64_t end) {
                     int64_t at = begin % length, from = stretches.begin / values;
                     for (from += begin / length * distance; begin < end; from += distance) {
                       const int64_t count = std::min(length - at, end - begin);
                       work(from + at, begin, count);
                       begin += count;
                       at = 0;
                     }
                   });
}

// A block of what has loops.
BlockSize block_of(const Packed& packed) {
  return is_gguf(packed.packing) ? block_size(packed.packing)
                                 : BlockSize{packed.block, packed.block / 2};
}

// `packed`: with scales that are no codes.
void run_loops(const Packed& packed, const Stretches& stretches, Tensor& out) {
  if (out.is_meta()) return;
  const PackedLoops& loops = loops_for(out.scalar_type());
  const auto* codes = static_cast<const uint8_t*>(packed.parts.front().const_data_ptr());
  auto* to = static_cast<char*>(out.mutable_data_ptr());
  const auto element = static_cast<int64_t>(out.element_size());
  const auto [values, bytes] = block_of(packed);
  const int64_t ahead =
      stretches.count == 1 ? kBytesAhead / bytes : kRowsAhead * (stretches.distance / values);
  if (is_gguf(packed.packing)) {
    const auto unpack = loops.blocks[static_cast<size_t>(packed.packing)];
    for_blocks(stretches, values, [&](int64_t from, int64_t begin, int64_t count) {
      unpack(codes + from * bytes, count, ahead, to + begin * values * element);
    });
    return;
  }
  const Tensor table = packed.parts[1].contiguous(), scales = packed.parts[2].contiguous();
  for_blocks(stretches, values, [&](int64_t from, int64_t begin, int64_t count) {
    loops.four_bit(codes + from * bytes, table.const_data_ptr<float>(),
                   scales.const_data_ptr<float>() + from, values, count * values, ahead,
                   to + begin * values * element);
  });
}

// The tensor with its scales as numbers.
Packed with_plain_scales(const Packed& packed) {
  Packed plain = packed;
  if (is_4_bit(packed.packing)) plain.parts = {packed.parts[0], packed.parts[1], scales_of(packed)};
  return plain;
}

// What a kernel is given. `packed`: with scales that are no codes, where they are read.
ops::PackedCodes codes_of(const Packed& packed) {
  ops::PackedCodes codes = {.packing = packed.packing, .codes = packed.parts[0]};
  if (!is_4_bit(packed.packing)) return codes;
  codes.values = packed.parts[1], codes.scales = packed.parts[2];
  codes.block = packed.block;
  return codes;
}

// Whether a kernel of its device takes it.
bool has_kernel(const Packed& packed, at::ScalarType dtype) {
  return ops::has_kernel_for(codes_of(packed), dtype);
}

void draw_all(const Packed& packed, Tensor& out) {
  if (out.numel() > 0) run_loops(with_plain_scales(packed), all_of(packed), out);
}

}  // namespace

std::string_view packing_name(Packing packing) {
  return row_of(packing).name;
}

BlockSize block_size(Packing packing) {
  return row_of(packing).block;
}

int64_t Packed::bytes() const {
  int64_t bytes = 0;
  for (const Tensor& part : parts) bytes += static_cast<int64_t>(part.nbytes());
  return bytes;
}

Tensor unpack(const Packed& packed, at::ScalarType dtype) {
  const at::NoGradGuard no_grad;
  const auto options = packed.parts.front().options().dtype(dtype);
  if (packed.parts.front().is_meta()) {
    const Packed plain = with_plain_scales(packed);  // which are there beside it
    return at::empty(packed.shape, options);
  }
  const bool is_for_kernel = has_kernel(packed, dtype);
  if (!is_for_kernel && !has_loops(packed, dtype, options.device().type()))
    return unpack_composed(packed, dtype);
  Tensor out = at::empty(packed.shape, options);
  if (is_for_kernel)
    ops::draw_packed_codes(codes_of(with_plain_scales(packed)), out);
  else
    draw_all(packed, out);
  return out;
}

Tensor unpack_composed(const Packed& packed, at::ScalarType dtype) {
  const at::NoGradGuard no_grad;
  Tensor out = at::empty(packed.shape, packed.parts.front().options().dtype(dtype));
  if (out.numel() == 0) return out;
  if (is_gguf(packed.packing)) {
    const BlockSize block = block_size(packed.packing);
    const Tensor blocks = packed.parts.front().view({-1, block.bytes});
    const Tensor flat = out.view({-1, block.values});
    const int64_t step = kDeviceValues / block.values;
    for (int64_t begin = 0; begin < blocks.size(0); begin += step) {
      const int64_t count = std::min(step, blocks.size(0) - begin);
      flat.narrow(0, begin, count)
          .copy_(unpack_blocks(packed.packing, blocks.narrow(0, begin, count)));
    }
    return out;
  }
  const Scales scales = all_scales(packed);
  const Tensor flat = out.view({-1});
  const int64_t step = std::max<int64_t>(1, kDeviceValues / scales.block) * scales.block;
  for (int64_t begin = 0; begin < flat.numel(); begin += step) {
    const int64_t count = std::min(step, flat.numel() - begin);
    const int64_t blocks = (count + scales.block - 1) / scales.block;
    flat.narrow(0, begin, count)
        .copy_(scaled(code_values(packed, begin, count),
                      scales.values.narrow(0, begin / scales.block, blocks), scales.block));
  }
  return out;
}

namespace {

// The parts that have rows; others are of all rows.
std::vector<size_t> parts_with_rows(Packing packing) {
  if (is_gguf(packing)) return {0};
  if (is_4_bit(packing)) return {0, 2};
  return {0, 1};
}

}  // namespace

bool can_be_cut(const Packed& packed) {
  return packed.shape.size() == 2 && packed.packing != Packing::kNvfp4 &&
         std::ranges::all_of(parts_with_rows(packed.packing), [&](size_t part) {
           return packed.parts[part].size(0) == packed.shape[0];
         });
}

Packed rows_of(const Packed& packed, int64_t begin, int64_t count) {
  Packed rows = with_plain_scales(packed);
  rows.shape[0] = count;
  for (const size_t part : parts_with_rows(packed.packing))
    rows.parts[part] = rows.parts[part].narrow(0, begin, count).contiguous();
  return rows;
}

Packed joined_rows(std::span<const Packed> pieces) {
  Packed whole = with_plain_scales(pieces.front());
  for (const size_t part : parts_with_rows(whole.packing)) {
    std::vector<Tensor> all;
    for (const Packed& piece : pieces) all.push_back(with_plain_scales(piece).parts[part]);
    whole.parts[part] = at::cat(all, 0);
  }
  whole.shape[0] = whole.parts[0].size(0);
  return whole;
}

Packed outline(const Packed& packed) {
  Packed result = packed;
  for (Tensor& part : result.parts)
    part = at::empty(part.sizes(), part.options().device(at::kMeta));
  return result;
}

PackedStore::PackedStore(Packed value, at::ScalarType dtype)
    : value_(std::move(value)),
      dtype_(dtype),
      like_(value_.parts.front().device().type()),
      memory_(drawn_memory(/*is_meta=*/false)) {}

PackedStore::PackedStore(Packed outline, at::ScalarType dtype, at::DeviceType like)
    : value_(std::move(outline)),
      dtype_(dtype),
      like_(like),
      memory_(drawn_memory(/*is_meta=*/true)) {}

Tensor PackedStore::draw() const {
  const at::NoGradGuard no_grad;
  if (has_kernel(value_, dtype_) || !has_loops(value_, dtype_, like_))
    return unpack(value_, dtype_);
  Tensor out = memory_->take(value_.shape, dtype_);
  draw_all(value_, out);
  return out;
}

namespace {

// How many rows (`axis` is 0) or columns (1) of a matrix that is not empty a piece has: whole
// blocks.
int64_t piece_length(const Packed& packed, int64_t axis) {
  const int64_t threads = at::get_num_threads();
  if (axis == 0) return kPieceRows * threads;
  const int64_t values = block_of(packed).values;
  const int64_t columns = std::clamp(kPieceValues / packed.shape[0], kLeastColumns, kPieceRows);
  return (columns * threads + values - 1) / values * values;
}

}  // namespace

bool PackedStore::draw_pieces(int64_t axis, const UsePiece& use) const {
  if (dtype_ != at::kBFloat16 || !has_loops(value_, dtype_, like_) || !can_be_cut(value_))
    return false;
  if (c10::multiply_integers(value_.shape) == 0) return false;
  const int64_t length = value_.shape[axis], step = piece_length(value_, axis);
  if (step >= length) return false;
  const at::NoGradGuard no_grad;
  const Packed plain = with_plain_scales(value_);
  std::vector<int64_t> sizes = value_.shape;
  for (int64_t begin = 0; begin < length; begin += step) {
    sizes[axis] = std::min(step, length - begin);
    Tensor piece = memory_->take(sizes, dtype_);
    run_loops(plain, stretches_along(plain, axis, begin, sizes[axis]), piece);
    use(begin, piece);
  }
  return true;
}

std::shared_ptr<const WeightStore> PackedStore::over(std::vector<at::Tensor> copies) const {
  auto result = std::make_shared<PackedStore>(*this);
  result->value_.parts = std::move(copies);
  result->like_ = result->value_.parts.front().device().type();
  return result;
}

}  // namespace atelier::memory
