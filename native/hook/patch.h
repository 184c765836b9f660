// The hook engine: puts replacements into the GOT slots of every loaded object, and of those loaded later.
//
// A source declares its hooks in one table; the engine finds who defines each symbol (whatever scope it was
// loaded into: Python loads with RTLD_LOCAL, where dlsym does not look) and then writes the replacement into
// every slot that calls it. Nothing is exported under the hooked names, so a program that probes for a CUDA or
// CANN symbol finds it only where it really is.
//
// Objects loaded later are noticed through `dlsym`, which is itself patched: whoever loads a library at run
// time looks something up in it before using it (Python: PyInit_<module>). Patching dlopen instead would change
// whose RPATH it searches; dlsym is left by a tail call, so RTLD_NEXT still sees the real caller. A look-up
// of a hooked name through dlsym yields the replacement.
//
// All of it is idempotent and reversible: remove() gives every slot its original back.
#pragma once

#include <atomic>

#include "hook/gathered.h"
#include "hook/known_objects.h"
#include "record/record.h"

namespace memscope {

struct Hook {
    const char* symbol;
    void* replacement;             // nullptr: only find the original
    std::atomic<void*>* original;  // where calls go on; set before the first slot is written
    bool stays_loaded = false;     // its library is kept for good once it is there
};

struct HookTable {
    const char* source;  // name shown by `doctor`
    const char* home;    // whose libraries have its symbols, "CANN", or an importable package's name; "" for others
    const char* tells;   // what is recorded through it, for `doctor`: "allocations from ..."
    const Hook* hooks;
    u32 count;
};

// The sources' tables. A source enters its own at the end of its file: MEMSCOPE_SOURCE("c10", "torch", "allocations of
// torch ...", kHooks);
MEMSCOPE_GATHERED(sources, const HookTable)
#define MEMSCOPE_SOURCE(name, home, tells, hooks)                                                                 \
    static const ::memscope::HookTable k_source = {name, home, tells, hooks, sizeof(hooks) / sizeof((hooks)[0])}; \
    MEMSCOPE_ENTER(sources, const ::memscope::HookTable, k_source_entry, &k_source)

// The places of hooks: those of `own`, then those of the tables from `begin` to `end`, for as long as there are places.
// visit(table, hook, place); left_out(table) for each table of which there is no place for every hook.
template <typename Visit, typename LeftOut>
void for_each_place(const HookTable& own, const HookTable* const* begin, const HookTable* const* end,
                    const Visit& visit, const LeftOut& left_out) noexcept {
    u32 place = 0;
    for (u32 i = 0; i < own.count; ++i) visit(own, own.hooks[i], place++);
    for (const HookTable* const* table = begin; table != end; ++table) {
        u32 i = 0;
        for (; i < (*table)->count && place < kMostHooks; ++i) visit(**table, (*table)->hooks[i], place++);
        if (i < (*table)->count) left_out(**table);
    }
}

// Patches what is loaded now and arms the watch for later objects. Returns the number of slots that hold a
// replacement afterwards.
u32 install_hooks() noexcept;
void remove_hooks() noexcept;

// How often an object was looked through so far: once for each, unless some were unloaded in between.
u32 objects_looked_through() noexcept;

// For `doctor`: per hook, the object that defines it (nullptr: none is loaded) and the slots patched.
using HookVisitor = void (*)(void* context, const HookTable& source, const char* symbol, const char* defined_in,
                             u32 slots);
void describe_hooks(HookVisitor visit, void* context) noexcept;

template <typename Function>
Function original_of(const std::atomic<void*>& original) noexcept {
    return reinterpret_cast<Function>(original.load(std::memory_order_acquire));
}

}  // namespace memscope
