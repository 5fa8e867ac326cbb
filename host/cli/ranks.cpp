#include "host/cli/ranks.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include <torch/headeronly/version.h>

#include "atelier/plugin.h"

#include "host/device/cuda.h"
#include "host/distributed/handshake.h"
#include "host/distributed/machine_slabs.h"
#include "host/files/content_hash.h"
#include "host/model/fingerprint.h"
#include "host/plan/plan_run.h"
#include "host/plugins/plugin_loader.h"
#include "host/report/problems.h"
#include "host/train/agreed_plan.h"
#include "memory/activation_budget.h"

namespace atelier::cli {

distributed::RunIdentity program_identity() {
  return {
      {"version", ATELIER_SDK_VERSION}, {"plugin ABI", ATELIER_ABI}, {"LibTorch", TORCH_VERSION}};
}

void add_model(distributed::RunIdentity& facts, const model::LoadedModel& model) {
  if (const std::string file = plugins::opened_file(model.family().name()); !file.empty())
    facts.emplace_back("content of the plugin's file", files::hash_file(file));
  for (const model::LoadedPart& part : model.parts()) {
    const std::string& component = part.detection.component;
    facts.emplace_back("model, " + component, model::fingerprint(part));
    if (model.is_divided(component))
      facts.emplace_back("--storage " + component, weights::storage_name(model.storage(component)));
  }
}

namespace {

// A fingerprint of what is encoded already; what is wrong with it where it cannot be read.
std::string fingerprint_of_cache(const train::PreparedRun& run) {
  try {
    return train::open_samples(run, run.dataset, run.config.cache_path).fingerprint();
  } catch (const Error& error) {
    return error.message();
  }
}

// Rows that are other ones are told apart from files that are.
void add_dataset(distributed::RunIdentity& facts, const std::string& name,
                 const std::shared_ptr<const data::Dataset>& dataset) {
  if (!dataset) return;
  files::ContentHash values;
  for (const data::Item& item : dataset->items()) {
    for (const auto& [column, value] : item.values)
      values.add(column).add(value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  }
  facts.emplace_back(name + ", samples", std::to_string(dataset->items().size()));
  facts.emplace_back(name + ", captions and other values", values.hex());
  facts.emplace_back(name + ", with names and sizes of files", dataset->fingerprint());
}

// What a run consists of.
distributed::RunIdentity identity_of(const train::PreparedRun& run) {
  distributed::RunIdentity facts = program_identity();
  std::istringstream lines(run.config.effective_toml);
  for (std::string line; std::getline(lines, line);) {
    if (const size_t equals = line.find(" = "); equals != std::string::npos)
      facts.emplace_back("--" + line.substr(0, equals), line.substr(equals + 3));
  }
  add_model(facts, *run.model);
  add_dataset(facts, "dataset", run.dataset);
  add_dataset(facts, "validation dataset", run.validation);
  facts.emplace_back("resumed step", run.resumed ? std::to_string(run.resumed->step) : "");
  if (run.config.stage == order::Stage::kTrain)
    facts.emplace_back("cache", fingerprint_of_cache(run));
  return facts;
}

}  // namespace

void choose_gpu(std::string& device, const distributed::Ranks& ranks) {
  if (ranks.is_alone() || (device != "auto" && device != "cuda")) return;
  const int gpus = device::open_cuda().device_count;
  if (gpus > 0) device = "cuda:" + std::to_string(ranks.local_rank % gpus);
}

std::optional<int> gpu_of_nccl(const std::string& device, const std::string& backend) {
  if (backend == "gloo") return std::nullopt;
  if (device == "auto" || device.starts_with("cuda")) {
    const at::Device chosen = device::choose(device);
    if (chosen.is_cuda()) return chosen.index();
  }
  if (backend == "nccl")
    throw Error(ErrorCode::kInvalidArgument,
                "--dist_backend nccl sends what GPUs hold, and --device is " + device,
                "use --dist_backend gloo");
  return std::nullopt;
}

void throw_mistakes(distributed::Group& group, const std::optional<Error>& mistakes) {
  const std::vector<std::string> said = group.gather_texts(mistakes ? mistakes->message() : "");
  if (!mistakes) return;
  const bool is_said_by_first =
      !group.is_first() &&
      std::ranges::all_of(said, [&](const std::string& text) { return text == said.front(); });
  if (!is_said_by_first) throw Error(*mistakes);
  throw Error(mistakes->code(), mistakes->message(), "", std::string(distributed::kSaidByFirst));
}

void compare_ranks(distributed::Group& group, const distributed::RunIdentity& facts,
                   const std::vector<SharedFolder>& folders) {
  if (group.size() > 1) {
    report::Problems differences;
    const auto compare = [&](const auto& require) {
      try {
        require();
      } catch (const Error& error) {
        if (error.tag() != distributed::kRanksDiffer) throw;
        differences.add(error);
      }
    };
    group.set_place("comparing");
    compare([&] { distributed::require_same(group, facts); });
    for (const auto& [flag, path, is_read_only] : folders)
      compare([&] { distributed::require_shared_folder(group, flag, path, is_read_only); });
    if (group.gpu())
      compare([&] { distributed::require_own_gpus(group, device::gpu_identity(*group.gpu())); });
    differences.throw_if_any();
    group.set_place("");
  }
  group.meet_gpus();
}

void require_same_run(distributed::Group& group, const train::PreparedRun& run) {
  const order::Training& config = run.config;
  std::vector<SharedFolder> folders;
  if (config.stage != order::Stage::kDataProcess)
    folders.push_back({"output_path", config.output.output_path});
  if (!config.dry_run)
    folders.push_back({"cache_path", config.cache_path, config.stage == order::Stage::kTrain});
  compare_ranks(group, group.size() > 1 ? identity_of(run) : distributed::RunIdentity(), folders);
}

bool agree_on_layout(distributed::Group& group, train::PreparedRun& run) {
  if (group.size() == 1) return false;
  const int64_t room = memory::available_bytes(run.model->device());
  const std::vector<std::string> texts = group.gather_texts(train::layout_text(run.layout, room));
  if (!train::take_layout(train::tightest_layout(texts), run.layout)) return false;
  run.model->rearrange(run.layout.weights);
  plan::place_trained(run);
  return true;
}

void share_host_memory(distributed::Group& group, train::PreparedRun& run) {
  std::set<std::string, std::less<>> trained;
  for (const auto& weight : run.selection.weights) trained.insert(weight.component);
  run.model->share_host(distributed::share_machine(group), std::move(trained));
}

}  // namespace atelier::cli
