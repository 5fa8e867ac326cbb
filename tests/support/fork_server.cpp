// A fork server for the program: libraries are loaded once, and each start is a fork.
//
// LibTorch registers its operators when it is loaded, which takes longer than most commands of the
// tests. Preloaded into a program, with a socket's number in ATELIER_FORK_SERVER, this library
// waits behind that and before main(). Each packet of the socket is one start, and has two answers:
//
//   packet: working directory \0 argument 0 \0 argument 1 \0 ..., with the start's files 0, 1 and 2
//   answer: process id, 0 (int32), when the process has begun
//   answer: status of waitpid, milliseconds of a processor's time (int32), when it has ended
//
// The end of the socket is the end of the server. See fork_server.py for its other side.
//
// `atelier launch` forks, and each fork becomes the program by execvp(). A start of it has as many
// children that wait before main() as it will have processes, and one takes the place of a fork:
//
//   fork():    forks, waits for the end of it, and returns the process id of a child that waits
//   execvp():  in that fork, tells the child its words and environment, and ends
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <fcntl.h>
#include <iostream>
#include <iterator>
#include <signal.h>
#include <string>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

namespace {

constexpr const char* kSocket = "ATELIER_FORK_SERVER";
constexpr int kStreams = 3;
constexpr int kMostFiles = 32;    // of a packet
constexpr int kMostNumber = 256;  // of a file that a process inherits
constexpr int kMostProcesses = 16;
constexpr int kFailed = 125;

using Main = int (*)(int, char**, char**);
using Hook = void (*)();

struct Packet {
  std::vector<std::string> words;
  std::vector<int> files;
};

// A child that waits before main().
struct Standby {
  pid_t process;
  int socket;  // its words come by
};

std::vector<Standby> standbys;  // of a launch, for its next forks
int replaced_by = -1;           // in a fork of a launch: the socket of the child in its place

// The function of that name behind the one here.
template <typename Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

// False at the end of the socket.
bool receive(int socket, Packet& packet) {
  static char text[1 << 20];
  iovec part{text, sizeof(text)};
  alignas(cmsghdr) char control[CMSG_SPACE(kMostFiles * sizeof(int))];
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t length = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  if (length <= 0) return false;
  packet = {};
  if (const cmsghdr* files = CMSG_FIRSTHDR(&message)) {
    packet.files.resize((files->cmsg_len - CMSG_LEN(0)) / sizeof(int));
    std::memcpy(packet.files.data(), CMSG_DATA(files), packet.files.size() * sizeof(int));
  }
  for (const char* word = text; word < text + length; word += packet.words.back().size() + 1) {
    packet.words.emplace_back(word);
  }
  return true;
}

bool send_packet(int socket, Packet packet) {
  std::string text;
  for (const std::string& word : packet.words) text.append(word).push_back('\0');
  iovec part{text.data(), text.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(kMostFiles * sizeof(int))];
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  packet.files.resize(std::min<size_t>(packet.files.size(), kMostFiles));
  if (const size_t bytes = packet.files.size() * sizeof(int); bytes > 0) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(bytes);
    cmsghdr* files = CMSG_FIRSTHDR(&message);
    *files = {CMSG_LEN(bytes), SOL_SOCKET, SCM_RIGHTS};
    std::memcpy(CMSG_DATA(files), packet.files.data(), bytes);
  }
  return sendmsg(socket, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(text.size());
}

// Ends a process before LibTorch unregisters its operators, which takes longer than the fork.
void end(int status, void* /*unused*/) {
  std::cout.flush();
  std::fflush(nullptr);
  _exit(status);
}

// What main() is given: argv, and the environment behind it, as the kernel lays them out.
std::vector<char*> block_of(std::vector<std::string>& words) {
  std::vector<char*> block;
  for (std::string& word : words) block.push_back(word.data());
  block.push_back(nullptr);
  for (char** variable = environ; *variable; ++variable) block.push_back(*variable);
  block.push_back(nullptr);
  environ = block.data() + words.size() + 1;
  return block;
}

// What a process becomes: the count and the numbers of its files, the count of its arguments and
// these, and its environment.
Packet packet_of(char* const* words) {
  Packet packet;
  std::vector<std::string> numbers, arguments;
  for (int file = kStreams; file < kMostNumber; ++file) {
    const int flags = fcntl(file, F_GETFD);
    if (flags < 0 || (flags & FD_CLOEXEC) != 0) continue;
    packet.files.push_back(file);
    numbers.push_back(std::to_string(file));
  }
  for (; *words; ++words) arguments.emplace_back(*words);
  for (const auto& list : {numbers, arguments}) {
    packet.words.push_back(std::to_string(list.size()));
    packet.words.insert(packet.words.end(), list.begin(), list.end());
  }
  for (char** variable = environ; *variable; ++variable) packet.words.emplace_back(*variable);
  return packet;
}

// In a child that waits: its words, files and environment have come.
std::vector<char*> take_place(int socket) {
  static Packet packet;
  if (!receive(socket, packet)) _exit(kFailed);
  close(socket);
  auto word = packet.words.begin();
  const auto next_list = [&] {
    const int count = std::atoi((word++)->c_str());
    word += count;
    return std::vector<std::string>(word - count, word);
  };
  const std::vector<std::string> numbers = next_list();
  for (int& file : packet.files) {  // out of the way of the numbers
    const int moved = fcntl(file, F_DUPFD_CLOEXEC, kMostNumber);
    close(file);
    file = moved;
  }
  for (size_t i = 0; i < packet.files.size(); ++i) {
    dup2(packet.files[i], std::atoi(numbers[i].c_str()));
    close(packet.files[i]);
  }
  static std::vector<std::string> words = next_list();
  clearenv();
  for (; word != packet.words.end(); ++word) putenv(word->data());
  return block_of(words);
}

// How many processes the launch has whose words these are; 0 where it is none, or a mistake.
int processes_of(const std::vector<std::string>& words) {
  const auto flag = std::find(words.begin(), words.end(), "--nproc_per_node");
  const bool is_launch = words.size() > 2 && words[2] == "launch";
  const int count = is_launch && words.end() - flag > 1 ? std::atoi(flag[1].c_str()) : 0;
  return count <= kMostProcesses ? count : 0;
}

// The words of this process: those of a start, or of a process of its launch.
std::vector<char*> become(int socket, Packet& start) {
  for (int file = 0; file < kStreams; ++file) dup2(start.files[file], file);
  for (int file : start.files) close(file);
  close(socket);
  if (chdir(start.words[0].c_str()) != 0) _exit(kFailed);
  on_exit(end, nullptr);
  unsetenv(kSocket);
  unsetenv("LD_PRELOAD");
  for (int count = processes_of(start.words); count > 0; --count) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) _exit(kFailed);
    const pid_t process = next<decltype(&fork)>("fork")();
    if (process == 0) {
      setpgid(0, 0);  // as the fork in its place does
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      close(ends[1]);
      for (const Standby& other : standbys) close(other.socket);
      standbys.clear();
      return take_place(ends[0]);
    }
    close(ends[0]);
    standbys.push_back({process, ends[1]});
  }
  start.words.erase(start.words.begin());
  return block_of(start.words);
}

int32_t milliseconds(const timeval& time) {
  return static_cast<int32_t>(time.tv_sec * 1000 + time.tv_usec / 1000);
}

// Returns in the processes of starts only.
std::vector<char*> serve(int socket) {
  static Packet start;
  while (receive(socket, start)) {
    const pid_t process = next<decltype(&fork)>("fork")();
    if (process == 0) return become(socket, start);
    for (int file : start.files) close(file);
    int32_t answer[] = {process, 0};
    if (send(socket, answer, sizeof(answer), MSG_NOSIGNAL) < 0) break;
    rusage used{};
    wait4(process, &answer[0], 0, &used);
    answer[1] = milliseconds(used.ru_utime) + milliseconds(used.ru_stime);
    if (send(socket, answer, sizeof(answer), MSG_NOSIGNAL) < 0) break;
  }
  _exit(0);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) pid_t fork() {
  const pid_t process = next<decltype(&fork)>("fork")();
  if (standbys.empty() || process < 0) return process;
  const Standby standby = standbys.back();
  standbys.pop_back();
  if (process == 0) {
    replaced_by = standby.socket;
    standbys.clear();
    return 0;
  }
  waitpid(process, nullptr, 0);
  close(standby.socket);
  return standby.process;
}

extern "C" __attribute__((visibility("default"))) int execvp(const char* file, char* const* words) {
  if (replaced_by < 0) return next<decltype(&execvp)>("execvp")(file, words);
  _exit(send_packet(replaced_by, packet_of(words)) ? 0 : kFailed);
}

// The C library's first function: it is called when all libraries are loaded, and calls main().
extern "C" __attribute__((visibility("default"))) int __libc_start_main(Main main, int count,
                                                                        char** arguments, Hook init,
                                                                        Hook fini, Hook rtld_fini,
                                                                        void* stack_end) {
  if (const char* socket = std::getenv(kSocket)) {
    static std::vector<char*> block = serve(std::atoi(socket));
    rtld_fini = nullptr;  // it would be called ahead of end()
    arguments = block.data();
    count = static_cast<int>(std::find(block.begin(), block.end(), nullptr) - block.begin());
  }
  return next<decltype(&__libc_start_main)>("__libc_start_main")(main, count, arguments, init, fini,
                                                                 rtld_fini, stack_end);
}
