#include "host/flags/launcher_file.h"

#include <filesystem>
#include <random>

#include "support/files.h"

using namespace atelier;
using atelier::test::Folder;
using atelier::test::write_bytes;
using Catch::Matchers::Contains;
using flags::LauncherFile;

namespace fs = std::filesystem;

namespace {

using Flags = std::vector<std::pair<std::string, std::string>>;

LauncherFile read(const std::string& path) {
  report::Problems problems;
  LauncherFile file = flags::read_launcher_file(path, problems);
  problems.throw_if_any();
  return file;
}

LauncherFile read_text(const std::string& text, const std::string& name = "a.yaml") {
  const Folder folder;
  write_bytes(folder / name, text);
  return read(folder / name);
}

std::string refused(const std::string& text, const std::string& name = "a.yaml") {
  const Error error = test::error_of([&] { read_text(text, name); });
  REQUIRE(error.code() == ErrorCode::kInvalidArgument);
  return error.what();
}

std::string all_notes(const LauncherFile& file) {
  std::string text;
  for (const std::string& note : file.notes) text += note + "\n";
  return text;
}

std::string data(const std::string& name) {
  return std::string(LAUNCHERS_DIR) + "/" + name;
}

// Where the paths in those files begin.
class Repository {
 public:
  Repository() : before_(fs::current_path()) {
    const std::string place = "/examples/qwen_image/model_training/special/low_vram_training/";
    write_bytes(folder_.path() + place + "ds_z3_cpuoffload.json",
                test::read_bytes(data("ds_z3_cpuoffload.json")));
    fs::current_path(folder_.path());
  }
  ~Repository() { fs::current_path(before_); }

 private:
  Folder folder_;
  fs::path before_;
};

const Flags kEight = {{"nproc_per_node", "8"}};
const Flags kTrain = {
    {"gradient_accumulation_steps", "1"}, {"zero_stage", "2"}, {"dtype", "bfloat16"}};
const Flags kOffloaded = {{"gradient_accumulation_steps", "1"},
                          {"optimize_on_cpu", "true"},
                          {"zero_stage", "2"},
                          {"dtype", "bfloat16"}};
const Flags kStage3 = {
    {"gradient_accumulation_steps", "1"}, {"zero_stage", "3"}, {"dtype", "bfloat16"}};
const Flags kOffloadedStage3 = {{"optimize_on_cpu", "true"}, {"zero_stage", "3"}};

}  // namespace

TEST_CASE("DiffSynth-Studio's file of ZeRO stage 2") {
  const LauncherFile file = read(data("accelerate_config.yaml"));
  REQUIRE(file.launch == kEight);
  REQUIRE(file.train == kTrain);
  REQUIRE(file.notes.empty());
}

TEST_CASE("DiffSynth-Studio's files of ZeRO stage 2 with an optimizer on the host") {
  const std::string name =
      GENERATE("accelerate_config_zero2offload.yaml", "accelerate_config_14B.yaml");
  const LauncherFile file = read(data(name));
  REQUIRE(file.launch == kEight);
  REQUIRE(file.train == kOffloaded);
  REQUIRE(file.notes.size() == 1);
  REQUIRE_THAT(all_notes(file), Contains("offload_param_device: cpu has no effect: below stage 3"));
}

TEST_CASE("DiffSynth-Studio's file of ZeRO stage 3") {
  const LauncherFile file = read(data("accelerate_config_zero3.yaml"));
  REQUIRE(file.launch == kEight);
  REQUIRE(file.train == kStage3);
  REQUIRE(file.notes.size() == 2);
  REQUIRE_THAT(all_notes(file),
               Contains("zero3_init_flag: true") && Contains("zero3_save_16bit_model: true"));
}

TEST_CASE("DiffSynth-Studio's file that names one of DeepSpeed") {
  const Repository repository;
  const LauncherFile file = read(data("deepspeed_zero3_cpuoffload.yaml"));
  REQUIRE(file.launch == Flags{{"nproc_per_node", "1"}});
  REQUIRE(file.train == kOffloadedStage3);
  REQUIRE_THAT(all_notes(file),
               Contains("ds_z3_cpuoffload.json: zero_optimization.reduce_bucket_size") &&
                   Contains("--vram"));
}

TEST_CASE("DiffSynth-Studio's file of DeepSpeed by itself") {
  const LauncherFile file = read(data("ds_z3_cpuoffload.json"));
  REQUIRE(file.launch.empty());
  REQUIRE(file.train == kOffloadedStage3);
}

TEST_CASE("A file that names one of DeepSpeed which is not there") {
  const Folder folder;
  write_bytes(folder / "a.yaml",
              "distributed_type: DEEPSPEED\ndeepspeed_config:\n"
              "  deepspeed_config_file: not/there.json\n");
  test::expect_error(ErrorCode::kNotFound, {"not/there.json"}, [&] { read(folder / "a.yaml"); });
}

TEST_CASE("Processes are those of all machines") {
  const std::string two =
      "distributed_type: MULTI_GPU\nnum_processes: 16\nnum_machines: 2\nmachine_rank: 1\n"
      "main_process_ip: node0\nmain_process_port: 29501\n";
  REQUIRE(read_text(two).launch == Flags{{"master_addr", "node0"},
                                         {"master_port", "29501"},
                                         {"nproc_per_node", "8"},
                                         {"nnodes", "2"},
                                         {"node_rank", "1"}});
  REQUIRE_THAT(refused("distributed_type: MULTI_GPU\nnum_processes: 15\nnum_machines: 2\n"),
               Contains("num_processes 15 is no multiple of num_machines 2"));
  REQUIRE_THAT(refused("distributed_type: MULTI_GPU\nnum_processes: many\n"),
               Contains("num_processes: many is no whole number from 1"));
}

TEST_CASE("accelerate's FSDP is a stage of ZeRO, and recomputing") {
  const LauncherFile file = read_text(
      "distributed_type: FSDP\nnum_processes: 2\nmixed_precision: bf16\nfsdp_config:\n"
      "  fsdp_sharding_strategy: FULL_SHARD\n  fsdp_offload_params: true\n"
      "  fsdp_activation_checkpointing: true\n  fsdp_use_orig_params: true\n");
  REQUIRE(file.train == Flags{{"use_gradient_checkpointing", "true"},
                              {"optimize_on_cpu", "true"},
                              {"dtype", "bfloat16"},
                              {"zero_stage", "3"}});
  REQUIRE(file.notes.empty());
}

TEST_CASE("Strategies of FSDP are stages and groups of ZeRO") {
  const auto train = [](const std::string& settings) {
    return read_text("distributed_type: FSDP\nnum_processes: 8\nfsdp_config:\n" + settings).train;
  };
  const Flags whole = {{"zero_stage", "3"}}, gradients = {{"zero_stage", "2"}};
  const Flags machines = {{"zero_stage", "3"}, {"zero_group", "node"}};
  const auto named = [&](const std::string& name) {
    const Flags flags = train("  fsdp_sharding_strategy: " + name + "\n");
    REQUIRE(train("  fsdp_reshard_after_forward: " + name + "\n") == flags);  // its later name
    return flags;
  };
  REQUIRE(train("  fsdp_use_orig_params: true\n") == whole);  // accelerate's default
  REQUIRE(named("FULL_SHARD") == whole);
  REQUIRE(named("full_shard") == whole);
  REQUIRE(named("1") == whole);
  REQUIRE(named("SHARD_GRAD_OP") == gradients);
  REQUIRE(named("NO_SHARD").empty());
  REQUIRE(named("3").empty());
  REQUIRE(named("HYBRID_SHARD") == machines);
  REQUIRE(named("HYBRID_SHARD_ZERO2") == Flags{{"zero_stage", "2"}, {"zero_group", "node"}});
  REQUIRE(train("  fsdp_version: 2\n  fsdp_reshard_after_forward: true\n") == whole);
  REQUIRE(train("  fsdp_version: 2\n  fsdp_reshard_after_forward: false\n") == gradients);
  REQUIRE(read_text("distributed_type: MULTI_GPU\nnum_processes: 8\n").train.empty());
  for (const std::string wrong : {"HALF_SHARD", "6", "0", "[1]"})
    REQUIRE_THAT(
        refused("distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: " + wrong),
        Contains("is no strategy that is known") && Contains("HYBRID_SHARD_ZERO2"));
}

TEST_CASE("What would make another run of it is refused, all at once") {
  const std::string said = refused(
      "distributed_type: TPU\nmixed_precision: fp16\ngpu_ids: 0,2\n"
      "fp8_config:\n  backend: TE\ncompute_environment: AMAZON_SAGEMAKER\n");
  REQUIRE_THAT(said, Contains("distributed_type: TPU") && Contains("mixed_precision: fp16") &&
                         Contains("CUDA_VISIBLE_DEVICES=0,2") && Contains("fp8_config") &&
                         Contains("AMAZON_SAGEMAKER"));
  REQUIRE_THAT(refused(R"({"optimizer": {"type": "Adam"}, "fp16": {"enabled": true}})", "ds.json"),
               Contains("--optimizer_type") && Contains("fp16"));
  REQUIRE_THAT(
      refused(R"({"zero_optimization": {"offload_optimizer": {"device": "nvme"}}})", "ds.json"),
      Contains("zero_optimization.offload_optimizer: nvme"));
}

TEST_CASE("Numbers of DeepSpeed are flags of train") {
  const LauncherFile file = read_text(
      R"({"train_batch_size": 32, "train_micro_batch_size_per_gpu": 2, "gradient_clipping": 0.5,
          "bf16": {"enabled": true}, "steps_per_print": 10})",
      "ds.json");
  REQUIRE(file.train == Flags{{"dtype", "bfloat16"},
                              {"max_grad_norm", "0.5"},
                              {"global_batch_size", "32"},
                              {"batch_size", "2"}});
  REQUIRE_THAT(all_notes(file), Contains("steps_per_print: 10 has no effect"));
}

TEST_CASE("Unknown settings and broken files are told by place") {
  REQUIRE_THAT(refused("distributed_type: 'NO'\nnum_proceses: 2\n"),
               Contains("\"num_proceses\" is not known"));
  REQUIRE_THAT(refused("distributed_type: 'NO'\ndeepspeed_config:\n  zero: 2\n"),
               Contains("deepspeed_config.\"zero\" is not known"));
  REQUIRE_THAT(refused("a: [1, 2\nb: 3\n"), Contains("a.yaml:2: ") && Contains("YAML_SYNTAX"));
  REQUIRE_THAT(refused("- 1\n"), Contains("no settings of accelerate or DeepSpeed"));
  REQUIRE_THAT(refused("debug: true\ndebug: false\n"), Contains("\"debug\" is given twice"));
}

TEST_CASE("Files with wrong bytes are read or refused, whatever they say") {
  const Repository repository;
  std::mt19937 random(42);
  const auto below = [&](size_t count) { return random() % count; };
  int refused = 0;
  for (const char* name : {"accelerate_config.yaml", "accelerate_config_zero2offload.yaml",
                           "accelerate_config_zero3.yaml", "deepspeed_zero3_cpuoffload.yaml",
                           "ds_z3_cpuoffload.json"}) {
    const std::string whole = test::read_bytes(data(name));
    for (int trial = 0; trial < 400; ++trial) {
      std::string text = whole;
      for (size_t i = 0; i <= below(4); ++i) {
        const size_t at = below(text.size()), length = below(text.size() - at) % 20;
        const size_t kind = below(4);
        if (kind == 0) text[at] = static_cast<char>(below(256));
        if (kind == 1) text.erase(at, length);
        if (kind == 2) text.insert(at, text.substr(below(text.size()), length));
        if (kind == 3)
          text.insert(at, std::vector{"- ", "{", "!!", "&a *a", ": ", "1e999"}[below(6)]);
      }
      try {
        read_text(text, name);
      } catch (const Error& error) {
        REQUIRE(error.code() != ErrorCode::kInternal);
        ++refused;
      }
    }
  }
  REQUIRE(refused > 100);
}

namespace {

using Words = std::vector<std::pair<std::string, std::string>>;

LauncherFile read_words(const Words& words) {
  report::Problems problems;
  LauncherFile file = flags::read_launcher_words(words, problems);
  problems.throw_if_any();
  return file;
}

std::string refused_words(const Words& words) {
  return test::error_of([&] { read_words(words); }).what();
}

}  // namespace

TEST_CASE("Flags of accelerate launch say what its files say") {
  REQUIRE(read_words({{"num_processes", "8"}}).launch == kEight);
  REQUIRE(read_words({{"multi_gpu", ""}}).launch == Flags{{"nproc_per_node", "auto"}});
  REQUIRE(read_words({{"multi_gpu", ""}, {"num_processes", "8"}}).launch == kEight);
  REQUIRE(read_words({{"num_processes", "16"},
                      {"num_machines", "2"},
                      {"machine_rank", "0"},
                      {"main_process_ip", "node1"},
                      {"main_process_port", "29501"}})
              .launch == Flags{{"master_addr", "node1"},
                               {"master_port", "29501"},
                               {"nproc_per_node", "8"},
                               {"nnodes", "2"},
                               {"node_rank", "0"}});
  const LauncherFile zero = read_words({{"zero_stage", "2"},
                                        {"offload_optimizer_device", "cpu"},
                                        {"gradient_accumulation_steps", "4"},
                                        {"gradient_clipping", "0.5"}});
  REQUIRE(zero.train == Flags{{"zero_stage", "2"},
                              {"optimize_on_cpu", "true"},
                              {"gradient_accumulation_steps", "4"},
                              {"max_grad_norm", "0.5"}});
  REQUIRE(read_words({{"use_fsdp", ""}}).train == Flags{{"zero_stage", "3"}});
  REQUIRE(read_words({{"use_fsdp", ""}, {"fsdp_sharding_strategy", "SHARD_GRAD_OP"}}).train ==
          Flags{{"zero_stage", "2"}});
  REQUIRE(read_words({{"cpu", ""}}).train == Flags{{"device", "cpu"}});
  REQUIRE(read_words({{"config_file", "a b.yaml"}}).launch == Flags{{"config_file", "a b.yaml"}});
}

TEST_CASE("Flags of torchrun and deepspeed") {
  REQUIRE(read_words({{"nproc_per_node", "8"}}).launch == kEight);
  REQUIRE(read_words({{"num_gpus", "8"}}).launch == kEight);
  const std::string all = GENERATE("gpu", "auto");
  REQUIRE(read_words({{"nproc_per_node", all}}).launch == Flags{{"nproc_per_node", "auto"}});
  REQUIRE(
      read_words({{"rdzv_endpoint", "node1:29400"}, {"nnodes", "2"}, {"node_rank", "1"}}).launch ==
      Flags{
          {"master_addr", "node1"}, {"master_port", "29400"}, {"nnodes", "2"}, {"node_rank", "1"}});
  REQUIRE_THAT(all_notes(read_words({{"max_restarts", "3"}})),
               Contains("--max_restarts: 3 has no effect"));
}

TEST_CASE("Flags of launchers that would make another run of it are refused") {
  REQUIRE_THAT(refused_words({{"nnodes", "2"}, {"nproc_per_node", "8"}}),
               Contains("nothing says which of 2 machines this is"));
  REQUIRE_THAT(refused_words({{"nnodes", "1:4"}}), Contains("--nnodes: 1:4 is no whole number"));
  REQUIRE_THAT(
      refused_words({{"num_processes", "9"}, {"num_machines", "2"}, {"machine_rank", "0"}}),
      Contains("no multiple"));
  REQUIRE_THAT(refused_words({{"include", "localhost:0,1"}}), Contains("CUDA_VISIBLE_DEVICES"));
  REQUIRE_THAT(refused_words({{"hostfile", "hosts"}}), Contains("on each machine"));
  REQUIRE_THAT(refused_words({{"deepspeed_config_file", "/no/such.json"}}),
               Contains("/no/such.json"));
}
