#include "memory/residency.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include <ATen/ATen.h>

#include "atelier/error.h"
#include "atelier/host/file_pages.h"
#include "atelier/host/upload.h"
#include "atelier/host/weight_state.h"

#include "memory/block_stream.h"
#include "memory/divided_slab.h"
#include "memory/quantized_store.h"

namespace atelier::memory {

namespace {

// What a weight is made of: WeightStore::parts(), where they rest.
using Parts = std::vector<at::Tensor>;

int64_t bytes_of_parts(const Parts& parts) {
  int64_t bytes = 0;
  for (const at::Tensor& part : parts) bytes += static_cast<int64_t>(part.nbytes());
  return bytes;
}

// Where the parts of a weight lie in a slab.
using Slices = std::vector<SlabSlice>;

Parts parts_in(const at::Tensor& slab, const Slices& slices, const std::shared_ptr<void>& held) {
  Parts parts;
  for (const SlabSlice& slice : slices) parts.push_back(slice.in(slab, held));
  return parts;
}

Slices add_to(SlabLayout& layout, const Parts& parts, bool is_divided = false) {
  Slices slices;
  for (const at::Tensor& part : parts)
    slices.push_back(is_divided ? add_divided(layout, part) : layout.add(part));
  return slices;
}

// The parts as they are in `slab`, once they are copied there.
Parts copied_into(const at::Tensor& slab, const Slices& slices, const Parts& parts) {
  for (size_t i = 0; i < parts.size(); ++i) {
    slices[i].fill(slab, parts[i]);
    give_back_pages(parts[i]);
  }
  return parts_in(slab, slices, nullptr);
}

// A plain weight of a divided block.
struct Divided {
  SlabSlice slice;
  at::Tensor part;  // of the slab: this process's
  bool is_on_host = false;
};

// Draws from the slab of its block while that is on the device, else from a copy made for it. Of a
// divided block nothing is there: it is held.
class StreamedStore final : public WeightStore {
 public:
  // `turns`: null: the component is there all the time. `slices`: where it lies in the slab of
  // `block`; none: it does not come with its block. `store`: the one that it had, whose parts are
  // now `host`.
  StreamedStore(std::shared_ptr<BlockStream> stream, std::shared_ptr<ResidencyGroup> turns,
                int64_t block, Slices slices, Parts host, const WeightStore& store)
      : stream_(std::move(stream)),
        turns_(std::move(turns)),
        block_(block),
        slices_(std::move(slices)),
        host_(std::move(host)),
        on_host_(store.over(host_)) {}

  at::Tensor draw() const override { return on_device()->draw(); }

  at::Tensor draw_rows(const at::Tensor& index) const override {
    if (is_divided()) return on_device()->draw_rows(index);
    const std::optional<Parts> leased = lease();
    const auto store = leased ? on_host_->over(*leased) : on_host_;
    return ops::upload(store->draw_rows(index), stream_->device());
  }

  std::optional<RowCodes> draw_codes() const override {
    if (!on_host_->draw_codes()) return std::nullopt;
    return on_device()->draw_codes();
  }

  const WeightStore& on_host() const { return *on_host_; }

 private:
  bool is_divided() const { return !host_.empty() && host_.front().is_meta(); }

  std::optional<Parts> lease() const {
    if (slices_.empty()) return std::nullopt;
    const BlockStream::Lease lease = stream_->lease(block_);
    if (!lease.slab.defined()) return std::nullopt;
    return parts_in(lease.slab, slices_, lease.held);
  }

  std::shared_ptr<const WeightStore> on_device() const {
    std::optional<Parts> parts = lease();
    if (!parts && is_divided()) {
      if (turns_) turns_->take(stream_, block_);  // it may rest, or give way to another one
      const std::shared_ptr<void> held = stream_->hold(block_, /*runs=*/false);
      parts = parts_in(stream_->lease(block_).slab, slices_, held);
    } else if (!parts) {
      parts.emplace();
      for (const at::Tensor& part : host_) parts->push_back(stream_->fetch(part));
    }
    return on_host_->over(*std::move(parts));
  }

  std::shared_ptr<BlockStream> stream_;
  std::shared_ptr<ResidencyGroup> turns_;
  int64_t block_;
  Slices slices_;
  Parts host_;
  std::shared_ptr<const WeightStore> on_host_;  // over host_
};

// A weight of a block before its store is replaced.
struct RestingWeight {
  Weight* weight;
  std::shared_ptr<const WeightStore> store;
  Parts parts;
};

RestingWeight resting_weight(const Block& block, const std::string& path, Weight& weight) {
  const auto fail = [&](const char* what) {
    return Error(ErrorCode::kInternal,
                 "block '" + block.path() + "': weight '" + path + "' " + what);
  };
  if (!weight.is_loaded()) throw fail("is placed before it is loaded");
  if (weight.state().is_trainable())
    throw fail("is trained where it rests and cannot be sent away");
  const std::shared_ptr<const WeightStore>& store = weight.state().store();
  RestingWeight found = {&weight, store, store->parts()};
  if (found.parts.empty()) throw fail("is changed before it is placed");
  return found;
}

int64_t resident_bytes(const Weight& weight) {
  return weight.is_loaded() ? bytes_of_parts(weight.state().store()->parts()) : 0;
}

}  // namespace

ResidencyPlan spread_residents(int64_t blocks, int64_t resident, Place others, int64_t prefetch) {
  if (resident < 0 || resident > blocks)
    throw Error(ErrorCode::kInvalidArgument,
                c10::str(resident, " of ", blocks, " blocks cannot stay on the device"),
                c10::str("use a number from 0 to ", blocks));
  ResidencyPlan plan;
  plan.prefetch = prefetch;
  for (int64_t i = 0; i < blocks; ++i)
    plan.blocks.push_back(i * resident % blocks < resident ? Place::kDevice : others);
  return plan;
}

std::vector<Block*> ResidencyPlan::shared_of(std::vector<Block*> all) const {
  const bool may_share = shared.slabs != nullptr && shards == 1;
  for (size_t i = 0; i < all.size(); ++i) {
    if (!may_share || blocks[i] != Place::kHost) all[i] = nullptr;
  }
  return all;
}

void take_turns(ResidencyPlan& plan, std::shared_ptr<ResidencyGroup> turns, Place others) {
  plan.turns = std::move(turns);
  for (Place& place : plan.blocks) {
    plan.stays.push_back(place == Place::kDevice);
    place = others;
  }
}

void ResidencyGroup::take(const std::shared_ptr<BlockStream>& stream, int64_t block) {
  const std::lock_guard lock(mutex_);
  const auto now = now_.lock(), next = next_.lock();
  if (now == stream && !stream->has_left(block)) return;
  for (const auto& other : {now, next}) {
    if (other && other != stream) other->leave();
  }
  now_ = stream;
  next_.reset();
  stream->come();
}

void ResidencyGroup::expect(const std::shared_ptr<BlockStream>& stream) {
  const std::lock_guard lock(mutex_);
  const auto now = now_.lock();
  if (!now || now == stream) return;
  next_ = stream;
  now->give_way();
}

void ResidencyGroup::pass_on() {
  const std::lock_guard lock(mutex_);
  const auto now = now_.lock(), next = next_.lock();
  if (!now || !next) return;
  const auto [now_all, now_there] = now->slot_bytes();
  const auto [next_all, next_there] = next->slot_bytes();
  next->come(std::max(now_all, next_all) - now_there - next_there);
}

struct Residency::Impl {
  Impl(const std::vector<Block*>& all, const ResidencyPlan& plan, TransferDevice& transfer,
       const std::set<const Weight*>& on_demand, const BlockLoading& loading);
  ~Impl() {
    if (stream) stream->close();
  }

  struct Streamed {
    Block* block;
    Place place;
    bool stays = false;
    SlabLayout layout;
    std::vector<std::pair<RestingWeight, Slices>> weights;
    at::Tensor part = {};    // of a divided block
    at::Tensor shared = {};  // of one that is shared: where it rests
  };
  struct Demanded {
    RestingWeight found;
    Place place;
    at::Tensor shared = {};
    Slices slices = {};  // in `shared`
  };

  void sort(Block& block, Place place, bool stays, const std::set<const Weight*>& on_demand);
  void rest_shared(SharedBlock shared, Block& block, size_t demanded_before,
                   TransferDevice& transfer);
  void keep_part(Streamed& whole, TransferDevice& transfer);
  int64_t slot_bytes(const Streamed& each) const {
    return peers ? peers->size() * each.part.numel() : each.layout.bytes();
  }
  void make_stream(const ResidencyPlan& plan, TransferDevice& transfer);
  BlockStream::Source send_away(Streamed streamed, TransferDevice& transfer);
  void send_away(Demanded demanded, TransferDevice& transfer);
  at::Tensor host_memory(TransferDevice& transfer, int64_t bytes);
  const Divided& divided_weight(const Weight& weight) const;

  std::vector<Streamed> streamed;  // until they are sent away
  at::Tensor passing;              // on the host, through which parts come to the device
  std::vector<Demanded> demanded;
  std::vector<const Weight*> residents;             // that stay, whether they are there by now
  std::map<const Block*, int64_t> numbers;          // in running order, of those that come and go
  std::map<const Weight*, at::Tensor> host_values;  // of plain weights in slabs
  std::map<const Weight*, Divided> divided;         // plain ones
  std::shared_ptr<BlockStream> stream;              // null: all of them stay
  std::shared_ptr<ResidencyGroup> turns;            // null: it is there all the time
  std::shared_ptr<SlabPeers> peers;                 // null: blocks are whole
  Stats stats;
};

Residency::Impl::Impl(const std::vector<Block*>& all, const ResidencyPlan& plan,
                      TransferDevice& transfer, const std::set<const Weight*>& on_demand,
                      const BlockLoading& loading)
    : turns(plan.turns), peers(plan.peers) {
  if (plan.shards != (peers ? peers->size() : 1))
    throw Error(ErrorCode::kInternal,
                c10::str("blocks in ", plan.shards, " parts are not those of the processes"));
  if (plan.blocks.size() != all.size() || plan.prefetch < 0)
    throw Error(ErrorCode::kInvalidArgument,
                c10::str("a plan of ", plan.blocks.size(), " places and ", plan.prefetch,
                         " blocks on their way, for ", all.size(), " blocks"));
  std::vector<SharedBlock> shared =
      bring_shared(plan.shared_of(all), on_demand, plan.shared, loading);
  for (size_t i = 0; i < all.size(); ++i) {
    if (peers && loading.load) loading.load(*all[i]);
    const size_t before = streamed.size(), demanded_before = demanded.size();
    sort(*all[i], plan.blocks[i], turns != nullptr && plan.stays[i], on_demand);
    if (shared[i].memory != nullptr)
      rest_shared(std::move(shared[i]), *all[i], demanded_before, transfer);
    if (peers && streamed.size() > before) keep_part(streamed.back(), transfer);
  }
  passing.reset();
  if (streamed.empty() && demanded.empty()) return;
  make_stream(plan, transfer);
  try {
    std::vector<BlockStream::Source> sources;
    for (Streamed& each : streamed) sources.push_back(send_away(std::move(each), transfer));
    for (Demanded& each : demanded) send_away(std::move(each), transfer);
    stats.host_bytes += stream->start(std::move(sources), peers);
  } catch (...) {
    stream->close();  // weights that were sent away can be drawn without it
    throw;
  }
  streamed.clear();
  demanded.clear();
}

// Says what becomes of the weights of `block`, and changes none.
void Residency::Impl::sort(Block& block, Place place, bool stays,
                           const std::set<const Weight*>& on_demand) {
  Streamed comes = {&block, place, stays, {}, {}};
  block.visit_weights([&](const std::string& path, Weight& weight) {
    if (on_demand.contains(&weight)) {
      demanded.push_back({resting_weight(block, path, weight), place});
    } else if (place == Place::kDevice && peers == nullptr) {
      residents.push_back(&weight);
    } else {
      RestingWeight found = resting_weight(block, path, weight);
      if (peers && found.store->is_resident())  // what is trained is counted flat
        found.parts.front() = found.parts.front().contiguous();
      Slices slices = add_to(comes.layout, found.parts, /*is_divided=*/peers != nullptr);
      comes.weights.emplace_back(std::move(found), std::move(slices));
    }
  });
  if (comes.weights.empty()) return;
  numbers.emplace(&block, static_cast<int64_t>(streamed.size()));
  streamed.push_back(std::move(comes));
}

// What was sorted last, of `block`, rests in memory that processes share.
void Residency::Impl::rest_shared(SharedBlock shared, Block& block, size_t demanded_before,
                                  TransferDevice& transfer) {
  const at::Tensor memory = transfer.pin(std::move(shared.memory), shared.bytes);
  stats.host_bytes += shared.bytes;
  stats.shared_bytes += shared.bytes;
  if (numbers.contains(&block)) streamed.back().shared = memory;
  for (size_t i = demanded_before; i < demanded.size(); ++i) {
    demanded[i].shared = memory;
    demanded[i].slices = shared.slices.at(demanded[i].found.weight);
  }
}

// This process's part of a block that was loaded stays, and nothing else.
void Residency::Impl::keep_part(Streamed& whole, TransferDevice& transfer) {
  const int64_t bytes = part_bytes(whole.layout.bytes(), peers->size());
  if (whole.place != Place::kDevice) {
    whole.part = transfer.host_memory(bytes);
  } else {
    if (!passing.defined() || passing.numel() < bytes) passing = transfer.host_memory(bytes);
    whole.part = passing.narrow(0, 0, bytes);
  }
  for (auto& [found, slices] : whole.weights) {
    for (size_t i = 0; i < slices.size(); ++i) {
      at::Tensor& value = found.parts[i];
      slices[i].fill_part(whole.part, peers->rank() * bytes, value);
      give_back_pages(value);
      value = at::empty_like(value, value.options().device(at::kMeta));
    }
    found.store = found.store->over(found.parts);
    found.weight->state().set_store(nullptr);
  }
  if (whole.place == Place::kDevice) {
    const at::Tensor on_device = transfer.device_memory(bytes);
    transfer.wait(transfer.copy_in(whole.part, on_device, transfer.computed()));
    whole.part = on_device;
  }
  for (const auto& [found, slices] : whole.weights) {
    if (found.store->is_resident())
      divided[found.weight] = {slices.front(), whole.part, whole.place != Place::kDevice};
  }
  (whole.place == Place::kDevice ? stats.device_bytes : stats.host_bytes) += bytes;
}

void Residency::Impl::make_stream(const ResidencyPlan& plan, TransferDevice& transfer) {
  const auto blocks = static_cast<int64_t>(streamed.size());
  int64_t passing = 0, bytes = 0;
  for (const Streamed& each : streamed) {
    if (each.stays) {
      stats.device_bytes += each.layout.bytes();
      continue;
    }
    ++passing;
    bytes = std::max(bytes, slot_bytes(each));
  }
  const int64_t slots = std::min(passing, plan.prefetch + 1);
  stream = BlockStream::make(transfer, blocks, slots, bytes, /*is_away=*/turns != nullptr);
  stats.device_bytes += slots * bytes;
}

BlockStream::Source Residency::Impl::send_away(Streamed from, TransferDevice& transfer) {
  BlockStream::Source source = {from.block->path(), slot_bytes(from), from.part, {}, from.stays};
  if (from.shared.defined()) {
    source.slab = from.shared.narrow(0, 0, source.bytes);
  } else if (peers == nullptr && from.place == Place::kHost) {
    source.slab = host_memory(transfer, source.bytes);
  }
  for (auto& [found, slices] : from.weights) {
    Parts host = std::move(found.parts);
    if (from.shared.defined()) {
      host = parts_in(from.shared, slices, nullptr);
    } else if (peers == nullptr && source.slab.defined()) {
      host = copied_into(source.slab, slices, host);
      if (found.store->is_resident()) host_values.emplace(found.weight, host.front());
    } else if (peers == nullptr) {
      for (size_t i = 0; i < host.size(); ++i) source.slices.emplace_back(slices[i], host[i]);
    }
    found.weight->state().set_store(std::make_shared<StreamedStore>(
        stream, turns, numbers.at(from.block), slices, std::move(host), *found.store));
    found.store = nullptr;  // with the memory that the weight rested in
  }
  return source;
}

// Sends away a weight that does not come with its block.
void Residency::Impl::send_away(Demanded from, TransferDevice& transfer) {
  auto& [found, place, shared, shared_slices] = from;
  Parts host = std::move(found.parts);
  if (shared.defined()) {
    host = parts_in(shared, shared_slices, nullptr);
  } else if (place != Place::kDisk) {
    SlabLayout layout;
    const Slices slices = add_to(layout, host);
    host = copied_into(host_memory(transfer, layout.bytes()), slices, host);
  }
  found.weight->state().set_store(
      std::make_shared<StreamedStore>(stream, turns, -1, Slices{}, std::move(host), *found.store));
}

at::Tensor Residency::Impl::host_memory(TransferDevice& transfer, int64_t bytes) {
  stats.host_bytes += bytes;
  return transfer.host_memory(bytes);
}

// NOLINTNEXTLINE(performance-unnecessary-value-param): callers make both on the spot
Residency::Residency(std::vector<Block*> blocks, ResidencyPlan plan, TransferDevice& transfer,
                     const std::set<const Weight*>& on_demand, const BlockLoading& loading)
    : impl_(std::make_unique<Impl>(blocks, plan, transfer, on_demand, loading)) {}
Residency::~Residency() = default;

std::shared_ptr<void> Residency::hold(const Block& block) {
  const auto found = impl_->numbers.find(&block);
  if (found == impl_->numbers.end()) return nullptr;
  if (impl_->turns == nullptr) return impl_->stream->hold(found->second);
  impl_->turns->take(impl_->stream, found->second);
  std::shared_ptr<void> held = impl_->stream->hold(found->second);
  impl_->turns->pass_on();
  return held;
}

void Residency::expect() {
  if (impl_->turns && impl_->stream) impl_->turns->expect(impl_->stream);
}

at::Tensor Residency::host_value(const Weight& weight) const {
  const auto found = impl_->host_values.find(&weight);
  if (found == impl_->host_values.end())
    throw Error(ErrorCode::kInvalidArgument,
                "weight '" + weight.name() + "' has no plain values in the host's memory",
                "keep its block there, in --dtype");
  return found->second;
}

const Divided& Residency::Impl::divided_weight(const Weight& weight) const {
  const auto found = divided.find(&weight);
  if (found == divided.end())
    throw Error(ErrorCode::kInvalidArgument,
                "weight '" + weight.name() + "' has no plain values that are divided");
  return found->second;
}

Residency::Extent Residency::extent(const Weight& weight, int64_t part) const {
  const Divided& divided = impl_->divided_weight(weight);
  const NumberRange numbers = numbers_in(divided.slice, divided.part.numel(), part);
  return {.begin = numbers.begin, .count = numbers.count};
}

at::Tensor Residency::own_numbers(const Weight& weight) const {
  const Divided& divided = impl_->divided_weight(weight);
  const auto [at, bytes] = bytes_in(divided.slice, divided.part.numel(), impl_->peers->rank());
  return divided.part.narrow(0, bytes == 0 ? 0 : at, bytes).view(divided.slice.dtype);
}

bool Residency::keeps_on_host(const Weight& weight) const {
  return impl_->divided_weight(weight).is_on_host;
}

void Residency::refresh(const Block& block) {
  const auto found = impl_->numbers.find(&block);
  if (found != impl_->numbers.end()) impl_->stream->forget(found->second);
}

Residency::Stats Residency::stats() const {
  Stats result = impl_->stats;
  for (const Weight* weight : impl_->residents) result.device_bytes += resident_bytes(*weight);
  if (impl_->stream) {
    const BlockStream::Stats stream = impl_->stream->stats();
    result.copied_bytes = stream.copied_bytes;
    result.copies = stream.copies;
    result.late = stream.late;
    result.waited_seconds = stream.waited_seconds;
    result.away_bytes = stream.away_bytes;
  }
  return result;
}

at::ScalarType drawn_dtype(const Weight& weight) {
  const WeightStore* store = weight.state().store().get();
  if (const auto* streamed = dynamic_cast<const StreamedStore*>(store))
    store = &streamed->on_host();
  if (const auto* quantized = dynamic_cast<const QuantizedStore*>(store)) return quantized->dtype();
  if (store != nullptr && store->is_resident()) return store->parts().front().scalar_type();
  return weight.draw().scalar_type();
}

StreamingRunner::StreamingRunner(BlockRunner& inner, std::vector<Residency*> components)
    : inner_(inner), components_(std::move(components)) {}

Tensors StreamingRunner::run(Block& block, const Tensors& inputs) {
  const std::shared_ptr<void> held = hold(block);
  return inner_.run(block, inputs);
}

std::shared_ptr<void> StreamingRunner::hold(Block& block) {
  std::shared_ptr<void> below = inner_.hold(block), held;
  for (Residency* component : components_) {
    held = component->hold(block);
    if (held) break;
  }
  if (!below || !held) return held ? held : below;
  using Both = std::pair<std::shared_ptr<void>, std::shared_ptr<void>>;
  return std::make_shared<Both>(std::move(below), std::move(held));
}

}  // namespace atelier::memory
