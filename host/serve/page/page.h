// The page at `/`: what people use who have no client.
#pragma once

#include "host/http/server.h"

namespace atelier::serve {

// Adds the page, which needs no key: it asks people for it where the server wants one. The page
// uses the server's own API, /v1/inputs, /v1/jobs and /v1/loras, and no other address.
void add_page(http::Router& router);

}  // namespace atelier::serve
