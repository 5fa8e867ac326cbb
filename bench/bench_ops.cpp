// Speed of copies, products, attention and pointwise operators on a device: one JSON object for
// each row on stdout, as soon as it is known.
//
//   atelier-bench-ops [--device cuda] [--shapes model] [--runs 15] [--rows TEXT] [--from N]
//   [--list]
//
// A run goes through several sets of tensors, so that none is met in the device's cache. On a GPU
// times are those of events around a run, on the CPU of the clock; a row has the median of all runs
// behind two that are not counted.
#include <algorithm>
#include <cmath>
#include <dlfcn.h>
#include <iostream>
#include <nlohmann/json.hpp>

#include <ATen/ATen.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include "atelier/error.h"
#include "atelier/host/weight_state.h"
#include "atelier/ops/attention.h"
#include "atelier/ops/linears.h"
#include "atelier/ops/pointwise.h"

#include "bench/bench_rows.h"
#include "host/device/cuda.h"
#include "host/flags/flags.h"
#include "host/tune/operator_check.h"
#include "memory/quantized_store.h"
#include "memory/transfer_device.h"

namespace atelier::bench {
namespace {

using at::Tensor;

constexpr int kWarmUps = 2, kMostSets = 6;
constexpr double kSetBytes = 256e6;  // of all sets together, several times a device's cache

void synchronize(at::Device device) {
  if (!device.is_cpu()) at::accelerator::synchronizeDevice(device.index());
}

// Milliseconds of `work` on the device; `by_clock`: until it returns.
double timed(const Bench& bench, bool by_clock, const std::function<void()>& work) {
  if (!by_clock) return tune::milliseconds(bench.device, work);
  synchronize(bench.device);
  return tune::milliseconds(at::kCPU, work);
}

// A profiler that waits for it (ncu --profile-from-start off) looks on from now on.
void start_profiler() {
  void* const runtime = dlopen("libcudart.so.13", RTLD_NOW | RTLD_NOLOAD);
  if (runtime == nullptr) return;
  if (void* const start = dlsym(runtime, "cudaProfilerStart")) reinterpret_cast<int (*)()>(start)();
}

nlohmann::json measure(const Row& row, const Bench& bench, int64_t runs) {
  const bool is_single = row.waits || row.only_first;
  const int sets =
      is_single ? 1
                : std::clamp(static_cast<int>(kSetBytes / std::max(row.bytes, 1.0)), 2, kMostSets);
  const Run run = row.make(bench, sets);
  std::vector<double> times_ms;
  for (int64_t i = row.only_first ? kWarmUps : 0; i < kWarmUps + runs; ++i) {
    if (i == kWarmUps) start_profiler();
    const double ms = timed(bench, is_single, [&] {
      for (int set = 0; set < sets; ++set) run(row.only_first ? static_cast<int>(i) : set);
    });
    if (i >= kWarmUps) times_ms.push_back(ms / sets);
  }
  std::sort(times_ms.begin(), times_ms.end());
  const double median = times_ms[times_ms.size() / 2];
  nlohmann::json result = {{"row", row.name},
                           {"ms", median},
                           {"quickest_ms", times_ms.front()},
                           {"slowest_ms", times_ms.back()}};
  if (row.flops > 0)
    result.update({{"rate", row.flops / median / 1e9}, {"unit", "TFLOP/s"}});
  else if (row.bytes > 0)
    result.update({{"rate", row.bytes / median / 1e6}, {"unit", "GB/s"}});
  return result;
}

// --- rows ---

// The blocks of a published denoiser, and the rows of a step.
struct Shape {
  std::string name;
  int64_t width, heads, key_heads, head_width, mlp, samples, length;
  int64_t rows() const { return samples * length; }
};

std::vector<Shape> shapes(bool is_small) {
  if (is_small)
    return {{"width 2304", 96, 4, 2, 24, 192, 2, 40}, {"width 3072", 128, 4, 4, 32, 256, 2, 40}};
  return {{"width 2304", 2304, 24, 8, 96, 9216, 2, 4352},
          {"width 3072", 3072, 24, 24, 128, 12288, 2, 4160}};
}

void add_device_copy(std::vector<Row>& rows, bool is_small) {
  const int64_t count = is_small ? 1 << 20 : 1 << 29;
  rows.push_back({"copy on the device", 4.0 * static_cast<double>(count), 0,
                  [count](const Bench& bench, int sets) {
                    return with_sets(
                        sets,
                        [&] {
                          return Tensors{bench.noise({count}), bench.noise({count})};
                        },
                        [](const Tensors& in) { in[1].copy_(in[0]); });
                  }});
}

void add_host_copies(std::vector<Row>& rows, bool is_small) {
  const int64_t bytes = is_small ? 1 << 20 : 1 << 30;
  for (const bool is_in : {true, false}) {
    for (const std::string memory : {"pinned", "pinned, beside products", "pageable"}) {
      const auto make = [bytes, is_in, memory](const Bench& bench, int) -> Run {
        std::shared_ptr<memory::TransferDevice> transfer =
            memory::make_transfer_device(bench.device);
        const Tensor there = transfer->device_memory(bytes);
        if (memory == "pageable") {
          const Tensor here = at::ones({bytes}, at::kByte);
          return [=](int) {
            is_in ? there.copy_(here) : here.copy_(there);
            synchronize(there.device());
          };
        }
        const Tensor here = transfer->host_memory(bytes).fill_(1);
        const int64_t n = bench.is_small ? 64 : 8192;
        const Tensor a = bench.noise({n, n});
        return [=](int) {
          for (int i = 0; memory != "pinned" && i < 16; ++i) at::mm(a, a);
          transfer->wait(is_in ? transfer->copy_in(here, there) : transfer->copy_out(there, here));
        };
      };
      Row row = {(is_in ? "copy in, " : "copy out, ") + memory, static_cast<double>(bytes), 0,
                 make};
      row.waits = true;
      rows.push_back(std::move(row));
    }
  }
}

WeightPtr weight_of(const Tensor& value) {
  auto weight = std::make_shared<Weight>("weight", value.sizes().vec());
  weight->set(value);
  return weight;
}

WeightPtr eight_bit_weight(const Tensor& value, memory::QuantizedKind kind, bool is_w8a8) {
  auto weight = std::make_shared<Weight>("weight", value.sizes().vec());
  weight->state().set_store(std::make_shared<memory::QuantizedStore>(memory::quantize(value, kind),
                                                                     at::kBFloat16, is_w8a8));
  return weight;
}

WeightPtr weight_for(const std::string& compute, const Tensor& value) {
  using memory::QuantizedKind;
  if (compute == "bf16") return weight_of(value);
  return eight_bit_weight(value,
                          compute.starts_with("int8") ? QuantizedKind::kInt8 : QuantizedKind::kFp8,
                          /*is_w8a8=*/!compute.ends_with("stored"));
}

void add_products(std::vector<Row>& rows, bool is_small) {
  for (const std::string kind :
       {"bf16", "fp8", "int8", "fp8 stored", "fp8, fused", "int8, fused", "fp8 stored, fused"}) {
    const std::string compute = kind.substr(0, kind.find(','));
    const bool is_fused = compute != kind;
    for (const Shape& s : shapes(is_small)) {
      const std::pair<const char*, std::array<int64_t, 2>> layers[] = {
          {"attention out", {s.heads * s.head_width, s.width}},
          {"MLP up", {s.width, s.mlp}},
          {"MLP down", {s.mlp, s.width}}};
      for (const auto& [layer, sizes] : layers) {
        const auto [in, out] = sizes;
        const double flops = 2.0 * static_cast<double>(s.rows() * in) * static_cast<double>(out);
        rows.push_back({"product, " + s.name + ", " + layer + ", " + kind,
                        2.0 * static_cast<double>(s.rows() * in + in * out), flops,
                        [=](const Bench& bench, int sets) {
                          std::vector<std::pair<Tensor, WeightPtr>> all;
                          for (int i = 0; i < sets; ++i)
                            all.emplace_back(bench.noise({s.rows(), in}),
                                             weight_for(compute, bench.matrix(out, in)));
                          return with_kernels(is_fused, [all](int set) {
                            const auto& [x, weight] = all[static_cast<size_t>(set)];
                            ops::linear(x, weight);
                          });
                        }});
      }
    }
  }
}

// Attention as one implementation makes it; on the CPU there is one.
struct Attention {
  ops::AttentionBackend backend;
  std::string name;
};
const Attention kFlash = {ops::AttentionBackend::kFlash, ", flash"};
const Attention kCudnn = {ops::AttentionBackend::kCudnn, ", cuDNN"};

void use(const Attention& by, at::Device device) {
  ops::set_attention_backend(device.is_cpu() ? ops::AttentionBackend::kAuto : by.backend);
}

// Forward, or forward and backward, of q, k and v.
void attend(const Attention& by, const Tensors& in, const Segments& rows, bool with_backward) {
  use(by, in[0].device());
  const at::AutoGradMode grad(with_backward);
  const Tensor y = ops::attention(in[0], in[1], in[2], rows);
  if (with_backward) torch::autograd::grad({y}, in, {y.detach()});
}

Tensors heads_of(const Bench& bench, const Shape& s, int64_t rows, bool is_trained) {
  Tensors heads = {bench.noise({rows, s.heads, s.head_width}),
                   bench.noise({rows, s.key_heads, s.head_width}),
                   bench.noise({rows, s.key_heads, s.head_width})};
  for (Tensor& t : heads) t.set_requires_grad(is_trained);
  return heads;
}

Row attention_row(const Shape& s, const std::string& name, const Attention& by,
                  const Segments& lengths, bool with_backward) {
  double pairs = 0;
  for (int64_t i = 0; i < lengths.count(); ++i)
    pairs += static_cast<double>(lengths.length(i)) * static_cast<double>(lengths.length(i));
  const double flops = 4.0 * pairs * static_cast<double>(s.heads * s.head_width);
  return {"attention, " + s.name + name + (with_backward ? ", with backward" : "") + by.name,
          2.0 * static_cast<double>(lengths.total() * s.head_width * (s.heads + 2 * s.key_heads)),
          flops * (with_backward ? 3.5 : 1.0), [=](const Bench& bench, int sets) {
            return with_sets(
                sets, [&] { return heads_of(bench, s, lengths.total(), with_backward); },
                [=](const Tensors& in) { attend(by, in, lengths, with_backward); });
          }};
}

// The first forward and backward pass of `lengths(run)`.
Row first_attention_row(const Shape& s, const std::string& name, const Attention& by,
                        const std::function<Segments(int run)>& lengths) {
  Row row = {"attention, " + s.name + name + by.name, 0, 0, [=](const Bench& bench, int) -> Run {
               return [=](int run) {
                 const Segments of_run = lengths(run);
                 attend(by, heads_of(bench, s, of_run.total(), true), of_run, true);
                 synchronize(bench.device);
               };
             }};
  row.only_first = true;
  return row;
}

// Texts of a picture, of which its rows see the prompt and that of one region.
struct Regions {
  int64_t picture, entity, prompt;  // rows
  static constexpr int64_t kEntities = 3;
  int64_t texts() const { return kEntities * entity + prompt; }

  Tensor sees(at::Device device) const {
    const Tensor region = at::arange(picture, device).mul_(kEntities).floor_divide_(picture);
    return at::bitwise_left_shift(at::full_like(region, 2), region).add_(1);
  }
  Tensor groups(at::Device device) const {
    const Tensor region = at::arange(texts(), device).sub_(prompt).floor_divide_(entity);
    return at::bitwise_left_shift(at::full_like(region, 2), region.clamp_min(0))
        .masked_fill_(region < 0, 1);
  }
};

// Attention of a picture to itself and its texts: as one set of keys that it all sees, or as two of
// which texts have regions.
Row regions_row(const Shape& s, const Regions& regions, bool has_regions, bool with_backward) {
  const Segments picture({regions.picture}), texts({regions.texts()}),
      all({regions.picture + regions.texts()});
  const int64_t keys = all.total();
  const auto make = [=](const Bench& bench) {
    Tensors in;
    const auto add = [&](int64_t rows, int64_t heads) {
      in.push_back(bench.noise({rows, heads, s.head_width}).set_requires_grad(with_backward));
    };
    add(picture.total(), s.heads);
    for (const Segments& rows : has_regions ? std::vector{picture, texts} : std::vector{all}) {
      add(rows.total(), s.key_heads);
      add(rows.total(), s.key_heads);
    }
    return in;
  };
  const auto attended = [=](const Tensors& in, const Tensor& sees, const Tensor& groups) {
    if (!has_regions) return ops::attention(in[0], in[1], in[2], picture, all, {});
    const std::vector<ops::KeySet> sets = {{in[1], in[2], picture},
                                           {in[3], in[4], texts, sees, groups}};
    return ops::attention(in[0], picture, sets);
  };
  const double pairs = static_cast<double>(picture.total() * keys);
  return {"attention, " + s.name + (has_regions ? ", texts by regions" : ", texts for all") +
              (with_backward ? ", with backward" : "") + kFlash.name,
          2.0 * static_cast<double>((picture.total() * s.heads + 2 * keys * s.key_heads) *
                                    s.head_width),
          4.0 * pairs * static_cast<double>(s.heads * s.head_width) * (with_backward ? 3.5 : 1.0),
          [=](const Bench& bench, int sets) {
            const Tensor sees = regions.sees(bench.device), groups = regions.groups(bench.device);
            return with_sets(
                sets, [&] { return make(bench); },
                [=](const Tensors& in) {
                  use(kFlash, bench.device);
                  const at::AutoGradMode grad(with_backward);
                  const Tensor y = attended(in, sees, groups);
                  if (with_backward) torch::autograd::grad({y}, in, {y.detach()});
                });
          }};
}

void add_attention(std::vector<Row>& rows, bool is_small) {
  for (const Shape& s : shapes(is_small)) {
    for (const bool is_even : {true, false}) {
      const Segments lengths = is_even ? Segments::uniform(s.samples, s.length)
                                       : Segments({s.length, s.length - s.length / 16});
      for (const bool with_backward : {false, true}) {
        for (const Attention& by : {kFlash, kCudnn})
          rows.push_back(attention_row(s, is_even ? ", equal lengths" : ", unequal lengths", by,
                                       lengths, with_backward));
      }
    }
    rows.push_back(
        first_attention_row(s, ", first call of a number of samples", kCudnn,
                            [s](int run) { return Segments::uniform(run + 1, s.length / 8); }));
    rows.push_back(first_attention_row(s, ", another length", kCudnn, [s](int run) {
      return Segments::uniform(s.samples, s.length + 8 * (run + 1));
    }));
  }
  const Regions regions = is_small ? Regions{48, 4, 8} : Regions{4096, 64, 128};
  for (const bool with_backward : {false, true}) {
    for (const bool has_regions : {false, true})
      rows.push_back(regions_row(shapes(is_small).back(), regions, has_regions, with_backward));
  }
  const Shape clip = is_small ? Shape{"width 5120", 160, 5, 5, 32, 320, 1, 90}
                              : Shape{"width 5120", 5120, 40, 40, 128, 13824, 1, 32760};
  for (const bool with_backward : {false, true}) {
    for (const Attention& by : {kFlash, kCudnn})
      rows.push_back(attention_row(clip, ", a clip", by, Segments({clip.length}), with_backward));
  }
}

// Layers of one input with low-rank additions.
struct Adapted {
  int layers = 1;
  int64_t rank = 0;
  int count = 0;  // of each layer
  bool with_backward = false;
};

struct AdaptedLayers {
  AdaptedLayers(const Bench& bench, const Shape& s, const Adapted& what) {
    for (int layer = 0; layer < what.layers; ++layer) {
      weights.push_back(weight_of(bench.matrix(s.width, s.width)));
      adapters.emplace_back();
      for (int i = 0; i < what.count; ++i)
        adapters.back().push_back(
            {bench.noise({what.rank, s.width}, at::kFloat).set_requires_grad(what.with_backward),
             bench.noise({s.width, what.rank}, at::kFloat).set_requires_grad(what.with_backward)});
    }
  }
  Tensors alone(const Tensor& x) const {
    Tensors result;
    for (size_t i = 0; i < weights.size(); ++i)
      result.push_back(ops::linear(x, weights[i], nullptr, adapters[i]));
    return result;
  }
  Tensors together(const Tensor& x) const {
    std::vector<ops::LinearTerms> terms;
    for (size_t i = 0; i < weights.size(); ++i) terms.push_back({weights[i], nullptr, adapters[i]});
    return ops::linears(x, terms);
  }
  // The products of which PEFT makes them.
  Tensors composed(const Tensor& x) const {
    Tensors result;
    for (size_t i = 0; i < weights.size(); ++i) {
      Tensor y = ops::linear(x, weights[i]);
      for (const ops::Adapter& adapter : adapters[i])
        y = y + at::linear(at::linear(x, adapter.a.to(y.scalar_type())),
                           adapter.b.to(y.scalar_type())) *
                    adapter.scale;
      result.push_back(y);
    }
    return result;
  }

  std::vector<WeightPtr> weights;
  std::vector<std::vector<ops::Adapter>> adapters;
};

// What Atelier does, and other ways to the same.
void add_adapters(std::vector<Row>& rows, bool is_small) {
  using Way = Tensors (AdaptedLayers::*)(const Tensor&) const;
  const Shape s = shapes(is_small).back();
  const auto add = [&](const std::string& name, const Adapted& what, Way way) {
    rows.push_back(
        {"LoRA, " + s.name + ", " + name + (what.with_backward ? ", with backward" : ""), 0, 0,
         [=](const Bench& bench, int sets) {
           const auto layers = std::make_shared<AdaptedLayers>(bench, s, what);
           return with_sets(
               sets,
               [&] {
                 return Tensors{
                     bench.noise({s.rows(), s.width}).set_requires_grad(what.with_backward)};
               },
               [=](const Tensors& in) {
                 const at::AutoGradMode grad(what.with_backward);
                 const Tensors y = (layers.get()->*way)(in[0]);
                 if (!what.with_backward) return;
                 Tensors wanted = in, grads;
                 for (const auto& own : layers->adapters) {
                   for (const ops::Adapter& adapter : own)
                     wanted.insert(wanted.end(), {adapter.a, adapter.b});
                 }
                 for (const Tensor& each : y) grads.push_back(each.detach());
                 torch::autograd::grad(y, wanted, grads);
               });
         }});
  };
  for (const bool with_backward : {false, true}) {
    add("none", {1, 0, 0, with_backward}, &AdaptedLayers::alone);
    add("one of rank 16", {1, 16, 1, with_backward}, &AdaptedLayers::alone);
    add("q, k and v of rank 16", {3, 16, 1, with_backward}, &AdaptedLayers::together);
    add("q, k and v of rank 16, each alone", {3, 16, 1, with_backward}, &AdaptedLayers::alone);
  }
  add("four of rank 32", {1, 128, 1}, &AdaptedLayers::alone);  // as lora::Registry stacks them
  add("four of rank 32, one product after another", {1, 32, 4}, &AdaptedLayers::composed);
}

// A run of `op` on several sets of tensors; those that an operator has once are shared by them.
Run pointwise_run(const Bench& bench, int sets, const Shape& s, int inputs, int64_t width,
                  const std::function<Tensor(const Tensors&, const Tensors&)>& op,
                  bool with_backward, ops::Kernels kernels) {
  const Tensors few = {bench.noise({s.samples, width}),
                       bench.noise({s.samples, width}),
                       bench.noise({s.samples, width}),
                       bench.noise({width}),
                       bench.noise({width}),
                       bench.noise({s.head_width}),
                       bench.noise({s.rows(), s.head_width / 2}, at::kFloat)};
  return with_sets(
      sets,
      [&] {
        Tensors in;
        for (int i = 0; i < inputs; ++i)
          in.push_back(bench.noise({s.rows(), width}).set_requires_grad(with_backward));
        return in;
      },
      [=](const Tensors& in) {
        ops::set_kernels(kernels);
        const at::AutoGradMode grad(with_backward);
        const Tensor y = op(in, few);
        if (with_backward) torch::autograd::grad({y}, in, {y.detach()});
        ops::set_kernels(ops::Kernels::kAuto);
      });
}

// `forward`, `backward`: how many [rows, width] these read or write. Each row is there twice:
// composed, and with kernels of our own whether they are proven or not.
void add_pointwise(std::vector<Row>& rows, const Shape& s, const std::string& name, int forward,
                   int backward, int inputs,
                   const std::function<Tensor(const Tensors&, const Tensors&)>& op, int64_t width) {
  for (const bool with_backward : {false, true}) {
    const int tensors = forward + (with_backward ? backward : 0);
    for (const ops::Kernels kernels : {ops::Kernels::kComposed, ops::Kernels::kFused}) {
      rows.push_back(
          {"pointwise, " + s.name + ", " + name + (with_backward ? ", with backward" : "") +
               (kernels == ops::Kernels::kFused ? ", fused" : ""),
           2.0 * tensors * static_cast<double>(s.rows() * width), 0,
           [=](const Bench& bench, int sets) {
             return pointwise_run(bench, sets, s, inputs, width, op, with_backward, kernels);
           }});
    }
  }
}

void add_all_pointwise(std::vector<Row>& rows, bool is_small) {
  const Shape narrow = shapes(is_small).front(), wide = shapes(is_small).back();
  const auto add = [&](const Shape& s, const std::string& name, int forward, int backward,
                       int inputs, auto op, bool is_mlp = false) {
    add_pointwise(rows, s, name, forward, backward, inputs, op, is_mlp ? s.mlp : s.width);
  };
  const auto of = [](const Shape& s) { return Segments::uniform(s.samples, s.length); };
  const Segments few = of(narrow), many = of(wide);
  add(narrow, "rms_norm_modulate", 2, 3, 1, [few](const Tensors& in, const Tensors& w) {
    return ops::rms_norm_modulate(in[0], w[3], w[0], few);
  });
  add(narrow, "rms_norm", 2, 3, 1,
      [](const Tensors& in, const Tensors& w) { return ops::rms_norm(in[0], w[3]); });
  add(narrow, "rms_gate_residual", 3, 5, 2, [few](const Tensors& in, const Tensors& w) {
    return ops::rms_gate_residual(in[0], in[1], w[3], w[0], few);
  });
  add(narrow, "rms_gate_residual_norm_modulate", 4, 6, 2,
      [few](const Tensors& in, const Tensors& w) {
        const auto [sum, out] =
            ops::rms_gate_residual_norm_modulate(in[0], in[1], w[3], w[0], w[4], w[1], few);
        return sum + out;
      });
  add(
      narrow, "swiglu", 3, 5, 2,
      [](const Tensors& in, const Tensors&) { return ops::swiglu(in[0], in[1]); }, true);
  add(wide, "norm_modulate", 2, 3, 1, [many](const Tensors& in, const Tensors& w) {
    return ops::norm_modulate(in[0], w[0], w[1], many);
  });
  add(wide, "layer_norm", 2, 3, 1,
      [](const Tensors& in, const Tensors& w) { return ops::layer_norm(in[0], w[3], w[4]); });
  add(wide, "gate_residual", 3, 3, 2, [many](const Tensors& in, const Tensors& w) {
    return ops::gate_residual(in[0], in[1], w[0], many);
  });
  add(wide, "gate_residual_norm_modulate", 4, 6, 2, [many](const Tensors& in, const Tensors& w) {
    const auto [sum, out] = ops::gate_residual_norm_modulate(in[0], in[1], w[0], w[1], w[2], many);
    return sum + out;
  });
  add(wide, "norm_rope", 2, 3, 1, [wide](const Tensors& in, const Tensors& w) {
    return ops::norm_rope(in[0].unflatten(1, {wide.heads, wide.head_width}), w[5], w[6], w[6],
                          ops::RopeLayout::kInterleaved);
  });
  add(wide, "joined_norm_rope", 4, 6, 2, [wide, many](const Tensors& in, const Tensors& w) {
    const auto stream = [&](const Tensor& x) {
      return ops::RopeStream{x.unflatten(1, {wide.heads, wide.head_width}), w[5], w[6], w[6], many};
    };
    return ops::joined_norm_rope(stream(in[0]), stream(in[1]), ops::RopeLayout::kInterleaved);
  });
  add(
      wide, "gelu_tanh", 2, 3, 1,
      [](const Tensors& in, const Tensors&) { return ops::gelu_tanh(in[0]); }, true);
}

// The most telling ones first.
std::vector<Row> all_rows(bool is_small) {
  std::vector<Row> rows;
  add_device_copy(rows, is_small);
  add_products(rows, is_small);
  add_attention(rows, is_small);
  add_all_pointwise(rows, is_small);
  add_adapters(rows, is_small);
  add_host_copies(rows, is_small);
  add_image_norms(rows, is_small);
  add_optimizer_steps(rows, is_small);
  return rows;
}

flags::CommandSpec command() {
  using flags::FlagKind;
  return {.name = "bench-ops",
          .summary = "Times operators on a device",
          .flags = {
              {.name = "device", .help = "auto, cpu, cuda or cuda:N", .preset = "auto"},
              {.name = "shapes",
               .help = "of tensors",
               .preset = "model",
               .choices = {"small", "model"}},
              {.name = "runs", .kind = FlagKind::kInteger, .help = "measured runs", .preset = "15"},
              {.name = "rows", .help = "those whose names hold this text", .preset = ""},
              {.name = "from",
               .kind = FlagKind::kInteger,
               .help = "leaves out so many rows",
               .preset = "0"},
              {.name = "list", .kind = FlagKind::kFlag, .help = "prints the names alone"}}};
}

int run(std::span<const std::string> arguments) {
  const auto flags = flags::parse_flags(command(), arguments);
  const Bench bench = {device::choose(flags.text("device")), flags.text("shapes") == "small"};
  const at::NoGradGuard no_grad;
  int64_t number = 0;
  for (const Row& row : all_rows(bench.is_small)) {
    if (row.name.find(flags.text("rows")) == std::string::npos) continue;
    if (number++ < flags.integer("from")) continue;
    nlohmann::json result = {{"row", row.name}};
    if (!flags.flag("list")) {
      try {
        result = measure(row, bench, flags.integer("runs"));
      } catch (const std::exception& error) {
        const std::string what = error.what();
        result["error"] = what.substr(0, what.find('\n'));
      }
    }
    std::cout << result.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace atelier::bench

int main(int argc, char** argv) {
  try {
    atelier::device::open_cuda();
    return atelier::bench::run(std::vector<std::string>(argv + 1, argv + argc));
  } catch (const atelier::Error& error) {
    std::cerr << "error: " << error.what() << "\n";
    return atelier::exit_code(error.code());
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << "\n";
    return 70;
  }
}
