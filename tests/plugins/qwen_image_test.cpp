#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include "atelier/error.h"
#include "atelier/host/weight_state.h"
#include "atelier/nn/layers.h"

#include "host/conformance/config_probe.h"
#include "host/files/config_json.h"
#include "host/model/config_check.h"
#include "host/model/recognition.h"
#include "host/sampling/sigma_schedule.h"
#include "host/weights/storage.h"
#include "host/weights/weight_binding.h"
#include "support/files.h"
#include "support/models.h"
#include "support/opened_family.h"
#include "support/published_keys.h"
#include "support/tensors.h"

using namespace atelier;

namespace {

const ModelFamily& family() {
  return test::opened_family();
}

// ---- Key lists ----

using test::expect_error, test::index_of, test::Keys, test::read_keys;

Detection detected(const TensorIndex& index, const DetectHint& hint = {}) {
  const auto part = model::detect_with_config(family(), index, hint);
  REQUIRE(part);
  return *part;
}

using Reals = std::vector<double>;

Reals reals(const Detection& part, const std::string& key) {
  return std::get<Reals>(part.config.at(key));
}

// The table binds each tensor of the checkpoint once and fills each weight once. Returns how many
// tensors are not used.
size_t check_coverage(const TensorIndex& index, const Detection& part) {
  const auto model = family().make_model({&part, 1}, {});
  nn::Module& module = model->component(part.component);
  const auto binding = weights::bind_weights(family().weight_map(part), part.prefix, index, module);
  CHECK_NOTHROW(binding.throw_unless_complete("keys", part.component));
  CHECK(binding.is_complete());
  size_t weights = 0;
  module.visit_weights([&](const std::string&, Weight&) { ++weights; });
  CHECK(binding.weights.size() == weights);
  std::multiset<std::string> named(binding.unused.begin(), binding.unused.end());
  for (const auto& weight : binding.weights) {
    CHECK(weight.slices.size() == 1);
    for (const auto& slice : weight.slices) {
      named.insert(slice.tensor);
      CHECK(slice.axis == -1);
    }
  }
  CHECK(named.size() == index.tensors().size());
  CHECK(std::set<std::string>(named.begin(), named.end()).size() == named.size());
  return binding.unused.size();
}

// ---- Tiny models ----

void fill(nn::Module& module, bool trainable = false) {
  module.visit_weights([&](const std::string& path, Weight& weight) {
    const auto sizes = weight.sizes();
    const bool norm = path.ends_with("gamma") || (sizes.size() == 1 && path.ends_with("weight"));
    at::Tensor value = at::randn(sizes, at::kFloat);
    if (norm) {
      value = 1.0 + 0.1 * value;
    } else if (sizes.size() == 1) {
      value = 0.1 * value;
    } else if (!path.starts_with("embed_tokens")) {
      value = value / std::sqrt(static_cast<double>(weight.numel() / sizes[0]));
    }
    weight.set(value);
    if (trainable) weight.state().set_trainable(true);
  });
}

// The tiny model with random weights; `only` names one component, or all.
std::unique_ptr<Model> tiny_model(const std::string& only = "", bool trainable = false,
                                  const ModelOptions& options = {}) {
  at::manual_seed(20260);
  std::vector<Detection> parts;
  for (const Detection& part : family().tiny_parts()) {
    if (only.empty() || part.component == only) parts.push_back(part);
  }
  auto model = family().make_model(parts, options);
  for (const Detection& part : parts) fill(model->component(part.component), trainable);
  return model;
}

double relative_error(const at::Tensor& a, const at::Tensor& b) {
  REQUIRE(a.sizes() == b.sizes());
  return ((a - b).abs().max() / b.abs().max()).item<double>();
}

// A byte-level tokenizer without merges: one token a byte, and the template's marks.
void write_tokenizer(const test::Folder& folder, bool marks = true) {
  nlohmann::json vocabulary;
  int next = 0;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable =
        (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    const int point = printable ? byte : 256 + next++;
    const std::string text = point < 128 ? std::string(1, static_cast<char>(point))
                                         : std::string{static_cast<char>(0xC0 | (point >> 6)),
                                                       static_cast<char>(0x80 | (point & 63))};
    vocabulary[text] = byte;
  }
  nlohmann::json added = nlohmann::json::array();
  int id = 256;
  for (const char* content : {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}) {
    if (!marks && id > 256) break;
    added.push_back({{"id", id++},
                     {"content", content},
                     {"special", true},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"single_word", false}});
  }
  const nlohmann::json file = {
      {"version", "1.0"},
      {"added_tokens", added},
      {"normalizer", {{"type", "NFC"}}},
      {"pre_tokenizer",
       {{"type", "ByteLevel"},
        {"add_prefix_space", false},
        {"trim_offsets", false},
        {"use_regex", true}}},
      {"post_processor", nullptr},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", nlohmann::json::array()}}}};
  test::write_bytes(folder / "tokenizer.json", file.dump());
}

// Tensors of a text encoder file that its language model does not own.
Keys vision_keys(const std::string& spelling) {
  const Keys keys = read_keys("text_encoder_" + spelling + ".txt");
  const Detection text = detected(index_of(keys));
  Keys rest;
  for (const auto& [name, shape] : keys) {
    if (!model::owns(text, name)) rest.emplace(name, shape);
  }
  return rest;
}

}  // namespace

TEST_CASE("Every published DiT file is detected and each of its tensors has a place", "[detect]") {
  const Keys keys = read_keys("transformer.txt");
  for (const std::string prefix :
       {"", "model.diffusion_model.", "diffusion_model.", "transformer.", "module."}) {
    INFO("prefix '" << prefix << "'");
    const TensorIndex index = index_of(keys, prefix);
    const Detection part = detected(index);
    CHECK(part.component == "dit");
    CHECK(part.variant == "qwen-image");
    CHECK(part.prefix == prefix);
    CHECK(part.integer("layers") == 60);
    CHECK(part.integer("width") == 3072);
    CHECK(part.integer("heads") == 24);
    CHECK(part.integer("head_dim") == 128);
    CHECK(part.integer("mlp_width") == 12288);
    CHECK(part.integer("text_width") == 3584);
    CHECK(part.integer("channels") == 16);
    CHECK(reals(part, "axes") == Reals({16, 56, 56}));
    CHECK(check_coverage(index, part) == 0);
  }
  CHECK(detected(index_of(keys, "", {}, at::kFloat8_e4m3fn)).component == "dit");
}

TEST_CASE("Every published text encoder file is detected and each of its tensors has a place",
          "[detect]") {
  Keys without_head = read_keys("text_encoder_disk.txt");
  without_head.erase("lm_head.weight");
  const std::tuple<Keys, std::string, size_t> files[] = {
      {read_keys("text_encoder_disk.txt"), "disk", 391},
      {without_head, "disk", 390},
      {read_keys("text_encoder_memory.txt"), "memory", 391},
      {read_keys("text_encoder_llama_cpp.txt"), "llama_cpp", 1}};
  for (const auto& [keys, spelling, unused] : files) {
    const TensorIndex index = index_of(keys);
    const Detection part = detected(index);
    CHECK(part.component == "text_encoder");
    CHECK(part.spelling == spelling);
    CHECK(part.integer("layers") == 28);
    CHECK(part.integer("width") == 3584);
    CHECK(part.integer("heads") == 28);
    CHECK(part.integer("kv_heads") == 4);
    CHECK(part.integer("head_dim") == 128);
    CHECK(part.integer("mlp_width") == 18944);
    CHECK(part.integer("vocabulary") == 152064);
    CHECK(part.real("rope_theta") == 1e6);
    CHECK(part.real("eps") == 1e-6);
    CHECK(check_coverage(index, part) == unused);
  }
}

TEST_CASE("The vision tower of a text encoder file has the rest of its tensors", "[detect]") {
  for (const std::string spelling : {"disk", "memory"}) {
    INFO(spelling);
    const Keys rest = vision_keys(spelling);
    CHECK(rest.size() == 390);
    const TensorIndex index = index_of(rest);
    const Detection part = detected(index);
    CHECK(part.component == "vision_tower");
    CHECK(part.spelling == spelling);
    CHECK(part.integer("layers") == 32);
    CHECK(part.integer("width") == 1280);
    CHECK(part.integer("heads") == 16);
    CHECK(part.integer("mlp_width") == 3420);
    CHECK(part.integer("out_width") == 3584);
    CHECK(part.integer("window") == 112);
    Reals sees_all(32);
    for (const size_t layer : {7, 15, 23, 31}) sees_all[layer] = 1;
    CHECK(reals(part, "sees_all") == sees_all);
    CHECK(check_coverage(index, part) == 0);
  }
}

TEST_CASE("The vision tower is known in a GGUF file, whose queries, keys and values are apart",
          "[detect]") {
  const TensorIndex index = index_of(read_keys("vision_tower_llama_cpp.txt"));
  const Detection part = detected(index);
  CHECK(part.component == "vision_tower");
  CHECK(part.spelling == "llama_cpp");
  const Detection whole = detected(index_of(vision_keys("disk")));
  const bool is_same = part.config == whole.config;
  CHECK(is_same);
  const auto model = family().make_model({&part, 1}, {});
  const auto binding =
      weights::bind_weights(family().weight_map(part), "", index, model->component("vision_tower"));
  CHECK_NOTHROW(binding.throw_unless_complete("keys", "vision_tower"));
  CHECK(binding.unused.empty());
  for (const auto& bound : binding.weights)
    CHECK(bound.slices.size() == (bound.path.find(".qkv.") == std::string::npos ? 1 : 3));
  // Towers of other models have no gates, or are made for one frame.
  for (const std::string other : {"ffn_gate.weight", "v.patch_embd.weight.1"}) {
    Keys keys = read_keys("vision_tower_llama_cpp.txt");
    std::erase_if(keys, [&](const auto& entry) { return entry.first.ends_with(other); });
    CHECK_FALSE(family().detect(index_of(keys), {}));
  }
}

TEST_CASE("What was said, a config and the path tell which variant a denoiser is", "[detect]") {
  const Keys keys = read_keys("transformer.txt");
  Keys marked = keys;
  marked["__index_timestep_zero__"] = {};
  const auto variant = [&](const TensorIndex& index, const std::string& path,
                           const DetectHint& hint = {}) {
    FoundPart found[] = {{detected(index, hint), path, hint},
                         {detected(index_of(read_keys("text_encoder_disk.txt"))), "/m/text", {}}};
    family().assign(found);
    const bool is_clean = found[0].part.config.contains("clean_references");
    const bool edits = found[0].part.variant.find("-edit") != std::string::npos;
    CHECK(is_clean == (found[0].part.variant == "qwen-image-edit-2511"));
    CHECK(found[1].part.variant == (edits ? found[0].part.variant : "qwen-image"));
    return found[0].part.variant;
  };
  const TensorIndex plain = index_of(keys);
  CHECK(variant(plain, "/m/Qwen-Image/transformer/1.safetensors") == "qwen-image");
  CHECK(variant(plain, "/m/Qwen-Image-Edit/transformer/1.safetensors") == "qwen-image-edit");
  CHECK(variant(plain, "/m/qwen_image_edit_2509_bf16.safetensors") == "qwen-image-edit-2509");
  CHECK(variant(plain, "/m/Qwen-Image-Edit-2511/x.safetensors") == "qwen-image-edit-2511");
  CHECK(variant(plain, "/m/FireRed-Image-Edit-1.0/x.safetensors") == "firered-image-edit");
  CHECK(variant(plain, "/m/x.safetensors", {.component = {}, .variant = "qwen-image-edit-2511"}) ==
        "qwen-image-edit-2511");
  CHECK(variant(plain, "/m/Qwen-Image-Edit/x", {.component = {}, .variant = "qwen-image-2512"}) ==
        "qwen-image-2512");
  CHECK(variant(index_of(marked), "/m/x.safetensors") == "qwen-image-edit-2511");
  CHECK(variant(index_of(keys, "", {{"zero_cond_t", true}}), "/m/x") == "qwen-image-edit-2511");
  // The user counts more than a config, and a config more than a path.
  const TensorIndex unclean = index_of(keys, "", {{"zero_cond_t", false}});
  CHECK(variant(unclean, "/m/Qwen-Image-Edit-2511/x.safetensors") == "qwen-image-edit-2509");
  CHECK(variant(unclean, "/m/Qwen-Image-Edit/x.safetensors") == "qwen-image-edit");
  CHECK(variant(unclean, "/m/x", {.component = {}, .variant = "qwen-image-edit-2511"}) ==
        "qwen-image-edit-2511");
  CHECK(check_coverage(index_of(marked), detected(index_of(marked))) == 1);
}

TEST_CASE("A denoiser that nothing tells is of the variant of the one beside it", "[detect]") {
  const Detection dit = detected(index_of(read_keys("transformer.txt")));
  using Variants = std::vector<std::string>;
  const auto variants = [&](const std::vector<std::string>& paths) {
    std::vector<FoundPart> parts;
    for (const std::string& path : paths) parts.push_back({dit, path, {}});
    parts.push_back({detected(index_of(read_keys("text_encoder_disk.txt"))), "/m/text", {}});
    family().assign(parts);
    Variants all;
    for (const FoundPart& found : parts) all.push_back(found.part.variant);
    return all;
  };
  const std::string edit = "qwen-image-edit-2509", plain = "qwen-image";
  const std::string inside = "/m/Qwen-Image-Edit-2509/transformer/1.safetensors";
  CHECK(variants({inside, "/m/merged.safetensors"}) == Variants{edit, edit, edit});
  CHECK(variants({"/m/dit_Q8_0.gguf", inside}) == Variants{edit, edit, edit});
  CHECK(variants({inside, "/m/qwen_image_bf16.safetensors"}) == Variants{edit, plain, plain});
  CHECK(variants({inside, "/m/Qwen-Image/transformer/1.safetensors"}) ==
        Variants{edit, plain, plain});
  CHECK(variants({"/m/a/1.safetensors", "/m/b.safetensors"}) == Variants{plain, plain, plain});
}

TEST_CASE("A text encoder alone is that of the variant that was said", "[detect]") {
  const Detection text = detected(index_of(read_keys("text_encoder_disk.txt")));
  const auto variant = [&](const std::string& said) {
    FoundPart found[] = {{text, "/m/Qwen-Image-Edit/text", {.component = {}, .variant = said}}};
    family().assign(found);
    return found[0].part.variant;
  };
  CHECK(variant("qwen-image-edit-2509") == "qwen-image-edit-2509");
  CHECK(variant("qwen-image-2512") == "qwen-image");
  CHECK(variant("") == "qwen-image");
}

TEST_CASE("Every published VAE file is detected and each of its tensors has a place", "[detect]") {
  const std::tuple<const char*, std::string, std::vector<std::string>> files[] = {
      {"vae_diffusers.txt", "diffusers", {"", "vae."}},
      {"vae_original.txt", "original", {"", "model.", "first_stage_model."}}};
  for (const auto& [file, spelling, prefixes] : files) {
    for (const std::string& prefix : prefixes) {
      INFO(file << ", prefix '" << prefix << "'");
      const TensorIndex index = index_of(read_keys(file), prefix);
      const Detection part = detected(index);
      CHECK(part.component == "vae");
      CHECK(part.spelling == spelling);
      CHECK(part.prefix == prefix);
      CHECK(part.integer("channels") == 16);
      CHECK(part.integer("base_width") == 96);
      CHECK(part.integer("res_blocks") == 2);
      CHECK(reals(part, "widths") == Reals({96, 192, 384, 384}));
      CHECK(reals(part, "temporal") == Reals({0, 1, 1}));
      CHECK(check_coverage(index, part) == 0);
    }
  }
}

TEST_CASE("What shapes cannot tell is read from config.json", "[detect]") {
  Keys text = read_keys("text_encoder_disk.txt");
  for (const std::string nested : {"", "text_config."}) {
    const Detection part = detected(index_of(text, "",
                                             {{nested + "num_attention_heads", int64_t{56}},
                                              {nested + "num_key_value_heads", int64_t{8}},
                                              {nested + "rope_theta", 5e5},
                                              {nested + "rms_norm_eps", 1e-5}}));
    CHECK(part.integer("heads") == 56);
    CHECK(part.integer("kv_heads") == 8);
    CHECK(part.integer("head_dim") == 64);
    CHECK(part.real("rope_theta") == 5e5);
    CHECK(part.real("eps") == 1e-5);
  }
  CHECK(detected(index_of(text, "", {{"text_config.rope_parameters.rope_theta", int64_t{10000}}}))
            .real("rope_theta") == 1e4);

  const Keys dit = read_keys("transformer.txt");
  const Detection part =
      detected(index_of(dit, "", {{"axes_dims_rope", std::vector<double>{32, 48, 48}}}));
  CHECK(reals(part, "axes") == Reals({32, 48, 48}));
  expect_error(ErrorCode::kInvalidArgument, {"does not add up"}, [&] {
    detected(index_of(dit, "", {{"axes_dims_rope", std::vector<double>{16, 56, 54}}}));
  });

  const Keys vae = read_keys("vae_diffusers.txt");
  const std::vector<double> mean(16, 0.5), std(16, 2.0), zeros(16, 0.0);
  const Detection shifted =
      detected(index_of(vae, "", {{"latents_mean", mean}, {"latents_std", std}}));
  CHECK(reals(shifted, "latents_std") == std);
  expect_error(ErrorCode::kInvalidArgument, {"latents_std"}, [&] {
    detected(index_of(vae, "", {{"latents_mean", mean}, {"latents_std", zeros}}));
  });
}

namespace {

// What Qwen/Qwen-Image-Edit has in processor/preprocessor_config.json.
constexpr const char* kPublishedProcessor = R"({
  "crop_size": null, "data_format": "channels_first", "default_to_square": true, "device": null,
  "disable_grouping": null, "do_center_crop": null, "do_convert_rgb": true, "do_normalize": true,
  "do_rescale": true, "do_resize": true, "image_mean": [0.48145466, 0.4578275, 0.40821073],
  "image_processor_type": "Qwen2VLImageProcessorFast",
  "image_std": [0.26862954, 0.26130258, 0.27577711], "input_data_format": null,
  "max_pixels": 12845056, "merge_size": 2, "min_pixels": 3136, "patch_size": 14,
  "processor_class": "Qwen2_5_VLProcessor", "resample": 3, "rescale_factor": 0.00392156862745098,
  "return_tensors": null, "size": {"longest_edge": 12845056, "shortest_edge": 3136},
  "temporal_patch_size": 2
})";

}  // namespace

TEST_CASE("What a folder says of how pictures are shown is computed, or refused", "[detect]") {
  const ConfigFields fields =
      family().config_fields(detected(index_of(read_keys("text_encoder_disk.txt"))));
  const auto check = [&](const nlohmann::json& said) {
    const std::pair<const char*, nlohmann::json> files[] = {
        {"processor.image_processor.", said},
        {"processor.", {{"image_processor", said}, {"processor_class", "Qwen2_5_VLProcessor"}}}};
    for (const auto& [prefix, file] : files) {
      const model::FolderFile one = {"processor/x.json", prefix, files::parse_config(file.dump())};
      CHECK(model::has_rows_for(fields, one));
      model::check_folder_file(fields, one);
    }
  };
  const auto published = nlohmann::json::parse(kPublishedProcessor);
  check(published);
  check({{"image_processor_type", "Qwen2VLImageProcessor"},
         {"size", {{"min_pixels", 3136}, {"max_pixels", 12845056}}}});
  const auto others = nlohmann::json::parse(R"([
    {"min_pixels": 784}, {"max_pixels": 1003520}, {"size": {"longest_edge": 1003520}},
    {"size": {"shortest_edge": 784}}, {"patch_size": 16}, {"merge_size": 4},
    {"temporal_patch_size": 1}, {"image_mean": [0.5, 0.5, 0.5]}, {"image_std": [0.5, 0.5, 0.5]},
    {"rescale_factor": 0.0078431372549}, {"resample": 2}, {"do_resize": false},
    {"do_rescale": false}, {"do_normalize": false}, {"unheard_of": 1},
    {"image_processor_type": "CLIPImageProcessor"}])");
  for (const auto& other : others) {
    const std::string name = other.begin().key();
    nlohmann::json said = published;
    said.update(other);
    const Error error = test::error_of([&] { check(said); });
    INFO(name << ": " << error.what());
    CHECK(error.tag() == "CONFIG_FIELD");
    CHECK_THAT(error.message(), Catch::StartsWith("processor/x.json: ") && Catch::Contains(name));
  }
}

TEST_CASE("A hint chooses the variant and may not contradict the tensors", "[detect]") {
  const TensorIndex index = index_of(read_keys("transformer.txt"));
  CHECK(detected(index, {.component = "dit", .variant = "qwen-image-2512"}).variant ==
        "qwen-image-2512");
  expect_error(ErrorCode::kInvalidArgument, {"tensors are those of the dit"},
               [&] { family().detect(index, {.component = "vae", .variant = {}}); });
  CHECK(detected(index, {.component = {}, .variant = "qwen-image-edit-2511"}).variant ==
        "qwen-image-edit-2511");
  expect_error(ErrorCode::kInvalidArgument, {"the tensors are none of Qwen-Image-Layered"},
               [&] { family().detect(index, {.component = {}, .variant = "qwen-image-layered"}); });
  expect_error(ErrorCode::kInvalidArgument, {"the tensors are those of Qwen-Image-Layered"}, [&] {
    family().detect(index_of(read_keys("transformer_layered.txt")),
                    {.component = {}, .variant = "qwen-image-2512"});
  });
  expect_error(ErrorCode::kInvalidArgument, {"\\x1b"},
               [&] { family().detect(index, {.component = {}, .variant = "\x1b[2J"}); });
}

TEST_CASE("Every published ControlNet is detected and each of its tensors has a place",
          "[detect]") {
  const auto check = [](const std::string& file, const std::string& component,
                        const std::string& number, int64_t value) {
    INFO(file);
    const TensorIndex index = index_of(read_keys(file));
    const Detection part = detected(index);
    CHECK(part.component == component);
    CHECK(part.integer(number) == value);
    CHECK(check_coverage(index, part) == 0);
  };
  check("controlnet_union.txt", "controlnet", "control_channels", 16);
  check("controlnet_inpaint.txt", "controlnet", "control_channels", 17);
  check("controlnet_blockwise.txt", "blockwise_controlnet", "channels", 16);
  check("controlnet_blockwise_inpaint.txt", "blockwise_controlnet", "channels", 17);
}

TEST_CASE("What makes layers is told by its tensors, and Layered-Control by its path", "[detect]") {
  const TensorIndex index = index_of(read_keys("transformer_layered.txt"));
  const Detection dit = detected(index);
  CHECK(dit.variant == "qwen-image-layered");
  CHECK(check_coverage(index, dit) == 0);
  const TensorIndex pictures = index_of(read_keys("vae_layered.txt"));
  const Detection vae = detected(pictures);
  CHECK(vae.integer("pixel_channels") == 4);
  CHECK(check_coverage(pictures, vae) == 0);
  CHECK_FALSE(detected(index_of(read_keys("vae_diffusers.txt"))).config.contains("pixel_channels"));

  const auto variant = [&](const std::string& path) {
    FoundPart found[] = {{.part = dit, .path = path, .hint = {}}};
    family().assign(found);
    return found[0].part.variant;
  };
  CHECK(variant("/m/Qwen-Image-Layered/transformer/1.safetensors") == "qwen-image-layered");
  CHECK(variant("/m/qwen_image_layered_control_bf16.safetensors") == "qwen-image-layered-control");
  CHECK(variant("/m/Qwen-Image-Edit/x.safetensors") == "qwen-image-layered");

  expect_error(ErrorCode::kInvalidArgument, {"the VAE is of pictures without transparency"}, [&] {
    family().make_model(std::vector{dit, detected(index_of(read_keys("vae_diffusers.txt")))}, {});
  });
}

TEST_CASE("What cannot be loaded is refused by its name", "[detect]") {
  const auto refuse = [](const std::string& what, const TensorIndex& index) {
    INFO(what);
    expect_error(ErrorCode::kUnsupported, {what}, [&] { family().detect(index, {}); });
  };
  const Keys dit = read_keys("transformer.txt");
  CHECK(
      detected(index_of(dit, "", {{"zero_cond_t", false}, {"guidance_embeds", true}})).component ==
      "dit");

  const std::string layer = "transformer_blocks.3.attn.to_q";
  const std::pair<std::string, std::string> markers[] = {
      {"scaled_fp8", "scaled FP8"},
      {layer + ".scale_weight", "scaled FP8"},
      {layer + ".weight_scale", "weight_scale"},
      {layer + ".comfy_quant", "comfy_quant"},
      {layer + ".weight.absmax", "absmax"},
      {layer + ".weight.quant_state.bitsandbytes__nf4", "NF4"},
      {layer + ".SCB", "INT8"}};
  for (const auto& [marker, format] : markers) {
    for (const std::string prefix : {"", "model.diffusion_model."}) {
      Keys quantised = dit;
      quantised[marker] = {1};
      refuse(format, index_of(quantised, prefix));
    }
  }
  Keys text = read_keys("text_encoder_disk.txt");
  text["model.layers.0.mlp.up_proj.weight_scale"] = {};
  refuse("text encoder is quantised", index_of(text));
  refuse("Char", index_of(dit, "", {}, at::kChar));
}

TEST_CASE("Checkpoints of others are not taken", "[detect]") {
  const auto none = [](const Keys& keys) { return !family().detect(index_of(keys), {}); };
  CHECK(none({}));
  CHECK(none({{"blocks.0.self_attn.q.weight", {1536, 1536}},
              {"patch_embedding.weight", {1536, 16, 1, 2, 2}}}));
  CHECK(none({{"encoder.down_blocks.0.resnets.0.conv1.weight", {128, 128, 3, 3}},
              {"quant_conv.weight", {8, 8, 1, 1}}}));
  CHECK(none({{"transformer_blocks.0.attn.to_q.lora_A.weight", {16, 3072}}}));
  CHECK(none({{"model.layers.0.self_attn.q_proj.weight", {2304, 2304}}}));
}

TEST_CASE("A shard alone is answered with the tensor that is missing", "[detect]") {
  Keys keys = read_keys("transformer.txt");
  keys.erase("txt_in.weight");
  expect_error(ErrorCode::kNotFound, {"\"txt_in.weight\": missing"},
               [&] { family().detect(index_of(keys), {}); });
  keys = read_keys("transformer.txt");
  keys["img_in.weight"] = {3072};
  expect_error(ErrorCode::kInvalidArgument, {"img_in.weight"},
               [&] { family().detect(index_of(keys), {}); });
}

TEST_CASE("Tiny parts are detected again from their own tensors", "[detect]") {
  for (const Detection& part : family().tiny_parts()) {
    const auto model = family().make_model({&part, 1}, {});
    Keys keys;
    nn::Module& module = model->component(part.component);
    for (const WeightRule& rule : family().weight_map(part)) {
      if (rule.to.empty()) continue;
      for (int64_t i = 0; i < 8; ++i) {
        const auto number = [&](std::string name) {
          const size_t at = name.find("{}");
          return at == std::string::npos ? name : name.replace(at, 2, std::to_string(i));
        };
        if (const WeightPtr weight = module.find_weight(number(rule.to))) {
          keys[number(rule.from)] = weight->sizes().vec();
        }
      }
    }
    // Other widths than the published ones take a config.
    const Detection again = detected(index_of(keys, "", conformance::told_config(family(), part)));
    CHECK(again.component == part.component);
    CHECK(again.spelling == part.spelling);
    CHECK((again.config == part.config));
  }
}

TEST_CASE("Parts that do not belong together are refused with both numbers", "[model]") {
  std::vector<Detection> parts = family().tiny_parts();
  const auto part = [&](const std::string& name) {
    return std::find_if(parts.begin(), parts.end(),
                        [&](const Detection& p) { return p.component == name; });
  };
  part("dit")->config["text_width"] = int64_t{64};
  expect_error(ErrorCode::kInvalidArgument, {"gives 48 values a token, the DiT takes 64"},
               [&] { family().make_model(parts, {}); });
  parts = family().tiny_parts();
  parts.push_back(parts.back());
  expect_error(ErrorCode::kInvalidArgument, {"two checkpoints"},
               [&] { family().make_model(parts, {}); });
  const auto alone = tiny_model("vae");
  CHECK(alone->blocks("dit").empty());
  expect_error(ErrorCode::kNotFound, {"dit is not loaded"}, [&] { alone->component("dit"); });
  expect_error(ErrorCode::kUnsupported, {"tokenizer"}, [&] { alone->tokenize("x"); });
}

TEST_CASE("The schedules give the published noise levels", "[schedule]") {
  const auto sigmas = [](const char* name, int steps, int64_t tokens) {
    const auto& schedule = sampling::find_schedule(family().schedules(), name);
    return sampling::make_sigmas(schedule, {.num_steps = steps, .tokens = tokens});
  };
  const auto near = [](float value) { return Approx(value).margin(2e-6); };
  const auto square = sigmas("default", 50, 4096);
  REQUIRE(square.size() == 51);
  CHECK(square[1] == near(0.989701f));
  CHECK(square[2] == near(0.979192f));
  CHECK(square[48] == near(0.058476f));
  CHECK(square[49] == near(0.02f));
  CHECK(square[50] == 0);
  CHECK(sigmas("default", 50, 6889)[1] == near(0.990988f));
  CHECK(sigmas("default", 20, 6032)[18] == near(0.121533f));
  CHECK(sigmas("default", 4, 1024)[2] == near(0.432588f));
  const std::vector<float> lightning = {1, 0.9f, 0.75f, 0.5f, 0};
  for (size_t i = 0; i < lightning.size(); ++i)
    CHECK(sigmas("lightning", 4, 4096)[i] == near(lightning[i]));
  CHECK(sigmas("lightning", 8, 1024)[7] == near(0.3f));
  const auto& layers =
      sampling::find_schedule(family().schedules(), "default", "qwen-image-layered");
  const auto of_layers =
      sampling::make_sigmas(layers, {.num_steps = 50, .tokens = 5 * 1600, .frames = 5});
  CHECK(of_layers[1] == near(0.991903f));
  CHECK(of_layers[49] == near(0.048544f));
  CHECK(family().schedules()[0].cfg_scale == 4.0);
  CHECK(family().schedules()[0].num_inference_steps == 50);
  const auto steps = [](const char* variant) {
    return sampling::find_schedule(family().schedules(), {}, variant).num_inference_steps;
  };
  for (const char* variant : {"qwen-image", "qwen-image-2512", "qwen-image-edit"})
    CHECK(steps(variant) == 50);
  for (const char* variant : {"qwen-image-edit-2509", "qwen-image-edit-2511", "firered-image-edit"})
    CHECK(steps(variant) == 40);
}

TEST_CASE("A batch of prompts of different lengths equals its samples", "[dit]") {
  const auto model = tiny_model("dit");
  const c10::NoGradGuard no_grad;
  DirectRunner runner;
  const at::Tensor x = at::randn({3, 16, 1, 6, 10}), sigma = at::rand({3});
  const Detection part = family().tiny_parts().back();
  std::vector<Conditioning> cond;
  std::vector<const Conditioning*> pointers;
  for (const int64_t tokens : {7, 1, 12})
    cond.push_back(family().example_conditioning(part, tokens, at::kFloat));
  for (const Conditioning& c : cond) pointers.push_back(&c);
  const at::Tensor together = model->denoise({x, sigma, pointers}, runner);
  CHECK(together.sizes() == x.sizes());
  for (int64_t b = 0; b < 3; ++b) {
    const Conditioning* one[] = {pointers[static_cast<size_t>(b)]};
    const at::Tensor alone =
        model->denoise({x.narrow(0, b, 1), sigma.narrow(0, b, 1), one}, runner);
    CHECK(relative_error(together.narrow(0, b, 1), alone) < 1e-5);
  }
  // Neither the prompt nor the noise level is ignored.
  const Conditioning* other[] = {pointers[1], pointers[1], pointers[1]};
  CHECK(relative_error(model->denoise({x, sigma, other}, runner), together) > 1e-3);
  CHECK(relative_error(model->denoise({x, sigma * 0.5, pointers}, runner), together) > 1e-3);
}

// Conditionings with pictures of other numbers and sizes.
std::vector<Conditioning> with_references(const Detection& part) {
  using Sizes = std::vector<std::pair<int64_t, int64_t>>;
  std::vector<Conditioning> cond;
  for (const Sizes& sizes : {Sizes{}, Sizes{{4, 8}}, Sizes{{2, 2}, {6, 4}, {10, 2}}}) {
    Conditioning& one =
        cond.emplace_back(family().example_conditioning(part, 5 + std::ssize(cond), at::kFloat));
    int number = 1;
    for (const auto& [h, w] : sizes)
      one.emplace("reference_" + std::to_string(number++), at::randn({16, 1, h, w}));
  }
  return cond;
}

TEST_CASE("A batch of other numbers and sizes of references equals its samples", "[dit][edit]") {
  for (const bool clean : {false, true}) {
    at::manual_seed(3);
    Detection part = family().tiny_parts().back();
    part.config["clean_references"] = clean;
    const auto model = family().make_model({&part, 1}, {});
    fill(model->component("dit"));
    const c10::NoGradGuard no_grad;
    DirectRunner runner;
    const at::Tensor x = at::randn({3, 16, 1, 6, 8}), sigma = at::rand({3});
    std::vector<Conditioning> cond = with_references(part);
    // One sample's references are not as the model says.
    const char* said = clean ? "noisy_pictures" : "clean_pictures";
    cond[1].emplace(said, at::ones({1}));
    std::vector<const Conditioning*> pointers;
    for (const Conditioning& c : cond) pointers.push_back(&c);
    const at::Tensor together = model->denoise({x, sigma, pointers}, runner);
    CHECK(together.sizes() == x.sizes());
    for (int64_t b = 0; b < 3; ++b) {
      const Conditioning* one[] = {pointers[static_cast<size_t>(b)]};
      const at::Tensor alone =
          model->denoise({x.narrow(0, b, 1), sigma.narrow(0, b, 1), one}, runner);
      CHECK(relative_error(together.narrow(0, b, 1), alone) < 1e-5);
    }
    // References are seen, and so is their order.
    Conditioning turned = cond[2];
    std::swap(turned.at("reference_1"), turned.at("reference_3"));
    const Conditioning* other[] = {pointers[0], pointers[1], &turned};
    CHECK(relative_error(model->denoise({x, sigma, other}, runner)[2], together[2]) > 1e-4);
    // Places that are stretched are others where the sizes differ.
    turned = cond[2];
    turned.emplace("stretched_places", at::ones({1}));
    CHECK(relative_error(model->denoise({x, sigma, other}, runner)[2], together[2]) > 1e-4);
    Conditioning unsaid = cond[1];
    unsaid.erase(said);
    const Conditioning* as_model[] = {pointers[0], &unsaid, pointers[2]};
    CHECK(relative_error(model->denoise({x, sigma, as_model}, runner)[1], together[1]) > 1e-4);
  }
}

TEST_CASE("The level of clean references is prepared with the others", "[dit][levels][edit]") {
  at::manual_seed(4);
  Detection part = family().tiny_parts().back();
  part.config["clean_references"] = true;
  const auto model = family().make_model({&part, 1}, {});
  fill(model->component("dit"));
  const c10::NoGradGuard no_grad;
  DirectRunner runner;
  const std::vector<float> sigmas = {1.0f, 0.6f, 0.2f};
  model->prepare_levels("dit", sigmas, runner);
  const at::Tensor x = at::randn({2, 16, 1, 6, 8});
  const std::vector<Conditioning> cond = with_references(part);
  const Conditioning* both[] = {&cond[1], &cond[2]};
  for (size_t i = 0; i < sigmas.size(); ++i) {
    DenoiseInputs in = {x, at::full({2}, sigmas[i], at::kFloat), both};
    const at::Tensor plain = model->denoise(in, runner);
    in.level = static_cast<int64_t>(i);
    CHECK(at::equal(model->denoise(in, runner), plain));
  }
  // References of one sample have the image's level beside clean ones.
  Conditioning noisy = cond[2];
  noisy.emplace("noisy_pictures", at::ones({1}));
  const Conditioning* mixed[] = {&cond[1], &noisy};
  DenoiseInputs in = {x, at::full({2}, sigmas[1], at::kFloat), mixed};
  const at::Tensor plain = model->denoise(in, runner);
  in.level = 1;
  CHECK(at::equal(model->denoise(in, runner), plain));
}

TEST_CASE("Calls with and without references are made together as each is alone",
          "[dit][samples][edit]") {
  for (const bool clean : {false, true}) {
    at::manual_seed(5);
    Detection part = family().tiny_parts().back();
    part.config["clean_references"] = clean;
    const auto model = family().make_model({&part, 1}, {});
    fill(model->component("dit"));
    const c10::NoGradGuard no_grad;
    DirectRunner runner;
    std::vector<Conditioning> cond = with_references(part);
    cond[1].emplace(clean ? "noisy_pictures" : "clean_pictures", at::ones({1}));
    cond[2].emplace("stretched_places", at::ones({1}));
    const Conditioning *first[] = {&cond[0]}, *second[] = {&cond[1], &cond[2]};
    const std::vector<DenoiseInputs> calls = {
        {at::randn({1, 16, 1, 6, 8}), at::tensor({0.75F}), first},
        {at::randn({2, 16, 1, 10, 4}), at::tensor({0.25F, 0.5F}), second}};
    const std::vector<at::Tensor> together = model->denoise_all(calls, runner);
    REQUIRE(together.size() == 2);
    for (size_t i = 0; i < 2; ++i)
      CHECK(relative_error(together[i], model->denoise(calls[i], runner)) < 1e-5);
  }
}

TEST_CASE("Calls of other numbers of layers are made together as each is alone",
          "[dit][samples][layers]") {
  at::manual_seed(5);
  Detection part = family().tiny_parts().back();
  part.config["layered"] = true;
  part.variant = "qwen-image-layered";
  const auto model = family().make_model({&part, 1}, {});
  fill(model->component("dit"));
  CHECK(model->latent_spec().takes_clips);
  const c10::NoGradGuard no_grad;
  DirectRunner runner;
  std::vector<Conditioning> cond;
  for (const int64_t length : {7, 4, 9}) {
    cond.push_back(family().example_conditioning(part, length, at::kFloat));
    cond.back().emplace("reference_1", at::randn({16, 1, 6, 8}));
  }
  cond[2].emplace("reference_2", at::randn({16, 1, 6, 8}));
  const Conditioning *first[] = {&cond[0]}, *second[] = {&cond[1], &cond[2]};
  const std::vector<DenoiseInputs> calls = {
      {at::randn({1, 16, 5, 6, 8}), at::tensor({0.75F}), first},
      {at::randn({2, 16, 1, 6, 8}), at::tensor({0.25F, 0.5F}), second}};
  const std::vector<at::Tensor> together = model->denoise_all(calls, runner);
  REQUIRE(together.size() == 2);
  for (size_t i = 0; i < 2; ++i) {
    CHECK(together[i].sizes() == calls[i].x_BCTHW.sizes());
    CHECK(relative_error(together[i], model->denoise(calls[i], runner)) < 1e-5);
  }
  // Each layer is another one, and so is the picture that they are of.
  DenoiseInputs turned = calls[0];
  turned.x_BCTHW = calls[0].x_BCTHW.flip(2);
  CHECK(relative_error(model->denoise(turned, runner).flip(2), together[0]) > 1e-3);
  Conditioning other = cond[0];
  other["reference_1"] = at::randn({16, 1, 6, 8});
  const Conditioning* of_other[] = {&other};
  turned = calls[0];
  turned.cond = of_other;
  CHECK(relative_error(model->denoise(turned, runner), together[0]) > 1e-3);
}

// Conditionings of images of `height` x `width` tokens with other numbers of entities, one of which
// is nowhere.
std::vector<Conditioning> with_entities(const Detection& part, int64_t height, int64_t width) {
  std::vector<Conditioning> cond;
  for (const int64_t count : {0, 1, 4}) {
    Conditioning& one =
        cond.emplace_back(family().example_conditioning(part, 6 - std::ssize(cond), at::kFloat));
    for (int64_t i = 1; i <= count; ++i)
      one.emplace("entity_" + std::to_string(i), at::randn({2 + i, 48}));
    if (count > 0) one.emplace("regions", at::randint(0, 8, {1, height, width}, at::kLong));
  }
  cond.back().emplace("reference_1", at::randn({16, 1, 4, 6}));
  return cond;
}

TEST_CASE("Calls with and without entities are made together as each is alone",
          "[dit][samples][entities]") {
  const auto model = tiny_model("dit");
  const c10::NoGradGuard no_grad;
  DirectRunner runner;
  const Detection part = family().tiny_parts().back();
  const std::vector<Conditioning> wide = with_entities(part, 3, 4),
                                  high = with_entities(part, 5, 2);
  const Conditioning *first[] = {&wide[2], &wide[0]}, *second[] = {&high[1], &high[2]};
  const std::vector<DenoiseInputs> calls = {
      {at::randn({2, 16, 1, 6, 8}), at::tensor({0.75F, 0.3F}), first},
      {at::randn({2, 16, 1, 10, 4}), at::tensor({0.25F, 0.5F}), second}};
  const std::vector<at::Tensor> together = model->denoise_all(calls, runner);
  REQUIRE(together.size() == 2);
  for (size_t i = 0; i < 2; ++i)
    CHECK(relative_error(together[i], model->denoise(calls[i], runner)) < 1e-5);
  // Where an entity is, its words are seen; one that is nowhere changes nothing.
  const auto changed = [&](const char* name, const at::Tensor& value) {
    Conditioning other = high[1];
    other.insert_or_assign(name, value);
    const Conditioning* conds[] = {&other, &high[2]};
    return relative_error(model->denoise({calls[1].x_BCTHW, calls[1].sigma_B, conds}, runner)[0],
                          together[1][0]);
  };
  CHECK(changed("entity_1", at::randn({3, 48})) > 1e-4);
  CHECK(changed("regions", at::zeros({1, 5, 2}, at::kLong)) > 1e-4);
  Conditioning nowhere = high[1], none = high[1];
  nowhere.insert_or_assign("regions", at::zeros({1, 5, 2}, at::kLong));
  none.erase("entity_1");
  const Conditioning *a[] = {&nowhere}, *b[] = {&none};
  const at::Tensor x = at::randn({1, 16, 1, 10, 4}), sigma = at::tensor({0.5F});
  CHECK(relative_error(model->denoise({x, sigma, a}, runner),
                       model->denoise({x, sigma, b}, runner)) < 1e-6);
  test::expect_error(ErrorCode::kInvalidArgument, {"regions of shape", "[1, 3, 4] expected"}, [&] {
    const Conditioning* wrong[] = {&high[1]};
    model->denoise({at::randn({1, 16, 1, 6, 8}), sigma, wrong}, runner);
  });
}

TEST_CASE("A sample without a picture hears nothing of the ControlNet of another",
          "[dit][samples][controls]") {
  at::manual_seed(6);
  const Detection dit = family().tiny_parts().back();
  Detection net = detected(index_of(read_keys("controlnet_blockwise.txt")));
  for (const char* name : {"layers", "width", "channels"}) net.config[name] = dit.config.at(name);
  const Detection parts[] = {dit, net};
  const auto model = family().make_model(parts, {});
  for (const Detection& part : parts) fill(model->component(part.component));
  const c10::NoGradGuard no_grad;
  DirectRunner runner;
  const Conditioning plain = family().example_conditioning(dit, 5, at::kFloat);
  Conditioning followed = plain;
  followed.emplace("blockwise_controlnet_0", at::randn({16, 1, 6, 8}));
  followed.emplace("blockwise_controlnet_0_scale", at::full({1}, 0.5));
  followed.emplace("blockwise_controlnet_0_window", at::empty({0, 1'000'000, 0}));
  const Conditioning *alone[] = {&plain}, *both[] = {&followed, &plain};
  const at::Tensor x = at::randn({2, 16, 1, 6, 8}), sigma = at::tensor({0.6F, 0.4F});
  const at::Tensor expected =
      model->denoise({x.narrow(0, 1, 1), sigma.narrow(0, 1, 1), alone}, runner);
  const at::Tensor together = model->denoise({x, sigma, both}, runner);
  CHECK(relative_error(together[1], expected[0]) < 1e-5);
  const at::Tensor without =
      model->denoise({x.narrow(0, 0, 1), sigma.narrow(0, 0, 1), alone}, runner);
  CHECK(relative_error(together[0], without[0]) > 1e-4);
  // What the net makes of no picture may be more than 16 bits hold.
  model->component(net.component).visit_weights([](const std::string&, Weight& weight) {
    weight.set(at::full(weight.sizes(), std::numeric_limits<float>::infinity()));
  });
  CHECK(relative_error(model->denoise({x, sigma, both}, runner)[1], expected[0]) < 1e-5);
}

TEST_CASE("Tokens know their place: a turned image is another one", "[dit]") {
  const auto model = tiny_model("dit");
  const c10::NoGradGuard no_grad;
  DirectRunner runner;
  const at::Tensor x = at::randn({1, 16, 1, 4, 8}), sigma = at::full({1}, 0.6);
  const Conditioning cond =
      family().example_conditioning(family().tiny_parts().back(), 5, at::kFloat);
  const Conditioning* one[] = {&cond};
  // Blocks of 2 x 2 latents swapped sides; without positions the velocity would only be swapped
  // too.
  const at::Tensor rolled = x.roll({4}, {4});
  const at::Tensor velocity = model->denoise({x, sigma, one}, runner);
  const at::Tensor other = model->denoise({rolled, sigma, one}, runner).roll({4}, {4});
  CHECK(relative_error(other, velocity) > 1e-3);
  // Tables of earlier sizes are not mixed up.
  model->denoise({at::randn({1, 16, 1, 8, 4}), sigma, one}, runner);
  CHECK(at::equal(model->denoise({x, sigma, one}, runner), velocity));
}

TEST_CASE("Every weight of the DiT but the last block's text end has a gradient", "[dit]") {
  const auto model = tiny_model("dit", /*trainable=*/true);
  DirectRunner runner;
  const at::Tensor x = at::randn({2, 16, 1, 4, 6}).requires_grad_();
  const Detection part = family().tiny_parts().back();
  const Conditioning a = family().example_conditioning(part, 3, at::kFloat);
  const Conditioning b = family().example_conditioning(part, 8, at::kFloat);
  const Conditioning* both[] = {&a, &b};
  const at::Tensor velocity = model->denoise({x, at::rand({2}), both}, runner);
  torch::autograd::backward({velocity.square().sum()}, {});
  CHECK(x.grad().defined());
  model->component("dit").visit_weights([&](const std::string& path, Weight& weight) {
    INFO(path);
    const std::string last = "transformer_blocks.1.";
    const bool unread = path.starts_with(last + "attn.to_add_out.") ||
                        path.starts_with(last + "txt_mlp.") ||
                        path.starts_with(last + "attn.add_q_proj.") ||
                        path.starts_with(last + "attn.norm_added_q.");
    const at::Tensor grad = weight.state().leaf().grad();
    const bool moved = grad.defined() && grad.abs().max().item<double>() > 0;
    CHECK(moved != unread);
  });
}

// Denoises one batch at each of `sigmas`; with `prepared` by the levels' numbers.
std::vector<at::Tensor> denoise_levels(Model& model, std::span<const float> sigmas, int64_t B,
                                       bool prepared) {
  DirectRunner runner;
  at::manual_seed(7);
  const at::Tensor x = at::randn({B, 16, 1, 4, 6});
  const Detection part = family().tiny_parts().back();
  const Conditioning cond = family().example_conditioning(part, 5, at::kFloat);
  const std::vector<const Conditioning*> conds(static_cast<size_t>(B), &cond);
  const auto dtype = model.level_weights("dit").front()->draw().scalar_type();
  std::vector<at::Tensor> result;
  for (size_t i = 0; i < sigmas.size(); ++i) {
    DenoiseInputs in = {x.to(dtype), at::full({B}, sigmas[i], at::kFloat), conds};
    if (prepared) in.level = static_cast<int64_t>(i);
    result.push_back(model.denoise(in, runner));
  }
  return result;
}

// Counts draws, and can be told to give no more.
class WatchedStore final : public WeightStore {
 public:
  explicit WatchedStore(std::shared_ptr<const WeightStore> base) : base_(std::move(base)) {}
  at::Tensor draw() const override {
    ++draws;
    return poisoned ? at::full_like(base_->draw(), NAN) : base_->draw();
  }
  mutable int draws = 0;
  bool poisoned = false;

 private:
  std::shared_ptr<const WeightStore> base_;
};

TEST_CASE("Prepared noise levels give the bits of those that are not", "[dit][levels]") {
  // More than one group of rows, the last one not full.
  std::vector<float> sigmas;
  for (int i = 0; i < 11; ++i) sigmas.push_back(1.0f - static_cast<float>(i) / 11.0f);
  const c10::NoGradGuard no_grad;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const auto model = tiny_model("dit");
    model->component("dit").visit_weights(
        [&](const std::string&, Weight& weight) { weight.set(weight.draw().to(dtype)); });
    DirectRunner runner;
    model->prepare_levels("dit", sigmas, runner);
    for (const int64_t B : {1, 2, 9}) {
      const auto plain = denoise_levels(*model, sigmas, B, false);
      const auto prepared = denoise_levels(*model, sigmas, B, true);
      for (size_t i = 0; i < sigmas.size(); ++i) {
        INFO(at::toString(dtype) << ", batch of " << B << ", level " << i);
        CHECK(at::equal(plain[i], prepared[i]));
      }
      CHECK_FALSE(at::equal(plain[0], plain[1]));
    }
  }
}

TEST_CASE("Weights of the noise level are drawn when levels are prepared, and not after",
          "[dit][levels]") {
  const auto model = tiny_model("dit");
  const c10::NoGradGuard no_grad;
  DirectRunner direct;
  const std::vector<WeightPtr> weights = model->level_weights("dit");
  CHECK(weights.size() == 4 * model->blocks("dit").size());
  std::set<const Weight*> modulation;
  for (Block* block : model->blocks("dit")) {
    block->visit_weights([&](const std::string& path, Weight& weight) {
      if (path.find("_mod.") != std::string::npos) modulation.insert(&weight);
    });
  }
  std::set<const Weight*> declared;
  std::vector<std::shared_ptr<WatchedStore>> stores;
  for (const WeightPtr& weight : weights) {
    declared.insert(weight.get());
    stores.push_back(std::make_shared<WatchedStore>(weight->state().store()));
    weight->state().set_store(stores.back());
  }
  CHECK(declared == modulation);

  // Blocks are held one after another while they are prepared.
  struct Holder final : BlockRunner {
    Tensors run(Block& block, const Tensors& inputs) override { return block.forward(inputs); }
    std::shared_ptr<void> hold(Block& block) override {
      held.push_back(&block);
      return nullptr;
    }
    std::vector<Block*> held;
  } runner;
  const std::vector<float> sigmas(9, 0.5f);
  model->prepare_levels("dit", sigmas, runner);
  CHECK(runner.held == model->blocks("dit"));
  for (size_t i = 0; i < stores.size(); ++i) {
    const bool is_bias = weights[i]->sizes().size() == 1;
    CHECK(stores[i]->draws == (is_bias ? 2 : 1));  // of two groups
    stores[i]->poisoned = true;
  }
  const auto prepared = denoise_levels(*model, sigmas, 2, true);
  CHECK(at::isfinite(prepared[8]).all().item<bool>());
  CHECK_FALSE(
      at::isfinite(denoise_levels(*model, {sigmas.data(), 1}, 2, false)[0]).all().item<bool>());

  const auto denoise = [&](int64_t level) {
    const Conditioning cond =
        family().example_conditioning(family().tiny_parts().back(), 3, at::kFloat);
    const Conditioning* one[] = {&cond};
    model->denoise({at::randn({1, 16, 1, 4, 4}), at::rand({1}), one, level}, direct);
  };
  CHECK_NOTHROW(denoise(8));
  expect_error(ErrorCode::kInvalidArgument, {"level 9 is not one of the 9"}, [&] { denoise(9); });
  model->forget_levels();
  expect_error(ErrorCode::kInvalidArgument, {"not one of the 0"}, [&] { denoise(0); });
}

TEST_CASE("What only the noise level reaches is not multiplied in 8 bits", "[dit][levels]") {
  const auto model = tiny_model("dit");
  const auto all = weights::storable_weights(*model, "dit");
  const auto some = weights::w8a8_weights(*model, "dit");
  CHECK(some.size() == all.size() - 2 * model->blocks("dit").size());
  for (const WeightPtr& weight : model->level_weights("dit"))
    CHECK_FALSE(some.contains(weight.get()));
}

TEST_CASE("Adapters of the noise level's layers are in what is prepared", "[dit][levels]") {
  const auto model = tiny_model("dit");
  const c10::NoGradGuard no_grad;
  DirectRunner runner;
  const std::vector<float> sigmas = {0.9f, 0.3f};
  const auto before = denoise_levels(*model, sigmas, 2, false);
  model->component("dit").visit([&](nn::Module& module) {
    auto* layer = dynamic_cast<nn::Linear*>(&module);
    if (layer == nullptr || module.path().find("_mod.") == std::string::npos) return;
    layer->adapters.push_back({.a = at::randn({2, layer->in_features()}),
                               .b = at::randn({layer->out_features(), 2}),
                               .scale = 0.1});
  });
  model->prepare_levels("dit", sigmas, runner);
  const auto plain = denoise_levels(*model, sigmas, 2, false);
  const auto prepared = denoise_levels(*model, sigmas, 2, true);
  for (size_t i = 0; i < sigmas.size(); ++i) {
    // Not to the bit: on some processors MKL adds up the rows of so narrow a product (the adapter's
    // rank is 2) in another order for each place that they have in it.
    CHECK(relative_error(plain[i], prepared[i]) < 1e-6);
    CHECK(relative_error(plain[i], before[i]) > 1e-3);
  }
}

TEST_CASE("Wrong latents and conditionings are refused", "[dit]") {
  const auto model = tiny_model("dit");
  DirectRunner runner;
  const Detection part = family().tiny_parts().back();
  const Conditioning good = family().example_conditioning(part, 3, at::kFloat), empty = {};
  const Conditioning wide = {{"prompt_embeds", at::randn({3, 49})}};
  const auto denoise = [&](at::IntArrayRef shape, const Conditioning& cond, int64_t sigmas = 1) {
    const Conditioning* one[] = {&cond};
    return model->denoise({at::randn(shape), at::rand({sigmas}), one}, runner);
  };
  CHECK_NOTHROW(denoise({1, 16, 1, 4, 4}, good));
  expect_error(ErrorCode::kUnsupported, {"2 frames"}, [&] { denoise({1, 16, 2, 4, 4}, good); });
  expect_error(ErrorCode::kInvalidArgument, {"multiples of 16"}, [&] {
    denoise({1, 16, 1, 5, 4}, good);
  });
  expect_error(ErrorCode::kInvalidArgument, {"[B, 16, 1, H, W]"}, [&] {
    denoise({1, 4, 1, 4, 4}, good);
  });
  expect_error(ErrorCode::kInvalidArgument, {"prompt_embeds"}, [&] {
    denoise({1, 16, 1, 4, 4}, empty);
  });
  expect_error(ErrorCode::kInvalidArgument, {"[3, 49]"}, [&] { denoise({1, 16, 1, 4, 4}, wide); });
  expect_error(ErrorCode::kInvalidArgument, {"2 samples"}, [&] {
    denoise({2, 16, 1, 4, 4}, good, 2);
  });
}

at::Tensor guide(Model& model, const at::Tensor& with, const at::Tensor& without, double scale) {
  DirectRunner runner;
  return model.guide({with, without, scale, {}}, runner);
}

TEST_CASE("Guidance keeps the length of every token", "[guide]") {
  const auto model = tiny_model("dit");
  const at::Tensor with = at::randn({2, 16, 1, 4, 6}), without = at::randn({2, 16, 1, 4, 6});
  const at::Tensor guided = guide(*model, with, without, 4.0);
  const at::Tensor combined = without + 4.0 * (with - without);
  for (int64_t y = 0; y < 4; y += 2) {
    for (int64_t x = 0; x < 6; x += 2) {
      const auto token = [&](const at::Tensor& v) { return v[1].narrow(2, y, 2).narrow(3, x, 2); };
      const at::Tensor expected = token(combined) * (token(with).norm() / token(combined).norm());
      CHECK(relative_error(token(guided), expected) < 1e-5);
    }
  }
  CHECK(relative_error(guide(*model, with, without, 1.0), with) < 1e-5);
  CHECK(guide(*model, with.to(at::kBFloat16), without.to(at::kBFloat16), 4.0).scalar_type() ==
        at::kBFloat16);
  CHECK(guide(*model, at::zeros_like(with), at::zeros_like(with), 4.0).abs().max().item<double>() ==
        0);
}

TEST_CASE("The VAE takes any multiple of 8 and a batch equals its samples", "[vae]") {
  const auto model = tiny_model("vae");
  const c10::NoGradGuard no_grad;
  DirectRunner runner;
  const at::Tensor image = at::rand({2, 3, 24, 40}) * 2 - 1;
  const at::Tensor latents = model->probe("vae", {{"image", image}}, runner).at("latents");
  CHECK(latents.sizes() == at::IntArrayRef({2, 16, 1, 3, 5}));
  for (int64_t b = 0; b < 2; ++b) {
    const at::Tensor alone = test::encode_latents(*model, image[b].unsqueeze(1), runner);
    CHECK(alone.sizes() == at::IntArrayRef({16, 1, 3, 5}));
    CHECK(relative_error(latents[b], alone) < 1e-5);
  }
  const at::Tensor decoded = test::decode(*model, latents, runner);
  CHECK(decoded.sizes() == at::IntArrayRef({2, 3, 1, 24, 40}));
  CHECK(decoded.scalar_type() == at::kFloat);
  CHECK(decoded.abs().max().item<double>() <= 1.0);
  CHECK(relative_error(decoded.narrow(0, 1, 1),
                       test::decode(*model, latents.narrow(0, 1, 1), runner)) < 1e-5);

  expect_error(ErrorCode::kInvalidArgument, {"multiples of 8"}, [&] {
    test::encode_latents(*model, at::zeros({3, 1, 20, 40}), runner);
  });
  expect_error(ErrorCode::kUnsupported, {"5 frames"}, [&] {
    test::encode_latents(*model, at::zeros({3, 5, 16, 16}), runner);
  });
  expect_error(ErrorCode::kUnsupported, {"2 frames"}, [&] {
    test::decode(*model, at::zeros({1, 16, 2, 4, 4}), runner);
  });
}

TEST_CASE("In bfloat16 every component answers in its own dtype", "[bf16]") {
  const auto model = tiny_model();
  for (const char* name : {"dit", "vae", "text_encoder"}) {
    model->component(name).visit_weights(
        [](const std::string&, Weight& weight) { weight.set(weight.draw().to(at::kBFloat16)); });
  }
  const c10::NoGradGuard no_grad;
  DirectRunner runner;
  const auto probe = [&](const char* name, const NamedTensors& in) {
    return model->probe(name, in, runner).begin()->second;
  };
  CHECK(probe("vae", {{"image", at::zeros({1, 3, 16, 16})}}).scalar_type() == at::kBFloat16);
  CHECK(probe("vae", {{"latents", at::zeros({1, 16, 1, 2, 2})}}).scalar_type() == at::kFloat);
  CHECK(probe("text_encoder", {{"input_ids", at::ones({1, 4}, at::kLong)}}).scalar_type() ==
        at::kBFloat16);
  const at::Tensor velocity = probe("dit", {{"latents", at::randn({1, 16, 1, 4, 4})},
                                            {"sigma", at::full({1}, 0.5)},
                                            {"prompt_embeds", at::randn({1, 6, 48})}});
  CHECK(velocity.scalar_type() == at::kBFloat16);
  CHECK(at::isfinite(velocity).all().item<bool>());
}

TEST_CASE("Prompts of a batch do not see each other, nor what follows them", "[text]") {
  const auto model = tiny_model("text_encoder");
  const c10::NoGradGuard no_grad;
  DirectRunner runner;
  const at::Tensor ids = at::randint(0, 512, {3, 9}, at::kLong);
  const at::Tensor lengths = at::tensor({9, 2, 5}, at::kLong);
  const auto hidden = [&](const NamedTensors& in) {
    return model->probe("text_encoder", in, runner).at("hidden");
  };
  const at::Tensor padded = hidden({{"input_ids", ids}, {"lengths", lengths}});
  const at::Tensor whole = hidden({{"input_ids", ids}});
  CHECK(padded.sizes() == at::IntArrayRef({3, 9, 48}));
  CHECK(relative_error(padded[1].narrow(0, 0, 2), whole[1].narrow(0, 0, 2)) < 1e-5);
  CHECK(padded[1].narrow(0, 2, 7).abs().max().item<double>() == 0);
  CHECK(relative_error(padded[0], hidden({{"input_ids", ids.narrow(0, 0, 1)}})[0]) < 1e-5);

  expect_error(ErrorCode::kInvalidArgument, {"'input_ids' is missing"}, [&] { hidden({}); });
  expect_error(ErrorCode::kInvalidArgument, {"'ids' is not known"}, [&] {
    hidden({{"ids", ids}});
  });
  expect_error(ErrorCode::kInvalidArgument, {"ids from 0 to 511"}, [&] {
    hidden({{"input_ids", ids + 512}});
  });
  expect_error(ErrorCode::kInvalidArgument, {"3 lengths from 1 to 9"}, [&] {
    hidden({{"input_ids", ids}, {"lengths", lengths + 1}});
  });
}

TEST_CASE("The prompt is encoded in its template, whose beginning is dropped", "[text]") {
  const test::Folder folder, bare;
  write_tokenizer(folder);
  const auto model = tiny_model("text_encoder", false, {.files = {{"tokenizer", folder.path()}}});
  const c10::NoGradGuard no_grad;
  DirectRunner runner;
  const auto encode = [&](const std::string& prompt) {
    return model->encode(test::prompt_inputs(prompt), runner).at("prompt_embeds");
  };
  const std::string before =
      "<|im_start|>system\nDescribe the image by detailing the color, shape, size, texture, "
      "quantity, text, spatial "
      "relationships of the objects and background:<|im_end|>\n<|im_start|>user\n";
  const std::vector<int64_t> ids =
      model->tokenize(before + "a cat<|im_end|>\n<|im_start|>assistant\n");
  const int64_t skip = std::ssize(model->tokenize(before));
  const at::Tensor hidden =
      model->probe("text_encoder", {{"input_ids", at::tensor(ids, at::kLong).unsqueeze(0)}}, runner)
          .at("hidden")[0];
  const at::Tensor embeds = encode("a cat");
  // One token a byte: five of the prompt, and 13 of the template's end.
  CHECK(embeds.sizes() == at::IntArrayRef({5 + 13, 48}));
  CHECK(relative_error(embeds, hidden.narrow(0, skip, hidden.size(0) - skip)) < 1e-6);
  CHECK(embeds.storage().nbytes() == static_cast<size_t>(embeds.numel()) * 4);
  CHECK(at::equal(encode(""), encode(" ")));
  CHECK(encode("").size(0) == 14);

  CHECK(encode(std::string(1011, 'x')).size(0) == 1024);
  expect_error(ErrorCode::kInvalidArgument, {"1025 tokens, at most 1024"},
               [&] { encode(std::string(1012, 'x')); });
  const auto length_of = [&](const std::string& prompt) {
    const TextLength length = model->text_length(test::prompt_inputs(prompt));
    CHECK(length.limit == 1024);
    return length.tokens;
  };
  CHECK(length_of("") == 14);
  CHECK(length_of(std::string(1011, 'x')) == 1024);
  CHECK(length_of(std::string(4000, 'x')) == 4013);
  // What is cut has the first of its tokens, and none of the template's end.
  const auto cutting = tiny_model("text_encoder", false,
                                  {.files = {{"tokenizer", folder.path()}}, .cuts_texts = true});
  const auto cut = [&](const std::string& prompt) {
    return cutting->encode(test::prompt_inputs(prompt), runner).at("prompt_embeds");
  };
  CHECK(at::equal(cut("a cat"), embeds));
  CHECK(at::equal(cut(std::string(4000, 'x')), cut(std::string(1024, 'x'))));
  CHECK(relative_error(cut(std::string(4000, 'x')).narrow(0, 0, 1011),
                       encode(std::string(1011, 'x')).narrow(0, 0, 1011)) < 1e-5);
  expect_error(ErrorCode::kInvalidArgument, {"prompt: missing"},
               [&] { model->encode({.stage = "text", .values = {}}, runner); });
  expect_error(ErrorCode::kInvalidArgument, {"prompt: missing"},
               [&] { model->text_length({.stage = "text", .values = {}}); });

  write_tokenizer(bare, /*marks=*/false);
  const auto other = tiny_model("text_encoder", false, {.files = {{"tokenizer", bare.path()}}});
  expect_error(ErrorCode::kInvalidArgument, {"no token <|im_start|>"},
               [&] { other->encode(test::prompt_inputs("x"), runner); });
  std::vector<Detection> parts = {family().tiny_parts().front()};
  parts[0].config["vocabulary"] = int64_t{200};
  expect_error(ErrorCode::kInvalidArgument, {"259 tokens, the text encoder 200"}, [&] {
    family().make_model(parts, {.files = {{"tokenizer", folder.path()}}});
  });
}
