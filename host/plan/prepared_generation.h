// A run that makes images, before its first weight is read: checked as a whole, and planned.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "host/generate/lora_set.h"
#include "host/generate/picture_ranks.h"
#include "host/generate/session.h"
#include "host/generate/text_lengths.h"
#include "host/plan/plan_run.h"
#include "host/plan/size_guard.h"
#include "host/plugins/plugin_loader.h"
#include "host/progress/progress.h"
#include "host/report/problems.h"

namespace atelier::plan {

struct GenerationRequest {
  const plugins::Plugin* plugin = nullptr;      // null: not known, which is a problem already
  std::optional<model::LoadRequest> load = {};  // nullopt: its flags are malformed, the same
  MemoryLimits limits = {};
  generate::Settings base = {};          // what jobs that come later leave out
  std::vector<generate::Job> jobs = {};  // that are known
  bool expects_jobs = false;             // others come later
  // Components stay beside each other from one job to the next, where there is room.
  bool keeps_components = false;
  lora::Mode lora_mode = lora::Mode::kHot;
  std::optional<generate::Tiling> tiling = {};  // of the VAE
  // nullopt: the user did not say, and a plan may choose.
  std::optional<bool> cfg_batch = {};
  std::optional<int64_t> prefetch = {};
  memory::GraphChoice cuda_graphs = memory::GraphChoice::kAuto;
  generate::PictureShares shares = {};
  ops::AttentionBackend attention = ops::AttentionBackend::kAuto;  // as the user said
};

// Not thread-safe.
class PreparedGeneration {
 public:
  // Opens the model by its headers and checks all jobs; what is wrong becomes problems, after which
  // only the destructor may be called. `progress` outlives this.
  PreparedGeneration(GenerationRequest request, progress::Progress& progress,
                     report::Problems& problems);
  PreparedGeneration(const PreparedGeneration&) = delete;
  PreparedGeneration& operator=(const PreparedGeneration&) = delete;

  // Fills what a job leaves to the model, and adds what is wrong with it. Reads no weights; also
  // for jobs that come while others have run.
  void check(generate::Job& job, report::Problems& problems);

  // Plans what the run takes. Throws as plan_generation().
  void make_plan();
  const std::optional<Planned>& planned() const { return planned_; }
  // Why there is no plan; empty where none is needed.
  const std::string& unplanned() const { return unplanned_; }
  // Places the model as it was planned, and tells what that means.
  void follow_plan();

  // What was asked for; its jobs have what they left to the model.
  const GenerationRequest& request() const { return request_; }
  model::LoadedModel& model() { return *model_; }
  generate::LoraSet& loras() { return *loras_; }
  // What request and plan say of a session; the rest has its presets.
  generate::SessionOptions session_options() const;

 private:
  const ModelFamily* family() const { return request_.plugin ? request_.plugin->family : nullptr; }
  void open_model(bool has_limits, report::Problems& problems);
  // What jobs that come later leave out, with what that leaves to the model.
  generate::Settings filled_base() const;
  void check_graphs() const;

  GenerationRequest request_;
  progress::Progress& progress_;
  std::unique_ptr<model::LoadedModel> model_;
  std::optional<SizeGuard> sizes_;
  std::optional<generate::TextLengths> lengths_;
  std::optional<generate::LoraSet> loras_;
  std::optional<Planned> planned_;
  std::string unplanned_;
};

}  // namespace atelier::plan
