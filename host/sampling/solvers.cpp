#include "host/sampling/solvers.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "atelier/error.h"

#include "formats/escape.h"
#include "host/report/problems.h"

namespace atelier::sampling {
namespace {

// Half the logarithm of the signal-to-noise ratio: -inf at 1 (noise), inf at 0 (clean).
double half_log_snr(double sigma) {
  return std::log1p(-sigma) - std::log(sigma);
}

// Where a solver is. Coefficients are made on the host in double precision, out of these.
class Levels {
 public:
  Levels(std::span<const float> sigmas, double highest) {
    for (const float sigma : sigmas) sigmas_.push_back(std::min<double>(sigma, highest));
  }

  bool is_first() const { return step_ == 0; }
  // There is nothing to look back at, levels coincide, or what follows is clean.
  bool is_first_order() const {
    return is_first() || step_ + 2 == std::ssize(sigmas_) || distance(-1, 0) == 0.0;
  }
  void advance() { ++step_; }

  // Counted from the level that the step begins at: 1 is the one it ends at.
  double sigma(int64_t offset) const { return sigmas_.at(static_cast<size_t>(step_ + offset)); }
  double distance(int64_t from, int64_t to) const {
    if (sigma(from) == sigma(to)) return 0.0;
    return half_log_snr(sigma(to)) - half_log_snr(sigma(from));
  }

 private:
  std::vector<double> sigmas_;
  int64_t step_ = 0;
};

// x' = x + (sigma' - sigma) v.
class Euler final : public Solver {
 public:
  Euler(std::span<const float> sigmas, const at::Tensor&) : levels_(sigmas, 1.0) {}

  void step(at::Tensor& x, const at::Tensor& v) override {
    x.add_(v, levels_.sigma(1) - levels_.sigma(0));
    levels_.advance();
  }
  void visit(const std::function<void(at::Tensor&)>&) override {}

 private:
  Levels levels_;
};

// DPM-Solver++ of order 2, multistep, midpoint (arXiv 2211.01095): its first and last steps are of
// order 1.
class DpmPlusPlus final : public Solver {
 public:
  DpmPlusPlus(std::span<const float> sigmas, const at::Tensor& like)
      : levels_(sigmas, 1.0), now_(at::empty_like(like)), before_(at::empty_like(like)) {}

  void step(at::Tensor& x, const at::Tensor& v) override {
    at::sub_out(now_, x, v, levels_.sigma(0));
    const double h = levels_.distance(0, 1);
    const double gain = (levels_.sigma(1) - 1.0) * std::expm1(-h);
    x.mul_(levels_.sigma(1) / levels_.sigma(0));
    if (levels_.is_first_order()) {
      x.add_(now_, gain);
    } else {
      const double share = 0.5 * h / levels_.distance(-1, 0);
      x.add_(now_, gain * (1.0 + share)).add_(before_, -gain * share);
    }
    std::swap(now_, before_);
    levels_.advance();
  }
  void visit(const std::function<void(at::Tensor&)>& visit) override {
    for (at::Tensor* const tensor : {&now_, &before_}) visit(*tensor);
  }

 private:
  Levels levels_;
  at::Tensor now_, before_;  // clean latents of this step and the one before
};

// UniPC of order 2, B(h) = e^h - 1, predicting clean latents (arXiv 2302.04867): each step first
// corrects the latents that it is given, by what the velocity there says. The last step and the
// first one predict in order 1, and what a step of order 1 predicted is corrected so.
class UniPc final : public Solver {
 public:
  // Pure noise has no signal to take the logarithm of: it counts as the level beside it, as in
  // diffusers.
  UniPc(std::span<const float> sigmas, const at::Tensor& like)
      : levels_(sigmas, 0.999999F),
        now_(at::empty_like(like)),
        before_(at::empty_like(like)),
        oldest_(at::empty_like(like)),
        corrected_(at::empty_like(like)) {}

  void step(at::Tensor& x, const at::Tensor& v) override {
    at::sub_out(now_, x, v, levels_.sigma(0));
    if (levels_.is_first()) {
      corrected_.copy_(x);
    } else {
      correct();
    }
    x.copy_(corrected_);
    predict(x);
    std::swap(before_, oldest_);
    std::swap(now_, before_);
    levels_.advance();
  }
  void visit(const std::function<void(at::Tensor&)>& visit) override {
    for (at::Tensor* const tensor : {&now_, &before_, &oldest_, &corrected_}) visit(*tensor);
  }

 private:
  // Makes the latents at this level anew from those of the level before.
  void correct() {
    const double h = levels_.distance(-1, 0), phi = std::expm1(-h);
    const double gain = (levels_.sigma(0) - 1.0) * phi;
    if (h == 0.0) return;
    corrected_.mul_(levels_.sigma(0) / levels_.sigma(-1));
    if (!is_second_order_) {
      corrected_.add_(before_, 0.5 * gain).add_(now_, 0.5 * gain);
      return;
    }
    const double r = levels_.distance(-1, -2) / h;
    const double b1 = (phi / -h - 1.0) / phi;
    const double b2 = 2.0 * ((phi / -h - 1.0) / -h - 0.5) / phi;
    const double older = (b1 - b2) / (1.0 - r), newer = b1 - older;
    corrected_.add_(before_, gain * (1.0 - older / r - newer))
        .add_(oldest_, gain * older / r)
        .add_(now_, gain * newer);
  }

  // Takes the latents of this level to the next.
  void predict(at::Tensor& x) {
    is_second_order_ = !levels_.is_first_order();
    const double h = levels_.distance(0, 1);
    const double gain = (levels_.sigma(1) - 1.0) * std::expm1(-h);
    x.mul_(levels_.sigma(1) / levels_.sigma(0));
    if (!is_second_order_) {
      x.add_(now_, gain);
      return;
    }
    const double share = 0.5 * h / levels_.distance(0, -1);
    x.add_(now_, gain * (1.0 - share)).add_(before_, gain * share);
  }

  Levels levels_;
  at::Tensor now_, before_, oldest_;  // clean latents of this step and the two before
  at::Tensor corrected_;              // latents of the step that was made last
  bool is_second_order_ = false;      // that step predicted so
};

template <typename T>
std::unique_ptr<Solver> make(std::span<const float> sigmas, const at::Tensor& like) {
  return std::make_unique<T>(sigmas, like);
}

constexpr std::array<SolverSpec, 3> kSolvers = {{
    {"euler", "Euler", "straight on along the velocity", make<Euler>},
    {"unipc", "UniPC", "order 2, each step corrects the one before", make<UniPc>},
    {"dpm++", "DPM++ 2M", "DPM-Solver++ of order 2, multistep", make<DpmPlusPlus>},
}};

}  // namespace

std::span<const SolverSpec> solvers() {
  return kSolvers;
}

const SolverSpec& find_solver(std::string_view name, std::span<const SolverSpec> own) {
  std::vector<std::string> known;
  for (const auto& table : {solvers(), own}) {
    for (const SolverSpec& solver : table) {
      if (solver.name == name) return solver;
      known.emplace_back(solver.name);
    }
  }
  const std::string nearest = report::nearest_name(name, known);
  throw Error(ErrorCode::kNotFound,
              "there is no solver " + formats::quote_and_escape(name) + ", there are " +
                  report::list_names(known),
              nearest.empty() ? "choose one of them" : "did you mean " + nearest + "?");
}

}  // namespace atelier::sampling
