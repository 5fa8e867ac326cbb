// A command line, and the files below it: of --config, and of the run that --resume names.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "host/flags/flags.h"
#include "host/report/problems.h"

namespace atelier::order {

// Read once, before the family is known, whose flags the values may be of.
class Words {
 public:
  // `command`: without a family. Files that cannot be read, or are no TOML, become problems and say
  // nothing; mistakes in their values are told by below().
  Words(std::vector<std::string> words, const flags::CommandSpec& command,
        report::Problems& problems);

  const std::vector<std::string>& command_line() const { return words_; }
  // What is said of a flag, as it would be written on the command line: there, in --config or by
  // the resumed run. nullopt: nothing.
  std::optional<std::string> find(std::string_view name) const;
  // Says what nobody has said, as on the command line.
  void set(std::string_view name, std::string_view value);
  // Whether all files could be read.
  bool is_whole() const { return is_whole_; }

  struct Below {
    std::vector<flags::GivenValue> values;  // of --config, then of the resumed run
    size_t first_resumed = 0;               // of the values
  };
  // The values of files, of a command with its family's flags. Unknown names and values of a wrong
  // type become problems.
  Below below(const flags::CommandSpec& command, report::Problems& problems) const;

  // The folder of a run or of a saved state that training goes on from; empty: it begins from the
  // beginning.
  const std::string& resume() const { return resume_; }
  // The run that --resume names, whether it has a state or not; empty: none.
  const std::string& resumed_folder() const { return resumed_folder_; }
  // A line for the user where that run has no state.
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  struct File {
    std::string text = {}, path = {};
    std::string run = {};    // folder of the resumed run whose configuration it is; empty: --config
    bool has_state = false;  // what that run began with is in its state, and not taken again
    bool has_other_length = false;  // --num_epochs is said above it, and its own steps do not count
  };
  static std::vector<flags::GivenValue> values_of(const File& file,
                                                  const flags::CommandSpec& command,
                                                  report::Problems& problems);
  void add(File file, const flags::CommandSpec& command);
  void read_resumed(const std::string& resume, const flags::CommandSpec& command);

  std::vector<std::string> words_;
  std::vector<File> files_;
  std::vector<flags::GivenValue> said_;  // of files, as far as a family is not needed
  std::string resume_, resumed_folder_;
  std::vector<std::string> notes_;
  bool is_whole_ = true;
};

}  // namespace atelier::order
