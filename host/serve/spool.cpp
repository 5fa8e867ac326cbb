#include "host/serve/spool.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "atelier/error.h"

#include "formats/json.h"
#include "host/files/file_operations.h"
#include "host/files/file_reader.h"
#include "host/files/safetensors_writer.h"
#include "host/run/durable.h"

namespace atelier::serve {
namespace {

namespace fs = std::filesystem;

using files::fail_on_file;
using files::file_operations;
using nlohmann::json;

constexpr const char* kJobsFolder = ".atelier-jobs";
constexpr const char* kRecordEnd = ".json";
constexpr mode_t kOwnFolder = 0700, kOwnFile = 0600;

std::string temporary_folder() {
  const std::string name = (fs::temp_directory_path() / "atelier-serve-XXXXXX").string();
  std::string made = name;
  if (::mkdtemp(made.data()) == nullptr) fail_on_file(name, "the folder cannot be made", errno);
  return made;
}

void make_folder(const std::string& path) {
  if (file_operations().mkdir(path.c_str(), kOwnFolder) != 0 && errno != EEXIST)
    fail_on_file(path, "the folder cannot be made", errno);
}

// Writes a new file, flushed where it is to be durable.
void write_new(const std::string& path, std::string_view bytes, bool is_durable) {
  files::FileOperations& files = file_operations();
  const int file =
      files.open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, kOwnFile);
  if (file < 0) fail_on_file(path, "cannot be written", errno);
  int why = files::write_all(file, bytes.data(), bytes.size());
  if (why == 0 && is_durable && files.fsync(file) != 0) why = errno;
  if (files.close(file) != 0 && why == 0) why = errno;
  if (why != 0) fail_on_file(path, "cannot be written", why);
}

void remove_file(const std::string& path) {
  if (file_operations().unlink(path.c_str()) != 0 && errno != ENOENT)
    fail_on_file(path, "cannot be removed", errno);
}

// Which server has the folder is said by a lock, which ends with its program.
int lock(const std::string& path, const std::string& folder) {
  files::FileOperations& files = file_operations();
  const int file = files.open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, kOwnFile);
  if (file < 0) fail_on_file(path, "cannot be opened", errno);
  if (files.flock(file) == 0 || errno != EWOULDBLOCK) return file;
  files.close(file);
  throw Error(ErrorCode::kEnvironment,
              "--output_dir: another server keeps its jobs in " + files::display_path(folder),
              "choose another folder, or end that server");
}

}  // namespace

Spool::Spool(const std::string& folder)
    : folder_(folder.empty() ? temporary_folder() : folder), is_temporary_(folder.empty()) {
  run::make_folders(folder_);
  folder_ = fs::absolute(folder_).lexically_normal().string();
  jobs_ = run::path_in(folder_, kJobsFolder);
  make_folder(jobs_);
  lock_ = lock(run::path_in(jobs_, "lock"), folder_);
}

Spool::~Spool() {
  file_operations().close(lock_);
  try {
    if (is_temporary_) run::remove_tree(folder_);
  } catch (const Error&) {  // what is left is the system's to clean
  }
}

std::string Spool::new_id() {
  constexpr char kDigits[] = "0123456789abcdef";
  std::array<unsigned char, 12> bytes = {};
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    throw Error(ErrorCode::kEnvironment, std::string("random bytes: ") + std::strerror(errno));
  std::string id = "job_";
  for (const unsigned char byte : bytes) {
    id += kDigits[byte >> 4];
    id += kDigits[byte & 15];
  }
  return id;
}

std::string Spool::output_of(std::string_view id, std::string_view extension) const {
  return run::path_in(folder_, std::string(id) + "." + std::string(extension));
}

std::string Spool::uploads_of(std::string_view id) const {
  return run::path_in(jobs_, id);
}

std::string Spool::record_of(std::string_view id) const {
  return run::path_in(jobs_, std::string(id) + kRecordEnd);
}

std::string Spool::without_folder(std::string message) const {
  for (size_t at = message.find(folder_); at != std::string::npos; at = message.find(folder_, at)) {
    size_t end = at + folder_.size();
    const std::string jobs = std::string("/") + kJobsFolder + "/";
    if (message.compare(end, jobs.size(), jobs) == 0) {
      end += jobs.size();
      end = std::min(message.find('/', end), message.size() - 1);  // behind the job
    }
    message.erase(at, end + 1 - at);
  }
  return message;
}

SpooledFiles Spool::write(std::string_view id,
                          const std::map<std::string, std::vector<Upload>, std::less<>>& uploads,
                          bool is_durable) const {
  SpooledFiles files;
  if (uploads.empty()) return files;
  const std::string folder = uploads_of(id);
  try {
    make_folder(folder);
    for (const auto& [name, sent] : uploads) {
      for (const Upload& upload : sent) {
        std::vector<std::string>& paths = files[name];
        paths.push_back(run::path_in(folder, name + "." + std::to_string(paths.size())));
        write_new(paths.back(), upload.bytes(), is_durable);
      }
    }
    if (is_durable) {
      files::flush_folder(folder, folder);
      files::flush_folder(jobs_, folder);
    }
  } catch (const Error&) {
    remove_uploads(id);
    throw;
  }
  return files;
}

SpooledFiles Spool::find(std::string_view id) const {
  SpooledFiles files;
  for (const std::string& name : run::folder_names(uploads_of(id))) {
    const size_t dot = name.rfind('.');
    std::vector<std::string>& paths = files[name.substr(0, dot)];
    const auto number = static_cast<size_t>(std::atoi(name.c_str() + dot + 1));
    if (paths.size() <= number) paths.resize(number + 1);
    paths[number] = run::path_in(uploads_of(id), name);
  }
  return files;
}

void Spool::remove_uploads(std::string_view id) const {
  run::remove_tree(uploads_of(id));
}

void Spool::save(std::string_view id, const json& record) const {
  files::write_file(record_of(id),
                    record.dump(-1, ' ', false, json::error_handler_t::replace) + "\n");
}

void Spool::remove_record(std::string_view id) const {
  remove_file(record_of(id));
}

std::vector<std::pair<std::string, json>> Spool::records(
    const std::function<void(const std::string&)>& warn) const {
  std::vector<std::pair<std::string, json>> records;
  for (const std::string& name : run::folder_names(jobs_)) {
    if (!name.ends_with(kRecordEnd)) continue;
    const std::string path = run::path_in(jobs_, name);
    try {
      records.emplace_back(name.substr(0, name.size() - std::strlen(kRecordEnd)),
                           formats::parse_json(files::read_text_file(path)));
    } catch (const Error& error) {
      warn(error.what());
    } catch (const formats::ParseError& error) {
      warn(files::at_file(path, error, ErrorCode::kDataLoss).what());
    }
  }
  for (const std::string& name : run::folder_names(jobs_)) {
    const bool is_uploads = fs::is_directory(fs::symlink_status(run::path_in(jobs_, name)));
    if (is_uploads && !fs::exists(record_of(name))) remove_uploads(name);
  }
  return records;
}

}  // namespace atelier::serve
