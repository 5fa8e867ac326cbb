// Weight tables, files and what is detected in them.
#include <algorithm>
#include <fcntl.h>
#include <filesystem>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ATen/ATen.h>

#include "host/conformance/checks.h"
#include "host/conformance/config_probe.h"
#include "host/files/checkpoint.h"
#include "host/model/recognition.h"
#include "host/weights/component_writer.h"
#include "host/weights/weight_binding.h"
#include "host/weights/weight_loading.h"

namespace atelier::conformance {

namespace {

namespace fs = std::filesystem;

const std::string kScratch = "atelier-conformance-";  // NOLINT(cert-err58-cpp)

// Gives -1 where the folder is another user's or in use.
int lock_folder(const std::string& path) {
  const int folder = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  struct stat status = {};
  if (folder >= 0 && fstat(folder, &status) == 0 && status.st_uid == geteuid() &&
      flock(folder, LOCK_EX | LOCK_NB) == 0)
    return folder;
  if (folder >= 0) close(folder);
  return -1;
}

// A folder that is gone when the suite is done. As long as it is in use its file is locked.
class ScratchFolder {
 public:
  ScratchFolder() {
    remove_abandoned_scratch();
    std::string form = (fs::temp_directory_path() / ".atelier-conformance-XXXXXX").string();
    if (mkdtemp(form.data()) == nullptr)
      throw Error(ErrorCode::kEnvironment, form + ": cannot be made");
    // Under its own name only when it is locked: another program takes it for abandoned before.
    lock_ = lock_folder(form);
    path_ = fs::path(form).replace_filename(kScratch + form.substr(form.size() - 6));
    fs::rename(form, path_);
  }
  ~ScratchFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
    if (lock_ >= 0) close(lock_);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  std::string file(const std::string& name) const { return (path_ / name).string(); }

 private:
  fs::path path_;
  int lock_ = -1;
};

class WeightChecks : Checks {
 public:
  explicit WeightChecks(Subject& subject) : Checks(subject) {}

  void run() {
    check("weights: the table covers every weight", [&] { return check_tables(); });
    check("weights: load, save, load is bit-equal", [&] { return check_round_trip(); });
    check("detection: takes its own files", [&] { return check_detection(); });
    check("detection: which part is which depends on no order", [&] { return check_assigned(); });
    check("detection: refuses what is not its own", [&] { return check_refusals(); });
    check("detection: every field of a config is seen", [&] { return check_configs(); });
    check("parts: any subset makes a model", [&] { return check_subsets(); });
  }

 private:
  Detail check_tables() const {
    const std::unique_ptr<Model> model = make_random();
    int64_t count = 0;
    for (const Detection& part : parts()) {
      const WeightMap rules = family().weight_map(part);
      nn::Module& module = model->component(part.component);
      const auto tensors = weights::published_tensors(module, rules, part.prefix);
      const auto binding = weights::bind_weights(rules, part.prefix, index_of(tensors), module);
      binding.throw_unless_complete("the table of " + part.component, part.component);
      expect(binding.unused.empty(), part.component, ": '",
             binding.unused.empty() ? "" : binding.unused.front(),
             "' is written and said to be unused");
      count += static_cast<int64_t>(tensors.size());
    }
    return std::to_string(count) + " tensors";
  }

  std::string file_of(const Detection& part, const std::string& suffix) const {
    return scratch_.file(part.component + suffix + ".safetensors");
  }

  Detail check_round_trip() const {
    const std::unique_ptr<Model> model = make_random(), other = make(parts());
    for (const Detection& part : parts()) {
      const WeightMap rules = family().weight_map(part);
      nn::Module& module = model->component(part.component);
      nn::Module& loaded = other->component(part.component);
      weights::save_component(module, rules, part.prefix, file_of(part, ""), {});
      const auto file = files::Checkpoint::open({part.component, {file_of(part, "")}});
      const auto binding = weights::bind_weights(rules, part.prefix, file.index(), loaded);
      binding.throw_unless_complete(part.component, part.component);
      weights::load_weights(binding, file, at::kFloat, at::kCPU);
      module.visit_weights([&](const std::string& path, Weight& weight) {
        const WeightPtr twin = loaded.find_weight(path);
        expect(twin != nullptr && at::equal(weight.draw().cpu(), twin->draw()), part.component,
               ": '", path, "' is not what was saved");
      });
      weights::save_component(loaded, rules, part.prefix, file_of(part, ".again"), {});
      expect(read_file(file_of(part, "")) == read_file(file_of(part, ".again")), part.component,
             ": the file saved after loading differs");
    }
    return {};
  }

  Detail check_detection() const {
    const std::unique_ptr<Model> model = make_random();
    for (const Detection& part : parts()) {
      const WeightMap rules = family().weight_map(part);
      nn::Module& module = model->component(part.component);
      for (const std::string& prefix : {part.prefix, std::string("model.diffusion_model.")}) {
        const TensorIndex index = index_of(weights::published_tensors(module, rules, prefix),
                                           told_config(family(), part));
        // Components of one architecture are told apart by the hint alone, and so may be the
        // variant that has several.
        std::optional<Detection> found = family().detect(index, DetectHint{});
        if (found && has_twin(part.component))
          found = family().detect(index, DetectHint{part.component, part.variant});
        if (!found && prefix != part.prefix) continue;  // other prefixes are the family's choice
        expect(found.has_value(), part.component, ": not recognised");
        expect(found->component == part.component, part.component, ": taken for ",
               found->component);
        expect(found->prefix == prefix, part.component, ": prefix '", found->prefix, "', '", prefix,
               "' expected");
        if (prefix == part.prefix) {
          expect(found->variant == part.variant, part.component, ": variant ", found->variant, ", ",
                 part.variant, " expected");
          expect(found->spelling == part.spelling, part.component, ": spelling ", found->spelling,
                 ", ", part.spelling, " expected");
        }
        for (const auto& [name, meta] : index.tensors())
          expect(model::owns(*found, name), part.component, ": does not own its '", name, "'");
        // What was detected makes the same modules.
        const std::vector<Detection> alone = {*found};
        const std::unique_ptr<Model> again = make(alone);
        weights::bind_weights(family().weight_map(*found), found->prefix, index,
                              again->component(part.component))
            .throw_unless_complete(part.component + " as detected", part.component);
        expect(family().detect(index, DetectHint{part.component, ""}).has_value(), part.component,
               ": not recognised when its component is named");
      }
    }
    return {};
  }

  Detail check_assigned() const {
    std::vector<FoundPart> found;
    for (const Detection& part : parts())
      found.push_back({part, "/" + std::to_string(found.size()) + ".safetensors", {}});
    std::vector<FoundPart> reversed(found.rbegin(), found.rend());
    family().assign(found);
    family().assign(reversed);
    std::ranges::reverse(reversed);
    for (size_t i = 0; i < found.size(); ++i) {
      const std::string &one = found[i].part.component, &other = reversed[i].part.component;
      const ComponentSpec* spec = spec_of(one);
      expect(spec != nullptr && spec->role != Role::kTokenizer, "component '", one,
             "' has no tensors");
      expect(one == other, parts()[i].component, ": is ", one, ", and ", other,
             " in another order");
    }
    return {};
  }

  // Whether two components have one role, and their tiny parts the same tensors.
  bool is_twin(std::string_view one, std::string_view other) const {
    const ComponentSpec *a = spec_of(one), *b = spec_of(other);
    if (one == other || a == nullptr || b == nullptr || a->role != b->role) return false;
    std::vector<std::vector<std::string>> names;
    for (const Detection& part : parts()) {
      if (part.component != one && part.component != other) continue;
      std::vector<std::string>& rows = names.emplace_back();
      for (const WeightRule& rule : family().weight_map(part)) rows.push_back(rule.from);
    }
    return names.size() == 2 && names[0] == names[1];
  }

  bool has_twin(std::string_view component) const {
    return std::ranges::any_of(
        parts(), [&](const Detection& other) { return is_twin(component, other.component); });
  }

  Detail check_refusals() const {
    expect(!family().detect(TensorIndex({}), DetectHint{}), "an empty checkpoint is taken");
    const TensorIndex foreign({{"some.other.weight", TensorMeta{at::kFloat, {3, 5}}},
                               {"some.other.bias", TensorMeta{at::kFloat, {3}}}});
    expect(!family().detect(foreign, DetectHint{}), "a checkpoint of nobody is taken");
    const std::unique_ptr<Model> model = make_random();
    for (const Detection& part : parts()) {
      const TensorIndex index =
          index_of(weights::published_tensors(model->component(part.component),
                                              family().weight_map(part), part.prefix),
                   told_config(family(), part));
      for (const Detection& other : parts()) {
        if (other.component == part.component || is_twin(other.component, part.component)) continue;
        try {
          const auto found = family().detect(index, DetectHint{other.component, ""});
          expect(!found.has_value(), part.component, ": the hint ", other.component,
                 " is not contradicted");
        } catch (const Error& error) {
          expect(error.code() == ErrorCode::kInvalidArgument ||
                     error.code() == ErrorCode::kUnsupported,
                 part.component, ": the hint ", other.component, " gives ", error.what());
        }
      }
    }
    return {};
  }

  Detail check_configs() const {
    const std::unique_ptr<Model> model = make_random();
    size_t rows = 0;
    for (const Detection& part : parts()) {
      const TensorIndex index = index_of(weights::published_tensors(
          model->component(part.component), family().weight_map(part), part.prefix));
      const std::vector<std::string> faults = config_faults(family(), part, index.tensors());
      expect(faults.empty(), faults.empty() ? "" : faults.front(), ", ", faults.size(), " in all");
      rows += family().config_fields(part).rows().size();
    }
    return std::to_string(rows) + " fields";
  }

  Detail check_subsets() const {
    make({})->latent_spec();
    for (const Detection& part : parts()) {
      const std::vector<Detection> alone = {part};
      const std::unique_ptr<Model> model = make(alone);
      model->component(part.component);
      for (const Detection& other : parts()) {
        if (other.component == part.component) continue;
        expect_error(ErrorCode::kNotFound,
                     "component " + other.component + " of a model without it",
                     [&] { model->component(other.component); });
      }
    }
    return {};
  }

  ScratchFolder scratch_;
};

}  // namespace

void remove_abandoned_scratch() {
  std::error_code failure;
  fs::directory_iterator entries(fs::temp_directory_path(failure), failure);
  for (; !failure && entries != fs::directory_iterator(); entries.increment(failure)) {
    const fs::path path = entries->path();
    if (!path.filename().string().starts_with(kScratch)) continue;
    const int lock = lock_folder(path.string());
    if (lock < 0) continue;
    std::error_code ignored;
    fs::remove_all(path, ignored);
    close(lock);
  }
}

void check_weights(Subject& subject) {
  WeightChecks(subject).run();
}

}  // namespace atelier::conformance
