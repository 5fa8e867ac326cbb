// What every parser must hold to on any bytes: it returns or throws ParseError, and what it returns
// keeps its promises.
#pragma once

#include <array>
#include <string_view>

namespace atelier::formats {

// Each runs its parser on `bytes` and aborts when a promise is broken.
void fuzz_safetensors(std::string_view bytes);
void fuzz_shard_index(std::string_view bytes);
void fuzz_tokenizer(std::string_view bytes);
void fuzz_sentencepiece(std::string_view bytes);
void fuzz_elf_note(std::string_view bytes);
void fuzz_pth(std::string_view bytes);
void fuzz_gguf(std::string_view bytes);
void fuzz_json(std::string_view bytes);
void fuzz_csv(std::string_view bytes);
void fuzz_multipart(std::string_view bytes);
void fuzz_http(std::string_view bytes);
void fuzz_request(std::string_view bytes);
void fuzz_image(std::string_view bytes);
void fuzz_yaml(std::string_view bytes);
void fuzz_toml(std::string_view bytes);
void fuzz_video(std::string_view bytes);

struct FuzzTarget {
  const char* name;  // of its corpus folder
  void (*run)(std::string_view bytes);
};
#ifdef ATELIER_FUZZ_VIDEO  // in a program of its own, which needs FFmpeg
inline constexpr std::array<FuzzTarget, 1> kFuzzTargets = {{{"video", fuzz_video}}};
#else
inline constexpr std::array<FuzzTarget, 15> kFuzzTargets = {{
    {"safetensors", fuzz_safetensors},
    {"shard_index", fuzz_shard_index},
    {"tokenizer", fuzz_tokenizer},
    {"sentencepiece", fuzz_sentencepiece},
    {"elf_note", fuzz_elf_note},
    {"pth", fuzz_pth},
    {"gguf", fuzz_gguf},
    {"json", fuzz_json},
    {"csv", fuzz_csv},
    {"multipart", fuzz_multipart},
    {"http", fuzz_http},
    {"request", fuzz_request},
    {"image", fuzz_image},
    {"yaml", fuzz_yaml},
    {"toml", fuzz_toml},
}};
#endif

}  // namespace atelier::formats
