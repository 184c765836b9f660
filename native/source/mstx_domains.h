// The domains of mstx: names under which libraries speak to a tool, and the pools that some of the names stand for.
//
// A handle points to a domain of ours. It is the same for the same name, since torch_npu creates its domain before
// every call, and it is never given back, since what was registered through it outlives whoever destroys it.
#pragma once

#include "record/record.h"

namespace memscope::mstx {

struct Domain {
    u64 id;          // text_id of the whole name; 0: not made yet
    Pool pool;       // NONE: a domain of the user's
    char name[116];  // cut, for people
};
static_assert(sizeof(Domain) == 128);

// The handle for a name, never nullptr. When the table is full, names that are not in it share the last handle.
Domain* domain_named(const char* name) noexcept;

// The domain behind a handle, or nullptr when it is not one of ours.
const Domain* domain_of(const void* handle) noexcept;

}  // namespace memscope::mstx
