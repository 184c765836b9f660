// What is said of an address agrees with what the loader knows, also when objects come and go.
#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <atomic>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "stack/code_objects.h"
#include "stack/frame_rules.h"

using namespace memscope;

namespace {

u64 at(const void* address) { return reinterpret_cast<u64>(address); }

CodeObject known(const void* address) {
    CodeObject object;
    Sight sight = Sight::UNKNOWN;
    for (int i = 0; i < 20'000 && sight == Sight::UNKNOWN; ++i) {  // it was asked in vain too often just before
        sight = code_object_at(at(address), object);
        if (sight == Sight::UNKNOWN) usleep(1000);
    }
    CHECK(sight == Sight::KNOWN);
    return object;
}

// By the file, not its name: an emulator looks below a directory of its own.
bool is_one_file(const std::string& a, const std::string& b) {
    struct stat one, other;
    return stat(a.c_str(), &one) == 0 && stat(b.c_str(), &other) == 0 && one.st_ino == other.st_ino &&
           one.st_dev == other.st_dev;
}

void check_agrees(const void* address) {
    Dl_info info;
    CHECK(dladdr(address, &info) != 0);
    const CodeObject object = known(address);
    CHECK_EQUAL(object.begin, at(info.dli_fbase));
    CHECK(is_one_file(std::string(object.path, object.path_bytes), info.dli_fname));
    CHECK(object.code_begin <= at(address) && at(address) < object.code_end && object.code_end <= object.end);
}

// An object that is gone may stay known until another code is met: then its place is looked at again.
struct Library {
    explicit Library(const char* path) : handle(dlopen(path, RTLD_NOW | RTLD_LOCAL)) { CHECK(handle != nullptr); }
    ~Library() {
        if (handle != nullptr) dlclose(handle);
    }
    void* handle;
};

}  // namespace

CASE(objects_are_found_as_the_loader_finds_them) {
    check_agrees(reinterpret_cast<const void*>(&check_agrees));
    check_agrees(reinterpret_cast<const void*>(&dlopen));
    check_agrees(reinterpret_cast<const void*>(&qsort));
    check_agrees(dlsym(RTLD_DEFAULT, "_ZSt9terminatev"));
}

CASE(one_that_is_loaded_later_is_found_and_one_that_is_gone_is_not) {
    const void* address = nullptr;
    {
        const Library library(ONE_LIBRARY);
        address = dlsym(library.handle, "cudaMalloc");
        check_agrees(address);
    }
    CodeObject object;
    CHECK(code_object_at(at(address), object) != Sight::KNOWN);
}

CASE(what_has_taken_the_place_of_another_is_not_taken_for_it) {
    std::vector<u64> begins;
    for (int i = 0; i < 20; ++i) {
        const Library library(i % 2 == 0 ? ONE_LIBRARY : OTHER_LIBRARY);
        const void* address =
            dlsym(library.handle, i % 2 == 0 ? "cudaMalloc" : "_ZN3c1025ProfiledCPUMemoryReporter3NewEPvm");
        CHECK(address != nullptr);
        check_agrees(address);
        begins.push_back(known(address).begin);
    }
    if (begins[0] != begins[1] && begins[0] != begins[2])
        fprintf(stderr, "skipped: the loader gave no place out again\n");
}

// Each brings a snapshot of its own, and all of them stay.
#if defined(__SANITIZE_THREAD__)
constexpr int kTimes = 200;  // each takes it 10 ms, and no other thread looks here
#else
constexpr int kTimes = 5'000;
#endif
CASE(objects_come_and_go_thousands_of_times_and_are_known) {
    for (int i = 0; i < kTimes; ++i) {
        const Library library(i % 2 == 0 ? ONE_LIBRARY : OTHER_LIBRARY);
        CodeObject object;
        const char* const name = i % 2 == 0 ? "cudaMalloc" : "_ZN3c1025ProfiledCPUMemoryReporter3NewEPvm";
        if (code_object_at(at(dlsym(library.handle, name)), object) != Sight::KNOWN) {
            fprintf(stderr, "object %d is not known\n", i);
            CHECK(false);
            return;
        }
    }
    check_agrees(reinterpret_cast<const void*>(&check_agrees));
}

CASE(memory_without_an_object_is_nothing_and_is_not_looked_up_for_ever) {
    void* place = mmap(nullptr, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CodeObject object;
    CHECK(place != MAP_FAILED && code_object_at(at(place), object) != Sight::KNOWN);
    const u64 generation = code_generation();
    for (int i = 0; i < 100'000; ++i) CHECK(code_object_at(at(place) + 1, object) != Sight::KNOWN);
    CHECK_EQUAL(code_generation(), generation);
    CHECK(code_object_at(0, object) != Sight::KNOWN);
    check_agrees(reinterpret_cast<const void*>(&check_agrees));
    munmap(place, 4096);
}

CASE(threads_look_while_objects_come_and_go) {
    std::atomic<bool> done{false};
    std::vector<std::thread> threads;
    std::vector<int> wrong(3);
    for (int& count : wrong)
        threads.emplace_back([&done, &count] {
            CodeObject object;
            while (!done)
                if (code_object_at(at(reinterpret_cast<const void*>(&qsort)), object) != Sight::KNOWN) ++count;
        });
    for (int i = 0; i < 200; ++i) {
        const Library library(i % 2 == 0 ? ONE_LIBRARY : OTHER_LIBRARY);
        check_agrees(dlsym(library.handle, i % 2 == 0 ? "cudaFree" : "_ZN3c1025ProfiledCPUMemoryReporter6DeleteEPv"));
    }
    done = true;
    for (auto& thread : threads) thread.join();
    for (int count : wrong) CHECK_EQUAL(count, 0);
}

int main(int argc, char** argv) { return check::run(argc, argv); }
