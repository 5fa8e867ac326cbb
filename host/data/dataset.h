// The samples of a training run: every one is checked before any of them is needed.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "atelier/input.h"
#include "atelier/model.h"

#include "host/data/frame_picking.h"
#include "host/data/metadata.h"
#include "host/files/content_hash.h"
#include "host/inputs/beside.h"
#include "host/report/problems.h"

namespace atelier::data {

// Names are those of the flags.
struct DatasetOptions {
  std::string dataset_base_path;      // what relative paths are relative to
  std::string dataset_metadata_path;  // empty: captions beside the images of dataset_base_path
  // Folder of the files of one input, which are called as those of the target are; see
  // add_control_files(). Empty: there is none.
  std::string control_path = {};
  std::string control_flag = "--control_path";  // what gave it, for messages
  // Columns with file paths; others are taken as they stand. Absent columns are no mistake.
  std::vector<std::string> data_file_keys = {"image", "video"};
  // Optional inputs of the family that every row must have.
  std::vector<std::string> extra_inputs = {};
  // Optional inputs that are texts, by name: what rows have that give none of their own.
  std::map<std::string, std::string, std::less<>> texts_of_all = {};
  std::string caption_extension = ".txt";
  // Both or neither, in pixels. Neither: every image keeps its shape, see target_size().
  std::optional<int64_t> height, width;
  int64_t max_pixels = 1'048'576;
  // Aspect-ratio buckets: an image is cut to the nearest of a few shapes of about max_pixels, so
  // that batches find images of one shape.
  bool enable_bucket = false;
  int64_t bucket_reso_steps = 64;  // sides of buckets are multiples of it, in pixels
  int64_t min_bucket_reso = 256, max_bucket_reso = 2048;
  bool bucket_no_upscale = false;  // small images get a smaller bucket instead of being enlarged
  // Where the loss counts: a column with images (white counts, gray counts less), or the
  // image's own transparency.
  std::string mask_column = "mask";
  bool alpha_mask = false;
  ClipOptions clips = {};
  bool decode_all = false;   // --validate full: every file is decoded, not only its header read
  int64_t max_errors = 100;  // problems that are told one by one
};

// One row that is ready to be read.
struct Item {
  std::string place;          // names the row in messages
  std::string target_column;  // what the row's file calls the target input, for messages
  // Inputs of the family that are no files, as inputs::parse_value() gives them, and whatever else
  // the row holds.
  std::map<std::string, nlohmann::json, std::less<>> values;
  // Paths of the family's inputs that are files and of the mask, as they are opened. Those whose
  // when_absent says what stands in may be missing.
  std::map<std::string, std::vector<std::string>, std::less<>> files;
  MediaTarget target;  // what the target input is brought to by crop_and_resize
  // Numbers of the target's frames that are learnt, ascending; empty: it is an image.
  std::vector<int64_t> frames;
  int64_t piece = 0;  // of all that the row's clip is cut into, of whatever length, from 0
  // How many of the frames that are seen are before it, and how many are shown a second (0: it is
  // not known).
  int64_t first = 0;
  double fps = 0.0;
  // It stands for the same sample as the item before it: one of them is drawn at a time.
  bool is_alternative = false;
};

// A decoded row.
struct Sample {
  // Images as their InputSpec::fit brings them to the item's size; clips and sounds as
  // inputs::read_files() reads them.
  Inputs inputs;
  // float32 [1, H, W], or of a clip of masks [1, T, H, W], in [0, 1]; undefined: the loss counts
  // everywhere
  at::Tensor mask;
};

// What is wrong with a row; `kind` as in Findings.
struct RowProblem {
  std::string_view kind;
  Error error;
};

// What a dataset cannot know of a row; `inputs` are its inputs but for images. Called from
// several threads.
using RowCheck = std::function<std::vector<RowProblem>(const Item& row, const Inputs& inputs)>;

struct BucketCount {
  MediaTarget target;
  int64_t items = 0;
};

// Immutable, and safe to read from several threads.
class Dataset {
 public:
  // Reads metadata and the headers of all files, on all cores. `inputs`: of the family; `spec`:
  // what sizes must be multiples of; `check`: called for every row that has its inputs; `variant`:
  // of the denoiser, "" where there is none, nothing where it is not known and inputs of any
  // variant may be named. Problems name rows and say what to do; after max_errors of them the rest
  // is counted by kind. Items with problems are left out.
  static Dataset open(const DatasetOptions& options, std::span<const InputSpec> inputs,
                      const LatentSpec& spec, report::Problems& problems,
                      const RowCheck& check = {}, std::optional<std::string_view> variant = "");

  const std::vector<Item>& items() const { return items_; }
  // Items that are no alternatives of others.
  int64_t samples() const;
  const DatasetOptions& options() const { return options_; }
  // Inputs that every row has.
  const std::vector<InputSpec>& inputs() const { return inputs_; }

  // The name of the input whose role is InputRole::kTarget.
  const std::string& target_input() const { return target_input_; }

  // Decodes one item. Throws Error naming the row and the file.
  Sample load(size_t index) const;
  // Its inputs as load() would give them, images without values and the target left out. Reads
  // headers of images. Throws as load().
  Inputs shapes(size_t index) const;
  // Its inputs that are no files.
  Inputs values(size_t index) const { return values_of(items_.at(index)); }

  // Hash of what the items are: rows, paths within the dataset, lengths and ends of their files
  // (files::hash_ends), target sizes. Equal for copies of a dataset, whatever their times.
  const std::string& fingerprint() const { return fingerprint_; }

  // How many items have which size, the largest count first.
  std::vector<BucketCount> buckets() const;

  // What is odd and no mistake: duplicates, empty captions, images that are enlarged much.
  const std::vector<std::string>& warnings() const { return warnings_; }

 private:
  Inputs values_of(const Item& item) const;
  Inputs shapes(const Item& item) const;
  Sample load(const Item& item) const;
  InputValue read(const InputSpec& input, const Item& item,
                  const std::vector<std::string>& paths) const;
  at::Tensor read_mask(const Item& item, const std::string& path) const;

  DatasetOptions options_;
  std::string target_input_, fingerprint_;
  std::vector<InputSpec> inputs_;
  std::vector<Item> items_;
  std::vector<std::string> warnings_;
};

// What an item's other inputs are read beside.
inputs::Made made_of(const Item& item);

// Adds a target to a content; that of an image has no frames in it.
void add_target(files::ContentHash& content, const MediaTarget& target);

// The size that an image of height x width is cropped to when no size is given: at most
// max_pixels, never enlarged, both sides rounded down to multiples of `multiple`:
//   s = sqrt(h w / max_pixels) when h w > max_pixels, else 1; h' = trunc(h / s) / multiple *
//   multiple
struct Size {
  int64_t height, width;
  bool operator==(const Size&) const = default;
};
Size target_size(int64_t height, int64_t width, int64_t max_pixels, int64_t multiple);

// The buckets of these options, and the one whose shape is nearest to height x width (in the ratio
// of its sides).
std::vector<Size> make_buckets(const DatasetOptions& options, int64_t multiple);
Size nearest_bucket(std::span<const Size> buckets, int64_t height, int64_t width);

}  // namespace atelier::data
