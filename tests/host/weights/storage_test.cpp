#include "host/weights/storage.h"

#include "host/files/safetensors_writer.h"
#include "host/lora/lora_file.h"
#include "host/model/model_loader.h"
#include "host/weights/published_tensors.h"
#include "host/weights/weight_loading.h"
#include "memory/four_bit.h"
#include "memory/packed.h"
#include "memory/quantized_store.h"
#include "support/files.h"
#include "support/toy_family.h"

using namespace atelier;
using namespace atelier::files;
using namespace atelier::model;
using namespace atelier::weights;
using memory::QuantizedStore;
using test::expect_error;
using test::Folder;

namespace {

const test::ToyFamily& family() {
  static const test::ToyFamily toy;
  return toy;
}

NamedTensors dit_tensors() {
  for (const Detection& part : family().tiny_parts()) {
    if (part.component != "dit") continue;
    const auto model = family().make_model({&part, 1}, {});
    nn::Module& dit = model->component("dit");
    at::manual_seed(7);
    dit.visit_weights([&](const std::string&, Weight& weight) {
      weight.set(at::randn(weight.sizes()).to(at::kBFloat16));
    });
    NamedTensors tensors;
    for (const auto& tensor : published_tensors(dit, family().weight_map(part), ""))
      tensors[tensor.name] = tensor.value().contiguous();
    return tensors;
  }
  return {};
}

std::unique_ptr<LoadedModel> open(LoadOptions request) {
  request.device = "cpu";
  return LoadedModel::open(family(), request);
}

std::unique_ptr<LoadedModel> load_dit(const std::string& file, StorageByComponent storage,
                                      std::vector<std::string> fp8_models = {}) {
  auto model = open({.model_paths = file,
                     .dtype = "bfloat16",
                     .components = {"dit"},
                     .storage = std::move(storage),
                     .fp8_models = std::move(fp8_models)});
  model->load_component("dit");
  return model;
}

const QuantizedStore* store_of(LoadedModel& model, std::string_view path) {
  const WeightPtr weight = model.model().component("dit").find_weight(path);
  REQUIRE(weight != nullptr);
  return dynamic_cast<const QuantizedStore*>(weight->state().store().get());
}

std::map<std::string, at::Tensor> drawn(LoadedModel& model) {
  std::map<std::string, at::Tensor> values;
  model.model().component("dit").visit_weights(
      [&](const std::string& path, Weight& weight) { values[path] = weight.draw().clone(); });
  return values;
}

void check_same(const std::map<std::string, at::Tensor>& a,
                const std::map<std::string, at::Tensor>& b) {
  REQUIRE(a.size() == b.size());
  for (const auto& [path, value] : a) {
    INFO(path);
    CHECK(at::equal(value, b.at(path)));
  }
}

// Every block weight as e4m3 with scales under `ending`: one for each row, or a single one.
NamedTensors scaled(const NamedTensors& plain, const std::string& ending, bool by_row) {
  NamedTensors out;
  for (const auto& [name, value] : plain) {
    if (!name.starts_with("blocks.") || value.dim() != 2) {
      out[name] = value;
      continue;
    }
    const at::Tensor rows = value.to(at::kFloat).abs().amax(1, /*keepdim=*/true) / 448;
    const at::Tensor scale = by_row ? rows : rows.max().view({1});
    out[name] = (value.to(at::kFloat) / scale).clamp(-448, 448).to(at::kFloat8_e4m3fn);
    out[name.substr(0, name.size() - std::string("weight").size()) + ending] = scale.contiguous();
  }
  return out;
}

}  // namespace

TEST_CASE("Linear layers of blocks are stored in 8 bits, and nothing else", "[storage]") {
  Folder folder;
  const std::string file = folder / "dit.safetensors";
  write_safetensors(file, dit_tensors());
  const auto plain = load_dit(file, {});
  for (const auto& [storage, code] : std::map<Storage, at::ScalarType>{
           {Storage::kFp8, at::kFloat8_e4m3fn}, {Storage::kInt8, at::kChar}}) {
    const auto model = load_dit(file, {{"dit", storage}});
    CHECK(model->storage("dit") == storage);
    for (const char* path : {"embed.weight", "unembed.weight", "blocks.0.down.bias"})
      CHECK(store_of(*model, path) == nullptr);
    for (const char* path : {"blocks.0.q.weight", "blocks.1.up.weight", "blocks.1.down.weight"}) {
      const QuantizedStore* store = store_of(*model, path);
      REQUIRE(store != nullptr);
      CHECK(store->value().codes.scalar_type() == code);
      const at::Tensor value = plain->model().component("dit").find_weight(path)->draw();
      const auto kind =
          storage == Storage::kFp8 ? memory::QuantizedKind::kFp8 : memory::QuantizedKind::kInt8;
      CHECK(at::equal(store->draw(),
                      memory::dequantize(memory::quantize(value, kind), at::kBFloat16)));
    }
    model->unload_component("dit");
    model->load_component("dit");
    CHECK(store_of(*model, "blocks.0.q.weight") != nullptr);
  }
  CHECK(load_dit(file, {{"dit", Storage::kPublished}})->is_loaded("dit"));
}

TEST_CASE("Files with scales are read in every form, plain or as they are", "[storage]") {
  Folder folder;
  const NamedTensors plain = dit_tensors();
  for (const std::string ending : {"weight_scale", "scale_weight"}) {
    for (const bool by_row : {true, false}) {
      INFO(ending << " " << by_row);
      NamedTensors tensors = scaled(plain, ending, by_row);
      tensors["scaled_fp8"] = at::zeros({2}).to(at::kFloat8_e4m3fn);
      tensors["blocks.0.down.scale_input"] = at::ones({});
      const std::string file = folder / (ending + std::to_string(by_row) + ".safetensors");
      write_safetensors(file, tensors);
      const auto in_dtype = load_dit(file, {}),
                 as_is = load_dit(file, {{"dit", Storage::kPublished}}),
                 fp8 = load_dit(file, {{"dit", Storage::kFp8}});
      CHECK(store_of(*in_dtype, "blocks.0.q.weight") == nullptr);
      CHECK(store_of(*as_is, "blocks.0.q.weight") != nullptr);
      const auto values = drawn(*in_dtype);
      check_same(values, drawn(*as_is));
      check_same(values, drawn(*fp8));  // codes are kept, not made again
      const at::Tensor& down = values.at("blocks.0.down.weight");
      const std::string name = "blocks.0.down.";
      const at::Tensor expected = (tensors.find(name + "weight")->second.to(at::kFloat) *
                                   tensors.find(name + ending)->second)
                                      .to(at::kBFloat16);
      CHECK(at::equal(down, expected));
      const auto int8 = load_dit(file, {{"dit", Storage::kInt8}});
      CHECK(store_of(*int8, "blocks.0.q.weight")->value().codes.scalar_type() == at::kChar);
      CHECK(at::allclose(drawn(*int8).at("blocks.0.down.weight").to(at::kFloat),
                         down.to(at::kFloat), 0.01, 0.05));
    }
  }
}

TEST_CASE("Plain 8-bit files are read in the dtype, and stay as they are on request", "[storage]") {
  Folder folder;
  NamedTensors tensors = dit_tensors();
  for (auto& [name, value] : tensors) value = value.to(at::kFloat8_e4m3fn);
  write_safetensors(folder / "dit.safetensors", tensors);
  const auto in_dtype = load_dit(folder / "dit.safetensors", {}),
             as_is = load_dit(folder / "dit.safetensors", {{"dit", Storage::kPublished}});
  CHECK(store_of(*in_dtype, "blocks.0.q.weight") == nullptr);
  REQUIRE(store_of(*as_is, "blocks.0.q.weight") != nullptr);
  CHECK(at::equal(store_of(*as_is, "blocks.0.q.weight")->value().scales, at::ones({32})));
  check_same(drawn(*in_dtype), drawn(*as_is));
}

TEST_CASE("Scales that are not finite are named", "[storage]") {
  Folder folder;
  NamedTensors tensors = scaled(dit_tensors(), "weight_scale", false);
  tensors["blocks.0.down.weight_scale"] = at::full({1}, NAN);
  write_safetensors(folder / "dit.safetensors", tensors);
  expect_error(ErrorCode::kDataLoss,
               {"dit.safetensors", "blocks.0.down.weight_scale", "not finite"}, [&] {
                 load_dit(folder / "dit.safetensors", {{"dit", Storage::kPublished}});
               });
}

TEST_CASE("A LoRA of 8 bits with scales is refused", "[storage]") {
  Folder folder;
  const std::string layer = "transformer.blocks.0.q.lora_";
  write_safetensors(folder / "lora.safetensors",
                    {{layer + "A.weight", at::ones({4, 32}).to(at::kFloat8_e4m3fn)},
                     {layer + "A.weight_scale", at::ones({1})},
                     {layer + "B.weight", at::ones({32, 4})}});
  expect_error(ErrorCode::kUnsupported, {"lora.safetensors", "lora_A.weight", "scales"},
               [&] { lora::LoraFile::open(folder / "lora.safetensors"); });
}

TEST_CASE("A tensor that cannot be stored in 8 bits is named", "[storage]") {
  Folder folder;
  NamedTensors tensors = dit_tensors();
  tensors["blocks.1.down.weight"][3][5] = NAN;
  write_safetensors(folder / "dit.safetensors", tensors);
  expect_error(ErrorCode::kNumerics, {"dit.safetensors", "blocks.1.down.weight", "not finite"},
               [&] {
                 load_dit(folder / "dit.safetensors", {{"dit", Storage::kInt8}});
               });
}

TEST_CASE("An entry is stored as FP8 by its name, and a name that is no entry is a mistake",
          "[storage]") {
  Folder folder;
  const std::string file = folder / "dit.safetensors";
  write_safetensors(file, dit_tensors());
  CHECK(load_dit(file, {}, {file})->storage("dit") == Storage::kFp8);
  CHECK(load_dit(file, {{"dit", Storage::kInt8}}, {file})->storage("dit") == Storage::kInt8);
  expect_error(ErrorCode::kNotFound, {"--fp8_models", "dit.safetensor\"", "did you mean " + file},
               [&] { load_dit(file, {}, {folder / "dit.safetensor"}); });
  expect_error(ErrorCode::kNotFound, {"--storage", "\"ditt\"", "did you mean dit?"}, [&] {
    load_dit(file, {{"ditt", Storage::kFp8}});
  });
}

namespace {

// Every block weight as ComfyUI's int8, with a scale a row.
NamedTensors packed_int8(const NamedTensors& plain) {
  NamedTensors out;
  const std::string text = R"({"format": "int8_tensorwise"})";
  for (const auto& [name, value] : plain) {
    out[name] = value;
    if (!name.starts_with("blocks.") || value.dim() != 2) continue;
    const at::Tensor scale = value.to(at::kFloat).abs().amax(1, /*keepdim=*/true) / 127;
    out[name] = (value.to(at::kFloat) / scale).round().to(at::kChar);
    const std::string layer = name.substr(0, name.size() - std::string("weight").size());
    out[layer + "weight_scale"] = scale;
    out[layer + "comfy_quant"] = at::tensor(
        at::ArrayRef<uint8_t>(reinterpret_cast<const uint8_t*>(text.data()), text.size()));
  }
  return out;
}

const memory::PackedStore* packed_store_of(LoadedModel& model, std::string_view path) {
  const WeightPtr weight = model.model().component("dit").find_weight(path);
  return dynamic_cast<const memory::PackedStore*>(weight->state().store().get());
}

}  // namespace

TEST_CASE("Linear layers of blocks are stored in 4 bits as bitsandbytes does", "[storage]") {
  Folder folder;
  const std::string file = folder / "dit.safetensors";
  write_safetensors(file, dit_tensors());
  const auto plain = load_dit(file, {});
  for (const auto& [storage, packing] : std::map<Storage, memory::Packing>{
           {Storage::kNf4, memory::Packing::kNf4}, {Storage::kFp4, memory::Packing::kFp4}}) {
    const auto model = load_dit(file, {{"dit", storage}});
    CHECK(packed_store_of(*model, "embed.weight") == nullptr);
    for (const char* path : {"blocks.0.q.weight", "blocks.1.up.weight", "blocks.1.down.weight"}) {
      const memory::PackedStore* store = packed_store_of(*model, path);
      REQUIRE(store != nullptr);
      CHECK(store->value().packing == packing);
      const at::Tensor value = plain->model().component("dit").find_weight(path)->draw();
      CHECK(at::equal(store->draw(),
                      memory::unpack(memory::quantize_4bit(value, packing), at::kBFloat16)));
    }
  }
}

TEST_CASE("What is published as codes stays so unless the user says otherwise", "[storage]") {
  Folder folder;
  const std::string file = folder / "dit.safetensors";
  write_safetensors(file, packed_int8(dit_tensors()));
  const auto packed = load_dit(file, {});
  CHECK(packed->storage("dit") == Storage::kPublished);
  int64_t kept = 0;  // cut and joined tensors as well
  for (const Weight* weight : storable_weights(packed->model(), "dit")) {
    kept += dynamic_cast<const memory::PackedStore*>(weight->state().store().get()) != nullptr;
  }
  CHECK(kept == std::ssize(storable_weights(packed->model(), "dit")));
  const auto values = drawn(*packed);
  for (const Storage storage : {Storage::kPlain, Storage::kBf16}) {
    const auto plain = load_dit(file, {{"dit", storage}});
    CHECK(plain->storage("dit") == Storage::kPlain);
    CHECK(packed_store_of(*plain, "blocks.0.q.weight") == nullptr);
    check_same(drawn(*plain), values);
  }
  CHECK(packed_store_of(*load_dit(file, {{"dit", Storage::kNf4}}), "blocks.0.q.weight")
            ->value()
            .packing == memory::Packing::kNf4);
  CHECK(store_of(*load_dit(file, {{"dit", Storage::kFp8}}), "blocks.0.q.weight") != nullptr);
}

TEST_CASE("Bytes that a weight rests in are those of its parts", "[storage]") {
  Folder folder;
  const std::string files[] = {folder / "plain.safetensors", folder / "int8.safetensors"};
  write_safetensors(files[0], dit_tensors());
  write_safetensors(files[1], packed_int8(dit_tensors()));
  for (const std::string& file : files) {
    for (const Storage storage : {Storage::kPlain, Storage::kFp8, Storage::kInt8, Storage::kNf4,
                                  Storage::kFp4, Storage::kPublished}) {
      const auto model = load_dit(file, {{"dit", storage}});
      for (const BoundWeight& bound : model->binding("dit").weights) {
        INFO(bound.path << " as " << storage_name(storage));
        std::vector<int64_t> bytes;
        for (const at::Tensor& part : bound.weight->state().store()->parts())
          bytes.push_back(static_cast<int64_t>(part.nbytes()));
        CHECK(bytes == resting_bytes(bound, model->find_part("dit")->checkpoint, at::kBFloat16,
                                     model->weight_storage("dit")));
      }
    }
  }
}

TEST_CASE("A quant option says how an entry is stored, and what of it is not", "[storage]") {
  Folder folder;
  const std::string file = folder / "dit.safetensors";
  write_safetensors(file, dit_tensors());
  const auto load = [&](const std::string& options, StorageByComponent storage = {}) {
    auto model = open({.model_paths = file,
                       .dtype = "bfloat16",
                       .components = {"dit"},
                       .storage = std::move(storage),
                       .quant_options = parse_quant_options(options)});
    model->load_component("dit");
    return model;
  };
  const auto whole = load(file + ":bitsandbytes_nf4");
  CHECK(whole->storage("dit") == Storage::kNf4);
  CHECK(packed_store_of(*whole, "blocks.0.down.weight") != nullptr);
  const auto part = load(file + ":bitsandbytes_nf4/down,blocks.1.gate;");
  CHECK(packed_store_of(*part, "blocks.0.up.weight") != nullptr);
  CHECK(packed_store_of(*part, "blocks.1.up.weight") == nullptr);
  CHECK(packed_store_of(*part, "blocks.0.down.weight") == nullptr);
  const auto without_block = load(file + ":bitsandbytes_nf4/blocks.1");
  CHECK(packed_store_of(*without_block, "blocks.0.up.weight") != nullptr);
  CHECK(packed_store_of(*without_block, "blocks.1.up.weight") == nullptr);
  CHECK(packed_store_of(*without_block, "blocks.1.down.weight") == nullptr);
  const auto over = load(file + ":bitsandbytes_nf4/down", {{"dit", Storage::kFp4}});
  CHECK(over->storage("dit") == Storage::kFp4);
  CHECK(packed_store_of(*over, "blocks.0.down.weight") != nullptr);
  CHECK(load(file + ":torchao_int8_w8a16")->storage("dit") == Storage::kInt8);
  expect_error(ErrorCode::kNotFound, {"--quant_options", "is no entry"},
               [&] { load("x.safetensors:bitsandbytes_nf4"); });
  expect_error(ErrorCode::kUnsupported, {"--quant_options", "torchao_mxfp4", "bitsandbytes_nf4"},
               [] { parse_quant_options("a:torchao_mxfp4"); });
  expect_error(ErrorCode::kInvalidArgument, {"--quant_options", "no entry and method"},
               [] { parse_quant_options("bitsandbytes_nf4"); });
}

TEST_CASE("8-bit weights are multiplied as codes where that is asked", "[storage]") {
  Folder folder;
  const std::string file = folder / "dit.safetensors";
  write_safetensors(file, dit_tensors());
  const auto request = [&](StorageByComponent storage, ComputeByComponent compute) {
    return LoadOptions{.model_paths = file,
                       .dtype = "bfloat16",
                       .components = {"dit"},
                       .storage = std::move(storage),
                       .compute = std::move(compute)};
  };
  for (const Storage storage : {Storage::kFp8, Storage::kInt8}) {
    const auto model = open(request({{"dit", storage}}, {{"dit", Compute::kW8A8}}));
    CHECK(model->compute("dit") == Compute::kW8A8);
    model->load_component("dit");
    int64_t codes = 0;
    model->model().component("dit").visit_weights([&](const std::string& path, Weight& weight) {
      INFO(path);
      const auto* store = dynamic_cast<const QuantizedStore*>(weight.state().store().get());
      CHECK(weight.state().draw_codes().has_value() == (store != nullptr));
      codes += store != nullptr;
    });
    CHECK(codes == std::ssize(w8a8_weights(model->model(), "dit")));
    const auto plain = open(request({{"dit", storage}}, {{"dit", Compute::kBf16}}));
    plain->load_component("dit");
    CHECK(plain->compute("dit") == Compute::kBf16);
    plain->model().component("dit").visit_weights([&](const std::string&, Weight& weight) {
      CHECK_FALSE(weight.state().draw_codes().has_value());
    });
    check_same(drawn(*model), drawn(*plain));
  }
  expect_error(ErrorCode::kInvalidArgument, {"--compute", "in --dtype", "add --storage dit=int8"},
               [&] {
                 open(request({}, {{"dit", Compute::kW8A8}}));
               });
  expect_error(ErrorCode::kInvalidArgument, {"--compute", "as published"}, [&] {
    open(request({{"dit", Storage::kPublished}}, {{"dit", Compute::kW8A8}}));
  });
  expect_error(ErrorCode::kNotFound, {"--compute", "\"ditt\"", "did you mean dit?"}, [&] {
    open(request({}, {{"ditt", Compute::kW8A8}}));
  });
  LoadOptions wide = request({}, {{"dit", Compute::kBf16}});
  wide.dtype = "float32";
  expect_error(ErrorCode::kInvalidArgument, {"--compute", "Float", "--dtype bfloat16"},
               [&] { open(wide); });
  CHECK(open(request({{"dit", Storage::kBf16}}, {}))->storage("dit") == Storage::kPlain);
  LoadOptions stored_wide = request({{"dit", Storage::kBf16}}, {});
  stored_wide.dtype = "float32";
  expect_error(ErrorCode::kInvalidArgument, {"--storage", "Float", "--dtype bfloat16"},
               [&] { open(stored_wide); });
}

TEST_CASE("Compute is read from its flag", "[storage]") {
  const ComputeByComponent compute = parse_compute({"dit=w8a8", "text_encoder=bf16", "vae=plain"});
  CHECK(compute.find("dit")->second == Compute::kW8A8);
  CHECK(compute.find("text_encoder")->second == Compute::kBf16);
  CHECK(compute.find("vae")->second == Compute::kPlain);
  CHECK(compute_name(Compute::kW8A8) == "w8a8");
  for (const std::string wrong : {"dit", "=w8a8", "dit=w4a4"}) {
    expect_error(ErrorCode::kInvalidArgument, {"--compute", wrong},
                 [&] { parse_compute({wrong}); });
  }
  expect_error(ErrorCode::kInvalidArgument, {"twice"}, [&] {
    parse_compute({"dit=w8a8", "dit=bf16"});
  });
}

TEST_CASE("Dtypes are read from their flag, for all and by component", "[storage]") {
  CHECK(parse_dtypes("auto").all == "auto");
  CHECK(parse_dtypes("auto").components.empty());
  const DtypeFlags both = parse_dtypes("bfloat16,vae=float32,text_encoder=float16");
  CHECK(both.all == "bfloat16");
  CHECK(both.components == DtypeByComponent{{"vae", at::kFloat}, {"text_encoder", at::kHalf}});
  CHECK(parse_dtypes("vae=float32").all == "auto");
  for (const char* wrong : {"vae=int4", "vae=auto", "=float32", "vae=", "float32,bfloat16"})
    expect_error(ErrorCode::kInvalidArgument, {"--dtype"}, [&] { parse_dtypes(wrong); });
  expect_error(ErrorCode::kInvalidArgument, {"named twice"},
               [] { parse_dtypes("vae=float32,vae=float16"); });
  CHECK(dtype_named("bfloat16") == at::kBFloat16);
  CHECK(dtype_name(at::kHalf) == "float16");
}

TEST_CASE("Storage is read from its flag", "[storage]") {
  const StorageByComponent storage =
      parse_storage({"dit=fp8", "text_encoder=int8", "vae=plain", "more=published"});
  CHECK(storage.size() == 4);
  CHECK(storage.find("dit")->second == Storage::kFp8);
  CHECK(storage.find("more")->second == Storage::kPublished);
  CHECK(storage_name(Storage::kInt8) == "int8");
  CHECK(parse_storage({"dit=bf16"}).find("dit")->second == Storage::kBf16);
  for (const char* wrong : {"dit", "=fp8", "dit=", "dit=fp16"})
    expect_error(ErrorCode::kInvalidArgument, {"--storage", wrong},
                 [&] { parse_storage({wrong}); });
  expect_error(ErrorCode::kInvalidArgument, {"named twice"}, [] {
    parse_storage({"dit=fp8", "dit=int8"});
  });
}
