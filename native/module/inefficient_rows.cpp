// Of the module _kernel: upstream's patterns of the blocks of a file (kernel/inefficient_rows.h), and the words for
// them in its csv (kernel/attr_words.h).
#include "kernel/inefficient_rows.h"

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <map>
#include <string>
#include <string_view>

#include "kernel/attr_words.h"
#include "module/columns.h"
#include "module/gil.h"
#include "module/kernel.h"

namespace py = pybind11;

namespace memscope {
namespace {

using kernel::InefficientRows;

void feed(InefficientRows& self, py::ssize_t rows, const py::dict& columns) {
    const auto kinds = column_of<u8>(columns, "kind", rows), pools = column_of<u8>(columns, "pool", rows);
    const auto frameworks = column_of<u32>(columns, "aux", rows), pids = column_of<u32>(columns, "pid", rows);
    const auto ids = column_of<i64>(columns, "id", rows), sizes = column_of<i64>(columns, "size", rows);
    const auto blocks = column_of<i64>(columns, "allocation_id", rows);
    const auto pointers = column_of<u64>(columns, "ptr", rows), places = column_of<u64>(columns, "attr_at", rows);
    const auto lengths = column_of<u32>(columns, "attr_bytes", rows);
    const auto devices = column_of<i16>(columns, "device", rows);
    const auto device_types = column_of<u8>(columns, "device_type", rows);
    const GilReleased released;
    for (py::ssize_t at = 0; at < rows; ++at) {
        InefficientRows::Row row;
        row.pid = pids.data()[at];
        row.pool = pools.data()[at];
        row.id = ids.data()[at];
        row.ptr = pointers.data()[at];
        row.size = sizes.data()[at];
        row.allocation_id = blocks.data()[at];
        row.attr_at = places.data()[at];
        row.attr_bytes = lengths.data()[at];
        row.device = devices.data()[at];
        row.device_type = device_types.data()[at];
        self.add(static_cast<Kind>(kinds.data()[at]), frameworks.data()[at], row);
    }
}

py::dict take(InefficientRows& self) {
    InefficientRows::Table table = self.take();
    py::dict columns;
#define X(type, name) columns[#name] = to_array(std::move(table.name));
    MEMSCOPE_INEFFICIENT_COLUMNS(X)
#undef X
    return columns;
}

// piece: bytes of a csv from `begin` on. at, sizes, bits: where texts of Attr lie in the file, by place, and what is
// said of them; words: the text for bits.
py::bytes with_words(const py::bytes& piece, u64 begin, const Column<u64>& at, const Column<u32>& sizes,
                     const Column<u8>& bits, const std::map<int, std::string>& words) {
    const std::string_view bytes = piece;
    if (at.size() != sizes.size() || at.size() != bits.size()) throw py::value_error("columns of different lengths");
    std::string made;
    made.reserve(bytes.size() + 32 * static_cast<std::size_t>(at.size()));
    std::size_t done = 0;
    for (py::ssize_t row = 0; row < at.size(); ++row) {
        const u64 place = at.data()[row], size = sizes.data()[row];
        const auto word = words.find(bits.data()[row]);
        if (place < begin + done || place - begin > bytes.size() || size > bytes.size() - (place - begin))
            throw py::value_error("a row lies beyond what was read");
        if (word == words.end()) throw py::value_error("bits without a word");
        const std::size_t from = place - begin;
        made.append(bytes.substr(done, from - done));
        if (!kernel::append_with_word(made, bytes.substr(from, size), word->second))
            throw py::value_error("a row is not where it was");
        done = from + size;
    }
    made.append(bytes.substr(done));
    return py::bytes(made);
}

}  // namespace

void bind_inefficient_rows(py::module_& module) {
    py::class_<InefficientRows>(module, "InefficientRows",
                                "Upstream's patterns of a file's blocks; see native/kernel/inefficient_rows.h.")
        .def(py::init<u64>(), py::arg("threshold"))
        .def("feed", &feed, py::arg("n"), py::arg("cols"))
        .def("finish", &InefficientRows::finish)
        .def("take", &take);
    module.def("with_words", &with_words, py::arg("piece"), py::arg("begin"), py::arg("at"), py::arg("size"),
               py::arg("bits"), py::arg("words"), "Bytes of a csv with another inefficient_type in some rows.");
    py::dict patterns;
#define X(name, bit) patterns[#name] = bit;
    MEMSCOPE_PATTERNS(X)
#undef X
    module.attr("PATTERNS") = patterns;
    module.attr("IDLE_FIRST") = py::int_(kernel::kIdleFirst);
    module.attr("IDLE_THRESHOLD") = py::int_(kernel::kIdleThreshold);
}

}  // namespace memscope
