// What pasted command lines have in common: variables and launchers in front, the script, its
// flags.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "atelier/model_family.h"

#include "host/flags/compat_flags.h"
#include "host/flags/flags.h"
#include "host/foreign/compat_line.h"
#include "host/foreign/kohya_dataset.h"
#include "host/report/problems.h"

namespace atelier::foreign {

// What follows variables, as "CUDA_VISIBLE_DEVICES=0" and env.
std::span<const std::string> without_variables(std::span<const std::string> words);
bool is_launcher(std::string_view word);
bool is_script(std::string_view word);

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

// A line of which another is made, a word at a time: `spec` is of the command that it is here.
class LineWords {
 public:
  LineWords(flags::CommandSpec spec, const ModelFamily* family, report::Problems& problems)
      : spec_(std::move(spec)), family_(family), problems_(problems) {}

 protected:
  ~LineWords() = default;

  // Takes what stands in front of the script's flags, and returns those; `script` is its path.
  std::vector<Given> take_front(std::span<const std::string> words, std::string* script);
  // --mixed_precision, which is the launcher's as well as the script's.
  virtual void take_precision(const Given& flag, const std::string& name) = 0;
  // What a row of the table says of a flag of the script.
  void take_row(const Given& flag, const flags::CompatFlag& row);
  virtual void take_renamed(const Given& flag, const std::string& name) = 0;
  virtual void take_fixed(const Given& flag, const std::string& name, const std::string& value) {
    rename(flag.shown, name, value);
  }
  // Takes a flag whose value decides.
  virtual void read_flag(const Given& flag, const flags::CompatFlag& row) = 0;

  void note(const std::string& what) { notes_.push_back(what); }
  static std::string lower(std::string text);
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
  const flags::FlagSpec* find_spec(std::string_view name) const {
    return flags::find_flag(spec_, name);
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

  // A path of a file of the model, of the component of that name; empty: its tensors tell which.
  void add_model_file(const Given& flag, std::string_view component = {});
  // --model_version edit-2509, or --edit: the family's variant of that name, where it knows one.
  // Returns whether the flag is such a one.
  bool take_version(const Given& flag);
  // --task i2v-14B: the family's variant that ends so, as far as its inputs name one.
  void take_task(const std::string& shown, const std::string& task);
  // Names the inputs that the variant is trained with.
  void add_inputs();
  // Flags for what the first two gathered.
  void finish_model();
  // Names of the family's denoisers, that of more noise first.
  std::vector<std::string> denoisers() const;
  bool makes_clips() const;
  // Whether the variant that the line has said so far takes an input; without one: any may.
  bool may_take(const InputSpec& input) const;
  void check_plugin();

  std::vector<std::string> words_of_flags() const;
  std::vector<std::string> command() const;

  flags::CommandSpec spec_;
  const ModelFamily* family_;
  report::Problems& problems_;
  std::vector<std::string> notes_, variables_, unknown_;
  std::string presets_;
  std::vector<std::string> of_launcher_file_;  // flags of atelier train that --config_file says
  std::vector<std::string> launch_;            // flags of atelier launch; empty: one process
  FlagValues flags_;

 private:
  void set_version(const std::string& shown, const std::string& version);
  std::string variant_of(const std::string& task) const;
  size_t take_variables(std::span<const std::string> words);
  // Returns where the script's own flags begin.
  size_t take_launcher(std::span<const std::string> words, size_t at);
  // Returns whether the flag is none that says which processes there are.
  bool take_launcher_flag(const Given& flag, const flags::CompatFlag* known);
  // What says how many processes there are, and where. One process needs no launcher.
  void take_processes(const std::vector<Given>& given);
  // Its settings stand where the answer names no flag.
  void read_launcher_file(const std::string& path);
  std::vector<Given> flags_of(std::span<const std::string> words);

  std::string variant_;  // as far as the line says it
  std::vector<std::string> model_files_;
  std::map<std::string, std::map<std::string, std::string>> hints_;  // by file
};

// The line of a script that makes images or clips. `generate`: of atelier generate with the family;
// `has_flags`: false of a script whose settings stand in itself.
CompatLine rewrite_generate_line(std::span<const std::string> words, const ModelFamily* family,
                                 const flags::CommandSpec& generate, bool has_flags,
                                 report::Problems& problems);

}  // namespace atelier::foreign
