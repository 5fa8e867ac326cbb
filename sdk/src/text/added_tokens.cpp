#include "text/added_tokens.h"

#include <utility>

#include "formats/utf8.h"
#include "text/unicode.h"

namespace atelier::text {
namespace {

// Where the character that ends at byte `end` > 0 begins.
size_t previous(std::string_view text, size_t end) {
  do {
    --end;
  } while (end > 0 && (static_cast<uint8_t>(text[end]) & 0xC0) == 0x80);
  return end;
}

uint32_t code_point(std::string_view text, size_t at) {
  return formats::decode_utf8(text, at).code_point;
}

bool stands_alone(std::string_view text, size_t begin, size_t end) {
  const bool follows_word = begin > 0 && is_word(code_point(text, previous(text, begin)));
  const bool precedes_word = end < text.size() && is_word(code_point(text, end));
  return !follows_word && !precedes_word;
}

}  // namespace

AddedTokens::AddedTokens(const std::vector<Entry>& entries) {
  std::vector<ByteTrie::Entry> spellings;
  for (const auto& [spelling, token] : entries) {
    spellings.emplace_back(spelling, static_cast<uint32_t>(rules_.size()));
    rules_.push_back({token->id, token->strips_left, token->strips_right, token->is_single_word});
  }
  spellings_ = ByteTrie(std::move(spellings));
}

std::vector<AddedTokens::Piece> AddedTokens::cut(std::string_view text) const {
  std::vector<Piece> pieces;
  size_t done = 0;  // everything before is in a piece
  for (size_t at = 0; at < text.size();) {
    const std::optional<ByteTrie::Match> match = spellings_.longest_match(text.substr(at));
    if (!match) {
      ++at;
      continue;
    }
    size_t begin = at;
    size_t end = at + match->length;
    at = end;
    const Rule& rule = rules_[match->value];
    if (rule.is_single_word && !stands_alone(text, begin, end)) continue;
    if (rule.strips_left) {
      while (begin > done && is_space(code_point(text, previous(text, begin)))) {
        begin = previous(text, begin);
      }
    }
    if (rule.strips_right) {
      while (end < text.size() && is_space(code_point(text, end))) {
        end += formats::decode_utf8(text, end).length;
      }
    }
    if (done < begin) pieces.push_back({text.substr(done, begin - done), std::nullopt});
    pieces.push_back({text.substr(begin, end - begin), rule.id});
    // A token of white space may match again in what this one took along.
    done = end;
  }
  if (done < text.size()) pieces.push_back({text.substr(done), std::nullopt});
  return pieces;
}

}  // namespace atelier::text
