#include "host/train/global_batch.h"

#include "support/catch.h"

using namespace atelier;
using Catch::Matchers::Contains;
using order::Training;
using train::share_batch;

namespace {

Training config_of(int64_t batch_size, int64_t accumulation, int global) {
  Training config;
  config.order.batch_size = batch_size;
  config.order.gradient_accumulation_steps = accumulation;
  config.global_batch_size = global;
  config.effective_toml =
      "seed = 42\nglobal_batch_size = " + std::to_string(global) + "\nbatch_size = 2\n";
  return config;
}

int64_t batches_of(Training& config, int processes) {
  report::Problems problems;
  share_batch(config, processes, problems);
  problems.throw_if_any();
  return config.order.gradient_accumulation_steps;
}

}  // namespace

TEST_CASE("A step has the batches of every process, and the configuration keeps their samples") {
  Training config = config_of(2, 3, 0);
  REQUIRE(batches_of(config, 4) == 12);
  REQUIRE(config.effective_toml == "seed = 42\nglobal_batch_size = 24\nbatch_size = 2\n");
}

TEST_CASE("One process alone has its own batches, and its configuration is what it was") {
  Training config = config_of(2, 3, 0);
  const std::string before = config.effective_toml;
  REQUIRE(batches_of(config, 1) == 3);
  REQUIRE(config.effective_toml == before);
}

TEST_CASE("--global_batch_size holds for any number of processes") {
  for (const int processes : {1, 2, 4}) {
    Training config = config_of(2, 3, 8);
    REQUIRE(batches_of(config, processes) == 4);
  }
}

TEST_CASE("A run that one process began keeps its samples with more of them") {
  Training config = config_of(2, 3, 0);
  config.resume = "run";
  REQUIRE(batches_of(config, 4) == 3);
}

TEST_CASE("Samples that batches do not make up are refused") {
  Training config = config_of(3, 1, 8);
  report::Problems problems;
  share_batch(config, 2, problems);
  REQUIRE_THROWS_WITH(problems.throw_if_any(), Contains("--global_batch_size: 8 samples"));
}

TEST_CASE("A batch size that is refused elsewhere shares out nothing") {
  Training config = config_of(0, 3, 8);
  REQUIRE(batches_of(config, 2) == 3);
}

// ---- A resumed run with another number of processes ----

namespace {

distributed::Ranks ranks_of(int size) {
  distributed::Ranks ranks;
  ranks.size = ranks.local_size = size;
  return ranks;
}

Training resumed_by(const std::string& group, int sequence) {
  Training config;
  config.shards = {.stage = 2, .group = group};
  config.sequence_parallel = sequence;
  config.effective_toml = "seed = 42\nzero_group = \"" + group +
                          "\"\nsequence_parallel = " + std::to_string(sequence) + "\n";
  config.inherited = {"zero_group", "sequence_parallel"};
  return config;
}

}  // namespace

TEST_CASE(
    "Groups that a resumed run had and these processes do not make up fall back, with notes") {
  Training config = resumed_by("4", 2);
  const std::vector<std::string> notes = train::fit_resumed(config, ranks_of(3));
  REQUIRE(notes == std::vector<std::string>{
                       "--zero_group 4 of the resumed run does not divide 3 processes: "
                       "--zero_group all is used",
                       "--sequence_parallel 2 of the resumed run does not divide 3 processes: "
                       "--sequence_parallel 1 is used"});
  REQUIRE(config.shards.group == "all");
  REQUIRE(config.sequence_parallel == 1);
  REQUIRE(config.effective_toml == "seed = 42\nzero_group = \"all\"\nsequence_parallel = 1\n");
}

TEST_CASE("Groups that divide the processes stay as the resumed run had them") {
  Training config = resumed_by("2", 2);
  const std::string before = config.effective_toml;
  REQUIRE(train::fit_resumed(config, ranks_of(4)).empty());
  REQUIRE(config.shards.group == "2");
  REQUIRE(config.sequence_parallel == 2);
  REQUIRE(config.effective_toml == before);
}

TEST_CASE("Groups that the user says are left for the checks to refuse") {
  Training config = resumed_by("4", 2);
  config.inherited.clear();
  REQUIRE(train::fit_resumed(config, ranks_of(3)).empty());
  REQUIRE(config.shards.group == "4");
  REQUIRE(config.sequence_parallel == 2);
}
