#include "host/model/encoder_check.h"

#include "host/model/components.h"
#include "host/model/stages.h"

namespace atelier::model {

std::optional<Error> missing_encoder(const LoadedModel& model, std::string_view input) {
  const Stages& stages = model.stages();
  for (const EncodeStage& stage : stages.encoding) {
    if (!reads(stage, input)) continue;
    for (const ComponentSpec& spec : model.family().components()) {
      if (!uses(stage, spec.name) || !holds_for(spec, stages.variant)) continue;
      if (model.find_part(spec.name) != nullptr || model.files().contains(spec.name)) continue;
      std::string message =
          "is encoded by the component " + std::string(spec.name) + ", which is missing";
      if (!spec.help.empty()) message += " (" + std::string(spec.help) + ")";
      return Error(ErrorCode::kNotFound, message,
                   spec.role == Role::kTokenizer
                       ? "pass its folder with --tokenizer_path, or leave the input out"
                       : "pass its files with --model_paths or --model_id_with_origin_paths, or "
                         "leave the input out");
    }
  }
  return std::nullopt;
}

bool encodes_by_variant(const ModelFamily& family) {
  const auto is_for_some = [](const auto& one) { return one.variants != "*"; };
  // An input that only some variants take is there where the user asks for it, who is then told
  // that the variant is not known; or because something of the row stands in for it.
  const auto is_there_unasked = [&](const InputSpec& input) {
    return input.use != InputUse::kGenerate &&
           (!is_for_some(input) || input.when_absent != WhenAbsent::kNone);
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
