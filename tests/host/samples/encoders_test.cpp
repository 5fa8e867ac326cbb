#include "host/samples/encoders.h"

#include <limits>

#include <ATen/core/grad_mode.h>

#include "atelier/host/weight_state.h"

#include "support/models.h"
#include "tests/host/train/image_toy.h"

namespace atelier::samples {
namespace {

using test::Folder;

struct EncodersBench {
  Folder folder;
  std::unique_ptr<model::LoadedModel> model;
  progress::Progress progress{progress::Options{.quiet = true}};
  std::vector<EncodeStage> stages = model::encode_stages(test::image_toy());
  const EncodeStage& text = stages[0];
  const EncodeStage& latents = stages[1];

  EncodersBench() {
    test::write_toy_model(folder / "model");
    open();
  }
  void open(std::vector<std::string> components = {}, const std::string& dtype = "float32") {
    model = test::open_toy_model(folder / "model", std::move(components), dtype);
  }
  bool is_loaded(const char* component) const { return model->is_loaded(component); }
};

TEST_CASE("The components of a stage are there while it is used, and no others", "[encoders]") {
  EncodersBench bench;
  {
    const Encoders encoders(*bench.model, bench.text, bench.progress);
    CHECK(bench.is_loaded("text_encoder"));
    CHECK_FALSE(bench.is_loaded("vae"));
    CHECK_FALSE(bench.is_loaded("dit"));
  }
  CHECK_FALSE(bench.is_loaded("text_encoder"));
}

TEST_CASE("A component that was there before stays", "[encoders]") {
  EncodersBench bench;
  bench.model->load_component("text_encoder");
  { const Encoders encoders(*bench.model, bench.text, bench.progress); }
  CHECK(bench.is_loaded("text_encoder"));
}

TEST_CASE("A component that cannot be loaded leaves nothing loaded", "[encoders]") {
  EncodersBench bench;
  const std::string file = bench.folder / "model/text_encoder/model.safetensors";
  const std::string bytes = test::read_bytes(file);
  test::write_bytes(file, bytes.substr(0, bytes.size() - 4));
  CHECK_THROWS_AS(Encoders(*bench.model, bench.text, bench.progress), Error);
  CHECK_FALSE(bench.is_loaded("text_encoder"));
}

TEST_CASE("Encodings are the model's, without gradients", "[encoders]") {
  EncodersBench bench;
  Encoders encoders(*bench.model, bench.text, bench.progress);
  const Conditioning cond = encoders.encode(test::prompt_inputs("ab").values, {});
  const at::Tensor table =
      bench.model->model().component("text_encoder").find_weight("table.weight")->draw();
  const std::vector<int64_t> ids = {'a' % test::kToyVocabulary, 'b' % test::kToyVocabulary};
  REQUIRE(cond.size() == 1);
  CHECK(at::equal(cond.at("prompt_embeds"), table.index_select(0, at::tensor(ids))));
  CHECK(at::GradMode::is_enabled());
  CHECK_FALSE(cond.at("prompt_embeds").requires_grad());
}

TEST_CASE("Encodings that are not finite are refused by their names", "[encoders]") {
  EncodersBench bench;
  Encoders encoders(*bench.model, bench.latents, bench.progress);
  const at::Tensor pixels = at::zeros({3, 1, 16, 16});
  CHECK(encoders.encode({{"image", pixels}}, {1, 16, 16}).contains("latents"));
  pixels.flatten()[5] = std::numeric_limits<float>::infinity();
  test::expect_error(ErrorCode::kNumerics, {"the encoding 'latents'", "--dtype"}, [&] {
    encoders.encode({{"image", pixels}}, {1, 16, 16});
  });
}

TEST_CASE("A stage that runs in a step has the caller's gradients", "[encoders]") {
  EncodersBench bench;
  bench.model->load_component("text_encoder");
  Weight& table = *bench.model->model().component("text_encoder").find_weight("table.weight");
  table.state().set_trainable(true);
  const auto run = [&] {
    return model::encode(bench.model->model(), test::prompt_inputs("ab"), bench.model->runner(),
                         at::kCPU)
        .at("prompt_embeds");
  };
  CHECK(run().requires_grad());
  const at::NoGradGuard no_grad;
  CHECK_FALSE(run().requires_grad());
}

TEST_CASE("Records tell encoders apart by their weights, dtype and tokenizer", "[encoders]") {
  EncodersBench bench;
  const EncoderRecords records = encoder_records(*bench.model, bench.text);
  REQUIRE(records.size() == 2);
  CHECK(records.find("text_encoder")->second.dtype == "float32");
  CHECK(records.find("tokenizer")->second.dtype.empty());
  CHECK(encoder_records(*bench.model, bench.latents).size() == 1);
  bench.open();
  CHECK((encoder_records(*bench.model, bench.text) == records));

  const auto changed = [&](const char* component) {
    const EncoderRecords now = encoder_records(*bench.model, bench.text);
    std::vector<std::string> names;
    for (const auto& [name, record] : now) {
      if (record != records.find(name)->second) names.push_back(name);
    }
    return names == std::vector<std::string>{component};
  };
  bench.open({}, "bfloat16");
  CHECK(changed("text_encoder"));
  test::write_bytes(bench.folder / "model/tokenizer/tokenizer.json", R"({"other": 1})");
  bench.open();
  CHECK(changed("tokenizer"));
  test::write_bytes(bench.folder / "model/tokenizer/tokenizer.json", "{}");
  test::write_toy_component(bench.folder / "model/text_encoder/model.safetensors", "text_encoder",
                            9);
  bench.open();
  CHECK(changed("text_encoder"));
}

TEST_CASE("An encoder that is not there is the one that was recorded, or missing", "[encoders]") {
  EncodersBench bench;
  const EncoderRecords whole = encoder_records(*bench.model, bench.text);
  for (const char* part : {"text_encoder", "tokenizer"})
    test::fs::rename(bench.folder / ("model/" + std::string(part)), bench.folder / part);
  bench.open({"dit", "vae"});
  CHECK(encoder_records(*bench.model, bench.text).empty());
  CHECK((encoder_records(*bench.model, bench.text, whole) == whole));
  test::expect_error(ErrorCode::kNotFound,
                     {"component text_encoder is missing, which encodes texts", "--model_paths"},
                     [&] { encoder_records(*bench.model, bench.text, EncoderRecords{}); });
}

}  // namespace
}  // namespace atelier::samples
