#include "host/distributed/machine_slabs.h"

#include <nlohmann/json.hpp>
#include <string>
#include <unistd.h>
#include <vector>

#include "host/distributed/meeting.h"

namespace atelier::distributed {

namespace {

// What a rank tells: where processes see each other by number, this one's, and its descriptor.
struct SlabAddress {
  std::string space;
  int64_t process = 0;
  int descriptor = -1;

  std::string dump() const { return nlohmann::json({space, process, descriptor}).dump(); }
  static SlabAddress parse(const std::string& text) {
    const auto told = nlohmann::json::parse(text);
    return {told[0], told[1], told[2]};
  }
};

}  // namespace

std::shared_ptr<memory::SharedSlabs> share_machine(Group& group) {
  if (group.size() == 1) return nullptr;
  std::shared_ptr<memory::SharedSlabs> own = memory::SharedSlabs::make();
  const SlabAddress mine = {process_space(), getpid(), own ? own->descriptor() : -1};
  std::vector<SlabAddress> neighbours;  // of this machine, this one among them
  int64_t place = 0;
  for (const std::string& text : group.gather_texts(mine.dump())) {
    const SlabAddress told = SlabAddress::parse(text);
    if (told.space != mine.space) continue;
    if (told.process == mine.process) place = std::ssize(neighbours);
    neighbours.push_back(told);
  }
  if (neighbours.size() == 1) return nullptr;
  const SlabAddress& first = neighbours.front();
  std::shared_ptr<memory::SharedSlabs> slabs =
      place == 0 ? own : memory::SharedSlabs::open(first.process, first.descriptor);
  if (slabs) slabs->deal(place, std::ssize(neighbours));
  return slabs;
}

}  // namespace atelier::distributed
