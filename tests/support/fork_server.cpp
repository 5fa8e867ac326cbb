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
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <iostream>
#include <iterator>
#include <string>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

namespace {

constexpr const char* kSocket = "ATELIER_FORK_SERVER";
constexpr int kFiles = 3;
constexpr int kFailed = 125;

struct Start {
  std::vector<std::string> words;  // the working directory, and the arguments
  int files[kFiles];
};

// False at the end of the socket.
bool receive(int socket, Start& start) {
  static char text[1 << 20];
  iovec part{text, sizeof(text)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(start.files))];
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t length = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  const cmsghdr* files = CMSG_FIRSTHDR(&message);
  if (length <= 0 || !files) return false;
  std::memcpy(start.files, CMSG_DATA(files), sizeof(start.files));
  start.words.clear();
  for (const char* word = text; word < text + length; word += start.words.back().size() + 1) {
    start.words.emplace_back(word);
  }
  return true;
}

// Ends a process before LibTorch unregisters its operators, which takes longer than the fork.
void end(int status, void* /*unused*/) {
  std::cout.flush();
  std::fflush(nullptr);
  _exit(status);
}

// argv, and the environment behind it, as the kernel lays them out.
std::vector<char*> become(int socket, Start& start) {
  for (int file = 0; file < kFiles; ++file) dup2(start.files[file], file);
  for (int file : start.files) close(file);
  close(socket);
  if (chdir(start.words[0].c_str()) != 0) _exit(kFailed);
  on_exit(end, nullptr);
  unsetenv(kSocket);
  unsetenv("LD_PRELOAD");
  std::vector<char*> block;
  std::transform(start.words.begin() + 1, start.words.end(), std::back_inserter(block),
                 [](std::string& word) { return word.data(); });
  block.push_back(nullptr);
  for (char** variable = environ; *variable; ++variable) block.push_back(*variable);
  block.push_back(nullptr);
  environ = block.data() + start.words.size();
  return block;
}

int32_t milliseconds(const timeval& time) {
  return static_cast<int32_t>(time.tv_sec * 1000 + time.tv_usec / 1000);
}

// Returns in the processes of starts only.
std::vector<char*> serve(int socket) {
  static Start start;
  while (receive(socket, start)) {
    const pid_t process = fork();
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

using Main = int (*)(int, char**, char**);
using Hook = void (*)();

// The C library's first function: it is called when all libraries are loaded, and calls main().
extern "C" __attribute__((visibility("default"))) int __libc_start_main(Main main, int count,
                                                                        char** arguments, Hook init,
                                                                        Hook fini, Hook rtld_fini,
                                                                        void* stack_end) {
  const auto next =
      reinterpret_cast<decltype(&__libc_start_main)>(dlsym(RTLD_NEXT, "__libc_start_main"));
  if (const char* socket = std::getenv(kSocket)) {
    static std::vector<char*> block = serve(std::atoi(socket));
    rtld_fini = nullptr;  // it would be called ahead of end()
    arguments = block.data();
    count = static_cast<int>(std::find(block.begin(), block.end(), nullptr) - block.begin());
  }
  return next(main, count, arguments, init, fini, rtld_fini, stack_end);
}
