#include "support/work_queues.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <new>
#include <sstream>
#include <thread>

#include <c10/util/Exception.h>

namespace atelier::test {
namespace {

constexpr int64_t kBlockAlignment = 512;
constexpr double kSlowest = 1e-4;  // of a stream, beside the fastest one
constexpr int kPoison = 0xFF;      // NaN in every floating dtype
constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);

void join(WorkQueues::Clock& into, const WorkQueues::Clock& other) {
  for (size_t i = 0; i < into.size(); ++i) into[i] = std::max(into[i], other[i]);
}

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

WorkQueues& WorkQueues::all() {
  static auto* const queues = new WorkQueues;
  return *queues;
}

std::string WorkQueues::name_of(int stream) {
  return c10::str("stream ", stream % kStreams, " of device ", device_of(stream));
}

WorkQueues::Hold::Hold(WorkQueues& queues) : queues_(queues) {
  queues_.mutex_.lock();
  ++queues_.depth_;
}

WorkQueues::Hold::~Hold() {
  if (--queues_.depth_ == 0) dropped_.swap(queues_.dropped_);
  queues_.mutex_.unlock();
}

void WorkQueues::begin(const QueuedOptions& wanted) {
  const Hold hold(*this);
  while (run_one()) {
  }
  for (const Clock& clock : clocks_) join(known_, clock);
  empty_cache();
  options = wanted;
  random_.seed(options.seed);
  pool_streams_ = 0;
  for (double& speed : speeds_)
    speed = std::pow(kSlowest, std::uniform_real_distribution<>()(random_));
  faults.clear();
  waited.clear();
  opened.clear();
  for (int device = 0; device < kQueuedDevices; ++device) {
    for (auto* stat : {&stats_[device].allocated_bytes, &stats_[device].reserved_bytes})
      (*stat)[kAll].reset_peak();
  }
}

int WorkQueues::new_stream(int device) {
  const Hold hold(*this);
  return device * kStreams + 1 + pool_streams_++ % (kStreams - 1);
}

void WorkQueues::push(int stream, std::string what, const std::vector<Access>& accesses,
                      std::function<void()> run) {
  const Hold hold(*this);
  Clock& clock = clocks_[stream];
  join(clock, known_);
  ++clock[stream];
  for (const Access& access : accesses) see(stream, what, access);
  queues_[stream].push_back({std::move(what), std::move(run), nullptr, nullptr});
  run_some();
}

WorkQueues::MomentPtr WorkQueues::record(int stream) {
  const Hold hold(*this);
  auto moment = std::make_shared<Moment>(Moment{stream, clocks_[stream]});
  queues_[stream].push_back({"an event", {}, nullptr, moment});
  run_some();
  return moment;
}

void WorkQueues::wait(int stream, const MomentPtr& moment) {
  const Hold hold(*this);
  join(clocks_[stream], moment->clock);
  queues_[stream].push_back({"a wait", {}, moment, nullptr});
  run_some();
}

bool WorkQueues::is_done(const MomentPtr& moment) {
  const Hold hold(*this);
  run_some();
  if (moment->is_done) learn(*moment);
  return moment->is_done;
}

void WorkQueues::finish(const MomentPtr& moment) {
  const Hold hold(*this);
  while (!moment->is_done) TORCH_CHECK(run_one(), "nothing is left to run before an event");
  learn(*moment);
}

void WorkQueues::finish_device(int device) {
  const Hold hold(*this);
  for (int i = 0; i < kStreams; ++i) finish_stream(device * kStreams + i);
}

void WorkQueues::settle(int stream) {
  const Hold hold(*this);
  const MomentPtr moment = record(stream);
  while (!moment->is_done) TORCH_CHECK(run_one(), "nothing is left to run before an event");
}

void WorkQueues::learn(const Moment& moment) {
  join(known_, moment.clock);
}

bool WorkQueues::is_ready(const std::deque<Work>& queue) const {
  return !queue.empty() && (queue.front().after == nullptr || queue.front().after->is_done);
}

bool WorkQueues::run_one() {
  double all = 0;
  for (size_t i = 0; i < queues_.size(); ++i) all += is_ready(queues_[i]) ? speeds_[i] : 0;
  if (all == 0) return false;
  double rest = all * std::uniform_real_distribution<>()(random_);
  size_t chosen = queues_.size();
  for (size_t i = 0; i < queues_.size() && rest >= 0; ++i) {
    if (!is_ready(queues_[i])) continue;
    chosen = i;
    rest -= speeds_[i];
  }
  auto& queue = queues_[chosen];
  const auto work = std::make_shared<Work>(std::move(queue.front()));
  queue.pop_front();
  try {
    if (work->run) work->run();
  } catch (const std::exception& error) {
    fault(c10::str(work->what, " fails when it runs: ", error.what()));
  }
  if (work->reached != nullptr) {
    work->reached->is_done = true;
    work->reached->seconds = seconds_now();
  }
  drop_later(work);
  return true;
}

void WorkQueues::run_some() {
  while (std::uniform_real_distribution<>()(random_) < options.eagerness && run_one()) {
  }
}

WorkQueues::Block* WorkQueues::block_at(const void* data) {
  const auto place = reinterpret_cast<uintptr_t>(data);
  auto found = blocks_.upper_bound(place);
  if (found == blocks_.begin()) return nullptr;
  Block* const block = (--found)->second.get();
  return place < found->first + static_cast<uintptr_t>(block->bytes) ? block : nullptr;
}

bool WorkQueues::comes_before(const Seen& seen, int stream) const {
  return seen.stream == stream || clocks_[stream][seen.stream] >= seen.time ||
         known_[seen.stream] >= seen.time;
}

void WorkQueues::see(int stream, const std::string& what, const Access& access) {
  if (access.bytes == 0) return;
  Block* const block = block_at(access.data);
  if (block == nullptr) return fault(c10::str(what, " uses memory that is of no device"));
  if (!block->is_taken)
    fault(c10::str(what, " on ", name_of(stream), " uses memory that is freed"));
  if (device_of(block->stream) != device_of(stream))
    fault(c10::str(what, " on ", name_of(stream), " uses memory of device ",
                   device_of(block->stream)));
  const auto begin = reinterpret_cast<uintptr_t>(access.data);
  const Seen now{stream,        clocks_[stream][stream],
                 begin,         begin + static_cast<uintptr_t>(access.bytes),
                 access.writes, what};
  for (const Seen& seen : block->seen) {
    if (seen.end <= now.begin || now.end <= seen.begin || (!seen.writes && !now.writes)) continue;
    if (comes_before(seen, stream)) continue;
    fault(c10::str(what, " on ", name_of(stream), now.writes ? " writes" : " reads",
                   " memory that ", seen.what, " on ", name_of(seen.stream),
                   seen.writes ? " writes" : " reads", ", and does not wait for it"));
  }
  std::erase_if(block->seen, [&](const Seen& seen) {
    const bool is_within = now.begin <= seen.begin && seen.end <= now.end;
    return is_within && (now.writes || (!seen.writes && seen.stream == stream));
  });
  block->seen.push_back(now);
}

void* WorkQueues::take(int stream, int64_t bytes) {
  const Hold hold(*this);
  const int device = device_of(stream);
  call(device, "memory is taken");
  bytes = (bytes + kBlockAlignment - 1) / kBlockAlignment * kBlockAlignment;
  collect_left();
  auto& stats = stats_[device];
  Block* block = nullptr;
  if (auto found = idle_.extract({stream, bytes})) {
    block = found.mapped();
    block->is_taken = true;
    block->users.clear();
  } else {
    if (reserved(device).current + bytes > options.capacity) empty_cache();
    if (reserved(device).current + bytes > options.capacity) {
      ++stats.num_ooms;
      return nullptr;
    }
    auto* const data =
        static_cast<char*>(std::aligned_alloc(kBlockAlignment, static_cast<size_t>(bytes)));
    if (data == nullptr) throw std::bad_alloc();
    auto made = std::make_unique<Block>(Block{data, bytes, stream});
    block = made.get();
    blocks_[reinterpret_cast<uintptr_t>(data)] = std::move(made);
    reserved(device).increase(static_cast<size_t>(bytes));
  }
  stats.allocated_bytes[kAll].increase(static_cast<size_t>(bytes));
  stats.allocation[kAll].increase(1);
  // As if the block came from the cache: work that is queued may still use it.
  push(stream, "the allocator", {{block->data, bytes, true}},
       [data = block->data, bytes] { std::memset(data, kPoison, static_cast<size_t>(bytes)); });
  return block->data;
}

void WorkQueues::give(void* memory) {
  const Hold hold(*this);
  Block* const block = block_at(memory);
  const int device = device_of(block->stream);
  block->is_taken = false;
  stats_[device].allocated_bytes[kAll].decrease(static_cast<size_t>(block->bytes));
  stats_[device].allocation[kAll].decrease(1);
  for (const Seen& seen : block->seen) {
    if (block->users.contains(seen.stream) || comes_before(seen, block->stream)) continue;
    fault(c10::str("memory of ", name_of(block->stream), " is freed while ", seen.what, " on ",
                   name_of(seen.stream), " may use it, and record_stream() did not say so"));
  }
  Leaving leaving{block, {}};
  for (const int user : block->users) {
    if (user != block->stream) leaving.until.push_back(record(user));
  }
  leaving_.push_back(std::move(leaving));
  collect_left();
}

void WorkQueues::use(void* memory, int stream) {
  const Hold hold(*this);
  Block* const block = block_at(memory);
  if (block != nullptr && !options.forgets_users) block->users.insert(stream);
}

void WorkQueues::collect_left() {
  std::erase_if(leaving_, [&](const Leaving& leaving) {
    if (!std::ranges::all_of(leaving.until, &Moment::is_done,
                             [](const MomentPtr& moment) -> const Moment& { return *moment; }))
      return false;
    for (const MomentPtr& moment : leaving.until) learn(*moment);
    idle_.emplace(std::pair(leaving.block->stream, leaving.block->bytes), leaving.block);
    return true;
  });
}

void WorkQueues::empty_cache() {
  const Hold hold(*this);
  for (int device = 0; device < kQueuedDevices; ++device) finish_device(device);
  collect_left();
  for (const auto& [key, block] : idle_) {
    reserved(device_of(block->stream)).decrease(static_cast<size_t>(block->bytes));
    std::free(block->data);
    blocks_.erase(reinterpret_cast<uintptr_t>(block->data));
  }
  idle_.clear();
}

c10::CachingAllocator::Stat& WorkQueues::reserved(int device) {
  return stats_[device].reserved_bytes[kAll];
}

c10::CachingDeviceAllocator::DeviceStats& WorkQueues::stats(int device) {
  return stats_[device];
}

std::pair<int64_t, int64_t> WorkQueues::free_and_all(int device) {
  const Hold hold(*this);
  return {options.capacity - reserved(device).current, options.capacity};
}

void WorkQueues::call(int device, const char* what) {
  const Hold hold(*this);
  opened.insert(device);
  if (!options.closed.contains(device)) return;
  std::ostringstream thread;
  thread << std::this_thread::get_id();
  fault(c10::str(what, " on device ", device, ", which is closed, in thread ", thread.str()));
}

void WorkQueues::waits(Wait kind, const std::string& what) {
  const Hold hold(*this);
  waited.push_back({kind, what});
  TORCH_CHECK(!options.refused.contains(kind), "the host waits for the device: ", what);
}

void WorkQueues::fault(const std::string& what) {
  constexpr size_t kMost = 50;
  if (faults.size() < kMost) faults.push_back(what);
}

}  // namespace atelier::test
