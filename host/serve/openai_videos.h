// Clips as OpenAI's API asks for them and tells of them: /v1/videos.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "host/serve/fields.h"
#include "host/serve/jobs.h"

namespace atelier::serve {

// The job of a clip, which outlives the connection and a restart of the server. Throws HttpError
// 400 that begins with the field, 404 for another model.
Asked read_video(Form form, const Service& service);

// As many frames as `seconds` hold, of those that the model makes.
int64_t frames_of(double seconds, double fps, const ModelFacts& model);

// The object "video" of a job that read_video() made.
nlohmann::json video_reply(const JobView& view, const ModelFacts& model);

// A page of the jobs of clips among `views`, the newest of which is first. `query`: after, limit,
// order. Throws HttpError 400.
nlohmann::json videos_page(const std::vector<JobView>& views,
                           const std::map<std::string, std::string, std::less<>>& query,
                           const ModelFacts& model);

// The first frame of a clip's file, as JPEG. Throws as media::open_clip().
std::string thumbnail_of(const std::string& path);

}  // namespace atelier::serve
