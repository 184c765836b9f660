/* How to walk the Python frames of the calling thread in the interpreter that this module was compiled for. */
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "stack/stacks.h"

#ifdef __cplusplus
extern "C" {
#endif

extern const memscope_python_frames memscope_cpython_frames;

/* Of a function, whatever line it is at; with the GIL. The key of frames of the same function is another. */
uint64_t memscope_key_of_function(const PyCodeObject* code);
void memscope_describe_function(const PyCodeObject* code, memscope_frame_text* out);
/* UTF-8 of a str, cut at `size`; the bytes written. */
unsigned memscope_text_of(PyObject* text, char* out, unsigned size);
/* Borrowed: the first argument of the frame that this thread runs; NULL when that is no frame of `code`. */
PyObject* memscope_first_argument(const PyCodeObject* code);

#ifdef __cplusplus
}
#endif
