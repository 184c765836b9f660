// What /proc says of a process: enough to tell it from a later one with its pid, and to find its parent.
#pragma once

#include "record/record.h"

namespace memscope {

struct ProcessStat {
    char state;  // 'Z' and 'X': it has ended
    u32 parent;
    u64 start;  // clock ticks after boot
};

// The inode of this process's PID namespace, or 0.
u64 pid_namespace() noexcept;

// Fields 3, 4 and 22 of /proc/<pid>/stat; false when there is no such process. Allocates nothing.
bool read_process_stat(u32 pid, ProcessStat& out) noexcept;

}  // namespace memscope
