// What Python may ask of the recorder of its own process.
#include <pybind11/stl.h>

#include "hook/patch.h"
#include "hook/recorder.h"
#include "hook/settings.h"
#include "module/bindings.h"
#include "module/gil.h"
#include "module/python_frames.h"
#include "source/watched_blocks.h"

extern "C" {
unsigned memscope_install_hooks();
void memscope_remove_hooks();
void memscope_describe_hooks(memscope::HookVisitor visit, void* context);
}

namespace py = pybind11;

namespace memscope {
namespace {

py::list walked_frames(unsigned depth) {
    std::vector<std::uint64_t> keys(depth);
    std::vector<const void*> handles(depth);
    const unsigned count = memscope_cpython_frames.walk(keys.data(), handles.data(), depth);
    py::list frames;
    for (unsigned i = 0; i < count; ++i) {
        memscope_frame_text text;
        memscope_cpython_frames.describe(handles[i], &text);
        frames.append(py::make_tuple(py::str(text.file, text.file_bytes), py::str(text.function, text.function_bytes),
                                     text.line));
    }
    return frames;
}

py::list hooks() {
    py::list rows;
    memscope_describe_hooks(
        [](void* context, const HookTable& source, const char* symbol, const char* defined_in, u32 slots) {
            py::dict row;
            row["source"] = source.source;
            row["home"] = source.home;
            row["tells"] = source.tells;
            row["symbol"] = symbol;
            row["defined_in"] = defined_in == nullptr ? py::object(py::none()) : py::str(defined_in);
            row["slots"] = slots;
            static_cast<py::list*>(context)->append(row);
        },
        &rows);
    return rows;
}

py::list lost() {
    py::list rows;
    memscope_visit_lost([](void* context, const char* source,
                           const char* what) { static_cast<py::list*>(context)->append(py::make_tuple(source, what)); },
                        &rows);
    return rows;
}

py::dict settings() {
    py::dict all;
    memscope_visit_settings(
        [](void* context, const char* name, const char* value) { (*static_cast<py::dict*>(context))[name] = value; },
        &all);
    return all;
}

py::dict stats() {
    memscope_stats now;
    memscope_get_stats(&now);
    py::dict result;
    result["ring_id"] = now.ring_id;
    result["head"] = now.head;
    result["lost"] = now.lost;
    result["error"] = now.error;
    result["recording"] = now.recording != 0;
    return result;
}

int watch_block(std::uint64_t ptr, std::uint64_t bytes, std::uint64_t storage, unsigned device_type, int device,
                const std::string& name, long long looks) {
    const memscope_watched watched = {ptr, bytes, storage, device_type, device, name.c_str(), looks};
    const GilReleased others_go_on;  // a block may be large
    return memscope_watch(&watched);
}

}  // namespace

void bind_collect(py::module_& module) {
    module.def("set_session", [](const std::string& directory) {
        if (memscope_set_session(directory.c_str()) != 0) throw py::value_error("session directory: path too long");
    });
    module.def("note_unwatched", &memscope_note_unwatched, py::arg("error"),
               "This process will record nothing into the session, for this errno.");
    module.def(
        "configure",
        [](const std::string& text) {
            if (memscope_configure(text.c_str()) != 0) throw py::value_error("no settings of this library: " + text);
        },
        py::arg("text"), "Takes over settings (native/hook/settings.h): name=value;name=value.");
    module.def("settings", &settings, "Every setting by its name.");
    module.def("use_python_frames",
               [](bool use) { memscope_set_python_frames(use ? &memscope_cpython_frames : nullptr); });
    module.def("walked_frames", &walked_frames,
               "The calling thread's frames as (file, function, line), innermost first.");
    module.def("install_hooks", &memscope_install_hooks,
               "Patches every loaded object; the number of slots that are ours.");
    module.def("remove_hooks", &memscope_remove_hooks);
    module.def("lost", &lost, "What sources cannot see here: (source, text).");
    module.def("hooks", &hooks, "Per hooked symbol: source, home, tells, symbol, defined_in, slots.");
    module.def("start", &memscope_start);
    module.def("stop", &memscope_stop);
    module.def("remember", &memscope_remember, "From off to remembering blocks, until start().");
    module.def("boundary", &memscope_boundary, py::arg("source"), py::arg("stepper") = 0,
               "A boundary of steps: vocabulary.StepSource, and which optimizer.");
    module.def("current_step", &memscope_current_step);
    module.def("meta", &memscope_meta, py::arg("key"), py::arg("value"));
    module.def("identify", &memscope_identify, py::arg("rank") = -1, py::arg("local_rank") = -1,
               py::arg("world_size") = -1, py::arg("group_rank") = -1, py::arg("role") = "");
    module.def("launched_rank", &memscope_launched_rank, "The rank that a launcher's variables give, or -1.");
    module.def("stats", &stats);
    module.def("watch_block", &watch_block, py::arg("ptr"), py::arg("bytes"), py::arg("storage"),
               py::arg("device_type"), py::arg("device"), py::arg("name"), py::arg("looks"),
               "Looks at a block before and after operators from now on; 0 or an errno (source/watched_blocks.h).");
    module.def("unwatch_block", &memscope_unwatch, py::arg("ptr"), py::arg("bytes"), py::call_guard<GilReleased>());
}

}  // namespace memscope
