#include "host/order/output_paths.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <filesystem>
#include <limits.h>
#include <optional>
#include <unistd.h>

#include "atelier/error.h"

#include "formats/escape.h"
#include "host/media/jpeg.h"
#include "host/report/error_line.h"
#include "host/report/text.h"

namespace atelier::order {
namespace {

// Position and length of the one %d or %03d of a pattern.
struct Pattern {
  size_t begin = std::string::npos, length = 0;
  int width = 0;
};

std::optional<Pattern> find_pattern(const std::string& output) {
  const size_t begin = output.find('%');
  if (begin == std::string::npos) return std::nullopt;
  size_t end = begin + 1;
  while (end < output.size() && std::isdigit(static_cast<unsigned char>(output[end]))) ++end;
  if (end >= output.size() || output[end] != 'd' || end - begin > 3) return std::nullopt;
  const int width = end > begin + 1 ? std::stoi(output.substr(begin + 1, end - begin - 1)) : 0;
  return Pattern{begin, end + 1 - begin, width};
}

std::string lower(std::string text) {
  std::ranges::transform(text, text.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

// What is wrong with making one file of a clip.
void check_clip(const Settings& s, const media::ClipFormat& format, const Origin& place,
                report::Problems& problems) {
  const std::string name = place.of("output") + ": " + formats::quote_and_escape(s.output);
  const std::string extension(format.extension);
  if (s.num_frames == 1) {
    problems.add(name + " is a clip's file, and one frame is an image",
                 "end the name in .png, or make more frames with " + place.of("num_frames"));
    return;
  }
  try {
    media::require_clip_writer(format);
  } catch (const Error& error) {
    problems.add(error.at(name));
  }
  for (const auto& side : {s.height, s.width}) {
    if (side.value_or(1) <= format.max_side) continue;
    problems.add(name + ": " + std::to_string(*side) + " pixels are more than " + extension +
                     " holds, " + std::to_string(format.max_side),
                 "write frames as .png");
  }
  if (s.fps) check_rate(s, format, place, problems);
}

void check_jpeg(const Settings& s, const Origin& place, report::Problems& problems) {
  for (const auto& side : {s.height, s.width}) {
    if (side.value_or(1) <= media::kMaxJpegSide) continue;
    problems.add(place.of("output") + ": " + std::to_string(*side) + " pixels are more than JPEG " +
                     "holds, " + std::to_string(media::kMaxJpegSide),
                 "write .png");
  }
}

// Whether files can be written into the folder, or, where it is not there, folders into the nearest
// one above it that is.
void check_folder(std::filesystem::path folder, const std::string& place,
                  report::Problems& problems) {
  std::error_code code;
  while (!folder.empty() && !std::filesystem::exists(folder, code)) folder = folder.parent_path();
  if (folder.empty()) folder = ".";
  if (!std::filesystem::is_directory(folder, code)) {
    problems.add(place + ": " + formats::quote_and_escape(folder.string()) + " is no folder",
                 "choose another one");
  } else if (::access(folder.c_str(), W_OK | X_OK) != 0) {
    problems.add(
        place + ": cannot write into the folder " + formats::quote_and_escape(folder.string()),
        "choose another one, or change its permissions");
  }
}

// A name that no file system takes, or that would steer the terminal it is shown on.
void check_name(const Settings& s, const Origin& place, report::Problems& problems) {
  if (report::printable(s.output) != s.output || s.output.find_first_of("\n\t") != s.output.npos) {
    problems.add(place.of("output") + ": " + formats::quote_and_escape(s.output) +
                     " holds control characters",
                 "use letters, digits and signs");
    return;
  }
  if (makes_too_many(s)) return;  // told elsewhere
  const std::vector<std::string> files = written_files(s);
  const size_t bytes =
      files.empty() ? 0 : std::filesystem::path(files.back()).filename().native().size();
  if (bytes > NAME_MAX || (!files.empty() && files.back().size() >= PATH_MAX))
    problems.add(
        place.of("output") + ": " + formats::quote_and_escape(s.output) + ": the name " +
            (bytes > NAME_MAX ? "has " + std::to_string(bytes) + " bytes, " +
                                    std::to_string(NAME_MAX) + " are the most"
                              : "with its folders has " + std::to_string(files.back().size()) +
                                    " bytes, " + std::to_string(PATH_MAX - 1) + " are the most"),
        "use a shorter one");
}

// A folder where a file is to be written, which nothing replaces.
void check_targets(const Settings& s, const Origin& place, report::Problems& problems) {
  if (makes_too_many(s)) return;  // told elsewhere
  for (const std::string& path : written_files(s)) {
    std::error_code code;
    if (!std::filesystem::is_directory(path, code)) continue;
    problems.add(place.of("output") + ": " + formats::quote_and_escape(path) + " is a folder",
                 "name another file, or remove the folder");
    return;
  }
}

}  // namespace

bool is_jpeg(const std::string& path) {
  const std::string extension = lower(std::filesystem::path(path).extension().string());
  return extension == ".jpg" || extension == ".jpeg";
}

std::vector<std::string> make_folders(const std::vector<std::string>& paths) {
  std::vector<std::string> made;
  for (const std::string& path : paths) {
    const std::filesystem::path folder = std::filesystem::path(path).parent_path();
    std::error_code failure;
    if (!folder.empty() && std::filesystem::create_directories(folder, failure))
      made.push_back(folder.string());
    if (failure)
      throw Error(ErrorCode::kEnvironment, "the folder " +
                                               formats::quote_and_escape(folder.string()) +
                                               " cannot be made: " + failure.message());
  }
  return made;
}

std::vector<std::string> output_paths(const std::string& output, int64_t num_images) {
  const std::optional<Pattern> pattern = find_pattern(output);
  std::vector<std::string> paths;
  for (int64_t i = 0; i < num_images; ++i) {
    if (pattern) {
      char number[40];
      std::snprintf(number, sizeof number, "%0*lld", pattern->width, static_cast<long long>(i));
      std::string path = output;
      paths.push_back(path.replace(pattern->begin, pattern->length, number));
    } else {
      paths.push_back(num_images == 1 ? output : with_number(output, static_cast<uint64_t>(i)));
    }
  }
  return paths;
}

std::vector<std::string> frame_paths(const std::string& path, int64_t num_frames) {
  if (num_frames == 1) return {path};
  const std::filesystem::path given(path);
  std::vector<std::string> paths;
  for (int64_t i = 0; i < num_frames; ++i) {
    char number[24];
    std::snprintf(number, sizeof number, "_%04lld", static_cast<long long>(i));
    paths.push_back(
        (given.parent_path() / (given.stem().string() + number + given.extension().string()))
            .string());
  }
  return paths;
}

std::vector<std::string> written_files(const Settings& settings) {
  const int64_t frames = std::max<int64_t>(settings.num_frames.value_or(1), 1);
  if (frames > 1 && settings.num_images == 1 && !media::find_clip_format(settings.output) &&
      find_pattern(settings.output))
    return output_paths(settings.output, frames);
  std::vector<std::string> files = output_paths(settings.output, settings.num_images);
  if (media::find_clip_format(settings.output)) return files;
  std::vector<std::string> of_frames;
  for (const std::string& path : files) {
    for (std::string& file : frame_paths(path, frames)) of_frames.push_back(std::move(file));
  }
  return of_frames;
}

std::string with_number(const std::string& path, uint64_t number) {
  const std::filesystem::path given(path);
  const std::string name =
      given.stem().string() + "_" + std::to_string(number) + given.extension().string();
  return (given.parent_path() / name).string();
}

void check_rate(const Settings& s, const media::ClipFormat& format, const Origin& place,
                report::Problems& problems) {
  if (!s.fps) {
    problems.add(place.of("fps") + " is missing, and the model is for no rate",
                 "say how many frames per second the clip has, such as 16");
  } else if (*s.fps > format.max_fps) {
    problems.add(place.of("fps") + ": " + report::number_text(*s.fps) + " is above " +
                     report::number_text(format.max_fps) + ", the most that " +
                     std::string(format.extension) + " shows",
                 "use less, or write frames as .png");
  }
}

void check_output(const Settings& s, const Origin& place, report::Problems& problems) {
  const size_t before = problems.size();
  const std::filesystem::path path(s.output);
  const media::ClipFormat* format = media::find_clip_format(path);
  if (format != nullptr) {
    check_clip(s, *format, place, problems);
  } else if (is_jpeg(s.output)) {
    check_jpeg(s, place, problems);
  } else if (lower(path.extension().string()) != ".png") {
    problems.add(place.of("output") + ": " + formats::quote_and_escape(s.output) +
                     " does not end in .png, .jpg, .mp4, .webp or .gif",
                 "images are written as PNG or JPEG, clips as PNG, MP4, WebP or GIF");
  }
  check_name(s, place, problems);
  check_folder(path.parent_path(), place.of("output"), problems);
  if (problems.size() == before) check_targets(s, place, problems);
}

}  // namespace atelier::order
