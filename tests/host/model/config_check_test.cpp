#include "host/model/config_check.h"

#include "host/files/config_json.h"
#include "support/files.h"
#include "support/toy_family.h"

using namespace atelier;
using namespace atelier::files;
using namespace atelier::model;
using test::expect_error;

namespace {

const TensorIndex::Tensors kVae = {{"scale.weight", {at::kFloat, {3, 3}}},
                                   {"scale.bias", {at::kFloat, {3}}}};

std::optional<Detection> detected(TensorIndex::Config config) {
  return detect_with_config(test::ToyFamily(), TensorIndex(kVae, std::move(config)), {});
}

}  // namespace

TEST_CASE("Every value of a config is seen, null and lists of texts too", "[config]") {
  const TensorIndex::Config config = parse_config(
      R"({"none": null, "types": ["a", "b"], "flags": [true, false], "mixed": [1, "a", null],
          "list": [1, 2.5], "empty": [], "big": 18446744073709551615, "o": {"p": {"q": -3}, "r": {}}})");
  const TensorIndex::Config expected = {{"none", nullptr},
                                        {"types", std::vector<std::string>{"a", "b"}},
                                        {"flags", std::vector<double>{1, 0}},
                                        {"mixed", "[1,\"a\",null]"},
                                        {"list", std::vector<double>{1, 2.5}},
                                        {"empty", std::vector<double>()},
                                        {"big", 18446744073709551615.0},
                                        {"o.p.q", int64_t{-3}}};
  const bool is_same = config == expected;
  CHECK(is_same);
  expect_error(ErrorCode::kInvalidArgument, {"\"a.b\" is there twice", "[CONFIG_FORM]"},
               [] { parse_config(R"({"a.b": 1, "a": {"b": 2}})"); });
  expect_error(ErrorCode::kInvalidArgument, {"[CONFIG_FORM]"}, [] { parse_config("[1]"); });
}

TEST_CASE("Values read as the types that hold them, and as no other", "[config]") {
  const TensorIndex index({}, {{"one", int64_t{1}},
                               {"whole", 4096.0},
                               {"half", 0.5},
                               {"empty", std::vector<double>()},
                               {"none", nullptr}});
  CHECK(index.config_real("one") == 1.0);
  CHECK(index.config_integer("whole") == 4096);
  CHECK(index.config_texts("empty") == std::vector<std::string>());
  CHECK(index.config_integers("empty") == std::vector<int64_t>());
  CHECK(!index.config_flag("absent"));
  CHECK(index.has_null("none"));
  CHECK(!index.has_null("absent"));
  const auto refused = [](const char* what, auto read) {
    expect_error(ErrorCode::kInvalidArgument, {what, "expected", "[CONFIG_FIELD]"}, read);
  };
  refused("half is 0.5, an integer", [&] { index.config_integer("half"); });
  refused("none is null, a number", [&] { index.config_real("none"); });
  refused("one is 1, true or false", [&] { index.config_flag("one"); });
  refused("one is 1, a list of texts", [&] { index.config_texts("one"); });
}

TEST_CASE("Values are told short and safe", "[config]") {
  CHECK(to_text(std::vector<double>{1, 2, 3, 4, 5}) == "[1.0, 2.0, 3.0, 4.0, …]");
  CHECK(to_text("a\x1b") == R"("a\x1b")");
  CHECK(to_text(nullptr) == "null");
  CHECK(is_same(int64_t{2}, 2.0));
  CHECK(is_same(std::vector<double>(), std::vector<std::string>()));
  CHECK(!is_same(true, int64_t{1}));
}

TEST_CASE("A config is held against the family's table, and all that is wrong is told",
          "[config]") {
  CHECK(detected({})->integer("cells") == test::kToyCells);
  CHECK(detected({{"cells", int64_t{7}}, {"note", "n"}, {"_class_name", nullptr}})
            ->integer("cells") == 7);
  expect_error(ErrorCode::kUnsupported,
               {"\"cell\" is not known; ", "\"size\" is not known; ", "take it out"}, [] {
                 detected({{"cell", int64_t{7}}, {"size", nullptr}, {"note", 1.0}});
               });
}

TEST_CASE("A row names one field or a whole object", "[config]") {
  ConfigFields part, fields;
  part.told("layers", {int64_t{2}}).read({.name = "window", .only_with = "is_windowed"});
  fields.ignored({"vision.*"})
      .fixed("vision.on", {false})
      .add(part, "text.")
      .add(part, "", "text.");
  CHECK(fields.find("vision.depth")->use == ConfigField::Use::kIgnored);
  CHECK(fields.find("vision.on")->use == ConfigField::Use::kFixed);
  CHECK(fields.find("text.window")->only_with == "text.is_windowed");
  CHECK(fields.find("layers")->unless == "text.");
  CHECK(fields.find("vision") == nullptr);
}

TEST_CASE("What a model's folder says is held against the table of what it is about", "[config]") {
  const test::Folder folder;
  const std::string file = folder / "m/transformer/model.safetensors";
  test::write_raw_safetensors(file, R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
                              "1234");
  const Checkpoint dit = Checkpoint::open(file, {file});
  const std::string model = model_folder_of(dit);
  CHECK(model == folder / "m");
  CHECK(folder_files(model).empty());
  CHECK_FALSE(has_folder_files(model));
  test::write_bytes(folder / "m/model_index.json",
                    R"({"vae": ["diffusers", "Vae"], "extra": [null, null], "ratio": 0.5})");
  test::write_bytes(folder / "m/scheduler/scheduler_config.json", R"({"order": 2, "shift": 8.0})");
  const std::vector<FolderFile> files = folder_files(model);
  CHECK(has_folder_files(model));
  REQUIRE(files.size() == 2);
  CHECK(files[0].path == folder / "m/scheduler/scheduler_config.json");
  const TensorIndex::Config scheduler = {{"order", int64_t{2}}, {"shift", 8.0}};
  const TensorIndex::Config index = {{"ratio", 0.5}};
  const bool are_same = files[0].fields == scheduler && files[1].fields == index;
  CHECK(are_same);
  ConfigFields fields;
  fields.ignored({"scheduler.shift"}).fixed("scheduler.order", {int64_t{2}});
  CHECK(has_rows_for(fields, files[0]));
  CHECK_FALSE(has_rows_for(fields, files[1]));
  CHECK_NOTHROW(check_folder_file(fields, files[0]));
  ConfigFields others;
  others.fixed("scheduler.order", {int64_t{3}});
  expect_error(ErrorCode::kUnsupported,
               {"scheduler_config.json: ", "\"order\" is 2, and only 3 is computed",
                "\"shift\" is not known", "--flow_shift"},
               [&] { check_folder_file(others, files[0]); });
  test::write_bytes(folder / "m/model_index.json", "[");
  expect_error(ErrorCode::kDataLoss, {"model_index.json"}, [&] { folder_files(model); });
}
