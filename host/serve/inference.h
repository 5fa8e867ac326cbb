// The thread that owns the model: takes jobs of the line, makes them step by step, and ends those
// that nobody waits for.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "atelier/error.h"

#include "host/generate/session.h"
#include "host/order/settings.h"
#include "host/serve/bell.h"
#include "host/serve/job_table.h"
#include "host/serve/metrics.h"

namespace atelier::serve {

// What makes the images of jobs: a session, or a test's.
class Maker {
 public:
  virtual ~Maker() = default;
  // As Session::add(), advance(), cancel() and rest().
  virtual uint64_t add(const order::Settings& settings, generate::JobHooks hooks) = 0;
  virtual bool advance() = 0;
  virtual void cancel(uint64_t job) = 0;
  virtual void rest() = 0;
  // Throws where the device computes no more, after an error of which that may be the cause.
  virtual void check_device() = 0;
};

struct InferenceOptions {
  int64_t max_batch = 1;                  // images of running jobs, from which on none begins
  double idle_after_s = 0;                // without a job the maker rests; 0: it does not
  std::function<bool()> is_stopped = {};  // whether the server is being ended
  std::function<void(const std::string&)> warn = {};
  std::function<double()> steady = {};  // as in TableOptions
};

// Used by one thread. What is given by reference outlives it.
class Inference {
 public:
  Inference(JobTable& jobs, Bell& bell, Maker& maker, Metrics& metrics, InferenceOptions options);

  // Makes jobs until the server is being ended; then the table is closed, and what runs has ended
  // within a step. Throws where the model is broken, with the table closed.
  void run();

  // One turn: jobs that come and go, one step. False: there was nothing to do.
  bool turn();
  // Where there has been nothing to do for long enough, the maker rests.
  void rest_when_idle();

 private:
  void take_jobs();
  void begin(PreparedJob work);
  generate::JobHooks hooks_of(const PreparedJob& work);
  void over(const std::string& id, const generate::JobResult& result);
  void leave(const std::string& id);
  void end_all();

  JobTable& jobs_;
  Bell& bell_;
  Maker& maker_;
  Metrics& metrics_;
  const InferenceOptions options_;

  struct Running {
    uint64_t number = 0;  // the maker's
    int64_t images = 0, loras = 0;
  };
  std::map<std::string, Running> running_;  // by the jobs' ids
  bool may_be_broken_ = false;              // the device, as a job has failed
  double idle_since_s_ = 0;
  bool is_resting_ = false;
};

}  // namespace atelier::serve
