// An errno as Python's OSError.
#pragma once

#include <cerrno>
#include <string>

#include <pybind11/pybind11.h>

namespace memscope {

// Needs the interpreter's lock.
[[noreturn]] inline void throw_os_error(int error, const std::string& path) {
    errno = error;
    PyErr_SetFromErrnoWithFilename(PyExc_OSError, path.c_str());
    throw pybind11::error_already_set();
}

}  // namespace memscope
