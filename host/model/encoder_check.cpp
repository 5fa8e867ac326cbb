#include "host/model/encoder_check.h"

#include <algorithm>

#include "host/model/components.h"
#include "host/model/stages.h"

namespace atelier::model {

namespace {

// `has_to`: what the component has to do with the input.
Error missing(const ComponentSpec& spec, const std::string& has_to) {
  std::string message = has_to + " the component " + std::string(spec.name) + ", which is missing";
  if (!spec.help.empty()) message += " (" + std::string(spec.help) + ")";
  return {ErrorCode::kNotFound, message,
          spec.role == Role::kTokenizer
              ? "pass its folder with --tokenizer_path, or leave the input out"
              : "pass its files with --model_paths or --model_id_with_origin_paths, or leave the "
                "input out"};
}

// The first component that an input needs and that is missing.
template <class Needs>
std::optional<Error> first_missing(const LoadedModel& model, std::string_view name,
                                   const char* has_to, const Needs& needs) {
  const Stages& stages = model.stages();
  const auto input = std::ranges::find(stages.inputs, name, &InputSpec::name);
  if (input == stages.inputs.end()) return std::nullopt;
  for (const ComponentSpec& spec : model.family().components()) {
    if (!holds_for(spec, stages.variant) || !needs(*input, spec)) continue;
    if (model.find_part(spec.name) == nullptr && !model.files().contains(spec.name))
      return missing(spec, has_to);
  }
  return std::nullopt;
}

}  // namespace

std::optional<Error> missing_encoder(const LoadedModel& model, std::string_view input) {
  const auto encodes = [&](const InputSpec& given, const ComponentSpec& spec) {
    return std::ranges::any_of(model.stages().encoding, [&](const EncodeStage& stage) {
      return reads(stage, given.name) && uses(stage, spec);
    });
  };
  return first_missing(model, input, "is encoded by", encodes);
}

std::optional<Error> missing_control(const LoadedModel& model, std::string_view input) {
  const auto runs = [&](const InputSpec& given, const ComponentSpec& spec) {
    return is_for(given, spec, model.stages().encoding) && model.find_part(spec.beside) != nullptr;
  };
  return first_missing(model, input, "is for", runs);
}

std::optional<Error> wrong_count(const LoadedModel& model, std::string_view name, int64_t count) {
  const Stages& stages = model.stages();
  const auto input = std::ranges::find(stages.inputs, name, &InputSpec::name);
  if (input == stages.inputs.end() || input->per_instance_of.empty()) return std::nullopt;
  const auto files = std::ranges::count_if(stages.components, [&](const PresentComponent& one) {
    return one.spec.name == input->per_instance_of;
  });
  if (files == 0 || files == count) return std::nullopt;  // without any it is missing
  const auto counted = [](int64_t number, const std::string& what) {
    return std::to_string(number) + " " + what + (number == 1 ? "" : "s");
  };
  return Error(ErrorCode::kInvalidArgument,
               counted(count, "value") + (count == 1 ? " is" : " are") + " given, and there " +
                   (files == 1 ? "is " : "are ") + counted(files, "file") + " of the component " +
                   std::string(input->per_instance_of),
               "give a value for each file, in the order of the files in --model_paths");
}

bool encodes_by_variant(const ModelFamily& family) {
  const auto is_for_some = [](const auto& one) { return one.variants != "*"; };
  // An input that only some variants take is there where the user asks for it, who is then told
  // that the variant is not known; or because something of the row stands in for it.
  const auto stands_in = [](WhenAbsent absent) {
    return absent == WhenAbsent::kFirstFrame || absent == WhenAbsent::kLastFrame;
  };
  const auto is_there_unasked = [&](const InputSpec& input) {
    return input.use != InputUse::kGenerate &&
           (!is_for_some(input) || stands_in(input.when_absent));
  };
  const auto differs = [&](const InputSpec& input) {
    return is_there_unasked(input) &&
           (is_for_some(input) || (input.required && input.required_by != "*"));
  };
  const auto differs_in_stage = [&](const EncodeStage& stage) {
    return is_for_some(stage) && std::ranges::any_of(family.inputs(), [&](const InputSpec& input) {
             return reads(stage, input.name) && is_there_unasked(input);
           });
  };
  return std::ranges::any_of(family.encode_stages(), differs_in_stage) ||
         std::ranges::any_of(family.inputs(), differs);
}

}  // namespace atelier::model
