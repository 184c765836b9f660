// What a fold met that a number may depend on, counted by kind.
#pragma once

#include <array>
#include <cstddef>

#include "kernel/tables.h"
#include "record/record.h"

namespace memscope::kernel {

// name, text, meaning with the meaning of its bytes
#define MEMSCOPE_ANOMALIES(X)                                                                                     \
    X(DOUBLE_MALLOC, "double_malloc",                                                                             \
      "MALLOC of a live address; the old block ends (no fault of a workspace) [its size]")                        \
    X(UNKNOWN_FREE, "unknown_free", "FREE of an address that is not live [the event's size]")                     \
    X(INHERITED_FREE, "inherited_free", "the same in a process with a parent: the parent's block, most likely")   \
    X(OTHER_THREAD_FREE, "other_thread_free", "FREE by another thread than the MALLOC; no fault [its size]")      \
    X(SIZE_MISMATCH, "size_mismatch", "FREE and MALLOC give different sizes; MALLOC's counts [the difference]")   \
    X(BAD_SIZE, "bad_size", "MALLOC of a negative or impossible size, counted with size 0 [0]")                   \
    X(LATE_STEP, "late_step", "MALLOC or FREE of a step before the current one, counted to the current one [0]")  \
    X(STEP_JUMP, "step_jump", "steps without any event that got no row because they are too many [0]")            \
    X(FOLDED_SITE, "folded_site", "MALLOC whose stacks were dropped because there are too many [its size]")       \
    X(LEFT_OUT_POOL, "left_out_pool", "MALLOC or FREE of a pool that is left out because there are too many [0]") \
    X(OTHER_OWNER, "other_owner", "a block whose owner is `other` because there are too many [its size]")         \
    X(LEFT_OUT_CHANGE, "left_out_change", "a change of a block's owner that has no row: too many [its size]")     \
    X(LEFT_OUT_LABEL, "left_out_label", "a label that a thread or block cannot take: too many, or damaged [0]")   \
    X(UNKNOWN_LABEL, "unknown_label", "a label that the program gave to an address that is in no block [0]")      \
    X(LEFT_OUT_PHASE, "left_out_phase", "a beginning of a phase that is not followed: there are too many [0]")    \
    X(LEFT_OUT_STREAM, "left_out_stream",                                                                         \
      "a block that inefficient does not judge because its process has too many streams [its size]")              \
    X(UNKNOWN_ACCESS, "unknown_access", "ACCESS to no known block [bytes accessed]")

#define X(name, ...) name,
enum class Anomaly : u8 { MEMSCOPE_ANOMALIES(X) COUNT };
#undef X

class Anomalies {
public:
    void count(Anomaly kind, i64 bytes = 0, u64 times = 1) noexcept {
        Entry& entry = entries_[static_cast<std::size_t>(kind)];
        entry.count += times;
        entry.bytes += static_cast<u64>(bytes);
    }

    // Kinds that occurred.
    void append(AnomalyTable& table) const {
        static constexpr const char* kText[] = {
#define X(name, text, meaning) text,
            MEMSCOPE_ANOMALIES(X)
#undef X
        };
        for (std::size_t kind = 0; kind < entries_.size(); ++kind) {
            if (entries_[kind].count == 0) continue;
            table.kind.emplace_back(kText[kind]);
            table.count.push_back(entries_[kind].count);
            table.bytes.push_back(static_cast<i64>(entries_[kind].bytes));
        }
    }

private:
    struct Entry {
        u64 count = 0, bytes = 0;
    };
    std::array<Entry, static_cast<std::size_t>(Anomaly::COUNT)> entries_{};
};

}  // namespace memscope::kernel
