// A session as what makes a server's images.
#pragma once

#include <functional>
#include <optional>

#include "host/generate/session.h"
#include "host/serve/inference.h"

namespace atelier::serve {

// Used by the thread of inference.
class SessionMaker : public Maker {
 public:
  // `between` is called within work, so that it may be cancelled. What is given by reference
  // outlives it.
  SessionMaker(generate::Session& session, model::LoadedModel& model)
      : session_(session), model_(model) {}

  uint64_t add(const order::Settings& settings, generate::JobHooks hooks) override;
  bool advance() override;
  void cancel(uint64_t job) override;
  void rest() override;
  void check_device() override;

  // For SessionHooks.
  bool is_cancelled() const { return is_cancelled_; }
  void on_file(const std::string& path) const;

 private:
  struct Job {
    order::Settings settings;
    generate::JobHooks hooks;
  };
  generate::Session& session_;
  model::LoadedModel& model_;
  std::optional<Job> job_;
  bool is_cancelled_ = false;
};

}  // namespace atelier::serve
