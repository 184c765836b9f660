// The cutter: from a stretch of records to one columnar batch.
//
// In: bytes as they stand in a ring (or were copied from one into a spool file). Out: one array per event field,
// and the definitions as arrays too, so that nobody after it loops over events in Python. Two passes: measure()
// finds how far the batch goes and how large each array will be, fill() copies. In between the caller makes the
// arrays, in whatever memory it wants. Neither pass allocates, locks or throws.
//
// What is not a whole record is stepped over and counted, never passed on:
//   * a hole (header word 0): reserved and never committed. Only stepped over when `writer_gone`; as long as the
//     writer lives the batch ends before it.
//   * an invalid record: its header, or what it says of its own inside, contradicts its length.
// Behind both, the next record is where a chain of valid headers begins that leads to the end or to a hole.
#pragma once

#include "record/record.h"

namespace memscope {

struct Records {
    const char* data = nullptr;  // aligned to 8; contiguous (a ring maps its data twice)
    u64 bytes = 0;               // up to the ring's head, or the end of the copy
    bool writer_gone = false;    // holes will stay holes
    bool cut_off = false;        // the bytes may end inside a record, which is then left for the next batch
};

struct CutSizes {
    static constexpr u32 kMaxSkips = 32;  // a batch ends early rather than step over more
    struct Skip {
        u64 from, to;
    };

    u64 length = 0;  // bytes consumed, holes included
    u64 text_bytes = 0;
    u64 stack_frames = 0;
    u32 events = 0;
    u32 strings = 0;
    u32 frames = 0;
    u32 stacks = 0;
    u32 holes = 0;
    u32 invalid = 0;
    u32 skips = 0;
    Skip skip[kMaxSkips];
};

// Columns of a batch, all of CutSizes' lengths.
struct CutColumns {
    // Of each event column, in the order below: does it hold more than one value? Most do not (one device, one
    // thread, no stacks), and such a column travels as a single element.
    bool varies[64] = {};
    struct {
        u8* kind;
        u8* flags;
#define X(type, name) type* name;
        MEMSCOPE_EVENT_FIELDS(X)
#undef X
    } events;
    struct {
        u64* id;
        u32* bytes;
        char* text;  // all texts, end to end
    } strings;
    struct {
        u64* id;
        u64* file;
        u64* function;
        u32* line;
        u32* kind;
    } frames;
    struct {
        u64* id;
        u32* count;
        u32* kind;
        u64* frames;  // all stacks, end to end
    } stacks;
};

// Takes whole records until at least `max_bytes` are consumed, the records end, or a hole must be waited for.
CutSizes measure(const Records& records, u64 max_bytes) noexcept;

// Copies what measure() found. The records must be the same bytes.
void fill(const Records& records, const CutSizes& sizes, CutColumns& columns) noexcept;

// Bytes of whole, valid records from the start on, without stepping over anything: what may be copied verbatim.
u64 whole_records(const Records& records, u64 max_bytes) noexcept;

}  // namespace memscope
