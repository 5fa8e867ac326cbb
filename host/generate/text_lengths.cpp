#include "host/generate/text_lengths.h"

#include <algorithm>

#include "host/generate/input_files.h"
#include "host/generate/request.h"
#include "host/inputs/parse.h"
#include "host/model/stages.h"

namespace atelier::generate {
namespace {

constexpr const char* kTooLong = "TEXT_LENGTH";

}  // namespace

std::optional<Error> TextLengths::check(const EncodeInputs& in, const std::string& place) {
  TextLength length;
  try {
    length = model_.text_length(in);
  } catch (const Error& error) {
    if (has_failed_.exchange(true)) return std::nullopt;
    return error;
  }
  if (length.tokens <= length.limit) return std::nullopt;
  if (!cuts_) {
    return Error(ErrorCode::kInvalidArgument,
                 place + ": " + std::to_string(length.tokens) + " tokens, at most " +
                     std::to_string(length.limit) + " are encoded",
                 "shorten it, or pass --truncate_captions to cut it", kTooLong);
  }
  ++cut_;
  limit_ = length.limit;
  int64_t longest = longest_;
  while (longest < length.tokens && !longest_.compare_exchange_weak(longest, length.tokens)) {
  }
  return std::nullopt;
}

namespace {

// The texts of an input; none where it holds something else.
std::vector<std::string> texts_of(const InputValue& value) {
  if (const auto* text = std::get_if<std::string>(&value)) return {*text};
  const auto* texts = std::get_if<std::vector<std::string>>(&value);
  return texts == nullptr ? std::vector<std::string>() : *texts;
}

// Texts of `values` that a stage encodes; those among choices are none.
std::vector<const InputSpec*> encoded_texts(const ModelFamily& family, const EncodeStage& stage,
                                            const Inputs& values) {
  std::vector<const InputSpec*> texts;
  for (const InputSpec& input : family.inputs()) {
    if (model::reads(stage, input.name) && input.kind == InputKind::kText &&
        input.choices.empty() && values.contains(input.name))
      texts.push_back(&input);
  }
  return texts;
}

}  // namespace

std::vector<Error> TextLengths::check_others(const ModelFamily& family,
                                             std::span<const EncodeStage> stages,
                                             const Inputs& values, const PlaceOf& place_of) {
  std::vector<Error> wrong;
  for (const EncodeStage& stage : stages) {
    if (model::is_prompted(stage) || !model::reads_texts(stage, family)) continue;
    EncodeInputs in = {.stage = stage.name, .values = model::inputs_of(stage, values)};
    for (const InputSpec* input : encoded_texts(family, stage, values)) {
      const std::string place = place_of(input->name);
      if (place.empty()) continue;
      InputValue& value = in.values.find(input->name)->second;
      const bool is_list = inputs::is_list(*input);
      for (const std::string& text : texts_of(values.find(input->name)->second)) {
        value = is_list ? InputValue(std::vector<std::string>{text}) : InputValue(text);
        if (auto error = check(in, place)) wrong.push_back(std::move(*error));
      }
      value = values.find(input->name)->second;
    }
  }
  return wrong;
}

void TextLengths::check(const order::Settings& settings, const ModelFamily& family,
                        std::string_view variant, const order::Origin& place,
                        report::Problems& problems) {
  const auto add = [&](const Error& error) {
    const bool is_long = error.tag() == kTooLong && place.is_request;
    problems.add(is_long
                     ? Error(error.code(), error.message(),
                             "shorten it; a server with --truncate_captions cuts it", error.tag())
                     : error);
  };
  const EncodeInputs in = {.stage = {}, .values = value_inputs(settings, family)};
  if (const auto error = check(in, place.of("prompt"))) add(*error);
  const std::vector<EncodeStage> stages = model::encode_stages(family, variant);
  const auto check_texts = [&](const Inputs& values, const PlaceOf& place_of) {
    for (const Error& error : check_others(family, stages, values, place_of)) add(error);
  };
  check_texts(in.values, [&](std::string_view input) { return place.of(input); });
  bool is_guided = true;  // also where the schedule's name is wrong
  try {
    is_guided = cfg_scales_of(settings, family, variant).is_guided();
  } catch (const Error&) {
    // It is told elsewhere.
  }
  if (!is_guided) return;
  const EncodeInputs negative =
      model::negative_of(in, settings.negative_prompt, in.values, family.inputs());
  if (const auto error = check(negative, place.of("negative_prompt"))) add(*error);
  check_texts(negative.values, [&](std::string_view input) {
    const auto stands_for = std::ranges::find(family.inputs(), input, &InputSpec::negative_of);
    const bool is_given =
        stands_for != family.inputs().end() && in.values.contains(stands_for->name);
    return is_given ? place.of(stands_for->name) : std::string();
  });
}

std::string TextLengths::note() const {
  if (cut_ == 0) return {};
  return std::to_string(cut_) + (cut_ == 1 ? " text has" : " texts have") + " more than " +
         std::to_string(limit_) + " tokens and " + (cut_ == 1 ? "is" : "are") +
         " cut there; the longest has " + std::to_string(longest_);
}

}  // namespace atelier::generate
