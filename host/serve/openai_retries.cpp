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

Retries::Ids Retries::submit(const http::Request& request, const Form& form,
                             const std::function<bool(const Ids&)>& is_usable,
                             const std::function<Ids()>& submit) {
  const bool is_retry =
      report::parse_number<int64_t>(request.header("x-stainless-retry-count")).value_or(0) > 0;
  const std::string key = key_of(request, form);
  const std::lock_guard lock(mutex_);
  auto known =
      std::find_if(known_.begin(), known_.end(), [&](const Known& k) { return k.key == key; });
  if (known == known_.end()) {
    if (known_.size() == kMostKnown) known_.pop_front();
    known_.push_back({.key = key});
    known = std::prev(known_.end());
  }
  const bool follows_refusal = is_retry && known->refused > 0;
  if (follows_refusal) --known->refused;
  if (is_retry && !follows_refusal && !known->ids.empty() && is_usable(known->ids))
    return known->ids;
  try {
    known->ids = submit();
  } catch (...) {
    ++known->refused;
    throw;
  }
  return known->ids;
}

}  // namespace atelier::serve
