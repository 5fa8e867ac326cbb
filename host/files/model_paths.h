// From what the user names to files: folders, globs, shard lists and published model ids.
#pragma once

#include <string>
#include <vector>

#include "host/files/model_folder.h"
#include "host/report/problems.h"

namespace atelier::files {

// Finds the files of --model_paths and --model_id_with_origin_paths; either may be empty. What is
// wrong is added to `problems`, all of it; what is published and not here is one problem with the
// places searched and the command that downloads it.
FoundFiles find_model_files(const std::string& model_paths,
                            const std::string& model_id_with_origin_paths,
                            report::Problems& problems);

// Adds what one path, folder or glob stands for to `found`. Throws Error.
void find_at_path(const std::string& path, FoundFiles& found);

// Where published models are looked for: ATELIER_MODEL_BASE_PATH (or DIFFSYNTH_MODEL_BASE_PATH, or
// ./models), then the caches of Hugging Face and ModelScope. Each is a folder that holds the files
// of `model_id`.
std::vector<std::string> published_folders(const std::string& model_id);

}  // namespace atelier::files
