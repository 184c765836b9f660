// The ATB source on the simulated libatb.so: both builds of it, versions of it that are laid out differently or lack a
// symbol, found as a library that Python loads is found (dlopen, RTLD_LOCAL).
//
// A process has one recorder and should have one libatb, so each case runs in a process of its own, once for each
// library that it is about: main() starts this program again, with the case as its argument and the library in
// ATB_LIBRARY. The program atb_linked_N_test is this one linked to build N.
#include <dlfcn.h>
#include <sys/wait.h>
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <thread>

#include "atb/atb.h"
#include "cann.h"
#include "check.h"
#include "hook/recorder.h"
#include "hook/selection.h"
#include "hook/settings.h"
#include "own_ring.h"

using namespace memscope;
using namespace own;

extern "C" {
unsigned memscope_install_hooks();
void memscope_remove_hooks();
}

namespace {

constexpr unsigned kOperators = 1, kKernels = 2, kAccesses = 4, kAll = 7;
constexpr u32 kAtb = 1;
constexpr int kSavedByAProgram = 12;  // of one operator: three tensors, before and after the operator and its kernel

// The library under test, through its C functions.
struct Library {
    void* handle = dlopen(getenv("ATB_LIBRARY"), RTLD_NOW | RTLD_LOCAL);
    decltype(&npusim_atb_create_add) create = find<decltype(create)>("npusim_atb_create_add");
    decltype(&npusim_atb_setup) setup = find<decltype(setup)>("npusim_atb_setup");
    decltype(&npusim_atb_execute) execute = find<decltype(execute)>("npusim_atb_execute");
    decltype(&npusim_atb_destroy) destroy = find<decltype(destroy)>("npusim_atb_destroy");
    decltype(&npusim_atb_set_saving) set_saving = find<decltype(set_saving)>("npusim_atb_set_saving");
    decltype(&npusim_atb_saved_tensors) saved = find<decltype(saved)>("npusim_atb_saved_tensors");

    template <typename Function>
    Function find(const char* name) {
        if (handle == nullptr) check::fail(__FILE__, __LINE__, dlerror());
        return reinterpret_cast<Function>(dlsym(handle, name));
    }
};

// 3x3 tensors on device 0: a = 0..8, b = 100, and the sum.
struct Addition {
    void *a = nullptr, *b = nullptr, *out = nullptr, *workspace = nullptr, *stream = nullptr;
    static constexpr u64 kBytes = 36, kWorkspace = 4096;

    Addition() {
        CHECK_EQUAL(rtSetDevice(0), 0);
        for (void** block : {&a, &b, &out}) CHECK_EQUAL(rtMalloc(block, kBytes, 0, 33), 0);
        CHECK_EQUAL(rtMalloc(&workspace, kWorkspace, 0, 33), 0);
        CHECK_EQUAL(rtStreamCreate(&stream, 0), 0);
        for (int i = 0; i < 9; ++i) static_cast<int32_t*>(a)[i] = i, static_cast<int32_t*>(b)[i] = 100;
    }

    int execute(const Library& atb, npusim_atb_operation* operation, u64 workspace_bytes = kWorkspace) {
        memset(out, 0, kBytes);
        const npusim_atb_tensor first = {a, 3, 3}, second = {b, 3, 3}, sum = {out, 3, 3};
        const int status = atb.execute(operation, &first, &second, &sum, workspace_bytes != 0 ? workspace : nullptr,
                                       workspace_bytes, stream);
        CHECK_EQUAL(rtStreamSynchronize(stream), 0);
        return status;
    }
    void run(const Library& atb, const char* name = nullptr) {
        npusim_atb_operation* operation = atb.create(name);
        CHECK_EQUAL(atb.setup(operation), 0);
        CHECK_EQUAL(execute(atb, operation), 0);
        for (int i = 0; i < 9; ++i) CHECK_EQUAL(static_cast<int32_t*>(out)[i], 100 + i);
        atb.destroy(operation);
    }
};

// Everything that this source records, in order.
std::vector<Seen> atb_events() {
    std::vector<Seen> found;
    for (const Seen& one : own_events()) {
        const bool is_boundary = one.kind == Kind::OP_START || one.kind == Kind::OP_END ||
                                 one.kind == Kind::KERNEL_START || one.kind == Kind::KERNEL_END;
        if ((is_boundary && one.record.aux == kAtb) || one.kind == Kind::ACCESS) found.push_back(one);
    }
    return found;
}

u64 count(const std::vector<Seen>& events, Kind kind) {
    return static_cast<u64>(
        std::count_if(events.begin(), events.end(), [&](const Seen& one) { return one.kind == kind; }));
}

std::vector<std::string> lost_lines() {
    std::vector<std::string> lines;
    memscope_visit_lost(
        [](void* context, const char* source, const char* what) {
            if (strcmp(source, "atb") == 0) static_cast<std::vector<std::string>*>(context)->push_back(what);
        },
        &lines);
    return lines;
}

void begin(unsigned sorts) {
    CHECK_EQUAL(memscope_set_session(session_directory().c_str()), 0);
    memscope_configure(("devices=auto;sorts=" + std::to_string(sorts)).c_str());
    memscope_install_hooks();
    memscope_start();
}

std::string hex(const void* pointer) {
    std::ostringstream text;
    text << pointer;
    return text.str();
}

void check_boundary(const Seen& seen, Kind kind, const std::string& name, const std::string& attr) {
    CHECK_EQUAL(static_cast<int>(seen.kind), static_cast<int>(kind));
    CHECK_EQUAL(text_of(seen.record.name), name);
    CHECK_EQUAL(text_of(seen.record.attr), attr);
    CHECK_EQUAL(seen.record.aux, kAtb);
    CHECK_EQUAL(seen.record.device, 0);
    CHECK_EQUAL(static_cast<int>(seen.record.device_type), static_cast<int>(DeviceType::NPU));
    CHECK_EQUAL(seen.record.tid, static_cast<u32>(gettid()));
}

void check_access(const Seen& seen, const void* block, u32 how, const std::string& name, const std::string& attr) {
    CHECK_EQUAL(static_cast<int>(seen.kind), static_cast<int>(Kind::ACCESS));
    CHECK_EQUAL(seen.record.ptr, reinterpret_cast<u64>(block));
    CHECK_EQUAL(seen.record.size, static_cast<i64>(Addition::kBytes));
    CHECK_EQUAL(seen.record.aux, how);
    CHECK_EQUAL(text_of(seen.record.name), name);
    CHECK_EQUAL(text_of(seen.record.attr), attr);
    CHECK_EQUAL(seen.record.device, 0);
}

}  // namespace

// A tool for mstx, which libms_tools_ext.so finds in the program: while it listens it notes what the library reports,
// otherwise it gives way to the hook library's.
namespace mstx {

struct Range {
    uint32_t device;
    const void* ptr;
    uint64_t size;
};
struct HeapDesc {
    int32_t usage, type;
    const Range* range;
};
struct Regions {
    void* heap;
    int32_t type;
    size_t count;
    const Range* ranges;
    void** handles;
};
struct Ref {
    int32_t type;
    void* handle;
};
struct Refs {
    size_t count;
    const Ref* refs;
};

bool is_listening = false;
std::vector<std::string> told;

void* create_domain(const char* name) {
    told.push_back(std::string("domain ") + name);
    return &told;
}
void* register_heap(void*, const HeapDesc* heap) {
    told.push_back("heap " + hex(heap->range->ptr) + " " + std::to_string(heap->range->size) + " device " +
                   std::to_string(heap->range->device));
    return &is_listening;
}
void unregister_heap(void*, void* heap) { told.push_back(heap == &is_listening ? "heap ends" : "foreign heap"); }
void register_regions(void*, const Regions* batch) {
    for (size_t i = 0; i < batch->count; ++i) {
        told.push_back("region " + hex(batch->ranges[i].ptr) + " " + std::to_string(batch->ranges[i].size));
        batch->handles[i] = reinterpret_cast<void*>(0x100 + i);
    }
}
void unregister_regions(void*, const Refs* batch) {
    for (size_t i = 0; i < batch->count; ++i)
        told.push_back("region " + hex(batch->refs[i].handle) + " ends, by " +
                       (batch->refs[i].type == 1 ? "handle" : "pointer"));
}

}  // namespace mstx

extern "C" __attribute__((visibility("default"))) int InitInjectionMstx(int (*get_table)(int, void****, unsigned*)) {
    if (!mstx::is_listening) {
        // Not RTLD_NEXT, which our dlsym can only pass on where it is compiled to a tail call: not under a sanitizer.
        void* hook = dlopen("libascend_kernel_hook.so", RTLD_NOW | RTLD_NOLOAD);
        return reinterpret_cast<decltype(&InitInjectionMstx)>(dlsym(hook, "InitInjectionMstx"))(get_table);
    }
    void*** slots = nullptr;
    unsigned entries = 0;
    if (get_table(2, &slots, &entries) != 0) return 1;
    *slots[1] = reinterpret_cast<void*>(mstx::create_domain);
    if (get_table(3, &slots, &entries) != 0) return 1;
    *slots[1] = reinterpret_cast<void*>(mstx::register_heap);
    *slots[2] = reinterpret_cast<void*>(mstx::unregister_heap);
    *slots[3] = reinterpret_cast<void*>(mstx::register_regions);
    *slots[4] = reinterpret_cast<void*>(mstx::unregister_regions);
    return 0;
}

CASE(an_operator_and_its_kernel_are_recorded_exactly) {
    begin(kAll);
    const Library atb;
    Addition addition;
    addition.run(atb);
    const auto events = atb_events();
    CHECK_EQUAL(events.size(), 10u);
    const std::string operation = "path:0/0_ElewiseOperation,workspace_ptr:" + hex(addition.workspace) +
                                  ",workspace_size:" + std::to_string(Addition::kWorkspace);
    const std::string kernel = "path:0/0_ElewiseOperation/0_AddI32Kernel";
    const std::string of_operation = "dtype:ACL_INT32,format:ACL_FORMAT_ND,shape:[3,3,]";
    const std::string of_kernel = "dtype:TENSOR_DTYPE_INT32,format:TENSOR_FORMAT_ND,shape:[3,3,]";
    check_boundary(events[0], Kind::OP_START, "ElewiseOperation", operation);
    check_access(events[1], addition.a, 0, "ElewiseOperation", of_operation);
    check_access(events[2], addition.b, 0, "ElewiseOperation", of_operation);
    check_access(events[3], addition.out, 2, "ElewiseOperation", of_operation);
    check_boundary(events[4], Kind::KERNEL_START, "0_AddI32Kernel", kernel);
    check_access(events[5], addition.a, 0, "0_AddI32Kernel", of_kernel);
    check_access(events[6], addition.b, 0, "0_AddI32Kernel", of_kernel);
    check_access(events[7], addition.out, 2, "0_AddI32Kernel", of_kernel);
    check_boundary(events[8], Kind::KERNEL_END, "0_AddI32Kernel", kernel);
    check_boundary(events[9], Kind::OP_END, "ElewiseOperation", operation);
    for (u64 i = 1; i < events.size(); ++i) CHECK(events[i].record.ts >= events[i - 1].record.ts);
    CHECK_EQUAL(atb.saved(), 0);
    CHECK(lost_lines().empty());
}

// Upstream's own test of watched blocks: two looks, one when the kernel has ended and one behind its operator.
CASE(the_output_of_a_kernel_is_watched_until_its_operator_has_ended) {
    begin(0);
    const std::string path = "0/0_ElewiseOperation", kernel = path + "/0_AddI32Kernel";
    const std::string output = own::make_directory("memscope-native-watch-");
    CHECK_EQUAL(memscope_configure(("watch_start=" + kernel + ";watch_end=" + path + ";watch_output=" +
                                    std::to_string(kEveryOutput) + ";watch_content=1;output_directory=" + output)
                                       .c_str()),
                0);
    const Library atb;
    Addition addition;
    addition.run(atb);
    std::vector<Seen> looks;
    for (const Seen& one : own_events())
        if (one.kind == Kind::WATCH) looks.push_back(one);
    CHECK_EQUAL(looks.size(), 4u);
    const auto moment = [](const Seen& one) { return static_cast<WatchMoment>(one.record.aux & 7); };
    CHECK(moment(looks[0]) == WatchMoment::BEGAN);
    CHECK_EQUAL(text_of(looks[0].record.name), kernel);
    CHECK_EQUAL(looks[0].record.ptr, reinterpret_cast<u64>(addition.out));
    CHECK_EQUAL(looks[0].record.size, static_cast<i64>(Addition::kBytes));
    CHECK(moment(looks[1]) == WatchMoment::AFTER);
    CHECK_EQUAL(text_of(looks[1].record.name), kernel);
    CHECK(moment(looks[2]) == WatchMoment::AFTER);
    CHECK_EQUAL(text_of(looks[2].record.name), path);
    CHECK(moment(looks[3]) == WatchMoment::ENDED);
    u64 expected = ~u64{0};  // bit by bit, as upstream's checksum is defined
    for (const u8* byte = static_cast<u8*>(addition.out); byte != static_cast<u8*>(addition.out) + Addition::kBytes;
         ++byte) {
        expected ^= *byte;
        for (int bit = 0; bit < 8; ++bit) expected = expected >> 1 ^ ((expected & 1) != 0 ? 0x42F0E1EBA9EA3693ull : 0);
    }
    for (int at : {1, 2}) CHECK_EQUAL(looks[static_cast<u64>(at)].record.attr, ~expected);
    memscope_stats stats;
    memscope_get_stats(&stats);
    char directory[64];
    snprintf(directory, sizeof directory, "/watch_content_%016llx/", stats.ring_id);
    std::string first = kernel, second = path;
    for (std::string* name : {&first, &second}) std::replace(name->begin(), name->end(), '/', '.');
    for (const std::string& name : {first, second}) {
        const std::string file = output + directory + name + "_1-" + first + "_0_after.bin";
        FILE* const content = fopen(file.c_str(), "rb");
        CHECK(content != nullptr);
        u8 bytes[Addition::kBytes + 1];
        CHECK_EQUAL(fread(bytes, 1, sizeof bytes, content), static_cast<std::size_t>(Addition::kBytes));
        CHECK_EQUAL(memcmp(bytes, addition.out, Addition::kBytes), 0);
        fclose(content);
    }
}

CASE(only_what_is_wanted_is_recorded) {
    begin(0);
    const Library atb;
    Addition addition;
    const auto kinds = [&](unsigned sorts) {
        memscope_configure(("sorts=" + std::to_string(sorts)).c_str());
        const auto before = atb_events().size();
        addition.run(atb);
        auto events = atb_events();
        events.erase(events.begin(), events.begin() + static_cast<std::ptrdiff_t>(before));
        return std::to_string(count(events, Kind::OP_START) + count(events, Kind::OP_END)) + " " +
               std::to_string(count(events, Kind::KERNEL_START) + count(events, Kind::KERNEL_END)) + " " +
               std::to_string(count(events, Kind::ACCESS));
    };
    CHECK_EQUAL(kinds(0), "0 0 0");
    CHECK_EQUAL(kinds(kOperators), "2 0 0");
    CHECK_EQUAL(kinds(kKernels), "0 2 0");
    CHECK_EQUAL(kinds(kAccesses), "0 0 3");
    CHECK_EQUAL(kinds(kOperators | kAccesses), "2 0 3");
    CHECK_EQUAL(kinds(kKernels | kAccesses), "0 2 6");
    memscope_configure("devices=npu:1");
    CHECK_EQUAL(kinds(kAll), "0 0 0");
    memscope_configure("devices=npu:0");
    CHECK_EQUAL(kinds(kAll), "2 2 6");
    CHECK_EQUAL(atb.saved(), 0);
}

CASE(recording_may_begin_and_end_between_set_up_and_execution) {
    begin(kAll);
    memscope_stop();
    const Library atb;
    Addition addition;
    npusim_atb_operation* operation = atb.create(nullptr);
    CHECK_EQUAL(atb.setup(operation), 0);
    CHECK_EQUAL(addition.execute(atb, operation), 0);
    CHECK(atb_events().empty());
    memscope_start();
    CHECK_EQUAL(addition.execute(atb, operation), 0);
    CHECK_EQUAL(atb_events().size(), 10u);
    memscope_stop();
    CHECK_EQUAL(addition.execute(atb, operation), 0);
    memscope_start();
    memscope_remove_hooks();
    CHECK_EQUAL(addition.execute(atb, operation), 0);
    CHECK_EQUAL(atb_events().size(), 10u);
    CHECK_EQUAL(atb.saved(), 0);
    memscope_install_hooks();
    CHECK_EQUAL(addition.execute(atb, operation), 0);
    CHECK_EQUAL(atb_events().size(), 20u);
    atb.destroy(operation);
}

CASE(a_program_that_saves_its_tensors_saves_the_same_ones) {
    const Library atb;
    Addition addition;
    atb.set_saving(1);
    addition.run(atb);
    CHECK_EQUAL(atb.saved(), kSavedByAProgram);  // by itself
    begin(kAll);
    addition.run(atb);
    CHECK_EQUAL(atb.saved(), 2 * kSavedByAProgram);
    CHECK_EQUAL(count(atb_events(), Kind::KERNEL_START), 1u);
    CHECK_EQUAL(count(atb_events(), Kind::KERNEL_END), 1u);
    memscope_stop();
    addition.run(atb);
    CHECK_EQUAL(atb.saved(), 3 * kSavedByAProgram);
    CHECK_EQUAL(lost_lines().size(), 1u);
}

CASE(names_are_cut_and_a_null_tensor_is_no_access) {
    begin(kAll);
    const Library atb;
    Addition addition;
    const std::string name(300, 'n');
    addition.run(atb, name.c_str());
    CHECK_EQUAL(text_of(atb_events().front().record.name), name.substr(0, 254));
    CHECK_EQUAL(text_of(atb_events().front().record.attr), ("path:0/0_" + name).substr(0, 254));
    // The kernel's path is longer than an attribute, its name is still the last element.
    CHECK_EQUAL(text_of(atb_events()[4].record.name), "0_AddI32Kernel");
    const auto before = atb_events().size();
    npusim_atb_operation* operation = atb.create(nullptr);
    CHECK_EQUAL(atb.setup(operation), 0);
    const npusim_atb_tensor nothing = {nullptr, 0, 3};
    CHECK_EQUAL(atb.execute(operation, &nothing, &nothing, &nothing, nullptr, 0, addition.stream), 0);
    const auto events = atb_events();
    CHECK_EQUAL(events.size(), before + 4);
    CHECK_EQUAL(count(events, Kind::ACCESS), 6u);
    CHECK_EQUAL(text_of(events.back().record.attr), "path:0/0_ElewiseOperation,workspace_ptr:(nil),workspace_size:0");
    atb.destroy(operation);
}

CASE(an_exception_of_the_library_passes_through) {
    begin(kAll);
    const Library atb;
    Addition addition;
    npusim_atb_operation* operation = atb.create(nullptr);
    CHECK_EQUAL(atb.setup(operation), 0);
    const npusim_atb_tensor small = {addition.a, 1, 3}, large = {addition.b, 3, 3};
    CHECK_EQUAL(atb.execute(operation, &small, &large, &large, nullptr, 0, addition.stream), 3);
    CHECK_EQUAL(count(atb_events(), Kind::OP_START), 1u);
    CHECK_EQUAL(count(atb_events(), Kind::OP_END), 0u);
    addition.run(atb);
    CHECK_EQUAL(count(atb_events(), Kind::OP_END), 1u);
    atb.destroy(operation);
}

CASE(threads_record_side_by_side) {
    begin(kAll);
    const Library atb;
    constexpr int kThreads = 4, kRuns = 50;
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i)
        threads.emplace_back([&] {
            Addition addition;
            for (int run = 0; run < kRuns; ++run) addition.run(atb);
        });
    for (auto& thread : threads) thread.join();
    CHECK_EQUAL(atb_events().size(), 10u * kThreads * kRuns);
    CHECK_EQUAL(atb.saved(), 0);
}

CASE(the_physical_device_is_recorded) {
    begin(kAll);  // with cards 3 and 5 of 8 visible: see main()
    const Library atb;
    Addition addition;
    addition.run(atb);
    CHECK_EQUAL(atb_events().size(), 10u);
    for (const Seen& one : atb_events()) CHECK_EQUAL(one.record.device, 3);
}

CASE(workspace_memory_is_told_to_mstx) {
    mstx::is_listening = true;
    const Library atb;
    Addition addition;
    addition.run(atb);
    const std::string middle = hex(static_cast<char*>(addition.workspace) + 2048);
    const std::vector<std::string> expected = {"domain atb",
                                               "heap " + hex(addition.workspace) + " 4096 device 0",
                                               "region " + hex(addition.workspace) + " 2048",
                                               "region " + middle + " 2048",
                                               "region 0x100 ends, by handle",
                                               "region 0x101 ends, by handle",
                                               "heap ends"};
    CHECK_EQUAL(mstx::told.size(), expected.size());
    for (u64 i = 0; i < expected.size(); ++i) CHECK_EQUAL(mstx::told[i], expected[i]);
}

CASE(workspace_memory_is_recorded_as_blocks) {
    begin(0);
    const Library atb;
    Addition addition;
    addition.run(atb);
    auto blocks = own_memory_events();
    blocks.erase(std::remove_if(blocks.begin(), blocks.end(),
                                [](const Seen& one) { return one.record.pool != static_cast<u8>(Pool::ATB); }),
                 blocks.end());
    const u64 workspace = reinterpret_cast<u64>(addition.workspace);
    const struct {
        Kind kind;
        u64 ptr;
        i64 used;
    } expected[] = {{Kind::MALLOC, workspace, 2048},
                    {Kind::MALLOC, workspace + 2048, 4096},
                    {Kind::FREE, workspace, 2048},
                    {Kind::FREE, workspace + 2048, 0}};
    CHECK_EQUAL(blocks.size(), 4u);
    for (u64 i = 0; i < blocks.size(); ++i) {
        CHECK(blocks[i].kind == expected[i].kind);
        CHECK_EQUAL(blocks[i].record.ptr, expected[i].ptr);
        CHECK_EQUAL(blocks[i].record.used, expected[i].used);
        CHECK_EQUAL(blocks[i].record.total, 4096);
    }
}

CASE(an_unknown_library_is_left_alone) {
    begin(kAll);
    const Library atb;
    Addition addition;
    for (int i = 0; i < 3; ++i) addition.run(atb);
    CHECK(atb_events().empty());
    CHECK_EQUAL(atb.saved(), 0);
    CHECK_EQUAL(lost_lines().size(), 1u);
    CHECK(lost_lines()[0].find(getenv("ATB_LOST")) != std::string::npos);
}

CASE(unknown_tensors_of_kernels_end_the_source) {
    begin(kAll);
    const Library atb;
    Addition addition;
    for (int i = 0; i < 3; ++i) addition.run(atb);
    // The first operator had begun when its kernel's tensors were seen: it ends, and no more begin.
    const auto events = atb_events();
    CHECK_EQUAL(events.size(), 5u);
    CHECK_EQUAL(count(events, Kind::OP_START), 1u);
    CHECK_EQUAL(count(events, Kind::OP_END), 1u);
    CHECK_EQUAL(atb.saved(), 0);
    CHECK_EQUAL(lost_lines().size(), 1u);
}

CASE(another_build_loaded_later_keeps_its_own_calls) {
    begin(kAll);
    const Library atb;
    Addition addition;
    addition.run(atb);
    setenv("ATB_LIBRARY", getenv("ATB_OTHER_LIBRARY"), 1);
    const Library other;
    addition.run(other);
    CHECK_EQUAL(other.saved(), 0);
    addition.run(atb);
    CHECK_EQUAL(count(atb_events(), Kind::OP_START), 2u);
}

CASE(a_library_that_was_unloaded_is_judged_anew) {
    begin(kAll);
    Addition addition;
    {
        const Library atb;
        addition.run(atb);
        dlclose(atb.handle);
    }
    setenv("ATB_LIBRARY", getenv("ATB_OTHER_LIBRARY"), 1);
    const Library other;
    addition.run(other);
    CHECK_EQUAL(atb_events().size(), 20u);
    CHECK(lost_lines().empty());
}

namespace {

struct Run {
    const char* name;  // of a case
    std::string library;
    std::vector<std::string> environment;
};

int run_apart(const Run& run) {
    const pid_t child = fork();
    if (child == 0) {
        setenv("ATB_LIBRARY", run.library.c_str(), 1);
        for (const std::string& variable : run.environment) putenv(strdup(variable.c_str()));
        execl("/proc/self/exe", "atb_test", run.name, nullptr);
        _exit(127);
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (status != 0)
        fprintf(stderr, "FAILED %s with %s: status %#x\n", run.name, run.library.c_str(),
                static_cast<unsigned>(status));
    return status;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc > 1) {
        const int failed = check::run(argc, argv);
        std::error_code ignored;
        std::filesystem::remove_all(session_directory(), ignored);
        return failed;
    }
    const char* const everywhere[] = {
        "an_operator_and_its_kernel_are_recorded_exactly",
        "only_what_is_wanted_is_recorded",
        "recording_may_begin_and_end_between_set_up_and_execution",
        "a_program_that_saves_its_tensors_saves_the_same_ones",
        "names_are_cut_and_a_null_tensor_is_no_access",
        "an_exception_of_the_library_passes_through",
        "threads_record_side_by_side",
        "workspace_memory_is_told_to_mstx",
        "workspace_memory_is_recorded_as_blocks",
    };
    const std::string builds[] = {ATB_BUILDS "/cxx_abi_0/lib/libatb.so", ATB_BUILDS "/cxx_abi_1/lib/libatb.so"};
    std::vector<Run> runs;
    const std::vector<std::string> cards = {"NPUSIM_DEVICES=8", "ASCEND_RT_VISIBLE_DEVICES=3,5"};
#ifdef ATB_LINKED
    for (const char* name : everywhere) runs.push_back({name, builds[ATB_LINKED], {}});
    runs.push_back({"the_physical_device_is_recorded", builds[ATB_LINKED], cards});
#else
    for (const std::string& build : builds) runs.push_back({"the_physical_device_is_recorded", build, cards});
    const auto version = [](const char* name) { return std::string(ATB_VERSIONS "/") + name + "/libatb.so"; };
    for (const std::string& build : builds)
        for (const char* name : everywhere) runs.push_back({name, build, {}});
    for (const char* name : {"OLD_MKI", "VIRTUAL"})
        for (const char* one : {everywhere[0], everywhere[2]}) runs.push_back({one, version(name), {}});
    runs.push_back({"an_unknown_library_is_left_alone", version("LARGER_TENSOR"), {"ATB_LOST=another layout"}});
    runs.push_back({"an_unknown_library_is_left_alone", version("MISSING"), {"ATB_LOST=a symbol"}});
    runs.push_back({"unknown_tensors_of_kernels_end_the_source", version("LARGER_LAUNCH"), {}});
    for (int i : {0, 1})
        for (const char* name :
             {"another_build_loaded_later_keeps_its_own_calls", "a_library_that_was_unloaded_is_judged_anew"})
            runs.push_back({name, builds[i], {"ATB_OTHER_LIBRARY=" + builds[1 - i]}});
#endif
    int failed = 0;
    for (const Run& run : runs) failed += run_apart(run) != 0 ? 1 : 0;
    printf("%zu runs, %d failed\n", runs.size(), failed);
    return failed;
}
