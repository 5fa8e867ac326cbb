// What the encoders read of a dataset's rows, and what tells it apart.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "atelier/input.h"

#include "host/data/dataset.h"
#include "host/train/source_files.h"

namespace atelier::train {

// What encode_text reads of a row: the inputs of the family but for the picture to learn. Pictures
// are decoded only where there are some among them. `empty_caption`: with an empty prompt.
Inputs text_inputs(const data::Dataset& dataset, size_t index, std::span<const InputSpec> specs,
                   bool empty_caption);

// The same but for pictures.
Inputs value_inputs(const data::Dataset& dataset, size_t index, std::span<const InputSpec> specs,
                    bool empty_caption);

// Equal for rows whose text_inputs() are equal. `files` has the hashes of all files.
std::string text_content(const data::Dataset& dataset, size_t index,
                         std::span<const InputSpec> specs, bool empty_caption,
                         const SourceFiles& files);

// Equal for rows whose picture to learn, its size and its mask are equal.
std::string picture_content(const data::Dataset& dataset, size_t index, const SourceFiles& files);

// Every file of a row.
std::vector<std::string> files_of(const data::Item& item);

// The picture to learn, float32 [3, H, W] in [-1, 1].
const at::Tensor& learnt_pixels(const data::Sample& sample, const data::Dataset& dataset);

// The mask [1, H, W] averaged over each latent cell: [1, 1, height, width].
at::Tensor mask_at(const at::Tensor& mask_1HW, int64_t height, int64_t width);

}  // namespace atelier::train
