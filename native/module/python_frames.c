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
 * name and file and its first line, so that a new code object at the address of a dead one gets a new key.
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

/* False for frames that are not there yet (before their first instruction) and for the interpreter's own. */
static int position_of(const Frame* frame, Position* out) {
#if PY_VERSION_HEX < 0x030C0000   /* 3.11 */
    if (_PyFrame_IsIncomplete((Frame*)frame)) return 0;
    out->code = frame->f_code;
    const _Py_CODEUNIT* instruction = frame->prev_instr;
#elif PY_VERSION_HEX < 0x030D0000 /* 3.12 */
    if (frame->owner == FRAME_OWNED_BY_CSTACK || _PyFrame_IsIncomplete((Frame*)frame)) return 0;
    out->code = frame->f_code;
    const _Py_CODEUNIT* instruction = frame->prev_instr;
#elif PY_VERSION_HEX < 0x030E0000 /* 3.13 */
    if (frame->owner == FRAME_OWNED_BY_CSTACK || _PyFrame_IsIncomplete((Frame*)frame)) return 0;
    out->code = (PyCodeObject*)frame->f_executable;
    const _Py_CODEUNIT* instruction = frame->instr_ptr;
#else                             /* 3.14 */
    if (frame->owner >= FRAME_OWNED_BY_INTERPRETER || _PyFrame_IsIncomplete((Frame*)frame)) return 0;
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

const memscope_python_frames memscope_cpython_frames = {walk, describe};

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
