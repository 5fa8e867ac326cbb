// One checkpoint: one or several files, safetensors, GGUF or archives of torch.save(), that hold
// the tensors of one component.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "atelier/checkpoint.h"

#include "formats/safetensors.h"
#include "formats/shard_index.h"
#include "host/files/packed_tensors.h"

namespace atelier::files {

// Where the bytes of a tensor lie.
struct TensorLocation {
  int file = 0;        // of Checkpoint::files()
  uint64_t begin = 0;  // from the start of the file
  uint64_t bytes = 0;
  // Steps between elements, in elements, where they do not lie in order; their bytes may be the
  // other way round, too. Such tensors are read whole, and no part of them by itself.
  std::vector<int64_t> strides = {};
  bool is_big_endian = false;
  bool is_packed = false;  // it holds codes, see Checkpoint::packed()

  bool is_plain() const { return strides.empty() && !is_big_endian && !is_packed; }
};

// The key of `__metadata__` whose value is the text of a config.json: saved components carry it.
inline constexpr const char* kConfigKey = "atelier.config";

// What the tensors of a checkpoint do not tell.
struct ConfigText {
  std::string json;   // as in a config.json
  std::string place;  // where it stands: a path, or "FILE:__metadata__"
};

// Files that together are one checkpoint.
struct CheckpointFiles {
  std::string name;  // stands for the checkpoint in messages: the path that the user gave
  std::vector<std::string> files;  // its shards
  std::string index_path = {};     // the *.index.json that lists them; empty: none
  std::string config_path = {};    // the config.json beside them; empty: none
};

// Headers only, checked against the length of each file; tensors are read with pread when they are
// asked for. Immutable and safe to use from several threads.
class Checkpoint {
 public:
  // Throws Error naming file, byte and tensor: kNotFound, kEnvironment, kInvalidArgument,
  // kDataLoss, kUnsupported.
  static Checkpoint open(const CheckpointFiles& files);
  // Without index and config.
  static Checkpoint open(std::string name, std::vector<std::string> files) {
    return open(CheckpointFiles{std::move(name), std::move(files)});
  }

  // These files, as if they held only the tensors that `holds` says yes to.
  Checkpoint only(const std::function<bool(std::string_view tensor)>& holds) const;
  // These files with the config of `other`.
  Checkpoint with_config_of(const Checkpoint& other) const;

  const std::string& name() const { return name_; }
  const std::vector<std::string>& files() const { return files_; }
  // The folder of the first file.
  std::string folder() const;
  // Without the scales of 8-bit tensors, their markers and the scales of activations beside them:
  // see scales().
  const TensorIndex& index() const { return *index_; }
  // `__metadata__` of all files; the first file that has a key wins.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  // The config of index(): the one in the metadata, else the config.json beside the files; nullopt
  // where there is neither.
  const std::optional<ConfigText>& config() const { return config_; }
  // The bytes of all tensors.
  uint64_t bytes() const { return bytes_; }

  // Throws Error{kNotFound}.
  const TensorLocation& place(std::string_view tensor) const;

  // Files of 8-bit floats may hold scales beside a tensor: "X.weight_scale" or "X.scale_weight" of
  // "X.weight", one or one for each row. The values are the tensor's times these.
  bool has_scales(std::string_view tensor) const { return scales_.contains(tensor); }
  bool has_scales() const { return !scales_.empty(); }
  // Float32 on the CPU, [1] or [rows]; undefined when there are none.
  // Throws Error{kDataLoss} when one is not finite.
  at::Tensor scales(std::string_view tensor) const;

  // Tensors may be stored as codes. In index() they have the shape that they stand for, and are
  // bfloat16. Null for others.
  const PackedTensor* packed(std::string_view tensor) const;
  const PackedTensors& packed() const { return packed_; }
  // Reads a packed tensor as it is, into memory of its own. Throws as read().
  memory::Packed read_packed(std::string_view tensor) const;
  // The bytes of a tensor of index() in its files.
  uint64_t bytes_of(std::string_view tensor) const;

  // Reads one tensor into memory of its own, the values of codes, converted where `dtype` is
  // another one. Its scales are not applied. Throws Error{kNotFound}, and Error{kDataLoss} when the
  // file was changed since it was opened.
  at::Tensor read(std::string_view tensor, std::optional<at::ScalarType> dtype = {}) const;

  // The sizes of the files, as they were when their headers were read.
  const std::vector<uint64_t>& file_sizes() const { return file_sizes_; }

 private:
  Checkpoint() = default;
  std::optional<ConfigText> find_config(const CheckpointFiles& found) const;
  void check_against(const std::string& index_path) const;
  void take_scales(TensorIndex::Tensors& tensors);
  at::Tensor read(const TensorLocation& place, const TensorMeta& meta, at::ScalarType to) const;
  void take_packed_tensors(TensorIndex::Tensors& tensors);

  std::string name_;
  std::vector<std::string> files_;
  std::vector<uint64_t> file_sizes_;
  std::map<std::string, std::string> metadata_;
  std::map<std::string, TensorLocation, std::less<>> places_;
  std::shared_ptr<const TensorIndex> index_;
  std::optional<ConfigText> config_;
  struct Scales {
    std::string name;
    TensorMeta meta;
  };
  std::map<std::string, Scales, std::less<>> scales_;  // by tensor
  PackedTensors packed_;
  uint64_t bytes_ = 0;
};

// Reads a *.index.json. Throws Error naming file and line.
formats::ShardIndex read_shard_index(const std::string& path);

// LibTorch's name of a dtype of the format. Throws Error{kUnsupported} for those that LibTorch does
// not have.
at::ScalarType scalar_type(formats::DType dtype);
formats::DType file_dtype(at::ScalarType type);

}  // namespace atelier::files
