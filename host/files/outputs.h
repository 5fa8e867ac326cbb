// Files that a command is told to write, and that are there already.
#pragma once

#include <span>
#include <string>

namespace atelier::files {

// Weights are not written over: what was learnt may be nowhere else. Throws
// Error{kInvalidArgument} naming the flag or argument and the file when it is there.
void refuse_to_replace(const std::string& flag, const std::string& path);

// Where a component's file lies when several are written in the place of `path`: "out.safetensors"
// is "out_dit.safetensors".
std::string path_of_component(const std::string& path, const std::string& component);

// Images, tables and numbers can be made again, and are replaced: a line that says so. Empty:
// none of `paths` is there.
std::string replaced_note(std::span<const std::string> paths);

}  // namespace atelier::files
