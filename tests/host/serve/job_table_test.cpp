// The line of jobs and the thread that makes them, with what makes images replaced.
#include "host/serve/job_table.h"

#include <functional>
#include <future>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "host/http/server.h"
#include "host/serve/hidden_paths.h"
#include "host/serve/inference.h"
#include "support/catch.h"
#include "support/files.h"

namespace atelier::serve {
namespace {

using nlohmann::json;
using test::Folder;

// Makes no images: each job takes as many calls of advance() as it has steps, one job at a time.
class FakeMaker : public Maker {
 public:
  uint64_t add(const order::Settings& settings, generate::JobHooks hooks) override {
    if (settings.prompt == "refused") throw Error(ErrorCode::kOutOfMemory, "no room", "make less");
    jobs_[++count_] = {settings, std::move(hooks)};
    begun.push_back(settings.prompt.value());
    loras = settings.loras;
    return count_;
  }

  bool advance() override {
    if (jobs_.empty()) return false;
    auto& [number, job] = *jobs_.begin();
    const int64_t steps = job.settings.num_inference_steps.value_or(1);
    if (++job.step <= steps) {
      job.hooks.on_step(job.step, steps);
      return true;
    }
    const Job ended = job;
    jobs_.erase(number);
    generate::JobResult result;
    result.seed = ended.settings.seed.value_or(7);
    if (ended.settings.prompt == "broken") {
      result.error = "/models/dit.safetensors and /loras/style.safetensors broke";
      result.code = ErrorCode::kInternal;
    } else {
      test::write_bytes(ended.settings.output, "picture of " + ended.settings.prompt.value());
      ended.hooks.on_file(ended.settings.output);
    }
    ended.hooks.on_done(result);
    return true;
  }

  void cancel(uint64_t job) override { jobs_.erase(job); }
  void rest() override { ++rests; }
  void check_device() override {
    if (is_dead) throw Error(ErrorCode::kEnvironment, "the device computes no more");
  }
  bool holds(size_t count) const { return jobs_.size() == count; }

  std::vector<std::string> begun;
  std::vector<lora::LoraRef> loras;  // of the job that began last
  int rests = 0;
  bool is_dead = false;

 private:
  struct Job {
    order::Settings settings;
    generate::JobHooks hooks;
    int64_t step = 0;
  };
  std::map<uint64_t, Job> jobs_;
  uint64_t count_ = 0;
};

// A server's parts, but for its model and its connections.
struct Parts {
  explicit Parts(const std::string& folder = {}, TableOptions options = {}, int64_t max_batch = 1)
      : spool(folder),
        jobs(
            with_clock(options), spool,
            [this](const std::string& id, const Asked& asked, const SpooledFiles& files,
                   const std::vector<lora::LoraRef>* loras) {
              return prepare(id, asked, files, loras);
            },
            bell, metrics),
        inference(jobs, bell, maker, metrics,
                  {.max_batch = max_batch,
                   .idle_after_s = 10,
                   .is_stopped = [this] { return is_stopped; },
                   .warn = [](const std::string&) {},
                   .steady = [this] { return now; }}) {
    jobs.open();
  }

  TableOptions with_clock(TableOptions options) {
    options.clock = options.steady = [this] { return now; };
    return options;
  }

  PreparedJob prepare(const std::string& id, const Asked& asked, const SpooledFiles& files,
                      const std::vector<lora::LoraRef>* loras) {
    if (while_checked) while_checked();
    if (asked.fields.contains("typo")) throw http::HttpError(400, "typo: is not known");
    PreparedJob job = {.id = id};
    job.settings.prompt = asked.fields.at("prompt").get<std::string>();
    if (asked.fields.contains("steps"))
      job.settings.num_inference_steps = asked.fields["steps"].get<int64_t>();
    job.settings.output = spool.output_of(id, "png");
    job.shown = {{"prompt", *job.settings.prompt}};
    job.settings.loras = loras != nullptr ? *loras : registered;
    for (const auto& [name, paths] : files)
      for (const std::string& path : paths) seen[name].push_back(test::read_bytes(path));
    return job;
  }

  std::string submit(const std::string& prompt, Asked asked = {}) {
    asked.fields["prompt"] = prompt;
    return jobs.submit(std::move(asked));
  }

  void work() {
    while (inference.turn()) {
    }
  }

  JobState state_of(const std::string& id) const { return jobs.find(id).value().state; }

  Folder folder;
  double now = 100;
  std::function<void()> while_checked = {};
  bool is_stopped = false;
  std::map<std::string, std::vector<std::string>> seen;  // uploads, by input
  std::vector<lora::LoraRef> registered;                 // LoRAs that all jobs have
  Spool spool;
  Bell bell;
  Metrics metrics{"tiny"};
  FakeMaker maker;
  JobTable jobs;
  Inference inference;
};

int status_of_submit(Parts& parts, const std::string& prompt, Asked asked = {}) {
  try {
    parts.submit(prompt, std::move(asked));
    return 202;
  } catch (const http::HttpError& error) {
    return error.status();
  }
}

TEST_CASE("Jobs run by priority, then in the order they came, and know their places", "[serve]") {
  Parts parts;
  const std::string first = parts.submit("first");
  const std::string second = parts.submit("second");
  const std::string urgent = parts.submit("urgent", {.priority = 1});
  CHECK(parts.jobs.find(urgent)->place == 1);
  CHECK(parts.jobs.find(first)->place == 2);
  CHECK(parts.jobs.find(second)->place == 3);
  parts.work();
  CHECK(parts.maker.begun == std::vector<std::string>{"urgent", "first", "second"});
  const JobView view = parts.jobs.find(second).value();
  CHECK(view.state == JobState::kDone);
  REQUIRE(view.files.size() == 1);
  CHECK(test::read_bytes(view.files[0].path) == "picture of second");
  CHECK(view.files[0].content_type == "image/png");
  CHECK(view.files[0].seed == 7);
  CHECK(view.settings == json{{"prompt", "second"}, {"seed", 7}});
  const std::vector<JobView> all = parts.jobs.list();
  REQUIRE(all.size() == 3);
  CHECK(all[0].id == urgent);  // the newest
}

TEST_CASE("A full line refuses jobs and says when to come again", "[serve]") {
  Parts parts({}, {.max_queue = 2});
  parts.submit("a", {.fields = {{"steps", 5}}});
  parts.submit("b");
  parts.submit("c");  // the line has room for one more than those that wait while none runs
  CHECK(status_of_submit(parts, "d") == 429);
  parts.inference.turn();  // the first one runs
  CHECK(status_of_submit(parts, "e") == 429);
  try {
    parts.submit("f");
    FAIL("the line is not full");
  } catch (const http::HttpError& error) {
    REQUIRE(error.headers().size() == 1);
    CHECK(error.headers()[0] == std::pair<std::string, std::string>("Retry-After", "1"));
  }
  parts.work();
  CHECK(status_of_submit(parts, "g") == 202);
}

TEST_CASE("A refused job leaves neither a place in the line nor files", "[serve]") {
  Parts parts({}, {.max_queue = 0});
  Asked wrong = {.fields = {{"typo", 1}}};
  wrong.uploads["image"].emplace_back("bytes");
  CHECK(status_of_submit(parts, "a", wrong) == 400);
  std::vector<std::string> left;
  for (const auto& entry :
       std::filesystem::directory_iterator(parts.spool.folder() + "/.atelier-jobs"))
    left.push_back(entry.path().filename());
  CHECK(left == std::vector<std::string>{"lock"});
  CHECK(parts.jobs.list().empty());
  CHECK(status_of_submit(parts, "b") == 202);
}

TEST_CASE("Uploads are there while a job runs, for this user alone, and gone afterwards",
          "[serve]") {
  Parts parts;
  Asked asked;
  asked.uploads["image"] = {Upload("one"), Upload("two")};
  const std::string id = parts.submit("a", asked);
  CHECK(parts.seen["image"] == std::vector<std::string>{"one", "two"});
  const SpooledFiles files = parts.spool.find(id);
  REQUIRE(files.at("image").size() == 2);
  using std::filesystem::perms;
  const std::filesystem::path file = files.at("image")[0];
  CHECK(std::filesystem::status(file).permissions() == (perms::owner_read | perms::owner_write));
  CHECK(std::filesystem::status(file.parent_path()).permissions() == perms::owner_all);
  parts.work();
  CHECK(parts.spool.find(id).empty());
}

TEST_CASE("A running job ends within one step of its cancelling, a waiting one at once",
          "[serve]") {
  Parts parts;
  const std::string running = parts.submit("a", {.fields = {{"steps", 5}}});
  const std::string waiting = parts.submit("b");
  parts.inference.turn();
  CHECK(parts.jobs.find(running)->step == 1);
  CHECK(parts.jobs.cancel(waiting));
  CHECK(parts.state_of(waiting) == JobState::kCancelled);
  CHECK(parts.jobs.cancel(running));
  CHECK(parts.state_of(running) == JobState::kRunning);
  parts.inference.turn();
  CHECK(parts.state_of(running) == JobState::kCancelled);
  CHECK(parts.jobs.find(running)->step == 1);
  CHECK(parts.maker.holds(0));
  CHECK_FALSE(parts.jobs.cancel(running));
  CHECK_FALSE(parts.jobs.cancel("job_none"));
}

TEST_CASE("A removed job is forgotten with its files, also one that runs", "[serve]") {
  Parts parts;
  const std::string done = parts.submit("a");
  parts.work();
  const std::string file = parts.jobs.find(done)->files.at(0).path;
  CHECK(parts.jobs.remove(done));
  CHECK_FALSE(parts.jobs.find(done));
  CHECK_FALSE(std::filesystem::exists(file));
  const std::string running = parts.submit("b", {.fields = {{"steps", 5}}});
  parts.inference.turn();
  CHECK(parts.jobs.remove(running));
  parts.inference.turn();
  CHECK_FALSE(parts.jobs.find(running));
}

TEST_CASE("A job that waits beyond its deadline is given up", "[serve]") {
  Parts parts;
  const std::string late = parts.submit("a", {.deadline_s = 5});
  const std::string patient = parts.submit("b", {.deadline_s = 50});
  parts.now += 6;
  parts.work();
  CHECK(parts.state_of(late) == JobState::kFailed);
  CHECK(parts.jobs.find(late)->error_status == 504);
  CHECK(parts.state_of(patient) == JobState::kDone);
}

TEST_CASE("A job's failure ends that job alone, and says what would help", "[serve]") {
  Parts parts;
  const std::string refused = parts.submit("refused");
  const std::string broken = parts.submit("broken");
  const std::string fine = parts.submit("fine");
  parts.work();
  CHECK(parts.state_of(refused) == JobState::kFailed);
  CHECK(parts.jobs.find(refused)->error_status == 507);
  CHECK(parts.jobs.find(refused)->error.find("make less") != std::string::npos);
  CHECK(parts.state_of(broken) == JobState::kFailed);
  CHECK(parts.state_of(fine) == JobState::kDone);
}

TEST_CASE("A job's failure names no folder of the machine", "[serve]") {
  TableOptions options;
  options.told = [](std::string message) { return without_folder(std::move(message), "/models"); };
  Parts parts({}, options);
  parts.registered = {{.name = "style", .path = "/loras/style.safetensors"}};
  const std::string broken = parts.submit("broken");
  parts.work();
  CHECK(parts.jobs.find(broken)->error == "dit.safetensors and style.safetensors broke");
}

TEST_CASE("The server ends where the device computes no more", "[serve]") {
  Parts parts;
  parts.maker.is_dead = true;
  const std::string broken = parts.submit("broken");
  const std::string waiting = parts.submit("fine");
  CHECK_THROWS_AS(parts.inference.run(), Error);
  CHECK(parts.state_of(broken) == JobState::kFailed);
  CHECK(parts.state_of(waiting) == JobState::kCancelled);
  CHECK(status_of_submit(parts, "more") == 503);
}

TEST_CASE("As many jobs run together as images are allowed", "[serve]") {
  Parts parts({}, {}, /*max_batch=*/2);
  for (const char* const prompt : {"a", "b", "c"}) parts.submit(prompt, {.fields = {{"steps", 3}}});
  parts.inference.turn();
  CHECK(parts.maker.begun == std::vector<std::string>{"a", "b"});
  parts.work();
  CHECK(parts.maker.begun.size() == 3);
}

TEST_CASE("A request that is sent again makes no second job", "[serve]") {
  Parts parts;
  const std::string id = parts.submit("a", {.idempotency_key = "k"});
  CHECK(parts.submit("a", {.idempotency_key = "k"}) == id);
  CHECK(status_of_submit(parts, "b", {.idempotency_key = "k"}) == 422);
  CHECK(parts.submit("a", {.api = "videos", .idempotency_key = "k"}) != id);
  Asked wrong = {.fields = {{"typo", 1}}, .idempotency_key = "l"};
  CHECK(status_of_submit(parts, "c", wrong) == 400);
  CHECK(status_of_submit(parts, "c", {.idempotency_key = "l"}) == 202);
  parts.work();
  CHECK(parts.submit("a", {.idempotency_key = "k"}) == id);  // it is over and known
  CHECK(parts.maker.begun.size() == 3);
}

TEST_CASE("The key of a job that was cancelled or has failed makes another one", "[serve]") {
  Parts parts;
  const auto send = [&](const char* prompt) {
    return parts.submit(prompt, {.fields = {{"steps", 5}}, .idempotency_key = "k"});
  };
  const std::string running = send("a");
  parts.inference.turn();
  CHECK(parts.jobs.cancel(running));
  const std::string again = send("a");  // before the first one has ended
  CHECK(again != running);
  parts.inference.turn();
  CHECK(send("a") == again);
  CHECK(parts.jobs.cancel(again));
  const std::string broken = send("broken");
  CHECK(send("broken") == broken);
  parts.work();
  CHECK(parts.state_of(broken) == JobState::kFailed);
  CHECK(send("fine") != broken);
  parts.work();
}

TEST_CASE("A job ends when the last request that waits for it leaves", "[serve]") {
  Parts parts;
  const auto send = [&] {
    return parts.submit("a", {.fields = {{"steps", 5}}, .idempotency_key = "k"});
  };
  const std::string job = send();
  CHECK(send() == job);
  CHECK(parts.jobs.join(job));
  parts.jobs.leave(job);
  parts.jobs.leave(job);
  CHECK(parts.state_of(job) == JobState::kQueued);
  parts.inference.turn();
  parts.jobs.leave(job);
  CHECK_FALSE(parts.jobs.join(job));
  CHECK(send() != job);
  parts.inference.turn();
  CHECK(parts.state_of(job) == JobState::kCancelled);
  parts.jobs.leave("job_none");
}

TEST_CASE("Requests that wait for a key are answered when the server is ended", "[serve]") {
  Parts parts;
  std::promise<void> checks, ends;
  parts.while_checked = [&] {
    checks.set_value();
    ends.get_future().wait();
  };
  const auto send = [&] { return status_of_submit(parts, "a", {.idempotency_key = "k"}); };
  auto first = std::async(std::launch::async, send);
  checks.get_future().wait();
  auto second = std::async(std::launch::async, send);
  parts.jobs.close();
  CHECK(second.get() == 503);  // also one that comes afterwards
  ends.set_value();
  CHECK(first.get() == 503);
}

TEST_CASE("The oldest jobs are forgotten, with the files of a temporary folder", "[serve]") {
  Parts parts({}, {.keep_jobs = 2});
  std::vector<std::string> ids, files;
  for (const char* const prompt : {"a", "b", "c"}) {
    ids.push_back(parts.submit(prompt));
    parts.work();
    files.push_back(parts.jobs.find(ids.back())->files.at(0).path);
  }
  CHECK_FALSE(parts.jobs.find(ids[0]));
  CHECK(parts.jobs.find(ids[1]));
  CHECK_FALSE(std::filesystem::exists(files[0]));
  CHECK(std::filesystem::exists(files[1]));
}

TEST_CASE("Results of a temporary folder are bounded by their bytes, too", "[serve]") {
  Parts parts({}, {.keep_jobs = 100, .keep_bytes = 25});  // each has 12
  std::vector<std::string> ids;
  for (const char* const prompt : {"a", "b", "c"}) {
    ids.push_back(parts.submit(prompt));
    parts.work();
  }
  CHECK_FALSE(parts.jobs.find(ids[0]));
  CHECK(parts.jobs.find(ids[1]));
  CHECK(parts.jobs.find(ids[2]));
}

TEST_CASE("A folder of the user keeps the results of jobs that are forgotten", "[serve]") {
  const Folder folder;
  Parts parts(folder / "results", {.keep_jobs = 1});
  const std::string first = parts.submit("a");
  parts.work();
  const std::string file = parts.jobs.find(first)->files.at(0).path;
  parts.submit("b");
  parts.work();
  CHECK_FALSE(parts.jobs.find(first));
  CHECK(std::filesystem::exists(file));
}

TEST_CASE("Jobs that survive are there when the server is started again", "[serve]") {
  const Folder folder;
  std::string done, running, waiting, plain;
  {
    Parts parts(folder / "results");
    Asked asked = {.survives = true, .note = {{"size", "64x64"}}, .idempotency_key = "k"};
    asked.uploads["image"].emplace_back("start");
    done = parts.submit("done", {.survives = true});
    parts.work();
    running = parts.submit("running", asked);
    asked.idempotency_key.clear();
    waiting = parts.submit("waiting", asked);
    plain = parts.submit("plain");
    parts.inference.turn();
    CHECK(parts.state_of(running) == JobState::kRunning);
  }  // the server is gone without a word
  Parts parts(folder / "results");
  parts.jobs.restore([](const std::string& text) { FAIL(text); });
  CHECK(parts.state_of(done) == JobState::kDone);
  CHECK(test::read_bytes(parts.jobs.find(done)->files.at(0).path) == "picture of done");
  CHECK(parts.state_of(running) == JobState::kQueued);
  CHECK(parts.jobs.find(running)->note == json{{"size", "64x64"}});
  CHECK_FALSE(parts.jobs.find(plain));
  CHECK(parts.seen["image"] == std::vector<std::string>{"start", "start"});
  Asked again = {.survives = true, .note = {{"size", "64x64"}}, .idempotency_key = "k"};
  again.uploads["image"].emplace_back("start");
  CHECK(parts.submit("running", again) == running);
  parts.work();
  CHECK(parts.maker.begun == std::vector<std::string>{"running", "waiting"});
  CHECK(parts.state_of(waiting) == JobState::kDone);
}

TEST_CASE("Jobs that survive are left as they are when the server is ended", "[serve]") {
  const Folder folder;
  std::string survivor, other;
  {
    Parts parts(folder / "results");
    survivor = parts.submit("a", {.fields = {{"steps", 5}}, .survives = true});
    other = parts.submit("b");
    parts.inference.turn();
    parts.is_stopped = true;
    parts.inference.run();
    CHECK(parts.maker.holds(0));
    CHECK(parts.state_of(other) == JobState::kCancelled);
    CHECK(status_of_submit(parts, "c") == 503);
  }
  Parts parts(folder / "results");
  parts.jobs.restore([](const std::string& text) { FAIL(text); });
  CHECK(parts.state_of(survivor) == JobState::kQueued);
  CHECK(parts.jobs.list().size() == 1);
}

TEST_CASE("A job that survives and was cancelled is not made again", "[serve]") {
  const Folder folder;
  std::string cancelled;
  {
    Parts parts(folder / "results");
    cancelled = parts.submit("a", {.fields = {{"steps", 5}}, .survives = true});
    parts.inference.turn();
    CHECK(parts.jobs.cancel(cancelled));
    parts.is_stopped = true;  // before the next turn
    parts.inference.run();
  }
  Parts parts(folder / "results");
  parts.jobs.restore([](const std::string& text) { FAIL(text); });
  CHECK(parts.state_of(cancelled) == JobState::kCancelled);
}

TEST_CASE("A kill before the turn that ends a cancelled job does not bring it back", "[serve]") {
  const Folder folder;
  std::string cancelled, removed;
  {
    Parts parts(folder / "results", {}, /*max_batch=*/2);
    const Asked asked = {.fields = {{"steps", 5}}, .survives = true, .idempotency_key = "k"};
    cancelled = parts.submit("a", asked);
    removed = parts.submit("b", {.fields = {{"steps", 5}}, .survives = true});
    parts.inference.turn();
    CHECK(parts.jobs.cancel(cancelled));
    CHECK(parts.jobs.remove(removed));
  }  // the server is gone without a word
  Parts parts(folder / "results");
  parts.jobs.restore([](const std::string& text) { FAIL(text); });
  CHECK(parts.state_of(cancelled) == JobState::kCancelled);
  CHECK_FALSE(parts.jobs.find(removed));
  const Asked again = {.fields = {{"steps", 5}}, .survives = true, .idempotency_key = "k"};
  CHECK(parts.submit("a", again) != cancelled);
}

TEST_CASE("A job that survives keeps its LoRAs and its deadline", "[serve]") {
  const Folder folder;
  const std::vector<lora::LoraRef> loras = {
      {.name = "look", .path = "/loras/style.safetensors", .strength = 0.5, .component = "dit"}};
  std::string patient, late;
  {
    Parts parts(folder / "results");
    parts.registered = loras;
    patient = parts.submit("a", {.deadline_s = 50, .survives = true});
    late = parts.submit("b", {.deadline_s = 5, .survives = true});
  }
  Parts parts(folder / "results");
  parts.now += 6;
  parts.jobs.restore([](const std::string& text) { FAIL(text); });
  parts.work();
  CHECK((parts.maker.loras == loras));
  CHECK(parts.state_of(patient) == JobState::kDone);
  CHECK(parts.state_of(late) == JobState::kFailed);
  CHECK(parts.jobs.find(late)->error_status == 504);
}

TEST_CASE("A job during which the server died twice is not made a third time", "[serve]") {
  const Folder folder;
  std::string deadly;
  for (int time = 0; time < 2; ++time) {
    Parts parts(folder / "results");
    if (time == 0) deadly = parts.submit("a", {.fields = {{"steps", 5}}, .survives = true});
    if (time > 0) parts.jobs.restore([](const std::string& text) { FAIL(text); });
    parts.inference.turn();
    CHECK(parts.state_of(deadly) == JobState::kRunning);
  }
  Parts parts(folder / "results");
  parts.jobs.restore([](const std::string& text) { FAIL(text); });
  const JobView view = parts.jobs.find(deadly).value();
  CHECK(view.state == JobState::kFailed);
  CHECK(view.error_status == 500);
  CHECK(view.error.find("died twice") != std::string::npos);
}

TEST_CASE("A server that is ended as it should be counts for nothing", "[serve]") {
  const Folder folder;
  std::string job;
  for (int time = 0; time < 4; ++time) {
    Parts parts(folder / "results");
    if (time == 0) job = parts.submit("a", {.fields = {{"steps", 5}}, .survives = true});
    if (time > 0) parts.jobs.restore([](const std::string& text) { FAIL(text); });
    parts.inference.turn();
    CHECK(parts.state_of(job) == JobState::kRunning);
    parts.jobs.close();
    parts.jobs.close();  // nothing more
  }
  for (int death = 0; death < 2; ++death) {
    Parts parts(folder / "results");
    parts.jobs.restore([](const std::string& text) { FAIL(text); });
    parts.inference.turn();
    CHECK(parts.state_of(job) == JobState::kRunning);
  }
  Parts parts(folder / "results");
  parts.jobs.restore([](const std::string& text) { FAIL(text); });
  CHECK(parts.state_of(job) == JobState::kFailed);
}

TEST_CASE("A record that cannot be read is told and left", "[serve]") {
  const Folder folder;
  test::write_bytes(folder / "results/.atelier-jobs/job_a.json", "{\"number\": 1");
  test::write_bytes(folder / "results/.atelier-jobs/job_b.json", "{\"number\": 1}");
  test::write_bytes(folder / "results/.atelier-jobs/job_c/image.0", "of no job");
  Parts parts(folder / "results");
  int told = 0;
  parts.jobs.restore([&](const std::string&) { ++told; });
  CHECK(told == 2);
  CHECK(parts.jobs.list().empty());
  CHECK(std::filesystem::exists(folder / "results/.atelier-jobs/job_a.json"));
  CHECK_FALSE(std::filesystem::exists(folder / "results/.atelier-jobs/job_c"));
}

TEST_CASE("Two servers do not keep their jobs in one folder", "[serve]") {
  const Folder folder;
  const Spool first(folder / "results");
  CHECK_THROWS_AS(Spool(folder / "results"), Error);
}

TEST_CASE("Weights leave once the server has been idle for long enough", "[serve]") {
  Parts parts;
  parts.submit("a");
  parts.work();
  parts.inference.rest_when_idle();
  CHECK(parts.maker.rests == 0);
  parts.now += 11;
  parts.inference.rest_when_idle();
  parts.inference.rest_when_idle();
  CHECK(parts.maker.rests == 1);
  parts.submit("b");
  parts.work();
  parts.now += 11;
  parts.inference.rest_when_idle();
  CHECK(parts.maker.rests == 2);
}

TEST_CASE("Messages name no folder of the server", "[serve]") {
  const Folder folder;
  const Spool spool(folder / "results");
  const std::string id = "job_a";
  const std::string upload = spool.folder() + "/.atelier-jobs/" + id + "/image.0";
  CHECK(spool.without_folder("image: " + upload + " is no image, nor is " + upload) ==
        "image: image.0 is no image, nor is image.0");
  CHECK(spool.without_folder(spool.output_of(id, "png") + ": no space") == "job_a.png: no space");
}

TEST_CASE("Metrics count what becomes of jobs", "[serve]") {
  Parts parts;
  parts.submit("a");
  parts.work();
  const std::string text = parts.metrics.text(3, 1);
  for (const char* const line :
       {"sglang:diffusion_num_queue_reqs{model_name=\"tiny\"} 3\n",
        "sglang:diffusion_num_running_reqs{model_name=\"tiny\"} 1\n",
        "sglang:diffusion_requests_total{model_name=\"tiny\",api=\"jobs\",status=\"done\"} 1\n",
        "sglang:diffusion_request_latency_seconds_bucket{model_name=\"tiny\",le=\"+Inf\"} 1\n",
        "sglang:diffusion_queue_time_seconds_count{model_name=\"tiny\"} 1\n"}) {
    INFO(line);
    CHECK(text.find(line) != std::string::npos);
  }
}

}  // namespace
}  // namespace atelier::serve
