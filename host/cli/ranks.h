// What commands do as one of several processes.
#pragma once

#include <optional>
#include <string>

#include "atelier/error.h"

#include "host/distributed/handshake.h"
#include "host/train/training_run.h"

namespace atelier::cli {

// Each process of a machine has a GPU of its own as long as there are enough: `device` is "auto" or
// "cuda", and names that GPU then. Others stay what they are.
void choose_gpu(std::string& device, const distributed::Ranks& ranks);

// The GPU `device` of this process, whose tensors NCCL sends; nullopt: Gloo sends everything.
// `backend`: that of --dist_backend.
std::optional<int> gpu_of_nccl(const std::string& device, const std::string& backend);

// Throws the mistakes, where there are any; those that all ranks have made are said by rank 0
// alone. All come here.
void throw_mistakes(distributed::Group& group, const std::optional<Error>& mistakes);

// What `prepare` returns, of which each rank may find mistakes.
template <typename F>
auto prepare_together(distributed::Group& group, F&& prepare) {
  std::optional<decltype(prepare())> prepared;
  std::optional<Error> mistakes;
  try {
    prepared.emplace(prepare());
  } catch (const Error& error) {
    mistakes = error;
  }
  throw_mistakes(group, mistakes);
  return std::move(*prepared);
}

// What the program is, which has to be the same on all ranks.
distributed::RunIdentity program_identity();
// Adds what the plugin and the weights of a model are.
void add_model(distributed::RunIdentity& facts, const model::LoadedModel& model);

// A folder that all ranks have to see, and its flag.
struct SharedFolder {
  std::string flag, path;
  bool is_read_only = false;
};

// Throws one error, on all ranks, that names all that differs: facts, folders that are not shared,
// and a GPU that several have where NCCL is to send. Then GPUs can exchange, too.
void compare_ranks(distributed::Group& group, const distributed::RunIdentity& facts,
                   const std::vector<SharedFolder>& folders = {});

// Throws, on all ranks, unless they are about to do the same in the same folders.
void require_same_run(distributed::Group& group, const train::PreparedRun& run);

// Each rank has planned for itself: all take the placement of the one with the least room, since
// what they exchange depends on it. Returns whether that is another one than this rank's. All come
// here.
bool agree_on_layout(distributed::Group& group, train::PreparedRun& run);

// What of a model rests in host memory and is not trained, the ranks of a machine have together.
// All come here.
void share_host_memory(distributed::Group& group, train::PreparedRun& run);

}  // namespace atelier::cli
