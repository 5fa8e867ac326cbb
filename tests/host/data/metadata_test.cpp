#include "host/data/metadata.h"

#include "support/files.h"

namespace atelier::data {
namespace {

using test::Folder;
using test::write_bytes;

struct Read {
  Metadata metadata;
  std::vector<std::string> problems;
};

Read read(const std::string& path) {
  Findings findings(100);
  Read result = {read_metadata(path, findings), {}};
  for (const Error& error : findings.list(path)) result.problems.emplace_back(error.what());
  return result;
}

Read read(const Folder& folder, const std::string& name, const std::string& text) {
  write_bytes(folder / name, text);
  return read(folder / name);
}

// The only problem.
std::string problem(const Folder& folder, const std::string& name, const std::string& text) {
  const Read result = read(folder, name, text);
  INFO(Catch::StringMaker<std::vector<std::string>>::convert(result.problems));
  REQUIRE(result.problems.size() == 1);
  CHECK(result.problems.front().find('\n') == std::string::npos);
  return result.problems.front();
}

TEST_CASE("A csv gives rows of texts with the lines on which they begin", "[data]") {
  const Folder folder;
  const Read result =
      read(folder, "a.csv", "image,prompt\nb.png,\"two\nlines, \"\"quoted\"\"\"\n\nc.png,一只猫\n");
  REQUIRE(result.problems.empty());
  CHECK(result.metadata.columns == std::vector<std::string>{"image", "prompt"});
  REQUIRE(result.metadata.records.size() == 2);
  CHECK(result.metadata.records[0].line == 2);
  CHECK(result.metadata.records[0].values["prompt"] == "two\nlines, \"quoted\"");
  CHECK(result.metadata.records[1].line == 5);
  CHECK(result.metadata.records[1].place == folder / "a.csv" + ":5");
  CHECK(result.metadata.records[1].values["prompt"] == "一只猫");
}

TEST_CASE("Byte order marks, CRLF and blanks around column names are accepted", "[data]") {
  const Folder folder;
  for (const auto& [name, text] :
       {std::pair{"a.csv", "\xEF\xBB\xBFimage, prompt \r\na.png,x\r\n"},
        {"a.jsonl", "\xEF\xBB\xBF{\"image\": \"a.png\", \"prompt\": \"x\"}\r\n\r\n"},
        {"a.json", "\xEF\xBB\xBF[{\"image\": \"a.png\",\r\n \"prompt\": \"x\"}]"},
        {"csv.txt", "image,prompt\na.png,x"},
        {"json.txt", " [{\"image\": \"a.png\", \"prompt\": \"x\"}]"},
        {"jsonl.txt", "{\"image\": \"a.png\", \"prompt\": \"x\"}"}}) {
    INFO(name);
    const Read result = read(folder, name, text);
    REQUIRE(result.problems.empty());
    CHECK(result.metadata.columns == std::vector<std::string>{"image", "prompt"});
    REQUIRE(result.metadata.records.size() == 1);
    CHECK(result.metadata.records[0].values["image"] == "a.png");
    CHECK(result.metadata.records[0].values["prompt"] == "x");
  }
}

TEST_CASE("An empty cell and null are absent, and an index without a name is left out", "[data]") {
  const Folder folder;
  const Read csv = read(folder, "a.csv", ",image,prompt\n0,a.png,\n1,,x\n2,b.png\n");
  REQUIRE(csv.problems.empty());
  CHECK(csv.metadata.columns == std::vector<std::string>{"image", "prompt"});
  CHECK(csv.metadata.records[0].values == nlohmann::json{{"image", "a.png"}});
  CHECK(csv.metadata.records[1].values == nlohmann::json{{"prompt", "x"}});
  CHECK(csv.metadata.records[2].values == nlohmann::json{{"image", "b.png"}});
  const Read jsonl = read(folder, "a.jsonl", "{\"image\": null, \"n\": 3, \"prompt\": \"\"}");
  CHECK(jsonl.metadata.records[0].values == nlohmann::json{{"n", 3}, {"prompt", ""}});
  CHECK(jsonl.metadata.columns == std::vector<std::string>{"n", "prompt"});
}

TEST_CASE("Other encodings are refused with the way to convert them", "[data]") {
  const Folder folder;
  using Catch::Contains;
  using namespace std::string_literals;
  CHECK_THAT(problem(folder, "a.csv", "\xFF\xFEi\0m\0"s), Contains("iconv -f UTF-16"));
  CHECK_THAT(problem(folder, "b.csv", "\xFE\xFF\0i\0m"s), Contains("is UTF-16"));
  CHECK_THAT(problem(folder, "c.jsonl", "{\0\"\0a\0"s), Contains("is UTF-16"));
  CHECK_THAT(problem(folder, "d.csv", "image,prompt\na.png,caf\xE9 noir\n"),
             Contains("d.csv:2: is not UTF-8") && Contains("iconv -f LATIN1"));
  CHECK_THAT(problem(folder, "e.json", "[{\"image\": \"\xB0\xA1.png\"}]"),
             Contains("iconv -f GB18030"));
  CHECK_THAT(problem(folder, "f.csv", "image,prompt\ra.png,x\r"), Contains("carriage return"));
  CHECK_THAT(problem(folder, "g.csv", "image,prompt\na.png,\0\n"s), Contains("NUL byte"));
}

TEST_CASE("Malformed tables are told with their lines", "[data]") {
  const Folder folder;
  using Catch::Contains;
  CHECK_THAT(problem(folder, "a.csv", "image,prompt\na.png,one, two\nb.png,x\n"),
             Contains("a.csv:2: 3 fields, the header names 2") && Contains("double quotes"));
  CHECK(read(folder / "a.csv").metadata.records.size() == 1);
  CHECK_THAT(problem(folder, "b.csv", "image,prompt\na.png,\"x\nb.png,y\n"),
             Contains("b.csv:2: a quote that opens here is not closed"));
  CHECK_THAT(problem(folder, "c.csv", "image;prompt\na.png;x\n"), Contains("semicolons"));
  CHECK_THAT(problem(folder, "d.tsv", "image\tprompt\na.png\tx\n"), Contains("tabs"));
  CHECK_THAT(problem(folder, "e.csv", "image,image\na.png,b.png\n"), Contains("given twice"));
  CHECK_THAT(problem(folder, "f.csv", "image,prompt\n"), Contains("holds no rows"));
  CHECK_THAT(problem(folder, "g.csv", ""), Contains("holds no rows"));
}

TEST_CASE("Malformed JSON is told with its lines, and the other rows are read", "[data]") {
  const Folder folder;
  using Catch::Contains;
  const Read lines = read(folder, "a.jsonl",
                          "{\"image\": \"a.png\"}\n{\"image\": }\n[1]\n"
                          "{\"image\": \"b.png\", \"image\": \"c.png\"}\n{\"x\": NaN}\n7\n{}\n");
  REQUIRE(lines.problems.size() == 5);
  for (const char* place : {"a.jsonl:2: ", "a.jsonl:3: is a list",
                            "a.jsonl:4: ", "a.jsonl:5: ", "a.jsonl:6: is a number"}) {
    INFO(place);
    CHECK(std::any_of(lines.problems.begin(), lines.problems.end(), [&](const std::string& text) {
      return text.find(place) != std::string::npos;
    }));
  }
  CHECK(lines.metadata.records.size() == 2);
  CHECK(lines.metadata.records[1].line == 7);

  CHECK_THAT(problem(folder, "a.json", "{\"image\": \"a.png\"}"), Contains("a list of objects"));
  CHECK_THAT(problem(folder, "b.json", "{\"image\": \"a.png\"}\n{\"image\": \"b.png\"}\n"),
             Contains("b.json:2") && Contains(".jsonl"));
  CHECK_THAT(problem(folder, "c.json", "[{\"image\": \"a.png\"}, 3]"),
             Contains("c.json:row 2: is a number"));
  CHECK_THAT(problem(folder, "d.json", "[{\"image\": \"a.png\"},]"), Contains("d.json:1"));
  CHECK_THAT(problem(folder, "e.json", "[]"), Contains("holds no rows"));
}

TEST_CASE("A file that cannot be read is an error", "[data]") {
  const Folder folder;
  Findings findings(100);
  test::expect_error(ErrorCode::kNotFound, {"none.csv"},
                     [&] { read_metadata(folder / "none.csv", findings); });
  test::expect_error(ErrorCode::kInvalidArgument, {"no regular file"},
                     [&] { read_metadata(folder.path(), findings); });
}

TEST_CASE("Images with captions beside them are rows in the order of their paths", "[data]") {
  const Folder folder;
  for (const char* name : {"b.png", "a.JPG", "sub/c.webp", "b-masklabel.png", ".hidden.png",
                           ".git/x.png", "note.md", "out/.run", "out/samples/step-00000001_0.png"})
    write_bytes(folder / name, "x");
  write_bytes(folder / "a.txt", "\xEF\xBB\xBF  a dog\nin two lines\r\n");
  write_bytes(folder / "b.txt", "\n");
  write_bytes(folder / "sub/c.txt", "一只猫");
  for (const std::string& path : {folder.path(), folder.path() + "/"}) {
    Findings findings(100);
    const Metadata metadata = read_caption_folder(path, ".txt", /*with_clips=*/false, findings);
    CHECK(findings.count() == 0);
    CHECK(metadata.columns == std::vector<std::string>{"image", "prompt", "mask"});
    REQUIRE(metadata.records.size() == 3);
    CHECK(metadata.records[0].values ==
          nlohmann::json{{"image", "a.JPG"}, {"prompt", "a dog\nin two lines"}});
    CHECK(metadata.records[1].values ==
          nlohmann::json{{"image", "b.png"}, {"prompt", ""}, {"mask", "b-masklabel.png"}});
    CHECK(metadata.records[2].values ==
          nlohmann::json{{"image", "sub/c.webp"}, {"prompt", "一只猫"}});
    CHECK(metadata.records[2].place == folder / "sub/c.webp");
  }
}

TEST_CASE("Captions that are missing or of another encoding are problems", "[data]") {
  const Folder folder;
  for (const char* name : {"a.png", "b.png", "c.png"}) write_bytes(folder / name, "x");
  write_bytes(folder / "b.txt", "caf\xE9 noir");
  write_bytes(folder / "c.caption", "x");
  write_bytes(folder / "metadata.csv", "image,prompt\n");
  Findings findings(100);
  const Metadata metadata =
      read_caption_folder(folder.path(), ".txt", /*with_clips=*/false, findings);
  CHECK(metadata.records.size() == 3);  // whose images are checked all the same
  const std::vector<Error> problems = findings.list("x");
  REQUIRE(problems.size() == 3);
  CHECK_THAT(problems[0].what(), Catch::Contains("a.png [prompt]: no caption in") &&
                                     Catch::Contains("--dataset_metadata_path"));
  CHECK_THAT(problems[1].what(),
             Catch::Contains("b.txt:1: is not UTF-8") && Catch::Contains("LATIN1"));
  Findings others(100);
  const Metadata captioned =
      read_caption_folder(folder.path(), ".caption", /*with_clips=*/false, others);
  CHECK(others.count() == 2);
  CHECK(captioned.records.back().values.at("prompt") == "x");
  const Folder empty;
  Findings none(100);
  read_caption_folder(empty.path(), ".txt", /*with_clips=*/false, none);
  CHECK_THAT(none.list("x").at(0).what(), Catch::Contains("no images below it"));
  test::expect_error(ErrorCode::kNotFound, {"none"}, [&] {
    read_caption_folder(folder / "none", ".txt", /*with_clips=*/false, none);
  });
}

TEST_CASE("A row of more text than a row can have is told with its column", "[data]") {
  const Folder folder;
  const std::string large(kMaxRowBytes - 16, 'x'), line = "{\"image\": \"a\", \"prompt\": \"";
  for (const auto& [name, text] :
       {std::pair<std::string, std::string>{"a.csv",
                                            "image,prompt\na,b\na," + large + "yyyyyyyy\n"},
        {"a.jsonl", line + "b\"}\n" + line + large + "yyyyyyyy\"}"},
        {"a.json", "[" + line + "b\"},\n" + line + large + "yyyyyyyy\"}]"}}) {
    INFO(name);
    const std::string message = problem(folder, name, text);
    CHECK_THAT(message, Catch::Contains("[prompt]: 1.00 MiB of text, a row has at most 1.00 MiB"));
    CHECK_THAT(message, Catch::Contains(name == "a.json" ? "a.json:row 2" : name + ":"));
    CHECK(message.size() < 300);
    std::string fits = text;
    fits.erase(fits.rfind("yyyyyyyy"), 8);
    CHECK(read(folder, name, fits).problems.empty());
  }
  // Texts in lists count, too, and many that are small.
  const std::string hundred(100'000, 'x');
  std::string row = "{\"list\": [\"" + hundred + "\"";
  for (int i = 0; i < 11; ++i) row += ", \"" + hundred + "\"";
  CHECK_THAT(problem(folder, "b.jsonl", row + "]}"), Catch::Contains("[list]: 1.14 MiB"));
}

TEST_CASE("More columns than a dataset can have end the reading", "[data]") {
  const Folder folder;
  std::string header = "image", lines;
  for (int i = 0; i < 100'000; ++i) {
    header += ",c" + std::to_string(i);
    lines += "{\"c" + std::to_string(i) + "\": 1}\n";
  }
  CHECK_THAT(problem(folder, "a.csv", header + "\na.png\n"),
             Catch::Contains("a.csv:1: more than 1000 columns"));
  CHECK_THAT(problem(folder, "a.jsonl", lines),
             Catch::Contains("a.jsonl:1001: more than 1000 columns"));
  CHECK(read(folder, "a.csv", header + "\na.png\n").metadata.records.empty());
}

TEST_CASE("Findings beyond the limit are counted by kind", "[data]") {
  Findings findings(2);
  findings.add("missing files", "a: one");
  findings.add("damaged images", "b: two");
  CHECK(findings.list("m.csv").size() == 2);
  findings.add("missing files", "c: three");
  findings.add("damaged images", "d: four");
  findings.add("missing files", "e: five");
  const std::vector<Error> list = findings.list("m.csv");
  REQUIRE(list.size() == 3);
  CHECK(list[2].message() == "m.csv: 3 more (damaged images: 1, missing files: 2)");
  CHECK(findings.count() == 5);
}

TEST_CASE("Findings are told in the order of their rows", "[data]") {
  Findings findings(2);
  findings.set_row(7);
  findings.add("missing files", "a: one");
  findings.set_row(2);
  findings.add("missing files", "b: two");
  findings.add("missing files", "c: three");
  const std::vector<Error> list = findings.list("m.csv");
  REQUIRE(list.size() == 3);
  CHECK(list[0].message() == "b: two");
  CHECK(list[1].message() == "c: three");
  CHECK(list[2].message() == "m.csv: 1 more (missing files: 1)");
}

}  // namespace
}  // namespace atelier::data
