// The API of Automatic1111's web UI, as far as its clients need it: /sdapi/v1.
#pragma once

#include "host/http/server.h"
#include "host/serve/jobs.h"

namespace atelier::serve {

// Adds its routes; `service` outlives the router.
void add_sdapi(http::Router& router, Service& service);

// An error as the web UI says it.
http::Response sdapi_error(int status, const std::string& message);

}  // namespace atelier::serve
