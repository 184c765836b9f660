// Whose a ring is: what its header says of the process that writes it, and which ring of the session is its parent's.
#pragma once

#include "record/ring.h"

namespace memscope {

// A text as headers hold them: cut at size - 1 bytes, and ended by a zero. from: nullptr for none.
void copy_text(char* to, std::size_t size, const char* from) noexcept;

// Random but for its end, which is that of the process's pid: so its relatives find it among thousands by the name of
// its file.
u64 new_ring_id() noexcept;

// What is known when a ring is made. session: its directory.
void fill_identity(RingHeader& header, u64 ring_id, const char* session) noexcept;

// Looks at the rings that are already in the session's directory: the one of the nearest ancestor of the same rank and
// attempt is the parent of `own`, which notes its id, and one of this very process from before an exec is finished.
// Returns the header of the former, which stays mapped for the life of the process; nullptr: there is none.
const RingHeader* find_parent(RingHeader& own, const char* session) noexcept;

}  // namespace memscope
