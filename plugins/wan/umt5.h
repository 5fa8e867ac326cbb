// The language model that reads the prompt: the encoder of umT5-XXL.
#pragma once

#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "atelier/architecture.h"
#include "atelier/component_model.h"
#include "atelier/nn/layers.h"

namespace wan {

// The defaults are those of umT5-XXL, for what shapes do not tell.
struct Umt5Config {
  int64_t vocabulary = 256384, width = 4096, heads = 64, head_dim = 64, ffn = 10240, layers = 24;
  int64_t buckets = 32;        // of distances between tokens; half of them for each direction
  int64_t max_distance = 128;  // the last bucket of a direction begins below it
  double eps = 1e-6;

  template <class Fields>
  void visit(Fields&& fields) {
    fields("vocabulary", vocabulary), fields("width", width), fields("heads", heads);
    fields("head_dim", head_dim), fields("ffn", ffn), fields("layers", layers);
    fields("buckets", buckets), fields("max_distance", max_distance), fields("eps", eps);
  }
};

// Says whether a checkpoint holds a umT5 encoder, as the component "text_encoder". Its variant is
// left empty. Throws Error{kInvalidArgument} when shapes and config.json contradict each other.
//
// Spellings: "original" (blocks.0.attn.q.weight), "transformers" (encoder.block.0.…, and
// shared.weight; ComfyUI's file too) and "transformers_embed", the same with the table of tokens
// below encoder. alone.
std::optional<atelier::Detection> detect_umt5(const atelier::TensorIndex& checkpoint);

// See ComponentRow.
atelier::ConfigFields umt5_fields(const atelier::Detection& part);
atelier::WeightMap umt5_map(const atelier::Detection& part);

class Umt5Block;

class Umt5 final : public atelier::TextEncoder {
 public:
  explicit Umt5(const Umt5Config& config);
  ~Umt5() override;

  at::Tensor forward(const at::Tensor& ids_N, const atelier::Segments& rows,
                     atelier::BlockRunner& runner) override;

  int64_t vocabulary() const override { return config_.vocabulary; }
  int64_t width() const override { return config_.width; }

 private:
  Umt5Config config_;
  atelier::nn::Embedding token_embedding_;
  std::vector<std::unique_ptr<Umt5Block>> blocks_;
  atelier::nn::RMSNorm norm_;
};

}  // namespace wan
