# Sources of atelier_formats, relative to this folder; also built into the fuzzers.
set(ATELIER_FORMATS_SOURCES
  chars_map.cpp
  csv.cpp
  elf_note.cpp
  escape.cpp
  git_lfs.cpp
  glob.cpp
  json.cpp
  json_reader.cpp
  list.cpp
  safetensors.cpp
  sentencepiece_model.cpp
  shard_index.cpp
  tokenizer_files.cpp
  tokenizer_json.cpp
  tokenizer_parts.cpp
  utf8.cpp)
