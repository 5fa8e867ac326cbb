// What a family does with each field of the config.json beside a checkpoint.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "atelier/checkpoint.h"
#include "atelier/export.h"

namespace atelier {

// One row of a component's table. The host holds every field of a config against the table, so that
// nothing that changes a model is passed over: a field that no row names is refused, and so is a
// value that its row does not allow.
struct ConfigField {
  enum class Use {
    kIgnored,  // changes nothing that this component computes
    kRead,     // ModelFamily::detect() reads it, and refuses what it cannot use
    kFixed,    // the component computes as one of `values` says, and in no other way
    kTold,     // the tensors say `values`, and a config that says something else is another's
  };
  // Names of nested fields have dots: "text_config.rope_theta". A '*' at the end matches anything.
  std::string name;
  Use use = Use::kIgnored;
  // For kRead: the values that say the same as a missing field.
  std::vector<ConfigValue> values = {};
  // A flag without which the field means nothing; empty: it always means something.
  std::string only_with = {};
  // The field means nothing in a config with fields that begin so; empty: it always does.
  std::string unless = {};
  // Classes, as `_class_name` beside the field says them, to which a missing field means another
  // value than `values`: their configs have to say it.
  std::vector<ConfigValue> needed_by = {};
};

// A table, row by row. Of several rows that name a field, an exact one goes before one with '*'.
class ATELIER_API ConfigFields {
 public:
  using Names = std::initializer_list<std::string_view>;

  ConfigFields& ignored(Names names);
  ConfigFields& read(Names names);
  ConfigFields& read(ConfigField field);
  ConfigFields& fixed(std::string name, std::vector<ConfigValue> values);
  ConfigFields& told(std::string name, std::vector<ConfigValue> values);

  // A fixed field that configs of `classes` have to say, see ConfigField::needed_by.
  ConfigFields& needed(std::string name, std::vector<ConfigValue> values,
                       std::vector<ConfigValue> classes);

  // What diffusers writes into the config of one of these classes, beside its arguments.
  ConfigFields& of_diffusers(std::vector<ConfigValue> class_names);
  // What transformers writes into every config: labels, ways to generate, types of the files.
  ConfigFields& of_transformers(std::vector<ConfigValue> model_types);
  // Rotary embedding as transformers spells it, before version 5 and since: read with rope_theta()
  // below. Only the plain one is computed, nothing that stretches it.
  ConfigFields& rope_of_transformers();

  // The rows of another table, of the fields that begin with `prefix`.
  ConfigFields& add(const ConfigFields& fields, const std::string& prefix,
                    const std::string& unless = {});

  // nullptr: no row names the field.
  const ConfigField* find(std::string_view name) const;
  const std::vector<ConfigField>& rows() const { return rows_; }

 private:
  std::vector<ConfigField> rows_;
};

// The base of the rotary embedding among the fields that begin with `prefix`; nullopt when the
// config does not say it. See ConfigFields::rope_of_transformers().
ATELIER_API std::optional<double> rope_theta(const TensorIndex& checkpoint,
                                             const std::string& prefix = {});

// Whether a config has a field that begins with `prefix`.
ATELIER_API bool has_fields(const TensorIndex::Config& config, std::string_view prefix);

}  // namespace atelier
