// Lines of scripts that make images or clips, said as atelier generate.
#include <algorithm>
#include <filesystem>
#include <optional>

#include "host/foreign/line_words.h"
#include "host/report/text.h"

namespace atelier::foreign {
namespace {

using flags::CompatFlag;
using flags::FlagKind;
using flags::FlagSpec;

// What a script does where its line says nothing, and is done otherwise here.
struct ScriptPreset {
  std::string_view script;  // part of its name
  std::string_view flag, value;
};

constexpr ScriptPreset kScriptPresets[] = {
    {"_generate_", "height", "256"},
    {"_generate_", "width", "256"},
    {"_generate_image", "num_inference_steps", "25"},
    {"generate.py", "height", "720"},
    {"generate.py", "width", "1280"},
    {"_minimal_inference", "num_inference_steps", "36"},
    {"_minimal_inference", "cfg_scale", "3.5"},
    {"_minimal_inference", "flow_shift", "6"},
    {"_minimal_inference", "system_prompt", ""},
};

// A file that a script's own preparation leaves in a folder, and the input that it is.
struct PreparedFile {
  std::string_view name;
  std::string_view input;  // the end of its name
  bool is_of_replacement;  // of somebody in a clip
};

constexpr PreparedFile kPreparedFiles[] = {
    {"src_ref.png", "input_image", false},  {"src_pose.mp4", "_pose_video", false},
    {"src_face.mp4", "_face_video", false}, {"src_bg.mp4", "_inpaint_video", true},
    {"src_mask.mp4", "_mask_video", true},
};

// What the script does of a clip that follows a pose where its line says nothing: the prompt is its
// own, and so is the solver.
constexpr const char *kPosePrompt = "视频中的人在做动作", *kPoseSolver = "unipc";

// Clips that speak are made of so many frames at a time, and the first ones lose some.
constexpr int64_t kSpeechFrames = 80, kSpeechDropped = 3;
// The area of one that is made where nothing else is said, as the script has it.
constexpr std::string_view kSpeechSizes[] = {"1024*704", "704*1024"};

// Flags with values that go together: --lora_weight A B --lora_multiplier 1 0.5.
struct LoraFlags {
  std::string_view files, strengths;
  bool is_of_high_noise;
};

constexpr LoraFlags kLoraFlags[] = {
    {"lora_weight", "lora_multiplier", false},
    {"lora_weight_high_noise", "lora_multiplier_high_noise", true},
    {"lora_weights", "", false},
};

const Given* find_given(const std::vector<Given>& given, std::string_view name) {
  const auto it = std::ranges::find(given, name, &Given::name);
  return it == given.end() ? nullptr : &*it;
}

class GenerateLine final : public LineWords {
 public:
  using LineWords::LineWords;

  CompatLine run(std::span<const std::string> words, bool has_flags) {
    std::string script;
    std::vector<Given> given = take_front(words, &script);
    if (has_flags) {
      // The variant says which inputs there are.
      std::ranges::stable_partition(given, [](const Given& flag) { return flag.name == "task"; });
      if (const Given* task = find_given(given, "task")) task_ = lower(task->value());
      replaces_ = find_given(given, "replace_flag") != nullptr;
      has_experts_ = find_given(given, "dit_high_noise") != nullptr;
      for (const Given& flag : given) take_flag(flag);
      for (const LoraFlags& flags : kLoraFlags) take_loras(given, flags);
      take_relighting(given);
      if (speaks() && find_given(given, "size") == nullptr)
        note(
            "without --size the script makes at most the pixels of 1280*720, and here it is those "
            "of 1024*704; --height and --width say another size");
      finish(script);
    } else {
      problems_.add(script + " takes no flags: its settings stand in the script",
                    "write them as flags of atelier generate; atelier generate --help lists them");
    }
    check(has_flags);
    return {command(), std::move(notes_)};
  }

 private:
  void take_precision(const Given& flag, const std::string& name) override {
    take_choice(flag, *find_spec(name));
  }

  void take_flag(const Given& flag) {
    if (is_of_lora(flag.name)) return;
    if (take_expert(flag) || take_words(flag) || take_size_of_input(flag)) return;
    if (const FlagSpec* own = find_spec(flag.name)) return take_choice(flag, *own);
    const CompatFlag* known = flags::find_compat_flag(flag.name, flags::kSampler);
    if (known == nullptr) {
      unknown_.push_back("--" + flag.name);
      return;
    }
    take_row(flag, *known);
  }

  static bool is_of_lora(std::string_view name) {
    return std::ranges::any_of(kLoraFlags, [&](const LoraFlags& flags) {
      return flags.files == name || flags.strengths == name;
    });
  }

  void take_choice(const Given& flag, const FlagSpec& own) {
    const bool is_bare = own.kind == FlagKind::kFlag && flag.values.empty();
    const std::string value = is_bare ? "true" : flag.value();
    const std::string word = flags::known_word(flag.value(), own.choices);
    if (!word.empty() || flag.name != own.name)
      return rename(flag.shown, own.name, word.empty() ? value : word);
    set(own.name, value);
  }

  void take_renamed(const Given& flag, const std::string& name) override {
    if (name == "output") return take_output(flag);
    if (name == "model_paths") return add_model_file(flag);
    if (const FlagSpec* own = find_spec(name)) return take_choice(flag, *own);
    lose(flag.shown, "the family has no input " + name);
  }

  // There may be several "storage dit=fp8".
  void take_fixed(const Given& flag, const std::string& name, const std::string& fixed) override {
    std::string value = fixed;
    const std::string* there = find(name);
    if (there != nullptr && name == "storage" && there->find(value) == std::string::npos)
      value = *there + "," + value;
    rename(flag.shown, name, value);
    if (flag.name == "renorm_cfg") set("cfg_renorm_ratio", flag.value());
  }

  // A folder there is a file here.
  void take_output(const Given& flag) {
    const std::filesystem::path path(flag.value());
    if (path.has_extension()) return rename(flag.shown, "output", flag.value());
    folder_ = flag;
  }

  // "--video_size 480 832", height first, and "--size 832*480".
  bool take_pair(const Given& flag) {
    const bool is_width_first = flag.name == "size";
    if (!is_width_first && flag.name != "image_size" && flag.name != "video_size") return false;
    std::vector<std::string> sides = flag.values;
    const std::string text = flag.value();
    if (const size_t star = text.find_first_of("*x"); is_width_first && star != std::string::npos)
      sides = {text.substr(star + 1), text.substr(0, star)};
    if (sides.size() != 2) {
      problems_.add(flag.shown + ": two numbers are expected");
      return true;
    }
    set("height", sides[0]);
    set("width", sides[1]);
    note(flag.shown + " is --height " + sides[0] + " --width " + sides[1] + " here");
    return true;
  }

  bool speaks() const { return task_.starts_with("s2v"); }
  bool follows_pose() const { return task_.starts_with("animate"); }

  // What an input decides: the size of such clips, and the length of those that follow a pose.
  bool take_size_of_input(const Given& flag) {
    if (flag.name == "size" && follows_pose()) {
      leave_out(flag.shown, "the clip has the size of the pose's");
    } else if (flag.name == "size" && speaks() &&
               std::ranges::count(kSpeechSizes, flag.value()) != 0) {
      leave_out(flag.shown, "the clip has the shape of the image, and at most so many pixels");
    } else if (flag.name == "frame_num" && follows_pose()) {
      rename(flag.shown, "segment_frame_length", flag.value());
    } else if (flag.name == "frame_num" && speaks()) {
      leave_out(flag.shown, "the sound says how long the clip is, or --num_clip");
    } else {
      return false;
    }
    return true;
  }

  // Two denoisers: the one of more noise is the family's first.
  bool take_expert(const Given& flag) {
    const std::vector<std::string> names = denoisers();
    if (!has_experts_ || names.size() < 2) {
      if (flag.name != "dit_high_noise") return false;
      lose(flag.shown, "the family has one denoiser");
      return true;
    }
    if (flag.name == "dit" || flag.name == "dit_high_noise") {
      add_model_file(flag, names[flag.name == "dit" ? 1 : 0]);
      return true;
    }
    if (flag.name != "guidance_scale") return false;
    rename(flag.shown, "cfg_scale_2", flag.value());
    return true;
  }

  bool take_words(const Given& flag) {
    const std::string value = flag.value();
    if (flag.name == "sample_solver" && value == "vanilla") {
      rename(flag.shown, "solver", "euler");
    } else if (flag.name == "renorm_cfg" && report::parse_number<double>(value) == 0.0) {
      rename(flag.shown, "cfg_renorm", "none");
    } else if (flag.name == "offload" && value.empty()) {
      leave_out(flag.shown, "--vram says what the run may take, and the rest is planned");
    } else {
      return false;
    }
    return true;
  }

  void read_flag(const Given& flag, const CompatFlag& row) override {
    if (take_version(flag) || take_pair(flag)) return;
    if (flag.name == "task") {
      take_task(flag.shown, flag.value());
      if (flag.value().starts_with("t2i")) set("num_frames", "1");
    } else if (flag.name == "control_image_path") {
      take_pictures(flag);
    } else if (flag.name == "output_type") {
      take_output_type(flag);
    } else if (flag.name == "src_root_path") {
      take_prepared(flag);
    } else if (flag.name == "replace_flag") {
      leave_out(flag.shown, "the clip around the character and its mask say it");
    } else if (flag.name == "use_relighting_lora") {
      relights_ = flag.shown;
    } else if (flag.name == "audio") {
      take_input(flag, [](const InputSpec& spec) { return spec.kind == InputKind::kAudio; });
    } else if (flag.name == "pose_video") {
      take_input(flag, [](const InputSpec& spec) { return spec.name.ends_with("_pose_video"); });
    } else if (flag.name == "num_clip") {
      take_clip_count(flag);
    } else {
      lose(flag.shown, row.text);
    }
  }

  void take_output_type(const Given& flag) {
    if (flag.value() == "latent") return lose(flag.shown, "latents are not written");
    leave_out(flag.shown, flag.value() == "images" || flag.value() == "video"
                              ? "--output says it by how the name ends"
                              : "latents are not written");
  }

  // An input that the variant takes; null: there is none.
  template <typename F>
  const InputSpec* find_input(const F& is_meant) const {
    if (family_ == nullptr) return nullptr;
    const auto found = std::ranges::find_if(
        family_->inputs(), [&](const InputSpec& spec) { return may_take(spec) && is_meant(spec); });
    return found == family_->inputs().end() ? nullptr : &*found;
  }

  template <typename F>
  void take_input(const Given& flag, const F& is_meant) {
    const InputSpec* const input = find_input(is_meant);
    if (input == nullptr) return lose(flag.shown, "the family has no such input");
    rename(flag.shown, std::string(input->name), flag.value());
  }

  // A folder of files whose names are known.
  void take_prepared(const Given& flag) {
    std::string said;
    for (const PreparedFile& file : kPreparedFiles) {
      if (file.is_of_replacement && !replaces_) continue;
      const InputSpec* const input =
          find_input([&](const InputSpec& spec) { return spec.name.ends_with(file.input); });
      if (input == nullptr) return lose(flag.shown, "the family has no inputs of such a folder");
      const std::string path = (std::filesystem::path(flag.value()) / file.name).string();
      set(std::string(input->name), path);
      said.append(" --").append(input->name).append(" ").append(shell_text({path}));
    }
    note(flag.shown + " is" + said + " here");
  }

  void take_clip_count(const Given& flag) {
    const auto count = report::parse_number<int64_t>(flag.value());
    if (!count || *count < 1 || *count > 1000)
      return problems_.add(flag.shown + ": no number of clips");
    rename(flag.shown, "num_frames", std::to_string(*count * kSpeechFrames - kSpeechDropped));
  }

  // Beside the model, whose folder the line names.
  void take_relighting(const std::vector<Given>& given) {
    if (relights_.empty()) return;
    const Given* const folder = find_given(given, "ckpt_dir");
    if (folder == nullptr) return lose(relights_, "use --lora relighting_lora.ckpt");
    const std::string path =
        (std::filesystem::path(folder->value()) / "relighting_lora.ckpt").string();
    flags_.emplace_back("lora", path);
    note(relights_ + " is --lora " + shell_text({path}) + " here");
  }

  // The family's input of pictures, of which there may be several: the one that it needs, of
  // several the one that takes a list, or the only one that it is shown.
  void take_pictures(const Given& flag) {
    std::vector<const InputSpec*> shown, needed, lists;
    for (const InputSpec& spec :
         family_ == nullptr ? std::span<const InputSpec>() : family_->inputs()) {
      if (spec.kind != InputKind::kImage || spec.role != InputRole::kCondition) continue;
      if (!may_take(spec)) continue;
      shown.push_back(&spec);
      if (spec.required) needed.push_back(&spec);
      if (spec.required && spec.max_count > 1) lists.push_back(&spec);
    }
    const std::vector<const InputSpec*>& from = needed.empty()      ? shown
                                                : needed.size() > 1 ? lists
                                                                    : needed;
    const bool fits = from.size() == 1 && std::ssize(flag.values) <= from.front()->max_count &&
                      (from.front()->max_count > 1 || from.front()->required);
    if (!fits) return lose(flag.shown, "the family has no input of pictures");
    const InputSpec* const input = from.front();
    const std::string name(input->name);
    for (const std::string& value : flag.values) flags_.emplace_back(name, value);
    note(flag.shown + " is --" + name + " here");
  }

  // "--lora_weights a.safetensors;0.5" holds the strength itself.
  void take_loras(const std::vector<Given>& given, const LoraFlags& names) {
    const Given* files = find_given(given, names.files);
    const Given* strengths = names.strengths.empty() ? nullptr : find_given(given, names.strengths);
    if (files == nullptr) return;
    const std::vector<std::string> denoiser = denoisers();
    for (size_t i = 0; i < files->values.size(); ++i) {
      std::string use = files->values[i];
      std::ranges::replace(use, ';', ':');
      if (strengths != nullptr && i < strengths->values.size())
        use.append(":").append(strengths->values[i]);
      if (has_experts_ && denoiser.size() > 1)
        use.append("@").append(denoiser[names.is_of_high_noise ? 0 : 1]);
      flags_.emplace_back("lora", use);
      note(files->shown + (strengths == nullptr ? "" : " " + strengths->shown) + " is --lora " +
           shell_text({use}) + " here");
    }
  }

  void finish(const std::string& script) {
    finish_model();
    const std::string name = std::filesystem::path(script).filename().string();
    const bool has_size = speaks() || follows_pose();  // of an input
    for (const ScriptPreset& there : kScriptPresets) {
      const bool is_size = there.flag == "height" || there.flag == "width";
      if (name.find(there.script) != std::string::npos && find_spec(there.flag) != nullptr &&
          !(is_size && has_size))
        preset(std::string(there.flag), std::string(there.value));
    }
    if (follows_pose()) {
      preset("prompt", kPosePrompt);
      preset("solver", kPoseSolver);
    }
    note_presets(name);
    if (!folder_) return;
    const std::string* frames = find("num_frames");
    const bool is_clip = makes_clips() && (frames == nullptr || *frames != "1");
    const std::filesystem::path file =
        std::filesystem::path(folder_->value()) / (is_clip ? "out.mp4" : "out.png");
    rename(folder_->shown, "output", file.string());
  }

  // As atelier generate reads its flags; what the files of the model say is found when it runs.
  void check(bool has_flags) {
    check_plugin();
    if (!has_flags) return;
    std::vector<std::string> words = words_of_flags();
    words.insert(words.end(), unknown_.begin(), unknown_.end());
    flags::parse_flags(spec_, words, {}, problems_);
    if (find("prompt") == nullptr && find("prompts_file") == nullptr)
      problems_.add("--prompt is missing", "say what is to be made, or give --prompts_file FILE");
  }

  bool has_experts_ = false;
  std::string task_;             // in small letters
  bool replaces_ = false;        // see kPreparedFiles
  std::string relights_;         // the flag that asks for the LoRA beside the model
  std::optional<Given> folder_;  // of --save_path
};

}  // namespace

CompatLine rewrite_generate_line(std::span<const std::string> words, const ModelFamily* family,
                                 const flags::CommandSpec& generate, bool has_flags,
                                 report::Problems& problems) {
  return GenerateLine(generate, family, problems).run(words, has_flags);
}

}  // namespace atelier::foreign
