// Gradients of tensors that are trained on the host: their way there, and the optimizer's work
// beside the backward pass.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <ATen/core/Tensor.h>

#include "atelier/block.h"
#include "atelier/conditioning.h"
#include "atelier/host/weight_state.h"

#include "host/optim/optimizer.h"
#include "memory/transfer_device.h"

namespace atelier::parameters {

// Each gradient leaves the device as it is made, and is added to grad() of its parameter by a
// thread that works beside the backward pass. In the last pass of a step that thread can move the
// parameters as well, block by block. The parameters are not touched by others between
// begin_backward() and finish().
//
// A step that moves parameters on the way has begun to change them before all gradients are known.
// It does not move what belongs to a block whose gradients are not finite, nor anything when the
// loss is not; blocks that came before in the backward pass have moved by then.
class HostGradients {
 public:
  // A step that is made on the way.
  struct Move {
    optim::Optimizer* optimizer;  // has_parts()
    double lr;
  };

  explicit HostGradients(memory::TransferDevice& transfer);  // outlives this
  ~HostGradients();
  HostGradients(const HostGradients&) = delete;
  HostGradients& operator=(const HostGradients&) = delete;

  // `parameter` is on the host, and place `place` of the optimizer's. Those of a `block` are moved
  // together; null: it gets one gradient in each backward pass, and is moved alone. Returns what
  // takes the gradients; this outlives its use.
  std::shared_ptr<GradientSink> add(const optim::Parameter& parameter, size_t place,
                                    const Block* block);

  // Before the forward pass.
  void begin_pass();
  // The block ran, and each of its parameters is to get a gradient for it.
  void expect(const Block& block);
  // `loss`: scalar on the device, of the step so far; is read only where parameters are moved.
  void begin_backward(const at::Tensor& loss, std::optional<Move> move = {});
  // Waits until every gradient has been added. Throws what the thread has met.
  void finish();

  // Norms of the gradients that moves have used up, by name: for optim::measure_gradients().
  const NamedTensors& norms() const { return norms_; }
  // Whether a move has changed something since clear().
  bool has_moved() const { return has_moved_; }
  // Bytes of buffers on the host that have no sum: they are free, or wait to be added to one.
  int64_t buffer_bytes() const;
  // The step did not come to its end: drops the work that waits. Returns has_moved().
  bool give_up();
  // Drops all gradients, also those on their way. Begins a new step.
  void clear();

 private:
  struct Entry;
  struct Part;
  class Sink;

  void take(Entry& entry, const at::Tensor& gradient);
  void sum(Entry& entry, const at::Tensor& arrived);
  void move(Part& part);
  void drop(Entry& entry);
  at::Tensor buffer(const Entry& entry);
  void give_back(const at::Tensor& buffer);
  void push(std::function<void()> job);
  void wait_until_idle();
  void work();

  memory::TransferDevice& transfer_;
  std::vector<std::unique_ptr<Part>> parts_;
  std::map<const Block*, Part*> part_of_;
  std::optional<Move> move_;
  at::Tensor loss_;  // on the host
  memory::Ticket loss_arrived_;
  memory::Ticket last_block_;  // arrival of the gradients of the block before
  NamedTensors norms_;
  bool has_moved_ = false;

  mutable std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  bool is_busy_ = false, stops_ = false;
  std::exception_ptr failure_;
  std::multimap<int64_t, at::Tensor> free_;  // buffers, by bytes
  int64_t staged_bytes_ = 0;                 // that wait to be added to a sum
  std::thread thread_;
};

// Gives each gradient of `leaf` to `sink` in place of keeping it, once in a backward pass.
void send_gradients(const at::Tensor& leaf, std::shared_ptr<GradientSink> sink);
// Ends that.
void keep_gradients(const at::Tensor& leaf);

}  // namespace atelier::parameters
