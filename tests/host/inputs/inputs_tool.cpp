// Reads images as inputs for read_test.py: one request a line on stdin, words separated by tabs,
//
//   KIND CHANNELS FIT HEIGHT WIDTH FILE OUT
//
// one answer a line on stdout. OUT gets the raw float32 values.
#include <fstream>
#include <iostream>
#include <sstream>

#include <ATen/ATen.h>

#include "atelier/error.h"

#include "host/inputs/read.h"

int main() {
  using namespace atelier;  // NOLINT(google-build-using-namespace)
  const std::map<std::string, InputFit> fits = {
      {"crop", InputFit::kCrop}, {"stretch", InputFit::kStretch}, {"as_is", InputFit::kAsIs}};
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream stream(line);
    std::vector<std::string> words;
    for (std::string word; std::getline(stream, word, '\t');) words.push_back(word);
    try {
      const InputSpec input = {.name = "image",
                               .kind = words.at(0) == "mask" ? InputKind::kMask : InputKind::kImage,
                               .channels = std::stoi(words.at(1)),
                               .fit = fits.at(words.at(2))};
      const MediaTarget target = {1, std::stoi(words.at(3)), std::stoi(words.at(4))};
      const std::vector<std::string> paths = {words.at(5)};
      const at::Tensor values =
          std::get<at::Tensor>(inputs::read_files(input, paths, target)).contiguous();
      std::ofstream(words.at(6), std::ios::binary)
          .write(static_cast<const char*>(values.const_data_ptr()),
                 static_cast<std::streamsize>(values.nbytes()));
      std::cout << "ok";
      for (const int64_t size : values.sizes()) std::cout << " " << size;
    } catch (const Error& error) {
      std::cout << "error " << error.what();
    }
    std::cout << std::endl;
  }
}
