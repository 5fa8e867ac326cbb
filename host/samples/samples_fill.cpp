// Encodes what a cache lacks.
#include <algorithm>
#include <atomic>
#include <deque>
#include <future>

#include <ATen/ATen.h>

#include "atelier/error.h"
#include "atelier/host/stop.h"

#include "host/data/parallel.h"
#include "host/data/prefetcher.h"
#include "host/files/temporary_file.h"
#include "host/samples/encoders.h"
#include "host/samples/row_inputs.h"
#include "host/samples/samples_state.h"
#include "memory/transfer_device.h"

namespace atelier::samples {

using model::LoadedModel;
using progress::Progress;

namespace {

constexpr int64_t kHeaderBytes = 4096;  // of an entry

// Rows that are decoded ahead of the one that is encoded.
int64_t depth_of(int workers, int64_t row_bytes) {
  return data::depth_within(2 * std::max(workers, 1), row_bytes);
}

// Writes entries while others are encoded: each one waits for the disk, and several wait together.
class EntryWriter {
 public:
  using OnWritten = std::function<void(const std::string& key, const EntryShapes& shapes)>;

  // `on_written` is called from the thread that calls write() and finish().
  EntryWriter(const EncodingStore& store, std::string_view stage, OnWritten on_written)
      : store_(store), stage_(stage), on_written_(std::move(on_written)) {}

  // Throw what went wrong with an entry, this one or an earlier one.
  void write(const std::string& key, NamedTensors tensors) {
    if (pending_.size() >= kMaxPending) take_first();
    EntryShapes shapes;
    for (const auto& [name, tensor] : tensors) shapes[name] = tensor.sizes().vec();
    pending_.push_back({key, std::move(shapes),
                        std::async(std::launch::async, [this, key, entry = std::move(tensors)] {
                          const memory::HostScope host;
                          store_.write(stage_, key, entry);
                        })});
  }
  void finish() {
    while (!pending_.empty()) take_first();
  }

 private:
  static constexpr size_t kMaxPending = 8;
  struct Pending {
    std::string key;
    EntryShapes shapes;
    std::future<void> done;
  };

  void take_first() {
    Pending first = std::move(pending_.front());
    pending_.pop_front();
    first.done.get();
    on_written_(first.key, first.shapes);
  }

  const EncodingStore& store_;
  const std::string_view stage_;
  const OnWritten on_written_;
  std::deque<Pending> pending_;  // futures of std::async: destroying one waits for it
};

int64_t bytes_of(const NamedTensors& tensors) {
  int64_t bytes = 0;
  for (const auto& [name, tensor] : tensors) bytes += static_cast<int64_t>(tensor.nbytes());
  return bytes;
}

}  // namespace

std::vector<Samples::State::Job> Samples::State::missing_jobs(const EncodeStage& stage,
                                                              const Share& share) {
  std::vector<Job> jobs;
  const auto found = entries.find(stage.name);
  if (found == entries.end()) return jobs;
  std::set<std::string> missing = found->second.missing;
  int64_t count = 0;
  const auto add = [&](size_t item, bool empty_caption, const Keys& keys) {
    const auto key = keys.find(stage.name);
    if (key == keys.end() || missing.erase(key->second) == 0) return;
    if (count++ % share.size == share.rank) jobs.push_back({item, empty_caption, key->second});
  };
  for (size_t i = 0; i < manifest.items.size(); ++i) {
    add(i, /*empty_caption=*/false, manifest.items[i].keys);
    add(i, /*empty_caption=*/true, manifest.items[i].empty_keys);
  }
  return jobs;
}

Samples::State::Row Samples::State::read(const EncodeStage& stage, const Job& job,
                                         std::optional<data::Sample>& decoded) const {
  Row row = {value_inputs(*dataset, job.item, stage, job.empty_caption), {}};
  if (!reads_files(*dataset, stage)) return row;
  if (!decoded) decoded = dataset->load(job.item);
  row.values.merge(model::inputs_of(stage, decoded->inputs));
  if (stages.is_target(stage)) row.mask = decoded->mask;
  return row;
}

bool Samples::State::encode(const EncodeStage& stage, LoadedModel& model, int workers,
                            Progress& progress, const std::function<bool()>& stop,
                            const Share& share) {
  const std::vector<Job> jobs = missing_jobs(stage, share);
  if (jobs.empty()) return true;
  if (stop()) return false;
  Encoders encoders(model, stage, progress);
  int64_t row_bytes = 0;
  for (const Job& job : jobs)
    row_bytes = std::max(row_bytes, pixel_bytes(*dataset, dataset->items()[job.item]));
  data::Prefetcher<Row> rows(workers, depth_of(workers, row_bytes), 0, std::ssize(jobs),
                             [&](int64_t position) {
                               std::optional<data::Sample> decoded;
                               return read(stage, jobs[static_cast<size_t>(position)], decoded);
                             });
  EntryWriter writer(store, stage.name, [&](const auto& key, const EntryShapes& shapes) {
    entries.find(stage.name)->second.missing.erase(key);
    note_found(stage, key, shapes);
  });
  progress::Step step(progress, "encode " + model::encoded_by(stage, family.inputs()),
                      std::ssize(jobs), progress::Unit::kSteps);
  for (const Job& job : jobs) {
    if (stop()) {
      writer.finish();
      return false;
    }
    const Row row = rows.next();
    const CacheItem& item = manifest.items[job.item];
    NamedTensors entry;
    try {
      entry = encoders.encode(row.values, item.target);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kCancelled) throw error.at(item.place);
      writer.finish();
      throw;
    }
    if (row.mask.defined()) entry[kMask] = mask_at(row.mask, spec, item.target);
    writer.write(job.key, std::move(entry));
    step.advance();
  }
  writer.finish();
  step.finish();
  return true;
}

bool Samples::fill(LoadedModel& model, int workers, Progress& progress,
                   const std::function<bool()>& stop, const Share& share) {
  State& state = *state_;
  if (!state.dataset) return true;  // a cache alone is whole
  Manifest& manifest = state.manifest;
  if (state.entries.empty()) return true;
  const std::string& folder = state.store.folder();
  files::remove_abandoned(folder);
  for (const EncodeStage& stage : state.stages.encoding)
    files::remove_abandoned(folder + "/" + std::string(stage.name));
  const ops::StopScope stops([&] {
    if (stop()) throw Error(ErrorCode::kCancelled, "stopped by a signal");
  });
  bool is_done = false;
  try {
    is_done = std::ranges::all_of(state.stages.encoding, [&](const EncodeStage& stage) {
      return state.encode(stage, model, workers, progress, stop, share);
    });
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kCancelled) throw;
  }
  if (share.rank != 0) return is_done;
  manifest.is_complete = is_done && share.size == 1;
  for (CacheItem& item : manifest.items) {
    for (const auto& [stage, key] : item.keys) {
      if (const auto shape = state.latents_shapes.find(key); shape != state.latents_shapes.end())
        item.latents_shape = shape->second;
    }
  }
  manifest.write(state.store.folder());
  return is_done;
}

std::optional<int64_t> Samples::State::missing_text_bytes(LoadedModel& model,
                                                          const EncodeStage& stage) {
  const model::RangedDenoiser* denoiser = model.stages().first();
  if (!denoiser || model.files().empty()) return std::nullopt;
  const auto bytes_of_tokens = [&](int64_t tokens) {
    return bytes_of(family.example_conditioning(denoiser->part, tokens, model.dtype()));
  };
  const int64_t one = bytes_of_tokens(1), a_token = bytes_of_tokens(2) - one;
  const std::vector<Job> jobs = missing_jobs(stage);
  std::atomic<int64_t> bytes = 0;
  data::for_each_in_parallel(jobs.size(), [&](size_t i) {
    const EncodeInputs in = {
        .stage = stage.name,
        .values = value_inputs(*dataset, jobs[i].item, stage, jobs[i].empty_caption)};
    const TextLength length = model.model().text_length(in);
    const int64_t tokens = std::clamp<int64_t>(length.tokens, 1, length.limit);
    bytes += kHeaderBytes + one + a_token * (tokens - 1);
  });
  return bytes.load();
}

Samples::Bytes Samples::missing_bytes(LoadedModel& model) const {
  State& state = *state_;
  Bytes bytes = {.texts = 0};
  const int64_t stride = state.spec.spatial_stride;
  const int64_t cell_bytes =
      state.spec.channels * static_cast<int64_t>(c10::elementSize(model.decoder_dtype()));
  for (const EncodeStage& stage : state.stages.encoding) {
    const std::vector<State::Job> jobs = state.missing_jobs(stage);
    if (!state.stages.is_target(stage)) {
      if (jobs.empty() || !bytes.texts) continue;
      const auto more = model::is_prompted(stage) ? state.missing_text_bytes(model, stage)
                                                  : std::optional<int64_t>();
      bytes.texts = more ? std::optional(*bytes.texts + *more) : std::nullopt;
      continue;
    }
    for (const State::Job& job : jobs) {
      const data::Item& item = state.dataset->items()[job.item];
      const data::DatasetOptions& options = state.dataset->options();
      const bool has_mask = options.alpha_mask || item.files.contains(options.mask_column);
      const int64_t cells = ((item.target.frames - 1) / state.spec.temporal_stride + 1) *
                            (item.target.height / stride) * (item.target.width / stride);
      bytes.images += kHeaderBytes + cells * (cell_bytes + (has_mask ? int64_t{sizeof(float)} : 0));
    }
  }
  return bytes;
}

}  // namespace atelier::samples
