// Ranks that compute the rows of a denoiser together.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "atelier/host/sequence_scope.h"

#include "host/distributed/group.h"

namespace atelier::distributed {

class Sequence final : public SequenceGroup {
 public:
  explicit Sequence(std::shared_ptr<Group> group) : group_(std::move(group)) {}
  int64_t rank() const override { return group_->rank(); }
  int64_t size() const override { return group_->size(); }
  at::Tensor exchange(const at::Tensor& parts) override;
  at::Tensor gather(const at::Tensor& part) override;
  std::function<at::Tensor()> pass_on(const at::Tensor& part) override;

 private:
  std::shared_ptr<Group> group_;
};

// Each `size` neighbours of `world` become a sequence. All ranks call it. Null where a
// sequence is one rank.
std::shared_ptr<SequenceGroup> make_sequence(Group& world, int size);

}  // namespace atelier::distributed
