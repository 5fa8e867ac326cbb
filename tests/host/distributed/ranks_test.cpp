#include "host/distributed/ranks.h"

#include <map>

#include "support/errors.h"

using namespace atelier;
using Catch::Matchers::Contains;
using distributed::find_ranks;
using distributed::first_host;
using distributed::Ranks;

namespace {

using Recorded = std::map<std::string, std::string, std::less<>>;

Ranks ranks_of(const Recorded& recorded) {
  return find_ranks([&](std::string_view name) -> std::optional<std::string> {
    const auto found = recorded.find(name);
    return found == recorded.end() ? std::nullopt : std::optional(found->second);
  });
}

std::string refused(const Recorded& recorded) {
  const Error error = test::error_of([&] { ranks_of(recorded); });
  REQUIRE(error.code() == ErrorCode::kInvalidArgument);
  return error.what();
}

Recorded without(Recorded recorded, const std::string& name) {
  recorded.erase(name);
  return recorded;
}

Recorded with(Recorded recorded, const std::string& name, const std::string& value) {
  recorded[name] = value;
  return recorded;
}

// The second machine's third process of `torchrun --nnodes 2 --nproc_per_node 4`, after a restart:
// "Environment Variables" of https://docs.pytorch.org/docs/stable/elastic/run.html, and what
// LocalElasticAgent._start_workers() of torch/distributed/elastic/agent/server sets beside them.
const Recorded kTorchrun = {{"RANK", "6"},
                            {"WORLD_SIZE", "8"},
                            {"LOCAL_RANK", "2"},
                            {"LOCAL_WORLD_SIZE", "4"},
                            {"GROUP_RANK", "1"},
                            {"MASTER_ADDR", "node7"},
                            {"MASTER_PORT", "41235"},
                            {"TORCHELASTIC_RESTART_COUNT", "1"},
                            {"TORCHELASTIC_MAX_RESTARTS", "3"},
                            {"TORCHELASTIC_RUN_ID", "none"},
                            {"TORCHELASTIC_USE_AGENT_STORE", "True"}};

// A step of `srun --ntasks-per-node=4` on three machines, of which the last has three processes:
// "OUTPUT ENVIRONMENT VARIABLES" of https://slurm.schedmd.com/srun.html.
const Recorded kSlurm = {{"SLURM_JOB_ID", "1234567"},
                         {"SLURM_STEP_ID", "0"},
                         {"SLURM_PROCID", "9"},
                         {"SLURM_NTASKS", "11"},
                         {"SLURM_LOCALID", "1"},
                         {"SLURM_NODEID", "2"},
                         {"SLURM_STEP_TASKS_PER_NODE", "4(x2),3"},
                         {"SLURM_JOB_NODELIST", "gpu[017-018,21]"}};

// "Environment variables" of Open MPI, https://docs.open-mpi.org: what mpirun sets for the
// processes.
const Recorded kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "1"},
                           {"OMPI_COMM_WORLD_SIZE", "2"},
                           {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                           {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};

// What the training operator sets in a worker's pod: setPodEnv() of pkg/controller.v1/pytorch in
// https://github.com/kubeflow/training-operator, envvar.go and master.go. `nprocPerNode` is "auto"
// where the job has none, and WORLD_SIZE counts one process for each pod then.
const Recorded kPod = {{"RANK", "1"},
                       {"WORLD_SIZE", "2"},
                       {"MASTER_ADDR", "a-0"},
                       {"MASTER_PORT", "23456"},
                       {"PET_NNODES", "2"},
                       {"PET_NPROC_PER_NODE", "auto"},
                       {"PET_NODE_RANK", "1"},
                       {"PET_MASTER_ADDR", "a-0"},
                       {"PET_MASTER_PORT", "23456"}};

}  // namespace

TEST_CASE("One process is alone where nobody says otherwise") {
  const Ranks ranks = ranks_of({{"PATH", "/bin"}, {"MASTER_ADDR", "elsewhere"}});
  REQUIRE(ranks.is_alone());
  REQUIRE(ranks.is_first());
  REQUIRE(ranks.launcher.empty());
}

TEST_CASE("torchrun's variables") {
  const Ranks ranks = ranks_of(kTorchrun);
  REQUIRE(ranks.rank == 6);
  REQUIRE(ranks.size == 8);
  REQUIRE(ranks.local_rank == 2);
  REQUIRE(ranks.local_size == 4);
  REQUIRE(ranks.address == "node7");
  REQUIRE(ranks.port == 41235);
  REQUIRE(ranks.has_agent_store);
}

TEST_CASE("Variables of torchrun that are missing are named together") {
  const auto [name, value] = GENERATE(table<std::string, std::string>(
      {{"RANK", ""}, {"WORLD_SIZE", ""}, {"LOCAL_RANK", ""}, {"MASTER_ADDR", ""}}));
  REQUIRE_THAT(refused(without(kTorchrun, name)), Contains(name + " is not set"));
  const std::string both = refused(without(without(kTorchrun, "MASTER_PORT"), "MASTER_ADDR"));
  REQUIRE_THAT(both, Contains("MASTER_PORT is not set; MASTER_ADDR is not set"));
}

TEST_CASE("Numbers that are none, or that contradict each other") {
  REQUIRE_THAT(refused(with(kTorchrun, "RANK", "six")), Contains("RANK is \"six\""));
  REQUIRE_THAT(refused(with(kTorchrun, "RANK", "-1")), Contains("RANK is \"-1\""));
  REQUIRE_THAT(refused(with(kTorchrun, "RANK", "8")), Contains("rank 8 of 8"));
  REQUIRE_THAT(refused(with(kTorchrun, "LOCAL_RANK", "4")), Contains("local rank 4 of 4"));
  REQUIRE_THAT(refused(with(kTorchrun, "LOCAL_WORLD_SIZE", "9")), Contains("9 processes"));
}

TEST_CASE("A port that is none is refused, and said once") {
  const auto port = GENERATE("0", "65536", "70000", "x");
  for (const Recorded& recorded : {kTorchrun, kPod, kSlurm}) {
    const std::string said = refused(with(recorded, "MASTER_PORT", port));
    CHECK_THAT(said, Contains("MASTER_PORT is \"" + std::string(port) +
                              "\", no whole number from 1 to 65535"));
    CHECK(said.find("MASTER_PORT") == said.rfind("MASTER_PORT"));
  }
}

TEST_CASE("Variables of MPICH and of Intel MPI") {
  const Recorded hydra = {{"PMI_RANK", "5"},        {"PMI_SIZE", "8"}, {"MPI_LOCALRANKID", "1"},
                          {"MPI_LOCALNRANKS", "4"}, {"PMI_FD", "9"},   {"MASTER_ADDR", "node0"}};
  const Ranks ranks = ranks_of(hydra);
  CHECK(ranks.rank == 5);
  CHECK(ranks.size == 8);
  CHECK(ranks.local_rank == 1);
  CHECK(ranks.local_size == 4);
  CHECK(ranks.address == "node0");
  CHECK(ranks.port == 29500);
  CHECK(ranks.launcher == "mpirun");
  CHECK_THAT(refused(without(hydra, "MASTER_ADDR")), Contains("-genv MASTER_ADDR HOST"));
  CHECK_THAT(refused(without(hydra, "PMI_SIZE")), Contains("PMI_SIZE is not set"));
  CHECK_THAT(refused(without(hydra, "MPI_LOCALRANKID")), Contains("MPI_LOCALRANKID is not set"));
  Recorded both = kSlurm;  // Hydra starts a helper on each machine with srun
  both.insert(hydra.begin(), hydra.end());
  CHECK(ranks_of(both).rank == 5);
  CHECK(ranks_of(with(with(kSlurm, "PMI_RANK", "9"), "PMI_SIZE", "11")).launcher == "srun");
}

TEST_CASE("A job of several tasks whose process srun has not started") {
  const Recorded script = {{"SLURM_JOB_ID", "1"}, {"SLURM_NTASKS", "2"}, {"SLURM_PROCID", "0"}};
  CHECK_THAT(refused(without(kSlurm, "SLURM_STEP_ID")), Contains("srun"));
  CHECK_THAT(refused(script), Contains("SLURM_NTASKS says that \"2\" tasks") && Contains("srun"));
  CHECK(ranks_of(with(script, "SLURM_NTASKS", "1")).is_alone());
  CHECK(ranks_of({{"SLURM_JOB_ID", "1"}}).is_alone());
}

TEST_CASE("Slurm's variables") {
  const Ranks ranks = ranks_of(kSlurm);
  REQUIRE(ranks.rank == 9);
  REQUIRE(ranks.size == 11);
  REQUIRE(ranks.local_rank == 1);
  REQUIRE(ranks.local_size == 3);
  REQUIRE(ranks.address == "gpu017");
  REQUIRE(ranks.port == 20'000 + 1'234'567 % 20'000);
  REQUIRE(ranks.launcher == "srun");
  REQUIRE(ranks_of(with(kSlurm, "MASTER_PORT", "29501")).port == 29501);
  REQUIRE(ranks_of(with(kSlurm, "MASTER_ADDR", "10.0.0.1")).address == "10.0.0.1");
  REQUIRE(ranks_of(with(with(kSlurm, "SLURM_NODEID", "1"), "SLURM_PROCID", "5")).local_size == 4);
  REQUIRE_THAT(refused(with(kSlurm, "SLURM_NODEID", "3")), Contains("4(x2),3"));
}

TEST_CASE("Steps of Slurm on several machines need a place to meet") {
  CHECK(ranks_of(kSlurm).address == "gpu017");
  CHECK(ranks_of(with(kSlurm, "SLURM_STEP_NODELIST", "gpu[018,21]")).address == "gpu018");
  CHECK_THAT(refused(with(kSlurm, "SLURM_STEP_NODELIST", "gpu[")),
             Contains("SLURM_STEP_NODELIST is \"gpu[\""));
  CHECK(
      ranks_of(with(with(kSlurm, "SLURM_STEP_NODELIST", "gpu["), "MASTER_ADDR", "gpu7")).address ==
      "gpu7");
  const Recorded lost = without(kSlurm, "SLURM_JOB_NODELIST");
  REQUIRE_THAT(refused(lost), Contains("SLURM_JOB_NODELIST") && Contains("set MASTER_ADDR"));
  REQUIRE(ranks_of(with(lost, "MASTER_ADDR", "gpu017")).address == "gpu017");
  const Recorded one = with(with(with(lost, "SLURM_NTASKS", "4"), "SLURM_PROCID", "1"),
                            "SLURM_STEP_TASKS_PER_NODE", "4");
  REQUIRE(ranks_of(with(one, "SLURM_NODEID", "0")).address == "127.0.0.1");
}

TEST_CASE("Lists of hosts as Slurm writes them") {
  REQUIRE(first_host("node1") == "node1");
  REQUIRE(first_host("a1,b2") == "a1");
  REQUIRE(first_host("node[003-005,9],gpu1") == "node003");
  REQUIRE(first_host("rack[2,4]-node[07-08]") == "rack2-node07");
  REQUIRE_THROWS_AS(first_host("node[003"), Error);
  REQUIRE_THROWS_AS(first_host(""), Error);
  REQUIRE_THROWS_AS(first_host(",a"), Error);
}

TEST_CASE("Open MPI's variables") {
  const Ranks ranks = ranks_of(kOpenMpi);
  REQUIRE(ranks.rank == 1);
  REQUIRE(ranks.local_size == 2);
  REQUIRE(ranks.address == "127.0.0.1");
  const Recorded far = with(kOpenMpi, "OMPI_COMM_WORLD_SIZE", "4");
  REQUIRE_THAT(refused(far), Contains("MASTER_ADDR"));
  REQUIRE(ranks_of(with(far, "MASTER_ADDR", "n1")).address == "n1");
}

TEST_CASE("A pod of PyTorchJob with one process, and with several that nothing started") {
  const Ranks ranks = ranks_of(kPod);
  REQUIRE(ranks.rank == 1);
  REQUIRE(ranks.size == 2);
  REQUIRE(ranks.local_rank == 0);
  REQUIRE(ranks.local_size == 1);
  REQUIRE(ranks.port == 23456);
  for (const char* one : {"1", "gpu", "cpu"})
    REQUIRE(ranks_of(with(kPod, "PET_NPROC_PER_NODE", one)).local_size == 1);
  REQUIRE_THAT(refused(with(kPod, "PET_NPROC_PER_NODE", "8")), Contains("atelier launch -- train"));
  REQUIRE_THAT(refused(with(kPod, "PET_NPROC_PER_NODE", "many")), Contains("no whole number"));
}

TEST_CASE("Pods that are not told where they meet, or which of several they are") {
  REQUIRE_THAT(refused(without(kPod, "MASTER_ADDR")), Contains("MASTER_ADDR is not set"));
  REQUIRE_THAT(refused(without(kPod, "MASTER_PORT")), Contains("MASTER_PORT is not set"));
  const Recorded elastic = {{"PET_NNODES", "1:4"}, {"PET_RDZV_ENDPOINT", "a:29400"}};
  REQUIRE_THAT(refused(elastic), Contains("\"1:4\" pods") && Contains("torchrun --no-python"));
  REQUIRE_THAT(refused(with(elastic, "PET_NNODES", "2")), Contains("neither RANK nor WORLD_SIZE"));
  REQUIRE(ranks_of(with(elastic, "PET_NNODES", "1")).is_alone());
}
