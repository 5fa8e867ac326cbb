// A server's line that makes nothing: tests say what becomes of each job.
#pragma once

#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "host/http/message.h"
#include "host/http/server.h"
#include "host/serve/jobs.h"

namespace atelier::serve {

class FakeJobs final : public Jobs {
 public:
  // What wait() makes of a job, one after another; behind the last one it stays as it is.
  std::map<std::string, std::deque<JobView>> next = {};
  std::vector<Asked> asked = {};
  std::vector<std::string> cancelled = {}, removed = {};
  size_t most = 100;  // jobs that the line has room for

  std::string submit(Asked job) override {
    if (asked.size() == most)
      throw http::HttpError(429, "the line is full", {{"Retry-After", "1"}});
    const std::string id = "job" + std::to_string(asked.size());
    views_[id] = {.id = id, .created_s = 100.0 + asked.size(), .note = job.note, .api = job.api};
    asked.push_back(std::move(job));
    ++waiting_[id];
    return id;
  }

  bool join(std::string_view id) override {
    const auto found = views_.find(id);
    if (found == views_.end() || found->second.state == JobState::kCancelled) return false;
    ++waiting_[found->first];
    return true;
  }

  void leave(std::string_view id) override {
    if (--waiting_[std::string(id)] == 0) cancel(id);
  }

  JobView& view(const std::string& id) { return views_.at(id); }

  std::optional<JobView> find(std::string_view id) const override {
    const auto found = views_.find(id);
    return found == views_.end() ? std::nullopt : std::optional(found->second);
  }

  std::optional<JobView> wait(std::string_view id, uint64_t,
                              std::chrono::milliseconds) const override {
    auto& self = const_cast<FakeJobs&>(*this);
    const auto found = self.views_.find(id);
    if (found == self.views_.end()) return std::nullopt;
    if (auto& coming = self.next[found->first]; !coming.empty()) {
      JobView view = coming.front();
      coming.pop_front();
      view.id = found->first;
      view.version = found->second.version + 1;
      found->second = std::move(view);
    }
    return found->second;
  }

  std::vector<JobView> list() const override {
    std::vector<JobView> all;
    for (auto view = views_.rbegin(); view != views_.rend(); ++view) all.push_back(view->second);
    return all;
  }

  bool cancel(std::string_view id) override {
    const auto found = views_.find(id);
    if (found == views_.end() || found->second.state > JobState::kRunning) return false;
    found->second.state = JobState::kCancelled;
    cancelled.emplace_back(id);
    return true;
  }

  bool remove(std::string_view id) override {
    removed.emplace_back(id);
    return views_.erase(std::string(id)) > 0;
  }

 private:
  std::map<std::string, JobView, std::less<>> views_;
  std::map<std::string, int64_t> waiting_;  // requests, by job
};

class FakeLoras final : public Loras {
 public:
  std::vector<RegisteredLora> known = {{.name = "style", .file = "style.safetensors"},
                                       {.name = "Detail", .file = "detail.safetensors"}};

  std::vector<RegisteredLora> list() const override { return known; }
  void add(const std::string&, const std::string&, const std::string&) override {}
  void remove(const std::string&) override {}
  void set_loaded(const std::string&, bool, double) override {}
};

class FakeClient final : public http::Client {
 public:
  int64_t looks = 1000;  // before the client is gone
  std::string sent = {};

  bool is_gone() override { return --looks < 0; }
  bool send(std::string_view part) override {
    sent += part;
    return true;
  }
};

// What tables say of a model: pictures, or clips of 16 frames a second, 4 of which are one latent.
inline ModelFacts facts(bool makes_clips = false) {
  const auto row = [](const char* name, const char* kind) {
    return nlohmann::json{{"name", name}, {"kind", kind}, {"help", ""}};
  };
  auto start = row("input_image", "image");
  start["starts"] = true;
  const nlohmann::json settings = {
      row("prompt", "text"),        row("negative_prompt", "text"),
      row("width", "integer"),      row("height", "integer"),
      row("num_frames", "integer"), row("fps", "real"),
      row("seed", "seed"),          row("num_images", "integer"),
      row("cfg_scale", "real"),     row("cfg_scale_2", "real"),
      row("flow_shift", "real"),    row("num_inference_steps", "integer"),
      row("solver", "text"),        row("schedule", "text"),
      row("inpaint_mask", "mask"),  row("denoising_strength", "real")};
  return {.name = "tiny",
          .family = "toy",
          .variant = makes_clips ? "toy-clips" : "toy-pictures",
          .makes_clips = makes_clips,
          .height = 64,
          .width = 96,
          .frames = makes_clips ? 17 : 1,
          .frame_step = makes_clips ? 4 : 1,
          .fps = makes_clips ? 16.0 : 0.0,
          .inputs = {{"settings", settings},
                     {"inputs", nlohmann::json::array({start, row("keeps_size", "flag")})}},
          .schedules = {{{"name", "default"}, {"steps", 4}}, {{"name", "Few"}, {"steps", 2}}},
          .solvers = {"euler", "unipc", "dpm++"},
          .started_s = 1000};
}

// Tables of a model that is shown the pictures it changes.
inline ModelFacts editing_facts() {
  ModelFacts model = facts();
  model.inputs["inputs"].push_back(
      {{"name", "edit_image"}, {"kind", "image"}, {"required", true}, {"list", true}});
  return model;
}

struct FakeService {
  explicit FakeService(ModelFacts model = facts()) : service{jobs, loras, std::move(model)} {}

  FakeJobs jobs;
  FakeLoras loras;
  Service service;
};

}  // namespace atelier::serve
