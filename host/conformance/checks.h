// What all checks of the conformance suite share: the family that is judged, models of its tiny
// parts, and ways to find fault.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "atelier/error.h"
#include "atelier/model_family.h"

#include "host/conformance/conformance.h"
#include "host/weights/published_tensors.h"

namespace atelier::conformance {

constexpr uint64_t kSeed = 20250711;
constexpr double kTolerance = 1e-5;  // of the output's largest value

// Ends a check with what it found.
struct Failed {
  std::string detail;
};

template <typename... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  throw Failed{out.str()};
}

template <typename... Parts>
void expect(bool condition, const Parts&... parts) {
  if (!condition) fail(parts...);
}

bool is_snake_case(std::string_view name);

// A number in few digits.
std::string figure(double value);

// The largest difference, relative to the largest value of `expected`.
double difference(const at::Tensor& got, const at::Tensor& expected);

// All bytes of a file.
std::string read_file(const std::string& path);

// Throws Failed unless `body` throws an Error of this code.
void expect_error(ErrorCode code, const std::string& what, const std::function<void()>& body);

// The paths of the first blocks.
std::string paths(const std::vector<Block*>& blocks);

// Names and shapes of tensors, as a checkpoint has them.
TensorIndex index_of(const std::vector<weights::PublishedTensor>& tensors,
                     TensorIndex::Config config = {});

// Runs blocks and remembers which.
class CountingRunner final : public BlockRunner {
 public:
  Tensors run(Block& block, const Tensors& inputs) override;

  std::vector<Block*> order;
  bool twice = false;
  std::vector<std::string> differing;
};

// The family that is judged, and what checks found out about it.
struct Subject {
  Subject(const ModelFamily& family, const std::function<void(const Finding&)>& report,
          at::Device device)
      : family(family), report(report), device(device) {}
  Subject(const Subject&) = delete;  // checks point into it
  Subject& operator=(const Subject&) = delete;

  const ModelFamily& family;
  const std::function<void(const Finding&)>& report;
  const at::Device device;                  // where models compute
  std::vector<Detection> parts;             // once they are known to be usable
  std::optional<EncodeStage> target_stage;  // that encodes the target
};

// A group of checks.
class Checks {
 protected:
  using Detail = std::string;

  explicit Checks(Subject& subject) : subject_(subject) {}

  // Runs `body` and reports what it gives, or the fault that it finds.
  void check(const std::string& name, const std::function<Detail()>& body) const;

  const ModelFamily& family() const { return subject_.family; }
  const std::vector<Detection>& parts() const { return subject_.parts; }
  at::Device device() const { return subject_.device; }
  const ComponentSpec* spec_of(std::string_view component) const;
  const Detection* part_of_role(Role role) const;
  bool has_tokenizer() const;

  std::unique_ptr<Model> make(std::span<const Detection> parts,
                              const ModelOptions& options = {}) const;
  // Values of normal size: scales near 1, products that keep the variance, small biases.
  void randomize(nn::Module& module, at::ScalarType dtype = at::kFloat) const;
  // A model of all parts with random weights.
  std::unique_ptr<Model> make_random(at::ScalarType dtype = at::kFloat,
                                     const ModelOptions& options = {}) const;
  // What a denoiser is given for one prediction.
  struct Step {
    at::Tensor x, sigma;
    std::vector<Conditioning> cond;
    std::vector<const Conditioning*> pointers;
    std::string_view denoiser;
    DenoiseInputs inputs();
  };
  // Counts the smallest images beside each other; without frames families of videos have two.
  struct StepSize {
    int64_t batch, rows, columns, frames = 0;
  };
  // Noise, levels and the family's example of a conditioning, on the device of the suite.
  Step make_step(const Detection& denoiser, const LatentSpec& spec, const StepSize& size,
                 at::ScalarType dtype = at::kFloat) const;

  // Latent cells of a size: `rows` and `columns` count the smallest images beside each other.
  static std::vector<int64_t> latent_size(const LatentSpec& spec, int64_t rows, int64_t columns);

  Subject& subject_;
};

// The groups, in the order in which they run. Each stands in a file of its own.
void check_declarations(Subject& subject);  // fills subject.parts where they can be used
void check_weights(Subject& subject);
void check_denoisers(Subject& subject);
void check_gradients(Subject& subject);
void check_controls(Subject& subject);
void check_encoders(Subject& subject);
void check_dry_runs(Subject& subject);

}  // namespace atelier::conformance
