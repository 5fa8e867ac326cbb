// How the variants are sampled.
#include "config.h"
#include "longcat.h"
#include "tables.h"

namespace wan {
namespace {

using atelier::ScheduleDefaults;
using atelier::SigmaShift;

constexpr SigmaShift shift(double value) {
  return {.kind = SigmaShift::Kind::kConstant, .value = value};
}

// As the original repository samples.
constexpr ScheduleDefaults published(std::string_view variants, int steps, double by,
                                     double cfg_scale) {
  return {.name = "default",
          .variants = variants,
          .num_inference_steps = steps,
          .cfg_scale = cfg_scale,
          .shift = shift(by),
          .help = "as the original repository samples",
          .solver = "unipc",
          .grid = {.high = 0.999},
          .whole_timesteps = true};
}

constexpr ScheduleDefaults kSmallImages = [] {
  ScheduleDefaults schedule = published("*-i2v-14b", 40, 3, 5);
  schedule.name = "480p";
  schedule.help = "the same of Wan2.1-I2V-14B-480P";
  return schedule;
}();
// As VideoX-Fun samples its models. Wan2.1-Fun-InP and Wan2.2-Fun-A14B-InP have the tensors of
// other models of image to video.
constexpr ScheduleDefaults of_fun(std::string_view name, std::string_view variants, double by,
                                  double cfg_scale = 6.0) {
  return {.name = name,
          .variants = variants,
          .num_inference_steps = 50,
          .cfg_scale = cfg_scale,
          .shift = shift(by),
          .help = "straight steps, with the shift and guidance of VideoX-Fun"};
}

constexpr ScheduleDefaults kTwoScales = [] {
  ScheduleDefaults schedule = published("wan2.2-t2v-*", 40, 12, 4);
  schedule.cfg_scale_2 = 3.0;
  return schedule;
}();

constexpr ScheduleDefaults of_diffusers(std::string_view variants, double by) {
  return {.name = "diffusers",
          .variants = variants,
          .num_inference_steps = 50,
          .cfg_scale = 5.0,
          .shift = shift(by),
          .help = "as the published diffusers folders sample; 5 is advised for 720 lines",
          .solver = "unipc",
          // Pure noise is a millionth less there, and its timestep 999.
          .grid = {.high = 0.999999, .low = 0.001},
          .whole_timesteps = true};
}

// The schedule of its DPMSolverMultistepScheduler, which has other levels.
constexpr ScheduleDefaults of_diffusers_dpm(std::string_view variants, double by) {
  ScheduleDefaults schedule = of_diffusers(variants, by);
  schedule.help = "the same with DPMSolverMultistepScheduler";
  schedule.solver = "dpm++";
  schedule.grid = {.high = 0.999};
  return schedule;
}

constexpr ScheduleDefaults of_dancer(std::string_view variant, int steps) {
  return {.name = "default",
          .variants = variant,
          .num_inference_steps = steps,
          .cfg_scale = 5.0,
          .shift = shift(5),
          .help = "straight steps, as the original repository samples"};
}

constexpr ScheduleDefaults driven(std::string_view variants, int steps, double cfg_scale) {
  ScheduleDefaults schedule = published(variants, steps, 5, cfg_scale);
  schedule.solver = "dpm++";
  schedule.grid = {};
  return schedule;
}

constexpr ScheduleDefaults of_animate(ScheduleDefaults schedule) {
  schedule.variants = kAnimate;
  schedule.num_inference_steps = 20;
  schedule.cfg_scale = 1.0;
  return schedule;
}

// The levels of the published sampler, from 1 to a thousandth.
constexpr ScheduleDefaults kLongCatDefault = {.name = "default",
                                              .variants = kLongCat,
                                              .num_inference_steps = 50,
                                              .cfg_scale = 4.0,
                                              .terminal_sigma = 0.001,
                                              .help = "as the original repository samples"};
constexpr ScheduleDefaults kLongCatEuler = {
    .name = "euler",
    .variants = kLongCat,
    .num_inference_steps = 50,
    .cfg_scale = 2.0,
    .help = "straight steps down to 0, with the guidance of DiffSynth-Studio"};
constexpr ScheduleDefaults kLongCatDistill = {
    .name = "distill",
    .variants = kLongCat,
    .num_inference_steps = 16,
    .cfg_scale = 1.0,
    .help = "the published cfg_step_lora, 16 of 50 steps without guidance",
    .grid = {.cells = 50}};

constexpr ScheduleDefaults kSchedules[] = {
    of_animate({.name = "default",
                .shift = shift(5),
                .help = "as the original repository samples, without guidance",
                .solver = "dpm++",
                .whole_timesteps = true}),
    of_animate(of_diffusers(kAnimate, 5)),
    of_animate(of_diffusers_dpm(kAnimate, 5)),
    kLongCatDefault,
    kLongCatEuler,
    kLongCatDistill,
    of_dancer(kDancerGlobal, 48),
    of_dancer(kDancerLocal, 24),
    driven(kDriven, 40, 3),
    driven(kDrivenDistilled, 10, 1),
    {.name = "default",
     .variants = kKrea,
     .num_inference_steps = 6,
     .cfg_scale = 1.0,
     .shift = shift(20),
     .help = "6 straight steps without guidance, as DiffSynth-Studio samples krea-realtime-video"},
    published("wan2.1-t2v-*b", 50, 5, 5),
    published("wan2.1-vace-*", 50, 16, 5),
    of_fun("default", kVaceExperts, 12, 5),
    published("*-flf2v", 50, 16, 5),
    published("*-i2v-14b", 40, 5, 5),
    of_fun("default", "*-i2v-1.3b", 3),
    of_fun("default", "wan2.1-fun-*", 3),
    of_fun("default", "wan2.2-fun-*", 5),
    kSmallImages,
    kTwoScales,
    published("wan2.2-i2v-*", 40, 5, 3.5),
    published("*-ti2v-*", 50, 5, 5),
    published(kSpeech, 40, 3, 4.5),
    of_fun("fun", "*-i2v-14b", 3),
    of_fun("fun", "wan2.2-i2v-*", 5),
    of_diffusers("*-ti2v-*", 5),
    of_diffusers("*", 3),
    of_diffusers_dpm("*-ti2v-*", 5),
    of_diffusers_dpm("*", 3),
    {.name = "euler",
     .num_inference_steps = 50,
     .cfg_scale = 5.0,
     .shift = shift(5),
     .help = "straight steps, as DiffSynth-Studio samples"},
    {.name = "dpm++",
     .num_inference_steps = 50,
     .cfg_scale = 5.0,
     .shift = shift(5),
     .help = "the original repository's other sampler",
     .solver = "dpm++",
     .whole_timesteps = true},
    {.name = "distill",
     .num_inference_steps = 4,
     .cfg_scale = 1.0,
     .shift = shift(5),
     .help = "distilled LoRAs (lightx2v), 4 steps without guidance"},
};

}  // namespace

std::span<const ScheduleDefaults> schedule_table() {
  return kSchedules;
}

ScheduleDefaults training_schedule() {
  return {.name = "training", .shift = shift(5)};
}

}  // namespace wan
