// Stands for a framework of C++ that has its own Python module, as JAX has: it opens the CUDA runtime itself, in a
// thread of its own that has nothing to do with the interpreter.
#include <dlfcn.h>
#include <cstddef>
#include <thread>

namespace {
int (*g_allocate)(void**, std::size_t);
}

extern "C" __attribute__((visibility("default"))) int framework_start(const char* runtime, std::size_t bytes) {
    int status = -1;
    std::thread([&] {
        void* library = dlopen(runtime, RTLD_NOW | RTLD_LOCAL);
        if (library == nullptr) return;
        g_allocate = reinterpret_cast<int (*)(void**, std::size_t)>(dlsym(library, "cudaMalloc"));
        void* block = nullptr;
        status = g_allocate(&block, bytes);
    }).join();
    return status;
}

extern "C" __attribute__((visibility("default"))) int framework_allocate(std::size_t bytes) {
    void* block = nullptr;
    return g_allocate(&block, bytes);
}
