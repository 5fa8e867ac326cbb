#include "host/train/row_check.h"

#include <algorithm>

#include "host/model/encoder_check.h"
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
bool encodes_texts(const Training& config, const model::LoadedModel& model) {
  if (config.stage != Stage::kTrain) return true;
  const std::vector<EncodeStage>& stages = model.stages().encoding;
  const CachedStages cached =
      samples::cached_stages(model.family(), stages, config.trained_names());
  return std::ranges::any_of(stages, [&](const EncodeStage& stage) {
    return model::is_prompted(stage) && !cached.find(stage.name)->second;
  });
}

// Inputs of which a row has not one value for each file of their control.
void check_counts(const model::LoadedModel& model, const data::Item& row,
                  std::vector<data::RowProblem>& problems) {
  const auto check = [&](const std::string& name, int64_t count) {
    if (const auto error = model::wrong_count(model, name, count))
      problems.push_back({"wrong counts", error->at(row.place + " [" + name + "]")});
  };
  for (const auto& [name, paths] : row.files) check(name, std::ssize(paths));
  for (const auto& [name, value] : row.values)
    check(name, value.is_array() ? std::ssize(value) : 1);
}

}  // namespace

data::RowCheck row_check(const Training& config, const model::LoadedModel& model,
                         generate::TextLengths& lengths, bool is_trained_on) {
  const bool counts_texts = encodes_texts(config, model);
  return [&config, &model, &lengths, counts_texts, is_trained_on](const data::Item& row,
                                                                  const Inputs& inputs) {
    std::vector<data::RowProblem> problems;
    check_counts(model, row, problems);
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
    for (const Error& error :
         lengths.check_others(model.family(), model.stages().encoding, inputs, place_of))
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
