// What a server counts, as Prometheus reads it.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

namespace atelier::serve {

// How many values there were, by upper bounds.
class Histogram {
 public:
  void add(double value);
  // The lines of a metric; `labels` without braces.
  std::string text(std::string_view name, const std::string& labels) const;

 private:
  static constexpr std::array<double, 14> kBounds = {0.1, 0.25, 0.5, 1,   2.5, 5,    10,
                                                     25,  50,   100, 250, 500, 1000, 2500};
  std::array<uint64_t, kBounds.size() + 1> counts_ = {};  // the last one: above all bounds
  double sum_ = 0;
};

// Safe to use from several threads. Names are those that SGLang gives its metrics of diffusion.
class Metrics {
 public:
  explicit Metrics(std::string model) : model_(std::move(model)) {}

  // A job begins after it has waited for so long.
  void began(double waited_s);
  // A job is over; `seconds` since it came.
  void ended(std::string_view api, std::string_view state, double seconds);
  // Jobs of so many images run, with so many LoRAs.
  void run(int64_t images, int64_t loras);

  std::string text(int64_t waiting, int64_t running) const;

 private:
  const std::string model_;
  mutable std::mutex mutex_;
  Histogram latency_, queue_time_;
  std::map<std::pair<std::string, std::string>, uint64_t> requests_;  // by API and state
  int64_t images_ = 0, loras_ = 0;
};

}  // namespace atelier::serve
