#include "stack/stacks.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <atomic>
#include <cstring>

#include "hook/recorder.h"
#include "stack/frame_rules.h"
#include "stack/native_walk.h"

namespace memscope {
namespace {

std::atomic<const memscope_python_frames*> g_python{nullptr};
std::atomic<u32> g_python_depth{0};
std::atomic<u32> g_native_depth{0};

u64 key_of(const u64* keys, u32 count, FrameKind kind) noexcept {
    u64 key = static_cast<u64>(kind) + 1;
    for (u32 i = 0; i < count; ++i) key = combine64(key, keys[i]);
    return nonzero(key);
}

void describe_native(const void* address, memscope_frame_text* out) noexcept {
    memscope_frame_text& text = *out;
    Dl_info info;
    text.file_bytes = text.function_bytes = text.line = 0;
    if (dladdr(address, &info) == 0 || info.dli_fname == nullptr) {
        memcpy(text.file, "??", 2);
        text.file_bytes = 2;
        memcpy(text.function, "??", 2);
        text.function_bytes = 2;
        return;
    }
    text.file_bytes = static_cast<unsigned>(strnlen(info.dli_fname, sizeof text.file));
    memcpy(text.file, info.dli_fname, text.file_bytes);
    const char* name = info.dli_sname != nullptr ? info.dli_sname : "??";
    text.function_bytes = static_cast<unsigned>(strnlen(name, sizeof text.function));
    memcpy(text.function, name, text.function_bytes);
    text.line = static_cast<unsigned>(static_cast<const char*>(address) - static_cast<const char*>(info.dli_fbase));
}

using Describe = void (*)(const void*, memscope_frame_text*);

// First sight of a stack: defines the frames that are new, then the stack.
__attribute__((noinline)) u64 define(u64 stack_key, const u64* keys, const void* const* handles, u32 count,
                                     FrameKind kind, Describe describe, u8& flags) noexcept {
    u64 ids[kMaxFrames];
    u64 id = 0;
    for (u32 i = 0; i < count; ++i) {
        ids[i] = find_frame(keys[i]);
        if (ids[i] == 0) {
            memscope_frame_text text;
            describe(handles[i], &text);
            ids[i] =
                intern_frame(keys[i], kind, text.file, text.file_bytes, text.function, text.function_bytes, text.line);
        }
        if (ids[i] == 0) break;
        if (i + 1 == count) id = intern_stack(stack_key, kind, ids, count);
    }
    if (id == 0) flags |= static_cast<u8>(Flag::STACK_LOST);
    return id;
}

u64 find_or_define(const u64* keys, const void* const* handles, u32 count, FrameKind kind, Describe describe,
                   u8& flags) noexcept {
    if (count == 0 || !ensure_ring()) return 0;
    const u64 stack_key = key_of(keys, count, kind);
    if (const u64 id = find_stack(stack_key)) return id;
    return define(stack_key, keys, handles, count, kind, describe, flags);
}

// Two sizes, so that the usual depth does not touch 16 KiB of a small thread's stack.
template <u32 Capacity>
u64 capture_python(const memscope_python_frames& python, u32 depth, u8& flags) noexcept {
    u64 keys[Capacity];
    const void* handles[Capacity];
    const u32 count = python.walk(keys, handles, depth);
    return find_or_define(keys, handles, count, FrameKind::PYTHON, python.describe, flags);
}

template <u32 Capacity>
u64 capture_native(u32 depth, u8& flags) noexcept {
    void* addresses[Capacity];
    u64 keys[Capacity];
    const u32 count = walk_native_stack(addresses, depth, own_code());
    // An address that became other code is another frame. Addresses of code have no more than 48 bits.
    const u64 generation = code_generation() << 48;
    for (u32 i = 0; i < count; ++i) keys[i] = nonzero(reinterpret_cast<u64>(addresses[i]) ^ generation);
    return find_or_define(keys, addresses, count, FrameKind::NATIVE, describe_native, flags);
}

}  // namespace

u64 capture_python_stack(u8& flags, u32 depth) noexcept {
    const memscope_python_frames* python = g_python.load(std::memory_order_acquire);
    if (depth == 0) depth = g_python_depth.load(std::memory_order_relaxed);
    if (python == nullptr || depth == 0) return 0;
    return depth <= 64 ? capture_python<64>(*python, depth, flags) : capture_python<kMaxFrames>(*python, depth, flags);
}

u64 capture_native_stack(u8& flags, u32 depth) noexcept {
    if (depth == 0) depth = g_native_depth.load(std::memory_order_relaxed);
    if (depth == 0) return 0;
    return depth <= 64 ? capture_native<64>(depth, flags) : capture_native<kMaxFrames>(depth, flags);
}

}  // namespace memscope

extern "C" __attribute__((visibility("default"))) void memscope_set_python_frames(
    const memscope_python_frames* frames) {
    memscope::g_python.store(frames, std::memory_order_release);
}

extern "C" __attribute__((visibility("default"))) void memscope_set_stack_depth(unsigned python, unsigned native) {
    memscope::g_python_depth.store(python < memscope::kMaxFrames ? python : memscope::kMaxFrames);
    memscope::g_native_depth.store(native < memscope::kMaxFrames ? native : memscope::kMaxFrames);
    void* warm[2];
    backtrace(warm, 2);  // its first call loads libgcc_s; not inside an allocator's lock
}
