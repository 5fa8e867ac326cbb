// One image, clip or sound: whether it can be read, and its bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "atelier/error.h"
#include "atelier/input.h"

#include "host/media/clip.h"
#include "host/media/decode.h"
#include "host/media/sound.h"

namespace atelier::inputs {

struct ImageFile {
  media::ImageInfo info;                          // of a clip, the size of its frames
  std::shared_ptr<const media::ClipInfo> clip;    // null: a still
  std::shared_ptr<const media::SoundInfo> sound;  // of an input of sounds; null: it is none
  int64_t bytes = 0;
  std::string ends_hash;       // files::hash_ends()
  std::optional<Error> error;  // what is wrong with the file; the rest is then not filled in
};

// Whether a mask has the shape of its image; sizes may differ.
bool has_shape_of(const media::ImageInfo& mask, const media::ImageInfo& image);

// Says whether the file of an input of that kind can be read: it exists, is a regular file, has a
// good header and ends as its format does. An image that ends otherwise is decoded, and with
// `decode_all` every one, and all frames and samples. Of inputs of clips it may be one: a video, an
// animation, a folder of frames; of inputs of sounds it is the sound of any file.
ImageFile check_file(InputKind kind, const std::string& path, bool decode_all);

// What a clip's file says; of a still, that it has one frame and no rate.
media::ClipInfo clip_of(const ImageFile& file);

// Something of an image that an input does not see, and what it sees in its place: "is an
// animation", "its first frame is taken".
struct IgnoredProperty {
  std::string_view what, instead;
};
std::vector<IgnoredProperty> ignored_properties(const InputSpec& input,
                                                const media::ImageInfo& info);

// The whole file. Throws Error naming it; named pipes and the like are refused.
std::vector<uint8_t> read_image_file(const std::string& path);

}  // namespace atelier::inputs
