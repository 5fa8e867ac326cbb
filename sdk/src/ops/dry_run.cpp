#include "atelier/host/dry_run.h"

namespace atelier::ops {
namespace {

thread_local DryRun* current_run = nullptr;

}  // namespace

DryRun::DryRun(at::DeviceType like) : like_(like) {
  current_run = this;
}

DryRun::~DryRun() {
  current_run = nullptr;
}

DryRun* DryRun::of(const at::Tensor& x) {
  return x.is_meta() ? current_run : nullptr;
}

}  // namespace atelier::ops
