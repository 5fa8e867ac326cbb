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

// What a clip or a sound beside an item has less than it needs; empty: nothing.
std::string what_lacks(const InputSpec& input, const inputs::ImageFile& beside, const Item& item) {
  const inputs::Made made = made_of(item);
  if (beside.sound) {
    const media::SoundInfo& sound = *beside.sound;
    const inputs::SoundPart part = inputs::part_beside(input, made);
    const int64_t samples =
        media::samples_at_rate(sound.samples, sound.sample_rate, input.sample_rate);
    if (!part.count || !inputs::is_too_short(input, samples, part.first + *part.count)) return "";
    return inputs::shorter_text(input, samples, part.first + *part.count);
  }
  const media::ClipInfo clip = inputs::clip_of(beside);
  if (std::ssize(inputs::read_frames(input, clip, made)) == item.target.frames) return "";
  const bool by_number = input.fps <= 0 && !item.frames.empty();
  const int64_t end = by_number ? item.frames.back() + 1 : item.first + item.target.frames;
  return "has " + counted(std::ssize(inputs::seen_frames(input, clip, made.fps))) + " of the " +
         std::to_string(end) + " beside what is learnt";
}

}  // namespace

FileRules::FileRules(const DatasetOptions& options, const Columns& columns, const SizeRule& sizes,
                     const LatentSpec& spec, const DataFiles& files, Findings& problems,
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
  is_good = check_size(row) && check_shapes(row);
  if (const auto mask = row.files.find(options_.mask_column); mask != row.files.end())
    is_good &= check_mask_frames(row) && check_mask(row, mask->second.front());
  if (!is_good) return {};
  find_unseen(row);
  std::vector<Item> items = cut(row);
  return check_beside(row, items) && check_soundtrack(row, items) ? items : std::vector<Item>();
}

bool FileRules::check_file(const Item& item, const std::string& column, const std::string& path) {
  const std::optional<Error>& error = file(column, path).error;
  if (!error) return true;
  if (error->code() == ErrorCode::kNotFound) {
    problems_.add(
        "missing files",
        placed(item, column,
               Error(error->code(), error->message(),
                     missing_++ < options_.max_errors ? near_.hint(path) : "", error->tag())));
  } else if (inputs::is_image(columns_.kind(column)) && media::looks_like_clip(path)) {
    return check_kind(item, column, path);
  } else {
    const bool is_damaged = error->code() == ErrorCode::kDataLoss;
    problems_.add(is_damaged ? "damaged files" : "unreadable files", placed(item, column, *error));
  }
  return false;
}

// A clip where a still is expected. One that is an image as well, an animation, gives its first
// frame.
bool FileRules::check_kind(const Item& item, const std::string& column, const std::string& path) {
  const inputs::ImageFile& still = file(column, path);
  if (!inputs::is_image(columns_.kind(column)) || (!still.clip && !still.error)) return true;
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
  if (pictures.size() > 1 && !spec_.takes_clips) {
    problems_.add(
        "too many pictures",
        place + "has " + std::to_string(pictures.size()) + " pictures, and the model makes one",
        "several are for models of layers; give one");
    return false;
  }
  if (options_.alpha_mask && pictures.size() > 1) {
    problems_.add("masks",
                  place + "has " + std::to_string(pictures.size()) +
                      " pictures, and --alpha_mask reads the transparency of one",
                  "leave --alpha_mask out");
    return false;
  }
  for (const std::string& path : pictures) {
    const media::ImageInfo& other = file(columns_.target_input(), path).info;
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

// Pictures that lie on the target and are cut as it is.
bool FileRules::check_shapes(const Item& item) {
  const media::ImageInfo& image = target_of(item).info;
  for (const InputSpec& input : columns_.inputs()) {
    const auto paths = item.files.find(input.name);
    if (!input.lies_on_target || paths == item.files.end()) continue;
    for (const std::string& path : paths->second) {
      const media::ImageInfo& other = file(std::string(input.name), path).info;
      if (inputs::has_shape_of(other, image)) continue;
      problems_.add("pictures of another shape",
                    place_of(item, std::string(input.name)) + ": " + files::display_path(path) +
                        " is " + report::size_text(other.height, other.width) + ", the " +
                        item.target_column + " " + report::size_text(image.height, image.width),
                    "the two lie on each other: give them one shape, at any size");
      return false;
    }
  }
  return true;
}

bool FileRules::check_mask(const Item& item, const std::string& path) {
  const media::ImageInfo& mask = file(options_.mask_column, path).info;
  const media::ImageInfo& image = target_of(item).info;
  if (inputs::has_shape_of(mask, image)) return true;
  problems_.add("masks of another shape",
                item.place + " [" + options_.mask_column + "]: the mask is " +
                    report::size_text(mask.height, mask.width) + ", the image " +
                    report::size_text(image.height, image.width),
                "a mask has the shape of its image, at any size");
  return false;
}

// A clip that masks the target has a frame for each of its frames.
bool FileRules::check_mask_frames(const Item& item) {
  const auto frames_of = [](const inputs::ImageFile& one) {
    return one.clip ? one.clip->frames() : int64_t{1};
  };
  const std::string& column = options_.mask_column;
  const int64_t wanted = frames_of(target_of(item));
  const inputs::ImageFile& mask = file(column, item.files.at(column).front());
  if (!inputs::is_clip(columns_.kind(column)) || !mask.clip || frames_of(mask) == wanted)
    return true;
  problems_.add("clips of another length",
                item.place + " [" + column + "]: has " + counted(frames_of(mask)) + ", the " +
                    item.target_column + " " + std::to_string(wanted),
                "a clip beside another has a frame for each of its frames");
  return false;
}

// Clips and sounds that run beside the target and have no tail are as long as what is learnt.
bool FileRules::check_beside(const Item& row, const std::vector<Item>& items) {
  bool is_good = true;
  for (const InputSpec& input : columns_.inputs()) {
    const auto paths = row.files.find(input.name);
    if (paths == row.files.end() || !input.along_clip || input.tail != Tail::kRefuse) continue;
    const inputs::ImageFile& beside = file(input.name, paths->second.front());
    for (const Item& item : items) {
      const std::string lack = what_lacks(input, beside, item);
      if (lack.empty()) continue;
      problems_.add(beside.sound ? "sounds that are too short" : "clips of another length",
                    item.place + " [" + std::string(input.name) + "]: " + lack,
                    beside.sound ? "give a longer sound"
                                 : "a clip beside another has a frame for each that is learnt");
      is_good = false;
      break;
    }
  }
  return is_good;
}

// The clip's own sound, where a model hears all of it, begins with the clip.
bool FileRules::check_soundtrack(const Item& row, const std::vector<Item>& items) {
  for (const InputSpec& input : columns_.inputs()) {
    if (!input.is_soundtrack || input.along_clip || !row.files.contains(input.name)) continue;
    const auto later = std::ranges::find_if(items, [](const Item& item) { return item.first > 0; });
    if (later == items.end()) continue;
    problems_.add("sounds of pieces",
                  later->place + " [" + std::string(input.name) +
                      "]: is heard from its beginning, and the piece begins at frame " +
                      std::to_string(later->first),
                  "learn the beginnings of clips (--frame_extraction head), or cut clips and "
                  "sounds first");
    return false;
  }
  return true;
}

// What of the images beside the target the model does not see.
void FileRules::find_unseen(const Item& item) {
  for (const InputSpec& input : columns_.inputs()) {
    const auto paths = item.files.find(input.name);
    if (paths == item.files.end() || input.role != InputRole::kCondition) continue;
    for (const std::string& path : paths->second) {
      for (const auto& [what, instead] :
           inputs::ignored_properties(input, file(input.name, path).info))
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
  row.fps = options_.clips.model_fps;
  if (!clip) return {std::move(row)};
  const double own = rate_of(*clip, options_.clips);
  if (own > 0 && (options_.clips.keep_frame_rate || row.fps <= 0)) row.fps = own;
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
      item.first = begin;
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
