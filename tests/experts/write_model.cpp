// Writes the tiny model of a plugin with random weights; of denoisers, as many blocks as are asked
// for:
//
//   write_model PLUGIN FOLDER [BLOCKS]
#include <algorithm>
#include <iostream>

#include "atelier/error.h"

#include "host/plugins/plugin_loader.h"
#include "random_model.h"

using namespace atelier;

int main(int count, char** arguments) {
  if (count != 3 && count != 4) return 2;
  try {
    const ModelFamily& family = *plugins::open_plugin(arguments[1], "").family;
    std::vector<Detection> parts = family.tiny_parts();
    for (Detection& part : parts) {
      const bool is_denoiser =
          std::ranges::any_of(family.components(), [&](const ComponentSpec& component) {
            return component.name == part.component && component.role == Role::kDenoiser;
          });
      if (is_denoiser && count == 4) part.config["layers"] = int64_t{std::stoll(arguments[3])};
    }
    test::write_model(family, arguments[2], parts);
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
