#include "host/order/preview_prompts.h"

#include "atelier/error.h"

#include "support/files.h"

namespace atelier::order {
namespace {

constexpr InputSpec kInputs[] = {
    {.name = "prompt", .kind = InputKind::kText, .required = true},
    {.name = "image", .kind = InputKind::kImage, .use = InputUse::kTrain},
    {.name = "begin",
     .kind = InputKind::kImage,
     .use = InputUse::kGenerate,
     .role = InputRole::kStart},
};
constexpr InputSpec kVideoInputs[] = {
    {.name = "prompt", .kind = InputKind::kText, .required = true},
};

struct Parsed {
  std::vector<order::Job> jobs;
  std::string message;  // what is wrong, all of it; empty when nothing is
};

std::string message_of(const report::Problems& problems) {
  try {
    problems.throw_if_any();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

Parsed parse(const std::string& text, std::span<const InputSpec> inputs = kInputs,
             const order::Settings& base = {}) {
  report::Problems problems;
  Parsed parsed;
  parsed.jobs = parse_sample_prompts(text, "prompts.txt", base, inputs, problems);
  parsed.message = message_of(problems);
  return parsed;
}

Parsed read(const std::string& path) {
  report::Problems problems;
  Parsed parsed;
  parsed.jobs = read_sample_prompts(path, {}, kInputs, problems);
  parsed.message = message_of(problems);
  return parsed;
}

TEST_CASE("Each line is a prompt with its switches", "[sample_prompts]") {
  const auto [jobs, message] = parse(
      "# foxes\n"
      "a red fox, 雪 --n blurry, low quality --w 1024 --h 768 --d 7 --s 30 --l 4.5 --fs 3 "
      "--i my fox.png\n"
      "\n"
      "   \t\n"
      "well-known fox - no switch\r\n"
      "  # not this one\n"
      "  last --H 512  --W\t256  ");
  REQUIRE(message.empty());
  REQUIRE(jobs.size() == 3);
  const order::Settings& first = jobs[0].settings;
  REQUIRE(jobs[0].place.file == "prompts.txt");
  REQUIRE(jobs[0].place.line == 2);
  REQUIRE(first.prompt == "a red fox, 雪");
  REQUIRE(first.negative_prompt == "blurry, low quality");
  REQUIRE(first.width == 1024);
  REQUIRE(first.height == 768);
  REQUIRE(first.seed == 7);
  REQUIRE(first.num_inference_steps == 30);
  REQUIRE(first.cfg_scale == 4.5);
  REQUIRE(first.flow_shift == 3.0);
  REQUIRE(first.family_inputs.at("begin") == "my fox.png");
  REQUIRE(first.output == "out_2.png");
  REQUIRE(jobs[1].place.line == 5);
  REQUIRE(jobs[1].settings.prompt == "well-known fox - no switch");
  REQUIRE(!jobs[1].settings.cfg_scale);
  REQUIRE(jobs[2].settings.prompt == "last");
  REQUIRE(jobs[2].settings.height == 512);
  REQUIRE(jobs[2].settings.width == 256);
}

TEST_CASE("Lines of JSON belong into a .jsonl file, and braces into a prompt", "[sample_prompts]") {
  const std::string lines =
      "# drawn by generate\n"
      R"({"prompt": "a cat", "width": 64})"
      "\n"
      R"({"prompt": "a dog"})"
      "\n";
  CHECK(parse(lines).message ==
        "prompts.txt:2: is a line of JSON, and this file holds one prompt a line; call the file "
        ".jsonl");
  const test::Folder folder;
  test::write_bytes(folder / "prompts.jsonl", R"({"prompt": "a cat", "width": 64})");
  CHECK(read(folder / "prompts.jsonl").message.empty());
  const auto [jobs, message] = parse("{a|b} cat\n{\"prompt\": \"a cat\"} --w 64\n[\"a\"]");
  CHECK(message.empty());
  CHECK(jobs.size() == 3);
}

TEST_CASE("Switches say where guidance ends and how long it makes things", "[sample_prompts]") {
  order::Settings base;
  base.cfg_renorm = "row";
  const auto [jobs, message] =
      parse("a --ctr 0.25 --rcfg 0.9\nb --rcfg 0\nc --rcfg much\nd", kInputs, base);
  REQUIRE_THAT(message, Catch::Contains("prompts.txt:3: \"--rcfg\": \"much\" is no number"));
  REQUIRE(jobs[0].settings.cfg_trunc == 0.25);
  REQUIRE(jobs[0].settings.cfg_renorm == "clamp");
  REQUIRE(jobs[0].settings.cfg_renorm_ratio == 0.9);
  REQUIRE(jobs[1].settings.cfg_renorm == "none");
  REQUIRE(!jobs[1].settings.cfg_renorm_ratio);
  REQUIRE(jobs[3].settings.cfg_renorm == "row");
  REQUIRE_THAT(parse("a --cfg_trunc 0.5").message, Catch::Contains("did you mean \"--ctr\"?"));
}

TEST_CASE("The input image is the family's own where it takes one beside a start",
          "[sample_prompts]") {
  constexpr InputSpec kBoth[] = {
      {.name = "prompt", .kind = InputKind::kText, .required = true},
      {.name = "input_image", .kind = InputKind::kImage},
      {.name = "begin",
       .kind = InputKind::kVideo,
       .use = InputUse::kGenerate,
       .role = InputRole::kStart},
  };
  const auto [jobs, message] = parse("a fox --i in.png", kBoth);
  REQUIRE(message.empty());
  CHECK(jobs.at(0).settings.family_inputs == nlohmann::json::object({{"input_image", "in.png"}}));
}

TEST_CASE("Pictures to go by are the family's list of them, in their order", "[sample_prompts]") {
  constexpr InputSpec kEdits[] = {
      {.name = "prompt", .kind = InputKind::kText, .required = true},
      {.name = "first", .kind = InputKind::kImage},
      {.name = "learnt", .kind = InputKind::kImage, .use = InputUse::kTrain, .max_count = 2},
      {.name = "pictures", .kind = InputKind::kImage, .max_count = 2},
  };
  const auto [jobs, message] = parse("a fox --ci a.png --w 64 --CI my b.png\nb --ci c.png", kEdits);
  REQUIRE(message.empty());
  CHECK(jobs.at(0).settings.family_inputs ==
        nlohmann::json::object({{"pictures", {"a.png", "my b.png"}}}));
  CHECK(jobs.at(1).settings.family_inputs == nlohmann::json::object({{"pictures", {"c.png"}}}));
  CHECK_THAT(parse("a --ci a.png --ci b.png --ci c.png", kEdits).message,
             Catch::Contains("prompts.txt:1: pictures: 3 files are given, at most 2 are expected"));
  CHECK_THAT(parse("a --ci a.png").message,
             Catch::Contains("prompts.txt:1: \"--ci\": this family takes no pictures to go by"));
  CHECK_THAT(parse("a --edit_image a.png", kEdits).message,
             Catch::Contains("did you mean \"--ci\"?"));
}

TEST_CASE("What a line leaves out is as in the base", "[sample_prompts]") {
  order::Settings base;
  base.seed = 42;
  base.height = 640;
  base.negative_prompt = "blurry";
  base.output = "samples/step.png";
  const auto [jobs, message] = parse("a --d 7\nb --n \n", kInputs, base);
  REQUIRE(message.empty());
  REQUIRE(jobs[0].settings.seed == 7);
  REQUIRE(jobs[0].settings.negative_prompt == "blurry");
  REQUIRE(jobs[1].settings.seed == 42);
  REQUIRE(jobs[1].settings.height == 640);
  REQUIRE(jobs[1].settings.negative_prompt.empty());
  REQUIRE(jobs[1].settings.output == "samples/step_2.png");
}

TEST_CASE("A mark of byte order is no part of the first prompt", "[sample_prompts]") {
  REQUIRE(parse("\xEF\xBB\xBF# comment\na fox").jobs.at(0).settings.prompt == "a fox");
}

TEST_CASE("Mistakes in prompts are told with their lines, all of them", "[sample_prompts]") {
  const auto [jobs, message] = parse(
      "a --w wide\n"
      "b --h 12.5 --l much --d\n"
      "c -- d\n"
      "e --x 3\n"
      "f --l nan --fs inf\n");
  REQUIRE(jobs.size() == 5);
  using Catch::Contains;
  REQUIRE_THAT(message, Contains("prompts.txt:1: \"--w\": \"wide\" is no whole number"));
  REQUIRE_THAT(message, Contains("prompts.txt:2: \"--h\": \"12.5\" is no whole number"));
  REQUIRE_THAT(message, Contains("prompts.txt:2: \"--l\": \"much\" is no number"));
  REQUIRE_THAT(message, Contains("prompts.txt:2: \"--d\": \"\" is no whole number"));
  REQUIRE_THAT(message, Contains("prompts.txt:5: \"--l\": \"nan\" is no number"));
  REQUIRE_THAT(message, Contains("prompts.txt:5: \"--fs\": \"inf\" is no number"));
  REQUIRE_THAT(message, Contains("prompts.txt:3: \"--\": is not known"));
  REQUIRE_THAT(message, Contains("prompts.txt:4: \"--x\": is not known; the switches are --w"));
}

TEST_CASE("An unknown switch is answered with the nearest", "[sample_prompts]") {
  const std::pair<const char*, const char*> cases[] = {
      {"width 5", "--w"}, {"Hight 5", "--h"},      {"seed 1", "--d"},        {"steps 9", "--s"},
      {"cfg 4", "--l"},   {"negativ ugly", "--n"}, {"flow-shift 3", "--fs"}, {"image a.png", "--i"},
  };
  for (const auto& [given, wanted] : cases) {
    CAPTURE(given);
    REQUIRE_THAT(parse("a --" + std::string(given)).message,
                 Catch::Contains("did you mean \"" + std::string(wanted) + "\"?"));
  }
}

TEST_CASE("What has no meaning here is refused with what to use", "[sample_prompts]") {
  REQUIRE_THAT(parse("a --g 3.5").message,
               Catch::Contains("prompts.txt:1: \"--g\": embedded guidance is not supported") &&
                   Catch::Contains("--l sets the scale"));
  REQUIRE_THAT(parse("a --i b.png", kVideoInputs).message,
               Catch::Contains("prompts.txt:1: input_image: this family does not start from an "
                               "image"));
  const auto [jobs, message] = parse("a --f 81");
  REQUIRE(message.empty());
  REQUIRE(jobs[0].settings.num_frames == 81);
}

TEST_CASE("A line of switches alone has no prompt", "[sample_prompts]") {
  const auto [jobs, message] = parse("--w 512 --h 256");
  REQUIRE(message.empty());
  REQUIRE_FALSE(jobs.at(0).settings.prompt);
  REQUIRE(jobs[0].settings.width == 512);
  REQUIRE(jobs[0].settings.height == 256);
}

TEST_CASE("A file without prompts is a problem", "[sample_prompts]") {
  REQUIRE_THAT(parse("").message, Catch::Contains("prompts.txt: no prompts"));
  REQUIRE_THAT(parse("# one\n\n# two").message, Catch::Contains("prompts.txt: no prompts"));
}

TEST_CASE("Files are read by what their names end in", "[sample_prompts]") {
  const test::Folder folder;
  const std::string text = folder / "prompts.txt", objects = folder / "prompts.jsonl";
  test::write_bytes(text, "a fox --w 64");
  const auto lines = read(text);
  REQUIRE(lines.message.empty());
  REQUIRE(lines.jobs.at(0).settings.width == 64);
  REQUIRE(lines.jobs[0].place.file == text);

  test::write_bytes(objects, "{\"prompt\": \"a --w 64\", \"height\": 32}\n");
  const auto read_objects = read(objects);
  REQUIRE(read_objects.message.empty());
  REQUIRE(read_objects.jobs.at(0).settings.prompt == "a --w 64");
  REQUIRE(read_objects.jobs[0].settings.height == 32);

  test::write_bytes(objects, "{\"prompt\": \"a\", \"hight\": 32}\n");
  REQUIRE_THAT(read(objects).message,
               Catch::Contains(":1: \"hight\" is not known") && Catch::Contains("\"height\""));
  REQUIRE_THAT(read("prompts.toml").message, Catch::Contains(".jsonl file"));
  REQUIRE_THAT(read("no/such/file.txt").message,
               Catch::Contains("--sample_prompts: no/such/file.txt: No such file"));
  REQUIRE_THAT(read(folder.path()).message,
               Catch::Contains("--sample_prompts: ") && Catch::Contains("s a directory"));
}

}  // namespace
}  // namespace atelier::order
