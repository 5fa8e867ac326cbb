// Writes the tiny model of a plugin with random weights:
//
//   write_model PLUGIN FOLDER
#include <iostream>

#include "atelier/error.h"

#include "host/plugins/plugin_loader.h"
#include "random_model.h"

using namespace atelier;

int main(int count, char** arguments) {
  if (count != 3) return 2;
  try {
    test::write_model(*plugins::open_plugin(arguments[1], "").family, arguments[2]);
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
