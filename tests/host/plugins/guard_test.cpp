#include "host/plugins/guard.h"

#include <new>
#include <stdexcept>
#include <string>

#include <ATen/ATen.h>

#include "atelier/host/dry_run.h"

#include "support/files.h"

using namespace atelier;
using plugins::guard;
using test::expect_error;

TEST_CASE("The guard says where, and what kind of error it was", "[plugins]") {
  CHECK(guard("x", [] { return 3; }) == 3);
  expect_error(ErrorCode::kNotFound, {"toy.denoise: gone; look"}, [] {
    guard("toy.denoise", [] { throw Error(ErrorCode::kNotFound, "gone", "look"); });
  });
  expect_error(ErrorCode::kOutOfMemory, {"here: "},
               [] { guard("here", [] { throw std::bad_alloc(); }); });
  expect_error(ErrorCode::kInternal, {"here: "},
               [] { guard("here", [] { throw std::bad_array_new_length(); }); });
  expect_error(ErrorCode::kOutOfMemory, {"here: ", "allocat"},
               [] { guard("here", [] { at::empty({int64_t{1} << 46}); }); });
  expect_error(ErrorCode::kInternal, {"here: first [INTERNAL]"},
               [] { guard("here", [] { throw std::runtime_error("first\nsecond"); }); });
  expect_error(ErrorCode::kInternal, {"here: "},
               [] { guard("here", [] { at::ones({2}).view({3}); }); });
  CHECK(!plugins::last_stack().empty());
  expect_error(ErrorCode::kInternal, {"not a std::exception"},
               [] { guard("here", [] { throw 3; }); });
}

TEST_CASE("What a plugin's code throws names its file and its block", "[plugins]") {
  const auto fails = [] { at::ones({2}).view({3}); };
  expect_error(ErrorCode::kEnvironment,
               {"toy.denoise: \"/toy.so\": it throws shape '[3]' is invalid for input of size 2; "
                "ask its author [PLUGIN_THROWS]"},
               [&] { guard("toy.denoise", fails, "\"/toy.so\""); });
  CHECK(!plugins::last_stack().empty());
  const auto in_block = [&] {
    try {
      fails();
    } catch (...) {
      plugins::note_block("blocks.1");
      plugins::note_block("blocks");  // which held it
      throw;
    }
  };
  expect_error(ErrorCode::kEnvironment, {"toy.denoise in blocks.1: \"/toy.so\": it throws shape"},
               [&] { guard("toy.denoise", in_block, "\"/toy.so\""); });
  const auto handled = [&] {
    try {
      in_block();
    } catch (...) {
      throw std::runtime_error("another");
    }
  };
  expect_error(ErrorCode::kEnvironment, {"toy.denoise: \"/toy.so\": it throws another;"},
               [&] { guard("toy.denoise", handled, "\"/toy.so\""); });
  CHECK(plugins::last_stack().empty());
  expect_error(ErrorCode::kInvalidArgument, {"toy.denoise: too large; take less"}, [&] {
    guard(
        "toy.denoise", [] { throw Error(ErrorCode::kInvalidArgument, "too large", "take less"); },
        "\"/toy.so\"");
  });
  expect_error(ErrorCode::kInternal, {"toy.denoise: CUDA error"}, [&] {
    guard(
        "toy.denoise", [] { TORCH_CHECK(false, "CUDA error: it is lost"); }, "\"/toy.so\"");
  });
}

TEST_CASE("What LibTorch says of tensors without values is the plugin's to change", "[plugins]") {
  const at::Tensor x = at::empty({2}, at::kMeta);
  const auto reads = [&] { guard("toy.denoise", [&] { x.cpu(); }); };
  // Behind a dry run it is something that was kept of it.
  expect_error(ErrorCode::kInternal,
               {"toy.denoise: Cannot copy out of meta tensor", "docs/plugins.md"}, reads);
  expect_error(ErrorCode::kEnvironment,
               {"it throws Cannot copy out of meta tensor", "docs/plugins.md", "[PLUGIN_THROWS]"},
               [&] {
                 guard(
                     "toy.denoise", [&] { x.cpu(); }, "\"/toy.so\"");
               });
  const ops::DryRun scope(at::kCPU);
  expect_error(ErrorCode::kUnsupported,
               {"toy.denoise: Cannot copy out of meta tensor", "docs/plugins.md", "[UNSUPPORTED]"},
               reads);
  expect_error(ErrorCode::kUnsupported, {"toy.denoise: ", "two devices, meta and cpu"},
               [&] { guard("toy.denoise", [&] { return x + at::ones({2}); }); });
  expect_error(ErrorCode::kInternal, {"toy.denoise: ", "invalid for input of size 2"},
               [&] { guard("toy.denoise", [&] { return x.view({3}); }); });
}

TEST_CASE("Memory that CUDA's libraries lack is told as memory", "[plugins]") {
  for (const char* message :
       {"CUDA out of memory. Tried to allocate 2.00 GiB.", "CUDA error: out of memory",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
        "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED"}) {
    expect_error(ErrorCode::kOutOfMemory, {"dit: ", message},
                 [&] { guard("dit", [&] { TORCH_CHECK(false, message); }); });
  }
  expect_error(ErrorCode::kInternal, {"CUBLAS_STATUS_EXECUTION_FAILED"}, [] {
    guard("dit", [] { TORCH_CHECK(false, "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED"); });
  });
}
