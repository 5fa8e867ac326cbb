#include "host/flags/compat_flags.h"

#include <set>

#include "support/catch.h"
#include "support/errors.h"

namespace atelier::flags {
namespace {

// What a command says of another program's flag; empty: nothing.
std::string answer_to(std::string_view name, unsigned origins) {
  for (const OtherFlag& answer : compat_answers(origins)) {
    if (answer.name == name) return answer.of + ": " + answer.use;
  }
  return "";
}

CommandSpec studio_command() {
  CommandSpec command{"train", "", compat_specs()};
  for (const char* name : {"offload_models", "initialize_model_on_cpu"})
    command.flags.push_back(compat_spec(name));
  return command;
}

}  // namespace

TEST_CASE("No program has a flag twice", "[compat_flags]") {
  for (const unsigned origin : {kLauncher, kKohya, kTrainer, kSampler}) {
    std::set<std::string_view> names;
    for (const OtherFlag& answer : compat_answers(origin)) {
      INFO(answer.name);
      CHECK(names.insert(answer.name).second);
    }
    CHECK(names.size() > 10);
  }
}

TEST_CASE("A flag of another program is answered with what to do here", "[compat_flags]") {
  CHECK(answer_to("network_dim", kKohya | kTrainer) == "kohya's trainers: use --lora_rank");
  CHECK(answer_to("use_8bit_adam", kKohya) == "kohya's trainers: use --optimizer_type AdamW8bit");
  CHECK(answer_to("lowram", kKohya) ==
        "kohya's trainers: --vram says what the run may take, and the rest is planned: leave it "
        "out");
  CHECK(answer_to("multi_gpu", kLauncher) ==
        "a launcher, not of train: atelier launch --nproc_per_node N -- train … starts several "
        "processes");
  CHECK(answer_to("network_dim", kSampler).empty());
}

TEST_CASE("One row answers for several programs", "[compat_flags]") {
  CHECK(answer_to("bf16", kTrainer) == "other trainers: use --dtype bfloat16");
  CHECK(answer_to("bf16", kSampler) == ": use --dtype bfloat16");
  CHECK(answer_to("guidance_scale", kTrainer) ==
        "other trainers: guidance is a matter of sampling: leave it out");
  CHECK(answer_to("guidance_scale", kSampler) == ": use --cfg_scale");
}

TEST_CASE("Flags of DiffSynth-Studio are taken, noted and refused", "[compat_flags]") {
  CHECK(compat_spec("wandb_project").help == "no effect: there is no such log");
  CHECK(compat_spec("customized_optimizer").help ==
        "refused: optimizers are chosen by name; use --optimizer_type");
  report::Problems problems;
  const ParsedFlags flags =
      parse_flags(studio_command(),
                  std::vector<std::string>{"--enable_wandb_log", "--find_unused_parameters=no",
                                           "--offload_models", "dit"});
  CHECK(note_compat_flags(flags, problems) ==
        std::vector<std::string>{
            "--enable_wandb_log has no effect: there is no such log; use --enable_tensorboard_log",
            "--offload_models has no effect: components that a stage does not need are not loaded "
            "anyway"});
  CHECK(problems.empty());
}

TEST_CASE("A value of another program is answered with what to do here", "[compat_flags]") {
  CHECK(use_of_value("weighting_scheme", "mode") ==
        "noise levels are drawn so by --timestep_sampling mode, with --weighting_scheme none");
  CHECK(use_of_value("weighting_scheme", "sigma").empty());
  CHECK(use_of_value("lr_scheduler", "mode").empty());
  const CommandSpec command{
      "train", "", {{.name = "lr_warmup_steps", .kind = FlagKind::kInteger, .help = ""}}};
  test::expect_error(
      ErrorCode::kInvalidArgument,
      {"--lr_warmup_steps: \"0.05\" is no whole number; steps are meant, not a part of "
       "the run: 0.05 of 1000 steps is 50"},
      [&] { parse_flags(command, std::vector<std::string>{"--lr_warmup_steps=0.05"}); });
}

TEST_CASE("What would be missed is refused", "[compat_flags]") {
  report::Problems problems;
  const std::vector<std::string> words = {"--customized_optimizer", "lion_pytorch.Lion"};
  CHECK(note_compat_flags(parse_flags(studio_command(), words), problems).empty());
  CHECK(problems.size() == 1);
}

}  // namespace atelier::flags
