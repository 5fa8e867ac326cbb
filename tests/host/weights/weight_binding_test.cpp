#include "host/weights/weight_binding.h"

#include "host/files/safetensors_writer.h"
#include "host/weights/component_writer.h"
#include "host/weights/weight_loading.h"
#include "support/files.h"
#include "support/toy_family.h"

using namespace atelier;
using namespace atelier::files;
using namespace atelier::weights;
using test::expect_error;
using test::Folder;

namespace {

// Modules with the weights that a test names.
struct Weights : nn::Module {
  explicit Weights(const std::map<std::string, std::vector<int64_t>>& shapes)
      : Module(nullptr, "") {
    for (const auto& [name, shape] : shapes) declare(name, shape);
  }
  at::Tensor value(const std::string& name) { return find_weight(name)->draw(); }
};

TensorIndex index_of(const std::map<std::string, std::vector<int64_t>>& shapes) {
  TensorIndex::Tensors tensors;
  for (const auto& [name, shape] : shapes) tensors.emplace(name, TensorMeta{at::kFloat, shape});
  return TensorIndex(std::move(tensors));
}

}  // namespace

TEST_CASE("Tensors are carried across, cut and joined, on any axis", "[weights]") {
  Folder folder;
  at::manual_seed(1);
  const WeightMap rules = {
      {"w.{}.a", "m{}.a"}, {"w.{}.qkv", "m{}.q", 1}, {"w.{}.qkv", "m{}.kv", 1}, {"up", "both", 0},
      {"down", "both", 0}, {"left", "wide", 1},      {"right", "wide", 1},      {"unused.*"}};
  const NamedTensors tensors = {
      {"p.w.0.a", at::randn({3})},         {"p.w.10.a", at::randn({3})},
      {"p.w.0.qkv", at::randn({4, 6, 2})}, {"p.w.10.qkv", at::randn({4, 6, 2})},
      {"p.up", at::randn({2, 5})},         {"p.down", at::randn({1, 5})},
      {"p.left", at::randn({3, 2})},       {"p.right", at::randn({3, 5})},
      {"p.unused.thing", at::randn({9})}};
  write_safetensors(folder / "a.safetensors", tensors);
  Weights module({{"m0.a", {3}},
                  {"m10.a", {3}},
                  {"m0.q", {4, 2, 2}},
                  {"m0.kv", {4, 4, 2}},
                  {"m10.q", {4, 2, 2}},
                  {"m10.kv", {4, 4, 2}},
                  {"both", {3, 5}},
                  {"wide", {3, 7}}});
  const Checkpoint file = Checkpoint::open({"a", {folder / "a.safetensors"}});
  const WeightBinding binding = bind_weights(rules, "p.", file.index(), module);
  binding.throw_unless_complete("a", "toy");
  CHECK(binding.unused == std::vector<std::string>{"p.unused.thing"});
  load_weights(binding, file, at::kFloat, at::kCPU);
  CHECK(at::equal(module.value("m10.a"), tensors.at("p.w.10.a")));
  CHECK(at::equal(module.value("m0.q"), tensors.at("p.w.0.qkv").narrow(1, 0, 2)));
  CHECK(at::equal(module.value("m10.kv"), tensors.at("p.w.10.qkv").narrow(1, 2, 4)));
  CHECK(at::equal(module.value("both"), at::cat({tensors.at("p.up"), tensors.at("p.down")})));
  CHECK(at::equal(module.value("wide"), at::cat({tensors.at("p.left"), tensors.at("p.right")}, 1)));

  SECTION("and back, with the lengths of the published file") {
    save_component(module, rules, "p.", folder / "b.safetensors", {{"k", "v"}}, &file);
    const Checkpoint again = Checkpoint::open({"b", {folder / "b.safetensors"}});
    CHECK(again.metadata().at("k") == "v");
    CHECK(again.index().tensors().size() == tensors.size());
    for (const auto& [name, value] : tensors) CHECK(at::equal(again.read(name), value));
  }
  SECTION("in another dtype") {
    load_weights(binding, file, at::kBFloat16, at::kCPU);
    CHECK(at::equal(module.value("m10.kv"),
                    tensors.at("p.w.10.qkv").narrow(1, 2, 4).to(at::kBFloat16)));
    CHECK(at::equal(module.value("wide"),
                    at::cat({tensors.at("p.left"), tensors.at("p.right")}, 1).to(at::kBFloat16)));
  }
}

TEST_CASE("Weights reach a device in slices through pinned memory, with the same values",
          "[weights]") {
  Folder folder;
  at::manual_seed(5);
  const WeightMap rules = {{"up", "both", 0},    {"down", "both", 0}, {"left", "wide", 1},
                           {"right", "wide", 1}, {"one", "one"},      {"none", "none"},
                           {"half", "half"}};
  const NamedTensors tensors = {{"up", at::randn({20, 50})},
                                {"down", at::randn({10, 50})},
                                {"left", at::randn({30, 20})},
                                {"right", at::randn({30, 50})},
                                {"one", at::randn({})},
                                {"none", at::randn({0, 4})},
                                {"half", at::randn({700}).to(at::kBFloat16)}};
  write_safetensors(folder / "a.safetensors", tensors);
  const std::map<std::string, std::vector<int64_t>> shapes = {
      {"both", {30, 50}}, {"wide", {30, 70}}, {"one", {}}, {"none", {0, 4}}, {"half", {700}}};
  const Checkpoint file = Checkpoint::open({"a", {folder / "a.safetensors"}});
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const int64_t staging_bytes : {64, 1000, 1 << 20}) {
      INFO(toString(dtype) << " through " << staging_bytes);
      Weights plain(shapes), sent(shapes);
      load_weights(bind_weights(rules, "", file.index(), plain), file, dtype, at::kCPU, {}, {},
                   {.maps = false});
      // Slow copies into memory that is NaN before: what is read too early is seen.
      const auto device = memory::make_simulated_device({.bytes_per_second = 2e6, .poison = true});
      int64_t told = 0;
      load_weights(bind_weights(rules, "", file.index(), sent), file, dtype, at::kCPU,
                   [&](int64_t bytes) { told = bytes; }, {},
                   {.transfer = device.get(), .staging_bytes = staging_bytes});
      int64_t bytes = 0;
      for (const auto& [name, shape] : shapes) {
        INFO(name);
        CHECK(at::equal(sent.value(name), plain.value(name)));
        bytes += static_cast<int64_t>(sent.value(name).nbytes());
      }
      CHECK(device->stats().bytes_in == bytes);
      CHECK(told == bytes_to_read(bind_weights(rules, "", file.index(), sent), file));
    }
  }
}

TEST_CASE("Weights are stored in 8 bits on the device that they are sent to", "[weights]") {
  Folder folder;
  at::manual_seed(6);
  write_safetensors(folder / "a.safetensors", {{"w", at::randn({40, 32})}});
  const Checkpoint file = Checkpoint::open({"a", {folder / "a.safetensors"}});
  for (const auto place : {memory::Place::kDevice, memory::Place::kHost}) {
    std::vector<at::Tensor> drawn;
    for (const bool is_sent : {false, true}) {
      Weights module({{"w", {40, 32}}});
      const WeightPtr weight = module.find_weight("w");
      const auto device = memory::make_simulated_device({.poison = true});
      load_weights(bind_weights({{"w", "w"}}, "", file.index(), module), file, at::kBFloat16,
                   at::kCPU, {}, {.storage = Storage::kFp8, .weights = {weight.get()}},
                   {.places = {{weight.get(), place}},
                    .transfer = is_sent ? device.get() : nullptr,
                    .staging_bytes = 512});
      drawn.push_back(weight->draw());
      CHECK((device->stats().bytes_in > 0) == is_sent);
    }
    CHECK(at::equal(drawn[0], drawn[1]));
  }
}

TEST_CASE("Pinned memory is no larger than what goes through it, and is given back", "[weights]") {
  Folder folder;
  write_safetensors(folder / "a.safetensors",
                    {{"a", at::ones({100})}, {"b", at::ones({30})}, {"here", at::ones({5000})}});
  const Checkpoint file = Checkpoint::open({"a", {folder / "a.safetensors"}});
  Weights module({{"a", {100}}, {"b", {30}}, {"here", {5000}}});
  const auto device = memory::make_simulated_device({});
  int64_t most = 0;
  const WeightMap rules = {{"a", "a"}, {"b", "b"}, {"here", "here"}};
  load_weights(bind_weights(rules, "", file.index(), module), file, at::kFloat, at::kCPU,
               [&](int64_t) { most = std::max(most, device->stats().host_bytes); }, {},
               {.places = {{module.find_weight("here").get(), memory::Place::kHost}},
                .transfer = device.get()});
  CHECK(device->stats().bytes_in == 4 * (100 + 30));
  CHECK(most == 448 + 128);  // aligned to 64
  CHECK(device->stats().host_bytes == 0);
}

TEST_CASE("What does not stay on the device as it is read comes in groups", "[weights]") {
  constexpr int64_t kRows = 1280, kColumns = 4096, kCount = 5;  // 20 MiB each as float32
  Folder folder;
  NamedTensors tensors;
  std::map<std::string, std::vector<int64_t>> shapes;
  for (int64_t i = 0; i < kCount; ++i) {
    const std::string name = "w" + std::to_string(i) + ".weight";
    tensors[name] = at::full({kRows, kColumns}, static_cast<double>(i)).to(at::kFloat8_e4m3fn);
    tensors[name + "_scale"] = at::full({1}, 0.5);
    shapes[name] = {kRows, kColumns};
  }
  write_safetensors(folder / "a.safetensors", tensors);
  const Checkpoint file = Checkpoint::open({"a", {folder / "a.safetensors"}});
  Weights module(shapes);
  const auto device = memory::make_simulated_device({.capacity = int64_t{1} << 30});
  load_weights(bind_weights({{"w{}.weight", "w{}.weight"}}, "", file.index(), module), file,
               at::kBFloat16, at::kCPU, {}, {}, {.transfer = device.get()});
  CHECK(device->stats().peak_bytes < 4 * kCount * kRows * kColumns);
  for (int64_t i = 0; i < kCount; ++i) {
    const at::Tensor value = module.value("w" + std::to_string(i) + ".weight");
    CHECK((value == 0.5 * static_cast<double>(i)).all().item<bool>());
  }
}

TEST_CASE("A device that is not the host is loaded by its transfers alone", "[weights]") {
  Folder folder;
  write_safetensors(folder / "a.safetensors", {{"w", at::ones({2})}});
  const Checkpoint file = Checkpoint::open({"a", {folder / "a.safetensors"}});
  Weights module({{"w", {2}}});
  expect_error(ErrorCode::kInternal, {"meta"}, [&] {
    load_weights(bind_weights({{"w", "w"}}, "", file.index(), module), file, at::kFloat, at::kMeta);
  });
}

TEST_CASE("Weights that keep float32 come so, whatever the others are", "[weights]") {
  struct Mixed : nn::Module {
    WeightPtr table = declare("table", {3, 4}, {.keeps_float32 = true}),
              half = declare("half", {4}, {.keeps_float32 = true}), other = declare("other", {4});
    Mixed() : Module(nullptr, "") {}
  };
  Folder folder;
  at::manual_seed(2);
  const NamedTensors tensors = {{"table", at::randn({3, 4})},
                                {"half", at::randn({4}).to(at::kBFloat16)},
                                {"other", at::randn({4})}};
  write_safetensors(folder / "a.safetensors", tensors);
  Mixed module;
  const WeightMap rules = {{"table", "table"}, {"half", "half"}, {"other", "other"}};
  const Checkpoint file = Checkpoint::open({"a", {folder / "a.safetensors"}});
  const WeightBinding binding = bind_weights(rules, "", file.index(), module);
  load_weights(binding, file, at::kBFloat16, at::kCPU);
  CHECK(at::equal(module.table->draw(), tensors.at("table")));
  CHECK(module.half->draw().scalar_type() == at::kFloat);
  CHECK(at::equal(module.half->draw(), tensors.at("half").to(at::kFloat)));
  CHECK(at::equal(module.other->draw(), tensors.at("other").to(at::kBFloat16)));

  save_component(module, rules, "", folder / "b.safetensors", {}, &file);
  const Checkpoint saved = Checkpoint::open({"b", {folder / "b.safetensors"}});
  CHECK(at::equal(saved.read("table"), tensors.at("table")));
}

TEST_CASE("Everything that does not fit is reported at once", "[weights]") {
  const WeightMap rules = {{"a.{}", "a{}"},
                           {"fused", "x", 0},
                           {"fused", "y", 0},
                           {"one", "joined", 0},
                           {"two", "joined", 0}};
  Weights module(
      {{"a0", {2}}, {"a1", {2}}, {"x", {2, 3}}, {"y", {2, 3}}, {"joined", {4}}, {"lost", {1}}});
  const WeightBinding binding = bind_weights(rules, "",
                                             index_of({{"a.0", {3}},
                                                       {"a.7", {2}},
                                                       {"stray\n", {1}},
                                                       {"fused", {5, 3}},
                                                       {"one", {3}},
                                                       {"two", {3}}}),
                                             module);
  CHECK(!binding.is_complete());
  CHECK(binding.missing ==
        std::vector<std::string>{"\"a.1\"", "weight \"lost\", which has no row"});
  CHECK(binding.unexpected == std::vector<std::string>{"\"a.7\"", R"("stray\n")"});
  REQUIRE(binding.misshaped.size() == 3);
  expect_error(ErrorCode::kInvalidArgument,
               {"file: does not fit toy: 2 tensors missing, 2 unexpected, 3 of another shape",
                "\"a.0\": [3], expected [2]", "[WEIGHTS_MISMATCH]"},
               [&] { binding.throw_unless_complete("file", "toy"); });

  SECTION("a joined weight that lacks one of its tensors names that one") {
    const WeightBinding half = bind_weights(rules, "", index_of({{"one", {2}}}), module);
    CHECK(std::count(half.missing.begin(), half.missing.end(), "\"two\"") == 1);
    CHECK(std::count(half.missing.begin(), half.missing.end(), "\"one\"") == 0);
    CHECK(std::count(half.missing.begin(), half.missing.end(), "\"fused\"") == 1);
  }
  SECTION("long lists end with a count") {
    std::map<std::string, std::vector<int64_t>> many;
    for (int i = 100; i < 150; ++i) many["stray" + std::to_string(i)] = {1};
    expect_error(ErrorCode::kInvalidArgument, {"stray119", "and 30 more"}, [&] {
      bind_weights(rules, "", index_of(many), module).throw_unless_complete("file", "toy");
    });
  }
}

TEST_CASE("Only block numbers stand for block numbers", "[weights]") {
  Weights module({{"a0", {1}}});
  for (const char* name : {"a.00", "a.", "a.x", "a.-1", "a.0x", "a.1e1"}) {
    INFO(name);
    CHECK(!bind_weights({{"a.{}", "a{}"}}, "", index_of({{"a.0", {1}}, {name, {1}}}), module)
               .is_complete());
  }
  CHECK(bind_weights({{"a.{}", "a{}"}}, "", index_of({{"a.0", {1}}}), module).is_complete());
  CHECK(!bind_weights({{"a.{}", "a{}"}}, "p.", index_of({{"a.0", {1}}}), module).is_complete());
}

TEST_CASE("A component is saved and loaded again bit for bit", "[weights]") {
  Folder folder;
  const test::ToyFamily family;
  const std::vector<Detection> parts = family.tiny_parts();
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const auto model = family.make_model(parts, {}), twin = family.make_model(parts, {});
    at::manual_seed(5);
    for (const Detection& part : parts) {
      nn::Module& module = model->component(part.component);
      module.visit_weights([&](const std::string&, Weight& weight) {
        weight.set(at::randn(weight.sizes()).to(type));
      });
      const std::string path = folder / (part.component + ".safetensors");
      save_component(module, family.weight_map(part), part.prefix, path, {});
      const Checkpoint file = Checkpoint::open({path, {path}});
      nn::Module& loaded = twin->component(part.component);
      load_weights(bind_weights(family.weight_map(part), part.prefix, file.index(), loaded), file,
                   type, at::kCPU);
      module.visit_weights([&](const std::string& name, Weight& weight) {
        CHECK(at::equal(weight.draw(), loaded.find_weight(name)->draw()));
      });
      const std::string again = folder / "again.safetensors";
      save_component(loaded, family.weight_map(part), part.prefix, again, {});
      CHECK(test::read_bytes(path) == test::read_bytes(again));
    }
  }
}
