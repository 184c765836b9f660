// Who holds how much of each device: one file, mapped by every process that uses the simulated driver, so that
// processes compete for a card and dcmi can be asked from outside.
//
//   CardFile: | magic | lock | holder 0 | holder 1 | … |     one holder per process, found by (pid, start time)
//
// Only a process writes its own holder, under the lock. What a dead process left in its holder no longer counts: it is
// found dead by /proc when somebody needs the sum of a device and reused when a new process needs a holder. The lock
// is robust: a process killed while it holds it has at worst not yet counted its own last step.
#pragma once

#include <cstdint>

// Index of pinned host memory among the devices.
constexpr int kHostArena = 16;

struct CardUse {
    uint64_t live;      // bytes asked for
    uint64_t occupied;  // bytes of whole pages
};

// Counts bytes of this process; false when the device has no room for them (host memory: never).
bool card_take(int arena, CardUse use);
void card_give(int arena, CardUse use);
// What this process holds of all devices together, pages.
uint64_t card_own_occupied();
// A child after fork is a process of its own: what its parent holds is not its.
void card_forget_holder();
