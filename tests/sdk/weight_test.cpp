#include "atelier/weight.h"

#include "atelier/host/weight_state.h"

#include "support/tensors.h"

namespace atelier {
namespace {

using at::Tensor;

// Gives what another store gives, and says nothing of itself.
class Wrapped final : public WeightStore {
 public:
  explicit Wrapped(std::shared_ptr<const WeightStore> inner) : inner_(std::move(inner)) {}
  Tensor draw() const override { return inner_->draw(); }

 private:
  std::shared_ptr<const WeightStore> inner_;
};

// What the host keeps of a weight is no part of what plugins are compiled against.
static_assert(sizeof(Weight) == sizeof(void*));

}  // namespace

TEST_CASE("A weight is drawn once it is set, and refuses another shape", "[weight]") {
  Weight weight("weight", {2, 3});
  CHECK_FALSE(weight.is_loaded());
  CHECK(test::mentions(test::error_of([&] { weight.draw(); }), "used before it is loaded"));
  CHECK(test::mentions(test::error_of([&] {
                         weight.set(at::zeros({3, 2}));
                       }),
                       "weight 'weight' is [2, 3], the tensor given is [3, 2]"));
  const Tensor value = at::randn({2, 3});
  weight.set(value);
  CHECK(weight.is_loaded());
  CHECK(weight.numel() == 6);
  CHECK(at::equal(weight.draw(), value));
  CHECK(at::equal(weight.draw_rows(at::tensor({1, 1, 0})),
                  value.index_select(0, at::tensor({1, 1, 0}))));
}

TEST_CASE("A resident store says so, and is made again over copies", "[weight]") {
  Weight weight("weight", {2, 3});
  const Tensor value = at::randn({2, 3});
  weight.set(value);
  const auto store = weight.state().store();
  CHECK(store->is_resident());
  CHECK(store->added() == nullptr);
  REQUIRE(store->parts().size() == 1);
  const Tensor copy = value.clone();
  CHECK(store->over({copy})->draw().is_same(copy));
}

TEST_CASE("Only what rests where it is computed is trained", "[weight]") {
  Weight weight("weight", {2, 3});
  CHECK(test::mentions(test::error_of([&] { weight.state().set_trainable(true); }),
                       "does not rest on the compute device"));
  weight.set(at::randn({2, 3}));
  weight.state().set_trainable(true);
  CHECK(weight.draw().is_same(weight.state().leaf()));
  weight.state().set_trainable(false);

  const auto wrapped = std::make_shared<Wrapped>(weight.state().store());
  weight.state().set_store(wrapped);
  CHECK(test::mentions(test::error_of([&] { weight.state().set_trainable(true); }),
                       "does not rest on the compute device"));
  CHECK(wrapped->parts().empty());
  CHECK(test::error_of([&] { wrapped->over({}); }).code() == ErrorCode::kInternal);
}

TEST_CASE("What was derived of a weight is stale when it changes", "[weight]") {
  Weight weight("weight", {2});
  weight.set(at::zeros({2}));
  weight.state().keep_derived(at::ones({2}));
  CHECK(weight.state().derived().defined());
  weight.set(at::ones({2}));
  CHECK_FALSE(weight.state().derived().defined());
}

}  // namespace atelier
