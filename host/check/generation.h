// A generation, before its first weight is read: opened, and checked as a whole.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "host/check/size_guard.h"
#include "host/generate/lora_set.h"
#include "host/generate/text_lengths.h"
#include "host/order/generation.h"
#include "host/plan/plan_run.h"
#include "host/progress/progress.h"
#include "host/report/problems.h"

namespace atelier::check {

// Not thread-safe, but for check().
class OpenedGeneration {
 public:
  // Opens the model by its headers and checks all jobs; what is wrong becomes problems, after which
  // only the destructor may be called. `progress` outlives this.
  OpenedGeneration(order::Generation order, progress::Progress& progress,
                   report::Problems& problems);
  OpenedGeneration(const OpenedGeneration&) = delete;
  OpenedGeneration& operator=(const OpenedGeneration&) = delete;

  // Fills what a job leaves to the model, and adds what is wrong with it. Reads no weights. A
  // server's may be called from several threads, also while other jobs run.
  void check(order::Job& job, report::Problems& problems);

  // What was ordered; its jobs have what they left to the model.
  const order::Generation& order() const { return order_; }
  model::LoadedModel& model() { return *model_; }
  generate::LoraSet& loras() { return *loras_; }
  // What texts are cut to, for the user; empty: nothing.
  std::string note() const { return lengths_->note(); }
  // Jobs that a plan is made for: those that are known, or one that stands for those that come.
  std::vector<order::Job> planned_jobs() const;
  // See SizeGuard::unchecked().
  std::string unchecked() const { return sizes_ ? sizes_->unchecked() : std::string(); }

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
};

}  // namespace atelier::check
