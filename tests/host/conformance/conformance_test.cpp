#include "host/conformance/conformance.h"

#include <type_traits>

#include "host/conformance/checks.h"
#include "host/plugins/plugin_loader.h"
#include "support/files.h"
#include "support/toy_family.h"

using namespace atelier;
using conformance::Finding;

static_assert(!std::is_copy_constructible_v<conformance::Subject> &&
              !std::is_move_constructible_v<conformance::Subject>);

namespace {

std::vector<std::string> failed(const std::vector<Finding>& findings) {
  std::vector<std::string> names;
  for (const Finding& finding : findings) {
    if (!finding.passed) names.push_back(finding.check + ": " + finding.detail);
  }
  return names;
}

// The checks that a toy with this mistake fails.
std::vector<std::string> failed_with(const test::ToyMistakes& mistakes) {
  return failed(conformance::check_family(test::ToyFamily(mistakes)));
}

// A toy that counts tokens without any file.
class ToyWithoutTokenizer final : public test::ToyFamily {
 public:
  using ToyFamily::ToyFamily;
  std::span<const ComponentSpec> components() const override {
    return ToyFamily::components().first(3);
  }
  std::span<const EncodeStage> encode_stages() const override {
    static const std::vector<EncodeStage> kStages = [&] {
      std::vector<EncodeStage> stages(ToyFamily::encode_stages().begin(),
                                      ToyFamily::encode_stages().end());
      stages[0].components = stages[0].components.first(1);
      return stages;
    }();
    return kStages;
  }
  std::unique_ptr<Model> make_model(std::span<const Detection> parts,
                                    const ModelOptions& options) const override {
    return ToyFamily::make_model(parts, {{{"tokenizer", ""}}, options.cuts_texts});
  }
};

// A toy with one more input.
class ToyWithInput final : public test::ToyFamily {
 public:
  explicit ToyWithInput(const InputSpec& input) {
    inputs_.assign(ToyFamily::inputs().begin(), ToyFamily::inputs().end());
    inputs_.push_back(input);
    inputs_.back().help = "one more";
  }
  std::span<const InputSpec> inputs() const override { return inputs_; }

 private:
  std::vector<InputSpec> inputs_;
};

// A toy one of whose components is declared otherwise.
class ToyWithSpec final : public test::ToyFamily {
 public:
  ToyWithSpec(size_t place, const ComponentSpec& spec)
      : specs_(ToyFamily::components().begin(), ToyFamily::components().end()) {
    specs_[place] = spec;
  }
  std::span<const ComponentSpec> components() const override { return specs_; }

 private:
  std::vector<ComponentSpec> specs_;
};

// A toy that takes the first part that it is given for another component than the rest.
class ToyInOrder final : public test::ToyFamily {
 public:
  void assign(std::span<FoundPart> parts) const override { parts.front().part.component = "vae"; }
};

// A toy that refuses what its own table of fields allows.
class ToyThatRefuses final : public test::ToyFamily {
 public:
  explicit ToyThatRefuses(std::string field) : field_(std::move(field)) {}
  std::optional<Detection> detect(const TensorIndex& in, const DetectHint& hint) const override {
    if (in.config().contains(field_))
      test::toy_refuses("config field " + field_ + " is one too many");
    return ToyFamily::detect(in, hint);
  }

 private:
  std::string field_;
};

}  // namespace

TEST_CASE("The toy keeps everything", "[conformance]") {
  const std::vector<Finding> findings = conformance::check_family(test::ToyFamily());
  CHECK(findings.size() >= 20);
  CHECK(failed(findings) == std::vector<std::string>{});
}

TEST_CASE("Each mistake is found by its check", "[conformance]") {
  const auto only = [](const test::ToyMistakes& mistakes, const std::string& check,
                       const std::string& detail) {
    const std::vector<std::string> names = failed_with(mistakes);
    INFO("looking for " << check);
    REQUIRE(!names.empty());
    CHECK(std::any_of(names.begin(), names.end(), [&](const std::string& name) {
      return name.starts_with(check) && name.find(detail) != std::string::npos;
    }));
  };
  only({.mixes_samples = true}, "denoise: a batch equals its samples", "differs by");
  only({.skips_a_block = true}, "blocks: every block of the denoiser",
       "declared are blocks.0, blocks.1");
  only({.ignores_sizes = true}, "errors: a size that does not fit", "height");
  only({.forgets_a_weight = true}, "weights: the table covers", "time.bias");
  only({.hides_help = true}, "declarations: names", "no help");
  only({.takes_everything = true}, "detection: refuses", "taken");
  only({.changes_input = true}, "denoise: keeps shape", "changes its input");
  only({.ignores_a_field = true}, "detection: every field", "cells is said to be read");
  only({.invents_a_solver = true}, "declarations: schedules", "solver 'eulre', which there is not");
  only({.lacks_a_variant = true}, "declarations: schedules", "no schedule for variant");
  only({.has_an_odd_size = true}, "declarations: schedules", "1024x1023 is not in multiples of 8");
  only({.covers_half = true}, "declarations: schedules", "noise levels above 0.5");
  only({.confuses_levels = true}, "denoise: levels that are prepared", "prepared differs");
  only({.mixes_calls = true}, "denoise: calls made together", "differs by");
  only({.mistakes_rows = true}, "denoise: samples with LoRAs", "another sample's");
  only({.gives_negatives = true}, "denoise: latents that are given", "numbers below 0");
  only({.takes_any_field = true}, "detection: every field", "invented_field is in no row");
  only({.reads_values = true}, "dry run: denoising", "Tensor::item() needs values");
  only({.picks_rows = true}, "dry run: a training step", "aten::nonzero gives a size that");
  only({.stays_on_cpu = true}, "dry run: decoding", "two devices, meta and cpu");
  only({.bends_shapes = true}, "dry run: decoding", "without values, and Float[1, 3, 1, 16, 16]");
  only({.keeps_a_weight = true}, "denoise: weights that are set anew", "differs by");
  only({.keeps_a_weight = true}, "dry run: denoising", "with values, after a run without them");
  only({.drops_gradients = true}, "gradients: they tell", "no gradient reaches the latents, embed");
  only({.bends_gradients = true}, "gradients: they tell", "drops or bends gradients");
}

TEST_CASE("Tokens that are counted are those that are encoded", "[conformance]") {
  CHECK(failed(conformance::check_family(ToyWithoutTokenizer())) == std::vector<std::string>{});
  const std::vector<std::string> names =
      failed(conformance::check_family(ToyWithoutTokenizer({.miscounts_texts = true})));
  REQUIRE(names.size() == 1);
  CHECK(names.front().starts_with("texts: the tokens that are counted"));
}

TEST_CASE("A stage that depends on the size says so", "[conformance]") {
  const std::vector<std::string> names =
      failed(conformance::check_family(ToyWithoutTokenizer({.sees_the_size = true})));
  REQUIRE(names.size() == 1);
  CHECK_THAT(names.front(), Catch::StartsWith("stages: ") && Catch::Contains("sees_target"));
}

TEST_CASE("The denoiser is given what the stages make", "[conformance]") {
  const std::vector<std::string> names =
      failed(conformance::check_family(ToyWithoutTokenizer({.misnames_entry = true})));
  REQUIRE(names.size() == 1);
  CHECK_THAT(names.front(), Catch::StartsWith("stages: the denoiser takes what they give") &&
                                Catch::Contains("they give prompt_embedz [1, 32]; ") &&
                                Catch::Contains("'prompt_embeds': missing"));
}

TEST_CASE("What detection says of a config that it refuses is told", "[conformance]") {
  const std::vector<std::string> names =
      failed(conformance::check_family(ToyThatRefuses("layers")));
  CHECK_THAT(names, Catch::VectorContains(std::string(
                        "detection: every field of a config is seen: dit: a config of the fields "
                        "that the tensors tell too is refused: config field layers is one too "
                        "many; give what the toy takes [INVALID_ARGUMENT], 1 in all")));
}

TEST_CASE("Every built family keeps everything", "[conformance]") {
  int checked = 0;
  for (const plugins::PluginFile& file : plugins::list_plugins(BUILT_PLUGINS)) {
    if (!file.path.starts_with(BUILT_PLUGINS)) continue;
    INFO(file.path);
    const plugins::Plugin& plugin = plugins::open_plugin(file.path, "");
    std::vector<Finding> door;
    conformance::check_door(plugin, [&](const Finding& finding) { door.push_back(finding); });
    CHECK(door.size() == 3);
    CHECK(failed(door) == std::vector<std::string>{});
    CHECK(failed(conformance::check_family(*plugin.family)) == std::vector<std::string>{});
    ++checked;
  }
  CHECK(checked >= 1);
}

TEST_CASE("Inputs that contradict themselves are found", "[conformance]") {
  constexpr InputKind kImage = InputKind::kImage;
  const std::pair<InputSpec, const char*> cases[] = {
      {{.name = "more", .kind = kImage, .min_count = 3, .max_count = 2}, "has no count"},
      {{.name = "more", .kind = InputKind::kVideo, .max_count = 2},
       "is a list of what has no lists"},
      {{.name = "more",
        .kind = kImage,
        .use = InputUse::kGenerate,
        .role = InputRole::kStart,
        .max_count = 2},
       "is a list and not a condition"},
      {{.name = "more", .kind = kImage, .channels = 1}, "has channels"},
      {{.name = "more", .kind = InputKind::kMask, .channels = 4}, "has channels"},
      {{.name = "more", .kind = kImage, .role = InputRole::kTarget},
       "several inputs are the target"},
      {{.name = "more", .kind = kImage, .role = InputRole::kStart},
       "neither image nor clip of generation"},
      {{.name = "more",
        .kind = InputKind::kVideo,
        .use = InputUse::kGenerate,
        .role = InputRole::kStart},
       "the target is none"},
      {{.name = "more",
        .kind = kImage,
        .use = InputUse::kGenerate,
        .role = InputRole::kStart,
        .fit = InputFit::kAsIs},
       "keeps a size"},
      {{.name = "more", .kind = InputKind::kText, .when_absent = WhenAbsent::kFirstFrame},
       "has a replacement"},
      {{.name = "more", .kind = kImage, .per_instance_of = "dit"}, "component 'dit' is no control"},
      {{.name = "height", .kind = InputKind::kInteger}, "has the name of --height"},
      {{.name = "port", .kind = InputKind::kInteger}, "has the name of --port"},
      {{.name = "help", .kind = InputKind::kText}, "has the name of --help"},
  };
  for (const auto& [input, said] : cases) {
    const std::vector<std::string> names = failed(conformance::check_family(ToyWithInput(input)));
    REQUIRE(!names.empty());
    CHECK_THAT(names.front(), Catch::Contains("declarations") && Catch::Contains(said));
  }
  const InputSpec start = {
      .name = "more", .kind = kImage, .use = InputUse::kGenerate, .role = InputRole::kStart};
  CHECK(failed(conformance::check_family(ToyWithInput(start))).empty());
  const InputSpec column = {.name = "height", .kind = InputKind::kInteger, .use = InputUse::kTrain};
  CHECK(failed(conformance::check_family(ToyWithInput(column))).empty());
}

TEST_CASE("Fields of an input that do not belong together are found", "[conformance]") {
  constexpr InputKind kImage = InputKind::kImage, kVideo = InputKind::kVideo,
                      kAudio = InputKind::kAudio, kText = InputKind::kText;
  static constexpr std::string_view kChoices[] = {"a", "b"}, kTwice[] = {"a", "a"};
  const std::pair<InputSpec, const char*> cases[] = {
      {{.name = "more", .kind = kImage, .choices = kChoices}, "has choices and is no text"},
      {{.name = "more", .kind = kText, .choices = kTwice}, "has choices that are empty or twice"},
      {{.name = "more", .kind = kText, .max_count = 2, .paired_with = "none"},
       "is paired with no other input"},
      {{.name = "more", .kind = kText, .max_count = 2, .paired_with = "more"},
       "is paired with no other input"},
      {{.name = "more", .kind = kText, .paired_with = "references"}, "one of the two is no list"},
      {{.name = "more", .kind = kText, .max_count = 2, .paired_with = "prompt"},
       "one of the two is no list"},
      {{.name = "more", .kind = kImage, .fit = InputFit::kAsIs, .filter = ResizeFilter::kBox},
       "has a filter, and nothing is scaled"},
      {{.name = "more", .kind = kText, .filter = ResizeFilter::kBox}, "nothing is scaled"},
      {{.name = "more", .kind = kImage, .fit = InputFit::kPad, .pad_level = 256}, "outside of 0"},
      {{.name = "more", .kind = kImage, .pad_level = 127}, "no such gray is beside it"},
      {{.name = "more", .kind = InputKind::kMask, .fit = InputFit::kPad, .pad_level = 1},
       "no such gray is beside it"},
      {{.name = "more", .kind = kImage, .fit_height = 8}, "has one side of a size"},
      {{.name = "more", .kind = kImage, .fit = InputFit::kAsIs, .fit_height = 8, .fit_width = 8},
       "nothing is brought to it"},
      {{.name = "more", .kind = kAudio, .channels = 1, .fit_height = 8, .fit_width = 8},
       "nothing is brought to it"},
      {{.name = "more", .kind = kImage, .fps = 8}, "has fps and is no clip"},
      {{.name = "more", .kind = kVideo, .fps = -1}, "has fps that are out of range"},
      {{.name = "more", .kind = kImage, .along_clip = true}, "neither clip nor sound"},
      {{.name = "more", .kind = kVideo, .tail = Tail::kMirror}, "does not run along the clip"},
      {{.name = "more", .kind = InputKind::kVideoMask, .along_clip = true, .tail = Tail::kMinusOne},
       "has a tail of -1"},
      {{.name = "more", .kind = kAudio, .channels = 1, .sample_rate = 0}, "has a sample_rate"},
      {{.name = "more", .kind = kAudio}, "has channels"},
      {{.name = "more", .kind = kImage, .is_soundtrack = true}, "no sound or clip of generation"},
      {{.name = "more",
        .kind = kAudio,
        .use = InputUse::kTrain,
        .channels = 1,
        .is_soundtrack = true},
       "no sound or clip of generation"},
  };
  for (const auto& [input, said] : cases) {
    const std::vector<std::string> names = failed(conformance::check_family(ToyWithInput(input)));
    INFO(said);
    REQUIRE(!names.empty());
    CHECK_THAT(names.front(), Catch::Contains("declarations") && Catch::Contains(said));
  }
}

// A toy with several more inputs.
class ToyWithInputs final : public test::ToyFamily {
 public:
  explicit ToyWithInputs(const std::vector<InputSpec>& more) {
    inputs_.assign(ToyFamily::inputs().begin(), ToyFamily::inputs().end());
    for (InputSpec input : more) {
      input.help = "one more";
      inputs_.push_back(input);
    }
  }
  std::span<const InputSpec> inputs() const override { return inputs_; }

 private:
  std::vector<InputSpec> inputs_;
};

TEST_CASE("Fields of inputs that belong together are no findings", "[conformance]") {
  static constexpr std::string_view kChoices[] = {"a", "b"};
  const auto failed_with = [](const std::vector<InputSpec>& more) {
    return failed(conformance::check_family(ToyWithInputs(more)));
  };
  CHECK(failed_with(
            {{.name = "way", .kind = InputKind::kText, .choices = kChoices},
             {.name = "texts", .kind = InputKind::kText, .max_count = 4},
             {.name = "scales", .kind = InputKind::kReal, .max_count = 4, .paired_with = "texts"},
             {.name = "face",
              .kind = InputKind::kVideo,
              .fit = InputFit::kPad,
              .filter = ResizeFilter::kBicubic,
              .pad_level = 127,
              .fit_height = 512,
              .fit_width = 512,
              .fps = 24,
              .along_clip = true,
              .tail = Tail::kMirror},
             {.name = "sound",
              .kind = InputKind::kAudio,
              .channels = 2,
              .along_clip = true,
              .tail = Tail::kZero,
              .sample_rate = 48000,
              .is_soundtrack = true}}) == std::vector<std::string>{});
  const auto sound = [](std::string_view name, std::string_view variants) {
    return InputSpec{.name = name,
                     .kind = InputKind::kAudio,
                     .variants = variants,
                     .channels = 1,
                     .is_soundtrack = true};
  };
  CHECK(failed_with({sound("a", "one*"), sound("b", "two*")}) == std::vector<std::string>{});
  const auto both = failed_with({sound("a", "one*"), sound("b", "*")});
  REQUIRE(!both.empty());
  CHECK_THAT(both.front(), Catch::Contains("input 'b' is the soundtrack beside another one"));
}

TEST_CASE("Components that contradict themselves are found", "[conformance]") {
  const auto found = [](const ModelFamily& family, const std::string& check, const char* said) {
    const std::vector<std::string> names = failed(conformance::check_family(family));
    REQUIRE(!names.empty());
    CHECK_THAT(names.front(), Catch::StartsWith(check) && Catch::Contains(said));
  };
  constexpr ComponentSpec kText = {
      .name = "text_encoder", .role = Role::kTextEncoder, .help = "a table"};
  ComponentSpec text = kText;
  text.variants = {};
  found(ToyWithSpec(0, text), "declarations: names", "'text_encoder' is of no variant");
  text.variants = "edit*";
  found(ToyWithSpec(0, text), "parts: tiny parts", "is for 'edit*', and the tiny denoiser is");
  text = kText;
  text.required = false;
  found(ToyWithSpec(0, text), "declarations: stages", "is optional, and stage 'text' always runs");
  found(ToyInOrder(), "detection: which part", "text_encoder: is vae, and text_encoder in another");
  text = kText;
  text.max_count = 2;
  found(ToyWithSpec(0, text), "declarations: names", "has several files, and is no control");
  text = {"text_encoder", Role::kControl, false, "a table"};
  found(ToyWithSpec(0, text), "declarations: names", "is a control beside no denoiser");
  text.beside = "vae";
  found(ToyWithSpec(0, text), "declarations: names", "is a control beside no denoiser");
  text.beside = "dit";
  text.max_count = 0;
  found(ToyWithSpec(0, text), "declarations: names", "has a max_count that is wrong");
}
