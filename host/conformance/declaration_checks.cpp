// What a family declares, asked without any weight.
#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <set>

#include <ATen/ATen.h>

#include "formats/glob.h"
#include "host/conformance/checks.h"
#include "host/inputs/parse.h"
#include "host/model/components.h"
#include "host/model/stages.h"
#include "host/order/generation.h"
#include "host/order/serving.h"
#include "host/sampling/sigma_schedule.h"
#include "host/sampling/solvers.h"

namespace atelier::conformance {

namespace {

constexpr int64_t kMostInstances = 64;

class DeclarationChecks : Checks {
 public:
  explicit DeclarationChecks(Subject& subject) : Checks(subject) {}

  void run() {
    check("declarations: names are unique and snake_case, help is there",
          [&] { return check_declarations(); });
    check("declarations: schedules and sigma range can be used", [&] { return check_schedules(); });
    check("declarations: stages name what is declared", [&] { return check_stages(); });
    check("parts: tiny parts are declared, required ones are there", [&] { return check_parts(); });
  }

 private:
  Detail check_declarations() const {
    expect(is_snake_case(family().name()), "family name '", family().name(), "'");
    expect(!family().help().empty(), "the family has no help");
    std::set<std::string_view> names;
    expect(!family().components().empty(), "there is no component");
    for (const ComponentSpec& spec : family().components()) {
      expect(is_snake_case(spec.name), "component '", spec.name, "' is not snake_case");
      expect(names.insert(spec.name).second, "component '", spec.name, "' is declared twice");
      expect(!spec.help.empty(), "component '", spec.name, "' has no help");
      expect(!role_name(spec.role).empty(), "component '", spec.name, "' has an unknown role");
      expect(!spec.variants.empty(), "component '", spec.name, "' is of no variant");
      check_control(spec);
    }
    names.clear();
    for (const InputSpec& input : family().inputs()) {
      expect(is_snake_case(input.name), "input '", input.name, "' is not snake_case");
      expect(names.insert(input.name).second, "input '", input.name, "' is declared twice");
      expect(!input.help.empty(), "input '", input.name, "' has no help");
      expect(!input.variants.empty(), "input '", input.name, "' fits no variant");
      check_flag(input);
      check_input(input);
      check_negative(input);
    }
    const auto count = [&](InputRole role) {
      return std::ranges::count(family().inputs(), role, &InputSpec::role);
    };
    expect(count(InputRole::kTarget) <= 1, "several inputs are the target");
    check_soundtracks();
    expect(count(InputRole::kStart) <= count(InputRole::kTarget),
           "sampling begins from several inputs, or nothing encodes the one that it begins from");
    return {};
  }

  // What generate and serve are asked for whatever the family: their flags, and keys of a line of a
  // prompts file. The prompts among them are the family's inputs, too.
  static std::set<std::string> taken_names() {
    std::set<std::string> names = {"help", "loras"};
    for (const flags::CommandSpec& command :
         {order::generate_command(nullptr), order::serve_command(nullptr)}) {
      for (const flags::FlagSpec& flag : command.flags) names.insert(flag.name);
    }
    names.erase("prompt");
    names.erase("negative_prompt");
    return names;
  }

  // Inputs that are for training alone are columns of a dataset, and no flags.
  void check_flag(const InputSpec& input) const {
    static const std::set<std::string> kTaken = taken_names();
    expect(input.use == InputUse::kTrain || !kTaken.contains(std::string(input.name)), "input '",
           input.name, "' has the name of --", input.name,
           ", which every family has and which is read in its place: choose another one");
  }

  void check_control(const ComponentSpec& spec) const {
    const auto wants = [&](bool is_right, const char* what) {
      expect(is_right, "component '", spec.name, "' ", what);
    };
    const bool is_control = spec.role == Role::kControl;
    wants(is_control || (spec.beside.empty() && spec.max_count == 1),
          "runs beside another one, or has several files, and is no control");
    if (!is_control) return;
    const auto denoiser =
        std::ranges::find(family().components(), spec.beside, &ComponentSpec::name);
    wants(denoiser != family().components().end() && denoiser->role == Role::kDenoiser,
          "is a control beside no denoiser");
    wants(spec.max_count >= 1 && spec.max_count <= kMostInstances, "has a max_count that is wrong");
  }

  // Values that belong to the files of a control.
  void check_instances(const InputSpec& input) const {
    if (input.per_instance_of.empty()) return;
    const auto control =
        std::ranges::find(family().components(), input.per_instance_of, &ComponentSpec::name);
    expect(control != family().components().end() && control->role == Role::kControl, "input '",
           input.name, "': component '", input.per_instance_of, "' is no control");
    expect(input.min_count == 1 && input.max_count == control->max_count, "input '", input.name,
           "' has from ", input.min_count, " to ", input.max_count, " values, and the component '",
           control->name, "' up to ", control->max_count, " files");
    const bool is_read = std::ranges::any_of(family().encode_stages(), [&](const auto& stage) {
      return model::reads(stage, input.name);
    });
    expect(is_read, "input '", input.name, "' is for a control, and no stage reads it");
  }

  void check_input(const InputSpec& input) const {
    check_instances(input);
    const auto wants = [&](bool is_right, const char* what) {
      expect(is_right, "input '", input.name, "' ", what);
    };
    const bool is_image = input.kind == InputKind::kImage;
    const bool is_text = input.kind == InputKind::kText;
    const bool is_list = inputs::is_list(input);
    wants(1 <= input.min_count && input.min_count <= input.max_count, "has no count that is right");
    const bool is_number = input.kind == InputKind::kInteger || input.kind == InputKind::kReal;
    wants(!is_list || is_text || is_number || inputs::is_image(input.kind),
          "is a list of what has no lists");
    wants(!is_list || input.role == InputRole::kCondition ||
              (input.role == InputRole::kTarget && is_image),
          "is a list and not a condition, nor the pictures to learn");
    const bool is_sound = inputs::is_sound(input.kind);
    wants(is_sound ? input.channels == 1 || input.channels == 2
                   : input.channels == 3 || (input.channels == 4 && is_image),
          "has channels that are wrong");
    wants(input.role != InputRole::kTarget || is_image || input.kind == InputKind::kVideo,
          "is the target and shows nothing");
    const InputSpec* target = model::target_input(family().inputs());
    const bool is_clip = input.kind == InputKind::kVideo;
    wants(input.role != InputRole::kStart ||
              ((is_image || is_clip) && input.use == InputUse::kGenerate),
          "is begun from and neither image nor clip of generation");
    wants(input.role != InputRole::kStart || !is_clip ||
              (target != nullptr && target->kind == InputKind::kVideo),
          "is a clip to begin from, and the target is none");
    wants(input.role == InputRole::kCondition || input.fit != InputFit::kAsIs,
          "keeps a size that is not the one of what is made");
    const bool is_beside_target = is_image && input.use != InputUse::kGenerate &&
                                  input.role == InputRole::kCondition && target != nullptr;
    const bool has_replacement =
        input.when_absent != WhenAbsent::kNone && input.when_absent != WhenAbsent::kLeftOut;
    wants(!has_replacement || (is_beside_target && input.channels == 3),
          "has a replacement and is no image beside the target");
    wants(input.when_absent != WhenAbsent::kLeftOut || (is_beside_target && !input.required),
          "may be left out and is no image beside the target, or is required");
    wants(!input.lies_on_target || (is_beside_target && target->kind == InputKind::kImage),
          "lies on the target and is no image beside an image");
    check_lists(input);
    check_fit(input);
    check_times(input);
  }

  void check_lists(const InputSpec& input) const {
    const auto wants = [&](bool is_right, const char* what) {
      expect(is_right, "input '", input.name, "' ", what);
    };
    wants(input.choices.empty() || input.kind == InputKind::kText, "has choices and is no text");
    const std::set<std::string_view> choices(input.choices.begin(), input.choices.end());
    wants(choices.size() == input.choices.size() && !choices.contains(""),
          "has choices that are empty or twice there");
    const InputSpec* pair = input_of(input.paired_with);
    wants(input.paired_with.empty() || (pair != nullptr && pair->name != input.name),
          "is paired with no other input");
    wants(pair == nullptr || (inputs::is_list(input) && inputs::is_list(*pair)),
          "is paired, and one of the two is no list");
  }

  // To which size an image or a clip is brought, and how.
  void check_fit(const InputSpec& input) const {
    const auto wants = [&](bool is_right, const char* what) {
      expect(is_right, "input '", input.name, "' ", what);
    };
    const bool has_pixels = inputs::is_image(input.kind) || inputs::is_clip(input.kind);
    const bool has_size = input.fit_height != 0 || input.fit_width != 0;
    const bool is_scaled = has_pixels && input.fit != InputFit::kAsIs;
    wants(input.filter == std::nullopt || is_scaled, "has a filter, and nothing is scaled");
    wants(!has_size || (input.fit_height > 0 && input.fit_width > 0),
          "has one side of a size of its own");
    wants(!has_size || (is_scaled && input.role == InputRole::kCondition),
          "has a size of its own, and nothing is brought to it");
    wants(0 <= input.pad_level && input.pad_level <= 255, "has a pad_level outside of 0 to 255");
    wants(input.pad_level == 0 || (input.fit == InputFit::kPad && !inputs::is_mask(input.kind)),
          "has a pad_level, and no such gray is beside it");
  }

  // Rates, and what runs beside the clip that is made.
  void check_times(const InputSpec& input) const {
    const auto wants = [&](bool is_right, const char* what) {
      expect(is_right, "input '", input.name, "' ", what);
    };
    const bool is_clip = inputs::is_clip(input.kind), is_sound = inputs::is_sound(input.kind);
    const bool is_condition = input.role == InputRole::kCondition;
    constexpr double kMostFps = 1000;
    constexpr int64_t kMostRate = 768'000;
    wants(input.fps == 0 || (is_clip && is_condition), "has fps and is no clip beside the target");
    wants(0 <= input.fps && input.fps <= kMostFps, "has fps that are out of range");
    wants(!input.along_clip || ((is_clip || is_sound) && is_condition),
          "runs along the clip and is neither clip nor sound beside the target");
    wants(input.tail == Tail::kRefuse || input.along_clip,
          "has a tail and does not run along the clip");
    wants(input.tail != Tail::kMinusOne || !inputs::is_mask(input.kind),
          "has a tail of -1, which is no value of a mask");
    wants(0 < input.sample_rate && input.sample_rate <= kMostRate,
          "has a sample_rate that is out of range");
    const bool has_sound = is_sound || input.kind == InputKind::kVideo;
    wants(!input.is_soundtrack || (has_sound && input.use != InputUse::kTrain),
          "is the soundtrack and no sound or clip of generation");
  }

  // One variant writes one sound.
  void check_soundtracks() const {
    std::set<std::string_view> variants;
    for (const InputSpec& input : family().inputs()) {
      if (!input.is_soundtrack) continue;
      const bool is_alone = variants.insert(input.variants).second &&
                            (variants.size() == 1 || !variants.contains("*"));
      expect(is_alone, "input '", input.name, "' is the soundtrack beside another one");
    }
  }

  // Null: there is none of that name.
  const InputSpec* input_of(std::string_view name) const {
    const auto found = std::ranges::find(family().inputs(), name, &InputSpec::name);
    return found == family().inputs().end() ? nullptr : &*found;
  }

  Detail check_stages() {
    std::set<std::string_view> used;
    for (const EncodeStage& stage : family().encode_stages()) {
      expect(is_snake_case(stage.name), "stage '", stage.name, "' is not snake_case");
      expect(!stage.inputs.empty() || stage.per_piece, "stage '", stage.name, "' reads nothing");
      for (const std::string_view component : stage.components) {
        used.insert(component);
        expect(spec_of(component) != nullptr, "stage '", stage.name, "': component '", component,
               "' is not declared");
      }
      check_stage_inputs(stage);
    }
    for (const ComponentSpec& spec : family().components())
      expect(!model::only_encodes(spec) || used.contains(spec.name), "component '", spec.name,
             "' encodes and is in no stage");
    const model::Stages stages = model::stages_of(family(), {});
    if (const EncodeStage* stage = stages.target_stage()) subject_.target_stage = *stage;
    const bool is_made = stages.target_input == nullptr || subject_.target_stage;
    expect(is_made, "no stage reads the target");
    return std::to_string(stages.encoding.size()) + " stages";
  }

  // What stands for another input on the negative branch is a text, and a stage reads that input
  // for that branch, too.
  void check_negative(const InputSpec& input) const {
    if (input.negative_of.empty()) return;
    const auto positive = std::ranges::find(family().inputs(), input.negative_of, &InputSpec::name);
    expect(positive != family().inputs().end() && positive->kind == InputKind::kText &&
               input.kind == InputKind::kText,
           "input '", input.name, "' stands for '", input.negative_of, "', and one is no text");
    expect(inputs::is_list(input) == inputs::is_list(*positive), "input '", input.name,
           "' stands for '", input.negative_of, "', and one is a list");
    const auto reads = [&](const EncodeStage& stage) {
      return model::runs_per_branch(stage) && model::reads(stage, input.negative_of);
    };
    expect(std::ranges::any_of(family().encode_stages(), reads), "input '", input.name,
           "' stands for '", input.negative_of,
           "' on the negative branch, and no stage of each branch reads that");
  }

  // What runs beside a clip is read for each piece or for the whole, by one stage or another.
  void check_pieces(const EncodeStage& stage) const {
    const auto is_along = [&](std::string_view name) {
      const auto input = std::ranges::find(family().inputs(), name, &InputSpec::name);
      return input != family().inputs().end() && input->along_clip;
    };
    const InputSpec* const target = model::target_input(family().inputs());
    expect(!stage.per_piece || target == nullptr || !model::reads(stage, target->name), "stage '",
           stage.name, "' encodes what training learns, which has no pieces");
    for (const std::string_view name : stage.inputs)
      expect(stage.per_piece || !is_along(name) || !has_pieces(stage), "stage '", stage.name,
             "' reads '", name, "', which runs beside the clip, and does not run for each piece");
  }

  // Whether globs between bars are for what others are for, too, as far as one of them is a name or
  // a part of the other.
  static bool have_same(std::string_view globs, std::string_view others) {
    for (size_t end = 0; end != std::string_view::npos;) {
      end = others.find('|');
      if (formats::any_glob_matches(globs, others.substr(0, end))) return true;
      if (end != std::string_view::npos) others.remove_prefix(end + 1);
    }
    return false;
  }

  // Whether the variants of `stage`, or some of them, make clips in pieces.
  bool has_pieces(const EncodeStage& stage) const {
    return std::ranges::any_of(family().encode_stages(), [&](const EncodeStage& other) {
      return other.per_piece && (have_same(other.variants, stage.variants) ||
                                 have_same(stage.variants, other.variants));
    });
  }

  void check_stage_inputs(const EncodeStage& stage) const {
    check_pieces(stage);
    for (const std::string_view name : stage.inputs) {
      const auto input = std::ranges::find(family().inputs(), name, &InputSpec::name);
      expect(input != family().inputs().end(), "stage '", stage.name, "': input '", name,
             "' is not declared");
      if (!input->required || input->variants != "*" || stage.variants != "*") continue;
      for (const std::string_view component : stage.components) {
        const ComponentSpec& spec = *spec_of(component);
        expect(spec.required || spec.variants != "*", "component '", component,
               "' is optional, and stage '", stage.name, "' always runs: input '", name,
               "' is required");
      }
    }
  }

  bool is_solver(std::string_view name) const {
    try {
      sampling::find_solver(name, family().solvers());
      return true;
    } catch (const Error&) {
      return false;
    }
  }

  void check_solvers() const {
    std::set<std::string_view> names;
    for (const SolverSpec& solver : sampling::solvers()) names.insert(solver.name);
    for (const SolverSpec& solver : family().solvers()) {
      expect(names.insert(solver.name).second, "solver '", solver.name,
             "' has a name that another one has");
      check_solver(solver);
    }
  }

  // Between two steps all that it remembers is moved.
  void check_solver(const SolverSpec& spec) const {
    const std::vector<float> sigmas = {1.0F, 0.75F, 0.5F, 0.2F, 0.0F};
    const at::Tensor noise = at::linspace(-2.0, 2.0, 24).view({1, 2, 1, 3, 4});
    const at::Tensor v = noise.neg(), kept = v.clone();
    const auto walk = [&](bool moves) {
      at::Tensor x = noise.clone();
      const auto solver = spec.make(sigmas, x);
      expect(solver != nullptr, "solver '", spec.name, "' is none");
      for (size_t i = 0; i + 1 < sigmas.size(); ++i) {
        solver->step(x, v);
        if (moves) solver->visit([](at::Tensor& tensor) { tensor = tensor.clone(); });
      }
      expect(x.sizes() == noise.sizes() && x.scalar_type() == at::kFloat, "solver '", spec.name,
             "' changes the shape or the dtype of latents");
      return x;
    };
    const at::Tensor end = walk(/*moves=*/false);
    expect(at::isfinite(end).all().item<bool>(), "solver '", spec.name,
           "' gives values that are not finite");
    expect(at::equal(v, kept), "solver '", spec.name, "' changes the velocity that it is given");
    expect(at::equal(end, walk(/*moves=*/true)), "solver '", spec.name,
           "' does not visit all that it remembers, or draws noise of its own");
  }

  Detail check_schedules() const {
    expect(!family().schedules().empty(), "there is no schedule");
    check_solvers();
    std::set<std::array<std::string_view, 3>> names;
    for (const ScheduleDefaults& schedule : family().schedules()) {
      const bool is_new = names.insert({schedule.name, schedule.variants, schedule.solver}).second;
      expect(!schedule.name.empty() && is_new, "schedule '", schedule.name,
             "' has no name of its own");
      const SigmaGrid& grid = schedule.grid;
      expect(grid.low >= 0 && grid.low < grid.high && grid.high <= 1, "schedule '", schedule.name,
             "' falls from ", grid.high, " to ", grid.low);
      expect(is_solver(schedule.solver), "schedule '", schedule.name, "' names solver '",
             schedule.solver, "', which there is not");
      expect(schedule.num_inference_steps >= 1, "schedule '", schedule.name, "' has no steps");
      expect(schedule.terminal_sigma >= 0 && schedule.terminal_sigma < 1, "schedule '",
             schedule.name, "' ends at ", schedule.terminal_sigma);
      expect(std::isfinite(schedule.cfg_scale) && std::isfinite(schedule.cfg_scale_2.value_or(1.0)),
             "schedule '", schedule.name, "' has no finite cfg_scale");
    }
    std::map<double, double> covered;  // ends of ranges, by their beginnings
    for (const Detection& part : family().tiny_parts()) {
      const ComponentSpec* spec = spec_of(part.component);
      if (spec == nullptr || spec->role != Role::kDenoiser) continue;
      const SigmaRange range = family().sigma_range(part);
      expect(range.low >= 0 && range.low < range.high && range.high <= 1, "sigma range of ",
             part.component, ": ", range.low, " to ", range.high);
      covered[range.low] = std::max(covered[range.low], range.high);
      sampling::find_schedule(family().schedules(), {}, part.variant);
      check_media_defaults(part);
    }
    double reached = 0.0;
    for (const auto& [low, high] : covered) {
      if (low <= reached) reached = std::max(reached, high);
    }
    expect(covered.empty() || reached >= 1.0, "no denoiser covers noise levels above ", reached);
    return {};
  }

  void check_media_defaults(const Detection& denoiser) const {
    const MediaDefaults media = family().media_defaults(denoiser);
    const auto& [frames, height, width] = media.target;
    const LatentSpec spec = make({})->latent_spec();
    const int64_t multiple = spec.pixel_multiple;
    expect(height > 0 && width > 0 && height % multiple == 0 && width % multiple == 0,
           "default size ", height, "x", width, " is not in multiples of ", multiple);
    expect(frames > 0 && media.fps >= 0 && (frames == 1 || media.fps > 0), "by default ", frames,
           " frames at ", media.fps, " a second");
    expect(frames == 1 || (spec.takes_clips && (frames - 1) % spec.temporal_stride == 0),
           "by default ", frames, " frames, which the latents do not take");
  }

  // Empty where there is none.
  std::string denoiser_variant(const std::vector<Detection>& parts) const {
    for (const Detection& part : parts) {
      if (model::has_role(family(), part.component, Role::kDenoiser)) return part.variant;
    }
    return {};
  }

  Detail check_parts() {
    std::vector<Detection> parts = family().tiny_parts();
    std::set<std::string> seen;
    const std::string variant = denoiser_variant(parts);
    for (const Detection& part : parts) {
      const ComponentSpec* spec = spec_of(part.component);
      expect(spec != nullptr, "component '", part.component, "' is not declared");
      expect(variant.empty() || model::holds_for(*spec, variant), "component '", part.component,
             "' is for '", spec->variants, "', and the tiny denoiser is '", variant, "'");
      expect(seen.insert(part.component).second, "component '", part.component, "' is there twice");
      expect(!part.variant.empty(), "component '", part.component, "' has no variant");
    }
    for (const ComponentSpec& spec : family().components()) {
      const bool is_needed =
          spec.role != Role::kTokenizer && spec.required && model::holds_for(spec, variant);
      expect(!is_needed || seen.contains(std::string(spec.name)), "required component '", spec.name,
             "' has no tiny part");
    }
    expect(!parts.empty(), "there are no tiny parts");
    std::unique_ptr<Model> model = make(parts);
    int64_t weights = 0;
    for (const Detection& part : parts) {
      int64_t count = 0;
      std::set<std::string> paths;
      model->component(part.component).visit_weights([&](const std::string& path, Weight& weight) {
        ++count;
        expect(paths.insert(path).second, "weight '", path, "' is declared twice");
        expect(model::component_of(part.component + "." + path) == part.component, "weight '", path,
               "' of '", part.component, "' begins with a number, as names of several files do");
        expect(weight.numel() <= (1 << 22), "weight '", path, "' of a tiny part has ",
               weight.numel(), " elements");
      });
      expect(count > 0, "component '", part.component, "' has no weight");
      weights += count;
    }
    subject_.parts = std::move(parts);
    return std::to_string(subject_.parts.size()) + " parts, " + std::to_string(weights) +
           " weights";
  }
};

}  // namespace

void check_declarations(Subject& subject) {
  DeclarationChecks(subject).run();
}

}  // namespace atelier::conformance
