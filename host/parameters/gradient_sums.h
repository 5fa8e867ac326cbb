// Gradients of all ranks, summed while backward passes make them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "host/distributed/group.h"
#include "host/distributed/shards.h"
#include "host/parameters/exchange_plan.h"

namespace atelier::parameters {

// Carries out what an exchange plan says of gradients. Every rank gets the same bits; a gradient
// that is not defined on a rank counts as zero, and one that is defined nowhere is undefined:
//
//   leaves, nothing is shared out   -- all-reduce -->      the sums, in the leaves
//   leaves that are shared out      -- reduce-scatter -->  this rank's shards of the sums
//   tensors of divided blocks       -- reduce-scatter -->  the same
//
// Buckets of leaves are sent a few at a time, the last leaves first. In a backward pass that sends,
// the last one of a step or each, a bucket is sent as soon as it has the gradients that it had in
// the last step of the same kind; others are sent at the end. Which bucket a gradient lies in does
// not change, so its bits do not depend on when it is sent. What tensors of a divided block get in
// one run of it is sent behind that: no rank has more than two blocks of it beside its shards.
//
// A step is open(), pass() for each backward pass, send_rest(), gather_status(), finish() and
// clear(), on all ranks and with nothing else of the group from open() to gather_status(). Where it
// fails it is give_up(), clear() and gather_status(): that rank sends what it has, since the others
// wait for it. ParameterPlacement, which alone calls this, has the order as its states. Not
// thread-safe, but that autograd's threads may call while the caller waits in pass().
class GradientSums {
 public:
  struct Options {
    bool on_host = false;  // where shards are summed
  };

  // `groups`: those that `plan` shares over; without one where it shares nothing. `leaves`: in the
  // plan's order. All ranks of `world` call this; it and `plan` outlive this.
  GradientSums(distributed::Group& world, distributed::ShardGroups groups, const ExchangePlan& plan,
               std::vector<at::Tensor> leaves, Options options);
  ~GradientSums();
  GradientSums(const GradientSums&) = delete;
  GradientSums& operator=(const GradientSums&) = delete;

  // A step begins, of one denoiser or, where that is empty, of all. `passes`: backward passes of
  // the rank that has most.
  void open(const std::string& denoiser, int64_t passes = 1);
  // A backward pass of this rank; `is_last`: of the step, what is left of which send_rest() sends.
  void pass(bool is_last, const std::function<void()>& backward);
  // In it: a gradient of a tensor of a divided block, whole, and that the tensors of a block have
  // the gradients that they get for one run of it.
  void take(size_t place, const at::Tensor& gradient);
  void send(const Block& block);
  // No more gradients come: begins to send what is expected and has not been sent.
  void send_rest();
  // Tells the others which gradients this rank has, `loss`, which is one number or undefined, and
  // `numbers`, as many on every rank. Returns the numbers of all, [ranks, numbers], when it is
  // known that all have made the same exchanges so far: see Group::compare().
  at::Tensor gather_status(const at::Tensor& loss, const std::vector<double>& numbers);
  // Returns the sum of the losses, a float32 scalar, when the sums are there. Leaves of which
  // shards are summed have no gradients then.
  at::Tensor finish();
  // After finish(): this rank's shard of the sum for a leaf, or for a tensor of a divided block,
  // flat; undefined where no rank has a gradient.
  at::Tensor shard(size_t place) const { return shard(whole_, place); }
  at::Tensor divided_shard(size_t place) const { return shard(divided_, place); }
  // The step does not come to its end. Of leaves nothing is sent where none is open.
  void give_up();
  // Drops the sums of divided blocks, of which nothing is under way. Those of leaves are kept until
  // the next step begins.
  void clear();

  // Bytes of this rank's shards of sums, and of what is on its way or waits for its block, now.
  int64_t sum_bytes() const;
  int64_t bytes_under_way() const;

 private:
  class Hook;

  // A bucket on its way.
  struct Sending {
    size_t bucket;
    std::vector<distributed::FlatLayout::Position> positions =
        {};                           // of the leaves whose gradients are sent
    at::Tensor values = {};           // the bucket; undefined once a part of the sum is all of it
    at::Tensor host = {}, part = {};  // what is sent, and the part of the sum that comes
    distributed::Ticket sent = {};
  };
  // What is sent in an order of its own.
  struct Lane {
    const distributed::FlatLayout& layout;
    distributed::Group* group;          // null: nothing is sent
    std::vector<at::Tensor> sums = {};  // by bucket; undefined before anything came
    std::deque<Sending> under_way = {};
    std::vector<char> has = {};           // by tensor: a gradient, on this rank
    std::vector<char> has_anywhere = {};  // on any rank
  };

  bool is_shared() const { return groups_.shards != nullptr; }
  std::vector<distributed::Group*> groups() const;
  void begin_sending();
  void arrive(size_t place);
  template <typename Chosen>
  bool send_leaves(size_t bucket, Chosen&& is_chosen);
  void send_next();
  void send_pass();
  void begin(Lane& lane, Sending sending);
  void settle(Lane& lane, size_t left);
  void give_back(Sending& sending);
  void append_marks(std::vector<double>& values) const;
  void read_marks(const double* values);
  void add_groups(Lane& lane);
  at::Tensor shard(const Lane& lane, size_t place) const;

  distributed::Group& world_;
  const distributed::ShardGroups groups_;
  const ExchangePlan& plan_;
  const std::vector<at::Tensor> leaves_;
  const Options options_;
  std::shared_ptr<distributed::Group> blocks_;  // where divided blocks alone are sent; may be null
  Lane whole_, divided_;                        // leaves, and tensors of divided blocks
  std::vector<at::Tensor>
      waiting_;  // by bucket of divided_: values before send(); may be undefined
  std::map<std::string, std::vector<char>> expected_by_;  // the denoiser of a step

  // The step that is open; vectors are by leaf.
  bool is_open_ = false, is_sending_ = false;
  int64_t passes_left_ = 0;  // that send
  std::string denoiser_;
  std::vector<char> expected_;   // their gradients are sent with their buckets
  std::vector<char> has_come_;   // in the pass that sends
  std::vector<size_t> awaited_;  // expected gradients of each bucket that have not come
  size_t next_ = 0;              // bucket to be sent
  double loss_ = 0.0;            // the sum
};

}  // namespace atelier::parameters
