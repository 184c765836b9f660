// The border between whoever sees torch's operators and the hook library, which writes them down. Plain C: the observer
// is compiled on the user's machine against her torch, with a compiler and a libstdc++ that we do not know.
//
// In: an operator begins, with the tensors that it is given; it ends, with those that it returned; nodes of the
// autograd graph are made and evaluated. Out: OP_START, ACCESS, COLLECTIVE and OP_END in the ring of this process
// (native/source/aten.cpp), and Python stacks for what nodes allocate (stack/forward_stacks.h). Both callers do the
// same: the observer (observer.cpp) and, where it cannot be built, the dispatch mode in Python
// (collect/rank/dispatch_mode.py).
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

#define MEMSCOPE_OPERATOR_SINK_VERSION 9u

// What wanted() answers, as memscope::Sort has it; and that blocks are watched, so that waits() is asked too.
#define MEMSCOPE_WANTS_OPERATORS 1u
#define MEMSCOPE_WANTS_ACCESSES 4u
#define MEMSCOPE_WANTS_INNER 8u  // also operators that others call
#define MEMSCOPE_WANTS_LOOKS 16u

// One tensor and what the operator does to its memory. `how`: aux of an ACCESS (record.h): 0 unknown, 1 read, 2 write.
// device_type: memscope::DeviceType. dtype: a literal, such as "torch.float32"; dtype_code tells dtypes apart.
struct memscope_touched {
    unsigned long long address;  // of the first element
    unsigned long long storage;  // of the first byte of its storage
    long long bytes;             // elements times the size of one
    long long storage_bytes;
    const long long* sizes;
    const char* dtype;
    unsigned dims;
    int dtype_code;
    unsigned how;
    short device_type;
    short device;
    unsigned char is_spread;  // its elements do not lie together: others of its storage are between them
};

// A piece of memory that was written.
struct memscope_written {
    unsigned long long address;
    unsigned long long storage;
    long long bytes;
    short device_type;
    short device;
};

// One call of an operator. name: torch._ops.aten.add.Tensor, which stays where it is until end(). The device is where
// it runs. is_backward: autograd runs it (flag BACKWARD of record.h). is_enclosing: what this thread runs until it ends
// is part of it, whoever sees it. is_native: end() comes on this thread whatever happens, and Python code of this
// thread that called it goes on behind it.
struct memscope_called {
    const char* name;
    unsigned name_bytes;
    short device_type;
    short device;
    unsigned char is_backward;
    unsigned char is_enclosing;
    unsigned char is_native;
};

// What began and has not ended. Filled by begin(), given back to end() on the same thread.
struct memscope_running {
    unsigned long long name;
    unsigned long long stack;
    unsigned char flags;
    unsigned char device_type;
    short device;
    unsigned char has_started;   // an OP_START was written
    unsigned char is_enclosing;  // as it was called
    unsigned char is_collective;
    unsigned char is_later;     // what it does to tensors comes on another stream than its own
    unsigned char holds_stack;  // what runs in it has its Python stack, which need not be walked again
    unsigned stream;            // on which it is launched, as told_stream() has it
    // Beside which watched blocks are looked at (source/watched_blocks.h); 0: none were.
    unsigned times;
    unsigned text_bytes;
    const char* text;  // begin()'s name
    // Of the operator whose outputs are to be watched: what it writes in place.
    unsigned char is_start;
    unsigned written_count;
    struct memscope_written written[4];
};

// A collective operation of c10d that has been started. group: its name, the same on all ranks of the group. sequence:
// the backend's count, 0 when it has none.
struct memscope_collective {
    const char* group;
    unsigned group_bytes;
    unsigned ranks;
    unsigned long long sequence;
};

// On which stream the calling thread would launch something on a card now: torch's number of it. 0: nobody knows.
// Called with the allocator's locks held: it takes none and calls nothing back.
typedef int (*memscope_stream_function)(short device_type, short device, long long* stream);

struct memscope_operator_sink {
    unsigned version;
    // What is recorded now: 0 or a sum of MEMSCOPE_WANTS_*. Two loads.
    unsigned (*wanted)(void);
    void (*begin)(struct memscope_running* running, const struct memscope_called* called,
                  const struct memscope_touched* given, unsigned count);
    void (*end)(const struct memscope_running* running, const struct memscope_touched* returned, unsigned count);
    // Between the two: what runs is this collective.
    void (*collective)(const struct memscope_running* running, const struct memscope_collective* collective);
    // A node of this number is about to be made by this thread, which torch numbers `thread`. running: what began and
    // will make it; NULL: nobody was told of that.
    void (*forward)(unsigned long long thread, long long sequence, const struct memscope_running* running);
    // What this thread does from now on is for that node, until another is told; sequence below 0: for none. Before
    // begin().
    void (*node)(unsigned long long thread, long long sequence);
    // Asked before begin() (running: NULL) and before end(), when looks are wanted: whether the caller waits until what
    // was asked of the device's current stream is done. Only who knows torch knows which that is.
    int (*waits)(const struct memscope_running* running, short device_type, short device);
    // Who knows streams is asked for them from now on.
    void (*streams_by)(memscope_stream_function streams);
};

// What the observer's library exports. Adopts the sink for the life of the process: 0, or 1 when its version is
// another.
typedef int (*memscope_observe_function)(const struct memscope_operator_sink* sink);
// Observes what is wanted from now on, a sum of MEMSCOPE_WANTS_*; 0: nothing, then torch calls nothing of ours.
typedef void (*memscope_switch_function)(unsigned wanted);

#ifdef __cplusplus
}
#endif
