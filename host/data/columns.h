// What the columns of a dataset mean for a family, and whether rows have what it needs.
#pragma once

#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "atelier/input.h"

#include "host/data/dataset.h"
#include "host/data/findings.h"
#include "host/data/metadata.h"
#include "host/data/path_suggester.h"

namespace atelier::data {

class Columns {
 public:
  // Finds columns that are missing and extra inputs that the family, or its `variant` where that is
  // known, does not take; `odd` gets columns that look misspelt and known ones that are not used.
  Columns(const DatasetOptions& options, std::span<const InputSpec> inputs,
          std::optional<std::string_view> variant, const Metadata& metadata, Findings& problems,
          Findings& odd);

  // Inputs that every row has: required ones and those of extra_inputs. Of those with a when_absent
  // a row may lack the file.
  const std::vector<InputSpec>& inputs() const { return inputs_; }
  // What a column with files holds. The masks of clips may be clips.
  InputKind kind(std::string_view column) const;
  // The name of the target; empty, and a problem, when there is none.
  const std::string& target_input() const { return target_input_; }

  // The row without its size. A row with problems gives nullopt.
  std::optional<Item> read(const Record& record, Findings& problems, Findings& odd) const;

 private:
  void choose_inputs(const DatasetOptions& options, std::span<const InputSpec> inputs,
                     std::optional<std::string_view> variant, Findings& problems);
  bool reads(std::string_view column) const;
  void find_missing(const Metadata& metadata, std::vector<std::string>& unknown,
                    Findings& problems);
  void check_columns(const DatasetOptions& options, std::span<const InputSpec> inputs,
                     std::optional<std::string_view> variant, const Metadata& metadata,
                     Findings& problems, Findings& odd);
  bool check_pairs(const Item& item, Findings& problems) const;
  bool read_value(const InputSpec& input, const nlohmann::json& value, const std::string& place,
                  Item& item, Findings& problems, Findings& odd) const;

  std::string base_, mask_column_, target_input_, control_flag_;
  const bool is_folder_;  // rows are images with captions beside them
  std::vector<InputSpec> inputs_;
  std::set<std::string, std::less<>> absent_;  // inputs without a column, already told
};

}  // namespace atelier::data
