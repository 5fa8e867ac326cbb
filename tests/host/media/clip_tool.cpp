// Reads clips for clip_test.py: one command a line on stdin, one JSON object a line on stdout.
// Words are separated by tabs.
#include <cstdint>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "atelier/error.h"

#include "host/media/clip.h"
#include "host/media/video_library.h"

namespace {

using atelier::media::ClipReader;
using atelier::media::Image;
using nlohmann::json;

json info_of(const ClipReader& clip) {
  const auto& info = clip.info();
  json metadata = json::object();
  for (const auto& [key, value] : info.metadata) metadata[key] = value;
  return {{"format", info.format},     {"codec", info.codec},
          {"width", info.width},       {"height", info.height},
          {"rotation", info.rotation}, {"fps", info.fps},
          {"times", info.times_s},     {"duration", info.duration_s},
          {"sound", info.has_sound},   {"variable", info.is_variable_rate},
          {"alpha", info.has_alpha},   {"metadata", metadata}};
}

// "0,3,3,7"
std::vector<int64_t> numbers_of(const std::string& text) {
  std::vector<int64_t> numbers;
  std::istringstream stream(text);
  for (std::string word; std::getline(stream, word, ',');) numbers.push_back(std::stoll(word));
  return numbers;
}

class Tool {
 public:
  json run(const std::vector<std::string>& words) {
    const std::string& command = words.at(0);
    if (command == "looks") return atelier::media::looks_like_clip(words.at(1));
    if (command == "library") return atelier::media::video_library().version;
    if (command == "open") {
      atelier::media::ClipLimits limits;
      if (words.size() > 2) limits.max_pixels = std::stoll(words[2]);
      if (words.size() > 3) limits.max_frames = std::stoll(words[3]);
      clip_ = atelier::media::open_clip(words.at(1), limits);
      return info_of(*clip_);
    }
    // read NUMBERS FILE: the frames, one behind the other, of the clip that was opened last.
    std::ofstream file(words.at(2), std::ios::binary);
    json sizes = json::array();
    clip_->read(numbers_of(words.at(1)), [&](const Image& image) {
      file.write(reinterpret_cast<const char*>(image.rgb.data()),
                 static_cast<std::streamsize>(image.rgb.size()));
      sizes.push_back({image.width, image.height});
    });
    return sizes;
  }

 private:
  std::unique_ptr<ClipReader> clip_;
};

}  // namespace

int main() {
  Tool tool;
  for (std::string line; std::getline(std::cin, line);) {
    std::vector<std::string> words;
    std::istringstream stream(line);
    for (std::string word; std::getline(stream, word, '\t');) words.push_back(word);
    json answer;
    try {
      answer = {{"ok", tool.run(words)}};
    } catch (const atelier::Error& error) {
      answer = {{"error", error.what()}, {"code", to_string(error.code())}};
    }
    std::cout << answer.dump(-1, ' ', false, json::error_handler_t::replace) << std::endl;
  }
}
