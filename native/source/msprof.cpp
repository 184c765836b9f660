// Source: the runtime's task reports, through libprofapi.so: names and numbers of what was launched.
//
// Two callbacks are registered there. The hash callback turns a text into a number of our choice, and that is the
// string id the text will have in the ring. The compact information callback gets, on the launching thread and within
// the launch, the task that a launch became, with that number for its name.
#include "source/msprof.h"

#include <cstring>

#include "hook/fork.h"
#include "hook/guard.h"
#include "hook/recorder.h"
#include "hook/selection.h"
#include "hook/spin_lock.h"
#include "record/ring.h"
#include "source/launch.h"
#include "source/name_table.h"

namespace memscope {
namespace {

NameTable g_names;
std::atomic<u64> g_names_refused{0};

enum class Reports : u32 { NONE, ABSENT, STARTING, STARTED };  // ABSENT: libprofapi.so is not loaded yet
std::atomic<Reports> g_reports{Reports::NONE};
constexpr u64 kPatience = 20'000'000;  // ns that other threads' launches wait for their names

u64 hash_id(const char* text, std::size_t bytes) noexcept {
    if (text == nullptr || bytes == 0) return 0;
    if (bytes > kMaxTextBytes) bytes = kMaxTextBytes;
    const u64 id = text_id(text, bytes);
    if (!g_names.insert(id, text, static_cast<u32>(bytes))) {
        g_names_refused.fetch_add(1, std::memory_order_relaxed);
        report_lost("msprof", "the table of kernel names is full: later kernels have no name");
    }
    return id;
}

// The string id, defined in the ring.
u64 defined_name(u64 id) noexcept {
    const NameTable::Name name = g_names.find(id);
    if (name.text != nullptr) return intern_text(name.text, name.bytes);
    report_lost("msprof", "a kernel's name is not among those we were told");
    return 0;
}

void task_reported(const void* data) noexcept {
    msprof::TaskTrack track;
    memcpy(&track, data, sizeof track);
    if (track.name == 0) return;  // a copy, an event, a notification
    const Guard guard;
    if (!guard || !ensure_ring()) return;
    const u32 number = has_wide_tasks() ? track.task : track.task & 0xFFFF;
    task_launched({static_cast<i16>(track.device), track.stream, number}, defined_name(track.name));
}

i32 compact_info(u32, const void* data, u32 bytes) noexcept {
    if (!is_recording() || !is_wanted(Sort::KERNELS)) return 0;
    msprof::CompactHeader header;
    if (data == nullptr || bytes < sizeof header) {
        report_lost("msprof", "reports of a size we do not know are not read");
        return 0;
    }
    memcpy(&header, data, sizeof header);
    if (header.magic != msprof::kMagic) {
        report_lost("msprof", "reports with a mark we do not know are not read");
        return 0;
    }
    if (header.level != msprof::kRuntimeLevel) return 0;  // not the runtime's
    const u32 content = header.bytes < bytes - sizeof header ? header.bytes : bytes - static_cast<u32>(sizeof header);
    const char* const from = static_cast<const char*>(data) + sizeof header;
    if (header.type == msprof::kTaskTrack) {
        if (content >= sizeof(msprof::TaskTrack))
            task_reported(from);
        else
            report_lost("msprof", "task reports are shorter than we know them: launches have no name");
    } else if (header.type == msprof::kStreamExpand && content >= 1) {
        set_streams_expanded(*from == 1);
    }
    return 0;
}

template <typename Function>
bool register_callback(i32 type, Function callback) noexcept {
    const auto call = original_of<i32 (*)(i32, void*, u32)>(g_register_callback);
    return call(type, reinterpret_cast<void*>(callback), sizeof(void*)) == 0;
}

bool switch_on() noexcept {
    msprof::Command command = {};
    command.switches = msprof::kTaskTime | msprof::kRuntimeTrace;
    command.device_count = 1;  // the runtime's switch of task reports is one for all devices
    command.model = msprof::kAllModels;
    command.type = msprof::kStart;
    return original_of<i32 (*)(void*, u32)>(g_set_prof_command)(&command, sizeof command) == 0;
}

// Libraries that are loaded later are noticed (patch.h), and then these are there.
bool has_callbacks() noexcept {
    return g_register_callback.load(std::memory_order_acquire) != nullptr &&
           g_set_prof_command.load(std::memory_order_acquire) != nullptr;
}

Reports register_callbacks() noexcept {
    if (!has_callbacks()) {
        report_blind("msprof", "no libprofapi.so with callbacks was loaded: launches have no name until one is");
        return Reports::ABSENT;
    }
    if (!register_callback(msprof::kHashIdCallback, hash_id) ||
        !register_callback(msprof::kCompactInfoCallback, compact_info) || !switch_on())
        report_blind("msprof", "libprofapi.so refused our callbacks: launches have no name");
    return Reports::STARTED;
}

void begin_anew_in_child() noexcept {
    g_names.unlock_after_fork();
    if (g_reports.load(std::memory_order_relaxed) == Reports::STARTING)
        g_reports.store(Reports::NONE, std::memory_order_relaxed);
}
MEMSCOPE_AFTER_FORK(begin_anew_in_child);

}  // namespace

void start_task_reports() noexcept {
    if (__builtin_expect(g_reports.load(std::memory_order_acquire) == Reports::STARTED, 1)) return;
    Reports state = g_reports.load(std::memory_order_acquire);
    if (state == Reports::ABSENT && !has_callbacks()) return;
    if ((state == Reports::NONE || state == Reports::ABSENT) &&
        g_reports.compare_exchange_strong(state, Reports::STARTING, std::memory_order_acq_rel)) {
        g_reports.store(register_callbacks(), std::memory_order_release);
        return;
    }
    const u64 deadline = monotonic_ns() + kPatience;
    for (u32 looks = 0; g_reports.load(std::memory_order_acquire) == Reports::STARTING && monotonic_ns() < deadline;)
        wait_a_moment(looks);
}

u64 refused_names() noexcept { return g_names_refused.load(std::memory_order_relaxed); }

void kernel_text(u64 name, const char*& text, u32& bytes) noexcept {
    if (const NameTable::Name known = g_names.find(name); known.text != nullptr) {
        text = known.text;
        bytes = known.bytes;
    }
}

bool has_wide_tasks() noexcept {
    enum : u32 { UNKNOWN, NARROW, WIDE };
    static std::atomic<u32> known{UNKNOWN};
    if (__builtin_expect(known.load(std::memory_order_relaxed) == UNKNOWN, 0)) {
        const auto ask = original_of<const char* (*)()>(g_soc_name);
        const char* const soc = ask == nullptr ? nullptr : ask();
        if (soc == nullptr) return false;  // not initialised yet: ask again
        known.store(strstr(soc, "950") != nullptr || strstr(soc, "960") != nullptr ? WIDE : NARROW,
                    std::memory_order_relaxed);
    }
    return known.load(std::memory_order_relaxed) == WIDE;
}

}  // namespace memscope
