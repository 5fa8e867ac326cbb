// The jobs of one request, for as long as somebody waits for them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "host/http/message.h"
#include "host/serve/jobs.h"

namespace atelier::serve {

// When it goes, those of its jobs end that are not over and that no other request waits for. Not
// thread-safe.
class Work {
 public:
  // Puts them into the line, all or none. Throws as Jobs::submit().
  Work(Jobs& jobs, std::vector<Asked> asked);
  // Waits for jobs that are known already. Throws HttpError 410 where one is no longer.
  Work(Jobs& jobs, const std::vector<std::string>& ids);
  ~Work();
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  const std::vector<std::string>& ids() const { return ids_; }

  // Waits until all of them are over. `on_change` is told of each that changed, by its number among
  // ids(). Throws the HttpError of a job that failed, 410 where one was removed, and 499 where the
  // client is gone.
  using OnChange = std::function<void(size_t index, const JobView& view)>;
  std::vector<JobView> wait(http::Client& client, const OnChange& on_change = {});

 private:
  JobView wait_for(size_t index, http::Client& client, const OnChange& on_change);
  void leave();

  Jobs& jobs_;
  std::vector<std::string> ids_;
};

// The bytes of a file of a job. Throws HttpError 410 where it is gone.
std::string bytes_of(const JobFile& file);

}  // namespace atelier::serve
