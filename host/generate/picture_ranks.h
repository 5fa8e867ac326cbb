// The processes that make each picture together, and what each of them does for it.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "atelier/host/sequence_scope.h"
#include "atelier/model_family.h"

#include "host/distributed/group.h"
#include "host/order/settings.h"
#include "host/report/problems.h"

namespace atelier::order {
struct Processes;
}

namespace atelier::generate {

// The processes of a run that make the same pictures as this one. They do the same, but
// for what is shared out, and the first of them writes.
struct PictureRanks {
  int64_t team = 0, teams = 1;                   // jobs are dealt to teams
  std::shared_ptr<distributed::Group> all = {};  // have tiles of the VAE each; null: it is alone
  // Two ranks: the first has the prompt, the other one the negative prompt. May be null.
  std::shared_ptr<distributed::Group> guidance = {};
  std::shared_ptr<SequenceGroup> sequence = {};  // have rows of the denoiser each; may be null

  bool is_alone() const { return all == nullptr; }
  bool is_first() const { return is_alone() || all->is_first(); }
};

// All ranks of `world` call it; check_ranks() has let `processes` through. Where no picture is
// shared out, each rank is a team.
PictureRanks form_teams(distributed::Group& world, const order::Processes& processes);

// Whether so many processes have something to share, pictures or jobs. `has_jobs`: those of a file;
// `from_stdin`: they come one by one.
void check_ranks(const order::Processes& processes, const distributed::Ranks& ranks, bool has_jobs,
                 bool from_stdin, report::Problems& problems);

// Whether the images of `settings` have what is shared out. `variant` as in check_settings().
void check_shares(const order::Processes& processes, const order::Settings& settings,
                  const ModelFamily& family, std::string_view variant, const order::Origin& place,
                  report::Problems& problems);

}  // namespace atelier::generate
