#include "host/conformance/reference.h"

#include <ATen/ATen.h>

#include "atelier/error.h"

#include "host/conformance/checks.h"
#include "host/files/checkpoint.h"
#include "host/files/file_reader.h"
#include "host/inspect/probe.h"

namespace atelier::conformance {
namespace {

constexpr std::string_view kExpected = "expected.", kGradient = "grad.";

// Published weights are named where a gradient is expected that is not of an input.
bool needs_weights(const Reference& reference) {
  return std::ranges::any_of(reference.expected, [&](const auto& one) {
    return one.first.starts_with(kGradient) &&
           !reference.inputs.contains(one.first.substr(kGradient.size()));
  });
}

bool needs_gradients(const Reference& reference) {
  return std::ranges::any_of(reference.expected,
                             [](const auto& one) { return one.first.starts_with(kGradient); });
}

NamedTensors compute(model::LoadedModel& model, const Reference& reference) {
  model.load_component(reference.component);
  if (!needs_gradients(reference))
    return inspect::probe_component(model, reference.component, reference.inputs);
  return inspect::probe_gradients(model, reference.component, reference.inputs,
                                  needs_weights(reference) ? "*" : "");
}

// What is said of one tensor. Throws Failed where it is another one.
std::string compare(const at::Tensor* got, const at::Tensor& expected, double tolerance) {
  if (got == nullptr) fail("the component gives nothing of this name");
  if (got->sizes() != expected.sizes())
    fail("its shape is ", got->sizes(), ", and ", expected.sizes(), " is expected");
  const double off = difference(*got, expected);
  const std::string said = figure(off) + " of the largest value";
  if (off <= tolerance) return said;
  if (const double turned = difference(-*got, expected); turned <= tolerance)
    fail("its sign is turned: its negative differs by ", figure(turned), " of the largest value");
  fail("differs by ", said, "; ", figure(tolerance), " is allowed (--tolerance)");
}

}  // namespace

Reference Reference::read(const std::string& path) {
  const auto file = files::Checkpoint::open({path, {path}});
  Reference reference{.path = path};
  if (const auto found = file.metadata().find("component"); found != file.metadata().end())
    reference.component = found->second;
  for (const auto& [name, meta] : file.index().tensors()) {
    if (name.starts_with(kExpected))
      reference.expected.emplace(name.substr(kExpected.size()), file.read(name));
    else
      reference.inputs.emplace(name, file.read(name));
  }
  const std::string place = "--reference " + files::display_path(path);
  if (reference.component.empty())
    throw Error(ErrorCode::kInvalidArgument, place + ": its metadata names no component",
                "save it with metadata={\"component\": \"dit\"}");
  if (reference.expected.empty())
    throw Error(ErrorCode::kInvalidArgument, place + ": it expects nothing",
                "name outputs expected.NAME, and gradients expected.grad.NAME");
  return reference;
}

void check_reference(model::LoadedModel& model, const Reference& reference, double tolerance,
                     const std::function<void(const Finding&)>& report) {
  const std::string prefix = "reference: " + reference.component;
  NamedTensors got;
  try {
    got = compute(model, reference);
  } catch (const std::exception& error) {
    report({prefix + " computes", false, error.what()});
    return;
  }
  for (const auto& [name, expected] : reference.expected) {
    const auto found = got.find(name);
    Finding finding{prefix + "." + name, /*passed=*/true, /*detail=*/""};
    try {
      finding.detail = compare(found == got.end() ? nullptr : &found->second, expected, tolerance);
    } catch (const Failed& failed) {
      finding.passed = false;
      finding.detail = failed.detail;
    }
    report(finding);
  }
}

}  // namespace atelier::conformance
