#include "host/http/socket.h"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace atelier::http {

namespace {

void set(int descriptor, int level, int option, int value) {
  ::setsockopt(descriptor, level, option, &value, sizeof value);
}

// Milliseconds from now on, rounded up, as poll() takes them.
int left_until(Deadline deadline) {
  using std::chrono::milliseconds;
  const auto left = std::chrono::ceil<milliseconds>(deadline - std::chrono::steady_clock::now());
  return static_cast<int>(std::clamp<int64_t>(left.count(), 0, 3'600'000));
}

}  // namespace

Socket::Socket(int descriptor) : descriptor_(descriptor) {
  ::fcntl(descriptor, F_SETFL, ::fcntl(descriptor, F_GETFL) | O_NONBLOCK);
  set(descriptor, IPPROTO_TCP, TCP_NODELAY, 1);
  // A client whose machine is gone says nothing more: asked after 30 s, it counts as gone 30 s
  // later.
  set(descriptor, SOL_SOCKET, SO_KEEPALIVE, 1);
  set(descriptor, IPPROTO_TCP, TCP_KEEPIDLE, 30);
  set(descriptor, IPPROTO_TCP, TCP_KEEPINTVL, 10);
  set(descriptor, IPPROTO_TCP, TCP_KEEPCNT, 3);
}

Socket::~Socket() {
  ::close(descriptor_);
}

bool Socket::wait(short events, Deadline deadline) const {
  pollfd waited{.fd = descriptor_, .events = events, .revents = 0};
  while (true) {
    const int left = left_until(deadline);
    const int ready = ::poll(&waited, 1, left);
    if (ready > 0) return true;
    if (ready == 0 && left_until(deadline) == 0) return false;
    if (ready < 0 && errno != EINTR) return true;  // the call that follows says what is wrong
  }
}

std::optional<size_t> Socket::read(char* bytes, size_t size, Deadline deadline) {
  while (true) {
    const ssize_t count = ::recv(descriptor_, bytes, size, 0);
    if (count >= 0) return static_cast<size_t>(count);
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) return 0;
    if (!wait(POLLIN, deadline)) return std::nullopt;
  }
}

bool Socket::write(std::string_view bytes, std::chrono::milliseconds stall) {
  Deadline deadline = std::chrono::steady_clock::now() + stall;
  while (!bytes.empty()) {
    const ssize_t count = ::send(descriptor_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (count > 0) {
      bytes.remove_prefix(static_cast<size_t>(count));
      deadline = std::chrono::steady_clock::now() + stall;
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!wait(POLLOUT, deadline)) return false;
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

bool Socket::has_hung_up() const {
  pollfd looked_at{.fd = descriptor_, .events = POLLRDHUP, .revents = 0};
  return ::poll(&looked_at, 1, 0) > 0;
}

void Socket::end_writing() {
  ::shutdown(descriptor_, SHUT_WR);
}

void Socket::shut() {
  ::shutdown(descriptor_, SHUT_RDWR);
}

}  // namespace atelier::http
