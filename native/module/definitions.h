// What a reader of foreign files defines, and says, as Python has it.
#pragma once

#include <pybind11/pybind11.h>

#include <string>
#include <utility>

#include "kernel/imported_definitions.h"
#include "module/columns.h"

namespace memscope {

inline pybind11::dict definitions_to_python(kernel::ImportedDefinitions&& defined) {
    pybind11::dict strings, frames, stacks, all;
    strings["id"] = to_array(std::move(defined.string_id));
    strings["bytes"] = to_array(std::move(defined.string_bytes));
    strings["text"] = pybind11::bytes(defined.text);
    frames["id"] = to_array(std::move(defined.frame_id));
    frames["file"] = to_array(std::move(defined.frame_file));
    frames["function"] = to_array(std::move(defined.frame_function));
    frames["line"] = to_array(std::move(defined.frame_line));
    frames["kind"] = to_array(std::move(defined.frame_kind));
    stacks["id"] = to_array(std::move(defined.stack_id));
    stacks["count"] = to_array(std::move(defined.stack_count));
    stacks["kind"] = to_array(std::move(defined.stack_kind));
    stacks["frames"] = to_array(std::move(defined.stack_frames));
    all["strings"] = std::move(strings);
    all["frames"] = std::move(frames);
    all["stacks"] = std::move(stacks);
    return all;
}

// Texts of a file need not be UTF-8.
inline pybind11::str plain_text(const std::string& text) {
    PyObject* decoded = PyUnicode_DecodeUTF8(text.data(), static_cast<pybind11::ssize_t>(text.size()), "replace");
    if (decoded == nullptr) throw pybind11::error_already_set();
    return pybind11::reinterpret_steal<pybind11::str>(decoded);
}

}  // namespace memscope
