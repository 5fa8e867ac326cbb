#include "host/model/memory_limits.h"

#include "atelier/error.h"

#include "memory/activation_budget.h"

namespace atelier::model {
namespace {

constexpr const char* kOff = "off";

// nullopt: auto.
std::optional<int64_t> parse_size(const std::string& flag, const std::string& text,
                                  const std::string& hint) {
  if (text.empty() || text == "auto") return std::nullopt;
  try {
    const memory::ActivationBudget size = memory::parse_activation_budget(text);
    if (size.kind == memory::ActivationBudget::Kind::kBytes && size.bytes > 0) return size.bytes;
  } catch (const Error&) {  // told below, with this flag's name
  }
  throw Error(ErrorCode::kInvalidArgument, flag + " " + text + " is no size", hint);
}

weights::Storage parse_allowed(const std::string& name) {
  using weights::Storage;
  for (const Storage storage : {Storage::kFp8, Storage::kInt8, Storage::kNf4, Storage::kFp4}) {
    if (name == weights::storage_name(storage)) return storage;
  }
  throw Error(ErrorCode::kInvalidArgument, "--allow_storage " + name + ": it is not known",
              "use fp8, int8, nf4, fp4 or several of them");
}

}  // namespace

void add_memory_flags(flags::Table& table, MemoryLimits& limits) {
  table
      .add({.name = "vram",
            .help = "what the run may take of the device, 12GiB; auto: what a GPU has free; off: "
                    "nothing is planned. What was not said otherwise is chosen so that it fits",
            .preset = "auto"},
           [&limits](const flags::ParsedFlags& given) {
             const std::string text = given.text("vram");
             limits.plans = text != kOff;
             if (limits.plans)
               limits.vram = parse_size("--vram", text, "write auto, off, or a size such as 12GiB");
           })
      .add({.name = "host_memory",
            .help = "what it may take of the host for that; auto: what is free",
            .preset = "auto"},
           [&limits](const flags::ParsedFlags& given) {
             limits.host_memory = parse_size("--host_memory", given.text("host_memory"),
                                             "write auto, or a size such as 12GiB");
           })
      .add({.name = "allow_storage",
            .kind = flags::FlagKind::kList,
            .help =
                "storages that a plan may choose where that is faster or fits: fp8, int8, nf4, fp4",
            .preset = ""},
           [&limits](const flags::ParsedFlags& given) {
             for (const std::string& name : given.list("allow_storage"))
               limits.allowed_storages.push_back(parse_allowed(name));
           });
}

}  // namespace atelier::model
