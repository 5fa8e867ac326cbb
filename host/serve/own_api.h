// The server's own API: jobs with any input of the model, LoRAs, what the model takes, and how the
// server fares.
#pragma once

#include <functional>

#include "host/http/server.h"
#include "host/serve/job_table.h"
#include "host/serve/jobs.h"
#include "host/serve/metrics.h"

namespace atelier::serve {

// A job as the own API tells it.
nlohmann::json view_json(const JobView& view);

// /v1/jobs, /v1/inputs and /v1/loras, and SGLang's calls for LoRAs. `service` outlives the router.
void add_own_api(http::Router& router, Service& service);

// GET /health, which says 503 until `is_ready`, and GET /metrics.
void add_status(http::Router& router, std::function<bool()> is_ready, const Metrics& metrics,
                const JobTable& jobs);

}  // namespace atelier::serve
