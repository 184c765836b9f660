#include "stack/code_objects.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "record/ring.h"
#include "stack/frame_rules.h"
#include "stack/object_headers.h"

namespace memscope {
namespace {

constexpr u32 kMostObjects = 8192;
constexpr u64 kPathsBytes = 1u << 20;  // of objects that are new in one reading
// Of all snapshots; they stay, since another thread may be reading one. Each object that comes alone brings a new one,
// with 16 bytes for each that is known: a process with 300 may load some 2,400 more, or one some 8,000 times.
constexpr u64 kMostBytes = u64{64} << 20;
constexpr u64 kPageBytes = 4096;
constexpr u32 kVainReadings = 200;    // that brought nothing new, before there is a pause between them:
constexpr u64 kPause = 10'000'000;    // ns
constexpr u64 kTextBytes = 1u << 16;  // of /proc/self/maps at a time

struct Entry {
    u64 code_begin;
    const CodeObject* object;
};
// Objects by address. Published whole, never changed, never freed. Those that no snapshot before it has lie behind it,
// and the texts of their paths.
struct Snapshot {
    u64 bytes;
    u64 count;
    Entry entries[1];  // of `count`
};
// Where one is gathered.
struct Scratch {
    u32 count;
    u32 fresh_count;
    u64 path_bytes;
    Entry entries[kMostObjects];
    CodeObject fresh[kMostObjects];
    char paths[kPathsBytes];
    char text[kTextBytes];
};
std::atomic<const Snapshot*> g_snapshot{nullptr};
std::atomic<u64> g_bytes{0};
std::atomic<u32> g_vain_readings{0};
std::atomic<u64> g_next_reading{0};  // CLOCK_MONOTONIC ns

// Memory that may be unmapped at any moment.
bool read_memory(u64 address, void* out, u64 bytes) noexcept {
    const iovec to = {out, bytes};
    const iovec from = {reinterpret_cast<void*>(address), bytes};
    if (process_vm_readv(getpid(), &to, 1, &from, 1, 0) == static_cast<ssize_t>(bytes)) return true;
    if (errno != EPERM && errno != ENOSYS) return false;
    const int file = open("/proc/self/mem", O_RDONLY | O_CLOEXEC);  // the call is forbidden here (seccomp)
    if (file < 0) return false;
    const ssize_t got = pread(file, out, bytes, static_cast<off_t>(address));
    close(file);
    return got == static_cast<ssize_t>(bytes);
}

// Reads the headers of the object whose file is mapped from `begin` on. False: there is none.
bool read_headers(u64 begin, CodeObject& object) noexcept {
    alignas(8) char bytes[kObjectHeaderBytes];
    ObjectHeaders headers;
    if (!read_memory(begin, bytes, sizeof bytes) || !parse_object_headers(bytes, headers)) return false;
    const u64 shift = begin - headers.begin;
    object = {};
    object.begin = begin;
    object.code_begin = headers.code_begin + shift;
    object.code_end = headers.code_end + shift;
    object.end = headers.end + shift;
    object.frame_table = headers.frame_table != 0 ? headers.frame_table + shift : 0;
    object.build = headers.build;
    return true;
}

bool is_still_there(const CodeObject& object) noexcept {
    CodeObject now;
    return read_headers(object.begin, now) && now.build == object.build;
}

const CodeObject* search(const Snapshot* snapshot, u64 address) noexcept {
    if (snapshot == nullptr) return nullptr;
    u64 low = 0, high = snapshot->count;  // the first object whose code begins behind the address
    while (low < high) {
        const u64 middle = low + (high - low) / 2;
        if (snapshot->entries[middle].code_begin <= address)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == 0 || address >= snapshot->entries[low - 1].object->code_end) return nullptr;
    return snapshot->entries[low - 1].object;
}

const CodeObject* object_like(const Snapshot* snapshot, const CodeObject& object) noexcept {
    const CodeObject* const known = search(snapshot, object.code_begin);
    return known != nullptr && known->begin == object.begin && known->build == object.build ? known : nullptr;
}

// --- /proc/self/maps ---------------------------------------------------------------------------------------------

// `begin-end rwxp offset device inode   path`
struct Line {
    u64 begin, offset, inode;
    bool is_code;
    const char* path;
    u32 path_bytes;
};

u64 number_at(const char*& at, const char* end, u32 base) noexcept {
    u64 value = 0;
    for (; at < end; ++at) {
        const u32 lower = static_cast<u32>(static_cast<unsigned char>(*at) | 0x20);
        const u32 digit = *at >= '0' && *at <= '9'       ? static_cast<u32>(*at - '0')
                          : lower >= 'a' && lower <= 'f' ? lower - 'a' + 10
                                                         : 16;
        if (digit >= base) break;
        value = value * base + digit;
    }
    return value;
}

bool parse(const char* at, const char* end, Line& line) noexcept {
    line = {};
    line.begin = number_at(at, end, 16);
    if (at == end || *at++ != '-') return false;
    number_at(at, end, 16);
    if (end - at < 6) return false;
    line.is_code = at[3] == 'x';
    at += 6;
    line.offset = number_at(at, end, 16);
    while (at < end && *at == ' ') ++at;
    while (at < end && *at != ' ') ++at;  // the device
    while (at < end && *at == ' ') ++at;
    line.inode = number_at(at, end, 10);
    while (at < end && *at == ' ') ++at;
    constexpr char kVdso[] = "[vdso]", kDeleted[] = " (deleted)";
    if (end - at == sizeof kVdso - 1 && memcmp(at, kVdso, sizeof kVdso - 1) == 0) {
        line.path = "linux-vdso.so.1";
        line.path_bytes = static_cast<u32>(strlen(line.path));
        return true;
    }
    if (at == end || *at != '/') return false;
    line.path = at;
    line.path_bytes = static_cast<u32>(end - at);
    if (line.path_bytes > sizeof kDeleted && memcmp(end - (sizeof kDeleted - 1), kDeleted, sizeof kDeleted - 1) == 0)
        line.path_bytes -= static_cast<u32>(sizeof kDeleted - 1);
    return true;
}

// Takes the lines in their order and gathers objects.
class Gathering {
public:
    Gathering(Scratch& scratch, const Snapshot* before) noexcept : scratch_(scratch), before_(before) {}

    void take(const Line& line) noexcept {
        if (line.inode != inode_) base_count_ = 0;
        inode_ = line.inode;
        // Of a small file the first page may be mapped more than once: as code, and as data.
        if (line.offset == 0) bases_[base_count_++ % kBases] = line.begin;
        if (!line.is_code || scratch_.count == kMostObjects) return;
        for (u32 back = 1; back <= base_count_ && back <= kBases; ++back) {
            CodeObject object;
            if (!read_headers(bases_[(base_count_ - back) % kBases], object) || line.begin < object.begin ||
                line.begin >= object.code_end)
                continue;
            add(object, line);
            return;
        }
    }

    bool has_news() const noexcept { return has_news_ || (before_ != nullptr && kept_ != before_->count); }
    bool lacks_some() const noexcept { return before_ != nullptr && kept_ != before_->count; }

private:
    void add(CodeObject& object, const Line& line) noexcept {
        if (scratch_.count != 0 && scratch_.entries[scratch_.count - 1].object->code_end > object.code_begin) return;
        const CodeObject* kept = object_like(before_, object);
        if (kept != nullptr) {
            ++kept_;
        } else {
            if (line.path_bytes > kPathsBytes - scratch_.path_bytes) return;
            char* const path = scratch_.paths + scratch_.path_bytes;
            memcpy(path, line.path, line.path_bytes);
            scratch_.path_bytes += line.path_bytes;
            object.path = path;
            object.path_bytes = line.path_bytes;
            has_news_ = true;
            kept = &(scratch_.fresh[scratch_.fresh_count++] = object);
        }
        scratch_.entries[scratch_.count++] = {kept->code_begin, kept};
    }

    static constexpr u32 kBases = 4;
    Scratch& scratch_;
    const Snapshot* before_;
    u64 inode_ = 0;
    u64 bases_[kBases];
    u32 base_count_ = 0;
    u32 kept_ = 0;
    bool has_news_ = false;
};

void* map(u64 bytes) noexcept {
    void* const place =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return place == MAP_FAILED ? nullptr : place;
}

bool read_maps(Scratch& scratch, Gathering& gathering) noexcept {
    const int file = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    if (file < 0) return false;
    u64 filled = 0;
    ssize_t got = 0;
    while ((got = read(file, scratch.text + filled, kTextBytes - filled)) > 0) {
        filled += static_cast<u64>(got);
        const char* at = scratch.text;
        const char* const end = at + filled;
        while (const auto* newline = static_cast<const char*>(memchr(at, '\n', static_cast<u64>(end - at)))) {
            Line line;
            if (parse(at, newline, line)) gathering.take(line);
            at = newline + 1;
        }
        filled = static_cast<u64>(end - at);
        if (filled > kTextBytes / 2) filled = 0;  // no line is so long
        memmove(scratch.text, at, filled);
    }
    close(file);
    return got == 0;
}

// As small as it may be, since it stays.
const Snapshot* snapshot_of(const Scratch& scratch) noexcept {
    const u64 entries = sizeof(Snapshot) + scratch.count * sizeof(Entry);
    const u64 objects = scratch.fresh_count * sizeof(CodeObject);
    const u64 bytes = (entries + objects + scratch.path_bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
    auto* const place = static_cast<char*>(map(bytes));
    if (place == nullptr) return nullptr;
    auto* const snapshot = reinterpret_cast<Snapshot*>(place);
    auto* const fresh = reinterpret_cast<CodeObject*>(place + entries);
    char* const paths = place + entries + objects;
    memcpy(paths, scratch.paths, scratch.path_bytes);
    for (u32 i = 0; i < scratch.fresh_count; ++i) {
        fresh[i] = scratch.fresh[i];
        fresh[i].path = paths + (scratch.fresh[i].path - scratch.paths);
    }
    snapshot->bytes = bytes;
    snapshot->count = scratch.count;
    for (u32 i = 0, next = 0; i < scratch.count; ++i) {
        const bool is_fresh = next < scratch.fresh_count && scratch.entries[i].object == &scratch.fresh[next];
        snapshot->entries[i] = {scratch.entries[i].code_begin, is_fresh ? &fresh[next++] : scratch.entries[i].object};
    }
    return snapshot;
}

// What is mapped now; nullptr when it was not looked at, or nothing is new since `before`.
const Snapshot* read_again(const Snapshot* before, bool& looked) noexcept {
    looked = false;
    if (const Snapshot* const now = g_snapshot.load(std::memory_order_acquire); now != before) {
        looked = true;
        return now;  // another thread has read it meanwhile
    }
    if (monotonic_ns() < g_next_reading.load(std::memory_order_relaxed) ||
        g_bytes.load(std::memory_order_relaxed) >= kMostBytes)
        return nullptr;
    auto* const scratch = static_cast<Scratch*>(map(sizeof(Scratch)));
    if (scratch == nullptr) return nullptr;
    Gathering gathering(*scratch, before);
    looked = read_maps(*scratch, gathering);
    const Snapshot* const fresh = looked && gathering.has_news() ? snapshot_of(*scratch) : nullptr;
    munmap(scratch, sizeof(Scratch));
    if (fresh == nullptr) {
        if (g_vain_readings.fetch_add(1, std::memory_order_relaxed) >= kVainReadings)
            g_next_reading.store(monotonic_ns() + kPause, std::memory_order_relaxed);
        return nullptr;
    }
    const Snapshot* current = before;
    if (!g_snapshot.compare_exchange_strong(current, fresh, std::memory_order_acq_rel)) {
        munmap(const_cast<Snapshot*>(fresh), fresh->bytes);  // nobody has seen it
        return current;
    }
    g_bytes.fetch_add(fresh->bytes, std::memory_order_relaxed);
    if (gathering.lacks_some()) forget_rules();
    return fresh;
}

}  // namespace

Sight code_object_at(u64 address, CodeObject& out) noexcept {
    const int error = errno;
    Sight sight = Sight::UNKNOWN;
    const Snapshot* snapshot = g_snapshot.load(std::memory_order_acquire);
    for (u32 attempt = 0; attempt < 3; ++attempt) {
        const CodeObject* const object = search(snapshot, address);
        if (object != nullptr && is_still_there(*object)) {
            out = *object;
            sight = Sight::KNOWN;
            break;
        }
        bool looked = false;
        snapshot = read_again(snapshot, looked);
        if (looked && snapshot == nullptr) sight = Sight::NOTHING;
        if (snapshot == nullptr) break;
    }
    errno = error;
    return sight;
}

bool is_code(u64 address) noexcept {
    if (search(g_snapshot.load(std::memory_order_acquire), address) != nullptr) return true;
    CodeObject object;
    return code_object_at(address, object) == Sight::KNOWN;
}

}  // namespace memscope
