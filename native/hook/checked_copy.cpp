#include "hook/checked_copy.h"

#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>
#include <cerrno>

#include "record/record.h"

namespace memscope {
namespace {

// Where a sandbox forbids process_vm_readv: asks which pages are mapped. What is mapped and may not be read is missed.
bool is_mapped(const void* place, std::size_t bytes) noexcept {
    const u64 page = static_cast<u64>(sysconf(_SC_PAGESIZE));
    const u64 last = reinterpret_cast<u64>(place) + bytes - 1;
    unsigned char resident = 0;
    for (u64 at = reinterpret_cast<u64>(place) & ~(page - 1); at <= last; at += page)
        if (mincore(reinterpret_cast<void*>(at), page, &resident) != 0) return false;
    return true;
}

}  // namespace

bool copy_checked(void* to, const void* from, std::size_t bytes) noexcept {
    if (from == nullptr || bytes == 0) return false;
    const iovec target = {to, bytes};
    const iovec source = {const_cast<void*>(from), bytes};
    const ssize_t copied = process_vm_readv(getpid(), &target, 1, &source, 1, 0);
    if (copied == static_cast<ssize_t>(bytes)) return true;
    if (copied >= 0 || errno == EFAULT || !is_mapped(from, bytes)) return false;
    __builtin_memcpy(to, from, bytes);
    return true;
}

}  // namespace memscope
