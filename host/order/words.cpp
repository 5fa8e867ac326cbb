#include "host/order/words.h"

#include <algorithm>
#include <filesystem>

#include "host/files/file_reader.h"
#include "host/files/folder.h"
#include "host/order/config_file.h"
#include "host/run/run_folder.h"

namespace atelier::order {
namespace {

namespace fs = std::filesystem;

using flags::CommandSpec;
using flags::GivenValue;

const GivenValue* find_value(const std::vector<GivenValue>& values, std::string_view name) {
  const auto it = std::ranges::find(values, name, &GivenValue::name);
  return it == values.end() ? nullptr : &*it;
}

// A run stays in its folder, which may have been moved, and what lay in the folder with it.
void move_paths(std::vector<GivenValue>& values, const std::string& folder,
                const CommandSpec& command) {
  const GivenValue* const found = find_value(values, "output_path");
  if (found == nullptr) return;
  std::error_code failure;
  const std::string old = found->text;
  const bool has_moved = !fs::equivalent(folder, old, failure);
  const bool is_same_path = fs::absolute(folder).lexically_normal() == old;
  for (GivenValue& value : values) {
    // Messages name the folder as the user does.
    if (value.name == "output_path" && (has_moved || is_same_path)) value.text = folder;
    if (has_moved && is_path(*flags::find_flag(command, value.name)) &&
        value.text.starts_with(old + "/"))
      value.text.replace(0, old.size(), folder);
  }
}

// Damaged states are passed over here, and told when the run takes its state.
run::SavedState find_whole(const std::string& path) {
  return run::find_state(
      path, [](const std::string&) {},
      [](const run::SavedState& saved_state) { saved_state.text("config.toml"); });
}

// The configuration of a run that began in this folder and did not get to a saved state.
std::optional<std::string> begun_config(const std::string& folder) {
  const fs::path file = fs::path(folder) / run::kConfigName;
  if (!files::is_file(file)) return std::nullopt;
  return file.string();
}

}  // namespace

Words::Words(std::vector<std::string> words, const CommandSpec& command, report::Problems& problems)
    : words_(std::move(words)) {
  const size_t before = problems.size();
  const std::string file = flags::peek_flag(words_, "config").value_or("");
  if (!file.empty())
    problems.collect([&] { add({.text = read_config(file), .path = file}, command); });
  if (const flags::FlagSpec* const resume = flags::find_flag(command, "resume")) {
    const std::string path = find("resume").value_or(resume->preset.value_or(""));
    if (!path.empty()) problems.collect([&] { read_resumed(path, command); });
  }
  is_whole_ = problems.size() == before;
}

std::optional<std::string> Words::find(std::string_view name) const {
  if (auto text = flags::peek_flag(words_, name)) return text;
  if (const GivenValue* const value = find_value(said_, name)) return value->text;
  return std::nullopt;
}

void Words::set(std::string_view name, std::string_view value) {
  words_.insert(words_.begin(), {"--" + std::string(name), std::string(value)});
}

Words::Below Words::below(const CommandSpec& command, report::Problems& problems) const {
  Below below;
  for (const File& file : files_) {
    std::vector<GivenValue> values = values_of(file, command, problems);
    if (const GivenValue* nested = find_value(values, "config"); nested != nullptr)
      problems.add(nested->place + ": a configuration names no other", "leave it out");
    std::ranges::move(values, std::back_inserter(below.values));
    if (file.run.empty()) below.first_resumed = below.values.size();
  }
  return below;
}

std::vector<GivenValue> Words::values_of(const File& file, const CommandSpec& command,
                                         report::Problems& problems) {
  std::vector<GivenValue> values = parse_config_text(file.text, file.path, command, problems);
  if (!file.run.empty()) move_paths(values, file.run, command);
  if (file.has_state) {
    std::erase_if(values, [](const GivenValue& value) {
      return value.name == "lora_checkpoint" || value.name == "resume_from_checkpoint";
    });
  }
  if (file.has_other_length)
    std::erase_if(values, [](const GivenValue& value) { return value.name == "max_train_steps"; });
  return values;
}

void Words::add(File file, const CommandSpec& command) {
  report::Problems later;  // told by below()
  std::ranges::move(values_of(file, command, later), std::back_inserter(said_));
  files_.push_back(std::move(file));
}

void Words::read_resumed(const std::string& resume, const CommandSpec& command) {
  const bool is_latest = resume == "latest";
  const std::string path =
      is_latest ? find("output_path")
                      .value_or(flags::find_flag(command, "output_path")->preset.value_or(""))
                : resume;
  const bool has_other_length = find("num_epochs").has_value();
  try {
    const run::SavedState saved_state = find_whole(path);
    resumed_folder_ = run::run_of(saved_state);
    add({.text = saved_state.text("config.toml"),
         .path = (fs::path(saved_state.folder) / run::kConfigName).string(),
         .run = resumed_folder_,
         .has_state = true,
         .has_other_length = has_other_length},
        command);
    resume_ = path;
  } catch (const Error& error) {
    const std::optional<std::string> file = begun_config(path);
    if (error.code() != ErrorCode::kNotFound || (!is_latest && !file)) {
      // The folder is that of the run: what it holds is no second mistake.
      resume_ = resumed_folder_ = path;
      throw;
    }
    notes_.push_back("--resume " + resume + ": no checkpoint in " + files::display_path(path) +
                     ", training begins from the beginning");
    resumed_folder_ = path;
    if (!is_latest)
      add({.text = files::read_text_file(*file),
           .path = *file,
           .run = path,
           .has_other_length = has_other_length},
          command);
  }
}

}  // namespace atelier::order
