#include "host/files/checkpoint.h"

#include <sys/stat.h>
#include <unistd.h>

#include "host/files/bulk_reader.h"
#include "host/files/file_reader.h"
#include "host/files/model_paths.h"
#include "host/files/safetensors_writer.h"
#include "support/files.h"

using namespace atelier;
using namespace atelier::files;
using test::expect_error;
using test::Folder;
using test::write_bytes;

namespace {

void write(const std::string& path, const NamedTensors& tensors,
           const std::map<std::string, std::string>& metadata = {}) {
  test::fs::create_directories(test::fs::path(path).parent_path());
  write_safetensors(path, tensors, metadata);
}

// Two shards with an index in `folder`.
void write_sharded(const std::string& folder, const std::string& stem = "model") {
  write(folder + "/" + stem + "-00001-of-00002.safetensors",
        {{"a", at::arange(6, at::kFloat).view({2, 3})}});
  write(folder + "/" + stem + "-00002-of-00002.safetensors", {{"b", at::ones({4}, at::kBFloat16)}});
  write_bytes(folder + "/" + stem + ".safetensors.index.json",
              R"({"metadata": {"total_size": 32}, "weight_map": {"a": ")" + stem +
                  R"(-00001-of-00002.safetensors", "b": ")" + stem +
                  R"(-00002-of-00002.safetensors"}})");
}

FoundFiles find(const std::string& paths, const std::string& ids = {}) {
  report::Problems problems;
  FoundFiles found = find_model_files(paths, ids, problems);
  problems.throw_if_any();
  return found;
}

class Environment {
 public:
  Environment(const char* name, const std::string& value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old;
    setenv(name, value.c_str(), 1);
  }
  ~Environment() {
    if (old_) {
      setenv(name_, old_->c_str(), 1);
    } else {
      unsetenv(name_);
    }
  }

 private:
  const char* name_;
  std::optional<std::string> old_;
};

}  // namespace

TEST_CASE("A written file is read back bit for bit, in every dtype", "[checkpoint]") {
  Folder folder;
  at::manual_seed(1);
  NamedTensors tensors = {{"empty", at::empty({0, 4})},
                          {"scalar", at::scalar_tensor(3.5)},
                          {"flags", at::randint(0, 2, {7}).to(at::kBool)},
                          {"long", at::randint(-9, 9, {3, 5}, at::kLong)},
                          {"byte", at::arange(256, at::kByte)},
                          {"fp8", at::randn({5, 3}).to(at::kFloat8_e4m3fn)},
                          {"fp8b", at::randn({5}).to(at::kFloat8_e5m2)}};
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16})
    tensors[std::string("t_") + c10::toString(type)] = at::randn({11, 7}).to(type);
  write(folder / "a.safetensors", tensors, {{"rank", "4"}, {"name", "中文"}});
  const Checkpoint file = Checkpoint::open({"a", {folder / "a.safetensors"}});
  CHECK(file.index().tensors().size() == tensors.size());
  CHECK(file.metadata().at("name") == "中文");
  for (const auto& [name, value] : tensors) {
    INFO(name);
    const at::Tensor got = file.read(name);
    CHECK(got.scalar_type() == value.scalar_type());
    REQUIRE(got.sizes() == value.sizes());
    if (value.nbytes() == 0) continue;  // an empty tensor has no address
    CHECK(std::memcmp(got.data_ptr(), value.contiguous().data_ptr(), value.nbytes()) == 0);
  }
  CHECK(file.place("fp8").begin >= 4096);  // the header is padded
}

TEST_CASE("Reading converts between dtypes as LibTorch does, and saturates fp8", "[checkpoint]") {
  Folder folder;
  at::manual_seed(2);
  const at::Tensor x = at::randn({300, 257}) * 40;
  write(folder / "a.safetensors",
        {{"x", x}, {"h", x.to(at::kBFloat16)}, {"f", x.to(at::kFloat8_e5m2)}});
  const Checkpoint file = Checkpoint::open({"a", {folder / "a.safetensors"}});
  CHECK(at::equal(file.read("x", at::kBFloat16), x.to(at::kBFloat16)));
  CHECK(at::equal(file.read("x", at::kHalf), x.to(at::kHalf)));
  CHECK(at::equal(file.read("h", at::kFloat), x.to(at::kBFloat16).to(at::kFloat)));
  CHECK(at::equal(file.read("f", at::kFloat), x.to(at::kFloat8_e5m2).to(at::kFloat)));
  CHECK(at::equal(file.read("f", at::kBFloat16), x.to(at::kFloat8_e5m2).to(at::kBFloat16)));
  const at::Tensor wide = at::tensor({1e4f, -1e4f, 1.0f, 0.0f});
  write(folder / "b.safetensors", {{"wide", wide}});
  const at::Tensor narrow = Checkpoint::open({"b", {folder / "b.safetensors"}})
                                .read("wide", at::kFloat8_e4m3fn)
                                .to(at::kFloat);
  CHECK(at::equal(narrow, at::tensor({448.0f, -448.0f, 1.0f, 0.0f})));
}

TEST_CASE("Large tensors are read in pieces and by several threads", "[checkpoint]") {
  Folder folder;
  at::manual_seed(3);
  const at::Tensor big = at::randn({3000, 2001});  // 24 MB: three chunks
  write(folder / "a.safetensors", {{"big", big}, {"small", at::ones({3})}});
  const Checkpoint file = Checkpoint::open({"a", {folder / "a.safetensors"}});
  CHECK(at::equal(file.read("big"), big));
  at::Tensor target = at::empty({2001}), half = at::empty({2001}, at::kBFloat16);
  const uint64_t row = file.place("big").begin + 7 * 2001 * 4;
  std::vector<int64_t> seen;
  read_runs(file.files(), file.file_sizes(),
            {{0, row, 2001, at::kFloat, at::kFloat, target.data_ptr()},
             {0, row + 4, 2000, at::kFloat, at::kBFloat16, half.data_ptr()}},
            [&](int64_t bytes) { seen.push_back(bytes); });
  CHECK(at::equal(target, big[7]));
  CHECK(at::equal(half.narrow(0, 0, 2000), big[7].narrow(0, 1, 2000).to(at::kBFloat16)));
  REQUIRE(!seen.empty());
  CHECK(seen.back() == 4001 * 4);
}

TEST_CASE("What is wrong with a file is said with file, place and reason", "[checkpoint]") {
  Folder folder;
  const std::string path = folder / "bad.safetensors";
  const auto open = [&] { Checkpoint::open({path, {path}}); };
  SECTION("it does not exist") {
    expect_error(ErrorCode::kNotFound, {"bad.safetensors", "No such file"}, open);
  }
  SECTION("it is a folder") {
    test::fs::create_directories(path);
    expect_error(ErrorCode::kInvalidArgument, {"bad.safetensors", "no regular file"}, open);
  }
  SECTION("it is empty") {
    write_bytes(path, "");
    expect_error(ErrorCode::kDataLoss, {"bad.safetensors", "[ST_FILE_SHORT]"}, open);
  }
  SECTION("it is cut short") {
    write(path, {{"x", at::ones({100})}});
    test::fs::resize_file(path, test::fs::file_size(path) - 1);
    expect_error(ErrorCode::kDataLoss, {"bad.safetensors", "[ST_TRUNCATED]"}, open);
  }
  SECTION("it has bytes at the end") {
    write(path, {{"x", at::ones({100})}});
    test::fs::resize_file(path, test::fs::file_size(path) + 1);
    expect_error(ErrorCode::kDataLoss, {"bad.safetensors", "[ST_TRAILING]"}, open);
  }
  SECTION("a tensor has another size than its shape") {
    test::write_raw_safetensors(path, R"({"x\n":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})",
                                "1234");
    expect_error(ErrorCode::kDataLoss, {"bad.safetensors", R"(x\n)", "[ST_SIZE]"}, open);
  }
  SECTION("a dtype that LibTorch lacks") {
    test::write_raw_safetensors(
        path, R"({"x":{"dtype":"F6_E2M3","shape":[4],"data_offsets":[0,3]}})", "123");
    expect_error(ErrorCode::kUnsupported, {"bad.safetensors", "\"x\"", "F6_E2M3"}, open);
  }
  SECTION("it is a git-lfs pointer") {
    write_bytes(path, "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 123\n");
    expect_error(ErrorCode::kUnsupported, {"git-lfs", "[ST_GIT_LFS]"}, open);
  }
  SECTION("it is GGUF") {
    write_bytes(path, std::string("GGUF\1\0\0\0", 8) + std::string(64, '\0'));
    expect_error(ErrorCode::kUnsupported, {"bad.safetensors:byte 4", "version 1", "[GGUF_VERSION]"},
                 open);
    write_bytes(path, std::string("GGUF\3\0\0\0\1\0\0", 11));
    expect_error(ErrorCode::kDataLoss, {"bad.safetensors:byte", "[GGUF_CUT]"}, open);
  }
  SECTION("it is a pickle") {
    write_bytes(path, "\x80\x02}q\x00.");
    expect_error(ErrorCode::kUnsupported, {"pickle"}, open);
  }
  SECTION("its codes of four bits say nothing of their shape") {
    write(path, {{"a.weight", at::zeros({8, 1}, at::kByte)},
                 {"a.weight.absmax", at::ones({2})},
                 {"a.weight.quant_map", at::ones({16})},
                 {"a.weight.quant_state.bitsandbytes__nf4", at::zeros({9}, at::kByte)}});
    expect_error(ErrorCode::kDataLoss, {"bad.safetensors", "\"a.weight\"", "[PACKED_FORM]"}, open);
  }
  SECTION("its integers of 8 bits come with something else") {
    write(path, {{"a.weight", at::zeros({8, 1}, at::kByte)},
                 {"a.SCB", at::ones({8})},
                 {"a.weight_format", at::zeros({1}, at::kByte)}});
    expect_error(ErrorCode::kUnsupported, {"[ST_PACKING]"}, open);
  }
}

namespace {

at::Tensor text(const std::string& content) {
  return at::tensor(
      at::ArrayRef<uint8_t>(reinterpret_cast<const uint8_t*>(content.data()), content.size()),
      at::kByte);
}

// What bitsandbytes writes of a matrix of 4 x 64, with codes of zeros.
NamedTensors four_bit_tensors(const std::string& state) {
  return {{"a.weight", at::full({128, 1}, 0x77, at::kByte)},
          {"a.weight.absmax", at::ones({4})},
          {"a.weight.quant_map", at::ones({16})},
          {"a.weight.quant_state.bitsandbytes__nf4", text(state)}};
}

}  // namespace

TEST_CASE("Packed tensors have the shape that they stand for, and are read as values",
          "[checkpoint]") {
  Folder folder;
  const std::string path = folder / "a.safetensors";
  const auto open = [&] { return Checkpoint::open({path, {path}}); };
  SECTION("nf4") {
    const std::string state = R"({"quant_type": "nf4", "blocksize": 64, "shape": [4, 64]})";
    write(path, four_bit_tensors(state));
    const Checkpoint file = open();
    CHECK(file.index().tensors().size() == 1);
    CHECK(file.index().find("a.weight")->shape == std::vector<int64_t>{4, 64});
    CHECK(file.packed("a.weight")->packing == memory::Packing::kNf4);
    CHECK(file.bytes_of("a.weight") == 128 + 16);
    CHECK(at::equal(file.read("a.weight", at::kFloat), at::zeros({4, 64})));
    for (const char* wrong : {R"({"blocksize": 64, "shape": [4, 65]})", R"({"shape": [4, 64]})",
                              R"({"blocksize": 0, "shape": [4, 64]})", "[]", "{",
                              R"({"blocksize": 64, "shape": [-4, 64]})",
                              R"({"blocksize": 64, "shape": [1099511627776, 1099511627776]})"}) {
      INFO(wrong);
      write(path, four_bit_tensors(wrong));
      expect_error(ErrorCode::kDataLoss, {"\"a.weight\"", "[PACKED_FORM]"}, open);
    }
  }
  SECTION("comfy_quant") {
    const at::Tensor codes = at::arange(-64, 64, at::kChar).view({4, 32});
    const auto with = [&](const std::string& description, const at::Tensor& scale) {
      write(path, {{"a.weight", codes},
                   {"a.weight_scale", scale},
                   {"a.input_scale", at::ones({1})},
                   {"a.comfy_quant", text(description)}});
    };
    with(R"({"format": "int8_tensorwise"})", at::full({1}, 0.5));
    CHECK(open().index().tensors().size() == 1);
    CHECK(at::equal(open().read("a.weight", at::kFloat), codes.to(at::kFloat) * 0.5));
    const at::Tensor rows = at::tensor({1.0f, 2.0f, 3.0f, 4.0f}).view({4, 1});
    with(R"({"format": "int8_tensorwise"})", rows);
    CHECK(at::equal(open().read("a.weight", at::kFloat), codes.to(at::kFloat) * rows));
    with(R"({"format": "int8_tensorwise"})", at::ones({3}));
    expect_error(ErrorCode::kDataLoss, {"\"a.weight_scale\"", "[PACKED_FORM]"}, open);
    with(R"({"format": "int8_tensorwise", "convrot": true})", rows);
    expect_error(ErrorCode::kUnsupported, {"\"a.weight\"", "turned", "[PACKED_KIND]"}, open);
    with(R"({"format": "int8_blockwise"})", rows);
    expect_error(ErrorCode::kUnsupported, {"int8_blockwise", "[PACKED_KIND]"}, open);
  }
  SECTION("nvfp4 and mxfp8, whose scales stand in tiles") {
    const at::Tensor scales = at::arange(1, 129, at::kFloat).view({32, 4}).div(64);
    // [128, 4]: rows 0, 32, 64 and 96 stand side by side.
    at::Tensor tiles = at::zeros({32, 4, 4});
    tiles.select(1, 0).copy_(scales);
    tiles.select(1, 1).copy_(scales * 2);
    const at::Tensor of_rows = at::cat({scales, scales * 2});        // 64 rows
    write(path, {{"a.weight", at::full({64, 32}, 0x2a, at::kByte)},  // 1 and -1
                 {"a.weight_scale", tiles.view({128, 4}).to(at::kFloat8_e4m3fn)},
                 {"a.weight_scale_2", at::full({}, 3.0)},
                 {"a.comfy_quant", text(R"({"format": "nvfp4"})")}});
    const at::Tensor value = open().read("a.weight", at::kFloat);
    CHECK(value.sizes() == at::IntArrayRef{64, 64});
    const at::Tensor expected = of_rows.to(at::kFloat8_e4m3fn).to(at::kFloat) * 3;
    CHECK(at::equal(value.select(1, 16), expected.select(1, 1)));
    CHECK(at::equal(value.select(1, 63), -expected.select(1, 3)));

    const at::Tensor exponents = at::zeros({32, 4, 4}, at::kByte);
    exponents.select(1, 1).fill_(129);
    write(path, {{"a.weight", at::ones({64, 128}).to(at::kFloat8_e4m3fn)},
                 {"a.weight_scale", exponents.view({128, 4})},
                 {"a.comfy_quant", text(R"({"format": "mxfp8"})")}});
    const at::Tensor eight = open().read("a.weight", at::kFloat);
    CHECK(at::equal(eight.narrow(0, 32, 32), at::full({32, 128}, 4.0f)));
    CHECK(eight[0][0].item<float>() == 0x1p-127f);
  }
  SECTION("float8_e4m3fn keeps its scales, and what is said in the metadata counts too") {
    write(path,
          {{"a.weight", at::ones({4, 32}).to(at::kFloat8_e4m3fn)},
           {"a.weight_scale", at::full({1}, 0.5)}},
          {{"_quantization_metadata",
            R"({"format_version": "1.0", "layers": {"a": {"format": "float8_e4m3fn"}}})"}});
    CHECK(open().has_scales("a.weight"));
    CHECK(open().packed().empty());
    write(path, {{"a.weight", at::ones({4, 32}).to(at::kFloat8_e4m3fn)}},
          {{"_quantization_metadata", "no"}});
    expect_error(ErrorCode::kDataLoss, {"_quantization_metadata", "[PACKED_FORM]"}, open);
  }
}

TEST_CASE("A file that changes after its header was read is an error, not a crash",
          "[checkpoint]") {
  Folder folder;
  const std::string path = folder / "a.safetensors";
  write(path, {{"x", at::ones({100000})}});
  const Checkpoint file = Checkpoint::open({path, {path}});
  test::fs::resize_file(path, 5000);
  expect_error(ErrorCode::kDataLoss, {"a.safetensors", "5000", "[FILE_CHANGED]"},
               [&] { file.read("x"); });
  const FileReader reader(path);
  std::string room(100, ' ');
  expect_error(ErrorCode::kDataLoss, {"byte 5000", "[FILE_CHANGED]"},
               [&] { reader.read(room.data(), 4950, 100); });
}

TEST_CASE("The config beside a checkpoint is flattened with dots", "[checkpoint]") {
  Folder folder;
  write(folder / "c/model.safetensors", {{"x", at::ones({2})}});
  write_bytes(folder / "c/config.json",
              R"({"heads": 4, "eps": 1e-6, "tied": true, "axes": [1, 2],
                  "text_config": {"rope_theta": 1000000.0, "sizes": []}, "none": null})");
  const FoundFiles found = find(folder / "c");
  REQUIRE(found.checkpoints.size() == 1);
  const TensorIndex index = Checkpoint::open(found.checkpoints[0].files).index();
  CHECK(index.config_integer("heads") == 4);
  CHECK(index.config_real("text_config.rope_theta") == 1e6);
  CHECK(index.config_flag("tied") == true);
  CHECK(index.config_integers("axes") == std::vector<int64_t>{1, 2});
  CHECK(index.has_null("none"));
  write_bytes(folder / "c/config.json", "{\"a\": 1,}");
  expect_error(ErrorCode::kDataLoss, {"config.json"},
               [&] { Checkpoint::open(found.checkpoints[0].files); });
}

TEST_CASE("Shards are found by their index, their folder, a list and a glob", "[paths]") {
  Folder folder;
  write_sharded(folder / "transformer");
  const std::string stem = folder / "transformer/model-0000";
  const std::string index = folder / "transformer/model.safetensors.index.json";
  for (const std::string& text :
       {folder / "transformer", index, R"([")" + index + R"("])",
        R"([[")" + stem + R"(1-of-00002.safetensors", [")" + stem + R"(2-of-00002.safetensors"]]])",
        stem + "*.safetensors", R"([")" + stem + R"(?-of-00002.safetensors"])"}) {
    INFO(text);
    const FoundFiles found = find(text);
    REQUIRE(found.checkpoints.size() == 1);
    const Checkpoint file = Checkpoint::open(found.checkpoints[0].files);
    CHECK(file.files().size() == 2);
    CHECK(at::equal(file.read("a"), at::arange(6, at::kFloat).view({2, 3})));
    CHECK(file.index().find("b")->dtype == at::kBFloat16);
  }
}

TEST_CASE("A model folder gives its components and its tokenizer", "[paths]") {
  Folder folder;
  write_sharded(folder / "m/transformer", "diffusion_pytorch_model");
  write(folder / "m/vae/diffusion_pytorch_model.safetensors", {{"v", at::ones({2})}});
  write(folder / "m/vae/diffusion_pytorch_model.fp16.safetensors",
        {{"v", at::ones({2}, at::kHalf)}});
  write_bytes(folder / "m/tokenizer/tokenizer.json", "{}");
  write_bytes(folder / "m/scheduler/scheduler_config.json", "{}");
  for (const bool has_index : {false, true}) {
    if (has_index) write_bytes(folder / "m/model_index.json", "{}");
    const FoundFiles found = find(folder / "m");
    REQUIRE(found.checkpoints.size() == 2);
    CHECK(found.checkpoints[0].in_model_folder);
    CHECK(found.checkpoints[1].files.files ==
          std::vector<std::string>{folder / "m/vae/diffusion_pytorch_model.safetensors"});
    CHECK(found.tokenizers == std::vector<std::string>{folder / "m/tokenizer"});
  }
}

TEST_CASE("LoRAs beside the components of a model are none of them", "[paths]") {
  Folder folder;
  for (const char* file :
       {"m/dit/model.safetensors", "m/lora/a.safetensors", "m/lora/b.safetensors"})
    write(folder / file, {{"v", at::ones({2})}});
  const FoundFiles found = find(folder / "m");
  REQUIRE(found.checkpoints.size() == 1);
  CHECK(found.checkpoints[0].files.files ==
        std::vector<std::string>{folder / "m/dit/model.safetensors"});
}

TEST_CASE("A repository gives each file of its root, and tokenizers two folders deep", "[paths]") {
  Folder folder;
  write_sharded(folder / "r", "diffusion_pytorch_model");
  write_bytes(folder / "r/config.json", "{}");
  write(folder / "r/Other_VAE.safetensors", {{"v", at::ones({2})}});
  write(folder / "r/Other_VAE.fp16.safetensors", {{"v", at::ones({2}, at::kHalf)}});
  write_bytes(folder / "r/VAE.pth", "an archive");
  write_bytes(folder / "r/text.pth", "an archive");
  write(folder / "r/low_noise_model/diffusion_pytorch_model.safetensors", {{"a", at::ones({2})}});
  write_bytes(folder / "r/low_noise_model/config.json", "{}");
  write_bytes(folder / "r/google/umt5-xxl/spiece.model", "");
  write_bytes(folder / "r/xlm/tokenizer.json", "{}");
  const FoundFiles found = find(folder / "r");
  std::map<std::string, std::string> configs;  // by the first file's name
  for (const FoundCheckpoint& checkpoint : found.checkpoints) {
    CHECK(checkpoint.in_model_folder);
    configs[checkpoint.files.files.front()] = checkpoint.files.config_path;
  }
  const std::string low = folder / "r/low_noise_model/";
  CHECK(configs == std::map<std::string, std::string>{
                       {folder / "r/Other_VAE.safetensors", ""},
                       {folder / "r/VAE.pth", ""},
                       {folder / "r/text.pth", ""},
                       {folder / "r/diffusion_pytorch_model-00001-of-00002.safetensors",
                        folder / "r/config.json"},
                       {low + "diffusion_pytorch_model.safetensors", low + "config.json"}});
  CHECK(found.tokenizers ==
        std::vector<std::string>{folder / "r/google/umt5-xxl", folder / "r/xlm"});
}

TEST_CASE("A SentencePiece model is a tokenizer, by itself and in its folder", "[paths]") {
  Folder folder;
  write(folder / "m/vae/model.safetensors", {{"v", at::ones({2})}});
  write_bytes(folder / "m/tokenizer/tokenizer.model", "x");
  CHECK(find(folder / "m").tokenizers == std::vector<std::string>{folder / "m/tokenizer"});
  const std::string file = folder / "m/tokenizer/tokenizer.model";
  CHECK(find(file).tokenizers == std::vector<std::string>{file});
  CHECK(find(file).checkpoints.empty());
}

TEST_CASE("What is missing or misplaced is named", "[paths]") {
  Folder folder;
  write_sharded(folder / "t");
  const std::string shard = folder / "t/model-00002-of-00002.safetensors";
  SECTION("a shard of an index") {
    test::fs::remove(shard);
    expect_error(ErrorCode::kNotFound, {"index.json", "model-00002-of-00002", "[SHARD_MISSING]"},
                 [&] { find(folder / "t"); });
  }
  SECTION("an index that is no object") {
    write_bytes(folder / "t/model.safetensors.index.json", "[\"a\"]");
    expect_error(ErrorCode::kDataLoss, {"index.json", "is an array", "[INDEX_FORM]"},
                 [&] { find(folder / "t"); });
    write_bytes(folder / "m/model_index.json", "[\"a\"]");
    write(folder / "m/vae/model.safetensors", {{"x", at::ones({1})}});
    expect_error(ErrorCode::kDataLoss, {"model_index.json", "is no JSON object", "[INDEX_FORM]"},
                 [&] { find(folder / "m"); });
  }
  SECTION("a path that is too long, which is no fault of the machine") {
    expect_error(ErrorCode::kInvalidArgument, {"File name too long", "[FILE_OPEN]"},
                 [&] { find("/" + std::string(5000, 'a')); });
    expect_error(ErrorCode::kInvalidArgument, {"File name too long", "[FILE_WRITE]"},
                 [&] { write_file(folder / std::string(5000, 'a'), "text"); });
  }
  SECTION("a shard without its index") {
    test::fs::remove(folder / "t/model.safetensors.index.json");
    CHECK(find(folder / "t").checkpoints.size() == 1);
    expect_error(ErrorCode::kNotFound, {"model-00001-of-00002", "[SHARD_MISSING]"},
                 [&] { find(shard); });
  }
  SECTION("a tensor that the index puts elsewhere") {
    write(shard, {{"c", at::ones({4})}});
    const FoundFiles found = find(folder / "t");
    expect_error(
        ErrorCode::kDataLoss,
        {"index.json", "names, \"model-00002-of-00002.safetensors\": \"b\"", "[INDEX_TENSOR]"},
        [&] { Checkpoint::open(found.checkpoints[0].files); });
  }
  SECTION("a shard name that leaves the folder") {
    for (const char* name :
         {"../x.safetensors", "/etc/x.safetensors", "a/../../x.safetensors", "x.bin"}) {
      write_bytes(folder / "t/model.safetensors.index.json",
                  std::string(R"({"weight_map": {"a": ")") + name + R"("}})");
      expect_error(ErrorCode::kDataLoss, {"index.json", "[INDEX_SHARD_NAME]"},
                   [&] { find(folder / "t"); });
    }
  }
  SECTION("a tensor in two files") {
    write(folder / "x/a.safetensors", {{"a", at::ones({1})}});
    write(folder / "x/b.safetensors", {{"a", at::ones({1})}});
    const FoundFiles found = find(R"([[")" + (folder / "x/a.safetensors") + R"(", ")" +
                                  (folder / "x/b.safetensors") + R"("]])");
    expect_error(ErrorCode::kInvalidArgument, {"\"a\"", "[SHARD_DUPLICATE]"},
                 [&] { Checkpoint::open(found.checkpoints[0].files); });
    expect_error(ErrorCode::kInvalidArgument, {"several checkpoints", "a.safetensors"},
                 [&] { find(folder / "x"); });
  }
  SECTION("a folder of pickles") {
    write_bytes(folder / "p/model.bin", "\x80\x02}q\x01." + std::string(40, 'x'));
    expect_error(ErrorCode::kUnsupported, {"model.bin", "pickle"}, [&] { find(folder / "p"); });
  }
  SECTION("a folder of nothing") {
    test::fs::create_directories(folder / "n");
    expect_error(ErrorCode::kNotFound, {"no safetensors file"}, [&] { find(folder / "n"); });
  }
  SECTION("several paths at once") {
    expect_error(ErrorCode::kNotFound, {"2 mistakes", "one.safetensors", "two.safetensors"}, [&] {
      find(R"([")" + (folder / "one.safetensors") + R"(", ")" + (folder / "two.safetensors") +
           R"("])");
    });
  }
  SECTION("malformed JSON") {
    expect_error(ErrorCode::kInvalidArgument, {"--model_paths", "[JSON_SYNTAX]"},
                 [&] { find("[\"a\","); });
    expect_error(ErrorCode::kInvalidArgument, {"no path"}, [&] { find("[1]"); });
    expect_error(ErrorCode::kInvalidArgument, {"empty"}, [&] { find("[[]]"); });
  }
  SECTION("a glob without a match") {
    expect_error(ErrorCode::kNotFound, {"no file matches"}, [&] { find(folder / "t/*.nothing"); });
  }
}

TEST_CASE("Published files are found under the base path and in the caches", "[paths]") {
  Folder folder;
  Environment base("ATELIER_MODEL_BASE_PATH", folder / "base");
  Environment other("DIFFSYNTH_MODEL_BASE_PATH", folder / "other");
  Environment home("HOME", folder / "home");
  Environment cache("XDG_CACHE_HOME", "");
  Environment hf("HF_HOME", folder / "hf");
  Environment hub("HF_HUB_CACHE", "");
  Environment scope("MODELSCOPE_CACHE", folder / "ms");
  const auto first = [](const FoundFiles& found) {
    return found.checkpoints.at(0).files.files.at(0);
  };

  SECTION("not there: files, places and the command are named") {
    expect_error(
        ErrorCode::kNotFound,
        {"\"org/a.b:transformer/*.safetensors\"", "\"org/a.b:vae/\"", folder / "base/org/a.b",
         folder / "hf/hub/models--org--a.b", folder / "ms/models/org/a___b",
         "hf download org/a.b --include 'transformer/*.safetensors' 'vae/*' --local-dir"},
        [&] { find("", "org/a.b:transformer/*.safetensors,org/a.b:vae/"); });
    Environment source("DIFFSYNTH_DOWNLOAD_SOURCE", "modelscope");
    expect_error(ErrorCode::kNotFound, {"modelscope download --model org/a.b"},
                 [&] { find("", "org/a.b:x"); });
  }
  SECTION("the base path wins over the caches") {
    write(folder / "hf/hub/models--org--a.b/snapshots/abc/vae/model.safetensors",
          {{"x", at::ones({1})}});
    write_bytes(folder / "hf/hub/models--org--a.b/refs/main", "abc\n");
    write(folder / "ms/models/org/a___b/vae/model.safetensors", {{"x", at::ones({1})}});
    CHECK_THAT(first(find("", "org/a.b:vae/*.safetensors")), Catch::Contains("snapshots/abc"));
    test::fs::remove_all(folder / "hf");
    CHECK_THAT(first(find("", "org/a.b:vae/*.safetensors")), Catch::Contains("ms/models"));
    write(folder / "base/org/a.b/vae/model.safetensors", {{"x", at::ones({1})}});
    CHECK_THAT(first(find("", "org/a.b:vae/*.safetensors")), Catch::Contains("base/org"));
    CHECK_THAT(first(find("", "org/a.b:vae")), Catch::Contains("base/org"));
    CHECK_THAT(first(find("", "org/a.b:")), Catch::Contains("base/org"));
  }
  SECTION("the other variable counts where the first is not set") {
    unsetenv("ATELIER_MODEL_BASE_PATH");
    write(folder / "other/org/a/x.safetensors", {{"x", at::ones({1})}});
    CHECK_THAT(first(find("", "org/a:*.safetensors")), Catch::Contains("other/org"));
  }
  SECTION("a glob over shards is one checkpoint, a tokenizer is found by its folder") {
    write_sharded(folder / "base/org/a/transformer");
    write_bytes(folder / "base/org/a/tokenizer/vocab.json", "{}");
    const FoundFiles found = find("", "org/a:transformer/model*.safetensors, org/a:tokenizer/");
    REQUIRE(found.checkpoints.size() == 1);
    CHECK(found.checkpoints[0].files.files.size() == 2);
    CHECK(found.tokenizers == std::vector<std::string>{folder / "base/org/a/tokenizer"});
  }
  SECTION("a folder in the place of an id, as configurations of runs have it") {
    write(folder / "near/vae/model.safetensors", {{"x", at::ones({1})}});
    CHECK_THAT(first(find("", folder / "near:vae/*.safetensors")),
               Catch::Contains("near/vae/model"));
    expect_error(ErrorCode::kNotFound, {"searched " + (folder / "none")},
                 [&] { find("", folder / "none:*.safetensors"); });
  }
  SECTION("ids that are none") {
    for (const char* id :
         {"org/a", "../x:y", "org/a:../../x", "org/a:/etc/passwd", "a b:c", "org/a/b:c"})
      expect_error(ErrorCode::kInvalidArgument, {"--model_id_with_origin_paths"},
                   [&] { find("", id); });
  }
}

TEST_CASE("A written file has the usual permissions and replaces the old one whole", "[writer]") {
  Folder folder;
  const std::string path = folder / "out.safetensors";
  const mode_t old_mask = umask(022);
  write_safetensors(path, {{"x", at::ones({3})}});
  umask(old_mask);
  struct stat status {};
  REQUIRE(stat(path.c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0644);

  SECTION("a failure while writing leaves the old file and no other") {
    const std::string before = test::read_bytes(path);
    CHECK_THROWS_AS(write_file(path,
                               [&](const auto& write) {
                                 write("half", 4);
                                 throw Error(ErrorCode::kCancelled, "stop");
                               }),
                    Error);
    CHECK(test::read_bytes(path) == before);
    CHECK(std::distance(test::fs::directory_iterator(folder.path()), {}) == 1);
  }
  SECTION("a symbolic link stays one") {
    const std::string link = folder / "link.safetensors";
    test::fs::create_symlink(path, link);
    write_safetensors(link, {{"x", at::zeros({3})}});
    CHECK(test::fs::is_symlink(link));
    CHECK(at::equal(Checkpoint::open({path, {path}}).read("x"), at::zeros({3})));
  }
  SECTION("a folder that is not there is said") {
    expect_error(ErrorCode::kEnvironment, {"none/out.safetensors", "No such file"}, [&] {
      write_safetensors(folder / "none/out.safetensors", {{"x", at::ones({1})}});
    });
    expect_error(ErrorCode::kEnvironment, {"[FILE_WRITE]"}, [&] {
      write_safetensors(folder.path(), {{"x", at::ones({1})}});
    });
  }
  SECTION("a full disk is said") {
    if (test::fs::exists("/dev/full"))
      expect_error(ErrorCode::kEnvironment, {"[FILE_WRITE]"}, [&] {
        write_safetensors("/dev/full/x", {{"x", at::ones({1})}});
      });
  }
}

TEST_CASE("An archive of torch.save() is a checkpoint", "[files]") {
  const auto open = [](const std::string& name) {
    return Checkpoint::open(name, {std::string(PTH_DIR) + "/" + name});
  };
  const at::Tensor base = at::arange(60, at::kFloat).view({3, 4, 5});
  const Checkpoint views = open("views");
  CHECK(at::equal(views.read("base"), base));
  CHECK(at::equal(views.read("row"), base[1]));
  CHECK(at::equal(views.read("turned"), base.transpose(0, 2)));
  CHECK(at::equal(views.read("every second"), base.slice(1, 0, 4, 2).slice(2, 1)));
  CHECK(at::equal(views.read("every second", at::kDouble),
                  base.slice(1, 0, 4, 2).slice(2, 1).to(at::kDouble)));
  CHECK(at::equal(views.read("expanded"), at::zeros({4, 3})));
  CHECK(at::equal(views.read("scalar"), at::scalar_tensor(5.0, at::kFloat)));
  CHECK(views.read("empty").sizes() == at::IntArrayRef{0, 7});
  CHECK(views.read("turned").is_contiguous());
  CHECK(views.index().find("turned")->shape == std::vector<int64_t>{5, 4, 3});
  CHECK(at::equal(open("big_endian").read("a"), at::arange(6, at::kFloat).view({2, 3})));
  const Checkpoint dtypes = open("dtypes");
  CHECK(dtypes.index().tensors().size() == 19);
  CHECK(dtypes.read("F8_E4M3").scalar_type() == at::kFloat8_e4m3fn);
  CHECK(at::equal(dtypes.read("BF16", at::kFloat),
                  at::remainder(at::arange(6, at::kFloat), 3).view({2, 3})));

  expect_error(ErrorCode::kUnsupported, {"os_system", "system", "nothing of it was run"},
               [&] { open("os_system"); });
  expect_error(ErrorCode::kUnsupported, {"deflated", "compressed", "torch.save()"},
               [&] { open("deflated"); });
  expect_error(ErrorCode::kDataLoss, {"cut", "[ZIP_END]"}, [&] { open("cut"); });
}

TEST_CASE("A .pth beside safetensors does not take their config", "[files]") {
  const Folder folder;
  write_bytes(folder / "config.json", "{}");
  write_bytes(folder / "a.pth", "");
  CHECK_FALSE(files::config_beside(folder / "a.pth").empty());
  write_bytes(folder / "b.safetensors", "");
  CHECK(files::config_beside(folder / "a.pth").empty());
  CHECK_FALSE(files::config_beside(folder / "b.safetensors").empty());
}
