#include "host/serve/work.h"

#include "fake_service.h"
#include "support/catch.h"
#include "support/files.h"
#include "support/http_errors.h"

namespace atelier::serve {
namespace {

using Names = std::vector<std::string>;
using test::refusal_of;

TEST_CASE("A request waits for its jobs, and is told of what changes", "[serve]") {
  FakeJobs jobs;
  Work work(jobs, std::vector<Asked>(2));
  jobs.next["job0"] = {{.state = JobState::kRunning, .step = 1}, {.state = JobState::kDone}};
  jobs.next["job1"] = {{.state = JobState::kDone}};
  FakeClient client;
  std::string seen;
  const auto views = work.wait(client, [&](size_t index, const JobView& view) {
    seen += std::to_string(index) + " " + std::to_string(static_cast<int>(view.state)) + ", ";
  });
  CHECK(views.size() == 2);
  CHECK(seen == "0 0, 0 1, 0 2, 1 0, 1 2, ");
}

TEST_CASE("Jobs of a client that hangs up are cancelled", "[serve]") {
  FakeJobs jobs;
  FakeClient client;
  client.looks = 3;
  {
    Work work(jobs, std::vector<Asked>(2));
    CHECK(refusal_of([&] { work.wait(client); }).status == 499);
    CHECK(jobs.cancelled.empty());
  }
  CHECK(jobs.cancelled == Names{"job0", "job1"});
}

TEST_CASE("A job that two requests wait for goes on when one leaves", "[serve]") {
  FakeJobs jobs;
  Work first(jobs, std::vector<Asked>(1));
  { const Work second(jobs, Names{"job0"}); }
  CHECK(jobs.cancelled.empty());
  jobs.cancel("job0");
  CHECK(refusal_of([&] { Work(jobs, Names{"job0"}); }).status == 410);
}

TEST_CASE("A line that takes a part of a request takes none of it", "[serve]") {
  FakeJobs jobs;
  jobs.most = 2;
  CHECK(refusal_of([&] { Work(jobs, std::vector<Asked>(3)); }).status == 429);
  CHECK(jobs.cancelled == Names{"job0", "job1"});
}

TEST_CASE("A job that fails says so with its status, and a removed one is gone", "[serve]") {
  FakeJobs jobs;
  FakeClient client;
  Work work(jobs, std::vector<Asked>(1));
  jobs.next["job0"] = {{.state = JobState::kFailed, .error = "does not fit", .error_status = 507}};
  const auto failed = refusal_of([&] { work.wait(client); });
  CHECK(failed.status == 507);
  CHECK(failed.message == "does not fit");
  jobs.remove("job0");
  CHECK(refusal_of([&] { work.wait(client); }).status == 410);
  CHECK(refusal_of([&] { bytes_of({.path = "/nonexistent"}); }).status == 410);
  const test::Folder folder;
  test::write_bytes(folder / "a.png", "bytes");
  CHECK(bytes_of({.path = folder / "a.png"}) == "bytes");
}

}  // namespace
}  // namespace atelier::serve
