// Which of two experts a file holds, by the names that files and folders are published with: two
// experts have the same tensors.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace wan {

// The experts of much noise, "dit", and of little, "dit2".
enum class Expert { kHigh, kLow };

// The expert that the last name in a path says which says one alone; nullopt: none does. A name
// says it, in upper case or lower, by "high_noise", "highnoise" or "high-noise", and by being
// "transformer" or "transformer_2", as folders of diffusers are. A file's own name and that of its
// folder also say it by the word "high" where nothing but numbers, a format or what a file is
// follows it: "Wan2.2-T2V_HIGH_fp16", and not "high_quality". The low one is told likewise.
std::optional<Expert> expert_named(std::string_view path);

// Whether any name in a path says the expert, folders of diffusers aside: the denoiser of a model
// without experts lies in "transformer", too.
bool says_noise(std::string_view path, Expert expert);

std::string lower_case(std::string_view text);

}  // namespace wan
