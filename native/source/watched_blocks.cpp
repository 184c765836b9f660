#include "source/watched_blocks.h"

#include <sys/mman.h>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "hook/blocks.h"
#include "hook/devices.h"
#include "hook/fork.h"
#include "hook/guard.h"
#include "hook/selection.h"
#include "hook/settings.h"
#include "hook/spin_lock.h"
#include "record/ring.h"
#include "source/block_memory.h"
#include "source/content_files.h"
#include "source/crc64.h"
#include "stack/stacks.h"

namespace memscope {

std::atomic<u32> g_watches{0};

namespace {

constexpr u32 kMostBlocks = 32;
constexpr u64 kMostShadowBytes = u64{256} << 20;
constexpr u64 kPieceBytes = u64{4} << 20;
constexpr u64 kPatience = 50'000'000;  // ns that a thread waits for another's look
constexpr u32 kMostName = 255;         // bytes, of a watch

// --- the blocks -------------------------------------------------------------------------------------------------

enum class State : u32 { FREE, CHANGING, WATCHED };

struct WatchedBlock {
    std::atomic<State> state;
    std::atomic<bool> busy;  // somebody looks at it, or ends it
    std::atomic<u32> gone;   // 1 + a WatchEnd that came while somebody looked
    // Fixed while it is watched.
    u64 ptr, bytes, storage;
    DeviceType device_type;
    i16 device;  // as recorded
    char name[kMostName + 1];
    u32 output;
    bool by_command;
    // Of whoever is `busy`.
    i64 looks_left;     // -1: no end
    bool is_announced;  // its BEGAN is in the ring, and `checksum` is what it was since
    u64 checksum;
    u8* shadow;  // what it was; nullptr: too large
    u8* piece;
    u64 piece_bytes;
};
WatchedBlock g_blocks[kMostBlocks];
std::atomic<u64> g_shadow_bytes{0};
std::atomic<bool> g_is_armed{false};  // --watch has a START

bool is_watched(const WatchedBlock& block) noexcept {
    return block.state.load(std::memory_order_acquire) == State::WATCHED;
}

u32 place_of(const WatchedBlock& block) noexcept { return static_cast<u32>(&block - g_blocks); }

// A thread's turn with a block. Looking takes as long as a device takes: so nobody waits for it for ever.
class Turn {
public:
    explicit Turn(WatchedBlock& block) noexcept
        : block_(block), has_(!block.busy.exchange(true, std::memory_order_acquire)) {
        if (has_) return;
        const u64 deadline = monotonic_ns() + kPatience;
        for (u32 looks = 0; !has_ && monotonic_ns() < deadline;) {
            wait_a_moment(looks);
            has_ = !block.busy.exchange(true, std::memory_order_acquire);
        }
    }
    ~Turn() {
        if (has_) block_.busy.store(false, std::memory_order_release);
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    explicit operator bool() const noexcept { return has_; }

private:
    WatchedBlock& block_;
    bool has_;
};

u8* map(u64 bytes) noexcept {
    void* const place = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return place == MAP_FAILED ? nullptr : static_cast<u8*>(place);
}

void give_back_memory(WatchedBlock& block) noexcept {
    if (block.shadow != nullptr) {
        munmap(block.shadow, block.bytes);
        g_shadow_bytes.fetch_sub(block.bytes, std::memory_order_relaxed);
    }
    if (block.piece != nullptr) munmap(block.piece, block.piece_bytes);
    block.shadow = block.piece = nullptr;
}

bool take_memory(WatchedBlock& block) noexcept {
    block.piece_bytes = block.bytes < kPieceBytes ? block.bytes : kPieceBytes;
    block.piece = map(block.piece_bytes);
    block.shadow = nullptr;
    if (g_shadow_bytes.fetch_add(block.bytes, std::memory_order_relaxed) + block.bytes <= kMostShadowBytes)
        block.shadow = map(block.bytes);
    if (block.shadow == nullptr) {
        g_shadow_bytes.fetch_sub(block.bytes, std::memory_order_relaxed);
        report_lost("watch",
                    "blocks of more than 256 MiB in all are watched: of some it is not known which bytes change");
    }
    return block.piece != nullptr;
}

// --- a look -----------------------------------------------------------------------------------------------------

struct Change {
    u64 first, last;
    bool is_any;

    void note(u64 from, u64 to) noexcept {
        if (!is_any) first = from;
        last = to;
        is_any = true;
    }
};

// Notes where `now` differs from `before`, which begins at `place` of its block.
void compare(const u8* before, const u8* now, u64 bytes, u64 place, Change& change) noexcept {
    if (memcmp(before, now, bytes) == 0) return;
    u64 first = 0, last = bytes - 1;
    while (before[first] == now[first]) ++first;
    while (before[last] == now[last]) --last;
    change.note(place + first, place + last);
}

// Reads the block and brings `checksum` and its shadow up to now. False: it cannot be read.
bool read_anew(WatchedBlock& block, bool is_first, Change& change, ContentFile* file) noexcept {
    Crc64 sum;
    for (u64 at = 0; at < block.bytes; at += block.piece_bytes) {
        const u64 count = block.bytes - at < block.piece_bytes ? block.bytes - at : block.piece_bytes;
        if (!copy_from(block.device_type, block.ptr + at, block.piece, count)) return false;
        if (file != nullptr) file->add(block.piece, count);
        if (block.shadow == nullptr) {
            sum.add(block.piece, count);
            continue;
        }
        Change here = {};
        if (!is_first) compare(block.shadow + at, block.piece, count, at, here);
        if (is_first || here.is_any) memcpy(block.shadow + at, block.piece, count);
        if (here.is_any) change.note(here.first, here.last);
    }
    if (block.shadow != nullptr && !is_first && !change.is_any) return true;  // its checksum is what it was
    if (block.shadow != nullptr) sum.add(block.shadow, block.bytes);
    if (block.shadow == nullptr && !is_first && sum.value() != block.checksum) change = {0, block.bytes - 1, true};
    block.checksum = sum.value();
    return true;
}

Event event_of(const WatchedBlock& block, WatchMoment moment, u32 more) noexcept {
    Event event(Kind::WATCH);
    event.record.ptr = block.ptr;
    event.record.size = static_cast<i64>(block.bytes);
    event.record.device_type = static_cast<u8>(block.device_type);
    event.record.device = block.device;
    event.record.attr = block.checksum;
    event.record.aux = static_cast<u32>(moment) + 8 * place_of(block) + more;
    return event;
}

// The first thing that is written of a block, with what it holds now.
bool announce(WatchedBlock& block) noexcept {
    Change none = {};
    if (!read_anew(block, true, none, nullptr)) return false;
    Event event = event_of(block, WatchMoment::BEGAN, 0);
    event.record.name = intern_text(block.name, strlen(block.name));
    event.record.used = block.output;
    event.record.total = block.by_command ? 1 : 0;
    event.record.stack_py = capture_python_stack(event.flags);
    emit(event);
    block.is_announced = true;
    return true;
}

// Needs the block's turn.
void finish(WatchedBlock& block, WatchEnd why) noexcept {
    if (block.is_announced && is_recording() && has_ring()) {
        Event event = event_of(block, WatchMoment::ENDED, 0);
        event.record.name = intern_text(block.name, strlen(block.name));
        event.record.total = static_cast<i64>(why);
        emit(event);
    }
    give_back_memory(block);
    block.state.store(State::FREE, std::memory_order_release);
    g_watches.fetch_sub(1, std::memory_order_relaxed);
}

// `<card>_<thread>/<operator>_<times>-<watch>_<output>_<before|after>`, upstream's words, with a dot for each slash;
// an operator of ATB has its path in the place of the first two. A name that no file may have is cut in its middle.
struct EntryName {
    char text[ContentFile::kMostName + 1];

    EntryName(const WatchedBlock& block, const Looked& looked, WatchMoment moment) noexcept {
        char whole[2 * kMostName + 100];
        char origin[48] = "";
        if (!looked.is_of_atb() && block.device_type == DeviceType::CPU)
            snprintf(origin, sizeof origin, "cpu_%u/", current_tid());
        else if (!looked.is_of_atb())
            snprintf(origin, sizeof origin, "%d_%u/", block.device, current_tid());
        const int length =
            snprintf(whole, sizeof whole, "%s%.*s_%u-%s_%u_%s", origin,
                     static_cast<int>(looked.bytes < kMostName ? looked.bytes : kMostName), looked.text, looked.times,
                     block.name, block.output, moment == WatchMoment::BEFORE ? "before" : "after");
        const auto bytes = length > 0 ? static_cast<std::size_t>(length) : 0;
        for (std::size_t i = 0; i < bytes; ++i)
            if (whole[i] == '/') whole[i] = '.';
        if (bytes < sizeof text) {
            memcpy(text, whole, bytes + 1);
        } else {  // told apart by what is the hash of all of it
            constexpr std::size_t kEnd = 100;
            snprintf(text, sizeof text, "%.120s~%016llx~%.100s", whole,
                     static_cast<unsigned long long>(text_id(whole, bytes)), whole + bytes - kEnd);
        }
    }
};

void look(WatchedBlock& block, const Looked& looked, WatchMoment moment) noexcept {
    const Turn turn(block);
    if (!turn) return report_lost("watch", "threads looked at one block at the same time: some looks are left out");
    if (!is_watched(block)) return;
    if (const u32 gone = block.gone.load(std::memory_order_acquire))
        return finish(block, static_cast<WatchEnd>(gone - 1));
    if (!is_selected(block.device_type, block.device)) return finish(block, WatchEnd::UNSELECTED);
    if (!block.is_announced && !announce(block)) return finish(block, WatchEnd::UNREADABLE);
    Change change = {};
    bool is_readable = false;
    if (are_contents_written()) {
        ContentFile file(EntryName(block, looked, moment).text, block.bytes);
        is_readable = read_anew(block, false, change, &file);
        if (is_readable) file.finish();
    } else {
        is_readable = read_anew(block, false, change, nullptr);
    }
    if (!is_readable) return finish(block, WatchEnd::UNREADABLE);
    const u32 times = looked.times < (1u << 22) ? looked.times : (1u << 22) - 1;
    Event event = event_of(block, moment, 256 * static_cast<u32>(looked.what) + 1024 * times);
    event.flags = looked.flags;
    event.record.name = looked.name;
    event.record.stack_py = looked.stack;
    if (change.is_any) {
        event.record.used = static_cast<i64>(change.first);
        event.record.total = static_cast<i64>(change.last - change.first + 1);
    }
    emit(event);
    if (const u32 gone = block.gone.load(std::memory_order_acquire))
        return finish(block, static_cast<WatchEnd>(gone - 1));
    if (block.looks_left > 0 && --block.looks_left == 0) finish(block, WatchEnd::DUMPED);
}

// Whether what runs can have to do with the block: its own device, and the host, from which a card may read and write.
bool concerns(const WatchedBlock& block, const Looked& looked) noexcept {
    if (!is_watched(block) || (looked.what == WatchBeside::KERNEL && block.by_command)) return false;
    if (block.device_type == DeviceType::CPU) return true;
    return block.device_type == looked.device_type && block.device == looked.device;
}

void look_at_all(const Looked& looked, WatchMoment moment) noexcept {
    if (is_capturing(looked.device_type))
        return report_lost("watch", "a stream was captured into a graph: meanwhile watched blocks were not looked at");
    for (WatchedBlock& block : g_blocks)
        if (concerns(block, looked)) look(block, looked, moment);
}

// Ends the block unless somebody looks at it for longer than anybody waits, who then does it.
void end(WatchedBlock& block, WatchEnd why) noexcept {
    const Turn turn(block);
    if (!turn) return block.gone.store(1 + static_cast<u32>(why), std::memory_order_release);
    if (is_watched(block)) finish(block, why);
}

// --- who begins them ----------------------------------------------------------------------------------------------

// 0, or an errno.
int begin(const Output& range, const char* name, u32 output, bool by_command, i64 looks) noexcept {
    for (WatchedBlock& block : g_blocks) {
        State state = State::FREE;
        if (!block.state.compare_exchange_strong(state, State::CHANGING, std::memory_order_acq_rel)) continue;
        const Turn turn(block);
        if (!turn) {  // its last look is not over
            block.state.store(State::FREE, std::memory_order_release);
            continue;
        }
        block.ptr = range.address;
        block.bytes = static_cast<u64>(range.bytes);
        block.storage = range.storage;
        block.device_type = range.device_type;
        block.device = range.device;
        snprintf(block.name, sizeof block.name, "%s", name);
        block.output = output;
        block.by_command = by_command;
        block.looks_left = looks;
        block.is_announced = false;
        block.checksum = 0;
        block.gone.store(0, std::memory_order_relaxed);
        int error = take_memory(block) ? 0 : ENOMEM;
        Change none = {};
        if (error == 0) {
            const bool is_readable =
                is_recording() && ensure_ring() ? announce(block) : read_anew(block, true, none, nullptr);
            error = is_readable ? 0 : EFAULT;
        }
        if (error != 0) {
            give_back_memory(block);
            block.state.store(State::FREE, std::memory_order_release);
            return error;
        }
        g_watches.fetch_add(1, std::memory_order_relaxed);
        block.state.store(State::WATCHED, std::memory_order_release);
        return 0;
    }
    return ENOSPC;
}

// --- --watch ------------------------------------------------------------------------------------------------------

// An operator's name as it is, or the end of a path of ATB's.
bool is_named(const char* text, u32 bytes, const char* name) noexcept {
    const std::size_t wanted = strlen(name);
    if (wanted == 0 || bytes < wanted || memcmp(text + bytes - wanted, name, wanted) != 0) return false;
    return bytes == wanted || text[bytes - wanted - 1] == '/';
}

void end_those_of_command() noexcept {
    for (WatchedBlock& block : g_blocks)
        if (is_watched(block) && block.by_command) end(block, WatchEnd::FINISHED);
}

std::atomic<u32> g_starts{0};  // how often START has ended

void begin_outputs(const Looked& looked, const Output* outputs, u32 count) noexcept {
    const u32 wanted = g_settings.watch_output.load(std::memory_order_relaxed);
    Looked start = looked;
    start.times = g_starts.fetch_add(1, std::memory_order_relaxed) + 1;
    for (u32 i = 0; i < count; ++i) {
        if ((wanted != kEveryOutput && wanted != i) || outputs[i].address == 0 || outputs[i].bytes <= 0) continue;
        if (!is_selected(outputs[i].device_type, outputs[i].device)) continue;
        const int error = begin(outputs[i], g_settings.watch_start, i, true, -1);
        if (error == ENOSPC) return report_lost("watch", "32 blocks are watched: some outputs of START are left out");
        if (error != 0) {
            report_lost("watch", "an output of START cannot be read, and is not watched");
            continue;
        }
        for (WatchedBlock& block : g_blocks)
            if (is_watched(block) && block.by_command && block.output == i) look(block, start, WatchMoment::AFTER);
    }
}

// --- how often -----------------------------------------------------------------------------------------------------

struct Times {
    std::atomic<u64> name;
    std::atomic<u32> times;
};
constexpr u32 kMostNames = 4096;
Times g_times[kMostNames];

void begin_anew_in_child() noexcept {
    for (WatchedBlock& block : g_blocks) {
        if (block.state.load(std::memory_order_relaxed) != State::FREE) {
            if (block.shadow != nullptr) munmap(block.shadow, block.bytes);
            if (block.piece != nullptr) munmap(block.piece, block.piece_bytes);
            block.shadow = block.piece = nullptr;
        }
        block.state.store(State::FREE, std::memory_order_relaxed);
        block.busy.store(false, std::memory_order_relaxed);
    }
    for (Times& one : g_times)  // a page that is not written to stays its parent's
        if (one.times.load(std::memory_order_relaxed) != 0) one.times.store(0, std::memory_order_relaxed);
    g_starts.store(0, std::memory_order_relaxed);
    g_shadow_bytes.store(0, std::memory_order_relaxed);
    g_watches.store(g_is_armed.load(std::memory_order_relaxed) ? 1 : 0, std::memory_order_relaxed);
}
MEMSCOPE_AFTER_FORK(begin_anew_in_child);

}  // namespace

u32 count_look(u64 name) noexcept {
    for (u32 tried = 0, at = static_cast<u32>(mix64(name) % kMostNames); tried < 64;
         ++tried, at = (at + 1) % kMostNames) {
        u64 there = g_times[at].name.load(std::memory_order_acquire);
        if (there == 0 && g_times[at].name.compare_exchange_strong(there, name, std::memory_order_acq_rel))
            there = name;
        if (there == name) return g_times[at].times.fetch_add(1, std::memory_order_relaxed) + 1;
    }
    report_lost("watch", "too many different operators: of later ones it is not counted how often they were seen");
    return 1;
}

bool looks_at_device(const Looked& looked) noexcept {
    if (looked.device_type == DeviceType::CPU || is_capturing(looked.device_type)) return false;
    for (const WatchedBlock& block : g_blocks)
        if (concerns(block, looked)) return true;
    return false;
}

void look_before(const Looked& looked) noexcept { look_at_all(looked, WatchMoment::BEFORE); }

void look_after(const Looked& looked, const Output* outputs, u32 count) noexcept {
    look_at_all(looked, WatchMoment::AFTER);
    if (looked.what == WatchBeside::KERNEL) return;
    if (count != 0 && is_watch_start(looked.text, looked.bytes) && !is_capturing(looked.device_type)) {
        end_those_of_command();
        begin_outputs(looked, outputs, count);
    }
    if (is_named(looked.text, looked.bytes, g_settings.watch_end)) end_those_of_command();
}

bool is_watch_start(const char* text, u32 bytes) noexcept {
    return g_is_armed.load(std::memory_order_relaxed) && is_named(text, bytes, g_settings.watch_start);
}

bool is_range_watched(DeviceType type, u64 ptr, i64 bytes) noexcept {
    for (const WatchedBlock& block : g_blocks)
        if (is_watched(block) && block.device_type == type && ptr < block.ptr + block.bytes &&
            block.ptr < ptr + static_cast<u64>(bytes))
            return true;
    return false;
}

void watched_memory_freed(const Block& freed) noexcept {
    for (WatchedBlock& block : g_blocks)
        if (is_watched(block) && block.device_type == freed.device_type &&
            (freed.ptr == block.storage || (freed.ptr >= block.ptr && freed.ptr - block.ptr < block.bytes)))
            end(block, WatchEnd::FREED);
}

void watched_memory_allocated(const Block& given) noexcept {
    for (WatchedBlock& block : g_blocks)
        if (is_watched(block) && block.device_type == given.device_type && block.device == given.device &&
            given.size > 0 && given.ptr < block.ptr + block.bytes &&
            block.ptr < given.ptr + static_cast<u64>(given.size))
            end(block, WatchEnd::REUSED);
}

void watch_as_set() noexcept {
    const bool is_armed = g_settings.watch_start[0] != 0;
    if (g_is_armed.exchange(is_armed) == is_armed) return;
    if (is_armed)
        g_watches.fetch_add(1);
    else
        g_watches.fetch_sub(1);
}

void watch_anew() noexcept {
    if (!has_watches()) return;
    for (WatchedBlock& block : g_blocks) {
        const Turn turn(block);
        if (turn && is_watched(block)) block.is_announced = false;
    }
}

}  // namespace memscope

using namespace memscope;

#define MEMSCOPE_API extern "C" __attribute__((visibility("default")))

MEMSCOPE_API int memscope_watch(const memscope_watched* watched) {
    int error = 0;
    {
        const Guard guard;
        const auto type = static_cast<DeviceType>(watched->device_type);
        const auto device = static_cast<i16>(watched->device);
        const Output range = {type, type == DeviceType::NPU ? physical_device(device) : device, watched->ptr,
                              watched->storage, static_cast<i64>(watched->bytes)};
        if (!is_selected(type, range.device)) return ENODEV;
        for (WatchedBlock& block : g_blocks) {
            if (!is_watched(block) || block.by_command) continue;
            const bool is_same = block.ptr == watched->ptr && block.bytes == watched->bytes;
            const bool has_name = strcmp(block.name, watched->name) == 0;
            if (has_name && !is_same) return EEXIST;
            if (is_same && !has_name) return EBUSY;
            if (is_same) end(block, WatchEnd::REMOVED);  // begins anew, with its own number of looks
        }
        error = begin(range, watched->name, 0, false, watched->looks);
    }
    if (error == 0) operators_switched();
    return error;
}

MEMSCOPE_API int memscope_unwatch(unsigned long long ptr, unsigned long long bytes) {
    int error = ENOENT;
    {
        const Guard guard;
        for (WatchedBlock& block : g_blocks) {
            if (!is_watched(block) || block.by_command || block.ptr != ptr || block.bytes != bytes) continue;
            end(block, WatchEnd::REMOVED);
            error = 0;
        }
    }
    operators_switched();
    return error;
}
