// Of the module _kernel: whose blocks of a training are (kernel/training_phases.h).
#include "kernel/training_phases.h"

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "module/columns.h"
#include "module/gil.h"
#include "module/kernel.h"

namespace py = pybind11;

namespace memscope {
namespace {

using kernel::DeducedOwner;
using kernel::PhaseEvents;
using kernel::ToldOwners;
using kernel::TrainingPhases;
using kernel::TrainingSizes;

py::dict go(TrainingPhases& self, const py::dict& columns) {
    const py::ssize_t rows = column_of<i64>(columns, "row").size();
    PhaseEvents events;
    events.rows = static_cast<std::size_t>(rows);
#define X(type, name)                                                \
    const Column<type> name = column_of<type>(columns, #name, rows); \
    events.name = name.data();
    MEMSCOPE_PHASE_EVENT_COLUMNS(X)
#undef X
    if (std::any_of(events.labels, events.labels + events.rows, [&](u16 one) { return one >= self.numbers(); }))
        throw py::value_error("column 'labels' has a number that is none");
    ToldOwners told;
    {
        const GilReleased released;
        told = self.go(events);
    }
    py::dict found;
#define X(type, name) found[#name] = to_array(std::move(told.name));
    MEMSCOPE_TOLD_OWNER_COLUMNS(X)
#undef X
    return found;
}

py::dict bytes_of(const TrainingPhases& self) {
    py::dict bytes;
    bytes[""] = self.all_bytes();
    bytes["function"] = self.named_bytes();
#define X(name, word) bytes[word] = self.bytes_of(DeducedOwner::name);
    MEMSCOPE_DEDUCED_OWNERS(X)
#undef X
    return bytes;
}

}  // namespace

void bind_training_phases(py::module_& module) {
    py::class_<TrainingSizes>(module, "TrainingSizes");
    py::class_<TrainingPhases>(module, "TrainingPhases")
        .def(py::init<std::vector<bool>, const TrainingSizes*>(), py::arg("is_named"), py::arg("known") = py::none(),
             "is_named: by number of labels, whether they say what a block is. known: sizes() of a first walk through "
             "the same events; None: this is it. See native/kernel/training_phases.h.")
        .def(
            "go", &go, py::arg("columns"),
            "The next events: dense arrays row, kind, place, ptr, size, step, role, is_old and labels. Returns what is "
            "told as arrays at, like, ptr and owner, a number in DEDUCED_OWNERS. ValueError: a column is not as it "
            "should be.")
        .def("sizes", &TrainingPhases::sizes, "Behind the last event: what has been learned.")
        .def_property_readonly(
            "bytes", &bytes_of,
            "Allocated: by owner, 'function' of what functions of frameworks say themselves, '' of all.");
    py::list owners;
#define X(name, word) owners.append(word);
    MEMSCOPE_DEDUCED_OWNERS(X)
#undef X
    module.attr("DEDUCED_OWNERS") = py::tuple(owners);
    py::dict roles;
#define X(name) roles[#name] = static_cast<int>(kernel::StackRole::name);
    MEMSCOPE_STACK_ROLES(X)
#undef X
    module.attr("STACK_ROLES") = roles;
}

}  // namespace memscope
