#include "source/block_memory.h"

#include "hook/checked_copy.h"
#include "hook/fork.h"
#include "hook/patch.h"

namespace memscope {
namespace {

constexpr int kDeviceToHost = 2;  // aclrtMemcpyKind and cudaMemcpyKind have the same number for it
// cudaStreamPerThread: does not wait for the streams of others, as the default one of old would.
void* const kStreamOfThread = reinterpret_cast<void*>(2);

std::atomic<void*> g_acl_copy, g_acl_wait_stream, g_acl_wait_device, g_acl_capture, g_acl_capture_end, g_cuda_copy,
    g_cuda_wait, g_cuda_capture, g_cuda_capture_end;
// Of the whole process: a capture in one mode forbids waiting on every thread.
std::atomic<u32> g_acl_captures{0}, g_cuda_captures{0};

// A capture that is ended twice, or by another function, must not count below none.
void end_capture(std::atomic<u32>& captures) noexcept {
    u32 now = captures.load(std::memory_order_relaxed);
    while (now != 0 && !captures.compare_exchange_weak(now, now - 1, std::memory_order_relaxed)) {
    }
}

// Counted before the capture begins: a look that comes in between is left out.
int begin_capture(const std::atomic<void*>& original, std::atomic<u32>& captures, void* stream, int mode) noexcept {
    captures.fetch_add(1, std::memory_order_relaxed);
    const int status = original_of<int (*)(void*, int)>(original)(stream, mode);
    if (status != 0) end_capture(captures);
    return status;
}

int end_capture(const std::atomic<void*>& original, std::atomic<u32>& captures, void* stream, void** graph) noexcept {
    const int status = original_of<int (*)(void*, void**)>(original)(stream, graph);
    end_capture(captures);
    return status;
}

int cuda_capture(void* stream, int mode) noexcept {
    return begin_capture(g_cuda_capture, g_cuda_captures, stream, mode);
}
int cuda_capture_end(void* stream, void** graph) noexcept {
    return end_capture(g_cuda_capture_end, g_cuda_captures, stream, graph);
}
int acl_capture(void* stream, int mode) noexcept { return begin_capture(g_acl_capture, g_acl_captures, stream, mode); }
int acl_capture_end(void* stream, void** graph) noexcept {
    return end_capture(g_acl_capture_end, g_acl_captures, stream, graph);
}

bool copy_from_npu(u64 from, void* to, u64 bytes) noexcept {
    const auto copy = original_of<int (*)(void*, std::size_t, const void*, std::size_t, int)>(g_acl_copy);
    return copy != nullptr && copy(to, bytes, reinterpret_cast<const void*>(from), bytes, kDeviceToHost) == 0;
}

bool copy_from_cuda(u64 from, void* to, u64 bytes) noexcept {
    const auto copy = original_of<int (*)(void*, const void*, std::size_t, int, void*)>(g_cuda_copy);
    const auto wait = original_of<int (*)(void*)>(g_cuda_wait);
    return copy != nullptr && wait != nullptr &&
           copy(to, reinterpret_cast<const void*>(from), bytes, kDeviceToHost, kStreamOfThread) == 0 &&
           wait(kStreamOfThread) == 0;
}

void begin_anew_in_child() noexcept {
    g_acl_captures.store(0, std::memory_order_relaxed);
    g_cuda_captures.store(0, std::memory_order_relaxed);
}
MEMSCOPE_AFTER_FORK(begin_anew_in_child);

const Hook kHooks[] = {
    {"aclrtMemcpy", nullptr, &g_acl_copy},
    {"aclrtSynchronizeStream", nullptr, &g_acl_wait_stream},
    {"aclrtSynchronizeDevice", nullptr, &g_acl_wait_device},
    {"aclmdlRICaptureBegin", reinterpret_cast<void*>(acl_capture), &g_acl_capture},
    {"aclmdlRICaptureEnd", reinterpret_cast<void*>(acl_capture_end), &g_acl_capture_end},
    {"cudaMemcpyAsync", nullptr, &g_cuda_copy},
    {"cudaStreamSynchronize", nullptr, &g_cuda_wait},
    {"cudaStreamBeginCapture", reinterpret_cast<void*>(cuda_capture), &g_cuda_capture},
    {"cudaStreamEndCapture", reinterpret_cast<void*>(cuda_capture_end), &g_cuda_capture_end},
};

}  // namespace

bool copy_from(DeviceType type, u64 from, void* to, u64 bytes) noexcept {
    switch (type) {
        case DeviceType::CPU:
            return copy_checked(to, reinterpret_cast<const void*>(from), bytes);
        case DeviceType::NPU:
            return copy_from_npu(from, to, bytes);
        case DeviceType::CUDA:
            return copy_from_cuda(from, to, bytes);
        default:
            return false;
    }
}

void settle_npu(void* stream) noexcept {
    if (stream != nullptr) {
        if (const auto wait = original_of<int (*)(void*)>(g_acl_wait_stream)) wait(stream);
    } else if (const auto wait = original_of<int (*)()>(g_acl_wait_device)) {
        wait();
    }
}

bool is_capturing(DeviceType type) noexcept {
    return type != DeviceType::CPU &&
           (type == DeviceType::NPU ? g_acl_captures : g_cuda_captures).load(std::memory_order_relaxed) != 0;
}

MEMSCOPE_SOURCE("block_memory", "", "the content of watched blocks on devices", kHooks);

}  // namespace memscope
