#include "umt5.h"

#include "atelier/error.h"

#include "host/weights/weight_binding.h"
#include "support/files.h"
#include "support/published_keys.h"

using namespace atelier;
using test::index_of, test::Keys, test::read_keys;
using wan::detect_umt5;

namespace {

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

}  // namespace

TEST_CASE("umT5-XXL is known by its names and shapes, in every spelling", "[detect]") {
  const std::pair<Keys, const char*> files[] = {{read_keys("umt5_original.txt"), "original"},
                                                {read_keys("umt5.txt"), "transformers"},
                                                {with_both(), "transformers"},
                                                {without_shared(), "transformers_embed"}};
  for (const auto& [keys, spelling] : files) {
    for (const char* prefix : {"", "text_encoder.", "text_encoders.umt5xxl.transformer."}) {
      INFO(spelling << " behind '" << prefix << "'");
      const TensorIndex index = index_of(keys, prefix);
      const auto part = detect_umt5(index);
      REQUIRE(part);
      CHECK(part->component == "text_encoder");
      CHECK(part->prefix == prefix);
      CHECK(part->spelling == spelling);
      const bool is_published = part->config == detection_of("", "", wan::Umt5Config{}).config;
      CHECK(is_published);

      wan::Umt5 encoder(config_of<wan::Umt5Config>(*part));
      const auto binding = weights::bind_weights(wan::umt5_map(*part), prefix, index, encoder);
      CHECK_NOTHROW(binding.throw_unless_complete(spelling, "text_encoder"));
      CHECK(binding.unused.size() == keys.size() - 242);
      int64_t parameters = 0;
      encoder.visit_weights([&](const std::string&, Weight& w) { parameters += w.numel(); });
      CHECK(parameters == 5680910336);
    }
  }
}

TEST_CASE("What is no umT5 is not taken for one", "[detect]") {
  // T5 has one table of distances, in its first layer.
  Keys t5 = read_keys("umt5.txt");
  std::erase_if(t5, [](const auto& row) {
    return row.first.find("relative_attention_bias") != std::string::npos &&
           row.first.find("block.0.") == std::string::npos;
  });
  CHECK_FALSE(detect_umt5(index_of(t5)));
  for (const char* file : {"transformer.txt", "text_encoder_disk.txt", "lumina2_text_encoder.txt"})
    CHECK_FALSE(detect_umt5(index_of(read_keys(file))));
}

TEST_CASE("What shapes do not tell comes from the config, or from the published widths",
          "[detect]") {
  const Keys keys = read_keys("umt5.txt");
  const auto part = detect_umt5(index_of(
      keys, "", {{"relative_attention_max_distance", int64_t{200}}, {"layer_norm_epsilon", 1e-5}}));
  REQUIRE(part);
  CHECK(part->integer("max_distance") == 200);
  CHECK(part->real("eps") == 1e-5);
  Keys narrow = keys;
  for (auto& [name, shape] : narrow) {
    for (int64_t& size : shape) size = size == 10240 ? 5120 : size;
  }
  test::expect_error(ErrorCode::kInvalidArgument, {"relative_attention_max_distance"},
                     [&] { detect_umt5(index_of(narrow)); });
  test::expect_error(ErrorCode::kInvalidArgument, {"no umT5's"}, [&] {
    detect_umt5(index_of(keys, "", {{"relative_attention_max_distance", int64_t{8}}}));
  });
  test::expect_error(ErrorCode::kUnsupported, {"quantised"},
                     [&] { detect_umt5(index_of(keys, "", {}, at::kChar)); });
}
