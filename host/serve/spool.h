// The files of a server's jobs: results, what clients sent along, and the jobs that survive it.
#pragma once

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "host/serve/jobs.h"

namespace atelier::serve {

// Files by the input that they were sent for.
using SpooledFiles = std::map<std::string, std::vector<std::string>, std::less<>>;

// FOLDER/ID.png                   results, under the names that output_of() gives
// FOLDER/.atelier-jobs/ID.json    a job that survives
// FOLDER/.atelier-jobs/ID/NAME.0  what was sent along for the input NAME
// FOLDER/.atelier-jobs/lock       held while the server lives
//
// Names are the server's own. Safe to use from several threads, each with jobs of its own.
class Spool {
 public:
  // `folder` is made where it is not there; empty: a temporary folder, which goes with the spool.
  // Throws Error{kEnvironment}, also where another server has the folder.
  explicit Spool(const std::string& folder);
  ~Spool();
  Spool(const Spool&) = delete;
  Spool& operator=(const Spool&) = delete;

  const std::string& folder() const { return folder_; }
  bool is_temporary() const { return is_temporary_; }

  // A name that nothing has yet.
  static std::string new_id();
  // Where a job's result goes, as order::Settings::output; `extension` is without a dot.
  std::string output_of(std::string_view id, std::string_view extension) const;

  // A message without the spool's folders in front of its files: clients are told no paths.
  std::string without_folder(std::string message) const;

  // Writes what was sent along, for this user alone. `is_durable`: it is there after a crash.
  // Throws Error{kEnvironment}; nothing of it is there then.
  SpooledFiles write(std::string_view id,
                     const std::map<std::string, std::vector<Upload>, std::less<>>& uploads,
                     bool is_durable) const;
  // What write() wrote.
  SpooledFiles find(std::string_view id) const;
  void remove_uploads(std::string_view id) const;

  // Writes a job that survives: it is whole on the disk when this returns. Throws
  // Error{kEnvironment}.
  void save(std::string_view id, const nlohmann::json& record) const;
  void remove_record(std::string_view id) const;
  // The jobs that survived, by id. What belongs to none of them is removed. A record that cannot be
  // read is left, and told to `warn`.
  std::vector<std::pair<std::string, nlohmann::json>> records(
      const std::function<void(const std::string&)>& warn) const;

 private:
  std::string uploads_of(std::string_view id) const;
  std::string record_of(std::string_view id) const;

  std::string folder_, jobs_;
  bool is_temporary_ = false;
  int lock_ = -1;
};

}  // namespace atelier::serve
