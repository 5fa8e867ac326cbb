#include "host/optim/optimizer.h"

#include "atelier/error.h"

#include "host/optim/optimizer_base.h"

namespace atelier::optim {

Optimizer::~Optimizer() = default;

std::unique_ptr<Optimizer> make_optimizer(std::vector<Group> groups, const Options& options) {
  switch (options.kind) {
    case Kind::kAdamW:
    case Kind::kAdamW8bit:
      return make_adamw(groups, options);
    case Kind::kAdafactor:
      return make_adafactor(groups, options);
    case Kind::kProdigy:
      return make_prodigy(groups, options);
  }
  throw Error(ErrorCode::kInternal, "optimizer: unknown kind");
}

}  // namespace atelier::optim
