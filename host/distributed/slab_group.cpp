#include "host/distributed/slab_group.h"

#include <utility>

#include "host/distributed/staged.h"

namespace atelier::distributed {

namespace {

class GroupSlabs final : public memory::SlabPeers {
 public:
  explicit GroupSlabs(std::shared_ptr<Group> group) : group_(std::move(group)) {}

  int64_t rank() const override { return group_->rank(); }
  int64_t size() const override { return group_->size(); }

  std::function<void()> gather(const std::string& name, const at::Tensor& whole,
                               const at::Tensor& part) override {
    return gathered_into(*group_, whole, part, "block " + name, group_->sends(whole.device()));
  }

 private:
  std::shared_ptr<Group> group_;
};

}  // namespace

std::shared_ptr<memory::SlabPeers> divide_slabs(std::shared_ptr<Group> group) {
  return std::make_shared<GroupSlabs>(std::move(group));
}

}  // namespace atelier::distributed
