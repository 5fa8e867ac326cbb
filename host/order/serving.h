// What a user asks of `atelier serve`, whole: the model, what requests may leave out, and the
// server's own settings.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "host/http/server.h"
#include "host/lora/selection.h"
#include "host/order/generation.h"

namespace atelier::order {

// What one request may ask for at most.
struct RequestLimits {
  int64_t max_pixels = 4'194'304;  // height times width
  int64_t max_frames = 1024;       // of a clip
  int64_t max_steps = 200;
  int64_t max_images = 16;
};

// Plain data.
struct Serving {
  // The model and what requests leave out, in `base`; no jobs. LoRAs and their folder are below.
  Generation generation = {};
  http::ServerOptions server = {};
  std::string served_name = {};           // empty: that of the model's folder
  std::vector<lora::LoraRef> loras = {};  // of --lora: registered, and loaded for all requests
  std::string lora_dir = {};              // whose files clients may name; empty: none
  std::string output_dir = {};            // empty: a folder that goes with the server
  int64_t max_queue = 64;                 // jobs that wait
  int64_t keep_jobs = 256;                // jobs that are over and known
  // Images that are denoised together, of all requests; nullopt: as many as a plan within --vram
  // has use for, or one where nothing was said of memory.
  std::optional<int64_t> max_batch = {};
  double idle_after_s = 0;  // then weights leave the device; 0: they stay
  RequestLimits limits = {};
};

// A value of a request that is beyond the limits.
struct Excess {
  std::string_view name;  // of the setting
  int64_t value = 0, most = 0;
  std::string_view of = {};     // what is counted, where the name does not say it: " levels"
  std::string_view limit = {};  // the flag that says `most`; empty: none of RequestLimits

  // "200 levels is more than 100, the most that this server makes".
  std::string text() const;
};

// What of the settings is beyond the limits, as far as it is said; `max_batch` is that of one
// request.
std::vector<Excess> beyond(const RequestLimits& limits, int64_t max_batch,
                           const Settings& settings);

// All flags of `atelier serve`; `family` may be null.
flags::CommandSpec serve_command(const ModelFamily* family);

// What the words order from the family of `plugin`, as read_generation(). `key` is what the
// environment says of the API key; empty: nothing.
Serving read_serving(const Words& words, const plugins::Plugin* plugin, const std::string& key,
                     report::Problems& problems);

}  // namespace atelier::order
