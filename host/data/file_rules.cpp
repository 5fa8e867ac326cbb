#include "host/data/file_rules.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>
#include <utility>

#include "host/data/frame_picking.h"
#include "host/files/file_reader.h"
#include "host/inputs/parse.h"
#include "host/report/text.h"

namespace atelier::data {
namespace {

// Images that are enlarged more than this look soft.
constexpr double kMuchEnlarged = 2.0;
// Rates that differ by less are those of a file that rounds its times.
constexpr double kSlower = 0.99;

std::string counted(int64_t frames) {
  return std::to_string(frames) + (frames == 1 ? " frame" : " frames");
}

}  // namespace

FileRules::FileRules(const DatasetOptions& options, const Columns& columns, const SizeRule& sizes,
                     const LatentSpec& spec, const ImageFiles& files, Findings& problems,
                     Findings& odd)
    : options_(options),
      columns_(columns),
      sizes_(sizes),
      spec_(spec),
      files_(files),
      problems_(problems),
      odd_(odd) {}

// An image that is a row of its own is not named twice.
Error FileRules::placed(const Item& item, const std::string& column, const Error& error) const {
  const std::string prefix = item.place + ": ", place = place_of(item, column);
  if (!error.message().starts_with(prefix)) return error.at(place);
  return Error(error.code(), place + ": " + error.message().substr(prefix.size()), error.hint(),
               error.tag());
}

std::vector<Item> FileRules::items_of(Item row) {
  bool is_good = true;
  for (const auto& [column, paths] : row.files) {
    for (const std::string& path : paths)
      is_good &= check_file(row, column, path) && check_kind(row, column, path);
  }
  if (!is_good || columns_.target_input().empty()) return {};
  is_good = check_size(row);
  is_good &= check_frames(row);
  if (const auto mask = row.files.find(options_.mask_column); mask != row.files.end())
    is_good &= check_mask(row, mask->second.front());
  if (!is_good) return {};
  find_unseen(row);
  return cut(std::move(row));
}

bool FileRules::check_file(const Item& item, const std::string& column, const std::string& path) {
  const std::optional<Error>& error = file(path).error;
  if (!error) return true;
  if (error->code() == ErrorCode::kNotFound) {
    problems_.add(
        "missing files",
        placed(item, column,
               Error(error->code(), error->message(),
                     missing_++ < options_.max_errors ? near_.hint(path) : "", error->tag())));
  } else if (!inputs::is_clip(columns_.kind(column)) && media::looks_like_clip(path)) {
    return check_kind(item, column, path);
  } else {
    const bool is_damaged = error->code() == ErrorCode::kDataLoss;
    problems_.add(is_damaged ? "damaged images" : "unreadable files", placed(item, column, *error));
  }
  return false;
}

// A clip where a still is expected. One that is an image as well, an animation, gives its first
// frame.
bool FileRules::check_kind(const Item& item, const std::string& column, const std::string& path) {
  const bool is_clip = file(path).clip != nullptr || file(path).error;
  if (inputs::is_clip(columns_.kind(column)) || !is_clip) return true;
  const bool is_target = column == columns_.target_input();
  problems_.add("clips in place of images",
                place_of(item, column) + ": " + files::display_path(path) + " is a clip, and " +
                    (is_target ? "this family learns" : "the column takes") + " single images",
                "take an image out of it, for instance with ffmpeg -i CLIP -frames:v 1 a.png");
  return false;
}

// The target gives the row its size.
bool FileRules::check_size(Item& item) {
  const media::ImageInfo& info = target_of(item).info;
  const Size size = sizes_.of(info.height, info.width);
  if (!sizes_.is_valid()) return false;
  const std::string place = target_place(item);
  if (size.height < 1 || size.width < 1) {
    problems_.add(
        "too small images",
        place + report::size_text(info.height, info.width) + " pixels are too few to train on",
        "take the row out, or give --height and --width to enlarge every image");
    return false;
  }
  const std::vector<std::string>& pictures = item.files.at(columns_.target_input());
  for (const std::string& path : pictures) {
    const media::ImageInfo& other = file(path).info;
    if (other.height == info.height && other.width == info.width) continue;
    problems_.add("pictures of several sizes",
                  place + report::size_text(info.height, info.width) + ", and " +
                      files::display_path(path) + " is " +
                      report::size_text(other.height, other.width),
                  "the pictures of a row lie on each other: give them one size");
    return false;
  }
  item.target = {std::ssize(pictures), size.height, size.width};
  const double scale = std::max(static_cast<double>(size.height) / info.height,
                                static_cast<double>(size.width) / info.width);
  if (scale > kMuchEnlarged) {
    odd_.add("enlarged images",
             place + report::size_text(info.height, info.width) + " is enlarged to " +
                 report::size_text(size.height, size.width),
             "a larger image would be sharper");
  }
  if (info.is_animated && !target_of(item).clip)
    odd_.add("animations", place + "is an animation", "its first frame is learnt");
  return true;
}

bool FileRules::check_mask(const Item& item, const std::string& path) {
  const media::ImageInfo& mask = file(path).info;
  const media::ImageInfo& image = target_of(item).info;
  if (inputs::has_shape_of(mask, image)) return true;
  problems_.add("masks of another shape",
                item.place + " [" + options_.mask_column + "]: the mask is " +
                    report::size_text(mask.height, mask.width) + ", the image " +
                    report::size_text(image.height, image.width),
                "a mask has the shape of its image, at any size");
  return false;
}

// Clips beside the target give the frames of the same numbers.
bool FileRules::check_frames(const Item& item) {
  const auto frames_of = [](const inputs::ImageFile& one) {
    return one.clip ? one.clip->frames() : int64_t{1};
  };
  const int64_t wanted = frames_of(target_of(item));
  bool is_good = true;
  for (const auto& [column, paths] : item.files) {
    if (!inputs::is_clip(columns_.kind(column)) || column == columns_.target_input()) continue;
    const inputs::ImageFile& beside = file(paths.front());
    const bool is_still_mask = column == options_.mask_column && !beside.clip;
    if (is_still_mask || frames_of(beside) == wanted) continue;
    problems_.add("clips of another length",
                  item.place + " [" + column + "]: has " + counted(frames_of(beside)) + ", the " +
                      item.target_column + " " + std::to_string(wanted),
                  "a clip beside another has a frame for each of its frames");
    is_good = false;
  }
  return is_good;
}

// What of the images beside the target the model does not see.
void FileRules::find_unseen(const Item& item) {
  for (const InputSpec& input : columns_.inputs()) {
    const auto paths = item.files.find(input.name);
    if (paths == item.files.end() || input.role != InputRole::kCondition) continue;
    for (const std::string& path : paths->second) {
      for (const auto& [what, instead] : inputs::ignored_properties(input, file(path).info))
        odd_.add("images that are not seen whole",
                 place_of(item, std::string(input.name)) + ": " + files::display_path(path) + " " +
                     std::string(what),
                 std::string(instead));
    }
  }
}

void FileRules::find_odd_clip(const Item& item, const media::ClipInfo& clip) {
  const std::string place = target_place(item);
  const ClipOptions& options = options_.clips;
  if (clip.is_variable_rate && !options.source_fps)
    odd_.add("clips of a variable rate", place + "its frames are not equally long",
             options.keep_frame_rate ? "they are learnt as if they were"
                                     : "they are taken by the times at which they are shown");
  if (clip.rotation != 0)
    odd_.add("turned clips",
             place + "is stored turned by " + std::to_string(clip.rotation) + " degrees",
             "it is learnt as it is shown");
  const double rate = rate_of(clip, options);
  if (!options.keep_frame_rate && rate > 0 && rate < kSlower * options.model_fps)
    odd_.add("slow clips",
             place + report::number_text(std::round(rate * 100) / 100) +
                 " frames a second, fewer than the model's " +
                 report::number_text(options.model_fps),
             "frames are repeated; --keep_frame_rate takes each once");
  if (options_.alpha_mask && clip.has_alpha)
    odd_.add("masks", place + "a clip's transparency does not say where the loss counts",
             "name a mask in the column " + options_.mask_column);
}

void FileRules::find_short_clip(const Item& item, int64_t shown,
                                const std::vector<Pieces>& pieces) {
  const std::vector<int64_t> lengths = options_.clips.lengths();
  if (shown >= lengths.back()) return;
  const bool is_cut = pieces.front().frames >= lengths.front();  // into pieces of shorter lengths
  std::string learnt;
  for (const Pieces& one : pieces)
    learnt += (learnt.empty() ? "" : ", ") + std::to_string(one.frames);
  odd_.add("short clips",
           target_place(item) + "has " + counted(shown) + " of the " +
               std::to_string(is_cut ? lengths.back() : lengths.front()) + " of --num_frames",
           is_cut ? "pieces of these lengths are learnt: " + learnt
                  : counted(pieces.front().frames) + (pieces.front().frames == 1 ? " is" : " are") +
                        " learnt");
}

std::vector<Item> FileRules::cut(Item row) {
  const auto clip = target_of(row).clip;
  if (!clip) return {std::move(row)};
  find_odd_clip(row, *clip);
  const ClipOptions& options = options_.clips;
  const std::vector<int64_t> shown = frames_at_rate(*clip, options);
  const std::string& path = row.files.at(columns_.target_input()).front();
  const std::vector<Pieces> pieces =
      pieces_of(std::ssize(shown), spec_, options, std::filesystem::path(path).filename().string());
  find_short_clip(row, std::ssize(shown), pieces);
  const bool has_several = pieces.size() > 1 || pieces.front().begins.size() > 1;
  std::vector<Item> items;
  for (const auto& [begins, frames] : pieces) {
    for (const int64_t begin : begins) {
      Item& item = items.emplace_back(row);
      item.piece = std::ssize(items) - 1;
      item.is_alternative =
          begin != begins.front() && options.frame_extraction == FrameExtraction::kRandom;
      item.frames.assign(shown.begin() + begin, shown.begin() + begin + frames);
      item.target.frames = frames;
      if (has_several)
        item.place += " (frames " + std::to_string(item.frames.front()) + " to " +
                      std::to_string(item.frames.back()) + ")";
    }
  }
  return items;
}

}  // namespace atelier::data
