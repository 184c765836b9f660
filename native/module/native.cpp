// The module _native: everything that runs inside a rank, and the agent's view of a ring.
#include "module/bindings.h"

PYBIND11_MODULE(_native, module) {
    module.doc() = "Recording inside a rank, and reading rings in the agent.";
    memscope::bind_collect(module);
    memscope::bind_operators(module);
    memscope::bind_calls(module);
    memscope::bind_labels(module);
    memscope::bind_references(module);
    memscope::bind_reader(module);
    memscope::bind_ring_writer(module);
    memscope::bind_object_names(module);
}
