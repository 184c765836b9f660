// Of the module _kernel: what differs between two sequences (kernel/sequence_diff.h).
#include "kernel/sequence_diff.h"

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <utility>

#include "module/columns.h"
#include "module/gil.h"
#include "module/kernel.h"

namespace py = pybind11;

namespace memscope {
namespace {

using Numbers = py::array_t<u64, py::array::c_style>;

py::dict sequence_diff(const Numbers& a, const Numbers& b, u64 most_work) {
    if (a.ndim() != 1 || b.ndim() != 1) throw py::value_error("a sequence has one dimension");
    const u64 *const from = a.data(), *const to = b.data();
    const auto n = static_cast<std::size_t>(a.size()), m = static_cast<std::size_t>(b.size());
    kernel::SequenceDiff found;
    {
        const GilReleased released;
        found = kernel::diff_sequences(from, n, to, m, most_work);
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
    module.attr("MOST_DIFF_WORK") = kernel::kMostDiffWork;
    module.def("sequence_diff", &sequence_diff, py::arg("a").noconvert(), py::arg("b").noconvert(), py::kw_only(),
               py::arg("most_work") = kernel::kMostDiffWork,
               "The stretches in which two arrays of uint64 differ; see native/kernel/sequence_diff.h.");
}

}  // namespace memscope
