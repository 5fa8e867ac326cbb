#include "atelier/host/recompute_scope.h"

#include "support/tensors.h"

namespace atelier::ops {
namespace {

using at::Tensor;
using test::Tensors;
using Mode = RecomputeScope::Mode;

// An operator that counts how often it computes.
struct Doubler {
  int computed = 0;
  bool asked_for_values = true;
  Tensor operator()(const Tensor& x) {
    return RecomputeScope::run("double", [&](bool need_values) -> Tensors {
      ++computed;
      asked_for_values = need_values;
      return {x * 2, Tensor()};
    })[0];
  }
};

}  // namespace

TEST_CASE("A scope keeps, recomputes or skips each call by the plan", "[ops][recompute]") {
  const ActionPlan plan = {Action::kKeep, Action::kRecompute, Action::kSkip};
  std::vector<KeptOutput> kept;
  Doubler op;
  const Tensor x = at::ones({4});
  {
    RecomputeScope record(Mode::kRecord, plan, kept);
    for (int i = 0; i < 4; ++i) op(x);  // one past the plan
    CHECK(record.calls() == 4);
  }
  CHECK(op.computed == 4);
  REQUIRE(kept.size() == 4);
  CHECK(kept[0].tensors.size() == 2);
  CHECK(kept[1].tensors.empty());
  CHECK(RecomputeScope::current() == nullptr);

  RecomputeScope replay(Mode::kReplay, plan, kept);
  const Tensor first = op(x);
  CHECK(op.computed == 4);
  CHECK(at::equal(first, x * 2));
  CHECK_FALSE(first.is_same(kept[0].tensors[0]));
  CHECK(first.data_ptr() == kept[0].tensors[0].data_ptr());
  op(x);
  CHECK((op.computed == 5 && op.asked_for_values));
  op(x);
  CHECK((op.computed == 6 && !op.asked_for_values));
  op(x);
  CHECK((op.computed == 7 && op.asked_for_values));
  const Error e = test::error_of([&] { op(x); });
  CHECK(test::mentions(e, "recorded was nothing"));
}

TEST_CASE("A consuming replay gives kept tensors away", "[ops][recompute]") {
  const ActionPlan plan = {Action::kKeep};
  std::vector<KeptOutput> kept;
  Doubler op;
  {
    RecomputeScope record(Mode::kRecord, plan, kept);
    op(at::ones({4}));
  }
  Tensor given;
  {
    RecomputeScope replay(Mode::kReplay, plan, kept, /*consume=*/true);
    given = op(at::ones({4}));
  }
  CHECK(kept[0].tensors.empty());
  CHECK(given.storage().use_count() == 1);
}

TEST_CASE("A replay notices another operator and a changed output", "[ops][recompute]") {
  const ActionPlan plan = {Action::kKeep};
  std::vector<KeptOutput> kept;
  Doubler op;
  Tensor out;
  {
    RecomputeScope record(Mode::kRecord, plan, kept);
    out = op(at::ones({4}));
  }
  out.add_(1);
  {
    RecomputeScope replay(Mode::kReplay, plan, kept);
    const Error e = test::error_of([&] { op(at::ones({4})); });
    CHECK(e.code() == ErrorCode::kInternal);
    CHECK(test::mentions(e, "changed in place"));
  }
  RecomputeScope replay(Mode::kReplay, plan, kept);
  const Error e =
      test::error_of([&] { RecomputeScope::run("halve", [](bool) { return Tensors{}; }); });
  CHECK(test::mentions(e, "operator 0 of the replay is halve, recorded was double"));
}

TEST_CASE("A suspended scope sees no calls", "[ops][recompute]") {
  const ActionPlan plan;
  std::vector<KeptOutput> kept;
  Doubler op;
  RecomputeScope record(Mode::kRecord, plan, kept);
  {
    RecomputeScope::Suspend suspend;
    CHECK(RecomputeScope::current() == nullptr);
    op(at::ones({1}));
  }
  CHECK(RecomputeScope::current() == &record);
  CHECK(record.calls() == 0);
}

}  // namespace atelier::ops
