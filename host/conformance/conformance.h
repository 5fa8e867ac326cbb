// What any plugin has to keep, checked on its tiny parts with random weights.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "atelier/model_family.h"

#include "host/plugins/plugin_loader.h"

namespace atelier::conformance {

struct Finding {
  std::string check;  // "blocks: every block runs once and in order"
  bool passed = true;
  std::string detail;  // what was found where it failed; may hold a figure where it passed
};

// The door of a plugin's file: what note and family say, that it opens once, and that it exports
// one symbol.
void check_door(const plugins::Plugin& plugin, const std::function<void(const Finding&)>& report);

// Runs every check, in order, and hands each finding on as soon as it is known. What a check throws
// is its finding. Models compute on `device`.
void check_family(const ModelFamily& family, const std::function<void(const Finding&)>& report,
                  at::Device device = at::kCPU);

// Gives the findings as a list.
std::vector<Finding> check_family(const ModelFamily& family);

// Removes what suites that were killed left in the folder for temporary files.
void remove_abandoned_scratch();

}  // namespace atelier::conformance
