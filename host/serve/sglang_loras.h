// SGLang's calls for LoRAs.
#pragma once

#include "host/http/server.h"
#include "host/serve/jobs.h"

namespace atelier::serve {

// /v1/set_lora, /v1/merge_lora_weights, /v1/unmerge_lora_weights and /v1/list_loras; `service`
// outlives the router.
void add_sglang_loras(http::Router& router, Service& service);

}  // namespace atelier::serve
