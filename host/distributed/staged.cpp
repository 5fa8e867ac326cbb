#include "host/distributed/staged.h"

#include <ATen/ATen.h>

namespace atelier::distributed {
namespace {

at::Tensor staged(const Group& group, const at::Tensor& t) {
  return (group.sends(t.device()) ? t : t.cpu()).contiguous();
}

// Transports do not know all dtypes.
at::Tensor bytes_of(const at::Tensor& t) {
  return t.view(-1).view(at::kByte);
}

}  // namespace

at::Tensor gathered(Group& group, const at::Tensor& part) {
  const at::Tensor sent = staged(group, part);
  std::vector<int64_t> sizes = sent.sizes().vec();
  sizes.insert(sizes.begin(), group.size());
  const at::Tensor whole = at::empty(sizes, sent.options());
  group.all_gather(bytes_of(whole), bytes_of(sent)).wait();
  return whole.to(part.device());
}

at::Tensor exchanged(Group& group, const at::Tensor& parts) {
  const at::Tensor sent = staged(group, parts);
  const at::Tensor received = at::empty_like(sent);
  group.all_to_all(bytes_of(received), bytes_of(sent)).wait();
  return received.to(parts.device());
}

std::function<void()> gathered_into(Group& group, const at::Tensor& whole, const at::Tensor& part,
                                    const std::string& what, bool sends) {
  const auto options = at::TensorOptions(at::kByte).pinned_memory(!whole.is_cpu());
  const at::Tensor all = sends ? whole : at::empty(whole.sizes(), options);
  const at::Tensor sent = sends ? part : part.cpu();
  const auto arrived = std::make_shared<Ticket>(group.all_gather(all, sent, what));
  return [arrived, all, sent, whole] {
    arrived->wait();
    if (!all.is_same(whole)) whole.copy_(all, /*non_blocking=*/true);
  };
}

std::function<at::Tensor()> passed_on(Group& group, const at::Tensor& part) {
  const at::Tensor sent = staged(group, part), received = at::empty_like(sent);
  const auto arrived = std::make_shared<Ticket>(group.pass_on(bytes_of(received), bytes_of(sent)));
  return [arrived, received, sent, device = part.device()] {
    arrived->wait();
    return received.to(device);
  };
}

}  // namespace atelier::distributed
