// A plugin's numbers beside those of another implementation.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "host/conformance/conformance.h"
#include "host/model/model_loader.h"

namespace atelier::conformance {

// What another implementation gives for one component: a safetensors file with its inputs, by the
// names that `atelier probe` takes, with `expected.NAME` for each output that is compared, and with
// `expected.grad.NAME` for gradients of half the sum of all squared outputs, as to an input or a
// published weight. The key `component` of its metadata names the component.
struct Reference {
  std::string path, component = {};
  NamedTensors inputs = {}, expected = {};  // without their prefix

  // Throws Error that names the file: kInvalidArgument where the component is not said or nothing
  // is expected, and what reading it throws.
  static Reference read(const std::string& path);
};

// Computes the component on the reference's inputs, and reports a finding for each tensor that is
// expected: it passes where the largest difference is at most `tolerance` of the largest expected
// value. `model` has the component's files; what it throws is a finding.
void check_reference(model::LoadedModel& model, const Reference& reference, double tolerance,
                     const std::function<void(const Finding&)>& report);

}  // namespace atelier::conformance
