#include "host/conformance/config_probe.h"

#include <algorithm>

#include "atelier/error.h"

#include "host/model/config_check.h"

namespace atelier::conformance {

namespace {

constexpr const char* kUnknown = "invented_field";

// A few values of each type; which of them an architecture may have is not known here.
const std::vector<std::vector<ConfigValue>>& invented_values() {
  static const std::vector<std::vector<ConfigValue>> kinds = {
      {true, false},
      {int64_t{0}, int64_t{1}, int64_t{7919}},
      {0.37, -1.5},
      {"invented"},
      {std::vector<double>{7919}},
      {std::vector<std::string>{"invented"}},
      {nullptr}};
  return kinds;
}

bool is_one_of(const std::vector<ConfigValue>& values, const ConfigValue& value) {
  return std::any_of(values.begin(), values.end(),
                     [&](const ConfigValue& other) { return is_same(other, value); });
}

// What a config leads to: an architecture, or a refusal.
struct Outcome {
  std::optional<TensorIndex::Config> architecture;
  std::string refusal;

  bool is(const Outcome& other) const {
    return architecture && other.architecture && *architecture == *other.architecture;
  }
};

// The fields that the tensors tell too, or that a class needs, among those that mean something
// beside `unless`.
TensorIndex::Config told_fields(const ConfigFields& fields, const std::string& unless) {
  TensorIndex::Config config;
  for (const ConfigField& row : fields.rows()) {
    const bool is_said = row.use == ConfigField::Use::kTold || !row.needed_by.empty();
    if (is_said && row.unless == unless && !row.values.empty())
      config[row.name] = row.values.front();
  }
  return config;
}

class Probe {
 public:
  Probe(const ModelFamily& family, const Detection& part, const TensorIndex::Tensors& tensors)
      : family_(family),
        tensors_(tensors),
        component_(part.component),
        fields_(family.config_fields(part)) {}

  std::vector<std::string> run() {
    TensorIndex::Config config = told_fields(fields_, "");
    if (const Outcome plain = outcome(config); !plain.architecture)
      return {component_ +
              ": a config of the fields that the tensors tell too is refused: " + plain.refusal};
    config[kUnknown] = int64_t{1};
    if (outcome(config).refusal.find(kUnknown) == std::string::npos)
      fault(kUnknown, "is in no row and not refused by its name");
    for (const ConfigField& row : fields_.rows()) try_row(row);
    return std::move(faults_);
  }

 private:
  void fault(const std::string& field, const std::string& what) {
    faults_.push_back(component_ + ": config field " + field + " " + what);
  }

  Outcome outcome(TensorIndex::Config config) const {
    try {
      const auto part = model::detect_with_config(family_, TensorIndex(tensors_, std::move(config)),
                                                  DetectHint{});
      if (part) return {part->config, {}};
      return {{}, "not recognised"};
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kInternal || error.code() == ErrorCode::kEnvironment) throw;
      return {{}, error.what()};
    }
  }

  using Use = ConfigField::Use;

  // Whether a row says which values its field may have.
  static bool is_bound(const ConfigField& row) {
    return row.use == Use::kFixed || row.use == Use::kTold;
  }

  // What comes of a config with `value` in a field of `row`, and without the field.
  struct Trial {
    const ConfigField& row;
    std::string name;
    TensorIndex::Config config;
    Outcome without;
  };

  void try_row(const ConfigField& row) {
    Trial trial = {row, row.name, told_fields(fields_, row.unless), {}};
    if (trial.name.ends_with('*')) trial.name.replace(trial.name.size() - 1, 1, "invented");
    trial.config.erase(trial.name);
    if (!row.only_with.empty()) trial.config[row.only_with] = true;
    trial.without = outcome(trial.config);
    if (is_bound(row)) try_allowed(trial);
    for (const auto& kind : invented_values()) try_invented(trial, kind);
  }

  Outcome with(Trial& trial, const ConfigValue& value) const {
    trial.config[trial.name] = value;
    return outcome(trial.config);
  }

  // Why a value that is allowed is not: a config with the field, beside one without it.
  static std::string reason(const Outcome& with, const Outcome& without) {
    if (!with.architecture) return "is refused: " + with.refusal;
    if (!without.architecture) return "is demanded: " + without.refusal;
    return "changes what is detected";
  }

  void try_allowed(Trial& trial) {
    if (trial.row.values.empty()) fault(trial.name, "has no value that is allowed");
    for (const ConfigValue& value : trial.row.values) {
      const Outcome then = with(trial, value);
      if (!then.is(trial.without))
        fault(trial.name, "may be " + to_text(value) + ", which " + reason(then, trial.without));
    }
  }

  void try_invented(Trial& trial, const std::vector<ConfigValue>& kind) {
    const ConfigField& row = trial.row;
    bool is_noticed = false, has_new = false;
    for (const ConfigValue& value : kind) {
      const Outcome then = with(trial, value);
      const bool changes = !then.is(trial.without), is_plain = is_one_of(row.values, value);
      has_new = has_new || !is_plain;
      is_noticed = is_noticed || changes;
      if (row.use == Use::kIgnored && changes)
        fault(trial.name, "is said to be ignored, and " + to_text(value) + " is not");
      if (is_bound(row) && !is_plain && then.refusal.find(trial.name) == std::string::npos)
        fault(trial.name, "is " + to_text(value) + ", which is not refused by the field's name");
    }
    if (row.use == Use::kRead && has_new && !is_noticed)
      fault(trial.name, "is said to be read, and " + to_text(kind.front()) + " changes nothing");
  }

  const ModelFamily& family_;
  const TensorIndex::Tensors& tensors_;
  std::string component_;
  ConfigFields fields_;
  std::vector<std::string> faults_;
};

}  // namespace

TensorIndex::Config told_config(const ModelFamily& family, const Detection& part) {
  return told_fields(family.config_fields(part), "");
}

std::vector<std::string> config_faults(const ModelFamily& family, const Detection& part,
                                       const TensorIndex::Tensors& tensors) {
  return Probe(family, part, tensors).run();
}

}  // namespace atelier::conformance
