#include "host/serve/openai_retries.h"

#include <algorithm>

#include "host/files/content_hash.h"
#include "host/report/text.h"

namespace atelier::serve {
namespace {

constexpr size_t kMostKnown = 256;

std::string key_of(const http::Request& request, const Form& form) {
  files::ContentHash hash;
  hash.add(request.path);
  hash.add(form.fields.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  for (const FormFile& file : form.files) hash.add(file.name).add(file.bytes);
  return hash.hex();
}

}  // namespace

// The request of a key, which is known from now on. Under the lock.
Retries::KnownPtr Retries::find(const std::string& key) {
  const auto found = std::ranges::find_if(known_, [&](const KnownPtr& k) { return k->key == key; });
  if (found != known_.end()) return *found;
  if (known_.size() == kMostKnown) known_.pop_front();
  known_.push_back(std::make_shared<Known>(Known{.key = key}));
  return known_.back();
}

Retries::Ids Retries::submit(const http::Request& request, const Form& form,
                             const std::function<bool(const Ids&)>& is_usable,
                             const std::function<Ids()>& submit) {
  const bool is_retry =
      report::parse_number<int64_t>(request.header("x-stainless-retry-count")).value_or(0) > 0;
  const std::string key = key_of(request, form);
  std::unique_lock lock(mutex_);
  const KnownPtr known = find(key);
  if (is_retry) has_submitted_.wait(lock, [&] { return known->submitting == 0; });
  const bool follows_refusal = is_retry && known->refused > 0;
  if (follows_refusal) --known->refused;
  if (is_retry && !follows_refusal && !known->ids.empty() && is_usable(known->ids))
    return known->ids;
  ++known->submitting;
  lock.unlock();
  Ids ids;
  try {
    ids = submit();
  } catch (...) {
    lock.lock();
    ++known->refused;
    --known->submitting;
    has_submitted_.notify_all();
    throw;
  }
  lock.lock();
  known->ids = ids;
  --known->submitting;
  has_submitted_.notify_all();
  return ids;
}

}  // namespace atelier::serve
