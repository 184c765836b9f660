/* How to walk the Python frames of the calling thread in the interpreter that this module was compiled for. */
#pragma once

#include "stack/stacks.h"

#ifdef __cplusplus
extern "C" {
#endif

extern const memscope_python_frames memscope_cpython_frames;

#ifdef __cplusplus
}
#endif
