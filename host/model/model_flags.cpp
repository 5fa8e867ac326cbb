// The flags that say which model is meant.
#include "host/model/model_flags.h"

#include "atelier/error.h"

#include "host/flags/flags.h"

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

std::vector<flags::FlagSpec> model_flags(std::string dtype) {
  return {
      plugin_flag(),
      plugin_path_flag(),
      {.name = "model_paths",
       .help = "files, folders or globs: a path, paths between commas, or JSON '[\"a\", "
               "[\"b-1\", \"b-2\"]]'",
       .preset = "",
       .value_name = "FILE|FOLDER"},
      {.name = "model_id_with_origin_paths",
       .kind = flags::FlagKind::kList,
       .help = "published files: org/name:glob,org/name:glob",
       .preset = ""},
      {.name = "tokenizer_path",
       .help = "folder or file of the tokenizer",
       .preset = "",
       .value_name = "FILE|FOLDER"},
      model_hints_flag(),
      {.name = "dtype",
       .help = "for all, or by component: bfloat16,vae=float32",
       .preset = std::move(dtype),
       .choices = weights::dtype_choices(),
       .by_component = true},
      {.name = "device",
       .help = "auto, cpu, cuda or cuda:N; stand-in:512MiB:4GB/s: the CPU with the memory and the "
               "copies of such a GPU",
       .preset = "auto"},
      {.name = "storage",
       .kind = flags::FlagKind::kList,
       .help = "8-bit weights by component: dit=fp8,text_encoder=int8; published: as the file has "
               "them; bf16 and plain: in dtype",
       .preset = ""},
      {.name = "compute",
       .kind = flags::FlagKind::kList,
       .help = "of products by component: dit=w8a8 multiplies weights that are stored as fp8 or "
               "int8 in 8 bits; bf16 and plain: in dtype",
       .preset = ""},
      {.name = "fp8_models",
       .kind = flags::FlagKind::kList,
       .help = "entries of model_paths or model_id_with_origin_paths that are stored as fp8",
       .preset = ""},
      {.name = "offload",
       .kind = flags::FlagKind::kList,
       .help = "where blocks rest that come to the device when they run, by component: "
               "dit=host,text_encoder=disk",
       .preset = ""},
      {.name = "resident_blocks",
       .kind = flags::FlagKind::kList,
       .help = "with offload, blocks that stay on the device: 20 of the denoiser, or "
               "dit=20,text_encoder=4",
       .preset = ""},
      {.name = "prefetch",
       .kind = flags::FlagKind::kInteger,
       .help = "with offload, blocks that are on their way while one runs",
       .preset = "2"},
  };
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

model::LoadRequest load_request(const flags::ParsedFlags& flags) {
  model::LoadRequest request;
  request.model_paths = flags.text("model_paths");
  request.model_id_with_origin_paths = flags.text("model_id_with_origin_paths");
  request.tokenizer_path = flags.text("tokenizer_path");
  weights::RequestedDtypes dtypes = weights::parse_dtypes(flags.text("dtype"));
  request.dtype = std::move(dtypes.all);
  request.dtypes = std::move(dtypes.components);
  request.device = flags.text("device");
  request.hints = parse_hints(flags.json("model_hints"));
  request.storage = weights::parse_storage(flags.list("storage"));
  request.compute = weights::parse_compute(flags.list("compute"));
  request.fp8_models = flags.list("fp8_models");
  request.placement.offload = model::parse_offload(flags.list("offload"));
  model::parse_resident_blocks(flags.list("resident_blocks"), request.placement);
  request.placement.prefetch = flags.integer("prefetch");
  return request;
}

}  // namespace atelier::model
