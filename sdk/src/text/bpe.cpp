#include "text/bpe.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <random>

#include "atelier/error.h"

#include "formats/escape.h"
#include "formats/sentencepiece_model.h"
#include "formats/utf8.h"

namespace atelier::text {
namespace {

// Byte-level vocabularies spell each byte as a printable character: itself where Latin-1 has one,
// and the next one from U+0100 on otherwise.
std::array<std::string, 256> byte_spellings() {
  std::array<std::string, 256> spellings;
  uint32_t next = 0x100;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool is_printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
    formats::append_utf8(spellings[byte], is_printable ? byte : next++);
  }
  return spellings;
}

// "<0x0A>"
std::array<std::string, 256> byte_names() {
  std::array<std::string, 256> names;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    names[byte] = formats::piece_of_byte(static_cast<uint8_t>(byte));
  }
  return names;
}

}  // namespace

Bpe::Bpe(const formats::BpeModel& model, const TokenIds& vocabulary, Alphabet alphabet)
    : vocabulary_(vocabulary),
      merges_(std::bit_ceil(2 * model.merges.size() + 2)),
      hash_key_((uint64_t{std::random_device{}()} << 32) | std::random_device{}()),
      byte_spellings_(alphabet == Alphabet::kBytes ? byte_spellings() : byte_names()),
      alphabet_(alphabet),
      ignores_merges_(model.ignore_merges) {
  if (!model.end_of_word_suffix.empty()) {
    throw Error(
        ErrorCode::kUnsupported,
        "the end of a word is spelled " + formats::quote_and_escape(model.end_of_word_suffix, 40),
        "only vocabularies without such a suffix can be read");
  }
  find_bytes(model);
  for (size_t rank = 0; rank < model.merges.size(); ++rank) {
    const formats::BpeMerge& merge = model.merges[rank];
    const uint64_t pair = uint64_t{merge.left} << 32 | merge.right;
    merges_[find(pair)] = {pair, static_cast<uint32_t>(rank), merge.joined};
  }
}

void Bpe::find_bytes(const formats::BpeModel& model) {
  uint32_t unknown = kNone;
  if (model.unk_token) {
    const auto it = vocabulary_.find(*model.unk_token);
    if (it != vocabulary_.end()) unknown = it->second;
  }
  size_t num_missing = 0;
  for (int byte = 0; byte < 256; ++byte) {
    const auto it = vocabulary_.find(byte_spellings_[byte]);
    const bool is_known = it != vocabulary_.end();
    num_missing += is_known ? 0 : 1;
    // A byte without a token is the unknown token, or left out where there is none either.
    byte_ids_[byte] = is_known ? it->second : unknown;
  }
  if (num_missing == 256) {
    throw Error(ErrorCode::kDataLoss, "the vocabulary has no token for any byte",
                alphabet_ == Alphabet::kBytes
                    ? "a byte-level vocabulary spells bytes as single characters"
                    : "a vocabulary with byte_fallback spells bytes as <0x0A>");
  }
  const bool is_byte_level = alphabet_ == Alphabet::kBytes;
  const bool needs_all =
      !is_byte_level || model.byte_fallback || (model.unk_token && unknown == kNone);
  if (num_missing > 0 && needs_all) {
    throw Error(ErrorCode::kUnsupported,
                "the vocabulary lacks " + std::to_string(num_missing) +
                    " of the 256 bytes, and what stands for them is not known",
                is_byte_level
                    ? "only vocabularies with every byte, or with an unknown token, can be read"
                    : "only vocabularies with every byte can be read");
  }
}

size_t Bpe::find(uint64_t pair) const {
  uint64_t hash = pair ^ hash_key_;  // the mixing of splitmix64
  hash = (hash ^ (hash >> 30)) * 0xBF58476D1CE4E5B9;
  hash = (hash ^ (hash >> 27)) * 0x94D049BB133111EB;
  hash ^= hash >> 31;
  const size_t mask = merges_.size() - 1;
  size_t at = hash & mask;
  while (merges_[at].pair != pair && merges_[at].pair != UINT64_MAX) at = (at + 1) & mask;
  return at;
}

void Bpe::find_merge(Scratch& scratch, uint32_t left) const {
  Scratch::Symbol& symbol = scratch.symbols[left];
  symbol.rank = kNone;
  if (symbol.next == kNone) return;
  const uint64_t pair = uint64_t{symbol.id} << 32 | scratch.symbols[symbol.next].id;
  const Merge& merge = merges_[find(pair)];
  if (merge.pair != pair) return;
  symbol.rank = merge.rank;
  symbol.joined = merge.joined;
  scratch.queue.push_back(uint64_t{merge.rank} << 32 | left);
}

void Bpe::add_symbol(uint32_t id, Scratch& scratch) const {
  if (id == kNone) return;
  const auto at = static_cast<uint32_t>(scratch.symbols.size());
  scratch.symbols.push_back({id, at == 0 ? kNone : at - 1, at + 1, kNone, 0});
}

// Fills the symbols with what the word is made of before merges.
void Bpe::split(std::string_view word, Scratch& scratch) const {
  scratch.symbols.clear();
  if (alphabet_ == Alphabet::kBytes) {
    for (const char c : word) add_symbol(byte_ids_[static_cast<uint8_t>(c)], scratch);
    return;
  }
  while (!word.empty()) {
    const std::string_view c = word.substr(0, formats::decode_utf8(word, 0).length);
    if (const auto known = vocabulary_.find(c); known != vocabulary_.end()) {
      add_symbol(known->second, scratch);
    } else {
      for (const char byte : c) add_symbol(byte_ids_[static_cast<uint8_t>(byte)], scratch);
    }
    word.remove_prefix(c.size());
  }
}

void Bpe::append_tokens(std::string_view word, Scratch& scratch, std::vector<int64_t>& ids) const {
  if (ignores_merges_) {
    if (alphabet_ == Alphabet::kBytes) {
      scratch.spelling.clear();
      for (const char c : word) scratch.spelling += byte_spellings_[static_cast<uint8_t>(c)];
    } else {
      scratch.spelling = word;
    }
    const auto whole = vocabulary_.find(scratch.spelling);
    if (whole != vocabulary_.end()) {
      ids.push_back(whole->second);
      return;
    }
  }
  split(word, scratch);
  if (scratch.symbols.empty()) return;
  scratch.symbols.back().next = kNone;
  merge_all(scratch);
  for (uint32_t at = 0; at != kNone; at = scratch.symbols[at].next) {
    ids.push_back(scratch.symbols[at].id);
  }
}

void Bpe::merge_all(Scratch& scratch) const {
  auto& symbols = scratch.symbols;
  auto& queue = scratch.queue;
  queue.clear();
  for (uint32_t at = 0; at < symbols.size(); ++at) find_merge(scratch, at);
  std::make_heap(queue.begin(), queue.end(), std::greater<>());
  while (!queue.empty()) {
    std::pop_heap(queue.begin(), queue.end(), std::greater<>());
    const auto rank = static_cast<uint32_t>(queue.back() >> 32);
    const auto left = static_cast<uint32_t>(queue.back());
    queue.pop_back();
    Scratch::Symbol& symbol = symbols[left];
    if (symbol.rank != rank) continue;  // a neighbour has changed since

    Scratch::Symbol& gone = symbols[symbol.next];
    symbol.id = symbol.joined;
    symbol.next = gone.next;
    gone.rank = kNone;
    if (symbol.next != kNone) symbols[symbol.next].previous = left;
    for (const uint32_t at : {left, symbol.previous}) {
      if (at == kNone) continue;
      const size_t before = queue.size();
      find_merge(scratch, at);
      if (queue.size() > before) std::push_heap(queue.begin(), queue.end(), std::greater<>());
    }
  }
}

}  // namespace atelier::text
