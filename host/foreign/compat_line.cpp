#include "host/foreign/compat_line.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <optional>
#include <system_error>

#include "atelier/error.h"

#include "formats/escape.h"
#include "formats/list.h"
#include "host/files/file_reader.h"
#include "host/flags/compat_flags.h"
#include "host/flags/flags.h"
#include "host/foreign/kohya_dataset.h"
#include "host/foreign/line_words.h"
#include "host/order/config_file.h"
#include "host/order/training.h"
#include "host/order/training_checks.h"
#include "host/report/text.h"

namespace atelier::foreign {
namespace {

using order::kAiToolkit;
using order::kDiffusionPipe;
using order::Stage;
using order::Training;

using formats::quote_and_escape;

using flags::CommandSpec;
using flags::CompatFlag;
using flags::find_compat_flag;
using flags::FlagKind;
using flags::FlagSpec;

// Whether a bare `begin` is followed by nothing or by what is no letter.
bool stands_in(std::string_view text, std::string_view name) {
  const auto is_letter = [&](size_t at) {
    return at < text.size() && std::isalnum(static_cast<unsigned char>(text[at])) != 0;
  };
  for (size_t at = text.find(name); at != std::string_view::npos; at = text.find(name, at + 1)) {
    if ((at == 0 || !is_letter(at - 1)) && !is_letter(at + name.size())) return true;
  }
  return false;
}

// What a script does, which its name says.
enum class Does { kTrain, kCache, kGenerate, kGenerateWithoutFlags };

Does what_does(const std::string& script) {
  const std::filesystem::path path(script);
  const std::string stem = path.stem().string();
  const auto has = [&](std::string_view part) { return stem.find(part) != std::string::npos; };
  for (const std::string_view folder : {"/model_inference", "/validate_"}) {
    if (path.parent_path().string().find(folder) != std::string::npos)
      return Does::kGenerateWithoutFlags;
  }
  if (has("cache_latents") || has("cache_text_encoder_outputs")) return Does::kCache;
  if (stem == "generate" || has("_generate_") || has("_inference")) return Does::kGenerate;
  return Does::kTrain;
}

class TrainLine final : public LineWords {
 public:
  TrainLine(const ModelFamily* family, report::Problems& problems)
      : LineWords(order::train_command(family), family, problems) {}

  CompatLine run(std::span<const std::string> words) {
    std::string script;
    std::vector<Given> given = take_front(words, &script);
    read_config_file(given);
    is_cache_ = what_does(script) == Does::kCache;
    if (is_cache_) spec_.name = "cache";
    is_musubi_ = is_cache_ || script.find("musubi") != std::string::npos ||
                 std::ranges::any_of(given, [](const Given& flag) { return flag.name == "dit"; });
    is_kohya_ |= std::any_of(given.begin(), given.end(), [](const Given& flag) {
      return flag.name == "pretrained_model_name_or_path" || flag.name == "network_module" ||
             flag.name == "train_data_dir" || flag.name == "dataset_config";
    });
    for (const Given& flag : given) {
      has_images_ |= flag.name == "vae";
      has_texts_ |= flag.name == "t5" || flag.name.starts_with("text_encoder");
      take_flag(flag);
    }
    finish_model();
    add_inputs();
    if (train_data_) take_folders();
    if (is_cache_) {
      finish_cache();
    } else if (is_kohya_) {
      if (find("lora_base_model") == nullptr) take_whole(script);
      finish_kohya();
    } else if (std::filesystem::path(script).filename() == "train.py") {
      finish_studio();
    }
    check();
    return {command(), std::move(notes_)};
  }

 private:
  void take_precision(const Given& flag, const std::string& name) override {
    const FlagSpec& spec = *find_spec(name);
    const std::string value = flag.value();
    if (value == "no") {
      if (is_kohya_)
        rename(flag.shown, name, "float32");
      else
        leave_out(flag.shown, "--dtype is that of the files");
      return;
    }
    if (value == "fp16" && name == "dtype") {
      set(name, "bfloat16");
      note(flag.shown + " is --dtype bfloat16 here: gradients of float16 vanish");
      return;
    }
    const std::string word = flags::known_word(value, spec.choices);
    rename(flag.shown, name, word.empty() ? value : word);
  }

  // Adds flags of the script's --config_file, which those of the line stand above.
  void read_config_file(std::vector<Given>& given) {
    const auto file = std::ranges::find(given, "config_file", &Given::name);
    if (file == given.end()) return;
    is_kohya_ = true;
    const std::string shown = file->shown;
    std::string path = file->value();
    if (!path.ends_with(".toml")) path += ".toml";  // as they do
    given.erase(file);
    const size_t before = problems_.size(), said = given.size();
    for (FileFlag& flag : read_kohya_config(path, problems_)) {
      if (std::ranges::count(std::span(given).first(said), flag.name, &Given::name) != 0) continue;
      std::string place = files::display_path(path) + ":" + std::to_string(flag.line) + ": --";
      place += flag.name;
      for (const std::string& value : flag.values) place += " " + shell_text({value});
      given.push_back({std::move(flag.name), std::move(flag.values), std::move(place)});
    }
    if (problems_.size() == before) note(shown + " is read, and its flags stand here");
  }

  void take_flag(const Given& flag) {
    const CompatFlag* known = nullptr;
    if (is_kohya_) known = find_compat_flag(flag.name, flags::kKohya);
    if (is_kohya_ && flag.name == "mixed_precision") return take_precision(flag, "dtype");
    if (is_musubi_ && flag.name == "task") return take_task(flag.shown, flag.value());
    if (is_cache_ && flag.name == "batch_size")
      return leave_out(flag.shown, "samples are encoded one by one");
    if (known == nullptr && find_spec(flag.name) != nullptr) return take_own(flag);
    if (known == nullptr) known = find_compat_flag(flag.name, flags::kKohya | flags::kTrainer);
    if (known == nullptr) {
      unknown_.push_back("--" + flag.name);
      return;
    }
    take_row(flag, *known);
  }

  void take_renamed(const Given& flag, const std::string& name) override {
    rename(flag.shown, name, flag.value());
  }

  // A flag of atelier train, with the words of other programs for its choices.
  void take_own(const Given& flag) {
    if (find_compat_flag(flag.name, flags::kStudio) != nullptr) {
      flags::GivenValue value = {flag.name, flag.values.empty() ? "true" : flag.value(),
                                 flag.shown};
      own_idle_.push_back(std::move(value));
      return;
    }
    const FlagSpec& spec = *find_spec(flag.name);
    if (spec.kind == FlagKind::kFlag)
      return set(flag.name, flag.values.empty() ? "true" : flag.value());
    if (flag.name == "optimizer_args") return take_optimizer_args(flag);
    std::string value = flag.value();
    draws_by_weighting_ |= flag.name == "timestep_sampling" && value == "sigma";
    if (is_kohya_ && flag.name == "weighting_scheme" && value == "uniform")
      return rename(flag.shown, flag.name, "none");
    if (flag.name == "timestep_sampling" && is_shift_of_family(value))
      return rename(flag.shown, flag.name, "sigmoid_dynamic_shift");
    std::string word = flags::known_word(value, spec.choices);
    for (const std::string& choice : spec.choices) {
      if (word.empty() && choice != value && lower(choice) == lower(value)) word = choice;
    }
    if (!word.empty()) return rename(flag.shown, flag.name, word);
    set(flag.name, value);
  }

  // The family's shift by the size of the image, which musubi-tuner calls by the family's name.
  bool is_shift_of_family(std::string_view value) const {
    constexpr std::string_view kEnd = "_shift";
    return is_musubi_ && family_ != nullptr && value.ends_with(kEnd) &&
           family_->name().starts_with(value.substr(0, value.size() - kEnd.size()));
  }

  // "weight_decay=0.1" "betas=0.9,0.99": those that are flags here, and the rest as it is.
  void take_optimizer_args(const Given& flag) {
    std::string rest;
    for (const std::string& value : flag.values) {
      const size_t equals = value.find('=');
      const std::string key = value.substr(0, equals);
      const std::string text = equals == std::string::npos ? "" : value.substr(equals + 1);
      if (key == "weight_decay") {
        rename(value, key, text);
      } else if (key == "eps") {
        rename(value, "adam_epsilon", text);
      } else if (key == "betas" && text.find(',') != std::string::npos) {
        rename(value, "adam_beta1", text.substr(0, text.find(',')));
        set("adam_beta2", text.substr(text.find(',') + 1));
      } else if ((key == "relative_step" || key == "warmup_init") && lower(text) == "false") {
        leave_out(value, "the rate is always what --learning_rate and --lr_scheduler say");
      } else {
        rest += (rest.empty() ? "" : ",") + value;
      }
    }
    if (!rest.empty()) set(flag.name, rest);
  }

  void read_flag(const Given& flag, const CompatFlag& row) override {
    if (take_version(flag)) return;
    if (flag.name == "i2v") {
      take_task(flag.shown, "i2v-");
    } else if (flag.name == "network_module") {
      rename(flag.shown, "lora_base_model", order::denoiser_of(family_));
    } else if (flag.name == "resolution") {
      resolution_ = flag;
    } else if (flag.name == "train_data_dir") {
      train_data_ = flag;
    } else if (flag.name == "dataset_config") {
      has_dataset_file_ = true;
      read_dataset(flag);
    } else if (flag.name == "save_precision") {
      take_precision(flag, "save_dtype");
    } else if (flag.name == "min_timestep" || flag.name == "max_timestep") {
      take_boundary(flag);
    } else {
      lose(flag.shown, row.text);
    }
  }

  // A script that trains the denoiser whole is FAMILY_train.py, beside FAMILY_train_network.py.
  void take_whole(const std::string& script) {
    const std::filesystem::path path(script);
    if (path.stem().string().ends_with("_train") && find("trainable_models") == nullptr)
      rename(path.filename().string(), "trainable_models", order::denoiser_of(family_));
  }

  void read_dataset(const Given& flag) {
    const size_t before = problems_.size();
    for (const auto& [name, text] : read_kohya_dataset(flag.value(), problems_)) set(name, text);
    if (problems_.size() == before) note(flag.shown + " is read, and its flags stand here");
    if (find("control_path") != nullptr)
      note(
          "images of --control_path come to the size that the family says, whatever the size of "
          "the images to learn");
  }

  void take_folders() {
    const std::string& shown = train_data_->shown;
    const std::string folder = train_data_->value();
    if (has_dataset_file_) return leave_out(shown, "the dataset is that of --dataset_config");
    const bool has_metadata = find("dataset_metadata_path") != nullptr;
    std::error_code unknown;
    if (has_metadata || !std::filesystem::is_directory(folder, unknown)) {
      rename(shown, "dataset_base_path", folder);
      if (!has_metadata)
        note(files::display_path(folder) +
             " is not there: run this where it is, as the N of a folder N_words in it is "
             "--dataset_repeat");
      return;
    }
    try {
      rename_to(shown, flags_of_folders(folder));
    } catch (const Error& error) {
      set("dataset_base_path", folder);
      problems_.add(error.at("--train_data_dir"));
    }
  }

  // Timesteps of there count up with the noise, parts of the table here fall.
  void take_boundary(const Given& flag) {
    const auto level = report::parse_number<double>(flag.value());
    if (!level || !(*level >= 0 && *level <= 1000))
      return problems_.add(flag.shown + ": no number from 0 to 1000");
    rename(flag.shown,
           flag.name == "min_timestep" ? "max_timestep_boundary" : "min_timestep_boundary",
           report::print("%g", 1.0 - *level / 1000.0));
  }

  // What kohya's trainers do where their line says nothing, as far as it is not done here anyway.
  void finish_kohya() {
    if (resolution_) {
      try {
        rename_to(resolution_->shown,
                  flags_of_resolution(resolution_->value(), is_on("enable_bucket")));
      } catch (const Error& error) {
        problems_.add(error.at("--resolution"));
      }
    }
    if (find("lora_base_model") != nullptr) {
      preset("lora_rank", "4");
      preset("lora_alpha", "1");
      preset("lora_format", "kohya");
    }
    preset("learning_rate", "2e-6");
    preset("dtype", is_musubi_ ? "bfloat16" : "float32");
    preset("weighting_scheme", "none");
    if (is_musubi_) {
      check_musubi_files();
      check_musubi_sampling();
    } else {
      preset("timestep_sampling", "shift");
    }
    const std::string* sampling = find("timestep_sampling");
    const bool is_shift = sampling != nullptr && *sampling == "shift";
    if (is_shift) preset("discrete_flow_shift", is_musubi_ ? "1" : "6");
    if (!is_shift) drop("discrete_flow_shift", "it is of --timestep_sampling shift alone");
    if (!is_musubi_) preset("caption_extension", ".caption");
    // No limit holds there beside the second flag, and none at all in musubi-tuner.
    if (!is_musubi_ && is_on("enable_bucket") && !is_on("bucket_no_upscale"))
      preset("max_bucket_reso", "1024");
    if (find("num_epochs") == nullptr)
      preset("max_train_steps", "1600");
    else
      drop("max_train_steps", "epochs say how long the run is where both are given");
    finish_warmup();
    finish_weighting();
    note_presets(is_musubi_ ? "musubi-tuner" : "kohya's trainers");
  }

  // Below 1 it is a part of the run there.
  void finish_warmup() {
    const std::string *said = find("lr_warmup_steps"), *steps = find("max_train_steps");
    if (said == nullptr || steps == nullptr) return;
    const double part = report::parse_number<double>(*said).value_or(0);
    const int64_t all = report::parse_number<int64_t>(*steps).value_or(0);
    if (part <= 0 || part >= 1) return;
    const auto warmup = static_cast<int64_t>(part * static_cast<double>(all));
    rename("--lr_warmup_steps " + *said, "lr_warmup_steps", std::to_string(warmup));
  }

  // Two of its words there say how sigma draws noise levels, and weigh all levels alike.
  void finish_weighting() {
    const std::string word = *find("weighting_scheme");
    if (word != "logit_normal" && word != "mode") return;
    if (!draws_by_weighting_ && find("timestep_sampling") != nullptr)
      rename("--weighting_scheme " + word, "weighting_scheme", "none");
  }

  // One flag of there that is several here.
  void rename_to(const std::string& shown, const FlagValues& flags) {
    std::string said;
    for (const auto& [name, value] : flags) {
      set(name, value);
      said += " --" + name + " " + shell_text({value});
    }
    note(shown + " is" + said + " here");
  }

  bool is_on(std::string_view name) const {
    const std::string* said = find(name);
    return said != nullptr && *said == "true";
  }

  // Leaves out a flag that another one overrides, if it is there.
  void drop(const std::string& name, std::string_view why) {
    if (std::erase_if(flags_, [&](const auto& flag) { return flag.first == name; }) != 0)
      leave_out("--" + name, why);
  }

  // Scripts of their own encode there.
  void check_musubi_files() {
    if (!has_images_ || !has_texts_)
      problems_.add("--model_paths: atelier train encodes images and captions itself",
                    "add --vae and the text encoder's file of the lines that cache them");
  }

  // Levels that are drawn evenly there are drawn from the family's table here, which is shifted.
  void check_musubi_sampling() {
    const std::string* said = find("timestep_sampling");
    if (said != nullptr && *said != "uniform") return;
    problems_.add(
        std::string(
            said == nullptr
                ? "--timestep_sampling sigma of musubi-tuner, which holds where none is given,"
                : "--timestep_sampling") +
            " draws all noise levels alike there, and levels of the family's schedule here",
        "write --timestep_sampling shift --discrete_flow_shift N, or uniform to draw as here");
  }

  // Two scripts of there, for images and for texts, are one command here.
  void finish_cache() {
    preset("dtype", "bfloat16");
    note_presets("musubi-tuner");
    if (has_texts_ && has_images_) return;
    problems_.add("atelier cache encodes images and captions in one run",
                  std::string("add the flags of the line that encodes the ") +
                      (has_images_ ? "captions" : "images"));
  }

  // Finishes a line of DiffSynth-Studio.
  void finish_studio() {
    const std::string task = find("task") == nullptr ? "" : *find("task");
    if (!task.ends_with(":data_process")) preset("max_grad_norm", "0");
    if (!task.ends_with(":train") && makes_clips()) {
      preset("num_frames", "81");
      preset("keep_frame_rate", "true");
    }
    note_presets("DiffSynth-Studio");
  }

  // What only the files of the model can say.
  void note_variants() {
    const std::string* names = find("extra_inputs");
    if (names == nullptr || family_ == nullptr) return;
    for (const std::string& name : formats::parse_list(*names)) {
      const auto input = std::ranges::find(family_->inputs(), name, &InputSpec::name);
      if (input != family_->inputs().end() && input->variants != "*")
        note("--extra_inputs " + name + " is taken by variants " + std::string(input->variants) +
             " alone; the files of the model say which one they are");
    }
  }

  // The line as atelier train reads it before it opens a file.
  void check() {
    check_plugin();
    CommandSpec spec = spec_;
    for (FlagSpec& flag : spec.flags) flag.required = false;
    report::Problems told;  // below, once
    const flags::ParsedFlags idle = flags::parse_flags(spec, {}, own_idle_, told);
    for (std::string& line : flags::note_compat_flags(idle, problems_)) note(line);
    std::vector<std::string> words = words_of_flags();
    words.insert(words.end(), unknown_.begin(), unknown_.end());
    const Training config =
        order::parse_settings(words, family_, problems_, is_cache_ ? "cache" : "train");
    for (const std::string& line : config.notes) note(line);
    note_variants();
    if (config.stage == Stage::kTrain)
      note("--task " + *find("task") + " needs what its first stage, :data_process, writes");
  }

  bool is_kohya_ = false, is_musubi_ = false, is_cache_ = false;
  bool has_images_ = false, has_texts_ = false;  // files of what encodes them are named
  std::vector<flags::GivenValue> own_idle_;      // flags that mean nothing here
  bool has_dataset_file_ = false, draws_by_weighting_ = false;
  std::optional<Given> resolution_, train_data_;
};

}  // namespace

bool is_compat_line(std::span<const std::string> words) {
  const auto rest = without_variables(words);
  return !rest.empty() && (is_launcher(rest.front()) || is_script(rest.front()));
}

std::string family_of_line(std::span<const std::string> words,
                           const std::vector<std::string>& families) {
  if (const auto said = flags::peek_flag(words, "plugin")) return *said;
  const auto script = std::find_if(words.begin(), words.end(), is_script);
  if (script == words.end()) return {};
  for (const std::string& family : families) {
    if (stands_in(*script, family)) return family;
  }
  // The first word of its name, before "_train".
  const std::string stem = std::filesystem::path(*script).stem().string();
  const std::string first = stem.substr(0, stem.find('_'));
  for (const std::string& family : families) {
    if (first != stem && first.size() >= 3 && family.starts_with(first)) return family;
  }
  // A folder named after what the family makes: its name and "video".
  for (const auto& folder : std::filesystem::path(*script).parent_path()) {
    for (const std::string& family : families) {
      if (folder.string() == family + "video") return family;
    }
  }
  // The folder of the model, and those that it lies in.
  for (std::filesystem::path folder = flags::peek_flag(words, "ckpt_dir").value_or("");
       folder.has_relative_path(); folder = folder.parent_path()) {
    std::string name = folder.filename().string();
    std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
    for (const std::string& family : families) {
      if (name.starts_with(family)) return family;
    }
  }
  return {};
}

// Lines of ai-toolkit (run.py FILE) and of diffusion-pipe (train.py --deepspeed --config FILE) say
// everything in a file. Returns whether this is one.
static bool is_of_file(std::span<const std::string> words, report::Problems& problems) {
  const auto script = std::ranges::find_if(words, is_script);
  if (script == words.end()) return false;
  const std::span<const std::string> rest(std::next(script), words.end());
  const std::string name = std::filesystem::path(*script).filename();
  if (name == "run.py" && !rest.empty() && !rest.front().starts_with("--")) {
    problems.add(order::other_configuration(files::display_path(rest.front()), kAiToolkit));
  } else if (const auto file = flags::peek_flag(rest, "config");
             name == "train.py" && file && std::ranges::count(rest, "--deepspeed") != 0) {
    problems.add(order::other_configuration(files::display_path(*file), kDiffusionPipe));
  } else {
    return false;
  }
  return true;
}

CompatLine rewrite_line(std::span<const std::string> words, const ModelFamily* family,
                        const flags::CommandSpec& generate, report::Problems& problems) {
  if (is_of_file(words, problems)) return {{"atelier", "train"}, {}};
  const auto script = std::ranges::find_if(words, is_script);
  const Does does = script == words.end() ? Does::kTrain : what_does(*script);
  if (does == Does::kGenerate || does == Does::kGenerateWithoutFlags)
    return rewrite_generate_line(words, family, generate, does == Does::kGenerate, problems);
  return TrainLine(family, problems).run(words);
}

}  // namespace atelier::foreign
