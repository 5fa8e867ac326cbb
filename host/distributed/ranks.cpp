#include "host/distributed/ranks.h"

#include <charconv>
#include <climits>
#include <cstdlib>
#include <regex>

#include "atelier/error.h"

#include "formats/escape.h"

namespace atelier::distributed {
namespace {

constexpr int kLastPort = 65'535;
constexpr int kFirstPort = 20'000, kPorts = 20'000;  // that a job's number chooses from

// Reads numbers of the environment, and remembers what is wrong with them.
class Variables {
 public:
  explicit Variables(const Environment& environment) : environment_(environment) {}

  bool has(std::string_view name) const { return environment_(name).has_value(); }
  std::optional<std::string> text(std::string_view name) const { return environment_(name); }

  // The number of a variable that must be set, from `low` to `high`.
  int number(std::string_view name, int low, int high = INT_MAX) {
    const std::optional<std::string> given = environment_(name);
    if (!given) {
      missing_.emplace_back(name);
      return low;
    }
    int value = 0;
    const char* const end = given->data() + given->size();
    const auto [rest, code] = std::from_chars(given->data(), end, value);
    if (code != std::errc() || rest != end || value < low || value > high)
      wrong_.push_back(std::string(name) + " is " + formats::quote_and_escape(*given) +
                       ", no whole number from " + std::to_string(low) +
                       (high < INT_MAX ? " to " + std::to_string(high) : ""));
    return value;
  }
  void require(std::string_view name) {
    if (!has(name)) missing_.emplace_back(name);
  }
  int number_or(std::string_view name, int low, int absent, int high = INT_MAX) {
    return has(name) ? number(name, low, high) : absent;
  }

  // Throws where something was wrong; `launcher`: whose variables they are.
  void check(const std::string& launcher) const {
    std::string what;
    for (const std::string& line : wrong_) what += (what.empty() ? "" : "; ") + line;
    for (const std::string& name : missing_)
      what += (what.empty() ? "" : "; ") + name + " is not set";
    if (what.empty()) return;
    throw Error(ErrorCode::kInvalidArgument, "the environment of " + launcher + ": " + what,
                "start the processes with torchrun, srun or atelier launch, or unset what it left");
  }

 private:
  const Environment& environment_;
  std::vector<std::string> missing_, wrong_;
};

void check_order(const Ranks& ranks) {
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorCode::kInvalidArgument, "the environment of " + ranks.launcher + ": " + what,
                "every process of a run has a number of its own, from 0");
  };
  const auto text = [](int value) { return std::to_string(value); };
  if (ranks.rank >= ranks.size)
    refuse("rank " + text(ranks.rank) + " of " + text(ranks.size) + " processes");
  if (ranks.local_rank >= ranks.local_size)
    refuse("local rank " + text(ranks.local_rank) + " of " + text(ranks.local_size) +
           " processes on this machine");
  if (ranks.local_size > ranks.size)
    refuse(text(ranks.local_size) + " processes on this machine, of " + text(ranks.size) +
           " in all");
}

void read_meeting_place(Variables& variables, Ranks& ranks) {
  if (const auto address = variables.text("MASTER_ADDR")) ranks.address = *address;
  ranks.port = variables.number_or("MASTER_PORT", 1, ranks.port, kLastPort);
}

void require_meeting_place(Variables& variables, const Ranks& ranks) {
  if (ranks.size == 1) return;
  variables.require("MASTER_PORT");
  variables.require("MASTER_ADDR");
}

Ranks of_torchrun(Variables& variables) {
  Ranks ranks = {.launcher = "torchrun"};
  ranks.rank = variables.number("RANK", 0);
  ranks.size = variables.number("WORLD_SIZE", 1);
  ranks.local_rank = variables.number("LOCAL_RANK", 0);
  ranks.local_size = variables.number_or("LOCAL_WORLD_SIZE", 1, ranks.local_rank + 1);
  ranks.has_agent_store = variables.text("TORCHELASTIC_USE_AGENT_STORE") == "True";
  require_meeting_place(variables, ranks);
  return ranks;
}

// torchrun takes words as well, with which the operator counts one process for each pod.
int processes_of_pod(Variables& variables) {
  const auto text = variables.text("PET_NPROC_PER_NODE");
  if (text == "auto" || text == "gpu" || text == "cpu") return 1;
  return variables.number_or("PET_NPROC_PER_NODE", 1, 1);
}

Ranks of_pods(Variables& variables) {
  Ranks ranks = {.launcher = "PyTorchJob"};
  if (processes_of_pod(variables) > 1)
    throw Error(
        ErrorCode::kInvalidArgument,
        "PET_NPROC_PER_NODE asks for several processes in a pod, of which RANK would be the "
        "pod's number",
        "make the pod's command: atelier launch -- train …");
  ranks.rank = variables.number("RANK", 0);
  ranks.size = variables.number("WORLD_SIZE", 1);
  require_meeting_place(variables, ranks);
  return ranks;
}

// Several pods to which the operator gives no numbers: it leaves them to torchrun's rendezvous.
void refuse_pods_without_numbers(const Variables& variables) {
  const std::string pods = variables.text("PET_NNODES").value_or("1");
  if (pods == "1") return;
  throw Error(ErrorCode::kInvalidArgument,
              "PET_NNODES says that " + formats::quote_and_escape(pods) +
                  " pods work together, and neither RANK nor WORLD_SIZE says which one this is",
              "make the pod's command: torchrun --no-python atelier …, or unset PET_NNODES for a "
              "pod that works alone");
}

void require_mpi_place(const Variables& variables, const Ranks& ranks, const std::string& example) {
  if (ranks.size > ranks.local_size && !variables.has("MASTER_ADDR"))
    throw Error(ErrorCode::kInvalidArgument,
                "mpirun starts processes on several machines, and MASTER_ADDR does not say where "
                "they meet",
                "mpirun " + example + ", the host of rank 0");
}

Ranks of_open_mpi(Variables& variables) {
  Ranks ranks = {.launcher = "mpirun"};
  ranks.rank = variables.number("OMPI_COMM_WORLD_RANK", 0);
  ranks.size = variables.number("OMPI_COMM_WORLD_SIZE", 1);
  ranks.local_rank = variables.number("OMPI_COMM_WORLD_LOCAL_RANK", 0);
  ranks.local_size = variables.number("OMPI_COMM_WORLD_LOCAL_SIZE", 1);
  require_mpi_place(variables, ranks, "-x MASTER_ADDR=HOST -x MASTER_PORT=29500 …");
  return ranks;
}

// Processes of Hydra, which starts those of MPICH and of Intel MPI. srun may set some of these
// variables, and Hydra may start its own helpers with srun.
bool is_of_hydra(const Variables& variables) {
  return variables.has("PMI_RANK") &&
         (variables.has("MPI_LOCALRANKID") || !variables.has("SLURM_PROCID"));
}

Ranks of_hydra(Variables& variables) {
  Ranks ranks = {.launcher = "mpirun"};
  ranks.rank = variables.number("PMI_RANK", 0);
  ranks.size = variables.number("PMI_SIZE", 1);
  ranks.local_rank = variables.number("MPI_LOCALRANKID", 0);
  ranks.local_size = variables.number_or("MPI_LOCALNRANKS", 1, ranks.local_rank + 1);
  require_mpi_place(variables, ranks, "-genv MASTER_ADDR HOST -genv MASTER_PORT 29500 …");
  return ranks;
}

// How many processes the machine of that number has, of "4(x2),3": four on each of the first two,
// three on the next.
int tasks_on_node(std::string_view text, int node) {
  static const std::regex part("([0-9]{1,6})(?:\\(x([0-9]{1,6})\\))?(?:,|$)");
  const std::string all(text);
  for (std::sregex_iterator at(all.begin(), all.end(), part), end; at != end; ++at) {
    node -= (*at)[2].matched ? std::stoi((*at)[2]) : 1;
    if (node < 0) return std::stoi((*at)[1]);
  }
  throw Error(ErrorCode::kInvalidArgument,
              "SLURM_STEP_TASKS_PER_NODE is " + formats::quote_and_escape(all) +
                  ", which has no machine of SLURM_NODEID's number",
              "start the processes with srun");
}

Ranks of_slurm(Variables& variables) {
  Ranks ranks = {.launcher = "srun"};
  ranks.rank = variables.number("SLURM_PROCID", 0);
  ranks.size = variables.number("SLURM_NTASKS", 1);
  ranks.local_rank = variables.number("SLURM_LOCALID", 0);
  const int node = variables.number_or("SLURM_NODEID", 0, 0);
  const auto tasks = variables.text("SLURM_STEP_TASKS_PER_NODE");
  ranks.local_size = tasks ? tasks_on_node(*tasks, node) : ranks.local_rank + 1;
  // A step may run on some of the job's machines.
  const char* const list =
      variables.has("SLURM_STEP_NODELIST") ? "SLURM_STEP_NODELIST" : "SLURM_JOB_NODELIST";
  const auto hosts = variables.text(list);
  const bool is_said = variables.has("MASTER_ADDR");
  if (hosts && !is_said)
    ranks.address = first_host(*hosts, list);
  else if (ranks.local_size < ranks.size && !is_said)
    throw Error(ErrorCode::kInvalidArgument,
                "srun starts processes on several machines, and neither SLURM_JOB_NODELIST nor "
                "MASTER_ADDR says where they meet",
                "set MASTER_ADDR to the host of rank 0");
  ranks.port = kFirstPort + variables.number_or("SLURM_JOB_ID", 0, 0) % kPorts;
  return ranks;
}

// Scripts of sbatch and shells of salloc see how many tasks there are to be, and are none of them.
void refuse_tasks_without_srun(const Variables& variables) {
  const std::string tasks = variables.text("SLURM_NTASKS").value_or("1");
  if (tasks == "1") return;
  throw Error(ErrorCode::kInvalidArgument,
              "SLURM_NTASKS says that " + formats::quote_and_escape(tasks) +
                  " tasks work together, and srun has not started this process as one of them",
              "srun atelier …, or unset SLURM_NTASKS for a process that works alone");
}

// The first number in brackets: "003" of "003-005,9".
std::string first_number(std::string_view inside) {
  return std::string(inside.substr(0, inside.find_first_of(",-")));
}

}  // namespace

Environment process_environment() {
  return [](std::string_view name) -> std::optional<std::string> {
    const char* const value = std::getenv(std::string(name).c_str());
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  };
}

std::string first_host(std::string_view hosts, std::string_view variable) {
  const auto refuse = [variable, all = std::string(hosts)]() -> Error {
    return Error(
        ErrorCode::kInvalidArgument,
        std::string(variable) + " is " + formats::quote_and_escape(all) + ", no list of hosts",
        "set MASTER_ADDR to the host of rank 0");
  };
  std::string host;
  while (!hosts.empty() && hosts.front() != ',') {
    if (hosts.front() != '[') {
      const size_t length = std::min(hosts.find_first_of("[,"), hosts.size());
      host += hosts.substr(0, length);
      hosts.remove_prefix(length);
      continue;
    }
    const size_t end = hosts.find(']');
    if (end == std::string_view::npos) throw refuse();
    host += first_number(hosts.substr(1, end - 1));
    hosts.remove_prefix(end + 1);
  }
  if (host.empty()) throw refuse();
  return host;
}

Ranks find_ranks(const Environment& environment) {
  Variables variables(environment);
  Ranks ranks;
  const bool has_world = variables.has("RANK") || variables.has("WORLD_SIZE");
  if (variables.has("LOCAL_RANK") || (has_world && !variables.has("PET_NNODES"))) {
    ranks = of_torchrun(variables);
  } else if (has_world) {
    ranks = of_pods(variables);
  } else if (variables.has("OMPI_COMM_WORLD_RANK")) {
    ranks = of_open_mpi(variables);
  } else if (is_of_hydra(variables)) {
    ranks = of_hydra(variables);
  } else if (variables.has("SLURM_STEP_ID") && variables.has("SLURM_PROCID")) {
    ranks = of_slurm(variables);
  } else {
    refuse_pods_without_numbers(variables);
    refuse_tasks_without_srun(variables);
    return ranks;
  }
  read_meeting_place(variables, ranks);
  variables.check(ranks.launcher);
  check_order(ranks);
  return ranks;
}

}  // namespace atelier::distributed
