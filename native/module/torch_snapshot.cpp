// Of the module _kernel: PyTorch's memory snapshots (kernel/torch_snapshot.h).
//
// The file is read by Python, which knows how to unpack it, a piece at a time; everything else is done without the GIL.
#include "kernel/torch_snapshot.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstring>
#include <string_view>
#include <utility>

#include "kernel/pickle_data.h"
#include "module/columns.h"
#include "module/definitions.h"
#include "module/gil.h"
#include "module/kernel.h"

namespace py = pybind11;

namespace memscope {
namespace {

using kernel::PickleData;
using kernel::TorchSnapshot;

PickleData::Source source_of(const py::function& read) {
    return [&read](char* buffer, std::size_t bytes) {
        const GilHeld acquired;
        const py::object piece = read(bytes);
        if (!py::isinstance<py::bytes>(piece)) throw py::type_error("read() gave no bytes");
        const std::string_view got = py::reinterpret_borrow<py::bytes>(piece);
        if (got.size() > bytes) throw py::value_error("read() gave more than it was asked for");
        std::memcpy(buffer, got.data(), got.size());
        return got.size();
    };
}

#define MEMSCOPE_COLUMN(type, name) columns[#name] = to_array(std::move(table.name));
#define MEMSCOPE_TO_DICT(Table, COLUMNS)         \
    py::dict to_python(kernel::Table&& table) {  \
        py::dict columns;                        \
        COLUMNS(MEMSCOPE_COLUMN) return columns; \
    }
MEMSCOPE_TO_DICT(TraceTable, MEMSCOPE_TRACE_COLUMNS)
MEMSCOPE_TO_DICT(TorchSegmentTable, MEMSCOPE_TORCH_SEGMENT_COLUMNS)
MEMSCOPE_TO_DICT(TorchBlockTable, MEMSCOPE_TORCH_BLOCK_COLUMNS)
MEMSCOPE_TO_DICT(AnnotationTable, MEMSCOPE_ANNOTATION_COLUMNS)
#undef MEMSCOPE_TO_DICT
#undef MEMSCOPE_COLUMN

py::dict read_torch_snapshot(const py::function& read, u64 max_bytes) {
    const auto work = [&] {
        const GilReleased released;
        const PickleData data(source_of(read), max_bytes);
        return TorchSnapshot(data);
    };
    TorchSnapshot found = work();
    py::dict settings, tables;
    for (const auto& [key, value] : found.settings) settings[plain_text(key)] = plain_text(value);
    py::list unknown;
    for (const std::string& word : found.unknown_actions) unknown.append(plain_text(word));
    tables["traces"] = to_python(std::move(found.traces));
    tables["segments"] = to_python(std::move(found.segments));
    tables["blocks"] = to_python(std::move(found.blocks));
    tables["annotations"] = to_python(std::move(found.annotations));
    tables["definitions"] = definitions_to_python(std::move(found.definitions));
    tables["settings"] = std::move(settings);
    tables["unknown_actions"] = std::move(unknown);
    tables["left_out"] = found.left_out;
    tables["first_left_out"] = plain_text(found.first_left_out);
    return tables;
}

}  // namespace

void bind_torch_snapshot(py::module_& module) {
    py::register_exception<kernel::PickleError>(module, "PickleError", PyExc_ValueError);
    module.def("read_torch_snapshot", &read_torch_snapshot, py::arg("read"), py::arg("max_bytes"),
               "The tables of a memory snapshot whose bytes read(n) gives; see native/kernel/torch_snapshot.h.");
    py::dict actions;
#define X(name, word) actions[word] = static_cast<int>(kernel::TraceAction::name);
    MEMSCOPE_TRACE_ACTIONS(X)
#undef X
    module.attr("TRACE_ACTIONS") = actions;
}

}  // namespace memscope
