#include "host/samples/samples.h"

#include <algorithm>
#include <set>
#include <utility>

#include <ATen/ATen.h>

#include "atelier/error.h"

#include "host/data/parallel.h"
#include "host/files/content_hash.h"
#include "host/files/file_reader.h"
#include "host/inputs/parse.h"
#include "host/model/components.h"
#include "host/plugins/guarded_family.h"
#include "host/samples/encoders.h"
#include "host/samples/row_inputs.h"
#include "host/samples/samples_state.h"

namespace atelier::samples {

using files::ContentHash;
using model::LoadedModel;
using nlohmann::json;

namespace {

// A part of every key: raised when images are decoded or cropped otherwise than before, or when
// what an entry holds changes.
constexpr int64_t kEncodingVersion = 1;
constexpr const char* kRunAgain = "run --task sft:data_process again";

json options_json(const data::DatasetOptions& options, bool has_clips) {
  json out = {{"dataset_base_path", options.dataset_base_path},
              {"dataset_metadata_path", options.dataset_metadata_path},
              {"max_pixels", options.max_pixels},
              {"enable_bucket", options.enable_bucket},
              {"bucket_reso_steps", options.bucket_reso_steps},
              {"min_bucket_reso", options.min_bucket_reso},
              {"max_bucket_reso", options.max_bucket_reso},
              {"bucket_no_upscale", options.bucket_no_upscale},
              {"mask_column", options.mask_column},
              {"alpha_mask", options.alpha_mask}};
  if (has_clips) {
    const data::ClipOptions& clips = options.clips;
    const std::vector<int64_t> lengths = clips.lengths();
    out["num_frames"] = lengths.size() > 1 ? json(lengths) : json(lengths.front());
    out["frame_extraction"] = data::extraction_name(clips.frame_extraction);
    out["frame_stride"] = clips.frame_stride;
    out["frame_sample"] = clips.frame_sample;
    out["keep_frame_rate"] = clips.keep_frame_rate;
    if (clips.source_fps) out["source_fps"] = *clips.source_fps;
  }
  if (!options.control_path.empty()) out["control_path"] = options.control_path;
  if (options.height) out["height"] = *options.height;
  if (options.width) out["width"] = *options.width;
  return out;
}

void add_encoders(ContentHash& hash, const EncoderRecords& encoders) {
  for (const auto& [component, record] : encoders)
    hash.add(component).add(record.fingerprint).add(record.dtype);
}

// Contents that are not cached have keys too, which depend neither on encoders nor on the plugin's
// version.
std::string make_key(const Manifest& manifest, const EncoderRecords* encoders,
                     const std::string& content) {
  ContentHash hash;
  hash.add(kEncodingVersion).add(manifest.family);
  if (encoders && manifest.plugin_version != kUnsaidVersion)
    hash.add("plugin version").add(manifest.plugin_version);
  if (encoders) add_encoders(hash, *encoders);
  return hash.add(content).hex();
}

std::string version_of(const ModelFamily& family) {
  const std::string_view version = plugins::plugin_version(family);
  return std::string(version.empty() ? kUnsaidVersion : version);
}

// Tokens of a frame, of so many cells or pixels, where a token has `stride` of them on a side.
int64_t tokens_of(int64_t frames, int64_t height, int64_t width, int64_t stride) {
  return frames * (height / stride) * (width / stride);
}

// The tokens of the denoiser that a stage other than the target's gives it: texts are [L, D], and
// pictures [C, T, H, W]. Those that are brought to the size of what is made lie on its tokens.
int64_t tokens_of(const EncodeStage& stage, const ModelFamily& family, const EntryShapes& shapes,
                  const LatentSpec& spec) {
  const bool has_texts = model::reads_texts(stage, family);
  const int64_t patch = std::max<int64_t>(spec.token_stride / spec.spatial_stride, 1);
  int64_t tokens = 0;
  for (const auto& [name, shape] : shapes) {
    if (shape.size() == 2 && has_texts) tokens += shape[0];
    if (shape.size() == 4 && !stage.sees_target)
      tokens += tokens_of(shape[1], shape[2], shape[3], patch);
  }
  return tokens;
}

// Whether there is no sample without it.
bool is_required(const LoadedModel& model, const EncodeStage& stage) {
  return std::ranges::any_of(model.family().inputs(), [&](const InputSpec& input) {
    return input.use != InputUse::kGenerate && model::reads(stage, input.name) &&
           inputs::is_required(input, model.stages().variant);
  });
}

// Empty: there is none.
std::string_view key_of(const Keys& keys, const EncodeStage& stage) {
  const auto found = keys.find(stage.name);
  return found == keys.end() ? std::string_view() : found->second;
}

std::string fingerprint_of(const Manifest& manifest, std::span<const EncodeStage> stages) {
  ContentHash hash;
  for (const EncodeStage& stage : stages)
    hash.add(static_cast<int64_t>(manifest.cached.at(std::string(stage.name))));
  for (const CacheItem& item : manifest.items) {
    for (const EncodeStage& stage : stages) {
      hash.add(key_of(item.keys, stage));
      if (model::is_prompted(stage)) hash.add(key_of(item.empty_keys, stage));
    }
    data::add_target(hash, item.target);
    if (item.is_alternative) hash.add("alternative");
    hash.add(json(item.values).dump(-1, ' ', false, json::error_handler_t::replace));
  }
  return hash.hex();
}

// What a cache that is there says of itself; empty when there is none, or a damaged one, or one of
// another version: it is written anew. Throws for another's file of that name, and for one that
// cannot be read.
Manifest known_manifest(const std::string& folder, std::string_view family) {
  try {
    Manifest manifest = Manifest::read(folder);
    if (manifest.family == family) return manifest;
  } catch (const Error& error) {
    const bool is_written_anew = error.code() == ErrorCode::kNotFound ||
                                 error.code() == ErrorCode::kDataLoss || error.tag() == kStaleCache;
    if (!is_written_anew) throw;
  }
  return {};
}

// What of `now` is not what a cache was made by.
void compare_encoders(const EncoderRecords& recorded, const EncoderRecords& now,
                      std::vector<std::string>& differences) {
  for (const auto& [component, record] : now) {
    const auto then = recorded.find(component);
    if (then == recorded.end()) {
      differences.push_back(component + " took no part in it");
    } else if (then->second.fingerprint != record.fingerprint) {
      differences.push_back("it was made by another " + component);
    } else if (then->second.dtype != record.dtype) {
      differences.push_back(component + " was " + then->second.dtype + " and is " + record.dtype +
                            " now (--dtype)");
    }
  }
}

void compare_files(const Manifest& manifest, std::vector<std::string>& differences) {
  const std::vector<std::string> changed = changed_files(manifest.files);
  const std::set<std::string> names(changed.begin(), changed.end());
  std::set<std::string> told;
  for (const CacheItem& item : manifest.items) {
    for (const std::string& file : item.files) {
      if (names.contains(file) && told.insert(file).second)
        differences.push_back(files::display_path(file) + " of " + item.place + " has changed");
    }
  }
}

void throw_if_stale(const std::string& folder, const std::vector<std::string>& differences) {
  constexpr size_t kMaxTold = 5;
  if (differences.empty()) return;
  std::string message = files::display_path(Manifest::path(folder)) + ": the cache is stale: ";
  for (size_t i = 0; i < std::min(kMaxTold, differences.size()); ++i)
    message += (i > 0 ? "; " : "") + differences[i];
  if (differences.size() > kMaxTold)
    message += "; and " + std::to_string(differences.size() - kMaxTold) + " more";
  throw Error(ErrorCode::kInvalidArgument, message, kRunAgain, kStaleCache);
}

}  // namespace

CachedStages cached_stages(const ModelFamily& family, std::span<const EncodeStage> stages,
                           std::span<const std::string> trained) {
  CachedStages cached;
  for (const EncodeStage& stage : stages) {
    cached[std::string(stage.name)] = std::ranges::none_of(trained, [&](const std::string& path) {
      const ComponentSpec* spec = model::find_component(family, model::component_of(path));
      return spec != nullptr && model::uses(stage, *spec);
    });
  }
  return cached;
}

bool are_all_cached(const CachedStages& cached) {
  return std::all_of(cached.begin(), cached.end(), [](const auto& stage) { return stage.second; });
}

Samples::State::State(std::string folder, const LoadedModel& model)
    : store(std::move(folder)),
      family(model.family()),
      stages(model.stages()),
      spec(model.model().latent_spec()) {}

void Samples::State::find_entries() {
  for (size_t i = 0; i < manifest.items.size(); ++i) {
    if (i == 0 || !manifest.items[i].is_alternative) first_items.push_back(i);
  }
  first_items.push_back(manifest.items.size());
  for (const EncodeStage& stage : stages.encoding) {
    if (!is_cached(stage)) continue;
    Entries& wanted = entries[std::string(stage.name)];
    for (const CacheItem& item : manifest.items) {
      wanted.keys.emplace(key_of(item.keys, stage));
      if (with_empty_caption && model::is_prompted(stage))
        wanted.keys.emplace(key_of(item.empty_keys, stage));
    }
    const std::vector<std::string> keys(wanted.keys.begin(), wanted.keys.end());
    std::vector<std::optional<EntryShapes>> found(keys.size());
    data::for_each_in_parallel(keys.size(),
                               [&](size_t i) { found[i] = store.find(stage.name, keys[i]); });
    for (size_t i = 0; i < keys.size(); ++i) {
      const bool is_whole = found[i] && (!stages.is_target(stage) || found[i]->contains(kLatents));
      if (!is_whole) {
        wanted.missing.insert(keys[i]);
      } else {
        note_found(stage, keys[i], *found[i]);
      }
    }
  }
}

void Samples::State::note_found(const EncodeStage& stage, const std::string& key,
                                const EntryShapes& shapes) {
  if (stages.is_target(stage)) {
    latents_shapes[key] = shapes.at(kLatents);
  } else if (const int64_t tokens = tokens_of(stage, family, shapes, spec); tokens > 0) {
    entries.find(stage.name)->second.tokens[key] = tokens;
  }
}

Samples::Samples(std::shared_ptr<State> state) : state_(std::move(state)) {}

Samples Samples::of_dataset(std::shared_ptr<const data::Dataset> dataset, const LoadedModel& model,
                            const CachedStages& cached, std::string folder,
                            bool with_empty_caption) {
  const ModelFamily& family = model.family();
  auto state = std::make_shared<State>(std::move(folder), model);
  state->with_empty_caption = with_empty_caption;
  Manifest& manifest = state->manifest;
  manifest.family = family.name();
  manifest.plugin_version = version_of(family);
  std::erase_if(state->stages.encoding,
                [&](const EncodeStage& stage) { return !has_inputs(*dataset, stage); });
  for (const EncodeStage& stage : state->stages.encoding)
    manifest.cached[std::string(stage.name)] = cached.at(std::string(stage.name));
  const Manifest known = known_manifest(state->store.folder(), family.name());
  for (const EncodeStage& stage : state->stages.encoding) {
    const std::string name(stage.name);
    EncoderRecords& records = manifest.encoders[name];
    if (!state->is_cached(stage)) continue;
    const auto before = known.encoders.find(name);
    records = encoder_records(model, stage,
                              before == known.encoders.end() ? EncoderRecords() : before->second);
  }
  manifest.dataset = dataset->fingerprint();
  manifest.options = options_json(dataset->options(),
                                  std::ranges::any_of(dataset->items(), [](const data::Item& item) {
                                    return !item.frames.empty();
                                  }));

  std::vector<std::string> paths;
  for (const data::Item& item : dataset->items()) {
    for (std::string& path : files_of(item)) paths.push_back(std::move(path));
  }
  manifest.files = hash_files(paths, known.files);

  for (size_t i = 0; i < dataset->items().size(); ++i) {
    const data::Item& row = dataset->items()[i];
    CacheItem item;
    item.place = row.place;
    item.is_alternative = row.is_alternative;
    item.target = row.target;
    for (const EncodeStage& stage : state->stages.encoding) {
      const std::string name(stage.name);
      const auto key = [&](bool empty_caption) {
        const EncoderRecords* encoders =
            state->is_cached(stage) ? &manifest.encoders.at(name) : nullptr;
        return make_key(manifest, encoders,
                        state->stages.is_target(stage)
                            ? image_content(*dataset, i, stage, manifest.files)
                            : stage_content(*dataset, i, stage, empty_caption, manifest.files));
      };
      item.keys[name] = key(/*empty_caption=*/false);
      if (model::is_prompted(stage))
        item.empty_keys[name] = with_empty_caption ? key(/*empty_caption=*/true) : "";
    }
    item.values = row.values;
    for (const std::string& path : files_of(row)) item.files.push_back(absolute_path(path));
    manifest.items.push_back(std::move(item));
  }
  state->dataset = std::move(dataset);
  state->fingerprint = fingerprint_of(manifest, state->stages.encoding);
  state->find_entries();
  return Samples(std::move(state));
}

Samples Samples::of_cache(std::string folder, const LoadedModel& model, bool with_empty_caption) {
  auto state = std::make_shared<State>(std::move(folder), model);
  const std::string& path = state->store.folder();
  Manifest& manifest = state->manifest;
  manifest = Manifest::read(path);
  state->with_empty_caption = with_empty_caption;
  const auto refuse = [&](const std::string& message, const std::string& hint) {
    throw Error(ErrorCode::kInvalidArgument,
                files::display_path(Manifest::path(path)) + ": " + message, hint);
  };
  if (!manifest.is_complete) refuse("the encoding was interrupted", kRunAgain);
  std::erase_if(state->stages.encoding, [&](const EncodeStage& stage) {
    return !manifest.cached.contains(stage.name) && !is_required(model, stage);
  });
  for (const EncodeStage& stage : state->stages.encoding) {
    if (!state->is_cached(stage))
      refuse("the cache has no " + model::encoded_by(stage, model.family().inputs()) +
                 ": their encoder was to be trained",
             "give the dataset with --dataset_base_path and --dataset_metadata_path");
  }

  std::vector<std::string> differences;
  const std::string version = version_of(model.family());
  if (manifest.family != model.family().name()) {
    differences.push_back("it was made for " + manifest.family);
  } else {
    if (manifest.plugin_version != version)
      differences.push_back("it was made by version " + manifest.plugin_version +
                            " of the plugin of " + manifest.family + ", and this is " + version);
    for (const EncodeStage& stage : state->stages.encoding)
      compare_encoders(manifest.encoders.at(std::string(stage.name)), encoder_records(model, stage),
                       differences);
  }
  compare_files(manifest, differences);
  throw_if_stale(path, differences);

  for (CacheItem& item : manifest.items) {
    for (auto& [stage, key] : item.empty_keys) {
      if (!with_empty_caption) key.clear();
      if (with_empty_caption && key.empty())
        refuse("the cache has no encoding of an empty prompt",
               std::string(kRunAgain) + " with --caption_dropout_rate");
    }
  }
  state->fingerprint = fingerprint_of(manifest, state->stages.encoding);
  state->find_entries();
  Samples samples(state);
  for (const auto& [stage, entries] : state->entries) {
    if (entries.missing.empty()) continue;
    throw Error(ErrorCode::kDataLoss,
                files::display_path(state->store.path(stage, *entries.missing.begin())) +
                    ": is missing or damaged, one of " + std::to_string(samples.missing()),
                kRunAgain, "CACHE_ENTRY");
  }
  return samples;
}

size_t Samples::size() const {
  return state_->first_items.size() - 1;
}

std::vector<int64_t> Samples::shapes() const {
  std::map<MediaTarget, int64_t> numbers;
  std::vector<int64_t> shapes;
  for (size_t i = 0; i < size(); ++i) {
    const MediaTarget& target = state_->manifest.items[state_->first_items[i]].target;
    const auto next = static_cast<int64_t>(numbers.size());
    shapes.push_back(numbers.try_emplace(target, next).first->second);
  }
  return shapes;
}

std::vector<int64_t> Samples::tokens() const {
  const LatentSpec& spec = state_->spec;
  std::vector<int64_t> tokens;
  for (size_t i = 0; i < size(); ++i) {
    const CacheItem& item = state_->manifest.items[state_->first_items[i]];
    const MediaTarget& target = item.target;
    int64_t& count = tokens.emplace_back(tokens_of((target.frames - 1) / spec.temporal_stride + 1,
                                                   target.height, target.width, spec.token_stride));
    for (const EncodeStage& stage : state_->stages.encoding) {
      const auto found = state_->entries.find(stage.name);
      if (found == state_->entries.end()) continue;
      const auto entry = found->second.tokens.find(std::string(key_of(item.keys, stage)));
      if (entry != found->second.tokens.end()) count += entry->second;
    }
  }
  return tokens;
}

const RowValues& Samples::values(size_t index) const {
  return state_->manifest.items.at(state_->first_items.at(index)).values;
}

int64_t Samples::missing() const {
  int64_t missing = 0;
  for (const auto& [stage, entries] : state_->entries) missing += std::ssize(entries.missing);
  return missing;
}

std::vector<Samples::Count> Samples::counts() const {
  std::vector<Count> counts;
  for (const EncodeStage& stage : state_->stages.encoding) {
    Count& count = counts.emplace_back();
    count.what = model::encoded_by(stage, state_->family.inputs());
    const auto found = state_->entries.find(stage.name);
    if (found == state_->entries.end()) continue;
    count.entries = std::ssize(found->second.keys);
    count.missing = std::ssize(found->second.missing);
  }
  return counts;
}

const std::string& Samples::fingerprint() const {
  return state_->fingerprint;
}

int64_t Samples::decoded_bytes() const {
  const State& state = *state_;
  const bool decodes = state.dataset != nullptr &&
                       std::ranges::any_of(state.stages.encoding, [&](const EncodeStage& stage) {
                         return !state.is_cached(stage) && reads_files(*state.dataset, stage);
                       });
  int64_t most = 0;
  if (!decodes) return most;
  for (const data::Item& item : state.dataset->items())
    most = std::max(most, pixel_bytes(*state.dataset, item));
  return most;
}

TrainSample Samples::load(size_t index, bool empty_caption, double drawn) const {
  const State& state = *state_;
  const size_t first = state.first_items.at(index), end = state.first_items.at(index + 1);
  const size_t at = first + static_cast<size_t>(drawn * static_cast<double>(end - first));
  const CacheItem& item = state.manifest.items.at(at);
  TrainSample sample;
  sample.place = item.place;
  sample.values = item.values;
  sample.target = item.target;
  std::optional<data::Sample> decoded;
  for (const EncodeStage& stage : state.stages.encoding) {
    if (!state.is_cached(stage)) {
      State::Row row = state.read(stage, {at, empty_caption, {}}, decoded);
      sample.inputs.emplace(stage.name, std::move(row.values));
      if (row.mask.defined()) sample.mask = mask_at(row.mask, state.spec, item.target);
      continue;
    }
    const bool is_dropped = empty_caption && model::is_prompted(stage);
    NamedTensors entry =
        state.store.read(stage.name, key_of(is_dropped ? item.empty_keys : item.keys, stage));
    if (state.stages.is_target(stage)) {
      if (const auto mask = entry.find(kMask); mask != entry.end()) {
        sample.mask = mask->second;
        entry.erase(mask);
      }
    }
    sample.cond.merge(entry);
  }
  return sample;
}

}  // namespace atelier::samples
