#include "host/generate/clip_file.h"

#include <ATen/ATen.h>

#include "atelier/error.h"

#include "host/media/pixels.h"

namespace atelier::generate {
namespace {

// What writers throw does not name the file.
template <typename Function>
void at_file(const std::string& path, const Function& function) {
  try {
    function();
  } catch (const Error& error) {
    throw error.at(path);
  }
}

}  // namespace

ClipFile::ClipFile(const std::string& path, const MediaTarget& target, double fps,
                   const media::Text& text, std::shared_ptr<const media::Sound> sound)
    : path_(path), file_(path) {
  const media::ClipSettings settings = {.width = static_cast<int>(target.width),
                                        .height = static_cast<int>(target.height),
                                        .fps = fps,
                                        .comment = media::to_comment(text),
                                        .sound = std::move(sound)};
  at_file(path_, [&] {
    writer_ = media::create_clip(*media::find_clip_format(path), file_.path(), settings);
  });
}

void ClipFile::add(const at::Tensor& pixels) {
  for (int64_t t = 0; t < pixels.size(1); ++t) {
    const media::Image frame = media::to_image(pixels.select(1, t));
    at_file(path_, [&] { writer_->add(frame); });
  }
}

void ClipFile::finish() {
  at_file(path_, [&] { writer_->finish(); });
  file_.place();
}

}  // namespace atelier::generate
