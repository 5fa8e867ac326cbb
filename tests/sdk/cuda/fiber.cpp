#include "sdk/cuda/fiber.h"

#include <cstdint>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace atelier::test {
namespace {

thread_local Fiber* running = nullptr;

#if defined(__SANITIZE_ADDRESS__)
void begin_switch(void** frames, const void* stack, size_t bytes) {
  __sanitizer_start_switch_fiber(frames, stack, bytes);
}
void end_switch(void* frames, const void** stack, size_t* bytes) {
  __sanitizer_finish_switch_fiber(frames, stack, bytes);
}
#else
void begin_switch(void**, const void*, size_t) {}
void end_switch(void*, const void**, size_t*) {}
#endif

}  // namespace

#if defined(__x86_64__)

// swapcontext() asks the kernel for a signal mask each time, which takes ten times as long.
extern "C" void atelier_switch_stack(void** from, void* to);
asm(R"(
.text
.type atelier_switch_stack, @function
atelier_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size atelier_switch_stack, . - atelier_switch_stack
)");

namespace {

void switch_context(void*& from, void*& to) {
  atelier_switch_stack(&from, to);
}

// As if `enter` had been called from nowhere, and had stopped at its first instruction.
void prepare_context(void*& context, char* stack, size_t bytes, void (*enter)()) {
  const uintptr_t top = reinterpret_cast<uintptr_t>(stack + bytes) / 16 * 16;
  auto* words = reinterpret_cast<uintptr_t*>(top) - 8;
  for (int i = 0; i < 8; ++i) words[i] = 0;
  words[6] = reinterpret_cast<uintptr_t>(enter);
  context = words;
}

}  // namespace

#else

namespace {

void switch_context(ucontext_t& from, ucontext_t& to) {
  swapcontext(&from, &to);
}

void prepare_context(ucontext_t& context, char* stack, size_t bytes, void (*enter)()) {
  getcontext(&context);
  context.uc_stack.ss_sp = stack;
  context.uc_stack.ss_size = bytes;
  context.uc_link = nullptr;
  makecontext(&context, enter, 0);
}

}  // namespace

#endif

void Fiber::start(char* stack, size_t bytes, void (*run)()) {
  run_ = run;
  stack_ = stack;
  stack_bytes_ = bytes;
  own_frames_ = nullptr;
  prepare_context(own_, stack, bytes, enter);
}

void Fiber::resume() {
  running = this;
  begin_switch(&resumer_frames_, stack_, stack_bytes_);
  switch_context(resumer_, own_);
  end_switch(resumer_frames_, nullptr, nullptr);
}

void Fiber::stop() {
  running->leave(/*is_last=*/false);
}

void Fiber::enter() {
  Fiber& fiber = *running;
  end_switch(nullptr, &fiber.resumer_stack_, &fiber.resumer_stack_bytes_);
  fiber.run_();
  fiber.leave(/*is_last=*/true);
}

void Fiber::leave(bool is_last) {
  begin_switch(is_last ? nullptr : &own_frames_, resumer_stack_, resumer_stack_bytes_);
  switch_context(own_, resumer_);
  end_switch(own_frames_, nullptr, nullptr);
}

}  // namespace atelier::test
