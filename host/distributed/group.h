// The ranks of a run, and the tensors that they exchange.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include "host/distributed/ranks.h"

namespace c10d {
class Backend;
}

namespace atelier::distributed {

// An exchange that is under way. Its tensors may not be touched before wait().
class Ticket {
 public:
  Ticket() = default;  // of nothing: wait() returns at once
  explicit Ticket(std::function<void()> wait) : wait_(std::move(wait)) {}

  // Returns when the result is there; on a GPU when what is queued after it sees the result. Throws
  // Error{kPeerLost} when a rank went away or did not come in time. A second call does nothing.
  void wait() {
    if (wait_) std::exchange(wait_, nullptr)();
  }

 private:
  std::function<void()> wait_;
};

struct GroupOptions {
  std::chrono::milliseconds meeting = std::chrono::minutes(5);  // until all ranks have come
  // Time that one exchange may take; 0: as long as 20 steps and a minute at least, and before the
  // first step has ended as long as the meeting.
  std::chrono::milliseconds exchange{0};
  // This rank's GPU, whose tensors NCCL sends; nullopt: Gloo alone sends.
  std::optional<int> gpu = std::nullopt;
  // One rank alone makes its exchanges with itself, too; else it makes none.
  bool even_alone = false;
  // Makes what sends for the rank of a group of that size, in place of Gloo. The other ranks do not
  // exist then, and nobody is met: so tests count what one of many would send. Empty: Gloo.
  std::function<c10::intrusive_ptr<c10d::Backend>(int rank, int size)> transport = {};
};

class Peers;
class Group;

// While it lives, an exchange that is begun may take an hour, as long as the others live. `group`:
// of all ranks, which do the same; null: this rank is alone.
class TimeoutExtension {
 public:
  explicit TimeoutExtension(Group* group);
  ~TimeoutExtension();
  TimeoutExtension(const TimeoutExtension&) = delete;
  TimeoutExtension& operator=(const TimeoutExtension&) = delete;

 private:
  Group* group_;
};

// All ranks of a group make the same calls in the same order. Tensors are contiguous, on a device
// that sends(), and of the same shape and dtype on all ranks. What fails is Error{kPeerLost}, which
// names the place, the exchange and the ranks that are lost, or Error{kInternal} where ranks made
// different calls, which a call that waits or compare() finds. Not thread-safe.
class Group {
 public:
  // Waits until all ranks are there; of one rank, it meets nobody. Throws as Peers does.
  static std::shared_ptr<Group> meet(const Ranks& ranks, const GroupOptions& options = {});
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  const Ranks& ranks() const;
  int rank() const { return ranks().rank; }
  int size() const { return ranks().size; }
  bool is_first() const { return ranks().is_first(); }
  // Whether anything is sent; of one rank alone, only where the options say so.
  bool exchanges() const;
  std::string name_of(int rank) const;  // "rank 2 (node7)"

  // The group of `groups` that this rank is in; each lists ranks of this group in the order that
  // they have there, and each rank is in one. All ranks call this with the same groups. `name` says
  // what they are for, in errors, and is given once. Exchanges of a smaller group do not wait for
  // others, nor for those of another group of the same ranks. Of the group of all ranks alone are
  // gather_texts(), set_place(), begin_step(), give_up() and part(), which hold for the smaller
  // ones, too.
  std::shared_ptr<Group> among(const std::vector<std::vector<int>>& groups,
                               const std::string& name);
  // Groups of `size` ranks that follow each other; size() is a multiple.
  std::shared_ptr<Group> neighbours(int size, const std::string& name);

  // Opens what sends tensors of this rank's GPU, where the options name one; they have to be
  // different ones: see require_own_gpus(). All ranks come here, before among().
  void meet_gpus();
  std::optional<int> gpu() const;

  // Whether tensors of this device are sent from where they lie: of host memory they always are.
  bool sends(at::Device device) const;

  // Where the run is, for errors: "comparing", "step 5". Steps are also how time is measured.
  void set_place(std::string place);
  void begin_step(int64_t step);

  // The sum over the ranks, in place. Every rank gets the same bits.
  Ticket all_reduce(const at::Tensor& value);
  // `value` of rank `root`, in place.
  Ticket broadcast(const at::Tensor& value, int root);
  // `whole` becomes the parts of all ranks, one after the other: size() times as many elements.
  Ticket all_gather(const at::Tensor& whole, const at::Tensor& part);
  // Gathers `what`, which is compared, too: "all-gather of block 3".
  Ticket all_gather(const at::Tensor& whole, const at::Tensor& part, const std::string& what);
  // `part` becomes this rank's part of the sum of all ranks' `whole`, which in host memory are
  // added in the order of the ranks.
  Ticket reduce_scatter(const at::Tensor& part, const at::Tensor& whole);
  // Part r of `in` goes to rank r, whose part comes to the place of its rank in `out`.
  Ticket all_to_all(const at::Tensor& out, const at::Tensor& in);
  // `in` goes to the next rank, that of the last one to the first; that of the rank before comes to
  // `out`.
  Ticket pass_on(const at::Tensor& out, const at::Tensor& in);

  // What every rank says, by rank: small texts. Waits as long as the others live.
  std::vector<std::string> gather_texts(const std::string& text);

  // Returns when all ranks have made the same exchanges so far, and throws on all where they have
  // not: before anything is done with what came.
  void compare();
  // Compares what ranks have told each other otherwise: made() of every rank of the run, in
  // rows.
  void compare(const at::Tensor& made_by_rank);
  // How many exchanges this rank has made so far, and a hash of them in two halves.
  std::array<double, 3> made() const;

  // How ranks leave work in the middle of which they exchange, when one of them cannot go on with
  // it. All call begin_work() where it begins. The one that cannot calls call_off(): exchanges of
  // the others throw Error{kCancelled} then, one that is waited for within a second, but over NCCL
  // after its time-out. From there on exchanges do nothing, until all ranks have come to leave():
  // behind it they throw Error{kInternal}, and gather_texts() is what ranks have left.
  void begin_work();
  void call_off();
  bool is_called_off() const;
  void leave();

  // How this process leaves the others: because of an error of its own, which they then name, or
  // all together at the end of the run.
  void give_up(std::string_view reason);
  void part();

  // Bytes that this rank has sent to others so far, without what transports add. Of the group of
  // all ranks: with what it sent in smaller ones.
  int64_t bytes_sent() const;
  // Seconds that this rank has waited in exchanges of the run so far, of whatever group. What NCCL
  // sends, the GPU waits for, and not the rank.
  double seconds_waited() const;

 private:
  struct Run;
  struct State;
  explicit Group(std::unique_ptr<State> state);
  friend class TimeoutExtension;
  void open_gloo();
  void open_nccl();
  std::unique_ptr<State> state_;
};

// Tags of errors that all ranks throw together, so that rank 0 alone says them: that they are not
// alike, which is shown, and what one of them has found for all, which is shown by its own code.
inline constexpr std::string_view kRanksDiffer = "RANKS_DIFFER";
inline constexpr std::string_view kSaidByFirst = "SAID_BY_FIRST";

// Does `work` with the others, and returns its exit code. An error of this rank is told to them
// before it is thrown on.
int run_with_others(const Ranks& ranks, const GroupOptions& options,
                    const std::function<int(Group&)>& work);

}  // namespace atelier::distributed
