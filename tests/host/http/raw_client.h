// A client that sends just the bytes that it is told to.
#pragma once

#include <arpa/inet.h>
#include <catch2/catch.hpp>
#include <netinet/in.h>
#include <poll.h>
#include <string>
#include <string_view>
#include <sys/socket.h>
#include <unistd.h>
#include <utility>

namespace atelier::http {

class RawClient {
 public:
  explicit RawClient(uint16_t port) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE(::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  }
  ~RawClient() { hang_up(); }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  // false: the server takes no more.
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t count = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (count <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(count));
    }
    return true;
  }
  // Whatever comes until `text` has, or the server ends it.
  std::string read_to(std::string_view text) {
    size_t end = std::string::npos;
    while ((end = received_.find(text)) == std::string::npos && receive()) {
    }
    const size_t length = end == std::string::npos ? received_.size() : end + text.size();
    std::string taken = received_.substr(0, length);
    received_.erase(0, length);
    return taken;
  }
  std::string read_to_end() {
    while (receive()) {
    }
    return std::exchange(received_, {});
  }
  std::string read(size_t length) {
    while (received_.size() < length && receive()) {
    }
    std::string taken = received_.substr(0, length);
    received_.erase(0, taken.size());
    return taken;
  }
  // A reply whose head says how long its body is.
  std::string read_reply() {
    std::string reply = read_to("\r\n\r\n");
    const size_t at = reply.find("Content-Length: ");
    return at == std::string::npos ? reply : reply + read(std::stoul(reply.substr(at + 16)));
  }
  // Whether something has come that is not read yet; does not wait.
  bool has_received() const {
    pollfd looked_at{.fd = socket_, .events = POLLIN, .revents = 0};
    return !received_.empty() || ::poll(&looked_at, 1, 0) > 0;
  }
  void hang_up() {
    if (socket_ >= 0) ::close(std::exchange(socket_, -1));
  }

 private:
  bool receive() {
    char bytes[65536];
    const ssize_t count = ::recv(socket_, bytes, sizeof bytes, 0);
    if (count > 0) received_.append(bytes, static_cast<size_t>(count));
    return count > 0;
  }

  int socket_;
  std::string received_;
};

}  // namespace atelier::http
