#include "host/plan/prepared_generation.h"

#include <ATen/DeviceAccelerator.h>

#include "atelier/error.h"
#include "atelier/host/device_graph.h"
#include "atelier/host/device_traits.h"

#include "host/generate/output_paths.h"
#include "host/generate/request.h"
#include "host/generate/settings_checks.h"
#include "host/model/sequence_check.h"
#include "host/model/stages.h"

namespace atelier::plan {
namespace {

using model::LoadedModel;

// Whether all weights of a model, and the largest images, fit into a GPU at once.
bool everything_fits(const LoadedModel& model) {
  if (model.is_simulated()) return false;
  if (model.device().is_cpu()) return true;
  constexpr double kWorkspaceBytes = 6e9;
  double weights = 0;
  for (const auto& part : model.parts()) weights += static_cast<double>(part.checkpoint.bytes());
  const auto [free, total] = at::accelerator::getMemoryInfo(model.device().index());
  return weights + kWorkspaceBytes < static_cast<double>(free);
}

}  // namespace

PreparedGeneration::PreparedGeneration(GenerationRequest request, progress::Progress& progress,
                                       report::Problems& problems)
    : request_(std::move(request)), progress_(progress) {
  const size_t before = problems.size();
  problems.collect([&] { check_limits(request_.limits); });
  const bool has_limits = problems.size() == before;
  if (request_.load && family() != nullptr) open_model(has_limits, problems);
  for (generate::Job& job : request_.jobs) check(job, problems);
  if (request_.expects_jobs && model_)
    problems.collect([&] {
      generate::check_sizes(filled_base(), *family(), model_->model().latent_spec(),
                            model_->stages().variant, {}, problems);
    });
}

void PreparedGeneration::open_model(bool has_limits, report::Problems& problems) {
  problems.collect([&] { model_ = LoadedModel::open(*family(), *request_.load); });
  if (!model_) return;
  if (has_limits) sizes_.emplace(*model_, *request_.load, request_.limits);
  lengths_.emplace(model_->model(), request_.load->cuts_texts);
  loras_.emplace(*model_, request_.lora_mode, progress_);
  problems.collect([&] { check_graphs(); });
  model::check_sequence(*model_, request_.shares.sequence, request_.attention, problems);
  if (request_.tiling)
    problems.collect([&] {
      generate::check_tiling(*request_.tiling, model_->model().latent_spec().spatial_stride);
    });
}

void PreparedGeneration::check_graphs() const {
  const bool is_elsewhere = !request_.limits.device_profile.empty();
  if (request_.cuda_graphs != memory::GraphChoice::kOn || is_elsewhere ||
      ops::make_graph_recorder(model_->device()) != nullptr)
    return;
  throw Error(ErrorCode::kInvalidArgument,
              "--cuda_graphs on: device " + model_->device().str() + " has no CUDA graphs",
              "leave it out");
}

generate::Settings PreparedGeneration::filled_base() const {
  generate::Settings base = request_.base;
  generate::fill_target(base, *model_);
  return base;
}

void PreparedGeneration::check(generate::Job& job, report::Problems& problems) {
  const size_t before = problems.size();
  problems.collect([&] {
    if (!model_) return;
    generate::fill_target(job.settings, *model_);
    generate::fill_from_folder(job.settings, *model_);
  });
  const bool has_target = problems.size() == before;
  const std::string_view variant = model_ ? model_->stages().variant : std::string_view();
  generate::check_settings(job.settings, family(), job.place, problems, variant);
  generate::check_output(job.settings, job.place, problems);
  if (family() != nullptr)
    generate::check_shares(request_.shares, job.settings, *family(), variant, job.place, problems);
  if (family() != nullptr) {
    for (const std::string& odd : generate::odd_images(job.settings, *family(), job.place))
      progress_.warn("warning: " + odd);
  }
  if (!model_ || !has_target) return;
  loras_->check(job.settings, job.place, problems);
  generate::check_against_model(job.settings, *family(), model_->model(), variant, job.place,
                                problems);
  generate::check_encoders(job.settings, *model_, job.place, problems);
  lengths_->check(job.settings, *family(), variant, job.place, problems);
  if (sizes_ && problems.size() == before)
    sizes_->check(job.settings, job.place, request_.tiling, /*may_tile=*/true, problems);
}

void PreparedGeneration::make_plan() {
  if (const std::string note = lengths_->note(); !note.empty()) progress_.note("note: " + note);
  GenerationAsked asked = {request_.jobs,   request_.expects_jobs, request_.cfg_batch,
                           request_.tiling, request_.prefetch,     request_.cuda_graphs};
  if (asked.jobs.empty()) asked.jobs.emplace_back().settings = filled_base();
  planned_ = plan_generation(*model_, *request_.load, request_.limits, asked, unplanned_);
}

void PreparedGeneration::follow_plan() {
  apply_limits(request_.limits, model_->device());
  if (!unplanned_.empty()) {
    progress_.warn("warning: no plan: " + unplanned_);
  } else if (sizes_) {
    sizes_->tell(progress_);
  }
  if (planned_) {
    note_plan(*planned_, progress_);
    apply_plan(planned_->result.plan, *request_.load);
    model_->rearrange(*request_.load);
  }
  for (const std::string& note : model_->notes()) progress_.note("note: " + note);
}

generate::SessionOptions PreparedGeneration::session_options() const {
  generate::SessionOptions options;
  options.tiling = request_.tiling;
  options.graph_rows =
      memory::graph_rows(request_.cuda_graphs, ops::compute_capability(model_->device()));
  if (planned_) options.batches_cfg = cfg_batch_of(*planned_);
  if (request_.cfg_batch) options.batches_cfg = *request_.cfg_batch;
  if (request_.keeps_components)
    options.keeps_all = planned_ ? everything_stays(*planned_) : everything_fits(*model_);
  return options;
}

}  // namespace atelier::plan
