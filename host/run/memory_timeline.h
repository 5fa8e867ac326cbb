// --report_memory: what the device and the host held while a run went on.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "atelier/block.h"

#include "host/report/problems.h"
#include "memory/device_meter.h"

namespace atelier::run {

// Samples that are few enough for a file, however long the run: of neighbours the largest stays.
// Taking one does not wait for the device. Used from any thread; made and destroyed on the one that
// runs the model.
class MemoryTimeline {
 public:
  struct Reading {
    double seconds = 0.0;  // since the timeline was made
    std::string phase;     // "denoise 3"
    int64_t live = 0;      // bytes on the device
    int64_t peak = 0;      // the most of them, ever
    int64_t host = 0;      // of the program
  };
  static constexpr size_t kMostSamples = 2048;

  // `path`: see check_report_path(). `transfer` as for memory::DeviceMeter.
  MemoryTimeline(std::string path, at::Device device, const memory::TransferDevice* transfer);
  // Writes what there is, so that a run that fails has its timeline too.
  ~MemoryTimeline();
  MemoryTimeline(const MemoryTimeline&) = delete;
  MemoryTimeline& operator=(const MemoryTimeline&) = delete;

  // What the run does from now on, of which this is number `number`; 0: it has none.
  void begin(std::string_view phase, int64_t number = 0);
  void sample();
  // Nothing is sampled any more.
  void stop();

  std::vector<Reading> readings() const;
  // Returns the files. Throws Error{kEnvironment}.
  std::vector<std::string> write();

 private:
  void take(bool is_edge);
  void thin_out();

  std::string path_;
  memory::DeviceMeter meter_;
  double start_;              // memory::seconds_now()
  mutable std::mutex mutex_;  // of what follows
  std::string phase_ = "begin";
  std::vector<Reading> readings_;
  int64_t stride_ = 1, since_kept_ = 0;  // readings
  int64_t peak_ = 0;
  bool is_stopped_ = false, is_written_ = false;
};

// FILE.csv, FILE.svg, or a name without either, of which both are made. Its folder is there, or is
// `made_later`, or in it.
void check_report_path(const std::string& path, report::Problems& problems,
                       const std::string& made_later = {});

std::string timeline_csv(const std::vector<MemoryTimeline::Reading>& readings);
std::string timeline_svg(const std::vector<MemoryTimeline::Reading>& readings);

// Samples when a block has run.
class SamplingRunner final : public BlockRunner {
 public:
  SamplingRunner(BlockRunner& inner, MemoryTimeline& timeline)
      : inner_(inner), timeline_(timeline) {}

  Tensors run(Block& block, const Tensors& inputs) override {
    Tensors outputs = inner_.run(block, inputs);
    timeline_.sample();
    return outputs;
  }
  std::shared_ptr<void> hold(Block& block) override { return inner_.hold(block); }

 private:
  BlockRunner& inner_;
  MemoryTimeline& timeline_;
};

}  // namespace atelier::run
