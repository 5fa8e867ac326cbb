#include "host/weights/weight_loading.h"

#include <algorithm>
#include <optional>
#include <sys/mman.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "atelier/error.h"
#include "atelier/host/weight_state.h"

#include "formats/escape.h"
#include "host/files/bulk_reader.h"
#include "host/files/file_reader.h"
#include "host/files/mapped_file.h"
#include "host/report/problems.h"
#include "memory/quantized_store.h"
#include "memory/transfer_device.h"

namespace atelier::weights {

int64_t bytes_to_read(const WeightBinding& binding, const files::Checkpoint& checkpoint) {
  int64_t bytes = 0;
  for (const BoundWeight& bound : binding.weights) {
    for (const WeightPiece& piece : bound.pieces) {
      const TensorMeta& meta = *checkpoint.index().find(piece.tensor);
      int64_t elements = c10::multiply_integers(meta.shape);
      if (piece.axis >= 0) {
        const int64_t axis_length = meta.shape[static_cast<size_t>(piece.axis)];
        elements = axis_length == 0 ? 0 : elements / axis_length * piece.length;
      }
      bytes += elements * static_cast<int64_t>(c10::elementSize(meta.dtype));
    }
  }
  return bytes;
}

namespace {

constexpr int64_t kHugePageBytes = int64_t{2} << 20;
constexpr int64_t kDeviceGroupBytes = int64_t{512} << 20;
constexpr int64_t kPassingBytes = int64_t{64} << 20;
constexpr int64_t kPassingAlignment = 64;
constexpr size_t kMappedHostBytes = size_t{64}
                                    << 10;  // smaller ones are not worth pages of their own

// How one weight is read, and in what it comes to rest.
struct Arrival {
  enum class Rest { kPlain, kCodes, kFp8, kInt8 };
  const BoundWeight* bound = nullptr;
  Rest rest = Rest::kPlain;
  at::ScalarType read_type = at::kFloat;
  at::ScalarType type = at::kFloat;  // in which it is drawn
  bool has_scales = false;
  bool is_w8a8 = false;
  memory::Place place = memory::Place::kDevice;
  at::Tensor value = {};

  // What is read is not what stays.
  bool passes() const {
    return rest == Rest::kFp8 || rest == Rest::kInt8 || (rest == Rest::kPlain && has_scales);
  }
};

Arrival arrival_of(const BoundWeight& bound, const files::Checkpoint& checkpoint,
                   at::ScalarType dtype, const WeightStorage& plan) {
  using Rest = Arrival::Rest;
  const auto type_of = [&](const WeightPiece& piece) {
    return checkpoint.index().find(piece.tensor)->dtype;
  };
  const at::ScalarType published = type_of(bound.pieces.front());
  const bool is_floating = c10::isFloatingType(published);
  Arrival arrival = {.bound = &bound,
                     .type = is_floating ? bound.weight->drawn_dtype(dtype) : published};
  arrival.is_w8a8 = plan.w8a8.contains(bound.weight);
  arrival.read_type = arrival.type;
  bool is_one_type = true, are_codes = published == at::kFloat8_e4m3fn;
  for (const WeightPiece& piece : bound.pieces) {
    arrival.has_scales |= checkpoint.has_scales(piece.tensor);
    is_one_type &= type_of(piece) == published;
    are_codes &= piece.axis <= 0;  // columns of several tensors would have several scales
  }
  are_codes &= is_one_type;
  if (plan.storage != Storage::kPlain && is_floating && plan.weights.contains(bound.weight)) {
    if (are_codes && plan.storage != Storage::kInt8) {
      arrival.rest = Rest::kCodes;
      arrival.read_type = published;
      return arrival;
    }
    if (plan.storage == Storage::kFp8) arrival.rest = Rest::kFp8;
    if (plan.storage == Storage::kInt8) arrival.rest = Rest::kInt8;
  }
  const bool is_half = published == at::kBFloat16 || published == at::kHalf;
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
  const WeightPiece& piece = bound.pieces.front();
  const TensorMeta& meta = *checkpoint.index().find(piece.tensor);
  const files::TensorPlace& place = checkpoint.place(piece.tensor);
  const auto element = static_cast<uint64_t>(c10::elementSize(arrival.type));
  if (arrival.rest != Arrival::Rest::kPlain || arrival.has_scales || bound.pieces.size() != 1 ||
      piece.axis > 0 || meta.dtype != arrival.type || bound.weight->numel() == 0 ||
      (piece.axis == 0 && piece.length != bound.weight->sizes()[0]))
    return std::nullopt;
  FileBytes bytes = {place.file, place.begin,
                     static_cast<uint64_t>(bound.weight->numel()) * element};
  if (piece.axis == 0)
    bytes.begin += static_cast<uint64_t>(piece.tensor_start) * bytes.count /
                   static_cast<uint64_t>(bound.weight->sizes()[0]);
  if (bytes.begin % element != 0) return std::nullopt;
  return bytes;
}

// Weights whose bytes the file has need no copy on the CPU.
class WeightMapper {
 public:
  WeightMapper(const files::Checkpoint& checkpoint, std::function<void(int64_t)> progress)
      : checkpoint_(checkpoint),
        progress_(std::move(progress)),
        files_(checkpoint.files().size()) {}

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
    bytes_ += static_cast<int64_t>(bytes->count);
    if (progress_) progress_(bytes_);
    return true;
  }

  int64_t bytes() const { return bytes_; }

 private:
  const files::Checkpoint& checkpoint_;
  std::function<void(int64_t)> progress_;
  std::vector<std::shared_ptr<const files::MappedFile>> files_;
  int64_t bytes_ = 0;
};

// Calls `scale` with the scales of each piece that has some, [1] or a part's rows, and the piece.
void for_each_scale(const BoundWeight& bound, const files::Checkpoint& checkpoint,
                    const std::function<void(const WeightPiece&, at::Tensor)>& scale) {
  for (const WeightPiece& piece : bound.pieces) {
    at::Tensor scales = checkpoint.scales(piece.tensor);
    if (!scales.defined()) continue;
    if (scales.numel() > 1 && piece.axis == 0)
      scales = scales.narrow(0, piece.tensor_start, piece.length);
    scale(piece, std::move(scales));
  }
}

void apply_scales(const at::Tensor& value, const BoundWeight& bound,
                  const files::Checkpoint& checkpoint) {
  for_each_scale(bound, checkpoint, [&](const WeightPiece& piece, const at::Tensor& scales) {
    std::vector<int64_t> by_row(static_cast<size_t>(std::max<int64_t>(value.dim(), 1)), 1);
    by_row.front() = scales.numel();
    const at::Tensor part =
        piece.axis < 0 ? value : value.narrow(piece.axis, piece.weight_start, piece.length);
    part.mul_(scales.view(by_row));
  });
}

// The scales of codes that stay as they are.
at::Tensor row_scales(const BoundWeight& bound, const files::Checkpoint& checkpoint) {
  at::Tensor all = at::ones({bound.weight->sizes()[0]}, at::kFloat);
  for_each_scale(bound, checkpoint, [&](const WeightPiece& piece, const at::Tensor& scales) {
    (piece.axis < 0 ? all : all.narrow(0, piece.weight_start, piece.length)).copy_(scales);
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
                "the host has no " + report::format_bytes(bytes) + " left for a weight",
                "leave more of the model on the device, or in its files with --offload NAME=disk");
  return at::from_blob(
      data, sizes, [bytes](void* memory) { munmap(memory, bytes); }, options);
}

at::Tensor to_host(const at::Tensor& value) {
  return empty_on_host(value.sizes(), value.scalar_type()).copy_(value);
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
    const bool moves = arrival.passes();  // out of passing memory
    if (!on_host) {
      bound.weight->set(arrival.value.to(device, arrival.type, /*non_blocking=*/false, moves));
    } else {
      bound.weight->set(moves ? to_host(arrival.value.to(arrival.type)) : arrival.value);
    }
    return;
  }
  try {
    // Made on the device wherever it rests: the same codes.
    const auto kind =
        arrival.rest == Rest::kFp8 ? memory::QuantizedKind::kFp8 : memory::QuantizedKind::kInt8;
    memory::Quantized made = memory::quantize(arrival.value.to(device), kind);
    if (on_host) made = {to_host(made.codes), to_host(made.scales)};
    store(std::move(made));
  } catch (const Error& error) {
    throw error.at("tensor " + formats::quote_and_escape(bound.pieces.front().tensor))
        .at(files::display_path(checkpoint.name()));
  }
}

// Memory for what does not stay, allocated once: freed pieces of it would lie between those that
// do.
class PassingMemory {
 public:
  explicit PassingMemory(const std::vector<Arrival>& arrivals) {
    int64_t largest = 0;
    for (const Arrival& arrival : arrivals) {
      if (!arrival.passes()) continue;
      largest = std::max(largest, bytes_of(arrival));
      total_ += bytes_of(arrival);
    }
    capacity_ = std::min(total_, std::max(kPassingBytes, largest));
  }

  bool has_room(const Arrival& arrival) const { return used_ + bytes_of(arrival) <= capacity_; }
  at::Tensor take(const Arrival& arrival) {
    if (!memory_.defined()) memory_ = empty_on_host({capacity_}, at::kByte);
    const int64_t begin = used_, bytes = payload_of(arrival);
    used_ += bytes_of(arrival);
    return memory_.narrow(0, begin, bytes)
        .view(arrival.read_type)
        .view(arrival.bound->weight->sizes());
  }
  void clear() { used_ = 0; }

 private:
  static int64_t payload_of(const Arrival& arrival) {
    return arrival.bound->weight->numel() *
           static_cast<int64_t>(c10::elementSize(arrival.read_type));
  }
  static int64_t bytes_of(const Arrival& arrival) {
    return (payload_of(arrival) + kPassingAlignment - 1) / kPassingAlignment * kPassingAlignment;
  }

  at::Tensor memory_;
  int64_t total_ = 0, capacity_ = 0, used_ = 0;
};

// The part of a tensor, or of a weight, that a piece is, as `outer` runs of `length * inner`
// numbers that lie `tensor_length * inner` and `weight_length * inner` apart.
struct Runs {
  int64_t outer = 1, inner = 1, length = 1;
  int64_t tensor_length = 1, weight_length = 1;
};

Runs runs_of(const WeightPiece& piece, at::IntArrayRef tensor, at::IntArrayRef weight) {
  if (piece.axis < 0) return {.inner = c10::multiply_integers(tensor)};
  const auto axis = static_cast<size_t>(piece.axis);
  if (tensor[axis] == piece.length && weight[axis] == piece.length)
    return {.inner = c10::multiply_integers(tensor)};
  return {.outer = c10::multiply_integers(tensor.slice(0, axis)),
          .inner = c10::multiply_integers(tensor.slice(axis + 1)),
          .length = piece.length,
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

// Reads weights in groups, so that beside them little memory is used.
class GroupReader {
 public:
  GroupReader(const files::Checkpoint& checkpoint, at::Device device, bool maps,
              const std::vector<Arrival>& planned, const std::function<void(int64_t)>& progress)
      : checkpoint_(checkpoint),
        device_(device),
        maps_(maps),
        progress_(progress),
        passing_(planned),
        mapper_(checkpoint, progress) {}

  void take(Arrival& arrival) {
    const bool on_host = arrival.place != memory::Place::kDevice;
    const bool may_map = on_host || (device_.is_cpu() && maps_);
    if (may_map && mapper_.map(arrival, /*populates=*/arrival.place != memory::Place::kDisk))
      return;
    if (arrival.passes() && !passing_.has_room(arrival)) flush();
    const at::IntArrayRef sizes = arrival.bound->weight->sizes();
    arrival.value = arrival.passes() ? passing_.take(arrival)
                    : on_host        ? empty_on_host(sizes, arrival.read_type)
                                     : at::empty(sizes, at::TensorOptions(arrival.read_type));
    const auto bytes = static_cast<int64_t>(arrival.value.nbytes());
    ask_for_huge_pages(static_cast<char*>(arrival.value.data_ptr()), bytes);
    for (const WeightPiece& piece : arrival.bound->pieces) plan_piece(arrival, piece);
    group_bytes_ += bytes;
    arrivals_.push_back(std::move(arrival));
    if (!device_.is_cpu() && group_bytes_ >= kDeviceGroupBytes) flush();
  }

  void flush() {
    int64_t done = 0;
    files::read_runs(checkpoint_.files(), checkpoint_.file_sizes(), std::move(runs_),
                     [&](int64_t bytes) {
                       done = bytes;
                       if (progress_) progress_(mapper_.bytes() + done_before_ + bytes);
                     });
    done_before_ += done;
    runs_.clear();
    group_bytes_ = 0;
    for (Arrival& arrival : arrivals_) set_weight(std::move(arrival), checkpoint_, device_);
    arrivals_.clear();
    passing_.clear();
  }

 private:
  void plan_piece(const Arrival& arrival, const WeightPiece& piece) {
    const TensorMeta& meta = *checkpoint_.index().find(piece.tensor);
    const files::TensorPlace& place = checkpoint_.place(piece.tensor);
    const auto from_size = static_cast<int64_t>(c10::elementSize(meta.dtype));
    const auto to_size = static_cast<int64_t>(c10::elementSize(arrival.read_type));
    const Runs runs = runs_of(piece, meta.shape, arrival.bound->weight->sizes());
    const int64_t count = runs.length * runs.inner;
    if (count == 0) return;
    auto* base = static_cast<char*>(arrival.value.data_ptr());
    for (int64_t i = 0; i < runs.outer; ++i) {
      const int64_t from = (i * runs.tensor_length + piece.tensor_start) * runs.inner;
      const int64_t to = (i * runs.weight_length + piece.weight_start) * runs.inner;
      runs_.push_back({place.file, place.begin + static_cast<uint64_t>(from * from_size), count,
                       meta.dtype, arrival.read_type, base + to * to_size});
    }
  }

  const files::Checkpoint& checkpoint_;
  at::Device device_;
  bool maps_;
  const std::function<void(int64_t)>& progress_;
  PassingMemory passing_;
  WeightMapper mapper_;
  std::vector<files::ReadRun> runs_;
  std::vector<Arrival> arrivals_;  // of this group
  int64_t done_before_ = 0, group_bytes_ = 0;
};

}  // namespace

void load_weights(const WeightBinding& binding, const files::Checkpoint& checkpoint,
                  at::ScalarType dtype, at::Device device,
                  const std::function<void(int64_t)>& progress, const WeightStorage& plan,
                  const Landing& landing) {
  const at::NoGradGuard no_grad;
  std::vector<Arrival> planned;
  for (const BoundWeight& bound : binding.weights) {
    Arrival& arrival = planned.emplace_back(arrival_of(bound, checkpoint, dtype, plan));
    const auto place = landing.places.find(bound.weight);
    if (place != landing.places.end()) arrival.place = place->second;
  }
  GroupReader reader(checkpoint, device, landing.maps, planned, progress);
  for (Arrival& arrival : planned) reader.take(arrival);
  reader.flush();
}

bool rests_in_file(const BoundWeight& bound, const files::Checkpoint& checkpoint,
                   at::ScalarType dtype, const WeightStorage& plan) {
  return bytes_in_file(arrival_of(bound, checkpoint, dtype, plan), checkpoint).has_value();
}

}  // namespace atelier::weights
