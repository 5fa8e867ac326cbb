#include "host/tune/tuning.h"

#include <algorithm>
#include <cstring>
#include <sys/wait.h>

#include "host/report/text.h"

namespace atelier::tune {
namespace {

constexpr std::string_view kBegin = "begin ";

// Why a process that had begun an operator told no verdict of it.
std::string problem_of(const End& end) {
  if (!end.status) return "stopped after " + report::number_text(end.stopped_after_s) + " seconds";
  if (WIFSIGNALED(*end.status))
    return std::string("the process ended by signal: ") + strsignal(WTERMSIG(*end.status));
  return "the process ended with exit code " + std::to_string(WEXITSTATUS(*end.status));
}

// What is left to be proven, and what was found.
struct Progress {
  std::vector<std::string> left;
  std::string begun;
  KernelTable table;
  const std::function<void(const Verdict&)>& told;

  void add(Verdict verdict) {
    std::erase(left, verdict.op);
    begun.clear();
    told(verdict);
    if (!verdict.is_unknown) table.verdicts.push_back(std::move(verdict));
  }
  void read(const std::string& line) {
    const bool begins = line.starts_with(kBegin);
    const std::optional<Verdict> verdict = read_verdict(line);
    const std::string op = begins ? line.substr(kBegin.size()) : verdict ? verdict->op : "";
    if (std::ranges::find(left, op) == left.end()) return;  // what LibTorch prints, perhaps
    if (begins) {
      begun = op;
    } else {
      add(*verdict);
    }
  }
};

}  // namespace

std::string begin_line(std::string_view op) {
  return std::string(kBegin) + std::string(op);
}

KernelTable tune(std::span<const std::string> ops, const ProveElsewhere& prove,
                 const std::function<void(const Verdict&)>& told) {
  Progress progress = {.left = {ops.begin(), ops.end()}, .begun = {}, .table = {}, .told = told};
  while (!progress.left.empty()) {
    progress.begun.clear();
    const std::vector<std::string> left = progress.left;
    const End end = prove(left, [&](const std::string& line) { progress.read(line); });
    if (end.is_time_over) break;
    const bool ended_behind_one = progress.begun.empty() && progress.left.size() < left.size();
    if (ended_behind_one) continue;
    const std::string op = progress.begun.empty() ? progress.left.front() : progress.begun;
    progress.add({.op = op, .problem = problem_of(end)});
  }
  return progress.table;
}

}  // namespace atelier::tune
