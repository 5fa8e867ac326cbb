#include "host/check/generation.h"

#include "atelier/error.h"

#include "host/generate/fill_settings.h"
#include "host/generate/settings_checks.h"
#include "host/model/sequence_check.h"
#include "host/model/stages.h"
#include "host/order/output_paths.h"

namespace atelier::check {

using model::LoadedModel;

OpenedGeneration::OpenedGeneration(order::Generation order, progress::Progress& progress,
                                   report::Problems& problems)
    : order_(std::move(order)), progress_(progress) {
  if (order_.load && order_.family() != nullptr) open_model(problems);
  for (order::Job& job : order_.jobs) check(job, problems);
  if (order_.has_later_jobs() && model_)
    problems.collect([&] {
      if (!generate::check_said_target(order_.base, {}, problems)) return;
      generate::check_sizes(filled_base(), *order_.family(), model_->model(),
                            model_->stages().variant, {}, problems);
    });
}

void OpenedGeneration::open_model(report::Problems& problems) {
  problems.collect([&] { model_ = LoadedModel::open(*order_.family(), *order_.load); });
  if (!model_) return;
  const std::string order = model::told_by_order(*order_.family(), model_->parts());
  if (!order.empty()) progress_.note("note: " + order);
  sizes_.emplace(*model_, order_.limits);
  lengths_.emplace(model_->model(), order_.load->cuts_texts);
  loras_.emplace(*model_, order_.lora_mode, progress_);
  if (order_.is_served) problems.collect([&] { loras_->prepare(); });
  problems.collect([&] { generate::unplanned_layout(order_, *model_); });
  model::check_sequence(*model_, order_.processes.sequence, order_.process.attention, problems);
  if (order_.is_tiled)
    problems.collect([&] {
      generate::check_tiling(order_.tiles, model_->model().latent_spec().spatial_stride);
    });
}

order::Settings OpenedGeneration::filled_base() const {
  order::Settings base = order_.base;
  generate::fill_target(base, *model_);
  return base;
}

void OpenedGeneration::check(order::Job& job, report::Problems& problems) {
  const size_t before = problems.size();
  const bool has_sizes = generate::check_said_target(job.settings, job.place, problems);
  problems.collect([&] {
    if (!model_ || !has_sizes) return;
    generate::fill_target(job.settings, *model_, job.place);
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
  generate::check_form(job.settings, *model_, job.place, problems);
  generate::check_encoders(job.settings, *model_, job.place, problems);
  lengths_->check(job.settings, *order_.family(), variant, job.place, problems);
  if (sizes_ && problems.size() == before)
    sizes_->check(job.settings, job.place, order_.tiling(), /*may_tile=*/true, problems);
}

std::vector<order::Job> OpenedGeneration::planned_jobs() const {
  if (!order_.jobs.empty()) return order_.jobs;
  order::Job later;  // stands for those that come
  later.settings = filled_base();
  return {later};
}

}  // namespace atelier::check
