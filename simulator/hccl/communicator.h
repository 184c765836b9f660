// A communicator: ranks are processes of this machine that map one file of shared memory.
//
//   Shared: | joined | barrier | data: a chunk per rank | mail: a slot per (sender, receiver) |
//
// Collectives go chunk by chunk: each rank writes its own, all meet at the barrier, each reads what it needs, all meet
// again. Point to point uses the slot of the pair, which the receiver empties.
#pragma once

#include <atomic>
#include <cstdint>
#include "abi/hccl.h"

constexpr uint64_t kChunkBytes = 1 << 20;
constexpr uint64_t kMailBytes = 1 << 16;
constexpr uint32_t kMostRanks = 16;

struct MailSlot {
    std::atomic<uint32_t> is_full;
    char bytes[kMailBytes];
};
struct Shared {
    std::atomic<uint32_t> joined, arrived, sense;
    char data[kMostRanks][kChunkBytes];
    MailSlot mail[kMostRanks][kMostRanks];
};

struct Communicator {
    uint32_t ranks;
    uint32_t rank;
    char name[64];
    Shared* shared;
    uint32_t sense = 0;
    void* buffers[2] = {nullptr, nullptr};  // HCCL's own device memory (NPUSIM_CANN_MEMORY)

    // Waits for all ranks; says on stderr and returns false when they do not come within two minutes.
    bool meet();
};

Communicator* communicator_of(void* handle);
