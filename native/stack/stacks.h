// Call stacks: turns where a thread is into a 64-bit stack id, without ever waiting for the GIL.
//
// A stack is recognised by a key made from addresses (code objects and instruction offsets, or return
// addresses), which costs one table look-up; only a stack never seen before is described and defined in the
// ring. How to walk Python frames depends on the interpreter's version and comes from the Python module, which
// is compiled against its headers (module/python_frames.c).
#pragma once

#ifdef __cplusplus
#include "record/record.h"
#else
#include <stdint.h>
#endif

#ifdef __cplusplus
extern "C" {
#endif

// Text of one frame. Paths longer than the buffers are cut.
typedef struct memscope_frame_text {
    char file[1024];
    unsigned file_bytes;
    char function[512];
    unsigned function_bytes;
    unsigned line;
} memscope_frame_text;

typedef struct memscope_python_frames {
    // Writes up to `max` frames of the calling thread, innermost first: a key that identifies code and
    // instruction, and a handle valid while the thread stays where it is, its lowest bit set when native code called
    // the frame. Returns the count; 0 when the thread
    // has no usable Python state. Must not allocate, lock, or touch a reference count.
    unsigned (*walk)(uint64_t* keys, const void** handles, unsigned max);
    void (*describe)(const void* handle, memscope_frame_text* out);
    // A number for the frames that walk() would give, faster where a stack is like the one before; tell_entries: other
    // ones for frames that native code called. 0: this stack has to be walked. Same limits.
    uint64_t (*recognise)(unsigned max, int tell_entries);
} memscope_python_frames;

// nullptr: no Python stacks any more (the interpreter is finishing).
void memscope_set_python_frames(const memscope_python_frames* frames);

#ifdef __cplusplus
}

namespace memscope {

inline constexpr u32 kFailureDepth = 50;  // of the stacks of a failed request, whatever --call-stack says

// Both return 0 when stacks of this sort are off or there is none, and set Flag::STACK_LOST in `flags` when one was
// there but could not be defined, or was shortened to its innermost frames because there were too many different ones
// before it. depth: frames at most; 0: as set. Call inside a Guard.
// A thread without Python frames that evaluates a node of torch's autograd graph has the stack of forward_stacks.h as
// its Python stack, and Flag::FORWARD_STACK.
u64 capture_python_stack(u8& flags, u32 depth = 0) noexcept;
u64 capture_native_stack(u8& flags, u32 depth = 0) noexcept;

// `id` with `flags`, just captured, is the calling thread's Python stack wherever its innermost frame is at this
// instruction, until release_python_stack(): for a call that ends before that frame goes on, such as an operator, which
// asks several times. False, and nothing to release: one is held already, or there is none.
bool hold_python_stack(u64 id, u8 flags) noexcept;
void release_python_stack() noexcept;

// The stack of what the calling thread's Python code will cause in the backward pass: its frames behind one that says
// so. forward: the id of those frames, if it is known; 0: they are walked. 0: there are none.
u64 capture_backward_stack(u64 forward) noexcept;

}  // namespace memscope
#endif
