// Of the module _kernel: upstream's memscope_dump files (kernel/upstream_reader.h).
#include "kernel/upstream_reader.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <charconv>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernel/sqlite_rows.h"
#include "module/columns.h"
#include "module/definitions.h"
#include "module/gil.h"
#include "module/kernel.h"

namespace py = pybind11;

namespace memscope {
namespace {

using kernel::SqliteRows;
using kernel::UpstreamReader;

// Cells of a row of SQLite: text as bytes, whole numbers, and None; the numbers as text again.
void add_rows(UpstreamReader& self, const py::list& rows) {
    std::vector<std::string_view> cells;
    std::vector<std::string> numbers;
    for (const py::handle row : rows) {
        const auto values = py::reinterpret_borrow<py::tuple>(row);
        cells.clear();
        numbers.resize(values.size());
        for (std::size_t at = 0; at < values.size(); ++at) {
            PyObject* const value = PyTuple_GET_ITEM(values.ptr(), static_cast<py::ssize_t>(at));
            if (PyBytes_Check(value)) {
                cells.emplace_back(PyBytes_AS_STRING(value), static_cast<std::size_t>(PyBytes_GET_SIZE(value)));
            } else if (PyLong_Check(value)) {
                const long long number = PyLong_AsLongLong(value);
                if (number == -1 && PyErr_Occurred() != nullptr) PyErr_Clear();
                numbers[at] = std::to_string(number);
                cells.emplace_back(numbers[at]);
            } else if (value == Py_None) {
                cells.emplace_back();
            } else {
                cells.emplace_back("?");
            }
        }
        self.row(cells);
    }
}

// The next rows of a database; false when there are no more.
bool add_from(UpstreamReader& self, SqliteRows& rows, std::size_t most) {
    const GilReleased released;
    for (std::size_t at = 0; at < most; ++at) {
        if (!rows.next()) return false;
        self.row(rows.cells());
    }
    return true;
}

py::dict take(UpstreamReader& self) {
    kernel::ImportedTable table = self.take();
    py::dict columns;
#define X(type, name) columns[#name] = to_array(std::move(table.name));
    MEMSCOPE_IMPORTED_COLUMNS(X)
#undef X
    return columns;
}

}  // namespace

void bind_upstream_reader(py::module_& module) {
    py::class_<SqliteRows>(module, "SqliteRows", "Rows of a query; see native/kernel/sqlite_rows.h.")
        .def(py::init<const std::string&, const std::string&, const std::string&>(), py::arg("place"),
             py::arg("settings"), py::arg("query"));
    py::class_<UpstreamReader>(module, "UpstreamReader",
                               "Events from rows of upstream's files; see native/kernel/upstream_reader.h.")
        .def(py::init<bool, bool, const std::vector<std::string>&, bool>(), py::kw_only(),
             py::arg("keeps_ends") = false, py::arg("defines") = true, py::arg("modules") = std::vector<std::string>(),
             py::arg("names") = false)
        .def("header", [](UpstreamReader& self,
                          const std::vector<std::string>& names) { return self.header({names.begin(), names.end()}); })
        .def("feed",
             [](UpstreamReader& self, const py::bytes& bytes) {
                 const std::string_view text = bytes;
                 const GilReleased released;
                 return self.feed(text);
             })
        .def("finish", &UpstreamReader::finish)
        .def("add_rows", &add_rows)
        .def("add_from", &add_from, py::arg("rows"), py::arg("most"))
        .def_property_readonly("waiting", &UpstreamReader::waiting)
        .def("take", &take)
        .def("take_definitions", [](UpstreamReader& self) { return definitions_to_python(self.take_definitions()); })
        .def_property_readonly("missing", [](UpstreamReader& self) { return plain_text(self.missing()); })
        .def_property_readonly("rows", &UpstreamReader::rows)
        .def_property_readonly("left_out", &UpstreamReader::left_out)
        .def_property_readonly("derived", &UpstreamReader::derived)
        .def_property_readonly("first_left_out",
                               [](UpstreamReader& self) { return plain_text(self.first_left_out()); });
}

}  // namespace memscope
