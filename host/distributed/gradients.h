// Gradients of all ranks, summed while the backward pass makes them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "host/distributed/group.h"
#include "host/distributed/shards.h"

namespace atelier::distributed {

// Buckets of gradients, or of moved values that come back, at one time, at most.
inline constexpr size_t kBucketsUnderWay = 4;

// The gradient of each leaf becomes the sum over the ranks, with the same bits on all of them. One
// that is not defined on a rank counts as zero; one that is defined nowhere is undefined.
//
// Leaves lie in buckets, the last ones first, which are sent through host memory, a few at a time.
// In a backward pass that sends, the last one of a step, a bucket is sent as soon as it has the
// gradients that it had in the last step of the same kind; gradients that were not expected are
// sent at the end. Which bucket a gradient lies in does not change, so its bits do not depend on
// when it is sent.
//
// All ranks call open(), send_rest(), tell() and finish(), or give_up() and tell(), once in each
// attempt at a step, in this order and with nothing else of the group between the first three. A
// failed rank sends what it has: the others wait for it. Not thread-safe, but that hooks may call
// from autograd's threads while the caller waits for the backward pass.
class GradientSums {
 public:
  // `keeps_memory`: the sums come to where the gradients are, which somebody else keeps.
  GradientSums(Group& group, std::vector<at::Tensor> leaves, bool keeps_memory = false);
  virtual ~GradientSums();
  GradientSums(const GradientSums&) = delete;
  GradientSums& operator=(const GradientSums&) = delete;

  // A step begins. Steps of one `kind` have, as a rule, gradients of the same leaves. `passes`:
  // backward passes of the rank that has most.
  void open(const std::string& kind, int64_t passes = 1);
  // Around each backward pass of this rank; `is_last`: of the step, which send_rest() ends.
  void begin_pass(bool is_last);
  void end_pass();
  // No more gradients come: begins to send what is expected and has not been sent.
  void send_rest();
  // Tells the others which gradients this rank has, `loss`, which is one number or undefined, and
  // `words`, as many on every rank. Returns the words of all, [ranks, words], when it is known that
  // all have made the same exchanges so far: see Group::compare().
  at::Tensor tell(const at::Tensor& loss, const std::vector<double>& words);
  // Returns the sum of the losses, a float32 scalar, when the leaves have their sums.
  at::Tensor finish();
  // The step does not come to its end. Does nothing where none is open.
  void give_up();

  // Bytes of the buckets that are on their way now.
  int64_t bytes_under_way() const;

 protected:
  // Some gradients of a bucket on their way.
  struct Sending {
    size_t bucket = 0;
    std::vector<FlatLayout::Place> places = {};  // of the leaves whose gradients are sent
    at::Tensor values = {}, host = {};  // the bucket; the same where it is sent from where it lies
    at::Tensor part = {};               // of the sum
    Ticket sent = {};
  };
  struct Sends {
    bool each_pass = false;  // gradients, and not their sums over the passes of a step
    bool takes_all = false;  // a gradient is not kept beside what was sent
    bool keeps_memory = false;
    // Whether a leaf is expected in the first step of a kind; null: none is.
    std::function<bool(size_t place, const std::string& kind)> expects = {};
  };
  GradientSums(Group& group, std::vector<at::Tensor> leaves, FlatLayout layout, Sends sends);

  // Begins to send a bucket, and takes what came.
  virtual void exchange(Sending& sending);
  virtual void take(Sending& sending);
  // A step begins; all that was sent in it has come, some of it behind tell() (`has_late`).
  virtual void clear() {}
  virtual void complete(bool has_late);
  // The groups among which a step exchanges something.
  virtual std::vector<Group*> compared() const { return {&group_}; }

  // After finish(): whether any rank has a gradient of the leaf.
  bool has_gradient(size_t place) const { return expected_[place] != 0; }

  Group& group_;
  const std::vector<at::Tensor> leaves_;
  const FlatLayout layout_;

 private:
  class Hook;

  void begin_sending();
  void arrive(size_t place);
  template <typename Chosen>
  bool send(size_t bucket, Chosen&& is_chosen);
  static at::Tensor pack(const FlatLayout::Bucket& bucket,
                         const std::vector<at::Tensor>& gradients);
  void send_next();
  void send_pass();
  void settle(size_t left);
  void append_marks(std::vector<double>& values) const;
  void read_marks(const double* values);

  const Sends sends_;
  std::map<std::string, std::vector<char>> expected_by_;  // kind of step

  // The step that is open; the vectors are by place.
  bool is_open_ = false, is_sending_ = false;
  int64_t passes_left_ = 0;  // that send
  std::string kind_;
  std::vector<char> expected_;   // their gradients are sent with their buckets
  std::vector<char> has_come_;   // in the pass that sends
  std::vector<char> has_;        // a gradient, on this rank
  std::vector<size_t> awaited_;  // expected gradients of each bucket that have not come
  size_t next_ = 0;              // bucket to be sent
  std::deque<Sending> under_way_;
  std::vector<char> has_anywhere_;  // a gradient, on any rank
  double loss_ = 0.0;               // the sum
};

// This rank keeps its part of each sum alone: see FlatLayout. The leaves have no gradients
// afterwards.
class ShardedGradients final : public GradientSums {
 public:
  struct Options {
    // Parts are summed over the passes of a step, so that no rank keeps whole gradients.
    bool each_pass = false;
    bool on_host = false;  // where the parts are summed
    // See GradientSums::Sends.
    std::function<bool(size_t place, const std::string& kind)> expects = {};
  };

  // `layout`: of the leaves, for the ranks of groups.shards.
  ShardedGradients(Group& world, ShardGroups groups, std::vector<at::Tensor> leaves,
                   FlatLayout layout, Options options);

  // After finish(): what this rank has of the sum for a leaf, flat; undefined where no rank has a
  // gradient.
  at::Tensor piece(size_t place) const;

  // Bytes of the parts of sums that this rank has now.
  int64_t sum_bytes() const;

 private:
  void exchange(Sending& sending) override;
  void take(Sending& sending) override;
  void clear() override;
  void complete(bool has_late) override;
  std::vector<Group*> compared() const override { return {&group_, groups_.shards.get()}; }

  const ShardGroups groups_;
  const bool on_host_;
  std::vector<at::Tensor> parts_;  // by bucket; undefined before anything came
};

}  // namespace atelier::distributed
