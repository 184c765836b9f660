// What the ring's tests and benchmark share: a ring in a directory of its own, records whose content follows from a
// number, and a reader that follows the ring's specification.
#pragma once

#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include "record/ring.h"

namespace memscope {

// A directory under /dev/shm, or $TMPDIR when that is not writable, removed with what is in it.
class Scratch {
public:
    Scratch() {
        const char* temporary = getenv("TMPDIR");
        std::string base = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : temporary != nullptr ? temporary : "/tmp";
        std::string pattern = base + "/msmemscope-test-XXXXXX";
        path_ = mkdtemp(pattern.data()) != nullptr ? pattern : std::string();
    }
    ~Scratch() {
        const std::string command = "rm -rf '" + path_ + "'";
        if (path_.empty() || system(command.c_str()) != 0) fprintf(stderr, "%s stays behind\n", path_.c_str());
    }
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;

    std::string file(const char* name) const { return path_ + "/" + name; }

private:
    std::string path_;
};

inline int create_ring(Ring& ring, const std::string& path, u64 bytes) {
    const int error = ring.create(path.c_str(), bytes);
    return error != 0 ? error : Ring::publish(path.c_str());
}

// One event; false when it is lost. `dawdle`: others may run between reserving and committing.
inline bool write_event(Ring& ring, Kind kind, u32 thread, u64 number, bool dawdle = false) {
    char* place = ring.reserve(sizeof(EventRecord), static_cast<u8>(kind));
    if (place == nullptr) return false;
    auto* event = reinterpret_cast<EventRecord*>(place);
    event->ts = number * 3;
    event->ptr = number;
    event->size = static_cast<i64>(number ^ thread);
    event->tid = thread;
    event->attr = ~number;
    if (dawdle) sched_yield();
    Ring::commit(place, sizeof(EventRecord), static_cast<u8>(kind), 0);
    return true;
}

inline bool is_event_of(const EventRecord& event, u32 thread, u64 number) {
    return event.ts == number * 3 && event.ptr == number && event.size == static_cast<i64>(number ^ thread) &&
           event.tid == thread && event.attr == ~number;
}

// One string whose length and letters follow from its number.
inline u32 text_bytes(u64 number) { return static_cast<u32>(mix64(number) % 700); }
inline char letter(u64 number, u32 at) { return static_cast<char>('a' + (number + at) % 26); }

inline bool write_text(Ring& ring, u64 number) {
    const u32 bytes = text_bytes(number);
    const u32 length = (static_cast<u32>(sizeof(StringRecord)) + bytes + 7) / 8 * 8;
    char* place = ring.reserve(length, static_cast<u8>(Kind::STRING));
    if (place == nullptr) return false;
    auto* record = reinterpret_cast<StringRecord*>(place);
    record->id = number;
    record->bytes = bytes;
    for (u32 i = 0; i < bytes; ++i) place[sizeof(StringRecord) + i] = letter(number, i);
    Ring::commit(place, length, static_cast<u8>(Kind::STRING), 0);
    return true;
}

inline bool is_text_of(const char* place, u64 number) {
    const auto* record = reinterpret_cast<const StringRecord*>(place);
    if (record->id != number || record->bytes != text_bytes(number)) return false;
    for (u32 i = 0; i < record->bytes; ++i)
        if (place[sizeof(StringRecord) + i] != letter(number, i)) return false;
    // The padding was never written: it shows whether the space was zeroed before it was given away.
    for (u32 i = record->bytes; (sizeof(StringRecord) + i) % 8 != 0; ++i)
        if (place[sizeof(StringRecord) + i] != 0) return false;
    return true;
}

// Follows the ring from `acked` on.
struct Reader {
    Ring& ring;
    u64 at;
    u64 holes = 0;

    explicit Reader(Ring& source) : ring(source), at(source.header->acked.load()) {}

    // Gives every record that is there to `use(header, place)`; `dead` when the process is known to be gone, so that
    // holes are stepped over. Returns how many records there were.
    template <typename Use>
    u64 read(Use use, bool dead = false) {
        u64 found = 0;
        for (;;) {
            const u64 head = ring.header->head.load(std::memory_order_acquire);
            if (at >= head) return found;
            const RecordHeader record = ring.peek(at);
            if (record.length == 0) {
                if (!dead) return found;
                ++holes;
                at = ring.next_committed(at);
                continue;
            }
            use(record, ring.data + (at & (ring.capacity() - 1)));
            at += record.length;
            ++found;
        }
    }

    void release() { ring.release(at); }
};

}  // namespace memscope
