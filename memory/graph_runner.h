// The blocks of a denoiser as CUDA graphs: one launch each, where a small image has the host launch
// kernels more slowly than the device runs them.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "atelier/block.h"
#include "atelier/host/device_graph.h"

namespace atelier::memory {

// Blocks of up to so many rows were proven to have the same bits as graphs and to be faster, on the
// GPUs of this machine. Before other threads plan or generate; 0: none, as at the start.
void set_proven_graph_rows(int64_t rows);

enum class GraphChoice {
  kAuto,  // where it is proven
  kOn,
  kOff
};
// Blocks of how many rows are graphs on a device; 0: none.
int64_t graph_rows(GraphChoice choice, at::Device device);

// Runs blocks without gradients as graphs of the same operators on the same numbers, to the same
// bits. A block runs as ever when it meets inputs of a form for the first time, which makes plans
// and tables; the second time it is recorded, and from then on replayed. What may change from one
// run to the next is copied into buffers of the graph: tensors on the device. What a graph has
// fixed decides which one runs: sizes, strides and alignment of those, the values of integers on
// the host, the weights and LoRAs of the block, and where its weights lie while it is held. Outputs
// are copies. Not thread-safe.
class GraphRunner final : public BlockRunner {
 public:
  struct Options {
    std::unique_ptr<ops::GraphRecorder> recorder;
    int64_t most_rows = INT64_MAX;  // of a block's first input; larger ones run as ever
    bool runs_first = true;         // before it is recorded
    // Is told once when blocks could not be recorded and run as ever from then on.
    std::function<void(const std::string&)> warn = {};
  };
  // `inner` runs the blocks otherwise, and outlives this. What its hold() gives of a block whose
  // weights come and go points to where they lie, as BlockStream's does.
  explicit GraphRunner(BlockRunner& inner);
  ~GraphRunner() override;

  // From now on blocks become graphs.
  void begin(Options options);
  // They do no longer, and all graphs go with their memory.
  void end();

  struct Stats {
    int64_t recorded = 0, replayed = 0;  // since begin()
  };
  const Stats& stats() const { return stats_; }

  Tensors run(Block& block, const Tensors& inputs) override;
  std::shared_ptr<void> hold(Block& block) override { return inner_.hold(block); }

 private:
  using Key = std::vector<int64_t>;
  struct Recorded {
    std::vector<at::Tensor> uploads;  // that the graph reads
    std::unique_ptr<ops::DeviceGraph> graph;
  };
  struct Known {
    std::optional<Key> weights;                // as they were when the block ran first
    std::map<const void*, Recorded> by_place;  // of its weights
  };
  // Inputs that graphs can share.
  struct Form {
    Key key;
    Tensors buffers;  // what graphs read: those of the host as they are
    std::map<const Block*, Known> blocks;
  };

  bool can_record(const Tensors& inputs) const;
  Form& form_of(const Tensors& inputs);
  Recorded record(Block& block, Form& form, const Tensors& inputs);
  void give_up(const std::string& reason);

  BlockRunner& inner_;
  Options options_;
  Stats stats_;
  std::list<Form> forms_;  // the one that was used last in front
};

}  // namespace atelier::memory
