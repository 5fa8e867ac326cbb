// Graphs without a GPU: work is done again at each replay, and held against what was recorded.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/record_function.h>

#include "atelier/host/device_graph.h"

namespace atelier::test {

// The operators that this thread calls while it lives: their names, their numbers, and where
// tensors lie that none of them made. A GPU's graph has all of that fixed. One at a time.
class Trace {
 public:
  Trace() {
    current() = this;
    handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(&Trace::begin, &Trace::end)
                                             .needsInputs(true)
                                             .needsOutputs(true)
                                             .scopes({at::RecordScope::FUNCTION}));
  }
  ~Trace() {
    at::removeCallback(handle_);
    current() = nullptr;
  }
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  const std::vector<std::string>& calls() const { return calls_; }

 private:
  static Trace*& current() {
    static thread_local Trace* trace = nullptr;
    return trace;
  }

  // What an operator with a number has made a tensor of.
  static std::string number(const at::Tensor& t) {
    const void* const value = t.const_data_ptr();
    if (t.scalar_type() == at::kDouble) return c10::str(*static_cast<const double*>(value));
    if (t.scalar_type() == at::kLong) return c10::str(*static_cast<const int64_t*>(value));
    return c10::str(*static_cast<const bool*>(value));
  }
  void add(std::string& text, const at::Tensor& t) {
    if (!t.defined() || !t.has_storage()) {
      text += " none";
      return;
    }
    if (t.unsafeGetTensorImpl()->is_wrapped_number()) {
      text += ' ';
      text += number(t);
      return;
    }
    const void* const storage = t.storage().data();
    text += c10::str(" ", t.sizes(), t.strides());
    if (made_.contains(storage)) return;
    found_.insert(storage);
    text += c10::str("@", t.const_data_ptr());
  }
  void add(std::string& text, const c10::IValue& value) {
    if (value.isTensor()) return add(text, value.toTensor());
    if (value.isTensorList()) {
      for (const at::Tensor& t : value.toTensorVector()) add(text, t);
    } else if (value.isDouble() || value.isInt() || value.isBool() || value.isIntList() ||
               value.isDoubleList() || value.isScalar()) {
      text += c10::str(" ", value);
    }
  }
  void keep(const c10::IValue& value) {
    if (!value.isTensor() || !value.toTensor().defined() || !value.toTensor().has_storage()) return;
    const void* const storage = value.toTensor().storage().data();
    if (!found_.contains(storage)) made_.insert(storage);
  }

  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& call) {
    if (current()->depth_++ > 0) return nullptr;  // within an operator
    std::string text = call.name();
    for (const c10::IValue& value : call.inputs()) current()->add(text, value);
    current()->calls_.push_back(std::move(text));
    return nullptr;
  }
  static void end(const at::RecordFunction& call, at::ObserverContext*) {
    if (--current()->depth_ > 0) return;
    for (const c10::IValue& value : call.outputs()) {
      if (value.isTensorList()) {
        for (const at::Tensor& t : value.toTensorVector()) current()->keep(t);
      } else {
        current()->keep(value);
      }
    }
  }

  at::CallbackHandle handle_;
  int depth_ = 0;
  std::vector<std::string> calls_;
  std::set<const void*> found_, made_;  // storages
};

// Where replaying does not call the same operators, with the same numbers, on the same memory from
// outside, a GPU's graph would have computed something else: then replay() throws
// std::logic_error. What was recorded only gives NaN.
class TracedRecorder final : public ops::GraphRecorder {
 public:
  using Tensors = std::vector<at::Tensor>;
  struct Counts {
    int recorded = 0, replayed = 0, live = 0;
  };
  // Counts outlive the recorder and its graphs. `fails` is called when work was recorded.
  explicit TracedRecorder(
      Counts& counts, std::function<void()> fails = [] {})
      : counts_(counts), fails_(std::move(fails)) {}

  at::Device device() const override { return at::kCPU; }
  std::unique_ptr<ops::DeviceGraph> record(const std::function<Tensors()>& work) override {
    auto graph = std::make_unique<Graph>(counts_, work);
    fails_();
    ++counts_.recorded;
    return graph;
  }

 private:
  class Graph final : public ops::DeviceGraph {
   public:
    Graph(Counts& counts, std::function<Tensors()> work) : counts_(counts), work_(std::move(work)) {
      const Trace trace;
      outputs_ = work_();
      calls_ = trace.calls();
      for (at::Tensor& output : outputs_) {
        if (output.defined()) output = at::full_like(output, NAN);
      }
      ++counts_.live;
    }
    ~Graph() override { --counts_.live; }

    const Tensors& replay() override {
      ++counts_.replayed;
      const Trace trace;
      const Tensors outputs = work_();
      compare(trace.calls());
      for (size_t i = 0; i < outputs.size(); ++i) {
        if (outputs[i].defined()) outputs_[i].copy_(outputs[i]);
      }
      return outputs_;
    }

   private:
    void compare(const std::vector<std::string>& calls) const {
      const auto [was, is] = std::ranges::mismatch(calls_, calls);
      if (was == calls_.end() && is == calls.end()) return;
      throw std::logic_error("a graph would have computed something else: " +
                             (was == calls_.end() ? "nothing" : *was) + " was recorded, " +
                             (is == calls.end() ? "nothing" : *is) + " is asked for");
    }

    Counts& counts_;
    std::function<Tensors()> work_;
    Tensors outputs_;
    std::vector<std::string> calls_;
  };

  Counts& counts_;
  std::function<void()> fails_;
};

}  // namespace atelier::test
