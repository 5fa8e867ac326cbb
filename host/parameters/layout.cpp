#include "host/parameters/layout.h"

namespace atelier::parameters {

Layout unplanned_layout(const order::Training& order) {
  return {.weights = {order.model.placement, order.model.storage},
          .use_gradient_checkpointing = order.use_gradient_checkpointing,
          .activation_budget = order.activation_budget,
          .optimizes_on_host = order.offload.optimizer};
}

}  // namespace atelier::parameters
