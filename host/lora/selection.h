// LoRAs as users name them: on the command line by path, in a prompts file by name.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace atelier::lora {

// One LoRA of a set.
struct LoraRef {
  std::string name;  // what the user calls it
  std::string path = {};
  double strength = 1.0;  // 0 leaves the layers as they are
  // Which of several denoisers it is for, or kEveryDenoiser; empty: what the file says. See
  // Targets::match().
  std::string component = {};

  bool operator==(const LoraRef&) const = default;
};

// "PATH", "PATH:STRENGTH", "PATH@COMPONENT" or "PATH:STRENGTH@COMPONENT"; what stands behind the
// last @ is a component, and what stands behind the last colon a strength when it is a number,
// unless a file has the whole name. The LoRA is called what its file is called, without
// ".safetensors". Throws Error{kInvalidArgument} when there is no path or no component behind the
// @, or the strength is not finite.
LoraRef parse_use(std::string_view text);

// All that are on a command line; files of one name in several folders are told apart as "style",
// "style_2". Throws as parse_use, and Error{kInvalidArgument} when a file is given twice for one
// component.
std::vector<LoraRef> parse_flags(const std::vector<std::string>& texts);

// [{"name": "style", "strength": 0.7, "component": "dit"}, "other"]: names in `folder`.
// Throws Error{kInvalidArgument} for another form, and what find_in_folder throws.
std::vector<LoraRef> parse_uses(const nlohmann::json& list, const std::string& folder);

// The file that a name stands for: NAME or NAME.safetensors below `folder`, in a folder there when
// the name has slashes. Names come from whoever writes the jobs, so none leads out of `folder`.
// Throws Error{kInvalidArgument} for a name that would, or when there is no folder, and
// Error{kNotFound} naming the nearest one.
std::string find_in_folder(const std::string& folder, const std::string& name);

}  // namespace atelier::lora
