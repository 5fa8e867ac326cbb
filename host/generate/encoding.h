// Prompts and images become what the denoiser is given.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>

#include "host/generate/engine_context.h"
#include "host/generate/material.h"

namespace atelier::generate {

int64_t bytes_of(const Conditioning& cond);

// Loads what it encodes with; encodings are kept for later requests, the oldest dropped first. Not
// thread-safe.
class Encoder {
 public:
  // `context` outlives it.
  explicit Encoder(EngineContext& context) : context_(context) {}

  // Encodes a request that is made at once. Throws Error{kInvalidArgument} when latents or
  // input_pixels have the wrong shape.
  Material encode(const Request& request);
  // All of the prompt first, then all of the negative one. Where there are pieces, stages run
  // either for all of them, without a `piece`, or for each.
  Conditionings encode_conditions(const Request& request, const PieceInputs* piece = nullptr);

  int64_t cached_bytes() const { return cache_bytes_; }  // on the device

  // Bytes of encodings up to which more are made ahead.
  static constexpr int64_t kAheadBytes = int64_t{1} << 29;

 private:
  Conditioning encode_stage(const EncodeStage& stage, const EncodeInputs& in,
                            const std::string& encoder_state);
  Conditioning run_stage(const EncodeStage& stage, const EncodeInputs& in);
  at::Tensor encode_start(const Request& request, at::IntArrayRef latents_CTHW);
  void keep(const std::string& key, const Conditioning& cond);

  EngineContext& context_;
  std::map<std::string, Conditioning> cache_;  // by stage and content
  std::deque<std::string> cache_order_;
  int64_t cache_bytes_ = 0;
};

}  // namespace atelier::generate
