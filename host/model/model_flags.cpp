// The flags that say which model is meant.
#include "host/model/model_flags.h"

#include <functional>

#include "atelier/error.h"

#include "host/flags/table.h"

namespace atelier::model {

flags::FlagSpec plugin_flag() {
  return {.name = "plugin",
          .help = "family name, or path of a plugin",
          .required = true,
          .value_name = "FAMILY|FILE"};
}

flags::FlagSpec plugin_path_flag() {
  return {.name = "plugin_path",
          .help = "folders with plugins, separated by colons",
          .preset = "",
          .value_name = "FOLDER"};
}

flags::FlagSpec model_hints_flag() {
  return {.name = "model_hints",
          .kind = flags::FlagKind::kJson,
          .help =
              "what a file is, where its tensors cannot tell: '{\"*glob*\": {\"component\": "
              "\"dit\"}}'",
          .preset = "{}"};
}

std::map<std::string, DetectHint> parse_hints(const nlohmann::json& hints) {
  const Error malformed(ErrorCode::kInvalidArgument,
                        "--model_hints: globs with component and variant are expected",
                        "write '{\"*glob*\": {\"component\": \"dit\", \"variant\": \"name\"}}'");
  if (!hints.is_object()) throw malformed;
  std::map<std::string, DetectHint> out;
  for (const auto& [glob, said] : hints.items()) {
    if (!said.is_object()) throw malformed;
    DetectHint hint;
    for (const auto& [key, value] : said.items()) {
      if (!value.is_string() || (key != "component" && key != "variant")) throw malformed;
      (key == "component" ? hint.component : hint.variant) = value.get<std::string>();
    }
    out.emplace(glob, std::move(hint));
  }
  return out;
}

namespace {

// A list, and what becomes of its parts.
void add_list(flags::Table& table, const std::string& name, std::string help,
              std::function<void(const std::vector<std::string>&)> take) {
  table.add({.name = name, .kind = flags::FlagKind::kList, .help = std::move(help), .preset = ""},
            [name, take](const flags::ParsedFlags& flags) { take(flags.list(name)); });
}

void add_files(flags::Table& table, LoadOptions& r) {
  flags::FlagSpec plugin = plugin_flag();
  plugin.help += "; by default the one whose files they are";
  plugin.required = false;
  table.add(plugin)
      .add(plugin_path_flag())
      .text("model_paths", r.model_paths,
            "files, folders or globs: a path, paths between commas, or JSON '[\"a\", "
            "[\"b-1\", \"b-2\"]]'",
            "FILE|FOLDER")
      .add({.name = "model_id_with_origin_paths",
            .kind = flags::FlagKind::kList,
            .help = "published files: org/name:glob,org/name:glob",
            .preset = ""},
           [&r](const flags::ParsedFlags& flags) {
             r.model_id_with_origin_paths = flags.text("model_id_with_origin_paths");
           })
      .text("tokenizer_path", r.tokenizer_path, "folder or file of the tokenizer", "FILE|FOLDER")
      .add(model_hints_flag(), [&r](const flags::ParsedFlags& flags) {
        r.hints = parse_hints(flags.json("model_hints"));
      });
}

void add_dtypes(flags::Table& table, LoadOptions& r, std::string dtype) {
  table
      .add({.name = "dtype",
            .help = "for all, or by component: bfloat16,vae=float32",
            .preset = std::move(dtype),
            .choices = weights::dtype_choices(),
            .by_component = true},
           [&r](const flags::ParsedFlags& flags) {
             weights::DtypeFlags dtypes = weights::parse_dtypes(flags.text("dtype"));
             r.dtype = std::move(dtypes.all);
             r.dtypes = std::move(dtypes.components);
           })
      .text("device", r.device,
            "auto, cpu, cuda or cuda:N; simulated:512MiB:4GB/s: the CPU with the memory and the "
            "copies of such a GPU");
}

void add_storage(flags::Table& table, LoadOptions& r) {
  add_list(table, "storage",
           "weights in 8 or 4 bits by component: dit=fp8,text_encoder=int8, nf4 or fp4; published: "
           "as the file has them; bf16 and plain: in dtype",
           [&r](const auto& entries) { r.storage = weights::parse_storage(entries); });
  add_list(table, "compute",
           "of products by component: dit=w8a8 multiplies weights that are stored as fp8 or "
           "int8 in 8 bits; bf16 and plain: in dtype",
           [&r](const auto& entries) { r.compute = weights::parse_compute(entries); });
  table
      .list("fp8_models", r.fp8_models,
            "entries of model_paths or model_id_with_origin_paths that are stored as fp8")
      .add({.name = "quant_options",
            .help = "DiffSynth-Studio's: ENTRY:bitsandbytes_nf4/layers that stay plain;ENTRY:...",
            .preset = ""},
           [&r](const flags::ParsedFlags& flags) {
             r.quant_options = parse_quant_options(flags.text("quant_options"));
           });
  add_list(table, "offload",
           "where blocks rest that come to the device when they run, by component: "
           "dit=host,text_encoder=disk",
           [&r](const auto& entries) { r.placement.offload = parse_offload(entries); });
  add_list(table, "resident_blocks",
           "with offload, blocks that stay on the device: 20 of the denoiser, or "
           "dit=20,text_encoder=4",
           [&r](const auto& entries) { parse_resident_blocks(entries, r.placement); });
  table.number(
      "prefetch", r.placement.prefetch,
      "with offload, blocks that are on their way while one runs (2 where nothing is planned)");
}

flags::Table model_table(LoadOptions& request, std::string dtype) {
  flags::Table table;
  add_files(table, request);
  add_dtypes(table, request, std::move(dtype));
  add_storage(table, request);
  return table;
}

}  // namespace

std::vector<flags::FlagSpec> model_flags(std::string dtype) {
  LoadOptions presets;
  return model_table(presets, std::move(dtype)).specs();
}

LoadOptions load_request(const flags::ParsedFlags& flags, report::Problems& problems) {
  LoadOptions request;
  model_table(request, "auto").read(flags, problems);
  return request;
}

}  // namespace atelier::model
