#include "host/plugins/plugin_call.h"

#include <future>
#include <thread>

#include "support/catch.h"

using namespace atelier::plugins;
using std::chrono::seconds;

namespace {

// A thread that is in a plugin's function, and sleeps there.
class Sleeper {
 public:
  explicit Sleeper(CallKind kind) {
    std::promise<void> begun;
    thread_ = std::thread([this, kind, &begun] {
      const PluginCall outer(lasting({"liar", "\"/liar.so\""}), "outer", CallKind::kComputes);
      {
        const PluginCall call(lasting({"liar", "\"/liar.so\""}), "sleep", kind);
        begun.set_value();
        wakes_.get_future().wait();
      }
      woken_.set_value();
      ends_.get_future().wait();
    });
    begun.get_future().wait();
    wait_until_it_sleeps();
  }
  void wake() {
    wakes_.set_value();
    woken_.get_future().wait();
    wait_until_it_sleeps();
  }
  ~Sleeper() {
    ends_.set_value();
    thread_.join();
  }
  Sleeper(const Sleeper&) = delete;
  Sleeper& operator=(const Sleeper&) = delete;

 private:
  static void wait_until_it_sleeps() { std::this_thread::sleep_for(std::chrono::milliseconds(50)); }

  std::promise<void> wakes_, woken_, ends_;
  std::thread thread_;
};

}  // namespace

TEST_CASE("A function that answers and does not is ended by its name", "[plugins]") {
  Sleeper sleeper(CallKind::kAnswers);
  CallWatch watch;
  CHECK(watch.look(seconds(100)).empty());  // it is seen for the first time
  CHECK(watch.look(seconds(14)).empty());
  const auto verdicts = watch.look(seconds(1));
  REQUIRE(verdicts.size() == 1);
  CHECK(verdicts[0].line ==
        "error: liar.sleep: \"/liar.so\": it does not come back within 15 seconds; ask its author "
        "[PLUGIN_HANGS]\n");
  CHECK(verdicts[0].exit_code == 3);
  sleeper.wake();
  CHECK(watch.look(seconds(100)).empty());
}

TEST_CASE("A function that computes is named now and then, and less where it is slow",
          "[plugins]") {
  Sleeper sleeper(CallKind::kComputes);
  CallWatch watch;
  watch.look(seconds(1));
  CHECK(watch.look(seconds(59)).empty());
  const auto verdicts = watch.look(seconds(1));
  REQUIRE(verdicts.size() == 1);
  CHECK(verdicts[0].line ==
        "liar.sleep: \"/liar.so\": it runs for 60 seconds and has not come back\n");
  CHECK(!verdicts[0].exit_code);
  CHECK(watch.look(seconds(179)).empty());
  CHECK(watch.look(seconds(1)).size() == 1);
  sleeper.wake();  // the outer one goes on; what took 240 seconds and came back may take more
  watch.look(seconds(1));
  CHECK(watch.look(seconds(959)).empty());
  CHECK(watch.look(seconds(1)).size() == 1);
}

TEST_CASE("A function that computes is ended where there is a limit", "[plugins]") {
  Sleeper sleeper(CallKind::kComputes);
  CallWatch watch;
  watch.look(seconds(1));
  limit_computing(seconds(30));
  const auto verdicts = watch.look(seconds(30));
  limit_computing({});
  REQUIRE(verdicts.size() == 1);
  CHECK(verdicts[0].exit_code == 3);
  sleeper.wake();
}

TEST_CASE("Time in which a thread waits for a core is not its own", "[plugins]") {
  const PluginCall call(lasting({"liar", "\"/liar.so\""}), "run", CallKind::kAnswers);
  CallWatch watch;
  for (int i = 0; i < 10; ++i) CHECK(watch.look(seconds(10)).empty());  // it runs, and not for long
}
