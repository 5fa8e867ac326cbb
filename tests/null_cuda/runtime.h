// The null CUDA runtime: a libcudart on host memory for tests of LibTorch's CUDA half without a
// GPU. Streams, events, copies, graphs and the current device are real; a kernel does nothing. What
// CUDA refuses is refused with CUDA's error. Linked in the place of CUDA's own library; the
// functions below are what a test asks of it besides.
//
// Two devices of compute capability 9.0. Safe to use from several threads.
#pragma once

#include <cstdint>
#include <string>
#include <thread>
#include <vector>

namespace null_cuda {

struct Call {
  std::string name;
  std::thread::id thread;
  int device;       // current in the thread
  bool is_waiting;  // the host waits there for a device
};

// Begins and ends the list of calls that every thread makes. No device has a context when it
// begins.
void begin_log();
std::vector<Call> end_log();

// Streams do nothing while they are held, but for what somebody waits for.
void hold_streams();
void release_streams();

int64_t kernel_count();   // that ran, also in graphs
int64_t pinned_ranges();  // by cudaHostRegister, at this time
int64_t pinned_bytes();
// Copies that came to run when their memory was gone.
int64_t copies_from_nowhere();

}  // namespace null_cuda
