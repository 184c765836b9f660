#include "stack/stacks.h"

#include <atomic>

#include "hook/fork.h"
#include "hook/recorder.h"
#include "hook/settings.h"
#include "stack/code_objects.h"
#include "stack/forward_stacks.h"
#include "stack/frame_rules.h"
#include "stack/native_walk.h"

namespace memscope {
namespace {

std::atomic<const memscope_python_frames*> g_python{nullptr};

constexpr u32 kShortDepth = 4;  // of stacks that are shortened: the line that allocated is still there

u64 key_of(const u64* keys, u32 count, FrameKind kind) noexcept {
    u64 key = static_cast<u64>(kind) + 1;
    for (u32 i = 0; i < count; ++i) key = combine64(key, keys[i]);
    return nonzero(key);
}

// Object and offset; its name is found by the agent (module/object_names.cpp), which may take its time.
u64 define_native(u64 key, const void* address) noexcept {
    CodeObject object;
    const u64 at = reinterpret_cast<u64>(address);
    if (code_object_at(at - 1, object) != Sight::KNOWN) return intern_frame(key, FrameKind::NATIVE, "??", 2, "", 0, 0);
    const u64 offset = at - object.begin;
    return intern_frame(key, FrameKind::NATIVE, object.path, object.path_bytes, "", 0, static_cast<u32>(offset),
                        object.build);
}

// First sight of a stack: defines the frames that are new, then the stack.
template <typename Define>
__attribute__((noinline)) u64 define(u64 stack_key, const u64* keys, const void* const* handles, u32 count,
                                     FrameKind kind, const Define& define_frame, u8& flags) noexcept {
    u64 ids[kMaxFrames];
    u64 id = 0;
    for (u32 i = 0; i < count; ++i) {
        ids[i] = find_frame(keys[i]);
        if (ids[i] == 0) ids[i] = define_frame(keys[i], handles[i]);
        if (ids[i] == 0) break;
        if (i + 1 == count) id = intern_stack(stack_key, kind, ids, count);
    }
    if (id == 0) flags |= static_cast<u8>(Flag::STACK_LOST);
    return id;
}

// stack_key: by which it was looked for in vain; 0: it is made of `keys`.
template <typename Define>
u64 find_or_define(u64 stack_key, const u64* keys, const void* const* handles, u32 count, FrameKind kind,
                   const Define& define_frame, u8& flags) noexcept {
    if (count == 0 || !ensure_ring()) return 0;
    if (stack_key == 0) {
        stack_key = key_of(keys, count, kind);
        if (const u64 id = find_stack(stack_key)) return id;
    }
    if (__builtin_expect(count <= kShortDepth || has_room_for_whole_stacks(), 1))
        return define(stack_key, keys, handles, count, kind, define_frame, flags);
    flags |= static_cast<u8>(Flag::STACK_LOST);
    const u64 short_key = key_of(keys, kShortDepth, kind);
    if (const u64 id = find_stack(short_key)) return id;
    return define(short_key, keys, handles, kShortDepth, kind, define_frame, flags);
}

constexpr u64 kEntry = 0x9E37;  // of keys of frames that native code called

bool is_entry(const void* handle) noexcept { return (reinterpret_cast<u64>(handle) & 1) != 0; }

// Where native stacks are taken too: the two are merged where native code called Python.
void tell_entries_apart(u64* keys, const void* const* handles, u32 count) noexcept {
    if (g_settings.native_depth.load(std::memory_order_relaxed) == 0) return;
    for (u32 i = 0; i < count; ++i)
        if (is_entry(handles[i])) keys[i] = nonzero(combine64(kEntry, keys[i]));
}

u64 define_python(u64 key, const void* handle, const memscope_python_frames& python) noexcept {
    memscope_frame_text text;
    python.describe(handle, &text);
    const bool entry = is_entry(handle) && g_settings.native_depth.load(std::memory_order_relaxed) != 0;
    const FrameKind kind = entry ? FrameKind::PYTHON_ENTRY : FrameKind::PYTHON;
    return intern_frame(key, kind, text.file, text.file_bytes, text.function, text.function_bytes, text.line,
                        static_cast<u64>(kind));
}

constexpr u64 kBackwardKey = combine64(static_cast<u64>(FrameKind::PYTHON), 0xBAC4);
constexpr u64 kWholeKey = combine64(static_cast<u64>(FrameKind::PYTHON), 0x3401E);

// The key of the thread's whole stack, without its frames' keys; 0: these are needed.
u64 recognise(const memscope_python_frames& python, u32 depth) noexcept {
    const bool tell_entries = g_settings.native_depth.load(std::memory_order_relaxed) != 0;
    const u64 stack = python.recognise(depth, tell_entries ? 1 : 0);
    if (stack == 0 || !ensure_ring()) return 0;
    return nonzero(combine64(tell_entries ? combine64(kWholeKey, kEntry) : kWholeKey, stack));
}

// The stack's key, if it was recognised, has been looked for. Two sizes, so that the usual depth does not touch 16 KiB
// of a small thread's stack.
template <u32 Capacity>
__attribute__((noinline)) u64 capture_python(const memscope_python_frames& python, u64 stack_key, u32 depth,
                                             u8& flags) noexcept {
    u64 keys[Capacity];
    const void* handles[Capacity];
    const u32 count = python.walk(keys, handles, depth);
    tell_entries_apart(keys, handles, count);
    const auto define_frame = [&](u64 key, const void* handle) noexcept { return define_python(key, handle, python); };
    return find_or_define(stack_key, keys, handles, count, FrameKind::PYTHON, define_frame, flags);
}

template <u32 Capacity>
__attribute__((noinline)) u64 capture_backward(const memscope_python_frames& python, u64 stack_key,
                                               u32 depth) noexcept {
    u64 keys[Capacity + 1];
    const void* handles[Capacity + 1];
    keys[0] = kBackwardKey;
    handles[0] = nullptr;
    const u32 count = python.walk(keys + 1, handles + 1, depth);
    if (count == 0) return 0;
    tell_entries_apart(keys + 1, handles + 1, count);
    const auto define_frame = [&](u64 key, const void* handle) noexcept {
        if (handle != nullptr) return define_python(key, handle, python);
        return intern_frame(key, FrameKind::PYTHON, kBackwardFile, sizeof kBackwardFile - 1, kBackwardFunction,
                            sizeof kBackwardFunction - 1, 0);
    };
    u8 flags = 0;
    return find_or_define(stack_key, keys, handles, count < kMaxFrames ? count + 1 : count, FrameKind::PYTHON,
                          define_frame, flags);
}

template <u32 Capacity>
u64 capture_native(u32 depth, u8& flags) noexcept {
    void* addresses[Capacity];
    u64 keys[Capacity];
    const u32 count = walk_native_stack(addresses, depth, own_code());
    // An address that became other code is another frame. Addresses of code have no more than 48 bits.
    const u64 generation = code_generation() << 48;
    for (u32 i = 0; i < count; ++i) keys[i] = nonzero(reinterpret_cast<u64>(addresses[i]) ^ generation);
    return find_or_define(0, keys, addresses, count, FrameKind::NATIVE, define_native, flags);
}

// The innermost frame, which has not gone on since, and the stack that was captured there.
struct Held {
    u64 id;  // 0: none
    u64 key;
    const void* handle;
};
__thread Held t_held = {0, 0, nullptr};

u64 held_stack(const memscope_python_frames& python) noexcept {
    u64 key = 0;
    const void* handle = nullptr;
    const bool is_there = python.walk(&key, &handle, 1) == 1 && handle == t_held.handle && key == t_held.key;
    return is_there ? t_held.id : 0;
}

// Its ring defines its own stacks.
void hold_nothing_in_child() noexcept { t_held.id = 0; }
MEMSCOPE_AFTER_FORK(hold_nothing_in_child);

}  // namespace

bool hold_python_stack(u64 id, u8 flags) noexcept {
    constexpr u8 kAnother = static_cast<u8>(Flag::STACK_LOST) | static_cast<u8>(Flag::FORWARD_STACK);
    const memscope_python_frames* python = g_python.load(std::memory_order_acquire);
    if (id == 0 || (flags & kAnother) != 0 || t_held.id != 0 || python == nullptr) return false;
    if (python->walk(&t_held.key, &t_held.handle, 1) != 1) return false;
    t_held.id = id;
    return true;
}

void release_python_stack() noexcept { t_held.id = 0; }

u64 capture_python_stack(u8& flags, u32 depth) noexcept {
    const memscope_python_frames* python = g_python.load(std::memory_order_acquire);
    if (t_held.id != 0 && depth == 0 && python != nullptr)
        if (const u64 id = held_stack(*python)) return id;
    if (depth == 0) depth = g_settings.python_depth.load(std::memory_order_relaxed);
    if (python == nullptr || depth == 0) return 0;
    const u64 key = recognise(*python, depth);
    if (key != 0)
        if (const u64 id = find_stack(key)) return id;
    const u8 before = flags;
    const u64 id = depth <= 64 ? capture_python<64>(*python, key, depth, flags)
                               : capture_python<kMaxFrames>(*python, key, depth, flags);
    const u64 forward = forward_stack();
    if (__builtin_expect(id != 0 || forward == 0 || flags != before, 1)) return id;
    flags |= static_cast<u8>(Flag::FORWARD_STACK);
    return forward;
}

u64 capture_backward_stack(u64 forward) noexcept {
    const memscope_python_frames* python = g_python.load(std::memory_order_acquire);
    const u32 depth = g_settings.python_depth.load(std::memory_order_relaxed);
    if (python == nullptr || depth == 0) return 0;
    // The id of the frames stands for all of them, and so does what they are recognised by.
    const u64 frames = forward != 0 ? forward : recognise(*python, depth);
    const u64 key = frames == 0 ? 0 : nonzero(combine64(kBackwardKey, frames));
    if (key != 0)
        if (const u64 id = find_stack(key)) return id;
    return depth <= 64 ? capture_backward<64>(*python, key, depth) : capture_backward<kMaxFrames>(*python, key, depth);
}

u64 capture_native_stack(u8& flags, u32 depth) noexcept {
    if (depth == 0) depth = g_settings.native_depth.load(std::memory_order_relaxed);
    if (depth == 0) return 0;
    return depth <= 64 ? capture_native<64>(depth, flags) : capture_native<kMaxFrames>(depth, flags);
}

}  // namespace memscope

extern "C" __attribute__((visibility("default"))) void memscope_set_python_frames(
    const memscope_python_frames* frames) {
    memscope::g_python.store(frames, std::memory_order_release);
}
