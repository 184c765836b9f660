// Entries of the driver's task log (profiling channel 50), of both sizes, as hicann/runtime declares them.
//
// Before Ascend 950: 64 bytes. The hardware has 16 bits each for stream and task, and the runtime packs more into them
// than fits; three ways of packing are told apart by bits of the stream. From 950 on: 32 bytes, a task number of 32
// bits, and no stream.
#pragma once

#include <cstring>

#include "record/record.h"

namespace memscope {

struct LogEntry {
    bool is_end;  // of the task; else its begin
    u32 stream;
    u32 task;
    u64 counter;  // of the device
};

inline constexpr u32 log_entry_bytes(bool is_wide) noexcept { return is_wide ? 32 : 64; }

// False: not about the begin or end of a task, or not an entry at all.
inline bool read_log_entry(const char* from, bool is_wide, bool is_expanded, LogEntry& out) noexcept {
    u32 words[4];  // kind:6 count:4 command:6 magic:16, task and stream, counter low, counter high
    memcpy(words, from, sizeof words);
    const u32 kind = words[0] & 0x3F, command = words[0] >> 10 & 0x3F;
    if (words[0] >> 16 != 0x6bd3 || kind > 1) return false;
    out.is_end = kind == 1;
    out.counter = u64{words[3]} << 32 | words[2];
    if (is_wide) {
        out.stream = 0;
        out.task = words[1];
        return true;
    }
    const u32 stream = words[1] & 0xFFFF, task = words[1] >> 16;
    out.task = task;
    if (is_expanded) {
        out.stream = stream & 0x7FFF;
        if (command != 3 && command != 4 && (stream & 0x8000) != 0) {
            out.stream = task & 0x7FFF;
            out.task = (task & 0x8000) | (stream & 0x7FFF);
        }
        return true;
    }
    out.stream = stream % 2048;
    if ((stream & 0x1000) != 0) {
        out.task = (task & 0x1FFF) | (stream & 0xE000);
    } else if ((stream & 0x2000) != 0) {
        out.stream = task & 0xFFF;
        out.task = (task & 0xF000) | (stream & 0xFFF);
    }
    return true;
}

}  // namespace memscope
