// Threads of a process as the ranks that share out rows.
#pragma once

#include <atomic>
#include <barrier>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "atelier/host/sequence_scope.h"

#include "support/tensors.h"

namespace atelier::test {

// Runs one rank on each of them. What they find is checked when they have ended.
class RankThreads final : public SequenceGroup {
 public:
  explicit RankThreads(int64_t size) : parts_(static_cast<size_t>(size)), all_here_(size) {}
  int64_t rank() const override { return own_rank; }
  int64_t size() const override { return std::ssize(parts_); }

  at::Tensor exchange(const at::Tensor& parts) override {
    bytes_sent += static_cast<int64_t>(parts.nbytes()) * (size() - 1) / size();
    return meet(parts, [&] {
      std::vector<at::Tensor> own;
      for (const at::Tensor& of_rank : parts_) own.push_back(of_rank[rank()]);
      return at::stack(own);
    });
  }
  at::Tensor gather(const at::Tensor& part) override {
    return meet(part, [&] { return at::stack(parts_); });
  }

  std::function<at::Tensor()> pass_on(const at::Tensor& part) override {
    bytes_sent += static_cast<int64_t>(part.nbytes());
    const std::lock_guard lock(mutex_);
    passed_[{(rank() + 1) % size(), passes_sent++}] = part.clone();
    has_passed_.notify_all();
    return [this, place = std::pair(rank(), passes_sent - 1)] {
      std::unique_lock lock(mutex_);
      has_passed_.wait(lock, [&] { return passed_.contains(place); });
      return passed_.extract(place).mapped();
    };
  }

  // Runs `work` as every rank; returns what each gave.
  std::vector<Tensors> run(const std::function<Tensors()>& work) {
    const SequenceScope scope(*this);
    std::vector<Tensors> results(parts_.size());
    std::vector<std::thread> threads;
    for (int64_t r = 0; r < size(); ++r) {
      threads.emplace_back([&, r] {
        own_rank = r;
        passes_sent = 0;
        results[static_cast<size_t>(r)] = work();
      });
    }
    for (std::thread& thread : threads) thread.join();
    return results;
  }

  std::atomic<int64_t> bytes_sent = 0;

 private:
  template <typename F>
  at::Tensor meet(const at::Tensor& given, F&& look) {
    parts_[static_cast<size_t>(rank())] = given.clone();
    all_here_.arrive_and_wait();
    at::Tensor result = look();
    all_here_.arrive_and_wait();
    return result;
  }

  static inline thread_local int64_t own_rank = 0, passes_sent = 0;
  std::vector<at::Tensor> parts_;
  std::barrier<> all_here_;
  std::mutex mutex_;  // of what follows
  std::condition_variable has_passed_;
  std::map<std::pair<int64_t, int64_t>, at::Tensor> passed_;  // by receiver, and which one
};

}  // namespace atelier::test
