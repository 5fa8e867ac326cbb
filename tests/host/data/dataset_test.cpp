#include "host/data/dataset.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <set>

#include <ATen/ATen.h>

#include "host/data/control_files.h"
#include "host/media/pixels.h"
#include "host/media/png.h"
#include "host/media/resize.h"
#include "support/files.h"

namespace atelier::data {
namespace {

using Catch::Contains;
using test::Folder;
using test::write_bytes;

const std::vector<InputSpec> kInputs = {
    {.name = "prompt", .kind = InputKind::kText, .required = true},
    {.name = "negative_prompt", .kind = InputKind::kText, .use = InputUse::kGenerate},
    {.name = "image",
     .kind = InputKind::kImage,
     .required = true,
     .use = InputUse::kTrain,
     .role = InputRole::kTarget},
    {.name = "edit_image", .kind = InputKind::kImage, .max_count = 3, .fit = InputFit::kAsIs},
    {.name = "steps", .kind = InputKind::kInteger},
};

media::Image image(int width, int height, int seed = 1) {
  media::Image result(width, height);
  uint32_t state = static_cast<uint32_t>(seed) * 2654435761U;
  for (uint8_t& value : result.rgb) {
    state = state * 1664525U + 1013904223U;
    value = static_cast<uint8_t>(state >> 24);
  }
  return result;
}

void write_image(const std::string& path, int width, int height, int seed = 1) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  test::write_bytes(path, media::encode_png(image(width, height, seed)));
}

// A folder with images and a table.
class TestSet {
 public:
  TestSet() {
    write_image(folder_ / "a.png", 64, 48, 1);
    write_image(folder_ / "b.png", 48, 64, 2);
    options_.dataset_base_path = folder_.path();
  }

  const Folder& folder() const { return folder_; }
  DatasetOptions& options() { return options_; }

  void write(const std::string& name, const std::string& text) {
    write_bytes(folder_ / name, text);
    options_.dataset_metadata_path = folder_ / name;
  }

  Dataset open(const std::vector<InputSpec>& inputs = kInputs) {
    report::Problems problems;
    Dataset dataset = Dataset::open(options_, inputs, LatentSpec{}, problems);
    lines_.clear();
    try {
      problems.throw_if_any();
    } catch (const Error& error) {
      std::istringstream text(error.what());
      for (std::string line; std::getline(text, line);) lines_.push_back(line);
      if (lines_.size() > 1) lines_.erase(lines_.begin());
    }
    return dataset;
  }

  // Opens and gives the problems, one a line.
  const std::vector<std::string>& problems(const std::vector<InputSpec>& inputs = kInputs) {
    open(inputs);
    return lines_;
  }

  // Opens without problems.
  Dataset good(const std::vector<InputSpec>& inputs = kInputs) {
    Dataset dataset = open(inputs);
    INFO(Catch::StringMaker<std::vector<std::string>>::convert(lines_));
    REQUIRE(lines_.empty());
    return dataset;
  }

 private:
  Folder folder_;
  DatasetOptions options_;
  std::vector<std::string> lines_;
};

TEST_CASE("Images keep their shape, and both sides become multiples", "[data]") {
  CHECK(target_size(1000, 1500, 1'048'576, 16) == Size{832, 1248});
  CHECK(target_size(480, 640, 1'048'576, 16) == Size{480, 640});
  CHECK(target_size(1023, 1023, 1'048'576, 16) == Size{1008, 1008});
  CHECK(target_size(2048, 2048, 1'048'576, 16) == Size{1024, 1024});
  CHECK(target_size(15, 100, 1'048'576, 16) == Size{0, 96});
  CHECK(target_size(100'000, 100'000, 1'048'576, 16) == Size{1024, 1024});
}

TEST_CASE("Buckets cover the shapes at about one area", "[data]") {
  DatasetOptions options;
  const std::vector<Size> buckets = make_buckets(options, 16);
  CHECK(std::count(buckets.begin(), buckets.end(), Size{1024, 1024}) == 1);
  CHECK(std::count(buckets.begin(), buckets.end(), Size{2048, 512}) == 1);
  for (const auto& [height, width] : buckets) {
    CHECK(height % 64 == 0);
    CHECK(width % 64 == 0);
    CHECK(height * width <= options.max_pixels);
    CHECK(std::min(height, width) >= 256);
    CHECK(std::max(height, width) <= 2048);
    CHECK(std::count(buckets.begin(), buckets.end(), Size{width, height}) == 1);
  }
  CHECK(nearest_bucket(buckets, 100, 100) == Size{1024, 1024});
  CHECK(nearest_bucket(buckets, 3000, 3010) == Size{1024, 1024});
  CHECK(nearest_bucket(buckets, 4000, 1000) == Size{2048, 512});
  CHECK(nearest_bucket(buckets, 9, 16) == Size{768, 1344});
  for (const auto& [height, width] : buckets) {
    const Size turned = nearest_bucket(buckets, width * 3, height * 3);
    CHECK(std::abs(std::log(static_cast<double>(turned.height) / static_cast<double>(turned.width) /
                            (static_cast<double>(width) / static_cast<double>(height)))) < 1e-9);
  }
}

TEST_CASE("Rows of nested, absolute and relative paths become items", "[data]") {
  TestSet set;
  write_image(set.folder() / "sub/deep/c.png", 40, 40, 3);
  set.write("metadata.csv", "image,prompt,source\na.png,one,web\n" + (set.folder() / "b.png") +
                                ",two,\nsub/../sub/deep/c.png,three,book\n");
  const Dataset dataset = set.good();
  REQUIRE(dataset.items().size() == 3);
  CHECK(dataset.target_input() == "image");
  CHECK(dataset.warnings().empty());
  CHECK(dataset.items()[0].values.at("prompt") == "one");
  CHECK(dataset.items()[0].values.at("source") == "web");
  CHECK(dataset.items()[1].target.height == 64);
  CHECK(dataset.items()[1].target.width == 48);
  CHECK(dataset.items()[2].files.at("image").front() == set.folder() / "sub/deep/c.png");
  CHECK(dataset.items()[2].target.height == 32);
  CHECK_THAT(dataset.items()[2].place, Catch::EndsWith("metadata.csv:4"));
  const Sample sample = dataset.load(1);
  CHECK(std::get<std::string>(sample.inputs.at("prompt")) == "two");
  CHECK(at::equal(std::get<at::Tensor>(sample.inputs.at("image")),
                  media::to_pixels(image(48, 64, 2))));
  CHECK(!sample.mask.defined());
  CHECK_FALSE(sample.inputs.contains("source"));
}

TEST_CASE("Lists and numbers are taken from csv and from json", "[data]") {
  TestSet set;
  set.options().extra_inputs = {"edit_image", "steps"};
  set.write("a.jsonl",
            "{\"image\": [\"a.png\"], \"prompt\": \"x\", \"edit_image\": [\"a.png\", \"b.png\"], "
            "\"steps\": 4}\n{\"image\": \"a.png\", \"prompt\": \"y\", \"edit_image\": \"b.png\", "
            "\"steps\": \"5\"}");
  for (const bool is_csv : {false, true}) {
    if (is_csv)
      set.write("a.csv",
                "image,prompt,edit_image,steps\na.png,x,\"[\"\"a.png\"\", \"\"b.png\"\"]\",4\n"
                "a.png,y,b.png,5\n");
    const Dataset dataset = set.good();
    REQUIRE(dataset.items().size() == 2);
    const Sample first = dataset.load(0), second = dataset.load(1);
    const auto& images = std::get<std::vector<at::Tensor>>(first.inputs.at("edit_image"));
    REQUIRE(images.size() == 2);
    CHECK(images[1].sizes() == at::IntArrayRef({3, 64, 48}));
    CHECK(std::get<std::vector<at::Tensor>>(second.inputs.at("edit_image")).size() == 1);
    CHECK(std::get<int64_t>(first.inputs.at("steps")) == 4);
    CHECK(std::get<int64_t>(second.inputs.at("steps")) == 5);
    CHECK(dataset.warnings().size() == 1);  // a.png twice
  }
}

TEST_CASE("A text of all rows stands where a row has none", "[data]") {
  std::vector<InputSpec> inputs = kInputs;
  inputs.push_back({.name = "style", .kind = InputKind::kText});
  for (const std::string& text : {std::string("image,prompt\na.png,x\nb.png,y"),
                                  std::string("image,prompt,style\na.png,x,\nb.png,y,own")}) {
    TestSet set;
    set.options().texts_of_all = {{"style", "common"}};
    set.write("metadata.csv", text);
    const Dataset dataset = set.good(inputs);
    REQUIRE(dataset.items().size() == 2);
    CHECK(std::get<std::string>(dataset.load(0).inputs.at("style")) == "common");
    const bool has_own = text.find("own") != std::string::npos;
    CHECK(std::get<std::string>(dataset.load(1).inputs.at("style")) ==
          (has_own ? "own" : "common"));
    CHECK(dataset.warnings().empty());
  }
}

TEST_CASE("A mask is cut as its image is, at any size of the same shape", "[data]") {
  TestSet set;
  media::Image mask(32, 24);
  for (int y = 0; y < 24; ++y)
    for (int x = 0; x < 32; ++x) std::fill_n(mask.row(y) + 3 * x, 3, x < 16 ? 255 : 51);
  test::write_bytes(set.folder() / "m.png", media::encode_png(mask));
  write_image(set.folder() / "wide.png", 64, 24);
  set.write("a.csv", "image,prompt,mask\na.png,x,m.png\nb.png,y,\n");
  set.options().height = set.options().width = 48;
  const Dataset dataset = set.good();
  const at::Tensor loaded = dataset.load(0).mask;
  REQUIRE(loaded.sizes() == at::IntArrayRef({1, 48, 48}));
  CHECK(loaded.scalar_type() == at::kFloat);
  CHECK(loaded[0][0][0].item<float>() == 1.0F);
  CHECK(loaded[0][20][47].item<float>() == Approx(0.2F));
  CHECK(!dataset.load(1).mask.defined());

  set.write("b.csv", "image,prompt,mask\na.png,x,wide.png\n");
  REQUIRE(set.problems().size() == 1);
  CHECK_THAT(set.problems().front(), Contains("b.csv:2 [mask]: the mask is 64x24"));
  set.write("c.csv", "image,prompt,attention\na.png,x,m.png\n");
  set.options().mask_column = "attention";
  CHECK(set.good().load(0).mask.defined());
  set.options().mask_column = "attn";
  REQUIRE(set.problems().size() == 1);
  CHECK_THAT(set.problems().front(), Contains("--mask_column"));
}

TEST_CASE("Every option that does not fit is told", "[data]") {
  TestSet set;
  set.write("a.csv", "image,prompt\na.png,x\n");
  set.options().height = 1000;
  set.options().max_pixels = 100;
  set.options().extra_inputs = {"edit_imag", "negative_prompt"};
  const std::vector<std::string> problems = set.problems();
  REQUIRE(problems.size() == 5);
  CHECK_THAT(problems[0], Contains("--height: is given without --width"));
  CHECK_THAT(problems[1], Contains("--height: 1000 is no multiple of 16; use 992 or 1008"));
  CHECK_THAT(problems[2], Contains("--max_pixels: 100"));
  CHECK_THAT(problems[3], Contains("did you mean edit_image?"));
  CHECK_THAT(problems[4], Contains("\"negative_prompt\" is no input that this family is trained"));

  set.options() = {};
  set.options().dataset_base_path = set.folder().path();
  set.write("a.csv", "image,prompt\na.png,x\n");
  set.options().enable_bucket = true;
  set.options().bucket_reso_steps = 24;
  CHECK_THAT(set.problems().at(0), Contains("--bucket_reso_steps: 24"));
  set.options().bucket_reso_steps = 64;
  set.options().min_bucket_reso = 2000;
  set.options().max_bucket_reso = 100;
  CHECK_THAT(set.problems().at(0), Contains("2000 is more than --max_bucket_reso 100"));
  set.options().max_bucket_reso = 100'000;
  CHECK_THAT(set.problems().at(0), Contains("leave no size"));
  set.options().min_bucket_reso = 1088;
  set.options().max_bucket_reso = 2048;
  CHECK_THAT(set.problems().at(0), Contains("no bucket fits"));
  set.options().dataset_base_path = set.folder() / "none";
  CHECK_THAT(set.problems().back(), Contains("--dataset_base_path") && Contains("is no folder"));
  set.options() = {};
  CHECK_THAT(set.problems().at(0), Contains("--dataset_base_path: is missing"));
  set.options().dataset_base_path = set.folder().path();
  set.options().dataset_metadata_path = "a.csv";
  CHECK_THAT(set.problems().at(0), Contains("did you mean " + (set.folder() / "a.csv")));
}

TEST_CASE("Columns that are missing or look misspelt are named once", "[data]") {
  TestSet set;
  set.write("a.csv", "imge,caption,blur\na.png,x,1\nb.png,y,2\n");
  const std::vector<std::string> problems = set.problems();
  REQUIRE(problems.size() == 2);
  CHECK_THAT(problems[0], Contains("[prompt]: there is no such column") &&
                              Contains("\"imge\", \"caption\", \"blur\""));
  CHECK_THAT(problems[1], Contains("[image]") && Contains("rename column \"imge\" to image"));

  set.write("b.csv", "image,prompt,masc,edit_image,video,seed\na.png,x,1,a.png,c.mp4,3\n");
  const std::vector<std::string> warnings = set.good().warnings();
  REQUIRE(warnings.size() == 3);
  CHECK_THAT(warnings[0], Contains("[edit_image]") && Contains("--extra_inputs"));
  CHECK_THAT(warnings[1], Contains("[masc]") && Contains("did you mean mask?"));
  CHECK_THAT(warnings[2], Contains("[video]") && Contains("--data_file_keys"));
}

TEST_CASE("Images that lie on the target have its shape, and may be left out", "[data]") {
  TestSet set;
  write_image(set.folder() / "small.png", 32, 24, 4);
  write_image(set.folder() / "wide.png", 96, 32, 4);
  std::vector<InputSpec> inputs = kInputs;
  inputs.push_back({.name = "whole",
                    .kind = InputKind::kImage,
                    .channels = 4,
                    .fit = InputFit::kStretch,
                    .when_absent = WhenAbsent::kLeftOut,
                    .filter = ResizeFilter::kLanczos,
                    .lies_on_target = true});
  set.options().extra_inputs = {"whole"};
  set.write("a.csv", "image,prompt,whole\na.png,x,small.png\na.png,y,\n");
  const Dataset dataset = set.good(inputs);
  const at::Tensor whole = std::get<at::Tensor>(dataset.load(0).inputs.at("whole"));
  REQUIRE(whole.sizes() == at::IntArrayRef({4, 48, 64}));
  CHECK(at::equal(whole.narrow(0, 0, 3),
                  media::to_pixels(media::crop_and_resize(image(32, 24, 4), 64, 48))));
  CHECK_FALSE(dataset.load(1).inputs.contains("whole"));
  CHECK_FALSE(dataset.shapes(1).contains("whole"));

  // Rows say so: a table that has no such column is another mistake.
  set.write("c.json", R"([{"image": "a.png", "prompt": "x", "whole": null}])");
  CHECK_FALSE(set.good(inputs).load(0).inputs.contains("whole"));
  set.write("d.csv", "image,prompt,hole\na.png,x,small.png\n");
  CHECK_THAT(set.problems(inputs).at(0), Contains("rename column \"hole\" to whole"));

  set.write("b.csv", "image,prompt,whole\na.png,x,wide.png\n");
  REQUIRE(set.problems(inputs).size() == 1);
  CHECK_THAT(set.problems(inputs).front(), Contains("wide.png is 96x32") &&
                                               Contains("the image 64x48") &&
                                               Contains("give them one shape"));
}

TEST_CASE("Several pictures of a row are for models that make several", "[data]") {
  TestSet set;
  std::vector<InputSpec> inputs = kInputs;
  for (InputSpec& input : inputs)
    if (input.role == InputRole::kTarget) input.max_count = 3;
  set.write("a.csv", "image,prompt\n\"[\"\"a.png\"\", \"\"a.png\"\"]\",x\n");
  REQUIRE(set.problems(inputs).size() == 1);
  CHECK_THAT(set.problems(inputs).front(), Contains("has 2 pictures, and the model makes one"));
  report::Problems problems;
  const Dataset dataset =
      Dataset::open(set.options(), inputs, LatentSpec{.takes_clips = true}, problems);
  CHECK(problems.empty());
  CHECK(dataset.items().front().target.frames == 2);
}

TEST_CASE("Images beside the target are fitted, and may be absent", "[data]") {
  TestSet set;
  write_image(set.folder() / "wide.png", 96, 32, 4);
  std::vector<InputSpec> inputs = kInputs;
  inputs.push_back({.name = "first",
                    .kind = InputKind::kImage,
                    .fit = InputFit::kStretch,
                    .when_absent = WhenAbsent::kFirstFrame});
  inputs.push_back({.name = "region", .kind = InputKind::kMask});
  set.options().extra_inputs = {"first", "region"};
  set.write("a.csv", "image,prompt,region\na.png,x,b.png\n");
  const Sample sample = set.good(inputs).load(0);
  CHECK(at::equal(std::get<at::Tensor>(sample.inputs.at("first")),
                  std::get<at::Tensor>(sample.inputs.at("image"))));
  const at::Tensor region = std::get<at::Tensor>(sample.inputs.at("region"));
  CHECK(at::equal(region, media::to_mask(media::crop_and_resize(image(48, 64, 2), 64, 48))));

  set.write("b.csv", "image,prompt,region,first\na.png,x,b.png,\na.png,y,b.png,wide.png\n");
  const Dataset dataset = set.good(inputs);
  CHECK(at::equal(std::get<at::Tensor>(dataset.load(0).inputs.at("first")),
                  std::get<at::Tensor>(dataset.load(0).inputs.at("image"))));
  CHECK(at::equal(
      std::get<at::Tensor>(dataset.load(1).inputs.at("first")),
      media::to_pixels(media::resize(image(96, 32, 4), 64, 48, media::Filter::kBicubic))));
  set.write("c.csv", "image,prompt,region,first\na.png,x,b.png,none.png\n");
  REQUIRE(set.problems(inputs).size() == 1);
  CHECK_THAT(set.problems(inputs).front(), Contains("c.csv:2 [first]") && Contains("none.png"));
}

TEST_CASE("Inputs of another variant are not required, and refused where they are named",
          "[data]") {
  TestSet set;
  set.write("a.csv", "image,prompt\na.png,x\n");
  std::vector<InputSpec> inputs = kInputs;
  inputs.push_back(
      {.name = "pose", .kind = InputKind::kImage, .required = true, .variants = "pose*"});
  CHECK(set.good(inputs).items().size() == 1);
  report::Problems problems;
  Dataset::open(set.options(), inputs, LatentSpec{}, problems, {}, "pose-2");
  test::expect_error(ErrorCode::kInvalidArgument, {"a.csv [pose]: there is no such column"},
                     [&] { problems.throw_if_any(); });
  set.options().extra_inputs = {"pose"};
  REQUIRE(set.problems(inputs).size() == 1);
  CHECK_THAT(set.problems(inputs).front(),
             Contains("input \"pose\": only the variant \"pose*\" takes it"));
  report::Problems of_any;  // a variant that is not known may be one that takes it
  Dataset::open(set.options(), inputs, LatentSpec{}, of_any, {}, std::nullopt);
  test::expect_error(ErrorCode::kInvalidArgument, {"a.csv [pose]: there is no such column"},
                     [&] { of_any.throw_if_any(); });
}

TEST_CASE("A column that is of another variant is not offered to be trained with", "[data]") {
  TestSet set;
  set.write("a.csv", "image,prompt,pose\na.png,x,b.png\n");
  std::vector<InputSpec> inputs = kInputs;
  inputs.push_back({.name = "pose", .kind = InputKind::kImage, .variants = "pose*"});
  report::Problems problems;
  const auto open = [&] {
    return Dataset::open(set.options(), inputs, LatentSpec{}, problems, {}, "plain");
  };
  std::vector<std::string> warnings = open().warnings();
  problems.throw_if_any();
  REQUIRE(warnings.size() == 1);
  CHECK_THAT(warnings[0], Contains("a.csv [pose]: the column is not used; the variant \"plain\" "
                                   "does not take it"));
  set.options().extra_inputs = {"pose"};
  CHECK(open().warnings().empty());
  test::expect_error(ErrorCode::kInvalidArgument,
                     {"input \"pose\": the variant \"plain\" does not take it", "\"pose*\"",
                      "--model_hints says which"},
                     [&] { problems.throw_if_any(); });
}

TEST_CASE("Lists of a row that belong together are equally long", "[data]") {
  TestSet set;
  const std::vector<InputSpec> inputs = {
      {.name = "image", .kind = InputKind::kImage, .required = true, .role = InputRole::kTarget},
      {.name = "texts", .kind = InputKind::kText, .required = true, .max_count = 3},
      {.name = "scales",
       .kind = InputKind::kReal,
       .required = true,
       .max_count = 3,
       .paired_with = "texts"}};
  set.write("a.csv", "image,texts,scales\na.png,\"[\"\"x\"\", \"\"y\"\"]\",\"1,2\"\n");
  const Dataset dataset = set.open(inputs);
  REQUIRE(dataset.items().size() == 1);
  CHECK(std::get<std::vector<double>>(dataset.values(0).at("scales")) ==
        std::vector<double>{1.0, 2.0});
  set.write("a.csv", "image,texts,scales\na.png,x,\"1,2\"\na.png,x,wide\n");
  const auto problems = set.problems(inputs);
  REQUIRE(problems.size() == 2);
  CHECK_THAT(problems[0], Contains("a.csv:2 [scales]: 2 numbers are given, and 1 of texts"));
  CHECK_THAT(problems[1], Contains("a.csv:3 [scales]: \"wide\" is no number"));
  const std::vector<InputSpec> without = {inputs[0], inputs[2]};
  CHECK_THAT(set.problems(without).front(),
             Contains("--extra_inputs: \"scales\" needs texts beside it; name both"));
}

TEST_CASE("What is odd and no mistake is a warning", "[data]") {
  TestSet set;
  std::filesystem::copy_file(set.folder() / "a.png", set.folder() / "copy.png");
  write_bytes(set.folder() / "a.txt", "x");
  set.write("a.csv", "image,prompt\na.png,x\n./a.png,x\na.png,z\ncopy.png,w\nb.png,\"  \"\n");
  set.options().height = set.options().width = 192;
  set.options().alpha_mask = true;
  const Dataset dataset = set.good();
  CHECK(dataset.items().size() == 5);
  const std::vector<std::string>& warnings = dataset.warnings();
  const auto count = [&](const std::string& part) {
    return std::count_if(warnings.begin(), warnings.end(), [&](const std::string& warning) {
      return warning.find(part) != std::string::npos;
    });
  };
  INFO(Catch::StringMaker<std::vector<std::string>>::convert(warnings));
  CHECK(count("a.csv:3 [image]: the same image as in") == 1);
  CHECK(count("with the same values") == 1);
  CHECK(count("a.csv:4 [image]: the same image as in") == 1);
  CHECK(count("a.csv:5 [image]: the same content as in") == 1);
  CHECK(count("a.csv:6 [prompt]: the text is empty") == 1);
  CHECK(count("64x48 is enlarged to 192x192") == 4);
  CHECK(count("--alpha_mask: no image has transparency") == 1);
}

TEST_CASE("A fingerprint changes with rows, files and sizes only", "[data]") {
  TestSet set;
  set.write("a.csv", "image,prompt\na.png,x\nb.png,y\n");
  const std::string first = set.good().fingerprint();
  CHECK(first.size() == 32);
  CHECK(set.good().fingerprint() == first);
  set.write("c.jsonl",
            "{\"image\": \"a.png\", \"prompt\": \"x\"}\n\n{\"prompt\": \"y\", \"image\": "
            "\"b.png\"}");
  CHECK(set.good().fingerprint() == first);
  set.write("a.csv", "image,prompt\na.png,x\nb.png,z\n");
  const std::string other_text = set.good().fingerprint();
  CHECK(other_text != first);
  set.options().max_pixels = 1024;
  const std::string other_size = set.good().fingerprint();
  CHECK(other_size != other_text);
  write_image(set.folder() / "b.png", 48, 64, 9);
  CHECK(set.good().fingerprint() != other_size);
}

TEST_CASE("Copies of a dataset have one fingerprint", "[data]") {
  TestSet set;
  set.write("a.csv", "image,prompt\na.png,x\nb.png,y\n");
  const std::string first = set.good().fingerprint();
  for (const auto& file : std::filesystem::directory_iterator(set.folder().path()))
    std::filesystem::last_write_time(
        file, std::filesystem::file_time_type::clock::now() - std::chrono::hours(1));
  CHECK(set.good().fingerprint() == first);
}

TEST_CASE("Bucket populations are listed by count", "[data]") {
  TestSet set;
  write_image(set.folder() / "c.png", 400, 130, 3);
  write_image(set.folder() / "d.png", 800, 260, 4);
  set.write("a.csv", "image,prompt\na.png,x\nc.png,y\nd.png,z\n");
  set.options().enable_bucket = true;
  set.options().max_pixels = 65'536;
  set.options().min_bucket_reso = 64;
  set.options().max_bucket_reso = 512;
  const std::vector<BucketCount> buckets = set.good().buckets();
  REQUIRE(buckets.size() == 2);
  CHECK(buckets[0].target.height == 128);
  CHECK(buckets[0].target.width == 384);
  CHECK(buckets[0].items == 2);
  CHECK(buckets[1].items == 1);

  set.options().bucket_no_upscale = true;
  const Dataset small = set.open();
  CHECK(small.items().size() == 2);  // 64x48 is below one step
  CHECK(small.items()[0].target.height == 128);
  CHECK(small.items()[0].target.width == 384);
}

TEST_CASE("A file that has gone is told with its row", "[data]") {
  TestSet set;
  set.write("a.csv", "image,prompt\na.png,x\n");
  const Dataset dataset = set.good();
  std::filesystem::remove(set.folder() / "a.png");
  test::expect_error(ErrorCode::kNotFound, {"a.csv:2: ", "a.png"}, [&] { dataset.load(0); });

  set.options().extra_inputs = {"edit_image"};
  set.options().data_file_keys.emplace_back("edit_image");
  write_image(set.folder() / "a.png", 64, 48);
  set.write("b.csv", "image,prompt,edit_image\na.png,x,b.png\n");
  const Dataset edited = set.good();
  CHECK(edited.shapes(0).contains("edit_image"));
  std::filesystem::remove(set.folder() / "b.png");
  test::expect_error(ErrorCode::kNotFound, {"b.csv:2: ", "b.png"}, [&] { edited.shapes(0); });
}

TEST_CASE("A folder with captions is a dataset", "[data]") {
  TestSet set;
  write_bytes(set.folder() / "a.txt", "one");
  write_bytes(set.folder() / "b.txt", "two");
  write_image(set.folder() / "b-masklabel.png", 48, 64);
  write_bytes(set.folder() / "c.jpg", "no image");
  write_bytes(set.folder() / "c.txt", "three");
  set.options().mask_column = "other";
  const Dataset dataset = set.open();
  REQUIRE(dataset.items().size() == 2);
  CHECK(dataset.load(1).mask.defined());
  REQUIRE(set.problems().size() == 1);
  CHECK_THAT(set.problems().front(), Contains("c.jpg [image]: not a PNG, JPEG, WebP, GIF"));
}

TEST_CASE("What has no caption is checked beside the others", "[data]") {
  TestSet set;
  write_bytes(set.folder() / "a.txt", "one");
  write_bytes(set.folder() / "b.txt", "two");
  write_bytes(set.folder() / "c.jpg", "no image");
  const std::vector<std::string> problems = set.problems();
  REQUIRE(problems.size() == 2);
  CHECK_THAT(problems[0], Contains("c.jpg [prompt]: no caption in"));
  CHECK_THAT(problems[1], Contains("c.jpg [image]: not a PNG, JPEG, WebP, GIF"));
}

TEST_CASE("A key of files that names a text or a number is refused", "[data]") {
  TestSet set;
  set.write("a.csv", "image,prompt\na.png,x\n");
  for (const char* key : {"prompt", "negative_prompt", "steps"}) {
    set.options().data_file_keys = {"image", key};
    REQUIRE(set.problems().size() == 1);
    CHECK_THAT(set.problems().front(), Contains("--data_file_keys: \"" + std::string(key) + "\"") &&
                                           Contains("no path of a file; leave it out"));
  }
  set.options().data_file_keys = {"image", "edit_image", "other"};
  set.good();
}

TEST_CASE("Paths that no file can have are the row's mistake", "[data]") {
  TestSet set;
  set.write("a.csv", "image,prompt\n" + std::string(5000, 'a') + ".png,x\n" +
                         std::string(300, 'b') + ".png,y\n");
  const std::vector<std::string> problems = set.problems();
  REQUIRE(problems.size() == 2);
  CHECK_THAT(problems[0], Contains("a.csv:2 [image]: \"aaa") && Contains("is too long for a path"));
  CHECK(problems[0].size() < 200);
  CHECK_THAT(problems[1], Contains("a.csv:3 [image]") && Contains("File name too long"));
  report::Problems found;
  Dataset::open(set.options(), kInputs, LatentSpec{}, found);
  test::expect_error(ErrorCode::kInvalidArgument, {"a.csv:3"}, [&] { found.throw_if_any(); });
}

TEST_CASE("Rows are checked for what only others know, beside what is wrong with their files",
          "[data]") {
  TestSet set;
  set.options().extra_inputs = {"steps"};
  set.options().max_errors = 4;
  set.write("a.csv",
            "image,prompt,steps\na.png,long,1\nnone.png,long,2\nb.png,x,3\na.png,,4\nb.png,long,5\n"
            "b.png,long,6\n");
  const RowCheck check = [](const Item& row, const Inputs& inputs) {
    if (inputs.size() != 2) throw Error(ErrorCode::kInternal, "images are not among them");
    std::vector<RowProblem> problems;
    if (std::get<std::string>(inputs.at("prompt")) == "long")
      problems.push_back(
          {"long texts", Error(ErrorCode::kInvalidArgument,
                               row.place + " [prompt]: of step " +
                                   std::to_string(std::get<int64_t>(inputs.at("steps"))))});
    return problems;
  };
  report::Problems problems;
  const Dataset dataset = Dataset::open(set.options(), kInputs, LatentSpec{}, problems, check);
  CHECK(dataset.items().size() == 1);
  test::expect_error(
      ErrorCode::kInvalidArgument,
      {"a.csv:2 [prompt]: of step 1", "a.csv:3 [prompt]: of step 2", "a.csv:3 [image]",
       "a.csv:5 [prompt]: nothing is given", "2 more (long texts: 2)"},
      [&] { problems.throw_if_any(); });
}

TEST_CASE("Problems beyond max_errors are counted", "[data]") {
  TestSet set;
  std::string rows = "image,prompt\n";
  for (int i = 0; i < 20; ++i) rows += "none" + std::to_string(i) + ".png,x\n";
  set.write("a.csv", rows + "a.png,\n");
  set.options().max_errors = 3;
  const std::vector<std::string> problems = set.problems();
  REQUIRE(problems.size() == 4);
  CHECK_THAT(problems[0], Contains("a.csv:2 [image]") && Contains("No such file"));
  CHECK_THAT(problems[2], Contains("a.csv:4 [image]"));
  CHECK_THAT(problems[3], Contains("18 more (missing files: 17, missing values: 1)"));
}

// Images a, b and sub/c with captions, and a folder for others that are called alike.
class ControlSet : public TestSet {
 public:
  ControlSet() {
    write_image(folder() / "sub/c.png", 48, 48, 3);
    for (const char* name : {"a", "b", "sub/c"})
      write_bytes(folder() / (std::string(name) + ".txt"), "a cat");
    options().control_path = folder() / "controls";
  }

  void write_controls(const std::vector<std::string>& names) {
    for (const std::string& name : names)
      write_image(options().control_path + "/" + name, 32, 32, 9);
  }

  // Paths below the folder of controls, of the rows a, b and sub/c.
  std::vector<std::vector<std::string>> controls(const Dataset& dataset) {
    std::vector<std::vector<std::string>> found;
    for (const Item& item : dataset.items()) {
      found.emplace_back();
      for (const std::string& path : item.files.at("edit_image"))
        found.back().push_back(
            std::filesystem::path(path).lexically_relative(options().control_path).string());
    }
    return found;
  }
};

TEST_CASE("Files of another folder belong to images that are called alike", "[data][control]") {
  ControlSet set;
  // The folder may lie among the images, and its files are no rows then.
  set.write_controls({"a.png", "b_0010.png", "b_2.png", "b.webp.png", "sub/c_0.png", "sub/c.png"});
  write_bytes(set.folder() / "controls/notes.txt", "no image");
  const Dataset dataset = set.good();
  using Names = std::vector<std::string>;
  CHECK(set.controls(dataset) ==
        std::vector<Names>{{"a.png"}, {"b_2.png", "b_0010.png"}, {"sub/c.png", "sub/c_0.png"}});
  REQUIRE(dataset.warnings().size() == 1);
  CHECK_THAT(dataset.warnings()[0],
             Contains("--control_path: ") && Contains("called as no row is: \"b.webp.png\""));
  CHECK(std::get<std::vector<at::Tensor>>(dataset.load(1).inputs.at("edit_image")).size() == 2);
}

TEST_CASE("A file that is called as one image is whole is of no other", "[data][control]") {
  ControlSet set;
  write_image(set.folder() / "a_1.png", 48, 48, 3);
  write_bytes(set.folder() / "a_1.txt", "a dog");
  set.write_controls({"a_0.png", "a_1.png", "a_1_0.png", "b.png", "sub/c.png"});
  using Names = std::vector<std::string>;
  CHECK(set.controls(set.good()) ==
        std::vector<Names>{{"a_0.png"}, {"a_1.png", "a_1_0.png"}, {"b.png"}, {"sub/c.png"}});
}

TEST_CASE("Rows of a table get files of another folder, but for those that name theirs",
          "[data][control]") {
  ControlSet set;
  set.write_controls({"b.png", "sub/c.png"});
  set.write("a.csv", "image,prompt,edit_image\n" + (set.folder() / "b.png") +
                         ",one,\na.png,two,b.png\n./sub/c.png,three,\n");
  const Dataset dataset = set.good();
  REQUIRE(dataset.items().size() == 3);
  CHECK(dataset.items()[0].files.at("edit_image").front() == set.options().control_path + "/b.png");
  CHECK(dataset.items()[1].files.at("edit_image").front() == set.folder() / "b.png");
  CHECK(dataset.items()[2].files.at("edit_image").front() ==
        set.options().control_path + "/sub/c.png");
}

TEST_CASE("Copies of a dataset and its control files are equal", "[data][control]") {
  std::set<std::string> fingerprints;
  for (int i = 0; i < 2; ++i) {
    ControlSet set;
    set.write_controls({"a.png", "b.png", "sub/c.png"});
    fingerprints.insert(set.good().fingerprint());
  }
  CHECK(fingerprints.size() == 1);
}

TEST_CASE("Rows without control files are told at once", "[data][control]") {
  ControlSet set;
  const std::string folder = set.options().control_path;
  CHECK(set.problems() ==
        std::vector<std::string>{"--control_path: " + folder +
                                 ": No such file or directory; check the folder [FILE_OPEN]"});
  set.write_controls({"a_x.png", "sub/c.png", "sub/c.jpg", "c.png"});
  const std::vector<std::string>& told = set.problems();
  REQUIRE(told.size() == 2);
  CHECK_THAT(told[0], Contains("--control_path: " + folder + " holds nothing for 2 of 3 rows: ") &&
                          Contains("a.png") && Contains("b.png") && Contains("with _0, _1"));
  CHECK_THAT(told[1], Contains("holds files of one place for 1 of 3 rows: ") && Contains("c.png") &&
                          Contains("keep one of those"));
  std::filesystem::remove_all(folder);
  set.options().control_path = set.folder().path() + "/.";
  CHECK_THAT(set.problems().at(0), Contains("is the folder of the images to learn"));
  set.options().control_path = "";
  set.options().extra_inputs = {"edit_image"};
  CHECK_THAT(set.problems().at(0), Contains("name their folder with --control_path FOLDER"));
  set.options().control_flag = "--validation_control_path";
  CHECK_THAT(set.problems().at(0), Contains("with --validation_control_path FOLDER"));
  set.options().control_path = folder;
  CHECK_THAT(set.problems().at(0), Contains("--validation_control_path: " + folder + ": No such"));
}

TEST_CASE("The input that takes control files is named or the only one", "[data][control]") {
  std::vector<InputSpec> inputs = kInputs;
  CHECK(control_input(inputs, {}, "").name == "edit_image");
  inputs.push_back({.name = "end_image", .kind = InputKind::kImage});
  inputs.push_back({.name = "start", .kind = InputKind::kImage, .use = InputUse::kGenerate});
  inputs.push_back({.name = "where", .kind = InputKind::kMask});
  CHECK(control_input(inputs, {"steps", "end_image"}, "").name == "end_image");
  test::expect_error(ErrorCode::kInvalidArgument,
                     {"\"edit_image\", \"end_image\"", "--extra_inputs"},
                     [&] { control_input(inputs, {"steps"}, ""); });
  test::expect_error(ErrorCode::kInvalidArgument, {"name one of them"}, [&] {
    control_input(inputs, {"edit_image", "end_image"}, "");
  });
  inputs[5].variants = "ends";
  inputs[5].required = true;
  CHECK(control_input(inputs, {}, "ends").name == "end_image");
  CHECK(control_input(inputs, {}, "plain").name == "edit_image");
  CHECK(control_input(inputs, {}, "").name == "end_image");  // the variant will tell
  inputs.resize(3);
  test::expect_error(ErrorCode::kUnsupported, {"no images beside the ones to learn"},
                     [&] { control_input(inputs, {}, ""); });
  ControlSet set;
  set.write_controls({"a.png"});
  CHECK_THAT(set.problems(inputs).at(0), Contains("--control_path: this model is trained with"));
}

}  // namespace
}  // namespace atelier::data
