#include "memory/shared_blocks.h"

#include <utility>

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include "atelier/error.h"
#include "atelier/host/file_pages.h"
#include "atelier/host/weight_state.h"

namespace atelier::memory {

namespace {

bool is_as_outlined(const SlabSlice& slice, const at::Tensor& part) {
  return part.sizes() == at::IntArrayRef(slice.sizes) && part.scalar_type() == slice.dtype;
}

// Loads the weights of the block into `slab`, and leaves nothing of them elsewhere.
void load_into(const at::Tensor& slab, Block& block, const SharedBlock& shared,
               const BlockLoading& loading) {
  loading.load(block);
  block.visit_weights([&](const std::string& path, Weight& weight) {
    const std::vector<SlabSlice>& slices = shared.slices.at(&weight);
    const std::vector<at::Tensor> parts = weight.state().store()->parts();
    for (size_t i = 0; i < slices.size(); ++i) {
      if (parts.size() != slices.size() || !is_as_outlined(slices[i], parts[i]))
        throw Error(ErrorCode::kInternal, "block '" + block.path() + "': weight '" + path +
                                              "' is not what it was expected to be");
      slices[i].fill(slab, parts[i]);
      give_back_pages(parts[i]);
    }
    weight.state().set_store(nullptr);
  });
  loading.outline(block);
}

SharedBlock bring(Block& block, const std::set<const Weight*>& on_demand,
                  const SlabSharing& sharing, const BlockLoading& loading) {
  loading.outline(block);
  SharedBlock shared;
  SlabLayout layout;
  for (const bool comes : {true, false}) {
    block.visit_weights([&](const std::string&, Weight& weight) {
      if (on_demand.contains(&weight) == comes) return;
      for (const at::Tensor& part : weight.state().store()->parts())
        shared.slices[&weight].push_back(layout.add(part));
    });
  }
  shared.bytes = layout.bytes();
  const std::string key = sharing.name + " " + block.path();
  shared.memory = sharing.slabs->take(key, shared.bytes, [&](void* data) {
    const c10::InferenceMode normal(false);
    const at::Tensor slab = at::from_blob(data, {shared.bytes}, at::TensorOptions(at::kByte));
    load_into(slab, block, shared, loading);
  });
  if (shared.memory == nullptr) loading.load(block);
  return shared;
}

}  // namespace

std::vector<SharedBlock> bring_shared(const std::vector<Block*>& blocks,
                                      const std::set<const Weight*>& on_demand,
                                      const SlabSharing& sharing, const BlockLoading& loading) {
  std::vector<SharedBlock> shared(blocks.size());
  if (sharing.slabs == nullptr) return shared;
  const auto first = static_cast<size_t>(sharing.slabs->first_of(std::ssize(blocks)));
  for (size_t k = 0; k < blocks.size(); ++k) {
    const size_t i = (first + k) % blocks.size();
    if (blocks[i] != nullptr) shared[i] = bring(*blocks[i], on_demand, sharing, loading);
  }
  return shared;
}

}  // namespace atelier::memory
