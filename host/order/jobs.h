// Prompts files: one JSON object a line, with the names of the flags as keys.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "atelier/input.h"

#include "host/order/settings.h"
#include "host/report/problems.h"

namespace atelier::order {

struct Job {
  Origin place;
  Settings settings;
};

// Reads one line, without its end; `settings` of a job without "output" name their file after the
// line. Mistakes become problems; nullopt: it is no JSON object.
std::optional<Job> parse_job(std::string_view text, const Origin& place, const Settings& base,
                             std::span<const InputSpec> inputs, report::Problems& problems);

// Reads a whole prompts file; `name` stands for it in messages. Blank lines are skipped. Two jobs
// that write one file are a problem, as is a file without jobs; a file without any JSON is one.
std::vector<Job> parse_jobs(std::string_view text, const std::string& name, const Settings& base,
                            std::span<const InputSpec> inputs, report::Problems& problems);

}  // namespace atelier::order
