#include "host/files/outputs.h"

#include <filesystem>
#include <vector>

#include "atelier/error.h"

#include "host/files/file_reader.h"
#include "host/report/problems.h"

namespace atelier::files {

namespace fs = std::filesystem;

void refuse_to_replace(const std::string& flag, const std::string& path) {
  std::error_code failure;
  if (!fs::exists(path, failure)) return;
  throw Error(ErrorCode::kInvalidArgument, flag + ": " + display_path(path) + " is there already",
              "name another file, or remove that one first", "OUTPUT_EXISTS");
}

std::string path_of_component(const std::string& path, const std::string& component) {
  const fs::path whole(path);
  const std::string name = whole.stem().string() + "_" + component + whole.extension().string();
  return (whole.parent_path() / name).string();
}

std::string replaced_note(std::span<const std::string> paths) {
  std::vector<std::string> there;
  std::error_code failure;
  for (const std::string& path : paths)
    if (fs::exists(path, failure)) there.push_back(path);
  return there.empty() ? "" : "note: replaces " + report::list_names(there, 5);
}

}  // namespace atelier::files
