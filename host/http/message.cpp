#include "host/http/message.h"

namespace atelier::http {

namespace {

std::string_view value_of(const std::map<std::string, std::string, std::less<>>& values,
                          std::string_view name) {
  const auto found = values.find(name);
  return found == values.end() ? std::string_view() : found->second;
}

}  // namespace

std::string_view Request::header(std::string_view name) const {
  return value_of(headers, name);
}

std::string_view Request::parameter(std::string_view name) const {
  return value_of(parameters, name);
}

}  // namespace atelier::http
