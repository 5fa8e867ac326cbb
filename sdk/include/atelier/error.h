// What went wrong, for whom, and what to do about it.
#pragma once

#include <exception>
#include <string>
#include <string_view>

#include "atelier/export.h"

namespace atelier {

enum class ErrorCode : int {
  kInvalidArgument,  // a value is wrong, whatever the state of the system is
  kNotFound,         // a named file, tensor, input or plugin does not exist
  kUnsupported,      // well formed, but this family or build cannot do it
  kDataLoss,         // a file is truncated or contradicts itself
  kIncompatible,     // a plugin was built against another SDK or LibTorch
  kEnvironment,      // the machine refused: I/O, full disk, missing device or driver
  kOutOfMemory,      // device or host memory
  kNumerics,         // values that cannot be computed with: NaN or infinity
  kCancelled,        // the user asked to stop
  kInternal,         // a broken promise of ours
  kPeerLost,         // another process of the run ended or did not come
};

// "INVALID_ARGUMENT": the tag in brackets at the end of an error line.
ATELIER_API std::string_view to_string(ErrorCode code);

// The exit code of a program that ends with `code`: 2 wrong input or usage, 3 environment (also a
// bad plugin), 4 out of memory, 5 numerics, 6 another process is lost, 70 a bug of ours, 130
// cancelled.
ATELIER_API int exit_code(ErrorCode code);

// The one exception type of Atelier. Exported, with its destructor out of line, so that host and
// plugins share one type_info.
class ATELIER_API Error : public std::exception {
 public:
  // `message` begins with the place: "model.safetensors: tensor 'a.b': 12 bytes, 16 expected".
  // `hint` says what to do and may be empty. `tag` is a finer name than that of `code`
  // ("ST_OFFSET") and may be empty.
  Error(ErrorCode code, std::string message, std::string hint = {}, std::string tag = {});
  Error(const Error&);
  Error& operator=(const Error&);
  ~Error() override;

  ErrorCode code() const noexcept { return code_; }
  const std::string& message() const noexcept { return message_; }
  const std::string& hint() const noexcept { return hint_; }
  const std::string& tag() const noexcept { return tag_; }
  // "message; hint [TAG]", one line.
  const char* what() const noexcept override { return what_.c_str(); }

  // Returns this error with `place` put before the message: "place: message".
  Error at(std::string_view place) const;

 private:
  ErrorCode code_;
  std::string message_, hint_, tag_, what_;
};

}  // namespace atelier
