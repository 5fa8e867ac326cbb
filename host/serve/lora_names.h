// The LoRAs that clients may name, and those that are loaded for requests which name none.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "host/lora/selection.h"
#include "host/serve/jobs.h"

namespace atelier::serve {

// A message without the folder of a LoRA's file.
std::string without_folder_of(const lora::LoraRef& lora, std::string message);

class LoraNames : public Loras {
 public:
  // Throws Error where a LoRA does not fit the model; called by the threads of connections.
  using Check = std::function<void(const lora::LoraRef&)>;
  // Registers the files of `folder`, which may be empty, by their names without suffix, those that
  // come later among them, and `loaded`, which are loaded, too.
  LoraNames(std::string folder, const std::vector<lora::LoraRef>& loaded, Check check);

  std::vector<RegisteredLora> list() const override;
  void add(const std::string& name, const std::string& file,
           const std::string& component = {}) override;
  void remove(const std::string& name) override;
  void set_loaded(const std::string& name, bool is_loaded, double strength) override;

  // What a job has: those that it names, or those that are loaded. Throws HttpError 400 for a name
  // that is none, with the nearest one.
  std::vector<lora::LoraRef> find(
      const std::optional<std::vector<std::pair<std::string, double>>>& asked) const;

 private:
  struct Entry {
    lora::LoraRef ref;  // its strength is that when it is loaded
    std::optional<nlohmann::json> metadata = {};
  };
  Entry& find_entry(const std::string& name, int status) const;
  // Registers the files of the folder that were not there before.
  void look_into_folder() const;

  const std::string folder_;
  const Check check_;
  mutable std::mutex mutex_;
  mutable std::map<std::string, Entry, std::less<>> entries_;
  mutable std::set<std::string> seen_;  // files of the folder, also of names that were removed
  std::vector<std::string> loaded_;     // in the order in which they were
};

}  // namespace atelier::serve
