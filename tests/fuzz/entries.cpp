#include "fuzz/entries.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <unordered_set>
#include <vector>

#include "formats/base64.h"
#include "formats/chars_map.h"
#include "formats/csv.h"
#include "formats/data_url.h"
#include "formats/elf_note.h"
#include "formats/escape.h"
#include "formats/gguf.h"
#include "formats/glob.h"
#include "formats/http_fields.h"
#include "formats/json.h"
#include "formats/multipart.h"
#include "formats/pickle.h"
#include "formats/pth.h"
#include "formats/route.h"
#include "formats/safetensors.h"
#include "formats/sentencepiece_model.h"
#include "formats/shard_index.h"
#include "formats/tokenizer_files.h"
#include "formats/url.h"
#include "formats/utf8.h"
#include "fuzz/promise.h"

namespace atelier::formats {
namespace {

void check_error(const ParseError& error) {
  promise(!error.tag.empty() && *error.what() != '\0', "an error has a tag and a message");
  const std::string_view message = error.what();
  promise(find_invalid_utf8(message) == std::string_view::npos, "a message is UTF-8");
  promise(std::none_of(message.begin(), message.end(),
                       [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; }),
          "a message holds no control character");
  promise(message.size() < 2000, "a message is short");
}

void check_header(const SafetensorsHeader& header, uint64_t file_size) {
  uint64_t position = 0;
  for (const TensorEntry& entry : header.tensors) {
    promise(entry.begin == position && entry.end >= entry.begin, "tensors follow each other");
    promise(tensor_bytes(entry.name, entry.dtype, entry.shape) == entry.end - entry.begin,
            "a tensor's bytes are those of its shape");
    position = entry.end;
  }
  promise(header.data_begin + position == file_size, "tensors end with the file");

  const WrittenHeader written = serialize_safetensors_header(header.tensors, header.metadata);
  const uint64_t written_size = written.bytes.size() + position;
  const std::string_view bytes = written.bytes;
  promise(read_header_length(bytes.substr(0, 8), written_size) == bytes.size() - 8,
          "a written header gives its length");
  const SafetensorsHeader again = parse_safetensors_header(bytes.substr(8), written_size);
  promise(again.tensors.size() == header.tensors.size() && again.metadata == header.metadata,
          "a written header reads back");
}

// The largest end of a tensor in `text`, so that the file gets the size that it wants.
uint64_t wanted_bytes(std::string_view text) {
  uint64_t largest = 0;
  const nlohmann::json tree =
      nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false, /*ignore_comments=*/false);
  if (!tree.is_object()) return 0;
  for (const auto& [name, entry] : tree.items()) {
    if (!entry.is_object() || !entry.contains("data_offsets")) continue;
    const nlohmann::json& offsets = entry["data_offsets"];
    if (offsets.is_array() && offsets.size() == 2 && offsets[1].is_number_unsigned()) {
      largest = std::max(largest, offsets[1].get<uint64_t>());
    }
  }
  return std::min<uint64_t>(largest, uint64_t{1} << 62);
}

// The rules come from `bytes`, and are looked for in its beginning.
void check_chars_map(const CharsMap& rules, std::string_view bytes) {
  for (std::string_view text = bytes.substr(0, 512); !text.empty(); text.remove_prefix(1)) {
    const auto longest = rules.longest_match(text), shortest = rules.shortest_match(text);
    promise(longest.has_value() == shortest.has_value(), "a longest match is a match");
    if (!longest) continue;
    promise(shortest->length > 0 && shortest->length <= longest->length &&
                longest->length <= text.size(),
            "a rule takes part of the text");
    promise(longest->replacement.size() < bytes.size(), "a replacement comes from the file");
  }
}

void check_bpe(const BpeModel& model) {
  std::unordered_set<uint32_t> ids;
  for (size_t i = 0; i < model.tokens.size(); ++i) {
    promise(model.tokens[i].id < kMaxTokens, "ids are bounded");
    promise(i == 0 || model.tokens[i - 1].id < model.tokens[i].id, "tokens come by rising id");
    ids.insert(model.tokens[i].id);
  }
  for (const BpeMerge& merge : model.merges) {
    promise(ids.contains(merge.left) && ids.contains(merge.right) && ids.contains(merge.joined),
            "merges are of tokens");
  }
}

void check_unigram(const UnigramModel& model) {
  promise(model.unknown < model.pieces.size() && model.pieces.size() <= kMaxTokens,
          "the unknown piece is one of them");
  for (const UnigramModel::Piece& piece : model.pieces) {
    promise(!piece.text.empty() && std::isfinite(piece.score), "pieces have text and score");
    promise(find_invalid_utf8(piece.text) == std::string_view::npos, "a piece is UTF-8");
  }
}

void check_tokenizer(const TokenizerFiles& files, std::string_view bytes) {
  if (const auto* bpe = std::get_if<BpeModel>(&files.model)) check_bpe(*bpe);
  if (const auto* unigram = std::get_if<UnigramModel>(&files.model)) check_unigram(*unigram);
  for (size_t i = 0; i < files.added_tokens.size(); ++i) {
    const AddedToken& added = files.added_tokens[i];
    promise(added.id < kMaxTokens && !added.text.empty(), "added tokens have id and text");
    promise(i == 0 || files.added_tokens[i - 1].id < added.id, "added tokens come by rising id");
  }
  for (const NormalizerStep& step : files.normalizers) check_chars_map(step.chars_map, bytes);
}

}  // namespace

// Once as a whole file and once as the header of a file of fitting size, so that few bytes die
// at the length prefix.
void fuzz_safetensors(std::string_view bytes) {
  try {
    const uint64_t length = read_header_length(bytes.substr(0, 8), bytes.size());
    check_header(parse_safetensors_header(bytes.substr(8, length), bytes.size()), bytes.size());
  } catch (const ParseError& error) {
    check_error(error);
  }
  try {
    const uint64_t size = 8 + bytes.size() + wanted_bytes(bytes);
    const SafetensorsHeader header =
        parse_safetensors_header(bytes, size, {.allow_leading_whitespace = true});
    check_header(header, size);
    if (const auto error = find_unsupported_packing(header)) check_error(*error);
  } catch (const ParseError& error) {
    check_error(error);
  }
  if (const auto error = sniff(bytes, bytes.substr(0, bytes.find('\n')))) check_error(*error);
}

void fuzz_shard_index(std::string_view bytes) {
  try {
    const ShardIndex index = parse_shard_index(bytes);
    promise(!index.shards.empty(), "an index has shards");
    for (const auto& [tensor, shard] : index.weight_map) {
      promise(std::binary_search(index.shards.begin(), index.shards.end(), shard),
              "every shard is listed");
      promise(shard.find('/') == std::string::npos && glob_match("?*.safetensors", shard),
              "a shard is a plain name");
    }
  } catch (const ParseError& error) {
    check_error(error);
  }
}

// NUL bytes part vocab.json, merges.txt, tokenizer_config.json and added_tokens.json; without one
// the bytes are a tokenizer.json.
void fuzz_tokenizer(std::string_view bytes) {
  try {
    if (bytes.find('\0') == std::string_view::npos) {
      check_tokenizer(parse_tokenizer_json(bytes), bytes);
      return;
    }
    std::vector<std::string_view> parts;
    while (parts.size() < 4) {
      const size_t end = std::min(bytes.find('\0'), bytes.size());
      parts.push_back(bytes.substr(0, end));
      bytes.remove_prefix(std::min(end + 1, bytes.size()));
    }
    const auto optional = [&](size_t i) {
      return parts[i].empty() ? std::nullopt : std::optional(parts[i]);
    };
    check_tokenizer(parse_bpe_files(parts[0], parts[1], optional(2), optional(3)), parts[0]);
  } catch (const ParseError& error) {
    check_error(error);
  }
}

void fuzz_sentencepiece(std::string_view bytes) {
  try {
    const SentencePieceModel model = parse_sentencepiece_model(bytes);
    promise(model.unknown < model.pieces.size(), "what is unknown has a piece");
    size_t num_bytes = 0;
    for (const SentencePiece& piece : model.pieces) {
      promise(!piece.text.empty() && find_invalid_utf8(piece.text) == std::string_view::npos,
              "a piece has text");
      promise(piece.score - piece.score == 0, "scores are finite");
      if (piece.type == PieceType::kByte) ++num_bytes;
      promise(piece.type != PieceType::kByte || byte_of_piece(piece.text).has_value(),
              "a piece for a byte says which");
    }
    promise(num_bytes == (model.byte_fallback ? 256U : 0U), "all bytes have pieces, or none");
    check_chars_map(model.chars_map, bytes);
  } catch (const ParseError& error) {
    check_error(error);
  }
}

void fuzz_elf_note(std::string_view bytes) {
  try {
    const std::optional<PluginNote> note = read_plugin_note(bytes);
    if (!note) return;
    promise(!note->family.empty() && note->family.find('/') == std::string::npos,
            "a family has a plain name");
    promise(note->abi.size() + note->version.size() < bytes.size(), "strings come from the file");
  } catch (const ParseError& error) {
    check_error(error);
  }
}

// Once as a whole file, and once as the pickle of one, so that changes of it are not lost to the
// archive around it.
void fuzz_pth(std::string_view bytes) {
  const auto read = [&](uint64_t begin, uint64_t count) {
    promise(begin <= bytes.size() && count <= bytes.size() - begin, "reads lie inside the file");
    return std::string(bytes.substr(begin, count));
  };
  try {
    const PthIndex index = read_pth(bytes.size(), read);
    promise(!index.tensors.empty() && index.pickle_end <= bytes.size(), "a checkpoint has tensors");
    for (const PthTensor& tensor : index.tensors) {
      promise(tensor.begin <= tensor.end && tensor.end <= bytes.size(), "tensors lie in the file");
      const uint64_t in_order = tensor_bytes(tensor.name, tensor.dtype, tensor.shape);
      promise(tensor.strides.empty() ? tensor.end - tensor.begin == in_order
                                     : tensor.strides.size() == tensor.shape.size(),
              "a tensor's bytes are those of its shape, or it has strides");
    }
  } catch (const ParseError& error) {
    check_error(error);
  }
  try {
    const Pickle pickle = read_pickle(bytes, [](std::string_view) { return true; });
    promise(pickle.root < pickle.values.size(), "a pickle has a value");
    for (const PickleValue& value : pickle.values) {
      promise(std::all_of(value.items.begin(), value.items.end(),
                          [&](PickleRef item) { return item < pickle.values.size(); }),
              "values refer to values");
      promise(value.kind != PickleValue::Kind::kCall || value.items.size() == 2,
              "a call has a name and arguments");
    }
  } catch (const ParseError& error) {
    check_error(error);
  }
}

void fuzz_gguf(std::string_view bytes) {
  const auto read = [&](uint64_t begin, uint64_t count) {
    promise(begin <= bytes.size() && count <= bytes.size() - begin, "reads lie inside the file");
    return std::string(bytes.substr(begin, count));
  };
  try {
    const GgufIndex index = read_gguf(bytes.size(), read);
    promise(index.header_end <= bytes.size(), "a header lies in the file");
    for (const GgufTensor& tensor : index.tensors) {
      promise(tensor.begin <= tensor.end && tensor.end <= bytes.size() &&
                  (tensor.begin == tensor.end || tensor.begin >= index.header_end),
              "tensors lie in the file, behind its header");
      const GgufBlock block = block_of(tensor.type);
      const uint64_t count = tensor_bytes(tensor.name, DType::kU8, tensor.shape);
      const auto values = static_cast<uint64_t>(block.values);
      promise(count % values == 0 &&
                  count / values * static_cast<uint64_t>(block.bytes) == tensor.end - tensor.begin,
              "a tensor's bytes are those of its shape");
    }
  } catch (const ParseError& error) {
    check_error(error);
  }
}

void fuzz_csv(std::string_view bytes) {
  try {
    uint64_t last = 0;
    size_t num_bytes = 0;
    for (const CsvRow& row : parse_csv(bytes)) {
      promise(row.line > last, "rows come in order");
      last = row.line;
      promise(!row.fields.empty(), "a row has fields");
      for (const std::string& field : row.fields) num_bytes += field.size();
    }
    promise(num_bytes <= bytes.size(), "fields come from the table");
  } catch (const ParseError& error) {
    check_error(error);
  }
}

// The first line is the type of the form.
void fuzz_multipart(std::string_view bytes) {
  const size_t end = std::min(bytes.find('\n'), bytes.size());
  const std::string_view body = bytes.substr(std::min(end + 1, bytes.size()));
  try {
    const char* last = body.data();
    for (const MultipartPart& part : parse_multipart(bytes.substr(0, end), body)) {
      promise(!part.name.empty() && find_invalid_utf8(part.name) == std::string_view::npos,
              "a part has a name");
      promise(part.bytes.data() > last &&
                  part.bytes.data() + part.bytes.size() < body.data() + body.size(),
              "parts lie in the form, one after the other");
      last = part.bytes.data() + part.bytes.size();
    }
  } catch (const ParseError& error) {
    check_error(error);
  }
}

void fuzz_http(std::string_view bytes) {
  const auto is_text = [](std::string_view text) {
    return find_invalid_utf8(text) == std::string_view::npos &&
           text.find_first_of(std::string_view("\0\r\n", 3)) == std::string_view::npos;
  };
  try {
    const RequestTarget target = parse_request_target(bytes);
    promise(target.path.starts_with('/') && is_text(target.path), "a path is a text");
    promise((target.path + "/").find("/../") == std::string::npos, "a path does not climb");
    for (const auto& [name, value] : target.query)
      promise(is_text(name) && is_text(value), "a query is of texts");
    const auto values = RoutePattern("/{a}/{b}").match(target.path);
    promise(!values || "/" + values->at("a") + "/" + values->at("b") == target.path,
            "the values of a route are its path");
    promise(RoutePattern(target.path).meets(RoutePattern(target.path)), "a pattern meets itself");
  } catch (const ParseError& error) {
    check_error(error);
  }
  try {
    promise(is_http_token(parse_media_type(bytes).type) || bytes.find('/') != bytes.npos,
            "a type is a word");
  } catch (const ParseError& error) {
    check_error(error);
  }
  try {
    if (const auto range = parse_byte_range(bytes, 1000))
      promise(range->begin < range->end && range->end <= 1000, "a range lies in the file");
  } catch (const ParseError& error) {
    check_error(error);
  }
  if (const auto origin = parse_origin(bytes))
    promise(lower_case(bytes).starts_with(origin->scheme + "://"),
            "an origin begins with a scheme");
  promise(decode_base64(encode_base64(bytes)) == bytes, "base64 reads back");
  try {
    promise(parse_data_url(bytes).bytes.size() < bytes.size(), "a file comes from its text");
  } catch (const ParseError& error) {
    check_error(error);
  }
}

void fuzz_json(std::string_view bytes) {
  try {
    const nlohmann::json tree = parse_json(bytes);
    promise(parse_json(tree.dump()) == tree, "a tree that is written reads back");
  } catch (const ParseError& error) {
    check_error(error);
  }
  std::vector<ParseError> errors;
  uint64_t last = 0;
  for (const JsonLine& row : parse_jsonl(bytes, {}, &errors)) {
    promise(row.line > last, "lines come in order");
    last = row.line;
  }
  for (const ParseError& error : errors) check_error(error);
  const size_t middle = bytes.size() / 2;
  const std::string_view pattern = bytes.substr(0, std::min<size_t>(middle, 64));
  glob_match(pattern, bytes.substr(middle));
  promise(glob_match("*" + std::string(pattern) + "*", pattern), "a pattern of itself matches");
  promise(find_invalid_utf8(quote_and_escape(bytes)) == std::string::npos, "escaped is UTF-8");
}

}  // namespace atelier::formats
