// A run that makes images, before its first weight is read: checked as a whole, and planned.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "host/generate/lora_set.h"
#include "host/generate/text_lengths.h"
#include "host/order/generation.h"
#include "host/plan/plan_run.h"
#include "host/plan/size_guard.h"
#include "host/progress/progress.h"
#include "host/report/problems.h"

namespace atelier::plan {

// Not thread-safe.
class PreparedGeneration {
 public:
  // Opens the model by its headers and checks all jobs; what is wrong becomes problems, after which
  // only the destructor may be called. `progress` outlives this.
  PreparedGeneration(order::Generation order, progress::Progress& progress,
                     report::Problems& problems);
  PreparedGeneration(const PreparedGeneration&) = delete;
  PreparedGeneration& operator=(const PreparedGeneration&) = delete;

  // Fills what a job leaves to the model, and adds what is wrong with it. Reads no weights; also
  // for jobs that come while others have run.
  void check(order::Job& job, report::Problems& problems);

  // Plans what the run takes. Throws as plan_generation().
  void make_plan();
  const std::optional<Planned>& planned() const { return planned_; }
  // Why there is no plan; empty where none is needed.
  const std::string& unplanned() const { return unplanned_; }
  // Places the model as it was planned, and tells what that means.
  void follow_plan();

  // What was ordered; its jobs have what they left to the model.
  const order::Generation& order() const { return order_; }
  model::LoadedModel& model() { return *model_; }
  generate::LoraSet& loras() { return *loras_; }
  // How the order is carried out, as far as make_plan() was called. Throws Error{kInvalidArgument}
  // for what the device does not have.
  generate::Layout layout() const { return layout_of(order_, *model_, planned_); }

 private:
  void open_model(report::Problems& problems);
  // What jobs that come later leave out, with what that leaves to the model.
  order::Settings filled_base() const;

  order::Generation order_;
  progress::Progress& progress_;
  std::unique_ptr<model::LoadedModel> model_;
  std::optional<SizeGuard> sizes_;
  std::optional<generate::TextLengths> lengths_;
  std::optional<generate::LoraSet> loras_;
  std::optional<Planned> planned_;
  std::string unplanned_;
};

}  // namespace atelier::plan
