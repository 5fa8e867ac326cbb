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
#include "memory/port.h"

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
  std::vector<std::unique_ptr<FileReader>> readers(files.size());
  for (const ReadRun& run : runs) {
    auto& reader = readers[static_cast<size_t>(run.file)];
    if (reader != nullptr) continue;
    const auto file = static_cast<size_t>(run.file);
    reader = std::make_unique<FileReader>(files[file]);
    if (reader->size() != sizes[file])
      throw Error(ErrorCode::kDataLoss,
                  display_path(files[file]) + ": has " + std::to_string(reader->size()) +
                      " bytes, and had " + std::to_string(sizes[file]) +
                      " when its header was read",
                  "it was changed meanwhile; start again", "FILE_CHANGED");
  }

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
  // In the order of the disk.
  std::sort(chunks.begin(), chunks.end(), [](const ReadRun& a, const ReadRun& b) {
    return a.file != b.file ? a.file < b.file : a.begin < b.begin;
  });

  std::atomic<size_t> next = 0;
  std::atomic<int64_t> done = 0;
  std::atomic<bool> stop = false;
  std::mutex mutex;
  std::condition_variable wake;
  std::exception_ptr failure;
  size_t running = 0;

  const auto work = [&] {
    const memory::HostScope host;
    std::vector<char> buffer;
    try {
      while (!stop) {
        const size_t i = next++;
        if (i >= chunks.size()) break;
        read_run(*readers[static_cast<size_t>(chunks[i].file)], chunks[i], buffer);
        done += chunks[i].count * static_cast<int64_t>(c10::elementSize(chunks[i].from));
      }
    } catch (...) {
      stop = true;
      const std::lock_guard lock(mutex);
      if (failure == nullptr) failure = std::current_exception();
    }
    const std::lock_guard lock(mutex);
    --running;
    wake.notify_all();
  };

  const size_t wanted = std::min<size_t>(
      {chunks.size(), kMaxThreads, std::max<size_t>(1, std::thread::hardware_concurrency())});
  if (wanted <= 1) {
    running = 1;
    work();
  } else {
    std::vector<std::jthread> threads;
    running = wanted;
    for (size_t i = 0; i < wanted; ++i) threads.emplace_back(work);
    try {
      std::unique_lock lock(mutex);
      while (!wake.wait_for(lock, kProgressInterval, [&] { return running == 0; })) {
        lock.unlock();
        if (progress) progress(done);
        lock.lock();
      }
    } catch (...) {  // from `progress`: the user cancelled
      stop = true;
      throw;
    }
  }
  if (failure != nullptr) std::rethrow_exception(failure);
  if (progress) progress(done);
}

}  // namespace atelier::files
