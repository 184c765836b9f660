// Source: when each task began and ended on its card, from the driver's task log (profiling channel 50).
//
// A launch starts the log of its device before it goes on, and leaves its name under the task's numbers. One thread per
// process reads the logs of all devices, finds the launch of each entry and records KERNEL_START and KERNEL_END on the
// host's clock. It sleeps between reads, longer when nothing comes, and calls into the driver with no lock held: a read
// that hangs keeps neither a launch nor the end of the process.
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <time.h>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

#include "hook/fork.h"
#include "hook/guard.h"
#include "hook/recorder.h"
#include "hook/selection.h"
#include "source/device_clock.h"
#include "source/launch.h"
#include "source/task_log.h"
#include "source/task_table.h"

namespace memscope {
namespace {

constexpr u32 kChannel = 50;
constexpr u32 kMostDevices = 64;
constexpr u32 kBufferBytes = 256 << 10;
constexpr u32 kMostFailedReads = 50;                                 // in a row
constexpr u64 kShortestPause = 200'000, kLongestPause = 20'000'000;  // ns
constexpr u64 kFirstSample = 60'000'000, kSamples = 1'000'000'000;   // ns between looks at a device's clock
// ns from when a task began or ended until its launch must have been reported: the launching thread may lose its core
// between the two.
constexpr u64 kPatience = 50'000'000;
constexpr u64 kRetry = 2'000'000;       // ns between looks whether it has been
constexpr u64 kStopping = 200'000'000;  // ns

enum class LogState : u32 { NONE, ABSENT, STARTING, RUNNING, FAILED };  // ABSENT: no driver with a log is loaded yet
struct Log {
    std::atomic<LogState> state{LogState::NONE};
    // The reader's own:
    DeviceClock clock;
    u64 next_sample = 0;
    u64 sample_interval = 0;
    u32 failed_reads = 0;
};
Log g_logs[kMostDevices];

enum class ReaderState : u32 { NONE, RUNNING, STOPPING };
std::atomic<ReaderState> g_reader{ReaderState::NONE};

TaskTable g_tasks;
std::atomic<bool> g_expanded{false};
std::atomic<u64> g_launched{0}, g_timed{0}, g_forgotten{0}, g_foreign{0};

// Entries whose launch is not known yet.
struct Deferred {
    u64 key;
    u64 ts;
    u64 since;  // when it happened, or was read when that is not known
    u32 task;
    i16 device;
    bool is_end, is_converted;
};
constexpr u32 kMostDeferred = 1u << 13;
Deferred g_deferred[kMostDeferred];
u32 g_deferred_count = 0;
bool g_has_deferred = false;  // ever
// How many have a key with that hash. Far more places than entries, so that few wait behind a stranger.
constexpr u32 kDeferredCounters = 1u << 16;
u16 g_deferred_like[kDeferredCounters];
u64 g_next_retry = 0;
char* g_buffer = nullptr;

constexpr const char* kNotSeenToEnd = "some launched kernels were not seen to end: they have no times";

void pause_ns(u64 ns) noexcept {
    const timespec time = {static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
    nanosleep(&time, nullptr);
}

u64 key_of(i16 device, u32 stream, u32 task) noexcept {
    const u64 wide_or_stream = has_wide_tasks() ? task : u64{stream & 0xFFFF} << 16 | (task & 0xFFFF);
    return u64{1} << 63 | static_cast<u64>(device) << 32 | wide_or_stream;
}

// --- what the log says -----------------------------------------------------------------------------------------

bool record(const Deferred& entry) noexcept {
    u64 ts = entry.ts;
    Launched launched = {};
    if (!(entry.is_end ? g_tasks.end(entry.key, ts, launched) : g_tasks.begin(entry.key, ts, launched))) return false;
    if (entry.is_end) g_timed.fetch_add(1, std::memory_order_relaxed);
    if (!has_ring()) return true;  // a kernel that was launched while recording was on has its times, whenever it runs
    Event event(entry.is_end ? Kind::KERNEL_END : Kind::KERNEL_START);
    if (entry.is_converted) event.flags = static_cast<u8>(Flag::DEVICE_TIME);
    event.record.ts = ts;
    event.record.tid = launched.tid;
    event.record.step = launched.step;
    event.record.name = launched.name;
    event.record.ptr = launched.stream;
    event.record.attr = entry.task;
    event.record.device = entry.device;
    event.record.device_type = static_cast<u8>(DeviceType::NPU);
    emit(event);
    return true;
}

// Begin and end of a task stay in order: what has the number of a waiting entry (or shares a counter with one) waits
// behind it.
u16& deferred_like(u64 key) noexcept { return g_deferred_like[mix64(key) % kDeferredCounters]; }

void defer(const Deferred& entry) noexcept {
    g_has_deferred = true;
    g_deferred[g_deferred_count++] = entry;
    ++deferred_like(entry.key);
}

void forget_deferred() noexcept {
    if (!g_has_deferred) return;  // a process without cards forks without touching all of this
    g_deferred_count = 0;
    memset(g_deferred_like, 0, sizeof g_deferred_like);
}

// Nobody launched it, as far as we wait. While nothing is recorded launches are not told, and there is nothing to wait
// for.
bool is_foreign(const Deferred& entry, u64 now) noexcept { return now > entry.since + kPatience || !is_recording(); }

// Of those that still have no launch, at most the `keep` newest go on waiting.
void retry_deferred(u32 keep) noexcept {
    const u32 count = g_deferred_count;
    if (count == 0) return;
    const u64 now = monotonic_ns();
    g_next_retry = now + kRetry;
    for (u32 i = 0; i < count; ++i) --deferred_like(g_deferred[i].key);
    g_deferred_count = 0;
    for (u32 i = 0; i < count; ++i) {
        const Deferred entry = g_deferred[i];
        const bool is_first = deferred_like(entry.key) == 0;
        if (is_first && record(entry)) continue;
        // Who waits behind another has not been tried, however old it is.
        if (count - i > keep || (is_first && is_foreign(entry, now)))
            g_foreign.fetch_add(1, std::memory_order_relaxed);
        else
            defer(entry);
    }
}

void record_or_defer(const Deferred& entry, u64 now) noexcept {
    const bool is_first = deferred_like(entry.key) == 0;
    if (is_first && record(entry)) return;
    if (is_first && is_foreign(entry, now)) {
        g_foreign.fetch_add(1, std::memory_order_relaxed);
        return;
    }
    // The oldest give way: an entry that nobody launched must not cost a kernel its times.
    if (g_deferred_count == kMostDeferred) retry_deferred(kMostDeferred / 2);
    defer(entry);
}

void take_entries(i16 device, const Log& log, u32 bytes) noexcept {
    const bool is_wide = has_wide_tasks(), is_expanded = g_expanded.load(std::memory_order_relaxed);
    const u32 step = log_entry_bytes(is_wide);
    const u64 now = monotonic_ns();
    for (u32 at = 0; at + step <= bytes; at += step) {
        LogEntry read;
        if (!read_log_entry(g_buffer + at, is_wide, is_expanded, read)) continue;
        const bool is_converted = log.clock.is_known();
        const u64 ts = is_converted ? log.clock.host_ns(read.counter) : now;
        const u64 since = ts < now ? ts : now;
        record_or_defer(
            {key_of(device, read.stream, read.task), ts, since, read.task, device, read.is_end, is_converted}, now);
    }
}

// --- the reader ------------------------------------------------------------------------------------------------

void look_at_clock(u32 device, Log& log) noexcept {
    const u64 now = monotonic_ns();
    if (now < log.next_sample) return;
    const auto query = original_of<DeviceClock::Query>(g_device_info);
    if (query == nullptr || !log.clock.sample(query, device))
        report_lost("kernel_times",
                    "the driver does not tell a device's clock: times of kernels are when we read them");
    log.next_sample = now + log.sample_interval;
    log.sample_interval = kSamples;
}

// Bytes read; 0: there was nothing.
u32 read_log(u32 device, Log& log) noexcept {
    look_at_clock(device, log);
    const auto read = original_of<i32 (*)(u32, u32, char*, u32)>(g_prof_read);
    const i32 bytes = read == nullptr ? -1 : read(device, kChannel, g_buffer, kBufferBytes);
    if (bytes < 0 && ++log.failed_reads > kMostFailedReads) {
        log.state.store(LogState::FAILED, std::memory_order_release);
        report_lost("kernel_times", "the driver's task log cannot be read any more: later kernels have no times");
    }
    if (bytes <= 0 || static_cast<u32>(bytes) > kBufferBytes) return 0;
    log.failed_reads = 0;
    take_entries(static_cast<i16>(device), log, static_cast<u32>(bytes));
    return static_cast<u32>(bytes);
}

u32 read_logs() noexcept {
    u32 most = 0;
    if (monotonic_ns() >= g_next_retry) retry_deferred(kMostDeferred);
    for (u32 device = 0; device < kMostDevices; ++device) {
        Log& log = g_logs[device];
        if (log.state.load(std::memory_order_acquire) != LogState::RUNNING) continue;
        const u32 bytes = read_log(device, log);
        if (bytes > most) most = bytes;
    }
    return most;
}

// How many kernels have been launched and not seen to end, also of those that still run.
void tell_untimed() noexcept {
    const u64 launched = g_launched.load(std::memory_order_relaxed), timed = g_timed.load(std::memory_order_relaxed);
    if (timed >= launched || !has_ring()) return;
    report_lost("kernel_times", kNotSeenToEnd);
    char text[64];
    snprintf(text, sizeof text, "%llu of %llu", static_cast<unsigned long long>(launched - timed),
             static_cast<unsigned long long>(launched));
    emit_meta("kernel_times.untimed", text);
}

void stop_logs() noexcept {
    const u64 deadline = monotonic_ns() + kStopping / 2;
    while (read_logs() != 0 && monotonic_ns() < deadline) {
    }
    retry_deferred(0);
    tell_untimed();
    const auto stop = original_of<i32 (*)(u32, u32)>(g_prof_stop);
    for (u32 device = 0; device < kMostDevices; ++device) {
        LogState running = LogState::RUNNING;
        if (g_logs[device].state.compare_exchange_strong(running, LogState::NONE, std::memory_order_acq_rel) &&
            stop != nullptr)
            stop(device, kChannel);
    }
}

bool has_logs() noexcept {
    for (const Log& log : g_logs)
        if (log.state.load(std::memory_order_acquire) == LogState::RUNNING) return true;
    return false;
}

void* reader_thread(void*) {
    const Guard guard;  // whatever the driver does for us is nobody's event
    prctl(PR_SET_NAME, "memscope-kernel");
    for (;;) {
        u64 pause = kShortestPause;
        while (g_reader.load(std::memory_order_acquire) == ReaderState::RUNNING) {
            const u32 most = read_logs();
            if (most > kBufferBytes / 2) continue;
            pause = most != 0 ? kShortestPause : pause < kLongestPause / 2 ? 2 * pause : kLongestPause;
            pause_ns(pause);
        }
        stop_logs();
        g_reader.store(ReaderState::NONE, std::memory_order_release);
        // A launch may have started a log in the meantime, and found us here.
        ReaderState none = ReaderState::NONE;
        if (!has_logs() || !g_reader.compare_exchange_strong(none, ReaderState::RUNNING)) return nullptr;
    }
}

bool create_thread() noexcept {
    static bool is_told_of_exit = false;  // only one thread at a time comes here
    if (!is_told_of_exit) is_told_of_exit = atexit(stop_kernel_times) == 0;
    if (g_buffer == nullptr) {
        void* const place = mmap(nullptr, kBufferBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (place == MAP_FAILED) return false;
        g_buffer = static_cast<char*>(place);
    }
    // The program's signals are for its own threads.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_t thread;
    const bool is_made = pthread_create(&thread, nullptr, reader_thread, nullptr) == 0;
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (is_made) pthread_detach(thread);
    return is_made;
}

void ensure_reader() noexcept {
    ReaderState none = ReaderState::NONE;
    if (!g_reader.compare_exchange_strong(none, ReaderState::RUNNING, std::memory_order_acq_rel)) return;
    if (create_thread()) return;
    g_reader.store(ReaderState::NONE, std::memory_order_release);
    report_lost("kernel_times", "no thread could be made: kernels have no times");
}

bool start_log(u32 device) noexcept {
    struct {
        u32 type;  // 0: of the task scheduler
        u32 sample_period;
        u32 is_real_time;
        u32* settings;
        u32 settings_bytes;
    } parameters;
    // acsq_task, acc_pmu, cdqm_reg, vpc, jpegd, jpege, ffts_thread_task, ffts_block, sdma_dmu; since A5 tag,
    // block_shrink
    u32 settings[11] = {1, 0, 0, 0, 0, 0, 1};
    parameters = {0, 20, 1, settings, static_cast<u32>((has_wide_tasks() ? 11 : 9) * sizeof settings[0])};
    return original_of<i32 (*)(u32, u32, void*)>(g_prof_start)(device, kChannel, &parameters) == 0;
}

// Libraries that are loaded later are noticed (patch.h), and then these are there.
bool has_driver_log() noexcept {
    return g_prof_read.load(std::memory_order_acquire) != nullptr &&
           g_prof_start.load(std::memory_order_acquire) != nullptr;
}

// Not RUNNING, and told, when this process cannot know when kernels run on the device.
LogState open_log(u32 device) noexcept {
    if (!has_driver_log()) {
        report_lost("kernel_times", "no driver with a task log was loaded: kernels have no times until one is");
        return LogState::ABSENT;
    }
    if (g_tasks.create() && start_log(device)) return LogState::RUNNING;
    report_lost("kernel_times",
                "the driver's task log could not be started (another profiler?): kernels have no times");
    return LogState::FAILED;
}

void begin_anew_in_child() noexcept {
    g_reader.store(ReaderState::NONE, std::memory_order_relaxed);
    for (Log& log : g_logs) {
        log.state.store(LogState::NONE, std::memory_order_relaxed);
        log.clock = DeviceClock();
    }
    forget_deferred();
    g_tasks.clear_after_fork();
    for (auto* count : {&g_launched, &g_timed, &g_forgotten, &g_foreign}) count->store(0, std::memory_order_relaxed);
}
MEMSCOPE_AFTER_FORK(begin_anew_in_child);

}  // namespace

bool read_kernel_times(i16 device) noexcept {
    if (device < 0 || static_cast<u32>(device) >= kMostDevices) return true;
    Log& log = g_logs[device];
    LogState state = log.state.load(std::memory_order_acquire);
    if (state == LogState::ABSENT && !has_driver_log()) return false;
    if (state != LogState::NONE && state != LogState::ABSENT) return true;
    if (!log.state.compare_exchange_strong(state, LogState::STARTING, std::memory_order_acq_rel)) return true;
    const LogState opened = open_log(static_cast<u32>(device));
    log.next_sample = 0;
    log.sample_interval = kFirstSample;
    log.failed_reads = 0;
    log.state.store(opened, std::memory_order_release);
    if (opened == LogState::RUNNING) ensure_reader();
    return opened != LogState::ABSENT;
}

bool expect_kernel(const Task& task, const Launched& launched) noexcept {
    if (task.device < 0 || static_cast<u32>(task.device) >= kMostDevices) return true;
    g_launched.fetch_add(1, std::memory_order_relaxed);
    const LogState state = g_logs[task.device].state.load(std::memory_order_acquire);
    if (state == LogState::ABSENT) return !has_driver_log();
    if (state != LogState::RUNNING) return state != LogState::NONE;
    if (g_tasks.put(key_of(task.device, task.stream, task.number), launched)) return true;
    g_forgotten.fetch_add(1, std::memory_order_relaxed);
    report_lost("kernel_times", kNotSeenToEnd);
    return true;
}

void set_streams_expanded(bool expanded) noexcept { g_expanded.store(expanded, std::memory_order_relaxed); }

void stop_kernel_times() noexcept {
    ReaderState running = ReaderState::RUNNING;
    if (!g_reader.compare_exchange_strong(running, ReaderState::STOPPING, std::memory_order_acq_rel)) return;
    const u64 deadline = monotonic_ns() + kStopping;
    while (g_reader.load(std::memory_order_acquire) == ReaderState::STOPPING && monotonic_ns() < deadline)
        pause_ns(kShortestPause);
}

}  // namespace memscope

extern "C" __attribute__((visibility("default"))) void memscope_get_kernel_stats(memscope_kernel_stats* out) {
    using namespace memscope;
    out->launched = g_launched.load(std::memory_order_relaxed);
    out->timed = g_timed.load(std::memory_order_relaxed);
    out->forgotten = g_forgotten.load(std::memory_order_relaxed);
    out->foreign = g_foreign.load(std::memory_order_relaxed);
    out->names_refused = refused_names();
    out->reading = g_reader.load(std::memory_order_acquire) != ReaderState::NONE;
}
