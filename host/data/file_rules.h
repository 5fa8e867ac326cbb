// What the files of a row must be like, and what of them is learnt.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "atelier/model.h"

#include "host/data/columns.h"
#include "host/data/dataset.h"
#include "host/data/findings.h"
#include "host/data/image_files.h"
#include "host/data/path_suggester.h"
#include "host/data/sizes.h"

namespace atelier::data {

// Gives rows their sizes and frames. Not thread-safe.
class FileRules {
 public:
  // Rules for the rows of `files`; all outlive the rules.
  FileRules(const DatasetOptions& options, const Columns& columns, const SizeRule& sizes,
            const LatentSpec& spec, const DataFiles& files, Findings& problems, Findings& odd);

  // The items of a row: one for each piece of its clip. None when it has problems.
  std::vector<Item> items_of(Item row);

 private:
  const inputs::ImageFile& file(std::string_view column, const std::string& path) const {
    return files_.of(columns_.kind(column), path);
  }
  const inputs::ImageFile& target_of(const Item& item) const {
    const std::string& target = columns_.target_input();
    return file(target, item.files.at(target).front());
  }
  // Where in the row, as its file calls the column.
  std::string place_of(const Item& item, const std::string& column) const {
    const bool is_target = column == columns_.target_input();
    return item.place + " [" + (is_target ? item.target_column : column) + "]";
  }
  std::string target_place(const Item& item) const {
    return place_of(item, columns_.target_input()) + ": ";
  }
  Error placed(const Item& item, const std::string& column, const Error& error) const;

  bool check_file(const Item& item, const std::string& column, const std::string& path);
  bool check_kind(const Item& item, const std::string& column, const std::string& path);
  bool check_size(Item& item);
  bool check_shapes(const Item& item);
  bool check_mask(const Item& item, const std::string& path);
  bool check_mask_frames(const Item& item);
  bool check_beside(const Item& row, const std::vector<Item>& items);
  bool check_soundtrack(const Item& row, const std::vector<Item>& items);
  std::vector<Item> cut(Item row);
  void find_unseen(const Item& item);
  void find_odd_clip(const Item& item, const media::ClipInfo& clip);
  void find_short_clip(const Item& item, int64_t shown, const std::vector<Pieces>& pieces);

  const DatasetOptions& options_;
  const Columns& columns_;
  const SizeRule& sizes_;
  const LatentSpec& spec_;
  const DataFiles& files_;
  Findings& problems_;
  Findings& odd_;
  PathSuggester near_;
  int64_t missing_ = 0;  // files so far; those that will not be told need no hint
};

}  // namespace atelier::data
