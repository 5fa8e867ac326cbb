#include "host/conformance/checks.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <fstream>

#include <ATen/ATen.h>

#include "host/model/components.h"
#include "host/plugins/guard.h"

namespace atelier::conformance {

bool is_snake_case(std::string_view name) {
  if (name.empty() || !std::islower(static_cast<unsigned char>(name.front()))) return false;
  return std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return std::islower(c) || std::isdigit(c) || c == '_';
  });
}

std::string figure(double value) {
  std::ostringstream out;
  out.precision(2);
  out << value;
  return out.str();
}

double difference(const at::Tensor& got, const at::Tensor& expected) {
  if (got.sizes() != expected.sizes()) return INFINITY;
  if (got.numel() == 0) return 0.0;
  const double scale = std::max(expected.to(at::kDouble).abs().max().item<double>(), 1e-30);
  const double error =
      (got.to(at::kDouble) - expected.to(at::kDouble)).abs().max().item<double>() / scale;
  return std::isnan(error) ? INFINITY : error;
}

std::string read_file(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  std::ostringstream bytes;
  bytes << stream.rdbuf();
  return bytes.str();
}

void expect_error(ErrorCode code, const std::string& what, const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    expect(error.code() == code, what, ": ", to_string(error.code()), " (", error.what(), "), ",
           to_string(code), " expected");
    return;
  }
  fail(what, ": no error");
}

std::string paths(const std::vector<Block*>& blocks) {
  std::string out;
  for (size_t i = 0; i < blocks.size() && i < 8; ++i)
    out += (i > 0 ? ", " : "") + blocks[i]->path();
  return blocks.size() > 8 ? out + ", ..." : out;
}

TensorIndex index_of(const std::vector<weights::PublishedTensor>& tensors,
                     TensorIndex::Config config) {
  TensorIndex::Tensors metas;
  for (const auto& tensor : tensors)
    metas.emplace(tensor.name, TensorMeta{tensor.dtype, tensor.shape});
  return TensorIndex(std::move(metas), std::move(config));
}

Tensors CountingRunner::run(Block& block, const Tensors& inputs) {
  order.push_back(&block);
  Tensors first = block.forward(inputs);
  if (twice) {
    const Tensors second = block.forward(inputs);
    for (size_t i = 0; i < first.size() && i < second.size(); ++i) {
      if (!at::equal(first[i], second[i])) differing.push_back(block.path());
    }
  }
  return first;
}

void Checks::check(const std::string& name, const std::function<Detail()>& body) const {
  Finding finding{name, true, {}};
  try {
    at::manual_seed(kSeed);
    finding.detail = body();
  } catch (const Failed& failed) {
    finding = {name, false, failed.detail};
  } catch (...) {
    try {
      plugins::rethrow_at(family().name());
    } catch (const Error& error) {
      finding = {name, false, error.what()};
      if (plugins::are_stacks_wanted() && error.tag() == "PLUGIN_THROWS")
        finding.detail += "\n" + plugins::last_stack();
    }
  }
  subject_.report(finding);
}

const ComponentSpec* Checks::spec_of(std::string_view component) const {
  return model::find_component(family(), component);
}

const Detection* Checks::part_of_role(Role role) const {
  for (const Detection& part : parts()) {
    const ComponentSpec* spec = spec_of(part.component);
    if (spec != nullptr && spec->role == role) return &part;
  }
  return nullptr;
}

bool Checks::has_tokenizer() const {
  return std::any_of(family().components().begin(), family().components().end(),
                     [](const ComponentSpec& spec) { return spec.role == Role::kTokenizer; });
}

void Checks::randomize(nn::Module& module, at::ScalarType dtype) const {
  module.visit_weights([&](const std::string&, Weight& weight) {
    const at::IntArrayRef sizes = weight.sizes();
    const int64_t numel = weight.numel();
    const int64_t longest = sizes.empty() ? 1 : *std::max_element(sizes.begin(), sizes.end());
    at::Tensor value = at::randn(sizes, at::kFloat);
    if (weight.name().find("bias") != std::string::npos) {
      value = value * 0.02;
    } else if (numel == longest) {  // one axis: a scale
      value = 1.0 + value * 0.1;
    } else {
      value = value / std::sqrt(static_cast<double>(numel / sizes[0]));
    }
    weight.set(value.to(device(), weight.drawn_dtype(dtype)));
  });
}

std::unique_ptr<Model> Checks::make(std::span<const Detection> parts,
                                    const ModelOptions& options) const {
  std::unique_ptr<Model> model = family().make_model(parts, options);
  expect(model != nullptr, "make_model gives null");
  return model;
}

std::unique_ptr<Model> Checks::make_random(at::ScalarType dtype,
                                           const ModelOptions& options) const {
  at::manual_seed(kSeed);
  std::unique_ptr<Model> model = make(parts(), options);
  for (const Detection& part : parts()) randomize(model->component(part.component), dtype);
  return model;
}

DenoiseInputs Checks::Step::inputs() {
  pointers.clear();
  for (const Conditioning& item : cond) pointers.push_back(&item);
  return {.x_BCTHW = x, .sigma_B = sigma, .cond = pointers, .denoiser = denoiser};
}

Checks::Step Checks::make_step(const Detection& denoiser, const LatentSpec& spec,
                               const StepSize& size, at::ScalarType dtype) const {
  const std::vector<int64_t> sides = latent_size(spec, size.rows, size.columns);
  const int64_t usual_frames = spec.takes_clips ? 2 : 1;
  const int64_t frames = size.frames == 0 ? usual_frames : size.frames;
  const SigmaRange range = family().sigma_range(denoiser);
  Step step;
  step.x = at::randn({size.batch, spec.channels, frames, sides[0], sides[1]}, at::kFloat)
               .to(device())
               .to(dtype);
  step.sigma =
      (range.low + (range.high - range.low) * at::linspace(0.9, 0.3, size.batch, at::kFloat))
          .to(device());
  step.denoiser = denoiser.component;
  for (int64_t b = 0; b < size.batch; ++b) {
    step.cond.push_back(family().example_conditioning(denoiser, 5 + 2 * b, dtype));
    for (auto& [name, value] : step.cond.back()) value = value.to(device());
  }
  return step;
}

std::vector<int64_t> Checks::latent_size(const LatentSpec& spec, int64_t rows, int64_t columns) {
  const int64_t step = std::max<int64_t>(1, spec.pixel_multiple / spec.spatial_stride);
  return {rows * step, columns * step};
}

}  // namespace atelier::conformance
