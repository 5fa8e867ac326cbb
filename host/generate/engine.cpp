#include "host/generate/engine.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <string>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "atelier/error.h"
#include "atelier/host/scaled_products.h"
#include "atelier/host/stop.h"

#include "host/plugins/guard.h"

namespace atelier::generate {
namespace {

// The bytes of latents at which no more are put aside for the next denoiser.
constexpr int64_t kWaitingBytes = int64_t{1} << 29;

// Throws where a step has no denoiser.
void check_levels(const Request& request, const model::Stages& stages) {
  for (int64_t i = 0; i < request.num_steps(); ++i) denoiser_of(request, stages.denoisers, i);
}

}  // namespace

Engine::Engine(EngineModel model, progress::Progress& progress, std::function<bool()> is_cancelled,
               Packing packing)
    : context_(std::move(model), progress, std::move(is_cancelled)),
      encoder_(context_),
      denoisers_(context_),
      calls_(context_, denoisers_),
      decoder_(context_),
      loras_(context_.of.loras),
      pacer_(context_.of.device),
      packing_(packing),
      keeps_all_(context_.of.keeps_all()),
      keeps_denoisers_(context_.of.keeps_denoisers()) {}

Engine::~Engine() = default;

Engine::Ticket Engine::add(Request request, Sink sink) {
  runs_.emplace_back(++last_ticket_, std::move(request), std::move(sink), context_);
  return last_ticket_;
}

void Engine::cancel(Ticket ticket) {
  for (RequestRun& run : runs_) run.is_cancelled |= run.ticket == ticket;
}

bool Engine::advance() {
  const at::NoGradGuard no_grad;
  const ops::FastSums fast;
  const ops::StopScope stops(context_.check());
  drop_cancelled();
  if (Walk* const walk = next_to_decode()) {
    decode(*walk);
  } else if (RequestRun* const run = next_to_encode()) {
    encode(*run);
  } else {
    return step();
  }
  return true;
}

void Engine::run(const Request& request, const OnFrames& on_frames, const OnSound& on_sound) {
  bool is_done = false;
  std::exception_ptr failure;
  add(request, {.on_frames = on_frames,
                .on_sound = on_sound,
                .on_done = [&] { is_done = true; },
                .on_failed = [&](std::exception_ptr found) { failure = std::move(found); }});
  while (!is_done && !failure) advance();
  if (failure) std::rethrow_exception(failure);
}

void Engine::rest() {
  denoisers_.forget();
  loras_.use({});
}

void Engine::encode_ahead(std::span<const Request> requests) {
  const at::NoGradGuard no_grad;
  const ops::FastSums fast;
  const ops::StopScope stops(context_.check());
  for (const Request& request : requests) {
    if (cached_bytes() > Encoder::kAheadBytes) return;
    encoder_.encode_conditions(request);
  }
}

template <class F>
bool Engine::attempt(RequestRun& run, const F& work) {
  std::exception_ptr failure;
  try {
    work();
    return true;
  } catch (...) {
    failure = std::current_exception();
  }
  fail(run, std::move(failure));  // nothing of what failed is held any more
  return false;
}

void Engine::fail(RequestRun& run, std::exception_ptr failure) {
  const Sink sink = run.sink;
  const bool is_told = sink.on_failed && !run.is_cancelled;
  erase(run);
  try {
    denoisers_.forget();
  } catch (...) {  // of a device that computes no more: what failed before says why
  }
  if (is_told) sink.on_failed(std::move(failure));
}

void Engine::erase(const RequestRun& run) {
  const auto is_of_run = [&](const Walk& walk) { return &walk.run == &run; };
  active_.remove_if(is_of_run);
  aside_.remove_if(is_of_run);
  runs_.remove_if([&](const RequestRun& one) { return &one == &run; });
}

void Engine::drop_cancelled() {
  std::vector<const RequestRun*> cancelled;
  for (const RequestRun& run : runs_)
    if (run.is_cancelled) cancelled.push_back(&run);
  for (const RequestRun* const run : cancelled) erase(*run);
}

void Engine::finish_if_done(RequestRun& run) {
  if (!run.is_done()) return;
  const Sink sink = run.sink;
  const bool is_told = sink.on_done && !run.is_cancelled;
  erase(run);
  if (is_told) sink.on_done();
}

// Beside a denoiser there may be no room for what encodes. Where there is, what would have to wait
// for the others is not encoded yet.
RequestRun* Engine::next_to_encode() {
  const bool is_between = active_.empty() && aside_.empty();
  const bool is_underway = std::ranges::any_of(runs_, &RequestRun::has_begun);
  int64_t ahead = 0, images = 0;  // bytes that are encoded, and what is made with them
  for (const RequestRun& run : runs_) {
    ahead += run.encoded_bytes();
    images += run.images_ahead();
  }
  for (const Walk& walk : active_) images += walk.trajectory.count();
  for (RequestRun& run : runs_) {
    if (!run.wants_encoding()) continue;
    const bool is_first = run.has_begun() || !is_underway;
    const bool may_come = keeps_all_ ? images < most_images(run) : is_between && is_first;
    return may_come && ahead <= Encoder::kAheadBytes ? &run : nullptr;
  }
  return nullptr;
}

int64_t Engine::most_images(const RequestRun& run) const {
  return packing_.max_batch > 0 ? packing_.max_batch : run.request.batch_size;
}

void Engine::encode(RequestRun& run) {
  attempt(run, [&] {
    loras_.use_beside(run.request.loras, /*anew=*/!run.has_begun());
    has_encoded_ = true;
    run.encode(encoder_);
    check_levels(run.next_request(), context_.of.stages);
  });
}

Walk* Engine::next_to_decode() {
  const auto found =
      std::ranges::find_if(active_, [](const Walk& walk) { return walk.trajectory.is_through(); });
  return found == active_.end() ? nullptr : &*found;
}

void Engine::decode(Walk& walk) {
  RequestRun& run = walk.run;
  // Decoding may need the room.
  if (active_.size() == 1 && aside_.empty() && first_to_begin() == nullptr) denoisers_.forget();
  const bool is_decoded = attempt(run, [&] {
    loras_.use_beside(run.request.loras);
    run.decode(decoder_, walk.trajectory);
  });
  if (!is_decoded) return;
  active_.remove_if([&](const Walk& one) { return &one == &walk; });
  finish_if_done(run);
}

// ---- Which trajectories are on the device ----

// Brings as many as there is room for. False: a request failed that was to begin or to go on.
bool Engine::gather() {
  put_aside();
  while (true) {
    const model::RangedDenoiser* const denoiser =
        active_.empty() ? denoisers_.current() : &active_.front().denoiser();
    if (Walk* const walk = next_to_come_back(denoiser)) {
      if (!bring_back(*walk)) return false;
    } else if (RequestRun* const run = next_to_begin(denoiser)) {
      if (!begin(*run)) return false;
    } else if (active_.empty() && !aside_.empty()) {
      if (!bring_back(aside_.front())) return false;
    } else {
      return true;
    }
  }
}

// Walks that go on with another denoiser wait while any goes on with the one that is there, and are
// then all taken up in their order.
void Engine::put_aside() {
  const model::RangedDenoiser* const current = denoisers_.current();
  if (keeps_denoisers_ || current == nullptr) return;
  if (!goes_on_with(*current) && aside_.empty()) return;
  for (auto walk = active_.begin(); walk != active_.end();) {
    const auto next = std::next(walk);
    if (&walk->denoiser() != current) {
      walk->waiting_bytes = walk->trajectory.put_aside();
      aside_.splice(aside_.end(), active_, walk);
    }
    walk = next;
  }
}

bool Engine::goes_on_with(const model::RangedDenoiser& denoiser) {
  const auto is_with = [&](const Walk& walk) { return &walk.denoiser() == &denoiser; };
  const RequestRun* const run = first_to_begin();
  return std::ranges::any_of(active_, is_with) || std::ranges::any_of(aside_, is_with) ||
         (run != nullptr && &first_denoiser(*run) == &denoiser && waiting_bytes() < kWaitingBytes);
}

int64_t Engine::waiting_bytes() const {
  int64_t bytes = 0;
  for (const Walk& walk : aside_) bytes += walk.waiting_bytes;
  return bytes;
}

const model::RangedDenoiser& Engine::first_denoiser(const RequestRun& run) const {
  return denoiser_of(run.next_request(), context_.of.stages.denoisers, 0);
}

RequestRun* Engine::first_to_begin() {
  const auto found = std::ranges::find_if(runs_, &RequestRun::can_begin);
  return found == runs_.end() ? nullptr : &*found;
}

Walk* Engine::next_to_come_back(const model::RangedDenoiser* denoiser) {
  for (Walk& walk : aside_) {
    if (&walk.denoiser() == denoiser &&
        fits(walk.run, walk.trajectory.request(), walk.trajectory.count()))
      return &walk;
  }
  return nullptr;
}

// Requests begin in their order.
RequestRun* Engine::next_to_begin(const model::RangedDenoiser* denoiser) {
  RequestRun* const run = first_to_begin();
  if (run == nullptr || !fits(*run, run->next_request(), run->next_count())) return nullptr;
  if (keeps_denoisers_ || (active_.empty() && aside_.empty())) return run;
  const bool is_with = &first_denoiser(*run) == denoiser;
  return is_with && waiting_bytes() < kWaitingBytes ? run : nullptr;
}

// Whether a trajectory of `run` has room beside those that are there, and may share their calls.
bool Engine::fits(const RequestRun& run, const Request& request, int64_t count) const {
  if (active_.empty()) return true;
  if (!context_.of.ranks.is_alone()) return false;
  const LatentSpec spec = context_.of.model.latent_spec();
  int64_t images = count, tokens = count * tokens_of(request.target, spec);
  std::vector<Loras> loras = {run.request.loras};
  for (const Walk& walk : active_) {
    if (walk.is_alone) return false;
    loras.push_back(walk.run.request.loras);
    images += walk.trajectory.count();
    tokens += walk.trajectory.count() * tokens_of(walk.trajectory.request().target, spec);
  }
  if (images > most_images(run) || (packing_.max_tokens > 0 && tokens > packing_.max_tokens))
    return false;
  try {
    return loras_.can_share(loras);
  } catch (const Error&) {
    return false;  // of a file that is gone: the request fails by itself when it begins
  }
}

bool Engine::bring_back(Walk& walk) {
  return attempt(walk.run, [&] {
    walk.trajectory.bring_back();
    const auto found = std::ranges::find_if(aside_, [&](const Walk& one) { return &one == &walk; });
    active_.splice(active_.end(), aside_, found);
  });
}

bool Engine::begin(RequestRun& run) {
  return attempt(run, [&] {
    if (std::exchange(has_encoded_, false)) context_.residents.end_encoding();
    if (active_.empty()) {
      loras_.use(run.request.loras);
      const Denoisers::Step first = {&run.next_request(), 0};
      denoisers_.use({&first, 1});
    }
    const bool is_one_of_more = std::ssize(run.next_request().seeds) > run.next_count();
    active_.push_back(
        {.run = run, .trajectory = run.begin(), .in_parts = !keeps_denoisers_ && is_one_of_more});
    active_.back().trajectory.skip(context_.of.makes_step);
  });
}

// ---- Their steps ----

bool Engine::step() {
  if (!gather()) return true;
  const Walks walks = next_to_step();
  if (walks.empty()) return false;
  std::vector<at::Tensor> made;
  std::exception_ptr failure;
  try {
    made = velocities(walks);
  } catch (...) {
    failure = std::current_exception();
  }
  if (failure)
    separate(walks, failure);
  else
    advance(walks, made);
  return true;
}

// The one whose turn was longest ago, and those that may share its calls.
Engine::Walks Engine::next_to_step() {
  Walks walks;
  if (active_.empty()) return walks;
  Walk& first = *std::ranges::min_element(active_, {}, &Walk::turn);
  for (Walk& walk : active_) {
    const bool shares = &walk.denoiser() == &first.denoiser() && !walk.is_alone && !first.is_alone;
    if (shares || &walk == &first) walks.push_back(&walk);
  }
  return walks;
}

std::vector<at::Tensor> Engine::velocities(const Walks& walks) {
  context_.check_cancelled();
  std::vector<const Trajectory*> trajectories;
  for (Walk* const walk : walks) trajectories.push_back(&walk->trajectory);
  const ops::SampleStrengths* const strengths = loras_.use_each(trajectories);
  const model::RangedDenoiser& denoiser = walks.front()->denoiser();
  std::vector<Denoisers::Step> steps;
  for (const Walk& walk : active_) {
    if (&walk.denoiser() == &denoiser)
      steps.push_back({&walk.trajectory.request(), walk.trajectory.step()});
  }
  denoisers_.use(steps);
  for (Walk* const walk : walks) {
    walk->turn = ++turns_;
    walk->begin_line(context_.progress);
  }
  context_.begin_phase("denoise", trajectories.front()->step() + 1);
  return calls_.velocities(trajectories, strengths, denoiser_behind(walks));
}

// The denoiser that comes behind the steps of `walks`, where nothing goes on with theirs.
const model::RangedDenoiser* Engine::denoiser_behind(const Walks& walks) {
  if (active_.size() > walks.size() || first_to_begin() != nullptr) return nullptr;
  const model::RangedDenoiser& own = walks.front()->denoiser();
  const model::RangedDenoiser* next = nullptr;
  for (const Walk* const walk : walks) {
    const Trajectory& trajectory = walk->trajectory;
    if (trajectory.step() + 1 == trajectory.steps()) continue;
    const model::RangedDenoiser& of_walk = trajectory.denoiser_at(trajectory.step() + 1);
    if (&of_walk == &own || (next != nullptr && next != &of_walk)) return nullptr;
    next = &of_walk;
  }
  const auto is_own = [&](const Walk& walk) { return &walk.denoiser() == &own; };
  return std::ranges::any_of(aside_, is_own) ? nullptr : next;
}

void Engine::advance(const Walks& walks, const std::vector<at::Tensor>& velocities) {
  const model::RangedDenoiser& made_by = walks.front()->denoiser();
  std::vector<int64_t> others;  // walks of the same request before each
  for (auto walk = walks.begin(); walk != walks.end(); ++walk) {
    others.push_back(std::count_if(walks.begin(), walk,
                                   [&](const Walk* one) { return &one->run == &(*walk)->run; }));
  }
  const auto each = [&](const auto& work) {
    for (size_t i = 0; i < walks.size(); ++i) {
      const auto is_it = [&](const Walk& walk) { return &walk == walks[i]; };
      // Another walk of its request may have failed.
      if (std::ranges::any_of(active_, is_it)) attempt(walks[i]->run, [&] { work(*walks[i], i); });
    }
  };
  each([&](Walk& walk, size_t i) {
    if (walk.run.wants_preview(others[i])) preview(walk, velocities[i], others[i]);
    walk.trajectory.advance(velocities[i]);
    walk.trajectory.skip(context_.of.makes_step);
  });
  pacer_.step();
  each([&](Walk& walk, size_t) {
    walk.advance_line(made_by);
    walk.run.tell_step();
  });
}

// What the velocity says of the end. `others`: see RequestRun::wants_preview().
void Engine::preview(const Walk& walk, const at::Tensor& velocity, int64_t others) {
  const Trajectory& trajectory = walk.trajectory;
  const at::Tensor clean = trajectory.x_BCTHW().narrow(0, 0, 1) -
                           velocity.narrow(0, 0, 1) * static_cast<double>(trajectory.sigma());
  walk.run.tell_preview(decoder_.preview(trajectory, clean), others);
}

// What a failure of a step becomes: that of its request or, of several walks, steps that each of
// them makes alone from now on.
void Engine::separate(const Walks& walks, const std::exception_ptr& failure) {
  std::optional<Error> no_room;
  bool is_cancelled = false;
  try {
    std::rethrow_exception(failure);
  } catch (const Error& error) {
    is_cancelled = error.code() == ErrorCode::kCancelled;
    no_room = plugins::out_of_memory();
  } catch (...) {
    no_room = plugins::out_of_memory();
  }
  if (walks.size() == 1 || is_cancelled) {
    std::set<RequestRun*> runs;
    for (const Walk* const walk : walks) runs.insert(&walk->run);
    for (RequestRun* const run : runs) fail(*run, failure);
    return;
  }
  denoisers_.forget();
  if (calls_.has_unresolved()) loras_.share_no_more();
  int64_t images = 0;
  for (Walk* const walk : walks) {
    walk->is_alone = true;
    images += walk->trajectory.count();
  }
  if (!no_room) return;
  packing_.max_batch = images - 1;
  context_.progress.warn(no_room->message() + "; from this step on " + std::to_string(images) +
                         " images are denoised one after the other");
}

}  // namespace atelier::generate
