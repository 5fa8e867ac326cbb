// Files of kohya's trainers and of musubi-tuner, --dataset_config and --config_file, and their
// folders of images.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "host/report/problems.h"

namespace atelier::foreign {

// Names of flags with their values.
using FlagValues = std::vector<std::pair<std::string, std::string>>;

// What a file of one dataset says, with one subset or with musubi-tuner's folder of images or
// videos, in flags of atelier train. What has no flag and would be missed becomes a problem, as
// does a second dataset or subset, and a file that cannot be read.
FlagValues read_kohya_dataset(const std::string& path, report::Problems& problems);

// A flag of theirs as a file says it.
struct FileFlag {
  int64_t line;                     // counted from 1
  std::string name;                 // without dashes
  std::vector<std::string> values;  // empty: it stands alone
};

// The flags in a file of --config_file, which may stand in [sections], by their lines. A key that
// is false or empty is no flag, as there. A file that cannot be read becomes a problem.
std::vector<FileFlag> read_kohya_config(const std::string& path, report::Problems& problems);

// What a folder of images is to kohya's trainers without a file of the dataset, in flags of atelier
// train: of a folder in it called N_words, images are learnt N times in an epoch, and others are
// not. Without such a one it is a dataset as it is. Throws Error{kInvalidArgument} where several
// are no single dataset, and Error{kEnvironment} where the folder cannot be read.
FlagValues flags_of_folders(const std::string& folder);

// "1024", "1024,768" (width first) as flags: the size of every image, or with buckets their area.
// Throws Error{kInvalidArgument}.
FlagValues flags_of_resolution(const std::string& text, bool has_buckets);

}  // namespace atelier::foreign
