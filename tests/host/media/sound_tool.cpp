// Reads and writes sounds for sound_test.py: one command a line on stdin, one JSON object a line on
// stdout. Words are separated by tabs.
//
//   probe FILE
//   read FILE CHANNELS RATE FIRST COUNT OUT    OUT gets the values, float32 [channels, samples]
//   clip FILE SECONDS FPS OUT                  OUT is a gray clip with the sound of FILE
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "atelier/error.h"

#include "host/media/clip_writer.h"
#include "host/media/sound.h"

namespace {

using namespace atelier::media;  // NOLINT(google-build-using-namespace)
using nlohmann::json;

json run(const std::vector<std::string>& words) {
  const std::string &command = words.at(0), &file = words.at(1);
  if (command == "probe") {
    const SoundInfo info = probe_sound(file);
    return {info.format, info.codec, info.channels, info.sample_rate, info.samples};
  }
  if (command == "clip") {
    const double seconds = std::stod(words.at(2)), fps = std::stod(words.at(3));
    const Image frame(16, 16);
    const auto writer =
        create_clip(*find_clip_format(words.at(4)), words.at(4),
                    {.width = frame.width,
                     .height = frame.height,
                     .fps = fps,
                     .sound = std::make_shared<const Sound>(read_soundtrack(file, seconds))});
    for (int i = 0; i < static_cast<int>(seconds * fps); ++i) writer->add(frame);
    writer->finish();
    return nullptr;
  }
  SoundRequest request = {.channels = std::stoi(words.at(2)),
                          .sample_rate = std::stoi(words.at(3)),
                          .first = std::stoll(words.at(4))};
  if (words.at(5) != "all") request.count = std::stoll(words.at(5));
  const Sound sound = read_sound(file, request);
  std::ofstream(words.at(6), std::ios::binary)
      .write(reinterpret_cast<const char*>(sound.values.data()),
             static_cast<std::streamsize>(sound.values.size() * sizeof(float)));
  return {sound.channels, sound.sample_rate, sound.samples()};
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    std::vector<std::string> words;
    std::istringstream stream(line);
    for (std::string word; std::getline(stream, word, '\t');) words.push_back(word);
    json answer;
    try {
      answer = {{"ok", run(words)}};
    } catch (const atelier::Error& error) {
      answer = {{"error", error.what()}, {"code", to_string(error.code())}};
    }
    std::cout << answer.dump(-1, ' ', false, json::error_handler_t::replace) << std::endl;
  }
}
