#include "host/serve/session_maker.h"

#include <ATen/ATen.h>

#include "host/plugins/guard.h"

namespace atelier::serve {

void SessionMaker::check_device() {
  plugins::guard("the device " + model_.device().str(), [&] {
    return at::ones({1}, at::TensorOptions().device(model_.device())).item<float>();
  });
}

}  // namespace atelier::serve
