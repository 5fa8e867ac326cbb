// The line of jobs, those that run, and those that are over.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "atelier/error.h"

#include "host/lora/selection.h"
#include "host/order/settings.h"
#include "host/serve/bell.h"
#include "host/serve/jobs.h"
#include "host/serve/metrics.h"
#include "host/serve/spool.h"

namespace atelier::serve {

// A job that was checked, as the thread of inference takes it.
struct PreparedJob {
  std::string id = {};
  order::Settings settings = {};  // checked and filled, with the files of the spool
  int64_t preview_every = 0;      // steps; 0: no previews
  nlohmann::json shown = {};      // JobView::settings, without a seed that is not known yet
};

struct TableOptions {
  int64_t max_queue = 64;   // jobs that wait
  int64_t keep_jobs = 256;  // jobs that are over and known
  // Bytes of results that are kept where they go with the server.
  int64_t keep_bytes = int64_t{4} << 30;
  // What clients are told of the message of a failed job, without paths of the model's files.
  std::function<std::string(std::string message)> told = {};
  // Seconds of the system's clock, for what is told, and of one that does not jump, for what is
  // measured; empty: the clocks. For tests.
  std::function<double()> clock = {}, steady = {};
};

// Which HTTP status says what went wrong in a job.
int status_of(ErrorCode code);
// Which status refuses a request whose check failed so: wrong values and files are the client's.
int refusal_of(ErrorCode code);
// "message; hint".
std::string text_of(const Error& error);

// Threads of connections call what Jobs has, the one of inference the rest.
class JobTable : public Jobs {
 public:
  // Checks a job whose files are in the spool, by the thread of a connection; throws HttpError.
  // `loras`: those of a job that survived, with their files; null: those that it asks for.
  using Prepare =
      std::function<PreparedJob(const std::string& id, const Asked&, const SpooledFiles&,
                                const std::vector<lora::LoraRef>* loras)>;
  // What is given by reference outlives the table.
  JobTable(TableOptions options, const Spool& spool, Prepare prepare, Bell& bell, Metrics& metrics);
  ~JobTable() override;

  std::string submit(Asked asked) override;
  bool join(std::string_view id) override;
  void leave(std::string_view id) override;
  std::optional<JobView> find(std::string_view id) const override;
  std::optional<JobView> wait(std::string_view id, uint64_t seen,
                              std::chrono::milliseconds most) const override;
  std::vector<JobView> list() const override;
  bool cancel(std::string_view id) override;
  bool remove(std::string_view id) override;

  // Takes in the jobs that survived: before others come, on the thread of inference. Those that
  // are not over are prepared again, and fail where that fails. One that ran when the program died
  // twice is not tried once more.
  void restore(const std::function<void(const std::string&)>& warn);

  // Jobs are taken in from here on.
  void open();
  // The next job of the line, which runs from now on; nullopt: there is none.
  std::optional<PreparedJob> take();
  // Gives up those whose deadline is over before they run.
  void expire();
  // Running jobs that clients have cancelled and whose work is to end, each once.
  std::vector<std::string> take_cancelled();
  // How many jobs wait, and how many run.
  std::pair<int64_t, int64_t> waiting_and_running() const;
  // What went wrong with files of jobs that are over, each once.
  std::vector<std::string> take_warnings();

  // What becomes of a job that runs. Nothing happens for one that is over.
  void stepped(std::string_view id, int64_t step, int64_t steps);
  void previewed(std::string_view id, std::string jpeg);
  void wrote(std::string_view id, const std::string& path);
  // `seed`: of the first image.
  void finished(std::string_view id, uint64_t seed);
  void failed(std::string_view id, const Error& error);

  // No more jobs are taken in. Those that survive stay on the disk as they are; all others end.
  void close();

 private:
  struct Job;
  using JobPtr = std::shared_ptr<Job>;
  struct Claim;

  std::optional<std::string> claim(const Asked& asked, const std::string& id,
                                   const std::string& content);
  void release(const Asked& asked);
  void enter(JobPtr job);
  void stand_in_line(JobPtr job);
  JobPtr find_job(std::string_view id) const;
  JobPtr find_running(std::string_view id) const;
  void change(Job& job);
  void renumber();
  int64_t retry_after() const;
  void end(const JobPtr& job, JobState state, const std::string& error = {}, int status = 0);
  void end_soon(const JobPtr& job);
  void save(const Job& job);
  void free_key(const Job& job);
  std::string told_of(const Job& job, const Error& error) const;
  void keep(const JobPtr& job);
  void forget(const JobPtr& job, bool with_results);
  template <typename F>
  void collect(F&& change_files);
  nlohmann::json record_of(const Job& job) const;
  JobPtr restored(const std::string& id, const nlohmann::json& record) const;
  void take_back(const JobPtr& job);

  const TableOptions options_;
  const Spool& spool_;
  const Prepare prepare_;
  Bell& bell_;
  Metrics& metrics_;

  mutable std::mutex mutex_;
  mutable std::condition_variable has_changed_;
  std::map<std::string, JobPtr, std::less<>> jobs_;
  std::vector<JobPtr> line_;           // in the order in which they run
  std::deque<JobPtr> over_;            // the one that ended first is first
  std::set<std::string> cancelled_;    // that run, and end with the next turn
  std::map<std::string, Claim> keys_;  // of Idempotency-Key
  int64_t entering_ = 0;               // jobs that are being checked
  int64_t running_ = 0;
  int64_t kept_bytes_ = 0;    // of results of jobs that are over
  double job_seconds_ = 1.0;  // for which a job runs, as the last ones did
  uint64_t count_ = 0;        // of jobs that came
  std::vector<std::string> warnings_;
  enum class Stage { kOpening, kOpen, kClosed };
  Stage stage_ = Stage::kOpening;
};

}  // namespace atelier::serve
