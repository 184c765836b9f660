// The source hal in a process that is linked to no part of CANN: drivers come and go by dlopen(), in a scope of their
// own, and have one set of names or the other.
#include <dlfcn.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>
#include <atomic>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "hook/recorder.h"
#include "hook/selection.h"
#include "own_ring.h"

using namespace memscope;
using namespace own;

extern "C" {
unsigned memscope_install_hooks();
void memscope_remove_hooks();
}

namespace {

constexpr u64 kDevice = 1ull << 10;
using Allocate = int (*)(void**, unsigned long long, unsigned long long);
using Release = int (*)(void*);
using Create = int (*)(void**, std::size_t, const void*, std::uint64_t);

struct Driver {
    void* library;
    Allocate allocate;
    Release release;
    Create create;
    Release release_handle;
    int* status;

    Driver(const char* path, const std::string& suffix) : library(dlopen(path, RTLD_NOW | RTLD_LOCAL)) {
        CHECK(library != nullptr);
        const auto find = [&](const std::string& name) { return dlsym(library, name.c_str()); };
        allocate = reinterpret_cast<Allocate>(find("halMemAlloc" + suffix));
        release = reinterpret_cast<Release>(find("halMemFree" + suffix));
        create = reinterpret_cast<Create>(find("halMemCreate" + suffix));
        release_handle = reinterpret_cast<Release>(find("halMemRelease" + suffix));
        status = static_cast<int*>(find("fake_status"));
        CHECK(allocate != nullptr && release != nullptr && create != nullptr && release_handle != nullptr);
    }
    ~Driver() { dlclose(library); }
    Driver(const Driver&) = delete;
    Driver& operator=(const Driver&) = delete;

    void* block(i64 size, u64 flag = kDevice) const {
        void* ptr = nullptr;
        CHECK_EQUAL(allocate(&ptr, static_cast<u64>(size), flag), 0);
        return ptr;
    }
};

bool is_loaded(const char* path) {
    void* library = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    if (library != nullptr) dlclose(library);
    return library != nullptr;
}

}  // namespace

// The cases run in this order: there is one recorder per process.

CASE(drivers_with_one_set_of_names_come_and_go) {
    CHECK_EQUAL(memscope_set_session(session_directory().c_str()), 0);
    memscope_configure("devices=npu");
    memscope_install_hooks();
    memscope_start();
    std::size_t expected = 0;
    const char* const paths[] = {PLAIN_DRIVER, INNER_DRIVER};
    for (int round = 0; round < 6; ++round) {
        const char* path = paths[round % 2];
        {
            const Driver driver(path, round % 2 == 0 ? "" : "Inner");
            void* block = driver.block(4096);
            CHECK_EQUAL(driver.release(block), 0);
            const auto memory = own_memory_events();
            CHECK_EQUAL(memory.size(), expected += 2);
            CHECK_EQUAL(memory[expected - 2].record.ptr, reinterpret_cast<u64>(block));
            CHECK_EQUAL(memory[expected - 1].record.ptr, reinterpret_cast<u64>(block));
            CHECK_EQUAL(memory[expected - 1].record.used, 0);
        }
        CHECK(!is_loaded(path));
    }
}

CASE(a_handle_without_properties_is_an_event_of_no_device) {
    const auto before = own_memory_events().size();
    const Driver driver(PLAIN_DRIVER, "");
    void* handle = nullptr;
    CHECK_EQUAL(driver.create(&handle, 4096, nullptr, 0), 0);
    CHECK_EQUAL(driver.release_handle(handle), 0);
    const auto memory = own_memory_events();
    CHECK_EQUAL(memory.size(), before + 2);
    for (std::size_t i = before; i < before + 2; ++i) {
        CHECK_EQUAL(memory[i].record.device, kNoDevice);
        CHECK_EQUAL(memory[i].record.size, 4096);
        CHECK_EQUAL(memory[i].record.used, kUnknown);
        CHECK_EQUAL(memory[i].record.header.flags, static_cast<u8>(Flag::HANDLE));
    }
}

CASE(kinds_of_memory_that_nobody_has_named_yet_are_memory_of_the_device) {
    const auto before = own_memory_events().size();
    const Driver driver(PLAIN_DRIVER, "");
    const u64 word = ~u64{0} << 40 | 9ull << 10 | 1023;
    CHECK_EQUAL(driver.release(driver.block(4096, word)), 0);
    const auto memory = own_memory_events();
    CHECK_EQUAL(memory.size(), before + 2);
    for (std::size_t i = before; i < before + 2; ++i) {
        CHECK_EQUAL(memory[i].record.device, 1023);
        CHECK_EQUAL(static_cast<int>(memory[i].record.device_type), static_cast<int>(DeviceType::NPU));
        CHECK_EQUAL(memory[i].record.attr, word);
        CHECK_EQUAL(memory[i].record.used, i == before ? 4096 : 0);
    }
}

CASE(what_hccl_gives_back_within_a_call_is_of_no_communicator) {
    const Driver driver(PLAIN_DRIVER, "");
    const auto barrier = reinterpret_cast<int (*)(void*, void*)>(dlsym(driver.library, "HcclBarrier"));
    const auto before = own_events().size();
    void* blocks[2] = {};
    CHECK_EQUAL(barrier(blocks, nullptr), 0);
    const auto events = own_events();
    std::size_t labels = 0, memory = 0;
    for (std::size_t i = before; i < events.size(); ++i) {
        memory += events[i].kind == Kind::MALLOC || events[i].kind == Kind::FREE ? 1 : 0;
        if (events[i].kind != Kind::LABEL_ADDR) continue;
        labels += 1;
        CHECK_EQUAL(events[i].record.ptr, reinterpret_cast<u64>(blocks[0]));
        CHECK(text_of(events[i].record.name) == "fake_group");
    }
    CHECK_EQUAL(memory, 3u);
    CHECK_EQUAL(labels, 1u);
    CHECK_EQUAL(driver.release(blocks[0]), 0);
}

#if !defined(__SANITIZE_ADDRESS__)  // which takes frames that a cancelled thread has left for those of its next calls
// What lay there is gone, as it would be when other calls have been made.
__attribute__((noinline)) static void write_over_stack() {
    volatile char used[16384];
    for (volatile char& one : used) one = '\x7f';
}

CASE(a_thread_that_is_cancelled_within_hccl_ends_as_it_would) {
    struct Stuck {
        const Driver driver{PLAIN_DRIVER, ""};
        void* blocks[2] = {};
        static void give_back(void* self) {
            const auto* stuck = static_cast<Stuck*>(self);
            write_over_stack();
            CHECK_EQUAL(stuck->driver.release(stuck->blocks[0]), 0);
            CHECK_EQUAL(stuck->driver.release(stuck->blocks[1]), 0);
        }
        static void* run(void* self) {
            auto* stuck = static_cast<Stuck*>(self);
            const auto barrier = reinterpret_cast<int (*)(void*, void*)>(dlsym(stuck->driver.library, "HcclBarrier"));
            pthread_cleanup_push(give_back, self);
            barrier(stuck->blocks, self);
            pthread_cleanup_pop(0);
            return nullptr;
        }
    } stuck;
    const auto before = own_memory_events().size();
    pthread_t thread;
    CHECK_EQUAL(pthread_create(&thread, nullptr, &Stuck::run, &stuck), 0);
    while (own_memory_events().size() < before + 2) usleep(1000);
    void* result = nullptr;
    CHECK_EQUAL(pthread_cancel(thread), 0);
    CHECK_EQUAL(pthread_join(thread, &result), 0);
    CHECK(result == PTHREAD_CANCELED);
    CHECK_EQUAL(own_memory_events().size(), before + 4);
}
#endif

CASE(a_release_that_the_driver_refuses_leaves_the_block) {
    const Driver driver(PLAIN_DRIVER, "");
    void* block = driver.block(4096);
    const auto before = own_memory_events().size();
    *driver.status = 3;
    CHECK_EQUAL(driver.release(block), 3);
    *driver.status = 0;
    auto memory = own_memory_events();
    CHECK_EQUAL(memory.size(), before + 2);
    CHECK(memory[before].kind == Kind::FREE && memory[before + 1].kind == Kind::MALLOC);
    CHECK_EQUAL(memory[before + 1].record.ptr, reinterpret_cast<u64>(block));
    CHECK_EQUAL(memory[before + 1].record.used, 4096);
    CHECK_EQUAL(driver.release(block), 0);
    memory = own_memory_events();
    CHECK_EQUAL(memory.size(), before + 3);
    CHECK_EQUAL(memory.back().record.used, 0);
}

CASE(an_address_whose_release_was_not_seen_counts_once) {
    const Driver driver(PLAIN_DRIVER, "");
    void* block = driver.block(4096);
    memscope_remove_hooks();
    const auto unseen = reinterpret_cast<Release>(dlsym(driver.library, "halMemFree"));
    CHECK(unseen != driver.release);
    CHECK_EQUAL(unseen(block), 0);
    memscope_install_hooks();
    // The driver never hands out an address twice, so that one stays live for us; a refused one is a known block again.
    void* next = driver.block(8192);
    CHECK_EQUAL(own_memory_events().back().record.used, 4096 + 8192);
    CHECK_EQUAL(driver.release(next), 0);
    CHECK_EQUAL(driver.release(block), 0);
    CHECK_EQUAL(own_memory_events().back().record.used, 0);
}

// Each ring must be readable alone: its reader may not have the parent's.
CASE(a_forked_child_defines_the_names_of_functions_itself) {
    const Driver driver(PLAIN_DRIVER, "");
    CHECK_EQUAL(driver.release(driver.block(4096)), 0);  // both names are known to the parent
    CHECK_EQUAL(text_of(own_memory_events().back().record.name, static_cast<u32>(getpid())), "halMemFree");
    const pid_t child = fork();
    if (child == 0) {
        void* block = nullptr;
        const bool ok = driver.allocate(&block, 4096, kDevice) == 0 && driver.release(block) == 0 &&
                        driver.allocate(&block, 4096, kDevice) == 0;
        _exit(ok ? 0 : 1);
    }
    int status = -1;
    CHECK_EQUAL(waitpid(child, &status, 0), child);
    CHECK_EQUAL(status, 0);
    const auto memory = memory_events(static_cast<u32>(child));
    CHECK_EQUAL(memory.size(), 3u);
    const char* const names[] = {"halMemAlloc", "halMemFree", "halMemAlloc"};
    for (u32 i = 0; i < 3; ++i) CHECK_EQUAL(text_of(memory[i].record.name, static_cast<u32>(child)), names[i]);
}

CASE(a_child_of_fork_in_mid_run_has_its_own_books) {
    const Driver driver(PLAIN_DRIVER, "");
    void* inherited = driver.block(4096);
    std::atomic<bool> done{false};
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t)
        threads.emplace_back([&] {
            void* ptr = nullptr;
            while (!done.load()) {
                if (driver.allocate(&ptr, 512, kDevice) == 0) driver.release(ptr);
                usleep(20);  // the ring is not read meanwhile
            }
        });
    constexpr int kChildren = 10;
    pid_t children[kChildren];
    for (pid_t& child : children) {
        child = fork();
        if (child != 0) continue;
        void* own = nullptr;
        driver.release(inherited);  // the parent's: passed on, and not told
        const bool ok = driver.allocate(&own, 1000, kDevice) == 0 && driver.allocate(&own, 24, kDevice) == 0 &&
                        driver.release(own) == 0;
        _exit(ok ? 0 : 1);
    }
    for (pid_t child : children) {
        int status = -1;
        CHECK_EQUAL(waitpid(child, &status, 0), child);
        CHECK_EQUAL(status, 0);
    }
    done = true;
    for (auto& thread : threads) thread.join();
    for (pid_t child : children) {
        const auto memory = memory_events(static_cast<u32>(child));
        CHECK_EQUAL(memory.size(), 3u);
        CHECK_EQUAL(memory[0].record.used, 1000);
        CHECK_EQUAL(memory[1].record.used, 1024);
        CHECK_EQUAL(memory[2].record.used, 1000);
    }
    CHECK_EQUAL(driver.release(inherited), 0);
    CHECK_EQUAL(own_memory_events().back().record.used, 0);
}

CASE(cann_loaded_in_a_scope_of_its_own) {
    const std::string path = std::string(getenv("ASCEND_HOME_PATH")) + "/lib64/libascendcl.so";
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    CHECK(library != nullptr);
    const auto set_device = reinterpret_cast<int (*)(int)>(dlsym(library, "aclrtSetDevice"));
    const auto allocate = reinterpret_cast<int (*)(void**, std::size_t, int)>(dlsym(library, "aclrtMalloc"));
    const auto release = reinterpret_cast<Release>(dlsym(library, "aclrtFree"));
    CHECK(dlsym(RTLD_DEFAULT, "halMemAlloc") == nullptr);
    const auto before = own_memory_events().size();
    void* block = nullptr;
    CHECK_EQUAL(set_device(0), 0);
    CHECK_EQUAL(allocate(&block, (2 << 20) - 32, 0), 0);
    CHECK_EQUAL(release(block), 0);
    const auto memory = own_memory_events();
    CHECK_EQUAL(memory.size(), before + 2);
    CHECK_EQUAL(memory[before].record.size, 2 << 20);
    CHECK_EQUAL(memory[before + 1].record.ptr, reinterpret_cast<u64>(block));
    // It stays loaded: what the simulator keeps until the end would be lost memory without it.
}

int main(int argc, char** argv) {
    alarm(120);
    const int status = check::run(argc, argv);
    const std::string clean = "rm -rf " + session_directory();
    return std::system(clean.c_str()) == 0 ? status : 1;
}
