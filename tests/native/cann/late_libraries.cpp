// A program in which the profiling interface and the driver come after the first launch. Its runtime is here: a launch
// is a task that is reported and logged where there is something to report it to.
#include <dlfcn.h>
#include <cstdint>

#include "kernels.h"
#include "tasks.h"

using namespace kernels;

// What the simulator never frees is reachable from its libraries, until they are unloaded.
extern "C" __attribute__((visibility("default"))) const char* __asan_default_options();
extern "C" const char* __asan_default_options() { return "detect_leaks=0"; }

namespace {
decltype(&npusim_task_launched) g_report = nullptr;
decltype(&npusim_task_record) g_log = nullptr;
}  // namespace

extern "C" {
__attribute__((visibility("default"))) int rtGetDevice(std::int32_t* device) {
    *device = 1;
    return 0;
}
__attribute__((visibility("default"))) int rtKernelLaunch(const void*, std::uint32_t, void*, std::uint32_t, void*,
                                                          void*) {
    static std::uint32_t number = 0;
    const SimTask task = {1, 3, ++number};
    if (g_report == nullptr) return 0;
    g_report(&task, "late");
    g_log(&task, 0);
    g_log(&task, 1);
    return 0;
}
}

CASE(libraries_that_come_after_the_first_launch_are_used_from_the_next_on) {
    in_process({{"NPUSIM_DEVICES", "2"}}, [] {
        const auto launch = reinterpret_cast<int (*)(void*, std::uint32_t, void*, std::uint32_t, void*, void*)>(
            dlsym(RTLD_DEFAULT, "rtKernelLaunch"));
        for (int i = 0; i < 3; ++i) CHECK_EQUAL(launch(nullptr, 1, nullptr, 0, nullptr, nullptr), 0);
        CHECK(has_lost("msprof") && has_lost("kernel_times"));
        void* const library = dlopen("libprofapi.so", RTLD_NOW | RTLD_LOCAL);
        CHECK(library != nullptr);
        g_log = reinterpret_cast<decltype(g_log)>(dlsym(library, "npusim_task_record"));
        g_report = reinterpret_cast<decltype(g_report)>(dlsym(library, "npusim_task_launched"));
        for (int i = 0; i < 2; ++i) CHECK_EQUAL(launch(nullptr, 1, nullptr, 0, nullptr, nullptr), 0);
        wait_until_timed(2);
        const auto seen = launches();
        CHECK_EQUAL(seen.size(), 5u);
        for (std::size_t i = 0; i < 5; ++i) {
            CHECK_EQUAL(own::text_of(seen[i].record.name), i < 3 ? "" : "late");
            CHECK_EQUAL(seen[i].record.device, 1);
        }
        CHECK_EQUAL(events_of_kind(Kind::KERNEL_END).size(), 2u);
        CHECK(has_lost("msprof") && has_lost("kernel_times"));
    });
}

int main(int argc, char** argv) { return run_all(argc, argv); }
