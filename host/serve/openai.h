// OpenAI's API for pictures and clips, as its clients speak it: /v1/models, /v1/images, /v1/videos.
#pragma once

#include "host/http/server.h"
#include "host/serve/jobs.h"

namespace atelier::serve {

// Adds its routes; `service` outlives the router.
void add_openai(http::Router& router, Service& service);

// An error in OpenAI's form. The field that it is about is what the message begins with.
http::Response openai_error(int status, const std::string& message);

}  // namespace atelier::serve
