#include "host/optim/optimizer.h"

#include <algorithm>
#include <cmath>

#include <c10/util/accumulate.h>

#include "atelier/error.h"

#include "host/optim/optimizer_base.h"

namespace atelier::optim {

Optimizer::~Optimizer() = default;

int64_t Parameter::whole_numel() const {
  return shard ? c10::multiply_integers(shard->whole_sizes) : leaf.numel();
}

bool moves_shards(Kind kind) {
  return kind != Kind::kAdafactor;  // which has rows and columns of whole matrices
}

void Optimizer::step_part(std::span<const size_t>, double, const at::Tensor&, const at::Tensor&) {
  throw Error(ErrorCode::kInternal, "optimizer: its steps have no parts");
}

void check_options(const Options& options) {
  const auto check = [](bool is_right, const std::string& what) {
    if (!is_right) throw Error(ErrorCode::kInvalidArgument, "optimizer: " + what);
  };
  const auto is_decay = [](double value) { return value >= 0 && value < 1; };
  const auto is_positive = [](double value) { return std::isfinite(value) && value > 0; };
  check(is_decay(options.beta1), "beta1 is not in [0, 1)");
  check(is_decay(options.beta2), "beta2 is not in [0, 1)");
  check(is_positive(options.eps), "eps is not above 0");
  if (options.kind == Kind::kAdafactor) {
    check(is_positive(options.clip_threshold), "clip_threshold is not above 0");
    check(std::isfinite(options.decay_rate) && options.decay_rate < 0, "decay_rate is not below 0");
    check(is_positive(options.adafactor_eps1), "eps1 is not above 0");
    check(is_positive(options.adafactor_eps2), "eps2 is not above 0");
  }
  if (options.kind == Kind::kProdigy) {
    check(is_positive(options.prodigy_d0), "d0 is not above 0");
    check(is_positive(options.prodigy_d_coef), "d_coef is not above 0");
    check(is_decay(options.prodigy_beta3.value_or(0)), "beta3 is not in [0, 1)");
  }
}

std::unique_ptr<Optimizer> make_optimizer(std::vector<Group> groups, const Options& options,
                                          Sum sum) {
  check_options(options);
  const auto is_cut = [](const Group& group) {
    return std::ranges::any_of(
        group.parameters, [](const Parameter& parameter) { return parameter.shard.has_value(); });
  };
  if (!moves_shards(options.kind) && std::ranges::any_of(groups, is_cut))
    throw Error(ErrorCode::kUnsupported, "optimizer: it needs whole tensors");
  switch (options.kind) {
    case Kind::kAdamW:
    case Kind::kAdamW8bit:
      return make_adamw(groups, options);
    case Kind::kAdafactor:
      return make_adafactor(groups, options);
    case Kind::kProdigy:
      return make_prodigy(groups, options, std::move(sum));
  }
  throw Error(ErrorCode::kInternal, "optimizer: unknown kind");
}

}  // namespace atelier::optim
