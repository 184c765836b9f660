// The agent's view of a ring: class RingReader and cut_bytes. See cutter.h for what a cut is.
#include <dirent.h>
#include <fcntl.h>
#include <malloc.h>
#include <unistd.h>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "module/bindings.h"
#include "module/gil.h"
#include "module/os_error.h"
#include "record/cutter.h"
#include "record/process.h"
#include "record/ring.h"

namespace py = pybind11;

namespace memscope {
namespace {

py::str text_field(const char* text, std::size_t size) {
    PyObject* decoded = PyUnicode_DecodeUTF8(text, static_cast<Py_ssize_t>(strnlen(text, size)), "replace");
    if (decoded == nullptr) throw py::error_already_set();
    return py::reinterpret_steal<py::str>(decoded);
}

// The array becomes a bytes object that is written in place: no copy on the way to Python.
template <typename T>
py::bytes make_column(std::size_t elements, T*& place) {
    PyObject* bytes = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(elements * sizeof(T)));
    if (bytes == nullptr) throw py::error_already_set();
    place = reinterpret_cast<T*>(PyBytes_AS_STRING(bytes));
    return py::reinterpret_steal<py::bytes>(bytes);
}

// A column of equal values is passed on as one element.
template <typename T>
void shorten(py::dict& columns, const char* name, bool varies) {
    const py::bytes column = columns[name];
    if (varies || PyBytes_GET_SIZE(column.ptr()) <= static_cast<Py_ssize_t>(sizeof(T))) return;
    columns[name] = py::bytes(PyBytes_AS_STRING(column.ptr()), sizeof(T));
}

py::dict make_cut(const Records& records, const CutSizes& sizes, u64 offset) {
    CutColumns columns;
    py::dict events, strings, frames, stacks, cut;
    events["kind"] = make_column(sizes.events, columns.events.kind);
    events["flags"] = make_column(sizes.events, columns.events.flags);
#define X(type, name) events[#name] = make_column(sizes.events, columns.events.name);
    MEMSCOPE_EVENT_FIELDS(X)
#undef X
    strings["id"] = make_column(sizes.strings, columns.strings.id);
    strings["bytes"] = make_column(sizes.strings, columns.strings.bytes);
    strings["text"] = make_column(sizes.text_bytes, columns.strings.text);
    frames["id"] = make_column(sizes.frames, columns.frames.id);
    frames["file"] = make_column(sizes.frames, columns.frames.file);
    frames["function"] = make_column(sizes.frames, columns.frames.function);
    frames["line"] = make_column(sizes.frames, columns.frames.line);
    frames["kind"] = make_column(sizes.frames, columns.frames.kind);
    stacks["id"] = make_column(sizes.stacks, columns.stacks.id);
    stacks["count"] = make_column(sizes.stacks, columns.stacks.count);
    stacks["kind"] = make_column(sizes.stacks, columns.stacks.kind);
    stacks["frames"] = make_column(sizes.stack_frames, columns.stacks.frames);
    {
        GilReleased unlocked;
        fill(records, sizes, columns);
    }
    std::size_t column = 0;
    for (const char* name : {"kind", "flags"}) shorten<u8>(events, name, columns.varies[column++]);
#define X(type, name) shorten<type>(events, #name, columns.varies[column++]);
    MEMSCOPE_EVENT_FIELDS(X)
#undef X
    cut["offset"] = offset;
    cut["length"] = sizes.length;
    cut["n"] = sizes.events;
    cut["cols"] = events;
    cut["strings"] = strings;
    cut["frames"] = frames;
    cut["stacks"] = stacks;
    cut["holes"] = sizes.holes;
    cut["invalid"] = sizes.invalid;
    return cut;
}

// A zombie writes nothing more, unless only its first thread has ended.
bool has_other_threads(u32 pid) noexcept {
    char path[64];
    std::snprintf(path, sizeof path, "/proc/%u/task", pid);
    DIR* folder = ::opendir(path);
    if (folder == nullptr) return false;
    int threads = 0;
    while (const dirent* entry = ::readdir(folder)) threads += entry->d_name[0] != '.' ? 1 : 0;
    ::closedir(folder);
    return threads > 1;
}

class RingReader {
public:
    explicit RingReader(const std::string& path) : path_(path) {
        const int error = ring_.open(path.c_str(), true);
        if (error != 0) throw_os_error(error, path);
        if (head() < acked() || head() - freed() > ring_.capacity() || freed() > acked()) {
            ring_.unmap();
            throw_os_error(EPROTO, path);  // positions that no writer and no agent can have left
        }
        ring_.recover();
    }
    ~RingReader() { ring_.unmap(); }
    RingReader(const RingReader&) = delete;
    RingReader& operator=(const RingReader&) = delete;

    py::dict header() const {
        const RingHeader& ring = opened();
        py::dict fields;
        fields["version"] = ring.version;
        fields["capacity"] = ring_.capacity();
        fields["ring_id"] = ring.ring_id;
        fields["parent_ring_id"] = ring.parent_ring_id;
        fields["pid"] = ring.pid;
        fields["pid_namespace"] = ring.pid_namespace;
        fields["ppid"] = ring.ppid;
        fields["uid"] = ring.uid;
        fields["process_start"] = ring.process_start;
        fields["created_ns"] = ring.created_ns;
        fields["wall_offset_ns"] = ring.wall_offset_ns;
        fields["rank"] = ring.rank;
        fields["local_rank"] = ring.local_rank;
        fields["world_size"] = ring.world_size;
        fields["group_rank"] = ring.group_rank;
        fields["attempt"] = ring.attempt;
        fields["role"] = text_field(ring.role, sizeof ring.role);
        fields["session"] = text_field(ring.session, sizeof ring.session);
        fields["host"] = text_field(ring.host, sizeof ring.host);
        fields["program"] = text_field(ring.program, sizeof ring.program);
        // As lives.py has it: printable, as it goes through run.json.
        fields["command"] = text_field(ring.command, sizeof ring.command).attr("replace")("\x1f", "\u241f");
        fields["head"] = head();
        fields["acked"] = acked();
        fields["freed"] = freed();
        fields["step"] = ring.step.load(std::memory_order_relaxed);
        fields["closed"] = ring.closed.load(std::memory_order_acquire) != 0;
        fields["dropping"] = ring.dropping.load(std::memory_order_relaxed) != 0;
        fields["asleep"] = ring.asleep.load(std::memory_order_relaxed) != 0;
        fields["unwatched"] = ring.unwatched.load(std::memory_order_relaxed);
        fields["waits"] = ring.waits.load(std::memory_order_relaxed);
        py::dict lost, reported;
        for (std::size_t kind = 0; kind < kKindSlots; ++kind) {
            const u64 n = ring.lost[kind].load(std::memory_order_relaxed);
            const u64 told = ring.reported[kind].load(std::memory_order_relaxed);
            if (n != 0) lost[py::int_(kind)] = n;
            if (told != 0) reported[py::int_(kind)] = told;
        }
        fields["lost"] = lost;
        fields["reported"] = reported;
        return fields;
    }

    // The file again, for who comes later, where somebody deleted it: its header and what is not acknowledged.
    void save(const std::string& path) const {
        const RingHeader& ring = opened();
        const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
        bool failed = fd < 0;
        if (!failed) {
            const u64 mask = ring_.capacity() - 1;
            const auto write_all = [&](const char* from, u64 bytes, u64 at) {
                for (ssize_t n = 0; bytes != 0; from += n, at += static_cast<u64>(n), bytes -= static_cast<u64>(n)) {
                    n = pwrite(fd, from, bytes, static_cast<off_t>(at));
                    if (n <= 0) return false;
                }
                return true;
            };
            const u64 from = ring.acked.load(std::memory_order_relaxed);
            const u64 to = ring.head.load(std::memory_order_acquire);
            const u64 bytes = to - from < ring_.capacity() ? to - from : ring_.capacity();
            const u64 place = from & mask;
            const u64 first = bytes < ring_.capacity() - place ? bytes : ring_.capacity() - place;
            failed = ftruncate(fd, static_cast<off_t>(ring.header_bytes + ring_.capacity())) != 0 ||
                     !write_all(reinterpret_cast<const char*>(&ring), kRingHeaderBytes, 0) ||
                     !write_all(ring_.data + place, first, ring.header_bytes + place) ||
                     !write_all(ring_.data, bytes - first, ring.header_bytes);
            const int kept = errno;
            ::close(fd);
            if (failed) unlink(path.c_str());
            errno = kept;
        }
        if (failed) throw_os_error(errno, path);
    }

    void set_asleep(bool asleep) { opened().asleep.store(asleep ? 1 : 0, std::memory_order_seq_cst); }

    u64 head() const { return opened().head.load(std::memory_order_seq_cst); }
    u64 acked() const { return opened().acked.load(std::memory_order_relaxed); }
    u64 capacity() const {
        opened();
        return ring_.capacity();
    }

    bool alive() const {
        const RingHeader& ring = opened();
        if (ring.locked != 0) {
            bool unknown = false;
            const bool owned = Ring::has_owner(path_.c_str(), unknown);
            if (!unknown) return owned;
            if (errno != ENOENT) return true;  // no descriptor free: better to wait than to skip what is being written
        }
        // Its file is gone, or keeps no lock.
        ProcessStat stat;
        if (!read_process_stat(ring.pid, stat)) return false;
        if (ring.process_start != 0 && stat.start != ring.process_start) return false;
        if (stat.state == 'Z' || stat.state == 'X') return has_other_threads(ring.pid);
        return true;
    }

    py::object cut(u64 offset, u64 max_bytes) const {
        Records records = records_from(offset);
        CutSizes sizes;
        {
            GilReleased unlocked;
            sizes = measure(records, max_bytes);
            if (sizes.length == 0 && records.bytes != 0 && !alive()) {
                // Only now is it certain that nobody will commit: measured again, since the last commit may
                // have come between the two looks.
                records = records_from(offset);
                records.writer_gone = true;
                sizes = measure(records, max_bytes);
            }
        }
        if (sizes.length == 0) return py::none();
        return make_cut(records, sizes, offset);
    }

    py::bytes copy(u64 offset, u64 max_bytes) const {
        const Records records = records_from(offset);
        u64 bytes = 0;
        {
            GilReleased unlocked;
            bytes = whole_records(records, max_bytes);
        }
        return py::bytes(records.data, bytes);
    }

    void release(u64 offset) {
        if (offset < acked() || offset > head() || offset % 8 != 0)
            throw py::value_error("release(" + std::to_string(offset) + "): outside [acked, head]");
        GilReleased unlocked;
        ring_.release(offset);
    }

    void close() noexcept { ring_.unmap(); }

private:
    RingHeader& opened() const {
        if (!ring_.is_open()) throw py::value_error("the ring is closed");
        return *ring_.header;
    }
    u64 freed() const { return opened().freed.load(std::memory_order_relaxed); }

    Records records_from(u64 offset) const {
        const u64 end = head();
        if (offset < acked() || offset > end || offset % 8 != 0)
            throw py::value_error("offset " + std::to_string(offset) + " is outside [acked, head]");
        if (end - offset > ring_.capacity()) throw py::value_error("the ring's head is damaged");
        Records records;
        records.data = ring_.data + (offset & (ring_.capacity() - 1));
        records.bytes = end - offset;
        return records;
    }

    Ring ring_;
    std::string path_;
};

py::object cut_bytes(const py::buffer& buffer, u64 base_offset, u64 max_bytes) {
    const py::buffer_info info = buffer.request();
    Records records;
    records.data = static_cast<const char*>(info.ptr);
    records.bytes = static_cast<u64>(info.size * info.itemsize);
    records.writer_gone = true;
    records.cut_off = true;
    std::vector<u64> aligned;
    CutSizes sizes;
    {
        GilReleased unlocked;
        if (reinterpret_cast<std::uintptr_t>(records.data) % 8 != 0) {
            aligned.resize(records.bytes / 8 + 1);
            std::memcpy(aligned.data(), records.data, records.bytes);
            records.data = reinterpret_cast<const char*>(aligned.data());
        }
        sizes = measure(records, max_bytes);
    }
    if (sizes.length == 0) return py::none();
    return make_cut(records, sizes, base_offset);
}

// Batches are large and short-lived. By default glibc gives such memory back to the kernel at once and takes it
// again page by page: a fifth of the agent's time.
void keep_freed_memory() noexcept {
    mallopt(M_MMAP_THRESHOLD, 1 << 30);
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
}

}  // namespace

void bind_reader(py::module_& module) {
    py::class_<RingReader>(module, "RingReader", "A ring, as the one agent of its node sees it.")
        .def(py::init<const std::string&>(), py::arg("path"))
        .def("header", &RingReader::header, "Every field of the header by name; lost and reported by kind.")
        .def_property_readonly("head", &RingReader::head)
        .def_property_readonly("acked", &RingReader::acked)
        .def_property_readonly("capacity", &RingReader::capacity)
        .def("alive", &RingReader::alive, "Does the process that writes this ring still run?")
        .def("set_asleep", &RingReader::set_asleep, py::arg("asleep"),
             "Whether a writer that needs more memory shall touch its file's times, to wake whoever watches it.")
        .def("cut", &RingReader::cut, py::arg("offset"), py::arg("max_bytes"),
             "The batch that begins at offset, or None when nothing is committed there.")
        .def("copy", &RingReader::copy, py::arg("offset"), py::arg("max_bytes"),
             "Whole records from offset on, verbatim; stops before a hole.")
        .def("release", &RingReader::release, py::arg("offset"), "Gives everything before offset back to the writers.")
        .def("save", &RingReader::save, py::arg("path"),
             "Writes the ring to a new file, as far as it is not acknowledged. OSError when that fails.")
        .def("close", &RingReader::close);
    module.def("keep_freed_memory", &keep_freed_memory,
               "For agent and aggregator: do not return memory to the kernel.");
    module.def("cut_bytes", &cut_bytes, py::arg("buffer"), py::arg("base_offset"), py::arg("max_bytes"),
               "As RingReader.cut, over records copied from a ring; a record cut off at the end is left.");
}

}  // namespace memscope
