#include "atelier/parts/t5.h"

#include "atelier/error.h"

#include "host/weights/weight_binding.h"
#include "support/files.h"
#include "support/published_keys.h"

namespace atelier::parts {
namespace {

using test::index_of, test::Keys, test::read_keys;

constexpr std::string_view kUmt5Types[] = {"umt5"}, kT5Types[] = {"t5"};
constexpr T5Use kUmt5 = {.model_types = kUmt5Types}, kT5 = {.model_types = kT5Types};

// umT5's tensors with one table of distances, in its first layer, as T5 has it; `is_gated`: of
// version 1.1.
Keys t5_keys(bool is_gated) {
  Keys keys;
  for (const auto& [name, shape] : read_keys("umt5.txt")) {
    const bool is_table = name.find("relative_attention_bias") != std::string::npos;
    if (is_table && name.find("block.0.") == std::string::npos) continue;
    if (!is_gated && name.find("wi_1") != std::string::npos) continue;
    const size_t gate = is_gated ? std::string::npos : name.find("wi_0");
    keys[gate == std::string::npos ? name : name.substr(0, gate) + "wi.weight"] = shape;
  }
  return keys;
}

// The table of tokens below "encoder." alone, as transformers may write it.
Keys without_shared() {
  Keys keys = read_keys("umt5.txt");
  auto moved = keys.extract("shared.weight");
  moved.key() = "encoder.embed_tokens.weight";
  keys.insert(std::move(moved));
  return keys;
}

Keys with_both() {
  Keys keys = read_keys("umt5.txt");
  keys["encoder.embed_tokens.weight"] = keys["shared.weight"];
  keys["spiece_model"] = {4548313};
  return keys;
}

// A GGUF file of the whole model.
Keys with_decoder() {
  Keys keys = read_keys("umt5_llama_cpp.txt");
  keys["dec.blk.0.attn_q.weight"] = {4096, 4096};
  keys["dec.output_norm.weight"] = {4096};
  keys["output.weight"] = {256384, 4096};
  return keys;
}

}  // namespace

TEST_CASE("umT5-XXL is known by its names and shapes, in every spelling", "[detect]") {
  const std::pair<Keys, const char*> files[] = {{read_keys("umt5_original.txt"), "original"},
                                                {read_keys("umt5.txt"), "transformers"},
                                                {with_both(), "transformers"},
                                                {without_shared(), "transformers_embed"},
                                                {read_keys("umt5_llama_cpp.txt"), "llama_cpp"},
                                                {with_decoder(), "llama_cpp"}};
  for (const auto& [keys, spelling] : files) {
    for (const char* prefix : {"", "text_encoder.", "text_encoders.umt5xxl.transformer."}) {
      INFO(spelling << " behind '" << prefix << "'");
      const TensorIndex index = index_of(keys, prefix);
      const auto part = detect_t5(index, kUmt5);
      REQUIRE(part);
      CHECK(part->component == "text_encoder");
      CHECK(part->prefix == prefix);
      CHECK(part->spelling == spelling);
      const bool is_published = part->config == brief_detection_of("", "", T5Config{}).config;
      CHECK(is_published);

      T5Encoder encoder(whole_config_of<T5Config>(*part));
      const auto binding = weights::bind_weights(t5_map(*part), prefix, index, encoder);
      CHECK_NOTHROW(binding.throw_unless_complete(spelling, "text_encoder"));
      CHECK(binding.unused.size() == keys.size() - 242);
      int64_t parameters = 0;
      encoder.visit_weights([&](const std::string&, Weight& w) { parameters += w.numel(); });
      CHECK(parameters == 5680910336);
    }
  }
}

TEST_CASE("T5 is known by its one table of distances, and by whether it is gated", "[detect]") {
  for (const bool is_gated : {true, false}) {
    INFO("gated: " << is_gated);
    const TensorIndex index = index_of(t5_keys(is_gated));
    CHECK_FALSE(detect_t5(index, kUmt5));
    const auto part = detect_t5(index, kT5);
    REQUIRE(part);
    const auto config = whole_config_of<T5Config>(*part);
    CHECK(config.shares_distances);
    CHECK(config.is_gated == is_gated);
    T5Encoder encoder(config);
    const auto binding = weights::bind_weights(t5_map(*part), "", index, encoder);
    CHECK_NOTHROW(binding.throw_unless_complete("T5", "text_encoder"));
    CHECK(binding.unused.empty());
  }
}

TEST_CASE("What a umT5 is known by is what it was before T5 was read", "[detect]") {
  // Caches and checkpoints of training hold these.
  const auto part = detect_t5(index_of(read_keys("umt5.txt")), kUmt5);
  REQUIRE(part);
  const TensorIndex::Config numbers = {
      {"vocabulary", int64_t{256384}}, {"width", int64_t{4096}},       {"heads", int64_t{64}},
      {"head_dim", int64_t{64}},       {"ffn", int64_t{10240}},        {"layers", int64_t{24}},
      {"buckets", int64_t{32}},        {"max_distance", int64_t{128}}, {"eps", 1e-6}};
  const bool is_same = part->config == numbers;
  CHECK(is_same);
}

TEST_CASE("What is no umT5 is not taken for one", "[detect]") {
  CHECK_FALSE(detect_t5(index_of(read_keys("umt5.txt")), kT5));
  for (const char* file : {"transformer.txt", "text_encoder_disk.txt", "lumina2_text_encoder.txt",
                           "text_encoder_llama_cpp.txt", "lumina2_text_encoder_llama_cpp.txt"})
    CHECK_FALSE(detect_t5(index_of(read_keys(file)), kUmt5));
}

TEST_CASE("What shapes do not tell comes from the config, or from the published widths",
          "[detect]") {
  const Keys keys = read_keys("umt5.txt");
  const auto part = detect_t5(
      index_of(keys, "",
               {{"relative_attention_max_distance", int64_t{200}}, {"layer_norm_epsilon", 1e-5}}),
      kUmt5);
  REQUIRE(part);
  CHECK(part->integer("max_distance") == 200);
  CHECK(part->real("eps") == 1e-5);
  Keys narrow = keys;
  for (auto& [name, shape] : narrow) {
    for (int64_t& size : shape) size = size == 10240 ? 5120 : size;
  }
  test::expect_error(ErrorCode::kInvalidArgument, {"relative_attention_max_distance"},
                     [&] { detect_t5(index_of(narrow), kUmt5); });
  test::expect_error(ErrorCode::kInvalidArgument, {"neither T5's"}, [&] {
    detect_t5(index_of(keys, "", {{"relative_attention_max_distance", int64_t{8}}}), kUmt5);
  });
  test::expect_error(ErrorCode::kUnsupported, {"quantised"},
                     [&] { detect_t5(index_of(keys, "", {}, at::kChar), kUmt5); });
}

}  // namespace atelier::parts
