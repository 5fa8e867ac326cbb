#include "host/train/run_state.h"

#include <algorithm>
#include <filesystem>

#include "atelier/error.h"
#include "atelier/plugin.h"

#include "formats/escape.h"
#include "host/distributed/handshake.h"
#include "host/parameters/shard_files.h"
#include "host/train/run_checks.h"

namespace atelier::train {

using order::Task;
using order::Training;
using parameters::Selection;
using parameters::ShardOwner;
using parameters::TrainedTensors;

namespace fs = std::filesystem;

namespace {

std::unique_ptr<optim::Optimizer> make_optimizer(TrainedTensors& trained, const Training& config) {
  const auto beside = trained.placement().allocate_beside();
  return optim::make_optimizer(trained.moved(), config.optimizer, trained.placement().sum());
}

// What the order of samples and their random numbers depend on.
std::string order_facts(const Training& config) {
  return c10::str("seed ", config.seed, " batch ", config.order.batch_size, " accumulation ",
                  config.order.gradient_accumulation_steps, " repeat ",
                  config.order.dataset_repeat);
}

}  // namespace

std::string find_weights_to_write(const run::SavedState& saved_state, const Selection& selection,
                                  const Training& config) {
  const std::string name = saved_state.facts.value("weights", "");
  if (name.empty()) return {};
  const std::string stem = (fs::path(config.output.output_path) / name).string();
  const auto files = parameters::weight_files(selection, stem);
  const bool are_there = std::all_of(files.begin(), files.end(), [](const auto& file) {
    std::error_code ignored;
    return fs::exists(file.path, ignored);
  });
  return are_there ? "" : name;
}

namespace {

// By component, whose turn it is when a step moves it; empty where every step moves all.
std::map<std::string, std::string> turns_of(const model::LoadedModel& model,
                                            const Selection& selection, const Training& config) {
  std::map<std::string, std::string> turns;
  const auto denoisers = parameters::running_denoisers(model, selection);
  if (denoisers.size() < 2 || config.task == Task::kDirectDistill) return turns;
  for (const std::string& component : parameters::running_components(model, selection)) {
    const std::string denoiser = parameters::denoiser_of(model, component);
    if (!denoiser.empty()) turns.emplace(component, denoiser);
  }
  return turns;
}

}  // namespace

RunState::RunState(const RunContext& context, Selection selection)
    : context_(context),
      trained_(context.model, std::move(selection), context.config, context.layout, context.group),
      optimizer_(make_optimizer(trained_, context.config)),
      fingerprint_(fingerprint_of(context.model, trained_.selection())) {
  if (const std::string note = trained_.placement().note(); !note.empty())
    context.progress.note(note);
  if (context.config.ema_decay <= 0) return;
  model::LoadedModel& model = context.model;
  const bool has_device = !model.device().is_cpu() || model.is_simulated();
  if (has_device && !trained_.placement().is_on_host()) {
    if (model.transfer() == nullptr) own_device_ = memory::make_transfer_device(model.device());
    ema_device_ = own_device_ ? own_device_.get() : model.transfer();
  }
  const memory::HostScope host;
  ema_.emplace(trained_.moved(), context.config.ema_decay, ema_device_,
               turns_of(model, trained_.selection(), context.config));
}

// A checkpoint that one process passes over is passed over by all: whoever is at an older one waits
// until the others are.
void RunState::agree_on(const run::SavedState& saved_state) const {
  while (context_.group) {
    int64_t least = saved_state.step, most = saved_state.step;
    for (const std::string& said : context_.group->gather_texts(std::to_string(saved_state.step))) {
      least = std::min<int64_t>(least, std::stoll(said));
      most = std::max<int64_t>(most, std::stoll(said));
    }
    if (least == most) return;
    if (saved_state.step > least)
      throw Error(ErrorCode::kEnvironment,
                  formats::quote_and_escape(saved_state.folder) + ": another rank cannot read it",
                  "see what that rank says");
  }
}

void RunState::resume(const run::SavedState& saved_state) {
  agree_on(saved_state);
  distributed::do_together(context_.group, [&] {
    const ShardOwner owner = trained_.placement().owner();
    trained_.load(
        parameters::read_part(saved_state, "trained", trained_.values(), trained_.shards(), owner));
    optimizer_->load_state(parameters::read_part(saved_state, "optimizer", optimizer_->state(),
                                                 optimizer_->shards(), owner));
    if (ema_)
      ema_->load_state(
          parameters::read_part(saved_state, "ema", ema_->state(), ema_->shards(), owner));
    return "";
  });
  if (!trained_.placement().has_wholes()) trained_.placement().publish();  // when all have read
  const nlohmann::json& facts = saved_state.facts;
  counters_ = {.step = saved_state.step,
               .epoch = facts.value("epoch", int64_t{0}),
               .skipped = facts.value("skipped_steps", int64_t{0}),
               .skipped_in_row = facts.value("skipped_in_row", int64_t{0})};
  saved_state_step_ = saved_state.step;
  for (const auto& [name, file] : saved_state.files) state_bytes_ += file.bytes;
  weights_to_write_ = find_weights_to_write(saved_state, trained_.selection(), context_.config);
  if (weights_to_write_.empty()) saved_weights_step_ = saved_state.step;
  const auto warn_unless = [&](const char* fact, const std::string& now, const char* what) {
    if (facts.value(fact, now) != now) context_.progress.warn(what);
  };
  warn_unless("dataset", context_.samples.fingerprint(),
              "the dataset or the encoders have changed since the checkpoint: the run goes on, and "
              "differs from one that was never interrupted");
  warn_unless(
      "order", order_facts(context_.config),
      "seed, batch size, accumulation or repeats are not those of the checkpoint: the order of "
      "samples goes on from the same step of another run");
  warn_unless("version", ATELIER_SDK_VERSION,
              "the checkpoint was written by another version: results may differ in the last bits");
}

void RunState::read_average() {
  if (ema_) ema_->read();
}

void RunState::leave_to_optimizer() {
  if (ema_) ema_->release();
}

void RunState::update_average(std::string_view denoiser) {
  if (!ema_) return;
  const memory::HostScope host;
  ema_->update(denoiser);
}

void RunState::swap_average() {
  if (!ema_) return;
  const memory::HostScope host;
  ema_->swap();
  trained_.placement().publish();
}

void RunState::show_average() {
  swap_average();
  trained_.set_training(false);
}

// What one process does with the averages may take longer than an exchange.
void RunState::hide_average() {
  if (shows_together()) context_.group->gather_texts("");
  trained_.set_training(true);
  swap_average();
}

distributed::Group* RunState::sharing() const {
  return trained_.placement().is_shared() ? context_.group : nullptr;
}

// `reserve`: bytes of the disk that stay free.
void RunState::save_weights(const std::string& name, uint64_t reserve) {
  run::RunFolder* const folder = context_.folder;  // null: of another process
  distributed::do_together(sharing(), [&] {
    if (folder)
      folder->require_space("saving the weights " + name +
                                (reserve > 0 ? " and leaving room for the next checkpoint" : ""),
                            trained_.saved_bytes() + reserve);
    return "";
  });
  // Weights come to the one that writes them as fast as its disk takes them.
  const distributed::TimeoutExtension patience(sharing());
  distributed::do_together(sharing(), [&] {
    with_average([&] {
      if (!folder && !trained_.save_together()) return;
      const std::string stem = (fs::path(context_.config.output.output_path) / name).string();
      for (const std::string& file :
           trained_.save(stem, counters_.step, counters_.epoch, /*writes=*/folder != nullptr))
        context_.progress.note(file);
    });
    return "";
  });
  saved_weights_step_ = counters_.step;
  const int64_t keep = context_.config.output.weights_total_limit;
  if (keep > 0 && folder) folder->remove_old_weights(keep);
}

// What this process has of the state.
run::SavedStateFiles RunState::files_to_save() const {
  run::SavedStateFiles files;
  const ShardOwner owner = trained_.placement().owner();
  if (context_.folder) files.texts["config.toml"] = context_.config.effective_toml;
  if (!trained_.placement().has_wholes()) {
    parameters::add_part(files, "trained", trained_.values(), trained_.shards(), owner);
  } else if (context_.folder) {
    files.tensors["trained.safetensors"] = trained_.values();
  }
  parameters::add_part(files, "optimizer", optimizer_->state(), optimizer_->shards(), owner);
  if (ema_) parameters::add_part(files, "ema", ema_->state(), ema_->shards(), owner);
  return files;
}

// `name`: of the weights that belong to it.
void RunState::save_state(const std::string& name) {
  const nlohmann::json facts = {{"epoch", counters_.epoch},
                                {"weights", name},
                                {"order", order_facts(context_.config)},
                                {"model", fingerprint_},
                                {"skipped_steps", counters_.skipped},
                                {"skipped_in_row", counters_.skipped_in_row},
                                {"dataset", context_.samples.fingerprint()},
                                {"family", context_.model.family().name()},
                                {"version", ATELIER_SDK_VERSION}};
  const run::SavedStateFiles files = files_to_save();
  const auto together = [&](const auto& work) { return distributed::do_together(sharing(), work); };
  state_bytes_ = 0;
  for (const std::string& bytes :
       together([&] { return std::to_string(run::bytes_needed(files, facts)); }))
    state_bytes_ += std::stoull(bytes);
  run::RunFolder* const folder = context_.folder;
  const std::string aside = together([&] {
                              return folder ? folder->begin_save(counters_.step, state_bytes_) : "";
                            }).front();
  try {
    run::StateFiles written;
    for (const std::string& said :
         together([&] { return run::to_text(run::write_files(aside, files)); }))
      written.merge(run::files_of_text(said));
    together([&] {
      if (folder)
        folder->commit_save(aside, counters_.step, written, facts,
                            context_.config.output.checkpoints_total_limit);
      return "";
    });
  } catch (...) {
    if (folder) run::discard(aside);
    throw;
  }
  saved_state_step_ = counters_.step;
}

// The state comes first, and weights leave room for the next one: from a state, weights can be
// written again. Where processes have left all exchanges, those that come from several are.
void RunState::save(const std::string& name, bool is_last) {
  if (counters_.step == 0 || (context_.folder == nullptr && sharing() == nullptr)) return;
  std::optional<Error> failed;
  const auto attempt = [&](const auto& save) {
    try {
      save();
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kEnvironment) throw;
      if (!is_last) context_.progress.warn("not saved: " + std::string(error.what()));
      if (!failed) failed = error;
    }
  };
  const bool leaves_weights = context_.group && context_.group->is_called_off() &&
                              (trained_.save_together() || shows_together());
  if ((context_.config.output.save_state || leaves_weights) && saved_state_step_ != counters_.step)
    attempt([&] { save_state(name); });
  if (saved_weights_step_ != counters_.step && leaves_weights) {
    context_.progress.warn("the weights of " + name +
                           " are not written: --resume writes them from the checkpoint");
  } else if (saved_weights_step_ != counters_.step) {
    attempt([&] { save_weights(name, is_last ? 0 : state_bytes_); });
  }
  if (failed && is_last) throw Error(*failed);
}

}  // namespace atelier::train
