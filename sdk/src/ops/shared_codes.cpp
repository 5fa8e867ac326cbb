#include "ops/shared_codes.h"

#include <algorithm>

#include <ATen/ATen.h>

namespace atelier::ops {
namespace {

using at::Tensor;

constexpr size_t kMostEntries = 2;
// Codes that nothing may read any more are held until others come.
constexpr int64_t kMostHeld = int64_t{1} << 26;
constexpr int kMostInVain = 4;

}  // namespace

SharedCodes& SharedCodes::of_thread() {
  static thread_local SharedCodes codes;
  return codes;
}

std::optional<at::ScalarType> SharedCodes::wanted(const Tensor& rows, bool is_for_one) const {
  const auto found = interests_.find(rows.size(-1));
  if (found == interests_.end() || found->second.made_in_vain >= kMostInVain) return std::nullopt;
  if (rows.is_inference() || (!is_for_one && rows.numel() > kMostHeld)) return std::nullopt;
  return found->second.type;
}

void SharedCodes::put(const Tensor& rows, RowCodes codes, bool is_for_one) {
  const at::ScalarType type = codes.codes.scalar_type();
  const auto interest = interests_.try_emplace(rows.size(-1), Interest{type}).first;
  ++interest->second.made_in_vain;
  if (entries_.size() == kMostEntries) entries_.erase(entries_.begin());
  entries_.push_back({rows.storage().getWeakStorageImpl(), rows.const_data_ptr(),
                      static_cast<int64_t>(rows._version()), is_for_one, std::move(codes)});
}

std::optional<RowCodes> SharedCodes::find(const Tensor& rows, at::ScalarType type) {
  interests_[rows.size(1)] = {type};
  std::erase_if(entries_, [](const Entry& entry) { return entry.storage.expired(); });
  const auto found = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) {
    return !rows.is_inference() && rows.is_contiguous() && entry.data == rows.const_data_ptr() &&
           entry.version == static_cast<int64_t>(rows._version()) &&
           entry.codes.codes.sizes() == rows.sizes() && entry.codes.codes.scalar_type() == type;
  });
  if (found == entries_.end()) return std::nullopt;
  const RowCodes codes = found->codes;
  if (found->is_for_one) entries_.erase(found);
  return codes;
}

RowCodes empty_codes(const Tensor& rows, at::ScalarType type) {
  const int64_t width = rows.size(-1), count = rows.numel() / width;
  return {at::empty({count, width}, rows.options().dtype(at::kByte)).view(type),
          at::empty({count}, rows.options().dtype(at::kFloat))};
}

}  // namespace atelier::ops
