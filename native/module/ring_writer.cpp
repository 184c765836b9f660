// A ring written from Python: class RingWriter. A selftest plays scripted records into it, by the path that hooks take.
#include <unistd.h>
#include <cerrno>
#include <cstring>
#include <string>

#include "module/bindings.h"
#include "module/os_error.h"
#include "record/process.h"
#include "record/ring.h"

namespace py = pybind11;

namespace memscope {
namespace {

template <typename T>
void take_number(const py::dict& identity, const char* name, T& place) {
    if (identity.contains(name)) place = identity[name].cast<T>();
}

template <std::size_t size>
void take_text(const py::dict& identity, const char* name, char (&place)[size]) {
    if (!identity.contains(name)) return;
    const std::string text = identity[name].cast<std::string>();
    if (text.size() >= size) throw py::value_error(std::string(name) + " is longer than a header keeps");
    std::memcpy(place, text.c_str(), text.size() + 1);
}

// The ring is of this process, which lives: its end is told by close().
class RingWriter {
public:
    RingWriter(const std::string& path, u64 bytes, const py::dict& identity) : path_(path) {
        if (const int error = ring_.create(path.c_str(), bytes); error != 0) throw_os_error(error, path);
        ring_.wait_ns = 0;  // nobody reads while it is written
        try {
            describe(identity);
        } catch (...) {
            unlink((path + "~").c_str());
            ring_.unmap();
            throw;
        }
        if (const int error = Ring::publish(path.c_str()); error != 0) {
            unlink((path + "~").c_str());
            ring_.unmap();
            throw_os_error(error, path);
        }
    }
    ~RingWriter() { ring_.unmap(); }
    RingWriter(const RingWriter&) = delete;
    RingWriter& operator=(const RingWriter&) = delete;

    void write(const py::buffer& buffer) {
        if (!ring_.is_open()) throw py::value_error("the ring is closed");
        const py::buffer_info info = buffer.request();
        if (PyBuffer_IsContiguous(info.view(), 'C') == 0) throw py::value_error("the records are not in one piece");
        const auto bytes = static_cast<std::size_t>(info.size * info.itemsize);
        const char* data = static_cast<const char*>(info.ptr);
        for (std::size_t at = 0; at < bytes;) {
            RecordHeader header = {};
            if (bytes - at >= sizeof header) std::memcpy(&header, data + at, sizeof header);
            if (!is_valid(header) || header.length > bytes - at)
                throw py::value_error("no record at byte " + std::to_string(at));
            if (char* place = ring_.reserve(header.length, header.kind)) {
                std::memcpy(place + sizeof header, data + at + sizeof header, header.length - sizeof header);
                Ring::commit(place, header.length, header.kind, header.flags);
            }
            at += header.length;
        }
    }

    void close() noexcept {
        if (!ring_.is_open()) return;
        ring_.header->closed.store(1, std::memory_order_release);
        ring_.unmap();
    }

private:
    void describe(const py::dict& identity) {
        RingHeader& header = *ring_.header;
        header.pid = static_cast<u32>(getpid());
        header.ppid = static_cast<u32>(getppid());
        header.pid_namespace = pid_namespace();
        ProcessStat stat;
        if (read_process_stat(header.pid, stat)) header.process_start = stat.start;
        header.rank = header.local_rank = header.world_size = header.group_rank = -1;
        take_number(identity, "ring_id", header.ring_id);
        take_number(identity, "parent_ring_id", header.parent_ring_id);
        take_number(identity, "pid", header.pid);
        take_number(identity, "created_ns", header.created_ns);
        take_number(identity, "wall_offset_ns", header.wall_offset_ns);
        take_number(identity, "rank", header.rank);
        take_number(identity, "local_rank", header.local_rank);
        take_number(identity, "world_size", header.world_size);
        take_number(identity, "group_rank", header.group_rank);
        take_number(identity, "attempt", header.attempt);
        take_text(identity, "role", header.role);
        take_text(identity, "session", header.session);
        take_text(identity, "host", header.host);
        take_text(identity, "program", header.program);
        take_text(identity, "command", header.command);
    }

    Ring ring_;
    std::string path_;
};

}  // namespace

void bind_ring_writer(py::module_& module) {
    py::class_<RingWriter>(module, "RingWriter", "A new ring, as hooks write one. Of one thread.")
        .def(py::init<const std::string&, u64, const py::dict&>(), py::arg("path"), py::arg("bytes"),
             py::arg("identity"), "identity: fields of the header by name. OSError when the file cannot be made.")
        .def("write", &RingWriter::write, py::arg("records"),
             "Records laid out as in record.h, one behind the other; one that finds no room is counted as lost. "
             "ValueError for what is no record.")
        .def("close", &RingWriter::close, "The process has said goodbye.");
}

}  // namespace memscope
