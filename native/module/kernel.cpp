// The module _kernel: analysis kernels over columnar batches.
//
// Columns come in as anything with a buffer (bytes, numpy arrays, Arrow buffers) and are not copied; tables go out as
// dicts of numpy arrays that own the kernel's vectors. While a kernel works the GIL is released, so a tracker has a
// lock of its own: another thread may ask for its tables at any time, and sees whole batches only.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cxxabi.h>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernel/block_tracker.h"
#include "module/columns.h"
#include "module/gil.h"
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
    return to_array(std::move(column));
}

// numpy shows their bytes as its own truth values.
py::object to_python(std::vector<Bool>&& column) {
    std::vector<u8> bytes(column.size());
    std::memcpy(bytes.data(), column.data(), column.size());
    return to_array(std::move(bytes)).attr("view")(py::dtype::of<bool>());
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
MEMSCOPE_TABLE_TO_DICT(SumTable, MEMSCOPE_SUM_COLUMNS)
MEMSCOPE_TABLE_TO_DICT(AgeTable, MEMSCOPE_AGE_COLUMNS)
MEMSCOPE_TABLE_TO_DICT(BeginTable, MEMSCOPE_BEGIN_COLUMNS)
MEMSCOPE_TABLE_TO_DICT(EnrichTable, MEMSCOPE_ENRICH_COLUMNS)
MEMSCOPE_TABLE_TO_DICT(LifeTable, MEMSCOPE_LIFE_COLUMNS)
MEMSCOPE_TABLE_TO_DICT(SegmentTable, MEMSCOPE_SEGMENT_COLUMNS)
MEMSCOPE_TABLE_TO_DICT(OwnerTable, MEMSCOPE_OWNER_COLUMNS)
MEMSCOPE_TABLE_TO_DICT(OwnerSumTable, MEMSCOPE_OWNER_SUM_COLUMNS)
MEMSCOPE_TABLE_TO_DICT(OwnerPeakTable, MEMSCOPE_OWNER_PEAK_COLUMNS)
MEMSCOPE_TABLE_TO_DICT(OwnedSiteSumTable, MEMSCOPE_OWNED_SITE_SUM_COLUMNS)
MEMSCOPE_TABLE_TO_DICT(OwnedSitePeakTable, MEMSCOPE_OWNED_SITE_PEAK_COLUMNS)
MEMSCOPE_TABLE_TO_DICT(OwnerChangeTable, MEMSCOPE_OWNER_CHANGE_COLUMNS)
MEMSCOPE_TABLE_TO_DICT(PoolPeakTable, MEMSCOPE_POOL_PEAK_COLUMNS)
MEMSCOPE_TABLE_TO_DICT(SitePeakTable, MEMSCOPE_SITE_PEAK_COLUMNS)
MEMSCOPE_TABLE_TO_DICT(InefficiencyTable, MEMSCOPE_INEFFICIENCY_COLUMNS)
MEMSCOPE_TABLE_TO_DICT(FloorTable, MEMSCOPE_FLOOR_COLUMNS)
MEMSCOPE_TABLE_TO_DICT(PhaseTable, MEMSCOPE_PHASE_COLUMNS)
MEMSCOPE_TABLE_TO_DICT(PhaseOwnerTable, MEMSCOPE_PHASE_OWNER_COLUMNS)
#undef MEMSCOPE_COLUMN_TO_PYTHON
#undef MEMSCOPE_TABLE_TO_DICT

py::dict to_python(const RingFacts& facts) {
    py::dict numbers;
#define X(type, name) numbers[#name] = facts.name;
    MEMSCOPE_RING_FACTS(X)
#undef X
    return numbers;
}

// The columns of a batch, and the Python objects that hold them.
struct Batch {
    std::vector<std::unique_ptr<Buffer>> buffers;
    EventColumns events;

    Batch(std::size_t n, const py::dict& columns) {
        events.n = n;
#define X(type, name) events.name = column<type>(columns, #name);
        MEMSCOPE_FOLD_COLUMNS(X)
#undef X
#define X(type, name) \
    if (columns.contains(#name)) events.name = column<type>(columns, #name);
        MEMSCOPE_FOLD_MORE_COLUMNS(X)
#undef X
    }

    template <typename T>
    Column<T> column(const py::dict& columns, const char* name) {
        buffers.push_back(std::make_unique<Buffer>(columns, name, sizeof(T), events.n));
        // A single value is that of every row.
        return Column<T>(buffers.back()->data(), buffers.back()->size() == sizeof(T) ? 0 : sizeof(T));
    }
};

class SharedTracker {
public:
    SharedTracker(std::size_t max_sites, std::size_t max_runs, bool lives) : tracker_(max_sites, max_runs, lives) {}

    void set_parent(bool has_parent) {
        locked_change([&] { tracker_.set_parent(has_parent); });
    }

    py::object feed(std::size_t n, const py::dict& columns, bool enrich) {
        const Batch batch(n, columns);
        EnrichTable enriched;
        if (enrich) {
#define X(type, name) enriched.name.reserve(n);
            MEMSCOPE_ENRICH_COLUMNS(X)
#undef X
        }
        const auto work = [&] { tracker_.feed(batch.events, enrich ? &enriched : nullptr); };
        if (n > kShort || !mutex_.try_lock()) {
            locked_change(work);
        } else {
            const std::lock_guard<std::mutex> guard(mutex_, std::adopt_lock);
            changed(work);
        }
        if (!enrich) return py::none();
        return to_python(std::move(enriched));
    }

    void shrink() {
        locked_change([&] { tracker_.shrink(); });
    }

    void forget_lives() {
        locked_change([&] { tracker_.forget_lives(); });
    }

    // What a member of the tracker hands out.
    template <typename Member>
    auto ask(Member member) {
        return locked([&] {
            const auto work = [&] { return (tracker_.*member)(); };
            if constexpr (std::is_invocable_v<Member, const BlockTracker&>) {
                refuse_if_torn();
                return work();
            } else {
                return changed(work);
            }
        });
    }

    // Of the thread that feeds, which asks behind each batch.
    std::size_t ended_lives() const noexcept { return tracker_.ended_lives(); }

private:
    // Events that take less time than it takes to get the GIL back: among busy threads that is 5 ms each time, and a
    // fold that is fed with many short batches falls behind.
    static constexpr std::size_t kShort = 4096;

    // The GIL goes first: whoever holds the lock needs no GIL, so nobody waits for the other in a circle.
    template <typename Work>
    std::invoke_result_t<Work> locked(Work&& work) {
        const GilReleased released;
        const std::lock_guard<std::mutex> guard(mutex_);
        return work();
    }

    template <typename Work>
    void locked_change(Work&& work) {
        locked([&] { changed(work); });
    }

    // Where memory ends in the midst of a change, one table knows a block and the next does not know its site: what is
    // asked then would be read from beyond an end.
    template <typename Work>
    std::invoke_result_t<Work> changed(Work& work) {
        refuse_if_torn();
        try {
            return work();
        } catch (...) {
            is_torn_ = true;
            throw;
        }
    }

    void refuse_if_torn() const {
        if (is_torn_) throw std::runtime_error("memory ended in an earlier call: this tracker has nothing whole");
    }

    BlockTracker tracker_;
    std::mutex mutex_;
    bool is_torn_ = false;
};

py::tuple to_python(InefficiencyTables&& tables) {
    return py::make_tuple(to_python(std::move(tables.rows)), to_python(std::move(tables.floors)));
}

py::tuple to_python(PhaseTables&& tables) {
    return py::make_tuple(to_python(std::move(tables.rows)), to_python(std::move(tables.owners)));
}

std::string demangled(const std::string& symbol) {
    if (symbol.compare(0, 2, "_Z") != 0) return symbol;
    int status = 0;
    const std::unique_ptr<char, void (*)(void*)> text(abi::__cxa_demangle(symbol.c_str(), nullptr, nullptr, &status),
                                                      std::free);
    return status == 0 && text != nullptr ? std::string(text.get()) : symbol;
}

// A function for Python that hands out what a member of the tracker does, as a dict.
template <typename Member>
auto table(Member member) {
    return [member](SharedTracker& self) { return to_python(self.ask(member)); };
}

}  // namespace
}  // namespace memscope::kernel

PYBIND11_MODULE(_kernel, module) {
    using memscope::kernel::BlockTracker;
    using memscope::kernel::FoldLabel;
    using memscope::kernel::label_id;
    using memscope::kernel::SharedTracker;
    using memscope::kernel::table;
    module.doc() = "Analysis kernels over columnar batches.";

    py::class_<SharedTracker>(module, "BlockTracker",
                              "Pairs MALLOC and FREE events of one ring; see native/kernel/block_tracker.h.")
        .def(py::init<std::size_t, std::size_t, bool>(), py::arg("max_sites") = 1'000'000, py::arg("max_runs") = 0,
             py::kw_only(), py::arg("lives") = false)
        .def("set_parent", &SharedTracker::set_parent, py::arg("has_parent"))
        .def("feed", &SharedTracker::feed, py::arg("n"), py::arg("cols"), py::arg("enrich") = false)
        .def("shrink", &SharedTracker::shrink)
        .def_property_readonly("step", [](SharedTracker& self) { return self.ask(&BlockTracker::step); })
        .def_property_readonly("ended_lives", &SharedTracker::ended_lives)
        .def("facts", table(&BlockTracker::facts))
        .def("sites", table(&BlockTracker::sites))
        .def("steps", table(&BlockTracker::steps))
        .def("live", table(&BlockTracker::live))
        .def("held", table(&BlockTracker::held))
        .def("anomalies", table(&BlockTracker::anomalies))
        .def("begins", table(&BlockTracker::begins))
        .def("sums", table(&BlockTracker::sums))
        .def("ages", table(&BlockTracker::ages))
        .def("take_ended_lives", table(&BlockTracker::take_ended_lives))
        .def("forget_lives", &SharedTracker::forget_lives)
        .def("going_lives", table(&BlockTracker::going_lives))
        .def("segments", table(&BlockTracker::segments))
        .def("owners", table(&BlockTracker::owners))
        .def("owner_sums", table(&BlockTracker::owner_sums))
        .def("owner_peaks", table(&BlockTracker::owner_peaks))
        .def("owned_site_sums", table(&BlockTracker::owned_site_sums))
        .def("owned_site_peaks", table(&BlockTracker::owned_site_peaks))
        .def("owner_changes", table(&BlockTracker::owner_changes))
        .def("pool_peaks", table(&BlockTracker::pool_peaks))
        .def("site_peaks", table(&BlockTracker::site_peaks))
        .def("inefficiencies", table(&BlockTracker::inefficiencies))
        .def("phases", table(&BlockTracker::phases));

    py::dict labels;  // that folds give
#define X(name, text) labels[py::int_(label_id(FoldLabel::name))] = text;
    MEMSCOPE_FOLD_LABELS(X)
#undef X
    module.attr("FOLD_LABELS") = labels;

    module.def(
        "text_id", [](std::string_view text) { return memscope::text_id(text.data(), text.size()); }, py::arg("text"),
        "The id of a string, as rings have it.");
    module.def("demangled", &memscope::kernel::demangled, py::arg("symbol"),
               "A C++ symbol as its programmers know it; any other text as it is.");
    memscope::bind_upstream_rows(module);
    memscope::bind_torch_snapshot(module);
    memscope::bind_upstream_reader(module);
    memscope::bind_sequence_diff(module);
    memscope::bind_training_phases(module);
    memscope::bind_inefficient_rows(module);
}
