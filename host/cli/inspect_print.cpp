// What `atelier inspect` found, as lines for people.
#include <cstdio>

#include "formats/escape.h"
#include "host/cli/inspect.h"
#include "host/files/file_reader.h"
#include "host/report/problems.h"

namespace atelier::cli {

using files::display_path;
using Json = InspectedThing;

namespace {

std::string shown(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

std::string count_text(uint64_t elements) {
  char text[32];
  const auto value = static_cast<double>(elements);
  if (elements >= 1'000'000'000) {
    std::snprintf(text, sizeof(text), "%.2f billion", value / 1e9);
  } else if (elements >= 1'000'000) {
    std::snprintf(text, sizeof(text), "%.2f million", value / 1e6);
  } else {
    std::snprintf(text, sizeof(text), "%llu", static_cast<unsigned long long>(elements));
  }
  return text;
}

// A value of foreign metadata on one line.
std::string one_line(const std::string& text, size_t max_chars) {
  const std::string quoted = formats::quote_and_escape(text, max_chars);
  return quoted.substr(1, quoted.size() - 2);
}

void print_component(const Json& by) {
  std::printf("  family %s, component %s, variant %s, spelling %s", shown(by["family"]).c_str(),
              shown(by["component"]).c_str(), shown(by["variant"]).c_str(),
              shown(by["spelling"]).c_str());
  if (const std::string prefix = by["prefix"]; !prefix.empty())
    std::printf(", prefix %s", prefix.c_str());
  std::puts("");
  if (by.contains("config")) {
    std::string line;
    for (const auto& [key, value] : by["config"].items())
      line += (line.empty() ? "" : ", ") + key + " " + one_line(shown(value), 60);
    std::printf("  %s\n", line.c_str());
  }
  if (by.contains("config_place"))
    std::printf("  config: %s\n", display_path(shown(by["config_place"])).c_str());
  if (!by.contains("inputs")) return;
  std::string line;
  for (const Json& input : by["inputs"])
    line += (line.empty() ? "" : ", ") + shown(input["name"]) +
            (input["required"].get<bool>()
                 ? input["use"] == "train" ? " (required to train)" : " (required)"
                 : "");
  std::printf("  inputs: %s\n", line.c_str());
}

void print_lora(const Json& lora) {
  std::printf("  %s layers, rank %s", shown(lora["layers"]).c_str(), lora["ranks"].dump().c_str());
  if (lora.contains("family"))
    std::printf(", for %s %s (%s layers known there)", shown(lora["family"]).c_str(),
                shown(lora["component"]).c_str(), shown(lora["known_layers"]).c_str());
  std::puts("");
}

// The pairs of an object, a line each.
void print_pairs(const Json& pairs, size_t longest_key, size_t longest_value) {
  for (const auto& [key, value] : pairs.items())
    std::printf("  %s = %s\n", one_line(key, longest_key).c_str(),
                one_line(shown(value), longest_value).c_str());
}

void print_tensors(const Json& item) {
  const Json& tensors = item["tensors"];
  const size_t files = item["files"].size();
  if (files > 1) std::printf(", %zu shards", files);
  std::printf(", %s tensors, %s values, %s", shown(tensors["count"]).c_str(),
              count_text(tensors["elements"].get<uint64_t>()).c_str(),
              report::format_bytes(tensors["bytes"].get<uint64_t>()).c_str());
  if (tensors.contains("dtypes")) {
    for (const auto& [name, counts] : tensors["dtypes"].items())
      std::printf(", %s %s", name.c_str(), shown(counts["tensors"]).c_str());
  }
  std::puts("");
  if (item.contains("taken_by")) {
    print_component(item["taken_by"]);
    if (item["taken_by"].contains("others")) {
      for (const Json& other : item["taken_by"]["others"]) print_component(other);
    }
  }
  if (item.contains("lora")) print_lora(item["lora"]);
  if (item.contains("metadata")) print_pairs(item["metadata"], 60, 120);
  if (tensors.contains("list")) {
    for (const Json& tensor : tensors["list"])
      std::printf("  %s %s %s\n", one_line(shown(tensor["name"]), 200).c_str(),
                  shown(tensor["dtype"]).c_str(), tensor["shape"].dump().c_str());
  }
}

void print_image(const Json& item) {
  std::printf(", %s, %sx%s, %s channels of %s bits%s\n", shown(item["format"]).c_str(),
              shown(item["width"]).c_str(), shown(item["height"]).c_str(),
              shown(item["channels"]).c_str(), shown(item["bits"]).c_str(),
              item.contains("animated") ? ", animated" : "");
  if (item.contains("text")) print_pairs(item["text"], 80, 4000);
}

void print_table(const Json& item) {
  std::string columns;
  for (const Json& column : item["columns"])
    columns += (columns.empty() ? "" : ", ") + one_line(shown(column), 60);
  std::printf(", %s, %s rows, columns %s\n", shown(item["format"]).c_str(),
              shown(item["rows"]).c_str(), columns.c_str());
}

std::string state_text(const Json& state) {
  if (state.contains("refused")) return "damaged";
  return "step " + shown(state["step"]) + ", " +
         report::format_bytes(state["bytes"].get<uint64_t>());
}

void print_state(const Json& item) {
  if (item.contains("refused")) {
    std::puts("");
    return;
  }
  std::printf(" of a run to resume from, %s in %s files\n", state_text(item).c_str(),
              shown(item["files"]).c_str());
  print_pairs(item["facts"], 60, 120);
}

void print_metrics(const Json& item) {
  if (!item.contains("last_step")) {
    std::puts(", no rows");
    return;
  }
  std::printf(", steps %s to %s; the last values:\n", shown(item["first_step"]).c_str(),
              shown(item["last_step"]).c_str());
  print_pairs(item["last"], 60, 60);
}

void print_run(const Json& item) {
  std::puts(" of training");
  if (item.contains("settings")) print_pairs(item["settings"], 60, 120);
  for (const Json& state : item["states"])
    std::printf("  to resume from: %s: %s\n", display_path(shown(state["path"])).c_str(),
                state_text(state).c_str());
  if (item["states"].empty()) std::puts("  nothing to resume from");
  if (const Json& previews = item["previews"]; !previews.empty())
    std::printf("  %zu sample pictures, the last %s\n", previews.size(),
                one_line(shown(previews.back()), 120).c_str());
  if (item.contains("metrics") && item["metrics"].contains("last_step")) {
    const Json& last = item["metrics"]["last"];
    std::printf("  metrics to step %s", shown(item["metrics"]["last_step"]).c_str());
    if (last.contains("train/loss"))
      std::printf(", train/loss %s", one_line(shown(last["train/loss"]), 40).c_str());
    std::puts("");
  }
}

void print_cache(const Json& item) {
  if (!item.contains("samples")) {
    std::puts("");
    return;
  }
  std::printf(", %s samples for %s%s\n", shown(item["samples"]).c_str(),
              one_line(shown(item["family"]), 60).c_str(),
              item["complete"].get<bool>() ? "" : ", interrupted before the end");
  std::string sizes;
  const Json& all = item["sizes"];
  for (size_t i = 0; i < all.size() && i < 8; ++i)
    sizes += (i == 0 ? "" : ", ") + shown(all[i][0]) + "x" + shown(all[i][1]);
  if (all.size() > 8) sizes += " and " + std::to_string(all.size() - 8) + " more";
  std::printf("  heights x widths: %s\n", sizes.c_str());
}

void print_settings(const Json& item) {
  std::printf(" of train, %s of them\n", shown(item["count"]).c_str());
  print_pairs(item["settings"], 60, 120);
}

}  // namespace

void print_inspected(const InspectedThing& thing) {
  const std::string kind = thing["kind"].get<std::string>();
  std::printf("%s: %s", display_path(thing["path"].get<std::string>()).c_str(), kind.c_str());
  if (thing.contains("tensors")) {
    print_tensors(thing);
  } else if (kind == "image") {
    print_image(thing);
  } else if (kind == "dataset metadata") {
    print_table(thing);
  } else if (kind == "tokenizer") {
    std::printf(", %s ids\n", shown(thing["tokens"]).c_str());
  } else if (kind == "run") {
    print_run(thing);
  } else if (kind == "state") {
    print_state(thing);
  } else if (kind == "encoded samples") {
    print_cache(thing);
  } else if (kind == "settings") {
    print_settings(thing);
  } else if (kind == "metrics") {
    print_metrics(thing);
  } else {
    std::printf(", family %s, version %s\n", shown(thing["family"]).c_str(),
                shown(thing["version"]).c_str());
  }
}

}  // namespace atelier::cli
