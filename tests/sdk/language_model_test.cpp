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
  return config_of<LanguageModelConfig>(detect_language_model(index, use).value());
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

}  // namespace atelier::parts
