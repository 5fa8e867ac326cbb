// The files of one job, written as its frames come.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "atelier/model_family.h"

#include "host/generate/clip_file.h"
#include "host/generate/image_request.h"
#include "host/inputs/fit.h"
#include "host/media/sound.h"
#include "host/media/text.h"
#include "host/order/settings.h"
#include "host/progress/progress.h"

namespace atelier::generate {

// Not thread-safe.
class JobFiles {
 public:
  // Both may be empty, and are called for each image.
  struct Hooks {
    std::function<media::Text(size_t index)> text_of = {};      // how it was made
    std::function<void(const std::string& path)> on_file = {};  // behind each that is finished
  };
  // Makes the folders that are missing, and reads the sound beside a clip. `progress` outlives it.
  JobFiles(order::Settings settings, const Request& request, const ModelFamily& family,
           progress::Progress& progress, Hooks hooks);

  // As OnSound and OnFrames; of the frames the area is written that written_area() gives.
  void add_sound(const Sound& made);
  void add(size_t index, int64_t first, const at::Tensor& pixels);
  // No more frames come. Of a clip that is made in pieces those that are finished stay.
  void end_early();

 private:
  void write_images(size_t index, int64_t first, const at::Tensor& pixels);
  void write_clip(size_t index, int64_t first, const at::Tensor& pixels);
  void tell(const std::string& path, size_t index) const;
  bool holds_sound() const;
  std::shared_ptr<const media::Sound> read_sound(const ModelFamily& family) const;

  const order::Settings settings_;
  const MediaTarget target_;
  const inputs::Area area_;  // of a frame
  const std::vector<uint64_t> seeds_;
  const int64_t first_piece_;  // frames of it; 0: a clip is made at once
  progress::Progress& progress_;
  const Hooks hooks_;
  const std::vector<std::string> paths_;
  const bool is_clip_;
  std::shared_ptr<const media::Sound> sound_;  // null: there is none
  std::optional<ClipFile> clip_;               // that is being decoded
  std::string clip_path_;
  int64_t written_ = 0;  // of its frames
};

}  // namespace atelier::generate
