// A session as what makes a server's images.
#pragma once

#include <utility>

#include "host/generate/session.h"
#include "host/serve/inference.h"

namespace atelier::serve {

// Used by the thread of inference. What is given by reference outlives it.
class SessionMaker : public Maker {
 public:
  SessionMaker(generate::Session& session, model::LoadedModel& model)
      : session_(session), model_(model) {}

  uint64_t add(const order::Settings& settings, generate::JobHooks hooks) override {
    return session_.add(settings, std::move(hooks));
  }
  bool advance() override { return session_.advance(); }
  void cancel(uint64_t job) override { session_.cancel(job); }
  void rest() override { session_.rest(); }
  void check_device() override;

 private:
  generate::Session& session_;
  model::LoadedModel& model_;
};

}  // namespace atelier::serve
