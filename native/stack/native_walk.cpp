#include "stack/native_walk.h"

#include <execinfo.h>

#include "stack/frame_rules.h"

// Set by the linker for the object they are linked into.
extern "C" __attribute__((visibility("hidden"))) const char __ehdr_start[];
extern "C" __attribute__((visibility("hidden"))) const char _end[];
extern "C" __attribute__((weak)) void* __libc_stack_end;

namespace memscope {
namespace {

constexpr u32 kMostOwnFrames = 32;

bool contains(CodeRange range, u64 address) noexcept { return address - range.begin < range.end - range.begin; }

// `caller`: the return address that comes first, below the frames of this file.
__attribute__((noinline)) u32 walk_slowly(const void* caller, void** addresses, u32 max, CodeRange skipped) noexcept {
    void* all[kMaxFrames + kMostOwnFrames];
    const u32 room = max < kMaxFrames ? max + kMostOwnFrames : kMaxFrames + kMostOwnFrames;
    const int got = backtrace(all, static_cast<int>(room));
    const u32 count = got > 0 ? static_cast<u32>(got) : 0;
    u32 first = 0;
    while (first < count && all[first] != caller) ++first;
    if (first == count) first = 0;  // a signed return address: the range has to do
    u32 written = 0;
    for (u32 at = first; at < count && written < max; ++at)
        if (!contains(skipped, reinterpret_cast<u64>(all[at]))) addresses[written++] = all[at];
    return written;
}

#if defined(__x86_64__)

// The end of the thread's stack, as far as it can be had without asking the system: the C library puts its thread
// descriptor there, except for the first thread. Elsewhere (coroutines) it is an address that fits or does not; one
// that does not leads to the slow way.
u64 end_of_stack(u64 sp) noexcept {
    u64 descriptor = 0;
    asm("mov %%fs:0, %0" : "=r"(descriptor));
    if (descriptor > sp) return descriptor;
    return &__libc_stack_end != nullptr ? reinterpret_cast<u64>(__libc_stack_end) : ~u64{0};
}

// Saved registers lie between the variables of frames that sanitizers know nothing of.
__attribute__((no_sanitize("address", "thread"))) u64 word_at(u64 address) noexcept {
    return *reinterpret_cast<const u64*>(address);
}

// 0: some frame has no rule.
u32 walk_quickly(u64 pc, u64 sp, u64 fp, void** addresses, u32 max, CodeRange skipped) noexcept {
    const u64 end = end_of_stack(sp);
    u64 begin = sp;
    const auto is_on_stack = [&](u64 address) {
        return address >= begin && address <= end - sizeof(u64) && address % sizeof(u64) == 0;
    };
    u32 count = 0;
    while (pc != 0) {
        if (!contains(skipped, pc)) addresses[count++] = reinterpret_cast<void*>(pc);
        if (count == max) break;
        const u64 rule = rule_of(pc - 1);
        u64 cfa = static_cast<u64>(cfa_offset_of(rule));
        switch (cfa_of(rule)) {
            case Cfa::SP:
                cfa += sp;
                break;
            case Cfa::FP:
                cfa += fp;
                break;
            case Cfa::AT_FP:
                if (!is_on_stack(fp + cfa)) return 0;
                cfa = word_at(fp + cfa);
                break;
            case Cfa::OUTERMOST:
                return count;
            default:
                return 0;
        }
        if (cfa <= sp || !is_on_stack(cfa - sizeof(u64))) return 0;
        if (saved_fp_of(rule) != SavedFp::SAME) {
            const u64 base = saved_fp_of(rule) == SavedFp::AT_CFA ? cfa : fp;
            const u64 place = base + static_cast<u64>(saved_fp_offset_of(rule));
            if (!is_on_stack(place)) return 0;
            fp = word_at(place);
        }
        pc = word_at(cfa - sizeof(u64));
        begin = sp = cfa;
    }
    return count;
}

#endif

}  // namespace

CodeRange own_code() noexcept { return {reinterpret_cast<u64>(__ehdr_start), reinterpret_cast<u64>(_end)}; }

// noinline: its frame is where the walk begins.
__attribute__((noinline)) u32 walk_native_stack(void** addresses, u32 max, CodeRange skipped) noexcept {
    if (max == 0) return 0;
#if defined(__x86_64__)
    // Asking for it gives this function a frame pointer: the caller's lies there, then the address that we return to.
    const u64 frame = reinterpret_cast<u64>(__builtin_frame_address(0));
    const u32 count = walk_quickly(word_at(frame + 8), frame + 16, word_at(frame), addresses, max, skipped);
    if (count != 0) return count;
#endif
    return walk_slowly(__builtin_return_address(0), addresses, max, skipped);
}

}  // namespace memscope
