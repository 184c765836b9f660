// The hook engine, the recorder and the c10 source, on libraries that stand for torch's.
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "hook/patch.h"
#include "hook/recorder.h"
#include "hook/selection.h"
#include "hook/told_events.h"
#include "own_ring.h"
#include "stack/stacks.h"
#include "torch_ext/operator_sink.h"

using namespace memscope;
using namespace own;

extern "C" {
unsigned memscope_install_hooks();
void memscope_remove_hooks();
void memscope_describe_hooks(HookVisitor visit, void* context);
unsigned memscope_objects_looked_through();
void early_allocate(void* ptr, std::size_t bytes);
void early_release(void* ptr);
const memscope_operator_sink* memscope_get_operator_sink();
void early_cuda(void* ptr, std::int64_t size, std::size_t allocated, std::size_t reserved, int device);
int cudaMalloc(void** ptr, std::size_t bytes);
int cudaMallocAsync(void** ptr, std::size_t bytes, void* stream);
int cudaHostAlloc(void** ptr, std::size_t bytes, unsigned flags);
int cudaHostRegister(void* ptr, std::size_t bytes, unsigned flags);
int cudaHostUnregister(void* ptr);
int cudaFree(void* ptr);
int cudaFreeAsync(void* ptr, void* stream);
int cudaFreeHost(void* ptr);
extern int fake_news;
extern int fake_deletes;
}

namespace {

void* const kBlock = reinterpret_cast<void*>(0x1000);

}  // namespace

// The cases build on each other and run in this order: there is one recorder per process.

CASE(a_process_that_records_nothing_leaves_no_file) {
    CHECK_EQUAL(memscope_set_session(session_directory().c_str()), 0);
    memscope_configure("ring_mib=1");
    memscope_configure("devices=cpu,npu,cuda");
    early_allocate(kBlock, 100);
    CHECK_EQUAL(fake_news, 1);
    memscope_install_hooks();
    early_allocate(kBlock, 100);  // hooked, recording is off
    CHECK_EQUAL(fake_news, 2);
    CHECK(rings().empty());
    memscope_start();
    CHECK(rings().empty());
}

CASE(every_source_has_room_for_its_hooks) {
    std::vector<std::string> hooks;
    memscope_describe_hooks(
        [](void* context, const HookTable& source, const char* symbol, const char*, u32) {
            static_cast<std::vector<std::string>*>(context)->push_back(std::string(source.source) + " " + symbol);
        },
        &hooks);
    CHECK_EQUAL(hooks.front(), "loader dlsym");
    CHECK(std::find(hooks.begin(), hooks.end(), "hal halMemAlloc") != hooks.end());
    CHECK(hooks.size() < kMostHooks);
}

CASE(a_source_whose_hooks_have_no_place_is_told) {
    std::vector<Hook> few(kMostHooks - 10), many(20), none_left(1);
    const HookTable own = {"own", "", "", few.data(), 5}, first = {"first", "", "", few.data(), kMostHooks - 10},
                    second = {"second", "", "", many.data(), 20}, third = {"third", "", "", none_left.data(), 1};
    const HookTable* const tables[] = {&first, &second, &third};
    std::vector<std::string> placed, left_out;
    for_each_place(
        own, tables, tables + 3,
        [&](const HookTable& table, const Hook&, u32 place) {
            CHECK_EQUAL(place, placed.size());
            placed.push_back(table.source);
        },
        [&](const HookTable& table) { left_out.push_back(table.source); });
    CHECK_EQUAL(placed.size(), kMostHooks);
    CHECK_EQUAL(std::count(placed.begin(), placed.end(), "second"), 5);
    CHECK(left_out == (std::vector<std::string>{"second", "third"}));
    left_out.clear();
    for_each_place(
        own, tables, tables + 1, [](const HookTable&, const Hook&, u32) {},
        [&](const HookTable& table) { left_out.push_back(table.source); });
    CHECK(left_out.empty());
}

// Whoever makes its ring looks at those of its relatives, of which one may have been cut off by a full disk.
CASE(a_ring_without_a_header_is_nobodys) {
    char name[32];
    snprintf(name, sizeof name, "/%016x.ring", static_cast<unsigned>(getppid()) & 0xFFFF);
    const std::string path = session_directory() + name;
    const int file = creat(path.c_str(), 0600);
    CHECK(file >= 0);
    close(file);
    memscope_mark(memscope_text("first", 5));
    unlink(path.c_str());
    CHECK_EQUAL(rings().size(), 1u);
    CHECK_EQUAL(own_events().size(), 2u);  // and that recording has begun
}

CASE(an_event_reaches_the_ring_and_the_original) {
    early_allocate(kBlock, 4096);
    early_release(kBlock);
    early_cuda(kBlock, -512, 1024, 4096, 3);
    CHECK_EQUAL(fake_news, 3);
    CHECK_EQUAL(fake_deletes, 1);
    const auto memory = own_memory_events();
    CHECK_EQUAL(memory.size(), 3u);
    CHECK(memory[0].kind == Kind::MALLOC);
    CHECK_EQUAL(memory[0].record.size, 4096);
    CHECK_EQUAL(memory[0].record.ptr, 0x1000u);
    CHECK_EQUAL(static_cast<int>(memory[0].record.pool), static_cast<int>(Pool::HOST));
    CHECK_EQUAL(memory[0].record.used, kUnknown);
    CHECK_EQUAL(memory[0].record.tid, static_cast<u32>(gettid()));
    CHECK(memory[1].kind == Kind::FREE);
    CHECK(memory[1].record.ts >= memory[0].record.ts);
    CHECK(memory[2].kind == Kind::FREE);
    CHECK_EQUAL(memory[2].record.size, 512);
    CHECK_EQUAL(memory[2].record.used, 1024);
    CHECK_EQUAL(memory[2].record.total, 4096);
    CHECK_EQUAL(memory[2].record.device, 3);
}

CASE(an_object_loaded_later_is_hooked_before_its_first_use) {
    void* library = dlopen(LATE_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    CHECK(library != nullptr);
    // The look-up is what tells the engine of the new object.
    auto allocate = reinterpret_cast<void (*)(void*, std::size_t)>(dlsym(library, "late_allocate"));
    CHECK(allocate != nullptr);
    const auto before = own_memory_events().size();
    allocate(kBlock, 64);
    CHECK_EQUAL(own_memory_events().size(), before + 1);
    dlclose(library);
}

CASE(an_object_is_looked_through_once_while_nothing_is_unloaded) {
    void* first = dlopen(C10_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    CHECK(dlsym(first, "fake_news") != nullptr);
    const u32 before = memscope_objects_looked_through();
    CHECK(before > 0);
    memscope_install_hooks();
    CHECK_EQUAL(memscope_objects_looked_through(), before);
    void* library = dlopen(LATE_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    CHECK(dlsym(library, "late_allocate") != nullptr);
    CHECK_EQUAL(memscope_objects_looked_through(), before + 1);
    dlclose(library);
    // Another may lie where it was: with what was loaded since, everything is looked through again.
    library = dlopen(LATE_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    auto allocate = reinterpret_cast<void (*)(void*, std::size_t)>(dlsym(library, "late_allocate"));
    CHECK(memscope_objects_looked_through() > before + 2);
    const auto events = own_memory_events().size();
    allocate(kBlock, 64);
    CHECK_EQUAL(own_memory_events().size(), events + 1);
    dlclose(library);
    dlclose(first);
}

CASE(what_does_not_fit_among_the_known_objects_is_said_and_the_rest_stays) {
    static KnownObjects known;
    static char headers[1 << 12];
    known.keep_while_loaded(1);
    bool is_new = false;
    u32 kept = 0;
    for (char& header : headers) {
        KnownObject* object = known.of(&header, is_new);
        if (object == nullptr) break;
        CHECK(is_new);
        ++kept;
        for (u32 i = 0; i < 5; ++i) known.note_call(*object, Call{nullptr, kept, LoadedObject::Slot::GOT});
    }
    CHECK_EQUAL(kept, 1024u);
    u32 calls = 0, without = 0;
    for (u32 i = 0; i < kept; ++i) {
        const KnownObject* object = known.of(&headers[i], is_new);
        CHECK(object != nullptr && !is_new);
        if (!known.for_each_call(*object, [&](const Call& call) { calls += call.hook == i + 1 ? 1 : 0; })) ++without;
    }
    CHECK_EQUAL(calls, (kept - without) * 5);
    CHECK(without > 0 && without < kept);
    known.keep_while_loaded(2);
    CHECK(known.of(&headers[7], is_new) != nullptr && is_new);
}

CASE(dlsym_of_a_hooked_name_gives_the_replacement) {
    void* library = dlopen(C10_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    const auto before = own_memory_events().size();
    auto report = reinterpret_cast<void (*)(void*, std::int64_t, std::size_t, std::size_t, short)>(
        dlsym(library, "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE"));
    CHECK(report != nullptr);
    report(kBlock, 8, 8, 8, 1);  // type 1 (cuda), index 0
    CHECK_EQUAL(own_memory_events().size(), before + 1);
    dlclose(library);
}

CASE(steps_are_written_into_later_events) {
    const auto optimizer = static_cast<unsigned>(StepSource::OPTIMIZER);
    const auto api = static_cast<unsigned>(StepSource::API);
    CHECK_EQUAL(own_memory_events().back().record.step, 0u);
    memscope_boundary(optimizer, 0x1000);  // step 1 has ended
    early_allocate(kBlock, 1);
    CHECK_EQUAL(own_memory_events().back().record.step, 2u);
    // Who calls step() after the optimizer's does not count twice: both end one iteration, and from then on only step()
    // counts.
    memscope_boundary(optimizer, 0x1000);
    memscope_boundary(api, 0);
    CHECK_EQUAL(memscope_current_step(), 3u);
    memscope_boundary(optimizer, 0x1000);
    CHECK_EQUAL(memscope_current_step(), 3u);
    memscope_boundary(api, 0);
    early_allocate(kBlock, 1);
    CHECK_EQUAL(own_memory_events().back().record.step, 4u);
}

CASE(threads_share_the_ring) {
    const auto before = own_memory_events().size();
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 4; ++thread)
        threads.emplace_back([] {
            for (int i = 0; i < 500; ++i) early_allocate(kBlock, 16);
        });
    for (auto& thread : threads) thread.join();
    CHECK_EQUAL(own_memory_events().size(), before + 2000);
}

CASE(a_forked_child_has_a_ring_of_its_own_and_its_parents_steps) {
    const pid_t child = fork();
    if (child == 0) {
        early_allocate(kBlock, 32);
        while (memscope_current_step() != 5) usleep(1000);  // the parent's next step
        early_allocate(kBlock, 32);
        _exit(0);
    }
    while (memory_events(static_cast<u32>(child)).empty()) usleep(1000);
    memscope_boundary(static_cast<unsigned>(StepSource::API), 0);
    int status = 0;
    CHECK_EQUAL(waitpid(child, &status, 0), child);
    const auto memory = memory_events(static_cast<u32>(child));
    CHECK_EQUAL(memory.size(), 2u);
    CHECK_EQUAL(memory[0].record.step, 4u);
    CHECK_EQUAL(memory[1].record.step, 5u);
    for (const std::string& path : rings()) {
        Ring ring;
        CHECK_EQUAL(ring.open(path.c_str(), false), 0);
        if (ring.header->pid == static_cast<u32>(child)) CHECK(ring.header->parent_ring_id != 0);
        ring.unmap();
    }
    const auto own = own_memory_events().size();
    early_allocate(kBlock, 32);
    CHECK_EQUAL(own_memory_events().size(), own + 1);  // the parent's ring is untouched by all this
}

CASE(sigkill_leaves_every_event_whose_call_had_returned) {
    int pipes[2];
    CHECK_EQUAL(pipe(pipes), 0);
    const pid_t child = fork();
    if (child == 0) {
        for (u64 count = 1;; ++count) {
            early_allocate(kBlock, count);
            if (count == 5000) {
                (void)!write(pipes[1], &count, sizeof count);
                for (;;) pause();
            }
        }
    }
    u64 returned = 0;
    CHECK_EQUAL(read(pipes[0], &returned, sizeof returned), static_cast<ssize_t>(sizeof returned));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    const auto memory = memory_events(static_cast<u32>(child));
    CHECK_EQUAL(memory.size(), returned);
    for (u64 i = 0; i < returned; ++i) CHECK_EQUAL(static_cast<u64>(memory[i].record.size), i + 1);
}

CASE(only_selected_devices_are_recorded) {
    const auto recorded = [](void (*act)()) {
        const auto before = own_memory_events().size();
        act();
        return own_memory_events().size() - before;
    };
    const auto cpu = [] { early_allocate(kBlock, 8); };
    const auto cuda0 = [] { early_cuda(kBlock, 8, 8, 8, 0); };
    const auto cuda1 = [] { early_cuda(kBlock, 8, 8, 8, 1); };
    memscope_configure("devices=cuda:1");
    CHECK_EQUAL(recorded(cpu), 0u);
    CHECK_EQUAL(recorded(cuda0), 0u);
    CHECK_EQUAL(recorded(cuda1), 1u);
    memscope_configure("devices=cpu,npu");
    CHECK_EQUAL(recorded(cpu), 1u);
    CHECK_EQUAL(recorded(cuda1), 0u);
    memscope_configure("devices=auto");
    CHECK_EQUAL(recorded(cpu), 1u);  // no accelerator yet
    CHECK_EQUAL(recorded(cuda0), 1u);
    CHECK_EQUAL(recorded(cpu), 0u);
    memscope_configure("devices=auto,cpu");
    CHECK_EQUAL(recorded(cuda0), 1u);
    CHECK_EQUAL(recorded(cpu), 1u);
}

CASE(what_was_recorded_of_the_host_before_the_first_card_is_recorded_as_freed) {
    void* const checkpoint = reinterpret_cast<void*>(0x2000);
    void* const kept = reinterpret_cast<void*>(0x3000);
    void* const staging = reinterpret_cast<void*>(0x4000);
    void* const before_start = reinterpret_cast<void*>(0x5000);
    memscope_configure("devices=cpu");  // a card was seen in the case before; `auto` begins anew
    memscope_stop();
    memscope_configure("devices=auto");
    early_allocate(before_start, 4096);
    memscope_start();
    early_allocate(checkpoint, 64 << 20);
    early_allocate(kept, 8);
    early_cuda(kBlock, 8, 8, 8, 0);
    const auto before = own_memory_events().size();
    early_allocate(staging, 8);
    early_release(staging);
    CHECK_EQUAL(own_memory_events().size(), before);  // after the first card the host is not asked for
    early_release(checkpoint);
    early_release(before_start);
    early_allocate(checkpoint, 8);  // the same address, and not asked for
    early_release(checkpoint);
    auto memory = own_memory_events();
    CHECK_EQUAL(memory.size(), before + 2);
    CHECK(memory[before].kind == Kind::FREE);
    CHECK_EQUAL(memory[before].record.ptr, 0x2000u);
    CHECK_EQUAL(memory[before + 1].record.ptr, 0x5000u);
    memscope_stop();
    early_release(kept);
    memory = own_memory_events();
    CHECK_EQUAL(memory.size(), before + 3);
    CHECK_EQUAL(memory.back().record.ptr, 0x3000u);
    CHECK((memory.back().record.header.flags & static_cast<u8>(Flag::SHADOW)) != 0);
    memscope_start();
}

CASE(what_was_recorded_of_a_card_is_recorded_as_freed_when_other_devices_are_selected) {
    const auto at = [](u64 address) { return reinterpret_cast<void*>(address); };
    const auto allocate = [at](u64 address, int device) { early_cuda(at(address), 512, 1024, 4096, device); };
    const auto release = [at](u64 address, int device) { early_cuda(at(address), -512, 1024, 4096, device); };
    const auto before = own_memory_events().size();
    std::vector<u64> freed;  // in this order, and nothing else
    memscope_configure("devices=auto");
    memscope_configure("devices=cpu,npu,cuda");
    allocate(0x10000, 0);
    allocate(0x20000, 0);
    allocate(0x30000, 1);
    early_allocate(at(0x40000), 8);
    memscope_stop();
    allocate(0x50000, 0);  // remembered, and not recorded when the start finds other devices
    memscope_configure("devices=cuda:1");
    allocate(0x60000, 0);
    memscope_start();
    CHECK_EQUAL(own_memory_events().size(), before + 4);
    release(0x10000, 0);
    release(0x50000, 0);
    release(0x60000, 0);
    early_release(at(0x40000));
    allocate(0x10000, 0);  // the same address again, no more asked for
    release(0x10000, 0);
    allocate(0x70000, 0);
    release(0x30000, 1);
    auto memory = own_memory_events();
    CHECK_EQUAL(memory.size(), before + 7);
    for (auto event = before + 4; event < memory.size(); ++event) {
        CHECK(memory[event].kind == Kind::FREE);
        freed.push_back(memory[event].record.ptr);
    }
    CHECK(freed == (std::vector<u64>{0x10000, 0x40000, 0x30000}));
    memscope_configure("devices=cuda");
    release(0x70000, 0);  // came while nobody asked: no end without a beginning
    allocate(0x70000, 0);
    memscope_configure("devices=cpu");
    memscope_stop();
    release(0x20000, 0);
    release(0x70000, 0);
    memory = own_memory_events();
    CHECK_EQUAL(memory.size(), before + 10);
    CHECK(memory[before + 8].kind == Kind::FREE && memory[before + 8].record.ptr == 0x20000);
    CHECK(memory[before + 9].kind == Kind::FREE && memory[before + 9].record.ptr == 0x70000);
    CHECK((memory.back().record.header.flags & static_cast<u8>(Flag::SHADOW)) != 0);
    memscope_start();
    early_allocate(at(0x80000), 8);  // recorded when the host was asked for by name,
    memscope_configure("devices=auto");
    allocate(0x90000, 0);  // which the first card ends
    early_release(at(0x80000));
    CHECK_EQUAL(own_memory_events().size(), before + 13);
    CHECK_EQUAL(own_memory_events().back().record.ptr, 0x80000u);
    release(0x90000, 0);
}

CASE(a_child_records_no_end_of_what_its_parent_recorded_on_devices_that_are_not_selected) {
    memscope_configure("devices=cpu,cuda");
    early_allocate(kBlock, 8);
    memscope_configure("devices=cuda");
    const pid_t child = fork();
    if (child == 0) {
        early_cuda(kBlock, 8, 8, 8, 0);
        early_release(kBlock);
        _exit(0);
    }
    CHECK(child > 0);
    int status = 0;
    CHECK_EQUAL(waitpid(child, &status, 0), child);
    CHECK_EQUAL(memory_events(static_cast<u32>(child)).size(), 1u);
    early_release(kBlock);
    CHECK(own_memory_events().back().kind == Kind::FREE);
}

CASE(the_cuda_driver_is_recorded_with_device_and_kind) {
    memscope_configure("devices=cpu,cuda");
    const auto before = own_memory_events().size();
    void *plain = nullptr, *async = nullptr, *pinned = nullptr;
    CHECK_EQUAL(cudaMalloc(&plain, 1000), 0);
    CHECK_EQUAL(cudaMallocAsync(&async, 2000, nullptr), 0);
    CHECK_EQUAL(cudaHostAlloc(&pinned, 3000, 0), 0);
    CHECK_EQUAL(cudaHostRegister(kBlock, 4000, 0), 0);
    CHECK_EQUAL(cudaFree(plain), 0);
    CHECK_EQUAL(cudaFreeAsync(async, nullptr), 0);
    CHECK_EQUAL(cudaFreeHost(pinned), 0);
    CHECK_EQUAL(cudaHostUnregister(kBlock), 0);
    const auto memory = own_memory_events();
    CHECK_EQUAL(memory.size(), before + 8);
    const struct {
        void* ptr;
        i64 size;
        DeviceType type;
        int device;
    } expected[] = {{plain, 1000, DeviceType::CUDA, 5},
                    {async, 2000, DeviceType::CUDA, 5},
                    {pinned, 3000, DeviceType::CPU, 0},
                    {kBlock, 4000, DeviceType::CPU, 0}};
    for (std::size_t i = 0; i < 4; ++i) {
        for (const std::size_t at : {before + i, before + 4 + i}) {
            const EventRecord& record = memory[at].record;
            CHECK_EQUAL(record.ptr, reinterpret_cast<u64>(expected[i].ptr));
            CHECK_EQUAL(static_cast<int>(record.device_type), static_cast<int>(expected[i].type));
            CHECK_EQUAL(record.device, expected[i].device);
            CHECK_EQUAL(static_cast<int>(record.pool), static_cast<int>(Pool::CUDA_DRIVER));
            CHECK(memory[at].kind == (at < before + 4 ? Kind::MALLOC : Kind::FREE));
            if (at < before + 4) CHECK_EQUAL(record.size, expected[i].size);
        }
    }
    // A request that the driver refuses is an OOM event and no block.
    CHECK_EQUAL(cudaMalloc(&plain, 1 << 21), 2);
    CHECK_EQUAL(own_memory_events().size(), before + 8);
    u64 refused = 0;
    for (const std::string& path : rings()) {
        Ring ring;
        CHECK_EQUAL(ring.open(path.c_str(), false), 0);
        if (ring.header->pid == static_cast<u32>(getpid()))
            for (const Seen& one : events_of(ring))
                if (one.kind == Kind::OOM && one.record.size == 1 << 21) ++refused;
        ring.unmap();
    }
    CHECK_EQUAL(refused, 1u);
}

CASE(blocks_allocated_while_stopped_are_told_at_the_next_start_with_their_true_times) {
    static char first[16], second[16], third[16];
    early_allocate(first, 16);  // recorded
    memscope_stop();
    const auto before = own_memory_events().size();
    early_allocate(second, 16);
    early_allocate(third, 16);
    early_release(third);  // nobody ever hears of it
    const u64 between = monotonic_ns();
    early_release(first);  // recorded, so its end is told at once
    CHECK_EQUAL(own_memory_events().size(), before + 1);
    memscope_start();
    const auto memory = own_memory_events();
    CHECK_EQUAL(memory.size(), before + 2);
    CHECK(memory[before].kind == Kind::FREE && memory[before].record.ptr == reinterpret_cast<u64>(first));
    CHECK((memory[before].record.header.flags & static_cast<u8>(Flag::SHADOW)) != 0);
    CHECK(memory[before + 1].kind == Kind::MALLOC && memory[before + 1].record.ptr == reinterpret_cast<u64>(second));
    CHECK((memory[before + 1].record.header.flags & static_cast<u8>(Flag::SHADOW)) != 0);
    CHECK(memory[before + 1].record.ts < between);
    early_release(second);
    CHECK_EQUAL(own_memory_events().size(), before + 3);
    CHECK_EQUAL(own_memory_events().back().record.header.flags, 0);
}

CASE(a_release_is_recorded_with_its_stack_while_recording_is_on) {
    memscope_configure("python_depth=0;native_depth=20");
    early_allocate(kBlock, 16);
    early_release(kBlock);
    auto memory = own_memory_events();
    const EventRecord begin = memory[memory.size() - 2].record, end = memory.back().record;
    CHECK(begin.stack_c != 0 && end.stack_c != 0 && begin.stack_c != end.stack_c);
    early_allocate(kBlock, 16);
    memscope_stop();
    early_release(kBlock);
    memory = own_memory_events();
    CHECK(memory.back().kind == Kind::FREE && memory.back().record.stack_c == 0);
    memscope_start();
    memscope_configure("python_depth=0;native_depth=0");
}

// Stands for the observer: torch's number of the stream of a device, for whom there are devices 0 to 3.
int current_stream(short device_type, short device, long long* stream) {
    if (device_type != static_cast<short>(DeviceType::CUDA) || device > 3) return 0;
    *stream = device == 2 ? 0x7f0011223340 : 8 * device;
    return 1;
}

CASE(blocks_and_operators_of_a_card_say_their_stream) {
    const memscope_operator_sink& sink = *memscope_get_operator_sink();
    memscope_configure("devices=cpu,cuda;sorts=5");
    const auto allocated = [](int device) {
        early_cuda(reinterpret_cast<void*>(0x9000), 8, 8, 8, device);
        return own_memory_events().back().record.aux;
    };
    CHECK_EQUAL(allocated(1), 0u);  // nobody knows
    sink.streams_by(current_stream);
    CHECK_EQUAL(allocated(0), stream_word(1));
    CHECK_EQUAL(allocated(1), stream_word(9));
    CHECK_EQUAL(allocated(4), 0u);
    CHECK(stream_of(allocated(2)) > kForeignStreams);  // it was made by the program: no small number
    CHECK_EQUAL(allocated(2), stream_word(told_stream(0x7f0011223340)));

    // An operator of card 1 that reads a tensor there, one of card 0, and one of the host.
    const long long size = 4;
    const auto tensor = [&size](DeviceType type, short device) {
        return memscope_touched{0x9000, 0x9000, 16, 16, &size, "torch.float32", 1, 6, 1, static_cast<short>(type),
                                device, 0};
    };
    const memscope_touched given[] = {tensor(DeviceType::CUDA, 1), tensor(DeviceType::CUDA, 0),
                                      tensor(DeviceType::CPU, 0)};
    const auto told = [&](const char* name, short device) {
        const auto before = own_events().size();
        const memscope_called called{
            name, static_cast<unsigned>(strlen(name)), static_cast<short>(DeviceType::CUDA), device, 0, 0, 0};
        memscope_running running;
        sink.begin(&running, &called, given, 3);
        sink.end(&running, nullptr, 0);
        std::vector<u32> found;
        const auto events = own_events();
        for (auto at = before; at < events.size(); ++at) found.push_back(events[at].record.aux);
        return found;
    };
    const u32 read = 1, there = stream_word(9);
    const std::vector<u32> expected = {there, read | there, read, read, there};
    CHECK(told("torch._ops.aten.sum.default", 1) == expected);
    // What comes later, comes on a stream that nobody tells.
    const std::vector<u32> later = {there, read, read, read, there};
    CHECK(told("torch._ops.c10d.allreduce_.default", 1) == later);
    CHECK(told("torch._ops.aten.record_stream.default", 1) == later);
    // Nobody asks torch about a card on which nothing was allocated.
    CHECK_EQUAL(told("torch._ops.aten.sum.default", 3).front(), 0u);
    sink.streams_by(nullptr);
    memscope_configure("sorts=1");
}

// A mark may have the step's number in it, and a run any number of steps.
CASE(texts_without_end_leave_room_for_names_and_say_so) {
    int of_child[2];
    CHECK_EQUAL(pipe(of_child), 0);
    const pid_t child = fork();
    if (child == 0) {
        memscope_configure("ring_mib=16");
        char text[32];
        const auto mark = [&text](int number) {
            const int bytes = snprintf(text, sizeof text, "epoch %d", number);
            const auto id = memscope_text(text, static_cast<unsigned long long>(bytes));
            memscope_mark(id);
            return id;
        };
        const auto first = mark(0);
        int known = 1;
        while (known < 100'000 && mark(known) != 0) ++known;
        const bool is_bounded = first != 0 && known < 70'000 && mark(0) == first;
        const auto describe = [](void*, void* out) {
            memscope_frame_text& frame = *static_cast<memscope_frame_text*>(out);
            frame = {"train.py", 8, "main", 4, 1};
        };
        const bool has_names = memscope_frame(4711, describe, nullptr) != 0;  // for these there is room
        for (const char* name : {"late", "epoch 0"}) {                        // the latter is known
            const auto bytes = strlen(name);
            const auto begun = memscope_range_begun(name, bytes);
            memscope_call(static_cast<unsigned>(CallKind::RANGE), memscope_text(name, bytes), begun, 1, 0);
        }
        // One that it forks has room again, and nothing to say.
        const pid_t forked = fork();
        if (forked == 0) _exit(mark(known) != 0 ? 0 : 1);
        int status = 1;
        const bool has_room = waitpid(forked, &status, 0) == forked && status == 0 &&
                              write(of_child[1], &forked, sizeof forked) == sizeof forked;
        _exit(is_bounded && has_names && has_room ? 0 : 1);
    }
    int status = 0;
    CHECK_EQUAL(waitpid(child, &status, 0), child);
    CHECK_EQUAL(status, 0);
    std::size_t texts = 0, ranges = 0, of_forked = 0;  // what is told of texts and of ranges
    close(of_child[1]);
    pid_t forked = 0;
    CHECK_EQUAL(read(of_child[0], &forked, sizeof forked), static_cast<ssize_t>(sizeof forked));
    close(of_child[0]);
    std::vector<u64> begun, ended;  // when the ranges began, by either
    for (const std::string& path : rings()) {
        Ring ring;
        CHECK_EQUAL(ring.open(path.c_str(), false), 0);
        if (ring.header->pid == static_cast<u32>(child)) {
            for (const Seen& one : events_of(ring)) {
                if (one.kind == Kind::META) {
                    const std::string key = text_of(one.record.name, static_cast<u32>(child));
                    texts += key == "lost.texts";
                    ranges += key == "lost.ranges";
                }
                if (one.kind != Kind::CALL) continue;
                const bool begins = one.record.aux == static_cast<u32>(CallKind::RANGE_BEGUN);
                (begins ? begun : ended).push_back(begins ? one.record.ts : one.record.attr);
            }
        }
        if (ring.header->pid == static_cast<u32>(forked)) {
            ++of_forked;
            for (const Seen& one : events_of(ring))
                if (one.kind == Kind::META) CHECK(text_of(one.record.name, ring.header->pid).rfind("lost.", 0) != 0);
        }
        ring.unmap();
    }
    CHECK_EQUAL(texts, 1u);
    CHECK_EQUAL(ranges, 1u);
    CHECK_EQUAL(of_forked, 1u);
    CHECK_EQUAL(ended.size(), 1u);
    CHECK(begun == ended);  // what has no end would go on for ever
}

CASE(stop_and_remove_leave_the_program_as_it_was) {
    memscope_stop();
    const auto before = own_memory_events().size();
    const int calls = fake_news;
    early_allocate(kBlock, 8);
    CHECK_EQUAL(own_memory_events().size(), before);
    memscope_remove_hooks();
    memscope_start();  // tells of the block above
    early_allocate(kBlock, 8);
    CHECK_EQUAL(own_memory_events().size(), before + 1);
    CHECK_EQUAL(fake_news, calls + 2);
}

int main(int argc, char** argv) {
    alarm(120);  // a case that waits for an event that never comes ends the program
    const int status = check::run(argc, argv);
    const std::string clean = "rm -rf " + session_directory();
    return std::system(clean.c_str()) == 0 ? status : 1;
}
