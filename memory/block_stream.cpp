#include "memory/block_stream.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "atelier/error.h"

#include "memory/clock.h"
#include "memory/file_pages.h"

namespace atelier::memory {

namespace {

constexpr size_t kStagings = 2;  // one is filled while the other is copied

bool contains(const std::vector<int64_t>& blocks, int64_t block) {
  return std::find(blocks.begin(), blocks.end(), block) != blocks.end();
}

Error closed(const BlockStream::Source& source) {
  return {ErrorCode::kInternal, "block '" + source.name + "' is wanted while its weights leave"};
}

}  // namespace

BlockStream::BlockStream(TransferDevice& transfer, int64_t blocks)
    : transfer_(&transfer), device_(transfer.device()), order_(blocks) {}

BlockStream::~BlockStream() {
  close();
}

std::shared_ptr<BlockStream> BlockStream::make(TransferDevice& transfer, int64_t blocks,
                                               int64_t slots, int64_t slot_bytes) {
  std::shared_ptr<BlockStream> stream(new BlockStream(transfer, blocks));
  try {
    for (int64_t i = 0; i < slots; ++i) {
      stream->slots_.emplace_back();
      stream->slots_.back().memory = transfer.device_memory(slot_bytes);
    }
  } catch (const Error& error) {
    throw error.at(c10::str(slots, " places for blocks that come and go"));
  }
  const Ticket before = transfer.computed();
  for (Slot& slot : stream->slots_) slot.free_after = before;
  return stream;
}

int64_t BlockStream::start(std::vector<Source> sources) {
  const std::lock_guard lock(mutex_);
  sources_ = std::move(sources);
  int64_t read_bytes = 0;
  for (const Source& source : sources_) {
    if (!source.slab.defined()) read_bytes = std::max(read_bytes, source.bytes);
  }
  if (read_bytes > 0) {
    staging_.resize(kStagings);
    for (Staging& staging : staging_) staging.memory = transfer_->host_memory(read_bytes);
    reader_ = std::thread([this] { read(); });
  }
  for (const int64_t block : order_.next(static_cast<int64_t>(slots_.size()))) {
    if (Slot* slot = free_slot({}, /*any=*/false); slot != nullptr && slot->block < 0)
      load(*slot, block);
  }
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
  for (Slot& slot : slots_) {
    try {
      transfer_->wait(slot.arrived);  // until then the copy keeps the memory
    } catch (...) {                   // NOLINT(bugprone-empty-catch): nobody asks for the block
    }
    slot.arrived = slot.free_after = {};
    if (slot.holds > 0) continue;
    slot.block = -1;
    slot.memory.reset();
  }
  staging_.clear();
  transfer_ = nullptr;
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

std::shared_ptr<void> BlockStream::keep(Slot& slot) {
  ++slot.holds;
  slot.last_held = ++holds_;
  return {&slot, [stream = shared_from_this()](Slot* held) { stream->release(*held); }};
}

void BlockStream::release(Slot& slot) {
  const std::lock_guard lock(mutex_);
  if (--slot.holds > 0) return;
  if (transfer_ == nullptr) return slot.memory.reset();
  try {
    slot.free_after = transfer_->computed();
  } catch (...) {
    failure_ = std::current_exception();  // for the next hold()
  }
}

std::shared_ptr<void> BlockStream::hold(int64_t block) {
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
    if (is_first) order_.add(block);
    if (slot == nullptr) {
      const std::vector<int64_t> next = order_.next(static_cast<int64_t>(slots_.size()) - 1);
      slot = free_slot(next, /*any=*/true);
      if (slot == nullptr)
        throw Error(ErrorCode::kOutOfMemory,
                    c10::str("block '", sources_[block].name, "' has no place on the device: ",
                             slots_.size(), " other blocks are held"),
                    "use a larger --prefetch");
      ++stats_.late;
      load(*slot, block);
    }
    held = keep(*slot);
    if (is_first) load_ahead();
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
    result = {slot->memory, keep(*slot)};
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
  const SlabPiece piece = layout.add(value);
  try {
    at::Tensor result = piece.in(transfer->device_memory(layout.bytes()));
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
  if (slot == nullptr) return;
  if (slot->holds > 0)
    throw Error(ErrorCode::kInternal,
                "block '" + sources_[block].name + "' is changed while it is held");
  slot->block = -1;
  ++slot->load;
}

BlockStream::Stats BlockStream::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

BlockStream::Slot* BlockStream::slot_of(int64_t block) {
  const auto found = std::find_if(slots_.begin(), slots_.end(),
                                  [&](const Slot& slot) { return slot.block == block; });
  return found == slots_.end() ? nullptr : &*found;
}

BlockStream::Slot* BlockStream::free_slot(const std::vector<int64_t>& needed, bool any) {
  Slot* best = nullptr;
  for (Slot& slot : slots_) {
    if (slot.holds > 0) continue;
    if (slot.block < 0) return &slot;
    if (contains(needed, slot.block)) continue;
    if (best == nullptr || slot.last_held < best->last_held) best = &slot;
  }
  // The one that is needed last.
  for (auto block = needed.rbegin(); any && best == nullptr && block != needed.rend(); ++block) {
    Slot* const slot = slot_of(*block);
    if (slot != nullptr && slot->holds == 0) best = slot;
  }
  return best;
}

void BlockStream::load(Slot& slot, int64_t block) {
  const Source& source = sources_[block];
  slot.block = block;
  slot.is_queued = false;
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
    slot.arrived =
        transfer_->copy_in(source.slab, slot.memory.narrow(0, 0, source.bytes), slot.free_after);
  } catch (...) {
    slot.block = -1;
    throw;
  }
  slot.is_queued = true;
}

void BlockStream::load_ahead() {
  const std::vector<int64_t> next = order_.next(static_cast<int64_t>(slots_.size()) - 1);
  for (const int64_t block : next) {
    if (slot_of(block) != nullptr) continue;
    Slot* const slot = free_slot(next, /*any=*/false);
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
  for (const auto& [piece, value] : source.pieces) {
    piece.fill(staging.memory, value);
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
