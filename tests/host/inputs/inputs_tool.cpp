// Reads files as inputs for read_test.py: one JSON object a line on stdin,
//
//   {"kind": "image", "fit": "crop", "target": [frames, height, width], "file": …, "out": …}
//
// and, where they are not as usual, "channels", "filter", "level", "size", "fps", "tail", "rate"
// and "made_fps" of an input along the clip. One answer a line on stdout: "ok", the shape and the
// shape that is told beforehand. "out" gets the values as float32.
#include <fstream>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>

#include <ATen/ATen.h>

#include "atelier/error.h"

#include "host/inputs/read.h"

namespace {

using namespace atelier;  // NOLINT(google-build-using-namespace)
using nlohmann::json;

template <typename T>
T named(const std::map<std::string, T>& names, const json& request, const char* key, T usual) {
  return request.contains(key) ? names.at(request[key]) : usual;
}

InputSpec spec_of(const json& request) {
  const std::map<std::string, InputKind> kinds = {{"image", InputKind::kImage},
                                                  {"mask", InputKind::kMask},
                                                  {"video", InputKind::kVideo},
                                                  {"video_mask", InputKind::kVideoMask},
                                                  {"audio", InputKind::kAudio}};
  const std::map<std::string, InputFit> fits = {{"crop", InputFit::kCrop},
                                                {"stretch", InputFit::kStretch},
                                                {"pad", InputFit::kPad},
                                                {"as_is", InputFit::kAsIs}};
  const std::map<std::string, Tail> tails = {{"mirror", Tail::kMirror},
                                             {"repeat", Tail::kRepeat},
                                             {"minus_one", Tail::kMinusOne},
                                             {"zero", Tail::kZero}};
  const std::map<std::string, std::optional<ResizeFilter>> filters = {
      {"box", ResizeFilter::kBox},
      {"bilinear", ResizeFilter::kBilinear},
      {"bicubic", ResizeFilter::kBicubic},
      {"lanczos", ResizeFilter::kLanczos}};
  const std::vector<int64_t> size = request.value("size", std::vector<int64_t>{0, 0});
  return {.name = "input",
          .kind = named(kinds, request, "kind", InputKind::kImage),
          .channels = request.value("channels", int64_t{3}),
          .fit = named(fits, request, "fit", InputFit::kCrop),
          .filter = named(filters, request, "filter", {}),
          .pad_level = request.value("level", 0),
          .fit_height = size[0],
          .fit_width = size[1],
          .fps = request.value("fps", 0.0),
          .along_clip = request.contains("made_fps"),
          .tail = named(tails, request, "tail", Tail::kRefuse),
          .sample_rate = request.value("rate", int64_t{16000})};
}

// What clips are as floats.
at::Tensor floats(const at::Tensor& values) {
  if (values.scalar_type() != at::kByte) return values.contiguous();
  return values.to(at::kFloat).div_(255.0).mul_(2.0).sub_(1.0).contiguous();
}

void run(const json& request) {
  const InputSpec input = spec_of(request);
  const std::vector<int64_t> target = request["target"];
  const inputs::Made made = {{target[0], target[1], target[2]}, request.value("made_fps", 0.0)};
  const std::vector<std::string> paths = {request["file"]};
  const at::Tensor values = floats(std::get<at::Tensor>(inputs::read_files(input, paths, made)));
  std::ofstream(request["out"].get<std::string>(), std::ios::binary)
      .write(static_cast<const char*>(values.const_data_ptr()),
             static_cast<std::streamsize>(values.nbytes()));
  const at::Tensor told = std::get<at::Tensor>(inputs::shapes_of(input, paths, made));
  std::cout << "ok " << json(values.sizes().vec()) << " " << json(told.sizes().vec());
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    try {
      run(json::parse(line));
    } catch (const Error& error) {
      std::cout << "error " << error.what();
    }
    std::cout << std::endl;
  }
}
