#include "formats/tokenizer_parts.h"

#include <unordered_map>

namespace atelier::formats {

std::string token_name(std::string_view text) {
  return "token " + quote_and_escape(text);
}

JsonRules tokenizer_rules() {
  return {.max_depth = 32, .tag_prefix = "TOK_"};
}

bool split_merge(std::string_view text, TextMerge& merge) {
  const size_t space = text.find(' ');
  if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos) {
    return false;
  }
  merge = {std::string(text.substr(0, space)), std::string(text.substr(space + 1))};
  return !merge.first.empty() && !merge.second.empty();
}

std::vector<BpeMerge> resolve_merges(const std::vector<TextMerge>& merges,
                                     const Vocabulary& vocabulary,
                                     const std::function<std::string(size_t)>& where) {
  std::vector<BpeMerge> resolved;
  resolved.reserve(merges.size());
  std::string joined;
  for (size_t i = 0; i < merges.size(); ++i) {
    const auto find = [&](const std::string& text) {
      const std::optional<uint32_t> id = vocabulary.find(text);
      if (!id) {
        throw ParseError("TOK_MERGE", where(i) + " (" + quote_and_escape(merges[i].first, 50) +
                                          " and " + quote_and_escape(merges[i].second, 50) +
                                          "): " + token_name(text) + " is not in the vocabulary");
      }
      return *id;
    };
    joined.assign(merges[i].first).append(merges[i].second);
    const uint32_t left = find(merges[i].first);
    const uint32_t right = find(merges[i].second);
    resolved.push_back({left, right, find(joined)});
  }
  return resolved;
}

AddedToken read_added_token(const Fields& fields, uint32_t id) {
  AddedToken added;
  added.id = id;
  added.text = fields.string("content");
  added.is_special = fields.flag("special", false);
  added.is_normalized = fields.flag("normalized", !added.is_special);
  added.strips_left = fields.flag("lstrip", false);
  added.strips_right = fields.flag("rstrip", false);
  added.is_single_word = fields.flag("single_word", false);
  return added;
}

namespace {

// `id_of`: of a text that the vocabulary holds. `has_id`: whether it holds an id.
template <typename IdOf, typename HasId>
void check_added(std::vector<AddedToken>& added_tokens, const IdOf& id_of, const HasId& has_id) {
  std::stable_sort(
      added_tokens.begin(), added_tokens.end(),
      [](const AddedToken& left, const AddedToken& right) { return left.id < right.id; });
  SeenKeys texts;
  for (size_t i = 0; i < added_tokens.size(); ++i) {
    const AddedToken& added = added_tokens[i];
    const std::string name =
        "added " + token_name(added.text) + " with id " + std::to_string(added.id);
    if (added.text.empty()) throw ParseError("TOK_FORM", name + " has no text");
    if (i > 0 && added_tokens[i - 1].id == added.id) {
      throw ParseError(
          "TOK_ID", name + ": added " + token_name(added_tokens[i - 1].text) + " has the same id");
    }
    if (!texts.insert(added.text)) throw ParseError("TOK_DUPLICATE", name + " is listed twice");
    const std::optional<uint32_t> id = id_of(added.text);
    if (id && *id != added.id) {
      throw ParseError("TOK_ID", name + ": the vocabulary gives it id " + std::to_string(*id));
    }
    if (!id && has_id(added.id)) {
      throw ParseError("TOK_ID", name + ": the vocabulary gives that id to another token");
    }
  }
}

}  // namespace

void check_added_tokens(std::vector<AddedToken>& added_tokens, const Vocabulary& vocabulary) {
  check_added(
      added_tokens, [&](const std::string& text) { return vocabulary.find(text); },
      [&](uint32_t id) { return vocabulary.has_id(id); });
}

void check_added_tokens(std::vector<AddedToken>& added_tokens,
                        const std::vector<UnigramModel::Piece>& pieces) {
  std::unordered_map<std::string_view, uint32_t, KeyedHash> ids;
  for (size_t id = 0; id < pieces.size(); ++id) {
    ids.insert_or_assign(pieces[id].text, static_cast<uint32_t>(id));
  }
  const auto id_of = [&](const std::string& text) {
    const auto found = ids.find(text);
    return found == ids.end() ? std::nullopt : std::optional<uint32_t>(found->second);
  };
  check_added(added_tokens, id_of, [&](uint32_t id) { return id < pieces.size(); });
}

}  // namespace atelier::formats
