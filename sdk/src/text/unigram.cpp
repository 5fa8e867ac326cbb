#include "text/unigram.h"

#include <algorithm>

#include "formats/utf8.h"

namespace atelier::text {

Unigram::Unigram(const std::vector<Piece>& pieces, const Rules& rules) : rules_(rules) {
  std::vector<ByteTrie::Entry> spellings;
  spellings.reserve(pieces.size());
  for (const Piece& piece : pieces) {
    spellings.emplace_back(piece.text, static_cast<uint32_t>(ids_.size()));
    ids_.push_back(piece.id);
    scores_.push_back(piece.score);
  }
  pieces_ = ByteTrie(std::move(spellings));
}

// The paths to the end of each character, and to its end the text's.
std::vector<Unigram::Path> Unigram::find_paths(std::string_view text) const {
  std::vector<Path> paths(text.size() + 1);
  for (size_t begin = 0; begin < text.size();) {
    const size_t character = formats::decode_utf8(text, begin).length;
    const double before = paths[begin].score;
    const auto offer = [&](size_t length, uint32_t id, double score) {
      double sum = before + score;
      if (rules_.is_single_precision) sum = static_cast<float>(sum);
      Path& path = paths[begin + length];
      if (path.begin == kNone || sum > path.score) path = {sum, static_cast<uint32_t>(begin), id};
    };
    bool is_known = false;  // the character by itself
    pieces_.for_each_match(text.substr(begin), [&](const ByteTrie::Match& match) {
      offer(match.length, ids_[match.value], scores_[match.value]);
      is_known |= match.length == character;
    });
    if (!is_known) offer(character, rules_.unknown, rules_.unknown_score);
    begin += character;
  }
  return paths;
}

void Unigram::append_unknown(std::string_view text, std::vector<int64_t>& ids) const {
  // The spelling of the unknown token itself.
  const std::optional<ByteTrie::Match> whole = pieces_.longest_match(text);
  if (whole && whole->length == text.size()) {
    ids.push_back(ids_[whole->value]);
    return;
  }
  const auto id_of = [&](char c) { return (*rules_.byte_ids)[static_cast<uint8_t>(c)]; };
  const bool has_bytes = rules_.byte_ids && std::all_of(text.begin(), text.end(),
                                                        [&](char c) { return id_of(c) != kNone; });
  if (has_bytes) {
    for (const char c : text) ids.push_back(id_of(c));
  } else {
    ids.push_back(rules_.unknown);
  }
}

void Unigram::append_tokens(std::string_view text, std::vector<int64_t>& ids) const {
  const std::vector<Path> paths = find_paths(text);
  std::vector<size_t> ends;  // of the pieces on the best path, the last one first
  for (size_t end = text.size(); end > 0; end = paths[end].begin) ends.push_back(end);
  size_t unknown_begin = 0;
  for (auto end = ends.rbegin(); end != ends.rend(); ++end) {
    const Path& path = paths[*end];
    if (path.id != rules_.unknown) {
      ids.push_back(path.id);
      continue;
    }
    if (end == ends.rbegin() || paths[*(end - 1)].id != rules_.unknown) unknown_begin = path.begin;
    const bool is_last = end + 1 == ends.rend() || paths[*(end + 1)].id != rules_.unknown;
    if (is_last) append_unknown(text.substr(unknown_begin, *end - unknown_begin), ids);
  }
}

}  // namespace atelier::text
