// Which components have their weights in memory, from one kind of work to the next.
#pragma once

#include <functional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "host/model/stages.h"

namespace atelier::model {

// What the work that goes on needs is there. What only encodes leaves before the denoiser comes, a
// denoiser and its controls before the next one does, and the autoencoder, which is small, stays
// until everything leaves; what was said to stay never leaves. Not thread-safe.
class Residents {
 public:
  // Does nothing where there is nothing to do.
  using Call = std::function<void(std::string_view component)>;

  // `components`: of the model. Those of `stays` do not leave.
  Residents(std::vector<PresentComponent> components, Call load, Call unload,
            std::set<std::string, std::less<>> stays = {});

  // Each loads what it needs; `before_each` is called before a component is loaded.
  void encode(const EncodeStage& stage, const std::function<void()>& before_each = {});
  // `controls`: those that run beside it, see Stages::controls_beside(); others leave.
  void denoise(std::string_view denoiser, const std::vector<std::string>& controls,
               const std::function<void()>& before_each = {});
  void decode(const std::function<void()>& before_each = {});

  // What only encodes leaves.
  void end_encoding();
  // Everything leaves.
  void end();

 private:
  template <class F>
  void load_where(const F& is_needed, const std::function<void()>& before_each);
  template <class F>
  void unload_where(const F& may_leave);

  std::vector<PresentComponent> components_;
  Call load_, unload_;
  std::set<std::string, std::less<>> stays_;
};

}  // namespace atelier::model
