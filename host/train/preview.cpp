#include "host/train/preview.h"

#include <filesystem>

#include "atelier/error.h"

#include "host/files/safetensors_writer.h"
#include "host/generate/engine.h"
#include "host/generate/output_paths.h"
#include "host/generate/request.h"
#include "host/media/pixels.h"
#include "host/media/png.h"
#include "host/model/stages.h"
#include "host/run/stop.h"

namespace atelier::train {

namespace fs = std::filesystem;
using generate::Generator;
using generate::Request;
using generate::Settings;

struct Preview::State {
  model::LoadedModel& model;
  std::vector<Settings> prompts;
  std::string folder;
  std::set<std::string> stays;
  progress::Progress& progress;
  std::unique_ptr<Generator> generator;

  generate::Engine engine() {
    generate::Engine engine = generate::make_engine(model);
    engine.stays.insert(stays.begin(), stays.end());
    return engine;
  }

  Request request_of(const Settings& settings, int64_t step) const {
    Request request = generate::make_request(settings, model.family(), model.model(),
                                             settings.seed.value_or(0), model.stages().variant);
    // What a trained component made is stale a step later.
    for (const ComponentSpec& component : model.family().components()) {
      if (model::encodes(model.family(), component.name) &&
          stays.contains(std::string(component.name)))
        request.encoder_state = std::to_string(step) + ";";
    }
    return request;
  }
};

Preview::Preview(model::LoadedModel& model, std::vector<Settings> prompts, std::string folder,
                 std::set<std::string> stays, progress::Progress& progress)
    : state_(new State{model, std::move(prompts), std::move(folder), std::move(stays), progress,
                       nullptr}) {
  state_->generator =
      std::make_unique<Generator>(state_->engine(), progress, run::StopSignals::is_requested);
}

Preview::~Preview() = default;

void Preview::encode_ahead() {
  std::vector<Request> requests;
  for (const Settings& settings : state_->prompts)
    requests.push_back(state_->request_of(settings, 0));
  state_->generator->encode_ahead(requests);
  state_->generator->unload();
}

void Preview::run(int64_t step, const std::function<void(const Shown&)>& shown) {
  std::error_code failure;
  fs::create_directories(state_->folder, failure);
  if (failure)
    throw Error(ErrorCode::kEnvironment, state_->folder + ": " + failure.message(),
                "move what stands there away");
  char name[40];
  std::snprintf(name, sizeof name, "step-%08lld_", static_cast<long long>(step));
  size_t number = 0;
  for (const Settings& settings : state_->prompts) {
    const std::string path =
        (fs::path(state_->folder) / (name + std::to_string(number) + ".png")).string();
    const Request request = state_->request_of(settings, step);
    const std::vector<std::string> paths = generate::frame_paths(path, request.target.frames);
    state_->generator->run(request, [&](size_t, int64_t first, const at::Tensor& pixels) {
      for (int64_t t = 0; t < pixels.size(1); ++t) {
        const media::Image image = media::to_image(pixels.select(1, t));
        const std::string png = media::encode_png(image, {{"prompt", settings.prompt}});
        const std::string& frame = paths.at(static_cast<size_t>(first + t));
        files::write_file(frame, png);
        state_->progress.note(frame);
        if (first + t == 0) shown({png, settings.prompt, number, image.height, image.width});
      }
    });
    ++number;
  }
  state_->generator->unload();
}

}  // namespace atelier::train
