// The processes of a run as they know each other: who came, and who is lost.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <c10/util/intrusive_ptr.h>

#include "atelier/error.h"

#include "host/distributed/ranks.h"

namespace c10d {
class Store;
}

namespace atelier::distributed {

// They meet at a store, which the launcher or rank 0 keeps. While one lives, a thread looks there
// whether a rank is in trouble. This process has a few seconds to end then; if its main thread is
// held up somewhere, the thread ends the process with the code of Error{kPeerLost}, so nothing
// hangs when a rank goes away. say() is for one thread; the others may be called from any.
class Peers {
 public:
  // Waits until all ranks are there. Throws Error{kPeerLost} that names those that did not come
  // within `limit`, and Error{kEnvironment} when the port is taken.
  Peers(const Ranks& ranks, std::chrono::milliseconds limit);
  ~Peers();
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

  const Ranks& ranks() const;
  // "rank 2 (node7)"
  std::string name_of(int rank) const;
  c10::intrusive_ptr<c10d::Store> store() const;

  // What every rank says, by rank. Waits for all as long as they live.
  std::vector<std::string> say(const std::string& text);

  // The error of work with the others that failed for `reason`: it names the ranks that are lost,
  // or the rank whose own error ended it. `place`: "step 5, all-reduce". Takes up to three seconds.
  Error lost(std::string_view place, std::string_view reason);

  // This process ends for `reason`, and the others are to say so.
  void give_up(std::string_view reason);

  // The run is at its end for all ranks, which come here together: from here on nobody is lost.
  void part();

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
  int64_t num_said_ = 0;
};

}  // namespace atelier::distributed
