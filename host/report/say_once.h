// What processes that one program has started say alike, said once.
#pragma once

#include <string>
#include <string_view>

namespace atelier::report {

// What they have said, for the process that starts them: those that get `kVariable` in their
// environment share it. Where the system has no place for it, everything is said.
class SharedMessages {
 public:
  static constexpr const char* kVariable = "ATELIER_SAID";

  SharedMessages();
  ~SharedMessages();
  SharedMessages(const SharedMessages&) = delete;
  SharedMessages& operator=(const SharedMessages&) = delete;

  // The value of the variable.
  std::string value() const { return std::to_string(descriptor_); }

 private:
  int descriptor_;  // of a file without a name; -1: there is none
};

// Writes `text`, whole lines, to stderr, unless one of these processes has written just that.
void say_once(std::string_view text);

}  // namespace atelier::report
