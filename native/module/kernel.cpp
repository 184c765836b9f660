// The module _kernel: analysis kernels over columnar batches.
//
// Columns come in as anything with a buffer (bytes, numpy arrays, Arrow buffers) and are not copied; tables go out as
// dicts of numpy arrays that own the kernel's vectors. While a kernel works the GIL is released, so a tracker has a
// lock of its own: another thread may ask for its tables at any time, and sees whole batches only.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernel/block_lives.h"
#include "kernel/block_tracker.h"
#include "module/kernel.h"

namespace py = pybind11;

namespace memscope::kernel {
namespace {

// The bytes of a Python object, held for as long as this lives: a value for each row, or one that all have.
class Buffer {
public:
    Buffer(const py::dict& columns, const char* name, std::size_t width, std::size_t rows) {
        const py::str key(name);
        if (!columns.contains(key)) throw py::value_error("column '" + std::string(name) + "' is missing");
        const py::object value = columns[key];
        if (PyObject_GetBuffer(value.ptr(), &view_, PyBUF_SIMPLE) != 0) {
            PyErr_Clear();
            throw py::value_error("column '" + std::string(name) + "' is not a contiguous buffer");
        }
        held_ = true;
        const auto length = static_cast<std::size_t>(view_.len);
        if (length % width != 0 || (length / width != rows && length != width)) {
            PyBuffer_Release(&view_);
            held_ = false;
            throw py::value_error("column '" + std::string(name) + "' has " + std::to_string(length) + " bytes, not " +
                                  std::to_string(rows) + " values of " + std::to_string(width));
        }
    }
    ~Buffer() {
        if (held_) PyBuffer_Release(&view_);
    }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;

    const void* data() const noexcept { return view_.buf; }
    std::size_t size() const noexcept { return static_cast<std::size_t>(view_.len); }

private:
    Py_buffer view_{};
    bool held_ = false;
};

template <typename T>
py::object to_python(std::vector<T>&& column) {
    auto owned = std::make_unique<std::vector<T>>(std::move(column));
    const std::vector<T>& values = *owned;
    const py::capsule owner(owned.release(), [](void* pointer) { delete static_cast<std::vector<T>*>(pointer); });
    const auto rows = static_cast<py::ssize_t>(values.size());
    if constexpr (std::is_same_v<T, Bool>)
        return py::array(py::dtype::of<bool>(), {rows}, {1}, values.data(), owner);
    else
        return py::array_t<T>(rows, values.data(), owner);
}

py::object to_python(std::vector<std::string>&& column) { return py::cast(column); }

#define MEMSCOPE_TABLE_TO_DICT(Table, COLUMNS) \
    py::dict to_python(Table&& table) {        \
        py::dict columns;                      \
        COLUMNS(MEMSCOPE_COLUMN_TO_PYTHON)     \
        return columns;                        \
    }
#define MEMSCOPE_COLUMN_TO_PYTHON(type, name) columns[#name] = to_python(std::move(table.name));
MEMSCOPE_TABLE_TO_DICT(SiteTable, MEMSCOPE_SITE_COLUMNS)
MEMSCOPE_TABLE_TO_DICT(StepTable, MEMSCOPE_STEP_COLUMNS)
MEMSCOPE_TABLE_TO_DICT(LiveTable, MEMSCOPE_LIVE_COLUMNS)
MEMSCOPE_TABLE_TO_DICT(AnomalyTable, MEMSCOPE_ANOMALY_COLUMNS)
MEMSCOPE_TABLE_TO_DICT(ProcessTable, MEMSCOPE_PROCESS_COLUMNS)
MEMSCOPE_TABLE_TO_DICT(SumTable, MEMSCOPE_SUM_COLUMNS)
MEMSCOPE_TABLE_TO_DICT(AgeTable, MEMSCOPE_AGE_COLUMNS)
MEMSCOPE_TABLE_TO_DICT(BeginTable, MEMSCOPE_BEGIN_COLUMNS)
MEMSCOPE_TABLE_TO_DICT(EnrichTable, MEMSCOPE_ENRICH_COLUMNS)
MEMSCOPE_TABLE_TO_DICT(LifeTable, MEMSCOPE_LIFE_COLUMNS)
MEMSCOPE_TABLE_TO_DICT(SegmentTable, MEMSCOPE_SEGMENT_COLUMNS)
#undef MEMSCOPE_COLUMN_TO_PYTHON
#undef MEMSCOPE_TABLE_TO_DICT

// The columns of a batch, and the Python objects that hold them.
struct Batch {
    std::vector<std::unique_ptr<Buffer>> buffers;
    EventColumns events;

    Batch(std::size_t n, const py::dict& columns) {
        events.n = n;
#define X(type, name) events.name = column<type>(columns, #name);
        MEMSCOPE_TRACKER_COLUMNS(X)
#undef X
#define X(type, name) \
    if (columns.contains(#name)) events.name = column<type>(columns, #name);
        MEMSCOPE_TRACKER_MORE_COLUMNS(X)
#undef X
    }

    template <typename T>
    Column<T> column(const py::dict& columns, const char* name) {
        buffers.push_back(std::make_unique<Buffer>(columns, name, sizeof(T), events.n));
        // A single value is that of every row.
        return Column<T>(buffers.back()->data(), buffers.back()->size() == sizeof(T) ? 0 : sizeof(T));
    }
};

py::value_error unknown(u32 process) {
    return py::value_error("process " + std::to_string(process) + " was not added");
}

class SharedTracker {
public:
    SharedTracker(std::size_t max_sites, std::size_t max_runs) : tracker_(max_sites, max_runs) {}

    void add_process(u32 process, i64 parent) {
        locked([&] { tracker_.add_process(process, parent); });
    }

    py::object feed(u32 process, std::size_t n, const py::dict& columns, bool enrich) {
        const Batch batch(n, columns);
        EnrichTable enriched;
        const bool known = locked([&] {
            if (!tracker_.has_process(process)) return false;
            if (enrich) {
#define X(type, name) enriched.name.reserve(n);
                MEMSCOPE_ENRICH_COLUMNS(X)
#undef X
            }
            tracker_.feed(process, batch.events, enrich ? &enriched : nullptr);
            return true;
        });
        if (!known) throw unknown(process);
        if (!enrich) return py::none();
        return to_python(std::move(enriched));
    }

    // Of the first process.
    u32 step() {
        return locked([&] { return tracker_.step(); });
    }

    u32 sum_stride() {
        return locked([&] { return tracker_.sum_stride(); });
    }

    template <typename Table>
    py::dict table(Table (BlockTracker::*make)() const) {
        return to_python(locked([&] { return (tracker_.*make)(); }));
    }

private:
    // The GIL goes first: whoever holds the lock needs no GIL, so nobody waits for the other in a circle.
    template <typename Work>
    std::invoke_result_t<Work> locked(Work&& work) {
        const py::gil_scoped_release released;
        const std::lock_guard<std::mutex> guard(mutex_);
        return work();
    }

    BlockTracker tracker_;
    std::mutex mutex_;
};

// Used by one thread: nobody else asks while a run is being gone through.
class Lives {
public:
    void add_process(u32 process, i64 parent) { lives_.add_process(process, parent); }

    py::dict feed(u32 process, std::size_t n, const py::dict& columns) {
        if (!lives_.has_process(process)) throw unknown(process);
        Batch batch(n, columns);
        LifeColumns more;
#define X(type, name) more.name = batch.column<type>(columns, #name);
        MEMSCOPE_LIFE_INPUT_COLUMNS(X)
#undef X
        LifeTable ended;
        {
            const py::gil_scoped_release released;
            ended = lives_.feed(process, batch.events, more);
        }
        return to_python(std::move(ended));
    }

    py::dict alive(u32 process) const { return to_python(lives_.alive(process)); }
    py::dict segments() const { return to_python(lives_.segments()); }

private:
    BlockLives lives_;
};

}  // namespace
}  // namespace memscope::kernel

PYBIND11_MODULE(_kernel, module) {
    using memscope::kernel::BlockTracker;
    using memscope::kernel::Lives;
    using memscope::kernel::SharedTracker;
    module.doc() = "Analysis kernels over columnar batches.";

    py::class_<SharedTracker>(module, "BlockTracker",
                              "Pairs MALLOC and FREE events of many processes; see native/kernel/block_tracker.h.")
        .def(py::init<std::size_t, std::size_t>(), py::arg("max_sites") = 1'000'000, py::arg("max_runs") = 0)
        .def("add_process", &SharedTracker::add_process, py::arg("process"), py::arg("parent") = -1)
        .def("feed", &SharedTracker::feed, py::arg("process"), py::arg("n"), py::arg("cols"), py::arg("enrich") = false)
        .def_property_readonly("step", &SharedTracker::step)
        .def_property_readonly("sum_stride", &SharedTracker::sum_stride)
        .def("sums", [](SharedTracker& self) { return self.table(&BlockTracker::sums); })
        .def("ages", [](SharedTracker& self) { return self.table(&BlockTracker::ages); })
        .def("begins", [](SharedTracker& self) { return self.table(&BlockTracker::begins); })
        .def("sites", [](SharedTracker& self) { return self.table(&BlockTracker::sites); })
        .def("steps", [](SharedTracker& self) { return self.table(&BlockTracker::steps); })
        .def("live", [](SharedTracker& self) { return self.table(&BlockTracker::live); })
        .def("held", [](SharedTracker& self) { return self.table(&BlockTracker::held); })
        .def("anomalies", [](SharedTracker& self) { return self.table(&BlockTracker::anomalies); })
        .def("processes", [](SharedTracker& self) { return self.table(&BlockTracker::processes); });

    py::class_<Lives>(module, "BlockLives",
                      "Follows blocks to their ends, with their driver segments; see native/kernel/block_lives.h.")
        .def(py::init<>())
        .def("add_process", &Lives::add_process, py::arg("process"), py::arg("parent") = -1)
        .def("feed", &Lives::feed, py::arg("process"), py::arg("n"), py::arg("cols"))
        .def("alive", &Lives::alive, py::arg("process"))
        .def("segments", &Lives::segments);

    memscope::bind_upstream_rows(module);
}
