// From settings that were checked to the request that the engine runs.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "atelier/model_family.h"

#include "host/generate/image_request.h"
#include "host/generate/input_files.h"
#include "host/model/model_loader.h"
#include "host/order/settings.h"

namespace atelier::generate {

// The schedule of a request. `variant`, here and below: of the denoiser; empty where it is not
// known.
const ScheduleDefaults& schedule_of(const order::Settings& settings, const ModelFamily& family,
                                    std::string_view variant);
// Scales of the first denoiser, and of one of less noise where that has another.
struct CfgScales {
  double first = 1.0;
  std::optional<double> second = std::nullopt;
  double off = 1.0;  // see ScheduleDefaults::cfg_off
  bool is_guided() const { return first != off || second.value_or(off) != off; }
};
CfgScales cfg_scales_of(const order::Settings& settings, const ModelFamily& family,
                        std::string_view variant = {});
std::string_view renorm_name(CfgRenorm renorm);
// nullopt for a name that is none.
std::optional<CfgRenorm> find_renorm(std::string_view name);

// Reads the input files of settings that fill_target() has filled, and makes their request. `seed`
// is the first image's. Throws as read_inputs().
Request read_request(const order::Settings& settings, const model::LoadedModel& model,
                     uint64_t seed);
// The request without the values of files, see blank_inputs(): what planning asks for.
Request blank_request(const order::Settings& settings, const model::LoadedModel& model);
// The request of settings that fill_target() has filled, with the files that read_inputs() has read
// for them.
Request make_request(const order::Settings& settings, InputFiles files, const ModelFamily& family,
                     const LatentSpec& spec, uint64_t seed, std::string_view variant = {});

// The controls that are given inputs and do something, see Model::runs(), in each step of the
// request.
std::vector<std::set<std::string>> running_controls(const Request& request,
                                                    const model::LoadedModel& model);

}  // namespace atelier::generate
