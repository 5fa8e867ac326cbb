// Encodes what a cache lacks.
#include <algorithm>
#include <atomic>
#include <deque>
#include <future>

#include <ATen/ATen.h>

#include "atelier/error.h"
#include "atelier/ops/stop.h"

#include "host/data/parallel.h"
#include "host/data/prefetcher.h"
#include "host/files/temporary_file.h"
#include "host/plugins/guard.h"
#include "host/train/encoders.h"
#include "host/train/row_inputs.h"
#include "host/train/samples_state.h"
#include "memory/port.h"

namespace atelier::train {

using model::LoadedModel;
using progress::Progress;

namespace {

constexpr int64_t kHeaderBytes = 4096;  // of an entry

// Rows that are decoded ahead of the one that is encoded.
int64_t depth_of(int workers) {
  return 2 * std::max(workers, 1);
}

// Writes entries while others are encoded: each one waits for the disk, and several wait together.
class EntryWriter {
 public:
  using OnWritten = std::function<void(const std::string& key, const EntryShapes& shapes)>;

  // `on_written` is called from the thread that calls write() and finish().
  EntryWriter(const EncodingStore& store, Encoding encoding, OnWritten on_written)
      : store_(store), encoding_(encoding), on_written_(std::move(on_written)) {}

  // Throw what went wrong with an entry, this one or an earlier one.
  void write(const std::string& key, NamedTensors tensors) {
    if (pending_.size() >= kMaxPending) take_first();
    EntryShapes shapes;
    for (const auto& [name, tensor] : tensors) shapes[name] = tensor.sizes().vec();
    pending_.push_back({key, std::move(shapes),
                        std::async(std::launch::async, [this, key, entry = std::move(tensors)] {
                          const memory::HostScope host;
                          store_.write(encoding_, key, entry);
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
  const Encoding encoding_;
  const OnWritten on_written_;
  std::deque<Pending> pending_;  // futures of std::async: destroying one waits for it
};

int64_t bytes_of(const NamedTensors& tensors) {
  int64_t bytes = 0;
  for (const auto& [name, tensor] : tensors) bytes += static_cast<int64_t>(tensor.nbytes());
  return bytes;
}

}  // namespace

std::vector<Samples::State::Job> Samples::State::missing_jobs(Encoding encoding) {
  std::set<std::string> missing = entries(encoding).missing;
  std::vector<Job> jobs;
  const auto add = [&](size_t item, bool empty_caption, const std::string& key) {
    if (missing.erase(key) > 0) jobs.push_back({item, empty_caption, key});
  };
  for (size_t i = 0; i < manifest.items.size(); ++i) {
    const CacheItem& item = manifest.items[i];
    if (encoding == Encoding::kLatents) {
      add(i, /*empty_caption=*/false, item.latents_key);
    } else {
      add(i, /*empty_caption=*/false, item.text_key);
      add(i, /*empty_caption=*/true, item.empty_text_key);
    }
  }
  return jobs;
}

void Samples::State::note_written(Encoding encoding, const std::string& key,
                                  const EntryShapes& shapes) {
  entries(encoding).missing.erase(key);
  if (encoding == Encoding::kLatents) latents_shapes[key] = shapes.find(kLatents)->second;
}

template <typename T>
bool Samples::State::encode_all(Encoding encoding, const std::vector<Job>& jobs,
                                data::Prefetcher<T>& rows, Progress& progress,
                                const std::function<bool()>& stop,
                                const std::function<NamedTensors(const T&)>& encode) {
  EntryWriter writer(store, encoding, [&](const auto& key, const EntryShapes& shapes) {
    note_written(encoding, key, shapes);
  });
  const char* const label = encoding == Encoding::kText ? "encode texts" : "encode pictures";
  progress::Step step(progress, label, std::ssize(jobs), progress::Unit::kSteps);
  for (const Job& job : jobs) {
    if (stop()) {
      writer.finish();
      return false;
    }
    const T row = rows.next();
    NamedTensors entry;
    try {
      entry = encode(row);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kCancelled) throw error.at(manifest.items[job.item].place);
      writer.finish();
      throw;
    }
    writer.write(job.key, std::move(entry));
    step.advance();
  }
  writer.finish();
  step.finish();
  return true;
}

bool Samples::State::encode_texts(LoadedModel& model, int workers, Progress& progress,
                                  const std::function<bool()>& stop) {
  const std::vector<Job> jobs = missing_jobs(Encoding::kText);
  if (jobs.empty()) return true;
  if (stop()) return false;
  Encoders encoders(model, Encoding::kText, progress);
  data::Prefetcher<Inputs> rows(
      workers, depth_of(workers), 0, std::ssize(jobs), [&](int64_t position) {
        const Job& job = jobs[static_cast<size_t>(position)];
        return text_inputs(*dataset, job.item, family.inputs(), job.empty_caption);
      });
  return encode_all<Inputs>(Encoding::kText, jobs, rows, progress, stop,
                            [&](const Inputs& row) { return encoders.encode_text(row); });
}

bool Samples::State::encode_pictures(LoadedModel& model, int workers, Progress& progress,
                                     const std::function<bool()>& stop) {
  const std::vector<Job> jobs = missing_jobs(Encoding::kLatents);
  if (jobs.empty()) return true;
  if (stop()) return false;
  Encoders encoders(model, Encoding::kLatents, progress);
  data::Prefetcher<data::Sample> rows(
      workers, depth_of(workers), 0, std::ssize(jobs),
      [&](int64_t position) { return dataset->load(jobs[static_cast<size_t>(position)].item); });
  const auto encode = [&](const data::Sample& row) {
    const at::Tensor latents = encoders.encode_picture(learnt_pixels(row, *dataset));
    NamedTensors entry = {{kLatents, latents}};
    if (row.mask.defined()) entry[kMask] = mask_at(row.mask, latents.size(-2), latents.size(-1));
    return entry;
  };
  return encode_all<data::Sample>(Encoding::kLatents, jobs, rows, progress, stop, encode);
}

bool Samples::fill(LoadedModel& model, int workers, Progress& progress,
                   const std::function<bool()>& stop) {
  State& state = *state_;
  if (!state.dataset) return true;  // a cache alone is whole
  Manifest& manifest = state.manifest;
  if (!manifest.cached.text && !manifest.cached.latents) return true;
  const std::string& folder = state.store.folder();
  for (const std::string& each : {folder, folder + "/text", folder + "/latents"})
    files::remove_abandoned(each);
  const ops::StopScope stops([&] {
    if (stop()) throw Error(ErrorCode::kCancelled, "stopped by a signal");
  });
  try {
    manifest.is_complete = state.encode_texts(model, workers, progress, stop) &&
                           state.encode_pictures(model, workers, progress, stop);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kCancelled) throw;
    manifest.is_complete = false;
  }
  for (CacheItem& item : manifest.items) {
    if (const auto shape = state.latents_shapes.find(item.latents_key);
        shape != state.latents_shapes.end())
      item.latents_shape = shape->second;
  }
  manifest.write(state.store.folder());
  return manifest.is_complete;
}

std::optional<int64_t> Samples::State::missing_text_bytes(LoadedModel& model) {
  const model::LoadedPart* denoiser = model.denoiser();
  if (!denoiser || model.files().empty()) return std::nullopt;
  const auto bytes_of_tokens = [&](int64_t tokens) {
    return bytes_of(plugins::guard(family.name(), [&] {
      return family.example_conditioning(denoiser->detection, tokens, model.dtype());
    }));
  };
  const int64_t one = bytes_of_tokens(1), a_token = bytes_of_tokens(2) - one;
  const std::vector<Job> jobs = missing_jobs(Encoding::kText);
  std::atomic<int64_t> bytes = 0;
  data::for_each_in_parallel(jobs.size(), [&](size_t i) {
    const Inputs inputs =
        value_inputs(*dataset, jobs[i].item, family.inputs(), jobs[i].empty_caption);
    const TextLength length =
        plugins::guard(family.name(), [&] { return model.model().text_length(inputs); });
    const int64_t tokens = std::clamp<int64_t>(length.tokens, 1, length.limit);
    bytes += kHeaderBytes + one + a_token * (tokens - 1);
  });
  return bytes.load();
}

Samples::Bytes Samples::missing_bytes(LoadedModel& model) const {
  State& state = *state_;
  Bytes bytes;
  bytes.texts =
      state.texts.missing.empty() ? std::optional<int64_t>(0) : state.missing_text_bytes(model);
  const int64_t stride = state.spec.spatial_stride;
  const int64_t cell_bytes =
      state.spec.channels * static_cast<int64_t>(c10::elementSize(model.decoder_dtype()));
  for (const State::Job& job : state.missing_jobs(Encoding::kLatents)) {
    const data::Item& item = state.dataset->items()[job.item];
    const data::DatasetOptions& options = state.dataset->options();
    const bool has_mask = options.alpha_mask || item.files.contains(options.mask_column);
    const int64_t cells = (item.height / stride) * (item.width / stride);
    bytes.pictures += kHeaderBytes + cells * (cell_bytes + (has_mask ? int64_t{sizeof(float)} : 0));
  }
  return bytes;
}

}  // namespace atelier::train
