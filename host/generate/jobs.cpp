#include "host/generate/jobs.h"

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "atelier/error.h"

#include "formats/escape.h"
#include "formats/json.h"

namespace atelier::generate {
namespace {

bool is_blank(std::string_view text) {
  return text.find_first_not_of(" \t\r") == std::string_view::npos;
}

}  // namespace

std::string JobResult::to_json() const {
  nlohmann::json line_json = {
      {"output", output}, {"seconds", std::round(seconds * 1000.0) / 1000.0}, {"line", line}};
  if (seed) line_json["seed"] = *seed;
  if (!error.empty()) line_json["error"] = error;
  // Messages may quote bytes of files: what is no UTF-8 is replaced.
  return line_json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Job parse_job(std::string_view text, const Place& place, const Settings& base,
              std::span<const InputSpec> inputs, report::Problems& problems) {
  Job job = {place, base};
  try {
    const nlohmann::json line = formats::parse_json(text);
    job.settings = settings_of(line, base, inputs, place, problems);
    if (!line.is_object() || !line.contains("output")) {
      job.settings.output = with_number(base.output, place.line);
    }
  } catch (const formats::ParseError& error) {
    problems.add(Error(ErrorCode::kInvalidArgument,
                       place.file + ":" + std::to_string(place.line) + ": " + error.what(),
                       error.hint, error.tag));
  }
  return job;
}

std::vector<Job> parse_jobs(std::string_view text, const std::string& name, const Settings& base,
                            std::span<const InputSpec> inputs, report::Problems& problems) {
  std::vector<Job> jobs;
  std::map<std::string, uint64_t> writers;  // line of the job that writes a file
  uint64_t line = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view content = text.substr(begin, end - begin);
    begin = end + 1;
    const Place place = {name, ++line};
    if (is_blank(content)) continue;
    const size_t before = problems.size();
    Job job = parse_job(content, place, base, inputs, problems);
    if (problems.size() == before && job.settings.num_images <= kMaxImages) {
      for (const std::string& path : output_paths(job.settings.output, job.settings.num_images)) {
        const auto [writer, is_new] = writers.emplace(path, line);
        if (is_new) continue;
        problems.add(place.of("output") + ": line " + std::to_string(writer->second) + " writes " +
                         formats::quote_and_escape(path) + " too",
                     "give each job a file of its own");
        break;
      }
    }
    jobs.push_back(std::move(job));
  }
  if (jobs.empty())
    problems.add(name + ": no jobs", "write one JSON object a line: {\"prompt\": \"…\"}");
  return jobs;
}

}  // namespace atelier::generate
