// The phases of a training: encode what is cached, train, and make pictures on the way.
#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "atelier/host/weight_state.h"

#include "host/generate/generator.h"
#include "host/model/stages.h"
#include "host/plan/phases.h"
#include "host/plan/run_sizes.h"
#include "host/plugins/guard.h"
#include "host/report/problems.h"
#include "host/train/samples.h"
#include "memory/activation_plan.h"

namespace atelier::plan {
namespace {

using at::Tensor;
using memory::ActivationBudget;
using memory::Manner;
using memory::PlannedPhase;
using model::LoadedModel;

constexpr int64_t kUnknownTokens = 256;  // of a text that is not there to be counted
constexpr int kBudgets = 20;             // parts of the activations that are tried
// Numbers that AdamW moves at one time where it works on float32 copies.
constexpr double kMovedAtOnce = 1 << 25;
// Bytes a second that an optimizer on the host reads and writes.
constexpr double kHostBytesPerSecond = 20e9;

// Of each trained number, beside its value.
struct StateBytes {
  double gradient = 4.0, state = 8.0;
};

StateBytes state_bytes(const optim::Options& options, at::ScalarType leaf) {
  StateBytes bytes;
  bytes.gradient = static_cast<double>(c10::elementSize(leaf));
  switch (options.kind) {
    case optim::Kind::kAdamW:
      bytes.state = 8.0;
      break;
    case optim::Kind::kAdamW8bit:
      bytes.state = 2.0 + 8.0 / 256.0;
      break;
    case optim::Kind::kAdafactor:
      bytes.state = 0.01;  // a row and a column of each matrix
      break;
    case optim::Kind::kProdigy:
      bytes.state = 12.0 + bytes.gradient;
      break;
  }
  const bool has_master =
      leaf != at::kFloat && options.master_weights == optim::MasterWeights::kFp32;
  if (has_master) bytes.state += 4.0;
  return bytes;
}

// That AdamW makes of each number while it moves it: float32 copies of a 16-bit gradient, of a
// value without a master, and of 8-bit moments.
double copied_bytes(const optim::Options& options, at::ScalarType leaf) {
  double bytes = 0.0;
  if (leaf != at::kFloat) bytes += 4.0;
  if (leaf != at::kFloat && options.master_weights != optim::MasterWeights::kFp32) bytes += 4.0;
  if (options.kind == optim::Kind::kAdamW8bit) bytes += 8.0;
  return bytes;
}

class TrainingSizes {
 public:
  TrainingSizes(LoadedModel& model, const TrainingBasis& training, const PlanBasis& basis)
      : model_(model),
        training_(training),
        basis_(basis),
        cached_(train::cached_stages(model::encode_stages(model), training.config.trained_names())),
        dry_(model, basis.like) {}

  SizedRun sized() {
    SizedRun sized;
    sized.main_phase = "train";
    const bool on_host = training_.on_host || sends_away_trained();
    sized.on_host = on_host;
    sized.batch_size = training_.config.order.batch_size;
    sized.run.prefetch = basis_.prefetch;
    sized.run.components = size_components(model_, basis_, /*prepares_levels=*/false);
    for (memory::PlannedComponent& component : sized.run.components) {
      if (!trains_weights_of(component.name)) continue;
      component.storages.resize(1);  // what is trained does not rest in 8 bits
      component.may_stream &= training_.on_host || is_sent_away(component.name);
      component.others = memory::Place::kHost;  // files are not changed
      count_kept(component);
    }
    if (training_.config.stage != train::Stage::kTrain) add_encoding(sized.run);
    if (training_.config.stage == train::Stage::kDataProcess) return sized;
    dry_.train(training_.selection, training_.config.lora.rank);
    sized.run.phases.push_back(train_phase(sized, on_host));
    if (training_.preview_height > 0) sized.run.phases.push_back(preview_phase(on_host));
    return sized;
  }

 private:
  const train::Config& config() const { return training_.config; }

  // Weights that are trained themselves rest where the optimizer is; LoRA factors stay on the
  // device.
  bool trains_weights_of(const std::string& component) const {
    const auto& weights = training_.selection.weights;
    return std::any_of(weights.begin(), weights.end(),
                       [&](const auto& trained) { return trained.component == component; });
  }

  bool is_sent_away(const std::string& component) const {
    return basis_.placement.offload.contains(component);
  }
  bool sends_away_trained() const {
    const auto& weights = training_.selection.weights;
    return std::any_of(weights.begin(), weights.end(),
                       [&](const auto& trained) { return is_sent_away(trained.component); });
  }

  int64_t bytes_of(const Weight& weight, std::string_view component) const {
    return weight.numel() *
           static_cast<int64_t>(c10::elementSize(weight.drawn_dtype(model_.dtype(component))));
  }

  // Small weights of blocks that rest on the host are computed with in a copy that stays.
  void count_kept(memory::PlannedComponent& component) {
    std::set<const Weight*> small;
    for (const auto& trained : training_.selection.weights) {
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

  void add_encoding(memory::PlannedRun& run) {
    const at::NoGradGuard no_grad;
    if (caches(/*target=*/false) && !condition_encoders(model_).empty() &&
        !training_.longest_text.empty()) {
      PlannedPhase phase{.name = "encode texts", .components = condition_encoders(model_)};
      const DryPass pass = dry_.measure([&](BlockRunner& runner) { text_ = encode(runner); });
      phase.manners = {manner_of(dry_, pass, phase.components, basis_.profile)};
      phase.passes = static_cast<double>(training_.samples);
      run.phases.push_back(std::move(phase));
    }
    if (caches(/*target=*/true) && !target_encoders(model_).empty()) {
      PlannedPhase phase{.name = "encode pictures", .components = target_encoders(model_)};
      const DryPass pass =
          dry_.measure([&](BlockRunner& runner) { encode_target(dry_, model_, pixels(), runner); });
      phase.manners = {manner_of(dry_, pass, phase.components, basis_.profile)};
      phase.passes = static_cast<double>(training_.samples);
      run.phases.push_back(std::move(phase));
    }
  }

  Conditioning encode(BlockRunner& runner) {
    return encode_conditions(dry_, model_, training_.longest_text, target(), nullptr, runner);
  }
  MediaTarget target() const { return {1, training_.height, training_.width}; }
  Tensor pixels() const {
    return dry_.tensor({3, 1, training_.height, training_.width}, at::kFloat);
  }

  // Whether what is learnt, or all that the denoiser is given beside it, is made ahead.
  bool caches(bool target) const {
    const std::vector<EncodeStage> stages = model::encode_stages(model_);
    const EncodeStage* of_target = model::target_stage(stages, model_.family().inputs());
    return std::all_of(stages.begin(), stages.end(), [&](const EncodeStage& stage) {
      return (&stage == of_target) != target || cached_.find(stage.name)->second;
    });
  }

  // What a sample's text is to the denoiser.
  Conditioning text_of_sample(BlockRunner& runner) {
    if (!caches(/*target=*/false)) return encode(runner);
    if (!text_.empty()) return text_;
    return example_text(dry_, model_, kUnknownTokens);
  }

  // A step as Objective makes it, of `count` samples.
  void step(int64_t count, BlockRunner& runner) {
    std::vector<Conditioning> texts;
    std::vector<Tensor> noisy, noise;
    Tensor clean;
    const std::vector<int64_t> shape = dry_.model().latent_shape(target());
    for (int64_t i = 0; i < count; ++i) {
      texts.push_back(text_of_sample(runner));
      if (caches(/*target=*/true)) {
        clean = dry_.tensor(shape, at::kFloat);
      } else {
        clean = encode_target(dry_, model_, pixels(), runner).to(at::kFloat);
      }
      noise.push_back(dry_.tensor(shape, at::kFloat));
      noisy.push_back((clean * 0.5 + noise.back() * 0.5).to(dry_.dtype()));
    }
    std::vector<const Conditioning*> cond;
    for (const Conditioning& text : texts) cond.push_back(&text);
    const Tensor velocity = plugins::guard("denoise of a dry run", [&] {
      return dry_.model().denoise({.x_BCTHW = at::stack(noisy),
                                   .sigma_B = dry_.tensor({count}, at::kFloat),
                                   .cond = cond,
                                   .denoiser = model_.denoiser()->detection.component},
                                  runner);
    });
    std::vector<Tensor> losses;
    for (int64_t i = 0; i < count; ++i) {
      const Tensor target = noise[static_cast<size_t>(i)] - clean;
      losses.push_back((velocity[i].to(at::kFloat) - target).square().mean());
    }
    const Tensor loss = at::stack(losses).sum();
    if (loss.requires_grad()) loss.backward();
    forget_gradients();
  }

  void forget_gradients() {
    for (const auto& layer : training_.selection.layers) {
      for (ops::Adapter& adapter : layer.linear->adapters) {
        adapter.a.mutable_grad() = Tensor();
        adapter.b.mutable_grad() = Tensor();
      }
    }
    for (const auto& trained : training_.selection.weights) {
      if (trained.weight->state().leaf().defined())
        at::Tensor(trained.weight->state().leaf()).mutable_grad() = Tensor();
    }
  }

  // What is trained: numbers of LoRA factors and of weights, and their bytes. Values of weights are
  // the components'.
  struct Trained {
    double numbers = 0, factors = 0, gradients = 0, state = 0;
    double moving = 0;  // most that one call of the optimizer makes for itself
  };
  Trained trained() const {
    Trained sum;
    double factors = 0, whole = 0, largest = 0, copied = 0;
    for (const auto& layer : training_.selection.layers) {
      factors += static_cast<double>(config().lora.rank *
                                     (layer.linear->in_features() + layer.linear->out_features()));
    }
    for (const auto& weight : training_.selection.weights) {
      const auto numbers = static_cast<double>(weight.weight->numel());
      const at::ScalarType dtype = weight.weight->drawn_dtype(model_.dtype(weight.component));
      const StateBytes bytes = state_bytes(config().optimizer, dtype);
      sum.gradients += numbers * bytes.gradient;
      sum.state += numbers * bytes.state;
      copied = std::max<double>(copied, copied_bytes(config().optimizer, dtype));
      whole += numbers;
      largest = std::max(largest, numbers);
    }
    const StateBytes of_lora = state_bytes(config().optimizer, at::kFloat);
    sum.numbers = factors + whole;
    sum.factors = 4.0 * factors;
    sum.gradients += factors * of_lora.gradient;
    sum.state += factors * of_lora.state;
    const bool is_in_batches = config().optimizer.kind == optim::Kind::kAdamW ||
                               config().optimizer.kind == optim::Kind::kAdamW8bit;
    sum.moving = is_in_batches ? std::max(copied_bytes(config().optimizer, at::kFloat) *
                                              std::min(factors, kMovedAtOnce),
                                          copied * std::min(whole, std::max(largest, kMovedAtOnce)))
                               : 12.0 * largest;
    return sum;
  }

  // Gradients come while activations go, so only those of earlier passes of a step meet all of
  // these; then the optimizer works. Returns how many bytes less the activations take than that.
  int64_t add_trained(bool on_host, Manner& manner) const {
    const Trained sum = trained();
    if (config().ema_decay > 0) manner.host_bytes += std::llround(4.0 * sum.numbers);
    if (on_host) {
      const double rest = sum.factors + sum.gradients + sum.state;
      manner.device_bytes += std::llround(sum.factors);
      manner.host_bytes += std::llround(rest);
      manner.seconds += 2.0 * rest / kHostBytesPerSecond;
      return 0;
    }
    const bool is_accumulated = config().order.gradient_accumulation_steps > 1;
    const double computing =
        static_cast<double>(manner.device_bytes) + (is_accumulated ? sum.gradients : 0.0);
    const double resting = sum.factors + sum.state;
    manner.device_bytes = std::llround(resting + std::max(computing, sum.gradients + sum.moving));
    manner.seconds += 2.0 * (resting + sum.gradients) / basis_.profile.memory_bytes_per_second;
    return std::llround(std::max(0.0, sum.gradients + sum.moving - computing));
  }

  PlannedPhase train_phase(SizedRun& sized, bool on_host) {
    PlannedPhase phase{.name = "train"};
    phase.components = components_where(model_, [&](const ComponentSpec& spec) {
      return spec.role == Role::kDenoiser || training_.selection.trains(spec.name);
    });
    phase.passes = training_.steps;
    const DryModel::TrainingPass pass = measure(sized.batch_size);
    const DryModel::TrainingPass larger = measure(sized.batch_size + 1);
    for (const ActivationBudget& budget : possible_budgets()) {
      const memory::ActivationPlan plan = plan_of(pass, budget, offload_limits());
      Manner manner = manner_of_plan(pass, plan, budget);
      if (sends_inputs()) send_inputs(pass, manner);
      const bool is_part = budget.kind == ActivationBudget::Kind::kFraction && budget.fraction > 0;
      if (is_part)
        manner.device_bytes =
            std::max(manner.device_bytes, pass.outside_bytes + measuring_bytes(pass));
      Manner of_larger = manner_of_plan(larger, plan_of(larger, budget, offload_limits()), budget);
      if (sends_inputs()) send_inputs(larger, of_larger);
      sized.more_bytes.push_back(of_larger.device_bytes - manner.device_bytes);
      sized.slack_bytes.push_back(add_trained(on_host, manner));
      phase.manners.push_back(std::move(manner));
      sized.activations.push_back(budget);
      if (is_part && !is_forced())
        sized.activations.back() = {.kind = ActivationBudget::Kind::kBytes,
                                    .bytes = plan.peak_bytes};
    }
    return phase;
  }

  // Pictures on the way, while everything that is trained stays.
  PlannedPhase preview_phase(bool on_host) {
    const at::NoGradGuard no_grad;
    PlannedPhase phase{.name = "make pictures"};
    phase.components = components_where(model_, [&](const ComponentSpec& spec) {
      return spec.role == Role::kDenoiser || spec.role == Role::kVae ||
             training_.selection.trains(spec.name);
    });
    std::vector<int64_t> shape =
        dry_.model().latent_shape({1, training_.preview_height, training_.preview_width});
    shape.insert(shape.begin(), 2);  // both halves of guidance
    const DryPass denoised = dry_.measure([&](BlockRunner& runner) {
      const Conditioning text = text_of_sample(runner);
      const std::array<const Conditioning*, 2> cond = {&text, &text};
      dry_.model().denoise({.x_BCTHW = dry_.tensor(shape, dry_.dtype()),
                            .sigma_B = dry_.tensor({2}, at::kFloat),
                            .cond = cond,
                            .denoiser = model_.denoiser()->detection.component},
                           runner);
    });
    shape.front() = 1;
    const DryPass decoded = dry_.measure([&](BlockRunner& runner) {
      plan::decode(dry_, dry_.tensor(shape, model_.decoder_dtype()), runner);
    });
    Manner manner = manner_of(dry_, decoded, decoders(model_), basis_.profile);
    manner.device_bytes = std::max(denoised.peak_bytes, decoded.peak_bytes);
    const double seconds = manner.seconds;
    add_trained(on_host, manner);
    manner.seconds = seconds;
    phase.manners = {std::move(manner)};
    return phase;
  }

  DryModel::TrainingPass measure(int64_t batch) {
    return dry_.measure_training([&](BlockRunner& runner) { step(batch, runner); }, basis_.profile);
  }

  // The first step of a budget keeps inputs of blocks alone, measures, and tries which outputs no
  // gradient reads: gradients of a block are then there twice.
  static int64_t measuring_bytes(const DryModel::TrainingPass& pass) {
    int64_t working = 0;
    for (const auto& run : pass.runs) working = std::max(working, run->working_bytes);
    return plan_of(pass, {.kind = ActivationBudget::Kind::kFraction, .fraction = 0.0}).peak_bytes +
           working / 2;
  }

  static memory::ActivationPlan plan_of(const DryModel::TrainingPass& pass,
                                        const ActivationBudget& budget,
                                        const memory::OffloadLimits& offload = {}) {
    return memory::plan_activations(pass.runs, budget, /*available=*/0, /*first=*/0, /*spent=*/0,
                                    offload);
  }

  // What waits on the host for the backward pass: what a budget chooses, and without one what
  // blocks hand on.
  memory::OffloadLimits offload_limits() const {
    if (!config().offloads_activations) return {};
    return {.host_bytes = memory::available_bytes(at::kCPU),
            .bytes_per_second = basis_.profile.copy_bytes_per_second};
  }
  bool sends_inputs() const { return config().offloads_activations && !config().activation_budget; }

  // They leave when two more blocks have run, and those of the last two never do.
  static void send_inputs(const DryModel::TrainingPass& pass, Manner& manner) {
    constexpr int64_t kThere = 3;
    int64_t all = 0, largest = 0;
    for (const auto& run : pass.runs) {
      all += run->held_bytes;
      largest = std::max(largest, run->held_bytes);
    }
    const int64_t sent = std::max<int64_t>(0, all - kThere * largest);
    manner.device_bytes -= sent;
    manner.host_bytes += sent;
  }

  bool is_forced() const {
    return config().activation_budget.has_value() &&
           config().activation_budget->kind != ActivationBudget::Kind::kAuto;
  }

  // Those that may be chosen, fast ones first.
  std::vector<ActivationBudget> possible_budgets() const {
    using Kind = ActivationBudget::Kind;
    if (is_forced()) return {*config().activation_budget};
    std::vector<ActivationBudget> budgets;
    if (!config().use_gradient_checkpointing || config().activation_budget) {
      budgets.push_back({.kind = Kind::kNone});
      for (int part = kBudgets; part > 0; --part)
        budgets.push_back(
            {.kind = Kind::kFraction, .fraction = static_cast<double>(part) / kBudgets});
    }
    budgets.push_back({.kind = Kind::kFraction, .fraction = 0.0});
    return budgets;
  }

  Manner manner_of_plan(const DryModel::TrainingPass& pass, const memory::ActivationPlan& plan,
                        const ActivationBudget& budget) {
    using Kind = ActivationBudget::Kind;
    Manner manner;
    const bool is_whole = plan.num_recomputed == 0;
    manner.needs_all_blocks = is_whole;
    const std::string peak = report::format_bytes(static_cast<uint64_t>(plan.peak_bytes));
    if (is_whole) {
      manner.name = "keep all activations";
      manner.why = "nothing is computed again";
    } else if (budget.kind == Kind::kFraction && budget.fraction == 0) {
      manner.name = "keep inputs of blocks";
      manner.why = "everything else is computed again";
    } else {
      manner.name = "keep activations of " + peak;
      manner.why = std::to_string(plan.num_recomputed) + " blocks are computed again in part";
    }
    manner.device_bytes = pass.outside_bytes + plan.peak_bytes;
    manner.host_bytes = plan.offloaded_bytes;
    const auto passes =
        static_cast<double>(std::max<int64_t>(1, config().order.gradient_accumulation_steps));
    manner.repeats = passes;
    manner.seconds = pass.outside_seconds * passes;
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
        manner.forward[name].push_back(seconds[block].first);
        manner.backward[name].push_back(seconds[block].second);
      }
    }
    return manner;
  }

  LoadedModel& model_;
  const TrainingBasis& training_;
  const PlanBasis& basis_;
  train::CachedStages cached_;
  DryModel dry_;
  Conditioning text_;
};

}  // namespace

SizedRun size_training(LoadedModel& model, const TrainingBasis& training, const PlanBasis& basis) {
  return TrainingSizes(model, training, basis).sized();
}

}  // namespace atelier::plan
