// Whether all ranks are about to do the same.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "host/distributed/group.h"

namespace atelier::distributed {

// What has to be the same on all ranks: "--seed" is "42".
using RunIdentity = std::vector<std::pair<std::string, std::string>>;

// Does `work` on every rank, and returns what each says of it, by rank. When it throws an Error on
// one, all throw the first such, which names the rank; its tag is kSaidByFirst. `group`: null: this
// rank is alone.
std::vector<std::string> do_together(Group* group, const std::function<std::string()>& work);

// Throws one Error{kInvalidArgument}, on every rank the same, that names each fact that is another
// one than that of rank 0, with both values and the rank. Its tag is kRanksDiffer.
void require_same(Group& group, const RunIdentity& facts);

// Throws Error{kEnvironment} that names the ranks for which `folder`, of a flag, which rank 0 makes
// where it is not there, is not the one of rank 0. Its tag is kRanksDiffer. `is_read_only`: nothing
// is to be written there; where rank 0 cannot, ranks have to be told apart by what they read.
void require_shared_folder(Group& group, const std::string& flag, const std::string& folder,
                           bool is_read_only = false);

// Throws Error{kInvalidArgument} that names the ranks which share a GPU, which NCCL refuses. `gpu`:
// what tells this rank's from all others. Its tag is kRanksDiffer.
void require_own_gpus(Group& group, const std::string& gpu);

}  // namespace atelier::distributed
