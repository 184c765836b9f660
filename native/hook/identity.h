// Who this process is, as far as its environment says: a rank by the word of a launcher, or none.
//
// Nothing is guessed: a process that no launcher speaks for is no rank, whatever it does. A variable that is there but
// says nothing sensible is no evidence, and is told in `complaint`.
#pragma once

#include "record/record.h"

namespace memscope {

// More ranks than any job has: what a variable says beyond is damage.
inline constexpr i32 kMostRanks = 1 << 20;

struct Identity {
    i32 rank = -1;  // -1: no rank
    i32 local_rank = -1;
    i32 world_size = -1;
    i32 group_rank = -1;  // node
    u32 attempt = 0;
    char complaint[256] = "";  // variables that were no evidence, for the user; printable
};

// Allocates nothing; one pass over a handful of variables.
Identity identity_of_environment() noexcept;

// The command line of this process, its words separated by 0x1f, cut off at `size` - 1 bytes; a title that was set
// stands there instead.
void read_command(char* to, std::size_t size) noexcept;

}  // namespace memscope
