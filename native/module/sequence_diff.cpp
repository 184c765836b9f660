// Of the module _kernel: what differs between two sequences (kernel/sequence_diff.h).
#include "kernel/sequence_diff.h"

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <utility>

#include "module/columns.h"
#include "module/gil.h"
#include "module/kernel.h"

namespace py = pybind11;

namespace memscope {
namespace {

template <typename T>
py::dict sequence_diff(const py::array_t<T, py::array::c_style>& a, const py::array_t<T, py::array::c_style>& b,
                       const std::optional<u64>& most_work) {
    if (a.ndim() != 1 || b.ndim() != 1) throw py::value_error("a sequence has one dimension");
    const T *const from = a.data(), *const to = b.data();
    const auto n = static_cast<std::size_t>(a.size()), m = static_cast<std::size_t>(b.size());
    kernel::SequenceDiff found;
    {
        const GilReleased released;
        found = kernel::diff_sequences(from, n, to, m, most_work.value_or(kernel::most_diff_work(n, m)));
    }
    py::dict columns;
#define X(type, name) columns[#name] = to_array(std::move(found.hunks.name));
    MEMSCOPE_HUNK_COLUMNS(X)
#undef X
    columns["is_shortest"] = found.is_shortest;
    columns["work"] = found.work;
    return columns;
}

}  // namespace

void bind_sequence_diff(py::module_& module) {
    module.def(
        "sequence_diff", &sequence_diff<u64>, py::arg("a").noconvert(), py::arg("b").noconvert(), py::kw_only(),
        py::arg("most_work") = py::none(),
        "The stretches in which two arrays differ, of uint64 or of dense uint32; see native/kernel/sequence_diff.h.");
    module.def("sequence_diff", &sequence_diff<u32>, py::arg("a").noconvert(), py::arg("b").noconvert(), py::kw_only(),
               py::arg("most_work") = py::none());
}

}  // namespace memscope
