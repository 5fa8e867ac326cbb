// The processes of a run as they know each other: who came, and who is lost.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <typeinfo>
#include <utility>
#include <vector>

#include <c10/util/intrusive_ptr.h>

#include "atelier/error.h"

#include "host/distributed/ranks.h"

namespace c10d {
class Store;
}

namespace atelier::distributed {

// They meet at a store, which the launcher or rank 0 keeps. While one lives, a thread shows there
// that this rank lives, and looks whether one is in trouble or shows nothing any more; where the
// store answers nothing for as long, who keeps it is lost. This process has a few seconds to end
// then; if its main thread is held up somewhere, the thread ends the process, so nothing hangs when
// a rank goes away. gather_texts() is for one thread; the others may be called from any.
class Peers {
 public:
  // Waits until all ranks are there, and throws as meet() does. A rank that shows nothing for
  // as long as an `exchange` may take, and for 20 s at most, is lost; 0: for 20 s.
  Peers(const Ranks& ranks, std::chrono::milliseconds limit, std::chrono::milliseconds exchange);
  ~Peers();
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

  const Ranks& ranks() const;
  // "rank 2 (node7)"
  std::string name_of(int rank) const;
  c10::intrusive_ptr<c10d::Store> store() const;

  // What this rank exchanges next: "step 5, all-reduce of 1000 Float". All ranks of `group` note
  // the same; the one of all ranks has no name.
  void note(std::string_view exchange, const std::string& group = {});
  // What was noted for `group`: how many exchanges, and a hash of them.
  std::pair<int64_t, uint64_t> noted(const std::string& group = {}) const;

  // What every rank says, by rank. Waits for all as long as they live.
  std::vector<std::string> gather_texts(const std::string& text);

  // The error of the exchange that was noted last, which failed for `reason`: Error{kPeerLost} that
  // names the ranks that are lost or late, or the one whose own error ended it; Error{kInternal}
  // where ranks did not do the same, with what they did. Takes up to three seconds.
  Error lost(std::string_view reason);

  // For the handler of std::terminate, where what a thread of the transport throws ends up: the
  // error that lost() would give, of the Peers of this process; nullopt where it is not about them.
  static std::optional<Error> error_of_transport(const std::type_info& type,
                                                 std::string_view reason);

  // This rank cannot go on with the work of this number, which all ranks count alike: the others
  // learn within a quarter of a second that it is called off. Once in a run.
  void call_off(int64_t work);
  bool is_called_off(int64_t work) const;

  // This process ends for `reason`, and the others are to say so.
  void give_up(std::string_view reason);

  // The run is at its end for all ranks, which come here together: from here on nobody is lost.
  void part();

 private:
  struct Shared;
  static std::weak_ptr<Shared> current;  // of the one that was made last
  std::shared_ptr<Shared> shared_;
  int64_t num_said_ = 0;
};

}  // namespace atelier::distributed
