#include "host/distributed/meeting.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <mutex>
#include <netdb.h>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <unistd.h>

#include <c10/util/Logging.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "atelier/error.h"

#include "formats/escape.h"
#include "host/report/error_line.h"
#include "host/report/say_once.h"

namespace atelier::distributed {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::json;
using std::chrono::milliseconds;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

constexpr milliseconds kLook(20);       // of rank 0, between two looks at who has come
constexpr milliseconds kTelling(1000);  // that rank 0 stays to be heard where it keeps the store
constexpr milliseconds kHearing(5000);  // beyond the limit, until rank 0 has told the others
constexpr milliseconds kAsking(50);     // of the others, between two looks at what rank 0 tells
constexpr std::chrono::seconds kFirstLine(10), kOften(60);  // when a wait is told
constexpr int kNameTries = 3;      // a second apart, where a name server does not answer
constexpr size_t kMostNamed = 16;  // ranks that do not come
constexpr std::chrono::hours kForever(24 * 20);  // milliseconds that an int still holds

constexpr const char* kRounds = "rounds";    // how many rank 0 has drawn
constexpr const char* kTickets = "tickets";  // how many processes have asked for a round
constexpr const char* kOutcome = "outcome";  // of a round, as rank 0 tells it
constexpr const char* kMissing = "missing";  // who has not come to a round so far
constexpr const char* kBegun = "begun";      // the round that all had come to, for who is late
constexpr const char* kAgain = "every process of a run has a number of its own, from 0";

// LibTorch's warnings of lost connections have stacks in them; what failed is told as errors are.
// TORCH_CPP_LOG_LEVEL brings them back.
void silence_warnings() {
  setenv("TORCH_CPP_LOG_LEVEL", "ERROR", /*overwrite=*/0);
  c10::initLogging();
}

std::string place_of(const Ranks& ranks) {
  return ranks.address + ":" + std::to_string(ranks.port);
}

// A name that nobody knows is a mistake that waiting does not mend.
void require_known_address(const Ranks& ranks) {
  addrinfo* found = nullptr;
  int failure = EAI_AGAIN;
  for (int i = 0; i < kNameTries && failure == EAI_AGAIN; ++i) {
    if (i > 0) std::this_thread::sleep_for(std::chrono::seconds(1));
    failure = getaddrinfo(ranks.address.c_str(), nullptr, nullptr, &found);
  }
  if (failure != 0)
    throw Error(ErrorCode::kEnvironment,
                "the ranks meet at " + formats::quote_and_escape(ranks.address) +
                    ", which is no known host: " + gai_strerror(failure),
                "give the host of rank 0 as MASTER_ADDR, or as --master_addr of launch");
  freeaddrinfo(found);
}

// The wait of one process for the others. A thread of its own goes to the store, where it may be
// held up for longer than the limit; it tells this, which the main thread looks at.
class Waiting {
 public:
  Waiting(Ranks ranks, milliseconds limit)
      : ranks_(std::move(ranks)), limit_(limit), end_(begin_ + limit) {}

  const Ranks& ranks() const { return ranks_; }
  milliseconds limit() const { return limit_; }

  // Somebody answers at the store, and the wait is for `whom`. From now on it takes the limit and
  // what rank 0 needs to tell that it has passed.
  void meet(const std::string& whom) {
    const std::lock_guard lock(mutex_);
    whom_ = whom;
    if (!has_met_) end_ = Clock::now() + limit_ + kHearing;
    has_met_ = true;
  }

  // Says now and then for whom this process waits. Throws when nobody answers within the limit.
  void look() {
    const std::lock_guard lock(mutex_);
    const auto now = Clock::now();
    if (now >= end_) throw nobody_answers();
    if (now - begin_ < next_) return;
    if (!whom_.empty())
      report::say_once("note: waiting for " + whom_ + " of " + std::to_string(ranks_.size) +
                       " at " + place_of(ranks_) + ", for " + std::to_string(next_.count()) +
                       " s\n");
    next_ = next_ == kFirstLine ? kOften : next_ + kOften;
  }

  Error nobody_answers() const {
    const std::string place = place_of(ranks_), seconds = std::to_string(limit_.count() / 1000);
    if (ranks_.is_first())
      return {ErrorCode::kPeerLost,
              "rank 0 does not reach the place where the ranks meet, " + place + ", within " +
                  seconds + " s",
              "MASTER_ADDR is the host of rank 0"};
    return {ErrorCode::kPeerLost,
            "rank 0 does not answer at " + place + " within " + seconds + " s",
            "see whether rank 0 runs there, and whether this machine reaches that port"};
  }

 private:
  const Ranks ranks_;
  const milliseconds limit_;
  const Clock::time_point begin_ = Clock::now();
  std::mutex mutex_;
  Clock::time_point end_;
  std::chrono::seconds next_ = kFirstLine;
  std::string whom_ = "rank 0";
  bool has_met_ = false;
};

StorePtr open_store(const Ranks& ranks, milliseconds limit) {
  silence_warnings();
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
    if (report::first_line(error).find("EADDRINUSE") != std::string::npos)
      throw Error(ErrorCode::kEnvironment,
                  place_of(ranks) + ": another program listens at this port",
                  "take another one: MASTER_PORT, or --master_port of launch");
    throw Error(ErrorCode::kPeerLost,
                "rank " + std::to_string(ranks.rank) + ": " + place_of(ranks) +
                    ", where the ranks meet: " + report::first_line(error),
                "look at what rank 0 said last");
  }
  store->setTimeout(kForever);
  return c10::make_intrusive<c10d::PrefixStore>("atelier", store);
}

StorePtr store_of_round(const StorePtr& store, const std::string& round) {
  return c10::make_intrusive<c10d::PrefixStore>("round " + round, store);
}

std::string key_of(const char* kind, int64_t ticket) {
  return std::string(kind) + "/" + std::to_string(ticket);
}

std::string read(c10d::Store& store, const std::string& key) {
  const std::vector<uint8_t> bytes = store.get(key);
  return {bytes.begin(), bytes.end()};
}

// What a process shows of itself. Ticket 0: rank 0, which asks nobody.
struct Card {
  int64_t ticket = 0;
  int rank = 0, size = 1;
  Attendee attendee;

  static Card of(const Ranks& ranks, int64_t ticket) {
    return {ticket, ranks.rank, ranks.size, {host_name(), getpid(), process_space()}};
  }
  std::string dump() const {
    const json all = {ticket, rank, size, attendee.host, attendee.process, attendee.space};
    return all.dump(-1, ' ', false, json::error_handler_t::replace);
  }
  static Card parse(const std::string& text) {
    const json all = json::parse(text);
    return {all[0], all[1], all[2], {all[3], all[4], all[5]}};
  }
  std::string process() const {
    return "process " + std::to_string(attendee.process) + " on " + attendee.host;
  }
  std::string name() const { return "rank " + std::to_string(rank) + " (" + attendee.host + ")"; }
};

std::string same_rank(const Card& one, const Card& other) {
  return "two processes are rank " + std::to_string(one.rank) + ": " + one.process() + ", and " +
         other.process();
}

std::string other_size(const Card& one, const Card& first) {
  return one.name() + " is one of " + std::to_string(one.size) + " processes, and " + first.name() +
         " one of " + std::to_string(first.size);
}

Error did_not_come(const std::string& names, const Ranks& ranks, milliseconds limit) {
  return {ErrorCode::kPeerLost,
          names + " of " + std::to_string(ranks.size) + " did not come to " + place_of(ranks) +
              " within " + std::to_string(limit.count() / 1000) + " s",
          "see whether all of them were started, and reach that place"};
}

// Rank 0's part: it tells those who ask which round this is, and waits for all of them.
class Reception {
 public:
  Reception(StorePtr store, Waiting& waiting)
      : store_(std::move(store)),
        waiting_(waiting),
        ranks_(waiting.ranks()),
        cards_(static_cast<size_t>(ranks_.size)) {
    number_ = store_->add(kRounds, 1);
    round_ = store_of_round(store_, std::to_string(number_));
    cards_.front() = Card::of(ranks_, /*ticket=*/0);
  }

  Meeting receive() {
    const milliseconds limit = waiting_.limit();
    const auto end = Clock::now() + limit;
    while (!is_complete() && mistakes_.empty() && Clock::now() < end) {
      std::this_thread::sleep_for(kLook);
      look();
      report_missing();
    }
    if (!mistakes_.empty()) fail({ErrorCode::kInvalidArgument, mistakes_, kAgain});
    if (!is_complete()) fail(did_not_come(missing(), ranks_, limit));
    json cards;
    Meeting meeting = {.store = round_, .attendees = {}};
    for (const std::optional<Card>& card : cards_) {
      cards.push_back(card->dump());
      meeting.attendees.push_back(card->attendee);
    }
    round_->set(kOutcome, json{{"cards", cards}}.dump());
    store_->set(kBegun, std::to_string(number_));
    answer();  // who has asked before that was there to be read
    return meeting;
  }

 private:
  bool is_complete() const {
    return std::ranges::all_of(cards_, [](const auto& card) { return card.has_value(); });
  }

  std::string missing() const {
    std::string names;
    size_t count = 0;
    for (size_t rank = 0; rank < cards_.size(); ++rank) {
      if (cards_[rank] || ++count > kMostNamed) continue;
      names += (names.empty() ? "rank " : ", rank ") + std::to_string(rank);
    }
    if (count > kMostNamed) names += " and " + std::to_string(count - kMostNamed) + " others";
    return names;
  }

  void report_missing() {
    if (std::string now = missing(); now != told_missing_) {
      round_->set(kMissing, now);
      waiting_.meet(now);
      told_missing_ = std::move(now);
    }
  }

  // Tickets of an earlier round, which nobody waits for any more, may get an answer as well.
  void answer() {
    for (const int64_t tickets = store_->add(kTickets, 0); asked_ < tickets;) {
      store_->compareSet(key_of("answer", ++asked_), std::string(), std::to_string(number_));
      awaited_.push_back(asked_);
    }
  }

  void look() {
    answer();
    std::erase_if(awaited_, [&](int64_t ticket) {
      const std::string key = key_of("card", ticket);
      if (!round_->check({key})) return false;
      take(Card::parse(read(*round_, key)));
      return true;
    });
    const bool is_only_round = !ranks_.has_agent_store;
    if (store_->add(kRounds, 0) != number_ || (is_only_round && number_ != 1))
      note("two processes are rank 0: one is " + cards_.front()->process());
  }

  void take(const Card& card) {
    const Card& first = *cards_.front();
    if (card.size != first.size) return note(other_size(card, first));
    std::optional<Card>& place = cards_.at(static_cast<size_t>(card.rank));
    if (place) return note(same_rank(*place, card));
    place = card;
  }

  void note(const std::string& mistake) { mistakes_ += (mistakes_.empty() ? "" : "; ") + mistake; }

  // The others say the same.
  [[noreturn]] void fail(const Error& error) {
    const json told = {{"code", static_cast<int>(error.code())},
                       {"message", error.message()},
                       {"hint", error.hint()}};
    round_->set(kOutcome, told.dump(-1, ' ', false, json::error_handler_t::replace));
    if (!ranks_.has_agent_store) std::this_thread::sleep_for(kTelling);
    throw Error(error);
  }

  StorePtr store_, round_;
  Waiting& waiting_;
  const Ranks& ranks_;
  int64_t number_ = 0;
  int64_t asked_ = 0;                       // tickets that are answered
  std::vector<int64_t> awaited_;            // of which nobody has shown a card yet
  std::vector<std::optional<Card>> cards_;  // by rank
  std::string mistakes_, told_missing_;
};

// The store answers one process after the other.
milliseconds pause_of(const Ranks& ranks) {
  return kAsking + milliseconds(ranks.size / 4);
}

// What rank 0 writes there, as long as it takes. Throws where rank 0 has gone, and the store with
// it. `look`: called meanwhile.
std::string hear(c10d::Store& store, const std::string& key, const Ranks& ranks,
                 const std::function<void()>& look) {
  try {
    while (!store.check({key})) {
      look();
      std::this_thread::sleep_for(pause_of(ranks));
    }
    return read(store, key);
  } catch (const std::exception&) {
    throw Error(ErrorCode::kPeerLost,
                "rank " + std::to_string(ranks.rank) + ": rank 0, whom all meet at " +
                    place_of(ranks) + ", has gone away",
                "look at what rank 0 said last");
  }
}

// The part of the others.
Meeting attend(const StorePtr& store, Waiting& waiting) {
  const Ranks& ranks = waiting.ranks();
  const int64_t ticket = store->add(kTickets, 1);
  const bool is_late = !ranks.has_agent_store && store->check({kBegun});
  const std::string round =
      is_late ? read(*store, kBegun) : hear(*store, key_of("answer", ticket), ranks, [] {});
  Meeting meeting = {.store = store_of_round(store, round), .attendees = {}};
  const Card own = Card::of(ranks, ticket);
  meeting.store->set(key_of("card", ticket), own.dump());
  waiting.meet("");
  const json told = json::parse(hear(*meeting.store, kOutcome, ranks, [&] {
    if (meeting.store->check({kMissing})) waiting.meet(read(*meeting.store, kMissing));
  }));
  if (!told.contains("cards"))
    throw Error(static_cast<ErrorCode>(told["code"].get<int>()), told["message"], told["hint"]);
  for (const json& text : told["cards"]) {
    const Card card = Card::parse(text);
    if (card.rank == own.rank && card.ticket != own.ticket)
      throw Error(ErrorCode::kInvalidArgument, same_rank(card, own), kAgain);
    meeting.attendees.push_back(card.attendee);
  }
  if (told["cards"].size() != static_cast<size_t>(own.size))
    throw Error(ErrorCode::kInvalidArgument, other_size(own, Card::parse(told["cards"][0])),
                kAgain);
  return meeting;
}

}  // namespace

std::string host_name() {
  std::array<char, 256> name = {};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

std::string process_space() {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  std::error_code failure;
  return boot + " " + std::filesystem::read_symlink("/proc/self/ns/pid", failure).string();
}

Meeting meet(const Ranks& ranks, milliseconds limit) {
  require_known_address(ranks);
  const auto waiting = std::make_shared<Waiting>(ranks, limit);
  std::packaged_task<Meeting()> visit([waiting] {
    const StorePtr store = open_store(waiting->ranks(), waiting->limit());
    return waiting->ranks().is_first() ? Reception(store, *waiting).receive()
                                       : attend(store, *waiting);
  });
  std::future<Meeting> meeting = visit.get_future();
  std::thread(std::move(visit)).detach();
  while (meeting.wait_for(kLook) != std::future_status::ready) waiting->look();
  return meeting.get();
}

}  // namespace atelier::distributed
