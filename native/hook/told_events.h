// Events that the program tells of itself through the Python module: finished calls, snapshots of an allocator, labels.
//
// They are recorded whether or not memory events are, since upstream's users call them on their own. All of them return
// at once without a session, and inside a hook. extern "C": used by the module, which is not built with the library's
// flags.
#pragma once

extern "C" {

// The id of a frame, defined with its first use; 0 when it cannot be. key: what its code is recognised by (stacks.h).
unsigned long long memscope_frame(unsigned long long key, void (*describe)(void* context, void* out), void* context);
// The id of a text; longer ones are cut at kMaxTextBytes. 0: there is no room (recorder.h: has_room_for_texts).
unsigned long long memscope_text(const char* text, unsigned long long bytes);

unsigned memscope_thread();  // the kernel's number of the calling thread
// CLOCK_MONOTONIC in ns.
unsigned long long memscope_now();

// A call that has ended now. kind: CallKind. start_ns 0: it had begun before anybody looked. ended 0: it goes on, and
// nobody will look any more. tid 0: the calling thread's.
void memscope_call(unsigned kind, unsigned long long name, unsigned long long start_ns, int ended, unsigned tid);
// A mark by which the program asks what is alive, while recording. name: a text's id.
void memscope_mark(unsigned long long name);

// A range of the calling thread begins: its start, for memscope_call() when it ends. Only while blocks are recorded,
// and where there is room for its name: one without is left out, its end too.
unsigned long long memscope_range_begun(const char* name, unsigned long long bytes);

struct memscope_snapshot_figures {
    unsigned device_type;                                                     // DeviceType
    int device;                                                               // as the process numbers it
    unsigned pool;                                                            // Pool
    long long allocated, reserved, max_allocated, max_reserved, free, total;  // bytes; total 0: not known
};
void memscope_snapshot(const char* name, unsigned long long bytes, const memscope_snapshot_figures* figures);

// A segment of the allocator, or a block of one, at the moment of the snapshot told last by this thread. What the
// fields mean for each: record.h, SNAPSHOT_SEGMENT and SNAPSHOT_BLOCK.
struct memscope_snapshot_piece {
    unsigned is_block;
    unsigned aux;
    unsigned long long ptr, attr;
    long long size, used, total;
};
void memscope_snapshot_pieces(const char* name, unsigned long long bytes, const memscope_snapshot_figures* figures,
                              const memscope_snapshot_piece* pieces, unsigned count);

// LABEL_PUSH (or LABEL_POP) of the calling thread. 0: it could not be told, for there is no session.
int memscope_label_thread(int pushed, unsigned level, const char* text, unsigned long long bytes);
// LABEL_ADDR of each of `count` addresses. only_recording: not while blocks are remembered alone.
void memscope_label_addresses(unsigned level, const char* text, unsigned long long bytes,
                              const unsigned long long* addresses, unsigned long long count, int only_recording);
}
