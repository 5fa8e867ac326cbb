#include "host/train/compat_line.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <unistd.h>

#include "atelier/error.h"

#include "formats/escape.h"
#include "host/files/file_reader.h"
#include "host/flags/compat_flags.h"
#include "host/flags/flags.h"
#include "host/flags/launcher_file.h"
#include "host/report/error_line.h"
#include "host/report/text.h"
#include "host/train/config.h"
#include "host/train/config_checks.h"
#include "host/train/kohya_dataset.h"

namespace atelier::train {
namespace {

using formats::quote_and_escape;

using flags::CommandSpec;
using flags::CompatFlag;
using flags::find_compat_flag;
using Fate = flags::CompatFate;
using flags::FlagKind;
using flags::FlagSpec;

bool is_variable(std::string_view word) {
  const size_t equals = word.find('=');
  if (equals == 0 || equals == std::string_view::npos) return false;
  const std::string_view name = word.substr(0, equals);
  return !std::isdigit(static_cast<unsigned char>(name.front())) &&
         std::all_of(name.begin(), name.end(),
                     [](unsigned char c) { return std::isalnum(c) || c == '_'; });
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

// Whether a bare `begin` is followed by nothing or by what is no letter.
bool stands_in(std::string_view text, std::string_view name) {
  const auto is_letter = [&](size_t at) {
    return at < text.size() && std::isalnum(static_cast<unsigned char>(text[at])) != 0;
  };
  for (size_t at = text.find(name); at != std::string_view::npos; at = text.find(name, at + 1)) {
    if ((at == 0 || !is_letter(at - 1)) && !is_letter(at + name.size())) return true;
  }
  return false;
}

// ---- Variables in front ----

struct Variable {
  std::string_view name;  // or how it begins, with a star
  std::string_view flag;  // stands for it, with its value; empty: nothing does
  std::string_view why;   // it is not needed
};

constexpr Variable kVariables[] = {
    {"SDSCRIPTS_TORCH_COMPILE_ACTIVATION_MEMORY_BUDGET", "activation_memory_budget", ""},
    {"SDSCRIPTS_*", "", "operators are fused as they are built"},
    {"DIFFSYNTH_MODEL_BASE_PATH", "", ""},
    {"DIFFSYNTH_DOWNLOAD_SOURCE", "", ""},
    {"DIFFSYNTH_SKIP_DOWNLOAD", "", "nothing is ever downloaded"},
    {"DIFFSYNTH_ATTENTION_IMPLEMENTATION", "", "--attention forces one"},
    {"DIFFSYNTH_DISK_MAP_BUFFER_SIZE", "", "files are read once, piece by piece"},
    {"DIFFSYNTH_*", "", "the program does not read it"},
    {"TOKENIZERS_PARALLELISM", "", "the program does not read it"},
    {"WANDB_*", "", "there is no such log"},
    {"SWANLAB_*", "", "there is no such log"},
};

// null: it is none of another program's; it stays.
const Variable* find_variable(std::string_view name) {
  const auto* it =
      std::find_if(std::begin(kVariables), std::end(kVariables), [&](const Variable& v) {
        return v.name.ends_with('*') ? name.starts_with(v.name.substr(0, v.name.size() - 1))
                                     : name == v.name;
      });
  return it == std::end(kVariables) ? nullptr : it;
}

// ---- The line ----

struct Given {
  std::string name;                 // without dashes
  std::vector<std::string> values;  // behind it, up to the next flag
  std::string shown;                // as it was written

  std::string value() const {
    std::string out;
    for (const std::string& value : values) out += (out.empty() ? "" : " ") + value;
    return out;
  }
};

class Rewriter {
 public:
  Rewriter(const ModelFamily* family, report::Problems& problems)
      : spec_(train_command(family)), family_(family), problems_(problems) {}

  CompatLine run(std::span<const std::string> words) {
    size_t at = take_variables(words);
    at = take_launcher(words, at);
    const std::string script = at == 0 ? "" : std::filesystem::path(words[at - 1]).filename();
    const std::vector<Given> given = flags_of(words.subspan(at));
    is_kohya_ = std::any_of(given.begin(), given.end(), [](const Given& flag) {
      return flag.name == "pretrained_model_name_or_path" || flag.name == "network_module" ||
             flag.name == "train_data_dir" || flag.name == "dataset_config";
    });
    for (const Given& flag : given) take_flag(flag);
    if (is_kohya_) {
      finish_kohya();
    } else if (script == "train.py") {
      finish_studio();
    }
    check();
    return {command(), std::move(notes_)};
  }

 private:
  void note(const std::string& what) { notes_.push_back(what); }
  void leave_out(const std::string& shown, std::string_view why) {
    note(shown + " is left out: " + std::string(why));
  }
  void lose(const std::string& shown, std::string_view why) {
    problems_.add(shown + " is left out: " + std::string(why));
  }

  const std::string* find(std::string_view name) const {
    const auto it = std::find_if(flags_.begin(), flags_.end(),
                                 [&](const auto& flag) { return flag.first == name; });
    return it == flags_.end() ? nullptr : &it->second;
  }
  void set(const std::string& name, const std::string& value) {
    std::erase_if(flags_, [&](const auto& flag) { return flag.first == name; });
    flags_.emplace_back(name, value);
  }
  void rename(const std::string& shown, const std::string& name, const std::string& value) {
    set(name, value);
    std::string line = shown + " is --" + name;
    if (value != "true") line.append(" ").append(shell_text({value}));
    note(line + " here");
  }

  const FlagSpec* find_spec(std::string_view name) const { return flags::find_flag(spec_, name); }

  size_t take_variables(std::span<const std::string> words) {
    size_t at = 0;
    for (; at < words.size() && (is_variable(words[at]) || words[at] == "env"); ++at) {
      if (words[at] == "env") continue;
      const size_t equals = words[at].find('=');
      const std::string name = words[at].substr(0, equals), value = words[at].substr(equals + 1);
      const Variable* known = find_variable(name);
      if (known != nullptr && !known->flag.empty()) {
        rename(words[at], std::string(known->flag), value);
      } else if (known != nullptr && !known->why.empty()) {
        leave_out(words[at], known->why);
      } else {
        variables_.push_back(words[at]);
      }
    }
    return at;
  }

  // Returns where the script's own flags begin.
  size_t take_launcher(std::span<const std::string> words, size_t at) {
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
      if (flags::is_launcher_word(flag.name)) {
        processes.push_back(std::move(flag));
      } else {
        take_launcher_flag(flag, known);
      }
    }
    take_processes(processes);
    if (at == words.size()) {
      problems_.add("the command line names no script", "paste the whole line, with train.py");
      return at;
    }
    return at + 1;
  }

  void take_launcher_flag(const Given& flag, const CompatFlag* known) {
    if (known == nullptr) return leave_out(flag.shown, "it is the launcher's");
    if (flag.name == "mixed_precision") return take_precision(flag, "dtype");
    if (flag.name != "gpu_ids") return leave_out(flag.shown, known->text);
    if (flag.value() == "all") return leave_out(flag.shown, known->text);
    if (flag.value().find(',') == std::string::npos)
      return rename(flag.shown, "device", "cuda:" + flag.value());
    variables_.push_back("CUDA_VISIBLE_DEVICES=" + flag.value());
    note(flag.shown + " is " + variables_.back() + " here");
  }

  // What says how many processes there are, and where. One process needs no launcher.
  void take_processes(const std::vector<Given>& given) {
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

  // Its settings stand where the answer names no flag.
  void read_launcher_file(const std::string& path) {
    if (std::filesystem::exists(path)) {
      for (const auto& [name, value] : flags::read_launcher_file(path, problems_).train)
        of_launcher_file_.push_back(name);
    } else {
      problems_.add("--config_file: " + files::display_path(path) + " is not there",
                    "run this where the file is", ErrorCode::kNotFound);
    }
  }

  void take_precision(const Given& flag, const std::string& name) {
    const FlagSpec& spec = *find_spec(name);
    const std::string value = flag.value();
    if (value == "no") {
      if (is_kohya_)
        rename(flag.shown, name, "float32");
      else
        leave_out(flag.shown, "--dtype is that of the files");
      return;
    }
    if (value == "fp16" && name == "dtype") {
      set(name, "bfloat16");
      note(flag.shown + " is --dtype bfloat16 here: gradients of float16 vanish");
      return;
    }
    const std::string word = flags::known_word(value, spec.choices);
    rename(flag.shown, name, word.empty() ? value : word);
  }

  static Given given_of(const std::string& word) {
    const size_t equals = word.find('=');
    Given flag = {word.substr(2, equals == std::string::npos ? equals : equals - 2), {}, word};
    if (equals != std::string::npos) flag.values.push_back(word.substr(equals + 1));
    return flag;
  }

  std::vector<Given> flags_of(std::span<const std::string> words) {
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

  void take_flag(const Given& flag) {
    const CompatFlag* known = nullptr;
    if (is_kohya_) known = find_compat_flag(flag.name, flags::kKohya);
    if (is_kohya_ && flag.name == "mixed_precision") return take_precision(flag, "dtype");
    if (known == nullptr && find_spec(flag.name) != nullptr) return take_own(flag);
    if (known == nullptr) known = find_compat_flag(flag.name, flags::kKohya | flags::kTrainer);
    if (known == nullptr) {
      unknown_.push_back("--" + flag.name);
      return;
    }
    switch (known->fate) {
      case Fate::kRenamed:
        return rename(flag.shown, std::string(known->text), flag.value());
      case Fate::kFixed: {
        const std::string text(known->text.substr(2));
        const size_t space = text.find(' ');
        return rename(flag.shown, text.substr(0, space),
                      space == std::string::npos ? "true" : text.substr(space + 1));
      }
      case Fate::kIdle:
        return leave_out(flag.shown, known->text);
      case Fate::kLost:
        return lose(flag.shown, known->text);
      case Fate::kRead:
        return read_flag(flag, *known);
    }
  }

  // A flag of atelier train, with the words of other programs for its choices.
  void take_own(const Given& flag) {
    if (find_compat_flag(flag.name, flags::kStudio) != nullptr) {
      flags::GivenValue value = {flag.name, flag.values.empty() ? "true" : flag.value(),
                                 flag.shown};
      own_idle_.push_back(std::move(value));
      return;
    }
    const FlagSpec& spec = *find_spec(flag.name);
    if (spec.kind == FlagKind::kFlag)
      return set(flag.name, flag.values.empty() ? "true" : flag.value());
    if (flag.name == "optimizer_args") return take_optimizer_args(flag);
    std::string value = flag.value();
    if (is_kohya_ && flag.name == "weighting_scheme" && value == "uniform")
      return rename(flag.shown, flag.name, "none");
    std::string word = flags::known_word(value, spec.choices);
    for (const std::string& choice : spec.choices) {
      if (word.empty() && choice != value && lower(choice) == lower(value)) word = choice;
    }
    if (!word.empty()) return rename(flag.shown, flag.name, word);
    set(flag.name, value);
  }

  static std::string lower(std::string text) {
    std::transform(text.begin(), text.end(), text.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return text;
  }

  // "weight_decay=0.1" "betas=0.9,0.99": those that are flags here, and the rest as it is.
  void take_optimizer_args(const Given& flag) {
    std::string rest;
    for (const std::string& value : flag.values) {
      const size_t equals = value.find('=');
      const std::string key = value.substr(0, equals);
      const std::string text = equals == std::string::npos ? "" : value.substr(equals + 1);
      if (key == "weight_decay") {
        rename(value, key, text);
      } else if (key == "eps") {
        rename(value, "adam_epsilon", text);
      } else if (key == "betas" && text.find(',') != std::string::npos) {
        rename(value, "adam_beta1", text.substr(0, text.find(',')));
        set("adam_beta2", text.substr(text.find(',') + 1));
      } else {
        rest += (rest.empty() ? "" : ",") + value;
      }
    }
    if (!rest.empty()) set(flag.name, rest);
  }

  void read_flag(const Given& flag, const CompatFlag& known) {
    const std::string value = flag.value();
    if (flag.name == "pretrained_model_name_or_path" || flag.name == "gemma2" ||
        flag.name == "ae" || flag.name == "vae") {
      model_files_.push_back(value);
      note(flag.shown + " is in --model_paths here");
    } else if (flag.name == "network_module") {
      rename(flag.shown, "lora_base_model", denoiser_of(family_));
    } else if (flag.name == "resolution") {
      resolution_ = flag;
    } else if (flag.name == "dataset_config") {
      const size_t before = problems_.size();
      FlagValues values = read_kohya_dataset(value, problems_);
      for (const auto& [name, text] : values) set(name, text);
      if (problems_.size() == before) note(flag.shown + " is read, and its flags stand here");
    } else if (flag.name == "save_precision") {
      take_precision(flag, "save_dtype");
    } else if (flag.name == "min_timestep" || flag.name == "max_timestep") {
      take_boundary(flag);
    } else if ((flag.name == "model_prediction_type" && value == "raw") ||
               (flag.name == "loss_type" && value == "l2") ||
               (flag.name == "save_every_n_epochs" && value == "1")) {
      leave_out(flag.shown, known.text);
    } else {
      lose(flag.shown, known.text);
    }
  }

  // Timesteps of there count up with the noise, parts of the table here fall.
  void take_boundary(const Given& flag) {
    const auto level = report::parse_number<double>(flag.value());
    if (!level || !(*level >= 0 && *level <= 1000))
      return problems_.add(flag.shown + ": no number from 0 to 1000");
    rename(flag.shown,
           flag.name == "min_timestep" ? "max_timestep_boundary" : "min_timestep_boundary",
           report::print("%g", 1.0 - *level / 1000.0));
  }

  // What kohya's trainers do where their line says nothing, as far as it is not done here anyway.
  void finish_kohya() {
    if (resolution_) {
      try {
        const bool has_buckets = find("enable_bucket") != nullptr;
        std::string said;
        for (const auto& [name, value] : flags_of_resolution(resolution_->value(), has_buckets)) {
          set(name, value);
          said += " --" + name + " " + value;
        }
        note(resolution_->shown + " is" + said + " here");
      } catch (const Error& error) {
        problems_.add(error.at("--resolution"));
      }
    }
    if (!model_files_.empty()) {
      set("model_paths", nlohmann::json(model_files_).dump());
      note("the tokenizer is looked for beside the text encoder; --tokenizer_path says where else");
    }
    if (find("lora_base_model") != nullptr) {
      preset("lora_rank", "4");
      preset("lora_alpha", "1");
      preset("lora_format", "kohya");
    }
    preset("learning_rate", "2e-6");
    preset("dtype", "float32");
    preset("weighting_scheme", "none");
    preset("timestep_sampling", "shift");
    if (*find("timestep_sampling") == "shift") preset("discrete_flow_shift", "6");
    if (*find("timestep_sampling") != "shift" && find("discrete_flow_shift") != nullptr) {
      std::erase_if(flags_, [](const auto& flag) { return flag.first == "discrete_flow_shift"; });
      leave_out("--discrete_flow_shift", "it is of --timestep_sampling shift alone");
    }
    preset("caption_extension", ".caption");
    if (find("num_epochs") == nullptr) preset("max_train_steps", "1600");
    note_presets("kohya's trainers");
  }

  // The same of DiffSynth-Studio.
  void finish_studio() {
    const std::string task = find("task") == nullptr ? "" : *find("task");
    if (!task.ends_with(":data_process")) preset("max_grad_norm", "0");
    if (!task.ends_with(":train") && makes_clips()) {
      preset("num_frames", "81");
      preset("keep_frame_rate", "true");
    }
    note_presets("DiffSynth-Studio");
  }

  bool makes_clips() const {
    return family_ != nullptr && std::ranges::any_of(family_->inputs(), [](const InputSpec& input) {
             return input.role == InputRole::kTarget && input.kind == InputKind::kVideo;
           });
  }

  // Stands for a flag that is given nowhere.
  void preset(const std::string& name, const std::string& value) {
    if (find(name) != nullptr || std::ranges::count(of_launcher_file_, name) != 0) return;
    set(name, value);
    presets_.append(presets_.empty() ? "--" : ", --").append(name);
    if (value != "true") presets_.append(" ").append(value);
  }
  void note_presets(const std::string& program) {
    if (!presets_.empty()) note("presets of " + program + " that are others here: " + presets_);
  }

  // The line as atelier train reads it before it opens a file.
  void check() {
    if (family_ == nullptr && find("plugin") == nullptr)
      problems_.add("--plugin is missing", "name the model family; atelier plugins lists them");
    CommandSpec spec = spec_;
    for (FlagSpec& flag : spec.flags) flag.required = false;
    report::Problems told;  // below, once
    const flags::ParsedFlags idle = flags::parse_flags(spec, {}, own_idle_, told);
    for (std::string& line : flags::note_compat_flags(idle, problems_)) note(line);
    std::vector<std::string> words = words_of_flags();
    words.insert(words.end(), unknown_.begin(), unknown_.end());
    const Config config = parse_settings(words, family_, problems_);
    for (const std::string& line : config.notes) note(line);
    if (config.stage == Stage::kTrain)
      note("--task " + *find("task") + " needs what its first stage, :data_process, writes");
  }

  std::vector<std::string> words_of_flags() const {
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

  std::vector<std::string> command() const {
    std::vector<std::string> words = variables_;
    words.emplace_back("atelier");
    if (!launch_.empty()) {
      words.emplace_back("launch");
      words.insert(words.end(), launch_.begin(), launch_.end());
      words.emplace_back("--");
    }
    words.emplace_back("train");
    for (std::string& word : words_of_flags()) words.push_back(std::move(word));
    return words;
  }

  CommandSpec spec_;
  const ModelFamily* family_;
  report::Problems& problems_;
  bool is_kohya_ = false;
  std::vector<std::string> notes_, variables_, unknown_, model_files_;
  std::string presets_;
  std::vector<std::string> of_launcher_file_;  // flags of atelier train that --config_file says
  std::vector<std::string> launch_;            // flags of atelier launch; empty: one process
  FlagValues flags_;
  std::vector<flags::GivenValue> own_idle_;  // flags that mean nothing here
  std::optional<Given> resolution_;
};

std::span<const std::string> without_variables(std::span<const std::string> words) {
  while (!words.empty() && (is_variable(words.front()) || words.front() == "env"))
    words = words.subspan(1);
  return words;
}

}  // namespace

bool is_compat_line(std::span<const std::string> words) {
  const auto rest = without_variables(words);
  return !rest.empty() && (is_launcher(rest.front()) || is_script(rest.front()));
}

std::string family_of_line(std::span<const std::string> words,
                           const std::vector<std::string>& families) {
  if (const auto said = flags::peek_flag(words, "plugin")) return *said;
  const auto script = std::find_if(words.begin(), words.end(), is_script);
  if (script == words.end()) return {};
  for (const std::string& family : families) {
    if (stands_in(*script, family)) return family;
  }
  // The first word of its name, before "_train".
  const std::string stem = std::filesystem::path(*script).stem().string();
  const std::string first = stem.substr(0, stem.find('_'));
  for (const std::string& family : families) {
    if (first != stem && first.size() >= 3 && family.starts_with(first)) return family;
  }
  // A folder named after what the family makes: its name and "video".
  for (const auto& folder : std::filesystem::path(*script).parent_path()) {
    for (const std::string& family : families) {
      if (folder.string() == family + "video") return family;
    }
  }
  return {};
}

CompatLine rewrite_line(std::span<const std::string> words, const ModelFamily* family,
                        report::Problems& problems) {
  return Rewriter(family, problems).run(words);
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

std::vector<std::string> note_compat_variables() {
  std::vector<std::string> notes;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    const std::string name(text.substr(0, text.find('=')));
    if (!name.starts_with("SDSCRIPTS_") && !name.starts_with("DIFFSYNTH_")) continue;
    const Variable* known = find_variable(name);
    if (known->flag.empty() && known->why.empty()) continue;
    notes.push_back(
        name + " has no effect: " +
        (known->flag.empty() ? std::string(known->why) : "use --" + std::string(known->flag)));
  }
  std::sort(notes.begin(), notes.end());
  return notes;
}

}  // namespace atelier::train
