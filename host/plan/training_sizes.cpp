// The phases of a training: encode what is cached, train, and make images on the way.
#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "atelier/host/weight_state.h"

#include "host/generate/request.h"
#include "host/model/components.h"
#include "host/model/sequence_check.h"
#include "host/model/stages.h"
#include "host/parameters/exchange_plan.h"
#include "host/plan/activation_strategies.h"
#include "host/plan/dry_exchange.h"
#include "host/plan/dry_generation.h"
#include "host/plan/phases.h"
#include "host/plan/run_basis.h"
#include "host/report/text.h"
#include "host/train/objective.h"

namespace atelier::plan {
namespace {

using at::Tensor;
using memory::ActivationBudget;
using memory::PlannedPhase;
using memory::Strategy;
using model::LoadedModel;

constexpr int64_t kUnknownTokens = 256;  // of a text that is not there to be counted
// Bytes a second that an optimizer on the host reads and writes.
constexpr double kHostBytesPerSecond = 20e9;

// The steps of a whole run, however many they are.
double count_steps(const order::Training& config, int64_t samples) {
  if (config.max_train_steps) return static_cast<double>(*config.max_train_steps);
  const data::OrderOptions& order = config.order;
  const double in_a_step =
      std::max(1.0, static_cast<double>(order.batch_size) *
                        static_cast<double>(order.gradient_accumulation_steps));
  const double seen = static_cast<double>(samples) * static_cast<double>(order.dataset_repeat);
  return static_cast<double>(config.num_epochs) * std::max(1.0, std::floor(seen / in_a_step));
}

class TrainingSizes {
 public:
  TrainingSizes(LoadedModel& model, const TrainingBasis& training, const PlanBasis& basis)
      : model_(model),
        training_(training),
        basis_(basis),
        stages_(model.stages()),
        cached_(samples::cached_stages(model.family(), stages_.encoding,
                                       training.config->trained_names())),
        preview_(preview_of(model, training.prompts)),
        dry_(model, basis.like, basis.counts_scratch),
        encoded_(training.encoded) {}

  // `links`: null where what ranks exchange is not asked for.
  SizedRun sized(const RankMode& mode, const memory::LinkProfile* links) {
    measure_passes();
    mode_ = mode;
    links_ = links;
    SizedRun sized;
    sized.main_phase = "train";
    sized.on_host = mode.on_host || sends_away_trained();
    sized.batch_size = training_.config->order.batch_size;
    sized.run = size_components(model_, basis_, /*prepares_levels=*/false);
    for (memory::PlannedComponent& component : sized.run.components) {
      if (is_sharded(component)) shard_blocks(component, mode_, *links_);
      if (trains_weights_of(component.name)) limit_trained(component);
      if (component.shards == 1 && !trains_weights_of(component.name))
        component.host_sharers = links_ != nullptr
                                     ? static_cast<int>(mode_.ranks_of_machine(*links_))
                                     : training_.config->ranks.local_size;
    }
    sized.run.phases = encoding_;
    for (PlannedPhase& phase : sized.run.phases)
      phase.passes = std::ceil(phase.passes / static_cast<double>(mode_.ranks));
    if (training_.config->stage == order::Stage::kDataProcess) return sized;
    plan_exchange(sized);
    sized.run.phases.push_back(train_phase(sized));
    if (preview_) sized.run.phases.push_back(preview_phase());
    return sized;
  }

 private:
  static std::optional<generate::Request> preview_of(const LoadedModel& model,
                                                     std::span<const order::Settings> prompts) {
    if (prompts.empty()) return std::nullopt;
    return generate::blank_request(largest_prompt(model, prompts), model);
  }

  // What does not depend on the ranks.
  void measure_passes() {
    if (std::exchange(has_measured_, true)) return;
    if (config().stage != order::Stage::kTrain) add_encoding();
    if (config().stage == order::Stage::kDataProcess) return;
    dry_.train(*training_.selection, config().lora.rank);
    for (const model::RangedDenoiser& denoiser : denoisers_)
      of_denoisers_.push_back({measure(config().order.batch_size, denoiser),
                               measure(config().order.batch_size + 1, denoiser)});
  }

  void limit_trained(memory::PlannedComponent& component) const {
    component.storages.resize(1);  // what is trained does not rest in 8 bits
    if (component.shards > 1 && !mode_.on_host && !component.others)
      component.others = memory::Place::kDevice;
    if (component.shards > 1) return;  // they are moved where they rest
    // Several ranks keep their weights on the device where they keep them whole.
    component.may_stream &= (mode_.on_host && mode_.group == 1) || is_sent_away(component.name);
    component.others = memory::Place::kHost;  // files are not changed
    count_kept(component);
  }

  bool is_sharded(const memory::PlannedComponent& component) const {
    return links_ != nullptr && mode_.ranks > 1 && mode_.zero_stage == 3 &&
           !component.storages.front().blocks.empty() &&
           !parameters::denoiser_of(model_, component.name).empty();
  }

  const order::Training& config() const { return *training_.config; }

  // Weights that are trained themselves rest where the optimizer is; LoRA factors stay on the
  // device.
  bool trains_weights_of(const std::string& component) const {
    const auto& weights = training_.selection->weights;
    return std::any_of(weights.begin(), weights.end(),
                       [&](const auto& trained) { return trained.component == component; });
  }

  bool is_sent_away(const std::string& component) const {
    return basis_.placement.offload.contains(component);
  }
  bool sends_away_trained() const {
    const auto& weights = training_.selection->weights;
    return std::any_of(weights.begin(), weights.end(),
                       [&](const auto& trained) { return is_sent_away(trained.component); });
  }

  int64_t bytes_of(const Weight& weight, std::string_view component) const {
    return weight.numel() *
           static_cast<int64_t>(c10::elementSize(weight.drawn_dtype(model_.dtype(component))));
  }

  // Small weights of blocks that rest on the host are computed with in a copy that stays.
  void count_kept(memory::PlannedComponent& component) const {
    std::set<const Weight*> small;
    for (const auto& trained : training_.selection->weights) {
      if (bytes_of(*trained.weight, trained.component) < config().offload.least_bytes)
        small.insert(trained.weight);
    }
    std::vector<int64_t>& kept = component.storages.front().kept;
    for (Block* block : model_.model().blocks(component.name)) {
      int64_t bytes = 0;
      block->visit_weights([&](const std::string&, const Weight& weight) {
        if (small.contains(&weight)) bytes += bytes_of(weight, component.name);
      });
      kept.push_back(bytes);
    }
  }

  // What the rows hold.
  Inputs inputs() const {
    Inputs values = training_.inputs;
    const MediaTarget& target = training_.target;
    if (stages_.target_stage() == nullptr) return values;
    const at::ScalarType dtype = target.frames > 1 ? at::kByte : at::kFloat;  // clips are bytes
    values.merge(stages_
                     .target_inputs(dry_.tensor({stages_.target_input->channels, target.frames,
                                                 target.height, target.width},
                                                dtype))
                     .values);
    return values;
  }

  bool is_cached(const EncodeStage& stage) const { return cached_.find(stage.name)->second; }

  // What is made ahead.
  void add_encoding() {
    const at::NoGradGuard no_grad;
    for (const EncodeStage& stage : stages_.encoding) {
      const Inputs values = model::inputs_of(stage, inputs());
      const auto uses = [&](const ComponentSpec& spec) { return model::uses(stage, spec); };
      std::vector<std::string> components = components_where(model_, uses);
      const bool is_computed = std::ranges::any_of(model_.family().components(), uses);
      if (!is_cached(stage) || values.empty() || (is_computed && components.empty())) continue;
      Conditioning made;
      const DryPass pass = dry_.measure([&](BlockRunner& runner) {
        const EncodeInputs in = {
            .stage = stage.name, .values = values, .target = training_.target, .fps = stages_.fps};
        made = model::encode(model_.model(), in, runner, at::kMeta);
      });
      if (!stages_.is_target(stage)) encoded_.merge(made);
      if (!is_computed) continue;  // it takes no component, so nothing of it is held
      encoding_.push_back({.name = "encode " + model::encoded_by(stage, model_.family().inputs()),
                           .components = components,
                           .strategies = {strategy_of(
                               dry_, model_, pass, dry_.dtype(components.front()), basis_.profile)},
                           .passes = static_cast<double>(training_.samples)});
    }
  }

  // The largest one, as it is read from the cache and from the dataset.
  samples::TrainSample sample(const Detection& denoiser) const {
    samples::TrainSample sample;
    sample.target = training_.target;
    sample.values = {{"seed", 0}, {"num_inference_steps", training_.distillation_steps}};
    sample.cond = encoded_;
    for (const EncodeStage& stage : stages_.encoding) {
      if (is_cached(stage)) continue;
      Inputs values = model::inputs_of(stage, inputs());
      if (!values.empty()) sample.inputs.emplace(stage.name, std::move(values));
    }
    const EncodeStage* target = stages_.target_stage();
    const bool has_text = std::ranges::any_of(sample.inputs, [&](const auto& entry) {
      return target == nullptr || entry.first != target->name;
    });
    if (sample.cond.empty() && !has_text)
      sample.cond = example_text(dry_, model_, denoiser, kUnknownTokens);
    if (target == nullptr || is_cached(*target))
      sample.cond["latents"] = dry_.tensor(
          model_.model().latent_shape(training_.target, sample.cond), model_.decoder_dtype());
    return sample;
  }

  // Forward and backward pass of a batch of `count` samples, as a step makes them, at a level of
  // `denoiser`.
  void step(int64_t count, const model::RangedDenoiser& denoiser, BlockRunner& runner) {
    const samples::Timesteps timesteps =
        train::timesteps_of(model_, config().timesteps, std::span(&denoiser, 1));
    train::Objective objective(model_, denoisers_, runner, timesteps, config().seed, at::kMeta);
    const std::vector<train::StepSample> batch(static_cast<size_t>(count),
                                               {sample(denoiser.part), 0});
    const Tensor sum = config().task == order::Task::kDirectDistill
                           ? objective.direct_distillation(batch)
                           : objective.flow_matching(batch, /*step=*/0);
    const Tensor loss = sum / static_cast<double>(count);
    if (loss.requires_grad()) loss.backward();
    forget_gradients();
  }

  void forget_gradients() {
    for (const auto& layer : training_.selection->layers) {
      for (ops::Adapter& adapter : layer.linear->adapters) {
        adapter.a.mutable_grad() = Tensor();
        adapter.b.mutable_grad() = Tensor();
      }
    }
    for (const auto& trained : training_.selection->weights) {
      if (trained.weight->state().leaf().defined())
        at::Tensor(trained.weight->state().leaf()).mutable_grad() = Tensor();
    }
  }

  // How ranks share what is trained, and factors whole where the base is sharded.
  void plan_exchange(const SizedRun& sized) {
    RankMode mode = mode_;
    mode.on_host = sized.on_host;
    exchange_.emplace(dry_exchange(model_, *training_.selection, config(), mode,
                                   mode.zero_stage < 3 && sends_away_trained(),
                                   sized.run.components));
    largest_denoiser_.clear();
    for (const model::RangedDenoiser& denoiser : denoisers_) {
      if (draws_denoiser() && (largest_denoiser_.empty() ||
                               gradients_of(denoiser.name()) > gradients_of(largest_denoiser_)))
        largest_denoiser_ = denoiser.name();
    }
  }

  // Bytes of the gradients of a step, whole.
  double gradients_of(const std::string& denoiser) const {
    const parameters::ExchangePlan& plan = exchange_->plan;
    return static_cast<double>(plan.wholes.tensor_bytes(denoiser) +
                               plan.divided.tensor_bytes(denoiser));
  }

  // Bytes of gradients that are on the device between the backward passes of a step.
  double gradients_between() const {
    const parameters::ExchangePlan& plan = exchange_->plan;
    if (plan.wholes_on_host) return 0.0;
    const GradientBytes bytes = gradient_bytes(plan, largest_denoiser_);
    return bytes.wholes + (plan.sends_each_pass() && !plan.mode.on_host ? bytes.sums : 0.0);
  }

  // The part of a step's gradients that this rank keeps on the device.
  double part_of_gradients() const {
    const double whole = gradients_of(largest_denoiser_);
    return whole == 0 ? 0.0 : gradients_between() / whole;
  }

  // LoRA factors stay on the device; values of weights are the components'.
  double factor_bytes() const {
    double bytes = 0;
    for (const auto& layer : training_.selection->layers) {
      const ops::Adapter& factors = layer.linear->adapters.back();
      bytes += static_cast<double>(factors.a.nbytes() + factors.b.nbytes());
    }
    return bytes;
  }

  // Gradients of blocks come while activations go: together they take `backward` bytes at most.
  // Those of earlier passes of a step meet all activations; then the optimizer works. Returns how
  // many bytes less the activations take than that.
  int64_t add_trained(int64_t backward, Strategy& strategy) const {
    const auto& [plan, moved] = *exchange_;
    const GradientBytes gradients = gradient_bytes(plan, largest_denoiser_);
    const int64_t batches = batches_of_rank(config(), mode_);
    const UnderWay under_way =
        under_way_bytes(plan, batches, /*through_host=*/basis_.like == at::kCPU);
    if (config().ema_decay > 0) strategy.host_bytes += std::llround(4.0 * moved.numbers);
    const double earlier = batches > 1 ? gradients_between() : 0.0;
    const double sending = backward > 0 && !plan.wholes_on_host ? under_way.gradients : 0.0;
    const double factors = factor_bytes();
    const double computing =
        sending + std::max(static_cast<double>(backward),
                           static_cast<double>(strategy.device_bytes) + earlier);
    if (plan.mode.on_host) {
      const double rest = moved.copies + moved.states + gradients.sums +
                          (plan.wholes_on_host ? gradients.wholes : 0.0);
      strategy.device_bytes = std::llround(factors + computing);
      strategy.host_bytes += std::llround(rest);
      strategy.seconds += 2.0 * rest / kHostBytesPerSecond;
      return 0;
    }
    const double at_end = plan.mode.zero_stage == 0 ? gradients.wholes : gradients.sums;
    const double ending = at_end + std::max(moved.step, under_way.values);
    strategy.device_bytes = std::llround(factors + moved.states + std::max(computing, ending));
    strategy.seconds +=
        2.0 * (factors + moved.states + at_end) / basis_.profile.memory_bytes_per_second;
    return std::llround(std::max(0.0, ending - computing));
  }

  PlannedPhase train_phase(SizedRun& sized) {
    PlannedPhase phase{.name = "train"};
    const auto components = parameters::running_components(model_, *training_.selection);
    phase.components = {components.begin(), components.end()};
    phase.passes = count_steps(config(), training_.samples);
    for (const ActivationBudget& budget : possible_budgets(config())) {
      std::vector<Strategy> strategies;
      int64_t larger_bytes = 0, planned_bytes = 0, backward = 0;
      for (const auto& [pass, larger] : of_denoisers_) {
        const memory::ActivationPlan plan = plan_of(pass, budget, offload_limits());
        planned_bytes = std::max(planned_bytes, plan.peak_bytes);
        strategies.push_back(strategy_of_budget(pass, plan, budget));
        backward = std::max(backward, backward_of(pass, plan));
        if (is_part(budget) || budget.kind == ActivationBudget::Kind::kBytes) {
          strategies.back().device_bytes =
              std::max(strategies.back().device_bytes, pass.outside_bytes + measuring_bytes(pass));
          const ActivationBudget least = {.kind = ActivationBudget::Kind::kFraction};
          backward =
              std::max(backward, backward_of(pass, plan_of(pass, least)) + trying_bytes(pass));
        }
        larger_bytes =
            std::max(larger_bytes,
                     strategy_of_budget(larger, plan_of(larger, budget, offload_limits()), budget)
                         .device_bytes);
      }
      Strategy strategy = mean_of(std::move(strategies));
      sized.more_bytes.push_back((larger_bytes - strategy.device_bytes) / mode_.sequence);
      if (links_ == nullptr) {
        divide_rows(strategy, mode_);
      } else if (mode_.ranks > 1) {
        sized.exchanges.push_back(
            share_step(shared_step(), sized.run.components, mode_, *links_, strategy));
      }
      sized.slack_bytes.push_back(add_trained(backward, strategy));
      phase.strategies.push_back(std::move(strategy));
      sized.activations.push_back(budget);
      if (is_part(budget) && !orders_activations(config()))
        sized.activations.back() = {.kind = ActivationBudget::Kind::kBytes, .bytes = planned_bytes};
    }
    return phase;
  }

  int64_t backward_of(const DryModel::TrainingPass& pass,
                      const memory::ActivationPlan& plan) const {
    // Gradients of one block are on their way to the host while the next one makes its own.
    const int64_t leaving = exchange_->plan.wholes_on_host && !pass.gradients.empty()
                                ? std::ranges::max(pass.gradients)
                                : 0;
    return pass.outside_bytes / mode_.sequence + leaving +
           backward_bytes(pass, plan, part_of_gradients(), mode_.sequence, sends_inputs());
  }

  SharedStep shared_step() const {
    SharedStep step = {.exchange = &exchange_->plan,
                       .denoiser = largest_denoiser_,
                       .attention = attention(),
                       .batches = static_cast<double>(batches_of_rank(config(), mode_))};
    for (const model::LoadedPart& part : model_.parts()) {
      const std::string& component = part.detection.component;
      const std::vector<Block*> blocks = model_.model().blocks(component);
      for (size_t i = 0; i < blocks.size(); ++i) step.places[blocks[i]] = {component, i};
    }
    return step;
  }

  // In a block, on average.
  SharedAttention attention() const {
    double bytes = 0.0, seconds = 0.0, blocks = 0.0;
    for (const Passes& passes : of_denoisers_) {
      for (const auto& run : passes.pass.runs) {
        ++blocks;
        for (const auto& op : run->operators) {
          if (!op.name.starts_with("attention")) continue;
          bytes += static_cast<double>(op.bytes);
          seconds += op.seconds;
        }
      }
    }
    const SharesRows* const rows = model::shared_rows_of(model_);
    if (rows == nullptr || blocks == 0) return {};
    return {bytes / blocks, rows->heads(), rows->key_heads(), seconds / blocks};
  }

  Strategy strategy_of_budget(const DryModel::TrainingPass& pass,
                              const memory::ActivationPlan& plan, const ActivationBudget& budget) {
    Strategy strategy = strategy_of_plan(pass, plan, budget);
    if (sends_inputs()) send_inputs(pass, strategy);
    return strategy;
  }

  // Whether a step is of one of several denoisers. One of distillation runs them all.
  bool draws_denoiser() const {
    return denoisers_.size() > 1 && config().task != order::Task::kDirectDistill;
  }

  // How likely a step is of each denoiser.
  std::vector<double> shares() const {
    if (draws_denoiser())
      return train::timesteps_of(model_, config().timesteps, denoisers_).shares();
    return std::vector<double>(denoisers_.size(), 1.0 / static_cast<double>(denoisers_.size()));
  }

  // Joins the strategies of several denoisers.
  Strategy mean_of(std::vector<Strategy> strategies) const {
    const std::vector<double> shares = this->shares();
    Strategy mean = strategies.front();
    mean.seconds = 0.0;
    mean.forward.clear();
    mean.backward.clear();
    std::string names;
    for (size_t k = 0; k < strategies.size(); ++k) {
      Strategy& strategy = strategies[k];
      const double share = shares[k];
      names +=
          (k > 0 ? " or " : "") + denoisers_[k].name() + report::print(" (%.0f %%)", 100.0 * share);
      mean.device_bytes = std::max(mean.device_bytes, strategy.device_bytes);
      mean.host_bytes = std::max(mean.host_bytes, strategy.host_bytes);
      mean.seconds += share * strategy.seconds;
      for (const auto& [name, seconds] : strategy.forward) {
        if (draws_denoiser() && parameters::denoiser_of(model_, name) == denoisers_[k].name())
          mean.shares[name] = share;
      }
      for (auto [from, to] : {std::pair(&strategy.forward, &mean.forward),
                              std::pair(&strategy.backward, &mean.backward)}) {
        for (auto& [name, seconds] : *from) {
          const double part = mean.shares.contains(name) ? 1.0 : share;
          std::vector<double>& sum = (*to)[name];
          sum.resize(seconds.size());
          for (size_t i = 0; i < seconds.size(); ++i) sum[i] += part * seconds[i];
        }
      }
    }
    if (draws_denoiser()) mean.why += "; a step is of " + names;
    return mean;
  }

  // Images on the way, as train::Preview makes them: everything that training needs stays.
  PlannedPhase preview_phase() {
    const auto stays = parameters::running_components(model_, *training_.selection);
    DryGeneration generator(dry_, model_, stays);
    generate::Request request = *preview_;
    generator.encode_ahead(request);
    const auto encoders = model_.family().components();
    if (std::ranges::any_of(encoders, [&](const ComponentSpec& spec) {
          return model::encodes(model_.family(), spec) && stays.contains(std::string(spec.name));
        }))
      request.encoder_state = "trained;";  // what was made ahead is stale
    PlannedPhase phase{.name = "make images"};
    std::set<std::string> components = stays;
    DryPass pass;
    for (const DryPhase& part : generator.run(request)) {
      components.insert(part.components.begin(), part.components.end());
      pass += part.pass;
    }
    phase.components = {components.begin(), components.end()};
    Strategy strategy = strategy_of(dry_, model_, pass, model_.dtype(), basis_.profile);
    const double seconds = strategy.seconds;
    add_trained(/*backward=*/0, strategy);
    strategy.seconds = seconds;
    phase.strategies = {std::move(strategy)};
    return phase;
  }

  DryModel::TrainingPass measure(int64_t batch, const model::RangedDenoiser& denoiser) {
    return dry_.measure_training([&](BlockRunner& runner) { step(batch, denoiser, runner); },
                                 basis_.profile);
  }

  // What waits on the host for the backward pass: what a budget chooses, and without one what
  // blocks hand on.
  memory::OffloadLimits offload_limits() const {
    if (!config().offloads_activations) return {};
    return {.host_bytes = memory::available_bytes(at::kCPU),
            .bytes_per_second = basis_.profile.copy_bytes_per_second};
  }
  bool sends_inputs() const { return config().offloads_activations && !config().activation_budget; }

  Strategy strategy_of_plan(const DryModel::TrainingPass& pass, const memory::ActivationPlan& plan,
                            const ActivationBudget& budget) {
    Strategy strategy = named_strategy(plan, budget);
    strategy.device_bytes = pass.outside_bytes + plan.peak_bytes;
    strategy.host_bytes = plan.offloaded_bytes;
    const auto passes = static_cast<double>(std::max<int64_t>(1, batches_of_rank(config(), mode_)));
    const double runs = runs_of_denoiser(pass);
    strategy.repeats = passes * runs;
    strategy.seconds = pass.outside_seconds * passes;
    const double again = plan.num_recomputed == 0
                             ? 0
                             : plan.extra_seconds / static_cast<double>(plan.num_recomputed);
    std::map<Block*, std::pair<double, double>> seconds;
    for (size_t i = 0; i < pass.blocks.size(); ++i) {
      auto& [forward, backward] = seconds[pass.blocks[i]];
      const double beside =
          seconds_beside_work(*pass.blocks[i], model_.dtype(), basis_.like, basis_.profile);
      forward += pass.forward[i] + beside;
      backward += pass.backward[i] + beside + (plan.runs[i].is_whole ? 0.0 : again + beside);
    }
    for (const model::LoadedPart& part : model_.parts()) {
      const std::string& name = part.detection.component;
      const std::vector<Block*> blocks = dry_.model().blocks(name);
      if (std::none_of(blocks.begin(), blocks.end(),
                       [&](Block* block) { return seconds.contains(block); }))
        continue;
      for (Block* block : blocks) {
        strategy.forward[name].push_back(seconds[block].first / runs);
        strategy.backward[name].push_back(seconds[block].second / runs);
      }
    }
    return strategy;
  }

  // How often each of its blocks runs: distillation goes through all levels.
  double runs_of_denoiser(const DryModel::TrainingPass& pass) const {
    for (const model::RangedDenoiser& denoiser : denoisers_) {
      for (Block* block : model_.model().blocks(denoiser.name())) {
        if (const auto runs = std::ranges::count(pass.blocks, block); runs > 0)
          return static_cast<double>(runs);
      }
    }
    return 1.0;
  }

  LoadedModel& model_;
  const TrainingBasis& training_;
  const PlanBasis& basis_;
  const model::Stages& stages_;
  samples::CachedStages cached_;
  std::optional<generate::Request> preview_;  // the largest image on the way
  DryModel dry_;
  const std::vector<model::RangedDenoiser> denoisers_ =
      parameters::running_denoisers(model_, *training_.selection);
  struct Passes {
    DryModel::TrainingPass pass, larger;  // larger: of one more sample
  };
  bool has_measured_ = false;
  std::vector<PlannedPhase> encoding_;
  std::vector<Passes> of_denoisers_;
  RankMode mode_;
  std::optional<DryExchange> exchange_;
  std::string largest_denoiser_;  // of whose steps gradients have most bytes; empty: of all
  const memory::LinkProfile* links_ = nullptr;
  Conditioning encoded_;  // what is made ahead, the target's latents left out
};

}  // namespace

SizedRun size_training(LoadedModel& model, const TrainingBasis& training, const PlanBasis& basis) {
  const order::Training& config = *training.config;
  const RankMode mode = {.ranks = config.ranks.size,
                         .zero_stage = config.shards.stage,
                         .on_host = training.on_host,
                         .group = parameters::shard_ranks(config, config.ranks),
                         .sequence = config.sequence_parallel};
  return TrainingSizes(model, training, basis).sized(mode, /*links=*/nullptr);
}

std::vector<SizedRun> size_training(LoadedModel& model, const TrainingBasis& training,
                                    const PlanBasis& basis, const memory::LinkProfile& links,
                                    std::span<const RankMode> modes) {
  TrainingSizes sizes(model, training, basis);
  std::vector<SizedRun> runs;
  for (const RankMode& mode : modes) runs.push_back(sizes.sized(mode, &links));
  return runs;
}

}  // namespace atelier::plan
