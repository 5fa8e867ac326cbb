// Gradients of all ranks, summed while the backward pass makes them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "host/distributed/group.h"

namespace atelier::distributed {

// The gradient of each leaf becomes the sum over the ranks, with the same bits on all of them. One
// that is not defined on a rank counts as zero; one that is defined nowhere is undefined.
//
// Leaves lie in buckets, the last ones first, which are sent through host memory, a few at a time.
// In the last backward pass of a step a bucket is sent as soon as it has the gradients that it had
// in the last step of the same kind; gradients that were not expected are sent at the end. Which
// bucket a gradient lies in does not change, so its bits do not depend on when it is sent.
//
// All ranks call open(), send_rest() and finish(), or give_up(), once in each attempt at a step, in
// this order and with nothing else of the group between the first two. A failed rank sends what it
// has: the others wait for it. Not thread-safe, but that hooks may call from autograd's threads
// while the caller waits for the backward pass.
class GradientSums {
 public:
  GradientSums(Group& group, std::vector<at::Tensor> leaves);
  ~GradientSums();
  GradientSums(const GradientSums&) = delete;
  GradientSums& operator=(const GradientSums&) = delete;

  // A step begins. Steps of one `kind` have, as a rule, gradients of the same leaves.
  void open(const std::string& kind);
  // From here on a gradient that is accumulated is whole.
  void begin_last_pass() { is_last_pass_ = true; }
  // No more gradients come: begins to send what is expected and has not been sent.
  void send_rest();
  // Returns the sum of `loss`, a float32 scalar, when the leaves have theirs.
  at::Tensor finish(const at::Tensor& loss);
  // The step does not come to its end. Does nothing where none is open.
  void give_up();

  // Seconds that the caller waited for the others, so far.
  double waited() const { return waited_; }

 private:
  struct Bucket {
    std::vector<size_t> leaves;  // their places, in this order
    int64_t count = 0;           // of numbers
    size_t awaited = 0;          // expected gradients that have not come
  };
  struct Sending;
  class Hook;

  void fill_buckets();
  void arrive(size_t place);
  template <typename Chosen>
  void send(const Bucket& bucket, Chosen&& is_chosen);
  void send_next();
  void settle(size_t left);
  void wait(Ticket& ticket);
  at::Tensor count(const at::Tensor& loss);

  Group& group_;
  const std::vector<at::Tensor> leaves_;
  std::vector<Bucket> buckets_;
  std::vector<size_t> bucket_of_;                         // by place
  std::map<std::string, std::vector<char>> expected_by_;  // kind of step
  double waited_ = 0.0;

  // Of the step that is open; the vectors are by place.
  bool is_open_ = false, is_last_pass_ = false;
  std::string kind_;
  std::vector<char> expected_;  // their gradients are sent with their buckets
  std::vector<char> has_come_;  // in the last pass
  std::vector<char> has_;       // a gradient, on this rank
  size_t next_ = 0;             // bucket to be sent
  std::deque<Sending> under_way_;
};

}  // namespace atelier::distributed
