#include "host/generate/text_lengths.h"

#include <algorithm>

#include "host/generate/input_files.h"
#include "host/generate/request.h"
#include "host/model/stages.h"

namespace atelier::generate {

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
                 "shorten it, or pass --truncate_captions to cut it", "TEXT_LENGTH");
  }
  ++cut_;
  limit_ = length.limit;
  int64_t longest = longest_;
  while (longest < length.tokens && !longest_.compare_exchange_weak(longest, length.tokens)) {
  }
  return std::nullopt;
}

void TextLengths::check(const order::Settings& settings, const ModelFamily& family,
                        std::string_view variant, const order::Origin& place,
                        report::Problems& problems) {
  const EncodeInputs in = {.stage = {}, .values = value_inputs(settings, family)};
  if (const auto error = check(in, place.of("prompt"))) problems.add(*error);
  bool is_guided = true;  // also where the schedule's name is wrong
  try {
    is_guided = cfg_scales_of(settings, family, variant).is_guided();
  } catch (const Error&) {
    // It is told elsewhere.
  }
  if (!is_guided) return;
  const EncodeInputs negative =
      model::negative_of(in, settings.negative_prompt, in.values, family.inputs());
  if (const auto error = check(negative, place.of("negative_prompt"))) problems.add(*error);
}

std::string TextLengths::note() const {
  if (cut_ == 0) return {};
  return std::to_string(cut_) + (cut_ == 1 ? " text has" : " texts have") + " more than " +
         std::to_string(limit_) + " tokens and " + (cut_ == 1 ? "is" : "are") +
         " cut there; the longest has " + std::to_string(longest_);
}

}  // namespace atelier::generate
