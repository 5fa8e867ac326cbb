#include "memory/block_stream.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "atelier/error.h"
#include "atelier/host/file_pages.h"

#include "memory/clock.h"

namespace atelier::memory {

namespace {

constexpr size_t kStagings = 2;  // one is filled while the other is copied

Error closed(const BlockStream::Source& source) {
  return {ErrorCode::kInternal, "block '" + source.name + "' is wanted while its weights leave"};
}

}  // namespace

// Blocks run in an order that repeats, and S slots of the device hold the running one and what runs
// next:
//
//   order      … 4   5   6   7 …          running: 5
//   slots      [5, held] [6, there] [7, on its way]      4 has left its slot to 7
//
// hold() finds the block in a slot, or brings it late, and then asks for those that run next
// (upcoming()) to be loaded into slots that nobody holds and none of these is in. The host waits
// for nothing: work and copies wait for each other by tickets.
//
//   slot.arrived     taken when a copy is queued; what computes with the block waits for it
//   slot.free_after  taken when the last hold ends; the next copy into the slot waits for it
//
// Blocks without a slab in host memory are read first, by the thread of read(), into one of two
// stagings in turn, so that one is filled while the other is copied. `slot.load` numbers what comes
// to a slot: a reading whose number is no longer the slot's has been overtaken, and is dropped.
BlockStream::BlockStream(TransferDevice& transfer, int64_t blocks)
    : transfer_(&transfer), device_(transfer.device()), order_(blocks) {}

BlockStream::~BlockStream() {
  close();
}

std::shared_ptr<BlockStream> BlockStream::make(TransferDevice& transfer, int64_t blocks,
                                               int64_t slots, int64_t slot_bytes, bool is_away) {
  std::shared_ptr<BlockStream> stream(new BlockStream(transfer, blocks));
  stream->shared_ = slots;
  for (int64_t i = 0; i < slots; ++i) stream->slots_.emplace_back().bytes = slot_bytes;
  stream->is_away_ = is_away;
  if (is_away) return stream;
  for (Slot& slot : stream->slots_) stream->take_memory(slot);
  const Ticket before = transfer.computed();
  for (Slot& slot : stream->slots_) slot.free_after = before;
  return stream;
}

void BlockStream::take_memory(Slot& slot) {
  try {
    slot.memory = transfer_->device_memory(slot.bytes);
  } catch (const Error& error) {
    throw error.at(c10::str(slots_.size(), " places for blocks that come and go"));
  }
}

int64_t BlockStream::start(std::vector<Source> sources, std::shared_ptr<SlabPeers> peers) {
  const std::lock_guard lock(mutex_);
  sources_ = std::move(sources);
  peers_ = std::move(peers);
  int64_t read_bytes = 0;
  for (size_t i = 0; i < sources_.size(); ++i) {
    const Source& source = sources_[i];
    if (!source.slab.defined()) read_bytes = std::max(read_bytes, source.bytes);
    if (!source.stays) continue;
    slots_.emplace_back().bytes = source.bytes;
    slots_.back().owner = static_cast<int64_t>(i);
  }
  if (read_bytes > 0) {
    staging_.resize(kStagings);
    for (Staging& staging : staging_) staging.memory = transfer_->host_memory(read_bytes);
    reader_ = std::thread([this] { read(); });
  }
  if (!is_away_ && peers_ == nullptr) load_first();
  return static_cast<int64_t>(staging_.size()) * read_bytes;
}

void BlockStream::close() {
  {
    const std::lock_guard lock(mutex_);
    is_closing_ = true;
    changed_.notify_all();
  }
  if (reader_.joinable()) reader_.join();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return users_ == 0; });
  if (transfer_ == nullptr) return;
  for (Slot& slot : slots_) let_go(slot);
  staging_.clear();
  transfer_ = nullptr;
}

void BlockStream::let_go(Slot& slot) {
  // Peers do not come to a gather any more when this process leaves them with an error.
  const bool is_abandoned = peers_ != nullptr && std::uncaught_exceptions() > 0;
  try {
    if (!is_abandoned) transfer_->wait(slot.arrived);  // until then the copy keeps the memory
  } catch (...) {  // NOLINT(bugprone-empty-catch): nobody asks for the block
  }
  slot.arrived = slot.free_after = {};
  if (slot.holds > 0) return;
  slot.block = -1;
  ++slot.load;
  slot.memory.reset();
}

void BlockStream::leave() {
  const std::lock_guard lock(mutex_);
  if (is_away_ || is_closing_) return;
  is_away_ = true;
  gives_way_ = false;
  for (Slot& slot : slots_) let_go(slot);
}

void BlockStream::give_way() {
  const std::lock_guard lock(mutex_);
  gives_way_ = !is_away_;
}

void BlockStream::come(int64_t room) {
  const std::lock_guard lock(mutex_);
  if (is_closing_) return;
  is_away_ = gives_way_ = false;
  load_first(room);
}

bool BlockStream::has_left(int64_t block) {
  const std::lock_guard lock(mutex_);
  return gives_way_ && slot_of(block) == nullptr && slot_for(block, {}, /*any=*/true) == nullptr;
}

std::pair<int64_t, int64_t> BlockStream::slot_bytes() const {
  const std::lock_guard lock(mutex_);
  int64_t all = 0, there = 0;
  for (const Slot& slot : slots_) {
    all += slot.bytes;
    if (slot.memory.defined()) there += slot.bytes;
  }
  return {all, there};
}

std::shared_ptr<TransferDevice> BlockStream::use_transfer() {
  if (is_closing_) return nullptr;
  ++users_;
  return {transfer_, [this](TransferDevice*) {
            const std::lock_guard lock(mutex_);
            --users_;
            changed_.notify_all();
          }};
}

std::shared_ptr<void> BlockStream::keep(Slot& slot, bool runs) {
  ++slot.holds;
  slot.is_claimed = true;
  slot.last_held = ++holds_;
  const std::shared_ptr<Slot> held(
      &slot, [stream = shared_from_this(), runs](Slot* kept) { stream->release(*kept, runs); });
  return {held, slot.memory.mutable_data_ptr()};
}

void BlockStream::release(Slot& slot, bool has_run) {
  const std::lock_guard lock(mutex_);
  if (--slot.holds > 0) return;
  if (transfer_ == nullptr) return slot.memory.reset();
  if (is_away_ || (gives_way_ && has_run && (slot.owner >= 0 || !is_awaited())))
    return let_go(slot);
  try {
    slot.free_after = transfer_->computed();
  } catch (...) {
    failure_ = std::current_exception();  // for the next hold()
  }
}

std::shared_ptr<void> BlockStream::hold(int64_t block, bool runs) {
  std::shared_ptr<void> held;  // let go without the lock
  std::shared_ptr<TransferDevice> transfer;
  Ticket arrived;
  {
    std::unique_lock lock(mutex_);
    transfer = use_transfer();
    if (transfer == nullptr) throw closed(sources_[block]);
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
    Slot* slot = slot_of(block);
    const bool is_first = slot == nullptr || slot->holds == 0;
    if (is_first && runs) order_.add(block);
    if (runs) running_ = block;
    if (slot == nullptr) {
      slot = slot_for(block, upcoming(), /*any=*/true);
      if (slot == nullptr && gives_way_) throw closed(sources_[block]);
      if (slot == nullptr)
        throw Error(ErrorCode::kOutOfMemory,
                    c10::str("block '", sources_[block].name, "' has no place on the device: ",
                             slots_.size(), " other blocks are held"),
                    "use a larger --prefetch");
      ++stats_.late;
      load(*slot, block);
    }
    held = keep(*slot, runs);
    if (is_first && runs) load_ahead();
    wait_until_queued(lock, *slot);
    arrived = slot->arrived;
  }
  compute_after(*transfer, arrived);
  return held;
}

BlockStream::Lease BlockStream::lease(int64_t block) {
  Lease result;
  std::shared_ptr<TransferDevice> transfer;
  Ticket arrived;
  {
    const std::lock_guard lock(mutex_);
    transfer = use_transfer();
    Slot* const slot = transfer == nullptr ? nullptr : slot_of(block);
    if (slot == nullptr || !slot->is_queued) return {};
    if (slot->holds > 0) return {slot->memory, nullptr};
    result = {slot->memory, keep(*slot, /*runs=*/false)};
    arrived = slot->arrived;
  }
  compute_after(*transfer, arrived);
  return result;
}

at::Tensor BlockStream::fetch(const at::Tensor& value) {
  std::shared_ptr<TransferDevice> transfer;
  {
    const std::lock_guard lock(mutex_);
    transfer = use_transfer();
    stats_.copied_bytes += static_cast<int64_t>(value.nbytes());
  }
  if (transfer == nullptr)
    return value.to(device_, value.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
  SlabLayout layout;
  const SlabSlice slice = layout.add(value);
  try {
    at::Tensor result = slice.in(transfer->device_memory(layout.bytes()));
    compute_after(*transfer, transfer->copy_in(value, result, transfer->computed()));
    give_back_pages(value);
    return result;
  } catch (const Error& error) {
    throw error.at("a weight that is drawn while its block is away");
  }
}

void BlockStream::forget(int64_t block) {
  const std::lock_guard lock(mutex_);
  Slot* const slot = slot_of(block);
  if (slot != nullptr && slot->holds > 0)
    throw Error(ErrorCode::kInternal,
                "block '" + sources_[block].name + "' is changed while it is held");
  if (peers_ && transfer_ != nullptr) {  // it rests on the device, where it is computed
    const Ticket computed = transfer_->computed();
    for (Slot& other : slots_) other.free_after = computed;
  }
  if (slot == nullptr) return;
  slot->block = -1;
  ++slot->load;
}

BlockStream::Stats BlockStream::stats() const {
  const std::lock_guard lock(mutex_);
  Stats stats = stats_;
  for (const Slot& slot : slots_) stats.away_bytes += slot.memory.defined() ? 0 : slot.bytes;
  return stats;
}

BlockStream::Slot* BlockStream::slot_of(int64_t block) {
  const auto found = std::find_if(slots_.begin(), slots_.end(),
                                  [&](const Slot& slot) { return slot.block == block; });
  return found == slots_.end() ? nullptr : &*found;
}

BlockStream::Slot* BlockStream::free_slot(const std::vector<int64_t>& needed, bool any) {
  Slot* best = nullptr;
  for (Slot& slot : slots_) {
    if (slot.holds > 0 || slot.owner >= 0) continue;
    if (gives_way_ && !slot.memory.defined()) continue;
    if (slot.block < 0) return &slot;
    if (std::ranges::count(needed, slot.block) > 0) continue;
    if (best == nullptr || slot.last_held < best->last_held) best = &slot;
  }
  // The one that is needed last.
  for (auto block = needed.rbegin(); any && best == nullptr && block != needed.rend(); ++block) {
    Slot* const slot = slot_of(*block);
    if (slot != nullptr && slot->holds == 0 && slot->owner < 0) best = slot;
  }
  return best;
}

BlockStream::Slot* BlockStream::slot_for(int64_t block, const std::vector<int64_t>& needed,
                                         bool any) {
  if (!sources_[block].stays) return free_slot(needed, any);
  Slot* const own = &*std::ranges::find(slots_, block, &Slot::owner);
  return gives_way_ && !own->memory.defined() ? nullptr : own;
}

std::vector<int64_t> BlockStream::upcoming() const {
  const auto stay = static_cast<int64_t>(slots_.size()) - shared_;
  int64_t free = shared_ - 1;
  std::vector<int64_t> order, next;
  if (gives_way_) {
    for (int64_t block = running_ - 1; block >= 0; --block) order.push_back(block);
  } else {
    order = order_.next(std::max<int64_t>(0, free) + stay);
  }
  for (const int64_t block : order) {
    if (!sources_[block].stays && --free < 0) break;
    next.push_back(block);
  }
  return next;
}

bool BlockStream::is_awaited() {
  for (int64_t block = running_ - 1; block >= 0; --block) {
    if (!sources_[block].stays && slot_of(block) == nullptr) return true;
  }
  return false;
}

void BlockStream::load(Slot& slot, int64_t block) {
  const Source& source = sources_[block];
  if (peers_ && !slot.is_claimed) transfer_->wait(slot.arrived);  // gathers have no order
  if (!slot.memory.defined()) {
    take_memory(slot);
    slot.free_after = transfer_->computed();
  }
  slot.block = block;
  slot.is_queued = false;
  slot.is_claimed = false;
  slot.arrived = {};
  slot.failure = nullptr;
  ++slot.load;
  ++stats_.copies;
  stats_.copied_bytes += source.bytes;
  if (!source.slab.defined()) {
    readings_.push_back({static_cast<size_t>(&slot - slots_.data()), slot.load, block});
    changed_.notify_all();
    return;
  }
  try {
    slot.arrived = bring(slot, source);
  } catch (...) {
    slot.block = -1;
    throw;
  }
  slot.is_queued = true;
}

Ticket BlockStream::bring(Slot& slot, const Source& source) {
  const at::Tensor whole = slot.memory.narrow(0, 0, source.bytes);
  if (peers_ == nullptr) return transfer_->copy_in(source.slab, whole, slot.free_after);
  at::Tensor part = source.slab;
  Ticket is_there = slot.free_after;
  if (part.device() != device_) {
    const at::Tensor place = whole.narrow(0, peers_->rank() * part.numel(), part.numel());
    is_there = transfer_->copy_in(part, place, is_there);
    part = place;
  }
  return transfer_->exchange([&] { return peers_->gather(source.name, whole, part); }, whole,
                             is_there);
}

// In the order in which a pass begins. Blocks that stay come before passing ones without a slot.
void BlockStream::load_first(int64_t room) {
  for (int64_t block = 0; block < static_cast<int64_t>(sources_.size()); ++block) {
    if (slot_of(block) != nullptr) continue;
    Slot* const slot = slot_for(block, {}, /*any=*/false);
    if (slot == nullptr || slot->block >= 0) continue;
    if (!slot->memory.defined()) {
      if (slot->bytes > room) return;
      room -= slot->bytes;
    }
    load(*slot, block);
  }
}

void BlockStream::load_ahead() {
  const std::vector<int64_t> next = upcoming();
  for (const int64_t block : next) {
    if (slot_of(block) != nullptr) continue;
    Slot* const slot = slot_for(block, next, /*any=*/false);
    if (slot == nullptr) return;
    load(*slot, block);
  }
}

void BlockStream::wait_until_queued(std::unique_lock<std::mutex>& lock, Slot& slot) {
  const auto is_settled = [&] { return slot.is_queued || slot.failure != nullptr || is_closing_; };
  if (!is_settled()) {
    const double start = seconds_now();
    changed_.wait(lock, is_settled);
    stats_.waited_seconds += seconds_now() - start;
  }
  if (slot.is_queued) return;
  if (slot.failure == nullptr) throw closed(sources_[slot.block]);
  slot.block = -1;
  std::rethrow_exception(slot.failure);
}

void BlockStream::compute_after(TransferDevice& transfer, const Ticket& ticket) {
  if (!device_.is_cpu()) return transfer.compute_after(ticket);
  // A simulated device computes on the host and knows how long that waited.
  const double before = transfer.stats().waited_seconds;
  transfer.compute_after(ticket);
  const double after = transfer.stats().waited_seconds;
  const std::lock_guard lock(mutex_);
  stats_.waited_seconds += after - before;
}

void BlockStream::read() {
  const HostScope host;
  for (size_t turn = 0;; ++turn) {
    Reading reading;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return is_closing_ || !readings_.empty(); });
      if (is_closing_) return;
      reading = readings_.front();
      readings_.pop_front();
      if (slots_[reading.slot].load != reading.load) continue;  // another block comes there
    }
    try {
      read_into(staging_[turn % kStagings], reading);
    } catch (...) {
      const std::lock_guard lock(mutex_);
      Slot& slot = slots_[reading.slot];
      if (slot.load == reading.load) slot.failure = std::current_exception();
    }
    changed_.notify_all();
  }
}

void BlockStream::read_into(Staging& staging, const Reading& reading) {
  const Source& source = sources_[reading.block];
  transfer_->wait(staging.copied);
  for (const auto& [slice, value] : source.slices) {
    slice.fill(staging.memory, value);
    give_back_pages(value);
  }
  const std::lock_guard lock(mutex_);
  Slot& slot = slots_[reading.slot];
  if (slot.load != reading.load) return;
  slot.arrived = staging.copied =
      transfer_->copy_in(staging.memory.narrow(0, 0, source.bytes),
                         slot.memory.narrow(0, 0, source.bytes), slot.free_after);
  slot.is_queued = true;
}

}  // namespace atelier::memory
