#include "host/train/preview.h"

#include <filesystem>
#include <optional>

#include "atelier/error.h"

#include "host/files/safetensors_writer.h"
#include "host/generate/clip_file.h"
#include "host/generate/engine.h"
#include "host/generate/request.h"
#include "host/media/pixels.h"
#include "host/model/media_defaults.h"
#include "host/model/stages.h"
#include "host/order/output_paths.h"
#include "host/run/stop.h"

namespace atelier::train {

namespace fs = std::filesystem;
using generate::Engine;
using generate::Request;
using order::Settings;

namespace {

void make_folder(const std::string& folder) {
  std::error_code failure;
  fs::create_directories(folder, failure);
  if (failure)
    throw Error(ErrorCode::kEnvironment, folder + ": " + failure.message(),
                "move what stands there away");
}

}  // namespace

struct Preview::State {
  model::LoadedModel& model;
  std::vector<Settings> prompts;
  std::string folder;
  std::set<std::string> stays;
  PreviewShare share;
  bool makes_pictures;  // see MediaDefaults
  std::unique_ptr<Engine> engine;

  generate::EngineModel engine_model() const {
    generate::EngineModel of = generate::engine_model_of(model);
    of.stays.insert(stays.begin(), stays.end());
    return of;
  }

  Request request_of(const Settings& settings, int64_t step) const {
    Request request = generate::read_request(settings, model, settings.seed.value_or(0));
    // What a trained component made is stale a step later.
    for (const ComponentSpec& component : model.family().components()) {
      if (model::encodes(model.family(), component) && stays.contains(std::string(component.name)))
        request.encoder_state = std::to_string(step) + ";";
    }
    return request;
  }
};

Preview::Preview(model::LoadedModel& model, std::vector<Settings> prompts, std::string folder,
                 std::set<std::string> stays, progress::Progress& progress, PreviewShare share)
    : state_(new State{model, std::move(prompts), std::move(folder), std::move(stays), share,
                       model::media_defaults(model).frames_are_pictures, nullptr}) {
  state_->engine = std::make_unique<Engine>(
      state_->engine_model(), progress,
      [lockstep = share.in_lockstep] { return !lockstep && run::StopSignals::is_requested(); });
}

Preview::~Preview() = default;

void Preview::encode_ahead() {
  std::vector<Request> requests;
  const auto [first, stride, in_lockstep] = state_->share;
  for (size_t number = first; number < state_->prompts.size(); number += stride)
    requests.push_back(state_->request_of(state_->prompts[number], 0));
  state_->engine->encode_ahead(requests);
  state_->engine->unload();
}

void Preview::run(int64_t step, const std::function<void(const Shown&)>& shown) {
  try {
    draw(step, shown);
  } catch (...) {
    state_->engine->unload();
    throw;
  }
  state_->engine->unload();
}

// What is loaded for it stays.
void Preview::draw(int64_t step, const std::function<void(const Shown&)>& shown) {
  std::optional<Error> failure;  // of a file: others, who draw the same, wait for no less
  const auto write = [&](const auto& work) {
    if (state_->folder.empty() || failure) return;
    try {
      work();
    } catch (const Error& error) {
      if (!state_->share.in_lockstep) throw;
      failure = error;
    }
  };
  write([&] { make_folder(state_->folder); });
  char name[40];
  std::snprintf(name, sizeof name, "step-%08lld_", static_cast<long long>(step));
  const auto [begin, stride, in_lockstep] = state_->share;
  for (size_t number = begin; number < state_->prompts.size(); number += stride) {
    const Settings& settings = state_->prompts[number];
    const Request request = state_->request_of(settings, step);
    const MediaTarget& target = request.target;
    const bool is_clip = target.frames > 1 && !state_->makes_pictures;
    const std::string_view extension =
        is_clip ? media::preferred_clip_format().extension : std::string_view(".png");
    const std::string path =
        (fs::path(state_->folder) / (name + std::to_string(number) + std::string(extension)))
            .string();
    const std::vector<std::string> paths = order::frame_paths(path, is_clip ? 1 : target.frames);
    const media::Text text = {{"prompt", settings.prompt.value_or("")}};
    std::optional<generate::ClipFile> clip;
    if (is_clip) write([&] { clip.emplace(path, target, settings.fps.value(), text); });
    std::string png;  // of the first frame
    state_->engine->run(request, [&](size_t, int64_t first, const at::Tensor& pixels) {
      write([&] {
        if (first == 0) png = media::png_of(pixels.select(1, 0), text);
        if (clip) return clip->add(pixels);
        for (int64_t t = 0; t < pixels.size(1); ++t)
          files::write_file(paths.at(static_cast<size_t>(first + t)),
                            media::png_of(pixels.select(1, t), text));
      });
    });
    write([&] {
      if (clip) clip->finish();
      shown(
          {png, settings.prompt.value_or(""), paths.front(), number, target.height, target.width});
    });
  }
  if (failure) throw Error(*failure);
}

}  // namespace atelier::train
