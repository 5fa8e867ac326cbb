#include "host/parameters/shard_files.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "support/files.h"

namespace atelier::parameters {
namespace {

using test::Folder;

constexpr int64_t kNumbers = 15;  // of a value, in three rows

// A value of three rows, and one that is whole everywhere.
NamedTensors wholes() {
  return {{"p.exp_avg", at::arange(kNumbers, at::kFloat).view({3, 5})}, {"p.step", at::ones({})}};
}

int64_t first_of(int index, int count) {
  return kNumbers * index / count;
}

bool same(const NamedTensors& a, const NamedTensors& b) {
  const auto is_same = [](const auto& one, const auto& other) {
    return one.first == other.first && at::equal(one.second, other.second);
  };
  return std::ranges::equal(a, b, is_same);
}

// What owner `index` of `count` has of them.
struct Part {
  NamedTensors state;
  optim::Shards shards;
  ShardOwner owner;

  Part(int index, int count) : state(wholes()), owner{index, count, true, index, count} {
    const int64_t begin = first_of(index, count), end = first_of(index + 1, count);
    state["p.exp_avg"] = state["p.exp_avg"].view(-1).slice(0, begin, end).clone();
    shards["p.exp_avg"] = {{3, 5}, begin};
  }
};

run::SavedState save(const std::string& folder, int count) {
  run::SavedStateFiles files;
  if (count == 1) add_part(files, "optimizer", wholes(), {}, {});
  for (int index = 0; count > 1 && index < count; ++index) {
    const Part part(index, count);
    add_part(files, "optimizer", part.state, part.shards, part.owner);
  }
  run::RunFolder(folder).save(1, files, {}, 0);
  return run::find_state(folder, {});
}

TEST_CASE("What some processes saved is read by any number", "[shards]") {
  for (const int writers : {1, 2, 4, 20}) {
    Folder folder;
    const run::SavedState saved = save(folder / "run", writers);
    CHECK(saved.files.size() == static_cast<size_t>(writers));
    CHECK(has_part(saved, "optimizer"));
    CHECK_FALSE(has_part(saved, "ema"));
    const auto values = values_of_part(saved, "optimizer");
    CHECK(values.size() == 2);
    CHECK(values.at("p.exp_avg").numel == kNumbers);
    CHECK(values.at("p.step").numel == 1);
    CHECK(values.at("p.step").dtype == at::kFloat);
    const NamedTensors whole = read_part(saved, "optimizer", wholes(), {}, {});
    CHECK(same(whole, wholes()));
    for (const int readers : {2, 3, 20}) {
      for (int index = 0; index < readers; ++index) {
        const Part part(index, readers);
        CHECK(same(read_part(saved, "optimizer", part.state, part.shards, part.owner), part.state));
      }
    }
  }
}

TEST_CASE("What is missing, unexpected or of another size is seen by who reads", "[shards]") {
  Folder folder;
  const run::SavedState saved = save(folder / "run", 2);
  Part part(0, 3);
  part.state["q"] = at::ones({2});
  part.state.erase("p.step");
  const NamedTensors read = read_part(saved, "optimizer", part.state, part.shards, part.owner);
  CHECK_FALSE(read.contains("q"));
  CHECK(read.contains("p.step"));
  part.shards["p.exp_avg"].whole_sizes = {3, 6};
  CHECK(
      read_part(saved, "optimizer", part.state, part.shards, part.owner).at("p.exp_avg").numel() ==
      kNumbers);
}

TEST_CASE("One of the processes that read finds a damaged file", "[shards]") {
  Folder folder;
  const run::SavedState saved = save(folder / "run", 4);
  const std::string path = saved.path_of("optimizer-00004-of-00004.safetensors", /*check=*/true);
  std::string bytes = test::read_bytes(path);
  bytes.back() ^= 1;
  test::write_bytes(path, bytes);
  const Part first(0, 2), second(1, 2);
  read_part(saved, "optimizer", first.state, first.shards, first.owner);
  test::expect_error(ErrorCode::kDataLoss, {"optimizer-00004", "its contents are not those"}, [&] {
    read_part(saved, "optimizer", second.state, second.shards, second.owner);
  });
}

TEST_CASE("One copy of each shard is written, and what is empty is not", "[shards]") {
  run::SavedStateFiles files;
  Part copy(0, 2);
  copy.owner.is_first_copy = false;
  add_part(files, "optimizer", copy.state, copy.shards, copy.owner);
  CHECK(files.tensors.empty());
  const Part empty(0, 20), second(1, 2);  // the first twentieth of 15 numbers has none
  add_part(files, "ema", empty.state, empty.shards, empty.owner);
  CHECK(files.tensors.at("ema-00001-of-00020.safetensors").size() == 1);
  add_part(files, "optimizer", second.state, second.shards, second.owner);
  CHECK(files.tensors.at("optimizer-00002-of-00002.safetensors").count("p.exp_avg@7") == 1);
  CHECK(files.tensors.at("optimizer-00002-of-00002.safetensors").count("p.step") == 0);
}

}  // namespace
}  // namespace atelier::parameters
