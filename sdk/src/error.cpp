#include "atelier/error.h"

namespace atelier {

std::string_view to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return "INVALID_ARGUMENT";
    case ErrorCode::kNotFound:
      return "NOT_FOUND";
    case ErrorCode::kUnsupported:
      return "UNSUPPORTED";
    case ErrorCode::kDataLoss:
      return "DATA_LOSS";
    case ErrorCode::kIncompatible:
      return "INCOMPATIBLE";
    case ErrorCode::kEnvironment:
      return "ENVIRONMENT";
    case ErrorCode::kOutOfMemory:
      return "OUT_OF_MEMORY";
    case ErrorCode::kNumerics:
      return "NUMERICS";
    case ErrorCode::kPeerLost:
      return "PEER_LOST";
    case ErrorCode::kCancelled:
      return "CANCELLED";
    case ErrorCode::kInternal:
      return "INTERNAL";
  }
  return "INTERNAL";
}

int exit_code(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kNotFound:
    case ErrorCode::kUnsupported:
    case ErrorCode::kDataLoss:
      return 2;
    case ErrorCode::kIncompatible:
    case ErrorCode::kEnvironment:
      return 3;
    case ErrorCode::kOutOfMemory:
      return 4;
    case ErrorCode::kNumerics:
      return 5;
    case ErrorCode::kPeerLost:
      return 6;
    case ErrorCode::kCancelled:
      return 130;
    case ErrorCode::kInternal:
      return 70;
  }
  return 70;
}

Error::Error(ErrorCode code, std::string message, std::string hint, std::string tag)
    : code_(code), message_(std::move(message)), hint_(std::move(hint)), tag_(std::move(tag)) {
  what_ = message_;
  if (!hint_.empty()) what_ += "; " + hint_;
  what_ += " [" + (tag_.empty() ? std::string(to_string(code_)) : tag_) + "]";
}

Error::Error(const Error&) = default;
Error& Error::operator=(const Error&) = default;
Error::~Error() = default;

Error Error::at(std::string_view place) const {
  return Error(code_, std::string(place) + ": " + message_, hint_, tag_);
}

}  // namespace atelier
