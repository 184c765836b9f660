// Which object's code lies at an address, without the loader's lock.
//
// Whoever calls a hook may hold a lock that a constructor, run by another thread's dlopen, is waiting for; that thread
// holds the loader's lock. So nothing here asks the loader (dladdr, dl_iterate_phdr and, with most builds of libgcc,
// backtrace do): what is mapped where stands in /proc/self/maps, and what an object says of itself in its headers. They
// are read when an address is met that no known object covers, and the objects are remembered. A remembered object may
// have made way for another one; so its headers are looked at again before it is believed.
//
// Works with every glibc. _dl_find_object, which takes no lock either, came with glibc 2.35 only, and does not tell the
// real path of a library that was loaded by a relative one.
#pragma once

#include "record/record.h"

namespace memscope {

struct CodeObject {
    u64 begin = 0;       // where its file begins in memory; offsets count from here
    u64 code_begin = 0;  // its executable segments, and what lies between them
    u64 code_end = 0;
    u64 end = 0;                 // of the last segment
    u64 frame_table = 0;         // address of .eh_frame_hdr; 0: it has none
    u64 build = 0;               // hash of its headers and its build id: the same file has the same in each process
    const char* path = nullptr;  // as the kernel says it; lives as long as the process
    u32 path_bytes = 0;
};

enum class Sight : u32 {
    KNOWN,
    NOTHING,  // no object's code lies there: made at run time, or no address of code
    UNKNOWN,  // it could not be looked up now; ask again later
};

// No lock, no allocation by malloc. An address that was met before costs one system call, a new object a reading of
// /proc/self/maps.
Sight code_object_at(u64 address, CodeObject& out) noexcept;

// The same without a second look at a known object's headers, and so without a system call.
bool is_code(u64 address) noexcept;

}  // namespace memscope
