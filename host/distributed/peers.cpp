#include "host/distributed/peers.h"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <thread>
#include <unistd.h>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "host/report/error_line.h"

namespace atelier::distributed {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

constexpr milliseconds kLook(200);               // between two looks at the store
constexpr milliseconds kRollCall(1500);          // that ranks have to answer
constexpr milliseconds kVerdict(3000);           // until a failure is explained
constexpr milliseconds kEnd(4000);               // that the main thread has to end the process
constexpr std::chrono::hours kForever(24 * 20);  // milliseconds that an int still holds

constexpr const char* kTrouble = "trouble";  // who noticed first
constexpr const char* kVerdictKey = "verdict";

std::string host_name() {
  std::array<char, 256> name = {};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

std::vector<uint8_t> bytes_of(std::string_view text) {
  return {text.begin(), text.end()};
}

std::string text_of(const std::vector<uint8_t>& bytes) {
  return {bytes.begin(), bytes.end()};
}

std::string key_of(const char* kind, int rank) {
  return std::string(kind) + "/" + std::to_string(rank);
}

std::string first_line(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));  // a stack stands behind it
}

// The ranks that have not set their key of this kind; throws where the store has gone.
std::vector<int> missing(c10d::Store& store, const char* kind, int size) {
  std::vector<int> ranks;
  for (int rank = 0; rank < size; ++rank) {
    if (!store.check({key_of(kind, rank)})) ranks.push_back(rank);
  }
  return ranks;
}

StorePtr open_store(const Ranks& ranks, milliseconds limit) {
  const std::string place = ranks.address + ":" + std::to_string(ranks.port);
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(ranks.port);
  options.isServer = !ranks.has_agent_store && ranks.is_first();
  options.waitWorkers = false;
  options.multiTenant = true;
  options.timeout = limit;
  StorePtr store;
  try {
    store = c10::make_intrusive<c10d::TCPStore>(ranks.address, options);
  } catch (const std::exception& error) {
    if (first_line(error).find("EADDRINUSE") != std::string::npos)
      throw Error(ErrorCode::kEnvironment, place + ": another program listens at this port",
                  "take another one: MASTER_PORT, or --master_port of launch");
    throw Error(ErrorCode::kPeerLost,
                "rank " + std::to_string(ranks.rank) + ": " + place +
                    ", where the ranks meet: " + first_line(error),
                "look at what rank 0 said last");
  }
  store->setTimeout(kForever);
  // What an earlier attempt of a restarted run left in the launcher's store is not read.
  return c10::make_intrusive<c10d::PrefixStore>("atelier/" + std::to_string(ranks.restarts), store);
}

}  // namespace

struct Peers::Shared {
  Ranks ranks;
  std::vector<std::string> hosts;
  StorePtr store;    // of the main thread, which may wait there
  StorePtr watched;  // of the thread, which never waits

  std::mutex mutex;  // of what follows
  std::condition_variable changed;
  std::optional<std::string> asked, verdict;  // what lost() or give_up() asks, and the answer
  bool is_ours = false;  // this process is the one in trouble, and ends when it has cleaned up
  bool stops = false, has_stopped = false;

  std::string name_of(int rank) const;
  std::string list(const std::vector<int>& lost) const;
  void meet(milliseconds limit);
  Error absent(milliseconds limit) const;

  void watch();
  bool look();
  void judge(const std::string& reason);
  std::string decide(const std::string& reason);
  void end_process();
};

std::string Peers::Shared::name_of(int rank) const {
  return "rank " + std::to_string(rank) + " (" + hosts.at(static_cast<size_t>(rank)) + ")";
}

std::string Peers::Shared::list(const std::vector<int>& lost) const {
  std::string text;
  for (const int rank : lost) text += (text.empty() ? "" : ", ") + name_of(rank);
  return text + (lost.size() == 1 ? " is lost" : " are lost");
}

void Peers::Shared::meet(milliseconds limit) {
  const auto end = Clock::now() + limit;
  store->set(key_of("come", ranks.rank), bytes_of(host_name()));
  for (int rank = 0; rank < ranks.size; ++rank) {
    const auto left = std::chrono::duration_cast<milliseconds>(end - Clock::now());
    try {
      store->wait({key_of("come", rank)}, std::max(left, milliseconds(1)));
      hosts.push_back(text_of(store->get(key_of("come", rank))));
    } catch (const std::exception&) {
      throw absent(limit);
    }
  }
}

// The error of a meeting to which not all have come.
Error Peers::Shared::absent(milliseconds limit) const {
  std::string names;
  try {
    for (const int rank : missing(*store, "come", ranks.size))
      names += (names.empty() ? "rank " : ", rank ") + std::to_string(rank);
  } catch (const std::exception&) {
    names = "rank 0";  // it has come, and gone again
  }
  return {ErrorCode::kPeerLost,
          names + " of " + std::to_string(ranks.size) + " did not come to " + ranks.address + ":" +
              std::to_string(ranks.port) + " within " + std::to_string(limit.count() / 1000) + " s",
          "see whether all of them were started, and reach that place"};
}

// The thread's work, until the run is over.
void Peers::Shared::watch() {
  std::optional<Clock::time_point> end;
  while (true) {
    std::unique_lock lock(mutex);
    changed.wait_for(lock, kLook, [&] { return stops || (asked && !verdict); });
    if (stops) break;
    const std::optional<std::string> reason = verdict ? std::nullopt : asked;
    lock.unlock();
    if (reason) judge(*reason);
    if (look() && !end) end = Clock::now() + kEnd;
    if (end && Clock::now() > *end) end_process();
  }
  const std::lock_guard lock(mutex);
  has_stopped = true;
  changed.notify_all();
}

// Whether a rank is in trouble; this one then answers the roll call, and learns what is known.
bool Peers::Shared::look() {
  try {
    if (!watched->check({kTrouble})) return false;
    watched->set(key_of("here", ranks.rank), "");
    if (!watched->check({kVerdictKey})) return true;
    const std::string text = text_of(watched->get(kVerdictKey));
    const std::lock_guard lock(mutex);
    if (!verdict) verdict = text;
    changed.notify_all();
  } catch (const std::exception&) {
    const std::lock_guard lock(mutex);  // the store has gone, and with it who kept it
    if (!verdict) verdict = ranks.has_agent_store ? "the launcher is lost" : list({0});
    changed.notify_all();
  }
  return true;
}

void Peers::Shared::judge(const std::string& reason) {
  std::string text;
  try {
    text = decide(reason);
  } catch (const std::exception&) {
    text = ranks.has_agent_store ? "the launcher is lost" : list({0});
  }
  const std::lock_guard lock(mutex);
  if (!verdict) verdict = text;
  changed.notify_all();
}

// What has happened, as all ranks say it. The first one that notices calls the roll.
std::string Peers::Shared::decide(const std::string& reason) {
  const std::string mine = std::to_string(ranks.rank);
  const bool is_first = text_of(watched->compareSet(kTrouble, {}, bytes_of(mine))) == mine;
  watched->set(key_of("here", ranks.rank), "");
  const auto end = Clock::now() + kRollCall;
  std::vector<int> silent;
  const auto knows = [&] {
    if (watched->check({kVerdictKey})) return true;
    silent = missing(*watched, "here", ranks.size);
    return is_first && silent.empty();
  };
  while (!knows() && Clock::now() < end) std::this_thread::sleep_for(milliseconds(50));
  std::string text = reason;
  if (!is_ours && !silent.empty()) text = list(silent) + " (" + reason + ")";
  text = text_of(watched->compareSet(kVerdictKey, {}, bytes_of(text)));
  // Who keeps the store stays until the others have read it.
  if (ranks.is_first() && !ranks.has_agent_store) std::this_thread::sleep_for(2 * kLook);
  return text;
}

// The main thread does not come to its end by itself.
void Peers::Shared::end_process() {
  const std::lock_guard lock(mutex);
  if (is_ours || stops) return;
  const Error error(ErrorCode::kPeerLost, verdict.value_or("another rank is in trouble"),
                    "look at what that rank said last");
  std::fputs(report::error_line(error).c_str(), stderr);
  std::_Exit(exit_code(error.code()));
}

Peers::Peers(const Ranks& ranks, milliseconds limit) : shared_(std::make_shared<Shared>()) {
  shared_->ranks = ranks;
  shared_->store = open_store(ranks, limit);
  shared_->meet(limit);
  shared_->watched = shared_->store->clone();
  std::thread([shared = shared_] { shared->watch(); }).detach();
}

// The thread is waited for, unless the store keeps it.
Peers::~Peers() {
  std::unique_lock lock(shared_->mutex);
  shared_->stops = true;
  shared_->changed.notify_all();
  shared_->changed.wait_for(lock, kVerdict, [&] { return shared_->has_stopped; });
}

const Ranks& Peers::ranks() const {
  return shared_->ranks;
}

std::string Peers::name_of(int rank) const {
  return shared_->name_of(rank);
}

StorePtr Peers::store() const {
  return shared_->store;
}

std::vector<std::string> Peers::say(const std::string& text) {
  const std::string kind = "say/" + std::to_string(num_said_++);
  const int size = ranks().size;
  try {
    c10d::Store& store = *shared_->store;
    store.set(key_of(kind.c_str(), ranks().rank), bytes_of(text));
    std::vector<std::string> texts;
    for (int rank = 0; rank < size; ++rank)
      texts.push_back(text_of(store.get(key_of(kind.c_str(), rank))));  // waits for it
    return texts;
  } catch (const std::exception& error) {
    throw lost("agreement", first_line(error));
  }
}

Error Peers::lost(std::string_view place, std::string_view reason) {
  std::unique_lock lock(shared_->mutex);
  shared_->asked = name_of(ranks().rank) + ": " + std::string(reason);
  shared_->changed.notify_all();
  const bool is_answered =
      shared_->changed.wait_for(lock, kVerdict, [&] { return shared_->verdict.has_value(); });
  const std::string what = is_answered               ? *shared_->verdict
                           : ranks().has_agent_store ? "the launcher does not answer"
                                                     : shared_->list({0});
  return {ErrorCode::kPeerLost, std::string(place) + ": " + what,
          "look at what that rank said last"};
}

void Peers::give_up(std::string_view reason) {
  std::unique_lock lock(shared_->mutex);
  shared_->is_ours = true;
  if (shared_->verdict) return;  // the others know already
  shared_->asked = name_of(ranks().rank) + " failed: " + std::string(reason);
  shared_->changed.notify_all();
  shared_->changed.wait_for(lock, kVerdict, [&] { return shared_->verdict.has_value(); });
}

void Peers::part() {
  say("at the end");
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->stops = true;
  }
  // Who keeps the store goes last.
  c10d::Store& store = *shared_->store;
  const int64_t others = ranks().size - 1;
  const auto end = Clock::now() + kEnd;
  try {
    int64_t parted = store.add("parted", ranks().is_first() ? 0 : 1);
    while (ranks().is_first() && parted < others && Clock::now() < end) {
      std::this_thread::sleep_for(milliseconds(10));
      parted = store.add("parted", 0);
    }
  } catch (const std::exception&) {  // it has gone already
  }
}

}  // namespace atelier::distributed
