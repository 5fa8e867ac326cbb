// What tests of whole runs share: a small dataset, encoded, and what a run on it needs.
#pragma once

#include <cstdio>
#include <memory>
#include <string>

#include "host/train/run_state.h"
#include "train_toy.h"

namespace atelier::test {

// Three images of 16x16 and their texts. What is said goes to a file.
struct RunToy : TrainToy {
  std::unique_ptr<samples::Samples> samples;
  std::FILE* said_file = std::tmpfile();
  progress::Progress progress{{.quiet = false, .out = said_file}};

  RunToy() {
    std::string rows = "image,prompt\n";
    for (int i = 0; i < 3; ++i) {
      write_toy_image(folder / "data/" + std::to_string(i) + ".png", 16, 16, i);
      rows += std::to_string(i) + ".png,number " + std::to_string(i) + "\n";
    }
    write_bytes(folder / "data/metadata.csv", rows);
    config.dataset.dataset_base_path = folder / "data";
    config.dataset.dataset_metadata_path = folder / "data/metadata.csv";
    open();
    samples = std::make_unique<samples::Samples>(samples::Samples::of_dataset(
        open_toy_dataset(config.dataset), *model,
        samples::cached_stages(image_toy(), image_toy().encode_stages(), {}), folder / "cache",
        false));
    REQUIRE(samples->fill(*model, 0, progress, [] { return false; }));
  }
  ~RunToy() { std::fclose(said_file); }
  RunToy(const RunToy&) = delete;
  RunToy& operator=(const RunToy&) = delete;

  // Everything that was said so far.
  std::string said() const {
    std::rewind(said_file);
    std::string text(1 << 16, '\0');
    text.resize(std::fread(text.data(), 1, text.size(), said_file));
    return text;
  }
  train::RunContext parts(run::RunFolder& run_folder, train::Preview* preview = nullptr) {
    return {*model,      config,        parameters::unplanned_layout(config),
            *samples,    samples.get(), preview,
            &run_folder, progress};
  }
};

}  // namespace atelier::test
