#include "host/conformance/conformance.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstring>
#include <elf.h>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <stdlib.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include "atelier/error.h"
#include "atelier/host/weight_state.h"
#include "atelier/nn/layers.h"

#include "formats/glob.h"
#include "host/conformance/config_probe.h"
#include "host/files/checkpoint.h"
#include "host/generate/sigma_schedule.h"
#include "host/generate/solvers.h"
#include "host/inputs/parse.h"
#include "host/model/stages.h"
#include "host/plugins/guard.h"
#include "host/weights/component_writer.h"
#include "host/weights/weight_binding.h"
#include "memory/recompute.h"

namespace atelier::conformance {

namespace fs = std::filesystem;

namespace {

constexpr uint64_t kSeed = 20250711;
constexpr double kTolerance = 1e-5;          // of the output's largest value
constexpr double kGradientTolerance = 1e-6;  // of each gradient's largest value

// Ends a check with what it found.
struct Failed {
  std::string detail;
};

template <typename... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  throw Failed{out.str()};
}

template <typename... Parts>
void expect(bool condition, const Parts&... parts) {
  if (!condition) fail(parts...);
}

bool is_snake_case(std::string_view name) {
  if (name.empty() || !std::islower(static_cast<unsigned char>(name.front()))) return false;
  return std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return std::islower(c) || std::isdigit(c) || c == '_';
  });
}

std::string figure(double value) {
  std::ostringstream out;
  out.precision(2);
  out << value;
  return out.str();
}

// The largest difference, relative to the largest value of `expected`.
double difference(const at::Tensor& got, const at::Tensor& expected) {
  if (got.sizes() != expected.sizes()) return INFINITY;
  if (got.numel() == 0) return 0.0;
  const double scale = std::max(expected.to(at::kDouble).abs().max().item<double>(), 1e-30);
  const double error =
      (got.to(at::kDouble) - expected.to(at::kDouble)).abs().max().item<double>() / scale;
  return std::isnan(error) ? INFINITY : error;
}

std::string read_file(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  std::ostringstream bytes;
  bytes << stream.rdbuf();
  return bytes.str();
}

// Names that a shared library defines for others, from its dynamic symbol table.
std::vector<std::string> exported_symbols(const std::string& file) {
  std::vector<std::string> names;
  const auto at = [&]<typename T>(uint64_t offset, T& value) {
    if (offset > file.size() || sizeof(T) > file.size() - offset) return false;
    std::memcpy(&value, file.data() + offset, sizeof(T));
    return true;
  };
  Elf64_Ehdr header;
  if (!at(0, header)) return names;
  for (uint64_t i = 0; i < header.e_shnum; ++i) {
    Elf64_Shdr section, strings;
    if (!at(header.e_shoff + i * sizeof(section), section)) return names;
    if (section.sh_type != SHT_DYNSYM) continue;
    if (!at(header.e_shoff + section.sh_link * sizeof(strings), strings)) return names;
    for (uint64_t offset = 0; offset < section.sh_size; offset += sizeof(Elf64_Sym)) {
      Elf64_Sym symbol;
      if (!at(section.sh_offset + offset, symbol)) return names;
      if (symbol.st_shndx == SHN_UNDEF || ELF64_ST_BIND(symbol.st_info) == STB_LOCAL) continue;
      const uint64_t begin = strings.sh_offset + symbol.st_name;
      if (begin < file.size()) names.push_back(file.substr(begin, file.find('\0', begin) - begin));
    }
  }
  return names;
}

// A folder that is gone when the suite is done.
class ScratchFolder {
 public:
  ScratchFolder() {
    std::string form = (fs::temp_directory_path() / "atelier-conformance-XXXXXX").string();
    if (mkdtemp(form.data()) == nullptr)
      throw Error(ErrorCode::kEnvironment, form + ": cannot be made");
    path_ = form;
  }
  ~ScratchFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  std::string file(const std::string& name) const { return (path_ / name).string(); }

 private:
  fs::path path_;
};

// Values of normal size: scales near 1, products that keep the variance, small biases.
void randomize(nn::Module& module, at::ScalarType dtype) {
  module.visit_weights([&](const std::string&, Weight& weight) {
    const at::IntArrayRef sizes = weight.sizes();
    const int64_t numel = weight.numel();
    const int64_t longest = sizes.empty() ? 1 : *std::max_element(sizes.begin(), sizes.end());
    at::Tensor value = at::randn(sizes, at::kFloat);
    if (weight.name().find("bias") != std::string::npos) {
      value = value * 0.02;
    } else if (numel == longest) {  // one axis: a scale
      value = 1.0 + value * 0.1;
    } else {
      value = value / std::sqrt(static_cast<double>(numel / sizes[0]));
    }
    weight.set(value.to(weight.drawn_dtype(dtype)));
  });
}

// Runs blocks and remembers which.
class CountingRunner final : public BlockRunner {
 public:
  Tensors run(Block& block, const Tensors& inputs) override {
    order.push_back(&block);
    Tensors first = block.forward(inputs);
    if (twice) {
      const Tensors second = block.forward(inputs);
      for (size_t i = 0; i < first.size() && i < second.size(); ++i) {
        if (!at::equal(first[i], second[i])) differing.push_back(block.path());
      }
    }
    return first;
  }
  std::vector<Block*> order;
  bool twice = false;
  std::vector<std::string> differing;
};

class Suite {
 public:
  Suite(const ModelFamily& family, const std::function<void(const Finding&)>& report)
      : family_(family), report_(report) {}

  void run() {
    check("declarations: names are unique and snake_case, help is there",
          [&] { return check_declarations(); });
    check("declarations: schedules and sigma range can be used", [&] { return check_schedules(); });
    check("declarations: stages name what is declared", [&] { return check_stages(); });
    check("parts: tiny parts are declared, required ones are there", [&] { return check_parts(); });
    if (parts_.empty()) return;
    check("weights: the table covers every weight", [&] { return check_tables(); });
    check("weights: load, save, load is bit-equal", [&] { return check_round_trip(); });
    check("detection: takes its own files", [&] { return check_detection(); });
    check("detection: refuses what is not its own", [&] { return check_refusals(); });
    check("detection: every field of a config is seen", [&] { return check_configs(); });
    check("parts: any subset makes a model", [&] { return check_subsets(); });
    for (const Detection& part : parts_) {
      const ComponentSpec* spec = spec_of(part.component);
      if (spec == nullptr || spec->role != Role::kDenoiser) continue;
      denoiser_ = &part;
      check_denoiser();
    }
    if (part_of_role(Role::kVae) != nullptr && target_stage_) {
      check("media: encoding and decoding keep the size", [&] { return check_media(); });
      check("blocks: every block of the VAE runs once and in order",
            [&] { return check_media_blocks(); });
      check("errors: a picture that does not fit", [&] { return check_wrong_picture(); });
    }
    check("texts: the tokens that are counted are those that are encoded",
          [&] { return check_text_length(); });
    check("errors: unknown components and tensors", [&] { return check_unknown_names(); });
  }

 private:
  using Detail = std::string;

  // What is asked of each denoiser.
  void check_denoiser() {
    check("declarations: LoRA globs match linear layers", [&] { return check_lora_targets(); });
    check("denoise: keeps shape and dtype at two sizes and batches",
          [&] { return check_shapes(); });
    check("denoise: a batch equals its samples", [&] { return check_batch(); });
    check("denoise: runs in bfloat16", [&] { return check_bfloat16(); });
    check("denoise: guidance at scale 1 is the prediction with the prompt",
          [&] { return check_guide(); });
    check("blocks: every block of the denoiser runs once and in order",
          [&] { return check_block_order(); });
    check("blocks: running one twice gives equal results", [&] { return check_blocks_pure(); });
    check("gradients: recomputed equal kept", [&] { return check_gradients(); });
    check("errors: a missing conditioning entry", [&] { return check_missing_conditioning(); });
    check("errors: a size that does not fit", [&] { return check_wrong_size(); });
  }

  void check(const std::string& name, const std::function<Detail()>& body) {
    Finding finding{name, true, {}};
    try {
      at::manual_seed(kSeed);
      finding.detail = body();
    } catch (const Failed& failed) {
      finding = {name, false, failed.detail};
    } catch (...) {
      try {
        plugins::rethrow_at(family_.name());
      } catch (const Error& error) {
        finding = {name, false, error.what()};
      }
    }
    report_(finding);
  }

  const ComponentSpec* spec_of(std::string_view component) const {
    for (const ComponentSpec& spec : family_.components()) {
      if (spec.name == component) return &spec;
    }
    return nullptr;
  }

  const Detection* part_of_role(Role role) const {
    for (const Detection& part : parts_) {
      const ComponentSpec* spec = spec_of(part.component);
      if (spec != nullptr && spec->role == role) return &part;
    }
    return nullptr;
  }

  std::unique_ptr<Model> make(std::span<const Detection> parts,
                              const ModelOptions& options = {}) const {
    std::unique_ptr<Model> model = family_.make_model(parts, options);
    expect(model != nullptr, "make_model gives null");
    return model;
  }

  // A model of all parts with random weights.
  std::unique_ptr<Model> make_random(at::ScalarType dtype = at::kFloat,
                                     const ModelOptions& options = {}) const {
    at::manual_seed(kSeed);
    std::unique_ptr<Model> model = make(parts_, options);
    for (const Detection& part : parts_) randomize(model->component(part.component), dtype);
    return model;
  }

  at::Tensor encode_target(Model& model, const at::Tensor& pixels, BlockRunner& runner) const {
    const InputSpec& input = *model::target_input(family_.inputs());
    const bool is_clip = input.kind == InputKind::kVideo;
    return model
        .encode({.stage = target_stage_->name,
                 .values = {{std::string(input.name), is_clip ? pixels : pixels.select(1, 0)}},
                 .target = {pixels.size(1), pixels.size(2), pixels.size(3)}},
                runner)
        .at("latents");
  }

  // All frames, however many calls they come in.
  static at::Tensor decode(Model& model, const at::Tensor& latents, BlockRunner& runner) {
    return model::decode_whole(model, latents, runner, at::kCPU);
  }

  // Latent cells of a size: `rows` and `columns` count the smallest pictures beside each other.
  static std::vector<int64_t> latent_size(const LatentSpec& spec, int64_t rows, int64_t columns) {
    const int64_t step = std::max<int64_t>(1, spec.pixel_multiple / spec.spatial_stride);
    return {rows * step, columns * step};
  }

  struct Step {
    at::Tensor x, sigma;
    std::vector<Conditioning> cond;
    std::vector<const Conditioning*> pointers;
    std::string_view denoiser;
    DenoiseInputs inputs() {
      pointers.clear();
      for (const Conditioning& item : cond) pointers.push_back(&item);
      return {.x_BCTHW = x, .sigma_B = sigma, .cond = pointers, .denoiser = denoiser};
    }
  };

  Step make_step(const LatentSpec& spec, int64_t batch, int64_t rows, int64_t columns,
                 at::ScalarType dtype = at::kFloat, int64_t frames = 1) const {
    const std::vector<int64_t> size = latent_size(spec, rows, columns);
    const SigmaRange range = family_.sigma_range(*denoiser_);
    Step step;
    step.x = at::randn({batch, spec.channels, frames, size[0], size[1]}, at::kFloat).to(dtype);
    step.sigma = range.low + (range.high - range.low) * at::linspace(0.9, 0.3, batch, at::kFloat);
    step.denoiser = denoiser_->component;
    for (int64_t b = 0; b < batch; ++b)
      step.cond.push_back(family_.example_conditioning(*denoiser_, 5 + 2 * b, dtype));
    return step;
  }

  Detail check_declarations() const {
    expect(is_snake_case(family_.name()), "family name '", family_.name(), "'");
    expect(!family_.help().empty(), "the family has no help");
    std::set<std::string_view> names;
    expect(!family_.components().empty(), "there is no component");
    for (const ComponentSpec& spec : family_.components()) {
      expect(is_snake_case(spec.name), "component '", spec.name, "' is not snake_case");
      expect(names.insert(spec.name).second, "component '", spec.name, "' is declared twice");
      expect(!spec.help.empty(), "component '", spec.name, "' has no help");
      expect(!role_name(spec.role).empty(), "component '", spec.name, "' has an unknown role");
    }
    names.clear();
    for (const InputSpec& input : family_.inputs()) {
      expect(is_snake_case(input.name), "input '", input.name, "' is not snake_case");
      expect(names.insert(input.name).second, "input '", input.name, "' is declared twice");
      expect(!input.help.empty(), "input '", input.name, "' has no help");
      expect(!input.variants.empty(), "input '", input.name, "' fits no variant");
      check_input(input);
    }
    const auto count = [&](InputRole role) {
      return std::ranges::count(family_.inputs(), role, &InputSpec::role);
    };
    expect(count(InputRole::kTarget) <= 1, "several inputs are learnt");
    expect(count(InputRole::kStart) <= count(InputRole::kTarget),
           "sampling begins from several inputs, or nothing encodes the one that it begins from");
    return {};
  }

  void check_input(const InputSpec& input) const {
    const auto wants = [&](bool is_right, const char* what) {
      expect(is_right, "input '", input.name, "' ", what);
    };
    const bool is_picture = input.kind == InputKind::kImage;
    const bool is_text = input.kind == InputKind::kText;
    const bool is_list = inputs::is_list(input);
    wants(1 <= input.min_count && input.min_count <= input.max_count, "has no count that is right");
    wants(!is_list || is_text || inputs::is_picture(input.kind), "is a list of what has no lists");
    wants(!is_list || input.role == InputRole::kCondition, "is a list and not a condition");
    wants(input.channels == 3 || (input.channels == 4 && is_picture),
          "has channels that are wrong");
    wants(input.role != InputRole::kTarget || is_picture || input.kind == InputKind::kVideo,
          "is learnt and shows nothing");
    wants(input.role != InputRole::kStart || (is_picture && input.use == InputUse::kGenerate),
          "is begun from and no picture of generation");
    wants(input.role == InputRole::kCondition || input.fit != InputFit::kAsIs,
          "keeps a size that is not the one of what is made");
    wants(input.when_absent == WhenAbsent::kNone ||
              (is_picture && input.channels == 3 && input.use != InputUse::kGenerate &&
               input.role == InputRole::kCondition && model::target_input(family_.inputs())),
          "has a stand-in and is no picture beside the one that is learnt");
  }

  Detail check_stages() {
    std::set<std::string_view> used;
    for (const EncodeStage& stage : family_.encode_stages()) {
      expect(is_snake_case(stage.name), "stage '", stage.name, "' is not snake_case");
      expect(!stage.inputs.empty(), "stage '", stage.name, "' reads nothing");
      for (const std::string_view component : stage.components) {
        used.insert(component);
        expect(spec_of(component) != nullptr, "stage '", stage.name, "': component '", component,
               "' is not declared");
      }
      for (const std::string_view input : stage.inputs)
        expect(
            std::ranges::find(family_.inputs(), input, &InputSpec::name) != family_.inputs().end(),
            "stage '", stage.name, "': input '", input, "' is not declared");
    }
    for (const ComponentSpec& spec : family_.components())
      expect(!model::only_encodes(spec) || used.contains(spec.name), "component '", spec.name,
             "' encodes and is in no stage");
    const std::vector<EncodeStage> stages = model::encode_stages(family_);
    if (const EncodeStage* stage = model::target_stage(stages, family_.inputs()))
      target_stage_ = *stage;
    const bool is_made = !model::target_input(family_.inputs()) || target_stage_;
    expect(is_made, "no stage reads the input that is learnt");
    return std::to_string(stages.size()) + " stages";
  }

  Detail check_schedules() const {
    expect(!family_.schedules().empty(), "there is no schedule");
    std::set<std::pair<std::string_view, std::string_view>> names;
    for (const ScheduleDefaults& schedule : family_.schedules()) {
      expect(!schedule.name.empty() && names.emplace(schedule.name, schedule.variants).second,
             "schedule '", schedule.name, "' has no name of its own");
      const SigmaGrid& grid = schedule.grid;
      expect(grid.low >= 0 && grid.low < grid.high && grid.high <= 1, "schedule '", schedule.name,
             "' falls from ", grid.high, " to ", grid.low);
      const bool is_known = std::ranges::any_of(
          generate::solvers(), [&](const auto& solver) { return solver.name == schedule.solver; });
      expect(is_known, "schedule '", schedule.name, "' names solver '", schedule.solver,
             "', which there is not");
      expect(schedule.num_inference_steps >= 1, "schedule '", schedule.name, "' has no steps");
      expect(schedule.terminal_sigma >= 0 && schedule.terminal_sigma < 1, "schedule '",
             schedule.name, "' ends at ", schedule.terminal_sigma);
      expect(std::isfinite(schedule.cfg_scale), "schedule '", schedule.name,
             "' has no finite cfg_scale");
    }
    for (const Detection& part : family_.tiny_parts()) {
      const ComponentSpec* spec = spec_of(part.component);
      if (spec == nullptr || spec->role != Role::kDenoiser) continue;
      const SigmaRange range = family_.sigma_range(part);
      expect(range.low >= 0 && range.low < range.high && range.high <= 1, "sigma range of ",
             part.component, ": ", range.low, " to ", range.high);
      generate::find_schedule(family_.schedules(), {}, part.variant);
      check_media_defaults(part);
    }
    return {};
  }

  void check_media_defaults(const Detection& denoiser) const {
    const MediaDefaults media = family_.media_defaults(denoiser);
    const auto& [frames, height, width] = media.target;
    const int64_t multiple = make({})->latent_spec().pixel_multiple;
    expect(height > 0 && width > 0 && height % multiple == 0 && width % multiple == 0,
           "default size ", height, "x", width, " is not in multiples of ", multiple);
    expect(frames > 0 && media.fps >= 0 && (frames == 1 || media.fps > 0), "by default ", frames,
           " frames at ", media.fps, " a second");
  }

  Detail check_parts() {
    std::vector<Detection> parts = family_.tiny_parts();
    std::set<std::string> seen;
    for (const Detection& part : parts) {
      expect(spec_of(part.component) != nullptr, "component '", part.component,
             "' is not declared");
      expect(seen.insert(part.component).second, "component '", part.component, "' is there twice");
      expect(!part.variant.empty(), "component '", part.component, "' has no variant");
    }
    for (const ComponentSpec& spec : family_.components()) {
      expect(
          spec.role == Role::kTokenizer || !spec.required || seen.contains(std::string(spec.name)),
          "required component '", spec.name, "' has no tiny part");
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
        expect(weight.numel() <= (1 << 22), "weight '", path, "' of a tiny part has ",
               weight.numel(), " elements");
      });
      expect(count > 0, "component '", part.component, "' has no weight");
      weights += count;
    }
    parts_ = std::move(parts);
    return std::to_string(parts_.size()) + " parts, " + std::to_string(weights) + " weights";
  }

  static TensorIndex index_of(const std::vector<weights::PublishedTensor>& tensors,
                              TensorIndex::Config config = {}) {
    TensorIndex::Tensors metas;
    for (const auto& tensor : tensors)
      metas.emplace(tensor.name, TensorMeta{tensor.dtype, tensor.shape});
    return TensorIndex(std::move(metas), std::move(config));
  }

  Detail check_tables() const {
    const std::unique_ptr<Model> model = make_random();
    int64_t count = 0;
    for (const Detection& part : parts_) {
      const WeightMap rules = family_.weight_map(part);
      nn::Module& module = model->component(part.component);
      const auto tensors = weights::published_tensors(module, rules, part.prefix);
      const auto binding = weights::bind_weights(rules, part.prefix, index_of(tensors), module);
      binding.throw_unless_complete("the table of " + part.component, part.component);
      expect(binding.unused.empty(), part.component, ": '",
             binding.unused.empty() ? "" : binding.unused.front(),
             "' is written and said to be unused");
      count += static_cast<int64_t>(tensors.size());
    }
    return std::to_string(count) + " tensors";
  }

  std::string file_of(const Detection& part, const std::string& suffix) const {
    return scratch_.file(part.component + suffix + ".safetensors");
  }

  Detail check_round_trip() const {
    const std::unique_ptr<Model> model = make_random(), other = make(parts_);
    for (const Detection& part : parts_) {
      const WeightMap rules = family_.weight_map(part);
      nn::Module& module = model->component(part.component);
      nn::Module& loaded = other->component(part.component);
      weights::save_component(module, rules, part.prefix, file_of(part, ""), {});
      const auto file = files::Checkpoint::open({part.component, {file_of(part, "")}});
      const auto binding = weights::bind_weights(rules, part.prefix, file.index(), loaded);
      binding.throw_unless_complete(part.component, part.component);
      weights::load_weights(binding, file, at::kFloat, at::kCPU);
      module.visit_weights([&](const std::string& path, Weight& weight) {
        const WeightPtr twin = loaded.find_weight(path);
        expect(twin != nullptr && at::equal(weight.draw(), twin->draw()), part.component, ": '",
               path, "' is not what was saved");
      });
      weights::save_component(loaded, rules, part.prefix, file_of(part, ".again"), {});
      expect(read_file(file_of(part, "")) == read_file(file_of(part, ".again")), part.component,
             ": the file saved after loading differs");
    }
    return {};
  }

  Detail check_detection() const {
    const std::unique_ptr<Model> model = make_random();
    for (const Detection& part : parts_) {
      const WeightMap rules = family_.weight_map(part);
      nn::Module& module = model->component(part.component);
      for (const std::string& prefix : {part.prefix, std::string("model.diffusion_model.")}) {
        const TensorIndex index =
            index_of(weights::published_tensors(module, rules, prefix), told_config(family_, part));
        // Components of one architecture are told apart by the hint alone.
        std::optional<Detection> found = family_.detect(index, DetectHint{});
        if (found && is_twin(found->component, part.component))
          found = family_.detect(index, DetectHint{part.component, ""});
        if (!found && prefix != part.prefix) continue;  // other prefixes are the family's choice
        expect(found.has_value(), part.component, ": not recognised");
        expect(found->component == part.component, part.component, ": taken for ",
               found->component);
        expect(found->prefix == prefix, part.component, ": prefix '", found->prefix, "', '", prefix,
               "' expected");
        if (prefix == part.prefix) {
          expect(found->variant == part.variant, part.component, ": variant ", found->variant, ", ",
                 part.variant, " expected");
          expect(found->spelling == part.spelling, part.component, ": spelling ", found->spelling,
                 ", ", part.spelling, " expected");
        }
        // What was detected makes the same modules.
        const std::vector<Detection> alone = {*found};
        const std::unique_ptr<Model> again = make(alone);
        weights::bind_weights(family_.weight_map(*found), found->prefix, index,
                              again->component(part.component))
            .throw_unless_complete(part.component + " as detected", part.component);
        expect(family_.detect(index, DetectHint{part.component, ""}).has_value(), part.component,
               ": not recognised when its component is named");
      }
    }
    return {};
  }

  // Whether two components have one role, and their tiny parts the same tensors.
  bool is_twin(std::string_view one, std::string_view other) const {
    const ComponentSpec *a = spec_of(one), *b = spec_of(other);
    if (one == other || a == nullptr || b == nullptr || a->role != b->role) return false;
    std::vector<std::vector<std::string>> names;
    for (const Detection& part : parts_) {
      if (part.component != one && part.component != other) continue;
      std::vector<std::string>& rows = names.emplace_back();
      for (const WeightRule& rule : family_.weight_map(part)) rows.push_back(rule.from);
    }
    return names.size() == 2 && names[0] == names[1];
  }

  Detail check_refusals() const {
    expect(!family_.detect(TensorIndex({}), DetectHint{}), "an empty checkpoint is taken");
    const TensorIndex foreign({{"some.other.weight", TensorMeta{at::kFloat, {3, 5}}},
                               {"some.other.bias", TensorMeta{at::kFloat, {3}}}});
    expect(!family_.detect(foreign, DetectHint{}), "a checkpoint of nobody is taken");
    const std::unique_ptr<Model> model = make_random();
    for (const Detection& part : parts_) {
      const TensorIndex index =
          index_of(weights::published_tensors(model->component(part.component),
                                              family_.weight_map(part), part.prefix),
                   told_config(family_, part));
      for (const Detection& other : parts_) {
        if (other.component == part.component || is_twin(other.component, part.component)) continue;
        try {
          const auto found = family_.detect(index, DetectHint{other.component, ""});
          expect(!found.has_value(), part.component, ": the hint ", other.component,
                 " is not contradicted");
        } catch (const Error& error) {
          expect(error.code() == ErrorCode::kInvalidArgument ||
                     error.code() == ErrorCode::kUnsupported,
                 part.component, ": the hint ", other.component, " gives ", error.what());
        }
      }
    }
    return {};
  }

  Detail check_configs() const {
    const std::unique_ptr<Model> model = make_random();
    size_t rows = 0;
    for (const Detection& part : parts_) {
      const TensorIndex index = index_of(weights::published_tensors(
          model->component(part.component), family_.weight_map(part), part.prefix));
      const std::vector<std::string> faults = config_faults(family_, part, index.tensors());
      expect(faults.empty(), faults.empty() ? "" : faults.front(), ", ", faults.size(), " in all");
      rows += family_.config_fields(part).rows().size();
    }
    return std::to_string(rows) + " fields";
  }

  Detail check_subsets() const {
    make({})->latent_spec();
    for (const Detection& part : parts_) {
      const std::vector<Detection> alone = {part};
      const std::unique_ptr<Model> model = make(alone);
      model->component(part.component);
      for (const Detection& other : parts_) {
        if (other.component == part.component) continue;
        expect_error(ErrorCode::kNotFound,
                     "component " + other.component + " of a model without it",
                     [&] { model->component(other.component); });
      }
    }
    return {};
  }

  static void expect_error(ErrorCode code, const std::string& what,
                           const std::function<void()>& body) {
    try {
      body();
    } catch (const Error& error) {
      expect(error.code() == code, what, ": ", to_string(error.code()), " (", error.what(), "), ",
             to_string(code), " expected");
      return;
    }
    fail(what, ": no error");
  }

  Detail check_lora_targets() const {
    const Detection& dit = *denoiser_;
    const LoraTargets targets = family_.lora_targets(dit);
    const std::unique_ptr<Model> model = make(parts_);
    expect(spec_of(targets.component) != nullptr, "component '", targets.component,
           "' is not declared");
    expect(!targets.include.empty(), "nothing is included");
    std::vector<std::string> linears;
    model->component(targets.component).visit([&](nn::Module& module) {
      if (dynamic_cast<nn::Linear*>(&module) != nullptr) linears.push_back(module.path());
    });
    for (const std::string& glob : targets.include) {
      expect(std::any_of(linears.begin(), linears.end(),
                         [&](const std::string& path) { return formats::glob_match(glob, path); }),
             "'", glob, "' matches no linear layer");
    }
    return {};
  }

  Detail check_shapes() const {
    const at::NoGradGuard no_grad;
    const std::unique_ptr<Model> model = make_random();
    const LatentSpec spec = model->latent_spec();
    for (const auto& [rows, columns] :
         {std::pair<int64_t, int64_t>(2, 3), std::pair<int64_t, int64_t>(5, 2)}) {
      for (const int64_t batch : {1, 2}) {
        // Families of videos take several latent frames, too.
        const int64_t frames = spec.temporal_stride > 1 ? batch : 1;
        Step step = make_step(spec, batch, rows, columns, at::kFloat, frames);
        DirectRunner runner;
        const at::Tensor before = step.x.clone();
        const at::Tensor out = model->denoise(step.inputs(), runner);
        expect(out.sizes() == step.x.sizes(), "gives ", out.sizes(), " for ", step.x.sizes());
        expect(out.scalar_type() == step.x.scalar_type(), "gives another dtype");
        expect(at::isfinite(out).all().item<bool>(), "gives values that are not finite");
        expect(out.data_ptr() != step.x.data_ptr(), "gives its input's memory");
        expect(at::equal(before, step.x), "changes its input");
        expect(at::equal(out, model->denoise(step.inputs(), runner)), "differs when it runs again");
      }
    }
    return {};
  }

  Detail check_batch() const {
    const at::NoGradGuard no_grad;
    const std::unique_ptr<Model> model = make_random();
    Step step = make_step(model->latent_spec(), 2, 3, 2);
    DirectRunner runner;
    const at::Tensor together = model->denoise(step.inputs(), runner);
    double worst = 0;
    for (int64_t b = 0; b < 2; ++b) {
      Step alone;
      alone.x = step.x.narrow(0, b, 1);
      alone.sigma = step.sigma.narrow(0, b, 1);
      alone.cond = {step.cond[static_cast<size_t>(b)]};
      alone.denoiser = step.denoiser;
      worst = std::max(
          worst, difference(together.narrow(0, b, 1), model->denoise(alone.inputs(), runner)));
    }
    expect(worst <= kTolerance, "differs by ", worst, ", at most ", kTolerance, " is allowed");
    return figure(worst);
  }

  Detail check_bfloat16() const {
    const at::NoGradGuard no_grad;
    const std::unique_ptr<Model> exact = make_random(), model = make_random(at::kBFloat16);
    at::manual_seed(kSeed + 1);
    Step step = make_step(exact->latent_spec(), 1, 2, 3, at::kBFloat16);
    DirectRunner runner;
    const at::Tensor out = model->denoise(step.inputs(), runner);
    expect(out.scalar_type() == at::kBFloat16, "gives another dtype");
    step.x = step.x.to(at::kFloat);
    for (Conditioning& cond : step.cond) {
      for (auto& [name, value] : cond) {
        if (value.is_floating_point()) value = value.to(at::kFloat);
      }
    }
    const double error = difference(out, exact->denoise(step.inputs(), runner));
    expect(error < 0.1, "differs from float32 by ", error);
    return figure(error);
  }

  Detail check_guide() const {
    const std::unique_ptr<Model> model = make(parts_);
    const LatentSpec spec = model->latent_spec();
    const std::vector<int64_t> size = latent_size(spec, 2, 3);
    const at::Tensor with = at::randn({1, spec.channels, 1, size[0], size[1]}),
                     without = at::randn_like(with);
    const at::Tensor out = model->guide(with, without, 1.0);
    expect(out.sizes() == with.sizes(), "gives ", out.sizes());
    expect(difference(out, with) < kTolerance, "differs by ", difference(out, with));
    return {};
  }

  static std::string paths(const std::vector<Block*>& blocks) {
    std::string out;
    for (size_t i = 0; i < blocks.size() && i < 8; ++i)
      out += (i > 0 ? ", " : "") + blocks[i]->path();
    return blocks.size() > 8 ? out + ", ..." : out;
  }

  Detail check_block_order() const {
    const at::NoGradGuard no_grad;
    const std::unique_ptr<Model> model = make_random();
    const std::vector<Block*> blocks = model->blocks(denoiser_->component);
    expect(!blocks.empty(), "there are no blocks");
    for (const Block* block : blocks) expect(!block->kind().empty(), "a block has no kind");
    Step step = make_step(model->latent_spec(), 2, 2, 3);
    CountingRunner runner;
    model->denoise(step.inputs(), runner);
    expect(runner.order == blocks, "ran ", paths(runner.order), "; declared are ", paths(blocks));
    return std::to_string(blocks.size()) + " blocks";
  }

  Detail check_blocks_pure() const {
    const at::NoGradGuard no_grad;
    const std::unique_ptr<Model> model = make_random();
    Step step = make_step(model->latent_spec(), 1, 2, 3);
    CountingRunner runner;
    runner.twice = true;
    model->denoise(step.inputs(), runner);
    expect(runner.differing.empty(), "block ",
           runner.differing.empty() ? "" : runner.differing.front(),
           " gives something else the second time");
    return {};
  }

  Detail check_gradients() const {
    const std::unique_ptr<Model> model = make_random();
    Step step = make_step(model->latent_spec(), 2, 2, 3);
    std::vector<at::Tensor> leaves;
    std::vector<std::string> names;
    step.x.set_requires_grad(true);
    leaves.push_back(step.x);
    names.emplace_back("the latents");
    model->component(denoiser_->component)
        .visit_weights([&](const std::string& path, Weight& weight) {
          weight.state().set_trainable(true);
          leaves.push_back(weight.state().leaf());
          names.push_back(path);
        });
    const auto gradients = [&](BlockRunner& runner) {
      const at::Tensor out = model->denoise(step.inputs(), runner);
      return torch::autograd::grad({out}, leaves, {out.detach()}, /*retain_graph=*/false,
                                   /*create_graph=*/false,
                                   /*allow_unused=*/true);
    };
    DirectRunner direct;
    const std::vector<at::Tensor> kept = gradients(direct);
    const ops::ActionPlan all_kept(4096, ops::Action::kKeep);
    ops::ActionPlan alternating(4096, ops::Action::kRecompute);
    for (size_t i = 0; i < alternating.size(); i += 2) alternating[i] = ops::Action::kKeep;
    double worst = 0;
    for (const ops::ActionPlan& plan : {ops::ActionPlan{}, all_kept, alternating}) {
      memory::RecomputeRunner runner(direct, [&](const Block&) { return plan; });
      const std::vector<at::Tensor> recomputed = gradients(runner);
      for (size_t i = 0; i < leaves.size(); ++i) {
        if (!kept[i].defined() && !recomputed[i].defined()) continue;
        const at::Tensor zero = at::zeros_like(leaves[i]);
        const at::Tensor& expected = kept[i].defined() ? kept[i] : zero;
        const double error = difference(recomputed[i].defined() ? recomputed[i] : zero, expected);
        expect(error <= kGradientTolerance, "the gradient of ", names[i], " differs by ", error);
        worst = std::max(worst, error);
      }
    }
    return figure(worst) + ", " + std::to_string(leaves.size()) + " gradients, 3 plans";
  }

  Detail check_missing_conditioning() const {
    const at::NoGradGuard no_grad;
    const std::unique_ptr<Model> model = make_random();
    const Step whole = make_step(model->latent_spec(), 1, 2, 2);
    expect(!whole.cond.front().empty(), "example_conditioning gives nothing");
    Step step = whole;
    step.cond = {Conditioning{}};
    DirectRunner runner;
    expect_error(ErrorCode::kInvalidArgument, "a conditioning without entries",
                 [&] { model->denoise(step.inputs(), runner); });
    return {};
  }

  Detail check_wrong_size() const {
    const at::NoGradGuard no_grad;
    const std::unique_ptr<Model> model = make_random();
    const LatentSpec spec = model->latent_spec();
    Step step = make_step(spec, 1, 2, 2);
    DirectRunner runner;
    step.x = at::randn({1, spec.channels + 1, 1, step.x.size(3), step.x.size(4)});
    expect_error(ErrorCode::kInvalidArgument, "latents with a channel too many",
                 [&] { model->denoise(step.inputs(), runner); });
    if (spec.pixel_multiple > spec.spatial_stride) {
      step.x =
          at::randn({1, spec.channels, 1, 2 * spec.pixel_multiple / spec.spatial_stride + 1, 4});
      expect_error(ErrorCode::kInvalidArgument, "latents whose height does not fit",
                   [&] { model->denoise(step.inputs(), runner); });
    }
    return {};
  }

  Detail check_media() const {
    const at::NoGradGuard no_grad;
    const std::unique_ptr<Model> model = make_random();
    const LatentSpec spec = model->latent_spec();
    DirectRunner runner;
    for (const auto& [rows, columns] :
         {std::pair<int64_t, int64_t>(2, 3), std::pair<int64_t, int64_t>(3, 1)}) {
      const int64_t height = rows * spec.pixel_multiple, width = columns * spec.pixel_multiple;
      const bool is_clip = model::target_input(family_.inputs())->kind == InputKind::kVideo;
      const int64_t frames = is_clip ? 1 + rows * spec.temporal_stride : 1;
      const at::Tensor picture = at::rand({3, frames, height, width}) * 2 - 1;
      const at::Tensor latents = encode_target(*model, picture, runner);
      const std::vector<int64_t> size = model->latent_shape({frames, height, width});
      expect(latents.sizes() == at::IntArrayRef(size), "a picture of ", picture.sizes(),
             " gives latents ", latents.sizes());
      const at::Tensor pixels = decode(*model, latents.unsqueeze(0), runner);
      expect(pixels.dim() == 5 && pixels.size(0) == 1 && pixels[0].sizes() == picture.sizes(),
             "latents ", latents.sizes(), " give pixels ", pixels.sizes());
      expect(pixels.scalar_type() == at::kFloat, "pixels are not float32");
      expect(at::isfinite(pixels).all().item<bool>() && at::isfinite(latents).all().item<bool>(),
             "gives values that are not finite");
      const at::Tensor two = decode(*model, at::stack({latents, latents * 0.5}), runner);
      expect(two.size(0) == 2 && difference(two.narrow(0, 0, 1), pixels) <= kTolerance,
             "a batch of two decodes to something else");
      if (spec.temporal_stride == 1) continue;
      const at::Tensor clip = decode(*model, at::cat({latents, latents}, 1).unsqueeze(0), runner);
      expect(clip.size(2) == 1 + spec.temporal_stride, "two latent frames decode to ",
             clip.size(2));
    }
    return {};
  }

  Detail check_media_blocks() const {
    const at::NoGradGuard no_grad;
    const std::unique_ptr<Model> model = make_random();
    const LatentSpec spec = model->latent_spec();
    const std::vector<Block*> blocks = model->blocks(part_of_role(Role::kVae)->component);
    CountingRunner encoding, decoding;
    const at::Tensor latents = encode_target(
        *model, at::rand({3, 1, 2 * spec.pixel_multiple, 2 * spec.pixel_multiple}) * 2 - 1,
        encoding);
    decode(*model, latents.unsqueeze(0), decoding);
    std::vector<Block*> both = encoding.order;
    both.insert(both.end(), decoding.order.begin(), decoding.order.end());
    expect(both == blocks, "encoding and decoding ran ", paths(both), "; declared are ",
           paths(blocks));
    return std::to_string(blocks.size()) + " blocks";
  }

  Detail check_wrong_picture() const {
    const at::NoGradGuard no_grad;
    const std::unique_ptr<Model> model = make_random();
    const LatentSpec spec = model->latent_spec();
    if (spec.spatial_stride == 1) return "every size fits";
    DirectRunner runner;
    expect_error(ErrorCode::kInvalidArgument, "a picture whose width does not fit", [&] {
      encode_target(*model, at::rand({3, 1, 2 * spec.pixel_multiple, spec.pixel_multiple + 1}),
                    runner);
    });
    return {};
  }

  // A text as long as is allowed is encoded; one token more is refused, or cut when that is asked.
  Detail check_text_length() const {
    const at::NoGradGuard no_grad;
    const std::unique_ptr<Model> model = make_random();
    const std::vector<EncodeStage> stages = model::encode_stages(family_);
    const auto stage = std::ranges::find_if(stages, model::is_prompted);
    if (stage == stages.end()) return "no stage reads a prompt";
    const auto text_of = [&](size_t letters) {
      return EncodeInputs{.stage = stage->name, .values = {{"prompt", std::string(letters, 'a')}}};
    };
    if (has_tokenizer()) {
      expect_error(ErrorCode::kUnsupported, "counting tokens without a tokenizer",
                   [&] { model->text_length(text_of(4)); });
      return "without its tokenizer there is nothing to count";
    }
    constexpr size_t kMostLetters = size_t{1} << 20;
    const auto fits = [&](size_t letters) {
      const TextLength length = model->text_length(text_of(letters));
      return length.tokens <= length.limit;
    };
    expect(fits(1), "a text of one letter is said to be too long");
    if (fits(kMostLetters)) return "no text is too long";
    size_t longest = 1, too_long = kMostLetters;
    while (too_long - longest > 1) {
      const size_t middle = (longest + too_long) / 2;
      (fits(middle) ? longest : too_long) = middle;
    }
    DirectRunner runner;
    model->encode(text_of(longest), runner);
    expect_error(ErrorCode::kInvalidArgument, "a text that is too long",
                 [&] { model->encode(text_of(too_long), runner); });
    expect(
        !make_random(at::kFloat, {.cuts_texts = true})->encode(text_of(too_long), runner).empty(),
        "a text that is cut gives nothing");
    return std::to_string(longest) + " letters are encoded";
  }

  bool has_tokenizer() const {
    return std::any_of(family_.components().begin(), family_.components().end(),
                       [](const ComponentSpec& spec) { return spec.role == Role::kTokenizer; });
  }

  Detail check_unknown_names() const {
    const std::unique_ptr<Model> model = make_random();
    DirectRunner runner;
    expect_error(ErrorCode::kNotFound, "an unknown component",
                 [&] { model->component("no_such_component"); });
    for (const Detection& part : parts_) {
      expect_error(ErrorCode::kInvalidArgument,
                   "probing " + part.component + " with an unknown tensor", [&] {
                     model->probe(part.component, {{"no_such_tensor", at::zeros({1})}}, runner);
                   });
    }
    if (has_tokenizer())
      expect_error(ErrorCode::kUnsupported, "tokenizing without a tokenizer",
                   [&] { model->tokenize("text"); });
    return {};
  }

  const ModelFamily& family_;
  const std::function<void(const Finding&)>& report_;
  std::vector<Detection> parts_;
  const Detection* denoiser_ = nullptr;  // that is checked
  std::optional<EncodeStage> target_stage_;
  ScratchFolder scratch_;
};

}  // namespace

void check_door(const plugins::Plugin& plugin, const std::function<void(const Finding&)>& report) {
  const auto add = [&](const std::string& check, const std::string& problem) {
    report({check, problem.empty(), problem});
  };
  std::string problem;
  if (plugin.file.family != plugin.family->name())
    problem = "the note says '" + plugin.file.family + "', the family '" +
              std::string(plugin.family->name()) + "'";
  if (plugin.file.version.empty()) problem = "the note has no version";
  add("door: note and family agree", problem);
  const bool is_same = plugins::open_plugin(plugin.file.path, "").family == plugin.family;
  add("door: opening again gives the same family", is_same ? "" : "another one");
  const std::vector<std::string> symbols = exported_symbols(read_file(plugin.file.path));
  problem.clear();
  if (symbols != std::vector<std::string>{"atelier_plugin"}) {
    problem = "exports " + std::to_string(symbols.size()) + " symbols:";
    for (size_t i = 0; i < symbols.size() && i < 4; ++i) problem += " " + symbols[i];
    problem += "; build it with atelier_add_plugin()";
  }
  add("door: one symbol is exported", problem);
}

void check_family(const ModelFamily& family, const std::function<void(const Finding&)>& report) {
  Suite(family, report).run();
}

std::vector<Finding> check_family(const ModelFamily& family) {
  std::vector<Finding> findings;
  check_family(family, [&](const Finding& finding) { findings.push_back(finding); });
  return findings;
}

}  // namespace atelier::conformance
