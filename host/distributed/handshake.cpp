#include "host/distributed/handshake.h"

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "atelier/error.h"

#include "formats/escape.h"

namespace atelier::distributed {

namespace fs = std::filesystem;

namespace {

using Named = std::map<std::string, std::string>;

std::string value_of(const Named& facts, const std::string& name) {
  const auto found = facts.find(name);
  return found == facts.end() || found->second.empty() ? "none" : found->second;
}

Named parse(const std::string& text) {
  return nlohmann::json::parse(text).get<Named>();
}

}  // namespace

std::vector<std::string> do_together(Group* group, const std::function<std::string()>& work) {
  if (group == nullptr) return {work()};
  nlohmann::json mine;
  try {
    mine["said"] = work();
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kPeerLost) throw;
    mine = {{"failed", group->name_of(group->rank()) + ": " + error.message()},
            {"hint", error.hint()},
            {"code", static_cast<int>(error.code())}};
  }
  std::vector<std::string> said;
  for (const std::string& text :
       group->gather_texts(mine.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace))) {
    const auto told = nlohmann::json::parse(text);
    if (told.contains("failed"))
      throw Error(static_cast<ErrorCode>(told["code"].get<int>()), told["failed"], told["hint"],
                  std::string(kSaidByFirst));
    said.push_back(told["said"]);
  }
  return said;
}

void require_same(Group& group, const RunIdentity& facts) {
  const Named mine(facts.begin(), facts.end());
  using nlohmann::json;  // names of files may be no text
  const std::vector<std::string> said =
      group.gather_texts(json(mine).dump(-1, ' ', false, json::error_handler_t::replace));
  const Named first = parse(said.front());
  std::string different;
  for (int rank = 1; rank < group.size(); ++rank) {
    Named other = parse(said[static_cast<size_t>(rank)]);
    Named names = other;
    names.insert(first.begin(), first.end());
    for (const auto& [name, ignored] : names) {
      const std::string ours = value_of(first, name), theirs = value_of(other, name);
      if (ours == theirs) continue;
      different += (different.empty() ? "" : "\n") + name + ": " + ours + ", and " + theirs +
                   " of " + group.name_of(rank);
    }
  }
  if (different.empty()) return;
  throw Error(ErrorCode::kInvalidArgument, different,
              "start all ranks with the same program, flags and files", std::string(kRanksDiffer));
}

void require_shared_folder(Group& group, const std::string& flag, const std::string& folder,
                           bool is_read_only) {
  std::string name = ".ranks-" + std::to_string(getpid());
  std::error_code failure;
  const fs::path token = fs::path(folder) / name;
  if (group.is_first()) {
    if (!is_read_only) fs::create_directories(folder, failure);
    std::ofstream(token) << "met";
    if (is_read_only && !fs::exists(token, failure)) name = ".";  // which all of them have
  }
  const fs::path path = fs::path(folder) / group.gather_texts(name).front();
  const std::vector<std::string> seen = group.gather_texts(fs::exists(path, failure) ? "" : folder);
  if (group.is_first()) fs::remove(token, failure);
  std::string blind;
  for (int rank = 0; rank < group.size(); ++rank) {
    const std::string& theirs = seen[static_cast<size_t>(rank)];
    if (!theirs.empty())
      blind += (blind.empty() ? "" : ", ") + group.name_of(rank) + " does not see in " +
               formats::quote_and_escape(theirs) + " what rank 0 writes to its folder";
  }
  if (blind.empty()) return;
  throw Error(ErrorCode::kEnvironment, blind,
              "give all ranks one --" + flag + ", on a file system that their machines share",
              std::string(kRanksDiffer));
}

void require_own_gpus(Group& group, const std::string& gpu) {
  const std::vector<std::string> said = group.gather_texts(gpu);
  std::map<std::string, std::string> ranks_of;
  for (int rank = 0; rank < group.size(); ++rank) {
    std::string& ranks = ranks_of[said[static_cast<size_t>(rank)]];
    ranks += (ranks.empty() ? "" : ", ") + group.name_of(rank);
  }
  std::string shared;
  for (const auto& [name, ranks] : ranks_of) {
    if (ranks.find(", ") != std::string::npos)
      shared += (shared.empty() ? "" : "\n") + name + " is shared by " + ranks;
  }
  if (shared.empty()) return;
  throw Error(ErrorCode::kInvalidArgument, shared,
              "NCCL needs a GPU for each: start fewer, or --dist_backend gloo",
              std::string(kRanksDiffer));
}

}  // namespace atelier::distributed
