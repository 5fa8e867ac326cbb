// What the encoders read of a dataset's rows, and what tells it apart.
#pragma once

#include <string>
#include <vector>

#include "atelier/component.h"
#include "atelier/input.h"
#include "atelier/model.h"

#include "host/data/dataset.h"
#include "host/samples/source_files.h"

namespace atelier::samples {

// Whether a stage reads any column of the dataset.
bool has_inputs(const data::Dataset& dataset, const EncodeStage& stage);

// Whether some of these columns name files.
bool reads_files(const data::Dataset& dataset, const EncodeStage& stage);

// What a stage reads of a row that is no file. `empty_caption`: with an empty prompt.
Inputs value_inputs(const data::Dataset& dataset, size_t index, const EncodeStage& stage,
                    bool empty_caption);

// Equal for rows of which the stage reads the same. `files` has the hashes of all files.
std::string stage_content(const data::Dataset& dataset, size_t index, const EncodeStage& stage,
                          bool empty_caption, const SourceFiles& files);

// Equal for rows whose target, its size and its mask are equal, and the files that the target's
// stage reads beside it.
std::string image_content(const data::Dataset& dataset, size_t index, const EncodeStage& stage,
                          const SourceFiles& files);

// Bytes of a row's decoded target, and of the images that come to its size: clips are bytes, images
// float32.
int64_t pixel_bytes(const data::Dataset& dataset, const data::Item& item);

// Every file of a row.
std::vector<std::string> files_of(const data::Item& item);

// A mask of `target`, [1, H, W] or [1, T, H, W], averaged over each latent cell: [1, 1, H', W'] or
// [1, T', H', W'].
at::Tensor mask_at(const at::Tensor& mask, const LatentSpec& spec, const MediaTarget& target);

}  // namespace atelier::samples
