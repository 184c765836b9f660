// Watched blocks: what of this process's memory is looked at before and after each operator, and the looking.
//
//   by the program    msmemscope.watcher.watch(): memscope_watch(), until memscope_unwatch()
//   by --watch        the outputs of operator START, from its end until operator END has ended
//
// Sources of operators (aten.cpp, atb.cpp) and of kernels (launch.cpp) say when. A look copies the block to the host,
// compares it with a copy of what it was, and is a WATCH record: checksum, and the bytes that changed. So a block that
// changed while no operator that declares a write to it ran is found by whoever reads the records (folds/watches.py).
//
// What it may cost: kMostBlocks blocks at a time; copies of what was, for kMostShadowBytes in all (of a block that has
// no copy it is known that it changed, not where); for each block one piece of at most kPieceBytes through which it
// is read. Two threads that look at one block wait for each other, 50 ms at most; then the look is left out, which
// report_lost says. Nothing of it is in the child of a fork.
#pragma once

#include "hook/recorder.h"

namespace memscope {

struct Block;

// What runs while blocks are looked at. Its name is a string of the ring and the text of it.
struct Looked {
    WatchBeside what;
    u8 flags;  // Flag::STACK_LOST
    DeviceType device_type;
    i16 device;  // as recorded
    u64 name;
    u64 stack;
    const char* text;
    u32 bytes;
    u32 times;  // how often it was seen so far; see count_look()

    bool is_of_atb() const noexcept { return what == WatchBeside::ATB || what == WatchBeside::ATB_KERNEL; }
};

// A tensor that an operator gave back.
struct Output {
    DeviceType device_type;
    i16 device;  // as recorded
    u64 address, storage;
    i64 bytes;
};

// How many blocks are watched, and one more while --watch waits for its START. All that a hook reads when it is 0.
extern std::atomic<u32> g_watches;
inline bool has_watches() noexcept { return __builtin_expect(g_watches.load(std::memory_order_relaxed) != 0, 0); }

// All of these inside a Guard, while recording and when has_watches().

// How often the operator of this name was seen, this time included. Once for each call, before its looks.
u32 count_look(u64 name) noexcept;
// Whether anything is to be looked at beside this one, and the device be waited for before.
bool looks_at_device(const Looked& looked) noexcept;
void look_before(const Looked& looked) noexcept;
// Also begins and ends what --watch says. outputs: of an operator of that name alone.
void look_after(const Looked& looked, const Output* outputs, u32 count) noexcept;
bool is_watch_start(const char* text, u32 bytes) noexcept;

// Whether a byte of the range is watched.
bool is_range_watched(DeviceType type, u64 ptr, i64 bytes) noexcept;

// For blocks.cpp: memory that was given back, or given out again, is watched no more.
void watched_memory_freed(const Block& block) noexcept;
void watched_memory_allocated(const Block& block) noexcept;

// For settings.cpp and recorder.cpp, outside of hooks: the settings are others; recording began or ended, between which
// nobody looks.
void watch_as_set() noexcept;
void watch_anew() noexcept;

}  // namespace memscope

extern "C" {

struct memscope_watched {
    unsigned long long ptr, bytes;
    unsigned long long storage;  // its block begins here; ptr when nobody knows
    unsigned device_type;        // memscope::DeviceType
    int device;                  // as the process numbers it
    const char* name;
    long long looks;  // at most so many; -1: no end
};

// From now on until memscope_unwatch() the block is watched. 0, or: EEXIST another block has this name; EBUSY these
// bytes are watched already, by another name; ENOSPC too many are watched; ENOMEM; EFAULT they cannot be read; ENODEV
// their device is not recorded. The device is not waited for.
int memscope_watch(const memscope_watched* watched);
// 0, or ENOENT.
int memscope_unwatch(unsigned long long ptr, unsigned long long bytes);
}
