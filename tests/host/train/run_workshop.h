// Whole runs of the toy model, in a few lines: what tests of one process and of ranks share.
#pragma once

#include <cerrno>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include <ATen/core/grad_mode.h>

#include "host/distributed/group.h"
#include "host/files/file_operations.h"
#include "host/train/trainer.h"
#include "run_toy.h"

namespace atelier::test {

// A run of two steps an epoch, of two batches and of one.
struct RunWorkshop : RunToy {
  double seconds = 100;  // of the clock that the run believes
  std::string device = "cpu";

  RunWorkshop() {
    config.order.gradient_accumulation_steps = 2;
    config.num_epochs = 3;
    config.dataset_num_workers = 1;
    config.output.save_steps = 2;
    config.output.checkpoints_total_limit = 0;
    config.ema_decay = 0.9;
  }

  // Trains into the folder `name`, from `state` where one is given, with the weights as they are in
  // the files; alone, or as a rank of `group`, of which the first has the folder. `sequence`: ranks
  // that compute a batch together; null: each has its own.
  int train(const std::string& name, const std::optional<run::SavedState>& state = {},
            distributed::Group* group = nullptr, SequenceGroup* sequence = nullptr) {
    open(device);
    config.output.output_path = folder / name;
    std::optional<run::RunFolder> run_folder;
    if (!group || group->is_first()) run_folder.emplace(config.output.output_path);
    train::Trainer trainer(
        {*model, config, parameters::unplanned_layout(config), *samples, samples.get(), nullptr,
         run_folder ? &*run_folder : nullptr, progress, nullptr, group, nullptr, sequence},
        selection(), [this] { return seconds; });
    if (state) trainer.resume(*state);
    return trainer.run();
  }
  int resume(const std::string& name) { return train(name, newest(name)); }

  run::SavedState newest(const std::string& name) const {
    return run::find_state(folder / name, [](const std::string&) {});
  }
  // Everything that the newest checkpoint of `name` holds.
  NamedTensors state_of(const std::string& name) const {
    const run::SavedState checkpoint = newest(name);
    NamedTensors all;
    for (const char* file : {"trained.safetensors", "optimizer.safetensors", "ema.safetensors"}) {
      for (const auto& [key, value] : checkpoint.load(file)) all.emplace(file + key, value);
    }
    return all;
  }
};

// Calls `action` in the forward pass number `number` of a training step of this process, from 1.
inline VelocityHook at_forward(int number, std::function<void()> action) {
  return [number, calls = 0, action = std::move(action)](const at::Tensor& velocity) mutable {
    if (at::GradMode::is_enabled() && ++calls == number) action();
    return velocity;
  };
}

[[noreturn]] inline void run_out_of_memory() {
  throw Error(ErrorCode::kOutOfMemory, "no room");
}

// A disk that takes nothing while it is full.
struct FullDisk final : files::FileOperations {
  bool is_full = true;
  ssize_t write(int file, const void* bytes, size_t count) override {
    if (!is_full) return FileOperations::write(file, bytes, count);
    errno = ENOSPC;
    return -1;
  }
};

}  // namespace atelier::test
