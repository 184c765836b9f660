// Memory for large vectors: in pages of 2 MiB where the kernel gives them, so that filling them is not mostly waiting
// for pages (a quarter of the time that reading a memory snapshot took), nor access in random order for their
// addresses. The index of 90,000 live blocks is two such pages.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <new>

namespace memscope::kernel {

template <typename T>
struct LargePages {
    using value_type = T;
    static constexpr std::size_t kLarge = 2u << 20;

    LargePages() = default;
    template <typename U>
    LargePages(const LargePages<U>&) noexcept {}

    T* allocate(std::size_t n) {
        const std::size_t bytes = n * sizeof(T);
        if (bytes < kLarge) return static_cast<T*>(::operator new(bytes, std::align_val_t{alignof(T)}));
        void* const at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (at == MAP_FAILED) throw std::bad_alloc();
        madvise(at, bytes, MADV_HUGEPAGE);  // a wish
        return static_cast<T*>(at);
    }
    void deallocate(T* at, std::size_t n) noexcept {
        const std::size_t bytes = n * sizeof(T);
        if (bytes < kLarge)
            ::operator delete(at, std::align_val_t{alignof(T)});
        else
            munmap(at, bytes);
    }
    bool operator==(const LargePages&) const noexcept { return true; }
    bool operator!=(const LargePages&) const noexcept { return false; }
};

}  // namespace memscope::kernel
