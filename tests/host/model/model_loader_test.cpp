#include "host/model/model_loader.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "host/files/safetensors_writer.h"
#include "host/model/encoder_check.h"
#include "host/weights/component_writer.h"
#include "host/weights/weight_loading.h"
#include "support/files.h"
#include "support/toy_family.h"

using namespace atelier;
using namespace atelier::files;
using namespace atelier::model;
using namespace atelier::weights;
using test::expect_error;
using test::Folder;
using test::write_bytes;

namespace {

const test::ToyFamily& family() {
  static const test::ToyFamily toy;
  return toy;
}

// Random weights of one component, in its published spelling.
void write_component(const std::string& path, const std::string& component,
                     at::ScalarType type = at::kFloat, const std::string& prefix = {}) {
  test::fs::create_directories(test::fs::path(path).parent_path());
  for (const Detection& part : family().tiny_parts()) {
    if (part.component != component) continue;
    const auto model = family().make_model({&part, 1}, {});
    at::manual_seed(7);
    model->component(component).visit_weights([&](const std::string&, Weight& weight) {
      weight.set(at::randn(weight.sizes()).to(type));
    });
    save_component(model->component(component), family().weight_map(part), prefix, path, {});
  }
}

// A whole model as a folder.
void write_model(const std::string& folder, at::ScalarType dit = at::kBFloat16) {
  write_component(folder + "/transformer/model.safetensors", "dit", dit);
  write_component(folder + "/text_encoder/model.safetensors", "text_encoder");
  write_component(folder + "/vae/model.safetensors", "vae");
  write_bytes(folder + "/tokenizer/tokenizer.json", "{}");
}

std::unique_ptr<LoadedModel> open(LoadOptions request) {
  request.device = "cpu";
  return LoadedModel::open(family(), request);
}

std::string list(const std::vector<std::string>& paths) {
  return nlohmann::json(paths).dump();
}

int64_t status_kib(const std::string& key) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(key)) return std::strtoll(line.c_str() + key.size() + 1, nullptr, 10);
  }
  return 0;
}

}  // namespace

TEST_CASE("A model folder is recognised, and its components come and go", "[loader]") {
  Folder folder;
  write_model(folder / "m");
  const auto model = open({.model_paths = folder / "m"});
  CHECK(model->parts().size() == 3);
  REQUIRE(model->stages().first() != nullptr);
  CHECK(model->stages().first()->name() == "dit");
  CHECK(model->dtype() == at::kBFloat16);  // as the denoiser is published
  CHECK(model->model().tokenize("ab") == std::vector<int64_t>{'a' % 48, 'b' % 48});

  nn::Module& dit = model->model().component("dit");
  CHECK(!model->is_loaded("dit"));
  CHECK(!dit.find_weight("embed.weight")->is_loaded());
  std::vector<LoadProgress> seen;
  model->load_component("dit", [&](const LoadProgress& progress) { seen.push_back(progress); });
  CHECK(model->is_loaded("dit"));
  REQUIRE(!seen.empty());
  CHECK(seen.back().done);
  CHECK(seen.back().component == "dit");
  CHECK(seen.back().bytes_done == seen.back().bytes_total);
  CHECK(static_cast<uint64_t>(seen.back().bytes_total) ==
        model->find_part("dit")->checkpoint.bytes());
  CHECK(dit.find_weight("blocks.1.k.weight")->draw().scalar_type() == at::kBFloat16);
  const at::Tensor fused = model->find_part("dit")->checkpoint.read("blocks.1.qkv.weight");
  CHECK(at::equal(dit.find_weight("blocks.1.k.weight")->draw(), fused.narrow(0, 32, 32)));

  model->load_component("vae");
  CHECK(model->model().component("vae").find_weight("scale.weight")->draw().scalar_type() ==
        at::kBFloat16);
  model->unload_component("dit");
  CHECK(!model->is_loaded("dit"));
  CHECK(!dit.find_weight("embed.weight")->is_loaded());
  model->load_component("dit");
  CHECK(dit.find_weight("embed.weight")->is_loaded());
  expect_error(ErrorCode::kNotFound, {"nothing"}, [&] { model->load_component("nothing"); });
}

TEST_CASE("The dtype is what is asked for, or what the denoiser is published in", "[loader]") {
  Folder folder;
  write_model(folder / "m", at::kHalf);
  CHECK(open({.model_paths = folder / "m"})->dtype() == at::kHalf);
  CHECK(open({.model_paths = folder / "m", .dtype = "float32"})->dtype() == at::kFloat);
  write_model(folder / "f8", at::kFloat8_e4m3fn);
  CHECK(open({.model_paths = folder / "f8"})->dtype() == at::kBFloat16);
  expect_error(ErrorCode::kInvalidArgument, {"--dtype", "int4"},
               [&] { open({.model_paths = folder / "m", .dtype = "int4"}); });
}

TEST_CASE("A component may have a dtype of its own", "[loader]") {
  Folder folder;
  write_model(folder / "m", at::kHalf);
  const auto model =
      open({.model_paths = folder / "m", .dtype = "bfloat16", .dtypes = {{"vae", at::kFloat}}});
  CHECK(model->dtype() == at::kBFloat16);
  CHECK(model->dtype("text_encoder") == at::kBFloat16);
  CHECK(model->dtype("vae") == at::kFloat);
  CHECK(model->decoder_dtype() == at::kFloat);
  for (const char* component : {"vae", "dit"}) {
    model->load_component(component);
    model->model().component(component).visit_weights([&](const std::string&, Weight& weight) {
      CHECK(weight.draw().scalar_type() == model->dtype(component));
    });
  }
  // The denoiser's is what latents have; others keep what they are published in.
  const auto mixed = open({.model_paths = folder / "m", .dtypes = {{"dit", at::kFloat}}});
  CHECK(mixed->dtype() == at::kFloat);
  CHECK(mixed->dtype("vae") == at::kHalf);
  expect_error(ErrorCode::kNotFound, {"--dtype", "vea", "vae"}, [&] {
    open({.model_paths = folder / "m", .dtypes = {{"vea", at::kFloat}}});
  });
}

TEST_CASE("Only the components that are asked for have to be there", "[loader]") {
  Folder folder;
  write_component(folder / "dit.safetensors", "dit", at::kFloat, "model.diffusion_model.");
  const auto model = open({.model_paths = folder / "dit.safetensors", .components = {"dit"}});
  CHECK(model->find_part("vae") == nullptr);
  CHECK(model->stages().first()->part.prefix == "model.diffusion_model.");
  model->load_component("dit");
  expect_error(ErrorCode::kNotFound, {"no_such", "did you mean"}, [&] {
    open({.model_paths = folder / "dit.safetensors", .components = {"no_such", "ditt"}});
  });
}

namespace {

// A toy whose VAE is not as the family's.
struct ToyWithVae final : test::ToyFamily {
  std::vector<ComponentSpec> specs;
  ToyWithVae(bool required, std::string_view variants)
      : specs(ToyFamily::components().begin(), ToyFamily::components().end()) {
    specs[1].required = required;
    specs[1].variants = variants;
  }
  std::span<const ComponentSpec> components() const override { return specs; }
  std::unique_ptr<LoadedModel> open(LoadOptions request) const {
    request.device = "cpu";
    return LoadedModel::open(*this, request);
  }
};

}  // namespace

TEST_CASE("A component of other variants is neither demanded nor taken", "[loader]") {
  Folder folder;
  write_model(folder / "m");  // of the variant "base"
  const std::string dit = folder / "m/transformer", text = folder / "m/text_encoder",
                    vae = folder / "m/vae", whole = folder / "m";
  const ToyWithVae edit(/*required=*/true, "edit*");
  CHECK(edit.open({.model_paths = list({dit, text})})->parts().size() == 2);
  // A model folder may hold more than its variant uses.
  CHECK(edit.open({.model_paths = whole})->find_part("vae") == nullptr);
  expect_error(ErrorCode::kInvalidArgument,
               {"m/vae: is the component vae, which the variant \"base\" does without",
                "it is for \"edit*\"", "[CHECKPOINT_VARIANT]"},
               [&] {
                 edit.open({.model_paths = list({dit, text, vae})});
               });
  // Without a denoiser no variant is known, and the file may be the right one.
  CHECK(edit.open({.model_paths = vae, .components = {"vae"}})->find_part("vae") != nullptr);
  const ToyWithVae base(/*required=*/true, "ba*");
  expect_error(ErrorCode::kNotFound, {"component vae is missing"}, [&] {
    base.open({.model_paths = list({dit, text})});
  });
}

TEST_CASE("Without a denoiser the user says which variant is meant", "[loader]") {
  Folder folder;
  write_model(folder / "m");  // of the variant "base"
  const std::string vae = folder / "m/vae";
  const ToyWithVae edit(/*required=*/true, "edit*");
  const auto open = [&](const std::string& paths, const std::string& variant) {
    return edit.open({.model_paths = paths,
                      .hints = {{"*/vae/*", {.component = {}, .variant = variant}}},
                      .components = {"vae"}});
  };
  CHECK(open(vae, "")->stages().variant.empty());
  CHECK(open(vae, "edit-2")->stages().variant == "edit-2");
  expect_error(ErrorCode::kInvalidArgument, {"which the variant \"base\" does without"},
               [&] { open(vae, "base"); });
  // A denoiser knows better.
  CHECK(open(folder / "m", "edit-2")->stages().variant == "base");
}

TEST_CASE("What is not required is demanded by the inputs that it encodes", "[loader]") {
  Folder folder;
  write_model(folder / "m");
  const std::string some = list({folder / "m/transformer", folder / "m/text_encoder"});
  const ToyWithVae family(/*required=*/false, "*"), other(/*required=*/false, "edit*");
  const auto without = family.open({.model_paths = some});
  CHECK_FALSE(missing_encoder(*without, "prompt"));
  const auto error = missing_encoder(*without, "image");
  REQUIRE(error);
  CHECK(error->message() == "is encoded by the component vae, which is missing (folded pixels)");
  CHECK_FALSE(missing_encoder(*family.open({.model_paths = folder / "m"}), "image"));
  CHECK_FALSE(missing_encoder(*other.open({.model_paths = some}), "image"));
}

TEST_CASE("Every mistake with the files is in one error", "[loader]") {
  Folder folder;
  write_model(folder / "m");
  const std::string dit = folder / "m/transformer", vae = folder / "m/vae",
                    text = folder / "m/text_encoder";

  SECTION("what is missing is named with what to pass") {
    expect_error(
        ErrorCode::kNotFound,
        {"3 mistakes", "component text_encoder is missing (a table)", "component vae is missing",
         "component tokenizer is missing", "--tokenizer_path", "--model_paths"},
        [&] { open({.model_paths = dit}); });
  }
  SECTION("the tokenizer is found beside the text encoder") {
    CHECK(open({.model_paths = list({dit, vae, text})})->model().tokenize("a").size() == 1);
    test::fs::remove_all(folder / "m/tokenizer");
    expect_error(ErrorCode::kNotFound, {"component tokenizer is missing", folder / "m/tokenizer"},
                 [&] {
                   open({.model_paths = list({dit, vae, text})});
                 });
    write_bytes(folder / "t/vocab.json", "{}");
    CHECK(open({.model_paths = list({dit, vae, text}), .tokenizer_path = folder / "t"})
              ->parts()
              .size() == 3);
    expect_error(ErrorCode::kNotFound, {"--tokenizer_path", "holds no tokenizer.json"}, [&] {
      open({.model_paths = list({dit, vae, text}), .tokenizer_path = folder / "none"});
    });
  }
  SECTION("a LoRA given as a model is named as one") {
    write_safetensors(folder / "lora.safetensors",
                      {{"transformer.blocks.0.q.lora_A.weight", at::zeros({4, 32})},
                       {"transformer.blocks.0.q.lora_B.weight", at::zeros({32, 4})}});
    expect_error(ErrorCode::kUnsupported,
                 {"lora.safetensors: is a LoRA, not a model", "[CHECKPOINT_LORA]"}, [&] {
                   open({.model_paths = list({folder / "m", folder / "lora.safetensors"})});
                 });
    for (const char* name : {"lora_unet_blocks_0_q.lora_down.weight", "a.lora.up.weight",
                             "x.lokr_w1", "x.hada_w1_a", "transformer.a.lora_A.default.weight"})
      CHECK(is_lora(TensorIndex({{name, TensorMeta{at::kFloat, {1, 1}}}})));
    CHECK(!is_lora(TensorIndex({{"floral.weight", TensorMeta{at::kFloat, {1, 1}}}})));
  }
  SECTION("two checkpoints for one component") {
    write_component(folder / "one.safetensors", "vae");
    write_component(folder / "two.safetensors", "vae");
    expect_error(ErrorCode::kInvalidArgument,
                 {"one.safetensors", "two.safetensors", "both are the component vae"}, [&] {
                   open({.model_paths = list(
                             {folder / "one.safetensors", folder / "two.safetensors", dit, text})});
                 });
    // A file that is named by itself takes the place of the one in a model folder.
    const auto model = open({.model_paths = list({folder / "m", folder / "one.safetensors"})});
    CHECK(model->find_part("vae")->checkpoint.name() == folder / "one.safetensors");
  }
  SECTION("a checkpoint of nobody says what is nearest") {
    write_safetensors(folder / "other.safetensors", {{"some.weight", at::zeros({3})}});
    expect_error(ErrorCode::kUnsupported,
                 {"other.safetensors: is no component of toy (1 tensors", "\"some.weight\""}, [&] {
                   open({.model_paths = list({folder / "m", folder / "other.safetensors"})});
                 });
    write_safetensors(folder / "near.safetensors", {{"blocks.0.down.weight", at::zeros({3})},
                                                    {"blocks.0.down.bias", at::zeros({3})},
                                                    {"blocks.0.new.bias", at::zeros({3})}});
    expect_error(ErrorCode::kUnsupported, {"nearest is dit: 2 of its 3 names"}, [&] {
      open({.model_paths = list({folder / "m", folder / "near.safetensors"})});
    });
  }
  SECTION("missing, unexpected and mis-shaped tensors of several components") {
    NamedTensors tensors;
    const Checkpoint whole = Checkpoint::open("vae", {folder / "m/vae/model.safetensors"});
    tensors["scale.weight"] = at::zeros({3, 4});
    tensors["stray"] = at::zeros({1});
    write_safetensors(folder / "m/vae/model.safetensors", tensors);
    tensors.clear();
    const Checkpoint blocks = Checkpoint::open("dit", {folder / "m/transformer/model.safetensors"});
    for (const auto& [name, meta] : blocks.index().tensors()) tensors[name] = blocks.read(name);
    tensors.erase("blocks.1.gate.weight");
    tensors["extra.thing"] = at::zeros({5});  // known and not used
    write_safetensors(folder / "m/transformer/model.safetensors", tensors);
    expect_error(ErrorCode::kInvalidArgument,
                 {"2 mistakes",
                  "does not fit dit of toy: 1 tensors missing, 0 unexpected, 0 of another shape",
                  "blocks.1.gate.weight",
                  "does not fit vae of toy: 1 tensors missing, 1 unexpected, 1 of another shape",
                  "\"scale.bias\"", "\"stray\"", "[3, 4], expected [3, 3]"},
                 [&] { open({.model_paths = folder / "m"}); });
  }
  SECTION("a hint that the tensors contradict") {
    expect_error(ErrorCode::kInvalidArgument, {"transformer", "is the dit, not the vae"}, [&] {
      open({.model_paths = folder / "m", .hints = {{"*transformer*", {"vae", ""}}}});
    });
  }
  SECTION("a device that is none") {
    expect_error(ErrorCode::kInvalidArgument, {"abacus"}, [&] {
      LoadedModel::open(family(), {.model_paths = folder / "m", .device = "abacus"});
    });
  }
}

TEST_CASE("A config comes from the file, from beside it, or from the same component elsewhere",
          "[loader]") {
  Folder folder;
  write_model(folder / "m");
  write_component(folder / "one.safetensors", "vae");
  const auto opened = [&](std::vector<std::string> paths) {
    return open({.model_paths = list(paths)});
  };
  const auto cells = [](const LoadedModel& model) {
    CHECK(model.find_part("vae")->checkpoint.name().ends_with(".safetensors"));
    return model.find_part("vae")->detection.integer("cells");
  };
  const std::string one = folder / "one.safetensors";
  CHECK(cells(*opened({folder / "m", one})) == test::kToyCells);  // nobody says it

  write_bytes(folder / "m/vae/config.json", R"({"cells": 5})");
  for (const auto& paths : {std::vector{folder / "m", one}, std::vector{one, folder / "m"}}) {
    const auto model = opened(paths);
    CHECK(cells(*model) == 5);
    CHECK(model->find_part("vae")->checkpoint.config()->place == folder / "m/vae/config.json");
  }
  CHECK(cells(*opened({folder / "m/transformer", folder / "m/text_encoder", one})) ==
        test::kToyCells);
  const auto lender = opened({folder / "m"});
  CHECK(cells(*open({.model_paths = one, .lenders = lender->parts(), .components = {"vae"}})) == 5);

  write_bytes(folder / "config.json", R"({"cells": 6})");
  CHECK(cells(*opened({folder / "m", one})) == 6);

  const Checkpoint plain = Checkpoint::open("vae", {one});
  NamedTensors tensors;
  for (const auto& [name, meta] : plain.index().tensors()) tensors[name] = plain.read(name);
  write_safetensors(one, tensors, {{kConfigKey, R"({"cells": 7})"}});
  const auto model = opened({folder / "m", one});
  CHECK(cells(*model) == 7);
  CHECK(model->find_part("vae")->checkpoint.config()->place == one + ":__metadata__");
}

TEST_CASE("What keeps a family from looking at a checkpoint is no answer about it", "[loader]") {
  // Fails where the config of another checkpoint is lent.
  struct Failing final : test::ToyFamily {
    ErrorCode code = ErrorCode::kUnsupported;
    std::optional<Detection> detect(const TensorIndex& index,
                                    const DetectHint& hint) const override {
      if (index.config_integer("cells") == 5) throw Error(code, "not with this config");
      return ToyFamily::detect(index, hint);
    }
  } toy;
  Folder folder;
  write_model(folder / "m");
  write_component(folder / "one.safetensors", "vae");
  write_bytes(folder / "m/vae/config.json", R"({"cells": 5})");
  const Checkpoint one = Checkpoint::open("one", {folder / "one.safetensors"});
  const auto lender = open({.model_paths = folder / "m"});
  const std::vector<LoadedPart> lenders = {*lender->find_part("vae")};
  REQUIRE(lenders.front().checkpoint.config());
  for (const ErrorCode answer : {ErrorCode::kUnsupported, ErrorCode::kInvalidArgument}) {
    toy.code = answer;
    CHECK(detect_parts(toy, one, {}, lenders).size() == 1);
  }
  for (const ErrorCode failure :
       {ErrorCode::kEnvironment, ErrorCode::kInternal, ErrorCode::kOutOfMemory}) {
    toy.code = failure;
    expect_error(failure, {"one: ", "not with this config"},
                 [&] { detect_parts(toy, one, {}, lenders); });
  }
}

TEST_CASE("Loading takes the memory of the weights and little more", "[loader]") {
  Folder folder;
  constexpr int64_t kRows = 8192, kColumns = 1024;  // 32 MiB in float32
  const std::vector<std::string> names = {"w0", "w1", "w2", "w3"};
  struct Big : nn::Module {
    explicit Big(const std::vector<std::string>& names) : Module(nullptr, "") {
      for (const std::string& name : names) declare(name, {kRows, kColumns});
    }
  };
  {
    NamedTensors tensors;
    for (const std::string& name : names) tensors[name] = at::ones({kRows, kColumns});
    write_safetensors(folder / "big.safetensors", tensors);
  }
  const Checkpoint file = Checkpoint::open("big", {folder / "big.safetensors"});
  WeightMap rules;
  for (const std::string& name : names) rules.push_back({name, name});
  for (const auto& [type, held_mib] : {std::pair(at::kFloat, 128), std::pair(at::kBFloat16, 64)}) {
    Big module(names);
    std::ofstream("/proc/self/clear_refs") << "5";  // forget the peak so far
    const int64_t before = status_kib("VmRSS");
    load_weights(bind_weights(rules, "", file.index(), module), file, type, at::kCPU);
    const int64_t peak = status_kib("VmHWM") - before;
    INFO("peak " << peak << " KiB");
    CHECK(peak < (held_mib + 40) * 1024);
    CHECK(module.find_weight("w3")->draw().sum().item<double>() ==
          static_cast<double>(kRows * kColumns));
  }
}
