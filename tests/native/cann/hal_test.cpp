// The source hal on the simulated driver: what a program does with the driver's memory is in the ring, in order, with
// the device, the kind and the live bytes of each event.
#include <sys/wait.h>
#include <unistd.h>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include "cann.h"
#include "check.h"
#include "hook/recorder.h"
#include "hook/selection.h"
#include "own_ring.h"

using namespace memscope;
using namespace own;

extern "C" {
unsigned memscope_install_hooks();
int aclInit(const char* config);
int aclFinalize();
int aclrtSetDevice(int device);
int aclrtMalloc(void** out, std::size_t size, int policy);
int aclrtMallocHost(void** out, std::size_t size);
int aclrtFree(void* ptr);
int aclrtFreeHost(void* ptr);
int aclrtHostRegisterV2(void* ptr, std::uint64_t size, std::uint32_t flag);
int aclrtHostUnregister(void* ptr);
}

namespace {

constexpr i64 kMiB = 1 << 20;
constexpr u64 kApp = 33ull << MEMF_MODULE_SHIFT;

// What happened since `before`: KIND type:device [PINNED] [HANDLE] size used name.
std::string story_since(std::size_t before) {
    std::ostringstream story;
    const auto events = own_events();
    for (std::size_t i = before; i < events.size(); ++i) {
        const EventRecord& record = events[i].record;
        const char* kind = nullptr;
        switch (events[i].kind) {
            case Kind::MALLOC:
                kind = "MALLOC";
                break;
            case Kind::FREE:
                kind = "FREE";
                break;
            case Kind::RESERVE:
                kind = "RESERVE";
                break;
            case Kind::UNRESERVE:
                kind = "UNRESERVE";
                break;
            case Kind::MAP:
                kind = "MAP";
                break;
            case Kind::UNMAP:
                kind = "UNMAP";
                break;
            case Kind::OOM:
                kind = "OOM";
                break;
            case Kind::SYSTEM:
                story << "SYSTEM " << record.aux << "\n";
                continue;
            default:
                continue;
        }
        CHECK_EQUAL(static_cast<int>(record.pool), static_cast<int>(Pool::HAL));
        story << kind << (record.device_type == static_cast<u8>(DeviceType::CPU) ? " cpu:" : " npu:") << record.device
              << ((record.header.flags & static_cast<u8>(Flag::PINNED)) != 0 ? " PINNED" : "")
              << ((record.header.flags & static_cast<u8>(Flag::HANDLE)) != 0 ? " HANDLE" : "") << " "
              << record.size / kMiB << " " << (record.used == kUnknown ? -1 : record.used / kMiB) << " "
              << text_of(record.name) << "\n";
    }
    return story.str();
}

u64 counter_of(u32 device) {
    u64 used = 0, total = 0;
    npusim_hbm_info(device, &used, &total);
    return used;
}

void check_counter(u32 device) {
    const Seen last = own_events().back();
    CHECK_EQUAL(last.record.device, static_cast<i16>(device));
    CHECK_EQUAL(static_cast<u64>(last.record.used), counter_of(device));
}

void* allocate(i64 size, u64 flag) {
    void* block = nullptr;
    CHECK_EQUAL(halMemAlloc(&block, static_cast<u64>(size), flag), 0);
    return block;
}

}  // namespace

// The cases run in this order: there is one recorder per process.

CASE(a_program_and_its_events) {
    CHECK_EQUAL(memscope_set_session(session_directory().c_str()), 0);
    memscope_configure("devices=auto");
    memscope_install_hooks();
    memscope_start();
    CHECK_EQUAL(aclInit(nullptr), 0);
    CHECK_EQUAL(aclrtSetDevice(0), 0);

    void* normal = allocate(1 * kMiB, MEMF_DEV | MEMF_HBM | kApp);
    check_counter(0);
    void* huge = allocate(4 * kMiB, MEMF_DEV | MEMF_HBM | MEMF_HUGE | 1 | 3ull << MEMF_MODULE_SHIFT);
    check_counter(1);
    void* giant = allocate(1024 * kMiB, MEMF_DEV | MEMF_HBM | MEMF_GIANT | 1);
    check_counter(1);
    void* svm = allocate(2 * kMiB, MEMF_SVM);
    check_counter(0);
    void* dvpp = allocate(6 * kMiB, MEMF_DVPP | MEMF_HBM);
    check_counter(0);
    void* host = allocate(3 * kMiB, MEMF_HOST);
    CHECK_EQUAL(halMemFree(huge), 0);
    check_counter(1);
    CHECK_EQUAL(halMemFree(host), 0);
    CHECK_EQUAL(halMemFree(normal), 0);
    check_counter(0);
    CHECK_EQUAL(halMemFree(dvpp), 0);
    CHECK_EQUAL(halMemFree(svm), 0);
    check_counter(0);
    CHECK_EQUAL(halMemFree(giant), 0);
    check_counter(1);

    CHECK_EQUAL(story_since(0),
                "SYSTEM 0\n"
                "SYSTEM 2\n"
                "MALLOC npu:0 1 1 halMemAlloc\n"
                "MALLOC npu:1 4 4 halMemAlloc\n"
                "MALLOC npu:1 1024 1028 halMemAlloc\n"
                "MALLOC npu:0 2 3 halMemAlloc\n"
                "MALLOC npu:0 6 9 halMemAlloc\n"
                "MALLOC cpu:0 PINNED 3 3 halMemAlloc\n"
                "FREE npu:1 4 1024 halMemFree\n"
                "FREE cpu:0 PINNED 3 0 halMemFree\n"
                "FREE npu:0 1 8 halMemFree\n"
                "FREE npu:0 6 2 halMemFree\n"
                "FREE npu:0 2 0 halMemFree\n"
                "FREE npu:1 1024 0 halMemFree\n");
    // Both ends of a block carry the same address and flag word.
    const auto memory = own_memory_events();
    CHECK_EQUAL(memory[1].record.attr, MEMF_DEV | MEMF_HBM | MEMF_HUGE | 1 | 3ull << MEMF_MODULE_SHIFT);
    CHECK_EQUAL(memory[1].record.ptr, reinterpret_cast<u64>(huge));
    CHECK_EQUAL(memory[6].record.attr, memory[1].record.attr);
    CHECK_EQUAL(memory[6].record.ptr, memory[1].record.ptr);
    CHECK_EQUAL(memory[0].record.total, kUnknown);
}

CASE(physical_memory_and_the_addresses_that_lead_to_it) {
    const auto before = own_events().size();
    void* range = nullptr;
    drv_mem_handle* handle = nullptr;
    const drv_mem_prop properties = {1, 1, 35, 1, 2, 0};
    CHECK_EQUAL(halMemAddressReserve(&range, 64 * kMiB, 0, nullptr, 0), 0);
    CHECK_EQUAL(halMemCreate(&handle, 20 * kMiB, &properties, 0), 0);
    check_counter(1);
    CHECK_EQUAL(halMemMap(range, 20 * kMiB, 0, handle, 0), 0);
    CHECK_EQUAL(halMemUnmap(range), 0);
    CHECK_EQUAL(halMemRelease(handle), 0);
    check_counter(1);
    CHECK_EQUAL(halMemAddressFree(range), 0);
    CHECK_EQUAL(story_since(before),
                "RESERVE npu:-1 64 -1 halMemAddressReserve\n"
                "MALLOC npu:1 HANDLE 20 20 halMemCreate\n"
                "MAP npu:1 20 -1 halMemMap\n"
                "UNMAP npu:1 20 -1 halMemUnmap\n"
                "FREE npu:1 HANDLE 20 0 halMemRelease\n"
                "UNRESERVE npu:-1 64 -1 halMemAddressFree\n");
    const auto events = own_events();
    const auto at = [&](std::size_t place) {
        std::size_t i = before;
        for (;; ++i)
            if (events[i].kind != Kind::META && place-- == 0) return events[i].record;
    };
    CHECK_EQUAL(at(1).ptr, reinterpret_cast<u64>(handle));
    CHECK_EQUAL(at(1).attr, MEMF_DEV | MEMF_HBM | MEMF_P2P | MEMF_HUGE | 1 | 35ull << MEMF_MODULE_SHIFT);
    CHECK_EQUAL(at(2).ptr, reinterpret_cast<u64>(range));
    CHECK_EQUAL(at(2).attr, reinterpret_cast<u64>(handle));
    CHECK_EQUAL(at(3).ptr, reinterpret_cast<u64>(range));
    CHECK_EQUAL(at(4).attr, at(1).attr);
    CHECK(halMemUnmap(range) != 0);  // and no event
    CHECK_EQUAL(own_events().size(), before + 6);
}

CASE(page_locked_memory) {
    const auto before = own_events().size();
    static char buffer[kMiB];
    void* host = nullptr;
    CHECK_EQUAL(aclrtMallocHost(&host, 2 * kMiB), 0);
    CHECK_EQUAL(aclrtHostRegisterV2(buffer, kMiB, 0x10000000), 0);
    CHECK_EQUAL(aclrtFreeHost(host), 0);
    CHECK_EQUAL(aclrtHostUnregister(buffer), 0);
    CHECK_EQUAL(aclrtHostRegisterV2(buffer, kMiB, 0), 0);  // mapped, not page-locked
    CHECK_EQUAL(aclrtHostUnregister(buffer), 0);
    CHECK_EQUAL(story_since(before),
                "MALLOC cpu:0 PINNED 2 2 halMemAlloc\n"
                "MALLOC cpu:0 PINNED 1 3 aclrtHostRegisterV2\n"
                "FREE cpu:0 PINNED 2 1 halMemFree\n"
                "FREE cpu:0 PINNED 1 0 aclrtHostUnregister\n");
}

CASE(a_call_through_the_layers_is_one_event) {
    const auto before = own_events().size();
    void* block = nullptr;
    CHECK_EQUAL(aclrtMalloc(&block, 2 * kMiB - 32, 0), 0);
    check_counter(0);
    CHECK_EQUAL(aclrtFree(block), 0);
    check_counter(0);
    CHECK_EQUAL(story_since(before), "MALLOC npu:0 2 2 halMemAlloc\nFREE npu:0 2 0 halMemFree\n");
    // Bound to the twin, as newer parts of CANN are.
    CHECK_EQUAL(halMemAllocInner(&block, 2 * kMiB, MEMF_DEV), 0);
    CHECK_EQUAL(halMemFreeInner(block), 0);
    CHECK_EQUAL(own_events().size(), before + 4);
}

CASE(bad_input_is_passed_on_and_tells_nothing) {
    const auto before = own_events().size();
    void* block = nullptr;
    drv_mem_handle* handle = nullptr;
    const drv_mem_prop elsewhere = {1, 4000, 33, 0, 0, 0};
    CHECK_EQUAL(halMemAlloc(nullptr, kMiB, MEMF_DEV), DRV_INVALID_VALUE);
    CHECK_EQUAL(halMemAlloc(&block, 0, MEMF_DEV), DRV_INVALID_VALUE);
    CHECK_EQUAL(halMemAlloc(&block, kMiB, MEMF_DEV | 1023), DRV_INVALID_DEVICE);
    CHECK_EQUAL(halMemFree(nullptr), DRV_INVALID_VALUE);
    CHECK_EQUAL(halMemFree(&block), DRV_INVALID_VALUE);
    CHECK_EQUAL(halMemCreate(nullptr, kMiB, &elsewhere, 0), DRV_INVALID_VALUE);
    CHECK_EQUAL(halMemCreate(&handle, kMiB, nullptr, 0), DRV_INVALID_VALUE);
    CHECK_EQUAL(halMemCreate(&handle, kMiB, &elsewhere, 0), DRV_INVALID_DEVICE);
    CHECK_EQUAL(halMemRelease(nullptr), DRV_INVALID_HANDLE);
    CHECK_EQUAL(halMemAddressFree(&block), DRV_INVALID_VALUE);
    CHECK_EQUAL(halMemUnmap(nullptr), DRV_INVALID_VALUE);
    CHECK_EQUAL(aclrtHostUnregister(nullptr), 100000);
    CHECK_EQUAL(own_events().size(), before);
}

CASE(only_selected_cards_are_told) {
    memscope_configure("devices=npu:1");
    const auto before = own_events().size();
    void* zero = allocate(kMiB, MEMF_DEV);
    void* one = allocate(kMiB, MEMF_DEV | 1);
    CHECK_EQUAL(halMemFree(zero), 0);
    CHECK_EQUAL(halMemFree(one), 0);
    CHECK_EQUAL(story_since(before), "MALLOC npu:1 1 1 halMemAlloc\nFREE npu:1 1 0 halMemFree\n");
    memscope_configure("devices=auto");
}

CASE(finalize_before_the_last_frees) {
    const auto before = own_events().size();
    void* block = nullptr;
    CHECK_EQUAL(aclrtMalloc(&block, 2 * kMiB - 32, 0), 0);
    CHECK_EQUAL(aclFinalize(), 0);
    CHECK_EQUAL(aclrtFree(block), 0);
    CHECK_EQUAL(story_since(before),
                "MALLOC npu:0 2 2 halMemAlloc\n"
                "SYSTEM 3\n"
                "FREE npu:0 2 0 halMemFree\n");
}

// What the case below runs: a program that is linked to CANN and knows nothing of us.
int watched_program() {
    void* block = nullptr;
    return halMemAlloc(&block, kMiB, MEMF_DEV) | halMemFree(block);
}

CASE(a_linked_program_is_watched_from_its_first_call) {
    const pid_t child = fork();
    if (child == 0) {
        setenv("MSMEMSCOPE_SESSION", session_directory().c_str(), 1);
        setenv("MSMEMSCOPE_SETTINGS", "devices=npu", 1);
        execl("/proc/self/exe", "program", "watched", nullptr);
        _exit(127);
    }
    int status = -1;
    CHECK_EQUAL(waitpid(child, &status, 0), child);
    CHECK_EQUAL(status, 0);
    const auto memory = memory_events(static_cast<u32>(child));
    CHECK_EQUAL(memory.size(), 2u);
    CHECK_EQUAL(memory[0].record.size, kMiB);
    CHECK_EQUAL(memory[1].record.used, 0);
}

int main(int argc, char** argv) {
    if (argc == 2 && std::string(argv[1]) == "watched") return watched_program();
    alarm(120);
    const int status = check::run(argc, argv);
    const std::string clean = "rm -rf " + session_directory();
    return std::system(clean.c_str()) == 0 ? status : 1;
}
