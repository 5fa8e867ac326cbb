// What is made of codes, for packed_oracle_test.py.
//
// usage: packed_values values DTYPE FILE OUT     the values of every tensor of a checkpoint
//        packed_values codes nf4|fp4 FILE OUT    what each tensor is stored as, part by part
#include <cstdio>
#include <map>

#include "atelier/error.h"

#include "host/files/checkpoint.h"
#include "host/files/safetensors_writer.h"
#include "host/report/error_line.h"
#include "memory/four_bit.h"

using namespace atelier;

namespace {

void write(const std::string& path, const std::map<std::string, at::Tensor>& tensors) {
  std::vector<formats::TensorEntry> entries;
  for (const auto& [name, value] : tensors)
    entries.push_back({name, files::file_dtype(value.scalar_type()), value.sizes().vec(), 0, 0});
  files::write_safetensors(path, std::move(entries), {},
                           [&](const std::string& name) { return tensors.at(name); });
}

void run(const std::string& what, const std::string& kind, const std::string& path,
         const std::string& out) {
  const auto file = files::Checkpoint::open(path, {path});
  std::map<std::string, at::Tensor> result;
  const at::ScalarType dtype = kind == "float32"    ? at::kFloat
                               : kind == "bfloat16" ? at::kBFloat16
                                                    : at::kHalf;
  for (const auto& [name, meta] : file.index().tensors()) {
    if (what == "values") {
      result[name] = file.read(name, dtype);
      continue;
    }
    const auto packed = memory::quantize_4bit(
        file.read(name), kind == "nf4" ? memory::Packing::kNf4 : memory::Packing::kFp4);
    for (size_t i = 0; i < packed.parts.size(); ++i)
      result[name + "." + std::to_string(i)] = packed.parts[i];
  }
  write(out, result);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  try {
    run(argv[1], argv[2], argv[3], argv[4]);
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", report::error_line(error).c_str());
    return 1;
  }
  return 0;
}
