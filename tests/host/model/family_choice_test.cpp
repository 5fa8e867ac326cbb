#include "host/model/family_choice.h"

#include "atelier/model_family.h"

#include "support/files.h"

using namespace atelier;
using model::choose_family;

namespace {

// The family that is chosen, and what is told beside it.
struct Choice {
  std::string family, told;
  size_t problems;

  explicit Choice(const model::FamilyFlags& request) {
    report::Problems found;
    if (const plugins::Plugin* plugin = choose_family(request, found))
      family = plugin->family->name();
    problems = found.size();
    try {
      found.throw_if_any();
    } catch (const Error& error) {
      told = error.message() + "; " + error.hint();
    }
  }
};

const std::string kTransformer = std::string(EXAMPLE_MODEL) + "/transformer";

}  // namespace

TEST_CASE("The plugin that is named is the family", "[family]") {
  const Choice choice({.plugin = "lumina2", .model_paths = kTransformer});
  CHECK(choice.family == "lumina2");
  CHECK(choice.problems == 0);
}

TEST_CASE("Without a plugin the files tell which one it is", "[family]") {
  const Choice choice({.model_paths = kTransformer});
  CHECK(choice.family == "qwen_image");
  CHECK(choice.problems == 0);
}

TEST_CASE("A plugin that is not found hides neither the files' family nor itself", "[family]") {
  const Choice choice({.plugin = "qwen_imag", .model_paths = kTransformer});
  CHECK(choice.family == "qwen_image");
  CHECK(choice.problems == 1);
  CHECK_THAT(choice.told, Catch::Contains("\"qwen_imag\""));
}

TEST_CASE("Where nothing tells a family there is none", "[family]") {
  const Choice unsaid({});
  CHECK(unsaid.family.empty());
  CHECK(unsaid.told == "--plugin is missing; name the model family; atelier plugins lists them");
  const Choice nowhere({.model_paths = "nowhere"});
  CHECK(nowhere.family.empty());
  CHECK(nowhere.problems == 2);
}
