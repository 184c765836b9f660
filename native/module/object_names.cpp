// Names of native frames: class ObjectNames, for the agent. It is on the node where the objects are, at the time when
// they are used, and may take its time, while a rank that records a frame may not (stack/code_objects.h).
//
// In: a cut, whose native frames have the empty text for a name. Out: the same cut with the names that the objects'
// files have, as strings of its own. A file that is not the one that the rank had mapped gives none: a frame's id is
// made from what tells builds apart, and is compared.
#include <string>
#include <unordered_map>
#include <vector>

#include "module/bindings.h"
#include "module/gil.h"
#include "module/symbols.h"

namespace py = pybind11;

namespace memscope {
namespace {

constexpr std::size_t kMostPaths = 1u << 16;
constexpr std::size_t kMostNames = 1u << 18;
constexpr std::size_t kMostTextBytes = 8u << 20;  // that a cut may grow by

template <typename Value>
std::vector<Value> column(const py::dict& columns, const char* name) {
    const py::bytes blob = columns[name];
    std::vector<Value> values(static_cast<std::size_t>(PyBytes_GET_SIZE(blob.ptr())) / sizeof(Value));
    if (!values.empty()) __builtin_memcpy(values.data(), PyBytes_AS_STRING(blob.ptr()), values.size() * sizeof(Value));
    return values;
}

template <typename Value>
py::bytes blob_of(const std::vector<Value>& values) {
    return py::bytes(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(Value));
}

class ObjectNames {
public:
    void add(py::dict& cut) {
        py::dict strings = cut["strings"], frames = cut["frames"];
        learn_paths(strings);
        const auto ids = column<u64>(frames, "id"), files = column<u64>(frames, "file");
        auto functions = column<u64>(frames, "function");
        const auto lines = column<u32>(frames, "line"), kinds = column<u32>(frames, "kind");
        std::vector<std::size_t> rows;
        for (std::size_t row = 0; row < ids.size(); ++row)
            if (kinds[row] == static_cast<u32>(FrameKind::NATIVE) && functions[row] == kNoName) rows.push_back(row);
        if (rows.empty()) return;

        std::unordered_map<u64, std::vector<std::size_t>> unknown;  // by file
        for (const std::size_t row : rows)
            if (names_.count(ids[row]) == 0) unknown[files[row]].push_back(row);
        if (names_.size() > kMostNames) names_.clear();
        for (const auto& [file, of_file] : unknown) {
            const auto path = paths_.find(file);
            if (path != paths_.end()) look_up(path->second, file, of_file, ids, lines);
        }

        auto string_ids = column<u64>(strings, "id");
        auto lengths = column<u32>(strings, "bytes");
        const std::size_t known = string_ids.size();
        std::string text;
        std::unordered_map<u64, bool> told;
        for (const std::size_t row : rows) {
            const auto found = names_.find(ids[row]);
            if (found == names_.end() || found->second.empty() || text.size() > kMostTextBytes) continue;
            const std::string& name = found->second;
            functions[row] = text_id(name.data(), name.size());
            if (!told.emplace(functions[row], true).second) continue;
            string_ids.push_back(functions[row]);
            lengths.push_back(static_cast<u32>(name.size()));
            text += name;
        }
        if (string_ids.size() == known) return;
        strings["id"] = blob_of(string_ids);
        strings["bytes"] = blob_of(lengths);
        strings["text"] = py::bytes(std::string(py::bytes(strings["text"])) + text);
        frames["function"] = blob_of(functions);
    }

private:
    void learn_paths(const py::dict& strings) {
        const auto ids = column<u64>(strings, "id");
        const auto lengths = column<u32>(strings, "bytes");
        const py::bytes blob = strings["text"];
        const char* text = PyBytes_AS_STRING(blob.ptr());
        if (paths_.size() > kMostPaths) paths_.clear();
        for (std::size_t i = 0; i < ids.size(); text += lengths[i++])
            if (lengths[i] != 0 && *text == '/') paths_.emplace(ids[i], std::string(text, lengths[i]));
    }

    void look_up(const std::string& path, u64 file, const std::vector<std::size_t>& rows, const std::vector<u64>& ids,
                 const std::vector<u32>& lines) {
        std::vector<Wanted> wanted;
        for (const std::size_t row : rows) wanted.push_back({lines[row]});
        u64 build = 0;
        {
            GilReleased unlocked;
            if (!read_names(path, build, wanted)) wanted.clear();
        }
        for (std::size_t i = 0; i < rows.size(); ++i) {
            const bool is_right = !wanted.empty() && ids[rows[i]] == frame_id(file, kNoName, lines[rows[i]], build);
            names_.emplace(ids[rows[i]], is_right ? wanted[i].name : std::string());
        }
    }

    const u64 kNoName = text_id("", 0);
    std::unordered_map<u64, std::string> paths_;  // every text that may be one, by string id
    std::unordered_map<u64, std::string> names_;  // by frame id; empty: it has none
};

}  // namespace

void bind_object_names(py::module_& module) {
    py::class_<ObjectNames>(module, "ObjectNames", "Names native frames from the objects' files.")
        .def(py::init<>())
        .def("add", &ObjectNames::add, py::arg("cut"), "Puts the names of its native frames into the cut.");
}

}  // namespace memscope
