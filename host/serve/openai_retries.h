// Knows a request again that a client sends once more because it got no reply: it makes no second
// job.
//
// OpenAI's clients send no key that says so, but count their tries ("x-stainless-retry-count"): a
// later try of what came before, to the byte, has the jobs of the earlier one, unless that was
// refused. A key that a client does send is Asked::idempotency_key.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "host/http/message.h"
#include "host/serve/fields.h"

namespace atelier::serve {

// Safe to use from several threads. Remembers the last few hundred requests.
class Retries {
 public:
  using Ids = std::vector<std::string>;
  // The jobs of an earlier try, where there is one and `is_usable` says that they will do; else
  // those that `submit` makes. A try waits for an earlier one that is submitting; other requests do
  // not. Throws as `submit`.
  Ids submit(const http::Request& request, const Form& form,
             const std::function<bool(const Ids&)>& is_usable, const std::function<Ids()>& submit);

 private:
  struct Known {
    std::string key;
    Ids ids = {};
    int64_t refused = 0;     // tries that made no job
    int64_t submitting = 0;  // tries that are making jobs
  };
  using KnownPtr = std::shared_ptr<Known>;
  KnownPtr find(const std::string& key);

  std::mutex mutex_;
  std::condition_variable has_submitted_;
  std::deque<KnownPtr> known_;  // the newest last
};

}  // namespace atelier::serve
