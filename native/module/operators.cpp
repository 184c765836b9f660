// What Python may do about operators: load the observer, or tell of each operator itself.
#include <dlfcn.h>
#include <pybind11/stl.h>
#include <cstring>
#include <string>
#include <unordered_set>
#include <vector>

#include "module/bindings.h"
#include "torch_ext/operator_sink.h"

extern "C" {
const memscope_operator_sink* memscope_get_operator_sink();
void memscope_switch_operators_by(memscope_switch_function function);
}

namespace py = pybind11;

namespace memscope {
namespace {

void observe_operators(const std::string& library) {
    void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);  // for the life of the process: torch calls into it
    if (handle == nullptr) throw py::import_error(dlerror());
    const auto observe = reinterpret_cast<memscope_observe_function>(dlsym(handle, "memscope_observe"));
    const auto switched = reinterpret_cast<memscope_switch_function>(dlsym(handle, "memscope_switch"));
    if (observe == nullptr || switched == nullptr || observe(memscope_get_operator_sink()) != 0)
        throw py::import_error(library + " is an observer of another version");
    memscope_switch_operators_by(switched);
}

// A tensor as the dispatch mode tells it.
using Told = std::tuple<unsigned long long, unsigned long long, long long, long long, std::vector<long long>,
                        std::string, int, unsigned, short, short, bool>;

// Points into `told`.
std::vector<memscope_touched> touched_of(const std::vector<Told>& told) {
    std::vector<memscope_touched> all;
    for (const auto& [address, storage, bytes, storage_bytes, sizes, dtype, code, how, type, device, is_spread] : told)
        all.push_back({address, storage, bytes, storage_bytes, sizes.data(), dtype.c_str(),
                       static_cast<unsigned>(sizes.size()), code, how, type, device,
                       static_cast<unsigned char>(is_spread)});
    return all;
}

// Names stay where they are: an operator's is asked for again when it ends.
const std::string& kept(const std::string& name) {
    static auto* names = new std::unordered_set<std::string>;  // under the GIL; operators are some thousands
    return *names->insert(name).first;
}

bool operator_waits(const std::string& running, short device_type, short device) {
    memscope_running began;
    const bool has_begun = running.size() == sizeof began;
    if (has_begun) memcpy(&began, running.data(), sizeof began);
    return memscope_get_operator_sink()->waits(has_begun ? &began : nullptr, device_type, device) != 0;
}

py::bytes operator_began(const std::string& told_name, short device_type, short device, bool is_backward,
                         const std::vector<Told>& told, bool is_enclosing) {
    memscope_running running = {};
    const std::string& name = kept(told_name);
    const std::vector<memscope_touched> given = touched_of(told);
    const memscope_called called{
        name.data(), static_cast<unsigned>(name.size()), device_type, device, is_backward, is_enclosing, 0};
    memscope_get_operator_sink()->begin(&running, &called, given.data(), static_cast<unsigned>(given.size()));
    return py::bytes(reinterpret_cast<const char*>(&running), sizeof running);
}

void operator_ended(const std::string& running, const std::vector<Told>& told) {
    if (running.size() != sizeof(memscope_running)) throw py::value_error("not what operator_began() returned");
    memscope_running began;
    memcpy(&began, running.data(), sizeof began);
    const std::vector<memscope_touched> returned = touched_of(told);
    memscope_get_operator_sink()->end(&began, returned.data(), static_cast<unsigned>(returned.size()));
}

void operator_is_collective(const std::string& running, const std::string& group, unsigned long long sequence,
                            unsigned ranks) {
    if (running.size() != sizeof(memscope_running)) throw py::value_error("not what operator_began() returned");
    memscope_running began;
    memcpy(&began, running.data(), sizeof began);
    const memscope_collective collective{group.data(), static_cast<unsigned>(group.size()), ranks, sequence};
    memscope_get_operator_sink()->collective(&began, &collective);
}

}  // namespace

void bind_operators(py::module_& module) {
    module.def(
        "observe_operators", &observe_operators, py::arg("library"),
        "Loads the observer of torch's operators; it observes while there is recording. ImportError: it cannot.");
    module.def(
        "wanted_of_operators", [] { return memscope_get_operator_sink()->wanted(); },
        "What is recorded now: 0 or a sum of 1 operators, 4 accesses, 8 inner ones, 16 looks at watched blocks.");
    module.def(
        "operator_waits", &operator_waits, py::arg("running"), py::arg("device_type"), py::arg("device"),
        "With looks: whether to wait for the device's current stream before operator_began() (running: empty) or "
        "operator_ended().");
    module.def(
        "operator_began", &operator_began, py::arg("name"), py::arg("device_type"), py::arg("device"),
        py::arg("is_backward"), py::arg("given"), py::arg("is_enclosing") = false,
        "Tensors: (address, storage, bytes, storage bytes, sizes, dtype, dtype's number, how, "
        "device type, device, whether other bytes lie between its elements). is_enclosing: what this thread runs until "
        "then is part of it. What is returned goes to operator_ended().");
    module.def("operator_is_collective", &operator_is_collective, py::arg("running"), py::arg("group"),
               py::arg("sequence"), py::arg("ranks"));
    module.def("operator_ended", &operator_ended, py::arg("running"), py::arg("returned"));
}

}  // namespace memscope
