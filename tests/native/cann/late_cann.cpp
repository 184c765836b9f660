// A program that is not linked to CANN: loads it as Python loads torch_npu (RTLD_LOCAL), launches, unloads it with the
// reader of kernel times at work, and begins again.
#include <dlfcn.h>
#include <cstdint>

#include "kernels.h"

using namespace kernels;

// What the simulator never frees is reachable from its libraries, until they are unloaded.
extern "C" __attribute__((visibility("default"))) const char* __asan_default_options();
extern "C" const char* __asan_default_options() { return "detect_leaks=0"; }

CASE(cann_may_be_unloaded_and_loaded_again_while_kernel_times_are_read) {
    in_process({{"NPUSIM_DEVICES", "2"}}, [] {
        SimKernel kernel = {SIM_KERNEL_MAGIC, "late", nullptr, nullptr};
        for (u64 round = 1; round <= 3; ++round) {
            void* const library = dlopen("libascendcl.so", RTLD_NOW | RTLD_LOCAL);
            CHECK(library != nullptr);
            const auto set_device = reinterpret_cast<int (*)(int)>(dlsym(library, "aclrtSetDevice"));
            const auto launch = reinterpret_cast<int (*)(void*, std::uint32_t, const void*, std::size_t, void*)>(
                dlsym(library, "aclrtLaunchKernel"));
            CHECK(set_device != nullptr && launch != nullptr);
            CHECK_EQUAL(set_device(1), 0);
            for (int i = 0; i < 100; ++i) CHECK_EQUAL(launch(&kernel, 1, nullptr, 0, nullptr), 0);
            CHECK_EQUAL(launches().size(), 100 * round);
            wait_until_timed(100 * round);
            CHECK_EQUAL(stats().reading, 1);
            CHECK_EQUAL(dlclose(library), 0);
            usleep(30'000);  // longer than the reader ever pauses: it reads on from what it keeps loaded
        }
        CHECK_EQUAL(own::text_of(launches().back().record.name), "late");
        CHECK(!has_lost("msprof") && !has_lost("kernel_times"));
    });
}

int main(int argc, char** argv) { return run_all(argc, argv); }
