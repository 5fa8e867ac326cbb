#include "host/model/component_filler.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "host/model/components.h"
#include "host/model/random_weights.h"
#include "host/weights/weight_loading.h"

namespace atelier::model {

void fill_weights(LoadedModel& model, std::string_view name, const weights::WeightBinding& binding,
                  const files::Checkpoint& checkpoint, const PlaceByWeight& places,
                  const std::function<void(int64_t)>& progress) {
  if (const std::optional<uint64_t> seed = random_weights_seed(checkpoint))
    return fill_randomly(binding, checkpoint, *seed, model.dtype(name), model.device(), progress,
                         model.weight_storage(name), places);
  std::unique_ptr<memory::TransferDevice> own;
  memory::TransferDevice* transfer = model.device().is_cpu() ? nullptr : model.transfer();
  if (!model.device().is_cpu() && transfer == nullptr)
    transfer = (own = memory::make_transfer_device(model.device())).get();
  // Most runs use half of an autoencoder.
  weights::load_weights(binding, checkpoint, model.dtype(name), model.device(), progress,
                        model.weight_storage(name),
                        {.places = places,
                         .maps = !model.is_simulated(),
                         .populates = !has_role(model.family(), name, Role::kVae),
                         .transfer = transfer});
}

ComponentFiller::ComponentFiller(LoadedModel& model, std::string_view name,
                                 const weights::WeightBinding& binding,
                                 const files::Checkpoint& checkpoint, const PlaceByWeight& places,
                                 std::function<void(int64_t)> progress)
    : model_(model),
      name_(name),
      binding_(binding),
      checkpoint_(checkpoint),
      places_(places),
      progress_(std::move(progress)) {}

void ComponentFiller::fill(const Wanted& is_wanted) {
  int64_t read = 0;
  fill_weights(model_, name_, those(is_wanted), checkpoint_, places_, [&](int64_t bytes) {
    read = bytes;
    progress_(done_ + bytes);
  });
  done_ += read;
}

memory::BlockLoading ComponentFiller::loading() {
  const auto of = [](Block& block) -> Wanted {
    return [own = weights_of(block)](const Weight* weight) { return own.contains(weight); };
  };
  return {.load = [this, of](Block& block) { fill(of(block)); },
          .outline =
              [this, of](Block& block) {
                weights::outline_weights(those(of(block)), checkpoint_, model_.dtype(name_),
                                         model_.weight_storage(name_));
              }};
}

weights::WeightBinding ComponentFiller::those(const Wanted& is_wanted) const {
  weights::WeightBinding some;
  std::ranges::copy_if(binding_.weights, std::back_inserter(some.weights),
                       [&](const auto& bound) { return is_wanted(bound.weight); });
  return some;
}

}  // namespace atelier::model
