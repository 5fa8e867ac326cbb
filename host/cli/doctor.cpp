// atelier doctor: what works on this machine, what does not and why.
#include <cstdio>
#include <dlfcn.h>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sys/statvfs.h>
#include <thread>
#include <unistd.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <torch/headeronly/version.h>

#include "host/cli/built_kernels.h"
#include "host/cli/commands.h"
#include "host/cli/doctor_comm.h"
#include "host/device/cuda.h"
#include "host/files/model_paths.h"
#include "host/media/video_library.h"
#include "host/model/model_flags.h"
#include "host/plugins/plugin_loader.h"
#include "host/report/error_line.h"
#include "host/report/text.h"
#include "host/tune/kernel_table.h"

namespace atelier::cli {

namespace fs = std::filesystem;

namespace {

enum class State { kWorks, kAbsent, kBroken };

struct Item {
  std::string name;
  State state = State::kWorks;
  std::string found;   // what there is
  std::string reason;  // why it does not work, and what to do
};

const char* state_name(State state) {
  switch (state) {
    case State::kWorks:
      return "ok";
    case State::kAbsent:
      return "absent";
    case State::kBroken:
      return "BROKEN";
  }
  return "";
}

std::string first_match(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key)) continue;
    const size_t begin = line.find_first_not_of(" \t:", key.size());
    return begin == std::string::npos ? std::string() : line.substr(begin);
  }
  return {};
}

uint64_t memory_kib(const std::string& key) {
  const std::string text = first_match("/proc/meminfo", key);
  return text.empty() ? 0 : std::strtoull(text.c_str(), nullptr, 10);
}

std::string library_file(const void* symbol) {
  Dl_info info{};
  return dladdr(symbol, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : "";
}

std::string libtorch_file() {
  return library_file(reinterpret_cast<const void*>(&at::get_num_threads));
}

Item check_libtorch() {
  return {"LibTorch", State::kWorks, std::string(TORCH_VERSION) + ", " + libtorch_file(), ""};
}

Item check_cpu() {
  return {"CPU", State::kWorks,
          first_match("/proc/cpuinfo", "model name") + ", " + at::get_cpu_capability() + ", " +
              std::to_string(std::thread::hardware_concurrency()) + " cores, " +
              std::to_string(at::get_num_threads()) + " threads",
          ""};
}

Item check_memory() {
  std::string found = report::bytes_text(memory_kib("MemTotal") * 1024) + ", " +
                      report::bytes_text(memory_kib("MemAvailable") * 1024) + " free";
  std::ifstream limit_file("/sys/fs/cgroup/memory.max");
  uint64_t limit = 0;
  if (limit_file >> limit)
    found += ", at most " + report::bytes_text(limit) + " for this group of processes";
  return {"memory", State::kWorks, found, ""};
}

// Names and memory of the GPUs, asked of the driver itself.
std::vector<Item> check_gpus() {
  const device::CudaStatus& status = device::open_cuda();
  std::vector<Item> items;
  const std::string driver = status.driver.empty() ? "" : "driver " + status.driver;
  if (!status.usable) {
    const bool is_absent = status.driver.empty() && status.device_count == 0;
    const std::string remedy = status.remedy.empty() ? "" : "; " + status.remedy;
    items.push_back(
        {"GPU", is_absent ? State::kAbsent : State::kBroken, driver, status.reason + remedy});
  }
  for (int i = 0; i < status.device_count; ++i) {
    const device::GpuFacts facts = device::gpu_facts(i);
    items.push_back(
        {"GPU cuda:" + std::to_string(i), status.usable ? State::kWorks : State::kBroken,
         facts.name + ", " + report::bytes_text(facts.memory_bytes) + ", compute capability " +
             std::to_string(facts.capability / 10) + "." + std::to_string(facts.capability % 10) +
             ", " + driver + " (CUDA " + std::to_string(facts.driver_cuda / 1000) + "." +
             std::to_string(facts.driver_cuda % 1000 / 10) + ")",
         status.usable ? "" : status.reason});
  }
  return items;
}

// Kernels of our own, and which of them run by default on the GPUs of this machine.
std::vector<Item> check_kernels() {
  if (!kHasKernels) return {{"CUDA kernels", State::kAbsent, "", kKernels}};
  std::vector<Item> items = {
      {"CUDA kernels", State::kWorks, std::string(kKernels) + ": " + kKernelNames, ""}};
  for (const tune::GpuKind& kind : tune::kinds_here()) {
    const auto table = tune::read_table(tune::cache_folder(), kind);
    items.push_back(
        {"kernels of cuda:" + std::to_string(kind.index), table ? State::kWorks : State::kAbsent,
         table ? tune::summary_of(*table) : "",
         table ? "" : "none is proven on this GPU; run atelier tune, or pass --kernels fused"});
  }
  return items;
}

Item check_nccl() {
  const fs::path torch = fs::path(libtorch_file()).parent_path();
  void* library = nullptr;
  std::string file;
  for (const fs::path& candidate :
       {torch / "libnccl.so.2", torch / ".." / ".." / "nvidia" / "nccl" / "lib" / "libnccl.so.2",
        fs::path("libnccl.so.2")}) {
    library = dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL);
    file = candidate.lexically_normal().string();
    if (library != nullptr) break;
  }
  if (library == nullptr)
    return {"NCCL", State::kAbsent, "",
            "libnccl.so.2 is not found; several GPUs cannot be used together"};
  auto get_version = reinterpret_cast<int (*)(int*)>(dlsym(library, "ncclGetVersion"));
  int version = 0;
  if (get_version == nullptr || get_version(&version) != 0)
    return {"NCCL", State::kBroken, file, "it does not say its version"};
  return {"NCCL", State::kWorks,
          std::to_string(version / 10000) + "." + std::to_string(version % 10000 / 100) + "." +
              std::to_string(version % 100) + ", " + file,
          ""};
}

std::vector<Item> check_plugins(const std::string& plugin_path) {
  std::vector<Item> items;
  for (const plugins::PluginFile& file : plugins::list_plugins(plugin_path)) {
    const std::string name =
        "plugin " + (file.family.empty() ? fs::path(file.path).filename().string() : file.family);
    Item item{name, State::kWorks, file.version + (file.version.empty() ? "" : ", ") + file.path,
              file.problem};
    if (item.reason.empty()) {
      try {
        plugins::open_plugin(file.path, plugin_path);
      } catch (const Error& error) {
        item.reason = error.what();
      }
    }
    if (!item.reason.empty()) item.state = State::kBroken;
    items.push_back(std::move(item));
  }
  if (items.empty()) {
    std::string folders;
    for (const std::string& folder : plugins::search_folders(plugin_path)) folders += " " + folder;
    items.push_back({"plugins", State::kBroken, "", "none in" + folders + "; pass --plugin_path"});
  }
  return items;
}

// A codec's library, if it is loaded, and the version that it says.
Item check_codec(const std::string& name, const char* library, const char* version_function) {
  void* handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr)
    return {name, State::kBroken, "", std::string(library) + " cannot be opened: " + dlerror()};
  std::string found = library;
  if (version_function != nullptr) {
    if (auto version = reinterpret_cast<uint32_t (*)()>(dlsym(handle, version_function));
        version != nullptr) {
      const uint32_t number = version();
      found += number > 0xFFFF
                   ? ", " + std::to_string(number >> 16) + "." +
                         std::to_string(number >> 8 & 0xFF) + "." + std::to_string(number & 0xFF)
                   : ", " + std::to_string(number / 10000) + "." +
                         std::to_string(number / 100 % 100) + "." + std::to_string(number % 100);
    }
  }
  return {name, State::kWorks, found, ""};
}

Item check_video() {
  try {
    return {"video", State::kWorks, media::video_library().version, ""};
  } catch (const Error& error) {
    return {"video", State::kAbsent, "", error.what()};
  }
}

Item check_models() {
  const std::vector<std::string> folders = files::published_folders("org/name");
  const std::string base = fs::path(folders.front()).parent_path().parent_path().string();
  std::error_code failure;
  Item item{"model folder", State::kWorks, base, ""};
  if (!fs::is_directory(base, failure)) {
    item.state = State::kAbsent;
    item.reason = "set ATELIER_MODEL_BASE_PATH, or pass files with --model_paths";
    return item;
  }
  struct statvfs space {};
  if (statvfs(base.c_str(), &space) == 0)
    item.found += ", " + report::bytes_text(uint64_t{space.f_bavail} * space.f_frsize) + " free";
  return item;
}

}  // namespace

flags::CommandSpec doctor_command() {
  flags::CommandSpec command{"doctor", "Says what works on this machine, what does not and why."};
  command.flags = {
      model::plugin_path_flag(),
      {.name = "comm",
       .kind = flags::FlagKind::kFlag,
       .help = "measures how fast the processes of a run exchange tensors, in place of all else: "
               "atelier launch -- doctor --comm",
       .preset = "false"},
      {.name = "dist_backend",
       .help = "with --comm, what sends tensors of GPUs: nccl, or gloo through host memory; auto: "
               "nccl",
       .preset = "auto",
       .choices = {"auto", "nccl", "gloo"},
       .value_name = "auto|nccl|gloo"},
      {.name = "json", .kind = flags::FlagKind::kFlag, .help = "as JSON", .preset = "false"}};
  return command;
}

int run_doctor(std::span<const std::string> arguments) {
  const flags::CommandSpec command = doctor_command();
  if (flags::wants_help(arguments)) return print_help(command);
  const flags::ParsedFlags flags = flags::parse_flags(command, arguments);
  if (flags.flag("comm")) return doctor_comm(flags.text("dist_backend"), flags.flag("json"));
  std::vector<Item> items = {check_libtorch(), check_cpu(), check_memory()};
  for (Item& item : check_gpus()) items.push_back(std::move(item));
  for (Item& item : check_kernels()) items.push_back(std::move(item));
  items.push_back(check_nccl());
  for (Item& item : check_plugins(flags.text("plugin_path"))) items.push_back(std::move(item));
  items.push_back(check_codec("PNG", "libpng16.so.16", "png_access_version_number"));
  items.push_back(check_codec("JPEG", "libjpeg.so.62", nullptr));
  items.push_back(check_codec("WebP", "libwebp.so.7", "WebPGetDecoderVersion"));
  items.push_back(check_codec("GIF", "libgif.so.7", nullptr));
  items.push_back(check_codec("TIFF", "libtiff.so.6", nullptr));
  items.push_back(check_video());
  items.push_back(check_models());

  bool is_broken = false;
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  for (const Item& item : items) {
    is_broken = is_broken || item.state == State::kBroken;
    if (flags.flag("json")) {
      out.push_back({{"name", item.name},
                     {"state", state_name(item.state)},
                     {"found", item.found},
                     {"reason", item.reason}});
    } else {
      std::printf("%-7s %-20s %s%s%s\n", state_name(item.state), item.name.c_str(),
                  report::printable(item.found).c_str(),
                  item.found.empty() || item.reason.empty() ? "" : ": ",
                  report::printable(item.reason).c_str());
    }
  }
  if (flags.flag("json"))
    std::puts(
        report::printable_json(out.dump(2, ' ', false, nlohmann::json::error_handler_t::replace))
            .c_str());
  return is_broken ? 3 : 0;
}

}  // namespace atelier::cli
