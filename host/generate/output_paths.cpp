#include "host/generate/output_paths.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <unistd.h>

#include "formats/escape.h"

namespace atelier::generate {
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

}  // namespace

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
  std::vector<std::string> files;
  for (const std::string& path : output_paths(settings.output, settings.num_images)) {
    for (std::string& file :
         frame_paths(path, std::max<int64_t>(settings.num_frames.value_or(1), 1)))
      files.push_back(std::move(file));
  }
  return files;
}

std::string with_number(const std::string& path, uint64_t number) {
  const std::filesystem::path given(path);
  const std::string name =
      given.stem().string() + "_" + std::to_string(number) + given.extension().string();
  return (given.parent_path() / name).string();
}

void check_output_path(const std::string& output, const std::string& place,
                       report::Problems& problems) {
  const std::filesystem::path path(output);
  std::string extension = path.extension().string();
  std::transform(extension.begin(), extension.end(), extension.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (extension != ".png") {
    problems.add(place + ": " + formats::quote_and_escape(output) + " does not end in .png",
                 "images are written as PNG");
  }
  std::filesystem::path folder = path.parent_path();
  if (folder.empty()) folder = ".";
  std::error_code code;
  if (!std::filesystem::is_directory(folder, code)) {
    problems.add(place + ": there is no folder " + formats::quote_and_escape(folder.string()),
                 "create it first");
  } else if (::access(folder.c_str(), W_OK | X_OK) != 0) {
    problems.add(
        place + ": cannot write into the folder " + formats::quote_and_escape(folder.string()),
        "choose another one, or change its permissions");
  }
}

}  // namespace atelier::generate
