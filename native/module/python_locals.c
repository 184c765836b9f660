/* Until Python 3.13 `frame.f_locals` copies all local variables into a dictionary that stays with the frame, which may
 * be the very one that the program got from locals(). Whoever must change nothing reads the variables one by one: by
 * PyFrame_GetVar() from 3.12 on, in the frame's own array before. The caller holds the GIL. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#if PY_VERSION_HEX < 0x030B0000
#include <frameobject.h>
#elif PY_VERSION_HEX < 0x030C0000
#define Py_BUILD_CORE 1
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wsign-conversion"
#pragma GCC diagnostic ignored "-Wunused-parameter"
#pragma GCC diagnostic ignored "-Wshadow"
#include <internal/pycore_frame.h>
#pragma GCC diagnostic pop
#endif

#include "module/python_locals.h"

static int add(PyObject* pairs, PyObject* name, PyObject* value) {
    PyObject* pair = PyTuple_Pack(2, name, value);
    const int status = pair == NULL ? -1 : PyList_Append(pairs, pair);
    Py_XDECREF(pair);
    return status;
}

#if PY_VERSION_HEX < 0x030C0000

static int add_content(PyObject* pairs, PyObject* name, PyObject* value) {
    if (value != NULL && PyCell_Check(value)) value = PyCell_GET(value);
    return value == NULL ? 0 : add(pairs, name, value);
}

#endif

#if PY_VERSION_HEX < 0x030B0000

static int collect(PyFrameObject* frame, PyCodeObject* code, PyObject* pairs) {
    PyObject* const groups[] = {code->co_varnames, code->co_cellvars, code->co_freevars};
    PyObject** variable = frame->f_localsplus;
    for (size_t group = 0; group < sizeof groups / sizeof *groups; ++group)
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(groups[group]); ++i, ++variable)
            if (add_content(pairs, PyTuple_GET_ITEM(groups[group], i), *variable) != 0) return -1;
    return 0;
}

#elif PY_VERSION_HEX < 0x030C0000

static int collect(PyFrameObject* frame, PyCodeObject* code, PyObject* pairs) {
    for (int i = 0; i < code->co_nlocalsplus; ++i) {
        PyObject* name = PyTuple_GET_ITEM(code->co_localsplusnames, i);
        if (add_content(pairs, name, frame->f_frame->localsplus[i]) != 0) return -1;
    }
    return 0;
}

#else

static int collect(PyFrameObject* frame, PyCodeObject* code, PyObject* pairs) {
    PyObject* (*const groups[])(PyCodeObject*) = {PyCode_GetVarnames, PyCode_GetCellvars, PyCode_GetFreevars};
    for (size_t group = 0; group < sizeof groups / sizeof *groups; ++group) {
        PyObject* names = groups[group](code);
        if (names == NULL) return -1;
        int status = 0;
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names) && status == 0; ++i) {
            PyObject* value = PyFrame_GetVar(frame, PyTuple_GET_ITEM(names, i));
            if (value == NULL)
                PyErr_Clear(); /* it has none now */
            else
                status = add(pairs, PyTuple_GET_ITEM(names, i), value);
            Py_XDECREF(value);
        }
        Py_DECREF(names);
        if (status != 0) return -1;
    }
    return 0;
}

#endif

PyObject* memscope_locals_of(PyObject* frame) {
    if (!PyFrame_Check(frame)) {
        PyErr_SetString(PyExc_TypeError, "a frame is needed");
        return NULL;
    }
    PyObject* pairs = PyList_New(0);
    if (pairs == NULL) return NULL;
    PyCodeObject* code = PyFrame_GetCode((PyFrameObject*)frame);
    /* The variables of a module or a class are in its namespace. */
    const int status = (code->co_flags & CO_OPTIMIZED) != 0 ? collect((PyFrameObject*)frame, code, pairs) : 0;
    Py_DECREF(code);
    if (status != 0) Py_CLEAR(pairs);
    return pairs;
}
