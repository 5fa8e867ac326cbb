#include "memory/residency.h"

#include <algorithm>
#include <map>
#include <optional>
#include <typeinfo>
#include <utility>

#include <ATen/ATen.h>

#include "atelier/error.h"

#include "memory/block_stream.h"
#include "memory/file_pages.h"
#include "memory/quantized_store.h"
#include "memory/slab.h"

namespace atelier::memory {

namespace {

// What a weight is made of, where it rests; scales of a quantised one alone.
struct Parts {
  at::Tensor values, scales;

  int64_t bytes() const {
    return static_cast<int64_t>(values.nbytes() + (scales.defined() ? scales.nbytes() : 0));
  }
};

struct Pieces {
  SlabPiece values;
  std::optional<SlabPiece> scales;

  Parts in(const at::Tensor& slab, const std::shared_ptr<void>& held) const {
    return {values.in(slab, held), scales ? scales->in(slab, held) : at::Tensor()};
  }
};

// Draws from the slab of its block while that is on the device, else from a copy made for it.
class StreamedStore final : public WeightStore {
 public:
  // `pieces`: where it lies in the slab of `block`; none: it does not come with its block.
  // `quantized`: the store that it had, if that was one; its codes and scales are now `host`.
  StreamedStore(std::shared_ptr<BlockStream> stream, int64_t block, std::optional<Pieces> pieces,
                Parts host, const QuantizedStore* quantized)
      : stream_(std::move(stream)),
        block_(block),
        pieces_(std::move(pieces)),
        host_(std::move(host)) {
    if (quantized != nullptr) quantized_ = quantized->over({host_.values, host_.scales});
  }

  at::Tensor draw() const override {
    const Parts parts = on_device();
    return quantized_ ? over(parts).draw() : parts.values;
  }

  at::Tensor draw_rows(const at::Tensor& index) const override {
    const at::Tensor flat = index.reshape({-1});
    const std::optional<Parts> leased = lease();
    const Parts& parts = leased ? *leased : host_;
    const at::Tensor rows = quantized_
                                ? over(parts).draw_rows(flat)
                                : parts.values.index_select(0, flat.to(parts.values.device()));
    return rows.to(stream_->device());
  }

  std::optional<RowCodes> draw_codes() const override {
    if (!quantized_ || !quantized_->is_w8a8()) return std::nullopt;
    return over(on_device()).draw_codes();
  }

 private:
  QuantizedStore over(const Parts& parts) const {
    return quantized_->over({parts.values, parts.scales});
  }

  std::optional<Parts> lease() const {
    if (!pieces_) return std::nullopt;
    const BlockStream::Lease lease = stream_->lease(block_);
    if (!lease.slab.defined()) return std::nullopt;
    return pieces_->in(lease.slab, lease.held);
  }

  Parts on_device() const {
    if (std::optional<Parts> leased = lease()) return *std::move(leased);
    return {stream_->fetch(host_.values),
            host_.scales.defined() ? stream_->fetch(host_.scales) : at::Tensor()};
  }

  std::shared_ptr<BlockStream> stream_;
  int64_t block_;
  std::optional<Pieces> pieces_;
  Parts host_;
  std::optional<QuantizedStore> quantized_;  // over the host's values; none: a plain weight
};

// A weight of a block before its store is replaced.
struct Found {
  Weight* weight;
  std::shared_ptr<const QuantizedStore> quantized;  // null: a plain weight
  Parts parts;
};

// Whether its store gives the tensor itself.
bool is_plain(const Weight& weight) {
  Weight plain("plain", {0});
  plain.set(at::empty({0}));
  const WeightStore &store = *weight.store(), &resident = *plain.store();
  return typeid(store) == typeid(resident);
}

Found find(const Block& block, const std::string& path, Weight& weight) {
  const auto fail = [&](const char* what) {
    return Error(ErrorCode::kInternal,
                 "block '" + block.path() + "': weight '" + path + "' " + what);
  };
  if (!weight.is_loaded()) throw fail("is placed before it is loaded");
  if (weight.is_trainable()) throw fail("is trained where it rests and cannot be sent away");
  auto quantized = std::dynamic_pointer_cast<const QuantizedStore>(weight.store());
  if (quantized) return {&weight, quantized, {quantized->value().codes, quantized->value().scales}};
  if (!is_plain(weight)) throw fail("is changed before it is placed");
  return {&weight, nullptr, {weight.draw(), {}}};
}

int64_t resident_bytes(const Weight& weight) {
  if (!weight.is_loaded()) return 0;
  if (const auto* quantized = dynamic_cast<const QuantizedStore*>(weight.store().get()))
    return quantized->value().bytes();
  return is_plain(weight) ? static_cast<int64_t>(weight.draw().nbytes()) : 0;
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

struct Residency::Impl {
  Impl(const std::vector<Block*>& all, const ResidencyPlan& plan, Port& port,
       const std::set<const Weight*>& on_demand);
  ~Impl() {
    if (stream) stream->close();
  }

  struct Streamed {
    Block* block;
    Place place;
    SlabLayout layout;
    std::vector<std::pair<Found, Pieces>> weights;
  };
  using Demanded = std::pair<Found, Place>;

  void sort(Block& block, Place place, const std::set<const Weight*>& on_demand);
  void make_stream(const ResidencyPlan& plan, Port& port);
  BlockStream::Source send_away(Streamed streamed, Port& port);
  void send_away(Demanded demanded, Port& port);
  at::Tensor host_memory(Port& port, int64_t bytes);

  std::vector<Streamed> streamed;  // until they are sent away
  std::vector<Demanded> demanded;
  std::map<const Block*, int64_t> numbers;          // in running order, of those that come and go
  std::map<const Weight*, at::Tensor> host_values;  // of plain weights in slabs
  std::shared_ptr<BlockStream> stream;              // null: all of them stay
  Stats stats;
};

Residency::Impl::Impl(const std::vector<Block*>& all, const ResidencyPlan& plan, Port& port,
                      const std::set<const Weight*>& on_demand) {
  if (plan.blocks.size() != all.size() || plan.prefetch < 0)
    throw Error(ErrorCode::kInvalidArgument,
                c10::str("a plan of ", plan.blocks.size(), " places and ", plan.prefetch,
                         " blocks on their way, for ", all.size(), " blocks"));
  for (size_t i = 0; i < all.size(); ++i) sort(*all[i], plan.blocks[i], on_demand);
  if (streamed.empty() && demanded.empty()) return;
  make_stream(plan, port);
  try {
    std::vector<BlockStream::Source> sources;
    for (Streamed& each : streamed) sources.push_back(send_away(std::move(each), port));
    for (Demanded& each : demanded) send_away(std::move(each), port);
    stats.host_bytes += stream->start(std::move(sources));
  } catch (...) {
    stream->close();  // weights that were sent away can be drawn without it
    throw;
  }
  streamed.clear();
  demanded.clear();
}

// Says what becomes of the weights of `block`, and changes none.
void Residency::Impl::sort(Block& block, Place place, const std::set<const Weight*>& on_demand) {
  Streamed comes = {&block, place, {}, {}};
  block.visit_weights([&](const std::string& path, Weight& weight) {
    if (on_demand.contains(&weight)) {
      demanded.emplace_back(find(block, path, weight), place);
    } else if (place == Place::kDevice) {
      stats.device_bytes += resident_bytes(weight);
    } else {
      Found found = find(block, path, weight);
      Pieces pieces = {comes.layout.add(found.parts.values), {}};
      if (found.quantized) pieces.scales = comes.layout.add(found.parts.scales);
      comes.weights.emplace_back(std::move(found), std::move(pieces));
    }
  });
  if (comes.weights.empty()) return;
  numbers.emplace(&block, static_cast<int64_t>(streamed.size()));
  streamed.push_back(std::move(comes));
}

void Residency::Impl::make_stream(const ResidencyPlan& plan, Port& port) {
  const auto blocks = static_cast<int64_t>(streamed.size());
  const int64_t slots = std::min(blocks, plan.prefetch + 1);
  int64_t bytes = 0;
  for (const Streamed& each : streamed) bytes = std::max(bytes, each.layout.bytes());
  stream = BlockStream::make(port, blocks, slots, bytes);
  stats.device_bytes += slots * bytes;
}

BlockStream::Source Residency::Impl::send_away(Streamed from, Port& port) {
  BlockStream::Source source = {from.block->path(), from.layout.bytes(), {}, {}};
  if (from.place == Place::kHost) source.slab = host_memory(port, source.bytes);
  for (auto& [found, pieces] : from.weights) {
    Parts host = std::move(found.parts);
    if (source.slab.defined()) {
      pieces.values.fill(source.slab, host.values);
      give_back_pages(host.values);
      if (pieces.scales) pieces.scales->fill(source.slab, host.scales);
      host = pieces.in(source.slab, nullptr);
      if (!found.quantized) host_values.emplace(found.weight, host.values);
    } else {
      source.pieces.emplace_back(pieces.values, host.values);
      if (pieces.scales) source.pieces.emplace_back(*pieces.scales, host.scales);
    }
    found.weight->set_store(std::make_shared<StreamedStore>(
        stream, numbers.at(from.block), pieces, std::move(host), found.quantized.get()));
  }
  return source;
}

// Of a weight that does not come with its block.
void Residency::Impl::send_away(Demanded from, Port& port) {
  auto& [found, place] = from;
  Parts host = std::move(found.parts);
  if (place != Place::kDisk) {
    SlabLayout layout;
    Pieces pieces = {layout.add(host.values), {}};
    if (found.quantized) pieces.scales = layout.add(host.scales);
    const at::Tensor slab = host_memory(port, layout.bytes());
    pieces.values.fill(slab, host.values);
    give_back_pages(host.values);
    if (pieces.scales) pieces.scales->fill(slab, host.scales);
    host = pieces.in(slab, nullptr);
  }
  found.weight->set_store(std::make_shared<StreamedStore>(stream, -1, std::nullopt, std::move(host),
                                                          found.quantized.get()));
}

at::Tensor Residency::Impl::host_memory(Port& port, int64_t bytes) {
  stats.host_bytes += bytes;
  return port.host_memory(bytes);
}

// NOLINTNEXTLINE(performance-unnecessary-value-param): callers make both on the spot
Residency::Residency(std::vector<Block*> blocks, ResidencyPlan plan, Port& port,
                     const std::set<const Weight*>& on_demand)
    : impl_(std::make_unique<Impl>(blocks, plan, port, on_demand)) {}
Residency::~Residency() = default;

std::shared_ptr<void> Residency::hold(const Block& block) {
  const auto found = impl_->numbers.find(&block);
  return found == impl_->numbers.end() ? nullptr : impl_->stream->hold(found->second);
}

at::Tensor Residency::host_value(const Weight& weight) const {
  const auto found = impl_->host_values.find(&weight);
  if (found == impl_->host_values.end())
    throw Error(ErrorCode::kInvalidArgument,
                "weight '" + weight.name() + "' has no plain values in the host's memory",
                "keep its block there, in --dtype");
  return found->second;
}

void Residency::refresh(const Block& block) {
  const auto found = impl_->numbers.find(&block);
  if (found != impl_->numbers.end()) impl_->stream->forget(found->second);
}

Residency::Stats Residency::stats() const {
  Stats result = impl_->stats;
  if (impl_->stream) {
    const BlockStream::Stats stream = impl_->stream->stats();
    result.copied_bytes = stream.copied_bytes;
    result.copies = stream.copies;
    result.late = stream.late;
    result.waited_seconds = stream.waited_seconds;
  }
  return result;
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
