#include "host/order/serving.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "host/files/file_reader.h"
#include "host/flags/compat_flags.h"
#include "host/inputs/parse.h"

namespace atelier::order {
namespace {

// Whether `generate` alone has the flag: requests name no files, and one process serves.
bool is_of_generate(const flags::FlagSpec& flag, const ModelFamily* family) {
  constexpr std::array<std::string_view, 10> kLeftOut = {
      "prompt",        "inpaint_mask", "latents",           "output",       "prompts_file",
      "report_memory", "cfg_parallel", "sequence_parallel", "dist_backend", "dist_timeout"};
  if (std::ranges::find(kLeftOut, flag.name) != kLeftOut.end()) return true;
  const InputSpec* const input =
      family != nullptr ? find_input_spec(family->inputs(), flag.name) : nullptr;
  return input != nullptr && inputs::is_file(input->kind);
}

// Help that speaks of prompts files.
void reword(flags::FlagSpec& flag) {
  if (flag.name == "lora")
    flag.help =
        "a LoRA that requests have which name none: PATH or PATH:STRENGTH, and of one of several "
        "denoisers PATH:STRENGTH@COMPONENT";
  if (flag.name == "lora_dir")
    flag.help = "folder of the LoRAs that requests may name, by their files' names without suffix";
}

void add_server(flags::Table& table, Serving& order) {
  constexpr double kMostPort = 65'535, kMostMegabytes = 65'536;
  table.group("The server")
      .text("host", order.server.host,
            "address to listen at; one that is not loopback needs an API key", "ADDRESS")
      .number("port", order.server.port, "0 takes one that is free", flags::between(0, kMostPort))
      .add({.name = "api_key_file",
            .help = "file of the key that clients send as \"Authorization: Bearer KEY\"; or in the "
                    "environment, ATELIER_API_KEY",
            .value_name = "FILE"})
      .list("allowed_hosts", order.server.allowed_hosts,
            "names, beside localhost and --host, by which clients may call the server")
      .list("allowed_origins", order.server.allowed_origins,
            "origins of web pages that may use the server: https://example.org")
      .text("served_name", order.served_name,
            "what clients call the model; by default the name of its folder")
      .text("output_dir", order.output_dir,
            "folder that keeps the results, and the jobs that survive the server; by default a "
            "temporary one that goes with it",
            "FOLDER")
      .number("max_queue", order.max_queue, "jobs that wait; more are refused with 429",
              flags::at_least(0))
      .number("keep_jobs", order.keep_jobs, "jobs that are over and still known",
              flags::at_least(1))
      .number("max_batch", order.max_batch,
              "images of all requests that are denoised together; by default 1, and with --vram as "
              "many as have room and save time",
              flags::at_least(1))
      .number("idle_after", order.idle_after_s,
              "seconds without a job after which weights leave the device; 0: they stay",
              flags::kNotNegative);
  constexpr int64_t kMegabyte = int64_t{1} << 20;
  table.group("Limits of a request")
      .number("max_pixels", order.limits.max_pixels, "height times width", flags::at_least(1))
      .number("max_frames", order.limits.max_frames, "of a clip", flags::at_least(1))
      .number("max_steps", order.limits.max_steps, "steps from noise to image", flags::at_least(1))
      .number("max_images", order.limits.max_images, "images of one request", flags::at_least(1))
      .add(
          {.name = "max_upload",
           .kind = flags::FlagKind::kInteger,
           .help = "MiB of one request with its files",
           .preset = std::to_string(order.server.max_body_bytes / kMegabyte)},
          [&order](const flags::ParsedFlags& given) {
            order.server.max_body_bytes = given.integer("max_upload") * kMegabyte;
          },
          flags::between(1, kMostMegabytes));
}

flags::Table serving_table(Serving& order, const ModelFamily* family) {
  flags::Table table = generation_table(order.generation, family);
  table.without([&](const flags::FlagSpec& flag) { return is_of_generate(flag, family); });
  add_server(table, order);
  return table;
}

// The key of a file is its first line.
std::string read_key(const std::string& file) {
  constexpr uint64_t kMostBytes = 65'536;
  const std::string text = files::read_text_file(file, kMostBytes);
  std::string key = text.substr(0, text.find_first_of("\r\n"));
  if (key.empty())
    throw Error(ErrorCode::kInvalidArgument,
                "--api_key_file: the first line of " + files::display_path(file) + " is empty",
                "write the key there");
  return key;
}

// What requests leave out has to be what the server makes for those that do.
void check_presets(const Serving& order, report::Problems& problems) {
  const Settings& base = order.generation.base;
  for (const Excess& excess : beyond(order.limits, base.batch_size, base))
    problems.add("--" + std::string(excess.name) + ": " + excess.text(),
                 "use less, or raise --" + std::string(excess.limit));
}

}  // namespace

std::string Excess::text() const {
  return std::to_string(value) + std::string(of) + " is more than " + std::to_string(most) +
         ", the most that this server makes";
}

std::vector<Excess> beyond(const RequestLimits& limits, int64_t max_batch, const Settings& s) {
  const int64_t height = s.height.value_or(1), width = s.width.value_or(1);
  std::vector<Excess> all = {
      {"num_images", s.num_images, limits.max_images, "", "max_images"},
      {"batch_size", s.batch_size, max_batch},
      {"num_inference_steps", s.num_inference_steps.value_or(1), limits.max_steps, "", "max_steps"},
      {"sigmas", std::ssize(s.sigmas), limits.max_steps, " levels", "max_steps"},
      {"num_frames", s.num_frames.value_or(1), limits.max_frames, "", "max_frames"},
      {"height", height, limits.max_pixels, "", "max_pixels"},
      {"width", width, limits.max_pixels, "", "max_pixels"}};
  std::erase_if(all, [](const Excess& each) { return each.value <= each.most; });
  const bool has_side = std::ranges::any_of(
      all, [](const Excess& each) { return each.limit == "max_pixels"; });  // may overflow
  if (has_side || height < 1 || height * width <= limits.max_pixels) return all;
  all.push_back({"height", height * width, limits.max_pixels, " pixels in all", "max_pixels"});
  return all;
}

flags::CommandSpec serve_command(const ModelFamily* family) {
  Serving presets;
  flags::CommandSpec command{"serve",
                             "Serves a model over HTTP: its jobs, the APIs of OpenAI and "
                             "of Stable Diffusion web UI, and a page."};
  command.flags = serving_table(presets, family).specs();
  for (flags::FlagSpec& flag : command.flags) reword(flag);
  command.lacks_family = family == nullptr;
  command.others = flags::compat_answers(flags::kSampler);
  command.others.push_back({"api_key", true,
                            "use --api_key_file, or the environment's ATELIER_API_KEY: command "
                            "lines are shown to all users of a machine"});
  return command;
}

Serving read_serving(const Words& words, const plugins::Plugin* plugin, const std::string& key,
                     report::Problems& problems) {
  Serving order;
  order.generation = {.plugin = plugin, .is_served = true};
  const ModelFamily* const family = order.generation.family();
  const auto command = serve_command(family);
  const flags::ParsedFlags parsed = flags::parse_flags(
      command, words.command_line(), words.below(command, problems).values, problems);
  read_flags(order.generation, serving_table(order, family), parsed, problems);
  order.loras = std::move(order.generation.base.loras);
  order.lora_dir = std::move(order.generation.base.lora_dir);
  order.generation.base.loras.clear();
  order.generation.base.lora_dir.clear();
  order.server.api_key = key;
  if (const std::optional<std::string> file = parsed.find_text("api_key_file"))
    problems.collect([&] { order.server.api_key = read_key(*file); });
  check_presets(order, problems);
  return order;
}

}  // namespace atelier::order
