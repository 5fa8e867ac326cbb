#include "host/foreign/line_words.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "atelier/error.h"

#include "formats/escape.h"
#include "formats/glob.h"
#include "host/files/file_reader.h"
#include "host/flags/launcher_file.h"
#include "host/report/error_line.h"
#include "host/report/text.h"

namespace atelier::foreign {
namespace {

using flags::CompatFlag;
using flags::find_compat_flag;
using Fate = flags::CompatFate;
using flags::FlagKind;
using formats::quote_and_escape;

Given given_of(const std::string& word) {
  const size_t equals = word.find('=');
  Given flag = {word.substr(2, equals == std::string::npos ? equals : equals - 2), {}, word};
  if (equals != std::string::npos) flag.values.push_back(word.substr(equals + 1));
  return flag;
}

// Whether a word is a variable, or env, which may stand before them.
bool stands_in_front(std::string_view word) {
  if (word == "env") return true;
  const size_t equals = word.find('=');
  if (equals == 0 || equals == std::string_view::npos) return false;
  const std::string_view name = word.substr(0, equals);
  return !std::isdigit(static_cast<unsigned char>(name.front())) &&
         std::all_of(name.begin(), name.end(),
                     [](unsigned char c) { return std::isalnum(c) || c == '_'; });
}

}  // namespace

std::span<const std::string> without_variables(std::span<const std::string> words) {
  while (!words.empty() && stands_in_front(words.front())) words = words.subspan(1);
  return words;
}

bool is_launcher(std::string_view word) {
  const std::string name = std::filesystem::path(word).filename().string();
  for (const std::string_view known :
       {"accelerate", "torchrun", "deepspeed", "python", "python3", "env"}) {
    if (name == known) return true;
  }
  return false;
}

bool is_script(std::string_view word) {
  return word.ends_with(".py");
}

std::vector<Given> LineWords::take_front(std::span<const std::string> words, std::string* script) {
  const size_t at = take_launcher(words, take_variables(words));
  *script = at == 0 || !is_script(words[at - 1]) ? "" : words[at - 1];
  return flags_of(words.subspan(at));
}

std::vector<std::string> LineWords::denoisers() const {
  std::vector<std::string> names;
  if (family_ == nullptr) return names;
  for (const ComponentSpec& spec : family_->components()) {
    if (spec.role == Role::kDenoiser) names.emplace_back(spec.name);
  }
  return names;
}

std::string LineWords::lower(std::string text) {
  std::ranges::transform(text, text.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

void LineWords::add_model_file(const Given& flag, std::string_view component) {
  model_files_.insert(model_files_.end(), flag.values.begin(), flag.values.end());
  note(flag.shown + " is in --model_paths here");
  if (!component.empty()) hints_[flag.value()]["component"] = component;
}

bool LineWords::makes_clips() const {
  return family_ != nullptr && std::ranges::any_of(family_->inputs(), [](const InputSpec& input) {
           return input.role == InputRole::kTarget && input.kind == InputKind::kVideo;
         });
}

bool LineWords::may_take(const InputSpec& input) const {
  return variant_.empty() || formats::any_glob_matches(input.variants, variant_);
}

void LineWords::check_plugin() {
  if (family_ == nullptr && find("plugin") == nullptr)
    problems_.add("--plugin is missing", "name the model family; atelier plugins lists them");
}

void LineWords::take_row(const Given& flag, const CompatFlag& row) {
  if (row.is_harmless(flag.value())) return leave_out(flag.shown, row.text);
  switch (row.fate) {
    case Fate::kRenamed:
      return take_renamed(flag, row.name_here());
    case Fate::kFixed:
      return take_fixed(flag, row.fixed().first, row.fixed().second);
    case Fate::kIdle:
    case Fate::kQuiet:
      return leave_out(flag.shown, row.text);
    case Fate::kLost:
      return lose(flag.shown, row.text);
    case Fate::kModel:
      return add_model_file(flag);
    case Fate::kLaunch:
    case Fate::kRead:
      return read_flag(flag, row);
  }
}

bool LineWords::take_version(const Given& flag) {
  if (flag.name == "model_version") {
    set_version(flag.shown, flag.value());
  } else if (flag.name == "edit" || flag.name == "edit_plus") {
    set_version(flag.shown, flag.name == "edit" ? "edit" : "edit-2509");
  } else {
    return false;
  }
  return true;
}

// Names of variants begin as the family's; its inputs say which there are.
void LineWords::set_version(const std::string& shown, const std::string& version) {
  if (version == "original") return leave_out(shown, "files are of that variant by default");
  std::string variant = family_ == nullptr ? "" : std::string(family_->name()) + "-" + version;
  std::ranges::replace(variant, '_', '-');
  const bool is_known =
      family_ != nullptr && std::ranges::any_of(family_->inputs(), [&](const auto& input) {
        return input.variants != "*" && formats::any_glob_matches(input.variants, variant);
      });
  if (!is_known) return lose(shown, "the family has no such variant");
  variant_ = variant;
  hints_["*"]["variant"] = variant;
  note(shown + " is in --model_hints here");
}

void LineWords::take_task(const std::string& shown, const std::string& task) {
  if (family_ != nullptr) variant_ = variant_of(lower(task));
  leave_out(shown, "the files of the model say it");
}

// Globs of inputs that name one variant alone say how it begins, as "family2.2-s2v-14b" of
// "s2v-14b".
std::string LineWords::variant_of(const std::string& task) const {
  const std::string end = "-" + task;
  for (const InputSpec& input : family_->inputs()) {
    const std::string_view variant = input.variants;
    if (variant.find_first_of("*|") == std::string_view::npos && variant.ends_with(end))
      return std::string(variant);
  }
  return std::string(family_->name()) + end;
}

void LineWords::add_inputs() {
  std::string names;
  for (const InputSpec& input :
       variant_.empty() ? std::span<const InputSpec>() : family_->inputs()) {
    if (!input.required || input.variants == "*" || input.use == InputUse::kGenerate) continue;
    if (formats::any_glob_matches(input.variants, variant_) &&
        formats::any_glob_matches(input.required_by, variant_))
      names.append(names.empty() ? "" : ",").append(input.name);
  }
  if (names.empty() || find("extra_inputs") != nullptr) return;
  set("extra_inputs", names);
  note("the variant is trained with --extra_inputs " + names);
}

void LineWords::finish_model() {
  if (model_files_.empty()) return;
  set("model_paths", nlohmann::json(model_files_).dump());
  if (!hints_.empty()) set("model_hints", nlohmann::json(hints_).dump());
  note("the tokenizer is looked for beside the text encoder; --tokenizer_path says where else");
}

size_t LineWords::take_variables(std::span<const std::string> words) {
  size_t at = 0;
  for (; at < words.size() && stands_in_front(words[at]); ++at) {
    if (words[at] == "env") continue;
    const size_t equals = words[at].find('=');
    const std::string name = words[at].substr(0, equals), value = words[at].substr(equals + 1);
    const CompatFlag* known = find_compat_flag(name, flags::kVariable);
    if (known == nullptr || known->fate == Fate::kRead) {
      variables_.push_back(words[at]);
    } else if (known->fate == Fate::kRenamed) {
      rename(words[at], known->name_here(), value);
    } else {
      leave_out(words[at], known->text);
    }
  }
  return at;
}

size_t LineWords::take_launcher(std::span<const std::string> words, size_t at) {
  std::vector<Given> processes;
  while (at < words.size() && !is_script(words[at])) {
    const std::string& word = words[at++];
    if (word == "-m" && at < words.size()) ++at;  // a launcher as a module of Python
    if (!word.starts_with("--")) continue;
    Given flag = given_of(word);
    std::replace(flag.name.begin(), flag.name.end(), '-', '_');
    const CompatFlag* known = find_compat_flag(flag.name, flags::kLauncher);
    const bool takes_value = known == nullptr || known->has_value;
    if (takes_value && flag.values.empty() && at < words.size() && !words[at].starts_with("-") &&
        !is_script(words[at])) {
      flag.shown.append(" ").append(words[at]);
      flag.values.push_back(words[at++]);
    }
    if (!take_launcher_flag(flag, known)) processes.push_back(std::move(flag));
  }
  take_processes(processes);
  if (at == words.size()) {
    problems_.add("the command line names no script", "paste the whole line, with train.py");
    return at;
  }
  return at + 1;
}

bool LineWords::take_launcher_flag(const Given& flag, const CompatFlag* known) {
  const std::string value = flag.value();
  if (known == nullptr) {
    leave_out(flag.shown, "it is the launcher's");
  } else if (known->fate == Fate::kIdle || known->fate == Fate::kQuiet ||
             known->is_harmless(value)) {
    leave_out(flag.shown, known->text);
  } else if (flag.name == "mixed_precision") {
    take_precision(flag, "dtype");
  } else if (flag.name != "gpu_ids") {
    return false;
  } else if (value.find(',') == std::string::npos) {
    rename(flag.shown, "device", "cuda:" + value);
  } else {
    variables_.push_back("CUDA_VISIBLE_DEVICES=" + value);
    note(flag.shown + " is " + variables_.back() + " here");
  }
  return true;
}

void LineWords::take_processes(const std::vector<Given>& given) {
  if (given.empty()) return;
  std::vector<std::pair<std::string, std::string>> words;
  std::string shown, launched;
  for (const Given& flag : given) {
    words.emplace_back(flag.name, flag.value());
    shown += (shown.empty() ? "" : " ") + flag.shown;
  }
  const flags::LauncherFile read = flags::read_launcher_words(words, problems_);
  for (const std::string& line : read.notes) note(line);
  for (const auto& [name, value] : read.launch) {
    if (name == "config_file") read_launcher_file(value);
  }
  const bool has_others = std::ranges::any_of(read.launch, [](const auto& flag) {
    return flag.first == "nnodes" || flag.first == "config_file" ||
           (flag.first == "nproc_per_node" && flag.second != "1");
  });
  if (has_others) {
    launched = " atelier launch";
    for (const auto& [name, value] : read.launch) {
      launch_.insert(launch_.end(), {"--" + name, value});
      launched.append(" --").append(name).append(" ").append(shell_text({value}));
    }
  }
  std::string trained;
  for (const auto& [name, value] : read.train) {
    set(name, value);
    trained.append(" --").append(name).append(value == "true" ? "" : " " + value);
  }
  if (!trained.empty()) trained.insert(0, has_others ? " -- train" : "");
  if (has_others || !trained.empty()) return note(shown + " is" + launched + trained + " here");
  if (!read.launch.empty()) leave_out(shown, "one process needs no launcher");
}

void LineWords::read_launcher_file(const std::string& path) {
  if (std::filesystem::exists(path)) {
    for (const auto& [name, value] : flags::read_launcher_file(path, problems_).train)
      of_launcher_file_.push_back(name);
  } else {
    problems_.add("--config_file: " + files::display_path(path) + " is not there",
                  "run this where the file is", ErrorCode::kNotFound);
  }
}

std::vector<Given> LineWords::flags_of(std::span<const std::string> words) {
  std::vector<Given> flags;
  for (size_t at = 0; at < words.size();) {
    const std::string& word = words[at++];
    if (!word.starts_with("--")) {
      problems_.add(quote_and_escape(word) + " stands alone", "quote a value that holds spaces");
      continue;
    }
    Given flag = given_of(word);
    while (flag.values.empty() || word.find('=') == std::string::npos) {
      if (at == words.size() || words[at].starts_with("--")) break;
      flag.shown.append(" ").append(shell_text({words[at]}));
      flag.values.push_back(words[at++]);
    }
    flags.push_back(std::move(flag));
  }
  return flags;
}

std::vector<std::string> LineWords::words_of_flags() const {
  std::vector<std::string> words;
  if (family_ != nullptr && find("plugin") == nullptr)
    words = {"--plugin", std::string(family_->name())};
  for (const auto& [name, value] : flags_) {
    const bool is_bare =
        find_spec(name) != nullptr && find_spec(name)->kind == FlagKind::kFlag && value == "true";
    words.push_back("--" + name);
    if (!is_bare) words.push_back(value);
  }
  return words;
}

std::vector<std::string> LineWords::command() const {
  std::vector<std::string> words = variables_;
  words.emplace_back("atelier");
  if (!launch_.empty()) {
    words.emplace_back("launch");
    words.insert(words.end(), launch_.begin(), launch_.end());
    words.emplace_back("--");
  }
  words.push_back(spec_.name);
  for (std::string& word : words_of_flags()) words.push_back(std::move(word));
  return words;
}

// "$'a\033b'": all but plain ASCII in escapes that a shell takes back.
static std::string escaped_word(std::string_view word) {
  std::string out = "$'";
  for (const char c : word) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7F) {
      if (c == '\'' || c == '\\') out += '\\';
      out += c;
    } else {
      out += report::print("\\%03o", byte);
    }
  }
  return out + "'";
}

std::string shell_text(const std::vector<std::string>& command) {
  constexpr std::string_view kPlain = "+,-./:=@_%";
  std::string out;
  for (const std::string& word : command) {
    const bool is_plain =
        !word.empty() && std::all_of(word.begin(), word.end(), [&](unsigned char c) {
          return std::isalnum(c) || kPlain.find(static_cast<char>(c)) != std::string_view::npos;
        });
    if (!out.empty()) out += word.starts_with("--") ? " \\\n  " : " ";
    if (is_plain) {
      out += word;
      continue;
    }
    if (report::printable(word) != word) {
      out += escaped_word(word);
      continue;
    }
    out += '\'';
    for (const char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
    out += '\'';
  }
  return out;
}

}  // namespace atelier::foreign
