#include "host/train/samples.h"

#include <algorithm>
#include <set>
#include <utility>

#include <ATen/ATen.h>

#include "atelier/error.h"

#include "host/data/parallel.h"
#include "host/files/content_hash.h"
#include "host/files/file_reader.h"
#include "host/train/encoders.h"
#include "host/train/row_inputs.h"
#include "host/train/samples_state.h"

namespace atelier::train {

using files::ContentHash;
using model::LoadedModel;
using nlohmann::json;

namespace {

// Of keys: raised when pictures are decoded or cropped otherwise than before, or when what an entry
// holds changes.
constexpr int64_t kEncodingVersion = 1;
constexpr const char* kRunAgain = "run --task sft:data_process again";

json options_json(const data::DatasetOptions& options) {
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
  if (options.height) out["height"] = *options.height;
  if (options.width) out["width"] = *options.width;
  return out;
}

void add_encoders(ContentHash& hash, const EncoderRecords& encoders) {
  for (const auto& [component, record] : encoders)
    hash.add(component).add(record.fingerprint).add(record.dtype);
}

// Contents that are not cached have keys too, which do not depend on encoders.
std::string make_key(const std::string& family, const EncoderRecords* encoders,
                     const std::string& content) {
  ContentHash hash;
  hash.add(kEncodingVersion).add(family);
  if (encoders) add_encoders(hash, *encoders);
  return hash.add(content).hex();
}

std::string fingerprint_of(const Manifest& manifest) {
  ContentHash hash;
  hash.add(static_cast<int64_t>(manifest.cached.text))
      .add(static_cast<int64_t>(manifest.cached.latents));
  for (const CacheItem& item : manifest.items) {
    hash.add(item.text_key).add(item.empty_text_key).add(item.latents_key);
    hash.add(item.height).add(item.width);
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

CachedParts cached_parts(const ModelFamily& family, std::span<const std::string> trained) {
  CachedParts cached;
  for (const std::string& path : trained) {
    const std::string name = path.substr(0, path.find('.'));
    for (const ComponentSpec& component : family.components()) {
      if (component.name != name) continue;
      if (takes_part(component, Encoding::kText)) cached.text = false;
      if (takes_part(component, Encoding::kLatents)) cached.latents = false;
    }
  }
  return cached;
}

void Samples::State::find_entries() {
  for (const CacheItem& item : manifest.items) {
    if (manifest.cached.text) {
      texts.keys.insert(item.text_key);
      if (with_empty_caption) texts.keys.insert(item.empty_text_key);
    }
    if (manifest.cached.latents) pictures.keys.insert(item.latents_key);
  }
  for (const Encoding encoding : {Encoding::kText, Encoding::kLatents}) {
    Entries& wanted = entries(encoding);
    const std::vector<std::string> keys(wanted.keys.begin(), wanted.keys.end());
    std::vector<std::optional<EntryShapes>> found(keys.size());
    data::for_each_in_parallel(keys.size(),
                               [&](size_t i) { found[i] = store.find(encoding, keys[i]); });
    for (size_t i = 0; i < keys.size(); ++i) {
      if (!found[i]) {
        wanted.missing.insert(keys[i]);
      } else if (encoding == Encoding::kLatents) {
        latents_shapes[keys[i]] = (*found[i])[kLatents];
      }
    }
  }
}

Samples::Samples(std::shared_ptr<State> state) : state_(std::move(state)) {}

Samples Samples::of_dataset(std::shared_ptr<const data::Dataset> dataset, const LoadedModel& model,
                            CachedParts cached, std::string folder, bool with_empty_caption) {
  const ModelFamily& family = model.family();
  auto state = std::make_shared<State>(std::move(folder), family, model.model().latent_spec());
  state->with_empty_caption = with_empty_caption;
  Manifest& manifest = state->manifest;
  manifest.family = family.name();
  manifest.cached = cached;
  const Manifest known = known_manifest(state->store.folder(), family.name());
  if (cached.text)
    manifest.text_encoders = encoder_records(model, Encoding::kText, known.text_encoders);
  if (cached.latents)
    manifest.latents_encoders = encoder_records(model, Encoding::kLatents, known.latents_encoders);
  manifest.dataset = dataset->fingerprint();
  manifest.options = options_json(dataset->options());

  std::vector<std::string> paths;
  for (const data::Item& item : dataset->items()) {
    for (std::string& path : files_of(item)) paths.push_back(std::move(path));
  }
  manifest.files = hash_files(paths, known.files);

  const EncoderRecords* text = cached.text ? &manifest.text_encoders : nullptr;
  const EncoderRecords* latents = cached.latents ? &manifest.latents_encoders : nullptr;
  for (size_t i = 0; i < dataset->items().size(); ++i) {
    const data::Item& row = dataset->items()[i];
    const auto text_key = [&](bool empty_caption) {
      return make_key(manifest.family, text,
                      text_content(*dataset, i, family.inputs(), empty_caption, manifest.files));
    };
    CacheItem item;
    item.place = row.place;
    item.height = row.height;
    item.width = row.width;
    item.text_key = text_key(/*empty_caption=*/false);
    if (with_empty_caption) item.empty_text_key = text_key(/*empty_caption=*/true);
    item.latents_key =
        make_key(manifest.family, latents, picture_content(*dataset, i, manifest.files));
    item.values = row.values;
    for (const std::string& path : files_of(row)) item.files.push_back(absolute_path(path));
    manifest.items.push_back(std::move(item));
  }
  state->dataset = std::move(dataset);
  state->fingerprint = fingerprint_of(manifest);
  state->find_entries();
  return Samples(std::move(state));
}

Samples Samples::of_cache(std::string folder, const LoadedModel& model, bool with_empty_caption) {
  auto state =
      std::make_shared<State>(std::move(folder), model.family(), model.model().latent_spec());
  const std::string& path = state->store.folder();
  Manifest& manifest = state->manifest;
  manifest = Manifest::read(path);
  state->with_empty_caption = with_empty_caption;
  const auto refuse = [&](const std::string& message, const std::string& hint) {
    throw Error(ErrorCode::kInvalidArgument,
                files::display_path(Manifest::path(path)) + ": " + message, hint);
  };
  if (!manifest.is_complete) refuse("the encoding was interrupted", kRunAgain);
  if (!manifest.cached.text || !manifest.cached.latents)
    refuse(std::string("the cache has no ") + (manifest.cached.text ? "latents" : "texts") +
               ": their encoder was to be trained",
           "give the dataset with --dataset_base_path and --dataset_metadata_path");

  std::vector<std::string> differences;
  if (manifest.family != model.family().name()) {
    differences.push_back("it was made for " + manifest.family);
  } else {
    compare_encoders(manifest.text_encoders, encoder_records(model, Encoding::kText), differences);
    compare_encoders(manifest.latents_encoders, encoder_records(model, Encoding::kLatents),
                     differences);
  }
  compare_files(manifest, differences);
  throw_if_stale(path, differences);

  for (CacheItem& item : manifest.items) {
    if (!with_empty_caption) item.empty_text_key.clear();
    if (with_empty_caption && item.empty_text_key.empty())
      refuse("the cache has no encoding of an empty prompt",
             std::string(kRunAgain) + " with --caption_dropout_rate");
  }
  state->fingerprint = fingerprint_of(manifest);
  state->find_entries();
  const State::Entries& broken = state->texts.missing.empty() ? state->pictures : state->texts;
  if (!broken.missing.empty()) {
    const Encoding encoding = &broken == &state->texts ? Encoding::kText : Encoding::kLatents;
    const size_t count = state->texts.missing.size() + state->pictures.missing.size();
    throw Error(ErrorCode::kDataLoss,
                files::display_path(state->store.path(encoding, *broken.missing.begin())) +
                    ": is missing or damaged, one of " + std::to_string(count),
                kRunAgain, "CACHE_ENTRY");
  }
  return Samples(std::move(state));
}

size_t Samples::size() const {
  return state_->manifest.items.size();
}

std::vector<int64_t> Samples::shapes() const {
  std::map<std::pair<int64_t, int64_t>, int64_t> numbers;
  std::vector<int64_t> shapes;
  for (const CacheItem& item : state_->manifest.items) {
    const auto next = static_cast<int64_t>(numbers.size());
    shapes.push_back(numbers.try_emplace({item.height, item.width}, next).first->second);
  }
  return shapes;
}

int64_t Samples::missing() const {
  return std::ssize(state_->texts.missing) + std::ssize(state_->pictures.missing);
}

Samples::Counts Samples::counts() const {
  return {.texts = std::ssize(state_->texts.keys),
          .missing_texts = std::ssize(state_->texts.missing),
          .pictures = std::ssize(state_->pictures.keys),
          .missing_pictures = std::ssize(state_->pictures.missing)};
}

const std::string& Samples::fingerprint() const {
  return state_->fingerprint;
}

TrainSample Samples::load(size_t index, bool empty_caption) const {
  const State& state = *state_;
  const CacheItem& item = state.manifest.items.at(index);
  const CachedParts cached = state.manifest.cached;
  TrainSample sample;
  sample.place = item.place;
  sample.values = item.values;
  if (cached.text) {
    const std::string& key = empty_caption ? item.empty_text_key : item.text_key;
    sample.cond = state.store.read(Encoding::kText, key);
  } else {
    sample.inputs = text_inputs(*state.dataset, index, state.family.inputs(), empty_caption);
  }
  if (cached.latents) {
    NamedTensors entry = state.store.read(Encoding::kLatents, item.latents_key);
    sample.cond.insert_or_assign(kLatents, entry[kLatents]);
    if (const auto mask = entry.find(kMask); mask != entry.end()) sample.mask = mask->second;
  } else {
    const data::Sample decoded = state.dataset->load(index);
    sample.pixels = learnt_pixels(decoded, *state.dataset).unsqueeze(1);
    if (decoded.mask.defined())
      sample.mask = mask_at(decoded.mask, item.height / state.spec.spatial_stride,
                            item.width / state.spec.spatial_stride);
  }
  return sample;
}

}  // namespace atelier::train
