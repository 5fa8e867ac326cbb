#include "host/data/columns.h"

#include <algorithm>
#include <filesystem>

#include "formats/escape.h"
#include "host/files/file_reader.h"
#include "host/inputs/parse.h"
#include "host/report/problems.h"

namespace atelier::data {
namespace {

using formats::quote_and_escape;
using nlohmann::json;

constexpr std::string_view kColumns = "columns";
constexpr std::string_view kMissingValues = "missing values";
constexpr std::string_view kWrongValues = "wrong values";

bool contains(const std::vector<std::string>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool is_blank(std::string_view text) {
  return text.find_first_not_of(" \t\r\n") == std::string_view::npos;
}

// An input that lies on the target, as rows have it.
InputSpec fitted_as_target(InputSpec input) {
  input.fit = InputFit::kCrop;
  input.filter.reset();
  return input;
}

// "metadata.csv [image]: ", as messages begin.
std::string place_of(const Metadata& metadata, const std::string& column) {
  return files::display_path(metadata.file) + " [" + shown_column(column) + "]: ";
}

}  // namespace

Columns::Columns(const DatasetOptions& options, std::span<const InputSpec> inputs,
                 std::optional<std::string_view> variant, const Metadata& metadata,
                 Findings& problems, Findings& odd)
    : base_(options.dataset_base_path),
      mask_column_(options.mask_column),
      control_flag_(options.control_flag),
      is_folder_(options.dataset_metadata_path.empty()) {
  choose_inputs(options, inputs, variant, problems);
  if (!metadata.records.empty()) check_columns(options, inputs, variant, metadata, problems, odd);
}

void Columns::choose_inputs(const DatasetOptions& options, std::span<const InputSpec> inputs,
                            std::optional<std::string_view> variant, Findings& problems) {
  std::vector<std::string> known;
  for (const InputSpec& input : inputs) {
    if (input.use == InputUse::kGenerate) continue;
    known.emplace_back(input.name);
    const bool is_extra =
        contains(options.extra_inputs, input.name) || options.texts_of_all.contains(input.name);
    const bool holds = !variant || inputs::holds_for(input, *variant);
    if (!is_extra && !inputs::is_required(input, variant.value_or(""))) continue;
    const std::string place = "input " + quote_and_escape(input.name);
    if (!holds) {
      problems.add(kColumns, inputs::not_taken(input, *variant).at(place));
      continue;
    }
    if (input.role == InputRole::kTarget) target_input_ = input.name;
    inputs_.push_back(input.lies_on_target ? fitted_as_target(input) : input);
  }
  for (const InputSpec& input : inputs_) {
    if (input.paired_with.empty() || reads(input.paired_with)) continue;
    problems.add(kColumns,
                 "--extra_inputs: " + quote_and_escape(input.name) + " needs " +
                     std::string(input.paired_with) + " beside it",
                 "name both");
  }
  for (const InputSpec& input : inputs) {
    if (inputs::is_file(input.kind) || !contains(options.data_file_keys, input.name)) continue;
    problems.add(kColumns,
                 "--data_file_keys: " + quote_and_escape(input.name) +
                     " is read as it stands in the row, it is no path of a file",
                 "leave it out");
  }
  for (const std::string& name : options.extra_inputs) {
    if (contains(known, name)) continue;
    const std::string nearest = report::nearest_name(name, known);
    problems.add(kColumns,
                 "--extra_inputs: " + quote_and_escape(name) +
                     " is no input that this family is trained with",
                 nearest.empty() ? "known are " + report::list_names(known)
                                 : "did you mean " + nearest + "?");
  }
  if (target_input_.empty() && problems.count() == 0) {
    problems.add(kColumns, "the family declares no image to learn",
                 "train a family that learns images", ErrorCode::kUnsupported);
  }
}

InputKind Columns::kind(std::string_view column) const {
  const auto input = std::ranges::find(inputs_, column, &InputSpec::name);
  if (input != inputs_.end()) return input->kind;
  const bool is_of_clips = !target_input_.empty() && kind(target_input_) == InputKind::kVideo;
  return is_of_clips ? InputKind::kVideoMask : InputKind::kMask;
}

bool Columns::reads(std::string_view column) const {
  return std::any_of(inputs_.begin(), inputs_.end(),
                     [&](const InputSpec& input) { return input.name == column; });
}

// Columns of `unknown` that stand for a missing one are taken out of it.
void Columns::find_missing(const Metadata& metadata, std::vector<std::string>& unknown,
                           Findings& problems) {
  for (const InputSpec& input : inputs_) {
    const std::string name(input.name);
    const bool may_lack =
        input.when_absent == WhenAbsent::kLeftOut && metadata.nulls.contains(name);
    const bool stands_in =
        input.when_absent != WhenAbsent::kNone && input.when_absent != WhenAbsent::kLeftOut;
    if (contains(metadata.columns, name) || stands_in || may_lack) continue;
    absent_.insert(name);
    if (is_folder_ && inputs::is_image(input.kind) && input.role == InputRole::kCondition) {
      problems.add(kColumns, place_of(metadata, name) + "images have no file beside them for it",
                   "name their folder with " + control_flag_ + " FOLDER");
      continue;
    }
    const std::string nearest = report::nearest_name(name, unknown);
    problems.add(kColumns, place_of(metadata, name) + "there is no such column",
                 nearest.empty() ? "the file has " + report::list_names(metadata.columns, 8)
                                 : "rename column " + quote_and_escape(nearest) + " to " + name);
    std::erase(unknown, nearest);
  }
  if (!contains(metadata.columns, mask_column_) && mask_column_ != DatasetOptions().mask_column &&
      !mask_column_.empty()) {
    problems.add(kColumns, "--mask_column: there is no column " + quote_and_escape(mask_column_),
                 "the file has " + report::list_names(metadata.columns, 8));
  }
}

void Columns::check_columns(const DatasetOptions& options, std::span<const InputSpec> inputs,
                            std::optional<std::string_view> variant, const Metadata& metadata,
                            Findings& problems, Findings& odd) {
  std::vector<std::string> known = {mask_column_}, wanted = known, unknown;
  for (const InputSpec& input : inputs) {
    known.emplace_back(input.name);
    if (input.use != InputUse::kGenerate) wanted.emplace_back(input.name);
  }
  for (const std::string& column : metadata.columns) {
    if (!contains(known, column)) unknown.push_back(column);
  }
  find_missing(metadata, unknown, problems);
  for (const InputSpec& input : inputs) {
    const std::string name(input.name);
    if (name == mask_column_ || reads(name) || !contains(metadata.columns, name)) continue;
    if (!contains(wanted, name) || contains(options.extra_inputs, name)) continue;  // told
    const bool holds = !variant || inputs::holds_for(input, *variant);
    odd.add(kColumns, place_of(metadata, name) + "the column is not used",
            holds ? "add it to --extra_inputs to train with it"
                  : inputs::not_taken(input, *variant).message());
  }
  for (const std::string& column : unknown) {
    const std::string nearest = report::nearest_name(column, wanted);
    if (!nearest.empty() && !contains(metadata.columns, nearest)) {
      odd.add(kColumns, place_of(metadata, column) + "the column is not known and not used",
              "did you mean " + nearest + "?");
    } else if (contains(options.data_file_keys, column)) {
      odd.add(
          kColumns,
          place_of(metadata, column) + "this family reads no such files, the column is not used",
          "leave it out of --data_file_keys");
    }
  }
}

std::optional<Item> Columns::read(const Record& record, Findings& problems, Findings& odd) const {
  Item item;
  item.place = record.place;
  item.target_column = record.target_column.empty() ? target_input_ : record.target_column;
  bool is_good = true;
  for (const InputSpec& input : inputs_) {
    if (absent_.contains(input.name)) {
      is_good = false;
      continue;
    }
    const std::string name(input.name == target_input_ ? item.target_column : input.name);
    const std::string place = record.place + " [" + name + "]";
    const auto value = record.values.find(input.name);
    if (value == record.values.end()) {
      if (input.when_absent != WhenAbsent::kNone) continue;
      problems.add(kMissingValues, place + ": nothing is given",
                   input.kind == InputKind::kText
                       ? "write the text, or a space for none"
                       : "every row needs one; write it or take the row out");
      is_good = false;
      continue;
    }
    is_good &= read_value(input, *value, place, item, problems, odd);
  }
  for (const auto& [column, value] : record.values.items()) {
    if (reads(column)) continue;
    if (column == mask_column_) {
      const InputSpec mask = {.name = column, .kind = InputKind::kMask};
      is_good &= read_value(mask, value, record.place + " [" + column + "]", item, problems, odd);
    } else {
      item.values.emplace(column, value);
    }
  }
  if (is_good) is_good = check_pairs(item, problems);
  return is_good ? std::optional(std::move(item)) : std::nullopt;
}

// Whether lists that belong together are equally long.
bool Columns::check_pairs(const Item& item, Findings& problems) const {
  std::map<std::string, json, std::less<>> files;
  for (const auto& [column, paths] : item.files) files.emplace(column, paths);
  const auto value_of = [&](std::string_view name) -> const json* {
    if (const auto file = files.find(name); file != files.end()) return &file->second;
    const auto value = item.values.find(name);
    return value == item.values.end() ? nullptr : &value->second;
  };
  const auto wrong = inputs::unpaired(inputs_, value_of);
  for (const auto& [input, error] : wrong)
    problems.add(kWrongValues, error.at(item.place + " [" + std::string(input->name) + "]"));
  return wrong.empty();
}

bool Columns::read_value(const InputSpec& input, const json& value, const std::string& place,
                         Item& item, Findings& problems, Findings& odd) const {
  const std::string name(input.name);
  try {
    json parsed = inputs::parse_value(input, value);
    if (inputs::is_file(input.kind)) {
      std::vector<std::string> paths = inputs::texts_of(parsed);
      for (std::string& path : paths)
        path = (std::filesystem::path(base_) / path).lexically_normal().string();
      item.files.emplace(name, std::move(paths));
      return true;
    }
    if (parsed.is_string() && is_blank(parsed.get_ref<const std::string&>()))
      odd.add("empty texts", place + ": the text is empty", "write one if it was forgotten");
    item.values.emplace(name, std::move(parsed));
    return true;
  } catch (const Error& error) {
    problems.add(kWrongValues, error.at(place));
    return false;
  }
}

}  // namespace atelier::data
