// Who refers to what among Python's objects: for the search of a leaked tensor's holders (collect/rank/holders.py).
//
// gc.get_referrers() compares every reference with every target, knows one level at a time and cannot be stopped. This
// asks each object for its references once, whatever the number of targets, and ends at its deadline. No code of the
// program runs in it: an object's tp_traverse may not call Python, and the GIL is held throughout.
#include <Python.h>
#include <time.h>

#include <bitset>
#include <new>
#include <unordered_set>

#include "module/bindings.h"
#include "module/python_locals.h"

namespace py = pybind11;

namespace memscope {
namespace {

constexpr Py_ssize_t kPerClock = 1024;  // objects between two looks at the clock

double processor_seconds() noexcept {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// A set of addresses that is asked a million times and nearly always says no.
class Addresses {
public:
    explicit Addresses(const py::list& objects) {
        for (const auto& one : objects) add(one.ptr());
    }
    void add(const PyObject* object) {
        m_maybe.set(place(object));
        m_all.insert(object);
    }
    bool has(const PyObject* object) const { return m_maybe.test(place(object)) && m_all.count(object) != 0; }

private:
    static constexpr std::size_t kPlaces = 1 << 16;
    static std::size_t place(const PyObject* object) noexcept {
        const auto address = reinterpret_cast<std::uintptr_t>(object);
        return (address >> 4 ^ address >> 20) % kPlaces;
    }
    std::bitset<kPlaces> m_maybe;
    std::unordered_set<const PyObject*> m_all;
};

// What a numpy array refers to whose memory is another's: the collector does not track arrays.
class ArrayBases {
public:
    explicit ArrayBases(const py::object& array_class) : m_class(nullptr), m_base(nullptr) {
        if (!PyType_Check(array_class.ptr())) return;
        auto* type = reinterpret_cast<PyTypeObject*>(array_class.ptr());
        const py::object field = array_class.attr("__dict__").attr("get")("base");
        if (Py_TYPE(field.ptr()) != &PyGetSetDescr_Type) return;
        m_class = type;
        m_base = reinterpret_cast<PyGetSetDescrObject*>(field.ptr())->d_getset;  // of a class in C: it lives on
    }
    // Borrowed, as the array itself holds it; null of what is no array, and of one with memory of its own.
    PyObject* of(PyObject* object) const noexcept {
        PyObject* end = nullptr;
        for (int depth = 0; m_class != nullptr && Py_TYPE(object) == m_class && depth < kDeepest; ++depth) {
            PyObject* base = m_base->get(object, m_base->closure);
            if (base == nullptr) {
                PyErr_Clear();
                break;
            }
            Py_DECREF(base);
            if (base == Py_None) break;
            end = object = base;
        }
        return end;
    }

private:
    static constexpr int kDeepest = 8;  // views of views
    PyTypeObject* m_class;
    PyGetSetDef* m_base;
};

struct Search {
    Addresses targets;
    ArrayBases bases;
    std::unordered_set<PyObject*> found = {};  // by the object at hand
    bool has_memory = true;
};

// Called by C code of any module, through which no exception may go.
int note(PyObject* object, void* context) noexcept {
    auto& search = *static_cast<Search*>(context);
    try {
        if (search.targets.has(object)) search.found.insert(object);
        PyObject* base = search.bases.of(object);
        if (base != nullptr && search.targets.has(base)) search.found.insert(base);
    } catch (const std::bad_alloc&) {
        search.has_memory = false;
        return 1;
    }
    return 0;
}

py::object borrowed(PyObject* object) { return py::reinterpret_borrow<py::object>(object); }

// Pairs (referrer, target) of the targets, of their referrers, and so on, and whether all of `objects`, which the
// collector tracks, were asked. Of `ends`, of classes and of modules it is not asked who refers to them.
//
// One way through the objects climbs every chain whose members come in its order, however long, and leaves the others
// to the next call, which has these referrers among its targets and goes the other way. Nearly always the holder is
// older than what it holds. seconds: of processor time. array_class: numpy.ndarray; who refers to an array that shares
// a target's memory refers to the target. None: there are no arrays.
py::tuple references(const py::list& objects, const py::list& targets, const py::list& ends, std::size_t most,
                     double seconds, bool backwards, const py::object& array_class) {
    const double deadline = processor_seconds() + seconds;
    Search search{Addresses(targets), ArrayBases(array_class)};
    const Addresses last(ends);
    py::list pairs;
    const Py_ssize_t count = PyList_GET_SIZE(objects.ptr());
    for (Py_ssize_t i = 0; i < count; ++i) {
        if (i % kPerClock == 0 && processor_seconds() > deadline) return py::make_tuple(pairs, false);
        PyObject* object = PyList_GET_ITEM(objects.ptr(), backwards ? count - 1 - i : i);
        const traverseproc traverse = Py_TYPE(object)->tp_traverse;
        if (traverse == nullptr || PyObject_IS_GC(object) == 0 || object == objects.ptr()) continue;
        traverse(object, &note, &search);
        if (!search.has_memory) throw std::bad_alloc();
        if (search.found.empty()) continue;
        for (PyObject* target : search.found) {
            if (pairs.size() >= most) return py::make_tuple(pairs, false);
            pairs.append(py::make_tuple(borrowed(object), borrowed(target)));
        }
        search.found.clear();
        if (!PyType_Check(object) && !PyModule_Check(object) && !last.has(object)) search.targets.add(object);
    }
    return py::make_tuple(pairs, true);
}

// Those of `objects` whose very class is one of `classes`.
py::list instances(const py::list& objects, const py::list& classes) {
    const Addresses wanted(classes);
    py::list found;
    const Py_ssize_t count = PyList_GET_SIZE(objects.ptr());
    for (Py_ssize_t i = 0; i < count; ++i) {
        PyObject* object = PyList_GET_ITEM(objects.ptr(), i);
        if (wanted.has(reinterpret_cast<PyObject*>(Py_TYPE(object)))) found.append(borrowed(object));
    }
    return found;
}

py::list locals_of(const py::object& frame) {
    PyObject* found = memscope_locals_of(frame.ptr());
    if (found == nullptr) throw py::error_already_set();
    return py::reinterpret_steal<py::list>(found);
}

}  // namespace

void bind_references(py::module_& module) {
    module.def("references", &references, py::arg("objects"), py::arg("targets"), py::arg("ends"), py::arg("most"),
               py::arg("seconds"), py::arg("backwards"), py::arg("array_class"),
               "Pairs (referrer, target), and whether all objects were looked at in that processor time.");
    module.def("instances", &instances, py::arg("objects"), py::arg("classes"),
               "Those whose class is one of these and none below it.");
    module.def("locals_of", &locals_of, py::arg("frame"), "Pairs (name, object) of a frame's local variables.");
}

}  // namespace memscope
