// What one process's driver knows: blocks, address ranges, mappings. Device memory is host memory at recognisable
// addresses:
//
//   0x110000000000                    pinned host memory
//   0x120000000000 + n * 128 GiB      blocks of device n
//   0x140000000000                    reserved address ranges
//
// A thread sanitizer owns these addresses; under it everything lies below 512 GiB, which it leaves to programs.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <utility>
#include <vector>
#include "abi/driver.h"
#include "npusim.h"

constexpr uint64_t kMiB = 1ull << 20, kGiB = 1ull << 30;
#if defined(__SANITIZE_THREAD__)
constexpr uint64_t kHostAddresses = 64 * kGiB, kDeviceAddresses = 80 * kGiB, kDeviceStride = 18 * kGiB;
constexpr uint64_t kReservedAddresses = 368 * kGiB;
#else
constexpr uint64_t kHostAddresses = 0x110000000000ull, kDeviceAddresses = 0x120000000000ull;
constexpr uint64_t kDeviceStride = 128 * kGiB, kReservedAddresses = 0x140000000000ull;
#endif

struct Block {
    uint64_t size;    // as asked for
    uint64_t mapped;  // in whole pages
    uint64_t flag;
    int arena;       // device, or kHostArena
    uint64_t owner;  // the process that allocated it (DriverState::generation)
};
struct Mapping {
    uint64_t size;
    drv_mem_handle* handle;
};
struct Registration {
    uint64_t size;
    uint32_t flag;
};

struct DriverState {
    std::mutex lock;
    uint32_t devices;
    uint64_t generation = 0;  // counts forks between the first process and this one
    std::map<uint64_t, Block> blocks;
    std::map<uint64_t, uint64_t> ranges;  // reserved: address, size
    std::map<uint64_t, Mapping> mappings;
    std::map<uint64_t, Registration> registered;
    uint64_t reserved_end = kReservedAddresses;
    uint64_t arena_ends[NPUSIM_MOST_DEVICES + 1] = {};
    // Freed addresses by (arena, mapped size), last in first out: the same program gets the same addresses.
    std::map<std::pair<int, uint64_t>, std::vector<uint64_t>> freed;
};

// Never destroyed: memory is freed while the process exits.
DriverState& driver();
// Whether the device has room left for the knob NPUSIM_OOM_AT; counts an allocation. Under the lock.
bool allowed_by_knob(uint64_t bytes);
