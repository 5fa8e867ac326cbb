#include "atelier/named_inputs.h"

#include <algorithm>
#include <sstream>

#include <ATen/ATen.h>

#include "atelier/error.h"

namespace atelier {
namespace {

[[noreturn]] void fail(std::string_view name, const std::string& what, std::string hint = {}) {
  throw Error(ErrorCode::kInvalidArgument, "tensor '" + std::string(name) + "'" + what,
              std::move(hint));
}

}  // namespace

std::string shape_text(const at::Tensor& tensor) {
  std::ostringstream text;
  text << tensor.sizes();
  return text.str();
}

const at::Tensor& named_tensor(const NamedTensors& inputs, std::string_view name, int64_t dims) {
  const auto found = inputs.find(name);
  if (found == inputs.end()) fail(name, " is missing");
  if (found->second.dim() != dims)
    fail(name,
         ": shape " + shape_text(found->second) + ", " + std::to_string(dims) + " axes expected");
  return found->second;
}

void allow_only(const NamedTensors& inputs, const std::vector<std::string_view>& known) {
  std::string list;
  for (const std::string_view name : known) list += (list.empty() ? "" : ", ") + std::string(name);
  for (const auto& [name, tensor] : inputs) {
    if (std::find(known.begin(), known.end(), name) == known.end())
      fail(name, " is not known here", "the tensors are " + list);
  }
}

std::vector<int64_t> lengths_of(const NamedTensors& inputs, std::string_view name, int64_t B,
                                int64_t L) {
  if (!inputs.contains(name)) return std::vector<int64_t>(static_cast<size_t>(B), L);
  const at::Tensor given = named_tensor(inputs, name, 1).to(at::kCPU).contiguous();
  if (given.scalar_type() != at::kLong) fail(name, ": int64 expected");
  const std::vector<int64_t> result(given.data_ptr<int64_t>(),
                                    given.data_ptr<int64_t>() + given.numel());
  const bool fits =
      std::all_of(result.begin(), result.end(), [&](int64_t n) { return n >= 1 && n <= L; });
  if (std::ssize(result) != B || !fits)
    fail(name, ": " + std::to_string(B) + " lengths from 1 to " + std::to_string(L) + " expected");
  return result;
}

at::Tensor pack_rows(const at::Tensor& padded, const std::vector<int64_t>& lengths) {
  std::vector<at::Tensor> parts;
  for (size_t b = 0; b < lengths.size(); ++b)
    parts.push_back(padded.select(0, static_cast<int64_t>(b)).narrow(0, 0, lengths[b]));
  return at::cat(parts, 0);
}

at::Tensor pad_rows(const at::Tensor& packed, const Segments& rows, int64_t L) {
  std::vector<at::Tensor> padded;
  for (int64_t s = 0; s < rows.count(); ++s) {
    padded.push_back(at::constant_pad_nd(packed.narrow(0, rows.offset(s), rows.length(s)),
                                         {0, 0, 0, L - rows.length(s)}));
  }
  return at::stack(padded);
}

PackedRows pack_entry(std::span<const Conditioning* const> cond, std::string_view name) {
  std::vector<at::Tensor> parts;
  std::vector<int64_t> lengths;
  for (const Conditioning* sample : cond) {
    const auto found = sample->find(name);
    if (found == sample->end()) fail(name, " is missing");
    parts.push_back(found->second);
    lengths.push_back(found->second.size(0));
  }
  return {parts.size() == 1 ? parts.front() : at::cat(parts, 0), Segments(lengths), lengths};
}

namespace {

at::Tensor stacked(const std::vector<at::Tensor>& images, std::string_view name) {
  for (const at::Tensor& image : images) {
    if (image.sizes() == images.front().sizes()) continue;
    throw Error(ErrorCode::kInvalidArgument, std::string(name) + ": images of shapes " +
                                                 shape_text(images.front()) + " and " +
                                                 shape_text(image) + ", one size expected");
  }
  return at::stack(images, 1);
}

}  // namespace

at::Tensor clip_input(const Inputs& inputs, std::string_view name, int64_t channels) {
  at::Tensor pixels;
  if (const auto* one = find_input<at::Tensor>(inputs, name)) pixels = *one;
  const auto* images = find_input<std::vector<at::Tensor>>(inputs, name);
  if (images && !images->empty()) pixels = stacked(*images, name);
  if (!pixels.defined())
    throw Error(ErrorCode::kInvalidArgument, std::string(name) + ": missing, or not an image");
  const at::Tensor clip = pixels.dim() == 3 ? pixels.unsqueeze(1) : pixels;
  if (clip.dim() != 4 || clip.size(0) != channels) {
    throw Error(ErrorCode::kInvalidArgument, std::string(name) + ": image of shape " +
                                                 shape_text(pixels) + ", [" +
                                                 std::to_string(channels) + ", T, H, W] expected");
  }
  return clip;
}

const std::string& text_input(const Inputs& inputs, std::string_view name) {
  const auto* text = find_input<std::string>(inputs, name);
  if (!text) {
    throw Error(ErrorCode::kInvalidArgument, std::string(name) + ": missing, or not a text");
  }
  return *text;
}

}  // namespace atelier
