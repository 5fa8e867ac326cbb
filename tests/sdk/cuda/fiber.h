// A function with a stack of its own: it runs until it stops, and goes on from there.
#pragma once

#include <cstddef>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace atelier::test {

class Fiber {
 public:
  // Begins `run` when it is resumed first; `run` may not throw. The stack outlives the fiber.
  void start(char* stack, size_t bytes, void (*run)());
  // Goes on until the fiber stops or ends.
  void resume();
  // Back to whoever resumed the fiber that runs.
  static void stop();

 private:
  static void enter();
  void leave(bool is_last);

#if defined(__x86_64__)
  using Context = void*;  // a stack's pointer, above which lie the registers that a call keeps
#else
  using Context = ucontext_t;
#endif
  void (*run_)() = nullptr;
  Context own_ = {}, resumer_ = {};
  char* stack_ = nullptr;
  size_t stack_bytes_ = 0;
  // What the address sanitizer knows of both stacks.
  void *own_frames_ = nullptr, *resumer_frames_ = nullptr;
  const void* resumer_stack_ = nullptr;
  size_t resumer_stack_bytes_ = 0;
};

}  // namespace atelier::test
