#include "host/http/server.h"

#include <algorithm>
#include <arpa/inet.h>
#include <cerrno>
#include <cstring>
#include <deque>
#include <list>
#include <mutex>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>

#include "atelier/error.h"

#include "formats/escape.h"
#include "host/http/connection.h"

namespace atelier::http {

namespace {

// Connections that were turned away and may still read why.
constexpr size_t kMaxTurnedAway = 256;
constexpr std::chrono::milliseconds kTurnedAwayFor{1000};

class Descriptor {
 public:
  explicit Descriptor(int number = -1) : number_(number) {}
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  int get() const { return number_; }
  int release() { return std::exchange(number_, -1); }

 private:
  int number_;
};

[[noreturn]] void fail(const ServerOptions& options, const std::string& why) {
  throw Error(ErrorCode::kEnvironment,
              "cannot listen on " + formats::quote_and_escape(options.host) + ", port " +
                  std::to_string(options.port) + ": " + why,
              "choose others with --host and --port");
}

bool is_loopback(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    return ntohl(v4.sin_addr.s_addr) >> 24 == 127;
  }
  return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
}

struct Listener {
  Descriptor socket;
  sockaddr_storage address{};  // with the port that it got
};

sockaddr_storage address_of(int socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  ::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size);
  return address;
}

uint16_t port_of(const sockaddr_storage& address) {
  return ntohs(address.ss_family == AF_INET
                   ? reinterpret_cast<const sockaddr_in&>(address).sin_port
                   : reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
}

// What `options.host` means; of several addresses that of IPv4, as clients of "localhost" expect.
sockaddr_storage find_address(const ServerOptions& options, socklen_t& size) {
  addrinfo wanted{}, *found = nullptr;
  wanted.ai_socktype = SOCK_STREAM;
  wanted.ai_flags = AI_PASSIVE;
  const int failure =
      ::getaddrinfo(options.host.c_str(), std::to_string(options.port).c_str(), &wanted, &found);
  if (failure != 0) fail(options, ::gai_strerror(failure));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, ::freeaddrinfo);
  const addrinfo* chosen = found;
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    if (each->ai_family == AF_INET && chosen->ai_family != AF_INET) chosen = each;
  }
  sockaddr_storage address{};
  std::memcpy(&address, chosen->ai_addr, chosen->ai_addrlen);
  size = chosen->ai_addrlen;
  return address;
}

Listener listen_at(const ServerOptions& options, const sockaddr_storage& address, socklen_t size) {
  Listener listener{.socket = Descriptor(::socket(address.ss_family,
                                                  SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0))};
  const int on = 1;
  ::setsockopt(listener.socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (::bind(listener.socket.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0 ||
      ::listen(listener.socket.get(), SOMAXCONN) != 0)
    fail(options, std::strerror(errno));
  listener.address = address_of(listener.socket.get());
  return listener;
}

}  // namespace

class Server::Impl {
 public:
  Impl(ServerOptions options, const Router& router, const sockaddr_storage& address, socklen_t size)
      : shared_{.options = options,
                .guard = Guard(options, is_loopback(address)),
                .router = router},
        listener_(listen_at(options, address, size)),
        wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (wake_.get() < 0) fail(options, std::strerror(errno));
    busy_reply_ = whole_reply(router.error_reply(
        "/", HttpError(503, "the server has as many connections as it takes; try again",
                       {{"Retry-After", "1"}})));
    acceptor_ = std::thread([this] { accept_all(); });
  }

  ~Impl() { stop(); }

  uint16_t port() const { return port_of(listener_.address); }

  std::string url() const {
    const std::string& host = shared_.options.host;
    const bool is_ipv6 = host.find(':') != std::string::npos;
    return "http://" + (is_ipv6 ? "[" + host + "]" : host) + ":" + std::to_string(port());
  }

  void stop() {
    const std::lock_guard lock(stop_mutex_);
    if (!acceptor_.joinable()) return;
    shared_.is_stopping = true;
    wake();
    acceptor_.join();
    listener_.socket = Descriptor();
    for (Served& served : served_) served.connection.shut();
    for (Served& served : served_) served.thread.join();
    served_.clear();
    turned_away_.clear();
  }

 private:
  struct Served {
    Served(int socket, const Shared& shared) : connection(socket, shared) {}
    Connection connection;
    std::atomic<bool> is_over = false;
    std::thread thread;
  };
  struct TurnedAway {
    Descriptor socket;
    Deadline until;
  };

  static std::string whole_reply(const Response& response) {
    return reply_head(response, {.keeps_alive = false, .length = response.body.size()}) +
           response.body;
  }

  void wake() {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);
  }

  void accept_all() {
    bool is_full = false;  // the process has no more descriptors
    while (!shared_.is_stopping) {
      pollfd waited[] = {{.fd = wake_.get(), .events = POLLIN, .revents = 0},
                         {.fd = listener_.socket.get(), .events = POLLIN, .revents = 0}};
      const bool is_short = is_full || !turned_away_.empty();
      ::poll(waited, is_full ? 1 : 2, is_short ? 100 : -1);
      uint64_t count = 0;
      [[maybe_unused]] const ssize_t read = ::read(wake_.get(), &count, sizeof count);
      served_.remove_if([](Served& served) {
        if (served.is_over) served.thread.join();
        return served.is_over.load();
      });
      forget_turned_away();
      is_full = !shared_.is_stopping && !accept_one();
    }
  }

  // false: there is none to take because the process has no more descriptors.
  bool accept_one() {
    Descriptor socket(::accept4(listener_.socket.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (socket.get() < 0) return errno != EMFILE && errno != ENFILE && errno != ENOMEM;
    if (served_.size() >= static_cast<size_t>(shared_.options.max_connections)) {
      turn_away(std::move(socket));
      return true;
    }
    Served& served = served_.emplace_back(socket.release(), shared_);
    try {
      served.thread = std::thread([this, &served] {
        served.connection.run();
        served.is_over = true;
        wake();
      });
    } catch (const std::system_error&) {  // the machine has no more threads
      served_.pop_back();
    }
    return true;
  }

  void turn_away(Descriptor socket) {
    ::send(socket.get(), busy_reply_.data(), busy_reply_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    ::shutdown(socket.get(), SHUT_WR);
    if (turned_away_.size() == kMaxTurnedAway) turned_away_.pop_front();
    turned_away_.push_back(
        {.socket = std::move(socket), .until = std::chrono::steady_clock::now() + kTurnedAwayFor});
  }

  // Ended with bytes that are not read, a connection would take back the reply.
  void forget_turned_away() {
    const auto now = std::chrono::steady_clock::now();
    std::erase_if(turned_away_, [&](const TurnedAway& client) {
      char bytes[4096];
      const ssize_t count = ::recv(client.socket.get(), bytes, sizeof bytes, MSG_DONTWAIT);
      return client.until <= now || count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR);
    });
  }

  Shared shared_;
  Listener listener_;
  Descriptor wake_;
  std::string busy_reply_;
  std::list<Served> served_;  // of the acceptor alone, until it has ended
  std::deque<TurnedAway> turned_away_;
  std::mutex stop_mutex_;
  std::thread acceptor_;
};

Server::Server(ServerOptions options, const Router& router) {
  socklen_t size = 0;
  const sockaddr_storage address = find_address(options, size);
  impl_ = std::make_unique<Impl>(std::move(options), router, address, size);
}

Server::~Server() = default;

uint16_t Server::port() const {
  return impl_->port();
}

std::string Server::url() const {
  return impl_->url();
}

void Server::stop() {
  impl_->stop();
}

}  // namespace atelier::http
