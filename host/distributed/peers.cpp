#include "host/distributed/peers.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <poll.h>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "host/distributed/history.h"
#include "host/distributed/meeting.h"
#include "host/report/error_line.h"
#include "host/report/say_once.h"

namespace atelier::distributed {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

constexpr milliseconds kStoreLook(200);    // between two looks at the store
constexpr milliseconds kAnswerTime(1500);  // that ranks have to answer
constexpr milliseconds kVerdict(3000);     // until a failure is explained
constexpr milliseconds kEnd(1500);         // that the main thread has to end the process
constexpr int kLooksOfSign = 5;            // between two signs of life
constexpr int kMissedSigns = 20;           // after which a rank is lost, at most
constexpr int kLeastMissedSigns = 4;

constexpr const char* kTrouble = "trouble";  // who noticed first
constexpr const char* kVerdictKey = "verdict";
constexpr const char* kCalledOff = "called off";  // number of the work

// A process of this machine, as long as one lives. Of one that cannot be watched it is said that it
// has not ended.
class WatchedProcess {
 public:
  explicit WatchedProcess(pid_t process)
      : descriptor_(static_cast<int>(syscall(SYS_pidfd_open, process, 0))) {}
  ~WatchedProcess() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  WatchedProcess(const WatchedProcess&) = delete;
  WatchedProcess& operator=(const WatchedProcess&) = delete;

  bool has_ended() const {
    pollfd asked = {descriptor_, POLLIN, 0};
    return descriptor_ >= 0 && poll(&asked, 1, /*timeout=*/0) == 1;
  }

 private:
  int descriptor_;
};

std::vector<uint8_t> bytes_of(std::string_view text) {
  return {text.begin(), text.end()};
}

std::string text_of(const std::vector<uint8_t>& bytes) {
  return {bytes.begin(), bytes.end()};
}

std::string key_of(const char* kind, int rank) {
  return std::string(kind) + "/" + std::to_string(rank);
}

// The error as all ranks say it, without the place where each of them was.
struct Verdict {
  ErrorCode code = ErrorCode::kPeerLost;
  std::string text;

  std::string dump() const { return std::to_string(static_cast<int>(code)) + " " + text; }
  static Verdict parse(const std::string& dump) {
    const size_t space = dump.find(' ');
    return {static_cast<ErrorCode>(std::stoi(dump)), dump.substr(space + 1)};
  }
};

// The ranks that have not set their key of this kind; throws where the store has gone.
std::vector<int> missing(c10d::Store& store, const char* kind, int size) {
  std::vector<int> ranks;
  for (int rank = 0; rank < size; ++rank) {
    if (!store.check({key_of(kind, rank)})) ranks.push_back(rank);
  }
  return ranks;
}

}  // namespace

struct Peers::Shared {
  Ranks ranks;
  std::vector<std::string> hosts;
  StorePtr store;    // of the main thread, which may wait there
  StorePtr watched;  // of the thread, which never waits

  // The next rank, where it is a process of this machine; null: it is not.
  std::unique_ptr<WatchedProcess> next_process;
  // What the thread counts: how often it has looked, and what the next rank has shown.
  int64_t looks = 0, shown = 0;
  int missed = 0, most_missed = kMissedSigns;
  std::atomic<int> silence = 0;          // how often guard() has looked since the thread did
  std::atomic<bool> is_parting = false;  // ranks end, one earlier than the other
  std::atomic<int64_t> called_off = -1;  // number of the work; -1: none

  // This process is the one in trouble, and ends when it has cleaned up.
  std::atomic<bool> is_ours = false;

  mutable std::mutex mutex;  // of what follows
  std::condition_variable changed;
  Histories histories;
  std::optional<std::string> asked;  // what lost() or give_up() asks
  std::optional<Verdict> verdict;    // the answer
  bool stops = false, has_stopped = false;

  std::string name_of(int rank) const;
  std::string list(const std::vector<int>& ranks, const char* one, const char* several) const;
  std::string list_lost(const std::vector<int>& ranks) const {
    return list(ranks, " is lost", " are lost");
  }
  std::string dump_history() const;
  Error error_of(const Verdict& known) const;
  Error ask(std::string_view reason);
  std::string read_when_set(const std::string& key);
  int next_rank() const { return (ranks.rank + 1) % ranks.size; }
  void meet(milliseconds limit);

  void watch();
  void guard();
  bool look();
  void show_life();
  void learn(const Verdict& found);
  Verdict of_lost_store() const;
  void judge(const std::string& reason);
  Verdict decide(const std::string& reason);
  void collect_answers(bool is_first);
  Verdict explain(const std::string& reason);
  void end_process();
};

std::string Peers::Shared::name_of(int rank) const {
  return "rank " + std::to_string(rank) + " (" + hosts.at(static_cast<size_t>(rank)) + ")";
}

// "rank 1 (a), rank 2 (b) are lost"
std::string Peers::Shared::list(const std::vector<int>& ranks, const char* one,
                                const char* several) const {
  std::string text;
  for (const int rank : ranks) text += (text.empty() ? "" : ", ") + name_of(rank);
  return text + (ranks.size() == 1 ? one : several);
}

std::string Peers::Shared::dump_history() const {
  const std::lock_guard lock(mutex);
  return histories.dump();
}

// As this rank says it; the mutex is held.
Error Peers::Shared::error_of(const Verdict& known) const {
  return {known.code, histories.last() + ": " + known.text,
          known.code == ErrorCode::kPeerLost ? "look at what that rank said last"
                                             : "start all ranks with the same program and files"};
}

void Peers::Shared::meet(milliseconds limit) {
  const Meeting meeting = distributed::meet(ranks, limit);
  store = meeting.store;
  for (const Attendee& attendee : meeting.attendees) hosts.push_back(attendee.host);
  const auto& own = meeting.attendees.at(static_cast<size_t>(ranks.rank));
  const auto& next = meeting.attendees.at(static_cast<size_t>(next_rank()));
  if (next.space == own.space) next_process = std::make_unique<WatchedProcess>(next.process);
}

// The thread's work, until the run is over.
void Peers::Shared::watch() {
  std::optional<Clock::time_point> end;
  while (true) {
    std::unique_lock lock(mutex);
    changed.wait_for(lock, kStoreLook, [&] { return stops || (asked && !verdict); });
    if (stops) break;
    const std::optional<std::string> reason = verdict ? std::nullopt : asked;
    lock.unlock();
    silence = 0;
    if (reason) judge(*reason);
    if (look() && !end) end = Clock::now() + kEnd;
    if (end && Clock::now() > *end) end_process();
  }
  const std::lock_guard lock(mutex);
  has_stopped = true;
  changed.notify_all();
}

// Where the machine that keeps the store cannot be reached any more, the thread waits there without
// end. This one sees that it does, and ends the process.
void Peers::Shared::guard() {
  std::unique_lock lock(mutex);
  const auto waits = [&](milliseconds time) {
    return !changed.wait_for(lock, time, [&] { return stops; });
  };
  while (waits(kLooksOfSign * kStoreLook)) {
    if (++silence < most_missed) continue;
    if (!verdict) verdict = of_lost_store();
    changed.notify_all();
    if (!waits(kEnd)) return;
    lock.unlock();
    end_process();
    return;
  }
}

void Peers::Shared::learn(const Verdict& found) {
  const std::lock_guard lock(mutex);
  if (!verdict) verdict = found;
  changed.notify_all();
}

// The store has gone, and with it who kept it.
Verdict Peers::Shared::of_lost_store() const {
  return {.text = ranks.has_agent_store ? "the launcher is lost" : list_lost({0})};
}

// Whether a rank is in trouble; this one then answers, and learns what is known.
bool Peers::Shared::look() {
  try {
    if (called_off < 0 && watched->check({kCalledOff}))
      called_off = std::stoll(text_of(watched->get(kCalledOff)));
    if (!watched->check({kTrouble})) {
      show_life();
      return false;
    }
    watched->set(key_of("here", ranks.rank), dump_history());
    if (watched->check({kVerdictKey})) learn(Verdict::parse(text_of(watched->get(kVerdictKey))));
  } catch (const std::exception&) {
    learn(of_lost_store());
  }
  return true;
}

// Each rank counts up in the store, and the one before it sees whether it still does, or, on the
// same machine, whether its process lives. Signs are missed by looks and not by the clock, which
// goes on while all processes are suspended.
void Peers::Shared::show_life() {
  const int next = next_rank();
  if (next_process && !is_parting && next_process->has_ended())
    return judge("its process has ended");
  if (++looks % kLooksOfSign != 0) return;
  watched->add(key_of("signs", ranks.rank), 1);
  const int64_t now = watched->add(key_of("signs", next), 0);
  missed = now == shown ? missed + 1 : 0;
  shown = now;
  if (missed == most_missed) judge("no sign of life for " + std::to_string(most_missed) + " s");
}

void Peers::Shared::judge(const std::string& reason) {
  try {
    learn(decide(reason));
  } catch (const std::exception&) {
    learn(of_lost_store());
  }
}

// What has happened, as all ranks say it. The first one that notices asks all.
Verdict Peers::Shared::decide(const std::string& reason) {
  const std::string mine = std::to_string(ranks.rank);
  const bool is_first = text_of(watched->compareSet(kTrouble, {}, bytes_of(mine))) == mine;
  watched->set(key_of("here", ranks.rank), dump_history());
  collect_answers(is_first);
  const Verdict found = is_ours ? Verdict{.text = reason} : explain(reason);
  const std::string told = text_of(watched->compareSet(kVerdictKey, {}, bytes_of(found.dump())));
  // Who keeps the store stays until the others have read it.
  if (ranks.is_first() && !ranks.has_agent_store) std::this_thread::sleep_for(2 * kStoreLook);
  return Verdict::parse(told);
}

// Waits until all ranks have answered, or one knows what has happened.
void Peers::Shared::collect_answers(bool is_first) {
  const auto end = Clock::now() + kAnswerTime;
  const auto is_over = [&] {
    return watched->check({kVerdictKey}) ||
           (is_first && missing(*watched, "here", ranks.size).empty());
  };
  while (!is_over() && Clock::now() < end) std::this_thread::sleep_for(milliseconds(50));
}

// Explains a failure whose reason is none of the ranks that answer.
Verdict Peers::Shared::explain(const std::string& reason) {
  std::vector<std::string> histories(hosts.size());
  std::vector<int> silent;
  for (int rank = 0; rank < ranks.size; ++rank) {
    const std::string key = key_of("here", rank);
    if (watched->check({key}))
      histories[static_cast<size_t>(rank)] = text_of(watched->get(key));
    else
      silent.push_back(rank);
  }
  if (const auto difference = first_difference(histories))
    return {ErrorCode::kInternal, "ranks do not do the same: " + name_of(difference->one) +
                                      " is at " + difference->of_one + ", and " +
                                      name_of(difference->other) + " at " + difference->of_other};
  if (!silent.empty()) return {.text = list_lost(silent) + " (" + reason + ")"};
  if (const std::vector<int> late = ranks_behind(histories); !late.empty())
    return {.text = list(late, " does not come to it (", " do not come to it (") + reason + ")"};
  return {.text = reason};
}

// The main thread does not come to its end by itself.
void Peers::Shared::end_process() {
  const std::lock_guard lock(mutex);
  if (is_ours || stops) return;
  const Error error = error_of(verdict.value_or(Verdict{.text = "another rank is in trouble"}));
  report::say_once(report::error_line(error));
  std::_Exit(exit_code(error.code()));
}

std::weak_ptr<Peers::Shared> Peers::current;

Peers::Peers(const Ranks& ranks, milliseconds limit, milliseconds exchange)
    : shared_(std::make_shared<Shared>()) {
  shared_->ranks = ranks;
  if (exchange.count() > 0)
    shared_->most_missed = std::clamp(static_cast<int>(exchange / std::chrono::seconds(1)) + 1,
                                      kLeastMissedSigns, kMissedSigns);
  shared_->meet(limit);
  shared_->watched = shared_->store->clone();
  current = shared_;
  std::thread([shared = shared_] { shared->watch(); }).detach();
  std::thread([shared = shared_] { shared->guard(); }).detach();
}

// The thread is waited for, unless the store keeps it.
Peers::~Peers() {
  std::unique_lock lock(shared_->mutex);
  shared_->stops = true;
  shared_->changed.notify_all();
  shared_->changed.wait_for(lock, 3 * kStoreLook, [&] { return shared_->has_stopped; });
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

void Peers::note(std::string_view exchange, const std::string& group) {
  const std::lock_guard lock(shared_->mutex);
  shared_->histories.add(group, exchange);
}

std::pair<int64_t, uint64_t> Peers::noted(const std::string& group) const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->histories.of(group);
}

std::vector<std::string> Peers::gather_texts(const std::string& text) {
  const std::string kind = "say/" + std::to_string(num_said_++);
  const int size = ranks().size;
  try {
    c10d::Store& store = *shared_->store;
    store.set(key_of(kind.c_str(), ranks().rank), bytes_of(text));
    std::vector<std::string> texts;
    for (int rank = 0; rank < size; ++rank)
      texts.push_back(shared_->read_when_set(key_of(kind.c_str(), rank)));
    return texts;
  } catch (const std::exception& error) {
    throw lost(report::first_line(error));
  }
}

// Waits for the key in the store until one knows that a rank is lost, which the thread finds out.
std::string Peers::Shared::read_when_set(const std::string& key) {
  for (bool is_there = false; !is_there;) {
    try {
      store->wait({key}, kStoreLook);
      is_there = true;
    } catch (const c10::DistStoreError&) {  // not yet
      const std::lock_guard lock(mutex);
      if (verdict) throw;
    }
  }
  return text_of(store->get(key));
}

Error Peers::lost(std::string_view reason) {
  return shared_->ask(reason);
}

Error Peers::Shared::ask(std::string_view reason) {
  std::unique_lock lock(mutex);
  asked = std::string(reason);
  changed.notify_all();
  const bool is_answered = changed.wait_for(lock, kVerdict, [&] { return verdict.has_value(); });
  return error_of(is_answered ? *verdict : of_lost_store());
}

// By its name, because a thread throws what is declared nowhere.
std::optional<Error> Peers::error_of_transport(const std::type_info& type,
                                               std::string_view reason) {
  const std::string_view name = type.name();
  const bool is_of_transport =
      name.starts_with("N4gloo") || (name.starts_with("N3c10") && name.find("Dist") != name.npos);
  const std::shared_ptr<Shared> shared = current.lock();
  if (!is_of_transport || !shared) return std::nullopt;
  return shared->ask(reason.substr(0, reason.find('\n')));
}

void Peers::call_off(int64_t work) {
  try {
    shared_->store->set(kCalledOff, bytes_of(std::to_string(work)));
  } catch (const std::exception& error) {
    throw lost(report::first_line(error));
  }
  shared_->called_off = work;
}

bool Peers::is_called_off(int64_t work) const {
  return shared_->called_off == work;
}

void Peers::give_up(std::string_view reason) {
  std::unique_lock lock(shared_->mutex);
  shared_->is_ours = true;
  if (shared_->verdict || shared_->stops) return;  // the others know already, or have parted
  shared_->asked = name_of(ranks().rank) + " failed: " + std::string(reason);
  shared_->changed.notify_all();
  shared_->changed.wait_for(lock, kVerdict, [&] { return shared_->verdict.has_value(); });
}

void Peers::part() {
  note("the end");
  shared_->is_parting = true;
  gather_texts("");
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
