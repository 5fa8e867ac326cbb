#include "host/generate/job_files.h"

#include <utility>

#include <ATen/ATen.h>
#include <c10/util/ScopeExit.h>

#include "atelier/error.h"

#include "host/files/outputs.h"
#include "host/files/safetensors_writer.h"
#include "host/generate/input_files.h"
#include "host/media/jpeg.h"
#include "host/media/pixels.h"
#include "host/order/output_paths.h"
#include "host/report/text.h"

namespace atelier::generate {
namespace {

std::shared_ptr<const media::Sound> sound_of(const Sound& made) {
  const at::Tensor samples = made.samples_CN.to(at::kCPU).contiguous();
  const float* const values = samples.const_data_ptr<float>();
  return std::make_shared<const media::Sound>(
      media::Sound{.channels = static_cast<int>(samples.size(0)),
                   .sample_rate = static_cast<int>(made.sample_rate),
                   .values = {values, values + samples.numel()}});
}

}  // namespace

JobFiles::JobFiles(order::Settings settings, const Request& request, const ModelFamily& family,
                   progress::Progress& progress, Hooks hooks)
    : settings_(std::move(settings)),
      target_(request.target),
      area_(written_area(settings_, family)),
      seeds_(request.seeds),
      first_piece_(request.pieces.empty() ? 0 : request.pieces.front().frames),
      progress_(progress),
      hooks_(std::move(hooks)),
      paths_(order::written_files(settings_)),
      is_clip_(media::find_clip_format(settings_.output) != nullptr) {
  if (const std::string note = files::replaced_note(paths_); !note.empty()) progress_.warn(note);
  for (const std::string& folder : order::make_folders(paths_))
    progress_.note("made " + folder + "/");
  sound_ = read_sound(family);
}

void JobFiles::add_sound(const Sound& made) {
  if (holds_sound()) sound_ = sound_of(made);
}

void JobFiles::add(size_t index, int64_t first, const at::Tensor& pixels) {
  const at::Tensor written =
      pixels.narrow(-2, area_.top, area_.height).narrow(-1, area_.left, area_.width);
  if (is_clip_)
    write_clip(index, first, written);
  else
    write_images(index, first, written);
}

void JobFiles::write_images(size_t index, int64_t first, const at::Tensor& pixels) {
  for (int64_t t = 0; t < pixels.size(1); ++t) {
    const std::string& path = paths_.at(index * static_cast<size_t>(target_.frames) + first + t);
    const at::Tensor image = pixels.select(1, t);
    const media::Text text = hooks_.text_of(index);
    files::write_file(path, order::is_jpeg(path) ? media::encode_jpeg(media::to_image(image), text)
                                                 : media::png_of(image, text));
    tell(path, index);
  }
}

void JobFiles::write_clip(size_t index, int64_t first, const at::Tensor& pixels) {
  if (first == 0) {
    clip_path_ = paths_.at(index);
    const MediaTarget written = {target_.frames, area_.height, area_.width};
    clip_.emplace(clip_path_, written, settings_.fps.value(), hooks_.text_of(index), sound_);
    written_ = 0;
  }
  clip_->add(pixels);
  written_ = first + pixels.size(1);
  if (written_ < target_.frames) return;
  const auto closes = c10::make_scope_exit([this] { clip_.reset(); });  // also where that fails
  clip_->finish();
  tell(clip_path_, index);
}

void JobFiles::tell(const std::string& path, size_t index) const {
  progress_.note(path + ": " + report::size_text(area_.height, area_.width) +
                 (is_clip_ ? ", " + std::to_string(target_.frames) + " frames" : "") + ", seed " +
                 std::to_string(seeds_[index]));
  if (hooks_.on_file) hooks_.on_file(path);
}

// Why a clip ends where it does is told by the caller.
void JobFiles::end_early() {
  if (!clip_ || first_piece_ == 0 || written_ < first_piece_) return;
  try {
    clip_->finish();
    progress_.warn(clip_path_ + ": has the first " + std::to_string(written_) + " frames");
    if (hooks_.on_file) hooks_.on_file(clip_path_);
  } catch (const Error& error) {
    progress_.warn(std::string(error.what()));
  }
}

// Whether the file that is written may have a sound, which is told where it may not.
bool JobFiles::holds_sound() const {
  const media::ClipFormat* const format = media::find_clip_format(settings_.output);
  if (format != nullptr && format->has_sound) return true;
  progress_.note(settings_.output + ": has no sound beside it, which .mp4 files have");
  return false;
}

// The sound that is written beside a clip; null: there is none, or the file's format has none.
std::shared_ptr<const media::Sound> JobFiles::read_sound(const ModelFamily& family) const {
  const std::string file = soundtrack_file(settings_, family);
  if (file.empty() || !holds_sound()) return nullptr;
  const double seconds =
      static_cast<double>(order::target_of(settings_).frames) / settings_.fps.value();
  try {
    return std::make_shared<const media::Sound>(media::read_soundtrack(file, seconds));
  } catch (const Error& error) {  // of a clip whose frames can be read
    progress_.warn("warning: the clip gets no sound: " + std::string(error.what()));
    return nullptr;
  }
}

}  // namespace atelier::generate
