// Whose memory it is, as Python says: labels of threads and of addresses (kernel/owners.h makes owners of them).
#include <array>
#include <vector>

#include "hook/told_events.h"
#include "module/bindings.h"
#include "module/python_frames.h"
#include "record/record.h"

namespace py = pybind11;

namespace memscope {
namespace {

struct Text {
    std::array<char, kMaxTextBytes> bytes;
    unsigned size;

    explicit Text(const py::str& words) : size(memscope_text_of(words.ptr(), bytes.data(), kMaxTextBytes)) {}
};

bool label_thread(bool pushed, unsigned level, const py::str& label) {
    const Text text(label);
    return memscope_label_thread(pushed ? 1 : 0, level, text.bytes.data(), text.size) != 0;
}

void label_addresses(const py::list& addresses, unsigned level, const py::str& label, bool only_recording) {
    std::vector<unsigned long long> all;
    all.reserve(addresses.size());
    for (const py::handle one : addresses) {
        const unsigned long long address = PyLong_AsUnsignedLongLong(one.ptr());
        if (PyErr_Occurred() != nullptr) throw py::error_already_set();
        all.push_back(address);
    }
    const Text text(label);
    memscope_label_addresses(level, text.bytes.data(), text.size, all.data(), all.size(), only_recording ? 1 : 0);
}

}  // namespace

void bind_labels(py::module_& module) {
    module.def("label_thread", &label_thread, py::arg("pushed"), py::arg("level"), py::arg("label"),
               "The calling thread sets a label or takes it back. False: there is no session to tell it.");
    module.def("label_addresses", &label_addresses, py::arg("addresses"), py::arg("level"), py::arg("label"),
               py::arg("only_recording"),
               "Labels the blocks that hold the addresses; only_recording: not while nothing else is recorded.");
}

}  // namespace memscope
