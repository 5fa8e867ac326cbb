#include "host/parameters/trained.h"

#include "atelier/host/weight_state.h"

#include "host/files/checkpoint.h"
#include "tests/host/train/train_toy.h"

namespace atelier::parameters {
namespace {

using order::Training;

using test::StepBench;
using test::toy_step;
using test::TrainToy;

const at::Tensor& tensor_of(TrainedTensors& trained, std::string_view name) {
  for (const optim::Group& group : trained.groups()) {
    for (const optim::Parameter& parameter : group.parameters)
      if (parameter.name == name) return parameter.leaf;
  }
  throw std::runtime_error("no parameter " + std::string(name));
}

// Values after three steps, with everything where `device`, `placement` and `config` put it.
NamedTensors after_three_steps(const std::function<void(Training&)>& change,
                               const std::string& device, const std::string& dtype,
                               const model::Placement& placement = {}) {
  TrainToy toy;
  toy.config.use_gradient_checkpointing = true;  // as for weights that are streamed
  change(toy.config);
  toy.open(device, dtype, placement);
  StepBench bench(toy);
  for (int64_t i = 0; i < 3; ++i) bench.step.run(toy_step(2, 1, 100, toy.model->dtype()), i);
  NamedTensors all = bench.values();
  for (const auto& [name, value] : bench.optimizer->state()) all.emplace(name, value.clone());
  return all;
}

const model::Placement kStreamed = {.offload = {{"dit", memory::Place::kHost}}};

TEST_CASE("Where parameters live changes no bit", "[trained]") {
  for (const char* dtype : {"float32", "bfloat16"}) {
    for (const double clip : {0.0, 0.5}) {
      const auto device = [&](Training& config) { config.max_grad_norm = clip; };
      const auto host = [&](Training& config) {
        config.max_grad_norm = clip;
        config.offload.optimizer = true;
      };
      const auto some = [&](Training& config) {
        host(config);
        config.offload.least_bytes = 1024;  // biases stay on the device
      };
      const NamedTensors expected = after_three_steps(device, "cpu", dtype);
      CHECK(test::same(after_three_steps(host, "simulated", dtype), expected));
      CHECK(test::same(after_three_steps(host, "simulated", dtype, kStreamed), expected));
      CHECK(test::same(after_three_steps(device, "simulated", dtype, kStreamed), expected));
      CHECK(test::same(after_three_steps(some, "simulated", dtype, kStreamed), expected));
    }
  }
}

TEST_CASE("A LoRA has the same bits on the device and on the host", "[trained]") {
  const auto lora = [](Training& config) {
    config.trainable_models.clear();
    config.lora.base_models = {"dit"};
    config.lora.target_modules = {"q", "down"};
    config.lora.rank = 4;
    config.lora.loraplus_lr_ratio = 4;
  };
  const auto on_host = [&](Training& config) {
    lora(config);
    config.offload.optimizer = true;
  };
  const NamedTensors expected = after_three_steps(lora, "cpu", "float32");
  CHECK(test::same(after_three_steps(on_host, "simulated", "float32"), expected));
  CHECK(test::same(after_three_steps(on_host, "simulated", "float32", kStreamed), expected));
}

TEST_CASE("Leaves of bfloat16 are the rounding of float32 masters", "[trained]") {
  const auto slow = [](Training& config) {
    config.learning_rate = 1e-5;  // less than half a step of most bfloat16 values
    config.weight_decay = 0;
  };
  const NamedTensors values = after_three_steps(slow, "cpu", "bfloat16");
  int64_t unmoved = 0, all = 0;
  for (const auto& [name, master] : values) {
    if (!name.ends_with(".master")) continue;
    const at::Tensor& leaf = values.at(name.substr(0, name.size() - 7));
    CHECK(leaf.scalar_type() == at::kBFloat16);
    CHECK(master.scalar_type() == at::kFloat);
    CHECK(at::equal(master.to(at::kBFloat16), leaf));
    unmoved += (master == leaf.to(at::kFloat)).sum().item<int64_t>();
    all += master.numel();
  }
  REQUIRE(all > 0);
  CHECK(unmoved < all / 2);  // what is too small for the leaf is not lost
}

TEST_CASE("Parameters on the host are copies, which the model has after publish()", "[trained]") {
  TrainToy toy;
  toy.config.offload.optimizer = true;
  toy.open("simulated");
  TrainedTensors trained(*toy.model, toy.selection(), toy.config, unplanned_layout(toy.config));
  CHECK(trained.placement().is_on_host());
  const at::Tensor value = tensor_of(trained, "dit.embed.weight");
  const at::Tensor leaf = toy.weight("embed.weight").state().leaf();
  REQUIRE(leaf.defined());
  CHECK(at::equal(value, leaf.detach()));
  CHECK(value.data_ptr() != leaf.data_ptr());
  value.fill_(0.25);
  CHECK_FALSE(at::equal(value, leaf.detach()));
  trained.placement().publish();
  CHECK(at::equal(value, leaf.detach()));
}

TEST_CASE("Parameters on the device are the leaves themselves", "[trained]") {
  TrainToy toy;
  toy.open();
  TrainedTensors trained(*toy.model, toy.selection(), toy.config, unplanned_layout(toy.config));
  CHECK_FALSE(trained.placement().is_on_host());
  CHECK(tensor_of(trained, "dit.embed.weight").is_same(toy.weight("embed.weight").state().leaf()));
  CHECK(trained.placement().allocate_beside() == nullptr);
  CHECK(trained.placement().note().empty());
}

TEST_CASE("Small weights of streamed blocks stay on the device, and that is told", "[trained]") {
  TrainToy toy;
  toy.config.offload.least_bytes = 1024;
  toy.open("simulated", "float32", kStreamed);
  TrainedTensors trained(*toy.model, toy.selection(), toy.config, unplanned_layout(toy.config));
  CHECK(trained.placement().is_on_host());
  CHECK(trained.placement().note() == "small trained weights stay on the device: 256 bytes");
  CHECK(toy.weight("blocks.0.down.bias").state().leaf().defined());
  CHECK_FALSE(toy.weight("blocks.0.down.weight").state().leaf().defined());
  CHECK(toy.weight("blocks.0.down.weight").state().sink() != nullptr);
}

TEST_CASE("The model is as before when nothing is trained any more", "[trained]") {
  for (const auto& placement : {model::Placement(), kStreamed}) {
    TrainToy toy;
    toy.train_lora();
    toy.config.trainable_models = {"dit"};
    toy.config.lora.dropout = 0.5;
    toy.open("simulated", "float32", placement);
    const Selection selection = toy.selection();
    {
      TrainedTensors trained(*toy.model, selection, toy.config, unplanned_layout(toy.config));
      const std::vector<ops::Adapter>& adapters = selection.layers.front().linear->adapters;
      REQUIRE(adapters.size() == 1);
      CHECK(adapters[0].dropout == 0.0);
      trained.set_training(true);
      CHECK(adapters[0].dropout == 0.5);
      trained.set_training(false);
      CHECK(adapters[0].dropout == 0.0);
    }
    for (const auto& layer : selection.layers) CHECK(layer.linear->adapters.empty());
    for (const auto& trained : selection.weights) {
      CHECK_FALSE(trained.weight->state().is_trainable());
      CHECK(trained.weight->state().sink() == nullptr);
    }
  }
}

TEST_CASE("Values are taken back from where they were saved, or not at all", "[trained]") {
  for (const auto& placement : {model::Placement(), kStreamed}) {
    TrainToy toy;
    toy.open("simulated", "float32", placement);
    StepBench bench(toy);
    const NamedTensors before = bench.values();
    bench.step.run(toy_step(1, 1), 0);
    CHECK_FALSE(test::same(bench.values(), before));
    bench.trained.load(before);
    CHECK(test::same(bench.values(), before));
    NamedTensors wrong = before;
    wrong.erase("dit.embed.bias");
    wrong["dit.embed.weight"] = at::zeros({2});
    wrong["dit.other"] = at::zeros({2});
    test::expect_error(ErrorCode::kInvalidArgument,
                       {"dit.embed.bias", "missing", "dit.embed.weight", "another shape",
                        "dit.other", "not trained"},
                       [&] { bench.trained.load(wrong); });
    CHECK(test::same(bench.values(), before));
  }
}

TEST_CASE("A LoRA is saved, and training begins where it ended", "[trained]") {
  TrainToy toy;
  toy.train_lora();
  toy.open("simulated");
  NamedTensors expected;
  std::string file;
  {
    StepBench bench(toy);
    bench.step.run(toy_step(1, 1), 0);
    expected = bench.values();
    const auto files = bench.trained.save(toy.folder / "run/step-1", 1, 0);
    REQUIRE(files == std::vector<std::string>{toy.folder / "run/step-1.safetensors"});
    file = files[0];
    CHECK(bench.trained.saved_bytes() >= test::fs::file_size(file));
  }
  toy.config.lora.checkpoint = file;
  for (const bool on_host : {false, true}) {
    toy.config.offload.optimizer = on_host;
    report::Problems problems;
    check_lora_checkpoint(*toy.model, toy.selection(), toy.config.lora, problems);
    problems.throw_if_any();
    const TrainedTensors trained(*toy.model, toy.selection(), toy.config,
                                 unplanned_layout(toy.config));
    CHECK(test::same(trained.values(), expected));
  }
  toy.config.lora.rank = 2;
  report::Problems problems;
  check_lora_checkpoint(*toy.model, toy.selection(), toy.config.lora, problems);
  test::expect_error(ErrorCode::kInvalidArgument, {"rank 4, and --lora_rank is 2"},
                     [&] { problems.throw_if_any(); });
}

TEST_CASE("A call of a step that comes in a wrong order is refused", "[trained]") {
  TrainToy toy;
  toy.open();
  TrainedTensors trained(*toy.model, toy.selection(), toy.config, unplanned_layout(toy.config));
  ParameterPlacement& placement = trained.placement();
  const auto expect_refused = [](const std::string& call, const auto& made) {
    test::expect_error(ErrorCode::kInternal, {call}, made);
  };
  expect_refused("begin_pass() of trained parameters is called in kWhole",
                 [&] { placement.begin_pass(); });
  expect_refused("end_step()", [&] { placement.end_step(); });
  placement.begin_step("dit", /*passes=*/1);
  expect_refused("begin_step()", [&] { placement.begin_step("dit", 1); });
  expect_refused("publish()", [&] { placement.publish(); });
  at::Tensor loss = at::ones({});
  expect_refused("take_gradients()", [&] { placement.take_gradients(loss, 0); });
  placement.end_passes();
  expect_refused("backward()", [&] { placement.backward(loss, loss, true, {}); });
  expect_refused("adopt()", [&] { placement.adopt(); });
  CHECK_FALSE(placement.give_up());
  placement.publish();
  placement.begin_step("dit", 1);
}

TEST_CASE("Several trained parts are saved as a file each", "[trained]") {
  TrainToy toy;
  toy.train_lora();
  toy.config.trainable_models = {"vae"};
  toy.open();
  toy.model->load_component("vae");
  const TrainedTensors trained(*toy.model, toy.selection(), toy.config,
                               unplanned_layout(toy.config));
  const auto files = trained.save(toy.folder / "run/step-1", 1, 0);
  REQUIRE(files == std::vector<std::string>{toy.folder / "run/step-1.lora.safetensors",
                                            toy.folder / "run/step-1.vae.safetensors"});
  CHECK(test::read_bytes(files[1]).find("scale.weight") != std::string::npos);
}

}  // namespace
}  // namespace atelier::parameters
