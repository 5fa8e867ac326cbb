#include "host/weights/component_writer.h"

#include <memory>
#include <new>

#include "atelier/host/weight_state.h"

#include "host/files/safetensors_writer.h"
#include "support/files.h"

using namespace atelier;
using namespace atelier::files;
using namespace atelier::weights;
using test::expect_error;
using test::Folder;
using test::write_bytes;

namespace {

// One weight of a checkpoint that holds more.
struct One : nn::Module {
  One() : Module(nullptr, "") { declare("a", {2, 2}); }
};
const WeightMap kRules = {{"p.a", "a"}, {"p.head"}, {"p.tower.*"}};

// The weight with the value 7, and the checkpoint that it came from.
class Saving {
 public:
  explicit Saving(const Folder& folder, const NamedTensors& source,
                  const std::map<std::string, std::string>& metadata = {},
                  const std::string& config = {}) {
    const std::string path = folder / "source.safetensors";
    write_safetensors(path, source, metadata);
    const std::string config_path = config.empty() ? "" : folder / "source.json";
    if (!config.empty()) write_bytes(config_path, config);
    source_ = Checkpoint::open({path, {path}, {}, config_path});
    one_.find_weight("a")->set(at::full({2, 2}, 7.0));
  }

  Checkpoint save(const std::string& path, std::optional<at::ScalarType> dtype = {}) {
    save_component(one_, kRules, "", path, {{"step", "3"}}, &*source_, dtype);
    return Checkpoint::open(path, {path});
  }

 private:
  One one_;
  std::optional<Checkpoint> source_;
};

}  // namespace

TEST_CASE("A saved component holds the other tensors of its source, unchanged", "[writer]") {
  Folder folder;
  const NamedTensors source = {{"p.a", at::zeros({2, 2})},
                               {"p.head", at::randn({3}).to(at::kBFloat16)},
                               {"p.tower.0", at::arange(5).to(at::kByte)}};
  Saving saving(folder, source);
  const Checkpoint saved = saving.save(folder / "out.safetensors", at::kHalf);
  CHECK(saved.index().tensors().size() == 3);
  CHECK(at::equal(saved.read("p.a"), at::full({2, 2}, 7.0, at::kHalf)));
  for (const char* name : {"p.head", "p.tower.0"}) {
    CHECK(saved.read(name).scalar_type() == source.at(name).scalar_type());
    CHECK(at::equal(saved.read(name), source.at(name)));
  }
  CHECK(saved.metadata().at("step") == "3");
  CHECK(!saved.config());
  test::fs::remove(folder / "source.safetensors");
  expect_error(ErrorCode::kEnvironment, {"source.safetensors"},
               [&] { saving.save(folder / "out.safetensors"); });
  CHECK(test::fs::exists(folder / "out.safetensors"));  // the one of before
}

TEST_CASE("What fails on the process that writes keeps the others from nothing", "[writer]") {
  struct Three : nn::Module {
    Three() : Module(nullptr, "") {
      for (const char* name : {"a", "b", "c"}) declare(name, {2, 2});
    }
  };
  // Comes from several processes where it is drawn, and does not fit once.
  struct Store final : WeightStore {
    at::Tensor draw() const override {
      if (++draws == failing) throw std::bad_alloc();
      ++drawn;
      return value;
    }
    at::Tensor value = at::zeros({2, 2});
    mutable int draws = 0, drawn = 0;
    int failing = 0;
  };
  Folder folder;
  const WeightMap rules = {{"a", "a"}, {"b", "b"}, {"c", "c"}};
  Three three;
  std::map<std::string, std::shared_ptr<Store>> stores;
  for (const char* name : {"a", "b", "c"})
    three.find_weight(name)->state().set_store(stores[name] = std::make_shared<Store>());
  const auto save = [&] {
    save_component(three, rules, "", folder / "out.safetensors", {}, nullptr, {},
                   /*comes_from_all=*/true);
  };
  SECTION("a weight that is drawn again") {
    stores["b"]->failing = 2;  // after the look at its dtype
    CHECK_THROWS_AS(save(), std::bad_alloc);
  }
  SECTION("a weight that is not what the header says") {
    stores["b"]->value = at::zeros({3});
    expect_error(ErrorCode::kInternal, {"'b' is not what"}, save);
  }
  for (const auto& [name, store] : stores) CHECK(store->drawn == 2);
  CHECK(!test::fs::exists(folder / "out.safetensors"));
}

TEST_CASE("Copies of 8-bit tensors have their scales applied", "[writer]") {
  Folder folder;
  const auto square = [](std::initializer_list<float> values) {
    return at::tensor(values).view({2, 2});
  };
  const at::Tensor codes = square({1, 2, 4, -8}).to(at::kFloat8_e4m3fn);
  for (const auto& [scale, expected] :
       {std::pair(at::full({1}, 0.5), square({0.5, 1, 2, -4})),
        std::pair(at::tensor(std::initializer_list<float>{0.5, 2}), square({0.5, 1, 8, -16}))}) {
    Saving saving(
        folder,
        {{"p.a", at::zeros({2, 2})}, {"p.tower.weight", codes}, {"p.tower.weight_scale", scale}});
    const Checkpoint saved = saving.save(folder / "out.safetensors");
    CHECK(!saved.has_scales());
    CHECK(at::equal(saved.read("p.tower.weight"), expected.to(at::kBFloat16)));
  }
}

TEST_CASE("A saved component carries the config that its source was read with", "[writer]") {
  Folder folder;
  const std::string beside = "{\n  \"axes\": [8, 12, 12], \"eps\": 1e-06\n}\n";
  const NamedTensors source = {{"p.a", at::zeros({2, 2})}};
  Saving saving(folder, source, {}, beside);
  const Checkpoint saved = saving.save(folder / "out.safetensors");
  CHECK(saved.metadata().at("atelier.config") == beside);
  CHECK(saved.index().config_integers("axes") == std::vector<int64_t>{8, 12, 12});
  CHECK(!test::fs::exists(folder / "config.json"));  // others lie there too

  SECTION("and as config.json in a folder of its own") {
    test::fs::create_directory(folder / "alone");
    for (int time = 0; time < 2; ++time) {
      saving.save(folder / "alone/model.safetensors");
      CHECK(test::read_bytes(folder / "alone/config.json") == beside);
    }
    test::write_bytes(folder / "theirs/config.json", "of somebody");
    saving.save(folder / "theirs/model.safetensors");
    CHECK(test::read_bytes(folder / "theirs/config.json") == "of somebody");
  }
  SECTION("that of the metadata goes before the one beside the file") {
    const std::string own = R"({"axes": [2, 2, 2]})";
    Saving again(folder, source, {{"atelier.config", own}}, beside);
    CHECK(again.save(folder / "out.safetensors").metadata().at("atelier.config") == own);
  }
  SECTION("one that is no JSON object is told with its place") {
    const auto open = [&](const std::string& config) {
      Saving again(folder, source, {{"atelier.config", config}});
    };
    expect_error(ErrorCode::kDataLoss, {"source.safetensors:__metadata__:2"},
                 [&] { open("{\n1}"); });
    expect_error(ErrorCode::kInvalidArgument, {"source.safetensors:__metadata__", "no JSON object"},
                 [&] { open("[]"); });
  }
}
