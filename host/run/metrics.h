// Numbers and images of a run over its steps: TensorBoard event files and CSV.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>

namespace atelier::run {

// A sample image as it lies in its file.
struct EncodedImage {
  std::string tag;                // the same at every step: "samples/0"
  std::string prompt;             // shown beside it
  std::string png;                // the bytes of the file
  int64_t height = 0, width = 0;  // pixels
};

// Not thread-safe.
class MetricsWriter {
 public:
  virtual ~MetricsWriter();
  // Appends and flushes; a full disk is told once on stderr and does not end the run.
  virtual void write(int64_t step, const std::map<std::string, double>& values) = 0;
  // Writes an image; by default it is left out.
  virtual void write_image(int64_t step, const EncodedImage& image);
};

// "FOLDER/events.out.tfevents.TIME.HOST": scalars under their names ("train/loss"), and images.
std::unique_ptr<MetricsWriter> open_tensorboard(const std::string& folder);

// Columns step,key,value; rows are appended. On resume, rows of steps after `last_step` are cut
// off.
std::unique_ptr<MetricsWriter> open_csv(const std::string& path, int64_t last_step);

}  // namespace atelier::run
