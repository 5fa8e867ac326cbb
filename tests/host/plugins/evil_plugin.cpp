// The family of examples/plugin_template, which does what EVIL says, "function:what": in a function
// of the family or the model.
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <future>
#include <stdexcept>
#include <string>
#include <thread>
#include <unistd.h>

#include <ATen/ATen.h>

#include "atelier/component_model.h"
#include "atelier/error.h"
#include "atelier/named_inputs.h"
#include "atelier/nn/layers.h"
#include "atelier/ops/attention.h"
#include "atelier/ops/pointwise.h"
#include "atelier/plugin.h"

// The family is derived from here, and its door is another.
#pragma push_macro("ATELIER_PLUGIN")
#undef ATELIER_PLUGIN
#define ATELIER_PLUGIN(...)
#define final
#include "examples/plugin_template/toy.cpp"
#undef final
#pragma pop_macro("ATELIER_PLUGIN")

namespace {

std::string wanted(const std::string& function) {
  const char* said = std::getenv("EVIL");
  const std::string evil = said == nullptr ? "" : said;
  return evil.starts_with(function + ":") ? evil.substr(function.size() + 1) : "";
}

[[gnu::noinline]] int descend(int depth) {
  volatile char frame[4096];
  frame[0] = static_cast<char>(depth);
  return depth < 0 ? 0 : descend(depth + 1) + frame[0];
}

void in_thread(void (*act)()) {
  std::thread(act).detach();
  sleep(30);
}

void act(const std::string& function) {
  const std::string what = wanted(function);
  if (what == "segv") *reinterpret_cast<volatile int*>(8) = 1;
  if (what == "stack") descend(0);
  if (what == "abort") std::abort();
  if (what == "fpe") raise(SIGFPE);
  if (what == "alarm") alarm(1), sleep(30);
  if (what == "exit") std::exit(0);
  if (what == "thread aborts") in_thread([] { std::abort(); });
  if (what == "thread throws") in_thread([] { throw std::runtime_error("lost"); });
  if (what == "thread terminates") in_thread([] { std::terminate(); });
  if (what == "throw") at::ones({2}).view({3});
  if (what == "deadlock") std::promise<void>().get_future().wait();
  if (what == "atexit") std::atexit([] { std::promise<void>().get_future().wait(); });
  if (what == "spin") {
    for (std::atomic<int> i = 0;; ++i) {
    }
  }
}

struct EvilModel : ToyModel {
  using ToyModel::ToyModel;
  LatentSpec latent_spec() const override {
    LatentSpec spec = ToyModel::latent_spec();
    if (wanted("latent_spec") == "zero") spec.spatial_stride = 0;
    if (wanted("latent_spec") == "odd") spec.pixel_multiple = 2;
    return spec;
  }
  Conditioning encode(const EncodeInputs& in, BlockRunner& runner) override {
    act("encode");
    Conditioning made = ToyModel::encode(in, runner);
    const std::string what = wanted("encode");
    if (what == "nothing") return {};
    for (auto& [name, tensor] : made) {
      if (what == "undefined") tensor = at::Tensor();
      if (what == "shape") tensor = tensor.flatten();
      if (what == "int64") tensor = tensor.to(at::kLong);
    }
    return made;
  }
  std::vector<int64_t> tokenize(std::string_view text) const override {
    if (wanted("tokenize") == "large") return {int64_t{1} << 40};
    return ToyModel::tokenize(text);
  }
  at::Tensor denoise(const DenoiseInputs& in, BlockRunner& runner) override {
    act("denoise");
    const std::string what = wanted("denoise");
    if (what == "undefined") return {};
    const at::Tensor made = ToyModel::denoise(in, runner);
    if (what == "item" && in.sigma_B.max().item<float>() > 1) return {};
    if (what == "nonzero") return made + static_cast<double>(at::nonzero(made).size(1) - 5);
    if (what == "host") return made + at::zeros({made.size(4)}, made.scalar_type());
    // As composed code does.
    if (what == "where")
      return at::where(made.std(1, /*unbiased=*/true, /*keepdim=*/true) > 0, made, made.relu());
    if (what == "shape") return made.flatten();
    return what == "int64" ? made.to(at::kLong) : made;
  }
  void decode(const at::Tensor& latents, BlockRunner& runner, const FrameSink& sink) override {
    act("decode");
    const std::string what = wanted("decode");
    if (what == "nothing") return;
    if (what == "undefined") return sink(at::Tensor());
    ToyModel::decode(latents, runner, [&](const at::Tensor& pixels) {
      if (what == "small") return sink(pixels.slice(3, 0, 7).slice(4, 0, 7));
      if (what == "twice") sink(pixels);
      sink(what == "double" ? pixels.to(at::kDouble) : pixels);
    });
  }
};

struct EvilFamily : ToyFamily {
  std::span<const InputSpec> inputs() const override {
    act("inputs");
    const auto all = ToyFamily::inputs();
    if (wanted("inputs") == "many") return {all.data(), size_t{1'000'000'000}};
    if (wanted("inputs") == "nowhere") return {reinterpret_cast<const InputSpec*>(64), 1};
    return all;
  }
  std::span<const EncodeStage> encode_stages() const override {
    const auto all = ToyFamily::encode_stages();
    return wanted("encode_stages") == "many" ? std::span(all.data(), 1'000'000'000) : all;
  }
  std::optional<Detection> detect(const TensorIndex& in, const DetectHint& hint) const override {
    act("detect");
    return ToyFamily::detect(in, hint);
  }
  WeightMap weight_map(const Detection& part) const override {
    act("weight_map");
    return ToyFamily::weight_map(part);
  }
  std::unique_ptr<Model> make_model(std::span<const Detection> parts,
                                    const ModelOptions& options) const override {
    act("make_model");
    if (wanted("make_model") == "nothing") return nullptr;
    const LatentSpec latents = {kChannels, kStride, 1, kStride, kStride};
    return std::make_unique<EvilModel>(rows(), parts, options, latents);
  }
};

}  // namespace

ATELIER_PLUGIN(EvilFamily, "toy", "0.1.0")
