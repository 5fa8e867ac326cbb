#include "host/data/dataset.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <set>
#include <utility>

#include "formats/escape.h"
#include "host/data/columns.h"
#include "host/data/control_files.h"
#include "host/data/file_rules.h"
#include "host/data/findings.h"
#include "host/data/image_files.h"
#include "host/data/parallel.h"
#include "host/data/sizes.h"
#include "host/files/content_hash.h"
#include "host/files/file_reader.h"
#include "host/inputs/frame_count.h"
#include "host/inputs/parse.h"

namespace atelier::data {
namespace {

namespace fs = std::filesystem;

// Where the rows come from. nullopt when there is nothing to read, which is then a problem.
// `with_clips`: also clips that have captions beside them.
std::optional<Metadata> read_rows(const DatasetOptions& options, bool with_clips,
                                  Findings& problems) {
  const std::string& base = options.dataset_base_path;
  std::error_code failure;
  const bool has_base =
      base.empty() ? !options.dataset_metadata_path.empty() : fs::is_directory(base, failure);
  if (!has_base) {
    problems.add("folders",
                 base.empty()
                     ? "--dataset_base_path: is missing"
                     : "--dataset_base_path: " + files::display_path(base) + " is no folder",
                 "name the folder that relative paths of the dataset start from",
                 base.empty() ? ErrorCode::kInvalidArgument : ErrorCode::kNotFound);
    return std::nullopt;
  }
  try {
    if (options.dataset_metadata_path.empty())
      return read_caption_folder(
          base, options.caption_extension, with_clips, problems,
          options.control_path.empty() ? std::string() : control_folder(options));
    return read_metadata(options.dataset_metadata_path, problems);
  } catch (const Error& error) {
    const bool is_folder = options.dataset_metadata_path.empty();
    const std::string inside = (fs::path(base) / options.dataset_metadata_path).string();
    const bool is_inside =
        !is_folder && error.code() == ErrorCode::kNotFound && fs::exists(inside, failure);
    const char* flag = is_folder ? "--dataset_base_path: " : "--dataset_metadata_path: ";
    problems.add("files", Error(error.code(), flag + error.message(),
                                is_inside ? "did you mean " + files::display_path(inside) + "?"
                                          : error.hint(),
                                error.tag()));
    return std::nullopt;
  }
}

// Images that are the target of several rows, by path or by content.
void find_duplicates(const std::vector<Item>& items, const std::string& target_input,
                     const ImageFiles& files, Findings& odd) {
  std::map<std::string, const Item*> first_of;
  std::vector<std::string> paths;
  for (const Item& item : items) {
    if (item.piece > 0) continue;
    const std::string& path = item.files.at(target_input).front();
    const auto [first, is_new] = first_of.emplace(path, &item);
    if (is_new) {
      paths.push_back(path);
      continue;
    }
    odd.add("duplicates",
            item.place + " [" + item.target_column + "]: the same image as in " +
                first->second->place +
                (item.values == first->second->values ? ", with the same values" : ""),
            "take one out unless it shall count twice");
  }
  for (const auto& [copy, original] : find_copies(paths, files)) {
    const Item& item = *first_of.at(copy);
    odd.add("duplicates",
            item.place + " [" + item.target_column + "]: the same content as in " +
                first_of.at(original)->place,
            "take one out unless it shall count twice");
  }
}

// What holds for the dataset as a whole.
void find_oddities(const std::vector<Item>& items, const std::string& target_input,
                   const DatasetOptions& options, const ImageFiles& files, Findings& odd) {
  int64_t profiles = 0, transparent = 0;
  const Item* first_profile = nullptr;
  for (const Item& item : items) {
    const media::ImageInfo& info = files.find(item.files.at(target_input).front())->second.info;
    if (info.has_alpha && item.frames.empty()) ++transparent;
    if (info.has_color_profile && profiles++ == 0) first_profile = &item;
  }
  if (profiles > 0) {
    odd.add("color profiles",
            first_profile->place + " [" + first_profile->target_column +
                "]: has an embedded color profile, as " + std::to_string(profiles) + " of " +
                std::to_string(items.size()) + " images; colors are read as sRGB",
            "convert images of other color spaces to sRGB");
  }
  if (options.alpha_mask && transparent == 0 && !items.empty()) {
    odd.add("masks", "--alpha_mask: no image has transparency",
            "the loss counts everywhere; leave the flag out");
  }
}

std::string make_fingerprint(const std::vector<Item>& items, const DatasetOptions& options,
                             const Columns& columns, const DataFiles& files) {
  const std::filesystem::path base = options.dataset_base_path;
  files::ContentHash hash;
  hash.add(static_cast<int64_t>(items.size())).add(options.mask_column);
  hash.add(int64_t{options.alpha_mask});
  for (const Item& item : items) {
    add_target(hash, item.target);
    for (const int64_t frame : item.frames) hash.add(frame);
    if (item.is_alternative) hash.add(item.piece);
    hash.add(static_cast<int64_t>(item.values.size()));
    for (const auto& [name, value] : item.values) {
      hash.add(name).add(value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
    }
    for (const auto& [column, paths] : item.files) {
      hash.add(column).add(static_cast<int64_t>(paths.size()));
      for (const std::string& path : paths) {
        const inputs::ImageFile& file = files.of(columns.kind(column), path);
        hash.add(std::filesystem::path(path).lexically_proximate(base).string());
        hash.add(file.ends_hash);
      }
    }
  }
  return hash.hex();
}

void hand_over(const Findings& findings, const std::string& place, report::Problems& problems) {
  for (const Error& error : findings.list(place)) problems.add(error);
}

// Gives every row without one the text that holds for all.
void add_texts(const std::map<std::string, std::string, std::less<>>& texts, Metadata& metadata) {
  for (const auto& [name, text] : texts) {
    auto& columns = metadata.columns;
    if (std::find(columns.begin(), columns.end(), name) == columns.end()) columns.push_back(name);
    for (Record& record : metadata.records) {
      if (!record.values.contains(name)) record.values[name] = text;
    }
  }
}

using Row = std::pair<uint64_t, Item>;  // with its line

std::vector<Row> read_items(const Columns& columns, const Metadata& metadata, Findings& errors,
                            Findings& odd) {
  std::vector<Row> rows;
  for (const Record& record : metadata.records) {
    errors.set_row(record.line);
    odd.set_row(record.line);
    if (std::optional<Item> item = columns.read(record, errors, odd))
      rows.emplace_back(record.line, std::move(*item));
  }
  return rows;
}

// Looks at all files. One that several columns name is a clip where one of them takes clips.
DataFiles check_files_of(const std::vector<Row>& rows, const Columns& columns, bool decode_all) {
  FileKinds seen, heard;
  for (const auto& [line, item] : rows) {
    for (const auto& [column, files] : item.files) {
      const InputKind kind = columns.kind(column);
      for (const std::string& file : files) {
        const auto [known, is_new] = (inputs::is_sound(kind) ? heard : seen).emplace(file, kind);
        if (inputs::is_clip(kind)) known->second = kind;
      }
    }
  }
  return {check_files(seen, decode_all), check_files(heard, decode_all)};
}

bool learns_clips(std::span<const InputSpec> inputs) {
  return std::ranges::any_of(inputs, [](const InputSpec& input) {
    return input.role == InputRole::kTarget && input.kind == InputKind::kVideo;
  });
}

// A family of clips finds what it learns in either column of the reference: pictures are clips of
// one frame.
void join_target_columns(std::span<const InputSpec> inputs, Metadata& metadata,
                         Findings& problems) {
  const auto target = std::ranges::find(inputs, InputRole::kTarget, &InputSpec::role);
  if (target == inputs.end() || target->kind != InputKind::kVideo) return;
  const std::string name(target->name);
  for (const char* other : {"video", "image"}) {
    if (std::ranges::find(inputs, other, &InputSpec::name) != inputs.end() ||
        std::erase(metadata.columns, other) == 0)
      continue;
    const bool is_alone = !std::ranges::count(metadata.columns, name);
    if (is_alone) metadata.columns.push_back(name);
    for (Record& record : metadata.records) {
      const bool is_written = record.line > 0;  // captions beside files know no columns
      if (is_written && is_alone) record.target_column = other;
      const auto value = record.values.find(other);
      if (value == record.values.end()) continue;
      problems.set_row(record.line);
      if (record.values.contains(name)) {
        problems.add("wrong values",
                     record.place + ": both [" + name + "] and [" + other + "] are given",
                     "a row learns one of them");
      } else {
        record.values[name] = *value;
        if (is_written) record.target_column = other;
      }
      record.values.erase(other);
    }
  }
  problems.set_row(0);
}

// Gives rows the files of --control_path, and makes the input that takes them one of those that
// every row has.
void join_control_files(DatasetOptions& options, std::span<const InputSpec> inputs,
                        std::string_view variant, Metadata& metadata, Findings& problems,
                        Findings& odd) {
  const auto target = std::ranges::find(inputs, InputRole::kTarget, &InputSpec::role);
  if (options.control_path.empty() || target == inputs.end()) return;
  try {
    const InputSpec& control = control_input(inputs, options.extra_inputs, variant);
    add_control_files(options, target->name, control, metadata, problems, odd);
    if (!std::ranges::count(options.extra_inputs, control.name))
      options.extra_inputs.emplace_back(control.name);
  } catch (const Error& error) {
    problems.add("folders", error.at(options.control_flag));
  }
}

}  // namespace

Dataset Dataset::open(const DatasetOptions& options, std::span<const InputSpec> inputs,
                      const LatentSpec& spec, report::Problems& problems, const RowCheck& check,
                      std::optional<std::string_view> variant) {
  Dataset dataset;
  dataset.options_ = options;
  const bool is_folder = options.dataset_metadata_path.empty();
  if (is_folder) dataset.options_.mask_column = DatasetOptions().mask_column;
  const SizeRule sizes(options, spec.pixel_multiple, problems);
  const size_t before = problems.size();
  for (const int64_t frames : options.clips.lengths())
    inputs::check_frames(frames, spec, "--num_frames", problems);
  const bool has_frames = problems.size() == before;

  Findings errors(options.max_errors), odd(options.max_errors);
  std::optional<Metadata> metadata = read_rows(options, learns_clips(inputs), errors);
  if (metadata) {
    add_texts(options.texts_of_all, *metadata);
    join_target_columns(inputs, *metadata, errors);
    join_control_files(dataset.options_, inputs, variant.value_or(""), *metadata, errors, odd);
  }
  const std::string place =
      files::display_path(is_folder ? options.dataset_base_path : options.dataset_metadata_path);
  const Columns columns(dataset.options_, inputs, variant, metadata.value_or(Metadata{}), errors,
                        odd);
  dataset.inputs_ = columns.inputs();
  dataset.target_input_ = columns.target_input();
  if (!metadata || !has_frames) {
    hand_over(errors, place, problems);
    return dataset;
  }

  std::vector<Row> rows = read_items(columns, *metadata, errors, odd);
  std::vector<std::vector<RowProblem>> found(rows.size());
  if (check) {
    for_each_in_parallel(rows.size(), [&](size_t i) {
      found[i] = check(rows[i].second, dataset.values_of(rows[i].second));
    });
  }
  const DataFiles files = check_files_of(rows, columns, options.decode_all);
  FileRules rules(dataset.options_, columns, sizes, spec, files, errors, odd);
  for (size_t i = 0; i < rows.size(); ++i) {
    auto& [line, row] = rows[i];
    errors.set_row(line);
    odd.set_row(line);
    for (const RowProblem& problem : found[i]) errors.add(problem.kind, problem.error);
    std::vector<Item> items = rules.items_of(std::move(row));
    if (found[i].empty())
      dataset.items_.insert(dataset.items_.end(), std::make_move_iterator(items.begin()),
                            std::make_move_iterator(items.end()));
  }
  odd.set_row(UINT64_MAX);  // behind those of single rows
  find_duplicates(dataset.items_, dataset.target_input_, files.seen, odd);
  find_oddities(dataset.items_, dataset.target_input_, options, files.seen, odd);
  hand_over(errors, place, problems);
  for (const Error& warning : odd.list(place)) {
    dataset.warnings_.push_back(warning.message() +
                                (warning.hint().empty() ? "" : "; " + warning.hint()));
  }
  dataset.fingerprint_ = make_fingerprint(dataset.items_, dataset.options_, columns, files);
  return dataset;
}

int64_t Dataset::samples() const {
  return std::ranges::count(items_, false, &Item::is_alternative);
}

void add_target(files::ContentHash& content, const MediaTarget& target) {
  content.add(target.height).add(target.width);
  if (target.frames != 1) content.add(target.frames);
}

std::vector<BucketCount> Dataset::buckets() const {
  std::map<MediaTarget, int64_t> counts;
  for (const Item& item : items_) ++counts[item.target];
  std::vector<BucketCount> buckets;
  buckets.reserve(counts.size());
  for (const auto& [target, items] : counts) buckets.push_back({target, items});
  std::stable_sort(buckets.begin(), buckets.end(),
                   [](const BucketCount& a, const BucketCount& b) { return a.items > b.items; });
  return buckets;
}

}  // namespace atelier::data
