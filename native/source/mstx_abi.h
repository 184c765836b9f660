// What crosses the border of mstx (LP64; after its public headers): tables of functions, and descriptions of memory.
//
// Frameworks fill in of these structures only what their own pool needs. The fields named garbage_* hold whatever was
// on the stack of torch_npu and MindSpore and must not be read, except for the domain `atb`.
#pragma once

#include <cstddef>

#include "record/record.h"

namespace memscope::mstx {

using Slot = void (*)();
// Yields the table of a module: pointers to slots, of which number `id` is function `id`. Ids run from 1 to size - 1;
// slot 0 and the one at `size` are empty. Not 0: there is no such table.
using GetTable = int (*)(int module, Slot*** table, unsigned* size);

enum Module : int { kCore = 1, kDomains = 2, kMemory = 3 };

inline constexpr u64 kToolId = 0x1003;

struct VirtualRange {
    u32 device;  // as the process counts
    const void* ptr;
    i64 size;
};
static_assert(sizeof(VirtualRange) == 24);

struct HeapDescription {
    i32 garbage_usage;
    i32 garbage_type;
    const VirtualRange* range;
};
static_assert(sizeof(HeapDescription) == 16);

struct RegionsRegisterBatch {
    void* garbage_heap;
    i32 garbage_region_type;
    std::size_t count;
    const VirtualRange* regions;
    void** garbage_handles_out;  // atb: one handle for each region is to be written here
};
static_assert(sizeof(RegionsRegisterBatch) == 40);

enum RefType : i32 { kByPointer = 0, kByHandle = 1 };

struct RegionRef {
    i32 type;  // RefType; only atb has handles
    void* ptr;
};
static_assert(sizeof(RegionRef) == 16);

struct RegionsUnregisterBatch {
    std::size_t count;
    const RegionRef* refs;
};
static_assert(sizeof(RegionsUnregisterBatch) == 16);

}  // namespace memscope::mstx
