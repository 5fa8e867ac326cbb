// atelier serve: a model that stays up for clients.
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <set>
#include <string>

#include <c10/util/ScopeExit.h>

#include "atelier/error.h"

#include "host/check/generation.h"
#include "host/cli/commands.h"
#include "host/cli/family.h"
#include "host/cli/plan.h"
#include "host/cli/process.h"
#include "host/cli/ranks.h"
#include "host/device/cpu_memory.h"
#include "host/generate/fill_settings.h"
#include "host/generate/request.h"
#include "host/generate/session.h"
#include "host/http/server.h"
#include "host/order/serving.h"
#include "host/progress/progress.h"
#include "host/report/problems.h"
#include "host/report/text.h"
#include "host/run/stop.h"
#include "host/serve/hidden_paths.h"
#include "host/serve/inference.h"
#include "host/serve/lora_names.h"
#include "host/serve/model_facts.h"
#include "host/serve/openai.h"
#include "host/serve/own_api.h"
#include "host/serve/page/page.h"
#include "host/serve/sdapi.h"
#include "host/serve/session_maker.h"
#include "host/serve/translation.h"

namespace atelier::cli {
namespace {

using check::OpenedGeneration;
using order::Serving;
using progress::Progress;
using run::StopSignals;

// Kernels of the few sizes of images that clients ask for at one time.
constexpr int64_t kMostKernels = 256;
// Images together beyond which each one's request waits long for the others.
constexpr int64_t kMostChosen = 8;

void print_line(const std::string& line) {
  if (std::printf("%s\n", line.c_str()) < 0 || std::fflush(stdout) != 0)
    throw Error(ErrorCode::kEnvironment, std::string("stdout: ") + std::strerror(errno));
}

// Adds a problem for each LoRA that does not fit the model.
void check_loras(const std::vector<lora::LoraRef>& loras, const order::Origin& place,
                 OpenedGeneration& opened, report::Problems& problems) {
  order::Settings settings;
  settings.loras = loras;
  opened.loras().check(settings, place, problems);
}

// Takes the folders of the model's files out of messages.
std::function<std::string(std::string)> hides_files_of(const model::LoadedModel& model) {
  std::set<std::string, std::greater<>> folders;  // those below another come before it
  for (const model::LoadedPart& part : model.parts()) {
    for (const std::string& file : part.checkpoint.files())
      folders.insert(std::filesystem::path(file).parent_path().string());
  }
  return [folders](std::string message) {
    for (const std::string& folder : folders)
      message = serve::without_folder(std::move(message), folder);
    return message;
  };
}

// Everything of a server, on the thread that owns the model.
class Serve {
 public:
  Serve(const Serving& order, OpenedGeneration& opened, generate::Session& session,
        Progress& progress)
      : order_(order),
        opened_(opened),
        spool_(order.output_dir),
        loras_(order.lora_dir, order.loras, [this](const lora::LoraRef& lora) { check(lora); }),
        translation_(opened, order, loras_, spool_),
        facts_(serve::facts_of(opened.model(), order)),
        metrics_(facts_.name),
        jobs_(
            {.max_queue = order.max_queue,
             .keep_jobs = order.keep_jobs,
             .told = hides_files_of(opened.model())},
            spool_,
            [this](const std::string& id, const serve::Asked& asked,
                   const serve::SpooledFiles& files, const std::vector<lora::LoraRef>* loras) {
              return translation_.prepare(id, asked, files, loras);
            },
            bell_, metrics_),
        service_{jobs_, loras_, facts_},
        maker_(session, opened.model()),
        inference_(jobs_, bell_, maker_, metrics_,
                   {.max_batch = order.max_batch.value_or(1),
                    .idle_after_s = order.idle_after_s,
                    .is_stopped = StopSignals::is_requested,
                    .warn = [&progress](const std::string& text) { progress.warn(text); }}),
        progress_(progress) {
    serve::add_own_api(router_, service_);
    serve::add_openai(router_, service_);
    serve::add_sdapi(router_, service_);
    serve::add_page(router_);
    serve::add_status(
        router_, [this] { return is_ready_.load(); }, metrics_, jobs_);
  }

  // Until a signal ends it.
  void run(const std::function<void()>& warm_up) {
    http::Server server(order_.server, router_);
    // Connections that wait for this thread are answered, however it ends.
    const auto ends = c10::make_scope_exit([this] { jobs_.close(); });
    print_line(server.url());
    warm_up();
    jobs_.restore([this](const std::string& text) { progress_.warn(text); });
    jobs_.open();
    is_ready_ = true;
    progress_.note("serves " + facts_.name + " at " + server.url());
    inference_.run();
  }

 private:
  // By threads of connections.
  void check(const lora::LoraRef& lora) {
    report::Problems problems;
    check_loras({lora}, {.is_request = true}, opened_, problems);
    problems.throw_if_any();
  }

  const Serving& order_;
  OpenedGeneration& opened_;
  const serve::Spool spool_;
  serve::Bell bell_;
  serve::LoraNames loras_;
  const serve::Translation translation_;
  const serve::ModelFacts facts_;
  serve::Metrics metrics_;
  serve::JobTable jobs_;
  serve::Service service_;
  serve::SessionMaker maker_;
  serve::Inference inference_;
  Progress& progress_;
  http::Router router_;
  std::atomic<bool> is_ready_ = false;
};

// The plan for one job that stands for those that come: `images` of the model's own size, which are
// denoised together.
plan::Outcome plan_batch(OpenedGeneration& opened, int64_t images) {
  std::vector<order::Job> jobs = opened.planned_jobs();
  for (order::Job& job : jobs) job.settings.num_images = job.settings.batch_size = images;
  return plan::plan_generation(opened.model(), opened.order(), jobs);
}

// What a server admits at once, and how it has room.
struct Admitted {
  int64_t images = 1;
  plan::Outcome outcome = {};
  double seconds_of_each() const {
    return outcome.planned->plan.seconds / static_cast<double>(images);
  }
};

// Whether encoders stay beside the denoiser: otherwise requests come in one by one.
bool keeps_all(OpenedGeneration& opened, const plan::Outcome& outcome) {
  return plan::layout_of(opened.order(), opened.model(), outcome.planned).keeps_all;
}

// Where the user said nothing else: twice as many as long as they fit, each takes less time, and
// all components stay that stayed for one.
Admitted admit(const Serving& order, OpenedGeneration& opened) {
  Admitted best = {.images = order.max_batch.value_or(1)};
  best.outcome = plan_batch(opened, best.images);
  if (order.max_batch || !best.outcome.planned || !opened.order().limits.is_given()) return best;
  while (best.images < kMostChosen) {
    Admitted more = {.images = 2 * best.images};
    try {
      more.outcome = plan_batch(opened, more.images);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kOutOfMemory) throw;
      return best;
    }
    if (more.seconds_of_each() >= best.seconds_of_each() ||
        (keeps_all(opened, best.outcome) && !keeps_all(opened, more.outcome)))
      return best;
    best = std::move(more);
  }
  return best;
}

// Larger images than those that were planned share a call as far as all of them fit into it.
generate::Layout layout_of(const Serving& order, const model::LoadedModel& model,
                           const plan::Outcome& outcome) {
  generate::Layout layout = plan::layout_of(order.generation, model, outcome.planned);
  layout.max_batch = order.max_batch.value_or(1);
  if (!outcome.planned) return layout;
  order::Settings base = order.generation.base;
  generate::fill_target(base, model);
  layout.max_tokens =
      layout.max_batch * generate::tokens_of(order::target_of(base), model.model().latent_spec());
  return layout;
}

// Weights that stay are there before the first job.
void load_all(model::LoadedModel& model, Progress& progress) {
  for (const model::LoadedPart& part : model.parts()) {
    const std::string& component = part.detection.component;
    if (model.is_loaded(component)) continue;
    model::load_shown(model, component, progress, [] {
      if (StopSignals::is_requested()) throw Error(ErrorCode::kCancelled, "stopped by the user");
    });
  }
}

int serve_model(const Serving& order, OpenedGeneration& opened, const plan::Outcome& outcome,
                Progress& progress) {
  model::LoadedModel& model = opened.model();
  const order::Generation& generation = opened.order();
  plan::follow_plan(outcome, generation, model, opened.unchecked(), progress);
  const StopSignals signals(StopSignals::Kind::kAll);
  generate::Session session(model, opened.loras(), generation, layout_of(order, model, outcome),
                            {.is_cancelled = StopSignals::is_requested}, progress);
  Serve serve(order, opened, session, progress);
  serve.run([&] {
    if (session.keeps_all()) load_all(model, progress);
  });
  if (outcome.planned) plan::note_measured(*outcome.planned, model, progress);
  throw Error(ErrorCode::kCancelled, "stopped by the user");
}

std::string admitted_text(int64_t images, OpenedGeneration& opened) {
  order::Settings base = opened.order().base;
  generate::fill_target(base, opened.model());
  const MediaTarget target = order::target_of(base);
  return std::to_string(images) + (images == 1 ? " image" : " images") + " of " +
         report::size_text(target.height, target.width) +
         (target.frames > 1 ? " and " + std::to_string(target.frames) + " frames" : "") +
         " at once";
}

// `only`: null to serve, otherwise the plan is printed.
int serve_or_plan(std::span<const std::string> said, const PlanOnly* only) {
  if (flags::wants_help(said)) return print_help(order::serve_command(family_for_help(said)));
  report::Problems problems;
  order::Words words({said.begin(), said.end()}, order::serve_command(nullptr), problems);
  const char* const key = std::getenv("ATELIER_API_KEY");
  Serving order =
      read_serving(words, choose_family(words, problems), key != nullptr ? key : "", problems);
  order::Generation& generation = order.generation;
  const std::string device = generation.load ? generation.load->device : "cpu";
  device::keep_kernels(kMostKernels);
  set_up(generation.process,
         {.device = device, .is_quiet = generation.is_quiet, .computes = only == nullptr},
         problems);
  if (only != nullptr && generation.load)
    plan::plan_elsewhere(only->device_profile, generation.limits, *generation.load);
  if (generation.load) note_slow_products(*generation.load, generation.is_quiet);
  Progress progress(progress::stderr_options(generation.is_quiet));
  OpenedGeneration opened(generation, progress, problems);
  if (problems.empty()) check_loras(order.loras, /*place=*/{}, opened, problems);
  problems.throw_if_any();
  if (const std::string note = opened.note(); !note.empty()) progress.note("note: " + note);
  const Admitted admitted = admit(order, opened);
  order.max_batch = admitted.images;
  const std::string text = "admits " + admitted_text(admitted.images, opened);
  if (only != nullptr) {
    const int code = print_plan(admitted.outcome, *only);
    print_line(text);
    return code;
  }
  if (admitted.outcome.planned) progress.note(text);
  return serve_model(order, opened, admitted.outcome, progress);
}

}  // namespace

int run_serve(std::span<const std::string> said) {
  return serve_or_plan(said, nullptr);
}

int plan_serve(std::span<const std::string> arguments, const PlanOnly& only) {
  return serve_or_plan(arguments, &only);
}

}  // namespace atelier::cli
