#include "atelier/nn/forward_all.h"

#include "atelier/ops/linears.h"

namespace atelier::nn {

std::vector<at::Tensor> forward_all(std::initializer_list<const Linear*> layers,
                                    const at::Tensor& x) {
  std::vector<ops::LinearTerms> terms;
  for (const Linear* layer : layers) terms.push_back({layer->weight, layer->bias, layer->adapters});
  return ops::linears(x, terms);
}

}  // namespace atelier::nn
