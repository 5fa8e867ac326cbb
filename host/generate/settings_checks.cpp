#include "host/generate/settings_checks.h"

#include <algorithm>

#include "atelier/error.h"

#include "formats/escape.h"
#include "formats/utf8.h"
#include "host/files/file_reader.h"
#include "host/generate/fill_settings.h"
#include "host/generate/input_files.h"
#include "host/generate/request.h"
#include "host/inputs/beside.h"
#include "host/inputs/frame_count.h"
#include "host/inputs/image_file.h"
#include "host/inputs/parse.h"
#include "host/media/clip_writer.h"
#include "host/model/encoder_check.h"
#include "host/model/media_defaults.h"
#include "host/model/stages.h"
#include "host/order/output_paths.h"
#include "host/report/text.h"
#include "host/sampling/sigma_schedule.h"
#include "host/sampling/solvers.h"

namespace atelier::generate {
namespace {

constexpr int64_t kMaxSteps = 1000;   // as many as models learn levels
constexpr int64_t kMaxSide = 65'536;  // pixels

std::string quote(std::string_view text) {
  return formats::quote_and_escape(text);
}

void check_range(bool is_right, const std::string& place, const std::string& value,
                 const std::string& what, report::Problems& problems) {
  if (!is_right) problems.add(place + ": " + value + " is " + what);
}

void check_count(int64_t count, const std::string& place, report::Problems& problems) {
  check_range(count >= 1, place, std::to_string(count), "below 1", problems);
  check_range(count <= order::kMaxImages, place, std::to_string(count),
              "above " + std::to_string(order::kMaxImages), problems);
}

void check_prompts(const order::Settings& s, const ModelFamily* family, const order::Origin& place,
                   report::Problems& problems) {
  const std::string prompt = s.prompt.value_or("");
  if (!s.prompt && family != nullptr) {
    const InputSpec* found = order::find_input_spec(family->inputs(), "prompt");
    if (!found || found->required)
      problems.add(place.of("prompt") + " is missing", found ? std::string(found->help) : "");
  }
  for (const auto& [name, text] :
       {std::pair{"prompt", &prompt}, {"negative_prompt", &s.negative_prompt}}) {
    if (const size_t at = formats::find_invalid_utf8(*text); at != std::string::npos)
      problems.add(place.of(name) + ": byte " + std::to_string(at) + " is no UTF-8");
  }
}

void check_guidance(const order::Settings& s, CfgRenorm preset, const order::Origin& place,
                    report::Problems& problems) {
  check_range(s.cfg_trunc.value_or(1.0) >= 0, place.of("cfg_trunc"),
              std::to_string(s.cfg_trunc.value_or(1.0)), "below 0", problems);
  const auto renorm = s.cfg_renorm.empty() ? preset : find_renorm(s.cfg_renorm);
  if (!renorm) {
    problems.add(place.of("cfg_renorm") + ": " + quote(s.cfg_renorm) + " is not known",
                 "use none, clamp or row");
  }
  if (!s.cfg_renorm_ratio) return;
  check_range(*s.cfg_renorm_ratio > 0, place.of("cfg_renorm_ratio"),
              std::to_string(*s.cfg_renorm_ratio), "not above 0", problems);
  if (s.cfg_renorm.empty() && preset != CfgRenorm::kClamp) {
    problems.add(place.of("cfg_renorm_ratio") + ": nothing is clamped",
                 "set " + place.of("cfg_renorm") + " to clamp, or leave it out");
  }
}

// An error of what makes the noise levels, whose message begins with the setting that it is about.
Error of_schedule(const Error& error, const order::Origin& place) {
  const std::string& text = error.message();
  if (order::is_setting(text.substr(0, text.find(':'))))
    return {error.code(), place.of(text), error.hint(), error.tag()};
  return place.file.empty() ? error : error.at(place.file + ":" + std::to_string(place.line));
}

// Schedule, steps, guidance and strength. Numbers are checked even where the schedule's name is
// wrong.
void check_schedule(const order::Settings& s, const ModelFamily* family, std::string_view variant,
                    const order::Origin& place, report::Problems& problems) {
  const auto collect = [&](auto&& check) {
    try {
      check();
    } catch (const Error& error) {
      problems.add(of_schedule(error, place));
    }
  };
  const ScheduleDefaults any;
  const ScheduleDefaults* schedule = &any;
  if (family != nullptr) collect([&] { schedule = &schedule_of(s, *family, variant); });
  try {
    sampling::find_solver(s.solver.empty() ? schedule->solver : s.solver,
                          family ? family->solvers() : std::span<const SolverSpec>());
  } catch (const Error& error) {
    problems.add(error.at(place.of("solver")));
  }
  collect([&] {
    const auto steps = s.num_inference_steps.value_or(schedule->num_inference_steps);
    sampling::make_sigmas(*schedule,
                          {.num_steps = static_cast<int>(std::clamp<int64_t>(steps, -1, kMaxSteps)),
                           .tokens = 4096,
                           .flow_shift = s.flow_shift,
                           .sigmas = s.sigmas});
  });
  check_guidance(s, schedule->cfg_renorm, place, problems);
  if (s.denoising_strength)
    collect([&] { sampling::keep_last_steps({1.0f, 0.0f}, *s.denoising_strength); });
  const double boundary = s.switch_boundary.value_or(0.0);
  check_range(boundary >= 0 && boundary <= 1, place.of("switch_boundary"), std::to_string(boundary),
              "outside [0, 1]", problems);
  const int64_t num_steps = s.num_inference_steps.value_or(1);
  check_range(num_steps <= kMaxSteps, place.of("num_inference_steps"), std::to_string(num_steps),
              "above " + std::to_string(kMaxSteps), problems);
  if (s.denoising_strength && family != nullptr && !order::has_start(s, family->inputs())) {
    const InputSpec* start = model::start_input(family->inputs());
    const bool is_clip = start != nullptr && inputs::is_clip(start->kind);
    problems.add(place.of("denoising_strength") + ": there is no " +
                     (is_clip ? "clip" : "input image") + " to start from",
                 start ? "give one with " + place.of(start->name) : std::string(order::kNoStart));
  }
}

// The error of an input's file, at its place. Flags of several files are given once for each.
Error with_way_out(const Error& error, const InputSpec& input, const std::string& path,
                   const order::Origin& place) {
  const bool looks_like_several = inputs::is_list(input) && place.is_command_line() &&
                                  error.code() == ErrorCode::kNotFound &&
                                  (path.starts_with('[') || path.find(',') != std::string::npos);
  if (!looks_like_several) return error.at(place.of(input.name));
  return Error(error.code(), error.message(), "give the flag once for each file", error.tag())
      .at(place.of(input.name));
}

void check_files(const order::Settings& s, std::span<const InputSpec> inputs,
                 const order::Origin& place, report::Problems& problems) {
  for (const InputSpec& input : inputs) {
    const auto given = s.family_inputs.find(input.name);
    if (given == s.family_inputs.end() || !inputs::is_file(input.kind)) continue;
    for (const std::string& path : inputs::texts_of(*given)) {
      const auto file = inputs::check_file(input.kind, path, /*decode_all=*/false);
      if (file.error) problems.add(with_way_out(*file.error, input, path, place));
    }
  }
}

// Whether lists that belong together are equally long.
void check_pairs(const order::Settings& s, std::span<const InputSpec> inputs,
                 const order::Origin& place, report::Problems& problems) {
  const auto value_of = [&](std::string_view name) -> const nlohmann::json* {
    const auto given = s.family_inputs.find(name);
    return given == s.family_inputs.end() ? nullptr : &*given;
  };
  for (const auto& [input, error] : inputs::unpaired(inputs, value_of))
    problems.add(error.at(place.of(input->name)));
}

// Whether there is an image to keep what the mask keeps of it, and they belong together. The image
// is told by check_files().
void check_mask(const order::Settings& s, const ModelFamily* family, const order::Origin& place,
                report::Problems& problems) {
  if (s.inpaint_mask.empty()) return;
  const std::string where = place.of("inpaint_mask");
  const auto mask = inputs::check_file(InputKind::kMask, s.inpaint_mask, /*decode_all=*/false);
  if (mask.error) problems.add(mask.error->at(where));
  if (family == nullptr) return;
  const InputSpec* start = model::start_input(family->inputs());
  if (start == nullptr || !inputs::is_image(start->kind))
    return problems.add(where + ": " + order::kNoStart, "leave it out");
  if (!order::has_start(s, family->inputs()))
    return problems.add(where + ": there is no input image to keep a part of",
                        "give one with " + place.of(start->name));
  const std::string path = inputs::texts_of(s.family_inputs.at(start->name)).front();
  const auto image = inputs::check_file(start->kind, path, /*decode_all=*/false);
  if (mask.error || image.error || inputs::has_shape_of(mask.info, image.info)) return;
  problems.add(where + ": " + s.inpaint_mask + " is " +
                   report::size_text(mask.info.height, mask.info.width) + ", " + path + " is " +
                   report::size_text(image.info.height, image.info.width),
               "a mask has the shape of its image, at any size");
}

// Nearest multiples below and above, the lower one only when it is a size.
std::string nearest_sizes(int64_t size, int64_t multiple) {
  const int64_t below = size / multiple * multiple;
  if (size < multiple) return std::to_string(multiple);
  return std::to_string(below) + " or " + std::to_string(below + multiple);
}

void check_size(int64_t size, int64_t multiple, const std::string& place,
                report::Problems& problems) {
  check_range(size <= kMaxSide, place, std::to_string(size), "above " + std::to_string(kMaxSide),
              problems);
  if (size > kMaxSide || (size > 0 && size % multiple == 0)) return;
  problems.add(
      place + ": " + std::to_string(size) + " is no multiple of " + std::to_string(multiple),
      "use " + nearest_sizes(size, multiple));
}

// Whether latents of a file may be a run's. Conditions may add frames, which are known when they
// are encoded; the generator looks again.
bool may_be_noise(const std::vector<int64_t>& shape, const std::vector<int64_t>& wanted,
                  bool has_conditions) {
  if (!has_conditions || shape.size() != wanted.size()) return shape == wanted;
  constexpr size_t kFrames = 2;
  for (size_t axis = 0; axis < shape.size(); ++axis)
    if (shape[axis] != wanted[axis] && (axis != kFrames || shape[axis] < wanted[axis]))
      return false;
  return true;
}

// The shape of noise as samplers have it. Pictures of other programs, [images, C, H, W], have one
// frame.
std::vector<int64_t> with_frames(std::vector<int64_t> shape) {
  if (shape.size() == 4) shape.insert(shape.begin() + 2, 1);
  return shape;
}

std::vector<int64_t> latents_shape(const order::Settings& settings, const Model& model) {
  std::vector<int64_t> shape = model.latent_shape(order::target_of(settings), {});
  shape.insert(shape.begin(), settings.num_images);
  return shape;
}

void check_latents(const order::Settings& s, const Model& model, bool knows_size,
                   const std::string& place, report::Problems& problems) {
  try {
    const files::Checkpoint file = open_latents(s.latents);
    const std::vector<int64_t>& shape = file.index().find("latents")->shape;
    const std::vector<int64_t> wanted = latents_shape(s, model);
    if (knows_size && !may_be_noise(with_frames(shape), wanted, !s.family_inputs.empty()))
      problems.add(place + ": " + s.latents + ": tensor \"latents\": shape " +
                       c10::str(at::IntArrayRef(shape)) + ", " + c10::str(at::IntArrayRef(wanted)) +
                       " expected",
                   "that is [images, channels, frames, height, width] at this size");
  } catch (const Error& error) {
    problems.add(error.at(place));
  }
}

// A clip that is shorter than what is made, where nothing stands behind its end.
void check_frames(const order::Settings& s, const InputSpec& input, const inputs::ImageFile& file,
                  const LatentSpec& spec, const std::string& name, const order::Origin& place,
                  report::Problems& problems) {
  const media::ClipInfo clip = inputs::clip_of(file);
  const double fps = s.fps.value_or(0.0);
  const auto read = std::ssize(inputs::read_frames(input, clip, {order::target_of(s), fps}));
  const bool runs_beside = input.along_clip || input.role == InputRole::kStart;
  if (!runs_beside || read >= *s.num_frames) return;
  const bool is_brought = input.fps > 0 || input.role == InputRole::kStart;
  const double rate = is_brought && fps > 0 ? fps : input.fps;
  std::string text = name + " has " + std::to_string(read) + (read == 1 ? " frame" : " frames");
  if (clip.fps > 0 && rate > 0) text += " at " + report::number_text(rate) + " a second";
  const int64_t most = largest_clip(read, spec);
  problems.add(text + ", and " + std::to_string(*s.num_frames) + " are made",
               "use " + place.of("num_frames") + " " + std::to_string(most) +
                   (most == 1 ? "" : " or less") + ", or a longer clip");
}

// A sound that is shorter than what is made, where nothing stands behind its end.
void check_sound(const order::Settings& s, const InputSpec& input, const media::SoundInfo& sound,
                 const std::string& name, const order::Origin& place, report::Problems& problems) {
  const auto wanted = inputs::part_beside(input, {order::target_of(s), s.fps.value_or(0.0)}).count;
  const int64_t samples =
      media::samples_at_rate(sound.samples, sound.sample_rate, input.sample_rate);
  if (!wanted || input.tail != Tail::kRefuse || !inputs::is_too_short(input, samples, *wanted))
    return;
  problems.add(name + " " + inputs::shorter_text(input, samples, *wanted),
               "use a smaller " + place.of("num_frames") + ", or a longer sound");
}

// Whether what is given is as long as what is made. Files that cannot be read are told by
// check_files().
void check_lengths(const order::Settings& s, const ModelFamily& family, const LatentSpec& spec,
                   const order::Origin& place, report::Problems& problems) {
  for (const InputSpec& input : family.inputs()) {
    const auto given = s.family_inputs.find(input.name);
    if (given == s.family_inputs.end()) continue;
    if (inputs::is_clip(input.kind) || inputs::is_sound(input.kind)) {
      const std::string path = inputs::texts_of(*given).front();
      const std::string name = place.of(input.name) + ": " + path;
      const auto file = inputs::check_file(input.kind, path, /*decode_all=*/false);
      if (file.error) continue;
      if (file.sound) {
        check_sound(s, input, *file.sound, name, place, problems);
      } else {
        check_frames(s, input, file, spec, name, place, problems);
      }
    } else if (input.role == InputRole::kStart && *s.num_frames > 1) {
      problems.add(place.of(input.name) + ": an image does not start " +
                       std::to_string(*s.num_frames) + " frames",
                   "use " + place.of("num_frames") + " 1, or leave the image out");
    }
  }
}

// Each piece of a clip has noise of its own, and begins where the one before ended.
void check_pieces(const order::Settings& s, const model::LoadedModel& model,
                  const order::Origin& place, report::Problems& problems) {
  const ModelFamily& family = model.family();
  const InputSpec* const start = model::start_input(family.inputs());
  const bool starts = order::has_start(s, family.inputs());
  if (s.latents.empty() && !starts) return;
  if (pieces_of(s, family, model.model(), place).empty()) return;
  const std::string why = ": a clip of " + std::to_string(*s.num_frames) +
                          " frames is made in pieces, which begin with noise of their own";
  if (!s.latents.empty()) problems.add(place.of("latents") + why, "leave it out, or make less");
  if (starts) problems.add(place.of(start->name) + why, "leave it out, or make less");
}

}  // namespace

void check_settings(const order::Settings& s, const ModelFamily* family, const order::Origin& place,
                    report::Problems& problems, std::string_view variant) {
  check_prompts(s, family, place, problems);
  check_count(s.num_images, place.of("num_images"), problems);
  check_count(s.batch_size, place.of("batch_size"), problems);
  const double fps = s.fps.value_or(1.0);
  check_range(fps >= 0.01, place.of("fps"), report::number_text(fps), "below 0.01", problems);
  check_schedule(s, family, variant, place, problems);
  check_mask(s, family, place, problems);
  if (family == nullptr) return;
  check_pairs(s, family->inputs(), place, problems);
  check_files(s, family->inputs(), place, problems);
}

bool check_said_target(const order::Settings& s, const order::Origin& place,
                       report::Problems& problems) {
  const size_t before = problems.size();
  for (const auto& [name, said] :
       {std::pair{"num_frames", s.num_frames}, {"height", s.height}, {"width", s.width}})
    check_range(said.value_or(1) >= 1, place.of(name), std::to_string(said.value_or(1)), "below 1",
                problems);
  return problems.size() == before;
}

std::vector<std::string> odd_images(const order::Settings& s, const ModelFamily& family,
                                    const order::Origin& place) {
  std::vector<std::string> odd;
  for (const InputSpec& input : family.inputs()) {
    const auto given = s.family_inputs.find(input.name);
    if (given == s.family_inputs.end() || input.kind != InputKind::kImage ||
        input.role != InputRole::kCondition)
      continue;
    for (const std::string& path : inputs::texts_of(*given)) {
      const auto file = inputs::check_file(input.kind, path, /*decode_all=*/false);
      for (const auto& [what, instead] : inputs::ignored_properties(input, file.info))
        odd.push_back(place.of(input.name) + ": " + files::display_path(path) + " " +
                      std::string(what) + "; " + std::string(instead));
    }
  }
  return odd;
}

void check_sizes(const order::Settings& s, const ModelFamily& family, const Model& model,
                 std::string_view variant, const order::Origin& place, report::Problems& problems) {
  const LatentSpec spec = model.latent_spec();
  const size_t before = problems.size();
  problems.collect([&] {
    if (pieces_of(s, family, model, place).empty())  // which have the frames that the model makes
      inputs::check_frames(*s.num_frames, spec, place.of("num_frames"), problems);
  });
  if (problems.size() == before && s.num_images > 1 && order::makes_too_many(s))
    problems.add(place.of("num_frames") + ": " + std::to_string(*s.num_frames) + " of each of " +
                     std::to_string(s.num_images) + " are more than " +
                     std::to_string(order::kMaxImages) + " files",
                 "make fewer at a time");
  check_size(*s.height, spec.pixel_multiple, place.of("height"), problems);
  check_size(*s.width, spec.pixel_multiple, place.of("width"), problems);
  if (problems.size() > before || s.flow_shift || !s.sigmas.empty()) return;
  const ScheduleDefaults* schedule = nullptr;
  try {
    schedule = &schedule_of(s, family, variant);
  } catch (const Error&) {
    return;  // it is told elsewhere
  }
  try {
    sampling::make_sigmas(*schedule, {.num_steps = schedule->num_inference_steps,
                                      .tokens = tokens_of(order::target_of(s), spec),
                                      .frames = latent_frames_of(order::target_of(s), spec)});
  } catch (const Error& error) {
    problems.add(error.at(order::size_origin(s, place)));
  }
}

void check_against_model(const order::Settings& s, const ModelFamily& family, const Model& model,
                         std::string_view variant, const order::Origin& place,
                         report::Problems& problems) {
  const LatentSpec spec = model.latent_spec();
  const size_t before = problems.size();
  check_sizes(s, family, model, variant, place, problems);
  const bool has_sizes = problems.size() == before;
  for (const InputSpec& input : family.inputs()) {
    if (input.use == InputUse::kTrain || order::is_setting(input.name)) continue;
    const bool is_given = s.family_inputs.contains(input.name);
    const bool holds = inputs::holds_for(input, variant);
    if (is_given && !holds)
      problems.add(inputs::not_taken(input, variant).at(place.of(input.name)));
    if (!is_given && inputs::is_required(input, variant))
      problems.add(place.of(input.name) + " is missing", std::string(input.help));
  }
  if (has_sizes) check_lengths(s, family, spec, place, problems);
  if (!s.latents.empty())
    check_latents(s, model, /*knows_size=*/problems.size() == before, place.of("latents"),
                  problems);
}

void check_form(const order::Settings& s, const model::LoadedModel& model,
                const order::Origin& place, report::Problems& problems) {
  const std::string name = place.of("output") + ": " + formats::quote_and_escape(s.output);
  const media::ClipFormat* const clip = media::find_clip_format(s.output);
  const bool is_clip = clip != nullptr;
  const bool has_alpha = model.model().latent_spec().pixel_channels == 4;
  if (has_alpha && (is_clip || order::is_jpeg(s.output)))
    problems.add(name + " holds no transparency, and the model's pictures have it",
                 "end the name in .png");
  else if (is_clip && model::media_defaults(model).frames_are_pictures)
    problems.add(name + " is a clip's file, and the model makes pictures", "end the name in .png");
  else if (is_clip && !s.fps && s.num_frames.value_or(1) > 1)
    order::check_rate(s, *clip, place, problems);
  problems.collect([&] { check_pieces(s, model, place, problems); });
}

void check_encoders(const order::Settings& s, const model::LoadedModel& model,
                    const order::Origin& place, report::Problems& problems) {
  const size_t denoisers = model.stages().denoisers.size();
  if (s.switch_boundary && denoisers != 2)
    problems.add(place.of("switch_boundary") + ": the model has " + std::to_string(denoisers) +
                     " denoiser, and two take turns",
                 "leave it out, or add the files of the other one to --model_paths");
  if (s.cfg_scale_2 && denoisers < 2)
    problems.add(place.of("cfg_scale_2") + ": the model has one denoiser",
                 "use " + place.of("cfg_scale"));
  for (const auto& [name, value] : s.family_inputs.items()) {
    const int64_t count = value.is_array() ? std::ssize(value) : 1;
    for (const auto& error :
         {model::missing_encoder(model, name), model::missing_control(model, name),
          model::wrong_count(model, name, count)})
      if (error) problems.add(error->at(place.of(name)));
  }
}

}  // namespace atelier::generate
