// What any plugin has to keep, checked on its tiny parts with random weights.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "atelier/model_family.h"

namespace atelier::conformance {

struct Finding {
  std::string check;  // "blocks: every block runs once and in order"
  bool passed = true;
  std::string detail;  // what was found where it failed; may hold a figure where it passed
};

// Runs every check, in order, and hands each finding on as soon as it is known. What a check throws
// is its finding.
void check_family(const ModelFamily& family, const std::function<void(const Finding&)>& report);

// The same, as a list.
std::vector<Finding> check_family(const ModelFamily& family);

}  // namespace atelier::conformance
