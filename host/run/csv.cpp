// Metrics as rows of step,key,value.
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <fstream>

#include "atelier/error.h"

#include "host/files/file_operations.h"
#include "host/files/file_reader.h"
#include "host/files/safetensors_writer.h"
#include "host/report/text.h"
#include "host/run/appended_file.h"
#include "host/run/durable.h"
#include "host/run/metrics.h"

namespace atelier::run {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kHeader = "step,key,value";

std::string cell(const std::string& text) {
  if (text.find_first_of(",\"\n\r") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? "\"\"" : std::string(1, c);
  return quoted + "\"";
}

// A row without its line end.
bool stays(const std::string& row, int64_t last_step) {
  int64_t step = 0;
  const char* end = row.data() + row.size();
  const auto [stop, failure] = std::from_chars(row.data(), end, step);
  return failure == std::errc() && stop != end && *stop == ',' && step <= last_step;
}

// Leaves the rows up to `last_step`; a last row that a kill cut short goes.
void cut(const std::string& path, int64_t last_step) {
  std::ifstream file(path, std::ios::binary);
  std::string row;
  if (!std::getline(file, row) || row != kHeader)
    throw Error(ErrorCode::kInvalidArgument,
                files::display_path(path) + ": its first row is not " + std::string(kHeader),
                "move it away", "CSV_HEADER");
  std::string kept = row + "\n";
  while (std::getline(file, row) && !file.eof())
    if (stays(row, last_step)) kept += row + "\n";
  if (file.bad()) files::fail_on_file(path, "cannot be read", EIO);
  files::write_file(path, kept);
}

class CsvWriter final : public MetricsWriter {
 public:
  explicit CsvWriter(const std::string& path) : file_(path, /*is_new=*/false) {}

  void write(int64_t step, const std::map<std::string, double>& values) override {
    std::string rows;
    for (const auto& [key, value] : values)
      rows += std::to_string(step) + "," + cell(key) + "," + report::number_text(value) + "\n";
    file_.append(rows);
  }

 private:
  AppendedFile file_;
};

}  // namespace

MetricsWriter::~MetricsWriter() = default;

void MetricsWriter::write_image(int64_t /*step*/, const EncodedImage& /*image*/) {}

std::unique_ptr<MetricsWriter> open_csv(const std::string& path, int64_t last_step) {
  make_folders(files::parent_folder(path));
  std::error_code ignored;
  if (fs::exists(path, ignored) && fs::file_size(path, ignored) > 0) {
    cut(path, last_step);
  } else {
    files::write_file(path, std::string(kHeader) + "\n");
  }
  return std::make_unique<CsvWriter>(path);
}

}  // namespace atelier::run
