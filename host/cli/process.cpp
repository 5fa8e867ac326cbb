#include "host/cli/process.h"

#include <algorithm>
#include <optional>

#include <c10/util/StringUtil.h>

#include "atelier/error.h"

#include "formats/escape.h"
#include "host/cli/built_kernels.h"
#include "host/cli/proving.h"
#include "host/device/cuda.h"
#include "host/report/error_line.h"
#include "host/report/say_once.h"

namespace atelier::cli {
namespace {

using flags::KernelChoice;

// One process of a run on this machine proves kernels; each finds mistakes in what a launcher says
// where it joins the run.
bool is_first_here() {
  try {
    return distributed::find_ranks(distributed::process_environment()).local_rank == 0;
  } catch (const Error&) {
    return false;
  }
}

void note(const ProcessUse& use, const std::string& text) {
  if (!use.is_quiet) report::say_once("note: " + text + "\n");
}

// What is known of the GPUs here; nullopt: nothing was proven.
std::optional<tune::Proven> proven_here(const ProcessUse& use, bool may_prove) {
  const std::vector<tune::GpuKind> kinds = tune::kinds_here();
  if (kinds.empty()) return std::nullopt;
  auto tables = tune::read_tables(tune::cache_folder(), kinds);
  if (!tables && may_prove) tables = prove_once(kinds, use.is_quiet);
  if (!tables) {
    if (is_first_here())
      note(use, "no kernels of our own are in use on this GPU; atelier tune proves them, once");
    return std::nullopt;
  }
  size_t missing = 0;
  for (size_t i = 0; i < kinds.size(); ++i) {
    std::vector<std::string> names;
    for (const tune::KernelProof& proof : proofs_for(at::Device(at::kCUDA, kinds[i].index)))
      names.emplace_back(proof.op);
    missing += (*tables)[i].missing(std::move(names)).size();
  }
  if (missing > 0)
    note(use, std::to_string(missing) +
                  " proofs of kernels are not made yet on this GPU; atelier tune makes them");
  return tune::together(*tables);
}

void drop_wrong(KernelChoice& kernels, const tune::Proven& proven, const ProcessUse& use) {
  std::vector<std::string> right = tune::right_of(*kernels.named, proven.wrong);
  if (right.size() < kernels.named->size())
    note(use, "--kernels: " + c10::Join(", ", tune::right_of(*kernels.named, right)) +
                  " is wrong on this GPU, and LibTorch's operators run instead");
  kernels.named = std::move(right);
}

void check_names(const std::vector<std::string>& names, report::Problems& problems) {
  std::vector<std::string> known;
  for (const tune::KernelProof& proof : choices()) known.emplace_back(proof.op);
  for (const std::string& name : names) {
    if (std::ranges::find(known, name) != known.end()) continue;
    std::vector<std::string> words = {"auto", "fused", "composed", "none"};
    words.insert(words.end(), known.begin(), known.end());
    const std::string nearest = report::nearest_name(name, words);
    problems.add(
        "--kernels: " + formats::quote_and_escape(name) + " is no kernel that atelier tune proves",
        nearest.empty() ? "known are " + c10::Join(", ", known) : "did you mean " + nearest + "?");
  }
}

// Names of kernels take the place of "auto" in the configuration that is kept.
void keep_choice(order::Training& config) {
  const std::string text = flags::kernels_text(config.process.kernels);
  config.rewrite_toml("kernels", '"' + text + '"');
}

}  // namespace

void set_up(flags::ProcessSettings& settings, const ProcessUse& use, report::Problems& problems) {
  flags::apply(settings);
  KernelChoice& kernels = settings.kernels;
  if (kernels.named) check_names(*kernels.named, problems);
  const bool may_be_gpu = use.device == "auto" || use.device.starts_with("cuda");
  const bool asks_table = kernels.form == ops::Kernels::kAuto &&
                          (kernels.named.has_value() || !settings.is_deterministic);
  if (!kHasKernels || !may_be_gpu || !asks_table) return;
  const bool may_prove =
      use.computes && !settings.is_deterministic && problems.empty() && is_first_here();
  const std::optional<tune::Proven> proven = proven_here(use, may_prove);
  if (proven && kernels.named) {
    drop_wrong(kernels, *proven, use);
  } else if (proven) {
    kernels.named = proven->on;
  }
  if (!kernels.named) return;
  tune::use(*kernels.named);
  if (proven && use.computes && is_first_here())
    note(use, "kernels of our own on this GPU: " + flags::kernels_text(kernels));
}

void note_slow_products(const model::LoadOptions& load, bool is_quiet) {
  const bool may_be_gpu = load.device == "auto" || load.device.starts_with("cuda");
  for (const auto& [component, compute] : load.compute) {
    if (compute != weights::Compute::kW8A8 || is_quiet || !may_be_gpu || !is_first_here()) continue;
    const auto storage = load.storage.find(component);
    const bool is_int8 =
        storage != load.storage.end() && storage->second == weights::Storage::kInt8;
    const std::string_view product = is_int8 ? tune::kInt8Products : tune::kFp8Products;
    for (const tune::GpuKind& kind : tune::kinds_here()) {
      const auto table = tune::read_table(tune::cache_folder(), kind);
      const std::string slow = table ? tune::slow_products(*table, product) : std::string();
      if (slow.empty()) continue;
      report::say_once("note: --compute " + component + "=w8a8 saves memory and no time on " +
                       report::printable(kind.name) + "; " + slow + "\n");
    }
  }
}

void set_up(order::Training& config, bool computes, report::Problems& problems) {
  const ProcessUse use = {.device = config.model.device,
                          .is_quiet = config.log.quiet,
                          .computes = computes && !config.dry_run};
  set_up(config.process, use, problems);
  note_slow_products(config.model, config.log.quiet);
  keep_choice(config);
}

void agree_on_kernels(distributed::Group& group, KernelChoice& kernels) {
  if (group.size() == 1) return;
  const std::vector<tune::GpuKind> kinds =
      kHasKernels ? tune::kinds_here() : std::vector<tune::GpuKind>();
  const auto tables = tune::read_tables(tune::cache_folder(), kinds);
  const std::vector<std::string> wrong =
      tables && !tables->empty() ? tune::together(*tables).wrong : std::vector<std::string>();
  const auto agreed =
      tune::agreed_choice(group.gather_texts(tune::choice_text(kernels.named, wrong)));
  if (agreed == kernels.named) return;
  kernels.named = agreed;
  tune::use(agreed.value_or(std::vector<std::string>()));
}

void agree_on_kernels(distributed::Group& group, order::Training& config) {
  agree_on_kernels(group, config.process.kernels);
  keep_choice(config);
}

}  // namespace atelier::cli
