#include "atelier/parts/language_model.h"

#include "support/tensors.h"

namespace atelier::parts {
namespace {

using test::expect_error;

// The tensors that tell a Qwen3 of so many layers, with its last norm or without.
TensorIndex index_of(int64_t layers, bool has_norm, TensorIndex::Config config = {}) {
  std::map<std::string, TensorMeta, std::less<>> tensors = {
      {"embed_tokens.weight", {at::kFloat, {64, 32}}}};
  if (has_norm) tensors["norm.weight"] = {at::kFloat, {32}};
  for (int64_t i = 0; i < layers; ++i) {
    const std::string layer = "layers." + std::to_string(i) + ".";
    tensors[layer + "self_attn.q_proj.weight"] = {at::kFloat, {64, 32}};
    tensors[layer + "self_attn.k_proj.weight"] = {at::kFloat, {32, 32}};
    tensors[layer + "self_attn.q_norm.weight"] = {at::kFloat, {16}};
    tensors[layer + "post_attention_layernorm.weight"] = {at::kFloat, {32}};
    tensors[layer + "mlp.gate_proj.weight"] = {at::kFloat, {48, 32}};
  }
  return TensorIndex(std::move(tensors), std::move(config));
}

constexpr std::string_view kTypes[] = {"qwen3"}, kOthers[] = {"llama", "mistral"};

LanguageModelConfig config_from(const TensorIndex& index, std::vector<int64_t> states) {
  const LanguageModelUse use = {
      .model_types = kTypes, .states = states, .published_width = 32, .published_mlp_width = 48};
  return whole_config_of<LanguageModelConfig>(detect_language_model(index, use).value());
}

}  // namespace

TEST_CASE("A file that lacks what is not run is of as many layers as the whole one", "[parts]") {
  const TensorIndex::Config said = {{"num_hidden_layers", int64_t{4}}};
  for (const auto& [states, run] :
       {std::pair(std::vector<int64_t>{-2}, 3), std::pair(std::vector<int64_t>{1, 2}, 2),
        std::pair(std::vector<int64_t>{1, -2}, 3), std::pair(std::vector<int64_t>{0, -3}, 2)}) {
    CAPTURE(states);
    const LanguageModelConfig whole = config_from(index_of(4, true), states);
    CHECK(whole.layers == 4);
    CHECK(whole.layers_run() == run);
    CHECK(config_from(index_of(run, false, said), states).layers == 4);
    // Without a config the layers that are run are the same.
    const LanguageModelConfig saved = config_from(index_of(run, false), states);
    CHECK(saved.layers_run() == run);
    CHECK(saved.layers > run);
  }
  CHECK(config_from(index_of(4, true), {-1}).layers_run() == 4);
}

TEST_CASE("Qwen's files of llama.cpp are read, and those whose values it changes are not",
          "[parts]") {
  const auto of_llama_cpp = [](const std::vector<std::string>& marks) {
    std::map<std::string, TensorMeta, std::less<>> tensors = {
        {"token_embd.weight", {at::kFloat, {64, 32}}}, {"output_norm.weight", {at::kFloat, {32}}}};
    for (const std::string layer : {"blk.0.", "blk.1."}) {
      tensors[layer + "attn_q.weight"] = {at::kFloat, {64, 32}};
      tensors[layer + "attn_k.weight"] = {at::kFloat, {32, 32}};
      tensors[layer + "ffn_norm.weight"] = {at::kFloat, {32}};
      tensors[layer + "ffn_gate.weight"] = {at::kFloat, {48, 32}};
      for (const std::string& mark : marks) tensors[layer + mark] = {at::kFloat, {16}};
    }
    return TensorIndex(std::move(tensors), {{"head_dim", int64_t{16}}});
  };
  static constexpr std::string_view kAll[] = {"qwen2", "qwen3", "llama", "mistral", "gemma2"};
  static constexpr int64_t kLast[] = {-2};
  const LanguageModelUse use = {
      .model_types = kAll, .states = kLast, .published_width = 32, .published_mlp_width = 48};
  const auto third = detect_language_model(of_llama_cpp({"attn_q_norm.weight"}), use);
  REQUIRE(third.has_value());
  CHECK(third->spelling == "llama_cpp");
  const auto c = whole_config_of<LanguageModelConfig>(*third);
  CHECK((c.layers == 2 && c.heads == 4 && c.kv_heads == 2 && c.head_norms && !c.qkv_bias));
  const WeightMap map = language_model_map(*third);
  const auto from = [&](std::string_view name) {
    return std::ranges::find(map, name, &WeightRule::from) != map.end();
  };
  CHECK((from("blk.0.attn_k_norm.weight") && from("blk.0.ffn_norm.weight") && from("blk.1.*") &&
         from("output_norm.weight") && from("output.weight")));
  const auto second = detect_language_model(of_llama_cpp({"attn_q.bias"}), use);
  REQUIRE(second.has_value());
  CHECK(whole_config_of<LanguageModelConfig>(*second).qkv_bias);
  CHECK_FALSE(detect_language_model(of_llama_cpp({}), use).has_value());
  CHECK_FALSE(detect_language_model(
                  of_llama_cpp({"post_ffw_norm.weight", "post_attention_norm.weight"}), use)
                  .has_value());
}

TEST_CASE("A language model without the layers that are run is refused", "[parts]") {
  const TensorIndex::Config said = {{"num_hidden_layers", int64_t{4}}};
  expect_error(ErrorCode::kInvalidArgument, {"has 2 layers", "is 4 and 3 are run"},
               [&] { config_from(index_of(2, false, said), {-2}); });
  expect_error(ErrorCode::kInvalidArgument, {"has 5 layers", "is 4"},
               [&] { config_from(index_of(5, true, said), {-2}); });
  expect_error(ErrorCode::kInvalidArgument, {"has 3 layers"},
               [&] { config_from(index_of(3, false), {-1}); });
  expect_error(ErrorCode::kInvalidArgument, {"4", "9"},
               [&] { config_from(index_of(4, true), {9}); });
}

TEST_CASE("A language model of another kind is none of the family's", "[parts]") {
  constexpr int64_t kLast[] = {-1};
  const LanguageModelUse other = {.model_types = kOthers, .states = kLast};
  CHECK_FALSE(detect_language_model(index_of(2, true), other));
}

TEST_CASE("What a language model is known by is what it was before Gemma was read", "[parts]") {
  // Caches and checkpoints of training hold these.
  constexpr int64_t kLast[] = {-1};
  const LanguageModelUse use = {
      .model_types = kTypes, .states = kLast, .published_width = 32, .published_mlp_width = 48};
  std::vector<std::string> names;
  for (const auto& [name, value] : detect_language_model(index_of(2, true), use)->config)
    names.push_back(name);
  CHECK(names == std::vector<std::string>{"eps", "head_dim", "head_norms", "heads", "kv_heads",
                                          "layers", "mlp_width", "qkv_bias", "rope_theta", "states",
                                          "vocabulary", "width", "window", "windowed"});
}

namespace {

// The tensors that tell a Gemma of two layers, the third or the second.
TensorIndex gemma(bool is_third, TensorIndex::Config config) {
  std::map<std::string, TensorMeta, std::less<>> tensors = index_of(2, true).tensors();
  for (const std::string layer : {"layers.0.", "layers.1."}) {
    tensors[layer + "pre_feedforward_layernorm.weight"] = {at::kFloat, {32}};
    tensors[layer + "post_feedforward_layernorm.weight"] = {at::kFloat, {32}};
    if (!is_third) tensors.erase(layer + "self_attn.q_norm.weight");
  }
  return TensorIndex(std::move(tensors), std::move(config));
}

constexpr std::string_view kGemmas[] = {"gemma2", "gemma3_text"};
constexpr int64_t kOne[] = {1};
constexpr LanguageModelUse kGemma = {
    .model_types = kGemmas, .states = kOne, .published_width = 32, .published_mlp_width = 48};

LanguageModelConfig config_from(const TensorIndex& index) {
  return whole_config_of<LanguageModelConfig>(detect_language_model(index, kGemma).value());
}

}  // namespace

TEST_CASE("Gemma's numbers are those of its config, or of a missing field", "[parts]") {
  const TensorIndex::Config heads = {{"head_dim", int64_t{16}}};
  const LanguageModelConfig second = config_from(gemma(false, heads));
  CHECK(second.softcap == 50);
  CHECK(second.query_scalar == 256);
  CHECK(second.windowed == std::vector<bool>{true, false});
  CHECK(second.local_rope_theta == 0);
  CHECK((second.norms_add_one && second.has_outer_norms && second.has_gelu_gate &&
         second.scales_embeddings));
  TensorIndex::Config config = heads;
  config["attn_logit_softcapping"] = nullptr;
  CHECK(config_from(gemma(false, config)).softcap == 0);
  const LanguageModelConfig third = config_from(gemma(true, heads));
  CHECK(third.softcap == 0);
  CHECK(third.windowed == std::vector<bool>{true, true});
  CHECK(third.rope_theta == 1e6);
  CHECK(third.local_rope_theta == 1e4);
  config = {{"sliding_window_pattern", int64_t{2}},
            {"rope_local_base_freq", 500.0},
            {"rope_scaling.rope_type", "linear"},
            {"rope_scaling.factor", 8.0}};
  const LanguageModelConfig stretched = config_from(gemma(true, config));
  CHECK(stretched.windowed == std::vector<bool>{true, false});
  CHECK(stretched.local_rope_theta == 500);
  CHECK(stretched.rope_factor == 8);
  CHECK(stretched.high_waves == 0);
}

TEST_CASE("A Gemma whose config does not tell its numbers is refused", "[parts]") {
  expect_error(ErrorCode::kInvalidArgument, {"rope_theta"}, [] { config_from(gemma(true, {})); });
  expect_error(ErrorCode::kInvalidArgument, {"query_pre_attn_scalar"}, [] {
    config_from(gemma(true, {{"query_pre_attn_scalar", int64_t{0}}}));
  });
  expect_error(ErrorCode::kInvalidArgument, {"sliding_window"}, [] {
    config_from(gemma(true, {{"sliding_window", int64_t{0}}}));
  });
}

TEST_CASE("A stretched rotation has all of its numbers", "[parts]") {
  TensorIndex::Config config = {{"rope_parameters.rope_type", "llama3"},
                                {"rope_parameters.factor", 8.0},
                                {"rope_parameters.low_freq_factor", 1.0},
                                {"rope_parameters.high_freq_factor", 4.0}};
  expect_error(ErrorCode::kInvalidArgument, {"original_max_position_embeddings"},
               [&] { config_from(gemma(true, config)); });
  config["rope_parameters.original_max_position_embeddings"] = int64_t{8192};
  const LanguageModelConfig c = config_from(gemma(true, config));
  CHECK(c.rope_factor == 8);
  CHECK(c.low_waves == 1);
  CHECK(c.high_waves == 4);
  CHECK(c.first_positions == 8192);
  config["rope_parameters.high_freq_factor"] = 1.0;
  expect_error(ErrorCode::kInvalidArgument, {"stretch no rotation"},
               [&] { config_from(gemma(true, config)); });
}

}  // namespace atelier::parts
