// Which part of which file is which component.
#include "host/model/recognition.h"

#include "host/files/safetensors_writer.h"
#include "support/files.h"
#include "support/toy_family.h"

namespace atelier::model {
namespace {

using test::expect_error;
using test::Folder;

// A toy with two denoisers of one architecture, and a text encoder whose file may hold the VAE.
struct Twins final : test::ToyFamily {
  std::function<void(std::span<FoundPart>)> assigns = [](std::span<FoundPart> parts) {
    for (FoundPart& found : parts) {
      if (found.path.find("low") != std::string::npos) found.part.component = "dit_low";
    }
  };
  std::vector<std::string> owned = {"table.*"};

  std::span<const ComponentSpec> components() const override {
    static const std::vector<ComponentSpec> kSpecs = [&] {
      std::vector<ComponentSpec> specs(ToyFamily::components().begin(),
                                       ToyFamily::components().end());
      specs.push_back({.name = "dit_low", .role = Role::kDenoiser});
      return specs;
    }();
    return kSpecs;
  }
  std::optional<Detection> detect(const TensorIndex& in, const DetectHint& hint) const override {
    std::optional<Detection> found = ToyFamily::detect(in, hint);
    if (found && found->component == "text_encoder") found->owns = owned;
    if (found && found->component == "vae") found->owns = {"scale.*"};
    return found;
  }
  void assign(std::span<FoundPart> parts) const override { assigns(parts); }
};

// Writes a file of these tensors and returns what is found there.
files::FoundCheckpoint write(const std::string& path, const std::vector<std::string>& tensors,
                             const std::map<std::string, std::string>& metadata = {}) {
  NamedTensors values;
  for (const std::string& name : tensors) values[name] = at::zeros({4, 4});
  files::write_safetensors(path, values, metadata);
  return {.files = {path, {path}}};
}

// The components by the names of their files.
std::map<std::string, std::string> components_of(const Twins& family,
                                                 const std::vector<files::FoundCheckpoint>& found,
                                                 const DetectHints& hints = {}) {
  report::Problems problems;
  std::map<std::string, std::string> components;
  for (const RecognisedCheckpoint& item : recognise(family, found, hints, {}, problems)) {
    for (const LoadedPart& part : item.parts)
      components[test::fs::path(item.checkpoint.name()).filename()] += part.detection.component;
  }
  problems.throw_if_any();
  return components;
}

std::vector<std::string> tensors_of(const LoadedPart& part) {
  std::vector<std::string> names;
  for (const auto& [name, meta] : part.checkpoint.index().tensors()) names.push_back(name);
  return names;
}

}  // namespace

TEST_CASE("The family says which part is which, in any order of the files", "[recognition]") {
  const Folder folder;
  const Twins family;
  const auto high = write(folder / "high.safetensors", {"embed.weight"}),
             low = write(folder / "low.safetensors", {"embed.weight"}),
             vae = write(folder / "vae.safetensors", {"scale.weight"});
  const std::map<std::string, std::string> expected = {
      {"high.safetensors", "dit"}, {"low.safetensors", "dit_low"}, {"vae.safetensors", "vae"}};
  CHECK(components_of(family, {high, vae, low}) == expected);
  CHECK(components_of(family, {low, high, vae}) == expected);
  // A file that is looked at alone is told in the same way.
  const auto alone = detect_parts(family, files::Checkpoint::open(low.files));
  REQUIRE(alone.size() == 1);
  CHECK(alone[0].detection.component == "dit_low");
}

TEST_CASE("The family is shown what the model's folder says beside a part", "[recognition]") {
  const Folder folder;
  Twins family;
  std::vector<TensorIndex::Config> said;
  family.assigns = [&](std::span<FoundPart> parts) {
    for (const FoundPart& found : parts) said.push_back(found.folder);
  };
  for (const char* name : {"transformer", "scheduler"}) test::fs::create_directory(folder / name);
  const auto dit = write(folder / "transformer/model.safetensors", {"embed.weight"});
  components_of(family, {dit});
  REQUIRE(said.size() == 1);
  CHECK(said[0].empty());
  test::write_bytes(folder / "scheduler/scheduler_config.json", R"({"shift": 3.0})");
  test::write_bytes(folder / "model_index.json",
                    R"({"_class_name": "TwinsPipeline", "transformer": ["diffusers", "Twins"]})");
  components_of(family, {dit});
  REQUIRE(said.size() == 2);
  const TensorIndex beside({}, said[1]);
  CHECK(said[1].size() == 2);
  CHECK(beside.config_real("scheduler.shift") == 3.0);
  CHECK(std::get<std::string>(said[1].at("model_index._class_name")) == "TwinsPipeline");
}

TEST_CASE("The family is told which of two parts a saved file is", "[recognition]") {
  const Folder folder;
  Twins family;
  std::vector<std::string> seen;
  family.assigns = [&](std::span<FoundPart> parts) {
    seen.clear();
    for (const FoundPart& found : parts)
      seen.push_back(found.part.component + ":" + found.hint.component);
  };
  const auto saved =
      write(folder / "saved.safetensors", {"embed.weight"}, {{"atelier.component", "dit_low"}});
  const auto other = write(folder / "other.safetensors", {"embed.weight"});
  using Seen = std::vector<std::string>;
  components_of(family, {other, saved});
  CHECK(seen == Seen{"dit:", "dit_low:dit_low"});
  // What the user says counts more.
  components_of(family, {other, saved}, {{"*saved*", {.component = "dit"}}});
  CHECK(seen == Seen{"dit:", "dit:dit"});
  // One alone is what the family makes of what it says, if it is not taken for that anyway.
  CHECK(components_of(family, {saved}).at("saved.safetensors") == "dit_low");
  CHECK(seen == Seen{"dit_low:dit_low"});
  const auto plain =
      write(folder / "plain.safetensors", {"embed.weight"}, {{"atelier.component", "dit"}});
  components_of(family, {plain});
  CHECK(seen == Seen{"dit:"});
}

TEST_CASE("One of two denoisers that is saved stands for both where it is alone", "[recognition]") {
  const Folder folder;
  Twins family;
  family.assigns = [](std::span<FoundPart> parts) {
    if (parts.size() == 1) parts[0].part.component = "dit";
  };
  const auto saved =
      write(folder / "saved.safetensors", {"embed.weight"}, {{"atelier.component", "dit_low"}});
  const auto other = write(folder / "other.safetensors", {"embed.weight"});
  CHECK(components_of(family, {saved}).at("saved.safetensors") == "dit");
  CHECK(components_of(family, {saved, other}).at("saved.safetensors") == "dit_low");
  // Beside a model that has what it says it is that.
  const files::Checkpoint file = files::Checkpoint::open(saved.files);
  CHECK(detect_parts(family, file)[0].detection.component == "dit");
  std::vector<LoadedPart> model = detect_parts(family, file);
  CHECK(detect_parts(family, file, {}, model)[0].detection.component == "dit");
  model[0].detection.component = "dit_low";
  CHECK(detect_parts(family, file, {}, model)[0].detection.component == "dit_low");
}

TEST_CASE("Denoisers that nothing but their order tells apart are named", "[recognition]") {
  const Folder folder;
  Twins family;
  family.assigns = [](std::span<FoundPart> parts) {
    const bool is_told = std::ranges::any_of(parts, [](const FoundPart& found) {
      return found.path.find("low") != std::string::npos || !found.hint.component.empty();
    });
    if (!is_told) parts[1].part.component = "dit_low";
    for (FoundPart& found : parts) {
      if (found.path.find("low") != std::string::npos) found.part.component = "dit_low";
    }
  };
  const auto note = [&](const std::vector<files::FoundCheckpoint>& found,
                        const DetectHints& hints = {}) {
    report::Problems problems;
    std::vector<LoadedPart> parts;
    for (RecognisedCheckpoint& item : recognise(family, found, hints, {}, problems))
      for (LoadedPart& part : item.parts) parts.push_back(std::move(part));
    problems.throw_if_any();
    return told_by_order(family, parts);
  };
  const auto one = write(folder / "one.safetensors", {"embed.weight"}),
             two = write(folder / "two.safetensors", {"embed.weight"}),
             low = write(folder / "low.safetensors", {"embed.weight"}),
             saved = write(folder / "saved.safetensors", {"embed.weight"},
                           {{"atelier.component", "dit_low"}});
  CHECK_THAT(note({one, two}), Catch::StartsWith("dit is ") &&
                                   Catch::Contains("one.safetensors, dit_low is ") &&
                                   Catch::Contains("two.safetensors: nothing but their order"));
  CHECK_THAT(note({two, one}), Catch::Contains("two.safetensors, dit_low is "));
  CHECK(note({low, one}).empty());
  CHECK(note({saved, one}).empty());
  CHECK(note({one, two}, {{"*one*", {"dit", ""}}}).empty());
}

TEST_CASE("What the user said of a part stays", "[recognition]") {
  const Folder folder;
  Twins family;
  std::vector<FoundPart> seen;
  family.assigns = [&](std::span<FoundPart> parts) {
    seen.assign(parts.begin(), parts.end());
    for (FoundPart& found : parts) {
      found.part.component = "dit_low";
      found.part.variant = "other";
      found.hint = {};
    }
  };
  const auto one = write(folder / "one.safetensors", {"embed.weight"}),
             two = write(folder / "two.safetensors", {"embed.weight"});
  CHECK(components_of(family, {one, two}, {{"*one*", {"dit", ""}}, {"*two*", {"", "base"}}}) ==
        std::map<std::string, std::string>{{"one.safetensors", "dit"},
                                           {"two.safetensors", "dit_low"}});
  REQUIRE(seen.size() == 2);
  CHECK(seen[0].hint.component == "dit");
  CHECK(seen[1].hint.component.empty());
  CHECK(seen[1].path == folder / "two.safetensors");
  report::Problems problems;
  const auto recognised = recognise(family, {one, two}, {{"*two*", {"", "base"}}}, {}, problems);
  CHECK(recognised[0].parts[0].detection.variant == "other");
  CHECK(recognised[1].parts[0].detection.variant == "base");
}

TEST_CASE("A family that says what cannot be is named", "[recognition]") {
  const Folder folder;
  Twins family;
  const auto one = write(folder / "one.safetensors", {"embed.weight"});
  for (const char* wrong : {"nothing", "tokenizer"}) {
    family.assigns = [&](std::span<FoundPart> parts) { parts[0].part.component = wrong; };
    expect_error(ErrorCode::kInternal, {"toy.assign", "one.safetensors", wrong},
                 [&] { components_of(family, {one}); });
  }
  family.assigns = [](std::span<FoundPart>) {};
  family.owned = {"nothing.*"};
  const auto text = write(folder / "text.safetensors", {"table.weight"});
  expect_error(ErrorCode::kInternal, {"text.safetensors", "the text_encoder owns no tensor"},
               [&] { components_of(family, {text}); });
}

TEST_CASE("A part owns its tensors where no prefix tells them apart", "[recognition]") {
  const Folder folder;
  Twins family;
  const std::vector<std::string> names = {"scale.bias", "scale.weight", "stray", "table.weight"};
  const auto both = write(folder / "both.safetensors", names);
  const files::Checkpoint file = files::Checkpoint::open(both.files);
  const auto parts = detect_parts(family, file, {{"*both*", {"text_encoder", ""}}});
  REQUIRE(parts.size() == 2);
  CHECK(parts[0].detection.component == "text_encoder");
  CHECK(tensors_of(parts[0]) == std::vector<std::string>{"stray", "table.weight"});
  CHECK(parts[0].hint.component == "text_encoder");
  CHECK(parts[1].detection.component == "vae");
  CHECK(tensors_of(parts[1]) == std::vector<std::string>{"scale.bias", "scale.weight"});
  CHECK(parts[1].hint.component.empty());
  family.owned = {};
  const auto whole = detect_parts(family, file);
  REQUIRE(whole.size() == 1);
  CHECK(tensors_of(whole[0]) == names);

  const Detection part = {.component = "vae", .prefix = "vae.", .owns = {"a.*", "b"}};
  CHECK(owns(part, "vae.a.weight"));
  CHECK(owns(part, "vae.b"));
  CHECK_FALSE(owns(part, "vae.b.weight"));
  CHECK_FALSE(owns(part, "a.weight"));
}

}  // namespace atelier::model
