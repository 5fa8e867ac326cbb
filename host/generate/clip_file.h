// The file of a clip, written while its frames are decoded.
#pragma once

#include <memory>
#include <string>

#include <ATen/core/Tensor.h>

#include "atelier/model.h"

#include "host/files/temporary_file.h"
#include "host/media/clip_writer.h"
#include "host/media/text.h"

namespace atelier::generate {

// Whole or not there: until finish() it is a temporary file, which the destructor removes.
class ClipFile {
 public:
  // `path` ends as a format of clips does; `text` says how it was made; `sound`: null, there is
  // none. Throws as media::create_clip(), naming `path`.
  ClipFile(const std::string& path, const MediaTarget& target, double fps, const media::Text& text,
           std::shared_ptr<const media::Sound> sound = nullptr);

  // pixels: float32 [3, frames, H, W] in [-1, 1]. Throws Error{kEnvironment} when writing fails.
  void add(const at::Tensor& pixels);
  // To be called once, behind the last frame. Throws as add().
  void finish();

 private:
  std::string path_;
  files::TemporaryFile file_;
  std::unique_ptr<media::ClipWriter> writer_;
};

}  // namespace atelier::generate
