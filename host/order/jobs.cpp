#include "host/order/jobs.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "atelier/error.h"

#include "formats/escape.h"
#include "formats/json.h"
#include "host/order/output_paths.h"

namespace atelier::order {
namespace {

bool is_blank(std::string_view text) {
  return text.find_first_not_of(" \t\r") == std::string_view::npos;
}

// The first line that is not blank, without spaces in front; empty when all are.
std::string_view first_line(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
  return text.substr(0, text.find_first_of("\r\n"));
}

// Whether any line begins as a JSON object.
bool has_objects(std::string_view text) {
  while (!text.empty()) {
    if (first_line(text).starts_with('{')) return true;
    text.remove_prefix(std::min(text.find('\n', text.find_first_not_of(" \t\r\n")), text.size()));
  }
  return false;
}

}  // namespace

std::optional<Job> parse_job(std::string_view text, const Origin& place, const Settings& base,
                             std::span<const InputSpec> inputs, report::Problems& problems) {
  try {
    const nlohmann::json line = formats::parse_json(text);
    Job job = {place, settings_of(line, base, inputs, place, problems)};
    if (!line.is_object()) return std::nullopt;
    if (!line.contains("output")) job.settings.output = with_number(base.output, place.line);
    return job;
  } catch (const formats::ParseError& error) {
    problems.add(Error(ErrorCode::kInvalidArgument,
                       place.file + ":" + std::to_string(place.line) + ": " + error.what(),
                       error.hint, error.tag));
    return std::nullopt;
  }
}

std::vector<Job> parse_jobs(std::string_view text, const std::string& name, const Settings& base,
                            std::span<const InputSpec> inputs, report::Problems& problems) {
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);  // editors of Windows write a mark
  std::vector<Job> jobs;
  std::map<std::string, uint64_t> writers;  // line of the job that writes a file
  const std::string_view first = first_line(text);
  if (first.starts_with('[')) {
    problems.add(name + ": begins as a JSON list",
                 "write its objects one a line, without [ ] around them and commas between them");
    return jobs;
  }
  if (!first.empty() && !has_objects(text)) {
    const nlohmann::json example = {{"prompt", first.substr(0, 80)}};
    problems.add(name + ": holds no JSON lines, it begins with " + formats::quote_and_escape(first),
                 "write one JSON object a line: " +
                     example.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
    return jobs;
  }
  uint64_t line = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view content = text.substr(begin, end - begin);
    begin = end + 1;
    const Origin place = {name, ++line};
    if (is_blank(content)) continue;
    const size_t before = problems.size();
    std::optional<Job> job = parse_job(content, place, base, inputs, problems);
    if (!job) continue;
    if (problems.size() == before && !makes_too_many(job->settings)) {
      for (const std::string& path : written_files(job->settings)) {
        const auto [writer, is_new] = writers.emplace(path, line);
        if (is_new) continue;
        problems.add(place.of("output") + ": line " + std::to_string(writer->second) + " writes " +
                         formats::quote_and_escape(path) + " too",
                     "give each job a file of its own");
        break;
      }
    }
    jobs.push_back(std::move(*job));
  }
  if (is_blank(first_line(text)))
    problems.add(name + ": no jobs", "write one JSON object a line: {\"prompt\": \"…\"}");
  return jobs;
}

}  // namespace atelier::order
