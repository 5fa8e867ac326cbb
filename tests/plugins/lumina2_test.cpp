#include <fstream>
#include <set>
#include <sstream>

#include "atelier/model_family.h"
#include "atelier/nn/layers.h"
#include "atelier/segments.h"

#include "host/model/config_check.h"
#include "host/weights/published_tensors.h"
#include "host/weights/weight_binding.h"
#include "memory/recompute.h"
#include "support/models.h"
#include "support/opened_family.h"
#include "support/published_keys.h"
#include "support/tensors.h"

using namespace atelier;

namespace {

const ModelFamily& family() {
  return test::opened_family();
}

using test::index_of, test::Keys, test::read_keys;

Detection detected(const TensorIndex& index, const DetectHint& hint = {}) {
  const auto part = model::detect_with_config(family(), index, hint);
  REQUIRE(part);
  return *part;
}

Detection tiny_dit() {
  for (const Detection& part : family().tiny_parts()) {
    if (part.component == "dit") return part;
  }
  throw std::runtime_error("no dit");
}

void check_published_numbers(const Detection& part) {
  CHECK(part.component == "dit");
  CHECK(part.variant == "lumina-image-2.0");
  const std::pair<const char*, int64_t> expected[] = {
      {"layers", 26},   {"refiners", 2},     {"width", 2304},     {"heads", 24},
      {"kv_heads", 8},  {"head_dim", 96},    {"mlp_width", 9216}, {"text_width", 2304},
      {"channels", 16}, {"time_width", 1024}};
  for (const auto& [key, value] : expected) {
    INFO(key);
    CHECK(part.integer(key) == value);
  }
  CHECK(std::get<std::vector<double>>(part.config.at("axes")) == std::vector<double>{32, 32, 32});
  CHECK(part.real("norm_eps") == 1e-5);
}

}  // namespace

TEST_CASE("The published DiT is known by its names and shapes, in every spelling", "[detect]") {
  for (const char* prefix :
       {"", "model.diffusion_model.", "diffusion_model.", "transformer.", "module."}) {
    for (const char* file : {"lumina2_transformer.txt", "lumina2_original.txt"}) {
      INFO(prefix << file);
      const Keys keys = read_keys(file);
      const Detection part = detected(index_of(keys, prefix));
      check_published_numbers(part);
      CHECK(part.prefix == prefix);
      CHECK(part.spelling == (keys.contains("norm_final.weight") ? "original" : "diffusers"));
    }
  }
}

TEST_CASE("The tables fill every weight of the published DiT, and cut q, k and v by their lengths",
          "[weights]") {
  for (const char* file : {"lumina2_transformer.txt", "lumina2_original.txt"}) {
    const TensorIndex index = index_of(read_keys(file));
    const Detection part = detected(index);
    const auto model = family().make_model({&part, 1}, {});
    nn::Module& dit = model->component("dit");
    const auto binding = weights::bind_weights(family().weight_map(part), "", index, dit);
    CHECK_NOTHROW(binding.throw_unless_complete(file, "dit"));
    const bool is_original = part.spelling == "original";
    CHECK(binding.unused == (is_original ? std::vector<std::string>{"norm_final.weight"}
                                         : std::vector<std::string>{}));
    int64_t parameters = 0;
    dit.visit_weights([&](const std::string&, Weight& weight) { parameters += weight.numel(); });
    CHECK(parameters == 2609769152);
    for (const auto& bound : binding.weights) {
      if (!bound.path.ends_with("attention.qkv.weight")) {
        CHECK(bound.slices.size() == 1);
        continue;
      }
      std::vector<int64_t> lengths;
      for (const auto& slice : bound.slices) lengths.push_back(slice.length);
      CHECK(bound.weight->sizes() == at::IntArrayRef{3840, 2304});
      if (!is_original) CHECK(lengths == std::vector<int64_t>{2304, 768, 768});
    }
    // The other spelling's names and shapes follow from the weights alone.
    Detection other = part;
    for (const std::string& spelling : family().spellings(part)) {
      other.spelling = spelling;
      Keys names;
      const TensorIndex other_index = weights::published_index(dit, family().weight_map(other));
      for (const auto& [name, meta] : other_index.tensors()) names[name] = meta.shape;
      Keys published =
          read_keys(spelling == "original" ? "lumina2_original.txt" : "lumina2_transformer.txt");
      published.erase("norm_final.weight");
      CHECK(names == published);
    }
  }
}

TEST_CASE("Gemma 2 is known in a GGUF file, whose norms keep float32", "[detect]") {
  for (const std::string file :
       {"lumina2_text_encoder.txt", "lumina2_text_encoder_llama_cpp.txt"}) {
    INFO(file);
    const bool is_gguf = file.ends_with("_llama_cpp.txt");
    const TensorIndex index = index_of(read_keys(file));
    const Detection part = detected(index);
    CHECK(part.component == "text_encoder");
    CHECK(part.spelling == (is_gguf ? "llama_cpp" : "transformers"));
    CHECK(part.integer("layers") == 26);
    CHECK(part.integer("vocabulary") == 256000);
    const auto model = family().make_model({&part, 1}, {});
    nn::Module& encoder = model->component("text_encoder");
    const auto binding = weights::bind_weights(family().weight_map(part), "", index, encoder);
    CHECK_NOTHROW(binding.throw_unless_complete(file, "text_encoder"));
    CHECK(binding.unused.size() == 12);  // the last layer, and the norm behind it
    encoder.visit_weights([&](const std::string& path, Weight& weight) {
      CHECK(weight.keeps_float32() == (is_gguf && path.ends_with("norm.weight")));
    });
  }
}

TEST_CASE("Models of the same ancestry are not taken", "[detect]") {
  // Z-Image: other modulation, pads of its own.
  Keys other = read_keys("lumina2_original.txt");
  other["cap_pad_token"] = {1, 3840};
  CHECK_FALSE(family().detect(index_of(other), {}));
  other.erase("cap_pad_token");
  for (const char* end : {"weight", "bias"}) {
    auto moved = other.extract(std::string("layers.0.adaLN_modulation.1.") + end);
    moved.key() = std::string("layers.0.adaLN_modulation.0.") + end;
    other.insert(std::move(moved));
  }
  CHECK_FALSE(family().detect(index_of(other), {}));
  for (const char* file : {"transformer.txt", "text_encoder_disk.txt", "text_encoder_memory.txt",
                           "text_encoder_llama_cpp.txt", "umt5_llama_cpp.txt", "vae_diffusers.txt",
                           "vae_original.txt"}) {
    INFO(file);
    CHECK_FALSE(family().detect(index_of(read_keys(file)), {}));
  }
}

TEST_CASE("Wrong hints, axes and dtypes are refused", "[detect]") {
  const Keys keys = read_keys("lumina2_original.txt");
  const auto refused = [&](const TensorIndex& index, const DetectHint& hint,
                           const std::string& part) {
    const Error error = test::error_of([&] { family().detect(index, hint); });
    INFO(error.what());
    CHECK(test::mentions(error, part));
  };
  refused(index_of(keys), {.component = "vae", .variant = {}}, "those of the dit");
  refused(index_of(keys), {.component = {}, .variant = "lumina-next"}, "lumina-next");
  refused(index_of(keys, "", {{"axes_dim_rope", std::vector<double>{32, 32, 30}}}), {},
          "axes_dim_rope");
  refused(index_of(keys, "", {}, at::kChar), {}, "quantised");
  const Detection part =
      detected(index_of(keys, "", {{"axes_dim_rope", std::vector<double>{16, 40, 40}}}));
  CHECK(std::get<std::vector<double>>(part.config.at("axes")) == std::vector<double>{16, 40, 40});
}

namespace {

// One block of the published width whose every linear layer has an adapter of rank 16, in bfloat16.
// Values do not matter here.
struct WideBlock {
  static constexpr int64_t kD = 2304, kKV = 768, kF = 9216, kHeads = 24, kRank = 16;

  std::unique_ptr<Model> model;
  Block* block = nullptr;

  WideBlock() {
    Detection part = tiny_dit();
    part.config["layers"] = int64_t{1};
    part.config["refiners"] = int64_t{0};
    part.config["width"] = kD;
    part.config["heads"] = kHeads;
    part.config["kv_heads"] = int64_t{8};
    part.config["head_dim"] = int64_t{96};
    part.config["axes"] = std::vector<double>{32, 32, 32};
    part.config["mlp_width"] = kF;
    part.config["time_width"] = int64_t{1024};
    model = family().make_model({&part, 1}, {});
    const std::vector<Block*> blocks = model->blocks("dit");
    REQUIRE(blocks.size() == 1);
    block = blocks[0];
    block->visit_weights([](const std::string&, Weight& weight) {
      weight.set(at::zeros(weight.sizes(), at::kBFloat16));
    });
    block->visit([](nn::Module& module) {
      auto* layer = dynamic_cast<nn::Linear*>(&module);
      if (layer == nullptr) return;
      layer->adapters.push_back({at::zeros({kRank, layer->in_features()}).requires_grad_(),
                                 at::zeros({layer->out_features(), kRank}).requires_grad_(), 1.0});
    });
  }

  // Bytes that one run leaves behind beside its inputs.
  int64_t held_bytes(BlockRunner& runner, int64_t tokens) {
    const at::Tensor x = test::trained(at::zeros({tokens, kD}, at::kBFloat16));
    const at::Tensor angle = at::zeros({tokens, 48});
    const Tensors inputs = {x, angle, angle, Segments({tokens}).tensor(),
                            at::zeros({1, 1024}, at::kBFloat16)};
    const test::Bytes bytes;
    const Tensors out = runner.run(*block, inputs);
    return bytes.now();
  }

  int64_t held_bytes_per_token(BlockRunner& runner) {
    return (held_bytes(runner, 40) - held_bytes(runner, 8)) / 32;
  }
};

}  // namespace

TEST_CASE("A token of a block holds the bytes that the formulas say", "[memory]") {
  constexpr int64_t D = WideBlock::kD, KV = WideBlock::kKV, F = WideBlock::kF,
                    H = WideBlock::kHeads, r = WideBlock::kRank;
  WideBlock wide;
  DirectRunner direct;

  // Nothing recomputed: norms, rotated q and k, SwiGLU's output and what follows.
  CHECK(wide.held_bytes_per_token(direct) == 2 * (8 * D + 3 * KV + 3 * F) + 4 * H + 10 * r);

  // Everything recomputed: the block's output, which is the next one's input.
  memory::RecomputeRunner full(direct);
  CHECK(wide.held_bytes_per_token(full) == 2 * D);

  // Products and attention kept: 63,296 bytes with separate q, k and v, whose adapters have two
  // rank-r products more than one fused layer's.
  memory::RecomputeRunner products(
      direct, [](const Block&) { return ops::ActionPlan(16, ops::Action::kKeep); });
  const int64_t kept = wide.held_bytes_per_token(products);
  CHECK(kept == 2 * (5 * D + 2 * KV + 2 * F) + 4 * H + 10 * r);
  CHECK(kept + 4 * r == 63296);
}

namespace {

std::unique_ptr<Model> random_dit(at::ScalarType dtype = at::kFloat) {
  const Detection part = tiny_dit();
  auto model = family().make_model({&part, 1}, {});
  at::manual_seed(9);
  model->component("dit").visit_weights([&](const std::string& path, Weight& weight) {
    const at::Tensor noise = at::randn(weight.sizes()) * 0.1;
    const bool is_norm = path.find("norm") != std::string::npos || path == "cap_embedder.0.weight";
    weight.set((is_norm ? noise + 1 : noise).to(dtype));
  });
  return model;
}

// Denoises one batch at each of `sigmas`; with `prepared` by the levels' numbers.
Tensors denoise_levels(Model& model, std::span<const float> sigmas, int64_t B, bool prepared) {
  DirectRunner runner;
  const auto dtype = model.level_weights("dit").front()->draw().scalar_type();
  const Conditioning cond = [&] {
    at::manual_seed(4);
    return family().example_conditioning(tiny_dit(), 5, dtype);
  }();
  const at::Tensor x = at::randn({B, 16, 1, 4, 6}).to(dtype);
  const std::vector<const Conditioning*> conds(static_cast<size_t>(B), &cond);
  Tensors result;
  for (size_t i = 0; i < sigmas.size(); ++i) {
    DenoiseInputs in = {x, at::full({B}, sigmas[i], at::kFloat), conds};
    if (prepared) in.level = static_cast<int64_t>(i);
    result.push_back(model.denoise(in, runner));
  }
  return result;
}

}  // namespace

TEST_CASE("Prompts of different lengths cost their rows and no more", "[memory]") {
  const Detection part = tiny_dit();
  const auto model = family().make_model({&part, 1}, {});
  model->component("dit").visit_weights(
      [](const std::string&, Weight& weight) { weight.set(at::randn(weight.sizes()) * 0.05); });
  // Rows that blocks are given.
  struct Counter final : BlockRunner {
    Tensors run(Block& block, const Tensors& inputs) override {
      rows.push_back(inputs[0].size(0));
      return block.forward(inputs);
    }
    std::vector<int64_t> rows;
  } counter;
  const Conditioning prompts[] = {family().example_conditioning(part, 200, at::kFloat),
                                  family().example_conditioning(part, 3, at::kFloat)};
  const Conditioning* both[] = {&prompts[0], &prompts[1]};
  const c10::NoGradGuard no_grad;
  model->denoise({at::randn({2, 16, 1, 4, 6}), at::tensor({0.5f, 0.2f}), both}, counter);
  CHECK(counter.rows == std::vector<int64_t>{203, 12, 215, 215});
}

TEST_CASE("Prepared noise levels give the bits of those that are not", "[levels]") {
  // More than one group of rows, the last one not full.
  std::vector<float> sigmas;
  for (int i = 0; i < 11; ++i) sigmas.push_back(1.0f - static_cast<float>(i) / 11.0f);
  const c10::NoGradGuard no_grad;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const auto model = random_dit(dtype);
    DirectRunner runner;
    model->prepare_levels("dit", sigmas, runner);
    for (const int64_t B : {1, 2, 9}) {
      const Tensors plain = denoise_levels(*model, sigmas, B, false);
      INFO(at::toString(dtype) << ", batch of " << B);
      CHECK(test::same_bits(plain, denoise_levels(*model, sigmas, B, true)));
      CHECK_FALSE(at::equal(plain[0], plain[1]));
    }
  }
}

TEST_CASE("Weights of the noise level are those of the modulated blocks", "[levels]") {
  const auto model = random_dit();
  const c10::NoGradGuard no_grad;
  std::set<const Weight*> declared, expected;
  for (const WeightPtr& weight : model->level_weights("dit")) declared.insert(weight.get());
  for (Block* block : model->blocks("dit")) {
    block->visit_weights([&](const std::string& path, Weight& weight) {
      if (path.starts_with("adaLN_modulation")) expected.insert(&weight);
    });
  }
  CHECK(declared == expected);
  // Nothing draws them when levels are prepared.
  DirectRunner runner;
  const std::vector<float> sigmas = {0.9f, 0.3f};
  model->prepare_levels("dit", sigmas, runner);
  for (const WeightPtr& weight : model->level_weights("dit"))
    weight->set(at::full(weight->sizes(), NAN));
  CHECK(at::isfinite(denoise_levels(*model, sigmas, 1, true)[1]).all().item<bool>());
  CHECK_FALSE(at::isfinite(denoise_levels(*model, sigmas, 1, false)[1]).all().item<bool>());
  model->forget_levels();
  CHECK(test::mentions(test::error_of([&] { denoise_levels(*model, sigmas, 1, true); }),
                       "not one of the 0"));
}

TEST_CASE("Wrong latents and conditionings are refused", "[dit]") {
  const Detection part = tiny_dit();
  const auto model = family().make_model({&part, 1}, {});
  DirectRunner runner;
  const Conditioning good = family().example_conditioning(part, 3, at::kFloat);
  const Conditioning narrow = {{"prompt_embeds", at::zeros({3, 7})}}, none;
  const auto refused = [&](const at::Tensor& x, const Conditioning& cond, const std::string& what) {
    const Conditioning* one[] = {&cond};
    const Error error = test::error_of([&] {
      model->denoise({x, at::tensor({0.5f}), one}, runner);
    });
    INFO(error.what());
    CHECK(test::mentions(error, what));
  };
  refused(at::zeros({1, 16, 1, 4, 5}), good, "multiples of 2");
  refused(at::zeros({1, 8, 1, 4, 4}), good, "16");
  refused(at::zeros({1, 16, 2, 4, 4}), good, "2 frames");
  refused(at::zeros({1, 16, 1, 4, 4}), narrow, "prompt_embeds");
  refused(at::zeros({1, 16, 1, 4, 4}), none, "missing");
}
