// Texts of more tokens than a family encodes: found before its encoder is loaded.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "atelier/model_family.h"

#include "host/order/settings.h"
#include "host/report/problems.h"

namespace atelier::generate {

// Safe to use from several threads.
class TextLengths {
 public:
  // `cuts`: long texts are counted in place of being refused; `model` was made so, see
  // ModelOptions::cuts_texts, and outlives this.
  TextLengths(const Model& model, bool cuts) : model_(model), cuts_(cuts) {}

  // What is wrong with the text of `in`, of which images may be left out; `place` names it.
  // What keeps texts from being counted at all is told once.
  std::optional<Error> check(const EncodeInputs& in, const std::string& place);

  // What is wrong with texts of `values` that `stages` of their own encode, which do not read the
  // prompt; of a list each is counted alone. `place_of` names an input; empty: it is
  // not counted.
  using PlaceOf = std::function<std::string(std::string_view input)>;
  std::vector<Error> check_others(const ModelFamily& family, std::span<const EncodeStage> stages,
                                  const Inputs& values, const PlaceOf& place_of);

  // All texts: the prompt, the negative one where guidance uses it, and others.
  void check(const order::Settings& settings, const ModelFamily& family, std::string_view variant,
             const order::Origin& place, report::Problems& problems);

  // One line about what will be cut; empty: nothing.
  std::string note() const;

 private:
  const Model& model_;
  const bool cuts_;
  std::atomic<bool> has_failed_ = false;
  std::atomic<int64_t> cut_ = 0, longest_ = 0, limit_ = 0;
};

}  // namespace atelier::generate
