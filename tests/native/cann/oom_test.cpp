// Requests that fail: one record for each function that said no, with both stacks, in the ring before the call returns.
#include <sys/wait.h>
#include <unistd.h>
#include <csignal>
#include <cstdlib>
#include <string>
#include <thread>
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
int aclrtSetDevice(int device);
int aclrtMalloc(void** out, std::size_t size, int policy);
int aclrtMallocAlign32(void** out, std::size_t size, int policy);
int aclrtMallocPhysical(void** handle, std::size_t size, const void* properties, std::uint64_t flags);
int aclrtFree(void* ptr);
int aclrtGetMemInfo(int memory, std::size_t* available, std::size_t* total);
}

namespace {

constexpr i64 kMiB = 1 << 20;
constexpr i64 kTotal = 64 * kMiB;
constexpr i64 kTooMuch = 100 * kMiB;
constexpr u64 kDriverCode = 6;
constexpr u64 kAclCode = 207001;

std::vector<EventRecord> failures_since(std::size_t before) {
    std::vector<EventRecord> found;
    const auto events = own_events();
    for (std::size_t i = before; i < events.size(); ++i)
        if (events[i].kind == Kind::OOM) found.push_back(events[i].record);
    return found;
}

u32 frames_of(u64 stack) {
    for (const std::string& path : rings()) {
        Ring ring;
        CHECK_EQUAL(ring.open(path.c_str(), false), 0);
        u32 count = 0;
        for (u64 at = 0; at < ring.header->head.load();) {
            const RecordHeader header = ring.peek(at);
            if (!is_valid(header)) break;
            StackRecord record = {};
            if (header.kind == static_cast<u8>(Kind::STACK))
                memcpy(&record, ring.data + (at & (ring.capacity() - 1)), sizeof record);
            if (record.id == stack && stack != 0) count = record.count;
            at += header.length;
        }
        ring.unmap();
        if (count != 0) return count;
    }
    return 0;
}

struct PhysicalProperties {  // aclrtPhysicalMemProp
    int handle_type, allocation_type, memory;
    u32 device;
    int location;
    u64 reserved;
};

}  // namespace

// The cases run in this order: there is one recorder per process.

CASE(one_request_through_the_runtime_fails_twice_in_the_driver_and_once_in_acl) {
    CHECK_EQUAL(memscope_set_session(session_directory().c_str()), 0);
    memscope_configure("devices=auto");
    memscope_install_hooks();
    memscope_start();
    CHECK_EQUAL(aclrtSetDevice(1), 0);
    void *first = nullptr, *second = nullptr;
    CHECK_EQUAL(aclrtMalloc(&first, static_cast<std::size_t>(10 * kMiB - 32), 0), 0);
    const auto before = own_events().size();
    CHECK_EQUAL(aclrtMalloc(&second, kTooMuch - 32, 0), static_cast<int>(kAclCode));
    const auto failures = failures_since(before);
    CHECK_EQUAL(failures.size(), 3u);
    for (const EventRecord& failure : failures) {
        CHECK_EQUAL(static_cast<int>(failure.pool), static_cast<int>(Pool::HAL));
        CHECK_EQUAL(static_cast<int>(failure.device_type), static_cast<int>(DeviceType::NPU));
        CHECK_EQUAL(failure.device, 1);
        CHECK(failure.stack_c != 0);
        CHECK(frames_of(failure.stack_c) > 3);  // though no stacks were asked for
    }
    for (int i = 0; i < 2; ++i) {
        CHECK_EQUAL(failures[static_cast<std::size_t>(i)].size, kTooMuch);
        CHECK_EQUAL(failures[static_cast<std::size_t>(i)].attr, kDriverCode);
        CHECK_EQUAL(text_of(failures[static_cast<std::size_t>(i)].name), "halMemAlloc");
    }
    // The driver was asked for huge pages first; its flag word says so.
    const u64 word = MEMF_DEV | MEMF_HBM | MEMF_ALIGN9 | 1 | 33ull << MEMF_MODULE_SHIFT;
    CHECK_EQUAL(failures[0].ptr, word | MEMF_HUGE);
    CHECK_EQUAL(failures[1].ptr, word);
    CHECK_EQUAL(failures[2].ptr, 0u);
    // What AscendCL was asked for, and what the whole card had then.
    CHECK_EQUAL(failures[2].size, kTooMuch - 32);
    CHECK_EQUAL(failures[2].attr, kAclCode);
    CHECK_EQUAL(text_of(failures[2].name), "aclrtMalloc");
    CHECK_EQUAL(failures[2].used, 10 * kMiB);
    CHECK_EQUAL(failures[2].total, kTotal);
    CHECK_EQUAL(aclrtFree(first), 0);
}

CASE(handles_fail_the_same_way) {
    const auto before = own_events().size();
    void* handle = nullptr;
    const PhysicalProperties properties = {0, 0, 0, 0, 1, 0};
    CHECK_EQUAL(aclrtMallocPhysical(&handle, kTooMuch, &properties, 0), static_cast<int>(kAclCode));
    const auto failures = failures_since(before);
    CHECK_EQUAL(failures.size(), 2u);
    CHECK_EQUAL(text_of(failures[0].name), "halMemCreate");
    CHECK_EQUAL(failures[0].size, kTooMuch);
    CHECK_EQUAL(failures[0].device, 0);  // the properties'
    CHECK_EQUAL(text_of(failures[1].name), "aclrtMallocPhysical");
}

CASE(a_request_of_all_there_could_be_keeps_its_sign) {
    const auto before = own_events().size();
    drv_mem_handle* handle = nullptr;
    const drv_mem_prop properties = {1, 0, 33, 0, 0, 0};
    CHECK_EQUAL(halMemCreate(&handle, ~std::size_t{0} >> 1, &properties, 0), DRV_OOM);
    const auto failures = failures_since(before);
    CHECK_EQUAL(failures.size(), 1u);
    CHECK(failures[0].size > 0);
}

CASE(other_errors_are_no_shortage) {
    const auto before = own_events().size();
    void* block = nullptr;
    CHECK_EQUAL(halMemAlloc(&block, 1 << 20, MEMF_DEV | 9), DRV_INVALID_DEVICE);
    CHECK(aclrtMallocAlign32(nullptr, 1 << 20, 0) != 0);
    CHECK_EQUAL(own_events().size(), before);
}

CASE(while_stopped_nothing_is_told) {
    memscope_stop();
    const auto before = own_events().size();
    void* block = nullptr;
    CHECK_EQUAL(aclrtMalloc(&block, kTooMuch, 0), static_cast<int>(kAclCode));
    CHECK_EQUAL(own_events().size(), before);
    memscope_start();
}

CASE(start_says_what_the_threads_card_holds) {
    CHECK_EQUAL(aclrtSetDevice(1), 0);
    void* block = nullptr;
    CHECK_EQUAL(aclrtMalloc(&block, 8 << 20, 0), 0);
    std::size_t available = 0, total = 0;
    CHECK_EQUAL(aclrtGetMemInfo(1, &available, &total), 0);
    memscope_stop();
    const auto before = own_events().size();
    std::thread(memscope_start).join();  // a thread without a card
    memscope_stop();
    memscope_start();
    memscope_start();  // no second time
    const auto all = own_events();
    std::vector<EventRecord> starts;
    for (std::size_t i = before; i < all.size(); ++i)
        if (all[i].kind == Kind::SYSTEM && all[i].record.aux == static_cast<u32>(SystemEvent::START_TRACE))
            starts.push_back(all[i].record);
    CHECK_EQUAL(starts.size(), 2u);
    CHECK_EQUAL(starts[0].device, kNoDevice);
    CHECK_EQUAL(starts[0].total, kUnknown);
    CHECK_EQUAL(starts[1].device, 1);
    CHECK_EQUAL(static_cast<int>(starts[1].device_type), static_cast<int>(DeviceType::NPU));
    CHECK_EQUAL(starts[1].total, static_cast<i64>(total));
    CHECK_EQUAL(starts[1].used, static_cast<i64>(total - available));
    CHECK_EQUAL(aclrtFree(block), 0);
}

// AscendCL's function is hooked and calls the driver's, which is hooked too: our frames lie on top and in between.
CASE(no_frame_of_ours_shows) {
    u32 frames = 0;
    for (const std::string& path : rings()) {
        Ring ring;
        CHECK_EQUAL(ring.open(path.c_str(), false), 0);
        for (u64 at = 0; at < ring.header->head.load();) {
            const RecordHeader header = ring.peek(at);
            if (!is_valid(header)) break;
            if (header.kind == static_cast<u8>(Kind::FRAME)) {
                FrameRecord record = {};
                memcpy(&record, ring.data + (at & (ring.capacity() - 1)), sizeof record);
                CHECK(text_of(record.file).find("kernel_hook") == std::string::npos);
                ++frames;
            }
            at += header.length;
        }
        ring.unmap();
    }
    CHECK(frames > 5);
}

CASE(who_dies_of_it_has_told_it) {
    const pid_t child = fork();
    if (child == 0) {
        void* block = nullptr;
        if (aclrtMalloc(&block, kTooMuch, 0) != 0) raise(SIGKILL);
        _exit(0);
    }
    int status = 0;
    CHECK_EQUAL(waitpid(child, &status, 0), child);
    CHECK(WIFSIGNALED(status));
    u32 failures = 0;
    for (const std::string& path : rings()) {
        Ring ring;
        CHECK_EQUAL(ring.open(path.c_str(), false), 0);
        if (ring.header->pid == static_cast<u32>(child))
            for (const Seen& one : events_of(ring)) failures += one.kind == Kind::OOM;
        ring.unmap();
    }
    CHECK_EQUAL(failures, 3u);
}

int main(int argc, char** argv) {
    setenv("NPUSIM_HBM_MB", "64", 1);
    alarm(120);
    const int status = check::run(argc, argv);
    const std::string clean = "rm -rf " + session_directory();
    return std::system(clean.c_str()) == 0 ? status : 1;
}
