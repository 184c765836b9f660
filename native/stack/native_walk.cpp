#include "stack/native_walk.h"

#include <sys/ucontext.h>
#include <cstddef>

#include "stack/code_objects.h"
#include "stack/frame_rules.h"

// Set by the linker for the object they are linked into.
extern "C" __attribute__((visibility("hidden"))) const char __ehdr_start[];
extern "C" __attribute__((visibility("hidden"))) const char _end[];
extern "C" __attribute__((weak)) void* __libc_stack_end;

namespace memscope {
namespace {

bool contains(CodeRange range, u64 address) noexcept { return address - range.begin < range.end - range.begin; }

// The end of the thread's stack, as far as it can be had without asking the system: the C library puts its thread
// descriptor there, except for the first thread. Elsewhere (coroutines) it is an address that fits or does not; one
// that does not ends the walk.
u64 end_of_stack(u64 sp) noexcept {
    u64 descriptor = 0;
#if defined(__x86_64__)
    asm("mov %%fs:0, %0" : "=r"(descriptor));
#elif defined(__aarch64__)
    asm("mrs %0, tpidr_el0" : "=r"(descriptor));
#endif
    if (descriptor > sp) return descriptor;
    return &__libc_stack_end != nullptr ? reinterpret_cast<u64>(__libc_stack_end) : ~u64{0};
}

// Saved registers lie between the variables of frames that sanitizers know nothing of.
__attribute__((no_sanitize("address", "thread"))) u64 word_at(u64 address) noexcept {
    return *reinterpret_cast<const u64*>(address);
}

#if defined(__x86_64__)

u32 walk(u64 pc, u64 sp, u64 fp, void** addresses, u32 max, CodeRange skipped) noexcept {
    u64 end = end_of_stack(sp);
    u64 begin = sp;
    const auto is_on_stack = [&](u64 address) {
        return address >= begin && address <= end - sizeof(u64) && address % sizeof(u64) == 0;
    };
    u32 count = 0;
    bool is_return_address = true;
    while (pc != 0) {
        if (!contains(skipped, pc)) addresses[count++] = reinterpret_cast<void*>(pc);
        if (count == max) break;
        const u64 rule = rule_of(is_return_address ? pc - 1 : pc);
        u64 cfa = static_cast<u64>(cfa_offset_of(rule));
        is_return_address = true;
        switch (cfa_of(rule)) {
            case Cfa::SP:
                cfa += sp;
                break;
            case Cfa::FP:
                cfa += fp;
                break;
            case Cfa::AT_FP:
                if (!is_on_stack(fp + cfa)) return count;
                cfa = word_at(fp + cfa);
                break;
            case Cfa::SIGNAL: {
                const auto saved = [&](int reg) {
                    return word_at(sp + offsetof(ucontext_t, uc_mcontext.gregs) + static_cast<u64>(reg) * sizeof(u64));
                };
                if (!is_on_stack(sp + offsetof(ucontext_t, uc_mcontext.gregs) + REG_RIP * sizeof(u64))) return count;
                pc = saved(REG_RIP);
                fp = saved(REG_RBP);
                begin = sp = saved(REG_RSP);  // maybe another stack: handlers may have one of their own
                end = end_of_stack(sp);
                is_return_address = false;
                continue;
            }
            default:
                return count;
        }
        if (cfa <= sp || !is_on_stack(cfa - sizeof(u64))) return count;
        if (saved_fp_of(rule) != SavedFp::SAME) {
            const u64 base = saved_fp_of(rule) == SavedFp::AT_CFA ? cfa : fp;
            const u64 place = base + static_cast<u64>(saved_fp_offset_of(rule));
            if (!is_on_stack(place)) return count;
            fp = word_at(place);
        }
        pc = word_at(cfa - sizeof(u64));
        begin = sp = cfa;
    }
    return count;
}

#elif defined(__aarch64__)

// The procedure call standard chains frames: where the frame pointer leads lie the caller's frame pointer and the
// address to return to. Compilers keep to that unless they are told not to.
u32 walk(u64 pc, u64, u64 fp, void** addresses, u32 max, CodeRange skipped) noexcept {
    const u64 end = end_of_stack(fp);
    u32 count = 0;
    while (pc != 0) {
        if (!contains(skipped, pc)) addresses[count++] = reinterpret_cast<void*>(pc);
        if (count == max || fp == 0 || fp % (2 * sizeof(u64)) != 0 || fp > end - 2 * sizeof(u64)) break;
        const u64 older = word_at(fp);
        u64 link = word_at(fp + sizeof(u64));
        asm("mov x30, %1\n\thint #7\n\tmov %0, x30" : "=r"(link) : "r"(link) : "x30");  // without a signature
        if ((older != 0 && older <= fp) || !is_code(link - 1)) break;
        pc = link;
        fp = older;
    }
    return count;
}

#endif

}  // namespace

CodeRange own_code() noexcept { return {reinterpret_cast<u64>(__ehdr_start), reinterpret_cast<u64>(_end)}; }

// noinline: its frame is where the walk begins.
__attribute__((noinline)) u32 walk_native_stack(void** addresses, u32 max, CodeRange skipped) noexcept {
    if (max == 0) return 0;
    // Asking for it gives this function a frame pointer: the caller's lies there, then the address that we return to.
    const u64 frame = reinterpret_cast<u64>(__builtin_frame_address(0));
    return walk(reinterpret_cast<u64>(__builtin_return_address(0)), frame + 2 * sizeof(u64), word_at(frame), addresses,
                max, skipped);
}

}  // namespace memscope
