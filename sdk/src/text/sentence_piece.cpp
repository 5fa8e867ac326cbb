#include "text/sentence_piece.h"

#include <algorithm>
#include <limits>

#include "atelier/error.h"

#include "formats/utf8.h"
#include "text/unicode.h"

namespace atelier::text {
namespace {

using formats::PieceType;
using formats::SentencePieceKind;

constexpr std::string_view kSpace = "\xE2\x96\x81";  // U+2581

}  // namespace

SentencePieceEncoder::SentencePieceEncoder(formats::SentencePieceModel model)
    : model_(std::move(model)) {
  if (model_.kind != SentencePieceKind::kBpe && model_.kind != SentencePieceKind::kUnigram) {
    const bool is_word = model_.kind == SentencePieceKind::kWord;
    throw Error(
        ErrorCode::kUnsupported,
        std::string("a SentencePiece model of the ") + (is_word ? "word" : "character") + " kind",
        "models of the byte-pair and the unigram kind can be read", "TOK_KIND");
  }
  pieces_.reserve(model_.pieces.size());
  std::vector<ByteTrie::Entry> symbols;
  for (uint32_t id = 0; id < model_.pieces.size(); ++id) {
    const formats::SentencePiece& piece = model_.pieces[id];
    const bool is_in_text = piece.type == PieceType::kNormal ||
                            piece.type == PieceType::kUserDefined ||
                            piece.type == PieceType::kUnused;
    (is_in_text ? pieces_ : reserved_).emplace(piece.text, id);
    if (is_in_text) longest_ = std::max(longest_, piece.text.size());
    if (piece.type == PieceType::kUserDefined) symbols.emplace_back(piece.text, id);
    if (piece.type == PieceType::kByte) byte_ids_[*formats::byte_of_piece(piece.text)] = id;
  }
  symbols_ = ByteTrie(std::move(symbols));
  if (model_.kind == SentencePieceKind::kUnigram) unigram_ = make_unigram();
}

// Scores as SentencePiece 0.2.3 makes them: a symbol of the user is better than any cut of it where
// the scores of pieces are log-probabilities.
Unigram SentencePieceEncoder::make_unigram() const {
  constexpr float kUnknownPenalty = 10.0F, kSymbolBonus = 0.1F;
  float lowest = std::numeric_limits<float>::max();
  std::vector<Unigram::Piece> pieces;
  for (uint32_t id = 0; id < model_.pieces.size(); ++id) {
    const auto& [text, score, type] = model_.pieces[id];
    if (type == PieceType::kNormal) {
      pieces.push_back({text, id, score});
      lowest = std::min(lowest, score);
    } else if (type == PieceType::kUserDefined) {
      pieces.push_back({text, id, kSymbolBonus * static_cast<float>(text.size() - 1)});
    }
  }
  Unigram::Rules rules{model_.unknown, lowest - kUnknownPenalty, /*is_single_precision=*/true};
  if (model_.byte_fallback) rules.byte_ids = byte_ids_;
  return {pieces, rules};
}

std::optional<int64_t> SentencePieceEncoder::id(std::string_view piece) const {
  for (const TokenIds* ids : {&reserved_, &pieces_}) {
    if (const auto it = ids->find(piece); it != ids->end()) return it->second;
  }
  return std::nullopt;
}

// What the beginning of `text`, which is not empty, becomes, and how many bytes that takes.
std::pair<std::string_view, size_t> SentencePieceEncoder::normalize_first(
    std::string_view text) const {
  if (const auto symbol = symbols_.longest_match(text)) {
    return {text.substr(0, symbol->length), symbol->length};
  }
  if (const auto rule = model_.chars_map.longest_match(text)) {
    return {rule->replacement, rule->length};
  }
  const formats::Utf8Char c = formats::decode_utf8(text, 0);
  return {c.valid ? text.substr(0, c.length) : kReplacement, c.length};
}

std::string SentencePieceEncoder::normalize(std::string_view text) const {
  const bool trims = model_.remove_extra_whitespaces;
  const std::string_view space = model_.escape_whitespaces ? kSpace : " ";
  std::string result;
  if (trims) {
    while (!text.empty()) {
      const auto [first, length] = normalize_first(text);
      if (first != " ") break;
      text.remove_prefix(length);
    }
  }
  if (text.empty()) return result;

  const auto add_dummy = [&] {
    if (model_.add_dummy_prefix) result += space;
  };
  if (!model_.whitespace_as_suffix) add_dummy();
  bool follows_space = trims;
  while (!text.empty()) {
    auto [first, length] = normalize_first(text);
    while (follows_space && first.starts_with(' ')) first.remove_prefix(1);
    for (const char c : first) {
      if (c == ' ') {
        result += space;
      } else {
        result += c;
      }
    }
    if (!first.empty()) follows_space = trims && first.ends_with(' ');
    text.remove_prefix(length);
  }
  while (trims && result.ends_with(space)) result.erase(result.size() - space.size());
  if (model_.whitespace_as_suffix) add_dummy();
  return result;
}

void SentencePieceEncoder::cut(std::string_view text, Work& work) const {
  while (!text.empty()) {
    const auto symbol = symbols_.longest_match(text);
    const size_t length = symbol ? symbol->length : formats::decode_utf8(text, 0).length;
    const auto at = static_cast<uint32_t>(work.symbols.size());
    work.symbols.push_back(
        {text.substr(0, length), at == 0 ? kNone : at - 1, at + 1, symbol.has_value()});
    text.remove_prefix(length);
  }
  if (!work.symbols.empty()) work.symbols.back().next = kNone;
}

void SentencePieceEncoder::find_merge(Work& work, uint32_t left, uint32_t right) const {
  if (left == kNone || right == kNone) return;
  const Symbol &a = work.symbols[left], &b = work.symbols[right];
  const size_t length = a.text.size() + b.text.size();
  if (a.is_whole || b.is_whole || length > longest_) return;
  const std::string_view joined(a.text.data(), length);
  const auto piece = pieces_.find(joined);
  if (piece == pieces_.end()) return;
  const formats::SentencePiece& found = model_.pieces[piece->second];
  work.queue.push_back({found.score, left, right, length});
  if (found.type == PieceType::kUnused) work.parts[joined] = {a.text, b.text};
}

void SentencePieceEncoder::merge_all(Work& work) const {
  auto& [symbols, queue, parts] = work;
  for (uint32_t at = 1; at < symbols.size(); ++at) find_merge(work, at - 1, at);
  std::make_heap(queue.begin(), queue.end());
  while (!queue.empty()) {
    std::pop_heap(queue.begin(), queue.end());
    const Merge merge = queue.back();
    queue.pop_back();
    Symbol &left = symbols[merge.left], &right = symbols[merge.right];
    const bool is_stale = left.text.empty() || right.text.empty() ||
                          left.text.size() + right.text.size() != merge.length;
    if (is_stale) continue;
    left.text = {left.text.data(), merge.length};
    left.next = right.next;
    right.text = {};
    if (left.next != kNone) symbols[left.next].previous = merge.left;
    for (const auto& [a, b] :
         {std::pair(left.previous, merge.left), std::pair(merge.left, left.next)}) {
      const size_t before = queue.size();
      find_merge(work, a, b);
      if (queue.size() > before) std::push_heap(queue.begin(), queue.end());
    }
  }
}

// A piece that is not for use is taken apart again, down to pieces that are. Characters without a
// piece are bytes, or one token for all that follow each other.
void SentencePieceEncoder::append(std::string_view piece, const Work& work, bool& follows_unknown,
                                  std::vector<int64_t>& ids) const {
  std::vector<std::string_view> left{piece};  // the next one last
  while (!left.empty()) {
    const std::string_view text = left.back();
    left.pop_back();
    const auto id = static_cast<uint32_t>(this->id(text).value_or(model_.unknown));
    if (model_.pieces[id].type == PieceType::kUnused) {
      if (const auto parts = work.parts.find(text); parts != work.parts.end()) {
        left.push_back(parts->second.second);
        left.push_back(parts->second.first);
        continue;
      }
    }
    const bool is_unknown = id == model_.unknown;
    if (is_unknown && model_.byte_fallback) {
      for (const char c : text) ids.push_back(byte_ids_[static_cast<uint8_t>(c)]);
    } else if (!is_unknown || !follows_unknown) {
      ids.push_back(id);
    }
    follows_unknown = is_unknown;
  }
}

void SentencePieceEncoder::append_tokens(std::string_view text, std::vector<int64_t>& ids) const {
  const std::string normalized = normalize(text);
  if (normalized.empty()) return;
  if (unigram_) return unigram_->append_tokens(normalized, ids);
  Work work;
  cut(normalized, work);
  merge_all(work);
  bool follows_unknown = false;
  for (uint32_t at = 0; at != kNone; at = work.symbols[at].next) {
    append(work.symbols[at].text, work, follows_unknown, ids);
  }
}

}  // namespace atelier::text
