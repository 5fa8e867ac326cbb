#include "host/samples/samples.h"

#include <atomic>
#include <sys/stat.h>

#include "host/data/parallel.h"
#include "host/model/fingerprint.h"
#include "host/plugins/guarded_family.h"
#include "host/samples/encoding_store.h"
#include "host/samples/source_files.h"
#include "support/models.h"
#include "tests/host/train/image_toy.h"

using namespace atelier;
using namespace atelier::samples;
using model::LoadedModel;
using test::expect_error;
using test::Folder;
using test::fs::exists;

namespace {

bool never() {
  return false;
}

// A dataset, a model and a cache in one folder.
struct SamplesWorkshop {
  Folder folder;
  data::DatasetOptions options;
  std::unique_ptr<const ModelFamily> plugin;
  std::unique_ptr<LoadedModel> model;
  progress::Progress progress{progress::Options{.quiet = true}};

  SamplesWorkshop() {
    test::write_toy_model(folder / "model");
    model = test::open_toy_model(folder / "model");
    test::write_toy_image(folder / "data/a.png", 16, 16, 1);
    test::write_toy_image(folder / "data/b.png", 24, 16, 2);
    test::write_toy_image(folder / "data/c.png", 16, 16, 3);
    options.dataset_base_path = folder / "data";
    options.dataset_metadata_path = folder / "data/metadata.csv";
    write_rows("image,prompt\na.png,red\nb.png,green\nc.png,blue\n");
  }
  // From here on the toy is that of a plugin of this version.
  void upgrade(const std::string& version) {
    model.reset();
    plugin = plugins::guarded(test::image_toy(), "toy.so", version);
    model = LoadedModel::open(*plugin, {.model_paths = folder / "model", .device = "cpu"});
  }
  void write_rows(const std::string& csv) { test::write_bytes(folder / "data/metadata.csv", csv); }
  std::string cache() const { return folder / "cache"; }

  Samples open(CachedStages cached = {{"text", true}, {"latents", true}},
               bool with_empty_caption = false) const {
    return Samples::of_dataset(test::open_toy_dataset(options), *model, cached, cache(),
                               with_empty_caption);
  }
  Samples filled(int workers = 0) {
    Samples samples = open();
    REQUIRE(samples.fill(*model, workers, progress, never));
    return samples;
  }
  Samples from_cache(bool with_empty_caption = false) const {
    return Samples::of_cache(cache(), *model, with_empty_caption);
  }

  // Every file of the cache with its bytes.
  std::map<std::string, std::string> bytes() const {
    std::map<std::string, std::string> files;
    for (const auto& entry : test::fs::recursive_directory_iterator(cache())) {
      if (!entry.is_regular_file()) continue;
      files[test::fs::relative(entry.path(), cache()).string()] =
          test::read_bytes(entry.path().string());
    }
    return files;
  }
  std::vector<std::string> entries(const std::string& kind) const {
    std::vector<std::string> paths;
    for (const auto& entry : test::fs::directory_iterator(cache() + "/" + kind))
      paths.push_back(entry.path().string());
    return paths;
  }
  // A file that is written anew has another inode.
  std::map<std::string, ino_t> inodes() const {
    std::map<std::string, ino_t> found;
    for (const char* kind : {"text", "latents"}) {
      for (const std::string& path : entries(kind)) {
        struct stat status {};
        REQUIRE(stat(path.c_str(), &status) == 0);
        found[path] = status.st_ino;
      }
    }
    return found;
  }
};

// Files of `now` that are not in `before` or were written anew.
size_t count_new(const std::map<std::string, ino_t>& before,
                 const std::map<std::string, ino_t>& now) {
  size_t count = 0;
  for (const auto& [path, inode] : now) {
    const auto found = before.find(path);
    if (found == before.end() || found->second != inode) ++count;
  }
  return count;
}

Samples::Count count_of(const Samples& samples, const std::string& what) {
  for (const Samples::Count& count : samples.counts()) {
    if (count.what == what) return count;
  }
  FAIL("no such stage: " + what);
  return {};
}

at::Tensor prompt_embeds(SamplesWorkshop& shop, const std::string& prompt) {
  DirectRunner runner;
  shop.model->load_component("text_encoder");
  return shop.model->model()
      .encode(test::prompt_inputs(prompt), runner)
      .at("prompt_embeds")
      .detach()
      .clone();
}

void overwrite(const std::string& path, size_t at, char byte) {
  std::string bytes = test::read_bytes(path);
  REQUIRE(at < bytes.size());
  bytes[at] = byte;
  test::write_bytes(path, bytes);
}

}  // namespace

TEST_CASE("Samples come from the cache as the encoders give them", "[samples]") {
  SamplesWorkshop shop;
  shop.write_rows("image,prompt,seed,note\na.png,red,7,x\nb.png,green,8,\n");
  const Samples samples = shop.filled();
  CHECK(samples.size() == 2);
  CHECK(samples.missing() == 0);
  CHECK_FALSE(shop.model->is_loaded("text_encoder"));
  CHECK_FALSE(shop.model->is_loaded("vae"));
  const TrainSample sample = samples.load(1, false);
  CHECK(sample.place.find("metadata.csv:3") != std::string::npos);
  CHECK(sample.values.at("seed") == "8");
  CHECK(sample.values.at("prompt") == "green");
  CHECK(sample.inputs.empty());
  CHECK_FALSE(sample.mask.defined());
  CHECK(at::equal(sample.cond.at("prompt_embeds"), prompt_embeds(shop, "green")));

  shop.model->load_component("vae");
  DirectRunner runner;
  const auto dataset = test::open_toy_dataset(shop.options);
  const at::Tensor pixels = std::get<at::Tensor>(dataset->load(1).inputs.at("image"));
  const at::Tensor latents = sample.cond.at("latents");
  CHECK(latents.sizes() == at::IntArrayRef({48, 1, 4, 6}));
  CHECK(at::equal(latents, test::encode_latents(shop.model->model(), pixels, runner)));
}

TEST_CASE("A cache alone gives the samples of its dataset", "[samples]") {
  SamplesWorkshop shop;
  shop.write_rows("image,prompt,seed\na.png,red,7\nb.png,green,8\n");
  const Samples samples = shop.filled(), again = shop.from_cache();
  CHECK(again.fingerprint() == samples.fingerprint());
  CHECK(again.size() == samples.size());
  CHECK(again.shapes() == samples.shapes());
  CHECK(again.missing() == 0);
  for (size_t i = 0; i < again.size(); ++i) {
    const TrainSample one = samples.load(i, false), other = again.load(i, false);
    CHECK(one.place == other.place);
    CHECK(one.values == other.values);
    CHECK(at::equal(one.cond.at("latents"), other.cond.at("latents")));
    CHECK(at::equal(one.cond.at("prompt_embeds"), other.cond.at("prompt_embeds")));
  }

  // Neither encoders nor images are needed for it.
  test::fs::remove(shop.folder / "data/a.png");
  const auto denoiser = test::open_toy_model(shop.folder / "model/transformer", {"dit"});
  const Samples alone = Samples::of_cache(shop.cache(), *denoiser, false);
  CHECK(at::equal(alone.load(0, false).cond.at("latents"),
                  samples.load(0, false).cond.at("latents")));
}

TEST_CASE("A dataset finds its cache without the encoders that made it", "[samples]") {
  SamplesWorkshop shop;
  const std::string fingerprint = shop.filled().fingerprint();
  shop.model = test::open_toy_model(shop.folder / "model/transformer", {"dit"});
  const Samples samples = shop.open();
  CHECK(samples.missing() == 0);
  CHECK(samples.fingerprint() == fingerprint);
  test::fs::remove_all(shop.cache());
  expect_error(ErrorCode::kNotFound, {"text_encoder is missing", "--model_paths"},
               [&] { shop.open(); });
}

TEST_CASE("Equal texts and images of several rows are encoded once", "[samples]") {
  SamplesWorkshop shop;
  test::fs::copy_file(shop.folder / "data/a.png", shop.folder / "data/copy.png");
  shop.write_rows("image,prompt\na.png,red\ncopy.png,green\na.png,green\nb.png,red\n");
  const Samples samples = shop.filled();
  CHECK(count_of(samples, "texts").entries == 2);
  CHECK(count_of(samples, "images").entries == 2);
  CHECK(shop.entries("text").size() == 2);
  CHECK(shop.entries("latents").size() == 2);
  CHECK(at::equal(samples.load(0, false).cond.at("latents"),
                  samples.load(1, false).cond.at("latents")));
  CHECK(at::equal(samples.load(1, false).cond.at("prompt_embeds"), prompt_embeds(shop, "green")));
}

TEST_CASE("Samples of one size have one shape number", "[samples]") {
  SamplesWorkshop shop;
  const Samples samples = shop.open();
  const std::vector<int64_t> shapes = samples.shapes();
  REQUIRE(shapes.size() == 3);
  CHECK(shapes[0] == shapes[2]);
  CHECK(shapes[0] != shapes[1]);
}

// The toy's tokens have 8 pixels on a side, and texts one for each letter.
TEST_CASE("Tokens are those of latents, texts and pictures that are given", "[samples]") {
  SamplesWorkshop shop;
  const std::vector<int64_t> latents = {4, 6, 4};
  CHECK(shop.open().tokens() == latents);  // nothing is encoded yet
  const Samples samples = shop.filled();
  std::vector<int64_t> with_texts = latents;
  for (size_t i = 0; i < latents.size(); ++i)
    with_texts[i] += samples.load(i, false).cond.at("prompt_embeds").size(0);
  CHECK(with_texts[0] != with_texts[2]);
  CHECK(samples.tokens() == with_texts);
  CHECK(shop.open().tokens() == with_texts);
  CHECK(shop.from_cache().tokens() == with_texts);

  // A picture of 24x16 pixels, as an encoder gives it.
  const std::string path = shop.entries("text").front();
  const EncodingStore store(shop.cache());
  const std::string key = test::fs::path(path).stem();
  NamedTensors entry = store.read("text", key);
  entry["picture"] = at::zeros({test::kToyChannels, 1, 6, 4});
  store.write("text", key, entry);
  int64_t more = 0;
  for (size_t i = 0; i < latents.size(); ++i) more += shop.open().tokens()[i] - with_texts[i];
  CHECK(more == 6);
}

TEST_CASE("Entries that have changed their names are not taken for each other", "[samples]") {
  SamplesWorkshop shop;
  shop.filled();
  const std::vector<std::string> entries = shop.entries("text");
  REQUIRE(entries.size() >= 2);
  const std::string aside = entries[0] + ".aside";
  test::fs::rename(entries[0], aside);
  test::fs::rename(entries[1], entries[0]);
  test::fs::rename(aside, entries[1]);
  CHECK(shop.open().missing() == 2);
  const EncodingStore store(shop.cache());
  expect_error(ErrorCode::kDataLoss, {"under another name", "delete it and run", "[CACHE_ENTRY]"},
               [&] { store.read("text", test::fs::path(entries[0]).stem().string()); });
}

TEST_CASE("Processes that share a fill encode each entry once, to the same bytes", "[samples]") {
  SamplesWorkshop shop;
  Samples first = shop.open(), second = shop.open();
  CHECK(first.fill(*shop.model, 0, shop.progress, never, {.rank = 0, .size = 2}));
  CHECK(shop.open().missing() == 2);  // a text and an image
  const auto before = shop.inodes();
  expect_error(ErrorCode::kInvalidArgument, {"manifest.json", "interrupted"},
               [&] { shop.from_cache(); });
  CHECK(second.fill(*shop.model, 0, shop.progress, never, {.rank = 1, .size = 2}));
  CHECK(count_new(before, shop.inodes()) == 2);
  Samples rest = shop.open();
  CHECK(rest.missing() == 0);
  CHECK(rest.fill(*shop.model, 0, shop.progress, never));
  const auto shared = shop.bytes();
  test::fs::remove_all(shop.cache());
  shop.filled();
  CHECK(shared == shop.bytes());
}

TEST_CASE("A fill that is stopped goes on with what is left", "[samples]") {
  SamplesWorkshop whole;
  whole.filled();
  SamplesWorkshop shop;
  const int stop_at = GENERATE(0, 1, 3, 4, 7);
  Samples samples = shop.open();
  int asked = 0;
  CHECK_FALSE(samples.fill(*shop.model, 2, shop.progress, [&] { return asked++ == stop_at; }));
  CHECK(samples.missing() > 0);
  CHECK_FALSE(shop.model->is_loaded("text_encoder"));
  CHECK_FALSE(shop.model->is_loaded("vae"));
  expect_error(ErrorCode::kInvalidArgument, {"manifest.json", "interrupted", "sft:data_process"},
               [&] { shop.from_cache(); });

  test::fs::create_directories(shop.cache() + "/text");
  test::fs::create_directories(shop.cache() + "/latents");
  const auto before = shop.inodes();
  Samples rest = shop.open();
  CHECK(rest.missing() == samples.missing());
  CHECK(before.size() + static_cast<size_t>(rest.missing()) == 6);
  CHECK(rest.fill(*shop.model, 2, shop.progress, never));
  CHECK(count_new(before, shop.inodes()) == 6 - before.size());
  CHECK(shop.from_cache().size() == 3);
  // The manifests differ in the folders of the two datasets.
  auto bytes = shop.bytes(), expected = whole.bytes();
  bytes.erase("manifest.json");
  expected.erase("manifest.json");
  CHECK(bytes == expected);
}

TEST_CASE("A changed row is encoded anew, and nothing else is", "[samples]") {
  SamplesWorkshop shop;
  const std::string fingerprint = shop.filled().fingerprint();
  const auto before = shop.inodes();

  SECTION("a caption") {
    shop.write_rows("image,prompt\na.png,red\nb.png,violet\nc.png,blue\n");
    Samples samples = shop.open();
    CHECK(count_of(samples, "texts").missing == 1);
    CHECK(count_of(samples, "images").missing == 0);
    CHECK(samples.fingerprint() != fingerprint);
    CHECK(samples.fill(*shop.model, 0, shop.progress, never));
    CHECK(count_new(before, shop.inodes()) == 1);
    CHECK(
        at::equal(samples.load(1, false).cond.at("prompt_embeds"), prompt_embeds(shop, "violet")));
  }
  SECTION("an image") {
    test::write_toy_image(shop.folder / "data/c.png", 16, 16, 4);
    Samples samples = shop.open();
    CHECK(count_of(samples, "texts").missing == 0);
    CHECK(count_of(samples, "images").missing == 1);
    CHECK(samples.fingerprint() != fingerprint);
    CHECK(samples.fill(*shop.model, 0, shop.progress, never));
    CHECK(count_new(before, shop.inodes()) == 1);
  }
  SECTION("the size of all images") {
    shop.options.height = 8;
    shop.options.width = 8;
    CHECK(count_of(shop.open(), "images").missing == 3);
    CHECK(count_of(shop.open(), "texts").missing == 0);
  }
  SECTION("the order of the rows, which is no change") {
    shop.write_rows("image,prompt\nc.png,blue\na.png,red\nb.png,green\n");
    CHECK(shop.open().missing() == 0);
    CHECK(shop.open().fingerprint() != fingerprint);
  }
  SECTION("an encoder") {
    test::write_toy_component(shop.folder / "model/vae/model.safetensors", "vae", 30);
    shop.model = test::open_toy_model(shop.folder / "model");
    CHECK(count_of(shop.open(), "images").missing == 3);
    CHECK(count_of(shop.open(), "texts").missing == 0);
  }
  SECTION("the version of the plugin, but for the one that says nothing") {
    shop.upgrade("0.1.0");
    CHECK(shop.open().missing() == 0);
    CHECK(shop.open().fingerprint() == fingerprint);
    shop.upgrade("0.2.0");
    CHECK(shop.open().missing() == 6);
    CHECK(shop.filled().fingerprint() != fingerprint);
    CHECK(shop.open().missing() == 0);
    CHECK(shop.from_cache().fingerprint() == shop.open().fingerprint());
  }
  SECTION("the dtype") {
    shop.model = test::open_toy_model(shop.folder / "model", {}, "bfloat16");
    CHECK(shop.open().missing() == 6);
  }
}

TEST_CASE("What is complete is not written again", "[samples]") {
  SamplesWorkshop shop;
  shop.filled();
  const auto written = test::fs::last_write_time(shop.cache() + "/manifest.json");
  const auto before = shop.inodes();
  shop.filled();
  CHECK(count_new(before, shop.inodes()) == 0);
  CHECK(test::fs::last_write_time(shop.cache() + "/manifest.json") == written);
}

TEST_CASE("Files of unchanged size and time are not read again", "[samples]") {
  SamplesWorkshop shop;
  shop.filled();
  const std::string image = shop.folder / "data/a.png";
  const auto written = test::fs::last_write_time(image);
  std::string bytes = test::read_bytes(image);
  bytes[bytes.size() - 20] ^= 1;
  test::write_bytes(image, bytes);
  CHECK(shop.open().missing() == 1);
  test::fs::last_write_time(image, written);
  CHECK(shop.open().missing() == 0);
}

TEST_CASE("A manifest that cannot be read is told, not written over", "[samples]") {
  SamplesWorkshop shop;
  test::fs::create_directories(shop.cache() + "/manifest.json");
  expect_error(ErrorCode::kInvalidArgument, {"manifest.json", "no regular file"},
               [&] { shop.open(); });
}

TEST_CASE("A stale cache is refused with what differs", "[samples]") {
  SamplesWorkshop shop;
  expect_error(ErrorCode::kNotFound, {"manifest.json", "no cache", "sft:data_process"},
               [&] { shop.from_cache(); });
  shop.filled();
  const std::string model = shop.folder / "model";

  SECTION("images that have changed") {
    test::write_toy_image(shop.folder / "data/b.png", 24, 16, 5);
    expect_error(ErrorCode::kInvalidArgument,
                 {"manifest.json: the cache is stale", "b.png of", "metadata.csv:3", "has changed",
                  "sft:data_process", "CACHE_STALE"},
                 [&] { shop.from_cache(); });
  }
  SECTION("an image that was only touched is the same") {
    test::fs::last_write_time(shop.folder / "data/b.png", test::fs::file_time_type::clock::now());
    CHECK(shop.from_cache().size() == 3);
  }
  SECTION("another encoder") {
    test::write_toy_component(model + "/text_encoder/model.safetensors", "text_encoder", 20);
    shop.model = test::open_toy_model(model);
    expect_error(ErrorCode::kInvalidArgument, {"it was made by another text_encoder"},
                 [&] { shop.from_cache(); });
  }
  SECTION("another tokenizer and dtype") {
    test::write_bytes(model + "/tokenizer/tokenizer.json", "{ }");
    shop.model = test::open_toy_model(model, {}, "float16");
    expect_error(ErrorCode::kInvalidArgument,
                 {"another tokenizer", "vae was float32 and is float16 now", "--dtype"},
                 [&] { shop.from_cache(); });
  }
  SECTION("another family") {
    std::string text = test::read_bytes(shop.cache() + "/manifest.json");
    const size_t at = text.find("\"family\": \"toy\"");
    REQUIRE(at != std::string::npos);
    test::write_bytes(shop.cache() + "/manifest.json", text.replace(at, 15, "\"family\": \"toi\""));
    expect_error(ErrorCode::kInvalidArgument, {"it was made for toi"}, [&] { shop.from_cache(); });
  }
  SECTION("another version of the plugin") {
    shop.upgrade("0.2.0");
    expect_error(ErrorCode::kInvalidArgument,
                 {"it was made by version 0.1.0 of the plugin of toy, and this is 0.2.0",
                  "sft:data_process"},
                 [&] { shop.from_cache(); });
  }
  SECTION("captions that may be left out, and no encoding for that") {
    expect_error(ErrorCode::kInvalidArgument, {"empty prompt", "--caption_dropout_rate"},
                 [&] { shop.from_cache(/*with_empty_caption=*/true); });
  }
  SECTION("a manifest of something else, which is not written over") {
    for (const char* text : {"{\"manifest_version\": 3}", "[1]"}) {
      test::write_bytes(shop.cache() + "/manifest.json", text);
      expect_error(ErrorCode::kInvalidArgument, {"is no manifest of a cache", "[CACHE_FOREIGN]"},
                   [&] { shop.filled(); });
      CHECK(test::read_bytes(shop.cache() + "/manifest.json") == text);
    }
  }
  SECTION("a manifest that is damaged, or of another version") {
    const std::string path = shop.cache() + "/manifest.json", text = test::read_bytes(path);
    test::write_bytes(path, text.substr(0, text.size() / 2));
    expect_error(ErrorCode::kDataLoss, {"manifest.json:", "sft:data_process"},
                 [&] { shop.from_cache(); });
    test::write_bytes(path, "{\"format\": \"atelier.cache\", \"version\": 99}");
    expect_error(ErrorCode::kInvalidArgument, {"manifest.json: version 99", "sft:data_process"},
                 [&] { shop.from_cache(); });
    test::write_bytes(path, "{\"format\": \"atelier.cache\", \"version\": 1, \"items\": 3}");
    expect_error(ErrorCode::kDataLoss, {"manifest.json: is damaged"}, [&] { shop.from_cache(); });
    CHECK(shop.filled().missing() == 0);
    CHECK(shop.from_cache().size() == 3);
  }
}

TEST_CASE("Damaged entries are named, and encoded anew", "[samples]") {
  SamplesWorkshop shop;
  const Samples samples = shop.filled();
  const std::string path = shop.entries("latents").front(), bytes = test::read_bytes(path);

  SECTION("cut short") {
    test::write_bytes(path, bytes.substr(0, bytes.size() - 1));
  }
  SECTION("empty") {
    test::write_bytes(path, "");
  }
  SECTION("gone") {
    test::fs::remove(path);
  }
  SECTION("of another kind") {
    test::fs::copy_file(shop.entries("text").front(), path,
                        test::fs::copy_options::overwrite_existing);
  }
  size_t damaged = samples.size();
  for (size_t i = 0; i < samples.size(); ++i) {
    try {
      samples.load(i, false);
    } catch (const Error& error) {
      damaged = i;
      CHECK(error.code() == ErrorCode::kDataLoss);
      CHECK(std::string(error.what()).find(path) != std::string::npos);
      CHECK(error.hint().find("sft:data_process") != std::string::npos);
    }
  }
  CHECK(damaged < samples.size());
  expect_error(ErrorCode::kDataLoss, {path, "sft:data_process"}, [&] { shop.from_cache(); });
  CHECK(shop.open().missing() == 1);
  CHECK(shop.filled().missing() == 0);
  CHECK(test::read_bytes(path) == bytes);
  CHECK(shop.from_cache().load(damaged, false).cond.contains("latents"));
}

TEST_CASE("A changed value in an entry is noticed when it is loaded", "[samples]") {
  SamplesWorkshop shop;
  shop.write_rows("image,prompt\na.png,red\n");
  const Samples samples = shop.filled();
  const std::string path = shop.entries("text").front(), bytes = test::read_bytes(path);
  overwrite(path, bytes.size() - 3, static_cast<char>(bytes[bytes.size() - 3] ^ 4));
  expect_error(ErrorCode::kDataLoss, {path, "not those that were written", "delete it"},
               [&] { samples.load(0, false); });
}

TEST_CASE("The number of workers does not change a byte", "[samples]") {
  SamplesWorkshop shop;
  shop.filled(0);
  const auto expected = shop.bytes();
  for (const int workers : {1, 4}) {
    test::fs::remove_all(shop.cache());
    shop.filled(workers);
    CHECK(shop.bytes() == expected);
  }
}

TEST_CASE("Masks are averaged over the cells of the latents", "[samples]") {
  SamplesWorkshop shop;
  media::Image mask(16, 16);  // white: the left half, and half of the cell right of it
  for (int y = 0; y < 16; ++y) {
    for (int x = 0; x < 10; ++x)
      for (int c = 0; c < 3; ++c) mask.row(y)[3 * x + c] = 255;
  }
  test::write_bytes(shop.folder / "data/mask.png", media::encode_png(mask));
  shop.write_rows("image,prompt,mask\na.png,red,mask.png\na.png,red,\n");
  Samples samples = shop.filled();
  CHECK(count_of(samples, "images").entries == 2);
  const at::Tensor row = at::tensor({1.0F, 1.0F, 0.5F, 0.0F});
  CHECK(at::equal(samples.load(0, false).mask, row.expand({1, 1, 4, 4})));
  CHECK_FALSE(samples.load(1, false).mask.defined());

  const Samples uncached = shop.open({{"text", true}, {"latents", false}});
  CHECK(at::equal(uncached.load(0, false).mask, row.expand({1, 1, 4, 4})));
}

TEST_CASE("What a trained component makes is not cached", "[samples]") {
  const std::vector<std::string> text = {"dit", "text_encoder.table"}, vae = {"vae"};
  const ModelFamily& toy = test::image_toy();
  const auto stages = toy.encode_stages();
  CHECK(cached_stages(toy, stages, text) == CachedStages{{"text", false}, {"latents", true}});
  CHECK(cached_stages(toy, stages, vae) == CachedStages{{"text", true}, {"latents", false}});

  SamplesWorkshop shop;
  Samples samples = shop.open({{"text", false}, {"latents", true}});
  CHECK(samples.missing() == 3);
  CHECK(samples.fill(*shop.model, 0, shop.progress, never));
  CHECK_FALSE(exists(shop.cache() + "/text"));
  const TrainSample one = samples.load(2, false);
  CHECK(std::get<std::string>(one.inputs.at("text").at("prompt")) == "blue");
  CHECK(one.inputs.size() == 1);
  CHECK_FALSE(one.inputs.at("text").contains("image"));
  CHECK(one.cond.size() == 1);
  CHECK(std::get<std::string>(samples.load(2, true).inputs.at("text").at("prompt")).empty());
  expect_error(ErrorCode::kInvalidArgument, {"has no texts", "--dataset_base_path"},
               [&] { shop.from_cache(); });

  const Samples images = shop.open({{"text", false}, {"latents", false}});
  CHECK(images.missing() == 0);
  const TrainSample other = images.load(1, false);
  CHECK(std::get<at::Tensor>(other.inputs.at("latents").at("image")).sizes() ==
        at::IntArrayRef({3, 16, 24}));
  CHECK(other.cond.empty());
}

TEST_CASE("Stages that are not cached share what is decoded of a row", "[samples]") {
  struct SharingToy final : test::ImageToy {
    std::span<const EncodeStage> encode_stages() const override {
      static constexpr std::string_view kEncoders[] = {"text_encoder", "tokenizer"};
      static constexpr std::string_view kVae[] = {"vae"};
      static constexpr std::string_view kTexts[] = {"prompt", "reference"};
      static constexpr std::string_view kImages[] = {"image", "reference"};
      static constexpr EncodeStage kStages[] = {{"text", kEncoders, kTexts},
                                                {"latents", kVae, kImages}};
      return kStages;
    }
  };
  const SharingToy toy;
  SamplesWorkshop shop;
  shop.write_rows("image,prompt,reference\na.png,red,c.png\n");
  shop.options.extra_inputs = {"reference"};
  shop.model = LoadedModel::open(toy, {.model_paths = shop.folder / "model", .device = "cpu"});
  const Samples samples = shop.open({{"text", false}, {"latents", false}});
  const TrainSample sample = samples.load(0, /*empty_caption=*/true);
  const Inputs &text = sample.inputs.at("text"), &latents = sample.inputs.at("latents");
  CHECK(std::get<std::string>(text.at("prompt")).empty());
  CHECK(latents.contains("image"));
  CHECK(std::get<at::Tensor>(text.at("reference"))
            .is_same(std::get<at::Tensor>(latents.at("reference"))));
}

TEST_CASE("An empty caption has an encoding of its own", "[samples]") {
  SamplesWorkshop shop;
  Samples samples = shop.open({{"text", true}, {"latents", true}}, /*with_empty_caption=*/true);
  CHECK(count_of(samples, "texts").entries == 4);
  // The toy has no token for no letters: its encoding of an empty text is an empty tensor.
  CHECK(samples.fill(*shop.model, 0, shop.progress, never));
  CHECK(samples.load(0, true).cond.at("prompt_embeds").size(0) == 0);
  CHECK(samples.load(0, false).cond.at("prompt_embeds").size(0) == 3);
  CHECK(at::equal(samples.load(0, true).cond.at("latents"),
                  samples.load(0, false).cond.at("latents")));
  CHECK(shop.from_cache(true).fingerprint() == samples.fingerprint());
  CHECK(shop.from_cache(false).fingerprint() == shop.open().fingerprint());
}

TEST_CASE("Extra inputs tell texts apart", "[samples]") {
  SamplesWorkshop shop;
  shop.write_rows(
      "image,prompt,count,reference\na.png,red,1,b.png\na.png,red,2,b.png\na.png,red,1,c.png\n");
  CHECK(count_of(shop.open(), "texts").entries == 1);
  shop.options.extra_inputs = {"count"};
  CHECK(count_of(shop.open(), "texts").entries == 2);
  shop.options.extra_inputs = {"count", "reference"};
  CHECK(count_of(shop.open(), "texts").entries == 3);
  const TrainSample sample = shop.open({{"text", false}, {"latents", false}}).load(1, false);
  CHECK(std::get<int64_t>(sample.inputs.at("text").at("count")) == 2);
  CHECK(std::get<at::Tensor>(sample.inputs.at("text").at("reference")).dim() == 3);
}

TEST_CASE("Encodings that are not finite name their row", "[samples]") {
  SamplesWorkshop shop;
  const std::string model = shop.folder / "model";
  const bool is_text = GENERATE(true, false);
  const std::string component = is_text ? "text_encoder" : "vae";
  test::write_toy_component(model + "/" + component + "/model.safetensors", component, 1, NAN);
  shop.model = test::open_toy_model(model);
  expect_error(ErrorCode::kNumerics, {"metadata.csv:2", "not finite", "--dtype"},
               [&] { shop.open().fill(*shop.model, 0, shop.progress, never); });
  CHECK_FALSE(shop.model->is_loaded(component));
  CHECK_FALSE(exists(shop.cache() + "/manifest.json"));
}

TEST_CASE("The bytes of missing entries are known before they are encoded", "[samples]") {
  SamplesWorkshop shop;
  Samples samples = shop.open();
  const Samples::Bytes before = samples.missing_bytes(*shop.model);
  REQUIRE(before.texts.has_value());
  CHECK_FALSE(exists(shop.cache()));
  CHECK(samples.fill(*shop.model, 0, shop.progress, never));
  int64_t bytes = 0;
  for (const char* kind : {"text", "latents"}) {
    for (const std::string& path : shop.entries(kind))
      bytes += static_cast<int64_t>(test::fs::file_size(path));
  }
  CHECK(*before.texts + before.images == bytes);
  CHECK(samples.missing_bytes(*shop.model).images == 0);
  CHECK(samples.missing_bytes(*shop.model).texts == 0);
}

TEST_CASE("Work on all cores throws the error of the first item", "[samples]") {
  std::vector<std::atomic<int>> calls(1000);
  data::for_each_in_parallel(calls.size(), [&](size_t i) { ++calls[i]; });
  CHECK(std::all_of(calls.begin(), calls.end(), [](const auto& count) { return count == 1; }));
  expect_error(ErrorCode::kNotFound, {"item 3"}, [&] {
    data::for_each_in_parallel(calls.size(), [](size_t i) {
      if (i >= 3) throw Error(ErrorCode::kNotFound, "item " + std::to_string(i));
    });
  });
  data::for_each_in_parallel(0, [](size_t) { FAIL("nothing is to be done"); });
}
