// How a published checkpoint's tensor names become a component's weight names.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace atelier {

// One row of a family's weight table. `{}` stands for a block number and is carried across.
//
// Several rows with one `from` cut that tensor along `axis`, in table order, each taking the length
// of its own weight; several rows with one `to` join their tensors along `axis` the same way. A row
// without `to` names tensors that are known and not used; only in such a row `from` may hold `*`,
// which matches any text. The table reads backwards too: from it the host writes a checkpoint in
// its published spelling.
struct WeightRule {
  std::string from;     // in the checkpoint: "layers.{}.attention.qkv.weight"
  std::string to = {};  // in the component: "layers.{}.attn.q.weight"
  int axis = -1;        // -1: the whole tensor
  // The tensor's length along `axis`, in a row that joins, where no checkpoint says so. 0: as the
  // checkpoint says, and where there is none all tensors of one `to` are equal.
  int64_t length = 0;
};

using WeightMap = std::vector<WeightRule>;

}  // namespace atelier
