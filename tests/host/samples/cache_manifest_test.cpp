#include "host/samples/cache_manifest.h"

#include "tests/support/files.h"

namespace atelier::samples {

TEST_CASE("Stages may have the names of a manifest's own fields", "[cache]") {
  const test::Folder folder;
  Manifest manifest;
  manifest.is_complete = true;
  manifest.family = "toy";
  CacheItem item;
  item.place = "metadata.csv:2";
  item.target = {1, 8, 8};
  item.values["seed"] = 3;
  item.files = {"/data/0.png"};
  for (const std::string stage : {"files", "values", "place", "text", "empty_text"}) {
    manifest.cached[stage] = true;
    manifest.encoders[stage] = {};
    item.keys[stage] = "key of " + stage;
  }
  item.empty_keys = {{"text", "key without a prompt"}};
  manifest.items = {item};
  manifest.write(folder.path());
  const Manifest read = Manifest::read(folder.path());
  REQUIRE(read.items.size() == 1);
  CHECK(read.items[0].keys == item.keys);
  CHECK(read.items[0].empty_keys == item.empty_keys);
  CHECK(read.items[0].files == item.files);
  CHECK(read.items[0].values == item.values);
  CHECK(read.items[0].place == item.place);
}

}  // namespace atelier::samples
