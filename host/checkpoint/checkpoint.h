// One checkpoint: one or several safetensors files that hold the tensors of one component.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "atelier/checkpoint.h"
#include "formats/safetensors.h"

namespace atelier::checkpoint {

// Where the bytes of a tensor lie.
struct TensorPlace {
  int file = 0;        // of Checkpoint::files()
  uint64_t begin = 0;  // from the start of the file
  uint64_t bytes = 0;
};

// Headers only, checked against the length of each file; tensors are read with pread when they are asked for. Immutable
// and safe to use from several threads.
class Checkpoint {
 public:
  // `name` stands for the checkpoint in messages. `files` are its shards, `config_path` the config.json beside them; an
  // empty one means none.
  // Throws Error naming file, byte and tensor: kNotFound, kEnvironment, kInvalidArgument, kDataLoss, kUnsupported.
  static Checkpoint open(std::string name, const std::vector<std::string>& files, const std::string& config_path = {});

  const std::string& name() const { return name_; }
  const std::vector<std::string>& files() const { return files_; }
  // The folder of the first file.
  std::string folder() const;
  const TensorIndex& index() const { return *index_; }
  // `__metadata__` of all files; the first file that has a key wins.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  // Of all tensors.
  uint64_t bytes() const { return bytes_; }

  // Throws Error{kNotFound}.
  const TensorPlace& place(std::string_view tensor) const;

  // Reads one tensor into memory of its own, converted where `dtype` is another one.
  // Throws Error{kNotFound}, and Error{kDataLoss} when the file was changed since it was opened.
  at::Tensor read(std::string_view tensor, std::optional<at::ScalarType> dtype = {}) const;

  // Throws Error{kDataLoss} when a file has another length than when it was opened.
  void check_lengths() const;

 private:
  Checkpoint() = default;

  std::string name_;
  std::vector<std::string> files_;
  std::vector<uint64_t> file_sizes_;
  std::map<std::string, std::string> metadata_;
  std::map<std::string, TensorPlace, std::less<>> places_;
  std::shared_ptr<const TensorIndex> index_;
  uint64_t bytes_ = 0;
};

// LibTorch's name of a dtype of the format. Throws Error{kUnsupported} for those that LibTorch does not have.
at::ScalarType scalar_type(formats::DType dtype);
formats::DType file_dtype(at::ScalarType type);

}  // namespace atelier::checkpoint
