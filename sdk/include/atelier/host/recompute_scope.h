// What an operator does with its output when its block will be run again in the backward pass.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "atelier/export.h"

namespace atelier::ops {

enum class Action : uint8_t {
  kRecompute,  // compute again
  kKeep,       // hold the output from the first run
  kOffload,    // as kKeep; whoever entered the scope sends it to host memory, and brings it back
  kSkip,       // no backward formula reads the values: replay returns a NaN stand-in of no bytes
};

// One action per operator call of a block, in call order; calls past the end recompute.
using ActionPlan = std::vector<Action>;

// What one operator call left behind.
struct KeptOutput {
  std::string op;
  std::vector<at::Tensor> tensors;  // empty unless kept
  std::vector<int64_t> versions;
};

// Is told of every operator call of a scope, on its thread.
class ATELIER_API RecomputeObserver {
 public:
  virtual ~RecomputeObserver();
  virtual void begin() = 0;
  // `outputs` are what kKeep would hold. Some may be undefined.
  virtual void end(std::string_view op, const std::vector<at::Tensor>& outputs) = 0;
};

// Thread-local and entered twice: while the block runs first (recording) and inside the block
// node's backward, on autograd's device thread (replaying). Operators call run(); nothing else
// does.
class ATELIER_API RecomputeScope {
 public:
  enum class Mode { kRecord, kReplay };

  // `kept` grows by one entry per operator call while recording. With `consume`, replay gives kept
  // tensors away, so that they are freed as the replayed graph is. `observer` may be null.
  RecomputeScope(Mode mode, const ActionPlan& plan, std::vector<KeptOutput>& kept,
                 bool consume = false, RecomputeObserver* observer = nullptr);
  ~RecomputeScope();
  RecomputeScope(const RecomputeScope&) = delete;
  RecomputeScope& operator=(const RecomputeScope&) = delete;

  size_t calls() const { return next_; }

  // compute(need_values) gives the operator's tensors (undefined ones allowed); need_values is
  // false for kSkip in replay, where only shapes matter. Without a scope it is called with true.
  // Throws Error{kInternal} when the replay asks for another operator than was recorded, or a kept
  // output was changed in place.
  static std::vector<at::Tensor> run(
      std::string_view op, const std::function<std::vector<at::Tensor>(bool need_values)>& compute);

  static RecomputeScope* current();

  // The operator that was recorded where the replay is now; empty where nothing is replayed.
  static std::string_view recorded();

  // Suspends whatever scope is current, for a block inside a block.
  class ATELIER_API Suspend {
   public:
    Suspend();
    ~Suspend();

   private:
    RecomputeScope* previous_;
  };

 private:
  Mode mode_;
  const ActionPlan& plan_;
  std::vector<KeptOutput>& kept_;
  bool consume_;
  RecomputeObserver* observer_;
  size_t next_ = 0;
  RecomputeScope* previous_;
};

}  // namespace atelier::ops
