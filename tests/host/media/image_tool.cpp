// Runs the image functions for image_test.py: one command a line on stdin, one answer a line on
// stdout. Words are separated by tabs. Images are given back as PPM files.
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "atelier/error.h"

#include "host/media/clip_writer.h"
#include "host/media/decode.h"
#include "host/media/png.h"
#include "host/media/resize.h"

namespace {

using atelier::media::Filter;
using atelier::media::Image;

void write_ppm(const std::string& path, const Image& image) {
  std::ofstream file(path, std::ios::binary);
  file << "P6\n" << image.width << " " << image.height << "\n255\n";
  file.write(reinterpret_cast<const char*>(image.rgb.data()),
             static_cast<std::streamsize>(image.rgb.size()));
}

Filter filter_of(const std::string& name) {
  if (name == "box") return Filter::kBox;
  if (name == "bilinear") return Filter::kBilinear;
  if (name == "bicubic") return Filter::kBicubic;
  return Filter::kLanczos;
}

Image read_image(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<uint8_t> bytes{std::istreambuf_iterator<char>(file), {}};
  return atelier::media::decode_image(bytes, path);
}

void write_clip(const std::string& path, double fps, const std::string& comment,
                std::span<const std::string> frames) {
  const Image first = read_image(frames.front());
  const auto writer = atelier::media::create_clip(*atelier::media::find_clip_format(path), path,
                                                  {first.width, first.height, fps, comment});
  for (const std::string& frame : frames) writer->add(read_image(frame));
  writer->finish();
}

std::string run(const std::vector<std::string>& words) {
  const std::string& command = words.at(0);
  if (command == "probe") {
    const auto info = atelier::media::probe_image(words.at(1));
    std::ostringstream out;
    out << info.format << " " << info.width << " " << info.height << " " << info.channels << " "
        << info.bits << " " << info.has_alpha << " " << info.is_animated << " " << info.orientation;
    return out.str();
  }
  if (command == "text") {
    std::string out;
    for (const auto& [key, value] : atelier::media::read_text(words.at(1))) {
      out += key + "=" + value + "\t";
    }
    return out;
  }
  if (command == "clip") {
    write_clip(words.at(1), std::stod(words.at(2)), words.at(3), std::span(words).subspan(4));
    return "";
  }
  const Image image = read_image(words.at(1));
  if (command == "decode") {
    write_ppm(words.at(2), image);
  } else if (command == "resize") {
    write_ppm(words.at(2), atelier::media::resize(image, std::stoi(words.at(3)),
                                                  std::stoi(words.at(4)), filter_of(words.at(5))));
  } else if (command == "cover") {
    write_ppm(words.at(2), atelier::media::crop_and_resize(image, std::stoi(words.at(3)),
                                                           std::stoi(words.at(4))));
  } else if (command == "encode") {
    atelier::media::Text text;
    for (size_t i = 3; i + 1 < words.size(); i += 2) text.emplace_back(words[i], words[i + 1]);
    std::ofstream(words.at(2), std::ios::binary) << atelier::media::encode_png(image, text);
  } else {
    throw std::invalid_argument("unknown command " + command);
  }
  return "";
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    std::vector<std::string> words;
    std::istringstream stream(line);
    for (std::string word; std::getline(stream, word, '\t');) words.push_back(word);
    try {
      const std::string answer = run(words);
      std::cout << "ok " << answer << std::endl;
    } catch (const atelier::Error& error) {
      std::cout << "error " << error.what() << std::endl;
    }
  }
}
