#include "bench/bench_rows.h"
#include "host/optim/optimizer.h"

namespace atelier::bench {
namespace {

using optim::MasterWeights;

// A parameter of bfloat16 and what moves it.
struct Moved {
  optim::Group group;
  std::unique_ptr<optim::Optimizer> optimizer;
  at::Tensor one, zero;

  Moved(const Bench& bench, int64_t count, MasterWeights master_weights) {
    at::Tensor leaf = bench.noise({count}).requires_grad_();
    leaf.mutable_grad() = bench.noise({count});
    group.parameters.push_back({"weight", leaf});
    optimizer = optim::make_optimizer(
        {group}, {.kind = optim::Kind::kAdamW8bit, .master_weights = master_weights});
    one = at::ones({}, leaf.options().dtype(at::kFloat).requires_grad(false));
    zero = at::zeros_like(one);
  }
};

}  // namespace

void add_optimizer_steps(std::vector<Row>& rows, bool is_small) {
  const int64_t count = is_small ? 1 << 16 : 1 << 26;
  for (const auto master_weights : {MasterWeights::kFp32, MasterWeights::kStochastic}) {
    const bool has_master = master_weights == MasterWeights::kFp32;
    // Read: the gradient, the master or the leaf, two codes; written: all but the gradient. And
    // for each block of codes its largest magnitude.
    const double bytes_each = (has_master ? 2 + 8 + 2 : 2 + 4) + 4 + 4 * 4.0 / 256;
    for (const bool is_fused : {false, true}) {
      rows.push_back(
          {std::string("AdamW in 8 bits, ") + (has_master ? "float32 master" : "stochastic") +
               (is_fused ? ", fused" : ""),
           bytes_each * static_cast<double>(count), 0, [=](const Bench& bench, int sets) {
             auto moved = std::make_shared<std::vector<Moved>>();
             for (int i = 0; i < sets; ++i) moved->emplace_back(bench, count, master_weights);
             return with_kernels(is_fused, [moved](int set) {
               Moved& of_set = (*moved)[static_cast<size_t>(set)];
               of_set.optimizer->step(1e-4, of_set.one, of_set.zero);
             });
           }});
    }
  }
}

}  // namespace atelier::bench
