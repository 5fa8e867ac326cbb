// The images that a run makes on its way to show how far it is: the file of --sample_prompts.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "atelier/input.h"

#include "host/data/dataset.h"
#include "host/order/jobs.h"
#include "host/order/training.h"
#include "host/report/problems.h"

namespace atelier::order {

// Frames and size of an image whose prompt says none: --height and --width, else what most samples
// of the run are trained at; with several lengths of --num_frames, most samples of the longest.
// `dataset` may be null: then the samples are those of the cache. nullopt where neither can tell.
std::optional<MediaTarget> preview_target(const Training& config, const data::Dataset* dataset);

// Reads the text of a file in which each line is a prompt, with switches behind it as in kohya's
// trainers:
//
//   a red fox in snow --n blurry --w 1024 --h 768 --d 7 --s 30 --l 4 --fs 3 --i fox.png
//
// w and h are pixels, d is the seed, s are the steps, l is the CFG scale, n is the negative prompt,
// fs is the constant flow shift, ctr is cfg_trunc, rcfg is the cfg_renorm_ratio of clamp (0: none),
// i is the input image, f are the frames, and ci is a picture that the family goes by, of which
// there may be several. What a line leaves out is as in `base`. Blank lines
// and lines that begin with # are skipped. `name` stands for the file in messages. Mistakes become
// problems; what needs the family or the model is left to generate::check_settings() and
// generate::check_against_model().
std::vector<Job> parse_sample_prompts(std::string_view text, const std::string& name,
                                      const Settings& base, std::span<const InputSpec> inputs,
                                      report::Problems& problems);

// Reads a file: FILE.jsonl is what generate's --prompts_file takes, anything else is as above. A
// file that cannot be read or has no prompts is a problem.
std::vector<Job> read_sample_prompts(const std::string& path, const Settings& base,
                                     std::span<const InputSpec> inputs, report::Problems& problems);

}  // namespace atelier::order
