#include "host/lora/selection.h"

#include "tests/support/files.h"

namespace atelier::lora {

using nlohmann::json;
using test::expect_error;
using test::Folder;

TEST_CASE("A LoRA on the command line is a path and a strength", "[lora]") {
  const auto check = [](const std::string& text, const std::string& path, const std::string& name,
                        double strength) {
    const LoraRef use = parse_use(text);
    CHECK(use.path == path);
    CHECK(use.name == name);
    CHECK(use.strength == strength);
  };
  check("out/step-500.safetensors:0.8", "out/step-500.safetensors", "step-500", 0.8);
  check("style.safetensors", "style.safetensors", "style", 1.0);
  check("style.safetensors:-1", "style.safetensors", "style", -1.0);
  check("a:b.safetensors", "a:b.safetensors", "a:b", 1.0);
  check("out/folder/", "out/folder/", "folder", 1.0);
  expect_error(ErrorCode::kInvalidArgument, {"there is no path"}, [] { parse_use(":0.5"); });
  expect_error(ErrorCode::kInvalidArgument, {"not finite"}, [] { parse_use("a:inf"); });
  const Folder folder;
  test::write_bytes(folder / "odd:2", "");
  check(folder / "odd:2", folder / "odd:2", "odd:2", 1.0);
}

TEST_CASE("A LoRA on the command line may name its component", "[lora]") {
  const LoraRef expected = {
      .name = "a", .path = "x/a.safetensors", .strength = 0.5, .component = "low"};
  CHECK(parse_use("x/a.safetensors:0.5@low") == expected);
  CHECK(parse_use("a@all").component == "all");
  CHECK(parse_use("a@all").strength == 1.0);
  CHECK(parse_use("me@home/a:0.5").path == "me@home/a");
  const Folder folder;
  test::write_bytes(folder / "style@2", "");
  CHECK(parse_use(folder / "style@2").component.empty());
  CHECK(parse_use((folder / "style@2") + "@low").component == "low");
  expect_error(ErrorCode::kInvalidArgument, {"there is no component"}, [] { parse_use("a:0.5@"); });
  const auto uses = parse_flags({"a@dit", "a:0.5@low"});
  REQUIRE(uses.size() == 2);
  CHECK(uses[1].name == "a_2");
  expect_error(ErrorCode::kInvalidArgument, {"given twice"}, [] {
    parse_flags({"a@dit", "a:0.5@dit"});
  });
}

TEST_CASE("A line of a prompts file names files of one folder", "[lora]") {
  const Folder folder;
  test::write_bytes(folder / "style.safetensors", "");
  test::write_bytes(folder / "oil/thick.safetensors", "");
  const auto uses =
      parse_uses(json::parse(R"([{"name": "style", "strength": 0.7, "component": "low"},
                                "oil/thick.safetensors"])"),
                 folder.path());
  REQUIRE(uses.size() == 2);
  CHECK(uses[0].name == "style");
  CHECK(uses[0].path == folder / "style.safetensors");
  CHECK(uses[0].strength == 0.7);
  CHECK(uses[0].component == "low");
  CHECK(uses[1].name == "oil/thick");
  CHECK(uses[1].path == folder / "oil/thick.safetensors");
  CHECK(uses[1].strength == 1.0);
  CHECK(parse_uses(json::array(), "").empty());
}

TEST_CASE("Names that lead out of the folder, or mean nothing, are refused", "[lora]") {
  const Folder folder;
  test::write_bytes(folder / "style.safetensors", "");
  test::write_bytes(folder / "inside/notes.txt", "");
  const std::string inside = folder / "inside";
  for (const std::string name : {"../style", "./style", "a/../../style", "/etc/passwd", "..", "",
                                 "a//b", "a\\..\\b", "style\n", "style/"}) {
    INFO(name);
    expect_error(ErrorCode::kInvalidArgument, {"is no name of a file in --lora_dir"},
                 [&] { find_in_folder(inside, name); });
  }
  expect_error(ErrorCode::kInvalidArgument, {"is no name"},
               [&] { find_in_folder(inside, folder / "style"); });
  expect_error(ErrorCode::kNotFound, {"\"stile\"", "did you mean \"style\"?"},
               [&] { find_in_folder(folder.path(), "stile"); });
  expect_error(ErrorCode::kNotFound, {"holds no .safetensors"},
               [&] { find_in_folder(inside, "notes.txt"); });
  expect_error(ErrorCode::kInvalidArgument, {"--lora_dir, which is not given"},
               [&] { find_in_folder("", "style"); });
  const std::map<std::string, std::string> forms = {
      {R"("style")", "is no list"},
      {R"([3])", "is no object"},
      {R"([{"strength": 1}])", "\"name\" is missing"},
      {R"([{"name": "style", "weight": 1}])", "\"weight\""},
      {R"([{"name": "style", "strength": "1"}])", "\"strength\""},
      {R"(["style", "style.safetensors"])", "given twice"},
  };
  for (const auto& [text, word] : forms) {
    INFO(text);
    expect_error(ErrorCode::kInvalidArgument, {word},
                 [&, list = json::parse(text)] { parse_uses(list, folder.path()); });
  }
}

}  // namespace atelier::lora
