#include "host/weights/weight_loading.h"

#include <algorithm>
#include <optional>
#include <sys/mman.h>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "atelier/error.h"
#include "atelier/host/upload.h"
#include "atelier/host/weight_state.h"

#include "formats/escape.h"
#include "host/files/bulk_reader.h"
#include "host/files/file_reader.h"
#include "host/files/mapped_file.h"
#include "host/report/text.h"
#include "memory/four_bit.h"
#include "memory/packed.h"
#include "memory/quantized_store.h"
#include "memory/staging_ring.h"
#include "memory/transfer_device.h"

namespace atelier::weights {

namespace {

int64_t bytes_to_read(const WeightSlice& slice, const files::Checkpoint& checkpoint) {
  const TensorMeta& meta = *checkpoint.index().find(slice.tensor);
  const auto bytes = static_cast<int64_t>(checkpoint.bytes_of(slice.tensor));
  if (slice.axis < 0) return bytes;
  const int64_t length = meta.shape[static_cast<size_t>(slice.axis)];
  return length == 0 ? 0 : bytes / length * slice.length;
}

}  // namespace

int64_t bytes_to_read(const WeightBinding& binding, const files::Checkpoint& checkpoint) {
  int64_t bytes = 0;
  for (const BoundWeight& bound : binding.weights) {
    for (const WeightSlice& slice : bound.slices) bytes += bytes_to_read(slice, checkpoint);
  }
  return bytes;
}

namespace {

constexpr int64_t kHugePageBytes = int64_t{2} << 20;
constexpr int64_t kPassingBytes = int64_t{64} << 20;
constexpr int64_t kReadAlignment = 64;  // also a staging ring's
constexpr size_t kMappedHostBytes = size_t{64}
                                    << 10;  // smaller ones are not worth pages of their own

// How one weight is read, and in what it comes to rest.
struct Arrival {
  enum class Rest { kPlain, kCodes, kPacked, kFp8, kInt8, kNf4, kFp4 };
  const BoundWeight* bound = nullptr;
  Rest rest = Rest::kPlain;
  at::ScalarType read_type = at::kFloat;
  at::ScalarType type = at::kFloat;  // in which it is drawn
  bool has_scales = false;
  bool is_w8a8 = false;
  bool is_lent = false;  // the memory of `value` is used again
  memory::Place place = memory::Place::kDevice;
  at::Tensor value = {};

  // It is read as values and stored in fewer bits.
  bool is_quantized() const {
    return rest == Rest::kFp8 || rest == Rest::kInt8 || rest == Rest::kNf4 || rest == Rest::kFp4;
  }
  // What is read is not what stays.
  bool passes() const { return is_quantized() || (rest == Rest::kPlain && has_scales); }
  // Bytes of what is read, and the room that it takes beside others.
  int64_t read_bytes() const {
    return bound->weight->numel() * static_cast<int64_t>(c10::elementSize(read_type));
  }
  int64_t read_room() const {
    return (read_bytes() + kReadAlignment - 1) / kReadAlignment * kReadAlignment;
  }
};

// A slice of a packed tensor without values.
memory::Packed outline_of(const WeightSlice& slice, const files::Checkpoint& checkpoint) {
  return files::outline_packed(*checkpoint.packed(slice.tensor));
}

// Whether the weight can rest in the codes of its tensors: it is one of them, or rows of some that
// can be cut.
bool can_rest_packed(const BoundWeight& bound, const files::Checkpoint& checkpoint) {
  if (bound.weight->sizes().size() != 2) return false;
  const files::PackedTensor* first = checkpoint.packed(bound.slices.front().tensor);
  return std::ranges::all_of(bound.slices, [&](const WeightSlice& slice) {
    const files::PackedTensor* tensor = checkpoint.packed(slice.tensor);
    if (tensor == nullptr || tensor->packing != first->packing || tensor->block != first->block)
      return false;
    return slice.axis < 0 || (slice.axis == 0 && memory::can_be_cut(outline_of(slice, checkpoint)));
  });
}

// Whether what is stored so is what the tensors hold already.
bool is_stored_as(Storage storage, memory::Packing packing) {
  return storage == Storage::kPublished ||
         (storage == Storage::kNf4 && packing == memory::Packing::kNf4) ||
         (storage == Storage::kFp4 && packing == memory::Packing::kFp4);
}

// The codes of a weight, of which `piece` gives those of each slice's tensor.
template <typename Piece>
memory::Packed packed_weight(const BoundWeight& bound, Piece piece) {
  std::vector<memory::Packed> pieces;
  for (const WeightSlice& slice : bound.slices) {
    memory::Packed whole = piece(slice);
    const bool is_whole = slice.axis < 0 || slice.length == whole.shape[0];
    pieces.push_back(is_whole ? std::move(whole)
                              : memory::rows_of(whole, slice.tensor_start, slice.length));
  }
  return pieces.size() == 1 ? std::move(pieces.front()) : memory::joined_rows(pieces);
}

Arrival arrival_of(const BoundWeight& bound, const files::Checkpoint& checkpoint,
                   at::ScalarType dtype, const WeightStorage& resting) {
  using Rest = Arrival::Rest;
  const auto type_of = [&](const WeightSlice& slice) {
    return checkpoint.index().find(slice.tensor)->dtype;
  };
  const at::ScalarType published = type_of(bound.slices.front());
  const bool is_floating = c10::isFloatingType(published);
  Arrival arrival = {.bound = &bound,
                     .type = is_floating ? bound.weight->drawn_dtype(dtype) : published};
  arrival.is_w8a8 = resting.w8a8.contains(bound.weight);
  arrival.read_type = arrival.type;
  bool is_one_type = true, are_codes = published == at::kFloat8_e4m3fn;
  for (const WeightSlice& slice : bound.slices) {
    arrival.has_scales |= checkpoint.has_scales(slice.tensor);
    is_one_type &= type_of(slice) == published;
    are_codes &= slice.axis <= 0;  // columns of several tensors would have several scales
  }
  are_codes &= is_one_type;
  if (resting.storage != Storage::kPlain && is_floating && resting.weights.contains(bound.weight)) {
    if (can_rest_packed(bound, checkpoint) &&
        is_stored_as(resting.storage, checkpoint.packed(bound.slices.front().tensor)->packing)) {
      arrival.rest = Rest::kPacked;
      return arrival;
    }
    if (are_codes && (resting.storage == Storage::kPublished || resting.storage == Storage::kFp8)) {
      arrival.rest = Rest::kCodes;
      arrival.read_type = published;
      return arrival;
    }
    if (resting.storage == Storage::kFp8) arrival.rest = Rest::kFp8;
    if (resting.storage == Storage::kInt8) arrival.rest = Rest::kInt8;
    if (resting.storage == Storage::kNf4) arrival.rest = Rest::kNf4;
    if (resting.storage == Storage::kFp4) arrival.rest = Rest::kFp4;
  }
  const bool is_packed = std::ranges::any_of(bound.slices, [&](const WeightSlice& slice) {
    return checkpoint.packed(slice.tensor) != nullptr;
  });
  const bool is_half = !is_packed && (published == at::kBFloat16 || published == at::kHalf);
  if (arrival.passes())
    arrival.read_type = is_one_type && is_half && !arrival.has_scales ? published : at::kFloat;
  return arrival;
}

// The bytes of a weight that is one tensor, or rows of one, in the file's own dtype; nullopt when
// they must be converted, joined or aligned.
struct FileBytes {
  int file = 0;
  uint64_t begin = 0, count = 0;
};
std::optional<FileBytes> bytes_in_file(const Arrival& arrival,
                                       const files::Checkpoint& checkpoint) {
  const BoundWeight& bound = *arrival.bound;
  const WeightSlice& slice = bound.slices.front();
  const TensorMeta& meta = *checkpoint.index().find(slice.tensor);
  const files::TensorLocation& place = checkpoint.place(slice.tensor);
  const auto element = static_cast<uint64_t>(c10::elementSize(arrival.type));
  if (!place.is_plain() || arrival.rest != Arrival::Rest::kPlain || arrival.has_scales ||
      bound.slices.size() != 1 || slice.axis > 0 || meta.dtype != arrival.type ||
      bound.weight->numel() == 0 || (slice.axis == 0 && slice.length != bound.weight->sizes()[0]))
    return std::nullopt;
  FileBytes bytes = {place.file, place.begin,
                     static_cast<uint64_t>(bound.weight->numel()) * element};
  if (slice.axis == 0)
    bytes.begin += static_cast<uint64_t>(slice.tensor_start) * bytes.count /
                   static_cast<uint64_t>(bound.weight->sizes()[0]);
  if (bytes.begin % element != 0) return std::nullopt;
  return bytes;
}

// Counts the bytes that were read, and tells them.
class ReadBytes {
 public:
  explicit ReadBytes(const std::function<void(int64_t)>& progress) : progress_(progress) {}

  void add(int64_t bytes) {
    done_ += bytes;
    tell(0);
  }
  // Reads `runs` and leaves them empty.
  void read(const files::Checkpoint& checkpoint, std::vector<files::ReadRun>& runs) {
    int64_t bytes = 0;
    for (const files::ReadRun& run : runs)
      bytes += run.count * static_cast<int64_t>(c10::elementSize(run.from));
    files::read_runs(checkpoint.files(), checkpoint.file_sizes(), std::exchange(runs, {}),
                     [this](int64_t now) { tell(now); });
    done_ += bytes;
  }

 private:
  void tell(int64_t more) const {
    if (progress_) progress_(done_ + more);
  }

  const std::function<void(int64_t)>& progress_;
  int64_t done_ = 0;
};

// Weights whose bytes the file has need no copy on the CPU.
class WeightMapper {
 public:
  WeightMapper(const files::Checkpoint& checkpoint, ReadBytes& bytes)
      : checkpoint_(checkpoint), bytes_(bytes), files_(checkpoint.files().size()) {}

  // Fills the weight and returns true, or leaves it alone. `populates`: its pages are read now.
  bool map(const Arrival& arrival, bool populates) {
    const auto bytes = bytes_in_file(arrival, checkpoint_);
    if (!bytes) return false;
    const auto index = static_cast<size_t>(bytes->file);
    auto& file = files_[index];
    if (!file)
      file = files::MappedFile::open(checkpoint_.files()[index], checkpoint_.file_sizes()[index]);
    if (populates) file->populate(bytes->begin, bytes->count);
    Weight& weight = *arrival.bound->weight;
    weight.set(file->tensor(bytes->begin, weight.sizes(), arrival.type));
    bytes_.add(static_cast<int64_t>(bytes->count));
    return true;
  }

 private:
  const files::Checkpoint& checkpoint_;
  ReadBytes& bytes_;
  std::vector<std::shared_ptr<const files::MappedFile>> files_;
};

// Calls `scale` with the scales of each slice that has some, [1] or a part's rows, and the slice.
void for_each_scale(const BoundWeight& bound, const files::Checkpoint& checkpoint,
                    const std::function<void(const WeightSlice&, at::Tensor)>& scale) {
  for (const WeightSlice& slice : bound.slices) {
    at::Tensor scales = checkpoint.scales(slice.tensor);
    if (!scales.defined()) continue;
    if (scales.numel() > 1 && slice.axis == 0)
      scales = scales.narrow(0, slice.tensor_start, slice.length);
    scale(slice, std::move(scales));
  }
}

void apply_scales(const at::Tensor& value, const BoundWeight& bound,
                  const files::Checkpoint& checkpoint) {
  for_each_scale(bound, checkpoint, [&](const WeightSlice& slice, const at::Tensor& scales) {
    std::vector<int64_t> by_row(static_cast<size_t>(std::max<int64_t>(value.dim(), 1)), 1);
    by_row.front() = scales.numel();
    const at::Tensor part =
        slice.axis < 0 ? value : value.narrow(slice.axis, slice.weight_start, slice.length);
    part.mul_(ops::upload(scales, value.device()).view(by_row));
  });
}

// The scales of codes that stay as they are.
at::Tensor row_scales(const BoundWeight& bound, const files::Checkpoint& checkpoint) {
  at::Tensor all = at::ones({bound.weight->sizes()[0]}, at::kFloat);
  for_each_scale(bound, checkpoint, [&](const WeightSlice& slice, const at::Tensor& scales) {
    (slice.axis < 0 ? all : all.narrow(0, slice.weight_start, slice.length)).copy_(scales);
  });
  return all;
}

// Memory that no allocator of devices counts, and that goes back to the system when it is freed.
at::Tensor empty_on_host(at::IntArrayRef sizes, at::ScalarType dtype) {
  const at::TensorOptions options(dtype);
  const auto bytes = static_cast<size_t>(c10::multiply_integers(sizes)) * c10::elementSize(dtype);
  if (bytes < kMappedHostBytes) {
    const memory::HostScope on_host;
    return at::empty(sizes, options);
  }
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED)
    throw Error(ErrorCode::kOutOfMemory,
                "the host has no " + report::bytes_text(bytes) + " left for a weight",
                "leave more of the model on the device, or in its files with --offload NAME=disk");
  return at::from_blob(
      data, sizes, [bytes](void* memory) { munmap(memory, bytes); }, options);
}

at::Tensor to_host(const at::Tensor& value) {
  return empty_on_host(value.sizes(), value.scalar_type()).copy_(value);
}

at::Tensor moved(const at::Tensor& value, bool to_host_memory, at::Device device) {
  return to_host_memory ? to_host(value) : value.to(device);
}

// A weight rests in the codes of its tensors.
void set_packed(const Arrival& arrival, const files::Checkpoint& checkpoint, at::Device device) {
  const BoundWeight& bound = *arrival.bound;
  memory::Packed value = packed_weight(
      bound, [&](const WeightSlice& slice) { return checkpoint.read_packed(slice.tensor); });
  const bool on_host = arrival.place != memory::Place::kDevice;
  for (at::Tensor& part : value.parts) part = moved(part, on_host, device);
  bound.weight->state().set_store(
      std::make_shared<memory::PackedStore>(std::move(value), arrival.type));
}

// Stores what was read in 4 bits, made on the device wherever it rests: the same codes.
void set_four_bit(const Arrival& arrival, at::Device device) {
  const bool is_nf4 = arrival.rest == Arrival::Rest::kNf4;
  memory::Packed made = memory::quantize_4bit(
      arrival.value.to(device), is_nf4 ? memory::Packing::kNf4 : memory::Packing::kFp4);
  if (arrival.place != memory::Place::kDevice) {
    for (at::Tensor& part : made.parts) part = to_host(part);
  }
  arrival.bound->weight->state().set_store(
      std::make_shared<memory::PackedStore>(std::move(made), arrival.type));
}

void set_weight(Arrival arrival, const files::Checkpoint& checkpoint, at::Device device) {
  using Rest = Arrival::Rest;
  const BoundWeight& bound = *arrival.bound;
  const bool on_host = arrival.place != memory::Place::kDevice;
  const auto store = [&](memory::Quantized value) {
    bound.weight->state().set_store(
        std::make_shared<memory::QuantizedStore>(std::move(value), arrival.type, arrival.is_w8a8));
  };
  if (arrival.rest == Rest::kCodes) {
    const at::Device rests = on_host ? at::Device(at::kCPU) : device;
    store({arrival.value.to(rests), row_scales(bound, checkpoint).to(rests)});
    return;
  }
  if (arrival.has_scales) apply_scales(arrival.value, bound, checkpoint);
  if (arrival.rest == Rest::kPlain) {
    const bool moves = arrival.is_lent;
    if (!on_host) {
      bound.weight->set(arrival.value.to(device, arrival.type, /*non_blocking=*/false, moves));
    } else {
      bound.weight->set(moves ? to_host(arrival.value.to(arrival.type)) : arrival.value);
    }
    return;
  }
  try {
    if (arrival.rest == Rest::kNf4 || arrival.rest == Rest::kFp4)
      return set_four_bit(arrival, device);
    // Made on the device wherever it rests: the same codes.
    const auto kind =
        arrival.rest == Rest::kFp8 ? memory::QuantizedKind::kFp8 : memory::QuantizedKind::kInt8;
    memory::Quantized made = memory::quantize(arrival.value.to(device), kind);
    if (on_host) made = {to_host(made.codes), to_host(made.scales)};
    store(std::move(made));
  } catch (const Error& error) {
    throw error.at("tensor " + formats::quote_and_escape(bound.slices.front().tensor))
        .at(files::display_path(checkpoint.name()));
  }
}

// Memory for what does not stay, allocated once: freed slices of it would lie between those that
// do.
class PassingMemory {
 public:
  explicit PassingMemory(const std::vector<Arrival>& arrivals) {
    int64_t largest = 0;
    for (const Arrival& arrival : arrivals) {
      if (!arrival.passes()) continue;
      largest = std::max(largest, arrival.read_room());
      total_ += arrival.read_room();
    }
    capacity_ = std::min(total_, std::max(kPassingBytes, largest));
  }

  bool has_room(const Arrival& arrival) const { return used_ + arrival.read_room() <= capacity_; }
  at::Tensor take(const Arrival& arrival) {
    if (!memory_.defined()) memory_ = empty_on_host({capacity_}, at::kByte);
    const int64_t begin = std::exchange(used_, used_ + arrival.read_room());
    return memory_.narrow(0, begin, arrival.read_bytes())
        .view(arrival.read_type)
        .view(arrival.bound->weight->sizes());
  }
  void clear() { used_ = 0; }

 private:
  at::Tensor memory_;
  int64_t total_ = 0, capacity_ = 0, used_ = 0;
};

// The part of a tensor, or of a weight, that a slice is, as `outer` runs of `length * inner`
// numbers that lie `tensor_length * inner` and `weight_length * inner` apart.
struct Runs {
  int64_t outer = 1, inner = 1, length = 1;
  int64_t tensor_length = 1, weight_length = 1;
};

Runs runs_of(const WeightSlice& slice, at::IntArrayRef tensor, at::IntArrayRef weight) {
  if (slice.axis < 0) return {.inner = c10::multiply_integers(tensor)};
  const auto axis = static_cast<size_t>(slice.axis);
  if (tensor[axis] == slice.length && weight[axis] == slice.length)
    return {.inner = c10::multiply_integers(tensor)};
  return {.outer = c10::multiply_integers(tensor.slice(0, axis)),
          .inner = c10::multiply_integers(tensor.slice(axis + 1)),
          .length = slice.length,
          .tensor_length = tensor[axis],
          .weight_length = weight[axis]};
}

// Whole huge pages inside the tensor: a tenth of the page faults while it is filled.
void ask_for_huge_pages(char* base, int64_t bytes) {
  if (bytes < 2 * kHugePageBytes) return;
  const auto begin =
      (reinterpret_cast<uintptr_t>(base) + kHugePageBytes - 1) & ~uintptr_t(kHugePageBytes - 1);
  const auto end = (reinterpret_cast<uintptr_t>(base) + static_cast<uintptr_t>(bytes)) &
                   ~uintptr_t(kHugePageBytes - 1);
  if (end > begin) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
}

// Elements of a file that are elements of a weight, one after another.
struct ElementRun {
  int file = 0;
  uint64_t begin = 0;  // byte in the file, or in `ordered`
  int64_t count = 0;
  at::ScalarType from = at::kFloat;
  int64_t at = 0;           // the weight's element
  at::Tensor ordered = {};  // the file's tensor, read already, where its elements are not in order

  // What of it lies in [begin, end) of the weight, read to `target`, where element `begin` lies.
  std::optional<files::ReadRun> clipped(int64_t first, int64_t last, at::ScalarType to,
                                        void* target) const {
    const int64_t low = std::max(at, first), high = std::min(at + count, last);
    if (low >= high) return std::nullopt;
    const auto skipped = static_cast<uint64_t>(low - at) * c10::elementSize(from);
    const auto shift = static_cast<size_t>(low - first) * c10::elementSize(to);
    return files::ReadRun{
        file, begin + skipped, high - low, from, to, static_cast<char*>(target) + shift};
  }
};

std::vector<ElementRun> element_runs(const BoundWeight& bound,
                                     const files::Checkpoint& checkpoint) {
  std::vector<ElementRun> result;
  for (const WeightSlice& slice : bound.slices) {
    const TensorMeta& meta = *checkpoint.index().find(slice.tensor);
    const files::TensorLocation& place = checkpoint.place(slice.tensor);
    const Runs runs = runs_of(slice, meta.shape, bound.weight->sizes());
    const int64_t count = runs.length * runs.inner;
    if (count == 0) continue;
    // Values of codes are float32 until they become what the weight is.
    const at::ScalarType from =
        checkpoint.packed(slice.tensor) != nullptr ? at::kFloat : meta.dtype;
    const at::Tensor ordered =
        place.is_plain() ? at::Tensor() : checkpoint.read(slice.tensor, from);
    const uint64_t first = place.is_plain() ? place.begin : 0;
    for (int64_t i = 0; i < runs.outer; ++i) {
      const int64_t begin = (i * runs.tensor_length + slice.tensor_start) * runs.inner;
      const int64_t to = (i * runs.weight_length + slice.weight_start) * runs.inner;
      const auto skipped = static_cast<uint64_t>(begin) * c10::elementSize(from);
      result.push_back({place.file, first + skipped, count, from, to, ordered});
    }
  }
  return result;
}

// Reads weights into the host's memory, those that do not stay as they are in groups, so that
// beside them little memory is used.
class HostReader {
 public:
  HostReader(const files::Checkpoint& checkpoint, at::Device device, const Landing& landing,
             const std::vector<Arrival>& planned, ReadBytes& bytes)
      : checkpoint_(checkpoint),
        device_(device),
        landing_(landing),
        passing_(planned),
        bytes_(bytes),
        mapper_(checkpoint, bytes) {}

  void take(Arrival arrival) {
    if (arrival.rest == Arrival::Rest::kPacked) {
      set_packed(arrival, checkpoint_, device_);
      for (const WeightSlice& slice : arrival.bound->slices)
        bytes_.add(bytes_to_read(slice, checkpoint_));
      return;
    }
    const bool on_host = arrival.place != memory::Place::kDevice;
    const bool may_map = on_host || (device_.is_cpu() && landing_.maps);
    const bool populates = landing_.populates && arrival.place != memory::Place::kDisk;
    if (may_map && mapper_.map(arrival, populates)) return;
    arrival.is_lent = arrival.passes();
    if (arrival.is_lent && !passing_.has_room(arrival)) flush();
    const at::IntArrayRef sizes = arrival.bound->weight->sizes();
    arrival.value = arrival.is_lent ? passing_.take(arrival)
                    : on_host       ? empty_on_host(sizes, arrival.read_type)
                                    : at::empty(sizes, at::TensorOptions(arrival.read_type));
    void* const base = arrival.value.data_ptr();
    ask_for_huge_pages(static_cast<char*>(base), static_cast<int64_t>(arrival.value.nbytes()));
    for (const ElementRun& run : element_runs(*arrival.bound, checkpoint_)) {
      const files::ReadRun read = *run.clipped(0, arrival.value.numel(), arrival.read_type, base);
      if (run.ordered.defined()) {
        files::convert_elements(static_cast<const char*>(run.ordered.data_ptr()) + read.begin,
                                read.from, static_cast<char*>(read.target), read.to, read.count);
      } else {
        runs_.push_back(read);
      }
    }
    arrivals_.push_back(std::move(arrival));
  }

  void flush() {
    bytes_.read(checkpoint_, runs_);
    for (Arrival& arrival : arrivals_) set_weight(std::move(arrival), checkpoint_, device_);
    arrivals_.clear();
    passing_.clear();
  }

 private:
  const files::Checkpoint& checkpoint_;
  at::Device device_;
  const Landing& landing_;
  PassingMemory passing_;
  ReadBytes& bytes_;
  WeightMapper mapper_;
  std::vector<files::ReadRun> runs_;
  std::vector<Arrival> arrivals_;  // of this group
};

// Sends weights to the device in slices, through pinned memory: some are read while others are on
// their way.
class DeviceReader {
 public:
  DeviceReader(const files::Checkpoint& checkpoint, at::Device device,
               memory::TransferDevice& transfer, int64_t part_bytes, ReadBytes& bytes)
      : checkpoint_(checkpoint), device_(device), ring_(transfer, part_bytes), bytes_(bytes) {}

  void take(Arrival arrival) {
    if (arrival.passes()) {
      if (passing_bytes_ + arrival.read_bytes() > kPassingBytes) flush();
      passing_bytes_ += arrival.read_bytes();
    }
    const auto options = at::TensorOptions(arrival.read_type).device(device_);
    arrival.value = at::empty(arrival.bound->weight->sizes(), options);
    const int64_t numel = arrival.value.numel();
    const auto size = static_cast<int64_t>(c10::elementSize(arrival.read_type));
    const std::vector<ElementRun> all = element_runs(*arrival.bound, checkpoint_);
    for (int64_t begin = 0; begin < numel;) {
      const int64_t count = std::min(numel - begin, ring_.room() / size);
      if (count == 0) {
        flush();
        continue;
      }
      const at::Tensor slice = arrival.value.view(-1).narrow(0, begin, count).view(at::kByte);
      void* const memory = ring_.take(slice);
      for (const ElementRun& run : all) {
        if (const auto part = run.clipped(begin, begin + count, arrival.read_type, memory))
          runs_.push_back(*part);
      }
      begin += count;
    }
    arrivals_.push_back(std::move(arrival));
  }

  void flush() {
    bytes_.read(checkpoint_, runs_);
    ring_.send();
    for (Arrival& arrival : arrivals_) set_weight(std::move(arrival), checkpoint_, device_);
    arrivals_.clear();
    passing_bytes_ = 0;
  }
  // All of them are there, and the pinned memory is in use no more.
  void finish() {
    flush();
    ring_.wait();
  }

 private:
  const files::Checkpoint& checkpoint_;
  at::Device device_;
  memory::StagingRing ring_;
  ReadBytes& bytes_;
  std::vector<files::ReadRun> runs_;
  std::vector<Arrival> arrivals_;  // that are whole in what is read next
  int64_t passing_bytes_ = 0;      // of those, what is on the device and does not stay
};

bool is_in_order(const BoundWeight& bound, const files::Checkpoint& checkpoint) {
  return std::ranges::all_of(bound.slices, [&](const WeightSlice& slice) {
    return checkpoint.place(slice.tensor).is_plain();
  });
}

// Whether what is read goes to the device: it stays there, or is stored in fewer bits there first.
bool goes_to_device(const Arrival& arrival) {
  return arrival.place == memory::Place::kDevice || arrival.is_quantized();
}

}  // namespace

void load_weights(const WeightBinding& binding, const files::Checkpoint& checkpoint,
                  at::ScalarType dtype, at::Device device,
                  const std::function<void(int64_t)>& progress, const WeightStorage& resting,
                  const Landing& landing) {
  if (!device.is_cpu() && landing.transfer == nullptr)
    throw Error(ErrorCode::kInternal, "weights are sent to " + device.str() + " by nobody");
  const at::NoGradGuard no_grad;
  const auto is_sent = [&](const Arrival& arrival) {
    return landing.transfer != nullptr && goes_to_device(arrival) &&
           is_in_order(*arrival.bound, checkpoint);
  };
  int64_t sent_bytes = 0;
  std::vector<Arrival> planned;
  for (const BoundWeight& bound : binding.weights) {
    Arrival& arrival = planned.emplace_back(arrival_of(bound, checkpoint, dtype, resting));
    const auto place = landing.places.find(bound.weight);
    if (place != landing.places.end()) arrival.place = place->second;
    if (is_sent(arrival)) sent_bytes += arrival.read_room();
  }
  ReadBytes bytes(progress);
  HostReader host(checkpoint, device, landing, planned, bytes);
  std::optional<DeviceReader> sent;
  if (sent_bytes > 0)
    sent.emplace(checkpoint, device, *landing.transfer, std::min(sent_bytes, landing.staging_bytes),
                 bytes);
  for (Arrival& arrival : planned) {
    if (sent && is_sent(arrival)) {
      sent->take(std::move(arrival));
    } else {
      host.take(std::move(arrival));
    }
  }
  host.flush();
  if (sent) sent->finish();
}

namespace {

at::Tensor outline(at::IntArrayRef sizes, at::ScalarType type) {
  return at::empty(sizes, at::TensorOptions(type).device(at::kMeta));
}

// The store of a weight that is not plain, without values.
std::shared_ptr<const WeightStore> outline_store(const Arrival& arrival,
                                                 const files::Checkpoint& checkpoint) {
  using Rest = Arrival::Rest;
  const at::IntArrayRef sizes = arrival.bound->weight->sizes();
  const auto packed = [&](memory::Packed value) {
    return std::make_shared<memory::PackedStore>(std::move(value), arrival.type);
  };
  if (arrival.rest == Rest::kNf4) return packed(memory::outline_4bit(sizes, memory::Packing::kNf4));
  if (arrival.rest == Rest::kFp4) return packed(memory::outline_4bit(sizes, memory::Packing::kFp4));
  if (arrival.rest == Rest::kPacked)
    return packed(packed_weight(
        *arrival.bound, [&](const WeightSlice& slice) { return outline_of(slice, checkpoint); }));
  const at::ScalarType codes = arrival.rest == Rest::kInt8 ? at::kChar : at::kFloat8_e4m3fn;
  return std::make_shared<memory::QuantizedStore>(
      memory::Quantized{outline(sizes, codes), outline(sizes.slice(0, 1), at::kFloat)},
      arrival.type, arrival.is_w8a8);
}

}  // namespace

void outline_weights(const WeightBinding& binding, const files::Checkpoint& checkpoint,
                     at::ScalarType dtype, const WeightStorage& resting) {
  for (const BoundWeight& bound : binding.weights) {
    const Arrival arrival = arrival_of(bound, checkpoint, dtype, resting);
    if (arrival.rest == Arrival::Rest::kPlain) {
      bound.weight->set(outline(bound.weight->sizes(), arrival.type));
    } else {
      bound.weight->state().set_store(outline_store(arrival, checkpoint));
    }
  }
}

std::vector<int64_t> resting_bytes(const BoundWeight& bound, const files::Checkpoint& checkpoint,
                                   at::ScalarType dtype, const WeightStorage& resting) {
  const Arrival arrival = arrival_of(bound, checkpoint, dtype, resting);
  if (arrival.rest == Arrival::Rest::kPlain)
    return {bound.weight->numel() * static_cast<int64_t>(c10::elementSize(arrival.type))};
  std::vector<int64_t> bytes;
  for (const at::Tensor& part : outline_store(arrival, checkpoint)->parts())
    bytes.push_back(static_cast<int64_t>(part.nbytes()));
  return bytes;
}

bool rests_in_file(const BoundWeight& bound, const files::Checkpoint& checkpoint,
                   at::ScalarType dtype, const WeightStorage& resting) {
  return bytes_in_file(arrival_of(bound, checkpoint, dtype, resting), checkpoint).has_value();
}

}  // namespace atelier::weights
