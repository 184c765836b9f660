// One registration function per room; native.cpp calls those of _native.
#pragma once

#include <pybind11/pybind11.h>

namespace memscope {

void bind_collect(pybind11::module_& module);       // collect.cpp: what runs inside a rank
void bind_operators(pybind11::module_& module);     // operators.cpp: who sees torch's operators
void bind_calls(pybind11::module_& module);         // python_calls.cpp: what the program tells of itself
void bind_labels(pybind11::module_& module);        // labels.cpp: whose memory it is
void bind_references(pybind11::module_& module);    // references.cpp: who refers to what
void bind_reader(pybind11::module_& module);        // reader.cpp: what the agent needs of a ring
void bind_ring_writer(pybind11::module_& module);   // ring_writer.cpp: scripted records, for a selftest
void bind_object_names(pybind11::module_& module);  // object_names.cpp: what the agent calls native frames

}  // namespace memscope
