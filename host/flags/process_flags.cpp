#include "host/flags/process_flags.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <utility>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/util/StringUtil.h>

#include "formats/list.h"

namespace atelier::flags {
namespace {

constexpr int64_t kMostThreads = 4096;

using Form = std::pair<std::string_view, ops::Kernels>;
constexpr std::array kForms = {Form{"auto", ops::Kernels::kAuto},
                               Form{"fused", ops::Kernels::kFused},
                               Form{"composed", ops::Kernels::kComposed}};
constexpr std::string_view kNone = "none";

FlagSpec kernels_flag(const KernelChoice& preset) {
  return {
      .name = "kernels",
      .help =
          "auto: on a GPU those kernels of our own that atelier tune proved there; fused: all of "
          "them; composed: plain LibTorch operators instead; names of atelier tune, or none: on "
          "a GPU these and no others, as config.toml of a run has them",
      .preset = kernels_text(preset),
      .value_name = "auto|fused|composed|none|NAME,..."};
}

}  // namespace

KernelChoice parse_kernels(const std::string& text) {
  for (const auto& [word, form] : kForms) {
    if (text == word) return {.form = form};
  }
  if (text == kNone) return {.named = std::vector<std::string>()};
  return {.named = formats::parse_list(text)};
}

std::string kernels_text(const KernelChoice& kernels) {
  if (kernels.named)
    return kernels.named->empty() ? std::string(kNone) : c10::Join(",", *kernels.named);
  return std::string(std::ranges::find(kForms, kernels.form, &Form::second)->first);
}

void add_process_flags(Table& table, ProcessSettings& settings) {
  using enum ops::AttentionBackend;
  table
      .choice("attention", settings.attention,
              {{"auto", kAuto},
               {"flash", kFlash},
               {"efficient", kEfficient},
               {"cudnn", kCudnn},
               {"math", kMath}},
              "forces one implementation of attention")
      .add(kernels_flag(settings.kernels),
           [&settings](const ParsedFlags& flags) {
             settings.kernels = parse_kernels(flags.text("kernels"));
           })
      .choice(
          "tf32", settings.tf32, {{"auto", std::nullopt}, {"on", true}, {"off", false}},
          "on a GPU: convolutions of a float32 VAE multiply in TF32, several times as fast, and "
          "keep 10 bits of mantissa of what they multiply; auto: on")
      .flag("deterministic", settings.is_deterministic,
            "on a GPU: the same run gives the same bits, more slowly")
      .number("threads", settings.threads, "of the CPU; 0: one for each core",
              between(0, kMostThreads));
}

namespace {

// The CPU gives the same bits anyway, by other operators than this would ask for.
void make_deterministic() {
  if (!at::hasCUDA()) return;
  setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);  // before the first product
  at::Context& context = at::globalContext();
  context.setDeterministicAlgorithms(true, /*warn_only=*/false);
  context.setDeterministicFillUninitializedMemory(false);
}

}  // namespace

void apply(const ProcessSettings& settings) {
  if (settings.is_deterministic) make_deterministic();
  at::globalContext().setAllowTF32CuDNN(settings.tf32.value_or(true));
  ops::set_attention_backend(settings.attention);
  ops::set_kernels(settings.kernels.form);
  if (settings.threads > 0 && settings.threads <= kMostThreads)
    at::set_num_threads(static_cast<int>(settings.threads));
}

}  // namespace atelier::flags
