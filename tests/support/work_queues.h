// Streams, events and memory of devices whose work waits in queues; queued_device.h says the model.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <c10/core/CachingDeviceAllocator.h>

#include "support/queued_device.h"

namespace atelier::test {

// What a piece of work does to memory of its device.
struct Access {
  const void* data;
  int64_t bytes;
  bool writes;
};

// The queues of all devices, and their memory. A stream is known by its number among all of them.
// Safe to use from several threads, and never destroyed: tensors may outlive every static object.
class WorkQueues {
 public:
  static constexpr int kStreams = 17;  // of a device: the default one, and those of the pool

  // How much of each stream's work comes before something.
  using Clock = std::array<uint64_t, static_cast<size_t>(kQueuedDevices) * kStreams>;
  // A place in a stream, for who waits for it.
  struct Moment {
    int stream;
    Clock clock;
    bool is_done = false;
    double seconds = 0;  // when it was done
  };
  using MomentPtr = std::shared_ptr<Moment>;

  WorkQueues() { speeds_.fill(1); }
  static WorkQueues& all();
  static int device_of(int stream) { return stream / kStreams; }
  static std::string name_of(int stream);

  // Runs what is left, and forgets what was seen before.
  void begin(const QueuedOptions& options);

  // A stream of the device's pool.
  int new_stream(int device);

  // Queues `run` behind the stream's work. It may run at once, or when somebody waits for it.
  void push(int stream, std::string what, const std::vector<Access>& accesses,
            std::function<void()> run);
  MomentPtr record(int stream);
  // Work of the stream from now on comes after `moment`.
  void wait(int stream, const MomentPtr& moment);

  // The host asks, or runs what has to be done before.
  bool is_done(const MomentPtr& moment);
  void finish(const MomentPtr& moment);
  void finish_stream(int stream) { finish(record(stream)); }
  void finish_device(int device);
  // Runs the stream's work without letting the host know: its order is as before.
  void settle(int stream);

  // Memory that work of `stream` may use; null when the device has no more.
  void* take(int stream, int64_t bytes);
  void give(void* memory);
  void use(void* memory, int stream);  // as record_stream() says
  void empty_cache();
  c10::CachingDeviceAllocator::DeviceStats& stats(int device);
  std::pair<int64_t, int64_t> free_and_all(int device);

  // A call that opens a device where it has not been used, or is refused there.
  void call(int device, const char* what);
  // The host waits. Throws where that is refused.
  void waits(Wait kind, const std::string& what);
  void fault(const std::string& what);

  // What holds the lock destroys nothing: that follows when it is let go.
  class Hold {
   public:
    explicit Hold(WorkQueues& queues);
    ~Hold();
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;

   private:
    WorkQueues& queues_;
    std::vector<std::shared_ptr<void>> dropped_;
  };
  void drop_later(std::shared_ptr<void> thing) { dropped_.push_back(std::move(thing)); }

  QueuedOptions options;
  std::vector<std::string> faults;
  std::vector<QueuedDevices::Waited> waited;
  std::set<int> opened;

 private:
  struct Work {
    std::string what;
    std::function<void()> run;
    MomentPtr after, reached;  // each may be null
  };
  struct Seen {
    int stream;
    uint64_t time;
    uintptr_t begin, end;
    bool writes;
    std::string what;
  };
  struct Block {
    char* data;
    int64_t bytes;
    int stream;  // which it was taken for
    bool is_taken = true;
    std::set<int> users = {};
    std::vector<Seen> seen = {};
  };
  struct Leaving {
    Block* block;
    std::vector<MomentPtr> until;
  };

  Block* block_at(const void* data);
  bool comes_before(const Seen& seen, int stream) const;
  void see(int stream, const std::string& what, const Access& access);
  bool is_ready(const std::deque<Work>& queue) const;
  bool run_one();
  void run_some();
  void learn(const Moment& moment);
  void collect_left();
  c10::CachingAllocator::Stat& reserved(int device);

  std::recursive_mutex mutex_;
  int depth_ = 0, pool_streams_ = 0;
  std::vector<std::shared_ptr<void>> dropped_;
  std::mt19937_64 random_;
  std::array<double, std::tuple_size_v<Clock>> speeds_;  // of streams, beside each other
  std::array<std::deque<Work>, std::tuple_size_v<Clock>> queues_;
  std::array<Clock, std::tuple_size_v<Clock>> clocks_ = {};
  Clock known_ = {};  // to the host: it is done
  std::map<uintptr_t, std::unique_ptr<Block>> blocks_;
  std::multimap<std::pair<int, int64_t>, Block*> idle_;  // by stream and bytes
  std::vector<Leaving> leaving_;
  std::array<c10::CachingDeviceAllocator::DeviceStats, kQueuedDevices> stats_;
};

}  // namespace atelier::test
