// Sizes that cannot be, however a run is planned: refused before anything is loaded.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "host/data/dataset.h"
#include "host/generate/tiling.h"
#include "host/model/model_loader.h"
#include "host/order/settings.h"
#include "host/order/training.h"
#include "host/parameters/selection.h"
#include "host/plan/planning.h"
#include "host/progress/progress.h"
#include "host/report/problems.h"

namespace atelier::check {

// What a piece of work holds beside weights, over the pixels that it works on, at the least: it was
// tried at a few sizes without values, and grows from one to the next ever faster.
class BytesOfSize {
 public:
  // Adds a size of more pixels than those before.
  void add(double pixels, double bytes) { tried_.emplace_back(pixels, bytes); }
  double at(double pixels) const;  // 0 of fewer than were tried

 private:
  std::vector<std::pair<double, double>> tried_;
};

// Knows the least that images of any size take, and what there is. Small ones are never refused.
// What it lets through may still not fit; what it refuses cannot. Immutable once it is made.
class SizeGuard {
 public:
  // Runs the model without values; of nothing in it a weight is loaded. Where it cannot be run so,
  // nothing is refused.
  SizeGuard(model::LoadedModel& model, const model::MemoryLimits& limits);

  // Why sizes were not checked, where a limit was said or the device is not the host; empty: they
  // were, or need not be.
  std::string unchecked() const { return has_said_ || !is_host_ ? unchecked_ : std::string(); }

  // Adds a problem where images of these settings cannot be made. `may_tile`: there is --tiled.
  void check(const order::Settings& settings, const order::Origin& place,
             const std::optional<order::Tiling>& tiling, bool may_tile,
             report::Problems& problems) const;

  // Checks rows that are encoded, or looked at without being trained on. `options` names the flags.
  void check(const data::Dataset& dataset, report::Problems& problems) const;
  // Checks rows that are trained on.
  void check(const data::Dataset& dataset, const order::Training& config,
             const parameters::Selection& selection, report::Problems& problems);

 private:
  struct Limit {
    double bytes = 0.0;
    std::string text;  // "the host has 21.3 GiB free"
  };
  struct Need {
    std::string what;  // "to decode"
    double bytes = 0.0;
  };
  struct Size {
    int64_t height = 0, width = 0;
    int64_t latent_frames = 1;
    // Pixels of one frame: frames are encoded, decoded and handed on one after another.
    double pixels() const { return static_cast<double>(height) * static_cast<double>(width); }
    // The pixels of one image that has as many latents as all frames.
    double latent_pixels() const { return pixels() * static_cast<double>(latent_frames); }
  };

  void find_limits(const model::MemoryLimits& limits);
  void measure();
  Size size_of(const MediaTarget& target) const;
  // Makes a dry run. Returns whether it came to its end.
  bool try_dry_run(const std::function<void()>& run);
  Need most_of(const order::Settings& settings, const Size& size,
               const std::optional<order::Tiling>& tiling) const;
  // The largest size of that shape for which `need` is within the limit; empty: none is.
  template <typename F>
  std::string size_that_fits(const Size& size, const F& need) const;
  // What helps beside a smaller size, or where no size does, in its place.
  struct Remedy {
    std::string flags;
    bool is_size_in_vain = false;
  };
  template <typename F>
  void refuse_largest(const data::Dataset& dataset, const std::string& work, const F& need,
                      report::Problems& problems, const Remedy& remedy) const;

  model::LoadedModel& model_;
  plan::PlanBasis basis_;
  Limit device_, host_;
  bool is_host_ = false;   // the device's memory is the host's
  bool has_said_ = false;  // a limit was said
  std::string unchecked_;  // why sizes are not checked; empty: they are
  // By kind of work: "encode an image", "denoise", "decode", "train".
  std::map<std::string, BytesOfSize, std::less<>> work_;
};

}  // namespace atelier::check
