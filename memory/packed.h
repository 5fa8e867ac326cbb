// Weights that rest as blocks of small codes with scales: what files of GGUF, bitsandbytes and
// ComfyUI hold, read as they are, and what is stored in 4 bits when it is loaded.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "atelier/host/packing.h"
#include "atelier/host/weight_state.h"

namespace atelier::memory {

using ops::Packing;

// "Q4_K", "nf4".
std::string_view packing_name(Packing packing);

// Bytes and values of one block of a GGUF packing.
struct BlockSize {
  int64_t values = 0, bytes = 0;
};
BlockSize block_size(Packing packing);

// A tensor as codes. Rows are along the first axis; `columns` is what is left of the shape. By
// packing its parts are:
//
// Q...:  {blocks, uint8 [rows, bytes of a row]}
// nf4 and fp4:  {codes, uint8 [rows, columns / 2], the first of two in the high bits; their values,
//     float32 [16]; scales, float32 [rows, columns / block]}; where scales are codes, too:
//     {codes; values; codes of scales, uint8 [rows, columns / block]; their values, float32 [256];
//     their scales, float32, one for each 256; what is added to a scale, float32 [1]}
// int8:  {codes, int8 [rows, columns]; scales, float32 [rows]}
// nvfp4: {codes, uint8 [rows, columns / 2], as of nf4; scales, float8_e4m3fn [rows, columns / 16];
//     a scale of all, float32 [1]}
// mxfp8: {codes, float8_e4m3fn [rows, columns]; exponents, uint8 [rows, columns / 32]}
//
// Where rows are no whole blocks, blocks run on over them and [1, all] stands for [rows, ...].
struct Packed {
  Packing packing = Packing::kNf4;
  std::vector<int64_t> shape;
  std::vector<at::Tensor> parts;
  int64_t block = 64;  // values that share a scale, of nf4 and fp4

  int64_t bytes() const;
};

// The values in `dtype`, float32, bfloat16 or float16, on the device of the codes: computed in
// float32, with a rounding behind each operation, and rounded once. They are those of gguf-py, of
// bitsandbytes and of ComfyUI's kernels for float32, to the bit.
at::Tensor unpack(const Packed& packed, at::ScalarType dtype);
// Unpacks by operators of LibTorch, to the same bits, as on devices that have neither loops nor a
// kernel for it.
at::Tensor unpack_composed(const Packed& packed, at::ScalarType dtype);

// Whether rows stand by themselves: they are whole blocks, and no scale is of all.
bool can_be_cut(const Packed& packed);
// Rows [begin, begin + count), and rows one behind the other; of those that can be cut. What is
// joined is of one packing and block. Scales that are codes become float32.
Packed rows_of(const Packed& packed, int64_t begin, int64_t count);
Packed joined_rows(std::span<const Packed> parts);

// `packed` without values.
Packed outline(const Packed& packed);

class DrawnMemory;

// Draws a tensor anew each time, in `dtype` and on the device of the codes. Immutable and safe to
// use from several threads.
class PackedStore final : public WeightStore {
 public:
  PackedStore(Packed value, at::ScalarType dtype);
  // One of a value without values, which draws such tensors as a device of kind `like` would: what
  // that takes can be counted.
  PackedStore(Packed outline, at::ScalarType dtype, at::DeviceType like);

  at::Tensor draw() const override;
  // On the CPU in bfloat16, of matrices that are larger than a piece.
  bool draw_pieces(int64_t axis, const UsePiece& use) const override;

  std::vector<at::Tensor> parts() const override { return value_.parts; }
  std::shared_ptr<const WeightStore> over(std::vector<at::Tensor> copies) const override;

  const Packed& value() const { return value_; }

 private:
  Packed value_;
  at::ScalarType dtype_;
  at::DeviceType like_;
  std::shared_ptr<DrawnMemory> memory_;
};

}  // namespace atelier::memory
