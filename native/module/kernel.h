// One registration function per file of the module _kernel; kernel.cpp calls them.
#pragma once

#include <pybind11/pybind11.h>

namespace memscope {

void bind_upstream_rows(pybind11::module_& module);    // upstream_rows.cpp
void bind_torch_snapshot(pybind11::module_& module);   // torch_snapshot.cpp
void bind_upstream_reader(pybind11::module_& module);  // upstream_reader.cpp
void bind_sequence_diff(pybind11::module_& module);    // sequence_diff.cpp
void bind_training_phases(pybind11::module_& module);  // training_phases.cpp

void bind_inefficient_rows(pybind11::module_& module);  // inefficient_rows.cpp

}  // namespace memscope
