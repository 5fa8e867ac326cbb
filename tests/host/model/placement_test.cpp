#include "host/model/placement.h"

#include "host/files/safetensors_writer.h"
#include "host/model/model_loader.h"
#include "host/weights/weight_loading.h"
#include "tests/host/lora/toy_lora.h"

namespace atelier::model {
namespace {

using memory::Place;
using test::expect_error;
using test::Folder;
using Places = std::vector<Place>;

const PlacedComponents kToy = {.known = {"text_encoder", "dit", "vae", "tokenizer"},
                               .denoisers = {"dit"},
                               .blocks = {{"dit", 4}, {"vae", 0}}};

std::vector<std::string> problems_of(const Placement& placement) {
  report::Problems problems;
  plan_residency(placement, kToy, problems);
  if (problems.empty()) return {};
  return {test::message_of([&] { problems.throw_if_any(); })};
}

// The toy's denoiser in `dtype`, alone.
std::unique_ptr<LoadedModel> open_dit(const Folder& folder, Placement placement,
                                      const std::string& dtype = "float32",
                                      const std::string& device = "cpu",
                                      weights::StorageByComponent storage = {}) {
  return LoadedModel::open(test::toy_family(), {.model_paths = folder / "dit.safetensors",
                                                .dtype = dtype,
                                                .device = device,
                                                .components = {"dit"},
                                                .storage = std::move(storage),
                                                .placement = std::move(placement)});
}

Weight& weight_of(LoadedModel& model, std::string_view path) {
  const WeightPtr weight = model.model().component("dit").find_weight(path);
  REQUIRE(weight != nullptr);
  return *weight;
}

}  // namespace

TEST_CASE("Denoisers are divided where they rest", "[placement]") {
  PlacedComponents components = kToy;
  components.known.push_back("dit2");
  components.denoisers.push_back("dit2");
  components.blocks.emplace("dit2", 3);
  report::Problems problems;
  const auto plans = plan_residency({.offload = {{"dit", Place::kHost}},
                                     .prefetch = 1,
                                     .denoisers_take_turns = true,
                                     .denoiser_shards = 4},
                                    components, problems);
  REQUIRE(problems.empty());
  REQUIRE(plans.size() == 2);
  const memory::ResidencyPlan &one = plans.at("dit"), &other = plans.at("dit2");
  CHECK((one.blocks == Places(4, Place::kHost)));
  CHECK((other.blocks == Places(3, Place::kDevice)));
  for (const auto* plan : {&one, &other}) {
    CHECK(plan->shards == 4);
    CHECK(plan->prefetch == 1);
    CHECK(plan->turns != nullptr);
    CHECK(plan->turns == one.turns);
    CHECK(std::ranges::count(plan->stays, true) == 0);
    CHECK(plan->stays.size() == plan->blocks.size());
  }
}

TEST_CASE("Places and numbers of blocks are read by component", "[placement]") {
  const PlaceByComponent places = parse_offload({"dit=host", "text_encoder=disk"});
  CHECK((places == PlaceByComponent{{"dit", Place::kHost}, {"text_encoder", Place::kDisk}}));
  Placement placement;
  parse_resident_blocks({"20", "vae=3"}, placement);
  CHECK(placement.resident_denoiser_blocks == 20);
  CHECK(placement.resident_blocks.size() == 1);
  CHECK(placement.resident_blocks.at("vae") == 3);
  for (const char* wrong : {"dit", "=host", "dit=", "dit=device"})
    expect_error(ErrorCode::kInvalidArgument, {"--offload", wrong},
                 [&] { parse_offload({wrong}); });
  for (const char* wrong : {"", "dit=", "=3", "-1", "dit=1.5", "3x"})
    expect_error(ErrorCode::kInvalidArgument, {"--resident_blocks", wrong},
                 [&] { parse_resident_blocks({wrong}, placement); });
  expect_error(ErrorCode::kInvalidArgument, {"named twice"}, [] {
    parse_offload({"dit=host", "dit=disk"});
  });
  for (const char* twice : {"21", "vae=4"})
    expect_error(ErrorCode::kInvalidArgument, {"named twice"},
                 [&] { parse_resident_blocks({twice}, placement); });
}

TEST_CASE("Residents lie evenly between the blocks that come and go", "[placement]") {
  report::Problems problems;
  const auto plans = plan_residency(
      {.offload = {{"dit", Place::kDisk}}, .resident_denoiser_blocks = 2, .prefetch = 1}, kToy,
      problems);
  CHECK(problems.empty());
  REQUIRE(plans.size() == 1);
  const Places spread = {Place::kDevice, Place::kDisk, Place::kDevice, Place::kDisk};
  CHECK((plans.at("dit").blocks == spread));
  CHECK(plans.at("dit").prefetch == 1);

  // A second denoiser that this model does not have is not asked about.
  PlacedComponents two = kToy;
  two.known.emplace_back("dit2");
  two.denoisers.emplace_back("dit2");
  CHECK(plan_residency({.offload = {{"dit", Place::kDisk}}, .resident_denoiser_blocks = 2}, two,
                       problems)
            .size() == 1);
  CHECK(problems.empty());

  // One that is not part of this run needs no plan.
  CHECK(plan_residency({.offload = {{"text_encoder", Place::kHost}}}, kToy, problems).empty());
  CHECK(problems.empty());
  const auto others = plan_residency({.offload_others = true}, kToy, problems);
  REQUIRE(others.size() == 1);
  CHECK((others.at("dit").blocks == Places(4, Place::kHost)));
}

TEST_CASE("Places that make no sense are told, all at once", "[placement]") {
  const std::vector<std::string> lines = problems_of(
      {.offload = {{"ditt", Place::kHost}, {"vae", Place::kHost}, {"dit", Place::kHost}},
       .resident_blocks = {{"dit", 5}, {"text_encoder", 1}},
       .prefetch = -1});
  REQUIRE(lines.size() == 1);
  for (const char* part : {"5 mistakes", "did you mean dit?", "no blocks", "has 4 blocks, and 5",
                           "text_encoder stays on the device whole", "--prefetch: -1"})
    CHECK_THAT(lines.front(), Catch::Contains(part));
}

TEST_CASE("A weight rests in its file as one tensor, or as rows of one", "[placement]") {
  const Folder folder;
  test::write_two_part_model(folder.path());
  const auto model = open_dit(folder, {});
  const LoadedPart& part = *model->find_part("dit");
  const weights::WeightBinding binding =
      weights::bind_weights(test::toy_family().weight_map(part.detection), "",
                            part.checkpoint.index(), model->model().component("dit"));
  std::map<std::string, const weights::BoundWeight*> bound;
  for (const weights::BoundWeight& of : binding.weights) bound[of.path] = &of;
  const auto rests = [&](const char* path, at::ScalarType dtype,
                         const weights::WeightStorage& plan = {}) {
    return weights::rests_in_file(*bound.at(path), part.checkpoint, dtype, plan);
  };
  CHECK(rests("blocks.0.down.weight", at::kFloat));
  CHECK(rests("blocks.1.k.weight", at::kFloat));         // cut out of a fused tensor
  CHECK_FALSE(rests("blocks.0.up.weight", at::kFloat));  // joined
  CHECK_FALSE(rests("blocks.0.down.weight", at::kBFloat16));
  const weights::WeightStorage stored = {weights::Storage::kInt8,
                                         weights::storable_weights(model->model(), "dit")};
  CHECK_FALSE(rests("blocks.0.down.weight", at::kFloat, stored));
  CHECK(rests("blocks.0.down.bias", at::kFloat, stored));

  // What is mapped is what is read.
  weights::Landing in_file;
  for (const weights::BoundWeight& of : binding.weights) in_file.places[of.weight] = Place::kDisk;
  std::map<std::string, at::Tensor> read, mapped;
  for (auto* values : {&read, &mapped}) {
    weights::load_weights(binding, part.checkpoint, at::kFloat, at::kCPU, {}, {},
                          values == &read ? weights::Landing{.maps = false} : in_file);
    for (const weights::BoundWeight& of : binding.weights) (*values)[of.path] = of.weight->draw();
  }
  for (const auto& [path, value] : read) {
    INFO(path);
    CHECK(at::equal(value, mapped.at(path)));
  }
}

TEST_CASE("A streamed denoiser gives the bits of a resident one, whole or stored", "[placement]") {
  const Folder folder;
  test::write_two_part_model(folder.path());
  for (const auto& [dtype, storage] : std::map<std::string, weights::StorageByComponent>{
           {"float32", {}}, {"bfloat16", {{"dit", weights::Storage::kFp8}}}}) {
    const at::Tensor resident = test::toy_velocity(*open_dit(folder, {}, dtype, "cpu", storage));
    for (const char* device : {"cpu", "simulated:1MiB"}) {
      for (const Place place : {Place::kHost, Place::kDisk}) {
        for (const int64_t stay : {0, 1, 2}) {
          INFO(dtype << " on " << device << ", " << stay << " stay");
          const auto model = open_dit(
              folder,
              {.offload = {{"dit", place}}, .resident_denoiser_blocks = stay, .prefetch = 0}, dtype,
              device, storage);
          CHECK(at::equal(test::toy_velocity(*model), resident));
          CHECK(model->is_streamed("dit") == (stay < 2));
          CHECK((model->residency("dit") != nullptr) == (stay < 2));
          model->unload_component("dit");
          CHECK(model->residency("dit") == nullptr);
          CHECK(at::equal(test::toy_velocity(*model), resident));
        }
      }
    }
  }
}

TEST_CASE("Blocks that no file has rest on the host, and a line says so", "[placement]") {
  const Folder folder;
  test::write_two_part_model(folder.path());  // one weight of each block is joined
  const auto model = open_dit(folder, {.offload = {{"dit", Place::kDisk}}});
  REQUIRE(model->notes().size() == 2);
  CHECK_THAT(model->notes()[0], Catch::Contains("2 of 2 blocks rest in host memory"));
  CHECK_THAT(model->notes()[1], Catch::Contains("saves nothing on the CPU"));
  CHECK(open_dit(folder, {.offload = {{"dit", Place::kHost}}}, "float32", "simulated")
            ->notes()
            .empty());
}

TEST_CASE("Weights of another checkpoint stream in place of those that were there", "[placement]") {
  const Folder folder;
  test::write_two_part_model(folder.path());
  const auto model = open_dit(folder, {.offload = {{"dit", Place::kHost}}, .prefetch = 1});
  const at::Tensor first = test::toy_velocity(*model);
  const auto file = files::Checkpoint::open("dit", {folder / "dit.safetensors"});
  NamedTensors halved;
  for (const auto& [name, meta] : file.index().tensors())
    halved.emplace(name, file.read(name) * 0.5);
  files::write_safetensors(folder / "halved.safetensors", halved);
  const auto other = files::Checkpoint::open("halved", {folder / "halved.safetensors"});
  const weights::WeightBinding binding =
      weights::bind_weights(test::toy_family().weight_map(model->find_part("dit")->detection), "",
                            other.index(), model->model().component("dit"));
  model->load_component_from("dit", binding, other);
  CHECK(model->residency("dit") != nullptr);
  const at::Tensor second = test::toy_velocity(*model);
  CHECK_FALSE(at::equal(first, second));
  CHECK(at::equal(second, test::changed_velocity(folder.path(), [](NamedTensors& values) {
                    for (auto& [name, value] : values) value = value * 0.5;
                  })));
  model->unload_component("dit");
  CHECK(at::equal(test::toy_velocity(*model), first));
}

TEST_CASE("What a device of limited memory cannot hold is told once, with a way out",
          "[placement]") {
  const Folder folder;
  test::write_two_part_model(folder.path());
  const auto model = open_dit(folder, {}, "float32", "simulated:40KB");
  expect_error(ErrorCode::kOutOfMemory, {"loading dit", "--offload dit=host"},
               [&] { model->load_component("dit"); });
  CHECK_FALSE(model->is_loaded("dit"));
  CHECK_FALSE(weight_of(*model, "blocks.0.q.weight").is_loaded());
}

}  // namespace atelier::model
