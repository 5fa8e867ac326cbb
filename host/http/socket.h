// A connection's bytes, in and out, none of which is waited for without an end.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace atelier::http {

using Deadline = std::chrono::steady_clock::time_point;

// Owns a descriptor of a socket. One thread uses it; shut() may be called from any.
class Socket {
 public:
  // Takes a connected one; it is made to return where it would wait.
  explicit Socket(int descriptor);
  ~Socket();
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  // Reads at least one byte and at most `size`; 0: the client has ended it. nullopt: the deadline
  // passed.
  std::optional<size_t> read(char* bytes, size_t size, Deadline deadline);
  // Sends all of it; false: the client is gone, or took nothing for as long as `stall`.
  bool write(std::string_view bytes, std::chrono::milliseconds stall);
  // Whether the client has ended its side, whatever it sent before and is not read yet; does not
  // wait.
  bool has_hung_up() const;
  // Tells the client that nothing more comes.
  void end_writing();
  // Ends both sides: reads and writes that wait return.
  void shut();

 private:
  // false: the deadline passed.
  bool wait(short events, Deadline deadline) const;

  const int descriptor_;
};

}  // namespace atelier::http
