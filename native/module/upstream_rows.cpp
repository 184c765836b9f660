// Of the module _kernel: upstream's memscope_dump rows (kernel/upstream_rows.h, kernel/row_ledger.h).
//
// Columns come in as contiguous numpy arrays of their own types and are not copied. While rows become lines of CSV and
// are written, the GIL is released; it is taken again only to ask for a text that is not known yet.
#include "kernel/upstream_rows.h"

#include <fcntl.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "kernel/row_ledger.h"
#include "kernel/sqlite_table.h"
#include "module/columns.h"
#include "module/gil.h"
#include "module/kernel.h"

namespace py = pybind11;

namespace memscope {
namespace {

using kernel::Cells;
using kernel::LedgerColumns;
using kernel::RowColumns;
using kernel::RowLedger;
using kernel::TextForm;
using kernel::TextOut;

constexpr std::size_t kCells = 12;
constexpr std::size_t kRowsAtOnce = 256;
constexpr std::size_t kBytesAtOnce = 1u << 17;

template <typename T>
const T* values(const py::dict& columns, const char* name, std::size_t n, std::vector<py::object>& held) {
    const Column<T> column = column_of<T>(columns, name, static_cast<py::ssize_t>(n));
    held.push_back(column);
    return column.data();
}

// The rows of a batch that are meant: their numbers, or null for all.
struct Chosen {
    RowColumns columns;
    const i64* rows = nullptr;
    std::size_t count = 0;
    std::vector<py::object> held;

    Chosen(std::size_t n, const py::dict& all, const py::object& which) {
        columns.n = n;
#define X(type, name) columns.name = values<type>(all, #name, n, held);
        MEMSCOPE_ROW_COLUMNS(X)
#undef X
        count = n;
        if (which.is_none()) return;
        const py::dict one(py::arg("rows") = which);
        count = static_cast<std::size_t>(py::len(which));
        rows = values<i64>(one, "rows", count, held);
        for (std::size_t at = 0; at < count; ++at)
            if (rows[at] < 0 || static_cast<std::size_t>(rows[at]) >= n) throw py::index_error("no such row");
    }
};

// Texts and room for rows, which several Rows share that never work at the same time.
class Texts {
public:
    Texts(py::function source, std::size_t limit)
        : texts_(
              [source = std::move(source)](TextForm form, u64 id) {
                  const GilHeld held;
                  return std::string(py::bytes(source(static_cast<int>(form), id)));
              },
              limit) {}

    // Whoever holds it may wait for the GIL, so nobody waits for it with the GIL.
    std::unique_lock<std::mutex> lock() {
        const GilReleased released;
        return std::unique_lock<std::mutex>(mutex_);
    }

    kernel::Texts texts_;
    TextOut out_;

private:
    std::mutex mutex_;
};

void write_all(int file, std::string_view text) {
    while (!text.empty()) {
        const ssize_t written = ::write(file, text.data(), text.size());
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) {
            const int why = errno;
            const GilHeld held;
            errno = why;
            PyErr_SetFromErrno(PyExc_OSError);
            throw py::error_already_set();
        }
        text.remove_prefix(static_cast<std::size_t>(written));
    }
}

// A cell that mostly says what the row before said.
class Repeated {
public:
    PyObject* get(std::string_view text) {
        if (!known_ || text != text_) {
            text_ = text;
            known_ = py::reinterpret_steal<py::object>(make(text));
        }
        return Py_NewRef(known_.ptr());
    }
    static PyObject* make(std::string_view text) {
        PyObject* made = PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace");
        if (made == nullptr) throw py::error_already_set();
        return made;
    }

private:
    std::string text_;
    py::object known_;
};

PyObject* number(i64 value) {
    PyObject* made = PyLong_FromLongLong(value);
    if (made == nullptr) throw py::error_already_set();
    return made;
}

class Rows {
public:
    Rows(std::shared_ptr<Texts> texts, i64 pid, bool json, bool owners, bool python_stacks)
        : texts_(std::move(texts)), rows_(texts_->texts_, {json, owners, python_stacks, pid}), pid_(pid) {}

    u64 write_csv(int file, std::size_t n, const py::dict& columns, const std::string& home, const py::object& which) {
        const Chosen chosen(n, columns, which);
        const auto guard = texts_->lock();
        const GilReleased released;
        TextOut& out = texts_->out_;
        out.clear();
        u64 written = 0;
        for (std::size_t at = 0; at < chosen.count; at += kRowsAtOnce) {
            const std::size_t count = std::min(kRowsAtOnce, chosen.count - at);
            if (chosen.rows != nullptr)
                rows_.csv(chosen.columns, chosen.rows + at, count, home, out);
            else
                rows_.csv(chosen.columns, at, count, home, out);
            if (out.size() >= kBytesAtOnce || at + count == chosen.count) {
                write_all(file, out.view());
                written += out.size();
                out.clear();
            }
        }
        return written;
    }

    // The same into a table of a database; the rows are those of one transaction.
    void insert(kernel::SqliteTable& table, std::size_t n, const py::dict& columns, const std::string& home,
                const py::object& which) {
        const Chosen chosen(n, columns, which);
        const auto guard = texts_->lock();
        const GilReleased released;
        table.begin();
        for (std::size_t at = 0; at < chosen.count; ++at)
            insert_row(table, chosen.columns, chosen.rows == nullptr ? at : static_cast<std::size_t>(chosen.rows[at]),
                       home);
        table.commit();
    }

    py::list tuples(std::size_t n, const py::dict& columns, const std::string& home, const py::object& which,
                    std::size_t rows_per_tuple) {
        const Chosen chosen(n, columns, which);
        const auto guard = texts_->lock();
        const py::object pid = py::int_(pid_);
        py::list all;
        for (std::size_t at = 0; at < chosen.count; at += rows_per_tuple) {
            const std::size_t count = std::min(rows_per_tuple, chosen.count - at);
            py::tuple cells(count * kCells);
            for (std::size_t k = 0; k < count; ++k) {
                const std::size_t row = chosen.rows == nullptr ? at + k : static_cast<std::size_t>(chosen.rows[at + k]);
                fill(cells, k * kCells, chosen.columns, row, home, pid);
            }
            all.append(std::move(cells));
        }
        return all;
    }

private:
    void insert_row(kernel::SqliteTable& table, const RowColumns& columns, std::size_t row, const std::string& home) {
        TextOut& out = texts_->out_;
        out.clear();
        const Cells made = rows_.cells(columns, row, home, out);
        const std::size_t attr = out.size();
        if (made.has_ptr) {
            out.room();
            out.address(columns.ptr[row]);
        }
        const std::string_view texts = out.view();
        table.number(columns.id[row]);
        table.text(made.event);
        table.text(made.type);
        table.text(made.name);
        table.number(columns.ts[row]);
        table.number(pid_);
        if (columns.tid[row] != 0)
            table.number(columns.tid[row]);
        else
            table.text("N/A");
        table.text(made.device);
        table.text(made.has_ptr ? texts.substr(attr) : std::string_view("N/A"));
        table.text(texts.substr(0, attr));
        table.text(made.python_stack);
        table.text(made.c_stack);
        table.add();
    }

    void fill(const py::tuple& cells, std::size_t first, const RowColumns& columns, std::size_t row,
              const std::string& home, const py::object& pid) {
        TextOut& out = texts_->out_;
        out.clear();
        const Cells made = rows_.cells(columns, row, home, out);
        std::size_t at = first;
        const auto put = [&](PyObject* cell) { PyTuple_SET_ITEM(cells.ptr(), static_cast<Py_ssize_t>(at++), cell); };
        put(number(columns.id[row]));
        put(event_.get(made.event));
        put(type_.get(made.type));
        put(name_.get(made.name));
        put(number(columns.ts[row]));
        put(Py_NewRef(pid.ptr()));
        put(columns.tid[row] != 0 ? number(columns.tid[row]) : Repeated::make("N/A"));
        put(device_.get(made.device));
        PyObject* attr = Repeated::make(out.view());
        if (made.has_ptr) {
            out.clear();
            out.room();
            out.address(columns.ptr[row]);
            put(Repeated::make(out.view()));
        } else {
            put(no_ptr_.get("N/A"));
        }
        put(attr);
        put(python_stack_.get(made.python_stack));
        put(c_stack_.get(made.c_stack));
    }

    std::shared_ptr<Texts> texts_;
    kernel::UpstreamRows rows_;
    const i64 pid_;
    Repeated event_, type_, name_, device_, no_ptr_, python_stack_, c_stack_;
};

LedgerColumns ledger_columns(std::size_t n, const py::dict& columns, std::vector<py::object>& held) {
    LedgerColumns events;
    events.n = n;
#define X(type, name) events.name = values<type>(columns, #name, n, held);
    MEMSCOPE_LEDGER_COLUMNS(X)
#undef X
    return events;
}

template <typename T>
py::object owned(std::vector<T>&& column) {
    auto kept = std::make_unique<std::vector<T>>(std::move(column));
    const std::vector<T>& numbers = *kept;
    const py::capsule owner(kept.release(), [](void* pointer) { delete static_cast<std::vector<T>*>(pointer); });
    return py::array_t<T>(static_cast<py::ssize_t>(numbers.size()), numbers.data(), owner);
}

py::dict settle(RowLedger& ledger, std::size_t n, const py::dict& columns, const py::array& home) {
    std::vector<py::object> held;
    const LedgerColumns events = ledger_columns(n, columns, held);
    const u16* homes = values<u16>(py::dict(py::arg("home") = home), "home", n, held);
    kernel::Settled settled;
    {
        const GilReleased released;
        settled = ledger.settle(events, homes);
    }
    py::dict out;
#define X(type, name) out[#name] = owned(std::move(settled.name));
    MEMSCOPE_LEDGER_OUTPUT(X)
#undef X
    return out;
}

py::list places(std::size_t n, const py::dict& columns) {
    std::vector<py::object> held;
    py::list codes;
    for (const u32 code : RowLedger::places(ledger_columns(n, columns, held))) codes.append(code);
    return codes;
}

py::dict levels(const RowLedger& ledger, u16 home) {
    const kernel::PoolLevels found = ledger.levels(home);
    // As a SNAPSHOT has them in its columns.
    return py::dict(py::arg("used") = found.used, py::arg("total") = found.total, py::arg("ptr") = found.most_used,
                    py::arg("size") = found.most_total);
}

}  // namespace

void bind_upstream_rows(py::module_& module) {
    py::class_<Texts, std::shared_ptr<Texts>>(module, "RowTexts", "Texts of rows by form and id, asked for once.")
        .def(py::init<py::function, std::size_t>(), py::arg("source"), py::arg("limit"));

    py::register_exception<kernel::SqliteError>(module, "SqliteError", PyExc_OSError);
    py::class_<kernel::SqliteTable>(module, "SqliteTable",
                                    "A table of an SQLite database; see native/kernel/sqlite_table.h.")
        .def(py::init([](const std::string& path, const std::string& statement) {
                 return std::make_unique<kernel::SqliteTable>(path, statement, static_cast<int>(kCells));
             }),
             py::arg("path"), py::arg("insert"))
        .def_static("is_available", &kernel::SqliteTable::is_available)
        .def("close", &kernel::SqliteTable::close);

    py::class_<Rows>(module, "UpstreamRows", "The rows of one process; see native/kernel/upstream_rows.h.")
        .def(py::init<std::shared_ptr<Texts>, i64, bool, bool, bool>(), py::arg("texts"), py::kw_only(), py::arg("pid"),
             py::arg("json"), py::arg("owners"), py::arg("python_stacks"))
        .def("write_csv", &Rows::write_csv, py::arg("file"), py::arg("n"), py::arg("cols"), py::arg("home"),
             py::arg("rows") = py::none())
        .def("insert", &Rows::insert, py::arg("table"), py::arg("n"), py::arg("cols"), py::arg("home"),
             py::arg("rows") = py::none())
        .def("tuples", &Rows::tuples, py::arg("n"), py::arg("cols"), py::arg("home"), py::arg("rows"),
             py::arg("rows_per_tuple"));

    py::class_<RowLedger>(module, "RowLedger", "Times, running sums; see native/kernel/row_ledger.h.")
        .def(py::init<i64>(), py::arg("wall_offset"))
        .def_static("places", &places, py::arg("n"), py::arg("cols"))
        .def("settle", &settle, py::arg("n"), py::arg("cols"), py::arg("home"))
        .def("levels", &levels, py::arg("home"))
        .def_property_readonly("moved_rows", &RowLedger::moved_rows)
        .def_property_readonly("moved_ns", &RowLedger::moved_ns);

    py::dict forms;
#define X(name, ...) forms[#name] = static_cast<int>(TextForm::name);
    MEMSCOPE_TEXT_FORMS(X)
#undef X
    module.attr("TEXT_FORMS") = forms;
}

}  // namespace memscope
