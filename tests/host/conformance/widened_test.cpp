// What the suite finds of stages, inputs and solvers that few families have.
#include <optional>

#include "host/conformance/conformance.h"
#include "support/catch.h"
#include "support/toy_family.h"

namespace atelier::conformance {
namespace {

// A toy with more tables than the others.
class WideToy final : public test::ToyFamily {
 public:
  std::vector<SolverSpec> own_solvers;
  std::vector<InputSpec> all_inputs = rows_of(ToyFamily::inputs());
  std::vector<EncodeStage> stages = rows_of(ToyFamily::encode_stages());

  std::span<const SolverSpec> solvers() const override { return own_solvers; }
  std::span<const InputSpec> inputs() const override { return all_inputs; }
  std::span<const EncodeStage> encode_stages() const override { return stages; }

  // What the suite says of the declarations.
  std::vector<std::string> failed() const {
    std::vector<std::string> names;
    for (const Finding& finding : check_family(*this))
      if (!finding.passed) names.push_back(finding.check + ": " + finding.detail);
    return names;
  }

 private:
  template <class Row>
  static std::vector<Row> rows_of(std::span<const Row> rows) {
    return {rows.begin(), rows.end()};
  }
};

void check_only(const WideToy& toy, const std::string& check, const std::string& detail) {
  const std::vector<std::string> names = toy.failed();
  INFO((names.empty() ? "nothing failed" : names.front()));
  REQUIRE(names.size() == 1);
  CHECK_THAT(names.front(), Catch::StartsWith(check) && Catch::Contains(detail));
}

// Euler's steps, and what a solver may do wrong.
template <bool kChangesVelocity, bool kHidesHistory>
class OddEuler final : public Solver {
 public:
  OddEuler(std::span<const float> sigmas, const at::Tensor& like)
      : sigmas_(sigmas.begin(), sigmas.end()), history_(at::zeros_like(like)) {}
  void step(at::Tensor& x, const at::Tensor& v) override {
    x.add_(v + 0.1 * history_, sigmas_[at_ + 1] - sigmas_[at_]);
    ++at_;
    if (kHidesHistory) moved_ = seen_;
    history_.copy_(v);
    if (kHidesHistory && moved_) history_.zero_();
    if (kChangesVelocity) at::Tensor(v).zero_();
  }
  void visit(const std::function<void(at::Tensor&)>& visit) override {
    seen_ = true;
    visit(history_);
  }
  static std::unique_ptr<Solver> make(std::span<const float> sigmas, const at::Tensor& like) {
    return std::make_unique<OddEuler>(sigmas, like);
  }

 private:
  std::vector<float> sigmas_;
  size_t at_ = 0;
  bool seen_ = false, moved_ = false;
  at::Tensor history_;
};

using GoodEuler = OddEuler<false, false>;
constexpr SolverSpec kGood = {"own", "Own", "of the family", GoodEuler::make};

TEST_CASE("Solvers of a family walk as they should", "[conformance]") {
  constexpr const char* kCheck = "declarations: schedules";
  WideToy toy;
  toy.own_solvers = {kGood};
  CHECK(toy.failed() == std::vector<std::string>{});
  toy.own_solvers = {kGood, kGood};
  check_only(toy, kCheck, "'own' has a name that another one has");
  toy.own_solvers = {{"euler", "Euler", "of the host", GoodEuler::make}};
  check_only(toy, kCheck, "'euler' has a name that another one has");
  toy.own_solvers = {{"own", "Own", "of the family", OddEuler<true, false>::make}};
  check_only(toy, kCheck, "changes the velocity");
  toy.own_solvers = {{"own", "Own", "of the family", OddEuler<false, true>::make}};
  check_only(toy, kCheck, "does not visit all that it remembers");
  toy.own_solvers = {{"own", "Own", "of the family",
                      [](std::span<const float>, const at::Tensor&) -> std::unique_ptr<Solver> {
                        return nullptr;
                      }}};
  check_only(toy, kCheck, "'own' is none");
}

constexpr std::string_view kStyle[] = {"style"}, kPose[] = {"pose"};
constexpr InputSpec kStyleInput = {.name = "style", .kind = InputKind::kText, .help = "a style"};
constexpr InputSpec kNegativeStyle = {
    .name = "no_style", .kind = InputKind::kText, .help = "none", .negative_of = "style"};

TEST_CASE("What stands for an input on the negative branch is read there", "[conformance]") {
  constexpr const char* kCheck = "declarations: names";
  WideToy toy;
  toy.all_inputs.push_back(kStyleInput);
  toy.all_inputs.push_back(kNegativeStyle);
  toy.stages.push_back({.name = "style", .components = toy.stages[0].components, .inputs = kStyle});
  check_only(toy, kCheck, "no stage of each branch reads that");
  toy.stages.back().per_branch = true;
  CHECK(toy.failed() == std::vector<std::string>{});
  toy.all_inputs.back().negative_of = "strength";
  check_only(toy, kCheck, "'no_style' stands for 'strength', and one is no text");
  toy.all_inputs.back().negative_of = "stile";
  check_only(toy, kCheck, "'no_style' stands for 'stile'");
}

TEST_CASE("What runs beside a clip is read for each piece", "[conformance]") {
  constexpr const char* kCheck = "declarations: stages";
  WideToy toy;
  toy.all_inputs.push_back(
      {.name = "pose", .kind = InputKind::kVideo, .help = "a clip to follow", .along_clip = true});
  toy.all_inputs.push_back(kStyleInput);
  const auto components = toy.stages[1].components;
  toy.stages.push_back({.name = "pose", .components = components, .inputs = kPose});
  CHECK(toy.failed() == std::vector<std::string>{});
  toy.stages.push_back(
      {.name = "style", .components = components, .inputs = kStyle, .per_piece = true});
  check_only(toy, kCheck, "stage 'pose' reads 'pose', which runs beside the clip");
  toy.stages[2].per_piece = true;
  CHECK(toy.failed() == std::vector<std::string>{});
  toy.stages[1].per_piece = true;
  check_only(toy, kCheck, "'latents' encodes what training learns, which has no pieces");
}

}  // namespace
}  // namespace atelier::conformance
