#include "host/report/text.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>

namespace atelier::report {
namespace {

std::string padded(const std::string& text, size_t width, bool is_right) {
  const std::string space(width - text.size(), ' ');
  return is_right ? space + text : text + space;
}

}  // namespace

std::string print(const char* format, ...) {
  char text[240];
  std::va_list values;
  va_start(values, format);
  std::vsnprintf(text, sizeof text, format, values);
  va_end(values);
  return text;
}

std::string bytes_text(int64_t bytes) {
  static constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB"};
  bytes = std::max<int64_t>(bytes, 0);
  if (bytes < 1024) return std::to_string(bytes) + (bytes == 1 ? " byte" : " bytes");
  double value = static_cast<double>(bytes) / 1024.0;
  int unit = 0;
  for (; value >= 1024.0 && unit < 3; ++unit) value /= 1024.0;
  return print(value < 10 ? "%.2f %s" : "%.1f %s", value, kUnits[unit]);
}

std::string time_text(double seconds) {
  if (seconds < 1e-3) return print("%.3g us", seconds * 1e6);
  if (seconds < 1) return print("%.3g ms", seconds * 1e3);
  if (seconds < 600) return print("%.3g s", seconds);
  if (seconds < 36000) return print("%.3g min", seconds / 60);
  return print("%.3g h", seconds / 3600);
}

std::string size_text(int64_t height, int64_t width) {
  return std::to_string(width) + "x" + std::to_string(height);
}

std::string columns(std::vector<std::vector<std::string>> rows) {
  std::vector<size_t> widths(rows.front().size());
  std::vector<bool> is_right(widths.size());
  for (size_t c = 0; c < widths.size(); ++c) {
    is_right[c] = rows[0][c].starts_with('>');
    if (is_right[c]) rows[0][c].erase(0, 1);
  }
  for (const auto& row : rows) {
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (size_t c = 0; c < row.size(); ++c)
      line += (c ? "  " : "") + padded(row[c], widths[c], is_right[c]);
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

}  // namespace atelier::report
