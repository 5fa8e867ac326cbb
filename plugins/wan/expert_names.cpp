#include "expert_names.h"

#include <algorithm>
#include <cctype>
#include <vector>

namespace wan {
namespace {

constexpr Expert kExperts[] = {Expert::kHigh, Expert::kLow};

// What may follow "high" or "low" where that is about noise, beside words with numbers in them.
constexpr std::string_view kFollowing[] = {"bin",  "dit",    "expert",      "gguf",
                                           "lora", "model",  "noise",       "pt",
                                           "pth",  "scaled", "safetensors", "transformer"};

std::string_view word_of(Expert expert) {
  return expert == Expert::kHigh ? "high" : "low";
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

bool is_letter_or_digit(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'z');
}

// "wan2", "2", "low", "fp16" of "wan2.2_low-fp16".
std::vector<std::string> words_of(const std::string& name) {
  std::vector<std::string> words(1);
  for (const char c : name) {
    if (is_letter_or_digit(c)) {
      words.back() += c;
    } else if (!words.back().empty()) {
      words.emplace_back();
    }
  }
  if (words.back().empty()) words.pop_back();
  return words;
}

// Whether "high" or "low" stands in the name as a word about noise. Names are in lower case.
bool says_by_word(const std::string& name, Expert expert) {
  const std::vector<std::string> words = words_of(name);
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i] != word_of(expert)) continue;
    if (i + 1 == words.size()) return true;
    const std::string& next = words[i + 1];
    if (std::ranges::any_of(next, is_digit)) return true;
    if (std::ranges::find(kFollowing, next) != std::ranges::end(kFollowing)) return true;
  }
  return false;
}

// Whether "high_noise" or the like stands in the name, with one character between or none.
bool says_by_noise(const std::string& name, Expert expert) {
  const std::string_view word = word_of(expert);
  for (size_t at = name.find(word); at != std::string::npos; at = name.find(word, at + 1)) {
    const std::string_view rest = std::string_view(name).substr(at + word.size());
    if (rest.starts_with("noise")) return true;
    if (!rest.empty() && !is_letter_or_digit(rest.front()) && rest.substr(1).starts_with("noise"))
      return true;
  }
  return false;
}

bool is_folder_of(const std::string& name, Expert expert) {
  return name == (expert == Expert::kHigh ? "transformer" : "transformer_2");
}

// The names in a path, in lower case, the last one first.
std::vector<std::string> names_from_last(std::string_view path) {
  std::vector<std::string> names;
  while (!path.empty()) {
    const size_t slash = path.rfind('/');
    names.push_back(lower_case(path.substr(slash == path.npos ? 0 : slash + 1)));
    path = path.substr(0, slash == path.npos ? 0 : slash);
  }
  return names;
}

// Whether one of the names of a path says it, which stands `above` names before the last.
bool says_noise_at(const std::string& name, size_t above, Expert expert) {
  return says_by_noise(name, expert) || (above <= 1 && says_by_word(name, expert));
}

}  // namespace

std::optional<Expert> expert_named(std::string_view path) {
  const std::vector<std::string> names = names_from_last(path);
  for (size_t above = 0; above < names.size(); ++above) {
    std::vector<Expert> said;
    for (const Expert expert : kExperts) {
      if (is_folder_of(names[above], expert) || says_noise_at(names[above], above, expert))
        said.push_back(expert);
    }
    if (said.size() == 1) return said.front();
  }
  return std::nullopt;
}

bool says_noise(std::string_view path, Expert expert) {
  const std::vector<std::string> names = names_from_last(path);
  for (size_t above = 0; above < names.size(); ++above) {
    if (says_noise_at(names[above], above, expert)) return true;
  }
  return false;
}

std::string lower_case(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return lower;
}

}  // namespace wan
