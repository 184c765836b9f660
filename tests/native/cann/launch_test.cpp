// Source launch: one KERNEL_LAUNCH for each task, whichever way it was launched, with what the runtime says of it.
#include <sys/mman.h>
#include <thread>

#include "kernels.h"

using namespace kernels;

namespace {

SimKernel kernel_named(const char* name) { return {SIM_KERNEL_MAGIC, name, nullptr, nullptr}; }

extern "C" std::uint64_t MsprofGetHashId(const char* text, std::size_t length);
extern "C" std::int32_t MsprofReportCompactInfo(std::uint32_t aging, const void* info, std::uint32_t length);

std::vector<int (*)(SimKernel*, void*)> entry_points() {
    return {
        [](SimKernel* k, void* s) { return rtKernelLaunch(k, 1, nullptr, 0, nullptr, s); },
        [](SimKernel* k, void* s) { return rtKernelLaunchWithHandleV2(k, 0, 1, nullptr, nullptr, s, nullptr); },
        [](SimKernel* k, void* s) { return rtKernelLaunchWithFlagV2(k, 1, nullptr, nullptr, s, 0, nullptr); },
        [](SimKernel* k, void* s) { return rtAicpuKernelLaunchExWithArgs(0, k->name, 1, nullptr, nullptr, s, 0); },
        [](SimKernel* k, void* s) { return rtLaunchKernelByFuncHandle(k, 1, nullptr, s); },
        [](SimKernel* k, void* s) { return rtLaunchKernelByFuncHandleV2(k, 1, nullptr, s, nullptr); },
        [](SimKernel* k, void* s) { return aclrtLaunchKernel(k, 1, nullptr, 0, s); },
        [](SimKernel* k, void* s) { return aclrtLaunchKernelV2(k, 1, nullptr, 0, nullptr, s); },
        [](SimKernel* k, void* s) { return aclrtLaunchKernelWithConfig(k, 1, s, nullptr, nullptr, nullptr); },
        [](SimKernel* k, void* s) { return aclrtLaunchKernelWithHostArgs(k, 1, s, nullptr, nullptr, 0, nullptr, 0); },
    };
}

// A report at the very end of a page, with nothing readable behind it.
class ReportAtPageEnd {
public:
    explicit ReportAtPageEnd(std::size_t bytes) : bytes_(bytes) {
        const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
        char* const place =
            static_cast<char*>(mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        CHECK_EQUAL(mprotect(place + page, page, PROT_NONE), 0);
        at_ = place + page - bytes;
    }
    void send(const MsprofCompactInfo& info) {
        memcpy(at_, &info, bytes_);
        CHECK_EQUAL(MsprofReportCompactInfo(1, at_, static_cast<u32>(bytes_)), 0);
    }

private:
    std::size_t bytes_;
    char* at_;
};

MsprofCompactInfo report_of(const char* name) {
    MsprofCompactInfo info = {};
    info.magic = MSPROF_MAGIC;
    info.level = MSPROF_LEVEL_RUNTIME;
    info.type = MSPROF_TASK_TRACK;
    info.length = 40;  // what the real runtime says: its structure has more than we read
    info.task.device = 1;
    info.task.stream = 7;
    info.task.task = 0x30009;  // number 9, which has come round three times
    info.task.kernel_name = MsprofGetHashId(name, strlen(name));
    return info;
}

}  // namespace

CASE(every_entry_point_is_one_launch_with_name_device_stream_and_task) {
    in_process({}, [] {
        CHECK_EQUAL(rtSetDevice(1), 0);
        void* stream = nullptr;
        CHECK_EQUAL(rtStreamCreate(&stream, 0), 0);
        int stream_id = 0;
        CHECK_EQUAL(rtGetStreamId(stream, &stream_id), 0);
        u64 expected = 0;
        for (const auto launch : entry_points()) {
            const std::string name = "kernel_" + std::to_string(expected);
            SimKernel kernel = kernel_named(name.c_str());
            const u64 before = monotonic_ns();
            CHECK_EQUAL(launch(&kernel, stream), 0);
            const auto seen = launches();
            CHECK_EQUAL(seen.size(), ++expected);
            const EventRecord& record = seen.back().record;
            CHECK_EQUAL(own::text_of(record.name), name);
            CHECK_EQUAL(record.ptr, static_cast<u64>(stream_id));
            CHECK_EQUAL(record.attr, seen.front().record.attr + expected - 1);  // the stream's tasks are counted
            CHECK_EQUAL(record.device, 1);
            CHECK_EQUAL(static_cast<int>(record.device_type), static_cast<int>(DeviceType::NPU));
            CHECK_EQUAL(record.tid, static_cast<u32>(gettid()));
            CHECK(record.ts >= before && record.ts <= monotonic_ns());
            CHECK_EQUAL(record.stack_py, 0u);
            CHECK_EQUAL(record.stack_c, 0u);
        }
        CHECK_EQUAL(expected, 10u);
    });
}

CASE(nothing_happens_while_launches_are_not_wanted) {
    in_process({}, [] {
        memscope_configure("sorts=1");
        CHECK_EQUAL(rtSetDevice(0), 0);
        Kernel kernel("unwanted");
        CHECK_EQUAL(kernel.launch(nullptr), 0);
        memscope_configure("sorts=2");
        memscope_stop();
        CHECK_EQUAL(kernel.launch(nullptr), 0);
        CHECK(own::rings().empty() || launches().empty());
        CHECK_EQUAL(npusim_call_count("MsprofRegisterProfileCallback"), 0u);
        CHECK_EQUAL(npusim_call_count("prof_drv_start"), 0u);
        CHECK_EQUAL(stats().reading, 0);
    });
}

CASE(a_name_told_while_nothing_was_recorded_is_defined_at_its_first_use) {
    in_process({}, [] {
        CHECK_EQUAL(rtSetDevice(0), 0);
        Kernel first("first"), second("second");
        CHECK_EQUAL(first.launch(nullptr), 0);
        memscope_stop();
        CHECK_EQUAL(second.launch(nullptr), 0);
        CHECK_EQUAL(own::text_of(text_id("second", 6)), "");
        memscope_start();
        MsprofCompactInfo report = report_of("second");
        report.task.kernel_name = text_id("second", 6);  // told when it was launched the first time, not again
        CHECK_EQUAL(MsprofReportCompactInfo(1, &report, sizeof report), 0);
        const auto seen = launches();
        CHECK_EQUAL(seen.size(), 2u);
        CHECK_EQUAL(own::text_of(seen[1].record.name), "second");
    });
}

CASE(devices_are_the_drivers_also_when_the_program_sees_only_some) {
    in_process({{"NPUSIM_DEVICES", "8"}, {"ASCEND_RT_VISIBLE_DEVICES", "2,5"}}, [] {
        Kernel kernel("anywhere");
        for (const int logical : {0, 1}) {
            CHECK_EQUAL(rtSetDevice(logical), 0);
            CHECK_EQUAL(kernel.launch(nullptr), 0);
        }
        const auto seen = launches();
        CHECK_EQUAL(seen.size(), 2u);
        CHECK_EQUAL(seen[0].record.device, 2);
        CHECK_EQUAL(seen[1].record.device, 5);
    });
}

CASE(only_selected_devices_are_told) {
    in_process({}, [] {
        memscope_configure("devices=npu:1");
        Kernel kernel("anywhere");
        for (const int device : {0, 1}) {
            CHECK_EQUAL(rtSetDevice(device), 0);
            CHECK_EQUAL(kernel.launch(nullptr), 0);
        }
        CHECK_EQUAL(launches().size(), 1u);
        CHECK_EQUAL(launches()[0].record.device, 1);
    });
}

CASE(a_launch_that_fails_is_none) {
    in_process({}, [] {
        CHECK_EQUAL(rtSetDevice(0), 0);
        CHECK(rtKernelLaunch(nullptr, 1, nullptr, 0, nullptr, nullptr) != 0);
        CHECK(own::rings().empty() || launches().empty());
    });
}

CASE(reports_that_are_not_what_we_know_are_refused_and_never_read_beyond_their_end) {
    in_process({}, [] {
        CHECK_EQUAL(rtSetDevice(0), 0);
        Kernel kernel("real");
        CHECK_EQUAL(kernel.launch(nullptr), 0);
        CHECK(!has_lost("msprof"));
        const MsprofCompactInfo good = report_of("reported");
        ReportAtPageEnd(48).send(good);  // the least that holds what is read
        CHECK_EQUAL(launches().size(), 2u);
        CHECK_EQUAL(own::text_of(launches()[1].record.name), "reported");
        CHECK_EQUAL(launches()[1].record.device, 1);
        CHECK_EQUAL(launches()[1].record.ptr, 7u);
        CHECK_EQUAL(launches()[1].record.attr, 9u);

        MsprofCompactInfo other_level = good;
        other_level.level = 10000;  // an operator's, which is not our concern
        ReportAtPageEnd(64).send(other_level);
        MsprofCompactInfo copy = good;
        copy.task.kernel_name = 0;  // a task that is no kernel
        ReportAtPageEnd(64).send(copy);
        CHECK(!has_lost("msprof"));

        MsprofCompactInfo wrong_mark = good;
        wrong_mark.magic = 0x1234;
        for (int i = 0; i < 3; ++i) ReportAtPageEnd(64).send(wrong_mark);
        CHECK(has_lost("msprof"));
        MsprofCompactInfo says_less = good;
        says_less.length = 8;
        ReportAtPageEnd(64).send(says_less);
        for (const std::size_t bytes : {1, 23, 24, 32, 47}) ReportAtPageEnd(bytes).send(good);
        CHECK_EQUAL(MsprofReportCompactInfo(1, nullptr, 64), 0);
        CHECK_EQUAL(launches().size(), 2u);
    });
}

CASE(without_task_reports_a_launch_has_no_name) {
    in_process({{"NPUSIM_FAIL", "MsprofRegisterProfileCallback"}}, [] {
        CHECK_EQUAL(rtSetDevice(1), 0);
        Kernel kernel("secret");
        for (int i = 0; i < 3; ++i) CHECK_EQUAL(kernel.launch(nullptr), 0);
        const auto seen = launches();
        CHECK_EQUAL(seen.size(), 3u);
        for (const auto& one : seen) {
            CHECK_EQUAL(one.record.name, 0u);
            CHECK_EQUAL(one.record.device, 1);
        }
        CHECK(has_lost("msprof"));
        CHECK(has_lost("launch"));
        CHECK_EQUAL(npusim_call_count("MsprofRegisterProfileCallback"), 1u);
    });
}

CASE(a_full_table_of_names_keeps_what_it_has) {
    in_process({}, [] {
        CHECK_EQUAL(rtSetDevice(0), 0);
        Kernel early("early");
        CHECK_EQUAL(early.launch(nullptr), 0);
        for (int i = 0; i < 40'000; ++i) {
            const std::string name = "name_" + std::to_string(i);
            CHECK_EQUAL(MsprofGetHashId(name.c_str(), name.size()), text_id(name.c_str(), name.size()));
        }
        CHECK_EQUAL(stats().names_refused, 40'001u - (1u << 15));
        CHECK(has_lost("msprof"));
        Kernel late("late");
        CHECK_EQUAL(late.launch(nullptr), 0);
        CHECK_EQUAL(early.launch(nullptr), 0);
        const auto seen = launches();
        CHECK_EQUAL(seen.size(), 3u);
        CHECK_EQUAL(seen[1].record.name, 0u);
        CHECK_EQUAL(own::text_of(seen[2].record.name), "early");
    });
}

CASE(launches_of_many_threads_are_all_told_by_their_own_thread) {
    in_process({{"NPUSIM_DEVICES", "8"}}, [] {
        constexpr int kThreads = 8, kLaunches = 400;
        std::vector<std::thread> threads;
        std::atomic<u32> tids[kThreads];
        for (int t = 0; t < kThreads; ++t)
            threads.emplace_back([&, t] {
                tids[t] = static_cast<u32>(gettid());
                CHECK_EQUAL(rtSetDevice(t), 0);
                for (int i = 0; i < kLaunches; ++i) {
                    const std::string name = "kernel_" + std::to_string(i % 50);
                    SimKernel kernel = kernel_named(name.c_str());
                    CHECK_EQUAL(aclrtLaunchKernel(&kernel, 1, nullptr, 0, nullptr), 0);
                }
            });
        for (auto& thread : threads) thread.join();
        std::vector<int> per_device(kThreads, 0);
        const auto seen = launches();
        CHECK_EQUAL(seen.size(), static_cast<std::size_t>(kThreads * kLaunches));
        for (const auto& one : seen) {
            CHECK_EQUAL(one.record.tid, tids[one.record.device].load());
            CHECK(one.record.name != 0);
            ++per_device[static_cast<std::size_t>(one.record.device)];
        }
        for (const int count : per_device) CHECK_EQUAL(count, kLaunches);
    });
}

int main(int argc, char** argv) { return run_all(argc, argv); }
