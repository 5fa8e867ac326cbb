// Codes of 8 bits that the products which read the same rows share, and that operators in front of
// them make on the way.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "atelier/host/weight_state.h"

#include "ops/kernel_choice.h"

namespace atelier::ops {

// Codes of the rows that this thread's next products read: q, k and v read the same ones, and an
// operator in front of a product may have made them. Only kernels of our own make such codes.
class SharedCodes {
 public:
  static SharedCodes& of_thread();

  // Which codes products of rows like these asked for; nullopt where none did, where codes were
  // made in vain of late, or where they are too many to be held until other rows come.
  std::optional<at::ScalarType> wanted(const at::Tensor& rows, bool is_for_one) const;

  // rows: of which `codes` are, as they are now. is_for_one: a single product reads them.
  void put(const at::Tensor& rows, RowCodes codes, bool is_for_one);

  // For a product of `rows`, [N, D].
  std::optional<RowCodes> find(const at::Tensor& rows, at::ScalarType type);

  // No codes are held any more: those of work that was recorded lie in the memory of its graph.
  void forget() { entries_.clear(); }

 private:
  struct Entry {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    const void* data;
    int64_t version;
    bool is_for_one;
    RowCodes codes;
  };
  struct Interest {
    at::ScalarType type;
    int made_in_vain = 0;
  };
  std::vector<Entry> entries_;             // the last two: those of images and of text
  std::map<int64_t, Interest> interests_;  // by the width of rows
};

// Room for codes of rows [..., D], as [N, D].
RowCodes empty_codes(const at::Tensor& rows, at::ScalarType type);

// Room for codes of an operator's result, [..., D], where products want them and the device has a
// kernel that makes them on the way.
template <typename Kernels>
std::optional<RowCodes> wanted_codes(const KernelTable<Kernels>& table, const at::Tensor& rows,
                                     bool is_for_one) {
  const Kernels* kernels = table.of(rows);
  if (kernels == nullptr || kernels->forward_codes == nullptr ||
      rows.size(-1) * rows.element_size() > kernels->widest_codes_bytes)
    return std::nullopt;
  const auto type = SharedCodes::of_thread().wanted(rows, is_for_one);
  return type ? std::optional(empty_codes(rows, *type)) : std::nullopt;
}

}  // namespace atelier::ops
