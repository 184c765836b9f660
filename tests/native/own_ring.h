// What a test of the hooks needs to look at its own rings.
#pragma once

#include <dirent.h>
#include <unistd.h>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "check.h"
#include "own_directory.h"
#include "record/ring.h"

namespace own {

using namespace memscope;

inline std::string session_directory() {
    static std::string directory = make_directory("memscope-native-test-");
    return directory;
}

inline std::vector<std::string> rings() {
    std::vector<std::string> found;
    DIR* directory = opendir(session_directory().c_str());
    while (const dirent* entry = readdir(directory)) {
        const std::string name = entry->d_name;
        if (name.size() > 5 && name.substr(name.size() - 5) == ".ring")
            found.push_back(session_directory() + "/" + name);
    }
    closedir(directory);
    return found;
}

struct Seen {
    Kind kind;
    EventRecord record;
};

inline std::vector<Seen> events_of(const Ring& ring) {
    std::vector<Seen> seen;
    const u64 head = ring.header->head.load();
    for (u64 at = 0; at < head;) {
        const RecordHeader header = ring.peek(at);
        if (!is_valid(header)) break;
        if (header.kind >= kFirstEventKind) {
            Seen one = {static_cast<Kind>(header.kind), {}};
            memcpy(&one.record, ring.data + (at & (ring.capacity() - 1)), sizeof one.record);
            seen.push_back(one);
        }
        at += header.length;
    }
    return seen;
}

// The memory events of the ring that belongs to `pid`.
inline std::vector<Seen> memory_events(u32 pid) {
    std::vector<Seen> memory;
    for (const std::string& path : rings()) {
        Ring ring;
        CHECK_EQUAL(ring.open(path.c_str(), false), 0);
        if (ring.header->pid == pid)
            for (const Seen& one : events_of(ring))
                if (one.kind == Kind::MALLOC || one.kind == Kind::FREE) memory.push_back(one);
        ring.unmap();
    }
    return memory;
}

inline std::vector<Seen> own_memory_events() { return memory_events(static_cast<u32>(getpid())); }

// Every event of this process, in ring order.
inline std::vector<Seen> own_events() {
    std::vector<Seen> all;
    for (const std::string& path : rings()) {
        Ring ring;
        CHECK_EQUAL(ring.open(path.c_str(), false), 0);
        if (ring.header->pid == static_cast<u32>(getpid()))
            for (const Seen& one : events_of(ring)) all.push_back(one);
        ring.unmap();
    }
    return all;
}

// The text of a string id, as the ring of process `pid` defines it (0: any ring); "" when there is none.
inline std::string text_of(u64 id, u32 pid = 0) {
    for (const std::string& path : rings()) {
        Ring ring;
        CHECK_EQUAL(ring.open(path.c_str(), false), 0);
        std::string text;
        const u64 head = pid == 0 || ring.header->pid == pid ? ring.header->head.load() : 0;
        for (u64 at = 0; at < head && text.empty();) {
            const RecordHeader header = ring.peek(at);
            if (!is_valid(header)) break;
            const char* place = ring.data + (at & (ring.capacity() - 1));
            StringRecord record = {};
            if (header.kind == static_cast<u8>(Kind::STRING)) memcpy(&record, place, sizeof record);
            if (record.id == id && id != 0) text.assign(place + sizeof record, record.bytes);
            at += header.length;
        }
        ring.unmap();
        if (!text.empty()) return text;
    }
    return "";
}

}  // namespace own
