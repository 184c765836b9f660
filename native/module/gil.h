// The interpreter's lock: given away for a scope, and taken for one.
//
// A thread that comes back for it when the interpreter has begun to end (a daemon thread: nobody waits for those) gets
// pthread_exit() from CPython before 3.14. That unwinds its stack, and pybind11's own gil_scoped_release stops it in a
// destructor: the whole process is aborted, "terminate called without an active exception". Nor may it go on: without
// the lock, what the stack holds of Python must not be touched. So it waits here for the end, as CPython 3.14 lets it.
#pragma once

#include <cxxabi.h>
#include <pybind11/pybind11.h>
#include <unistd.h>

namespace memscope {

template <typename Take>
auto take_gil(Take take) noexcept -> decltype(take()) {
    try {
        return take();
    } catch (abi::__forced_unwind&) {  // to leave this handler would abort, too
        for (;;) pause();
    }
}

class GilReleased {
public:
    GilReleased() noexcept : state_(PyEval_SaveThread()) {}
    ~GilReleased() {
        take_gil([this] { PyEval_RestoreThread(state_); });
    }
    GilReleased(const GilReleased&) = delete;
    GilReleased& operator=(const GilReleased&) = delete;

private:
    PyThreadState* const state_;
};

class GilHeld {
public:
    GilHeld() noexcept : state_(take_gil([] { return PyGILState_Ensure(); })) {}
    ~GilHeld() { PyGILState_Release(state_); }
    GilHeld(const GilHeld&) = delete;
    GilHeld& operator=(const GilHeld&) = delete;

private:
    const PyGILState_STATE state_;
};

}  // namespace memscope
