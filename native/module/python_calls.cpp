// The trace of Python's calls, and what else the program tells of itself: ranges and snapshots.
//
// Python 3.12 has sys.monitoring, beside which every other profiler goes on; before that there is one profile function
// per thread (PyEval_SetProfile). Either tells the beginning and the end of each call with the GIL held; a call becomes
// one record when it ends. What a thread has open is a stack of its own: an end closes the newest call of the same
// code, and what lies above it, so that an end whose beginning nobody saw, or that is missing, disturbs nothing else.
//
// What lies below __torch_dispatch__ is torch at work on behalf of a tensor class, and left out, as upstream does; so
// is what our own functions call, but for the wrappers of decorators, below which the user's function runs.
#include "module/python_frames.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>
#include <new>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "hook/told_events.h"
#include "module/bindings.h"
#include "module/gil.h"
#include "record/record.h"

namespace py = pybind11;

namespace memscope {
namespace {

struct Call {
    const void* what;  // the code object, or the C function: never looked into
    u64 name;
    u64 start_ns;
    CallKind kind;
    bool ours;      // is not written
    bool hides;     // what it calls
    u32 inner = 0;  // calls of the same code among those
};

// What one thread has open. Threads are known to each other, so that the one that ends the trace can write what is open
// in all of them; whoever touches the calls holds the GIL.
struct Thread {
    std::vector<Call> calls;
    u64 trace = 0;  // that the calls belong to
    unsigned tid = memscope_thread();

    Thread();
    ~Thread();
};

std::mutex g_lock;  // of the list: a thread ends without the GIL
std::vector<Thread*> g_threads;

Thread::Thread() {
    const std::lock_guard lock(g_lock);
    g_threads.push_back(this);
}

Thread::~Thread() {
    const std::lock_guard lock(g_lock);
    g_threads.erase(std::remove(g_threads.begin(), g_threads.end(), this), g_threads.end());
}

thread_local Thread t_thread;

// The number of the trace; 0: there is none. A thread begins with it at the next call that it makes.
u64 g_trace = 0;
u64 g_traces = 0;

// Borrowed for the life of the process by the class itself: Module.__call__, once torch is there.
const PyCodeObject* g_module_call = nullptr;

constexpr unsigned kMostBytes = 512;

u64 text(std::string_view words) { return memscope_text(words.data(), words.size()); }

u64 name_of_function(const PyCodeObject* code) {
    const auto describe = [](void* context, void* out) {
        memscope_describe_function(static_cast<const PyCodeObject*>(context), static_cast<memscope_frame_text*>(out));
    };
    return memscope_frame(memscope_key_of_function(code), describe, const_cast<PyCodeObject*>(code));
}

// As Python writes such an object, without its address: the same function has the same name. No code of the user runs.
u64 name_of_builtin(PyObject* callable) {
    std::array<char, kMostBytes> out;
    std::size_t bytes = 0;
    const auto put = [&](std::string_view words) {
        const std::size_t room = std::min(words.size(), out.size() - bytes);
        std::memcpy(out.data() + bytes, words.data(), room);
        bytes += room;
    };
    if (PyCFunction_Check(callable)) {
        const auto* function = reinterpret_cast<const PyCFunctionObject*>(callable);
        const bool is_method = function->m_self != nullptr && !PyModule_Check(function->m_self) &&
                               std::strncmp(Py_TYPE(function->m_self)->tp_name, "pybind11", 8) != 0;  // its closure
        put(is_method ? "<built-in method " : "<built-in function ");
        put(function->m_ml->ml_name);
        if (is_method) {
            put(" of ");
            put(Py_TYPE(function->m_self)->tp_name);
            put(" object");
        }
    } else if (PyType_Check(callable)) {
        put("<class ");
        put(reinterpret_cast<const PyTypeObject*>(callable)->tp_name);
    } else {
        put("<");
        put(Py_TYPE(callable)->tp_name);
        put(" object");
    }
    put(">");
    return text({out.data(), bytes});
}

u64 name_of_module(PyObject* self) {
    std::array<char, kMostBytes> out;
    const std::string_view begin = "nn.Module: ";
    // The last part of what a class calls itself; __name__ could be a property of a metaclass.
    std::string_view name = Py_TYPE(self)->tp_name;
    if (const std::size_t dot = name.rfind('.'); dot != name.npos) name.remove_prefix(dot + 1);
    std::memcpy(out.data(), begin.data(), begin.size());
    const std::size_t bytes = std::min(name.size(), out.size() - begin.size());
    std::memcpy(out.data() + begin.size(), name.data(), bytes);
    return text({out.data(), begin.size() + bytes});
}

PyObject* g_own_directory = nullptr;  // of our package, as it stands in co_filename
PyObject* g_own_wrappers = nullptr;   // the file of those

bool is_ours(const PyCodeObject* code) {
    return PyUnicode_Tailmatch(code->co_filename, g_own_directory, 0, PY_SSIZE_T_MAX, -1) == 1;
}

bool is_dispatch(const PyCodeObject* code) {
    return PyUnicode_CompareWithASCIIString(code->co_name, "__torch_dispatch__") == 0;
}

void open_function(std::vector<Call>& calls, const PyCodeObject* code, u64 start_ns) {
    if (!calls.empty() && calls.back().hides) {
        if (calls.back().what == code) ++calls.back().inner;
        return;
    }
    if (is_ours(code)) {
        const bool wraps = PyUnicode_Compare(code->co_filename, g_own_wrappers) == 0;
        calls.push_back({code, 0, start_ns, CallKind::FUNCTION, true, !wraps});
        return;
    }
    PyObject* module = code == g_module_call ? memscope_first_argument(code) : nullptr;
    const u64 name = module == nullptr ? name_of_function(code) : name_of_module(module);
    const CallKind kind = module == nullptr ? CallKind::FUNCTION : CallKind::MODULE;
    calls.push_back({code, name, start_ns, kind, false, is_dispatch(code)});
}

void open_builtin(std::vector<Call>& calls, PyObject* callable) {
    if (!calls.empty() && calls.back().hides) return;
    calls.push_back({callable, name_of_builtin(callable), memscope_now(), CallKind::BUILTIN, false, false});
}

void write(const Call& call, bool ended, unsigned tid) {
    if (!call.ours) memscope_call(static_cast<unsigned>(call.kind), call.name, call.start_ns, ended ? 1 : 0, tid);
}

void close(std::vector<Call>& calls, const void* what) {
    if (!calls.empty() && calls.back().hides) {
        if (calls.back().what != what) return;
        if (calls.back().inner != 0) {
            --calls.back().inner;
            return;
        }
    }
    const auto found = std::find_if(calls.rbegin(), calls.rend(), [&](const Call& call) { return call.what == what; });
    if (found == calls.rend()) return;
    for (bool done = false; !done; calls.pop_back()) {
        done = calls.back().what == what;  // the ends of those above it were not told
        write(calls.back(), true, 0);
    }
}

// Functions that this thread was in when it was first looked at; their start is not known.
void open_what_runs(std::vector<Call>& calls) {
    std::vector<PyCodeObject*> codes;
    PyFrameObject* frame = PyEval_GetFrame();
    Py_XINCREF(frame);
    while (frame != nullptr) {
        codes.push_back(PyFrame_GetCode(frame));
        PyFrameObject* const back = PyFrame_GetBack(frame);
        Py_DECREF(frame);
        frame = back;
    }
    for (auto code = codes.rbegin(); code != codes.rend(); ++code) {
        open_function(calls, *code, 0);
        Py_DECREF(*code);
    }
}

// The calls of this thread. entering: the code of a call that has just begun, which is not among those that ran before.
std::vector<Call>& calls_of_thread(const PyCodeObject* entering = nullptr) {
    Thread& thread = t_thread;
    if (__builtin_expect(thread.trace != g_trace, 0)) {
        thread.trace = g_trace;
        thread.calls.clear();
        open_what_runs(thread.calls);
        if (!thread.calls.empty() && thread.calls.back().what == entering) thread.calls.pop_back();
    }
    return thread.calls;
}

void find_module_call() {
    g_module_call = nullptr;
    PyObject* const modules = PyImport_GetModuleDict();
    PyObject* const torch = PyDict_GetItemString(modules, "torch.nn.modules.module");
    if (torch == nullptr || !PyModule_Check(torch)) return;
    PyObject* const type = PyDict_GetItemString(PyModule_GetDict(torch), "Module");
    if (type == nullptr || !PyType_Check(type)) return;
    PyObject* const call = PyDict_GetItemString(reinterpret_cast<PyTypeObject*>(type)->tp_dict, "__call__");
    if (call != nullptr && PyFunction_Check(call))
        g_module_call = reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(call));
}

#if PY_VERSION_HEX < 0x030C0000

int on_event(PyObject*, PyFrameObject* frame, int what, PyObject* argument) {
    if (what == PyTrace_CALL || what == PyTrace_RETURN) {
        PyCodeObject* const code = PyFrame_GetCode(frame);
        if (what == PyTrace_CALL) {
            open_function(calls_of_thread(code), code, memscope_now());
        } else {
            close(calls_of_thread(), code);
        }
        Py_DECREF(code);
    } else if (what == PyTrace_C_CALL) {
        open_builtin(calls_of_thread(), argument);
    } else if (what == PyTrace_C_RETURN || what == PyTrace_C_EXCEPTION) {
        close(calls_of_thread(), argument);
    }
    return 0;
}

void for_all_threads(Py_tracefunc function) {
    PyThreadState* const mine = PyThreadState_Get();
    for (PyThreadState* thread = PyInterpreterState_ThreadHead(mine->interp); thread != nullptr;
         thread = PyThreadState_Next(thread)) {
        if (function != nullptr ? thread->c_profilefunc == nullptr : thread->c_profilefunc == on_event)
            _PyEval_SetProfile(thread, function, nullptr);
    }
}

// A function for threading.setprofile: a new thread meets it at its first call, and it puts the real one in its place.
void trace_this_thread() {
    if (g_trace != 0) PyEval_SetProfile(on_event, nullptr);
}

bool start_engine() {
    if (PyThreadState_Get()->c_profilefunc != nullptr) return false;  // cProfile or another: theirs goes on
    for_all_threads(on_event);
    return true;
}

void stop_engine() { for_all_threads(nullptr); }

#else

constexpr const char* kEvents[] = {"PY_START",  "PY_RESUME", "PY_THROW", "PY_RETURN", "PY_YIELD",
                                   "PY_UNWIND", "CALL",      "C_RETURN", "C_RAISE"};
int g_tool = -1;

PyObject* on_start(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
    if (count > 0 && PyCode_Check(arguments[0])) {
        const auto* const code = reinterpret_cast<const PyCodeObject*>(arguments[0]);
        open_function(calls_of_thread(code), code, memscope_now());
    }
    Py_RETURN_NONE;
}

PyObject* on_end(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
    if (count > 0) close(calls_of_thread(), arguments[0]);
    Py_RETURN_NONE;
}

bool is_python(PyObject* callable) {
    return PyFunction_Check(callable) ||
           (PyMethod_Check(callable) && PyFunction_Check(PyMethod_GET_FUNCTION(callable)));
}

PyObject* on_call(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
    if (count > 2 && !is_python(arguments[2])) open_builtin(calls_of_thread(), arguments[2]);
    Py_RETURN_NONE;
}

PyObject* on_c_end(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
    if (count > 2) close(calls_of_thread(), arguments[2]);
    Py_RETURN_NONE;
}

using Fast = PyObject* (*)(PyObject*, PyObject* const*, Py_ssize_t);
PyMethodDef define(const char* name, Fast function) {
    return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function)), METH_FASTCALL, nullptr};
}
PyMethodDef g_callbacks[] = {define("on_start", on_start), define("on_end", on_end), define("on_call", on_call),
                             define("on_c_end", on_c_end)};
PyMethodDef& callback_of(std::string_view event) {
    if (event == "PY_START" || event == "PY_RESUME" || event == "PY_THROW") return g_callbacks[0];
    if (event == "CALL") return g_callbacks[2];
    return event.substr(0, 2) == "C_" ? g_callbacks[3] : g_callbacks[1];
}

void trace_this_thread() {}

// A tool's number: 0 to 5, of which the debugger's, the coverage's and the profiler's are taken by convention.
bool start_engine() {
    const py::object monitoring = py::module_::import("sys").attr("monitoring");
    for (const int tool : {2, 4, 3}) {
        if (!monitoring.attr("get_tool")(tool).is_none()) continue;
        monitoring.attr("use_tool_id")(tool, "msmemscope");
        g_tool = tool;
        break;
    }
    if (g_tool < 0) return false;
    const py::object events = monitoring.attr("events");
    int all = 0;
    for (const char* name : kEvents) {
        const py::object event = events.attr(name);
        monitoring.attr("register_callback")(
            g_tool, event, py::reinterpret_steal<py::object>(PyCFunction_New(&callback_of(name), nullptr)));
        if (std::string_view(name).substr(0, 2) != "C_") all |= event.cast<int>();  // told with CALL
    }
    monitoring.attr("set_events")(g_tool, all);
    return true;
}

void stop_engine() {
    const py::object monitoring = py::module_::import("sys").attr("monitoring");
    monitoring.attr("set_events")(g_tool, 0);
    monitoring.attr("free_tool_id")(g_tool);
    g_tool = -1;
}

#endif

bool start_calls(const py::str& own_directory, const py::str& own_wrappers) {
#ifdef Py_GIL_DISABLED
    return false;
#else
    if (g_trace != 0) return true;
    g_own_directory = own_directory.inc_ref().ptr();  // for ever: the trace of a thread may end later
    g_own_wrappers = own_wrappers.inc_ref().ptr();
    find_module_call();
    g_trace = ++g_traces;
    calls_of_thread();
    if (start_engine()) return true;
    g_trace = 0;
    return false;
#endif
}

void stop_calls() {
    if (g_trace == 0) return;
    stop_engine();
    std::vector<std::pair<unsigned, std::vector<Call>>> open;  // by the thread's number
    {
        const std::lock_guard lock(g_lock);
        for (Thread* thread : g_threads)
            if (thread->trace == g_trace) open.emplace_back(thread->tid, std::exchange(thread->calls, {}));
    }
    g_trace = 0;
    // A full ring may be waited for, and no thread that ends is to wait with us.
    for (auto& [tid, calls] : open)
        for (; !calls.empty(); calls.pop_back()) write(calls.back(), false, tid);
}

// In a forked child there is one thread. It goes on with the trace, in a ring of its own.
void calls_after_fork() {
    new (&g_lock) std::mutex;  // another thread may have held it
    g_threads.assign(1, &t_thread);
    t_thread.tid = memscope_thread();
    t_thread.calls.clear();
    if (g_trace != 0) open_what_runs(t_thread.calls);
}

u64 define_text(const py::str& words) {
    std::array<char, kMaxTextBytes> out;
    const unsigned bytes = memscope_text_of(words.ptr(), out.data(), out.size());
    return memscope_text(out.data(), bytes);
}

void snapshot(const py::str& name, unsigned device_type, int device, unsigned pool, long long allocated,
              long long reserved, long long max_allocated, long long max_reserved, long long free, long long total) {
    std::array<char, kMaxTextBytes> out;
    const unsigned bytes = memscope_text_of(name.ptr(), out.data(), out.size());
    const memscope_snapshot_figures figures{device_type,   device,       pool, allocated, reserved,
                                            max_allocated, max_reserved, free, total};
    memscope_snapshot(out.data(), bytes, &figures);
}

// (is a block, address, size, used, total, attr, aux) of each.
using Piece = std::tuple<bool, unsigned long long, long long, long long, long long, unsigned long long, unsigned>;

void snapshot_pieces(const py::str& name, unsigned device_type, int device, unsigned pool,
                     const std::vector<Piece>& told) {
    std::array<char, kMaxTextBytes> out;
    const unsigned bytes = memscope_text_of(name.ptr(), out.data(), out.size());
    const memscope_snapshot_figures figures{device_type, device, pool, 0, 0, 0, 0, 0, 0};
    std::vector<memscope_snapshot_piece> pieces;
    pieces.reserve(told.size());
    for (const auto& [is_block, ptr, size, used, total, attr, aux] : told)
        pieces.push_back({is_block ? 1u : 0u, aux, ptr, attr, size, used, total});
    const GilReleased released;  // a full ring may be waited for
    memscope_snapshot_pieces(out.data(), bytes, &figures, pieces.data(), static_cast<unsigned>(pieces.size()));
}

}  // namespace

void bind_calls(py::module_& module) {
    module.def("start_calls", &start_calls, py::arg("own_directory"), py::arg("own_wrappers"),
               "Begins the trace of calls. False: another profiler is at work.");
    module.def("stop_calls", &stop_calls, "Ends it; calls that go on are written as such.");
    module.def("calls_after_fork", &calls_after_fork);
    module.def(
        "trace_this_thread", [](const py::args&) { trace_this_thread(); },
        "For threading.setprofile: puts the trace in its own place.");
    module.def("now", &memscope_now, "CLOCK_MONOTONIC in ns.");
    module.def(
        "range_begun",
        [](const py::str& name) {
            std::array<char, kMaxTextBytes> out;
            const unsigned bytes = memscope_text_of(name.ptr(), out.data(), out.size());
            return memscope_range_begun(out.data(), bytes);
        },
        py::arg("name"), "A range of this thread begins: its start in ns, for range(). Blocks have it until then.");
    module.def(
        "range",
        [](const py::str& name, unsigned long long start_ns) {
            memscope_call(static_cast<unsigned>(CallKind::RANGE), define_text(name), start_ns, 1, 0);
        },
        py::arg("name"), py::arg("start_ns"), "A range of the program that ends now.");
    module.def(
        "mark", [](const py::str& name) { memscope_mark(define_text(name)); }, py::arg("name"),
        "A moment whose live blocks are told apart from those of others (folds/moments.py).");
    module.def("snapshot", &snapshot, py::arg("name"), py::kw_only(), py::arg("device_type"), py::arg("device"),
               py::arg("pool"), py::arg("allocated"), py::arg("reserved"), py::arg("max_allocated"),
               py::arg("max_reserved"), py::arg("free"), py::arg("total"),
               "The counters of an allocator, in bytes; total 0: not known.");
    module.def("snapshot_pieces", &snapshot_pieces, py::arg("name"), py::kw_only(), py::arg("device_type"),
               py::arg("device"), py::arg("pool"), py::arg("pieces"),
               "Segments and blocks of the allocator: (is a block, address, size, used, total, attr, aux) of each.");
}

}  // namespace memscope
