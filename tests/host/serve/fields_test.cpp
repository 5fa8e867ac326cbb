#include "host/serve/fields.h"

#include "fake_service.h"
#include "formats/base64.h"
#include "support/catch.h"
#include "support/files.h"
#include "support/http_errors.h"

namespace atelier::serve {
namespace {

using nlohmann::json;
using test::refusal_of;

json put(FakeService& fake, const std::string& name, const json& value) {
  Asked asked;
  put_field(asked, name, value, fake.service);
  return asked.fields.value(name, json());
}

TEST_CASE("Values of requests have the type of their table", "[serve]") {
  FakeService fake;
  CHECK(put(fake, "width", 64) == 64);
  CHECK(put(fake, "width", "64") == 64);
  CHECK(put(fake, "flow_shift", "2.5") == 2.5);
  CHECK(put(fake, "seed", "18446744073709551615") == 18446744073709551615U);
  CHECK(put(fake, "keeps_size", "true") == true);
  CHECK(put(fake, "prompt", "64") == "64");
  // What is no number is for the settings' own check.
  CHECK(put(fake, "width", "wide") == "wide");
}

TEST_CASE("A name that is not known is refused, and the nearest one is named", "[serve]") {
  FakeService fake;
  const auto refused = refusal_of([&] { put(fake, "flowshift", 2); });
  CHECK(refused.status == 400);
  CHECK(refused.message == R"(flowshift: is not known; did you mean "flow_shift"?)");
  Asked asked;
  const std::vector<std::string> also = {"stream"};
  CHECK(refusal_of([&] { put_field(asked, "streem", true, fake.service, also); }).message ==
        R"(streem: is not known; did you mean "stream"?)");
  CHECK(refusal_of([&] { put(fake, "xyzzyxyzzy", 1); }).message ==
        "xyzzyxyzzy: is not known; GET /v1/inputs lists the names");
}

Form read(const char* type, std::string body) {
  return read_form({.method = "POST",
                    .path = "/",
                    .headers = {{"content-type", type}},
                    .body = std::move(body)});
}

TEST_CASE("A body is a JSON object", "[serve]") {
  CHECK(read("application/json", R"({"a": 1, "b": null, "c": [null]})").fields ==
        json{{"a", 1}, {"c", {nullptr}}});
  CHECK(read("application/x-www-form-urlencoded", R"({"a": 1})").fields["a"] == 1);
  for (const char* const body : {"", "[]", "7", "{", R"({"a":1,"a":2})", "{\"a\":\"\xff\"}"}) {
    const auto refused = refusal_of([&] { read("application/json", body); });
    CHECK(refused.status == 400);
    CHECK(refused.message.starts_with("the body"));
  }
}

// Parts of texts by name and value, of files where the name ends with an at sign.
Form read_parts(const std::vector<std::pair<std::string, std::string>>& parts) {
  std::string body;
  for (const auto& [name, value] : parts) {
    const bool is_file = name.ends_with("@");
    body += "--x\r\nContent-Disposition: form-data; name=\"" +
            name.substr(0, name.size() - (is_file ? 1 : 0)) + "\"" +
            (is_file ? "; filename=\"upload\"" : "") + "\r\n\r\n" + value + "\r\n";
  }
  return read("multipart/form-data; boundary=x", body + "--x--\r\n");
}

TEST_CASE("A body is a form with files", "[serve]") {
  const Form form = read_parts({{"prompt", "a"},
                                {"image[]@", "one"},
                                {"seed[]", "5"},
                                {"image[]@", "\xff\xfe"},
                                {"seed[]", "9"},
                                {"input_reference[image_url]", "data:"},
                                {"twice", "1"},
                                {"twice", "2"}});
  CHECK(form.fields == json{{"prompt", "a"},
                            {"seed", {"5", "9"}},
                            {"input_reference[image_url]", "data:"},
                            {"twice", {"1", "2"}}});
  REQUIRE(form.files.size() == 2);
  CHECK(form.files[0].name == "image[]");
  CHECK(form.files[1].bytes == "\xff\xfe");
  const auto refused = [&](const std::string& name, const std::string& value) {
    return refusal_of([&] { read_parts({{name, value}}); }).message;
  };
  CHECK(refused("lora[][name]", "a") ==
        "lora[][name]: a form loses which of its values belong together; send lora as a text of "
        "JSON");
  CHECK(refused("prompt", "\xff") == "prompt: is no text; a file has a filename");
  CHECK(refusal_of([] { read("multipart/form-data", ""); }).status == 400);
}

TEST_CASE("Files come as data: URLs, as base64 and as results of jobs", "[serve]") {
  FakeService fake(editing_facts());
  const test::Folder folder;
  test::write_bytes(folder / "out.png", "made");
  const std::string id = fake.jobs.submit({});
  fake.jobs.view(id).files = {{.path = folder / "out.png"}};
  Asked asked;
  put_field(asked, "edit_image",
            {"data:image/png;base64," + formats::encode_base64("one"),
             formats::encode_base64("two"),
             {{"job", id}, {"file", 0}}},
            fake.service);
  std::vector<std::string> bytes;
  for (const Upload& upload : asked.uploads.at("edit_image")) bytes.push_back(upload.bytes());
  CHECK(bytes == std::vector<std::string>{"one", "two", "made"});
  CHECK(asked.fields.empty());
}

TEST_CASE("Files that are none are refused", "[serve]") {
  FakeService fake(editing_facts());
  const auto refused = [&](const json& value) {
    Asked asked;
    const auto refusal = refusal_of([&] { put_field(asked, "edit_image", value, fake.service); });
    CHECK(refusal.status == 400);
    CHECK(refusal.message.starts_with("edit_image: "));
    return refusal.message.substr(12);
  };
  CHECK(refused("http://127.0.0.1/a.png") ==
        "no address is fetched; send the file, or a data: URL");
  CHECK(refused("/etc/passwd!") == "is no base64 of a file");
  CHECK(refused("data:image/png,abcd") == R"("data:image/png,abcd" is not in base64)");
  CHECK(refused("data:image/png;base64,") == "is no base64 of a file");
  CHECK(refused({{"job", "none"}}) == R"(there is no job "none")");
  CHECK(refused({{"path", "a.png"}}) ==
        R"(a file is "data:…;base64,…" or {"job": "ID", "file": 0})");
  CHECK(refused(7) == R"(a file is "data:…;base64,…" or {"job": "ID", "file": 0})");
  const std::string id = fake.jobs.submit({});
  CHECK(refused({{"job", id}}) == "the job has no files yet");
  fake.jobs.view(id).files = {{.path = "/nonexistent/out.png"}};
  CHECK(refused({{"job", id}}) == "the file of that job is gone");
  CHECK(refused({{"job", id}, {"file", 1}}) == "1 is not a whole number from 0 to 0");
  Asked asked;
  CHECK(refusal_of([&] { put_file(asked, "width", "7", fake.service.model); }).message ==
        "width: is a value, and came as a file");
  put_file(asked, "input_image", "a", fake.service.model);
  CHECK(refusal_of([&] { put_file(asked, "input_image", "b", fake.service.model); }).message ==
        "input_image: takes one file");
}

TEST_CASE("LoRAs are named as they are registered", "[serve]") {
  FakeService fake;
  Asked asked;
  put_loras(asked, "lora", {{{"name", "style"}, {"strength", 0.5}}, {{"name", "Detail"}}},
            fake.loras);
  using Uses = std::vector<std::pair<std::string, double>>;
  CHECK(asked.loras == Uses{{"style", 0.5}, {"Detail", 1.0}});
  Asked from_text;
  put_loras(from_text, "lora", R"({"name": "style", "strength": -1})", fake.loras);
  CHECK(from_text.loras == Uses{{"style", -1.0}});
  Asked none;
  put_loras(none, "lora", json::array(), fake.loras);
  CHECK(none.loras == Uses{});

  const auto refused = [&](const json& value) {
    Asked other;
    return refusal_of([&] { put_loras(other, "lora", value, fake.loras); }).message;
  };
  CHECK(refused({{{"name", "stile"}}}) ==
        R"(lora: no LoRA "stile" is registered; did you mean "style"?)");
  CHECK(refused({{{"name", "style"}}, {{"name", "style"}}}) == R"(lora: "style" is named twice)");
  CHECK(refused({{{"name", "style"}, {"path", "a.safetensors"}}}) ==
        R"(lora: "path" is not known; write [{"name": "a", "strength": 0.8}])");
  CHECK(refused({{{"name", "style"}, {"component", "dit"}}}) ==
        R"(lora: "component" is said once of a name, by POST /v1/loras; leave it out)");
  CHECK(refused({{{"name", "style"}, {"strength", "much"}}}) == R"(lora: "\"much\"" is no number)");
  CHECK(refused("[").starts_with("lora: is no JSON"));
  CHECK(refused("7") == R"(lora: write [{"name": "a", "strength": 0.8}])");
}

TEST_CASE("Pictures go where the model takes them", "[serve]") {
  const auto put = [](const ModelFacts& model, size_t count, bool has_mask) {
    Asked asked;
    std::optional<Upload> mask;
    if (has_mask) mask = Upload("mask");
    const bool starts = put_pictures(asked, "image", std::vector<Upload>(count, Upload("picture")),
                                     std::move(mask), model);
    std::string where = starts ? "starts:" : ":";
    for (const auto& [name, files] : asked.uploads)
      where += " " + name + "=" + std::to_string(files.size());
    return where;
  };
  CHECK(put(facts(), 1, false) == "starts: input_image=1");
  CHECK(put(facts(), 1, true) == "starts: inpaint_mask=1 input_image=1");
  CHECK(put(editing_facts(), 2, false) == ": edit_image=2");
  CHECK(put(editing_facts(), 2, true) == "starts: edit_image=2 inpaint_mask=1 input_image=1");

  ModelFacts controlled = facts();
  controlled.inputs["inputs"].push_back(
      {{"name", "control_image"}, {"kind", "image"}, {"list", true}});
  CHECK(put(controlled, 1, false) == "starts: input_image=1");
  controlled.inputs["inputs"].erase(0);
  CHECK(put(controlled, 2, false) == ": control_image=2");

  ModelFacts none = facts();
  none.inputs["inputs"] = json::array();
  CHECK(refusal_of([&] { put(none, 1, false); }).message == "image: tiny takes no pictures");
  CHECK(refusal_of([&] { put(none, 1, true); }).message ==
        "mask: sampling of tiny does not begin from a picture");
  CHECK(refusal_of([&] { put(facts(), 0, false); }).message == "image: is missing");
  CHECK(refusal_of([&] { put(facts(), 2, false); }).message ==
        "image: tiny begins from one picture, not 2");
}

TEST_CASE("Single values are checked by their fields", "[serve]") {
  CHECK(integer_of("n", "3", 1, 10) == 3);
  CHECK(integer_of("n", 3.0, 1, 10) == 3);
  CHECK(refusal_of([] { integer_of("n", 11, 1, 10); }).message ==
        "n: 11 is not a whole number from 1 to 10");
  CHECK(refusal_of([] { integer_of("n", 2.5, 1, 10); }).status == 400);
  CHECK(refusal_of([] { integer_of("n", "x", 1, 10); }).status == 400);
  CHECK(flag_of("stream", "true"));
  CHECK_FALSE(flag_of("stream", 0));
  CHECK(refusal_of([] { flag_of("stream", "yes"); }).message ==
        R"(stream: "\"yes\"" is neither true nor false)");
  CHECK(refusal_of([] { text_of("size", 5); }).message == R"(size: "5" is no text)");
}

}  // namespace
}  // namespace atelier::serve
