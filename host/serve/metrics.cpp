#include "host/serve/metrics.h"

#include <algorithm>

#include "host/report/text.h"

namespace atelier::serve {
namespace {

// A label's value: backslashes, quotes and ends of lines are escaped.
std::string label_value(std::string_view value) {
  std::string text = "\"";
  for (const char c : value) {
    if (c == '\\' || c == '"') text += '\\';
    text += c == '\n' ? std::string("\\n") : std::string(1, c);
  }
  return text + "\"";
}

std::string heading(std::string_view name, std::string_view type, std::string_view help) {
  const std::string metric = "sglang:diffusion_" + std::string(name);
  return "# HELP " + metric + " " + std::string(help) + "\n# TYPE " + metric + " " +
         std::string(type) + "\n";
}

std::string line(std::string_view name, const std::string& labels, const std::string& value) {
  return "sglang:diffusion_" + std::string(name) + "{" + labels + "} " + value + "\n";
}

}  // namespace

void Histogram::add(double value) {
  const auto bound = std::ranges::lower_bound(kBounds, value);
  ++counts_[static_cast<size_t>(bound - kBounds.begin())];
  sum_ += value;
}

std::string Histogram::text(std::string_view name, const std::string& labels) const {
  const std::string metric(name);
  std::string text;
  uint64_t count = 0;
  for (size_t i = 0; i < counts_.size(); ++i) {
    count += counts_[i];
    const std::string bound = i < kBounds.size() ? report::number_text(kBounds[i]) : "+Inf";
    text += line(metric + "_bucket", labels + ",le=" + label_value(bound), std::to_string(count));
  }
  return text + line(metric + "_sum", labels, report::number_text(sum_)) +
         line(metric + "_count", labels, std::to_string(count));
}

void Metrics::began(double waited_s) {
  const std::lock_guard lock(mutex_);
  queue_time_.add(waited_s);
}

void Metrics::ended(std::string_view api, std::string_view state, double seconds) {
  const std::lock_guard lock(mutex_);
  latency_.add(seconds);
  ++requests_[{std::string(api), std::string(state)}];
}

void Metrics::run(int64_t images, int64_t loras) {
  const std::lock_guard lock(mutex_);
  images_ = images;
  loras_ = loras;
}

std::string Metrics::text(int64_t waiting, int64_t running) const {
  const std::string labels = "model_name=" + label_value(model_);
  const std::lock_guard lock(mutex_);
  std::string text = heading("num_queue_reqs", "gauge", "Jobs that wait.") +
                     line("num_queue_reqs", labels, std::to_string(waiting)) +
                     heading("num_running_reqs", "gauge", "Jobs that run.") +
                     line("num_running_reqs", labels, std::to_string(running)) +
                     heading("requests_total", "counter", "Jobs that are over.");
  for (const auto& [key, count] : requests_)
    text += line("requests_total",
                 labels + ",api=" + label_value(key.first) + ",status=" + label_value(key.second),
                 std::to_string(count));
  return text + heading("request_latency_seconds", "histogram", "From a job's coming to its end.") +
         latency_.text("request_latency_seconds", labels) +
         heading("queue_time_seconds", "histogram", "For which jobs waited.") +
         queue_time_.text("queue_time_seconds", labels) +
         heading("generation_batch_size", "gauge", "Images of the jobs that run.") +
         line("generation_batch_size", labels, std::to_string(images_)) +
         heading("lora_active_adapters", "gauge", "LoRAs of the jobs that run.") +
         line("lora_active_adapters", labels, std::to_string(loras_));
}

}  // namespace atelier::serve
