#include "host/plan/prepared_generation.h"

#include "atelier/error.h"

#include "host/generate/fill_settings.h"
#include "host/generate/settings_checks.h"
#include "host/model/sequence_check.h"
#include "host/model/stages.h"
#include "host/order/output_paths.h"

namespace atelier::plan {

using model::LoadedModel;

PreparedGeneration::PreparedGeneration(order::Generation order, progress::Progress& progress,
                                       report::Problems& problems)
    : order_(std::move(order)), progress_(progress) {
  if (order_.load && order_.family() != nullptr) open_model(problems);
  for (order::Job& job : order_.jobs) check(job, problems);
  if (order_.reads_stdin() && model_)
    problems.collect([&] {
      generate::check_sizes(filled_base(), *order_.family(), model_->model().latent_spec(),
                            model_->stages().variant, {}, problems);
    });
}

void PreparedGeneration::open_model(report::Problems& problems) {
  problems.collect([&] { model_ = LoadedModel::open(*order_.family(), *order_.load); });
  if (!model_) return;
  sizes_.emplace(*model_, *order_.load, order_.limits);
  lengths_.emplace(model_->model(), order_.load->cuts_texts);
  loras_.emplace(*model_, order_.lora_mode, progress_);
  problems.collect([&] { layout(); });
  model::check_sequence(*model_, order_.processes.sequence, order_.process.attention, problems);
  if (order_.is_tiled)
    problems.collect([&] {
      generate::check_tiling(order_.tiles, model_->model().latent_spec().spatial_stride);
    });
}

order::Settings PreparedGeneration::filled_base() const {
  order::Settings base = order_.base;
  generate::fill_target(base, *model_);
  return base;
}

void PreparedGeneration::check(order::Job& job, report::Problems& problems) {
  const size_t before = problems.size();
  problems.collect([&] {
    if (!model_) return;
    generate::fill_target(job.settings, *model_);
    generate::fill_from_folder(job.settings, *model_);
  });
  const bool has_target = problems.size() == before;
  const std::string_view variant = model_ ? model_->stages().variant : std::string_view();
  generate::check_settings(job.settings, order_.family(), job.place, problems, variant);
  order::check_output(job.settings, job.place, problems);
  if (order_.family() != nullptr)
    generate::check_shares(order_.processes, job.settings, *order_.family(), variant, job.place,
                           problems);
  if (order_.family() != nullptr) {
    for (const std::string& odd : generate::odd_images(job.settings, *order_.family(), job.place))
      progress_.warn("warning: " + odd);
  }
  if (!model_ || !has_target) return;
  loras_->check(job.settings, job.place, problems);
  generate::check_against_model(job.settings, *order_.family(), model_->model(), variant, job.place,
                                problems);
  generate::check_encoders(job.settings, *model_, job.place, problems);
  lengths_->check(job.settings, *order_.family(), variant, job.place, problems);
  if (sizes_ && problems.size() == before)
    sizes_->check(job.settings, job.place, order_.tiling(), /*may_tile=*/true, problems);
}

void PreparedGeneration::make_plan() {
  if (const std::string note = lengths_->note(); !note.empty()) progress_.note("note: " + note);
  std::span<const order::Job> jobs = order_.jobs;
  order::Job later;  // stands for those that come
  if (jobs.empty()) {
    later.settings = filled_base();
    jobs = {&later, 1};
  }
  planned_ = plan_generation(*model_, order_, jobs, unplanned_);
}

void PreparedGeneration::follow_plan() {
  apply_limits(order_.limits, model_->device());
  if (!unplanned_.empty()) {
    progress_.warn("warning: no plan: " + unplanned_);
  } else if (sizes_) {
    sizes_->tell(progress_);
  }
  if (planned_) {
    note_plan(*planned_, progress_);
    model_->rearrange(layout().weights);
  }
  for (const std::string& note : model_->notes()) progress_.note("note: " + note);
}

}  // namespace atelier::plan
