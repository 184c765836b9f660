/* The local variables of a frame that may be running, without touching it. */
#pragma once

#include <Python.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A new list of tuples (name, object); NULL with an exception set. */
PyObject* memscope_locals_of(PyObject* frame);

#ifdef __cplusplus
}
#endif
