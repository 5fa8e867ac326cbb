#include "host/parameters/shard_files.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <c10/util/accumulate.h>

#include "host/files/checkpoint.h"
#include "host/files/file_reader.h"
#include "host/report/text.h"

namespace atelier::parameters {

namespace {

constexpr char kShardMark = '@';

// "optimizer-": what the files of several processes begin with.
std::vector<std::string> files_of(const run::SavedState& saved_state, const std::string& name) {
  std::vector<std::string> files;
  for (const auto& [file, facts] : saved_state.files) {
    if (file == name + ".safetensors" || file.starts_with(name + "-")) files.push_back(file);
  }
  return files;
}

// Numbers of one value in one file.
struct Source {
  const files::FileReader* file;
  uint64_t place;  // of its first byte
  int64_t begin, count;
  TensorMeta meta;
};

// "NAME.exp_avg" and 4096 of "NAME.exp_avg@4096"; nullopt of what is whole.
std::pair<std::string, std::optional<int64_t>> parse_key(const std::string& key) {
  const size_t mark = key.rfind(kShardMark);
  if (mark == std::string::npos) return {key, std::nullopt};
  int64_t begin = 0;
  const char* const end = key.data() + key.size();
  const auto [rest, failure] = std::from_chars(key.data() + mark + 1, end, begin);
  if (failure != std::errc() || rest != end) return {key, std::nullopt};
  return {key.substr(0, mark), begin};
}

// The values that some files hold, wherever their numbers are.
class ShardReader {
 public:
  ShardReader(const run::SavedState& saved_state, const std::vector<std::string>& files) {
    for (const std::string& file : files) {
      const std::string path = saved_state.path_of(file, /*check=*/false);
      const auto opened = files::Checkpoint::open(path, {path});
      const files::FileReader& reader =
          *files_.emplace_back(std::make_unique<files::FileReader>(path));
      for (const auto& [key, meta] : opened.index().tensors()) {
        const auto [name, begin] = parse_key(key);
        sources_[name].push_back({&reader, opened.place(key).begin, begin.value_or(0),
                                  c10::multiply_integers(meta.shape), meta});
      }
    }
  }

  // `count` numbers of a value from `begin` on, flat; undefined where some are not there.
  at::Tensor read(const std::string& name, int64_t begin, int64_t count) const {
    const auto found = sources_.find(name);
    if (found == sources_.end()) return {};
    const at::Tensor numbers = at::empty({count}, found->second.front().meta.dtype);
    int64_t num_read = 0;
    for (const Source& source : found->second) {
      const int64_t from = std::max(begin, source.begin);
      const int64_t to = std::min(begin + count, source.begin + source.count);
      if (from >= to || source.meta.dtype != numbers.scalar_type()) continue;
      const auto itemsize = static_cast<int64_t>(numbers.itemsize());
      source.file->read(static_cast<char*>(numbers.mutable_data_ptr()) + (from - begin) * itemsize,
                        source.place + static_cast<uint64_t>((from - source.begin) * itemsize),
                        static_cast<uint64_t>((to - from) * itemsize));
      num_read += to - from;
    }
    return num_read == count ? numbers : at::Tensor();
  }

  int64_t numel(const std::string& name) const {
    int64_t end = 0;
    for (const Source& source : sources_.at(name)) end = std::max(end, source.begin + source.count);
    return end;
  }
  template <typename F>
  void for_each_name(F&& call) const {
    for (const auto& [name, sources] : sources_) call(name);
  }

 private:
  std::vector<std::unique_ptr<files::FileReader>> files_;
  std::map<std::string, std::vector<Source>> sources_;
};

// What of a value of the saved state `mine` is; of another size where the value is.
at::Tensor read_like(const ShardReader& reader, const std::string& name, const at::Tensor& mine,
                     const optim::Shard* shard) {
  const int64_t whole = shard ? c10::multiply_integers(shard->whole_sizes) : mine.numel();
  if (reader.numel(name) != whole) return reader.read(name, 0, reader.numel(name));
  const at::Tensor numbers = reader.read(name, shard ? shard->begin : 0, mine.numel());
  return numbers.defined() ? numbers.view(mine.sizes()) : numbers;
}

}  // namespace

void add_part(run::SavedStateFiles& files, const std::string& name, const NamedTensors& state,
              const optim::Shards& shards, const ShardOwner& owner) {
  if (!owner.is_first_copy) return;
  const bool is_alone = owner.count == 1;
  NamedTensors& written =
      files.tensors[is_alone ? name + ".safetensors"
                             : name + report::print("-%05d-of-%05d.safetensors", owner.index + 1,
                                                    owner.count)];
  for (const auto& [key, value] : state) {
    const auto shard = shards.find(key);
    if (shard == shards.end()) {
      if (owner.index == 0) written.emplace(key, value);
    } else if (value.numel() > 0) {
      written.emplace(key + kShardMark + std::to_string(shard->second.begin), value);
    }
  }
}

bool has_part(const run::SavedState& saved_state, const std::string& name) {
  return !files_of(saved_state, name).empty();
}

std::map<std::string, SavedValue> values_of_part(const run::SavedState& saved_state,
                                                 const std::string& name) {
  std::map<std::string, SavedValue> values;
  for (const std::string& file : files_of(saved_state, name)) {
    const std::string path = saved_state.path_of(file, /*check=*/false);
    const auto opened = files::Checkpoint::open(path, {path});
    for (const auto& [key, meta] : opened.index().tensors()) {
      SavedValue& value = values[parse_key(key).first];
      value.numel += c10::multiply_integers(meta.shape);
      value.dtype = meta.dtype;
    }
  }
  return values;
}

NamedTensors read_part(const run::SavedState& saved_state, const std::string& name,
                       const NamedTensors& like, const optim::Shards& shards,
                       const ShardOwner& owner) {
  const std::string whole = name + ".safetensors";
  const std::vector<std::string> files = files_of(saved_state, name);
  if (files.empty() || (shards.empty() && files.front() == whole)) return saved_state.load(whole);
  for (size_t i = 0; i < files.size(); ++i) {
    if (static_cast<int>(i) % owner.num_ranks == owner.rank)
      saved_state.path_of(files[i], /*check=*/true);
  }
  const ShardReader reader(saved_state, files);
  NamedTensors read;
  reader.for_each_name([&](const std::string& key) {
    const auto mine = like.find(key);
    const auto shard = shards.find(key);
    const at::Tensor value = mine == like.end()
                                 ? at::empty({0})
                                 : read_like(reader, key, mine->second,
                                             shard == shards.end() ? nullptr : &shard->second);
    if (value.defined()) read.emplace(key, value);
  });
  return read;
}

}  // namespace atelier::parameters
