// Encoders that read prompts: T5, as published first and as version 1.1, and umT5. Their decoders
// are not used. Their texts end with "</s>", which text::Tokenizer does not append.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "atelier/component_model.h"
#include "atelier/config_fields.h"
#include "atelier/parts/brief_detection.h"

namespace atelier::parts {

// The defaults are those of umT5-XXL, for what shapes do not tell.
struct T5Config {
  int64_t vocabulary = 256384, width = 4096, heads = 64, head_dim = 64, ffn = 10240, layers = 24;
  int64_t buckets = 32;        // of distances between tokens; half of them for each direction
  int64_t max_distance = 128;  // the last bucket of a direction begins below it
  double eps = 1e-6;
  // One table of distances for all layers, as T5 has it; otherwise each layer has its own.
  bool shares_distances = false;
  bool is_gated =
      true;  // GELU of a gate times a product; otherwise ReLU, as T5 was published first

  static constexpr std::array<const char*, 2> kLater = {"shares_distances", "is_gated"};

  template <class Fields>
  void visit(Fields&& fields) {
    fields("vocabulary", vocabulary), fields("width", width), fields("heads", heads);
    fields("head_dim", head_dim), fields("ffn", ffn), fields("layers", layers);
    fields("buckets", buckets), fields("max_distance", max_distance), fields("eps", eps);
    fields("shares_distances", shares_distances), fields("is_gated", is_gated);
  }
};

// Which encoder a family reads prompts with.
struct T5Use {
  // Kinds that it may be of "t5" and "umt5", as `model_type` of its config says. Tensors tell them
  // apart, but for an encoder of one layer, which is either.
  std::span<const std::string_view> model_types;
  std::string_view component = "text_encoder";
};

// Says whether a checkpoint holds such an encoder. Its variant is left empty. Throws
// Error{kInvalidArgument} when shapes and config.json contradict each other, and
// Error{kUnsupported} for quantised files.
//
// Spellings: "original" (blocks.0.attn.q.weight; umT5's authors'), "transformers"
// (encoder.block.0.… and shared.weight; ComfyUI's file too), "transformers_embed", the same with
// the table of tokens below encoder. alone, and "llama_cpp" (enc.blk.0.attn_q.weight; GGUF files);
// behind no prefix, the component's name, or that of the encoder in a single file of all
// components.
std::optional<Detection> detect_t5(const TensorIndex& checkpoint, const T5Use& use);

// See ModelFamily.
ConfigFields t5_fields(const Detection& part, const T5Use& use);
WeightMap t5_map(const Detection& part);

// A small one for tests, whose numbers shapes alone tell; its width is kTinyT5Width.
inline constexpr int64_t kTinyT5Width = 48;
Detection tiny_t5(const T5Use& use);

class T5Block;

// Weights are called as umT5's authors call them; a shared table of distances stands beside the
// blocks.
class T5Encoder final : public TextEncoder {
 public:
  explicit T5Encoder(const T5Config& config);
  ~T5Encoder() override;

  // Behind the last norm.
  at::Tensor forward(const at::Tensor& ids_N, const Segments& rows, BlockRunner& runner) override;

  int64_t vocabulary() const override { return config_.vocabulary; }
  int64_t width() const override { return config_.width; }

 private:
  T5Config config_;
  nn::Embedding token_embedding_;
  std::unique_ptr<nn::Embedding> pos_embedding_;  // null: each block has its own
  std::vector<std::unique_ptr<T5Block>> blocks_;
  nn::RMSNorm norm_;
};

// The row of a family that reads prompts with it. `use` is static.
template <const T5Use& use>
constexpr ComponentRow t5_row(std::string_view help, std::string_view tokenizer = "tokenizer") {
  return {.spec = {.name = use.component, .role = Role::kTextEncoder, .help = help},
          .detect = [](const TensorIndex& in) { return detect_t5(in, use); },
          .config_fields = [](const Detection& part) { return t5_fields(part, use); },
          .weight_map = t5_map,
          .make = make_brief_part<T5Encoder, T5Config>,
          .tiny = [] { return tiny_t5(use); },
          .tokenizer = tokenizer};
}

}  // namespace atelier::parts
