#include "host/generate/request.h"

#include <algorithm>
#include <map>
#include <set>

#include "host/inputs/parse.h"
#include "host/model/stages.h"
#include "host/sampling/sigma_schedule.h"

namespace atelier::generate {
namespace {

constexpr std::pair<std::string_view, CfgRenorm> kRenorms[] = {
    {"none", CfgRenorm::kNone}, {"clamp", CfgRenorm::kClamp}, {"row", CfgRenorm::kRow}};

// The levels of a request. The first ones would leave nothing of an image or a clip to start from.
void set_levels(Request& request, const order::Settings& s, const ScheduleDefaults& schedule,
                const LatentSpec& spec, std::span<const InputSpec> inputs) {
  request.schedule = schedule.name;
  request.whole_timesteps = schedule.whole_timesteps;
  request.sigmas = sampling::make_sigmas(
      schedule,
      {.num_steps = static_cast<int>(s.num_inference_steps.value_or(schedule.num_inference_steps)),
       .tokens = tokens_of(request.target, spec),
       .frames = latent_frames_of(request.target, spec),
       .flow_shift = s.flow_shift,
       .sigmas = s.sigmas});
  if (!order::has_start(s, inputs)) return;
  request.denoising_strength = s.denoising_strength.value_or(order::kDefaultStrength);
  request.sigmas =
      sampling::keep_last_steps(std::move(request.sigmas), *request.denoising_strength,
                                /*from_clip=*/inputs::is_clip(model::start_input(inputs)->kind));
}

}  // namespace

std::optional<CfgRenorm> find_renorm(std::string_view name) {
  for (const auto& [known, renorm] : kRenorms) {
    if (known == name) return renorm;
  }
  return std::nullopt;
}

std::string_view renorm_name(CfgRenorm renorm) {
  return std::ranges::find(kRenorms, renorm, &std::pair<std::string_view, CfgRenorm>::second)
      ->first;
}

const ScheduleDefaults& schedule_of(const order::Settings& s, const ModelFamily& family,
                                    std::string_view variant) {
  return sampling::find_schedule(family.schedules(), s.schedule, variant, s.solver);
}

CfgScales cfg_scales_of(const order::Settings& s, const ModelFamily& family,
                        std::string_view variant) {
  const ScheduleDefaults& schedule = schedule_of(s, family, variant);
  if (s.cfg_scale) return {*s.cfg_scale, s.cfg_scale_2, schedule.cfg_off};
  return {schedule.cfg_scale, s.cfg_scale_2 ? s.cfg_scale_2 : schedule.cfg_scale_2,
          schedule.cfg_off};
}

namespace {

using Names = std::set<std::string, std::less<>>;

// Whether the stage makes what a control beside the denoiser follows.
bool is_of_control(const EncodeStage& stage, const ModelFamily& family) {
  return std::ranges::any_of(family.components(), [&](const ComponentSpec& component) {
    return component.role == Role::kControl &&
           std::ranges::find(stage.components, component.name) != stage.components.end();
  });
}

// Inputs that are for a control and read by no other stage, but for that of what is made.
Names inputs_of(const ComponentSpec& control, const model::LoadedModel& model) {
  const model::Stages& stages = model.stages();
  const auto is_read_besides = [&](const InputSpec& input) {
    return std::ranges::any_of(stages.encoding, [&](const EncodeStage& stage) {
      return model::reads(stage, input.name) && !stages.is_target(stage) &&
             !is_of_control(stage, model.family());
    });
  };
  Names names;
  for (const InputSpec& input : stages.inputs)
    if (model::is_for(input, control, stages.encoding) && !is_read_besides(input))
      names.emplace(input.name);
  return names;
}

// The controls that are given inputs, and which inputs are for each.
std::map<std::string, Names> given_controls(const Request& request,
                                            const model::LoadedModel& model) {
  std::map<std::string, Names> given;
  for (const model::PresentComponent& control : model.stages().components) {
    Names own = inputs_of(control.spec, model);
    const auto is_given = [&](const std::string& name) { return request.inputs.contains(name); };
    if (std::ranges::any_of(own, is_given)) given.emplace(control.name, std::move(own));
  }
  return given;
}

// Controls among the `given` ones that run in each step.
std::vector<std::set<std::string>> running_among(const std::map<std::string, Names>& given,
                                                 const Request& request,
                                                 const model::LoadedModel& model) {
  const int64_t steps = request.num_steps();
  std::vector<std::set<std::string>> running(static_cast<size_t>(steps));
  for (int64_t step = 0; step < steps; ++step) {
    for (const auto& [control, inputs] : given)
      if (model.model().runs(control, request.inputs, step, steps))
        running[static_cast<size_t>(step)].insert(control);
  }
  return running;
}

// Notes the controls that do nothing, and returns the inputs that are for nothing but such ones.
Names find_idle(Request& request, const model::LoadedModel& model) {
  std::map<std::string, Names> given = given_controls(request, model);
  std::set<std::string> running;
  for (std::set<std::string>& controls : running_among(given, request, model))
    running.merge(controls);
  Names idle, read;
  for (auto& [control, own] : given) {
    const bool runs = running.contains(control);
    if (!runs) request.idle_controls.insert(control);
    (runs ? read : idle).merge(own);
  }
  std::erase_if(idle, [&](const std::string& name) { return read.contains(name); });
  return idle;
}

// What reads inputs' files, or their headers alone.
struct Reader {
  decltype(&read_inputs) inputs;
  decltype(&read_beside) beside;
};

Request request_by(const Reader& reader, const order::Settings& s, const model::LoadedModel& model,
                   uint64_t seed) {
  const ModelFamily& family = model.family();
  std::vector<Piece> pieces = pieces_of(s, family, model.model());
  const Beside beside = pieces.empty() ? Beside::kWhole : Beside::kPieces;
  Request request = make_request(s, reader.inputs(s, family, beside), family,
                                 model.model().latent_spec(), seed, model.stages().variant);
  const auto leave_out = [idle = find_idle(request, model)](Inputs inputs) {
    std::erase_if(inputs, [&](const auto& input) { return idle.contains(input.first); });
    return inputs;
  };
  request.inputs = leave_out(std::move(request.inputs));
  request.pieces = std::move(pieces);
  request.read_beside = [reader, s, &family, leave_out](const Piece& piece) {
    return leave_out(reader.beside(s, family, piece));
  };
  return request;
}

}  // namespace

Request read_request(const order::Settings& s, const model::LoadedModel& model, uint64_t seed) {
  return request_by({read_inputs, read_beside}, s, model, seed);
}

Request blank_request(const order::Settings& s, const model::LoadedModel& model) {
  return request_by({blank_inputs, blank_beside}, s, model, /*seed=*/0);
}

Request make_request(const order::Settings& s, InputFiles files, const ModelFamily& family,
                     const LatentSpec& spec, uint64_t seed, std::string_view variant) {
  const ScheduleDefaults& schedule = schedule_of(s, family, variant);
  Request request;
  request.target = order::target_of(s);
  request.fps = s.fps.value_or(0.0);
  request.inputs = std::move(files.inputs);
  request.input_pixels = std::move(files.start_pixels);
  request.inpaint_mask = std::move(files.inpaint_mask);
  request.latents = std::move(files.latents);
  request.loras = s.loras;
  request.negative_prompt = s.negative_prompt;
  const CfgScales scales = cfg_scales_of(s, family, variant);
  request.cfg_scale = scales.first;
  request.cfg_scale_2 = scales.second;
  request.cfg_off = scales.off;
  request.cfg_trunc = s.cfg_trunc.value_or(schedule.cfg_trunc);
  request.cfg_renorm = find_renorm(s.cfg_renorm).value_or(schedule.cfg_renorm);
  request.cfg_renorm_ratio = s.cfg_renorm_ratio.value_or(schedule.cfg_renorm_ratio);
  set_levels(request, s, schedule, spec, family.inputs());
  request.switch_boundary = s.switch_boundary;
  request.solver =
      sampling::find_solver(s.solver.empty() ? schedule.solver : s.solver, family.solvers());
  for (int64_t i = 0; i < s.num_images; ++i)
    request.seeds.push_back(seed + static_cast<uint64_t>(i));
  request.batch_size = s.batch_size;
  return request;
}

std::vector<std::set<std::string>> running_controls(const Request& request,
                                                    const model::LoadedModel& model) {
  return running_among(given_controls(request, model), request, model);
}

}  // namespace atelier::generate
