#include "formats/pickle.h"

#include <algorithm>
#include <unordered_map>

#include "formats/escape.h"
#include "formats/utf8.h"

namespace atelier::formats {
namespace {

using Kind = PickleValue::Kind;

constexpr size_t kMaxValues = 4'000'000;
constexpr std::string_view kOrderedDict = "collections.OrderedDict";

[[noreturn]] void damaged_pickle(const std::string& message, size_t byte) {
  throw ParseError("PTH_PICKLE", "the pickle " + message, "the file is damaged, download it again",
                   byte);
}

class Reader {
 public:
  Reader(std::string_view bytes, const std::function<bool(std::string_view)>& is_known)
      : bytes_(bytes), is_known_(is_known) {}

  Pickle read() {
    while (true) {
      opcode_at_ = at_;
      const char opcode = take(1)[0];
      if (opcode == '.') break;
      if (!run_constant(opcode) && !run_container(opcode) && !run_reference(opcode)) refuse(opcode);
    }
    pickle_.root = pop();
    return std::move(pickle_);
  }

 private:
  // ---- Bytes ----

  std::string_view take(uint64_t count) {
    if (count > bytes_.size() - at_) damaged_pickle("ends too early", at_);
    const std::string_view taken = bytes_.substr(at_, count);
    at_ += count;
    return taken;
  }

  uint64_t number(size_t count) {
    const std::string_view taken = take(count);
    uint64_t value = 0;
    for (size_t i = count; i-- > 0;) value = value << 8 | static_cast<unsigned char>(taken[i]);
    return value;
  }

  std::string_view line() {
    const size_t end = bytes_.find('\n', at_);
    if (end == std::string_view::npos) damaged_pickle("ends too early", at_);
    const std::string_view taken = take(end - at_);
    ++at_;
    return taken;
  }

  std::string_view utf8(uint64_t count) {
    const std::string_view text = take(count);
    if (find_invalid_utf8(text) != std::string_view::npos)
      damaged_pickle("holds a text that is not UTF-8", opcode_at_);
    return text;
  }

  // ---- The stack ----

  // Few bytes can ask for the same list again and again, so what lists hold counts too.
  void count(size_t values) {
    num_values_ += values;
    if (num_values_ > kMaxValues)
      throw ParseError("PTH_VALUES",
                       "the pickle holds more than " + std::to_string(kMaxValues) + " values",
                       "this is no checkpoint of weights alone");
  }
  PickleRef add(PickleValue value) {
    count(1 + value.items.size());
    pickle_.values.push_back(std::move(value));
    return static_cast<PickleRef>(pickle_.values.size() - 1);
  }
  void push(PickleValue value) { stack_.push_back(add(std::move(value))); }
  void push_integer(Kind kind, int64_t value) {
    push({.kind = kind, .integer = value, .text = {}, .items = {}});
  }
  void push_text(std::string_view text) {
    push({.kind = Kind::kText, .integer = 0, .text = std::string(text), .items = {}});
  }
  void push_items(Kind kind, std::vector<PickleRef> items) {
    push({.kind = kind, .integer = 0, .text = {}, .items = std::move(items)});
  }

  size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }
  PickleRef pop() {
    if (stack_.size() <= floor()) damaged_pickle("takes a value that is not there", opcode_at_);
    const PickleRef top = stack_.back();
    stack_.pop_back();
    return top;
  }
  std::vector<PickleRef> pop_count(size_t count) {
    std::vector<PickleRef> items(count);
    for (size_t i = count; i-- > 0;) items[i] = pop();
    return items;
  }
  std::vector<PickleRef> pop_to_mark() {
    if (marks_.empty()) damaged_pickle("takes values to a mark that is not there", opcode_at_);
    const auto begin = stack_.begin() + static_cast<ptrdiff_t>(marks_.back());
    std::vector<PickleRef> items(begin, stack_.end());
    stack_.erase(begin, stack_.end());
    marks_.pop_back();
    return items;
  }
  PickleValue& top(Kind kind) {
    if (stack_.size() <= floor() || pickle_.values[stack_.back()].kind != kind)
      damaged_pickle("adds to something that is no list and no dict", opcode_at_);
    return pickle_.values[stack_.back()];
  }

  // ---- Opcodes ----

  bool run_constant(char opcode) {
    switch (opcode) {
      case '\x80':  // PROTO
        if (const uint64_t version = number(1); version < 2 || version > 5)
          damaged_pickle("is of version " + std::to_string(version) + ", 2 to 5 are read",
                         opcode_at_);
        return true;
      case '\x95':  // FRAME
        number(8);
        return true;
      case 'N':
        push({});
        return true;
      case '\x88':
      case '\x89':
        push_integer(Kind::kBoolean, opcode == '\x88' ? 1 : 0);
        return true;
      case 'J':
        push_integer(Kind::kInteger, static_cast<int32_t>(number(4)));
        return true;
      case 'K':
        push_integer(Kind::kInteger, static_cast<int64_t>(number(1)));
        return true;
      case 'M':
        push_integer(Kind::kInteger, static_cast<int64_t>(number(2)));
        return true;
      case '\x8a':  // LONG1
        push_long(number(1));
        return true;
      case 'G':  // no tensor has one, so its value is not kept
        number(8);
        push_integer(Kind::kReal, 0);
        return true;
      case 'X':
        push_text(utf8(number(4)));
        return true;
      case '\x8c':
        push_text(utf8(number(1)));
        return true;
      default:
        return false;
    }
  }

  // Two's complement in as many bytes as it takes.
  void push_long(uint64_t count) {
    if (count > 8) damaged_pickle("holds an integer of more than 64 bits", opcode_at_);
    uint64_t value = number(count);
    if (count > 0 && count < 8 && (value >> (8 * count - 1)) != 0)
      value |= ~uint64_t{0} << (8 * count);
    push_integer(Kind::kInteger, static_cast<int64_t>(value));
  }

  bool run_container(char opcode) {
    switch (opcode) {
      case '(':
        marks_.push_back(stack_.size());
        return true;
      case ')':
      case ']':
        push_items(Kind::kSequence, {});
        return true;
      case '}':
        push_items(Kind::kDict, {});
        return true;
      case 't':
      case 'l':
        push_items(Kind::kSequence, pop_to_mark());
        return true;
      case '\x85':
      case '\x86':
      case '\x87':
        push_items(Kind::kSequence, pop_count(static_cast<size_t>(opcode - '\x84')));
        return true;
      case 'a':
        append(Kind::kSequence, pop_count(1));
        return true;
      case 'e':
        append(Kind::kSequence, pop_to_mark());
        return true;
      case 's':
        append(Kind::kDict, pop_count(2));
        return true;
      case 'u':
        append(Kind::kDict, pop_to_mark());
        return true;
      default:
        return false;
    }
  }

  void append(Kind kind, const std::vector<PickleRef>& items) {
    if (kind == Kind::kDict && items.size() % 2 != 0)
      damaged_pickle("gives a key no value", opcode_at_);
    count(items.size());
    std::vector<PickleRef>& all = top(kind).items;
    all.insert(all.end(), items.begin(), items.end());
  }

  bool run_reference(char opcode) {
    switch (opcode) {
      case 'q':
        memo_[number(1)] = peek();
        return true;
      case 'r':
        memo_[number(4)] = peek();
        return true;
      case '\x94':  // MEMOIZE
        memo_[memo_.size()] = peek();
        return true;
      case 'h':
        push_memo(number(1));
        return true;
      case 'j':
        push_memo(number(4));
        return true;
      case 'c': {
        const std::string module(line());
        push_global(module, line());
        return true;
      }
      case '\x93': {  // STACK_GLOBAL
        const std::vector<PickleRef> names = pop_count(2);
        for (const PickleRef name : names) {
          if (pickle_.at(name).kind != Kind::kText)
            damaged_pickle("names a class without a text", opcode_at_);
        }
        push_global(pickle_.at(names[0]).text, pickle_.at(names[1]).text);
        return true;
      }
      case 'Q':
        push_items(Kind::kPersistent, pop_count(1));
        return true;
      case 'R':
        call();
        return true;
      case 'b':  // attributes of a dict: the versions of modules
        pop();
        top(Kind::kDict);
        return true;
      default:
        return false;
    }
  }

  PickleRef peek() const {
    if (stack_.size() <= floor()) damaged_pickle("keeps a value that is not there", opcode_at_);
    return stack_.back();
  }
  void push_memo(uint64_t number) {
    const auto kept = memo_.find(number);
    if (kept == memo_.end()) damaged_pickle("uses a value before it is there", opcode_at_);
    stack_.push_back(kept->second);
  }

  void push_global(std::string_view module, std::string_view name) {
    const std::string full = std::string(module) + "." + std::string(name);
    if (!is_known_(full))
      throw ParseError("PTH_GLOBAL",
                       "the pickle wants " + quote_and_escape(full, 200) +
                           ", which is no part of a checkpoint of weights",
                       "nothing of it was run; save the weights alone, as safetensors", opcode_at_);
    push({.kind = Kind::kGlobal, .integer = 0, .text = full, .items = {}});
  }

  void call() {
    std::vector<PickleRef> parts = pop_count(2);
    if (pickle_.at(parts[0]).kind != Kind::kGlobal || pickle_.at(parts[1]).kind != Kind::kSequence)
      damaged_pickle("calls something without a name", opcode_at_);
    if (pickle_.at(parts[0]).text != kOrderedDict) {
      push_items(Kind::kCall, std::move(parts));
      return;
    }
    std::vector<PickleRef> items;  // of one list of pairs, or of none
    const std::vector<PickleRef>& arguments = pickle_.at(parts[1]).items;
    if (arguments.size() > 1) damaged_pickle("makes a dict of several lists", opcode_at_);
    for (const PickleRef list : arguments) {
      for (const PickleRef pair : pickle_.at(list).items) {
        const PickleValue& entry = pickle_.at(pair);
        if (entry.kind != Kind::kSequence || entry.items.size() != 2)
          damaged_pickle("makes a dict of what are no pairs", opcode_at_);
        items.insert(items.end(), entry.items.begin(), entry.items.end());
      }
    }
    push_items(Kind::kDict, std::move(items));
  }

  [[noreturn]] void refuse(char opcode) const {
    static constexpr char kDigits[] = "0123456789ABCDEF";
    const auto code = static_cast<unsigned char>(opcode);
    throw ParseError("PTH_OPCODE",
                     std::string("the pickle has opcode 0x") + kDigits[code >> 4] +
                         kDigits[code & 15] + ", which no checkpoint of weights needs",
                     "nothing of it was run; save the weights alone, as safetensors", opcode_at_);
  }

  std::string_view bytes_;
  const std::function<bool(std::string_view)>& is_known_;
  size_t at_ = 0, opcode_at_ = 0, num_values_ = 0;
  Pickle pickle_;
  std::vector<PickleRef> stack_;
  std::vector<size_t> marks_;
  std::unordered_map<uint64_t, PickleRef> memo_;
};

}  // namespace

Pickle read_pickle(std::string_view bytes, const std::function<bool(std::string_view)>& is_known) {
  return Reader(bytes, is_known).read();
}

}  // namespace atelier::formats
