#include "host/serve/page/page.h"

#include <string>

#include "host/serve/page/page_source.h"

namespace atelier::serve {
namespace {

// Lets the page run its own script and speak to this server alone.
std::string content_security_policy() {
  return "default-src 'none'; script-src '" + std::string(kScriptHash) + "'; style-src '" +
         std::string(kStyleHash) +
         "'; img-src 'self' blob: data:; media-src 'self' blob:; connect-src 'self'; "
         "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
}

}  // namespace

void add_page(http::Router& router) {
  router.add("GET", "/", [](const http::Request&, http::Client&) {
    return http::Response{.content_type = "text/html; charset=utf-8",
                          .body = std::string(kPage),
                          .headers = {{"Content-Security-Policy", content_security_policy()},
                                      {"Cache-Control", "no-cache"},
                                      {"Referrer-Policy", "no-referrer"},
                                      {"X-Content-Type-Options", "nosniff"}}};
  });
  router.add_open("/");
}

}  // namespace atelier::serve
