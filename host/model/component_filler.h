// The weights of a component, read part by part.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "host/model/model_loader.h"
#include "memory/shared_blocks.h"

namespace atelier::model {

using PlaceByWeight = std::map<const Weight*, memory::Place>;

// Fills the weights of `binding`, of the component `name`: those of `places` come to rest there.
void fill_weights(LoadedModel& model, std::string_view name, const weights::WeightBinding& binding,
                  const files::Checkpoint& checkpoint, const PlaceByWeight& places,
                  const std::function<void(int64_t)>& progress);

// Fills a component part by part, and says how many bytes it has read so far. What it is given
// outlives it.
class ComponentFiller {
 public:
  ComponentFiller(LoadedModel& model, std::string_view name, const weights::WeightBinding& binding,
                  const files::Checkpoint& checkpoint, const PlaceByWeight& places,
                  std::function<void(int64_t)> progress);
  ComponentFiller(const ComponentFiller&) = delete;
  ComponentFiller& operator=(const ComponentFiller&) = delete;

  using Wanted = std::function<bool(const Weight* weight)>;
  void fill(const Wanted& is_wanted);

  // Loads the blocks that come while a residency is made.
  memory::BlockLoading loading();

 private:
  weights::WeightBinding those(const Wanted& is_wanted) const;

  LoadedModel& model_;
  const std::string name_;
  const weights::WeightBinding& binding_;
  const files::Checkpoint& checkpoint_;
  const PlaceByWeight& places_;
  const std::function<void(int64_t)> progress_;
  int64_t done_ = 0;
};

}  // namespace atelier::model
