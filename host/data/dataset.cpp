#include "host/data/dataset.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>
#include <utility>

#include "formats/escape.h"
#include "host/data/columns.h"
#include "host/data/findings.h"
#include "host/data/image_files.h"
#include "host/data/parallel.h"
#include "host/data/path_suggester.h"
#include "host/data/sizes.h"
#include "host/files/content_hash.h"
#include "host/files/file_reader.h"
#include "host/report/sizes.h"

namespace atelier::data {
namespace {

namespace fs = std::filesystem;

// Images that are enlarged more than this look soft.
constexpr double kMuchEnlarged = 2.0;
// How far the shape of a mask may be from that of its image.
constexpr double kMaskShapeTolerance = 0.01;

// Where the rows come from. nullopt when there is nothing to read, which is then a problem.
std::optional<Metadata> read_rows(const DatasetOptions& options, Findings& problems) {
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
      return read_caption_folder(base, options.caption_extension, problems);
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

// Checks the files of rows, and gives them their sizes.
class ImageRules {
 public:
  ImageRules(const DatasetOptions& options, const Columns& columns, const SizeRule& sizes,
             const ImageFiles& files, Findings& problems, Findings& odd)
      : options_(options),
        columns_(columns),
        sizes_(sizes),
        files_(files),
        problems_(problems),
        odd_(odd) {}

  // Returns false when the row has problems.
  bool check(Item& item) {
    bool is_good = true;
    for (const auto& [column, paths] : item.files) {
      for (const std::string& path : paths) is_good &= check_file(item, column, path);
    }
    if (!is_good || columns_.target_input().empty()) return false;
    is_good = check_size(item);
    if (const auto mask = item.files.find(options_.mask_column); mask != item.files.end())
      is_good &= check_mask(item, mask->second.front());
    return is_good;
  }

 private:
  // Where in the row. An image that is a row of its own is not named twice.
  static Error placed(const Item& item, const std::string& column, const Error& error) {
    const std::string prefix = item.place + ": ";
    if (!error.message().starts_with(prefix)) return error.at(item.place + " [" + column + "]");
    return Error(error.code(),
                 item.place + " [" + column + "]: " + error.message().substr(prefix.size()),
                 error.hint(), error.tag());
  }

  const media::ImageInfo& info_of(const std::string& path) const {
    return files_.find(path)->second.info;
  }

  bool check_file(const Item& item, const std::string& column, const std::string& path) {
    const std::optional<Error>& error = files_.find(path)->second.error;
    if (!error) return true;
    if (error->code() == ErrorCode::kNotFound) {
      problems_.add(
          "missing files",
          placed(item, column,
                 Error(error->code(), error->message(),
                       missing_++ < options_.max_errors ? near_.hint(path) : "", error->tag())));
    } else {
      const bool is_damaged = error->code() == ErrorCode::kDataLoss;
      problems_.add(is_damaged ? "damaged images" : "unreadable files",
                    placed(item, column, *error));
    }
    return false;
  }

  // The target gives the row its size.
  bool check_size(Item& item) {
    const media::ImageInfo& info = info_of(item.files.at(columns_.target_input()).front());
    const Size size = sizes_.of(info.height, info.width);
    if (!sizes_.is_valid()) return false;
    const std::string place = item.place + " [" + columns_.target_input() + "]: ";
    if (size.height < 1 || size.width < 1) {
      problems_.add(
          "too small images",
          place + report::size_text(info.height, info.width) + " pixels are too few to train on",
          "take the row out, or give --height and --width to enlarge every image");
      return false;
    }
    item.target = {1, size.height, size.width};
    const double scale = std::max(static_cast<double>(size.height) / info.height,
                                  static_cast<double>(size.width) / info.width);
    if (scale > kMuchEnlarged) {
      odd_.add("enlarged images",
               place + report::size_text(info.height, info.width) + " is enlarged to " +
                   report::size_text(size.height, size.width),
               "a larger image would be sharper");
    }
    if (info.is_animated)
      odd_.add("animations", place + "is an animation", "its first frame is learnt");
    return true;
  }

  bool check_mask(const Item& item, const std::string& path) {
    const media::ImageInfo& mask = info_of(path);
    const media::ImageInfo& image = info_of(item.files.at(columns_.target_input()).front());
    const double ratio = (static_cast<double>(mask.width) * image.height) /
                         (static_cast<double>(mask.height) * image.width);
    if (std::abs(std::log(ratio)) <= kMaskShapeTolerance) return true;
    problems_.add("masks of another shape",
                  item.place + " [" + options_.mask_column + "]: the mask is " +
                      report::size_text(mask.height, mask.width) + ", the image " +
                      report::size_text(image.height, image.width),
                  "a mask has the shape of its image, at any size");
    return false;
  }

  const DatasetOptions& options_;
  const Columns& columns_;
  const SizeRule& sizes_;
  const ImageFiles& files_;
  Findings& problems_;
  Findings& odd_;
  PathSuggester near_;
  int64_t missing_ = 0;  // files so far; those that will not be told need no hint
};

// Images that are the target of several rows, by path or by content.
void find_duplicates(const std::vector<Item>& items, const std::string& target_input,
                     const ImageFiles& files, Findings& odd) {
  std::map<std::string, const Item*> first_of;
  std::vector<std::string> paths;
  for (const Item& item : items) {
    const std::string& path = item.files.at(target_input).front();
    const auto [first, is_new] = first_of.emplace(path, &item);
    if (is_new) {
      paths.push_back(path);
      continue;
    }
    odd.add("duplicates",
            item.place + " [" + target_input + "]: the same image as in " + first->second->place +
                (item.values == first->second->values ? ", with the same values" : ""),
            "take one out unless it shall count twice");
  }
  for (const auto& [copy, original] : find_copies(paths, files)) {
    odd.add("duplicates",
            first_of.at(copy)->place + " [" + target_input + "]: the same content as in " +
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
    if (info.has_alpha) ++transparent;
    if (info.has_color_profile && profiles++ == 0) first_profile = &item;
  }
  if (profiles > 0) {
    odd.add("color profiles",
            first_profile->place + " [" + target_input + "]: has an embedded color profile, as " +
                std::to_string(profiles) + " of " + std::to_string(items.size()) +
                " images; colors are read as sRGB",
            "convert images of other color spaces to sRGB");
  }
  if (options.alpha_mask && transparent == 0 && !items.empty()) {
    odd.add("masks", "--alpha_mask: no image has transparency",
            "the loss counts everywhere; leave the flag out");
  }
}

std::string make_fingerprint(const std::vector<Item>& items, const DatasetOptions& options,
                             const ImageFiles& files) {
  files::ContentHash hash;
  hash.add(static_cast<int64_t>(items.size())).add(options.mask_column);
  hash.add(int64_t{options.alpha_mask});
  for (const Item& item : items) {
    add_target(hash, item.target);
    hash.add(static_cast<int64_t>(item.values.size()));
    for (const auto& [name, value] : item.values) {
      hash.add(name).add(value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
    }
    for (const auto& [column, paths] : item.files) {
      hash.add(column).add(static_cast<int64_t>(paths.size()));
      for (const std::string& path : paths) {
        const inputs::ImageFile& file = files.find(path)->second;
        hash.add(path).add(file.bytes).add(file.modified_ns);
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

}  // namespace

Dataset Dataset::open(const DatasetOptions& options, std::span<const InputSpec> inputs,
                      const LatentSpec& spec, report::Problems& problems, const RowCheck& check,
                      std::string_view variant) {
  Dataset dataset;
  dataset.options_ = options;
  const bool is_folder = options.dataset_metadata_path.empty();
  if (is_folder) dataset.options_.mask_column = DatasetOptions().mask_column;
  const SizeRule sizes(options, spec.pixel_multiple, problems);

  Findings errors(options.max_errors), odd(options.max_errors);
  std::optional<Metadata> metadata = read_rows(options, errors);
  if (metadata) add_texts(options.texts_of_all, *metadata);
  const std::string place =
      files::display_path(is_folder ? options.dataset_base_path : options.dataset_metadata_path);
  const Columns columns(dataset.options_, inputs, variant, metadata.value_or(Metadata{}), errors,
                        odd);
  dataset.inputs_ = columns.inputs();
  dataset.target_input_ = columns.target_input();
  if (!metadata) {
    hand_over(errors, place, problems);
    return dataset;
  }

  std::vector<std::pair<uint64_t, Item>> rows;  // with their lines
  std::set<std::string> paths;
  for (const Record& record : metadata->records) {
    errors.set_row(record.line);
    odd.set_row(record.line);
    if (std::optional<Item> item = columns.read(record, errors, odd))
      rows.emplace_back(record.line, std::move(*item));
  }
  for (const auto& [line, item] : rows) {
    for (const auto& [column, files] : item.files) paths.insert(files.begin(), files.end());
  }
  std::vector<std::vector<RowProblem>> found(rows.size());
  if (check) {
    for_each_in_parallel(rows.size(), [&](size_t i) {
      found[i] = check(rows[i].second, dataset.values_of(rows[i].second));
    });
  }
  const ImageFiles files = check_images(paths, options.decode_all);
  ImageRules rules(dataset.options_, columns, sizes, files, errors, odd);
  for (size_t i = 0; i < rows.size(); ++i) {
    auto& [line, item] = rows[i];
    errors.set_row(line);
    odd.set_row(line);
    for (const RowProblem& problem : found[i]) errors.add(problem.kind, problem.error);
    if (rules.check(item) && found[i].empty()) dataset.items_.push_back(std::move(item));
  }
  odd.set_row(UINT64_MAX);  // behind those of single rows
  find_duplicates(dataset.items_, dataset.target_input_, files, odd);
  find_oddities(dataset.items_, dataset.target_input_, options, files, odd);
  hand_over(errors, place, problems);
  for (const Error& warning : odd.list(place)) {
    dataset.warnings_.push_back(warning.message() +
                                (warning.hint().empty() ? "" : "; " + warning.hint()));
  }
  dataset.fingerprint_ = make_fingerprint(dataset.items_, dataset.options_, files);
  return dataset;
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
