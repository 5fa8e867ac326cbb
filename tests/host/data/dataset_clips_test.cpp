#include <algorithm>
#include <chrono>
#include <filesystem>

#include <ATen/ATen.h>

#include "host/data/dataset.h"
#include "host/media/pixels.h"
#include "host/media/png.h"
#include "host/media/resize.h"
#include "host/media/video_library.h"
#include "support/files.h"

namespace atelier::data {
namespace {

using Catch::Contains;
using Numbers = std::vector<int64_t>;
using test::Folder;

const std::vector<InputSpec> kClipInputs = {
    {.name = "prompt", .kind = InputKind::kText, .required = true},
    {.name = "first", .kind = InputKind::kImage, .when_absent = WhenAbsent::kFirstFrame},
    {.name = "last", .kind = InputKind::kImage, .when_absent = WhenAbsent::kLastFrame},
    {.name = "control", .kind = InputKind::kVideo, .along_clip = true},
    {.name = "video",
     .kind = InputKind::kVideo,
     .required = true,
     .use = InputUse::kTrain,
     .role = InputRole::kTarget},
};
const LatentSpec kClips = {.temporal_stride = 4, .takes_clips = true};

// A frame whose pixels tell its number.
media::Image frame(int width, int height, int number) {
  media::Image image(width, height);
  for (size_t i = 0; i < image.rgb.size(); ++i)
    image.rgb[i] = static_cast<uint8_t>((i * 7 + static_cast<size_t>(number) * 40) % 256);
  return image;
}

class ClipSet {
 public:
  ClipSet() {
    options_.dataset_base_path = folder_.path();
    options_.clips.model_fps = 16;
    options_.clips.model_frames = 5;
  }

  // A folder of frames, from `first` on.
  void write_clip(const std::string& name, int frames, int width = 32, int height = 32,
                  int first = 0) {
    for (int i = 0; i < frames; ++i)
      write_image(name + "/" + std::to_string(100 + i) + ".png", frame(width, height, first + i));
  }
  void write_image(const std::string& name, const media::Image& image) {
    const std::filesystem::path path = folder_ / name;
    std::filesystem::create_directories(path.parent_path());
    test::write_bytes(path.string(), media::encode_png(image));
  }

  DatasetOptions& options() { return options_; }
  const Folder& folder() const { return folder_; }

  Dataset open(const std::string& table, const std::vector<InputSpec>& inputs = kClipInputs,
               const LatentSpec& spec = kClips) {
    test::write_bytes(folder_ / "a.csv", table);
    options_.dataset_metadata_path = folder_ / "a.csv";
    report::Problems problems;
    Dataset dataset = Dataset::open(options_, inputs, spec, problems);
    problem_.clear();
    try {
      problems.throw_if_any();
    } catch (const Error& error) {
      problem_ = error.what();
    }
    return dataset;
  }
  Dataset good(const std::string& table) {
    Dataset dataset = open(table);
    CHECK(problem_ == "");
    return dataset;
  }
  const std::string& problem() const { return problem_; }

 private:
  Folder folder_;
  DatasetOptions options_;
  std::string problem_;
};

const at::Tensor& tensor(const Sample& sample, const std::string& name) {
  return std::get<at::Tensor>(sample.inputs.at(name));
}

int64_t count(const Dataset& dataset, const std::string& part) {
  return std::ranges::count_if(dataset.warnings(), [&](const std::string& warning) {
    return warning.find(part) != std::string::npos;
  });
}

TEST_CASE("A clip's pieces are items that name their frames", "[data][clips]") {
  ClipSet set;
  set.write_clip("c", 12);
  set.options().clips.frame_extraction = FrameExtraction::kChunk;
  const Dataset dataset = set.good("video,prompt\nc,walks\n");
  REQUIRE(dataset.items().size() == 2);
  CHECK(dataset.samples() == 2);
  CHECK(dataset.items()[0].frames == Numbers{0, 1, 2, 3, 4});
  CHECK(dataset.items()[1].frames == Numbers{5, 6, 7, 8, 9});
  CHECK(dataset.items()[1].target == MediaTarget{5, 32, 32});
  CHECK_THAT(dataset.items()[1].place, Contains("a.csv:2 (frames 5 to 9)"));
  CHECK(dataset.warnings().empty());
  REQUIRE(dataset.buckets().size() == 1);
  CHECK(dataset.buckets()[0].target.frames == 5);

  const at::Tensor clip = tensor(dataset.load(1), "video");
  CHECK(clip.scalar_type() == at::kByte);
  REQUIRE(clip.sizes() == at::IntArrayRef({3, 5, 32, 32}));
  for (int t = 0; t < 5; ++t) {
    const at::Tensor pixels = clip.select(1, t).to(at::kFloat).div_(255.0).mul_(2.0).sub_(1.0);
    CHECK(at::equal(pixels, media::to_pixels(frame(32, 32, 5 + t))));
  }
  // A row of one piece is its place.
  set.options().clips.frame_extraction = FrameExtraction::kHead;
  CHECK_THAT(set.good("video,prompt\nc,walks\n").items()[0].place, Catch::EndsWith("a.csv:2"));
}

TEST_CASE("Frames are scaled and cut as images are", "[data][clips]") {
  ClipSet set;
  set.write_clip("c", 5, 70, 40);
  set.options().height = 32;
  set.options().width = 48;
  const Sample sample = set.good("video,prompt\nc,walks\n").load(0);
  const media::Image cut = media::crop_and_resize(frame(70, 40, 3), 48, 32);
  const at::Tensor pixels =
      tensor(sample, "video").select(1, 3).to(at::kFloat).div_(255.0).mul_(2.0).sub_(1.0);
  CHECK(at::equal(pixels, media::to_pixels(cut)));
}

TEST_CASE("A picture is a clip of one frame, in either column", "[data][clips]") {
  ClipSet set;
  set.write_clip("c", 5);
  set.write_image("p.png", frame(32, 32, 9));
  const Dataset dataset = set.good("video,image,prompt\nc,,walks\n,p.png,stands\np.png,,stands\n");
  REQUIRE(dataset.items().size() == 3);
  CHECK(dataset.items()[1].target == MediaTarget{1, 32, 32});
  CHECK(dataset.items()[1].frames.empty());
  CHECK(dataset.buckets().size() == 2);
  const at::Tensor picture = tensor(dataset.load(1), "video");
  REQUIRE(picture.sizes() == at::IntArrayRef({3, 1, 32, 32}));
  CHECK(at::equal(picture.select(1, 0), media::to_pixels(frame(32, 32, 9))));
  set.open("video,image,prompt\nc,p.png,walks\n");
  CHECK_THAT(set.problem(), Contains("a.csv:2: both [video] and [image] are given"));
}

TEST_CASE("What is wrong with a row names the column that it has", "[data][clips]") {
  ClipSet set;
  set.write_clip("c", 3);
  set.write_image("p.png", frame(32, 32, 9));
  set.open("video,image,prompt\ngone,,a\n,gone.png,b\nc,,c\n,p.png,d\n,,e\n");
  for (const char* told : {"a.csv:2 [video]: ", "a.csv:3 [image]: ", "a.csv:6 [video]: nothing"})
    CHECK_THAT(set.problem(), Contains(told));
  set.open("image,prompt\n,a\ngone.png,b\n");
  for (const char* told : {"a.csv:2 [image]: nothing", "a.csv:3 [image]: "})
    CHECK_THAT(set.problem(), Contains(told));
  test::write_bytes(set.folder() / "list.mp4", "#EXTM3U\n#EXTINF:1,\nclip.mp4\n");
  set.open("video,prompt\nlist.mp4,a\n");
  CHECK_THAT(set.problem(),
             Contains("a.csv:2 [video]: ") &&
                 Contains("list.mp4: an HLS playlist, and no video or image; name "));
  const Dataset odd = set.good("video,image,prompt\n,c,walks\n,p.png,stands\np.png,,lies\n");
  CHECK(count(odd, "a.csv:2 [image]: has 3 frames") == 1);
  CHECK(count(odd, "a.csv:4 [video]: the same image as in") == 1);
  // The column takes part in nothing else.
  CHECK(set.good("image,prompt\nc,walks\n").fingerprint() ==
        set.good("video,prompt\nc,walks\n").fingerprint());
}

TEST_CASE("Files with captions beside them have no column", "[data][clips]") {
  ClipSet set;
  set.write_image("p.png", frame(2, 2, 9));
  test::write_bytes(set.folder() / "p.txt", "a picture");
  set.options().dataset_metadata_path = "";
  report::Problems problems;
  Dataset::open(set.options(), kClipInputs, {.pixel_multiple = 16, .takes_clips = true}, problems);
  test::expect_error(ErrorCode::kInvalidArgument, {"p.png [video]: 2x2 pixels are too few"},
                     [&] { problems.throw_if_any(); });
}

TEST_CASE("First and last frame of the piece stand in for images", "[data][clips]") {
  ClipSet set;
  set.write_clip("c", 10);
  set.options().extra_inputs = {"first", "last"};
  set.options().clips.frame_extraction = FrameExtraction::kChunk;
  const Dataset dataset = set.good("video,prompt\nc,walks\n");
  const Sample sample = dataset.load(1);
  CHECK(at::equal(tensor(sample, "first"), tensor(sample, "video").select(1, 0)));
  CHECK(at::equal(tensor(sample, "last"), tensor(sample, "video").select(1, 4)));
  const Inputs shapes = dataset.shapes(1);
  CHECK(std::get<at::Tensor>(shapes.at("first")).sizes() == at::IntArrayRef({3, 32, 32}));
}

TEST_CASE("Masks of clips are images, or clips frame by frame", "[data][clips]") {
  ClipSet set;
  set.write_clip("c", 10);
  set.write_clip("m", 10, 32, 32, 50);
  set.write_clip("short", 4);
  set.write_image("m.png", frame(16, 16, 1));
  set.options().clips.frame_extraction = FrameExtraction::kChunk;
  const Dataset dataset = set.good("video,prompt,mask\nc,walks,m\nc,stands,m.png\n");
  REQUIRE(dataset.items().size() == 4);
  const at::Tensor mask = dataset.load(1).mask;
  REQUIRE(mask.sizes() == at::IntArrayRef({1, 5, 32, 32}));
  CHECK(at::equal(mask.select(1, 2), media::to_mask(frame(32, 32, 57))));
  CHECK(dataset.load(2).mask.sizes() == at::IntArrayRef({1, 32, 32}));
  set.open("video,prompt,mask\nc,walks,short\n");
  CHECK_THAT(set.problem(), Contains("a.csv:2 [mask]: has 4 frames, the video 10"));
}

TEST_CASE("A clip beside the target gives the same frames", "[data][clips]") {
  ClipSet set;
  set.write_clip("c", 10);
  set.write_clip("k", 10, 64, 64, 20);
  set.options().extra_inputs = {"control"};
  set.options().clips.frame_extraction = FrameExtraction::kChunk;
  const Sample sample = set.good("video,prompt,control\nc,walks,k\n").load(1);
  const at::Tensor& control = tensor(sample, "control");
  REQUIRE(control.sizes() == at::IntArrayRef({3, 5, 32, 32}));
  const media::Image cut = media::crop_and_resize(frame(64, 64, 27), 32, 32);
  CHECK(control.select(1, 2)[0][0][0].item<int>() == cut.rgb[0]);
}

TEST_CASE("A clip beside the target is as long as what is learnt, or has a tail", "[data][clips]") {
  ClipSet set;
  set.write_clip("c", 10);
  set.write_clip("k", 7, 32, 32, 20);
  set.write_clip("long", 12, 32, 32, 20);
  set.options().extra_inputs = {"control"};
  const std::string table = "video,prompt,control\nc,walks,k\n";
  CHECK(set.good(table).items().size() == 1);  // its head has five
  CHECK(set.good("video,prompt,control\nc,walks,long\n").items().size() == 1);
  set.options().clips.frame_extraction = FrameExtraction::kChunk;
  set.open(table);
  CHECK_THAT(set.problem(), Contains("(frames 5 to 9) [control]: has 7 frames of the 10 beside"));
  std::vector<InputSpec> inputs = kClipInputs;
  inputs[3].tail = Tail::kMirror;
  const Dataset dataset = set.open(table, inputs);
  CHECK(set.problem() == "");
  const at::Tensor control = tensor(dataset.load(1), "control");
  for (const auto& [place, number] : {std::pair(0, 25), {1, 26}, {2, 25}, {3, 24}, {4, 23}})
    CHECK(control.select(1, place)[0][0][0].item<int>() == frame(32, 32, number).rgb[0]);
  CHECK(std::get<at::Tensor>(dataset.shapes(1).at("control")).sizes() == control.sizes());
}

// A WAV file of one channel with 16000 samples a second, each of which tells its number.
std::string counted_sound(int samples) {
  const auto number = [](uint32_t value, int bytes) {
    std::string text;
    for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i));
    return text;
  };
  std::string data;
  for (int i = 0; i < samples; ++i) data += number(static_cast<uint32_t>(i), 2);
  const std::string form = number(1, 2) + number(1, 2) + number(16000, 4) + number(32000, 4) +
                           number(2, 2) + number(16, 2);
  const std::string body = "WAVEfmt " + number(16, 4) + form + "data" +
                           number(static_cast<uint32_t>(data.size()), 4) + data;
  return "RIFF" + number(static_cast<uint32_t>(body.size()), 4) + body;
}

TEST_CASE("A sound beside a clip is cut to each piece, or refused", "[data][clips]") {
  try {
    media::video_library();
  } catch (const Error&) {
    return;  // built without FFmpeg
  }
  ClipSet set;
  set.write_clip("c", 12);
  test::write_bytes(set.folder() / "long.wav", counted_sound(16000));
  test::write_bytes(set.folder() / "short.wav", counted_sound(8000));
  std::vector<InputSpec> inputs = kClipInputs;
  inputs.push_back({.name = "sound", .kind = InputKind::kAudio, .channels = 1, .along_clip = true});
  set.options().extra_inputs = {"sound"};
  set.options().clips.frame_extraction = FrameExtraction::kChunk;
  const Dataset dataset = set.open("video,prompt,sound\nc,walks,long.wav\n", inputs);
  CHECK(set.problem() == "");
  REQUIRE(dataset.items().size() == 2);
  const Sample sample = dataset.load(1);
  const at::Tensor& sound = tensor(sample, "sound");
  REQUIRE(sound.sizes() == at::IntArrayRef({1, 5000}));  // five of 16 frames a second
  CHECK(at::equal(sound[0], at::arange(5000, 10000).to(at::kFloat) / 32768));
  CHECK(std::get<at::Tensor>(dataset.shapes(1).at("sound")).sizes() == sound.sizes());
  const std::string table = "video,prompt,sound\nc,walks,short.wav\n";
  CHECK(set.open(table, inputs).items().empty());
  CHECK_THAT(set.problem(), Contains("a.csv:2 (frames 5 to 9) [sound]: lasts 0.5 s, and 0.625 s "
                                     "are needed; give a longer sound"));
  inputs.back().tail = Tail::kZero;
  const Sample padded = set.open(table, inputs).load(1);
  CHECK(set.problem() == "");
  CHECK(tensor(padded, "sound")[0][2999].item<float>() == 7999.0F / 32768);
  CHECK(!tensor(padded, "sound").narrow(1, 3000, 2000).any().item<bool>());
}

TEST_CASE("Clips that are short are learnt shorter, and told", "[data][clips]") {
  ClipSet set;
  set.write_clip("c", 7);
  set.write_clip("d", 12);
  set.options().clips.num_frames = {9};
  const Dataset dataset = set.good("video,prompt\nc,walks\nd,runs\n");
  CHECK(dataset.items()[0].target.frames == 5);
  CHECK(dataset.items()[1].target.frames == 9);
  CHECK(dataset.buckets().size() == 2);
  CHECK(count(dataset, "a.csv:2 [video]: has 7 frames of the 9 of --num_frames; 5 frames are") ==
        1);
}

TEST_CASE("A length that does not fit the model is refused with the nearest", "[data][clips]") {
  ClipSet set;
  set.write_clip("c", 12);
  set.options().clips.num_frames = {16};
  CHECK(set.open("video,prompt\nc,walks\n").items().empty());
  CHECK_THAT(set.problem(), Contains("--num_frames: 16 is not one more than a multiple of 4; use "
                                     "13 or 17"));
}

TEST_CASE("Pieces of several lengths are items, the shortest first", "[data][clips]") {
  ClipSet set;
  set.write_clip("c", 12);
  set.write_clip("d", 7);
  set.write_clip("e", 3);
  set.write_image("p.png", frame(32, 32, 9));
  set.options().clips.frame_extraction = FrameExtraction::kChunk;
  set.options().clips.num_frames = {9, 5};
  const Dataset dataset = set.good("video,prompt\nc,walks\nd,runs\ne,hops\np.png,stands\n");
  std::vector<std::pair<int64_t, std::string>> found;
  for (const Item& item : dataset.items())
    found.emplace_back(item.target.frames, item.place.substr(item.place.find("a.csv") + 6));
  CHECK(found == std::vector<std::pair<int64_t, std::string>>{{5, "2 (frames 0 to 4)"},
                                                              {5, "2 (frames 5 to 9)"},
                                                              {9, "2 (frames 0 to 8)"},
                                                              {5, "3"},
                                                              {1, "4"},
                                                              {1, "5"}});
  CHECK(dataset.samples() == 6);
  CHECK(dataset.items()[2].frames.size() == 9);
  CHECK(count(dataset,
              "a.csv:3 [video]: has 7 frames of the 9 of --num_frames; pieces of these "
              "lengths are learnt: 5") == 1);
  CHECK(count(dataset, "a.csv:4 [video]: has 3 frames of the 5 of --num_frames; 1 frame is") == 1);
  CHECK(count(dataset, "the same image") == 0);
  CHECK(count(dataset, "--num_frames") == 2);
  // A length that stands there twice counts once.
  set.options().clips.num_frames = {5, 9, 9};
  CHECK(set.good("video,prompt\nc,walks\nd,runs\ne,hops\np.png,stands\n").fingerprint() ==
        dataset.fingerprint());
}

TEST_CASE("Random pieces of each length are a sample of their own", "[data][clips]") {
  ClipSet set;
  set.write_clip("c", 20);
  set.options().clips.frame_extraction = FrameExtraction::kRandom;
  set.options().clips.frame_sample = 2;
  set.options().clips.num_frames = {5, 9};
  const Dataset dataset = set.good("video,prompt\nc,walks\n");
  REQUIRE(dataset.items().size() == 4);
  CHECK(dataset.samples() == 2);
  for (const size_t item : {0u, 1u, 2u, 3u}) {
    CHECK(dataset.items()[item].is_alternative == (item % 2 == 1));
    CHECK(dataset.items()[item].target.frames == (item < 2 ? 5 : 9));
  }
}

TEST_CASE("Each length that does not fit the model is refused", "[data][clips]") {
  ClipSet set;
  set.write_clip("c", 12);
  set.options().clips.num_frames = {5, 16, 18};
  CHECK(set.open("video,prompt\nc,walks\n").items().empty());
  CHECK_THAT(set.problem(), Contains("--num_frames: 16 is not one more than a multiple of 4") &&
                                Contains("--num_frames: 18 is not one more") &&
                                !Contains("--num_frames: 5"));
}

TEST_CASE("Families of single images take no clips", "[data][clips]") {
  ClipSet set;
  set.write_clip("c", 12);
  const std::vector<InputSpec> stills = {
      {.name = "prompt", .kind = InputKind::kText, .required = true},
      {.name = "image",
       .kind = InputKind::kImage,
       .required = true,
       .use = InputUse::kTrain,
       .role = InputRole::kTarget}};
  set.options().clips.model_frames = 1;
  set.open("image,prompt\nc,walks\n", stills, LatentSpec{});
  CHECK_THAT(set.problem(), Contains("a.csv:2 [image]: ") &&
                                Contains("is a clip, and this family learns single images"));
  set.options().extra_inputs = {"first"};
  set.options().clips.model_frames = 5;
  set.open("video,prompt,first\nc,walks,c\n");
  CHECK_THAT(set.problem(), Contains("a.csv:2 [first]: ") &&
                                Contains("is a clip, and the column takes single images"));
  set.options().clips.num_frames = {5};
  set.open("image,prompt\n", stills, LatentSpec{});
  CHECK_THAT(set.problem(), Contains("--num_frames: 5: this family makes single images"));
}

TEST_CASE("Alternatives of random pieces are one sample", "[data][clips]") {
  ClipSet set;
  set.write_clip("c", 20);
  set.write_clip("d", 5);
  set.options().clips.frame_extraction = FrameExtraction::kRandom;
  set.options().clips.frame_sample = 3;
  const Dataset dataset = set.good("video,prompt\nc,walks\nd,runs\n");
  REQUIRE(dataset.items().size() == 4);
  CHECK(dataset.samples() == 2);
  CHECK_FALSE(dataset.items()[0].is_alternative);
  CHECK(dataset.items()[1].is_alternative);
  CHECK(dataset.items()[2].is_alternative);
  CHECK_FALSE(dataset.items()[3].is_alternative);
  const std::string before = dataset.fingerprint();
  CHECK(set.good("video,prompt\nc,walks\nd,runs\n").fingerprint() == before);
  set.options().clips.seed = 7;
  CHECK(set.good("video,prompt\nc,walks\nd,runs\n").fingerprint() != before);
}

TEST_CASE("A frame that is changed changes the dataset", "[data][clips]") {
  ClipSet set;
  set.write_clip("c", 5);
  const std::string before = set.good("video,prompt\nc,walks\n").fingerprint();
  set.write_image("c/102.png", frame(32, 32, 77));
  std::filesystem::last_write_time(
      set.folder() / "c/102.png",
      std::filesystem::file_time_type::clock::now() + std::chrono::hours(1));
  CHECK(set.good("video,prompt\nc,walks\n").fingerprint() != before);
}

}  // namespace
}  // namespace atelier::data
