#include "host/inspect/probe.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include "atelier/error.h"
#include "atelier/host/weight_state.h"

#include "formats/escape.h"
#include "formats/glob.h"
#include "host/generate/request.h"
#include "host/plugins/guard.h"
#include "host/report/problems.h"
#include "host/sampling/sigma_schedule.h"
#include "host/weights/published_tensors.h"
#include "memory/recompute.h"

namespace atelier::inspect {
namespace {

using model::LoadedModel;

// Floating tensors of two axes and more take part in products and get the component's dtype;
// vectors (noise levels) stay as they are.
at::Tensor to_compute(const at::Tensor& value, const LoadedModel& model,
                      const std::string& component) {
  if (!c10::isFloatingType(value.scalar_type()) || value.dim() < 2) return value.to(model.device());
  return value.to(model.device(), model.dtype(component));
}

// The published tensors that `glob` names, with or without the file's prefix, as trained weights.
std::vector<weights::PublishedTensor> train(LoadedModel& model, const std::string& component,
                                            const std::string& glob) {
  const model::LoadedPart& part = *model.find_part(component);
  const std::string& prefix = part.detection.prefix;
  std::vector<weights::PublishedTensor> tensors = weights::published_tensors(
      model.model().component(component), model.family().weight_map(part.detection), prefix,
      &part.checkpoint.index());
  std::erase_if(tensors, [&](const weights::PublishedTensor& tensor) {
    return !formats::glob_match(glob, tensor.name) &&
           !formats::glob_match(glob, tensor.name.substr(prefix.size()));
  });
  if (tensors.empty())
    throw Error(ErrorCode::kInvalidArgument,
                "--trainable " + formats::quote_and_escape(glob) + ": no tensor of " + component +
                    " matches",
                "atelier inspect lists the names");
  for (const weights::PublishedTensor& tensor : tensors) {
    for (const auto& source : tensor.sources) source.weight->state().set_trainable(true);
  }
  return tensors;
}

// Joins the gradients of a published tensor's weights the way its values are joined.
at::Tensor published_gradient(const weights::PublishedTensor& tensor,
                              const std::map<Weight*, size_t>& places,
                              const std::vector<at::Tensor>& gradients) {
  std::vector<at::Tensor> parts;
  for (const auto& source : tensor.sources) {
    at::Tensor part = gradients[places.at(source.weight)];
    if (source.length >= 0) part = part.narrow(tensor.axis, source.start, source.length);
    parts.push_back(std::move(part));
  }
  return parts.size() == 1 ? parts.front() : at::cat(parts, tensor.axis);
}

// The gradient of half the sum of all squared outputs, as to each leaf.
std::vector<at::Tensor> gradients_of(const NamedTensors& outputs,
                                     const std::vector<at::Tensor>& leaves) {
  std::vector<at::Tensor> roots, seeds;
  for (const auto& [name, value] : outputs) {
    if (!value.requires_grad()) continue;
    roots.push_back(value);
    seeds.push_back(value.detach());
  }
  std::vector<at::Tensor> gradients(leaves.size());
  if (!roots.empty() && !leaves.empty())
    gradients = torch::autograd::grad(roots, leaves, seeds, /*retain_graph=*/false,
                                      /*create_graph=*/false, /*allow_unused=*/true);
  for (size_t i = 0; i < leaves.size(); ++i) {
    if (!gradients[i].defined()) gradients[i] = at::zeros_like(leaves[i]);
  }
  return gradients;
}

void check_request(const nlohmann::json& request, const std::string& place) {
  if (!request.is_object()) throw Error(ErrorCode::kInvalidArgument, place + ": is no JSON object");
  report::Problems problems;
  const std::vector<std::string> known = {
      "height", "width",   "num_inference_steps", "schedule", "denoising_strength", "flow_shift",
      "sigmas", "variant", "num_frames"};
  for (const auto& [key, value] : request.items()) {
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      const std::string nearest = report::nearest_name(key, known);
      problems.add(place + ": " + formats::quote_and_escape(key) + " is not known",
                   nearest.empty() ? "known are " + report::list_names(known)
                                   : "did you mean " + nearest + "?");
    } else if (key == "schedule" || key == "variant" ? !value.is_string()
               : key == "sigmas"                     ? !value.is_array()
                                                     : !value.is_number()) {
      problems.add(place + ": " + key + " is " + formats::quote_and_escape(value.dump()) +
                   ", which it cannot be");
    }
  }
  problems.throw_if_any();
}

}  // namespace

NamedTensors probe_component(LoadedModel& model, const std::string& component,
                             const NamedTensors& inputs) {
  const at::NoGradGuard no_grad;
  NamedTensors given;
  for (const auto& [name, value] : inputs) given.emplace(name, to_compute(value, model, component));
  return model.model().probe(component, given, model.runner());
}

NamedTensors probe_gradients(LoadedModel& model, const std::string& component,
                             const NamedTensors& inputs, const std::string& trainable) {
  // Blocks whose weights come and go are computed again in the backward pass.
  memory::RecomputeRunner recompute(model.runner());
  BlockRunner& runner =
      model.is_streamed(component) ? static_cast<BlockRunner&>(recompute) : model.runner();
  std::vector<weights::PublishedTensor> trained;
  if (!trainable.empty()) trained = train(model, component, trainable);
  NamedTensors given;
  std::vector<std::string> names;  // of the first leaves
  std::vector<at::Tensor> leaves;
  for (const auto& [name, value] : inputs) {
    at::Tensor leaf = value.detach().clone();
    if (c10::isFloatingType(leaf.scalar_type())) {
      names.push_back(name);
      leaves.push_back(leaf.set_requires_grad(true));
    }
    given.emplace(name, to_compute(leaf, model, component));
  }
  std::map<Weight*, size_t> places;  // of weights among the leaves
  for (const auto& tensor : trained) {
    for (const auto& source : tensor.sources) {
      if (places.emplace(source.weight, leaves.size()).second)
        leaves.push_back(source.weight->state().leaf());
    }
  }
  NamedTensors result = model.model().probe(component, given, runner);
  plugins::guard(std::string(model.family().name()) + ".probe", [&] {
    const std::vector<at::Tensor> gradients = gradients_of(result, leaves);
    for (auto& [name, value] : result) value = value.detach();
    for (size_t i = 0; i < names.size(); ++i) result["grad." + names[i]] = gradients[i];
    for (const auto& tensor : trained)
      result["grad." + tensor.name] = published_gradient(tensor, places, gradients);
  });
  return result;
}

std::vector<float> probe_schedule(LoadedModel& model, const nlohmann::json& request,
                                  const std::string& place) {
  check_request(request, place);
  const ScheduleDefaults& defaults =
      sampling::find_schedule(model.family().schedules(), request.value("schedule", std::string()),
                              request.value("variant", std::string()));
  const LatentSpec spec = model.model().latent_spec();
  sampling::ScheduleOptions wanted;
  wanted.num_steps = request.value("num_inference_steps", defaults.num_inference_steps);
  const int64_t height = request.value("height", int64_t{1024}),
                width = request.value("width", int64_t{1024});
  const MediaTarget target = {request.value("num_frames", int64_t{1}), height, width};
  wanted.tokens = generate::tokens_of(target, spec);
  wanted.frames = generate::latent_frames_of(target, spec);
  if (request.contains("flow_shift")) wanted.flow_shift = request["flow_shift"].get<double>();
  if (request.contains("sigmas")) wanted.sigmas = request["sigmas"].get<std::vector<double>>();
  return sampling::keep_last_steps(sampling::make_sigmas(defaults, wanted),
                                   request.value("denoising_strength", 1.0));
}

}  // namespace atelier::inspect
