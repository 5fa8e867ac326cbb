#include "atelier/error.h"
#include "atelier/parts/clip.h"
#include "atelier/parts/language_model.h"
#include "atelier/parts/siglip.h"
#include "atelier/parts/t5.h"
#include "atelier/parts/wav2vec2.h"

#include "host/weights/published_tensors.h"
#include "host/weights/weight_binding.h"
#include "support/files.h"
#include "support/published_keys.h"

namespace atelier::parts {
namespace {

using test::expect_error, test::index_of, test::Keys, test::read_keys;

constexpr int64_t kBeforeLast[] = {-2}, kFar[] = {-9};
constexpr ClipTextUse kProjected = {
    .states = kBeforeLast, .norms_states = false, .pooling = ClipPooling::kProjected};
constexpr ClipTextUse kStates = {.states = kBeforeLast};
constexpr std::string_view kActivations[] = {"gelu"};
constexpr ClipVisionUse kImages = {.activations = kActivations, .states = kBeforeLast};

// ViT-L/14's text model, with its projection.
Keys text_keys() {
  const Detection part = detection_of("text_encoder", "transformers",
                                      ClipTextConfig{.pools = true, .projection = 768});
  ClipText model(config_of<ClipTextConfig>(part));
  const TensorIndex index = weights::published_index(model, clip_text_map(part));
  Keys keys;
  for (const auto& [name, meta] : index.tensors()) keys[name] = meta.shape;
  return keys;
}

// What the detection of a row makes of the files of its tiny part, whose config says what the row's
// table of fields has.
std::optional<Detection> taken(const ComponentRow& row) {
  const Detection part = row.tiny();
  const auto module = row.make(part);
  TensorIndex::Config config;
  const ConfigFields fields = row.config_fields(part);
  for (const ConfigField& field : fields.rows()) {
    const bool is_said =
        field.use == ConfigField::Use::kFixed || field.use == ConfigField::Use::kTold;
    if (is_said) config.try_emplace(field.name, field.values.front());
  }
  const TensorIndex index = weights::published_index(*module, row.weight_map(part));
  return row.detect(TensorIndex(index.tensors(), std::move(config)));
}

constexpr int64_t kLast[] = {-1};
template <const std::string_view& type>
constexpr std::string_view kOnly[] = {type};
template <const std::string_view& type>
constexpr LanguageModelUse kLanguageModel = {.model_types = kOnly<type>, .states = kLast};
template <const std::string_view& type>
constexpr T5Use kT5Of = {.model_types = kOnly<type>};
constexpr std::string_view kQwen2 = "qwen2", kQwen3 = "qwen3", kLlama = "llama",
                           kMistral = "mistral", kGemma2 = "gemma2", kGemma3 = "gemma3_text",
                           kFirstT5 = "t5", kSecondT5 = "umt5";
constexpr std::string_view kQuick[] = {"quick_gelu"};
constexpr ClipVisionUse kQuickImages = {.activations = kQuick, .states = kBeforeLast};
constexpr ClipTextUse kPooled = {.states = kLast, .pooling = ClipPooling::kPlain};
constexpr SiglipUse kSiglip = {.pools = true}, kHeadless = {.is_bilinear = true};
constexpr Wav2Vec2Use kSound = {};

}  // namespace

TEST_CASE("Tiny parts are what their files are taken for", "[parts]") {
  const ComponentRow rows[] = {language_model_row<kLanguageModel<kQwen2>>("Qwen2"),
                               language_model_row<kLanguageModel<kQwen3>>("Qwen3"),
                               language_model_row<kLanguageModel<kLlama>>("Llama"),
                               language_model_row<kLanguageModel<kMistral>>("Mistral"),
                               language_model_row<kLanguageModel<kGemma2>>("Gemma 2"),
                               language_model_row<kLanguageModel<kGemma3>>("Gemma 3"),
                               t5_row<kT5Of<kFirstT5>>("T5"),
                               t5_row<kT5Of<kSecondT5>>("umT5"),
                               clip_text_row<kStates>("texts"),
                               clip_text_row<kProjected>("projected texts"),
                               clip_text_row<kPooled>("pooled texts"),
                               clip_vision_row<kImages>("images"),
                               clip_vision_row<kQuickImages>("images, quick GELU"),
                               siglip_row<kSiglip>("SigLIP"),
                               siglip_row<kHeadless>("SigLIP without its head"),
                               wav2vec2_row<kSound>("sound")};
  for (const ComponentRow& row : rows) {
    INFO(row.spec.help);
    const auto part = taken(row);
    REQUIRE(part);
    CHECK(part->component == row.spec.name);
    const TensorIndex::Config wanted = row.tiny().config;
    for (const auto& [name, value] : wanted) {
      INFO(name << ": " << to_text(value));
      CHECK((part->config.contains(name) && is_same(part->config.at(name), value)));
    }
    CHECK(part->config.size() == wanted.size());
  }
}

TEST_CASE("CLIP's text model is known by its names and shapes, in both spellings", "[parts]") {
  Keys bare;
  for (const auto& [name, shape] : text_keys()) {
    if (name.starts_with("text_model.")) bare[name.substr(11)] = shape;
  }
  for (const auto& [keys, spelling] :
       {std::pair(text_keys(), "transformers"), std::pair(bare, "transformers_bare")}) {
    for (const char* prefix : {"", "text_encoder.", "text_encoders.clip_l.transformer."}) {
      INFO(spelling << " behind '" << prefix << "'");
      const TensorIndex index = index_of(keys, prefix);
      const auto part = detect_clip_text(index, kStates);
      REQUIRE(part);
      CHECK(part->spelling == spelling);
      CHECK(part->prefix == prefix);
      const auto config = config_of<ClipTextConfig>(*part);
      CHECK(config.heads == 12);
      CHECK(config.quick_gelu);
      CHECK(config.layers_run() == 11);
      ClipText model(config);
      const auto binding = weights::bind_weights(clip_text_map(*part), prefix, index, model);
      CHECK_NOTHROW(binding.throw_unless_complete(spelling, "text_encoder"));
      // The layer that is not run, and the projection.
      CHECK(binding.unused.size() == 16 + (keys.contains("text_projection.weight") ? 1 : 0));
    }
  }
}

TEST_CASE("CLIP's text model needs what is used of it", "[parts]") {
  Keys keys = text_keys();
  const auto whole = detect_clip_text(index_of(keys), kProjected);
  REQUIRE(whole);
  CHECK(config_of<ClipTextConfig>(*whole).layers_run() == 12);
  CHECK(whole->integer("projection") == 768);
  keys.erase("text_projection.weight");
  expect_error(ErrorCode::kNotFound, {"text_projection.weight"},
               [&] { detect_clip_text(index_of(keys), kProjected); });
  expect_error(ErrorCode::kInvalidArgument, {"num_hidden_layers is 13"}, [&] {
    detect_clip_text(index_of(keys, "", {{"num_hidden_layers", int64_t{13}}}), kPooled);
  });
  // Numbers that config.json has to tell.
  expect_error(ErrorCode::kInvalidArgument, {"768", "num_attention_heads"}, [&] {
    detect_clip_text(index_of(keys, "", {{"num_attention_heads", int64_t{7}}}), kStates);
  });
  keys["text_model.encoder.layers.0.mlp.fc1.weight"] = {3000, 768};
  expect_error(ErrorCode::kInvalidArgument, {"num_attention_heads and hidden_act"},
               [&] { detect_clip_text(index_of(keys), kStates); });
  constexpr ClipTextUse far = {.states = kFar};
  const Detection tiny = tiny_clip_text(far);  // within its layers
  CHECK(config_of<ClipTextConfig>(tiny).layers_before(-4) == 0);
  CHECK_FALSE(detect_clip_text(index_of(read_keys("clip_vision.txt")), kStates));
}

TEST_CASE("A text that CLIP has no positions for is refused", "[parts]") {
  ClipText model(config_of<ClipTextConfig>(tiny_clip_text(kStates)));
  DirectRunner runner;
  expect_error(ErrorCode::kInvalidArgument, {"78 tokens", "77"},
               [&] { model.forward(at::zeros({78}, at::kLong), Segments({78}), runner); });
}

TEST_CASE("A file of CLIP that lacks what is not run is of as many layers as the whole one",
          "[parts]") {
  Keys text = text_keys(), images = read_keys("clip_vision.txt");
  for (Keys* keys : {&text, &images}) {
    std::erase_if(*keys, [](const auto& row) {
      return row.first.find("layers.11.self") != std::string::npos ||
             row.first.find("layers.31.") != std::string::npos ||
             row.first.find("post_layernorm") != std::string::npos;
    });
  }
  CHECK(detect_clip_text(index_of(text), kStates)->integer("layers") == 12);
  CHECK(detect_clip_vision(index_of(images), kImages)->integer("layers") == 32);
  // Without published widths the last norm tells.
  const TensorIndex::Config config = {{"hidden_act", "gelu"}};
  images["vision_model.encoder.layers.0.mlp.fc1.weight"] = {4096, 1280};
  CHECK(detect_clip_vision(index_of(images, "", config), kImages)->integer("layers") == 32);
  images["vision_model.post_layernorm.weight"] = {1280};
  CHECK(detect_clip_vision(index_of(images, "", config), kImages)->integer("layers") == 31);
}

TEST_CASE("CLIP's images and SigLIP's are not taken for each other", "[parts]") {
  constexpr SiglipUse siglip = {.pools = true};
  CHECK(detect_clip_vision(index_of(read_keys("clip_vision.txt")), kImages));
  CHECK_FALSE(detect_clip_vision(index_of(read_keys("siglip2.txt")), kImages));
  CHECK(detect_siglip(index_of(read_keys("siglip2.txt")), siglip));
  CHECK_FALSE(detect_siglip(index_of(read_keys("clip_vision.txt")), siglip));
}

TEST_CASE("What CLIP's image encoder is known by is what it was before other states were given",
          "[parts]") {
  // Caches and checkpoints of training hold these.
  const auto part = detect_clip_vision(index_of(read_keys("clip_vision.txt")), kImages);
  REQUIRE(part);
  const TensorIndex::Config numbers = {{"layers", int64_t{32}}, {"width", int64_t{1280}},
                                       {"heads", int64_t{16}},  {"mlp_width", int64_t{5120}},
                                       {"patch", int64_t{14}},  {"rows", int64_t{257}},
                                       {"eps", 1e-5},           {"has_batch_axes", false}};
  const bool is_same = part->config == numbers;
  CHECK(is_same);
}

TEST_CASE("SigLIP 2 is known by its names and shapes, with its head or without", "[parts]") {
  const Keys keys = read_keys("siglip2.txt");
  const TensorIndex index = index_of(keys);
  for (const bool pools : {true, false}) {
    INFO("pools: " << pools);
    const auto part = detect_siglip(index, {.pools = pools});
    REQUIRE(part);
    const auto config = config_of<SiglipConfig>(*part);
    CHECK(config.layers == 40);
    CHECK(config.heads == 16);
    CHECK(config.image_side() == 384);
    Siglip model(config);
    const auto binding = weights::bind_weights(siglip_map(*part), "", index, model);
    CHECK_NOTHROW(binding.throw_unless_complete("SigLIP 2", "image_encoder"));
    CHECK(binding.unused.size() == (pools ? 0 : 11));
  }
  Keys headless = keys;
  std::erase_if(headless, [](const auto& row) { return row.first.starts_with("head."); });
  CHECK(detect_siglip(index_of(headless), {}));
  expect_error(ErrorCode::kNotFound, {"head.attention"},
               [&] { detect_siglip(index_of(headless), {.pools = true}); });
  // Patches of models of any size are a product.
  Keys any_size = keys;
  any_size["embeddings.patch_embedding.weight"] = {1536, 768};
  CHECK_FALSE(detect_siglip(index_of(any_size), {}));
}

TEST_CASE("A pooling head that is not loaded is named", "[parts]") {
  const Siglip model(config_of<SiglipConfig>(tiny_siglip({})));
  DirectRunner runner;
  expect_error(ErrorCode::kUnsupported, {"pooling head"}, [&] {
    model.pooled(at::zeros({16, 48}), runner);
  });
}

TEST_CASE("wav2vec2 is known by its names and shapes, in both spellings", "[parts]") {
  const Keys older = read_keys("wav2vec2.txt");
  Keys newer;
  for (const auto& [name, shape] : older) {
    const size_t at = name.find(".weight_");
    newer[at == std::string::npos ? name
                                  : name.substr(0, at) + ".parametrizations.weight.original" +
                                        (name.ends_with("g") ? "0" : "1")] = shape;
  }
  for (const auto& [keys, spelling] :
       {std::pair(older, "ctc"), std::pair(newer, "ctc_parametrized")}) {
    INFO(spelling);
    const TensorIndex index = index_of(keys);
    const auto part = detect_wav2vec2(index, {});
    REQUIRE(part);
    CHECK(part->spelling == spelling);
    CHECK(part->prefix.empty());
    const bool is_published = part->config == detection_of("", "", Wav2Vec2Config{}).config;
    CHECK(is_published);
    Wav2Vec2 model(config_of<Wav2Vec2Config>(*part));
    const auto binding = weights::bind_weights(wav2vec2_map(*part), "", index, model);
    CHECK_NOTHROW(binding.throw_unless_complete(spelling, "audio_encoder"));
    int64_t parameters = 0;
    model.visit_weights([&](const std::string&, Weight& w) { parameters += w.numel(); });
    CHECK(parameters == 315472545 - 1024 - 33 * 1025);  // without the mask and the head
  }
}

TEST_CASE("A wav2vec2 of other norms is not taken, or refused", "[parts]") {
  Keys keys = read_keys("wav2vec2.txt");
  expect_error(ErrorCode::kInvalidArgument, {"do_stable_layer_norm"}, [&] {
    detect_wav2vec2(index_of(keys, "", {{"hidden_size", int64_t{1024}}}), {});
  });
  const auto fields = wav2vec2_fields(tiny_wav2vec2({}));
  const bool are_refused =
      fields.find("do_stable_layer_norm")->values == std::vector<ConfigValue>{true} &&
      fields.find("feat_extract_norm")->values == std::vector<ConfigValue>{"layer"};
  CHECK(are_refused);
  expect_error(ErrorCode::kInvalidArgument, {"7 convolutions", "conv_stride"}, [&] {
    detect_wav2vec2(
        index_of(keys, "",
                 {{"do_stable_layer_norm", true}, {"conv_stride", std::vector<double>{5, 2}}}),
        {});
  });
  // Base models norm the first convolution alone.
  std::erase_if(keys, [](const auto& row) {
    return row.first.find("conv_layers.1.layer_norm") != std::string::npos;
  });
  CHECK_FALSE(detect_wav2vec2(index_of(keys), {}));
}

}  // namespace atelier::parts
