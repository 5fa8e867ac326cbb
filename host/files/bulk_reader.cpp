#include "host/files/bulk_reader.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "host/files/file_reader.h"
#include "memory/transfer_device.h"

namespace atelier::files {

namespace {

constexpr int64_t kChunkBytes = int64_t{8} << 20;
constexpr int64_t kConvertElements = 32768;  // ATen stays on one thread up to here
constexpr int kMaxThreads = 4;
constexpr auto kProgressInterval = std::chrono::milliseconds(100);

// All 256 values of an 8-bit floating type, in type `to`: ATen's own conversion of these is slow.
template <typename T>
std::array<T, 256> values_of(at::ScalarType from, at::ScalarType to) {
  const at::Tensor bits = at::arange(256, at::kByte);
  const at::Tensor values = bits.view(from).to(at::kFloat).to(to).contiguous();
  std::array<T, 256> table;
  std::memcpy(table.data(), values.data_ptr(), sizeof(table));
  return table;
}

template <typename T>
void look_up(const void* source, at::ScalarType from, void* target, at::ScalarType to,
             int64_t count) {
  const std::array<T, 256> table = values_of<T>(from, to);
  const auto* in = static_cast<const uint8_t*>(source);
  auto* out = static_cast<T*>(target);
  for (int64_t i = 0; i < count; ++i) out[i] = table[in[i]];
}

bool is_8_bit(at::ScalarType type) {
  return type == at::kFloat8_e4m3fn || type == at::kFloat8_e5m2 || type == at::kFloat8_e4m3fnuz ||
         type == at::kFloat8_e5m2fnuz;
}

void read_run(const FileReader& file, const ReadRun& run, std::vector<char>& buffer) {
  const auto bytes = static_cast<uint64_t>(run.count) * c10::elementSize(run.from);
  if (run.from == run.to) {
    file.read(run.target, run.begin, bytes);
    return;
  }
  buffer.resize(bytes);
  file.read(buffer.data(), run.begin, bytes);
  convert_elements(buffer.data(), run.from, run.target, run.to, run.count);
}

// Opens the files that `runs` read. Throws Error{kDataLoss} for one that changed its size.
std::vector<std::unique_ptr<FileReader>> open_files(const std::vector<std::string>& files,
                                                    const std::vector<uint64_t>& sizes,
                                                    const std::vector<ReadRun>& runs) {
  std::vector<std::unique_ptr<FileReader>> readers(files.size());
  for (const ReadRun& run : runs) {
    const auto file = static_cast<size_t>(run.file);
    auto& reader = readers[file];
    if (reader != nullptr) continue;
    reader = std::make_unique<FileReader>(files[file]);
    if (reader->size() != sizes[file])
      throw Error(ErrorCode::kDataLoss,
                  display_path(files[file]) + ": has " + std::to_string(reader->size()) +
                      " bytes, and had " + std::to_string(sizes[file]) +
                      " when its header was read",
                  "it was changed meanwhile; start again", "FILE_CHANGED");
  }
  return readers;
}

// Cuts runs into pieces that threads take in turn, in the order of the disk.
std::vector<ReadRun> cut_runs(const std::vector<ReadRun>& runs) {
  std::vector<ReadRun> chunks;
  for (const ReadRun& run : runs) {
    const auto from_size = static_cast<int64_t>(c10::elementSize(run.from));
    const auto to_size = static_cast<int64_t>(c10::elementSize(run.to));
    const int64_t step = std::max<int64_t>(1, kChunkBytes / from_size);
    for (int64_t i = 0; i < run.count; i += step) {
      ReadRun chunk = run;
      chunk.begin += static_cast<uint64_t>(i * from_size);
      chunk.count = std::min(step, run.count - i);
      chunk.target = static_cast<char*>(run.target) + i * to_size;
      chunks.push_back(chunk);
    }
  }
  std::sort(chunks.begin(), chunks.end(), [](const ReadRun& a, const ReadRun& b) {
    return a.file != b.file ? a.file < b.file : a.begin < b.begin;
  });
  return chunks;
}

// Several threads read chunks; the caller's thread tells the progress.
class ParallelRead {
 public:
  ParallelRead(const std::vector<std::unique_ptr<FileReader>>& readers,
               const std::vector<ReadRun>& chunks)
      : readers_(readers), chunks_(chunks) {}

  // Throws what a thread or `progress` threw; by then every thread has ended.
  void run(const std::function<void(int64_t)>& progress) {
    const size_t threads = std::min<size_t>(
        {chunks_.size(), kMaxThreads, std::max<size_t>(1, std::thread::hardware_concurrency())});
    if (threads <= 1) {
      running_ = 1;
      work();
    } else {
      follow(threads, progress);
    }
    if (failure_ != nullptr) std::rethrow_exception(failure_);
    if (progress) progress(done_);
  }

 private:
  void follow(size_t count, const std::function<void(int64_t)>& progress) {
    std::vector<std::jthread> threads;
    running_ = count;
    for (size_t i = 0; i < count; ++i) threads.emplace_back([this] { work(); });
    try {
      std::unique_lock lock(mutex_);
      while (!wake_.wait_for(lock, kProgressInterval, [this] { return running_ == 0; })) {
        lock.unlock();
        if (progress) progress(done_);
        lock.lock();
      }
    } catch (...) {  // from `progress`: the user cancelled
      stop_ = true;
      throw;
    }
  }

  // What each thread does: takes chunks until there are none.
  void work() {
    const memory::HostScope host;
    std::vector<char> buffer;
    try {
      while (!stop_) {
        const size_t i = next_++;
        if (i >= chunks_.size()) break;
        read_run(*readers_[static_cast<size_t>(chunks_[i].file)], chunks_[i], buffer);
        done_ += chunks_[i].count * static_cast<int64_t>(c10::elementSize(chunks_[i].from));
      }
    } catch (...) {
      stop_ = true;
      const std::lock_guard lock(mutex_);
      if (failure_ == nullptr) failure_ = std::current_exception();
    }
    const std::lock_guard lock(mutex_);
    --running_;
    wake_.notify_all();
  }

  const std::vector<std::unique_ptr<FileReader>>& readers_;
  const std::vector<ReadRun>& chunks_;
  std::atomic<size_t> next_ = 0;
  std::atomic<int64_t> done_ = 0;
  std::atomic<bool> stop_ = false;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::exception_ptr failure_;
  size_t running_ = 0;
};

}  // namespace

void convert_elements(const void* source, at::ScalarType from, void* target, at::ScalarType to,
                      int64_t count) {
  if (from == to) {
    std::memcpy(target, source, static_cast<size_t>(count) * c10::elementSize(from));
    return;
  }
  const at::NoGradGuard no_grad;
  if (is_8_bit(from) && c10::elementSize(to) == 2) {
    look_up<uint16_t>(source, from, target, to, count);
    return;
  }
  if (is_8_bit(from) && to == at::kFloat) {
    look_up<uint32_t>(source, from, target, to, count);
    return;
  }
  const auto* in = static_cast<const char*>(source);
  auto* out = static_cast<char*>(target);
  for (int64_t begin = 0; begin < count; begin += kConvertElements) {
    const int64_t length = std::min(kConvertElements, count - begin);
    const at::Tensor part = at::from_blob(const_cast<char*>(in) + begin * c10::elementSize(from),
                                          {length}, at::TensorOptions(from));
    at::Tensor written =
        at::from_blob(out + begin * c10::elementSize(to), {length}, at::TensorOptions(to));
    if (to == at::kFloat8_e4m3fn) {
      written.copy_(
          part.to(at::kFloat).clamp(-448, 448));  // ATen gives NaN above the largest value
    } else {
      written.copy_(part);
    }
  }
}

void read_runs(const std::vector<std::string>& files, const std::vector<uint64_t>& sizes,
               std::vector<ReadRun> runs, const std::function<void(int64_t)>& progress) {
  const auto readers = open_files(files, sizes, runs);
  const std::vector<ReadRun> chunks = cut_runs(runs);
  ParallelRead(readers, chunks).run(progress);
}

}  // namespace atelier::files
