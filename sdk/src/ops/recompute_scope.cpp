#include "atelier/host/recompute_scope.h"

#include "atelier/error.h"

namespace atelier::ops {
namespace {

thread_local RecomputeScope* current_scope = nullptr;

std::vector<at::Tensor> give(KeptOutput& kept, size_t call, bool consume) {
  std::vector<at::Tensor> result;
  result.reserve(kept.tensors.size());
  for (size_t i = 0; i < kept.tensors.size(); ++i) {
    const at::Tensor& t = kept.tensors[i];
    if (t.defined() && t._version() != kept.versions[i]) {
      throw Error(ErrorCode::kInternal,
                  c10::str("recompute: the kept output of operator ", call, " (", kept.op,
                           ") was changed in place"),
                  "a block must not write into an operator's output");
    }
    // Another tensor object on the same storage: the replay's graph node must not reach the kept
    // one.
    result.push_back(t.defined() ? t.tensor_data() : at::Tensor());
  }
  if (consume) kept.tensors.clear();
  return result;
}

}  // namespace

RecomputeObserver::~RecomputeObserver() = default;

RecomputeScope::RecomputeScope(Mode mode, const ActionPlan& plan, std::vector<KeptOutput>& kept,
                               bool consume, RecomputeObserver* observer)
    : mode_(mode),
      plan_(plan),
      kept_(kept),
      consume_(consume),
      observer_(observer),
      previous_(current_scope) {
  current_scope = this;
}

RecomputeScope::~RecomputeScope() {
  current_scope = previous_;
}

RecomputeScope* RecomputeScope::current() {
  return current_scope;
}

std::string_view RecomputeScope::recorded() {
  const RecomputeScope* scope = current_scope;
  const bool is_known =
      scope != nullptr && scope->mode_ == Mode::kReplay && scope->next_ < scope->kept_.size();
  return is_known ? std::string_view(scope->kept_[scope->next_].op) : std::string_view();
}

RecomputeScope::Suspend::Suspend() : previous_(current_scope) {
  current_scope = nullptr;
}
RecomputeScope::Suspend::~Suspend() {
  current_scope = previous_;
}

std::vector<at::Tensor> RecomputeScope::run(
    std::string_view op, const std::function<std::vector<at::Tensor>(bool)>& compute) {
  RecomputeScope* scope = current_scope;
  if (scope == nullptr) return compute(true);

  const size_t call = scope->next_++;
  const Action action = call < scope->plan_.size() ? scope->plan_[call] : Action::kRecompute;
  if (scope->mode_ == Mode::kRecord) {
    if (scope->observer_ != nullptr) scope->observer_->begin();
    std::vector<at::Tensor> result = compute(true);
    if (scope->observer_ != nullptr) scope->observer_->end(op, result);
    KeptOutput entry{std::string(op), {}, {}};
    if (action == Action::kKeep || action == Action::kOffload) {
      for (const at::Tensor& t : result) {
        entry.tensors.push_back(t.defined() ? t.tensor_data() : at::Tensor());
        entry.versions.push_back(t.defined() ? t._version() : 0);
      }
    }
    scope->kept_.push_back(std::move(entry));
    return result;
  }

  if (call >= scope->kept_.size() || scope->kept_[call].op != op) {
    throw Error(ErrorCode::kInternal,
                c10::str("recompute: operator ", call, " of the replay is ", op, ", recorded was ",
                         call < scope->kept_.size() ? scope->kept_[call].op : "nothing"),
                "a block must do the same each time it runs");
  }
  KeptOutput& entry = scope->kept_[call];
  if (scope->observer_ != nullptr) scope->observer_->begin();
  std::vector<at::Tensor> result =
      entry.tensors.empty() ? compute(action != Action::kSkip) : give(entry, call, scope->consume_);
  if (scope->observer_ != nullptr) scope->observer_->end(op, result);
  return result;
}

}  // namespace atelier::ops
