// Source kernel_times: when kernels ran, on the host's clock, whatever the device's shows; and its reader thread, which
// must never stand in the way.
#include <dirent.h>
#include <algorithm>
#include <cstdio>
#include <map>
#include <thread>

#include "kernels.h"
#include "source/task_log.h"

// A child of a process with threads looks like a leak: what the parent's other threads held is nobody's there.
extern "C" __attribute__((visibility("default"))) const char* __asan_default_options();
extern "C" const char* __asan_default_options() { return "detect_leaks=0"; }

using namespace kernels;

extern "C" std::int32_t MsprofReportCompactInfo(std::uint32_t aging, const void* info, std::uint32_t length);

namespace {

constexpr u64 kClockError = 100'000;  // ns; a pair of clock readings is good to a few hundred

constexpr u8 kDeviceTime = static_cast<u8>(Flag::DEVICE_TIME);

struct Times {
    std::vector<EventRecord> launches, starts, ends;
};

// Of the kernel of that name, in the order of launching.
Times times_of(const char* name) {
    Times times;
    const u64 id = text_id(name, strlen(name));
    for (const own::Seen& one : all_events()) {
        if (one.record.name != id) continue;
        if (one.kind == Kind::KERNEL_LAUNCH) times.launches.push_back(one.record);
        if (one.kind == Kind::KERNEL_START) times.starts.push_back(one.record);
        if (one.kind == Kind::KERNEL_END) times.ends.push_back(one.record);
    }
    return times;
}

// Launches kernels that note when they ran, and compares.
void check_times(const char* name, int count, void* stream, u8 flags) {
    std::deque<Kernel> kernels;
    const u64 before = stats().timed;
    for (int i = 0; i < count; ++i) {
        kernels.emplace_back(name, 100'000);
        CHECK_EQUAL(kernels.back().launch(stream), 0);
    }
    wait_until_timed(before + static_cast<u64>(count));
    const u64 now = monotonic_ns();
    const Times times = times_of(name);
    CHECK_EQUAL(times.launches.size(), static_cast<std::size_t>(count));
    CHECK_EQUAL(times.starts.size(), static_cast<std::size_t>(count));
    CHECK_EQUAL(times.ends.size(), static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < times.starts.size(); ++i) {
        const EventRecord &launch = times.launches[i], &start = times.starts[i], &end = times.ends[i];
        for (const EventRecord* record : {&start, &end}) {
            CHECK_EQUAL(record->header.flags, flags);
            CHECK_EQUAL(record->device, launch.device);
            CHECK_EQUAL(record->ptr, launch.ptr);
            CHECK_EQUAL(record->attr, launch.attr);
            CHECK_EQUAL(record->tid, launch.tid);
        }
        CHECK(launch.ts <= start.ts && start.ts <= end.ts && end.ts <= now + kClockError);
        if (flags == 0) continue;
        CHECK(start.ts <= kernels[i].began + kClockError);
        CHECK(end.ts + kClockError >= kernels[i].ended);
        // Nobody else can have delayed it by that much without delaying both readings.
        if (i > 0) CHECK(start.ts + kClockError >= kernels[i - 1].ended);
        if (i + 1 < kernels.size()) CHECK(end.ts <= kernels[i + 1].began + kClockError);
    }
}

std::string newest_meta(const char* key) {
    std::string value;
    for (const own::Seen& one : events_of_kind(Kind::META))
        if (own::text_of(one.record.name) == key) value = own::text_of(one.record.attr);
    return value;
}

void* stream_on(int device) {
    CHECK_EQUAL(rtSetDevice(device), 0);
    void* stream = nullptr;
    CHECK_EQUAL(rtStreamCreate(&stream, 0), 0);
    return stream;
}

// The directories in /proc of reader threads.
std::vector<std::string> reader_tasks() {
    std::vector<std::string> found;
    DIR* const tasks = opendir("/proc/self/task");
    while (const dirent* entry = readdir(tasks)) {
        if (entry->d_name[0] == '.') continue;
        const std::string path = std::string("/proc/self/task/") + entry->d_name;
        char name[32] = {};
        FILE* const file = fopen((path + "/comm").c_str(), "r");
        if (file == nullptr) continue;
        if (fgets(name, sizeof name, file) != nullptr && strcmp(name, "memscope-kernel\n") == 0) found.push_back(path);
        fclose(file);
    }
    closedir(tasks);
    return found;
}

}  // namespace

CASE(kernels_ran_when_the_log_says) {
    in_process({}, [] { check_times("plain", 50, stream_on(1), kDeviceTime); });
}

CASE(a_device_clock_that_is_ahead_or_behind_is_converted) {
    for (const char* offset : {"5000000000", "-300000000"})
        in_process({{"NPUSIM_CLOCK_OFFSET_NS", offset}, {"NPUSIM_CLOCK_PPM", "100"}},
                   [] { check_times("shifted", 50, stream_on(0), kDeviceTime); });
}

CASE(a_counter_of_another_frequency_is_converted) {
    in_process({{"NPUSIM_CLOCK_MHZ", "1000"}}, [] { check_times("fast", 50, stream_on(0), kDeviceTime); });
}

CASE(the_drift_of_a_device_clock_is_measured) {
    // A hundred times what an oscillator does: without its own rate the clock would be wrong by 10 ms after a second.
    in_process({{"NPUSIM_CLOCK_PPM", "10000"}, {"NPUSIM_CLOCK_OFFSET_NS", "123456789"}}, [] {
        void* const stream = stream_on(0);
        Kernel first("first");
        CHECK_EQUAL(first.launch(stream), 0);
        const u64 at_first = 1 + 5;  // the frequency, and a pair is the best of five
        wait_for("a second look at the clock", [&] { return npusim_call_count("halGetDeviceInfo") >= at_first + 5; });
        const u64 measured = monotonic_ns();
        wait_for("time to drift", [&] { return monotonic_ns() > measured + 700'000'000; });
        check_times("drifting", 50, stream, kDeviceTime);
    });
}

CASE(without_a_device_clock_times_are_when_they_were_read) {
    in_process({{"NPUSIM_FAIL", "halGetDeviceInfo"}}, [] {
        check_times("unconverted", 20, stream_on(0), 0);
        CHECK(has_lost("kernel_times"));
    });
}

CASE(every_packing_of_stream_and_task_is_read) {
    for (const char* encoding : {"plain", "bit12", "bit13", "expanded", "expanded15", "expanded_sqe"})
        in_process({{"NPUSIM_TASK_ENCODING", encoding}}, [] {
            void* const streams[] = {stream_on(0), stream_on(0), nullptr};
            Kernel kernel("packed");
            for (int i = 0; i < 9000; ++i) CHECK_EQUAL(kernel.launch(streams[i % 3]), 0);
            wait_until_timed(9000);
            CHECK_EQUAL(times_of("packed").starts.size(), 9000u);
            CHECK_EQUAL(stats().foreign, 0u);
            CHECK_EQUAL(stats().forgotten, 0u);
        });
}

CASE(the_short_records_of_ascend_950_are_read) {
    in_process({{"NPUSIM_SOC", "Ascend950DT"}}, [] { check_times("short", 50, stream_on(1), kDeviceTime); });
}

CASE(what_is_no_entry_of_the_log_is_not_taken_for_one) {
    u32 words[16] = {0x6bd30000u | 1, 9u << 16 | 4, 7, 1};
    const auto read = [&](bool is_wide, LogEntry& entry) {
        return read_log_entry(reinterpret_cast<const char*>(words), is_wide, false, entry);
    };
    LogEntry entry;
    CHECK(read(false, entry));
    CHECK(entry.is_end && entry.stream == 4 && entry.task == 9 && entry.counter == (u64{1} << 32 | 7));
    CHECK(read(true, entry));
    CHECK(entry.stream == 0 && entry.task == (9u << 16 | 4));
    words[0] = 0x6bd30000u | 34;  // a part of a task
    CHECK(!read(false, entry));
    words[0] = 0;
    CHECK(!read(false, entry));
}

CASE(tasks_that_were_not_launched_here_are_counted_and_not_told) {
    in_process({}, [] {
        Kernel kernel("ours");
        CHECK_EQUAL(kernel.launch(stream_on(0)), 0);
        wait_until_timed(1);
        memscope_stop();  // launches are not reported, but the device logs them
        for (int i = 0; i < 10; ++i) CHECK_EQUAL(kernel.launch(nullptr), 0);
        wait_for("the foreign entries", [] { return stats().foreign == 20; });
        memscope_start();
        CHECK_EQUAL(times_of("ours").ends.size(), 1u);
    });
}

CASE(entries_that_nobody_launched_cost_no_kernel_its_times) {
    in_process({}, [] {
        void* const stream = stream_on(0);
        Kernel first("first"), copy("copy"), kernel("among strangers");
        CHECK_EQUAL(first.launch(stream), 0);
        wait_until_timed(1);
        for (u64 round = 1; round <= 10; ++round) {
            memscope_stop();  // launches are not reported, but the device logs them, as it does copies and events
            for (int i = 0; i < 2'000; ++i) CHECK_EQUAL(copy.launch(stream), 0);
            memscope_start();
            for (int i = 0; i < 500; ++i) CHECK_EQUAL(kernel.launch(stream), 0);
            wait_until_timed(1 + 500 * round);
        }
        CHECK_EQUAL(times_of("among strangers").ends.size(), 5'000u);
        CHECK_EQUAL(stats().forgotten, 0u);
        wait_for("the foreign entries", [] { return stats().foreign == 40'000; });
    });
}

CASE(a_kernel_launched_while_recording_has_its_times_also_after_stop) {
    in_process({{"NPUSIM_ASYNC", "1"}}, [] {
        void* const stream = stream_on(0);
        Kernel kernel("late", 50'000'000);
        CHECK_EQUAL(kernel.launch(stream), 0);
        memscope_stop();
        Kernel unrecorded("unrecorded");
        CHECK_EQUAL(unrecorded.launch(stream), 0);
        wait_until_timed(1);
        CHECK_EQUAL(times_of("late").starts.size(), 1u);
        CHECK_EQUAL(times_of("late").ends.size(), 1u);
        CHECK_EQUAL(times_of("unrecorded").launches.size(), 0u);
        CHECK_EQUAL(times_of("unrecorded").ends.size(), 0u);
    });
}

CASE(the_log_of_every_device_is_read_by_one_thread) {
    in_process({{"NPUSIM_DEVICES", "8"}, {"NPUSIM_ASYNC", "1"}}, [] {
        constexpr u64 kThreads = 8, kLaunches = 400;
        std::vector<std::thread> threads;
        for (u64 t = 0; t < kThreads; ++t)
            threads.emplace_back([t] {
                void* const stream = stream_on(static_cast<int>(t));
                Kernel kernel("spread");
                for (u64 i = 0; i < kLaunches; ++i) CHECK_EQUAL(kernel.launch(stream), 0);
                CHECK_EQUAL(rtStreamSynchronize(stream), 0);
            });
        for (auto& thread : threads) thread.join();
        wait_until_timed(kThreads * kLaunches);
        std::map<i16, u64> started, ended;
        const Times times = times_of("spread");
        for (const EventRecord& record : times.starts) ++started[record.device];
        for (const EventRecord& record : times.ends) ++ended[record.device];
        for (i16 device = 0; device < static_cast<i16>(kThreads); ++device) {
            CHECK_EQUAL(started[device], kLaunches);
            CHECK_EQUAL(ended[device], kLaunches);
        }
        CHECK_EQUAL(stats().foreign, 0u);
        CHECK_EQUAL(reader_tasks().size(), 1u);
    });
}

CASE(a_thread_that_changes_its_device_is_followed) {
    in_process({}, [] {
        void* const streams[] = {stream_on(0), stream_on(1)};
        Kernel kernel("both");
        for (int i = 0; i < 3; ++i)
            for (int device : {0, 1}) {
                CHECK_EQUAL(rtSetDevice(device), 0);
                CHECK_EQUAL(kernel.launch(streams[device]), 0);
            }
        wait_until_timed(6);
        CHECK_EQUAL(times_of("both").launches.size(), 6u);
        CHECK_EQUAL(times_of("both").ends.size(), 6u);
    });
}

CASE(a_launch_on_a_device_that_nobody_made_current_has_no_times_and_is_counted) {
    in_process({}, [] {
        void* const streams[] = {stream_on(0), stream_on(1)};
        CHECK_EQUAL(aclInit(nullptr), 0);
        Kernel kernel("elsewhere");
        for (int i = 0; i < 3; ++i)
            for (void* stream : streams) CHECK_EQUAL(kernel.launch(stream), 0);
        wait_until_timed(5);
        CHECK_EQUAL(aclFinalize(), 0);
        CHECK_EQUAL(newest_meta("kernel_times.untimed"), "1 of 6");
        CHECK_EQUAL(times_of("elsewhere").launches.size(), 6u);
        CHECK_EQUAL(times_of("elsewhere").ends.size(), 5u);
    });
}

CASE(the_reader_takes_no_signals_and_little_time) {
    in_process({}, [] {
        Kernel kernel("one");
        CHECK_EQUAL(kernel.launch(stream_on(0)), 0);
        wait_until_timed(1);
        const std::vector<std::string> tasks = reader_tasks();
        CHECK_EQUAL(tasks.size(), 1u);
        FILE* const file = fopen((tasks[0] + "/status").c_str(), "r");
        unsigned long long blocked = 0;
        char line[256];
        while (fgets(line, sizeof line, file) != nullptr)
            if (sscanf(line, "SigBlk: %llx", &blocked) == 1) break;
        fclose(file);
        for (const int signal : {SIGINT, SIGTERM, SIGALRM, SIGUSR1, SIGCHLD, SIGPROF})
            CHECK((blocked >> (signal - 1) & 1) != 0);
        sigset_t own;
        CHECK_EQUAL(pthread_sigmask(SIG_SETMASK, nullptr, &own), 0);
        CHECK_EQUAL(sigismember(&own, SIGINT), 0);
        // Until it has fallen into its slowest pace, and then over a second of nothing to read.
        const u64 calls = npusim_call_count("prof_channel_read"), begin = monotonic_ns();
        wait_for("many reads", [&] { return npusim_call_count("prof_channel_read") >= calls + 60; });
        CHECK(monotonic_ns() - begin > 500'000'000);
        CHECK_EQUAL(kernel.launch(nullptr), 0);
        wait_until_timed(2);
    });
}

CASE(a_forked_child_has_no_reader_until_it_launches) {
    in_process({{"NPUSIM_ASYNC", "1"}}, [] {
        void* const stream = stream_on(0);
        Kernel kernel("parent");
        std::atomic<bool> done{false};
        u64 count = 0;
        std::thread launching([&] {
            rtSetDevice(0);
            while (!done && kernel.launch(stream) == 0 && rtStreamSynchronize(stream) == 0)
                if (++count > 20'000) usleep(1000);  // the ring holds fifty thousand, and nobody empties it
        });
        struct End {
            ~End() {
                done = true;
                launching.join();
            }
            std::atomic<bool>& done;
            std::thread& launching;
        };
        {
            const End end = {done, launching};
            wait_until_timed(100);
            for (int i = 0; i < 5; ++i)
                expect_success(start_child([] {
                    CHECK_EQUAL(stats().reading, 0);
                    CHECK(reader_tasks().empty());
#ifndef __SANITIZE_THREAD__  // which cannot follow a thread that is made in a child of several threads
                    check_times("child", 10, stream_on(1), kDeviceTime);
                    CHECK_EQUAL(reader_tasks().size(), 1u);
                    CHECK_EQUAL(stats().launched, 10u);
#endif
                }));
        }
        wait_until_timed(count);
        CHECK_EQUAL(times_of("parent").ends.size(), count);
    });
}

CASE(finalize_ends_the_reader_and_loses_nothing_that_had_run) {
    in_process({}, [] {
        CHECK_EQUAL(aclInit(nullptr), 0);
        Kernel kernel("final");
        for (u64 round = 1; round <= 3; ++round) {
            void* const stream = stream_on(0);
            for (int i = 0; i < 200; ++i) CHECK_EQUAL(kernel.launch(stream), 0);
            CHECK_EQUAL(aclFinalize(), 0);
            CHECK_EQUAL(stats().reading, 0);
            CHECK_EQUAL(npusim_call_count("prof_stop"), round);
            if (round == 1) CHECK_EQUAL(stats().timed, 200u);
            wait_for("the thread to end", [] { return reader_tasks().empty(); });
            CHECK_EQUAL(aclInit(nullptr), 0);
        }
        CHECK_EQUAL(stats().timed, 600u);
    });
}

CASE(a_read_that_hangs_keeps_neither_finalize_nor_the_process) {
    in_process({{"NPUSIM_CHANNEL_DELAY_MS", "1000000"}}, [] {
        CHECK_EQUAL(aclInit(nullptr), 0);
        Kernel kernel("stuck");
        CHECK_EQUAL(kernel.launch(stream_on(0)), 0);
        wait_for("a read", [] { return npusim_call_count("prof_channel_read") != 0; });
        const u64 begin = monotonic_ns();
        CHECK_EQUAL(aclFinalize(), 0);
        CHECK(monotonic_ns() - begin < 5'000'000'000);
        CHECK_EQUAL(launches().size(), 1u);
    });
}

CASE(a_log_that_cannot_be_started_or_read_is_told_once) {
    for (const char* failing : {"prof_drv_start", "prof_channel_read"})
        in_process({{"NPUSIM_FAIL", failing}}, [] {
            Kernel kernel("untimed");
            void* const stream = stream_on(0);
            for (int i = 0; i < 10; ++i) CHECK_EQUAL(kernel.launch(stream), 0);
            wait_for("the report", [] { return has_lost("kernel_times"); });
            for (int i = 0; i < 10; ++i) CHECK_EQUAL(kernel.launch(stream), 0);
            CHECK_EQUAL(launches().size(), 20u);
            CHECK(launches()[0].record.name != 0);
            CHECK_EQUAL(stats().timed, 0u);
            CHECK(has_lost("kernel_times"));
        });
}

CASE(launches_that_never_end_are_given_up_in_the_end) {
    in_process({}, [] {
        Kernel kernel("first");
        CHECK_EQUAL(kernel.launch(stream_on(0)), 0);
        wait_until_timed(1);
        // Reported, but never run: more than can wait.
        MsprofCompactInfo report = {};
        report.magic = MSPROF_MAGIC;
        report.level = MSPROF_LEVEL_RUNTIME;
        report.type = MSPROF_TASK_TRACK;
        report.length = 40;
        report.task.kernel_name = text_id("first", 5);
        for (u32 stream = 100; stream < 104; ++stream)
            for (u32 task = 0; task < 30'000; ++task) {
                report.task.stream = static_cast<u16>(stream);
                report.task.task = task;
                CHECK_EQUAL(MsprofReportCompactInfo(1, &report, sizeof report), 0);
            }
        CHECK(stats().forgotten >= 120'000u - (7u << 14));
        CHECK(stats().forgotten < 120'000u);
        check_times("still", 50, nullptr, kDeviceTime);
        CHECK(has_lost("kernel_times"));
        CHECK_EQUAL(aclInit(nullptr), 0);
        CHECK_EQUAL(aclFinalize(), 0);
        CHECK_EQUAL(newest_meta("kernel_times.untimed"), "120000 of 120051");
    });
}

int main(int argc, char** argv) { return run_all(argc, argv); }
