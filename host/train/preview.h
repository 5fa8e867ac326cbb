// Images and clips of the model as it is being trained.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "host/model/model_loader.h"
#include "host/order/settings.h"
#include "host/progress/progress.h"

namespace atelier::train {

// What this process draws where there are several.
struct PreviewShare {
  size_t first = 0, stride = 1;  // of the prompts
  // The others draw the same at the same time, so that nothing ends it early. Where the folder is
  // empty, another one writes.
  bool in_lockstep = false;
};

// Generates the prompts of --sample_prompts. Components that training does not run are loaded for
// it and leave again; noise is keyed by the prompts' seeds, so that nothing of the run changes.
class Preview {
 public:
  // Images go to FOLDER/step-00000100_0.png, clips to step-00000100_0.mp4, or .webp where MP4
  // cannot be written; their settings have a frame rate. Components of `stays` are loaded by
  // training and do not leave. `model` outlives the preview.
  Preview(model::LoadedModel& model, std::vector<order::Settings> prompts, std::string folder,
          std::set<std::string> stays, progress::Progress& progress, PreviewShare share = {});
  ~Preview();

  // Encodes the prompts before training, while text encoders are not in the way of the denoiser.
  void encode_ahead();
  // `shown` is called with each image as soon as it is written, of a clip with the first frame:
  // which prompt it is of, counted from 0, and its size in pixels.
  struct Shown {
    std::string png, prompt;  // the bytes of the image's file
    std::string path;         // of the file
    size_t number = 0;
    int64_t height = 0, width = 0;
  };
  void run(int64_t step, const std::function<void(const Shown&)>& shown);

 private:
  struct State;
  void draw(int64_t step, const std::function<void(const Shown&)>& shown);
  std::unique_ptr<State> state_;
};

}  // namespace atelier::train
