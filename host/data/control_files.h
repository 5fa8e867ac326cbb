// Images beside the ones to learn that lie in a folder of their own and are called alike.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "atelier/input.h"

#include "host/data/dataset.h"
#include "host/data/findings.h"
#include "host/data/metadata.h"

namespace atelier::data {

// The input that takes such files: the one of `extra_inputs` that takes images or clips, else the
// only one that `variant` is trained with, or of several the only one that it needs; "": the
// variant is not known, and one that some variant needs will do. Throws Error where there is none,
// or more than one to choose from.
const InputSpec& control_input(std::span<const InputSpec> inputs,
                               const std::vector<std::string>& extra_inputs,
                               std::string_view variant);

// The folder of control_path as rows of dataset_base_path call it: "controls", "../b"; "." where it
// is that itself.
std::string control_folder(const DatasetOptions& options);

// Gives each row that has no value for `control` the files below options.control_path that are
// called as the file of its `target` is, with any ending: "sub/a.png" gets "sub/a.jpg", and of
// several "sub/a_0.png", "sub/a_1.png", … in the order of these numbers, whatever gaps they have.
// A file that is called as one image is whole belongs to that one: "a_1.png" to "a_1.jpg" where
// there is one, and else to "a.jpg".
//
// Rows that get none are taken out: they are one problem, as are those for which two files have one
// place. Files of no row are odd. A folder that cannot be read is a problem, and leaves no rows.
void add_control_files(const DatasetOptions& options, std::string_view target,
                       const InputSpec& control, Metadata& metadata, Findings& problems,
                       Findings& odd);

}  // namespace atelier::data
