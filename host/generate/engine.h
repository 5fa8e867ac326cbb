// The engine: requests become trajectories, which one denoiser advances together.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <list>
#include <span>
#include <vector>

#include "host/generate/decoding.h"
#include "host/generate/denoiser_calls.h"
#include "host/generate/denoisers.h"
#include "host/generate/encoding.h"
#include "host/generate/engine_context.h"
#include "host/generate/image_request.h"
#include "host/generate/lora_use.h"
#include "host/generate/pacer.h"
#include "host/generate/request_run.h"
#include "host/generate/walk.h"

namespace atelier::generate {

// How much is denoised together, whatever requests it is of. One trajectory alone may have more.
struct Packing {
  int64_t max_batch = 0;   // images; 0: as many as the request that joins others has in a batch
  int64_t max_tokens = 0;  // see tokens_of(); 0: any number
};

// Results do not depend on batch_size, on batches_cfg, on other ranks, on other requests or on what
// ran before, up to what the model's own arithmetic does with another batch.
//
//   added -> encoded -> begun, one trajectory for each batch -> steps -> decoded -> done
//                                 ^ on the device: as many as Packing lets in
//
// Where everything stays in memory, a request joins the others between two steps. Otherwise it
// waits until they are through, so that components do not come and go for each. Where several
// denoisers do not stay, all trajectories pass one before the next comes; meanwhile they wait on
// the host. Not thread-safe.
class Engine {
 public:
  using Ticket = uint64_t;

  // `progress` outlives the engine. `is_cancelled` is asked at the edges of all work, and ends all
  // requests with Error{kCancelled}; see ops::StopScope.
  Engine(EngineModel model, progress::Progress& progress, std::function<bool()> is_cancelled = {},
         Packing packing = {});
  ~Engine();
  Engine(const Engine&) = delete;  // its parts point into it
  Engine& operator=(const Engine&) = delete;

  // Takes in a request. May be called by what a Sink calls.
  Ticket add(Request request, Sink sink);
  // Does one piece of work: encodes a request, makes one step of trajectories that go together, or
  // decodes one that is through. False: there is nothing to do. What fails ends its request alone.
  bool advance();
  // The request leaves before the next piece of work, and nothing of its Sink is called any more.
  // May be called by what a Sink calls; does nothing for one that is not there.
  void cancel(Ticket ticket);
  bool is_idle() const { return runs_.empty(); }

  // Adds a request and advances until it is done. Throws what it fails with: Error{kCancelled} at
  // the next edge after is_cancelled said yes; what on_frames has got stays valid.
  void run(const Request& request, const OnFrames& on_frames, const OnSound& on_sound = {});

  // Encodes what `requests` will need, so that encoders are loaded once for all of them.
  // What does not fit into the cache is encoded when it is asked for.
  void encode_ahead(std::span<const Request> requests);

  // All components leave that do not stay. Nothing is going on.
  void unload() { context_.residents.end(); }

  // Nothing is going on: LoRAs leave the model until the next request.
  void rest();

  int64_t cached_bytes() const { return encoder_.cached_bytes(); }  // of encodings, on the device

 private:
  // What fails ends the request.
  template <class F>
  bool attempt(RequestRun& run, const F& work);
  void fail(RequestRun& run, std::exception_ptr failure);
  void erase(const RequestRun& run);
  void drop_cancelled();
  void finish_if_done(RequestRun& run);

  RequestRun* next_to_encode();
  int64_t most_images(const RequestRun& run) const;  // that it may be denoised among
  void encode(RequestRun& run);
  Walk* next_to_decode();
  void decode(Walk& walk);

  // Which trajectories are on the device.
  bool gather();
  void put_aside();
  bool bring_back(Walk& walk);
  bool begin(RequestRun& run);
  Walk* next_to_come_back(const model::RangedDenoiser* denoiser);
  RequestRun* next_to_begin(const model::RangedDenoiser* denoiser);
  RequestRun* first_to_begin();
  bool goes_on_with(const model::RangedDenoiser& denoiser);
  const model::RangedDenoiser& first_denoiser(const RequestRun& run) const;
  bool fits(const RequestRun& run, const Request& request, int64_t count) const;
  int64_t waiting_bytes() const;

  // Their steps.
  using Walks = std::vector<Walk*>;
  bool step();
  Walks next_to_step();
  std::vector<at::Tensor> velocities(const Walks& walks);
  const model::RangedDenoiser* denoiser_behind(const Walks& walks);
  void advance(const Walks& walks, const std::vector<at::Tensor>& velocities);
  void separate(const Walks& walks, const std::exception_ptr& failure);
  void preview(const Walk& walk, const at::Tensor& velocity, int64_t others);

  EngineContext context_;
  Encoder encoder_;
  Denoisers denoisers_;
  DenoiserCalls calls_;
  Decoder decoder_;
  LoraUse loras_;
  Pacer pacer_;
  Packing packing_;
  const bool keeps_all_, keeps_denoisers_;

  std::list<RequestRun> runs_;  // in the order of their tickets
  std::list<Walk> active_;      // on the device
  std::list<Walk> aside_;       // wait on the host for another denoiser
  Ticket last_ticket_ = 0;
  uint64_t turns_ = 0;
  bool has_encoded_ = false;  // since encoders left
};

}  // namespace atelier::generate
