// The ground the other tests of this directory stand on: the simulated driver, its cards and its faults.
#include <dlfcn.h>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <random>
#include <sstream>
#include <thread>
#include "abi/ascendcl.h"
#include "abi/hccl.h"
#include "alone.h"
#include "cann.h"
#include "check.h"

namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kDeviceMemory = MEMF_DEV | MEMF_HBM;

struct Allocation {
    uint64_t size;
    uint64_t flag;
};
std::vector<Allocation> g_allocations;

void* allocate(uint64_t size, uint64_t device = 0) {
    void* block = nullptr;
    CHECK_EQUAL(halMemAlloc(&block, size, kDeviceMemory | device), DRV_OK);
    return block;
}

uint64_t live(int device = 0) { return npusim_live_bytes(device, getpid()); }

uint64_t occupied(uint32_t device = 0) {
    uint64_t used = 0, total = 0;
    npusim_hbm_info(device, &used, &total);
    return used;
}

uint64_t module_of(const Allocation& one) { return one.flag >> MEMF_MODULE_SHIFT; }

drv_mem_handle* create(size_t size, uint32_t device = 0) {
    const drv_mem_prop prop{1, device, MODULE_APP, 1, 0, 0};
    drv_mem_handle* handle = nullptr;
    CHECK_EQUAL(halMemCreate(&handle, size, &prop, 0), DRV_OK);
    return handle;
}

}  // namespace

// Stands before the driver's, as a tool's hook does: libruntime and libhccl must call this one.
SIM_API drvError_t halMemAlloc(void** address, unsigned long long size, unsigned long long flag) {
    using Function = drvError_t (*)(void**, unsigned long long, unsigned long long);
    static const auto real = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "halMemAlloc"));
    const drvError_t error = real(address, size, flag);
    if (error == DRV_OK && g_allocations.size() < g_allocations.capacity()) g_allocations.push_back({size, flag});
    return error;
}

CASE(blocks_are_counted_as_asked_for_and_in_pages) {
    alone::run({}, [] {
        void* const small = allocate(1000);
        void* huge = nullptr;
        CHECK_EQUAL(halMemAlloc(&huge, 3 * kMiB, kDeviceMemory | MEMF_HUGE | 1), DRV_OK);
        memset(small, 7, 1000);
        memset(huge, 7, 3 * kMiB);
        CHECK_EQUAL(live(0), 1000u);
        CHECK_EQUAL(live(1), 3 * kMiB);
        CHECK_EQUAL(occupied(0), 4096u);
        CHECK_EQUAL(occupied(1), 4 * kMiB);
        uint32_t device = 0;
        uint64_t size = 0, flag = 0;
        CHECK_EQUAL(npusim_ptr_info(static_cast<char*>(huge) + kMiB, &device, &size, &flag), 1);
        CHECK_EQUAL(device, 1u);
        CHECK_EQUAL(size, 3 * kMiB);
        CHECK_EQUAL(halMemFree(small), DRV_OK);
        CHECK_EQUAL(halMemFree(huge), DRV_OK);
        CHECK_EQUAL(halMemFree(huge), DRV_INVALID_VALUE);
        CHECK_EQUAL(live(0) + live(1) + occupied(0) + occupied(1), 0u);
    });
}

CASE(pinned_host_memory_is_not_the_cards) {
    alone::run({}, [] {
        void* block = nullptr;
        CHECK_EQUAL(halMemAlloc(&block, 5000, MEMF_HOST), DRV_OK);
        CHECK_EQUAL(live(NPUSIM_HOST), 5000u);
        CHECK_EQUAL(occupied(), 0u);
        CHECK_EQUAL(halMemFree(block), DRV_OK);
        CHECK_EQUAL(live(NPUSIM_HOST), 0u);
    });
}

CASE(wrong_arguments_are_refused) {
    alone::run({{"NPUSIM_DEVICES", "2"}}, [] {
        void* block = nullptr;
        CHECK_EQUAL(halMemAlloc(nullptr, 4096, kDeviceMemory), DRV_INVALID_VALUE);
        CHECK_EQUAL(halMemAlloc(&block, 0, kDeviceMemory), DRV_INVALID_VALUE);
        CHECK_EQUAL(halMemAlloc(&block, 4096, kDeviceMemory | 2), DRV_INVALID_DEVICE);
        CHECK_EQUAL(halMemAlloc(&block, 4096, 9ull << MEMF_VIRT_SHIFT), DRV_INVALID_VALUE);
        CHECK_EQUAL(halMemFree(nullptr), DRV_INVALID_VALUE);
        CHECK_EQUAL(halMemRelease(nullptr), DRV_INVALID_HANDLE);
        CHECK_EQUAL(occupied(), 0u);
    });
}

CASE(a_full_card_says_so_and_takes_again_what_was_freed) {
    alone::run({{"NPUSIM_HBM_MB", "64"}, {"NPUSIM_HBM_BASE_MB", "4"}}, [] {
        void* const first = allocate(56 * kMiB);
        void* second = nullptr;
        CHECK_EQUAL(halMemAlloc(&second, 5 * kMiB, kDeviceMemory), DRV_OOM);
        CHECK_EQUAL(occupied(), 60 * kMiB);
        CHECK_EQUAL(halMemFree(first), DRV_OK);
        CHECK_EQUAL(halMemAlloc(&second, 60 * kMiB, kDeviceMemory), DRV_OK);
    });
}

CASE(processes_compete_for_a_card_and_the_dead_hold_nothing) {
    const alone::Cards cards;
    const alone::Knobs knobs{{"NPUSIM_HBM_MB", "64"}};
    const alone::Signal holds, killed;
    const pid_t holder = alone::start(cards, knobs, [&] {
        allocate(48 * kMiB);
        holds.give();
        for (;;) pause();
    });
    holds.await();
    const pid_t other = alone::start(cards, knobs, [&] {
        void* block = nullptr;
        CHECK_EQUAL(halMemAlloc(&block, 32 * kMiB, kDeviceMemory), DRV_OOM);
        void* const mine = allocate(8 * kMiB);
        dcmi_hbm_info info{};
        CHECK_EQUAL(dcmi_get_device_hbm_info(0, 0, &info), 0);
        CHECK_EQUAL(info.memory_size, 64u);
        CHECK_EQUAL(info.memory_usage, 56u);
        dcmi_proc_mem_info processes[DCMI_MOST_PROCESSES];
        int count = 0;
        CHECK_EQUAL(dcmi_get_npu_proc_mem_info(0, 0, processes, &count), 0);
        CHECK_EQUAL(count, 2);
        CHECK_EQUAL(processes[0].pid, holder);
        CHECK_EQUAL(processes[0].usage, 48 * kMiB);
        CHECK_EQUAL(processes[1].pid, getpid());
        CHECK_EQUAL(npusim_live_bytes(0, holder), 48 * kMiB);
        CHECK_EQUAL(npusim_live_bytes(0, 0), 56 * kMiB);

        kill(holder, SIGKILL);
        killed.await();  // dead, and still a zombie: its parent has not asked yet
        CHECK_EQUAL(halMemAlloc(&block, 32 * kMiB, kDeviceMemory), DRV_OK);
        CHECK_EQUAL(npusim_live_bytes(0, 0), 40 * kMiB);
        CHECK_EQUAL(halMemFree(mine), DRV_OK);
    });
    siginfo_t facts;
    CHECK_EQUAL(waitid(P_PID, static_cast<id_t>(holder), &facts, WEXITED | WNOWAIT), 0);
    killed.give();
    CHECK_EQUAL(alone::end_of(other), 0);
    alone::end_of(holder);
}

CASE(a_process_killed_at_any_moment_leaves_the_cards_usable) {
    const alone::Cards cards;
    const alone::Knobs knobs{{"NPUSIM_HBM_MB", "256"}};
    std::minstd_rand random(1);
    for (int round = 0; round < 20; ++round) {
        const alone::Signal begun;
        const pid_t child = alone::start(cards, knobs, [&] {
            std::vector<std::thread> threads;
            for (uint64_t i = 0; i < 4; ++i)
                threads.emplace_back([i] {
                    for (;;) halMemFree(allocate(64 * 1024, i % 2));
                });
            begun.give();
            threads[0].join();
        });
        begun.await();
        usleep(static_cast<useconds_t>(random() % 3000));
        kill(child, SIGKILL);
        alone::end_of(child);
    }
    const pid_t last = alone::start(cards, knobs, [] {
        allocate(256 * kMiB, 0);
        allocate(256 * kMiB, 1);
    });
    CHECK_EQUAL(alone::end_of(last), 0);
}

CASE(threads_add_up) {
    alone::run({{"NPUSIM_DEVICES", "8"}}, [] {
        std::vector<std::thread> threads;
        for (uint64_t i = 0; i < 8; ++i)
            threads.emplace_back([i] {
                std::minstd_rand random(static_cast<unsigned>(i));
                for (int n = 0; n < 300; ++n) {
                    const uint64_t size = random() % 100000 + 1;
                    void* const block = allocate(size, random() % 8);
                    if (n % 3 != 0) CHECK_EQUAL(halMemFree(block), DRV_OK);
                    if (n % 3 == 0) *static_cast<char*>(block) = 1;
                }
            });
        for (std::thread& thread : threads) thread.join();
        uint64_t expected = 0, found = 0;
        for (uint64_t i = 0; i < 8; ++i) {
            std::minstd_rand random(static_cast<unsigned>(i));
            for (int n = 0; n < 300; ++n) {
                const uint64_t size = random() % 100000 + 1;
                random();
                if (n % 3 == 0) expected += size;
            }
            found += live(static_cast<int>(i));
        }
        CHECK_EQUAL(found, expected);
    });
}

CASE(a_forked_child_is_a_process_of_its_own) {
    alone::run({}, [] {
        void* const mine = allocate(4096);
        const int parent = getpid();
        fflush(nullptr);
        const pid_t child = fork();
        if (child == 0) {
            bool is_right = live() == 0 && npusim_live_bytes(0, parent) == 4096;
            is_right = is_right && halMemFree(mine) == DRV_OK && live() == 0;  // its copy only
            void* block = nullptr;
            is_right = is_right && halMemAlloc(&block, 8192, kDeviceMemory) == DRV_OK && live() == 8192;
            _exit(is_right ? 0 : 1);
        }
        CHECK_EQUAL(alone::end_of(child), 0);
        CHECK_EQUAL(live(), 4096u);
        CHECK_EQUAL(npusim_live_bytes(0, 0), 4096u);
        CHECK_EQUAL(halMemFree(mine), DRV_OK);
    });
}

CASE(mapped_memory_is_there_where_it_is_mapped_and_nowhere_else) {
    alone::run({}, [] {
        void* range = nullptr;
        CHECK_EQUAL(halMemAddressReserve(&range, 8 * kMiB, 0, nullptr, 0), DRV_OK);
        char* const start = static_cast<char*>(range);
        CHECK_EQUAL(occupied(), 0u);
        CHECK_EQUAL(alone::signal_of([&] { *static_cast<volatile char*>(start) = 1; }), SIGSEGV);

        drv_mem_handle* const handle = create(2 * kMiB);
        CHECK_EQUAL(live(), 2 * kMiB);
        CHECK_EQUAL(halMemMap(start, 2 * kMiB, 0, handle, 0), DRV_OK);
        CHECK_EQUAL(halMemMap(start + 4 * kMiB, 2 * kMiB, 0, handle, 0), DRV_OK);
        start[100] = 7;
        CHECK_EQUAL(static_cast<int>(start[4 * kMiB + 100]), 7);
        CHECK_EQUAL(alone::signal_of([&] { *static_cast<volatile char*>(start + 2 * kMiB) = 1; }), SIGSEGV);
        uint32_t device = 9;
        uint64_t size = 0, flag = 0;
        CHECK_EQUAL(npusim_ptr_info(start + 100, &device, &size, &flag), 1);
        CHECK_EQUAL(device, 0u);

        CHECK_EQUAL(halMemMap(start + kMiB, 2 * kMiB, 0, handle, 0), DRV_REPEATED);
        CHECK_EQUAL(halMemMap(start + 7 * kMiB, 2 * kMiB, 0, handle, 0), DRV_INVALID_VALUE);
        CHECK_EQUAL(halMemMap(start + 2 * kMiB, 2 * kMiB, kMiB, handle, 0), DRV_INVALID_VALUE);
        CHECK_EQUAL(halMemAddressFree(range), DRV_BUSY);

        CHECK_EQUAL(halMemUnmap(start), DRV_OK);
        CHECK_EQUAL(halMemUnmap(start), DRV_INVALID_VALUE);
        CHECK_EQUAL(alone::signal_of([&] { *static_cast<volatile char*>(start + 100) = 1; }), SIGSEGV);
        CHECK_EQUAL(halMemUnmap(start + 4 * kMiB), DRV_OK);
        CHECK_EQUAL(halMemAddressFree(range), DRV_OK);
        CHECK_EQUAL(halMemRelease(handle), DRV_OK);
        CHECK_EQUAL(live(), 0u);
    });
}

CASE(released_memory_lives_while_it_is_mapped) {
    alone::run({}, [] {
        void* range = nullptr;
        CHECK_EQUAL(halMemAddressReserve(&range, 4 * kMiB, 0, nullptr, 0), DRV_OK);
        drv_mem_handle* const handle = create(2 * kMiB, 1);
        CHECK_EQUAL(halMemMap(range, 2 * kMiB, 0, handle, 0), DRV_OK);
        CHECK_EQUAL(halMemRelease(handle), DRV_OK);
        CHECK_EQUAL(halMemRelease(handle), DRV_INVALID_HANDLE);
        CHECK_EQUAL(halMemMap(static_cast<char*>(range) + 2 * kMiB, 2 * kMiB, 0, handle, 0), DRV_INVALID_HANDLE);
        *static_cast<char*>(range) = 1;
        CHECK_EQUAL(live(1), 2 * kMiB);
        CHECK_EQUAL(halMemUnmap(range), DRV_OK);
        CHECK_EQUAL(live(1), 0u);
    });
}

CASE(host_memory_is_registered_once) {
    alone::run({}, [] {
        static char memory[8192];
        CHECK_EQUAL(aclrtSetDevice(0), ACL_OK);
        CHECK_EQUAL(aclrtHostRegisterV2(memory, sizeof memory, ACL_HOST_REG_PINNED), ACL_OK);
        CHECK_EQUAL(aclrtHostRegisterV2(memory, sizeof memory, ACL_HOST_REG_PINNED), ACL_INVALID_PARAM);
        CHECK_EQUAL(npusim_registered_bytes(), sizeof memory);
        CHECK_EQUAL(aclrtHostUnregister(memory), ACL_OK);
        CHECK_EQUAL(aclrtHostUnregister(memory), ACL_INVALID_PARAM);
        CHECK_EQUAL(npusim_registered_bytes(), 0u);
    });
}

CASE(the_driver_is_told_physical_devices) {
    const alone::Knobs knobs{{"NPUSIM_DEVICES", "4"}, {"ASCEND_RT_VISIBLE_DEVICES", "1,3"}};
    alone::run(knobs, [] {
        uint32_t count = 0;
        CHECK_EQUAL(aclrtGetDeviceCount(&count), ACL_OK);
        CHECK_EQUAL(count, 2u);
        CHECK_EQUAL(aclrtSetDevice(2), RT_INVALID_DEVICE);
        CHECK_EQUAL(aclrtSetDevice(1), ACL_OK);
        int32_t device = -1;
        CHECK_EQUAL(aclrtGetDevice(&device), ACL_OK);
        CHECK_EQUAL(device, 1);
        void* block = nullptr;
        g_allocations.reserve(1);
        CHECK_EQUAL(aclrtMalloc(&block, 2 * kMiB, 0), ACL_OK);
        CHECK_EQUAL(g_allocations.at(0).flag, 0x2100000000924403u);
        CHECK_EQUAL(live(3), 2 * kMiB + 32);
        dcmi_hbm_info info{};
        CHECK_EQUAL(dcmi_get_device_hbm_info(3, 0, &info), 0);
        CHECK_EQUAL(info.memory_usage, 4u);
        size_t free_bytes = 0, total = 0;
        CHECK_EQUAL(aclrtGetMemInfo(0, &free_bytes, &total), ACL_OK);
        CHECK_EQUAL(total - free_bytes, 4 * kMiB);
        const aclrtPhysicalMemProp prop{0, 0, 0, 0, ACL_LOCATION_DEVICE, 0};
        void* handle = nullptr;
        CHECK_EQUAL(aclrtMallocPhysical(&handle, 2 * kMiB, &prop, 0), ACL_OK);
        CHECK_EQUAL(live(1), 2 * kMiB);
    });
}

CASE(visible_devices_must_ascend_and_end_at_what_is_no_device) {
    alone::run({{"ASCEND_RT_VISIBLE_DEVICES", "1,0"}}, [] { CHECK_EQUAL(rtSetDevice(0), RT_INVALID_DEVICE); });
    alone::run({{"ASCEND_RT_VISIBLE_DEVICES", "1,x,0"}}, [] {
        CHECK_EQUAL(rtSetDevice(0), RT_OK);
        CHECK_EQUAL(rtSetDevice(1), RT_INVALID_DEVICE);
        CHECK_EQUAL(npusim_physical_device(0), 1);
    });
}

CASE(cann_takes_memory_for_itself_under_its_own_modules) {
    const alone::Knobs knobs{{"NPUSIM_CANN_MEMORY", "1"}, {"HCCL_BUFFSIZE", "3"}};
    alone::run(knobs, [] {
        g_allocations.reserve(8);
        CHECK_EQUAL(aclrtSetDevice(0), ACL_OK);
        CHECK_EQUAL(aclrtSetDevice(0), ACL_OK);
        CHECK_EQUAL(g_allocations.size(), 2u);
        CHECK_EQUAL(module_of(g_allocations[0]), MODULE_RUNTIME);
        CHECK_EQUAL(module_of(g_allocations[1]), MODULE_AICPU);
        void* stream = nullptr;
        CHECK_EQUAL(aclrtCreateStream(&stream), ACL_OK);
        CHECK_EQUAL(module_of(g_allocations.at(2)), MODULE_RUNTIME);
        const uint64_t before = live();
        HcclRootInfo root;
        void* communicator = nullptr;
        CHECK_EQUAL(HcclGetRootInfo(&root), HCCL_OK);
        CHECK_EQUAL(HcclCommInitRootInfo(1, &root, 0, &communicator), HCCL_OK);
        CHECK_EQUAL(live() - before, 2 * 3 * kMiB);
        CHECK_EQUAL(module_of(g_allocations.at(4)), MODULE_HCCL);
        CHECK_EQUAL(HcclCommDestroy(communicator), HCCL_OK);
        CHECK_EQUAL(aclrtDestroyStream(stream), ACL_OK);
        CHECK_EQUAL(aclrtResetDevice(0), ACL_OK);
        CHECK_EQUAL(live(), 0u);
    });
    alone::run({}, [] {
        void* stream = nullptr;
        CHECK_EQUAL(aclrtSetDevice(0), ACL_OK);
        CHECK_EQUAL(aclrtCreateStream(&stream), ACL_OK);
        CHECK_EQUAL(live(), 0u);
    });
}

CASE(the_nth_allocation_fails) {
    const auto outcomes = [](const char* knob) {
        alone::run({{"NPUSIM_OOM_AT", knob}}, [knob] {
            std::string seen;
            for (int i = 0; i < 4; ++i) {
                void* block = nullptr;
                seen += halMemAlloc(&block, 2 * kMiB, kDeviceMemory) == DRV_OK ? 'y' : 'n';
            }
            const std::string text = knob;
            CHECK_EQUAL(seen, text == "3" ? "yyny" : text == "3+" ? "yynn" : "yyyn");
        });
    };
    outcomes("3");
    outcomes("3+");
    outcomes("7MB");
}

CASE(an_allocation_that_fails_is_tried_again_with_small_pages) {
    alone::run({{"NPUSIM_HBM_MB", "8"}}, [] {
        void* block = nullptr;
        CHECK_EQUAL(aclrtSetDevice(0), ACL_OK);
        const uint64_t before = npusim_call_count("halMemAlloc");
        CHECK_EQUAL(aclrtMalloc(&block, 16 * kMiB, 0), ACL_RT_MEMORY_ALLOCATION);
        CHECK_EQUAL(npusim_call_count("halMemAlloc") - before, 2u);
    });
}

CASE(the_call_that_is_named_fails) {
    alone::run({{"NPUSIM_FAIL", "halMemFree:2:7,aclrtCreateStream"}}, [] {
        void* const blocks[] = {allocate(4096), allocate(4096)};
        CHECK_EQUAL(halMemFree(blocks[0]), DRV_OK);
        CHECK_EQUAL(halMemFree(blocks[1]), DRV_INNER_ERR);
        CHECK_EQUAL(halMemFree(blocks[1]), DRV_OK);
        void* stream = nullptr;
        CHECK_EQUAL(aclrtSetDevice(0), ACL_OK);
        CHECK_EQUAL(aclrtCreateStream(&stream), ACL_INTERNAL);
        npusim_set_faults("halMemCreate:2+:6");
        CHECK_EQUAL(aclrtCreateStream(&stream), ACL_OK);
        create(4096);
        const drv_mem_prop prop{1, 0, MODULE_APP, 1, 0, 0};
        drv_mem_handle* handle = nullptr;
        for (int i = 0; i < 2; ++i) CHECK_EQUAL(halMemCreate(&handle, 4096, &prop, 0), DRV_OOM);
        CHECK_EQUAL(live(), 4096u);
    });
}

CASE(the_report_says_what_a_process_did) {
    const alone::Cards cards;
    const std::string path = cards.directory() + "/report-%p.json";
    const pid_t child = alone::start(cards, {{"NPUSIM_REPORT", path}}, [] {
        halMemFree(allocate(4096));
        allocate(1000, 1);
    });
    CHECK_EQUAL(alone::end_of(child), 0);
    const std::string written = cards.directory() + "/report-" + std::to_string(child) + ".json";
    std::stringstream text;
    text << std::ifstream(written).rdbuf();
    unlink(written.c_str());
    CHECK(text.str().find("\"live_bytes\": {\"0\": 0, \"1\": 1000, \"host\": 0}") != std::string::npos);
    CHECK(text.str().find("\"halMemAlloc\": 2, \"halMemFree\": 1}") != std::string::npos);
}

CASE(dcmi_counts_devices_by_card_and_misbehaves_on_demand) {
    alone::run({{"NPUSIM_DEVICES", "5"}, {"NPUSIM_DEVICES_PER_CARD", "2"}}, [] {
        int cards[32], count = 0, logic = -1;
        CHECK_EQUAL(dcmi_init(), 0);
        CHECK_EQUAL(dcmi_get_card_list(&count, cards, 32), 0);
        CHECK_EQUAL(count, 3);
        CHECK_EQUAL(dcmi_get_device_num_in_card(2, &count), 0);
        CHECK_EQUAL(count, 1);
        CHECK_EQUAL(dcmi_get_device_logic_id(&logic, 1, 1), 0);
        CHECK_EQUAL(logic, 3);
        CHECK_EQUAL(dcmi_get_device_logic_id(&logic, 2, 1), DCMI_INVALID_PARAMETER);
    });
    alone::run({{"NPUSIM_DCMI_FAIL", "-8020"}, {"NPUSIM_DCMI_DELAY_MS", "30"}}, [] {
        timespec before, after;
        clock_gettime(CLOCK_MONOTONIC, &before);
        CHECK_EQUAL(dcmi_init(), -8020);
        clock_gettime(CLOCK_MONOTONIC, &after);
        CHECK((after.tv_sec - before.tv_sec) * 1000 + (after.tv_nsec - before.tv_nsec) / 1000000 >= 30);
    });
    const alone::Cards cards;
    const pid_t child = alone::start(cards, {{"NPUSIM_DCMI_HANG", "1"}}, [] {
        alarm(1);  // ends the process; a query that returned would have let it exit first
        dcmi_init();
    });
    CHECK_EQUAL(WTERMSIG(alone::end_of(child)), SIGALRM);
}

int main(int argc, char** argv) { return check::run(argc, argv); }
