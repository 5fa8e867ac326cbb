// Which of a run's processes this one is, as whoever started them says it in the environment.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace atelier::distributed {

struct Ranks {
  int rank = 0, size = 1;              // of all processes of the run
  int local_rank = 0, local_size = 1;  // of those on this machine
  // Where the processes meet: a host and a TCP port.
  std::string address = "127.0.0.1";
  int port = 29500;
  // The launcher keeps the store at that place; else rank 0 does.
  bool has_agent_store = false;
  std::string launcher = {};  // "torchrun", "srun", "mpirun" or "PyTorchJob"; empty: none

  bool is_alone() const { return size == 1; }
  bool is_first() const { return rank == 0; }
};

// The value of a variable of the environment; nullopt where it is not set.
using Environment = std::function<std::optional<std::string>(std::string_view name)>;
Environment process_environment();

// Reads, in this order:
//   torchrun and `atelier launch`: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR,
//     MASTER_PORT, TORCHELASTIC_USE_AGENT_STORE;
//   Kubeflow's PyTorchJob, one process for each pod: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, of
//     which RANK is the pod's number, and PET_NPROC_PER_NODE, 1 or one of torchrun's words;
//   Open MPI: OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE, with MASTER_ADDR and
//     MASTER_PORT;
//   MPICH and Intel MPI: PMI_RANK, PMI_SIZE, MPI_LOCALRANKID, MPI_LOCALNRANKS, with the same two;
//   Slurm, in a step that srun started: SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID, the first host
//     of SLURM_STEP_NODELIST or else of SLURM_JOB_NODELIST, and a port made of SLURM_JOB_ID;
//     MASTER_ADDR and MASTER_PORT say others.
// One process alone where none of them is set. Throws one Error{kInvalidArgument} that names what
// is missing, is no number or contradicts another variable: several processes of which each would
// be alone, as those of a job of Slurm without srun, or several machines without a host to meet at.
Ranks find_ranks(const Environment& environment);

// The first host of a list as Slurm writes it: "node003" of "node[003-005,9],gpu1". Throws
// Error{kInvalidArgument} when it is no such list.
// `variable`: where it stands, for the error.
std::string first_host(std::string_view hosts, std::string_view variable = "SLURM_JOB_NODELIST");

}  // namespace atelier::distributed
