#!/usr/bin/env python3
"""Makes stubs of the libraries that LibTorch's CUDA half links, but for the CUDA runtime.

usage: make_stubs.py <LibTorch's lib folder> <output folder> <C compiler>

Every function that a library of LibTorch asks for gives 0, which is success to all of them; those in WRITTEN say more,
and products are kernels of the runtime.
The names and versions of the libraries are read from LibTorch's, so that the loader finds what it wants.
"""
import pathlib
import re
import subprocess
import sys

ASKING = ["libtorch_cpu.so", "libtorch_cuda.so", "libtorch_nvshmem.so", "libcaffe2_nvrtc.so"]
# The library by the first letters of a function's name; longer ones come first.
PREFIXES = ["cublasLt", "cublas", "cudnn", "cusparseLt", "cusparse", "cufft", "curand", "cuFile", "nccl", "nvshmem",
            "cupti", "nvrtc", "cuda", "cu"]
SONAMES = {"nvshmem": "libnvshmem_host", "cu": "libcuda"}
BEGINNING = """#include <stdlib.h>
int null_cuda_is_open(int device);
int null_cuda_launch(void* stream);
"""
PRODUCT = "int {name}(void** handle) {{ return null_cuda_launch(*handle); }}"  # of cuBLAS, which knows its stream
WRITTEN = {
    "cublasCreate_v2": "int cublasCreate_v2(void** handle) { *handle = calloc(1, 64); return 0; }",
    "cublasDestroy_v2": "int cublasDestroy_v2(void* handle) { free(handle); return 0; }",
    "cublasSetStream_v2": "int cublasSetStream_v2(void** handle, void* stream) { *handle = stream; return 0; }",
    "cublasGetVersion_v2": "int cublasGetVersion_v2(void* handle, int* version) { *version = 130100; return 0; }",
    "cublasLtMatmul":
        "int cublasLtMatmul(void* handle, void* product, void* alpha, void* a, void* al, void* b, void* bl, void* beta,\n"
        "    void* c, void* cl, void* d, void* dl, void* way, void* workspace, size_t bytes, void* stream) {\n"
        "  return null_cuda_launch(stream); }",
    "cublasLtMatmulAlgoGetHeuristic":
        "int cublasLtMatmulAlgoGetHeuristic(void* handle, void* product, void* a, void* b, void* c, void* d,\n"
        "    void* preference, int asked, void* results, int* found) { *found = 1; return 0; }",
    "cuInit": "int cuInit(unsigned flags) { return 0; }",
    "cuDriverGetVersion": "int cuDriverGetVersion(int* version) { *version = 13000; return 0; }",
    "cuDeviceGetCount": "int cuDeviceGetCount(int* count) { *count = 2; return 0; }",
    "cuCtxGetCurrent": "int cuCtxGetCurrent(void** context) { *context = (void*)1; return 0; }",
    "cuDevicePrimaryCtxGetState":
        "int cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* active) {\n"
        "  *flags = 0, *active = null_cuda_is_open(device); return 0; }",
    "cudnnGetVersion": "size_t cudnnGetVersion(void) { return 91900; }",
}


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def prefix_of(name):
    return next((prefix for prefix in PREFIXES if name.startswith(prefix)), None)


def body_of(name):
    if name.startswith("cublas") and "gemm" in name.lower():
        return PRODUCT.format(name=name)
    return WRITTEN.get(name, f"int {name}(void) {{ return 0; }}")


def main():
    torch, out, compiler = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3]
    out.mkdir(parents=True, exist_ok=True)
    sonames, versions_of = set(), {}
    functions = {prefix: {name for name in WRITTEN if prefix_of(name) == prefix} for prefix in PREFIXES}
    for library in (torch / name for name in ASKING):
        sonames.update(re.findall(r"NEEDED.*\[(\S+)\]", run("readelf", "-dW", str(library))))
        for symbol in run("nm", "-D", "--undefined-only", str(library)).split():
            name, _, version = symbol.partition("@")
            prefix = prefix_of(name)
            if prefix and prefix != "cuda":  # which is the runtime
                functions[prefix].add(name)
                versions_of[prefix] = version or "NONE"
    for prefix in (p for p in PREFIXES if p != "cuda"):
        stem = SONAMES.get(prefix, "lib" + prefix.lower()).lower()
        soname = next((s for s in sonames if s.lower().startswith(stem + ".so.")), None)
        if soname is None:
            continue
        source, versions = out / f"{prefix}.c", out / f"{prefix}.map"
        bodies = [body_of(name) for name in sorted(functions[prefix])]
        source.write_text(BEGINNING + "\n".join(bodies) + "\n")
        versions.write_text(f"{versions_of.get(prefix, 'NONE')} {{ global: *; }};\n")
        run(compiler, "-shared", "-fPIC", "-O1", "-w", "-x", "c", "-o", str(out / soname), f"-Wl,-soname,{soname}",
            f"-Wl,--version-script={versions}", str(source))
        print(soname, len(bodies))


if __name__ == "__main__":
    main()
