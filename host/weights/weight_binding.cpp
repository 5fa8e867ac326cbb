#include "host/weights/weight_binding.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <set>
#include <sys/mman.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "atelier/error.h"
#include "atelier/host/weight_state.h"

#include "formats/escape.h"
#include "formats/glob.h"
#include "host/files/bulk_reader.h"
#include "host/files/file_reader.h"
#include "host/files/mapped_file.h"
#include "host/report/problems.h"
#include "memory/port.h"
#include "memory/quantized_store.h"

namespace atelier::weights {

namespace {

constexpr size_t kListed = 20;
constexpr int64_t kHugePageBytes = int64_t{2} << 20;
constexpr int64_t kDeviceGroupBytes = int64_t{512} << 20;
constexpr int64_t kPassingBytes = int64_t{64} << 20;
constexpr int64_t kPassingAlignment = 64;
constexpr size_t kMappedHostBytes = size_t{64}
                                    << 10;  // smaller ones are not worth pages of their own

// The block numbers that stand where `pattern` has `{}`; nullopt when `name` does not match.
std::optional<std::vector<std::string>> match_blocks(std::string_view pattern,
                                                     std::string_view name) {
  std::vector<std::string> numbers;
  while (true) {
    const size_t hole = pattern.find("{}");
    const std::string_view literal = pattern.substr(0, hole);
    if (!name.starts_with(literal)) return std::nullopt;
    name.remove_prefix(literal.size());
    if (hole == std::string_view::npos) {
      if (!name.empty()) return std::nullopt;
      return numbers;
    }
    pattern.remove_prefix(hole + 2);
    const size_t digits = std::min(name.find_first_not_of("0123456789"), name.size());
    // "007" is no block number: it would not come back when the table is read backwards.
    if (digits == 0 || (digits > 1 && name.front() == '0')) return std::nullopt;
    numbers.emplace_back(name.substr(0, digits));
    name.remove_prefix(digits);
  }
}

std::string fill_blocks(std::string_view pattern, const std::vector<std::string>& numbers) {
  std::string out;
  for (size_t i = 0;; ++i) {
    const size_t hole = pattern.find("{}");
    out += pattern.substr(0, hole);
    if (hole == std::string_view::npos) return out;
    if (i < numbers.size()) out += numbers[i];
    pattern.remove_prefix(hole + 2);
  }
}

bool matches_unused(const std::string& pattern, const std::string& name) {
  if (pattern.find('*') == std::string::npos) return match_blocks(pattern, name).has_value();
  std::string glob = pattern;
  for (size_t hole = glob.find("{}"); hole != std::string::npos; hole = glob.find("{}"))
    glob.replace(hole, 2, "*");
  return formats::glob_match(glob, name);
}

// The rows that name a tensor: those with the `from` of the first that matches.
struct TensorRows {
  std::vector<const WeightRule*> rules;
  std::vector<std::string> numbers;
};

std::optional<TensorRows> find_rows(const WeightMap& rules, const std::string& name) {
  for (const WeightRule& rule : rules) {
    TensorRows rows;
    if (rule.to.empty()) {
      if (!matches_unused(rule.from, name)) continue;
      return rows;
    }
    auto numbers = match_blocks(rule.from, name);
    if (!numbers) continue;
    rows.numbers = std::move(*numbers);
    for (const WeightRule& other : rules) {
      if (other.from == rule.from && !other.to.empty()) rows.rules.push_back(&other);
    }
    return rows;
  }
  return std::nullopt;
}

// True when the shapes are equal but for `axis`.
bool fits_beside(at::IntArrayRef a, at::IntArrayRef b, int axis) {
  if (a.size() != b.size() || axis < 0 || static_cast<size_t>(axis) >= a.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (i != static_cast<size_t>(axis) && a[i] != b[i]) return false;
  }
  return true;
}

void check_pieces(const BoundWeight& bound, const TensorIndex& index,
                  std::vector<std::string>& misshaped) {
  const at::IntArrayRef weight = bound.weight->sizes();
  int64_t covered = 0;
  for (const WeightPiece& piece : bound.pieces) {
    const TensorMeta& tensor = *index.find(piece.tensor);
    const bool fits = piece.axis < 0 ? at::IntArrayRef(tensor.shape) == weight
                                     : fits_beside(tensor.shape, weight, piece.axis) &&
                                           piece.tensor_start + piece.length <=
                                               tensor.shape[static_cast<size_t>(piece.axis)];
    if (!fits) {
      misshaped.push_back(
          formats::quote_and_escape(piece.tensor) + ": " + c10::str(at::IntArrayRef(tensor.shape)) +
          ", expected " + c10::str(at::IntArrayRef(weight)) +
          (piece.axis < 0 ? "" : " or a part of it along axis " + std::to_string(piece.axis)));
      return;
    }
    covered += piece.length;
  }
  if (bound.pieces.size() > 1 && covered != weight[static_cast<size_t>(bound.pieces.front().axis)])
    misshaped.push_back(formats::quote_and_escape(bound.pieces.front().tensor) + " and " +
                        std::to_string(bound.pieces.size() - 1) + " more hold " +
                        std::to_string(covered) + " of " + c10::str(at::IntArrayRef(weight)) +
                        " along axis " + std::to_string(bound.pieces.front().axis));
}

void list(std::string& out, const char* what, const std::vector<std::string>& names) {
  if (names.empty()) return;
  out += std::string("\n  ") + what + ":";
  for (size_t i = 0; i < std::min(names.size(), kListed); ++i) out += "\n    " + names[i];
  if (names.size() > kListed)
    out += "\n    and " + std::to_string(names.size() - kListed) + " more";
}

}  // namespace

void WeightBinding::throw_unless_complete(const std::string& checkpoint_name,
                                          const std::string& component) const {
  if (is_complete()) return;
  std::string message = files::display_path(checkpoint_name) + ": does not fit " + component +
                        ": " + std::to_string(missing.size()) + " tensors missing, " +
                        std::to_string(unexpected.size()) + " unexpected, " +
                        std::to_string(misshaped.size()) + " of another shape";
  list(message, "missing", missing);
  list(message, "unexpected", unexpected);
  list(message, "of another shape", misshaped);
  throw Error(ErrorCode::kInvalidArgument, message, "use a checkpoint of this architecture, whole",
              "WEIGHTS_MISMATCH");
}

WeightBinding bind_weights(const WeightMap& rules, const std::string& prefix,
                           const TensorIndex& index, nn::Module& module) {
  WeightBinding binding;
  std::map<std::string, size_t> place;  // of a weight in binding.weights
  module.visit_weights([&](const std::string& path, Weight& weight) {
    place.emplace(path, binding.weights.size());
    binding.weights.push_back({path, &weight, {}});
  });

  struct Candidate {
    size_t row;  // in the table: the order in which tensors are joined
    WeightPiece piece;
  };
  std::vector<std::vector<Candidate>> candidates(binding.weights.size());
  for (const auto& [name, meta] : index.tensors()) {
    const std::string quoted = formats::quote_and_escape(name);
    if (!name.starts_with(prefix)) {
      binding.unexpected.push_back(quoted);
      continue;
    }
    const auto rows = find_rows(rules, name.substr(prefix.size()));
    if (!rows) {
      binding.unexpected.push_back(quoted);
      continue;
    }
    if (rows->rules.empty()) {
      binding.unused.push_back(name);
      continue;
    }
    int64_t start = 0;
    bool has_all_weights = true;
    for (const WeightRule* rule : rows->rules) {
      const auto it = place.find(fill_blocks(rule->to, rows->numbers));
      if (it == place.end()) {
        has_all_weights = false;
        break;
      }
      WeightPiece piece{name, rule->axis, 0, 0, 0};
      const at::IntArrayRef sizes = binding.weights[it->second].weight->sizes();
      if (rows->rules.size() > 1 && rule->axis >= 0 &&
          static_cast<size_t>(rule->axis) < sizes.size()) {
        piece.tensor_start = start;
        piece.length = sizes[static_cast<size_t>(rule->axis)];
        start += piece.length;
      } else if (rule->axis >= 0 && static_cast<size_t>(rule->axis) < meta.shape.size()) {
        piece.length = meta.shape[static_cast<size_t>(rule->axis)];
      }
      candidates[it->second].push_back({static_cast<size_t>(rule - rules.data()), piece});
    }
    // The component has fewer blocks or another layout.
    if (!has_all_weights) binding.unexpected.push_back(quoted);
    const WeightRule& first = *rows->rules.front();
    if (has_all_weights && rows->rules.size() > 1 && first.axis >= 0 &&
        static_cast<size_t>(first.axis) < meta.shape.size() &&
        start != meta.shape[static_cast<size_t>(first.axis)])
      binding.misshaped.push_back(quoted + ": " + c10::str(at::IntArrayRef(meta.shape)) +
                                  ", expected " + std::to_string(start) + " along axis " +
                                  std::to_string(first.axis));
  }

  for (size_t i = 0; i < binding.weights.size(); ++i) {
    BoundWeight& bound = binding.weights[i];
    std::sort(candidates[i].begin(), candidates[i].end(),
              [](const Candidate& a, const Candidate& b) { return a.row < b.row; });
    std::set<std::string> have;
    int64_t start = 0;
    for (Candidate& candidate : candidates[i]) {
      have.insert(candidate.piece.tensor);
      candidate.piece.weight_start = start;
      start += candidate.piece.length;
      bound.pieces.push_back(std::move(candidate.piece));
    }
    // Every row that names this weight must have brought its tensor.
    bool has_row = false, is_whole = true;
    for (const WeightRule& rule : rules) {
      if (rule.to.empty()) continue;
      const auto numbers = match_blocks(rule.to, bound.path);
      if (!numbers) continue;
      has_row = true;
      const std::string name = prefix + fill_blocks(rule.from, *numbers);
      if (have.contains(name)) continue;
      is_whole = false;
      binding.missing.push_back(formats::quote_and_escape(name));
    }
    if (!has_row)
      binding.missing.push_back("weight " + formats::quote_and_escape(bound.path) +
                                ", which has no row");
    if (has_row && is_whole) check_pieces(bound, index, binding.misshaped);
  }
  // A cut tensor is missing once, not once for each of its weights.
  std::set<std::string> seen;
  std::erase_if(binding.missing,
                [&](const std::string& name) { return !seen.insert(name).second; });
  return binding;
}

int64_t count_known_tensors(const WeightMap& rules, const std::string& prefix,
                            const TensorIndex& index) {
  int64_t count = 0;
  for (const auto& [name, meta] : index.tensors()) {
    if (name.starts_with(prefix) && find_rows(rules, name.substr(prefix.size()))) ++count;
  }
  return count;
}

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
                   at::ScalarType dtype, const StoragePlan& plan) {
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

// Of codes that stay as they are.
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

}  // namespace

void load_weights(const WeightBinding& binding, const files::Checkpoint& checkpoint,
                  at::ScalarType dtype, at::Device device,
                  const std::function<void(int64_t)>& progress, const StoragePlan& plan,
                  const Landing& landing) {
  using memory::Place;
  const at::NoGradGuard no_grad;
  const TensorIndex& index = checkpoint.index();
  int64_t done_before = 0, group_bytes = 0;
  std::vector<files::ReadRun> runs;
  std::vector<Arrival> planned, arrivals;
  for (const BoundWeight& bound : binding.weights) {
    Arrival& arrival = planned.emplace_back(arrival_of(bound, checkpoint, dtype, plan));
    const auto place = landing.places.find(bound.weight);
    if (place != landing.places.end()) arrival.place = place->second;
  }
  PassingMemory passing(planned);
  WeightMapper mapper(checkpoint, progress);

  const auto flush = [&] {
    int64_t done = 0;
    files::read_runs(checkpoint.files(), checkpoint.file_sizes(), std::move(runs),
                     [&](int64_t bytes) {
                       done = bytes;
                       if (progress) progress(mapper.bytes() + done_before + bytes);
                     });
    done_before += done;
    runs.clear();
    group_bytes = 0;
    for (Arrival& arrival : arrivals) set_weight(std::move(arrival), checkpoint, device);
    arrivals.clear();
    passing.clear();
  };

  for (Arrival& arrival : planned) {
    const BoundWeight& bound = *arrival.bound;
    const at::IntArrayRef sizes = bound.weight->sizes();
    const at::ScalarType type = arrival.read_type;
    const bool on_host = arrival.place != Place::kDevice;
    const bool may_map = on_host || (device.is_cpu() && landing.maps);
    if (may_map && mapper.map(arrival, /*populates=*/arrival.place != Place::kDisk)) continue;
    if (arrival.passes() && !passing.has_room(arrival)) flush();
    at::Tensor value = arrival.passes() ? passing.take(arrival)
                       : on_host        ? empty_on_host(sizes, type)
                                        : at::empty(sizes, at::TensorOptions(type));
    auto* base = static_cast<char*>(value.data_ptr());
    const auto bytes = static_cast<int64_t>(value.nbytes());
    if (bytes >= 2 * kHugePageBytes) {
      // Whole huge pages inside the tensor: a tenth of the page faults while it is filled.
      const auto begin =
          (reinterpret_cast<uintptr_t>(base) + kHugePageBytes - 1) & ~uintptr_t(kHugePageBytes - 1);
      const auto end = (reinterpret_cast<uintptr_t>(base) + static_cast<uintptr_t>(bytes)) &
                       ~uintptr_t(kHugePageBytes - 1);
      if (end > begin) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
    }
    for (const WeightPiece& piece : bound.pieces) {
      const TensorMeta& meta = *index.find(piece.tensor);
      const files::TensorPlace& place = checkpoint.place(piece.tensor);
      const auto from_size = static_cast<int64_t>(c10::elementSize(meta.dtype));
      const auto to_size = static_cast<int64_t>(c10::elementSize(type));
      int64_t outer = 1, inner = c10::multiply_integers(meta.shape), tensor_length = 1,
              weight_length = 1, length = 1;
      if (piece.axis >= 0) {
        const auto axis = static_cast<size_t>(piece.axis);
        tensor_length = meta.shape[axis];
        weight_length = sizes[axis];
        length = piece.length;
        outer = std::accumulate(meta.shape.begin(), meta.shape.begin() + piece.axis, int64_t{1},
                                std::multiplies<>());
        inner = std::accumulate(meta.shape.begin() + piece.axis + 1, meta.shape.end(), int64_t{1},
                                std::multiplies<>());
        if (tensor_length == length && weight_length == length) {
          inner *= outer * length;
          outer = tensor_length = weight_length = length = 1;
        }
      }
      for (int64_t i = 0; i < outer; ++i) {
        const int64_t from = (i * tensor_length + piece.tensor_start) * inner;
        const int64_t to = (i * weight_length + piece.weight_start) * inner;
        if (length * inner == 0) continue;
        runs.push_back({place.file, place.begin + static_cast<uint64_t>(from * from_size),
                        length * inner, meta.dtype, type, base + to * to_size});
      }
    }
    arrival.value = std::move(value);
    group_bytes += bytes;
    arrivals.push_back(std::move(arrival));
    if (!device.is_cpu() && group_bytes >= kDeviceGroupBytes) flush();
  }
  flush();
}

bool rests_in_file(const BoundWeight& bound, const files::Checkpoint& checkpoint,
                   at::ScalarType dtype, const StoragePlan& plan) {
  return bytes_in_file(arrival_of(bound, checkpoint, dtype, plan), checkpoint).has_value();
}

at::Tensor PublishedTensor::value() const {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> parts;
  for (const Source& source : sources) {
    at::Tensor part = source.weight->draw().detach();
    if (source.length >= 0) part = part.narrow(axis, source.start, source.length);
    parts.push_back(std::move(part));
  }
  return parts.size() == 1 ? parts.front() : at::cat(parts, axis);
}

namespace {

// published_tensors() without dtypes.
std::vector<PublishedTensor> lay_out(nn::Module& module, const WeightMap& rules,
                                     const std::string& prefix, const TensorIndex* published) {
  struct Named {
    Weight* weight;
    int64_t taken = 0;  // along the axis, of a weight that is cut
  };
  std::map<std::string, Named> weights;
  std::vector<std::string> paths;
  module.visit_weights([&](const std::string& path, Weight& weight) {
    weights.emplace(path, Named{&weight});
    paths.push_back(path);
  });

  // By published name; sources in table order.
  std::map<std::string, PublishedTensor> tensors;
  std::map<std::string, int64_t> joined_from;  // by weight: how many tensors
  for (const std::string& path : paths) {
    for (const WeightRule& rule : rules) {
      if (!rule.to.empty() && match_blocks(rule.to, path)) ++joined_from[path];
    }
    if (joined_from[path] == 0)
      throw Error(ErrorCode::kInternal, "weight '" + path + "' has no row in the table");
  }
  for (const WeightRule& rule : rules) {
    if (rule.to.empty()) continue;
    for (const std::string& path : paths) {
      const auto numbers = match_blocks(rule.to, path);
      if (!numbers) continue;
      Named& named = weights.at(path);
      const at::IntArrayRef sizes = named.weight->sizes();
      PublishedTensor& tensor = tensors[prefix + fill_blocks(rule.from, *numbers)];
      const bool is_new = tensor.sources.empty();
      if (is_new) {
        tensor.name = prefix + fill_blocks(rule.from, *numbers);
        tensor.shape = sizes.vec();
      }
      tensor.axis = rule.axis;
      PublishedTensor::Source source{path, named.weight, 0, -1};
      const auto axis = static_cast<size_t>(std::max(rule.axis, 0));
      if (const int64_t parts = joined_from[path]; parts > 1) {
        const int64_t whole = sizes[axis];
        const TensorMeta* meta = published == nullptr ? nullptr : published->find(tensor.name);
        if (meta == nullptr && rule.length == 0 && whole % parts != 0)
          throw Error(ErrorCode::kInternal, "weight '" + path + "' cannot be cut into " +
                                                std::to_string(parts) + " equal tensors");
        source.start = named.taken;
        source.length = meta != nullptr   ? meta->shape.at(axis)
                        : rule.length > 0 ? rule.length
                                          : whole / parts;
        named.taken += source.length;
        if (named.taken > whole)
          throw Error(ErrorCode::kInternal,
                      "weight '" + path + "' is shorter than its published tensors");
      }
      const int64_t length = rule.axis < 0 ? 0 : source.length >= 0 ? source.length : sizes[axis];
      if (rule.axis >= 0) tensor.shape[axis] = is_new ? length : tensor.shape[axis] + length;
      tensor.sources.push_back(std::move(source));
    }
  }
  std::vector<PublishedTensor> out;
  for (auto& [name, tensor] : tensors) out.push_back(std::move(tensor));
  return out;
}

}  // namespace

std::vector<PublishedTensor> published_tensors(nn::Module& module, const WeightMap& rules,
                                               const std::string& prefix,
                                               const TensorIndex* published) {
  std::vector<PublishedTensor> tensors = lay_out(module, rules, prefix, published);
  for (PublishedTensor& tensor : tensors)
    tensor.dtype = tensor.sources.front().weight->draw().scalar_type();
  return tensors;
}

TensorIndex published_index(nn::Module& module, const WeightMap& rules) {
  TensorIndex::Tensors tensors;
  for (const PublishedTensor& tensor : lay_out(module, rules, "", nullptr))
    tensors[tensor.name] = {tensor.dtype, tensor.shape};
  return TensorIndex(std::move(tensors));
}

}  // namespace atelier::weights
