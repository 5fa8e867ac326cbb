#include "host/order/jobs.h"

#include <filesystem>
#include <fstream>

#include "atelier/error.h"

#include "host/generate/job_runner.h"
#include "host/generate/request.h"
#include "host/generate/settings_checks.h"
#include "host/order/output_paths.h"
#include "support/catch.h"
#include "tests/host/generate/fake_family.h"
#include "tests/support/files.h"

namespace atelier::generate {
namespace {

using namespace order;

using test::Folder;

// What is wrong, all of it; empty when nothing is.
std::string message_of(const report::Problems& problems) {
  try {
    problems.throw_if_any();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

Request request_of(const Settings& settings, uint64_t seed = 0) {
  const FakeFamily family;
  return make_request(settings, read_inputs(settings, family), family, FakeModel().latent_spec(),
                      seed);
}

struct Parsed {
  std::vector<Job> jobs;
  std::string message;
};

Parsed parse(const std::string& text, const Settings& base = {}) {
  const FakeFamily family;
  report::Problems problems;
  Parsed parsed;
  parsed.jobs = parse_jobs(text, "jobs.jsonl", base, family.inputs(), problems);
  parsed.message = message_of(problems);
  return parsed;
}

std::string check(const Settings& settings, const Origin& place = {}) {
  const FakeFamily family;
  const FakeModel model;
  report::Problems problems;
  check_settings(settings, &family, place, problems);
  check_output(settings, place, problems);
  check_against_model(settings, family, model, "plain", place, problems);
  return message_of(problems);
}

Settings good_settings() {
  Settings settings;
  settings.prompt = "a cat";
  settings.num_frames = 1;
  settings.height = 64;
  settings.width = 96;
  settings.family_inputs["edit_strength"] = 0.5;
  return settings;
}

TEST_CASE("A family that starts from no image says so", "[generate]") {
  using Catch::Contains;
  REQUIRE_THAT(parse("{\"input_image\": \"in.png\"}").message,
               Contains("jobs.jsonl:1: input_image: this family does not start from an image; "
                        "leave it out"));
  Settings settings = good_settings();
  settings.denoising_strength = 0.5;
  REQUIRE_THAT(check(settings), Contains("--denoising_strength: there is no input image to start "
                                         "from; give one with --begin"));
}

TEST_CASE("An input of another variant is refused where it is given", "[generate]") {
  Settings settings = good_settings();
  settings.family_inputs["edit_image"] = "a.png";
  REQUIRE_THAT(check(settings), Catch::Contains("--edit_image: the variant \"plain\" does not take "
                                                "it; leave it out; it is for \"*edit*\""));
}

TEST_CASE("What a family refuses of inputs is told at the place of the inputs", "[jobs]") {
  const auto told = [](const std::string& message, const Origin& place) {
    const Error error = told_at({ErrorCode::kInvalidArgument, message, "help", "TAG"},
                                FakeFamily().inputs(), place);
    CHECK(error.hint() == "help");
    CHECK(error.tag() == "TAG");
    return error.message();
  };
  const Origin line = {"jobs.jsonl", 7}, request = {.is_request = true};
  CHECK(told("begin: too dark", line) == "jobs.jsonl:7: begin: too dark");
  CHECK(told("begin: too dark", {}) == "--begin: too dark");
  CHECK(told("begin: too dark", request) == "begin: too dark");
  CHECK(told("--edit_strength is 7", line) == "jobs.jsonl:7: edit_strength is 7");
  CHECK(told("--edit_strength is 7", {}) == "--edit_strength is 7");
  CHECK(told("num_frames 1: too few", {}) == "--num_frames 1: too few");
  CHECK(told("a clip of 8x8 pixels", line) == "jobs.jsonl:7: a clip of 8x8 pixels");
  CHECK(told("a clip of 8x8 pixels", {}) == "a clip of 8x8 pixels");
}

TEST_CASE("An empty path takes back what the command line says", "[jobs]") {
  Settings base;
  base.family_inputs["begin"] = "base.png";
  const auto [jobs, message] = parse(
      "{\"prompt\": \"a\"}\n{\"prompt\": \"b\", \"begin\": \"\"}\n"
      "{\"prompt\": \"c\", \"begin\": \"own.png\"}\n",
      base);
  REQUIRE(message.empty());
  REQUIRE(jobs[0].settings.family_inputs.at("begin") == "base.png");
  REQUIRE(!jobs[1].settings.family_inputs.contains("begin"));
  REQUIRE(jobs[2].settings.family_inputs.at("begin") == "own.png");
}

TEST_CASE("Lines override what the command line says", "[jobs]") {
  Settings base;
  base.height = 512;
  base.width = 1024;
  base.negative_prompt = "blurry";
  const auto [jobs, message] = parse(
      "{\"prompt\": \"一只猫\", \"width\": 256, \"seed\": 7, \"cfg_scale\": 2, \"sigmas\": [1, "
      "0.5]}\n"
      "\n"
      "{\"prompt\": \"b\", \"negative_prompt\": \"\", \"num_images\": 3, \"output\": \"b.png\", "
      "\"num_inference_steps\": 9, \"begin\": \"in.png\", \"denoising_strength\": 0.4, "
      "\"edit_strength\": 2}\r\n"
      "{\"prompt\": \"c\", \"sigmas\": \"1,0.75\", \"flow_shift\": 3.5, \"schedule\": \"fast\"}",
      base);
  REQUIRE(message.empty());
  REQUIRE(jobs.size() == 3);
  REQUIRE(jobs[0].settings.prompt == "一只猫");
  REQUIRE(jobs[0].settings.height == 512);
  REQUIRE(jobs[0].settings.width == 256);
  REQUIRE(jobs[0].settings.seed == 7);
  REQUIRE(jobs[0].settings.cfg_scale == 2.0);
  REQUIRE(jobs[0].settings.sigmas == std::vector<double>{1, 0.5});
  REQUIRE(jobs[0].settings.negative_prompt == "blurry");
  REQUIRE(jobs[0].settings.output == "out_1.png");
  REQUIRE(jobs[1].place.line == 3);
  REQUIRE(jobs[1].settings.negative_prompt.empty());
  REQUIRE(jobs[1].settings.output == "b.png");
  REQUIRE(jobs[1].settings.num_inference_steps == 9);
  REQUIRE(jobs[1].settings.denoising_strength == 0.4);
  REQUIRE(jobs[1].settings.family_inputs.at("edit_strength") == 2);
  REQUIRE(jobs[2].settings.sigmas == std::vector<double>{1, 0.75});
  REQUIRE(jobs[2].settings.flow_shift == 3.5);
  REQUIRE(jobs[2].settings.output == "out_4.png");
}

TEST_CASE("Every wrong line is named, with the nearest name", "[jobs]") {
  const std::string message = parse(
                                  "{\"prompt\": \"a\", \"steps\": 3}\n"
                                  "{\"prompt\": 5}\n"
                                  "{\"prompt\": \"a\", \"hieght\": 64, \"width\": 1.5}\n"
                                  "{\"prompt\": \"a\"\n"
                                  "[1]\n"
                                  "{\"prompt\": \"a\", \"prompt\": \"b\"}\n"
                                  "{\"seed\": -2, \"sigmas\": \"1,x\"}\n"
                                  "{\"mask\": \"train only\"}\n")
                                  .message;
  using Catch::Contains;
  REQUIRE_THAT(message, Contains("10 mistakes"));
  REQUIRE_THAT(
      message,
      Contains("jobs.jsonl:1: \"steps\" is not known; did you mean \"num_inference_steps\"?"));
  REQUIRE_THAT(message, Contains("jobs.jsonl:2: prompt: 5 is no text"));
  REQUIRE_THAT(message,
               Contains("jobs.jsonl:3: \"hieght\" is not known; did you mean \"height\"?"));
  REQUIRE_THAT(message, Contains("jobs.jsonl:3: width: 1.5 is no whole number"));
  REQUIRE_THAT(message, Contains("jobs.jsonl:4: "));
  REQUIRE_THAT(message, Contains("jobs.jsonl:5: a JSON object is expected"));
  REQUIRE_THAT(message, Contains("jobs.jsonl:6: "));
  REQUIRE_THAT(message, Contains("jobs.jsonl:7: seed: "));
  REQUIRE_THAT(message, Contains("jobs.jsonl:7: sigmas: "));
  REQUIRE_THAT(message, Contains("jobs.jsonl:8: \"mask\" is not known"));
}

TEST_CASE("A wrong line is no job, and a wrong prompt is not missing as well", "[jobs]") {
  using Catch::Contains;
  const Parsed list = parse("{\"prompt\": \"a\"}\n[1]\n");
  CHECK(list.jobs.size() == 1);
  CHECK_THAT(list.message, Contains("jobs.jsonl:2: a JSON object is expected"));
  const Parsed empty = parse("{\"prompt\": null}");
  CHECK_THAT(empty.message, Contains("jobs.jsonl:1: prompt: null is no text"));
  CHECK(empty.jobs.at(0).settings.prompt == "");
  CHECK_THAT(parse("{\"prompt\": \"a\", \"num_frames\": \"5\"}").message,
             Contains("jobs.jsonl:1: num_frames: \"5\" is no whole number"));
}

TEST_CASE("Two jobs cannot write one file, and no jobs are a mistake", "[jobs]") {
  REQUIRE_THAT(
      parse("{\"output\": \"a_1.png\"}\n{\"output\": \"a.png\", \"num_images\": 2}\n").message,
      Catch::Contains("jobs.jsonl:2: output: line 1 writes \"a_1.png\" too"));
  REQUIRE_THAT(parse("\n \n").message, Catch::Contains("jobs.jsonl: no jobs"));
}

TEST_CASE("A file of plain prompts is one mistake, with an example", "[jobs]") {
  std::string text;
  for (int i = 0; i < 5000; ++i) text += "a \"red\" circle\n\n";
  const auto [jobs, message] = parse("\n" + text);
  REQUIRE(jobs.empty());
  REQUIRE_THAT(message, Catch::Contains("jobs.jsonl: holds no JSON lines, it begins with "
                                        R"("a \"red\" circle")"));
  REQUIRE_THAT(message, Catch::Contains(R"({"prompt":"a \"red\" circle"})"));
  REQUIRE_THAT(message, !Catch::Contains("mistakes"));
  // A line that is no JSON among others is told once, and no job.
  const auto [some, told] = parse("{\"prompt\": \"a\"}\na red circle\n");
  REQUIRE(some.size() == 1);
  REQUIRE_THAT(told, Catch::StartsWith("jobs.jsonl:2: is not valid JSON"));
}

TEST_CASE("The mark that editors put before a text is no part of the first line", "[jobs]") {
  const auto [jobs, message] = parse("\xEF\xBB\xBF{\"prompt\": \"a\"}\n{\"prompt\": \"b\"}\n");
  CHECK(message.empty());
  REQUIRE(jobs.size() == 2);
  CHECK(jobs.front().settings.prompt == "a");
}

TEST_CASE("A JSON list of jobs is one mistake, and the form of a file is told", "[jobs]") {
  for (const char* text : {R"([{"prompt": "a"}, {"prompt": "b"}])",
                           "[\n  {\"prompt\": \"a\"},\n  {\"prompt\": \"b\"}\n]\n"}) {
    const auto [jobs, message] = parse(text);
    CHECK(jobs.empty());
    CHECK_THAT(message, Catch::StartsWith("jobs.jsonl: begins as a JSON list; write its objects "
                                          "one a line"));
  }
}

TEST_CASE("Every seed of 64 bits is taken", "[jobs]") {
  const auto [jobs, message] = parse(
      "{\"prompt\": \"a\", \"seed\": 18446744073709551615, \"output\": \"a.png\"}\n"
      "{\"prompt\": \"a\", \"seed\": 9223372036854775808, \"num_images\": 2}\n"
      "{\"prompt\": \"a\", \"seed\": -1}\n");
  REQUIRE(message.empty());
  REQUIRE(jobs[0].settings.seed == UINT64_MAX);
  REQUIRE(jobs[1].settings.seed == uint64_t{1} << 63);
  REQUIRE(!jobs[2].settings.seed);
  Settings settings = good_settings();
  settings.num_images = 2;
  const Request request = request_of(settings, uint64_t{1} << 63);
  REQUIRE(request.seeds == std::vector<uint64_t>{uint64_t{1} << 63, (uint64_t{1} << 63) + 1});
  for (const char* seed : {"-2", "1.5", "\"7\"", "18446744073709551616"})
    REQUIRE_THAT(parse("{\"prompt\": \"a\", \"seed\": " + std::string(seed) + "}").message,
                 Catch::Contains("is no seed: a whole number from 0 to 2^64 - 1, or -1"));
}

TEST_CASE("Several images get numbers, and patterns are filled in", "[jobs]") {
  using Paths = std::vector<std::string>;
  REQUIRE(output_paths("d/out.png", 1) == Paths{"d/out.png"});
  REQUIRE(output_paths("d/out.png", 2) == Paths{"d/out_0.png", "d/out_1.png"});
  REQUIRE(output_paths("o_%03d.png", 1) == Paths{"o_000.png"});
  REQUIRE(output_paths("o_%03d.png", 2) == Paths{"o_000.png", "o_001.png"});
  REQUIRE(output_paths("o%dx.png", 2) == Paths{"o0x.png", "o1x.png"});
  REQUIRE(output_paths("100%.png", 2) == Paths{"100%_0.png", "100%_1.png"});
  REQUIRE(output_paths("%s%n.png", 1) == Paths{"%s%n.png"});
  REQUIRE(output_paths("%99999d.png", 1) == Paths{"%99999d.png"});
}

TEST_CASE("Frames of a clip are numbered files, and an image is one", "[jobs]") {
  using Paths = std::vector<std::string>;
  CHECK(frame_paths("d/50%.png", 1) == Paths{"d/50%.png"});
  CHECK(frame_paths("d/50%.png", 2) == Paths{"d/50%_0000.png", "d/50%_0001.png"});
}

TEST_CASE("A clip is one file, and a pattern counts the frames of one clip", "[jobs]") {
  using Paths = std::vector<std::string>;
  Settings settings = good_settings();
  settings.num_frames = 2;
  const auto written = [&](const char* output, int64_t num_images) {
    settings.output = output;
    settings.num_images = num_images;
    return written_files(settings);
  };
  CHECK(written("a.mp4", 1) == Paths{"a.mp4"});
  CHECK(written("a.gif", 2) == Paths{"a_0.gif", "a_1.gif"});
  CHECK(written("a_%02d.WEBP", 1) == Paths{"a_00.WEBP"});
  CHECK(written("a.png", 1) == Paths{"a_0000.png", "a_0001.png"});
  CHECK(written("a_%02d.png", 1) == Paths{"a_00.png", "a_01.png"});
  CHECK(written("a_%d.png", 2) ==
        Paths{"a_0_0000.png", "a_0_0001.png", "a_1_0000.png", "a_1_0001.png"});
}

TEST_CASE("An output with an escaped NUL is not cut at it", "[jobs]") {
  const Parsed parsed = parse(R"({"prompt": "x", "output": "a.png\u0000b.png"})");
  REQUIRE(parsed.jobs.size() == 1);
  CHECK_THAT(check(parsed.jobs.front().settings), Catch::Contains("holds control characters"));
}

TEST_CASE("Outputs that do not fit what is made are told", "[jobs]") {
  using Catch::Contains;
  Settings settings = good_settings();
  const auto said = [&](const char* output, std::optional<double> fps = 16) {
    settings.output = output;
    settings.fps = fps;
    report::Problems problems;
    check_output(settings, {}, problems);
    return message_of(problems);
  };
  CHECK_THAT(said("a.mov"),
             Contains("--output: \"a.mov\" does not end in .png, .jpg, .mp4, .webp or .gif"));
  CHECK_THAT(said("a.gif"),
             Contains("\"a.gif\" is a clip's file, and one frame is an image; end the "
                      "name in .png, or make more frames with --num_frames"));
  for (const char* output : {"a.PNG", "a.jpg", "a.JPEG", "no/such/a.png"})
    CHECK(said(output) == "");
  for (const char* name : {"\033[2Ja.png", "a\nb.png", "a\xc2\x9b.png"})
    CHECK_THAT(said(name), Contains("holds control characters"));
  CHECK(said((std::string(251, 'a') + ".png").c_str()).empty());
  CHECK_THAT(said((std::string(252, 'a') + ".png").c_str()),
             Contains("the name has 256 bytes, 255 are the most; use a shorter one"));
  settings.num_frames = 5;
  for (const char* output : {"a.mp4", "a.webp", "a.gif", "a.png"}) CHECK(said(output) == "");
  CHECK(said("a.gif", {}).empty());  // a model may say the rate
  CHECK_THAT(said("a.gif", 51), Contains("--fps: 51 is above 50, the most that .gif shows"));
  CHECK(said("a.png", {}).empty());
  settings.width = 20'000;
  CHECK_THAT(said("a.webp"), Contains("20000 pixels are more than .webp holds, 16383"));
  settings.num_frames.reset();  // the model is not known
  CHECK_THAT(said("/dev/null/no/a.webp"), Contains("\"/dev/null\" is no folder"));
  CHECK_THAT(check([] {
               Settings bad = good_settings();
               bad.fps = 0.0;
               return bad;
             }()),
             Contains("--fps: 0 is below 0.01"));
}

TEST_CASE("More frames than can be written are told, and not counted one by one", "[jobs]") {
  const auto [jobs, message] =
      parse("{\"prompt\": \"a\", \"num_frames\": 1000000000000}", good_settings());
  CHECK(message.empty());
  CHECK_THAT(check(jobs.at(0).settings),
             Catch::Contains("--num_frames: 1000000000000 is above 65536"));
  Settings settings = good_settings();
  settings.num_frames = 1;
  settings.num_images = 100'000;
  CHECK_FALSE(makes_too_many(settings));
  settings.num_frames = 2;
  CHECK(makes_too_many(settings));
}

TEST_CASE("Results are one line of JSON", "[jobs]") {
  JobResult result;
  result.output = {"a.png", "b\n.png"};
  result.seed = 3;
  result.seconds = 1.23456;
  result.line = 2;
  REQUIRE(result.to_json() ==
          "{\"line\":2,\"output\":[\"a.png\",\"b\\n.png\"],\"seconds\":1.235,\"seed\":3}");
  result.error = "bad \xff byte";
  REQUIRE_THAT(result.to_json(), Catch::Contains("\"error\":\"bad \xef\xbf\xbd byte\""));
  result.error =
      "\xc2\x9b"
      "2J";
  REQUIRE_THAT(result.to_json(), Catch::Contains("\"error\":\"\\u009b2J\""));
  REQUIRE(JobResult().to_json() == "{\"line\":0,\"output\":[],\"seconds\":0.0}");
}

TEST_CASE("A prompt may be empty, and has to be given", "[settings]") {
  const auto [jobs, message] = parse("{\"prompt\": \"\"}\n{\"seed\": 1}");
  REQUIRE(message.empty());
  REQUIRE(jobs.at(0).settings.prompt == "");
  REQUIRE_FALSE(jobs.at(1).settings.prompt);
  Settings settings = good_settings();
  settings.prompt = "";
  REQUIRE(check(settings) == "");
  settings.prompt.reset();
  REQUIRE_THAT(check(settings), Catch::Contains("--prompt is missing"));
}

TEST_CASE("Good settings pass, and every mistake is found at once", "[settings]") {
  REQUIRE(check(good_settings()) == "");
  Settings bad = good_settings();
  bad.prompt.reset();
  bad.negative_prompt = "\xff";
  bad.num_frames = 5;
  bad.height = 1000;
  bad.width = 7;
  bad.num_inference_steps = 0;
  bad.num_images = 0;
  bad.batch_size = 0;
  bad.denoising_strength = 1.5;
  bad.output = "/dev/null/folder/out.tga";
  bad.family_inputs.clear();
  const std::string message = check(bad);
  using Catch::Contains;
  REQUIRE_THAT(message, Contains("--prompt is missing"));
  REQUIRE_THAT(message, Contains("--negative_prompt: byte 0 is no UTF-8"));
  REQUIRE_THAT(message, Contains("--num_frames: 5: this family makes single images"));
  REQUIRE_THAT(message, Contains("--height: 1000 is no multiple of 16; use 992 or 1008"));
  REQUIRE_THAT(message, Contains("--width: 7 is no multiple of 16; use 16"));
  REQUIRE_THAT(message, Contains("--num_inference_steps: 0 is below 1"));
  REQUIRE_THAT(message, Contains("--num_images: 0 is below 1"));
  REQUIRE_THAT(message, Contains("--batch_size: 0 is below 1"));
  REQUIRE_THAT(message, Contains("--denoising_strength: 1.5"));
  REQUIRE_THAT(message, Contains("there is no input image to start from"));
  REQUIRE_THAT(message, Contains("does not end in .png"));
  REQUIRE_THAT(message, Contains("\"/dev/null\" is no folder"));
  REQUIRE_THAT(message, Contains("--edit_strength is missing"));
  REQUIRE_THAT(check(bad, {"jobs.jsonl", 3}),
               Contains("jobs.jsonl:3: height: 1000 is no multiple"));
}

// A white picture.
std::string write_pgm(const std::string& path, int width, int height) {
  std::ofstream(path, std::ios::binary)
      << "P5 " << width << ' ' << height << " 255\n"
      << std::string(static_cast<size_t>(width) * static_cast<size_t>(height), '\xff');
  return path;
}

TEST_CASE("A folder in the way of any file that is written is told", "[settings]") {
  const Folder folder;
  for (const char* name : {"a.png", "b_1.png", "c_0002.png", "d.gif"})
    std::filesystem::create_directory(folder / name);
  const auto said = [&](const std::string& output, int64_t images, int64_t frames) {
    Settings settings;
    settings.output = folder / output;
    settings.num_images = images;
    settings.num_frames = frames;
    settings.fps = 16;
    report::Problems problems;
    check_output(settings, {}, problems);
    return message_of(problems);
  };
  using Catch::Contains;
  CHECK_THAT(said("a.png", 1, 1),
             Contains("--output: ") &&
                 Contains("/a.png\" is a folder; name another file, or remove the folder"));
  CHECK_THAT(said("b.png", 2, 1), Contains("/b_1.png\" is a folder"));
  CHECK_THAT(said("c.png", 1, 5), Contains("/c_0002.png\" is a folder"));
  CHECK_THAT(said("d.gif", 1, 5), Contains("/d.gif\" is a folder"));
  CHECK(said("b.png", 1, 1) == "");
}

TEST_CASE("A mask needs an image of its shape", "[settings]") {
  const Folder folder;
  const auto write = [&](const std::string& name, int width, int height) {
    return write_pgm(folder / name, width, height);
  };
  using Catch::Contains;
  Settings settings = good_settings();
  settings.inpaint_mask = write("mask.pgm", 12, 8);
  REQUIRE_THAT(check(settings), Contains("--inpaint_mask: there is no input image to keep a part "
                                         "of; give one with --begin"));
  settings.family_inputs["begin"] = write("image.pgm", 24, 16);
  REQUIRE(check(settings) == "");
  settings.family_inputs["begin"] = write("wide.pgm", 24, 8);
  REQUIRE_THAT(check(settings, {"jobs.jsonl", 3}), Contains("jobs.jsonl:3: inpaint_mask: ") &&
                                                       Contains("mask.pgm is 12x8, ") &&
                                                       Contains("wide.pgm is 24x8"));
  settings.inpaint_mask = "absent.png";
  settings.height = 1000;
  REQUIRE_THAT(check(settings),
               Contains("--inpaint_mask: absent.png") && Contains("--height: 1000 is no multiple"));
  REQUIRE(parse("{\"inpaint_mask\": \"mask.png\"}").jobs.at(0).settings.inpaint_mask == "mask.png");
}

TEST_CASE("Wrong levels are told by the setting's name wherever it was written", "[settings]") {
  using Catch::StartsWith;
  const Folder folder;
  const std::string image = write_pgm(folder / "image.pgm", 24, 16);
  const auto told = [](const std::string& name, const auto& set) {
    Settings settings = good_settings();
    set(settings);
    INFO(name);
    CHECK_THAT(check(settings), StartsWith("--" + name + ": "));
    CHECK_THAT(check(settings, {"jobs.jsonl", 3}), StartsWith("jobs.jsonl:3: " + name + ": "));
    CHECK_THAT(check(settings, {.is_request = true}), StartsWith(name + ": "));
  };
  told("num_inference_steps", [](Settings& s) { s.num_inference_steps = -1; });
  told("flow_shift", [](Settings& s) { s.flow_shift = -1; });
  told("sigmas", [](Settings& s) { s.sigmas = {0.5, 1.0}; });
  told("schedule", [](Settings& s) { s.schedule = "quick"; });
  told("denoising_strength", [&](Settings& s) {
    s.family_inputs["begin"] = image;
    s.denoising_strength = 0;
  });
}

TEST_CASE("Unknown schedules and missing input files are named", "[settings]") {
  Settings settings = good_settings();
  settings.schedule = "quick";
  REQUIRE_THAT(check(settings),
               Catch::Contains("\"quick\"") && Catch::Contains("\"plain\", \"fast\""));
  settings = good_settings();
  settings.family_inputs["begin"] = "absent.png";
  settings.latents = "absent.safetensors";
  REQUIRE_THAT(check(settings), Catch::Contains("--begin: absent.png") &&
                                    Catch::Contains("--latents: absent.safetensors"));
}

TEST_CASE("Initial latents of another shape are refused before the run", "[settings]") {
  const Folder folder;
  Settings settings = good_settings();
  settings.latents = folder / "noise.safetensors";
  settings.num_images = 2;
  const auto write = [&](const std::string& name, const std::string& shape, size_t bytes) {
    const std::string header = "{\"" + name + "\":{\"dtype\":\"F32\",\"shape\":" + shape +
                               ",\"data_offsets\":[0," + std::to_string(bytes) + "]}}";
    std::ofstream file(settings.latents, std::ios::binary);
    const uint64_t size = header.size();
    file.write(reinterpret_cast<const char*>(&size), 8);
    file << header << std::string(bytes, '\0');
  };
  write("latents", "[2,4,1,8,12]", 2 * 4 * 8 * 12 * 4);
  REQUIRE(check(settings) == "");
  const Request request = request_of(settings, 5);
  REQUIRE(request.latents.sizes() == at::IntArrayRef({2, 4, 1, 8, 12}));
  REQUIRE(request.seeds == std::vector<uint64_t>{5, 6});
  write("latents", "[2,4,8,12]", 2 * 4 * 8 * 12 * 4);  // pictures, which have one frame
  REQUIRE(check(settings) == "");
  REQUIRE(request_of(settings, 5).latents.sizes() == at::IntArrayRef({2, 4, 1, 8, 12}));
  write("latents", "[2,4,12,8]", 2 * 4 * 8 * 12 * 4);
  REQUIRE_THAT(check(settings), Catch::Contains("shape [2, 4, 12, 8], [2, 4, 1, 8, 12] expected"));
  write("noise", "[1]", 4);
  REQUIRE_THAT(check(settings), Catch::Contains("tensor \"latents\" is missing"));
}

TEST_CASE("A request has the schedule of its size and the family's scale", "[settings]") {
  const FakeFamily family;
  Settings settings = good_settings();
  Request request = request_of(settings);
  REQUIRE(request.cfg_scale == 4.0);
  REQUIRE(request.sigmas.size() == 31);
  REQUIRE(std::get<double>(request.inputs.at("edit_strength")) == 0.5);
  settings.schedule = "fast";
  settings.num_inference_steps = 4;
  request = request_of(settings);
  REQUIRE(request.cfg_scale == 1.0);
  REQUIRE(request.sigmas == std::vector<float>{1.0f, 0.9f, 0.75f, 0.5f, 0.0f});
}

TEST_CASE("Blank inputs are zeros in the shapes of what is read", "[settings]") {
  const FakeFamily family;
  const Folder folder;
  Settings settings = good_settings();
  settings.family_inputs["begin"] = write_pgm(folder / "begin.pgm", 24, 16);
  settings.family_inputs["edit_image"] = write_pgm(folder / "edit.pgm", 40, 8);
  settings.inpaint_mask = write_pgm(folder / "mask.pgm", 12, 8);
  const InputFiles files = read_inputs(settings, family), blank = blank_inputs(settings, family);
  const auto is_blank_of = [](const at::Tensor& shape, const at::Tensor& value) {
    return shape.sizes() == value.sizes() && shape.dtype() == value.dtype() &&
           shape.device() == value.device() && shape.count_nonzero().item<int64_t>() == 0;
  };
  CHECK(is_blank_of(blank.start_pixels, files.start_pixels));
  CHECK(is_blank_of(blank.inpaint_mask, files.inpaint_mask));
  CHECK(is_blank_of(std::get<at::Tensor>(blank.inputs.at("edit_image")),
                    std::get<at::Tensor>(files.inputs.at("edit_image"))));
  CHECK(std::get<double>(blank.inputs.at("edit_strength")) == 0.5);
}

TEST_CASE("Guidance is the schedule's where nothing else is said", "[settings]") {
  Settings settings = good_settings();
  Request request = request_of(settings);
  REQUIRE(request.cfg_trunc == 1.0);
  REQUIRE(request.cfg_renorm == CfgRenorm::kNone);
  settings.schedule = "fast";
  request = request_of(settings);
  REQUIRE(request.cfg_trunc == 0.25);
  REQUIRE(request.cfg_renorm == CfgRenorm::kClamp);
  REQUIRE(request.cfg_renorm_ratio == 0.9);
  const auto [jobs, message] = parse(
      "{\"prompt\": \"a\", \"schedule\": \"fast\", \"cfg_trunc\": 0.5, \"cfg_renorm\": \"row\"}\n"
      "{\"prompt\": \"b\", \"cfg_renorm\": \"clamp\", \"cfg_renorm_ratio\": 0.8}\n"
      "{\"prompt\": \"c\", \"schedule\": \"fast\", \"cfg_renorm\": \"none\"}",
      good_settings());
  REQUIRE(message.empty());
  request = request_of(jobs[0].settings);
  REQUIRE(request.cfg_trunc == 0.5);
  REQUIRE(request.cfg_renorm == CfgRenorm::kRow);
  request = request_of(jobs[1].settings);
  REQUIRE(request.cfg_renorm == CfgRenorm::kClamp);
  REQUIRE(request.cfg_renorm_ratio == 0.8);
  request = request_of(jobs[2].settings);
  REQUIRE(request.cfg_renorm == CfgRenorm::kNone);
}

TEST_CASE("The solver is the schedule's unless a line names one", "[settings]") {
  const auto [jobs, message] = parse(
      "{\"prompt\": \"a\"}\n{\"prompt\": \"b\", \"solver\": \"dpm++\"}\n"
      "{\"prompt\": \"c\", \"schedule\": \"fast\", \"num_inference_steps\": 2}",
      good_settings());
  REQUIRE(message.empty());
  REQUIRE(request_of(jobs[0].settings).solver.name == "euler");
  REQUIRE(request_of(jobs[1].settings).solver.name == "dpm++");
  REQUIRE(request_of(jobs[2].settings).solver.name == "unipc");
  Settings settings = good_settings();
  settings.solver = "dpm+";
  REQUIRE_THAT(check(settings, {"jobs.jsonl", 3}),
               Catch::Contains("jobs.jsonl:3: solver: there is no solver \"dpm+\"") &&
                   Catch::Contains("did you mean dpm++?"));
}

TEST_CASE("Wrong guidance is told", "[settings]") {
  using Catch::Contains;
  Settings settings = good_settings();
  settings.cfg_trunc = -0.5;
  REQUIRE_THAT(check(settings), Contains("--cfg_trunc: -0.500000 is below 0"));
  settings = good_settings();
  settings.cfg_renorm = "clip";
  REQUIRE_THAT(check(settings),
               Contains("--cfg_renorm: \"clip\" is not known; use none, clamp or row"));
  settings = good_settings();
  settings.cfg_renorm_ratio = 0.9;
  REQUIRE_THAT(check(settings), Contains("--cfg_renorm_ratio: nothing is clamped"));
  settings.cfg_renorm = "clamp";
  REQUIRE(check(settings).empty());
  settings.cfg_renorm_ratio = 0;
  REQUIRE_THAT(check(settings), Contains("--cfg_renorm_ratio: 0.000000 is not above 0"));
}

}  // namespace
}  // namespace atelier::generate
