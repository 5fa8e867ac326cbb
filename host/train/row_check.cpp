#include "host/train/row_check.h"

#include <algorithm>

#include "host/model/stages.h"
#include "host/samples/samples.h"
#include "host/train/objective.h"

namespace atelier::train {

namespace {

using order::Stage;
using order::Task;
using order::Training;
using samples::CachedStages;

// Whether this run encodes texts, or takes all of them from the cache.
bool encodes_texts(const Training& config, std::span<const EncodeStage> stages) {
  if (config.stage != Stage::kTrain) return true;
  const CachedStages cached = samples::cached_stages(stages, config.trained_names());
  return std::ranges::any_of(stages, [&](const EncodeStage& stage) {
    return model::is_prompted(stage) && !cached.find(stage.name)->second;
  });
}

}  // namespace

data::RowCheck row_check(const Training& config, const ModelFamily& family,
                         std::span<const EncodeStage> stages, generate::TextLengths& lengths,
                         bool is_trained_on) {
  const bool counts_texts = encodes_texts(config, stages);
  const std::vector<EncodeStage> all(stages.begin(), stages.end());
  return [&config, &family, &lengths, all, counts_texts, is_trained_on](const data::Item& row,
                                                                        const Inputs& inputs) {
    std::vector<data::RowProblem> problems;
    if (is_trained_on && config.task == Task::kDirectDistill) {
      const std::string problem = distillation_problem(row.values);
      if (!problem.empty())
        problems.push_back(
            {"wrong values", Error(ErrorCode::kInvalidArgument, row.place + ": " + problem)});
    }
    if (!counts_texts) return problems;
    const std::string place = row.place + " [prompt]";
    const auto count = [&](const Inputs& text, const std::string& of) {
      if (const auto error = lengths.check({.stage = {}, .values = text}, of))
        problems.push_back({"long texts", *error});
    };
    count(inputs, place);
    const auto place_of = [&](std::string_view input) {
      return row.place + " [" + std::string(input) + "]";
    };
    for (const Error& error : lengths.check_others(family, all, inputs, place_of))
      problems.push_back({"long texts", error});
    if (config.caption_dropout_rate > 0) {
      Inputs without = inputs;
      without.insert_or_assign("prompt", std::string());
      count(without, place + ": without its caption (--caption_dropout_rate)");
    }
    return problems;
  };
}

}  // namespace atelier::train
