/* Walks the Python frames of the calling thread without the GIL.
 *
 * torch allocates with the GIL released, so the public frame functions cannot be used: they create frame
 * objects and change reference counts that other threads change at the same time. Reading is safe, though:
 * while this thread is inside a C call nobody else touches its frames, and the code objects they run are kept
 * alive by them. So this file reads the interpreter's own structures, compiled against the headers of exactly
 * this Python version; nothing is guessed, and collect/attach.py compares a walk with sys._getframe() before
 * it is used.
 *
 * A frame's key is made from the code object's address and the instruction, and from the addresses of its
 * name and file and its first line, so that a new code object at the address of a dead one gets a new key, unless
 * these are alike, too: of texts that a program runs by exec() under one file name one after the other, a later one
 * may get the lines of an earlier. To tell them apart would take a look at every frame's table of lines.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#if PY_VERSION_HEX >= 0x030B0000 && !defined(Py_GIL_DISABLED)
#define Py_BUILD_CORE 1
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wsign-conversion"
#pragma GCC diagnostic ignored "-Wunused-parameter"
#pragma GCC diagnostic ignored "-Wshadow"
#include <internal/pycore_code.h>
#include <internal/pycore_frame.h>
#if PY_VERSION_HEX >= 0x030E0000
#include <internal/pycore_interpframe.h>
#include <internal/pycore_stackref.h>
#endif
#pragma GCC diagnostic pop
#else
#include <frameobject.h>
#endif

#include <stdint.h>
#include <string.h>

#include "module/python_frames.h"

typedef struct {
    PyCodeObject* code;
    int lasti; /* in bytes, as PyCode_Addr2Line wants it */
} Position;

/* --- the interpreter's frames, version by version ------------------------------------------------------------- */

#if defined(Py_GIL_DISABLED)

static int is_entry(const void* frame) {
    (void)frame;
    return 0;
}

/* Free-threaded builds move reference counts and frames in ways that this walk does not know. */
typedef void Frame;
static const Frame* newest_frame(PyThreadState* thread) {
    (void)thread;
    return NULL;
}
static const Frame* older_frame(const Frame* frame) {
    (void)frame;
    return NULL;
}
static int position_of(const Frame* frame, Position* out) {
    (void)frame;
    (void)out;
    return 0;
}
static int is_of_interpreter(const Frame* frame) {
    (void)frame;
    return 1;
}
static const void* code_of(const Frame* frame) {
    (void)frame;
    return NULL;
}
static uintptr_t instruction_of(const Frame* frame) {
    (void)frame;
    return 0;
}

#elif PY_VERSION_HEX < 0x030B0000 /* 3.10 */

typedef PyFrameObject Frame;
static const Frame* newest_frame(PyThreadState* thread) { return thread->frame; }
static const Frame* older_frame(const Frame* frame) { return frame->f_back; }
static int is_entry(const Frame* frame) { /* each call of a Python function is a call of the loop */
    (void)frame;
    return 1;
}
static int position_of(const Frame* frame, Position* out) {
    out->code = frame->f_code;
    out->lasti = frame->f_lasti * (int)sizeof(_Py_CODEUNIT);
    return 1;
}
static int is_of_interpreter(const Frame* frame) {
    (void)frame;
    return 0;
}
static const void* code_of(const Frame* frame) { return frame->f_code; }
static uintptr_t instruction_of(const Frame* frame) { return (uintptr_t)(unsigned)frame->f_lasti; }

#else

typedef _PyInterpreterFrame Frame;

static const Frame* newest_frame(PyThreadState* thread) {
#if PY_VERSION_HEX < 0x030D0000 /* 3.11, 3.12 */
    return thread->cframe == NULL ? NULL : thread->cframe->current_frame;
#else
    return thread->current_frame;
#endif
}

static const Frame* older_frame(const Frame* frame) { return frame->previous; }

/* Whether the interpreter's loop was called for it; else it was called by Python code within the same loop. */
static int is_entry(const Frame* frame) {
#if PY_VERSION_HEX < 0x030C0000   /* 3.11 */
    return frame->is_entry;
#elif PY_VERSION_HEX < 0x030E0000 /* 3.12, 3.13: the loop puts a frame of its own below */
    return frame->previous == NULL || frame->previous->owner == FRAME_OWNED_BY_CSTACK;
#else
    return frame->previous == NULL || frame->previous->owner >= FRAME_OWNED_BY_INTERPRETER;
#endif
}

/* The interpreter's own frames are no code of Python's. */
static int is_of_interpreter(const Frame* frame) {
#if PY_VERSION_HEX < 0x030C0000   /* 3.11 */
    (void)frame;
    return 0;
#elif PY_VERSION_HEX < 0x030E0000 /* 3.12, 3.13 */
    return frame->owner == FRAME_OWNED_BY_CSTACK;
#else
    return frame->owner >= FRAME_OWNED_BY_INTERPRETER;
#endif
}

/* What tells where a frame is without looking into its code object, which lies elsewhere in memory. */
static const void* code_of(const Frame* frame) {
#if PY_VERSION_HEX < 0x030D0000   /* 3.11, 3.12 */
    return frame->f_code;
#elif PY_VERSION_HEX < 0x030E0000 /* 3.13 */
    return frame->f_executable;
#else
    return PyStackRef_AsPyObjectBorrow(frame->f_executable);
#endif
}
static uintptr_t instruction_of(const Frame* frame) {
#if PY_VERSION_HEX < 0x030D0000 /* 3.11, 3.12 */
    return (uintptr_t)frame->prev_instr;
#else
    return (uintptr_t)frame->instr_ptr;
#endif
}

/* False for frames that are not there yet (before their first instruction) and for the interpreter's own. */
static int position_of(const Frame* frame, Position* out) {
#if PY_VERSION_HEX < 0x030C0000   /* 3.11 */
    if (_PyFrame_IsIncomplete((Frame*)frame)) return 0;
    out->code = frame->f_code;
    const _Py_CODEUNIT* instruction = frame->prev_instr;
#elif PY_VERSION_HEX < 0x030D0000 /* 3.12 */
    if (is_of_interpreter(frame) || _PyFrame_IsIncomplete((Frame*)frame)) return 0;
    out->code = frame->f_code;
    const _Py_CODEUNIT* instruction = frame->prev_instr;
#elif PY_VERSION_HEX < 0x030E0000 /* 3.13 */
    if (is_of_interpreter(frame) || _PyFrame_IsIncomplete((Frame*)frame)) return 0;
    out->code = (PyCodeObject*)frame->f_executable;
    const _Py_CODEUNIT* instruction = frame->instr_ptr;
#else                             /* 3.14 */
    if (is_of_interpreter(frame) || _PyFrame_IsIncomplete((Frame*)frame)) return 0;
    out->code = (PyCodeObject*)PyStackRef_AsPyObjectBorrow(frame->f_executable);
    const _Py_CODEUNIT* instruction = frame->instr_ptr;
#endif
    if (out->code == NULL || !PyCode_Check((PyObject*)out->code)) return 0;
    out->lasti = (int)(instruction - _PyCode_CODE(out->code)) * (int)sizeof(_Py_CODEUNIT);
    return 1;
}

#endif

#if PY_VERSION_HEX < 0x030B0000
static PyObject* name_of(const PyCodeObject* code) { return code->co_name; }
#else
static PyObject* name_of(const PyCodeObject* code) { return code->co_qualname; }
#endif

/* --- the walk ------------------------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}

static uint64_t key_of(const PyCodeObject* code, int lasti) {
    const uint64_t address = (uint64_t)(uintptr_t)code;
    const uint64_t texts = (uint64_t)(uintptr_t)code->co_filename ^ (uint64_t)(uintptr_t)name_of(code) << 17;
    const uint64_t key = mix(address * 0x9E3779B97F4A7C15ull + texts +
                             ((uint64_t)(unsigned)code->co_firstlineno << 40) + (uint64_t)(unsigned)lasti);
    return key != 0 ? key : 1;
}

static unsigned walk(uint64_t* keys, const void** handles, unsigned max) {
    PyThreadState* thread = PyGILState_GetThisThreadState();
    if (thread == NULL) return 0;
    unsigned count = 0;
    for (const Frame* frame = newest_frame(thread); frame != NULL && count < max; frame = older_frame(frame)) {
        Position at;
        if (!position_of(frame, &at)) continue;
        keys[count] = key_of(at.code, at.lasti);
        handles[count] = (const char*)frame + (is_entry(frame) ? 1 : 0);
        ++count;
    }
    return count;
}

/* --- a stack as one number ------------------------------------------------------------------------------------- */

/* A thread's stacks differ from each other in their innermost frames. So what was found of the frames further out is
 * kept, frame by frame from the outermost on, and holds while each frame lies at its place, in the same code, at the
 * same instruction: a comparison in place of a hash, and a look at one line of the code object in place of three. That
 * line is looked at because code that is made at run time may lie where other code lay. */
enum { kMostKnown = 64, kThreads = 16 };

typedef struct {
    const Frame* frame;
    const void* code;
    uintptr_t instruction;
    const void *file, *name;
    int line;
    int entry;
    uint64_t key; /* of this frame and those further out */
} Known;

/* Of a thread, and of those that share its place: frames of two threads lie in different memory. Whoever finds it busy
 * does without. A place that is busy in a forked child stays so, and costs that child's thread the longer way. */
typedef struct {
    char busy;
    unsigned count;
    Known known[kMostKnown];
} Memory;

static Memory g_memories[kThreads];

static int is_known(const Known* known, const Frame* frame, int entry) {
    if (known->frame != frame || known->code != code_of(frame) || known->instruction != instruction_of(frame)) return 0;
    const PyCodeObject* code = (const PyCodeObject*)known->code;
    return known->file == code->co_filename && known->name == code->co_name && known->line == code->co_firstlineno &&
           known->entry == entry;
}

static uint64_t key_of_stack(Memory* memory, const Frame* const* frames, unsigned count, int tell_entries) {
    unsigned at = 0;
    uint64_t key = 0;
    for (; at < count && at < memory->count; ++at) { /* the outermost first */
        const Frame* frame = frames[count - 1 - at];
        if (!is_known(&memory->known[at], frame, tell_entries ? is_entry(frame) : 0)) break;
        key = memory->known[at].key;
    }
    for (; at < count; ++at) {
        const Frame* frame = frames[count - 1 - at];
        Position position;
        memory->count = at;
        if (!position_of(frame, &position)) return 0;
        const int entry = tell_entries ? is_entry(frame) : 0;
        key = mix(key * 0x9E3779B97F4A7C15ull + key_of(position.code, position.lasti) + (entry ? 1u : 0u));
        const Known known = {frame,
                             code_of(frame),
                             instruction_of(frame),
                             position.code->co_filename,
                             position.code->co_name,
                             position.code->co_firstlineno,
                             entry,
                             key};
        memory->known[at] = known;
    }
    memory->count = count;
    return key;
}

static uint64_t recognise(unsigned max, int tell_entries) {
    PyThreadState* thread = PyGILState_GetThisThreadState();
    if (thread == NULL || max > kMostKnown) return 0;
    const Frame* frames[kMostKnown];
    unsigned count = 0;
    for (const Frame* frame = newest_frame(thread); frame != NULL && count < max; frame = older_frame(frame))
        if (!is_of_interpreter(frame)) frames[count++] = frame;
    Memory* memory = &g_memories[mix((uint64_t)(uintptr_t)thread) % kThreads];
    if (count == 0 || __atomic_exchange_n(&memory->busy, 1, __ATOMIC_ACQUIRE) != 0) return 0;
    const uint64_t key = key_of_stack(memory, frames, count, tell_entries);
    __atomic_store_n(&memory->busy, 0, __ATOMIC_RELEASE);
    return key;
}

/* UTF-8 of a string object without PyUnicode_AsUTF8, which would cache its result in the object (a write that
 * needs the GIL). Surrogates, which stand for undecodable bytes of a path, become '?'. */
static unsigned utf8_of(PyObject* text, char* out, unsigned size) {
    if (text == NULL || !PyUnicode_Check(text)) return 0;
#if PY_VERSION_HEX < 0x030C0000
    if (!PyUnicode_IS_READY(text)) return 0;
#endif
    const Py_ssize_t length = PyUnicode_GET_LENGTH(text);
    const int kind = (int)PyUnicode_KIND(text);
    const void* data = PyUnicode_DATA(text);
    unsigned bytes = 0;
    for (Py_ssize_t i = 0; i < length; ++i) {
        Py_UCS4 c = PyUnicode_READ(kind, data, i);
        if (c >= 0xD800 && c <= 0xDFFF) c = '?';
        const unsigned need = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
        if (bytes + need > size) break;
        if (need == 1) {
            out[bytes] = (char)c;
        } else {
            static const unsigned char lead[5] = {0, 0, 0xC0, 0xE0, 0xF0};
            for (unsigned k = need - 1; k > 0; --k) {
                out[bytes + k] = (char)(0x80 | (c & 0x3F));
                c >>= 6;
            }
            out[bytes] = (char)(lead[need] | c);
        }
        bytes += need;
    }
    return bytes;
}

static void describe(const void* handle, memscope_frame_text* out) {
    Position at = {NULL, 0};
    out->file_bytes = out->function_bytes = out->line = 0;
    if (!position_of((const Frame*)((uintptr_t)handle & ~(uintptr_t)1), &at)) return;
    out->file_bytes = utf8_of(at.code->co_filename, out->file, sizeof out->file);
    out->function_bytes = utf8_of(name_of(at.code), out->function, sizeof out->function);
    const int line = PyCode_Addr2Line(at.code, at.lasti); /* reads the line table; no reference counts */
    out->line = line > 0 ? (unsigned)line : 0;
}

const memscope_python_frames memscope_cpython_frames = {walk, describe, recognise};

/* --- functions as such, for a trace of calls (python_calls.cpp); these need the GIL ------------------------------ */

uint64_t memscope_key_of_function(const PyCodeObject* code) { return key_of(code, -1); }

void memscope_describe_function(const PyCodeObject* code, memscope_frame_text* out) {
    out->file_bytes = utf8_of(code->co_filename, out->file, sizeof out->file);
    out->function_bytes = utf8_of(name_of(code), out->function, sizeof out->function);
    out->line = code->co_firstlineno > 0 ? (unsigned)code->co_firstlineno : 0;
}

unsigned memscope_text_of(PyObject* text, char* out, unsigned size) { return utf8_of(text, out, size); }

PyObject* memscope_first_argument(const PyCodeObject* code) {
    if (code->co_argcount == 0) return NULL;
#if defined(Py_GIL_DISABLED)
    return NULL;
#else
    const Frame* frame = newest_frame(PyThreadState_Get());
    if (frame == NULL) return NULL;
#if PY_VERSION_HEX < 0x030B0000
    return frame->f_code == code ? frame->f_localsplus[0] : NULL;
#elif PY_VERSION_HEX < 0x030D0000
    return frame->f_code == code ? frame->localsplus[0] : NULL;
#elif PY_VERSION_HEX < 0x030E0000
    return frame->f_executable == (PyObject*)code ? frame->localsplus[0] : NULL;
#else
    if (PyStackRef_AsPyObjectBorrow(frame->f_executable) != (PyObject*)code) return NULL;
    return PyStackRef_IsNull(frame->localsplus[0]) ? NULL : PyStackRef_AsPyObjectBorrow(frame->localsplus[0]);
#endif
#endif
}
