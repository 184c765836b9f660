// The module _kernel: analysis kernels over columnar batches.
#include <pybind11/pybind11.h>

PYBIND11_MODULE(_kernel, module) { module.doc() = "Analysis kernels over columnar batches."; }
