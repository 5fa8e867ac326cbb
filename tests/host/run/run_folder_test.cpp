#include "host/run/run_folder.h"

#include <algorithm>
#include <sys/wait.h>
#include <unistd.h>

#include "faulty_files.h"
#include "host/files/content_hash.h"
#include "host/run/durable.h"
#include "host/run/manifest.h"
#include "host/run/occupants.h"
#include "support/files.h"

using namespace atelier;
using namespace atelier::run;
using test::expect_error;
using test::Folder;
using test::read_bytes;
using test::write_bytes;
using test::fs::exists;

namespace {

at::Tensor values_of(int64_t step, int64_t version) {
  return at::arange(12, at::kFloat).view({3, 4}) + static_cast<double>(100 * step + version);
}

SavedStateFiles files_of(int64_t step, int64_t version = 0) {
  const at::Tensor values = values_of(step, version);
  return {{{"weights.safetensors", {{"a.b", values}, {"half", values.to(at::kBFloat16)}}}},
          {{"config.toml", "step = " + std::to_string(step) + "\n"}}};
}

void save(RunFolder& run, int64_t step, int64_t version = 0, int64_t keep = 0) {
  run.save(step, files_of(step, version), {{"version", version}}, keep);
}

// Everything in a checkpoint is that of its step and version.
void check_contents(const SavedState& saved_state) {
  const at::Tensor expected = values_of(saved_state.step, saved_state.facts.at("version"));
  const NamedTensors tensors = saved_state.load("weights.safetensors");
  REQUIRE(tensors.size() == 2);
  CHECK(at::equal(tensors.at("a.b"), expected));
  CHECK(at::equal(tensors.at("half"), expected.to(at::kBFloat16)));
  CHECK(saved_state.text("config.toml") == "step = " + std::to_string(saved_state.step) + "\n");
}

SavedState find(const std::string& path, std::vector<std::string>* warnings = nullptr) {
  return find_state(path, [&](const std::string& line) {
    if (warnings != nullptr) warnings->push_back(line);
  });
}

std::vector<std::string> checkpoints_in(const std::string& run) {
  return folder_names(run + "/checkpoints");
}

std::string flip_byte(std::string bytes, size_t at) {
  bytes[at] = static_cast<char>(bytes[at] ^ 1);
  return bytes;
}

}  // namespace

TEST_CASE("A checkpoint gives back what was saved", "[run]") {
  Folder folder;
  const nlohmann::json facts = {{"epoch", 3}, {"loss", 0.1}, {"names", {"a", "中"}}};
  RunFolder run(folder / "deep/out");
  const std::string where = run.save(1200, files_of(1200), facts, 0);
  CHECK(where == folder / "deep/out/checkpoints/step-00001200");
  for (const std::string& path : {folder / "deep/out", folder / "deep/out/", where, where + "/",
                                  folder / "deep/out/checkpoints"}) {
    INFO(path);
    const SavedState found = find(path);
    CHECK(found.step == 1200);
    CHECK(found.folder == where);
    CHECK(found.facts == facts);
    CHECK(found.files.size() == 2);
    CHECK(at::equal(found.load("weights.safetensors").at("a.b"), values_of(1200, 0)));
    CHECK(found.text("config.toml") == "step = 1200\n");
  }
  expect_error(ErrorCode::kNotFound, {"step-00001200", "\"ema.safetensors\""},
               [&] { find(where).load("ema.safetensors"); });
  const auto manifest = nlohmann::json::parse(read_bytes(where + "/MANIFEST.json"));
  CHECK(manifest.at("version") == 1);
  CHECK(manifest.at("files").at(1).at("xxh3_128") ==
        files::hash_file(where + "/weights.safetensors"));
}

TEST_CASE("Old checkpoints go, and the two newest whole ones never", "[run]") {
  Folder folder;
  RunFolder run(folder / "out");
  const auto names = [&] { return checkpoints_in(folder / "out"); };
  for (const int64_t step : {1, 2, 3}) save(run, step, 0, /*keep=*/1);
  CHECK(names() == std::vector<std::string>{"step-00000002", "step-00000003"});
  for (const int64_t step : {4, 5}) save(run, step);
  CHECK(names().size() == 4);
  SECTION("a damaged one does not count and is not removed") {
    write_bytes(folder / "out/checkpoints/step-00000005/config.toml", "short");
    save(run, 6, 0, 2);
    CHECK(names() == std::vector<std::string>{"step-00000004", "step-00000005", "step-00000006"});
  }
  SECTION("the one just saved stays, though later steps of another attempt are there") {
    save(run, 1, 0, 2);
    CHECK(names() == std::vector<std::string>{"step-00000001", "step-00000005"});
  }
}

TEST_CASE("A lock that is a symbolic link is refused, and what it points to stays", "[run]") {
  Folder folder;
  write_bytes(folder / "other.txt", "mine");
  test::fs::create_directory(folder / "out");
  test::fs::create_symlink("../other.txt", folder / "out/.lock");
  expect_error(ErrorCode::kEnvironment, {"out/.lock: is a symbolic link", "delete it"},
               [&] { RunFolder run(folder / "out"); });
  CHECK(read_bytes(folder / "other.txt") == "mine");
}

TEST_CASE("A second run in the same folder is refused, and the first is named", "[run]") {
  Folder folder;
  {
    const RunFolder run(folder / "out");
    expect_error(ErrorCode::kEnvironment,
                 {"out: another run writes here", std::to_string(getpid()), "[RUN_LOCKED]"},
                 [&] { RunFolder second(folder / "out"); });
    CHECK_THROWS_AS(find(folder / "out"), Error);  // readers need no lock
  }
  const RunFolder next(folder / "out");
  CHECK(next.path() == folder / "out");
}

TEST_CASE("What an interrupted save left is removed under the lock only", "[run]") {
  Folder folder;
  const std::string stale = folder / "out/checkpoints/.atelier-tmp-00c0ffee-step-00000007";
  {
    RunFolder run(folder / "out");
    save(run, 1);
    write_bytes(stale + "/weights.safetensors", "half");
    write_bytes(folder / "out/checkpoints/.atelier-tmp-12345678-step-00000001/nested/x", "rest");
    write_bytes(folder / "out/.atelier-tmp-12345678-step-1.safetensors", "half");
    write_bytes(folder / "out/samples/.atelier-tmp-12345678-step-00000001_0.png", "half");
    CHECK_THROWS_AS(RunFolder(folder / "out"), Error);
    CHECK(exists(stale));
  }
  const RunFolder run(folder / "out");
  CHECK(checkpoints_in(folder / "out") == std::vector<std::string>{"step-00000001"});
  CHECK(folder_names(folder / "out") ==
        std::vector<std::string>{".lock", ".run", "checkpoints", "samples"});
  CHECK(folder_names(folder / "out/samples").empty());
}

TEST_CASE("What a folder holds of a run is told from what belongs to nobody", "[run]") {
  using Names = std::vector<std::string>;
  Folder folder;
  const std::string out = folder / "out";
  CHECK(find_occupants(out).results.empty());  // there is none
  for (const char* name : {"notes.txt", ".lock", ".run", "cache/text/a.safetensors",
                           "deeper/config.toml", ".atelier-tmp-12345678-step-1.safetensors",
                           "checkpoints/.atelier-tmp-00c0ffee-step-00000007/optimizer.safetensors",
                           "samples/.atelier-tmp-00c0ffee-step-00000001_0.png"})
    write_bytes(out + "/" + name, "");
  CHECK(find_occupants(out).results.empty());
  CHECK(find_occupants(out).records.empty());
  for (const char* name :
       {"config.toml", "loss.csv", "tensorboard_log/events", "samples/a.png",
        "checkpoints/step-00000001/MANIFEST.json", "step-1.safetensors", "model_index.json",
        "model.safetensors.index.json", "transformer/config.json"})
    write_bytes(out + "/" + name, "");
  CHECK(find_occupants(out).results == Names{"checkpoints", "model.safetensors.index.json",
                                             "model_index.json", "step-1.safetensors",
                                             "transformer"});
  CHECK(find_occupants(out).records ==
        Names{"config.toml", "loss.csv", "samples", "tensorboard_log"});
}

namespace {

// Two runs, and a checkpoint of the second among those of the first, under a name that is free.
struct TwoRuns : Folder {
  TwoRuns() {
    for (const char* name : {"out", "other"}) {
      RunFolder run(*this / name);
      for (const int64_t step : {1, 2}) save(run, step);
    }
    RunFolder other(*this / "other");
    save(other, 5);
    copy("other/checkpoints/step-00000005", "out/checkpoints/step-00000005");
  }
  void copy(const std::string& from, const std::string& to) const {
    test::fs::copy(*this / from, *this / to, test::fs::copy_options::recursive);
  }
};

}  // namespace

TEST_CASE("A checkpoint of another run is refused in a run's folder", "[run]") {
  const TwoRuns folder;
  for (const char* path : {"out", "out/checkpoints", "out/checkpoints/step-00000005"}) {
    INFO(path);
    expect_error(ErrorCode::kInvalidArgument,
                 {"out/checkpoints/step-00000005: is of another run than", "out; move it out",
                  "--output_path", "delete", "out/.run", "[CHECKPOINT_OF_ANOTHER_RUN]"},
                 [&] { find(folder / path); });
  }
  CHECK(find(folder / "out/checkpoints/step-00000002").step == 2);  // one of its own
  CHECK(find(folder / "other").step == 5);
  {
    RunFolder run(folder / "out");
    save(run, 3, 0, 2);  // nor does it count among those that stay, or go
  }
  CHECK(checkpoints_in(folder / "out") ==
        std::vector<std::string>{"step-00000002", "step-00000003", "step-00000005"});
  test::fs::remove(folder / "out/.run");  // the newest one tells whose folder it is
  CHECK(find(folder / "out").step == 5);
  expect_error(ErrorCode::kInvalidArgument, {"step-00000003: is of another run"},
               [&] { find(folder / "out/checkpoints/step-00000003"); });
}

TEST_CASE("A run is the same where its folder is moved or copied", "[run]") {
  const TwoRuns folder;
  std::string identity;
  {
    const RunFolder run(folder / "other");
    identity = run.identity();
    CHECK(identity.size() == 32);
  }
  CHECK(RunFolder(folder / "out").identity() != identity);
  folder.copy("other", "copied");
  CHECK(find(folder / "copied").run == identity);
  SECTION("without its hidden files") {
    test::fs::remove(folder / "copied/.run");
    CHECK(find(folder / "copied").step == 5);
    CHECK(RunFolder(folder / "copied").identity() == identity);
    CHECK(read_bytes(folder / "copied/.run") == identity + "\n");
  }
  SECTION("one checkpoint alone, wherever it lies") {
    folder.copy("other/checkpoints/step-00000005", "alone");
    test::fs::create_directories(folder / "some/checkpoints");
    folder.copy("other/checkpoints/step-00000005", "some/checkpoints/step-00000005");
    for (const char* path : {"alone", "some"}) CHECK(find(folder / path).step == 5);
    CHECK(RunFolder(folder / "some").identity() == identity);
  }
}

TEST_CASE("A run goes on from checkpoints of an older program", "[run]") {
  Folder folder;
  const std::string checkpoint = folder / "out/checkpoints/step-00000001";
  {
    RunFolder run(folder / "out");
    save(run, 1);
  }
  const SavedState saved_state = open_state(checkpoint);
  write_bytes(checkpoint + "/MANIFEST.json", manifest_text(1, saved_state.files, {}));
  CHECK(find(folder / "out").run.empty());
  test::fs::remove(folder / "out/.run");
  CHECK(find(folder / "out").step == 1);
  RunFolder run(folder / "out");
  save(run, 2, 0, 2);
  save(run, 3, 0, 2);
  CHECK(checkpoints_in(folder / "out") ==
        std::vector<std::string>{"step-00000002", "step-00000003"});
  CHECK(find(folder / "out").run == run.identity());
}

TEST_CASE("A run's identity is not written through a link, and a damaged one is written anew",
          "[run]") {
  Folder folder;
  write_bytes(folder / "other.txt", "mine");
  test::fs::create_directory(folder / "out");
  test::fs::create_symlink("../other.txt", folder / "out/.run");
  const std::string identity = RunFolder(folder / "out").identity();
  CHECK(read_bytes(folder / "other.txt") == "mine");
  CHECK(RunFolder(folder / "out").identity() == identity);
  write_bytes(folder / "out/.run", identity.substr(1));
  CHECK(RunFolder(folder / "out").identity() != identity);
}

TEST_CASE("A damaged checkpoint is passed over, and stays", "[run]") {
  Folder folder;
  RunFolder run(folder / "out");
  for (const int64_t step : {1, 2, 3}) save(run, step);
  const std::string newest = folder / "out/checkpoints/step-00000003";
  const std::string manifest = newest + "/MANIFEST.json";
  const std::string weights = newest + "/weights.safetensors";
  std::vector<std::string> warnings;
  const auto expect_second = [&](const std::string& part) {
    CHECK(find(folder / "out", &warnings).step == 2);
    REQUIRE(warnings.size() == 1);
    CHECK_THAT(warnings[0], Catch::Contains("step-00000003") && Catch::Contains(part));
    CHECK(exists(newest));
    expect_error(ErrorCode::kDataLoss, {"step-00000003", part, "[CHECKPOINT_DAMAGED]"},
                 [&] { find(newest); });
  };
  SECTION("one bit of its manifest is wrong, wherever it is") {
    const std::string good = read_bytes(manifest);
    for (size_t i = 0; i < good.size(); i += 7) {
      write_bytes(manifest, flip_byte(good, i));
      warnings.clear();
      expect_second("checksum");
    }
  }
  SECTION("its manifest is cut, or is not there") {
    write_bytes(manifest, read_bytes(manifest).substr(0, 100));
    expect_second("checksum");
    test::fs::remove(manifest);
    warnings.clear();
    CHECK(find(folder / "out", &warnings).step == 2);
  }
  SECTION("a file is shorter") {
    test::fs::resize_file(weights, 5000 - 1000);
    expect_second("4000 bytes");
  }
  SECTION("a file is gone") {
    test::fs::remove(weights);
    expect_second("No such file");
  }
  SECTION("a file's contents are others") {
    write_bytes(weights, flip_byte(read_bytes(weights), test::fs::file_size(weights) - 1));
    const SavedState found = find(folder / "out");
    CHECK(found.step == 3);
    expect_error(ErrorCode::kDataLoss, {"weights.safetensors", "contents"},
                 [&] { found.load("weights.safetensors"); });
    CHECK(found.load("weights.safetensors", /*check=*/false).size() == 2);
    const auto read = [](const SavedState& saved_state) { check_contents(saved_state); };
    const auto warn = [&](const std::string& line) { warnings.push_back(line); };
    CHECK(find_state(folder / "out", warn, read).step == 2);
    CHECK(warnings.size() == 1);
  }
  SECTION("all are") {
    for (const char* name : {"1", "2", "3"})
      test::fs::remove(folder /
                       ("out/checkpoints/step-0000000" + std::string(name) + "/config.toml"));
    expect_error(ErrorCode::kDataLoss, {"none of its 3 checkpoints is whole"},
                 [&] { find(folder / "out", &warnings); });
    CHECK(warnings.size() == 3);
  }
}

TEST_CASE("Where no checkpoint is, the message says what was looked at", "[run]") {
  Folder folder;
  expect_error(ErrorCode::kNotFound, {"nowhere", "no such folder"},
               [&] { find(folder / "nowhere"); });
  write_bytes(folder / "x/notes.txt", "");
  expect_error(ErrorCode::kNotFound, {"x", "no checkpoint"}, [&] { find(folder / "x"); });
  expect_error(ErrorCode::kNotFound, {"notes.txt", "no checkpoint"},
               [&] { find(folder / "x/notes.txt"); });
  expect_error(ErrorCode::kNotFound, {"step-00000009"},
               [&] { find(folder / "x/checkpoints/step-00000009"); });
}

TEST_CASE("Manifests of other versions and with other paths are refused", "[run]") {
  Folder folder;
  const auto write = [&](const std::string& from, const std::string& to) {
    std::string text = manifest_text(5, {{"name.txt", {3, std::string(32, '0')}}}, {});
    text.replace(text.find(from), from.size(), to);
    const size_t begin = text.find(",\n  \"checksum\"");
    files::ContentHash hash;
    hash.add(text.data(), begin);
    text.replace(begin + 17, 32, hash.hex());
    write_bytes(folder / "step-00000005/MANIFEST.json", text);
    write_bytes(folder / "step-00000005/name.txt", "abc");
  };
  write("name.txt", "name.txt");
  CHECK(find(folder.path()).step == 5);
  write("\"version\": 1", "\"version\": 2");
  expect_error(ErrorCode::kUnsupported, {"version is 2", "[CHECKPOINT_VERSION]"},
               [&] { find(folder.path()); });
  for (const char* name : {"../a.txt", "/etc/passwd", "..", ".hidden", ""}) {
    write("name.txt", name);
    expect_error(ErrorCode::kDataLoss, {"is no name of a file"},
                 [&] { find(folder / "step-00000005"); });
  }
  write("\"bytes\": 3", "\"bytes\": \"3\"");
  expect_error(ErrorCode::kDataLoss, {"MANIFEST.json"}, [&] { find(folder / "step-00000005"); });
}

TEST_CASE("Names and facts that cannot be saved are refused before anything is written", "[run]") {
  Folder folder;
  RunFolder run(folder / "out");
  for (const char* name : {"MANIFEST.json", "a/b", "..", "", ".x", "a b"})
    expect_error(ErrorCode::kInvalidArgument, {"cannot be the name"}, [&] {
      run.save(1, {{}, {{name, "text"}}}, {}, 0);
    });
  CHECK(checkpoints_in(folder / "out").empty());
  CHECK_THROWS_AS(run.save(1, {{{"a", {}}}, {{"a", ""}}}, {}, 0), Error);
  CHECK_THROWS_AS(run.save(1, {}, {{"name", "\xff"}}, 0), Error);
  CHECK(checkpoints_in(folder / "out").empty());
}

TEST_CASE("Free space is looked at before anything is written", "[run]") {
  Folder folder;
  RunFolder run(folder / "out");
  save(run, 1);
  test::FaultyFiles files(folder / "graves", test::Fault::kOnce, -1);
  files.free_bytes = 1 << 20;
  const files::ReplacedFileOperations replaced(files);
  const SavedStateFiles large = {{{"w.safetensors", {{"w", at::zeros({1 << 20}, at::kByte)}}}}, {}};
  expect_error(ErrorCode::kEnvironment,
               {"out: a checkpoint needs 1.1", " MiB of the disk, and 1.0",
                " MiB are free; free some space", "[DISK_FULL]"},
               [&] { run.save(2, large, {}, 0); });
  CHECK(checkpoints_in(folder / "out") == std::vector<std::string>{"step-00000001"});
  save(run, 2);  // a small one fits
  CHECK(find(folder / "out").step == 2);
  for (const char* name : {"step-1.safetensors", "step-2.safetensors"})
    write_bytes(folder / ("out/" + std::string(name)), std::string(5000, 'x'));
  expect_error(ErrorCode::kEnvironment,
               {"the weights needs 2.2", "older weights take 4.88",
                "(\"step-1.safetensors\"), see ", "--weights_total_limit; older checkpoints take ",
                "(\"step-00000001\"), see ", "--checkpoints_total_limit"},
               [&] { run.require_space("the weights", 2 << 20); });
}

namespace {

// File systems that lack something.
class PoorFiles final : public files::FileOperations {
 public:
  int flock(int) override {
    errno = ENOLCK;
    return -1;
  }
  int fsync(int file) override {
    struct stat status = {};
    fstat(file, &status);
    if (!S_ISDIR(status.st_mode)) return 0;
    errno = EINVAL;
    return -1;
  }
  int statvfs(const char*, struct statvfs* space) override {
    *space = {};
    return 0;
  }
};

}  // namespace

TEST_CASE("A file system without locks, folder flushes and space counts still serves", "[run]") {
  Folder folder;
  PoorFiles files;
  const files::ReplacedFileOperations replaced(files);
  write_bytes(folder / "out/checkpoints/.atelier-tmp-00000000-step-00000001/x",
              "of somebody who may live");
  RunFolder run(folder / "out");
  save(run, 1);
  check_contents(find(folder / "out"));
  CHECK(exists(folder / "out/checkpoints/.atelier-tmp-00000000-step-00000001"));
}

namespace {

// What is in the folder before the save that goes wrong, and that save.
struct Scene {
  const char* name;
  void (*prepare)(const std::string& out);
  int64_t step, version, keep;
};

void prepare_steps(const std::string& out, int64_t last) {
  RunFolder run(out);
  for (int64_t step = 1; step <= last; ++step) save(run, step);
}

void move_aside(const std::string& out, const char* prefix) {
  test::fs::rename(out + "/checkpoints/step-00000002", out + "/checkpoints/" + prefix);
}

const Scene kScenes[] = {
    {"a new checkpoint", [](const std::string& out) { prepare_steps(out, 2); }, 3, 0, 0},
    {"an old one goes", [](const std::string& out) { prepare_steps(out, 3); }, 4, 0, 2},
    {"one of the same step", [](const std::string& out) { prepare_steps(out, 2); }, 2, 1, 2},
    {"a save was interrupted between its renames",
     [](const std::string& out) {
       prepare_steps(out, 2);
       test::fs::copy(out + "/checkpoints/step-00000001",
                      out + "/checkpoints/.atelier-tmp-00000000-step-00000002");
       test::fs::copy(out + "/checkpoints/step-00000001",
                      out + "/checkpoints/.atelier-tmp-00000001-step-00000001");
       move_aside(out, ".old-step-00000002");
     },
     3, 0, 2},
    {"the last one is damaged, and the one that gave way to it is there",
     [](const std::string& out) {
       prepare_steps(out, 2);
       move_aside(out, ".old-step-00000002");
       write_bytes(out + "/checkpoints/step-00000002/weights.safetensors", "damaged");
     },
     2, 1, 2},
};

int num_whole(const std::string& out) {
  std::set<int64_t> steps;
  for (const std::string& name : checkpoints_in(out)) {
    const auto step = step_of(name), old_step = step_of(name, kOldPrefix);
    if (!step && !old_step) continue;
    try {
      check_contents(open_state(out + "/checkpoints/" + name));
      steps.insert(step ? *step : *old_step);
    } catch (const Error&) {
    }
  }
  return static_cast<int>(steps.size());
}

bool is_stand_in(const std::string& folder) {
  return step_of(test::fs::path(folder).filename().string(), kOldPrefix).has_value();
}

// The folder works, and nothing is left over but what stands for a damaged one.
void check_usable(const std::string& out) {
  test::FaultyFiles quick(out + "/graves", test::Fault::kOnce, -1);
  const files::ReplacedFileOperations replaced(quick);
  RunFolder run(out);
  for (const std::string& name : checkpoints_in(out))
    if (const auto step = step_of(name, kOldPrefix))
      CHECK(exists(out + "/checkpoints/" + step_name(*step)));
  check_contents(find(out));
  save(run, 9, 0, 2);
  CHECK(find(out).step == 9);
  for (const std::string& name : checkpoints_in(out)) {
    if (step_of(name)) continue;
    REQUIRE(step_of(name, kOldPrefix));
    CHECK_THROWS_AS(open_state(out + "/checkpoints/" + step_name(*step_of(name, kOldPrefix))),
                    Error);
  }
}

// One run: opens the folder and saves with a fault at the call `at`, or without one when there are
// fewer calls; it then returns false. What was saved survives the loss in either case.
bool try_fault(const Scene& scene, const std::string& prepared, test::Fault fault, int at, int why,
               std::optional<test::Loss> loss, unsigned seed) {
  Folder folder;
  const std::string out = folder / "out";
  test::fs::copy(prepared, out, test::fs::copy_options::recursive);
  const SavedState before = find(out);
  test::FaultyFiles files(folder / "graves", fault, at, why);
  bool is_saved = false, is_refused = false;
  {
    const files::ReplacedFileOperations replaced(files);
    try {
      RunFolder run(out);
      save(run, scene.step, scene.version, scene.keep);
      is_saved = true;
    } catch (const test::Crash&) {
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kEnvironment);
      is_refused = true;
    }
  }
  files.close_all();
  if (loss) files.lose(*loss, out, seed);

  const SavedState after = find(out);
  check_contents(after);
  const bool is_old = after.step == before.step && after.facts == before.facts;
  const bool is_new = after.step == scene.step && after.facts.at("version") == scene.version;
  CHECK((is_old || is_new));
  if (is_saved) CHECK(is_new);
  if (is_refused && fault == test::Fault::kOnce) {
    CHECK(is_old);
    CHECK((after.folder == before.folder || is_stand_in(before.folder)));
  }
  CHECK(num_whole(out) >= 2);

  check_usable(out);
  return files.has_struck();
}

// Every call of every scene fails in turn.
void try_all(test::Fault fault, int why, std::optional<test::Loss> loss = {}, unsigned seed = 0) {
  for (const Scene& scene : kScenes) {
    Folder folder;
    scene.prepare(folder / "out");
    int at = 0;
    for (bool has_struck = true; has_struck; ++at) {
      INFO(scene.name << ", call " << at << ", seed " << seed);
      has_struck = try_fault(scene, folder / "out", fault, at, why, loss, seed + 100u * at);
    }
    CHECK(at > 30);
  }
}

}  // namespace

TEST_CASE("A call that fails in a save costs no checkpoint", "[run][faults]") {
  try_all(test::Fault::kOnce, ENOSPC);
}

TEST_CASE("A disk that fails from some call on costs no checkpoint", "[run][faults]") {
  try_all(test::Fault::kFromThenOn, EIO);
}

TEST_CASE("A kill at any call of a save costs no checkpoint", "[run][faults]") {
  try_all(test::Fault::kCrash, EIO, test::Loss::kNothing);
}

TEST_CASE("Lost power at any call of a save costs no checkpoint", "[run][faults]") {
  using test::Loss;
  const Loss loss =
      GENERATE(Loss::kAllUnflushed, Loss::kUnflushedBytes, Loss::kUnflushedEntries, Loss::kSome);
  try_all(test::Fault::kCrash, EIO, loss);
}

TEST_CASE("Lost power in many ways costs no checkpoint", "[.][slow]") {
  for (unsigned seed = 1; seed <= 20; ++seed)
    try_all(test::Fault::kCrash, EIO, test::Loss::kSome, seed);
}

TEST_CASE("Short and interrupted writes change nothing", "[run][faults]") {
  Folder folder;
  test::FaultyFiles files(folder / "graves", test::Fault::kInterrupted, -1);
  const files::ReplacedFileOperations replaced(files);
  RunFolder run(folder / "out");
  save(run, 1);
  CHECK(files.count() > 90);
  check_contents(find(folder / "out"));
}

namespace {

// Files of these names, each written a second after the one before.
void write_weights(const Folder& folder, const std::vector<std::string>& names) {
  auto time = test::fs::file_time_type::clock::now() - std::chrono::hours(1);
  for (const std::string& name : names) {
    write_bytes(folder / name, name);
    test::fs::last_write_time(folder / name, time += std::chrono::seconds(1));
  }
}

}  // namespace

TEST_CASE("Of the weights of a run the sets written last stay", "[run]") {
  Folder folder;
  RunFolder run(folder.path());
  write_weights(folder,
                {"step-20.lora.safetensors", "step-20.dit.safetensors", "epoch-0.safetensors",
                 "step-9.safetensors", "best.safetensors", "step-x.safetensors"});
  run.remove_old_weights(3);
  CHECK(exists(folder / "step-20.lora.safetensors"));
  run.remove_old_weights(2);
  CHECK_FALSE(exists(folder / "step-20.lora.safetensors"));
  CHECK_FALSE(exists(folder / "step-20.dit.safetensors"));
  run.remove_old_weights(1);
  CHECK_FALSE(exists(folder / "epoch-0.safetensors"));
  for (const char* name : {"step-9.safetensors", "best.safetensors", "step-x.safetensors"})
    CHECK(exists(folder / name));
}

TEST_CASE("Old weights that cannot be deleted are told once, and the others go", "[run]") {
  struct Stuck final : files::FileOperations {
    int unlink(const char* path) override {
      if (std::string(path).find("step-1.") == std::string::npos)
        return FileOperations::unlink(path);
      errno = EACCES;
      return -1;
    }
  };
  Folder folder;
  RunFolder run(folder.path());
  write_weights(folder, {"step-1.safetensors", "step-2.safetensors", "step-3.safetensors"});
  Stuck stuck;
  const files::ReplacedFileOperations replaced(stuck);
  const std::string log = folder / "log";
  const int before = dup(STDERR_FILENO), file = open(log.c_str(), O_WRONLY | O_CREAT, 0600);
  dup2(file, STDERR_FILENO);
  run.remove_old_weights(1);
  run.remove_old_weights(1);
  dup2(before, STDERR_FILENO);
  close(before);
  close(file);
  const std::string said = read_bytes(log);
  CHECK_THAT(said, Catch::Contains("step-1.safetensors: cannot be deleted: Permission denied"));
  CHECK(said.find("cannot be deleted") == said.rfind("cannot be deleted"));
  CHECK(exists(folder / "step-1.safetensors"));
  CHECK_FALSE(exists(folder / "step-2.safetensors"));
  CHECK(exists(folder / "step-3.safetensors"));
}
