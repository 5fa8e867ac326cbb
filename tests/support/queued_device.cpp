#include "support/queued_device.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <thread>
#include <tuple>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <ATen/record_function.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include "support/work_queues.h"

namespace atelier::test {
namespace {

using at::Tensor;
using c10::DeviceIndex;
using c10::Stream;
using torch::jit::Stack;
using Moment = WorkQueues::MomentPtr;

WorkQueues& queues() {
  return WorkQueues::all();
}

// What a thread has chosen.
thread_local int current_device = 0;
thread_local std::array<int, kQueuedDevices> current_streams = {};

void check_device(int device) {
  TORCH_CHECK(device >= 0 && device < kQueuedDevices, "there is no queued device ", device);
}

int number_of(const Stream& stream) {
  TORCH_CHECK(stream.device_type() == at::kPrivateUse1, "a stream of another kind of device");
  return stream.device_index() * WorkQueues::kStreams + static_cast<int>(stream.id());
}

Stream stream_of(int device, int id) {
  return Stream(Stream::UNSAFE, queued_device(device), id);
}

int current_stream(int device) {
  return device * WorkQueues::kStreams + current_streams[static_cast<size_t>(device)];
}

// Streams and events. As CUDA's, it opens the device that the thread has chosen where an event is
// asked, and the stream's own elsewhere.
class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  at::DeviceType type() const override { return at::kPrivateUse1; }
  at::Device exchangeDevice(at::Device device) const override {
    const at::Device before = getDevice();
    setDevice(device);
    return before;
  }
  at::Device getDevice() const override { return queued_device(current_device); }
  void setDevice(at::Device device) const override {
    check_device(device.index());
    current_device = device.index();
  }
  void uncheckedSetDevice(at::Device device) const noexcept override {
    current_device = device.index();
  }
  DeviceIndex deviceCount() const noexcept override { return kQueuedDevices; }

  Stream getStream(at::Device device) const override {
    const int index = device.has_index() ? device.index() : current_device;
    return stream_of(index, current_streams[static_cast<size_t>(index)]);
  }
  Stream getDefaultStream(at::Device device) const override { return stream_of(device.index(), 0); }
  Stream getStreamFromGlobalPool(at::Device device, bool) const override {
    return getNewStream(device, 0);
  }
  Stream getNewStream(at::Device device, int) const override {
    const int index = device.has_index() ? device.index() : current_device;
    return stream_of(index, queues().new_stream(index) % WorkQueues::kStreams);
  }
  Stream exchangeStream(Stream stream) const override {
    const Stream before = getStream(stream.device());
    current_streams[static_cast<size_t>(stream.device_index())] = static_cast<int>(stream.id());
    return before;
  }
  bool queryStream(const Stream& stream) const override {
    queues().call(stream.device_index(), "a stream is asked");
    return queues().is_done(queues().record(number_of(stream)));
  }
  void synchronizeStream(const Stream& stream) const override {
    queues().call(stream.device_index(), "a stream is waited for");
    queues().waits(Wait::kStream, WorkQueues::name_of(number_of(stream)));
    queues().finish_stream(number_of(stream));
  }
  void synchronizeDevice(DeviceIndex device) const override {
    queues().call(device, "a device is waited for");
    queues().waits(Wait::kDevice, c10::str("device ", static_cast<int>(device)));
    queues().finish_device(device);
  }

  void record(void** event, const Stream& stream, DeviceIndex device,
              c10::EventFlag) const override {
    TORCH_CHECK(device == -1 || device == stream.device_index(), "an event of device ",
                static_cast<int>(device), " is recorded on ",
                WorkQueues::name_of(number_of(stream)));
    queues().call(stream.device_index(), "an event is recorded");
    if (*event == nullptr) *event = new Moment;
    moment_of(*event) = queues().record(number_of(stream));
  }
  void block(void* event, const Stream& stream) const override {
    queues().call(stream.device_index(), "a stream waits for an event");
    queues().wait(number_of(stream), moment_of(event));
  }
  bool queryEvent(void* event) const override {
    queues().call(current_device, "an event is asked");
    return queues().is_done(moment_of(event));
  }
  void synchronizeEvent(void* event) const override {
    queues().call(current_device, "an event is waited for");
    queues().waits(Wait::kEvent,
                   c10::str("an event on ", WorkQueues::name_of(moment_of(event)->stream)));
    queues().finish(moment_of(event));
  }
  void destroyEvent(void* event, DeviceIndex) const noexcept override {
    delete static_cast<Moment*>(event);
  }
  double elapsedTime(void* first, void* second, DeviceIndex) const override {
    return 1e3 * (moment_of(second)->seconds - moment_of(first)->seconds);
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const Stream& stream) const override {
    c10::getDeviceAllocator(at::kPrivateUse1)->recordStream(data, stream);
  }

 private:
  static Moment& moment_of(void* event) { return *static_cast<Moment*>(event); }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

void give(void* memory) {
  if (memory != nullptr) queues().give(memory);
}

class Memory final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const at::Device device = queued_device(current_device);
    if (bytes == 0) return {nullptr, nullptr, &give, device};
    void* const data = queues().take(current_stream(current_device), static_cast<int64_t>(bytes));
    TORCH_CHECK_WITH(OutOfMemoryError, data != nullptr, "queued device ", current_device,
                     " is out of memory: ", bytes, " bytes more are wanted");
    return {data, data, &give, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give; }
  void copy_data(void*, const void*, size_t) const override {
    TORCH_CHECK(false, "memory of a device is not copied by the host");
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {
    queues().waits(Wait::kDevice, "the cache is emptied");
    queues().empty_cache();
  }
  void recordStream(const c10::DataPtr& data, Stream stream) override {
    // CUDA's allocator passes over what others allocated, too.
    if (data.get_deleter() == &give) queues().use(data.get(), number_of(stream));
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex device) override {
    const WorkQueues::Hold hold(queues());
    return queues().stats(device);
  }
  void resetAccumulatedStats(DeviceIndex) override {}
  void resetPeakStats(DeviceIndex device) override {
    const WorkQueues::Hold hold(queues());
    constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    queues().stats(device).allocated_bytes[kAll].reset_peak();
    queues().stats(device).reserved_bytes[kAll].reset_peak();
  }
  std::pair<size_t, size_t> getMemoryInfo(DeviceIndex device) override {
    queues().call(device, "a device's memory is asked");
    const auto [free, all] = queues().free_and_all(device);
    return {static_cast<size_t>(free), static_cast<size_t>(all)};
  }
};

// Host memory that copies may use after it was freed, as that of CUDA's pinned allocator.
class Pinned final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* const data = std::malloc(std::max<size_t>(bytes, 1));
    const std::lock_guard lock(mutex_);
    ranges_[reinterpret_cast<uintptr_t>(data)] = bytes;
    return {data, data, &forget, at::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &forget; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
  bool holds(const void* data) {
    const std::lock_guard lock(mutex_);
    const auto place = reinterpret_cast<uintptr_t>(data);
    auto found = ranges_.upper_bound(place);
    return found != ranges_.begin() && place < (--found)->first + found->second;
  }

  static Pinned& all() {
    static auto* const pinned = new Pinned;
    return *pinned;
  }

 private:
  static void forget(void* data) {
    {
      const std::lock_guard lock(all().mutex_);
      all().ranges_.erase(reinterpret_cast<uintptr_t>(data));
    }
    std::free(data);
  }

  std::mutex mutex_;
  std::map<uintptr_t, size_t> ranges_;
};

// Numbers of a seed and of how often it was asked; known when work is queued, as a GPU's are.
class Generator final : public c10::GeneratorImpl {
 public:
  explicit Generator(DeviceIndex device)
      : GeneratorImpl(queued_device(device), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}

  void set_current_seed(uint64_t seed) override { seed_ = seed, asked_ = 0; }
  void set_offset(uint64_t offset) override { asked_ = offset; }
  uint64_t get_offset() const override { return asked_; }
  uint64_t current_seed() const override { return seed_; }
  uint64_t seed() override { return seed_; }
  void set_state(const c10::TensorImpl& state) override {
    const auto* const numbers = static_cast<const uint64_t*>(state.data());
    seed_ = numbers[0], asked_ = numbers[1];
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    const Tensor state = at::empty({2 * sizeof(uint64_t)}, at::kByte);
    auto* const numbers = static_cast<uint64_t*>(state.mutable_data_ptr());
    numbers[0] = seed_, numbers[1] = asked_;
    return state.getIntrusivePtr();
  }
  at::Generator next() { return at::detail::createCPUGenerator(seed_ * 1'000'003 + asked_++); }

 private:
  Generator* clone_impl() const override {
    auto* const copy = new Generator(device().index());
    copy->seed_ = seed_, copy->asked_ = asked_;
    return copy;
  }

  uint64_t seed_ = 0, asked_ = 0;
};

class Hooks final : public at::PrivateUse1HooksInterface {
 public:
  Hooks() {
    for (int device = 0; device < kQueuedDevices; ++device)
      generators_.push_back(at::make_generator<Generator>(static_cast<DeviceIndex>(device)));
  }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex device) const override {
    const WorkQueues::Hold hold(queues());
    return queues().opened.contains(device);
  }
  DeviceIndex deviceCount() const override { return kQueuedDevices; }
  DeviceIndex getCurrentDevice() const override { return static_cast<DeviceIndex>(current_device); }
  const at::Generator& getDefaultGenerator(DeviceIndex device) const override {
    return generators_.at(static_cast<size_t>(device < 0 ? current_device : device));
  }
  at::Generator getNewGenerator(DeviceIndex device) const override {
    return at::make_generator<Generator>(device);
  }
  at::Device getDeviceFromPtr(void*) const override { return queued_device(current_device); }
  bool isPinnedPtr(const void* data) const override { return Pinned::all().holds(data); }
  at::Allocator* getPinnedMemoryAllocator() const override { return &Pinned::all(); }

 private:
  std::vector<at::Generator> generators_;
};

[[maybe_unused]] const bool is_registered = [] {
  c10::register_privateuse1_backend("queued");
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  c10::SetAllocator(at::kPrivateUse1, new Memory);
  return true;
}();

// How CPU kernels run for work: as if the caller had called nothing but this.
class OnHost {
 public:
  OnHost() {
    // The bits are those of one thread, on whichever the work runs.
    thread_local const bool is_set = (at::set_num_threads(1), true);
    (void)is_set;
  }

 private:
  const at::AutoDispatchBelowADInplaceOrView below_;
  const at::DisableRecordFunctionGuard unseen_;
};

// A tensor without what keeps its memory: a GPU's work keeps none.
struct Place {
  void* data;
  std::vector<int64_t> sizes, strides;
  at::ScalarType dtype;
  int64_t bytes;  // from the first element to the last one

  explicit Place(const Tensor& t)
      : data(t.unsafeGetTensorImpl()->mutable_data()),
        sizes(t.sizes().vec()),
        strides(t.strides().vec()),
        dtype(t.scalar_type()),
        bytes(0) {
    if (t.numel() == 0) return;
    TORCH_CHECK(reinterpret_cast<uintptr_t>(data) % t.element_size() == 0,
                "a tensor lies at a misaligned address");
    int64_t last = 0;
    for (size_t i = 0; i < sizes.size(); ++i) last += (sizes[i] - 1) * strides[i];
    bytes = (last + 1) * static_cast<int64_t>(t.element_size());
  }
  Tensor on_host() const { return at::from_blob(data, sizes, strides, at::TensorOptions(dtype)); }
  Access access(bool writes) const { return {data, bytes, writes}; }
};

bool is_queued(const Tensor& t) {
  return t.defined() && t.is_privateuseone();
}

Tensor empty_on_device(at::IntArrayRef sizes, at::ScalarType dtype, at::Device device,
                       std::optional<at::MemoryFormat> format = std::nullopt) {
  const c10::DeviceGuard guard(device);
  return Tensor(at::detail::empty_generic(sizes, c10::GetAllocator(at::kPrivateUse1),
                                          c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), dtype,
                                          format));
}

at::Device chosen(std::optional<at::Device> device) {
  return device && device->has_index() ? *device : queued_device(current_device);
}

Tensor empty(at::IntArrayRef sizes, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
             std::optional<at::Device> device, std::optional<bool>,
             std::optional<at::MemoryFormat> format) {
  return empty_on_device(sizes, c10::dtype_or_default(dtype), chosen(device), format);
}

Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides,
                     std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                     std::optional<at::Device> device, std::optional<bool>) {
  const c10::DeviceGuard guard(chosen(device));
  return Tensor(at::detail::empty_strided_generic(
      sizes, strides, c10::GetAllocator(at::kPrivateUse1),
      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::dtype_or_default(dtype)));
}

// Memory of the host as a copy uses it: for LibTorch's own the bytes are taken at once, and memory
// that somebody else keeps has to be there when the copy runs.
struct HostSide {
  Tensor kept;  // defined: the bytes of pageable memory, or pinned memory
  c10::weak_intrusive_ptr<c10::StorageImpl> others;
  Place place;

  HostSide(const Tensor& t, bool is_read) : others(t.storage().getWeakStorageImpl()), place(t) {
    if (is_pageable(t) && is_read) {
      kept = t.clone();
      place = Place(kept);
    } else if (t.is_pinned()) {
      kept = t;
    }
  }
  static bool is_pageable(const Tensor& t) {
    return !t.is_pinned() && t.storage().allocator() != nullptr;
  }

  // Calls `copy` where the memory is there.
  void with(const std::function<void(const Tensor&)>& copy, int stream) const {
    if (kept.defined()) return copy(place.on_host());
    auto storage = others.lock();
    if (!storage)
      return queues().fault(c10::str("host memory is freed before a copy of ",
                                     WorkQueues::name_of(stream), " has run"));
    copy(place.on_host());
    queues().drop_later(std::make_shared<c10::intrusive_ptr<c10::StorageImpl>>(storage));
  }
};

void copy_on_host(const Tensor& from, const Tensor& to) {
  const OnHost host;
  Tensor target = to;
  target.copy_(from);
}

void copy_between_devices(const Tensor& from, const Tensor& to) {
  const int source = current_stream(from.device().index());
  const int target = current_stream(to.device().index());
  const Place from_place(from), to_place(to);
  if (source == target) {
    queues().push(
        source, "aten::copy_", {from_place.access(false), to_place.access(true)},
        [from_place, to_place] { copy_on_host(from_place.on_host(), to_place.on_host()); });
    return;
  }
  TORCH_CHECK(from.device() != to.device());
  const auto passed = std::make_shared<Tensor>();
  const WorkQueues::Hold hold(queues());
  queues().push(source, "aten::copy_", {from_place.access(false)}, [from_place, passed] {
    const OnHost host;
    *passed = from_place.on_host().clone();
  });
  queues().wait(target, queues().record(source));
  queues().push(target, "aten::copy_", {to_place.access(true)},
                [to_place, passed] { copy_on_host(*passed, to_place.on_host()); });
  queues().wait(source, queues().record(target));
}

Tensor copy_from(const Tensor& from, const Tensor& to, bool non_blocking) {
  if (from.numel() == 0) return to;
  const c10::DeviceGuard guard(is_queued(to) ? to.device() : from.device());
  const int device = current_device, stream = current_stream(device);
  queues().call(device, "aten::copy_");
  if (is_queued(from) && is_queued(to)) {
    copy_between_devices(from, to);
    return to;
  }
  const bool comes = is_queued(to);
  const Place place(comes ? to : from);
  const OnHost below;
  const HostSide host(comes ? from : to, /*is_read=*/comes);
  const bool waits = !non_blocking || (!comes && HostSide::is_pageable(to));
  if (waits)
    queues().waits(Wait::kCopy, c10::str("a copy ", comes ? "to" : "from", " device ", device));
  if (!comes && !waits && to.is_contiguous()) std::memset(to.data_ptr(), 0xFF, to.nbytes());
  queues().push(stream, "aten::copy_", {place.access(comes)}, [place, host, comes, stream] {
    host.with(
        [&](const Tensor& t) {
          comes ? copy_on_host(t, place.on_host()) : copy_on_host(place.on_host(), t);
        },
        stream);
  });
  if (waits) queues().finish_stream(stream);
  return to;
}

// An operator's arguments, with places of device memory instead of tensors.
class Call {
 public:
  Call(const c10::OperatorHandle& op, const Stack& stack) : op_(op) {
    const OnHost host;
    const auto& arguments = op.schema().arguments();
    const auto given = torch::jit::last(stack, arguments.size());
    for (size_t i = 0; i < arguments.size(); ++i) {
      const auto* const alias = arguments[i].alias_info();
      add(given[i], /*writes=*/alias != nullptr && alias->isWrite());
      if (arguments[i].is_out()) leave_unsized(arguments_.back());
    }
    TORCH_CHECK(device_, name(), " has no tensor on a queued device");
    take_numbers();
  }

  at::Device device() const { return *device_; }
  const std::vector<Access>& accesses() const { return accesses_; }
  bool has_unsized() const { return has_unsized_; }
  std::string name() const { return op_.schema().name(); }

  Stack run() const {
    const OnHost host;
    Stack stack;
    for (const Argument& argument : arguments_) stack.push_back(argument.on_host());
    op_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
    return stack;
  }

 private:
  // A tensor on the device, or one on the host. Unsized: it has the size that it is given.
  struct Item {
    std::optional<Place> place;
    Tensor value;
    bool is_unsized = false;

    Tensor on_host() const {
      if (is_unsized) return at::empty({0}, at::TensorOptions(place->dtype));
      return place ? place->on_host() : value;
    }
  };
  enum class Kind { kValue, kTensor, kList, kListWithGaps };
  struct Argument {
    Kind kind;
    c10::IValue value;
    std::vector<Item> items;

    c10::IValue on_host() const {
      if (kind == Kind::kValue) return value;
      if (kind == Kind::kTensor) return items[0].on_host();
      if (kind == Kind::kList) {
        c10::List<Tensor> list;
        for (const Item& item : items) list.push_back(item.on_host());
        return list;
      }
      c10::List<std::optional<Tensor>> list;
      for (const Item& item : items) {
        const Tensor t = item.on_host();
        list.push_back(t.defined() ? std::optional(t) : std::nullopt);
      }
      return list;
    }
  };

  void add(const c10::IValue& value, bool writes) {
    Argument argument{Kind::kValue, {}, {}};
    if (value.isTensor()) {
      argument.kind = Kind::kTensor;
      argument.items.push_back(item(value.toTensor(), writes));
    } else if (value.isTensorList()) {
      argument.kind = Kind::kList;
      for (const Tensor& t : value.toTensorVector()) argument.items.push_back(item(t, writes));
    } else if (value.isOptionalTensorList()) {
      argument.kind = Kind::kListWithGaps;
      for (const auto& t : value.toOptionalTensorVector())
        argument.items.push_back(item(t.value_or(Tensor()), writes));
    } else {
      argument.value = value;
    }
    arguments_.push_back(std::move(argument));
  }

  Item item(const Tensor& t, bool writes) {
    if (!t.defined()) return {};
    if (!is_queued(t)) {
      TORCH_CHECK(t.dim() == 0, name(), ": a tensor is on ", t.device(), ", and others are not");
      return {{}, t.clone(), false};
    }
    TORCH_CHECK(!device_ || *device_ == t.device(), name(), ": tensors are on ", *device_, " and ",
                t.device());
    device_ = t.device();
    Item item{Place(t), {}, false};
    accesses_.push_back(item.place->access(writes));
    return item;
  }

  void leave_unsized(Argument& out) {
    for (Item& item : out.items) {
      item.is_unsized = item.place && item.place->bytes == 0;
      has_unsized_ |= item.is_unsized;
    }
  }

  static bool is_generator(const c10::Argument& argument) {
    auto type = argument.type();
    if (const auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
    return type->kind() == c10::TypeKind::GeneratorType;
  }

  // Numbers are those that come next when the work is queued.
  void take_numbers() {
    const auto& arguments = op_.schema().arguments();
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (!is_generator(arguments[i])) continue;
      c10::IValue& value = arguments_[i].value;
      at::Generator generator = value.isGenerator()
                                    ? value.toGenerator()
                                    : at::globalContext().defaultGenerator(*device_);
      const std::lock_guard lock(generator.mutex());
      TORCH_CHECK(generator.device() == *device_, name(), ": a generator of ", generator.device());
      value = generator.get<Generator>()->next();
    }
  }

  c10::OperatorHandle op_;
  std::vector<Argument> arguments_;
  std::vector<Access> accesses_;
  std::optional<at::Device> device_;
  bool has_unsized_ = false;
};

// Whether the host has to know what was computed: a number, or how many there are.
bool gives_values(const c10::FunctionSchema& schema) {
  constexpr std::array<std::string_view, 3> kCounting = {"aten::nonzero", "aten::masked_select",
                                                         "aten::_unique2"};
  if (std::ranges::find(kCounting, schema.name()) != kCounting.end()) return true;
  return std::ranges::any_of(schema.returns(), [](const c10::Argument& result) {
    return result.type()->kind() != c10::TypeKind::TensorType &&
           result.type()->kind() != c10::TypeKind::ListType;
  });
}

// Which argument a result is; none: a new tensor.
std::optional<size_t> argument_of(const c10::Argument& result, const c10::FunctionSchema& schema) {
  if (result.alias_info() == nullptr) return std::nullopt;
  TORCH_CHECK(result.alias_info()->isWrite(), schema.name(),
              " gives a view, which queued devices do not know");
  const auto& arguments = schema.arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto* const alias = arguments[i].alias_info();
    if (alias != nullptr && alias->beforeSets() == result.alias_info()->beforeSets()) return i;
  }
  return std::nullopt;
}

// What the CPU computed comes into `result` when the stream has come as far.
void queue_into(const Tensor& result, const Tensor& value, const std::string& name, int stream) {
  const Place place(result);
  queues().push(stream, name, {place.access(/*writes=*/true)},
                [place, value] { copy_on_host(value, place.on_host()); });
}

Tensor queue_result(const Tensor& value, const std::string& name, int stream) {
  if (!value.defined()) return value;
  Tensor result = empty_strided(value.sizes(), value.strides(), value.scalar_type(), std::nullopt,
                                std::nullopt, std::nullopt);
  queue_into(result, value, name, stream);
  return result;
}

// Gives a tensor without elements the size and the memory that it needs.
const Tensor& size_up(const Tensor& t, at::IntArrayRef sizes, std::optional<at::MemoryFormat>) {
  TORCH_CHECK(t.numel() == 0 || t.sizes() == sizes, "a tensor of a queued device is resized");
  if (t.sizes() == sizes) return t;
  const Tensor memory = empty_on_device(sizes, t.scalar_type(), t.device());
  t.unsafeGetTensorImpl()->set_storage_keep_dtype(memory.storage());
  t.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return t;
}

c10::IValue queue_result(const c10::IValue& value, const std::string& name, int stream) {
  if (value.isTensor()) return queue_result(value.toTensor(), name, stream);
  if (!value.isTensorList()) return value;
  c10::List<Tensor> list;
  for (const Tensor& t : value.toTensorVector()) list.push_back(queue_result(t, name, stream));
  return list;
}

// Queues any operator that has no kernel here.
void queue_operator(const c10::OperatorHandle& op, Stack* stack) {
  const auto& schema = op.schema();
  Call call(op, *stack);
  const std::string name = call.name();
  const c10::DeviceGuard guard(call.device());
  const int stream = current_stream(current_device);
  std::vector<std::optional<size_t>> results;
  for (const auto& result : schema.returns()) results.push_back(argument_of(result, schema));
  const bool makes = std::ranges::any_of(results, [](const auto& from) { return !from; });
  const bool waits = gives_values(schema);
  queues().call(current_device, name.c_str());
  if (waits) queues().waits(Wait::kValue, name);

  Stack computed;
  if (makes || call.has_unsized()) {
    const WorkQueues::Hold hold(queues());
    queues().push(stream, name, call.accesses(), {});
    queues().settle(stream);
    computed = call.run();
    for (size_t i = 0; i < results.size(); ++i) {
      if (!results[i]) computed[i] = queue_result(computed[i], name, stream);
    }
    if (waits) queues().finish_stream(stream);
  } else {
    queues().push(stream, name, call.accesses(), [call] { call.run(); });
    computed.resize(results.size());
  }
  const auto given = torch::jit::last(*stack, schema.arguments().size());
  for (size_t i = 0; i < results.size(); ++i) {
    if (!results[i]) continue;
    const c10::IValue argument = given[*results[i]];
    if (argument.isTensor() && computed[i].isTensor() && argument.toTensor().numel() == 0) {
      const Tensor value = computed[i].toTensor();
      size_up(argument.toTensor(), value.sizes(), std::nullopt);
      queue_into(argument.toTensor(), value, name, stream);
    }
    computed[i] = argument;
  }
  torch::jit::drop(*stack, schema.arguments().size());
  for (c10::IValue& result : computed) stack->push_back(std::move(result));
}

std::tuple<Tensor, Tensor> native_dropout(const Tensor& x, double p, std::optional<bool> train) {
  Tensor mask = at::empty_like(x, x.options().dtype(at::kBool));
  if (!train.value_or(true)) return {x.clone(), mask.fill_(true)};
  mask.bernoulli_(1 - p);
  return {x * mask * (p < 1 ? 1 / (1 - p) : 0.0), mask};
}

Tensor native_dropout_backward(const Tensor& gradient, const Tensor& mask, double scale) {
  return gradient * mask * scale;
}

void record_stream(Tensor& t, Stream stream) {
  c10::getDeviceAllocator(at::kPrivateUse1)->recordStream(t.storage().data_ptr(), stream);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&queue_operator>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("_copy_from", &copy_from);
  m.impl("record_stream", &record_stream);
  m.impl("resize_", &size_up);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", static_cast<Tensor (*)(const Tensor&, at::IntArrayRef)>(&at::native::view));
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("unfold", &at::native::unfold);
  m.impl("native_dropout", &native_dropout);
  m.impl("native_dropout_backward", &native_dropout_backward);
}

}  // namespace

QueuedDevices::QueuedDevices(const QueuedOptions& options) {
  queues().begin(options);
}

QueuedDevices::~QueuedDevices() {
  queues().begin({});
}

std::vector<std::string> QueuedDevices::faults() const {
  const WorkQueues::Hold hold(queues());
  return queues().faults;
}

std::vector<QueuedDevices::Waited> QueuedDevices::waits() const {
  const WorkQueues::Hold hold(queues());
  return queues().waited;
}

int QueuedDevices::count(Wait kind) const {
  return static_cast<int>(std::ranges::count(waits(), kind, &Waited::kind));
}

std::set<int> QueuedDevices::opened() const {
  const WorkQueues::Hold hold(queues());
  return queues().opened;
}

void QueuedDevices::refuse(std::set<Wait> kinds) {
  const WorkQueues::Hold hold(queues());
  queues().options.refused = std::move(kinds);
}

}  // namespace atelier::test
