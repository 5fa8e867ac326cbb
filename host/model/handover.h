// One denoiser's blocks come to the device while those of another run for the last time.
#pragma once

#include <string_view>

namespace atelier::model {

class LoadedModel;

// The next run of each block of `from` is its last before `to` takes its place. Weights of `to`
// that come with their blocks are read now, from where they rest; behind each block that ran, what
// stays on the device for it leaves, and as soon as that gives the room, the first blocks of `to`
// are on their way. What is missing comes with LoadedModel::load_component(to). `from` is not run
// again until it was unloaded and loaded.
//
// Does nothing where no block of `to` comes and goes, where `to` is there already, and where the
// host has no room for the blocks of both.
void hand_over(LoadedModel& model, std::string_view from, std::string_view to);

}  // namespace atelier::model
