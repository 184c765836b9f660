// The mstx source: what programs and frameworks say through the simulated libms_tools_ext.so arrives in the ring, and
// what makes no sense does no harm.
#include <sys/wait.h>
#include <atomic>
#include <thread>

#include "cann.h"
#include "check.h"
#include "hook/patch.h"
#include "hook/recorder.h"
#include "hook/selection.h"
#include "own_ring.h"
#include "source/mstx_abi.h"

using namespace memscope;
using namespace memscope::mstx;
using own::Seen;

extern "C" {
void mstxMarkA(const char* message, void* stream);
std::uint64_t mstxRangeStartA(const char* message, void* stream);
void mstxRangeEnd(std::uint64_t id);
void mstxGetToolId(std::uint64_t* id);
void* mstxDomainCreateA(const char* name);
void mstxDomainDestroy(void* domain);
void mstxDomainMarkA(void* domain, const char* message, void* stream);
std::uint64_t mstxDomainRangeStartA(void* domain, const char* message, void* stream);
void mstxDomainRangeEnd(void* domain, std::uint64_t id);
void* mstxMemHeapRegister(void* domain, const void* heap);
void mstxMemHeapUnregister(void* domain, void* heap);
void mstxMemRegionsRegister(void* domain, const void* batch);
void mstxMemRegionsUnregister(void* domain, const void* batch);
int aclrtCreateStream(void** stream);
int aclrtDestroyStream(void* stream);
int aclrtStreamGetId(void* stream, std::int32_t* id);
int aclrtSetDevice(std::int32_t device);
int InitInjectionMstx(GetTable get_table);
unsigned long long memscope_mstx_ignored();
unsigned memscope_install_hooks();
}

namespace {

constexpr i16 kCard0 = 4, kCard1 = 6;  // main() sets ASCEND_RT_VISIBLE_DEVICES=4,6
std::size_t g_looked = 0;              // events that earlier cases have seen

std::vector<Seen> new_events() {
    std::vector<Seen> all = own::own_events();
    std::vector<Seen> fresh(all.begin() + static_cast<std::ptrdiff_t>(g_looked), all.end());
    g_looked = all.size();
    return fresh;
}

std::vector<Seen> new_blocks() {
    std::vector<Seen> blocks;
    for (const Seen& one : new_events())
        if (one.kind == Kind::MALLOC || one.kind == Kind::FREE) blocks.push_back(one);
    return blocks;
}

void check_block(const Seen& seen, Kind kind, Pool pool, i16 device, u64 ptr, i64 size, i64 used, i64 total) {
    CHECK_EQUAL(static_cast<int>(seen.kind), static_cast<int>(kind));
    CHECK_EQUAL(static_cast<int>(seen.record.pool), static_cast<int>(pool));
    CHECK_EQUAL(static_cast<int>(seen.record.device_type), static_cast<int>(DeviceType::NPU));
    CHECK_EQUAL(seen.record.device, device);
    CHECK_EQUAL(seen.record.ptr, ptr);
    CHECK_EQUAL(seen.record.size, size);
    CHECK_EQUAL(seen.record.used, used);
    CHECK_EQUAL(seen.record.total, total);
}

bool is_lost(const char* beginning) {
    struct Search {
        const char* beginning;
        bool found;
    } search = {beginning, false};
    memscope_visit_lost(
        [](void* context, const char* source, const char* what) {
            auto& wanted = *static_cast<Search*>(context);
            if (strcmp(source, "mstx") == 0 && strncmp(what, wanted.beginning, strlen(wanted.beginning)) == 0)
                wanted.found = true;
        },
        &search);
    return search.found;
}

void* address(u64 value) { return reinterpret_cast<void*>(value); }

// --- as the frameworks call: what they leave uninitialised is garbage here -------------------------------------

constexpr int kGarbage = static_cast<int>(0xDEADBEEF);
void* g_canary[4] = {address(1), address(2), address(3), address(4)};

void heap(void* domain, u32 device, u64 ptr, i64 size) {
    const VirtualRange range = {device, address(ptr), size};
    const HeapDescription description = {kGarbage, kGarbage, &range};
    mstxMemHeapRegister(domain, &description);
}

void regions(void* domain, u32 device, u64 ptr, i64 size) {
    const VirtualRange range = {device, address(ptr), size};
    const RegionsRegisterBatch batch = {address(0xBAD), kGarbage, 1, &range, g_canary};
    mstxMemRegionsRegister(domain, &batch);
}

void release(void* domain, u64 ptr) {
    const RegionRef ref = {kByPointer, address(ptr)};
    const RegionsUnregisterBatch batch = {1, &ref};
    mstxMemRegionsUnregister(domain, &batch);
}

void pta_malloc(u32 device, u64 ptr, i64 size, i64 reserved) {
    heap(mstxDomainCreateA("ptaCaching"), device, ptr, reserved);
    regions(mstxDomainCreateA("ptaCaching"), device, ptr, size);
}

void pta_free(u32 device, u64 ptr, i64 reserved) {
    heap(mstxDomainCreateA("ptaCaching"), device, ptr, reserved);
    release(mstxDomainCreateA("ptaCaching"), ptr);
}

// --- tables of our own -----------------------------------------------------------------------------------------

Slot g_functions[3][8];
Slot* g_slots[3][8];
unsigned g_sizes[3];

int get_table(int module, Slot*** table, unsigned* size) {
    if (module < 1 || module > 3 || g_sizes[module - 1] == 0) return 1;
    *table = g_slots[module - 1];
    *size = g_sizes[module - 1];
    return 0;
}

void set_tables(unsigned core, unsigned domains, unsigned memory) {
    for (int module = 0; module < 3; ++module)
        for (int id = 0; id < 8; ++id) {
            g_functions[module][id] = nullptr;
            g_slots[module][id] = id == 0 ? nullptr : &g_functions[module][id];
        }
    g_sizes[0] = core;
    g_sizes[1] = domains;
    g_sizes[2] = memory;
}

int filled(int module) {
    int count = 0;
    for (const Slot& function : g_functions[module - 1]) count += function != nullptr;
    return count;
}

}  // namespace

CASE(every_slot_is_filled) {
    set_tables(5, 6, 5);
    CHECK_EQUAL(InitInjectionMstx(get_table), 0);
    CHECK_EQUAL(filled(kCore), 4);
    CHECK_EQUAL(filled(kDomains), 5);
    CHECK_EQUAL(filled(kMemory), 4);
    CHECK(!is_lost("no "));
    CHECK(!is_lost("some "));
    std::uint64_t id = 0;
    mstxGetToolId(&id);
    CHECK_EQUAL(id, 0x1003u);
}

CASE(a_short_table_is_filled_to_its_end) {
    set_tables(3, 6, 5);
    CHECK_EQUAL(InitInjectionMstx(get_table), 0);
    CHECK_EQUAL(filled(kCore), 2);  // ids 1 and 2: what lies beyond is not ours to write
    CHECK_EQUAL(filled(kMemory), 4);
    CHECK(is_lost("some sorts of marks and ranges are not"));
}

CASE(a_missing_table_is_said_and_the_others_filled) {
    set_tables(0, 6, 0);
    CHECK_EQUAL(InitInjectionMstx(get_table), 0);
    CHECK_EQUAL(filled(kDomains), 5);
    CHECK(is_lost("no marks and ranges"));
    CHECK(is_lost("no memory pools"));
    set_tables(0, 0, 0);
    CHECK(InitInjectionMstx(get_table) != 0);
    CHECK(InitInjectionMstx(nullptr) != 0);
}

CASE(blocks_from_before_recording_are_known_with_their_times) {
    memscope_remember();
    const u64 before = monotonic_ns();
    pta_malloc(0, 0x1000, 512, 4096);
    pta_malloc(0, 0x2000, 1024, 4096);
    pta_free(0, 0x2000, 4096);
    pta_malloc(1, 0x9000, 512, 4096);
    const u64 after = monotonic_ns();
    CHECK(own::rings().empty());
    memscope_configure("devices=npu:4");  // said last, and holds for what was remembered too
    memscope_start();
    pta_free(1, 0x9000, 4096);
    memscope_configure("devices=npu");
    pta_malloc(0, 0x3000, 2048, 4096);
    const std::vector<Seen> seen = new_blocks();
    CHECK_EQUAL(seen.size(), 2u);
    check_block(seen[0], Kind::MALLOC, Pool::PTA, kCard0, 0x1000, 512, kUnknown, kUnknown);
    CHECK_EQUAL(static_cast<int>(seen[0].record.header.flags), static_cast<int>(Flag::SHADOW));
    CHECK(seen[0].record.ts >= before && seen[0].record.ts <= after);
    check_block(seen[1], Kind::MALLOC, Pool::PTA, kCard0, 0x3000, 2048, 512 + 2048, 4096);
    pta_free(0, 0x1000, 4096);
    pta_free(0, 0x3000, 4096);
    const std::vector<Seen> freed = new_blocks();
    CHECK_EQUAL(freed.size(), 2u);
    check_block(freed[0], Kind::FREE, Pool::PTA, kCard0, 0x1000, 512, 2048, 4096);
    check_block(freed[1], Kind::FREE, Pool::PTA, kCard0, 0x3000, 2048, 0, 4096);
}

CASE(the_caching_pool_of_two_cards) {
    pta_malloc(0, 0x10000, 512, 1 << 20);
    pta_malloc(1, 0x20000, 4096, 2 << 20);
    pta_malloc(1, 0x30000, 512, 3 << 20);
    pta_free(1, 0x20000, 3 << 20);
    pta_free(0, 0x10000, 0);
    pta_free(1, 0x30000, 3 << 20);
    const std::vector<Seen> seen = new_blocks();
    CHECK_EQUAL(seen.size(), 6u);
    check_block(seen[0], Kind::MALLOC, Pool::PTA, kCard0, 0x10000, 512, 512, 1 << 20);
    check_block(seen[1], Kind::MALLOC, Pool::PTA, kCard1, 0x20000, 4096, 4096, 2 << 20);
    check_block(seen[2], Kind::MALLOC, Pool::PTA, kCard1, 0x30000, 512, 4608, 3 << 20);
    check_block(seen[3], Kind::FREE, Pool::PTA, kCard1, 0x20000, 4096, 512, 3 << 20);
    check_block(seen[4], Kind::FREE, Pool::PTA, kCard0, 0x10000, 512, 0, 0);
    check_block(seen[5], Kind::FREE, Pool::PTA, kCard1, 0x30000, 512, 0, 3 << 20);
    for (u64 i = 0; i < 4; ++i) CHECK_EQUAL(g_canary[i], address(i + 1));  // its handle array is garbage
}

CASE(the_old_name_of_the_caching_pool) {
    regions(mstxDomainCreateA("msleaks"), 0, 0x1000, 512);
    release(mstxDomainCreateA("ptaCaching"), 0x1000);  // one pool under two names
    const std::vector<Seen> seen = new_blocks();
    CHECK_EQUAL(seen.size(), 2u);
    check_block(seen[0], Kind::MALLOC, Pool::PTA, kCard0, 0x1000, 512, 512, 0);
    check_block(seen[1], Kind::FREE, Pool::PTA, kCard0, 0x1000, 512, 0, 0);
}

CASE(a_workspace_is_registered_over_and_over) {
    void* workspace = mstxDomainCreateA("ptaWorkspace");
    heap(workspace, 0, 0x5000, 8192);
    regions(workspace, 0, 0x5000, 4096);
    regions(workspace, 0, 0x5000, 4096);
    regions(workspace, 0, 0x5000, 8192);
    regions(workspace, 0, 0x5000, 8192);
    heap(workspace, 0, 0x5000, 0);
    release(workspace, 0x5000);
    const std::vector<Seen> seen = new_blocks();
    CHECK_EQUAL(seen.size(), 4u);
    check_block(seen[0], Kind::MALLOC, Pool::PTA_WORKSPACE, kCard0, 0x5000, 4096, 4096, 8192);
    check_block(seen[1], Kind::FREE, Pool::PTA_WORKSPACE, kCard0, 0x5000, 4096, 0, 8192);
    check_block(seen[2], Kind::MALLOC, Pool::PTA_WORKSPACE, kCard0, 0x5000, 8192, 8192, 8192);
    check_block(seen[3], Kind::FREE, Pool::PTA_WORKSPACE, kCard0, 0x5000, 8192, 0, 0);
}

CASE(a_pool_block_and_a_workspace_may_share_an_address) {
    void* workspace = mstxDomainCreateA("ptaWorkspace");
    pta_malloc(0, 0x5000, 512, 4096);
    regions(workspace, 0, 0x5000, 64);
    pta_free(0, 0x5000, 4096);
    release(workspace, 0x5000);
    const std::vector<Seen> seen = new_blocks();
    CHECK_EQUAL(seen.size(), 4u);
    check_block(seen[2], Kind::FREE, Pool::PTA, kCard0, 0x5000, 512, 0, 4096);
    check_block(seen[3], Kind::FREE, Pool::PTA_WORKSPACE, kCard0, 0x5000, 64, 0, 0);
}

CASE(mindspore_says_its_total_after_the_block) {
    void* pool = mstxDomainCreateA("mindsporeMemPool");
    regions(pool, 1, 0x7000, 512);
    heap(pool, 1, 0x7000, 4096);
    release(pool, 0x7000);
    heap(pool, 1, 0x7000, 4096);
    const std::vector<Seen> seen = new_blocks();
    CHECK_EQUAL(seen.size(), 2u);
    check_block(seen[0], Kind::MALLOC, Pool::MINDSPORE, kCard1, 0x7000, 512, 512, kUnknown);
    check_block(seen[1], Kind::FREE, Pool::MINDSPORE, kCard1, 0x7000, 512, 0, 4096);
}

CASE(atb_gets_handles_and_gives_them_back) {
    void* atb = mstxDomainCreateA("atb");
    const VirtualRange workspaces[] = {{0, address(0x100000), 1 << 20}, {0, address(0x300000), 1 << 20}};
    const HeapDescription heaps[] = {{0, 0, &workspaces[0]}, {0, 0, &workspaces[1]}};
    void* first = mstxMemHeapRegister(atb, &heaps[0]);
    void* second = mstxMemHeapRegister(atb, &heaps[1]);
    CHECK(first != nullptr);
    CHECK(second != nullptr);
    CHECK(first != second);
    const VirtualRange tensors[] = {
        {0, address(0x100000), 256}, {0, address(0x100100), 512}, {0, address(0x100300), 64}};
    void* handles[3] = {};
    const RegionsRegisterBatch batch = {first, 0, 3, tensors, handles};
    mstxMemRegionsRegister(atb, &batch);
    CHECK(handles[0] != nullptr && handles[1] != nullptr && handles[2] != nullptr);
    CHECK(handles[0] != handles[1] && handles[1] != handles[2] && handles[0] != handles[2]);
    mstxMemHeapUnregister(atb, second);
    const RegionRef refs[] = {{kByHandle, handles[1]}, {kByPointer, address(0x100000)}, {kByHandle, handles[2]}};
    const RegionsUnregisterBatch back = {3, refs};
    mstxMemRegionsUnregister(atb, &back);
    mstxMemHeapUnregister(atb, first);
    regions(atb, 0, 0x100000, 32);
    release(atb, 0x100000);
    const std::vector<Seen> seen = new_blocks();
    CHECK_EQUAL(seen.size(), 8u);
    check_block(seen[0], Kind::MALLOC, Pool::ATB, kCard0, 0x100000, 256, 256, 2 << 20);
    check_block(seen[1], Kind::MALLOC, Pool::ATB, kCard0, 0x100100, 512, 768, 2 << 20);
    check_block(seen[2], Kind::MALLOC, Pool::ATB, kCard0, 0x100300, 64, 832, 2 << 20);
    check_block(seen[3], Kind::FREE, Pool::ATB, kCard0, 0x100100, 512, 320, 1 << 20);
    check_block(seen[4], Kind::FREE, Pool::ATB, kCard0, 0x100000, 256, 64, 1 << 20);
    check_block(seen[5], Kind::FREE, Pool::ATB, kCard0, 0x100300, 64, 0, 1 << 20);
    check_block(seen[6], Kind::MALLOC, Pool::ATB, kCard0, 0x100000, 32, 32, 0);
    // A handle that was given back, and a heap: both mean nothing any more.
    const unsigned long long ignored = memscope_mstx_ignored();
    const RegionsUnregisterBatch again = {1, refs};
    mstxMemRegionsUnregister(atb, &again);
    mstxMemHeapUnregister(atb, first);
    CHECK_EQUAL(memscope_mstx_ignored(), ignored + 2);
    CHECK(new_blocks().empty());
}

CASE(what_makes_no_sense_is_ignored_and_said) {
    void* pool = mstxDomainCreateA("ptaCaching");
    void* user = mstxDomainCreateA("somebody's");
    const unsigned long long ignored = memscope_mstx_ignored();
    int foreign = 0;
    regions(nullptr, 0, 0x1000, 512);
    regions(&foreign, 0, 0x1000, 512);
    regions(static_cast<char*>(pool) + 1, 0, 0x1000, 512);
    regions(user, 0, 0x1000, 512);
    CHECK(is_lost("calls with a handle"));
    mstxMemRegionsRegister(pool, nullptr);
    mstxMemRegionsUnregister(pool, nullptr);
    mstxMemHeapRegister(pool, nullptr);
    const HeapDescription empty = {0, 0, nullptr};
    mstxMemHeapRegister(pool, &empty);
    const RegionsRegisterBatch no_array = {nullptr, 0, 3, nullptr, nullptr};
    mstxMemRegionsRegister(pool, &no_array);
    const VirtualRange range = {0, address(0x1000), 512};
    const RegionsRegisterBatch endless = {nullptr, 0, ~std::size_t{0}, &range, nullptr};
    mstxMemRegionsRegister(pool, &endless);
    CHECK(is_lost("calls without a batch"));
    regions(pool, 0, 0x1000, -512);
    regions(pool, 0, 0x1000, 0);
    regions(pool, 0, 0x1000, INT64_MAX);
    regions(pool, 0, 0, 512);
    regions(pool, 0xFFFFFFFF, 0x1000, 512);
    heap(pool, 0, 0x1000, -1);
    CHECK(is_lost("blocks without an address"));
    release(pool, 0x1000);
    CHECK(is_lost("releases of blocks"));
    CHECK_EQUAL(memscope_mstx_ignored(), ignored + 17);
    const RegionsRegisterBatch nothing = {nullptr, 0, 0, &range, nullptr};
    mstxMemRegionsRegister(pool, &nothing);
    CHECK(new_blocks().empty());
    pta_malloc(0, 0x1000, 512, 4096);
    pta_free(0, 0x1000, 4096);
    const std::vector<Seen> seen = new_blocks();
    CHECK_EQUAL(seen.size(), 2u);
    check_block(seen[1], Kind::FREE, Pool::PTA, kCard0, 0x1000, 512, 0, 4096);
}

CASE(a_block_registered_anew_ends_the_old_one) {
    pta_malloc(0, 0x1000, 512, 4096);
    pta_malloc(1, 0x1000, 1024, 4096);
    pta_free(1, 0x1000, 4096);
    const std::vector<Seen> seen = new_blocks();
    CHECK_EQUAL(seen.size(), 4u);
    check_block(seen[1], Kind::FREE, Pool::PTA, kCard0, 0x1000, 512, 0, 4096);
    check_block(seen[2], Kind::MALLOC, Pool::PTA, kCard1, 0x1000, 1024, 1024, 4096);
    check_block(seen[3], Kind::FREE, Pool::PTA, kCard1, 0x1000, 1024, 0, 4096);
}

CASE(one_text_in_two_domains_is_two_names) {
    new_events();
    for (const char* name : {"data", "model", ""}) {
        void* const domain = mstxDomainCreateA(name);
        mstxDomainMarkA(domain, "begin", nullptr);
        mstxDomainRangeEnd(domain, mstxDomainRangeStartA(domain, "begin", nullptr));
    }
    const std::string endless(10'000, 'm');
    mstxDomainMarkA(mstxDomainCreateA("data"), endless.c_str(), nullptr);
    std::vector<std::string> names;
    for (const Seen& one : new_events())
        if (one.kind == Kind::MARK || one.kind == Kind::RANGE_START) names.push_back(own::text_of(one.record.name));
    const std::vector<std::string> expected = {"data: begin",
                                               "data: begin",
                                               "model: begin",
                                               "model: begin",
                                               "begin",
                                               "begin",
                                               ("data: " + endless).substr(0, kMaxTextBytes)};
    CHECK_EQUAL(names.size(), expected.size());
    for (std::size_t i = 0; i < names.size(); ++i) CHECK_EQUAL(names[i], expected[i]);
}

CASE(domains_are_told_apart_and_bounded) {
    const char* const names[] = {"ptaCaching", "msleaks", "ptaWorkspace", "mindsporeMemPool", "atb", "mine", ""};
    std::vector<void*> handles;
    for (const char* name : names) {
        void* handle = mstxDomainCreateA(name);
        CHECK(handle != nullptr);
        CHECK_EQUAL(mstxDomainCreateA(std::string(name).c_str()), handle);
        mstxDomainDestroy(handle);
        CHECK_EQUAL(mstxDomainCreateA(name), handle);
        for (void* other : handles) CHECK(other != handle);
        handles.push_back(handle);
    }
    CHECK(mstxDomainCreateA(nullptr) != nullptr);
    CHECK(mstxDomainCreateA(std::string(100'000, 'x').c_str()) != nullptr);
    CHECK(!is_lost("more domains"));
    for (int i = 0; i < 200; ++i) CHECK(mstxDomainCreateA(("domain " + std::to_string(i)).c_str()) != nullptr);
    CHECK(is_lost("more domains"));
    CHECK_EQUAL(mstxDomainCreateA("ptaWorkspace"), handles[2]);
}

CASE(marks_carry_text_domain_and_stream) {
    new_events();
    CHECK_EQUAL(aclrtSetDevice(0), 0);
    void* stream = nullptr;
    CHECK_EQUAL(aclrtCreateStream(&stream), 0);
    std::int32_t id = -1;
    CHECK_EQUAL(aclrtStreamGetId(stream, &id), 0);
    const std::string endless(10'000, 'm');
    const char object[64] = "not a stream";  // as the Python module of mstx passes any object
    mstxMarkA("hello", nullptr);
    mstxDomainMarkA(mstxDomainCreateA("mine"), "in a domain", stream);
    mstxMarkA(endless.c_str(), const_cast<char*>(object));
    mstxMarkA("\xff\xfe\x01 no text", nullptr);
    mstxMarkA("", nullptr);
    mstxMarkA(nullptr, nullptr);
    mstxDomainMarkA(nullptr, "in no domain", nullptr);
    CHECK(is_lost("marks and ranges without a text"));
    CHECK(is_lost("marks and ranges with a handle"));
    CHECK_EQUAL(aclrtDestroyStream(stream), 0);
    mstxMarkA("after the stream", stream);
    std::vector<Seen> marks;
    for (const Seen& one : new_events())
        if (one.kind == Kind::MARK) marks.push_back(one);
    CHECK_EQUAL(marks.size(), 6u);
    CHECK_EQUAL(own::text_of(marks[0].record.name), "hello");
    CHECK_EQUAL(marks[0].record.ptr, 0u);
    CHECK_EQUAL(marks[0].record.attr, 0u);
    CHECK_EQUAL(own::text_of(marks[1].record.name), "mine: in a domain");
    CHECK_EQUAL(own::text_of(marks[1].record.attr), "mine");
    CHECK_EQUAL(marks[1].record.ptr, static_cast<u64>(id));
    CHECK_EQUAL(own::text_of(marks[2].record.name), endless.substr(0, kMaxTextBytes));
    CHECK_EQUAL(marks[2].record.ptr, reinterpret_cast<u64>(object));
    CHECK_EQUAL(own::text_of(marks[3].record.name), "\xff\xfe\x01 no text");
    CHECK_EQUAL(own::text_of(marks[4].record.name), "");
    CHECK_EQUAL(marks[5].record.ptr, reinterpret_cast<u64>(stream));
}

CASE(marks_and_ranges_are_of_their_threads_card) {
    new_events();
    CHECK_EQUAL(aclrtSetDevice(1), 0);
    mstxMarkA("on the second", nullptr);
    const std::uint64_t range = mstxRangeStartA("on the second", nullptr);
    std::thread([range] {
        mstxMarkA("on none", nullptr);
        CHECK_EQUAL(aclrtSetDevice(0), 0);
        mstxDomainMarkA(mstxDomainCreateA("mine"), "on the first", nullptr);
        mstxRangeEnd(range);
    }).join();
    CHECK_EQUAL(aclrtSetDevice(0), 0);
    std::vector<i16> devices;
    for (const Seen& one : new_events()) {
        if (one.kind != Kind::MARK && one.kind != Kind::RANGE_START && one.kind != Kind::RANGE_END) continue;
        devices.push_back(one.record.device);
        const auto type = one.record.device == kNoDevice ? DeviceType::NONE : DeviceType::NPU;
        CHECK_EQUAL(static_cast<int>(one.record.device_type), static_cast<int>(type));
    }
    CHECK((devices == std::vector<i16>{kCard1, kCard1, kNoDevice, kCard0, kCard0}));
}

CASE(range_ids_are_unique_also_while_nothing_is_recorded) {
    memscope_stop();
    constexpr int kThreads = 4, kRanges = 500;
    std::vector<std::uint64_t> ids[kThreads];
    std::vector<std::thread> threads;
    for (auto& own_ids : ids)
        threads.emplace_back([&own_ids] {
            for (int i = 0; i < kRanges; ++i) {
                own_ids.push_back(mstxRangeStartA("quiet", nullptr));
                mstxRangeEnd(own_ids.back());
            }
        });
    for (std::thread& thread : threads) thread.join();
    std::map<std::uint64_t, int> seen;
    for (const auto& own_ids : ids)
        for (const std::uint64_t id : own_ids) ++seen[id];
    CHECK_EQUAL(seen.size(), static_cast<std::size_t>(kThreads * kRanges));
    CHECK(seen.begin()->first >= 1);
    CHECK(seen.rbegin()->first <= ~u32{0});
    new_events();
    memscope_start();
    const std::uint64_t id = mstxDomainRangeStartA(mstxDomainCreateA("mine"), "loud", nullptr);
    CHECK_EQUAL(seen.count(id), 0u);
    mstxDomainRangeEnd(mstxDomainCreateA("mine"), id);
    CHECK(mstxRangeStartA(nullptr, nullptr) > id);
    mstxRangeEnd(0);
    mstxRangeEnd(~std::uint64_t{0});
    std::vector<Seen> ranges;
    for (const Seen& one : new_events())
        if (one.kind == Kind::RANGE_START || one.kind == Kind::RANGE_END) ranges.push_back(one);
    CHECK_EQUAL(ranges.size(), 2u);
    CHECK_EQUAL(ranges[0].record.attr, id);
    CHECK_EQUAL(own::text_of(ranges[0].record.name), "mine: loud");
    CHECK_EQUAL(ranges[1].record.attr, id);
}

CASE(a_step_is_ended_by_its_own_id_only) {
    new_events();
    const unsigned before = memscope_current_step();
    const std::uint64_t step = mstxRangeStartA("step start", nullptr);
    CHECK_EQUAL(memscope_current_step(), before + 1);
    const std::uint64_t nested = mstxRangeStartA("forward", nullptr);
    mstxRangeEnd(nested);
    const std::uint64_t other = mstxRangeStartA("step start ", nullptr);  // not that text
    const std::uint64_t elsewhere = mstxDomainRangeStartA(mstxDomainCreateA("mine"), "step start", nullptr);
    mstxMarkA("step start", nullptr);
    mstxRangeEnd(other);
    mstxRangeEnd(elsewhere);
    CHECK_EQUAL(memscope_current_step(), before + 1);
    mstxRangeEnd(step);
    mstxRangeEnd(step);
    const std::uint64_t next = mstxRangeStartA("step start", nullptr);
    CHECK_EQUAL(memscope_current_step(), before + 2);
    mstxRangeEnd(next);
    std::vector<u64> started, ended, steps;
    for (const Seen& one : new_events()) {
        if (one.kind == Kind::RANGE_START && one.record.aux == 1) started.push_back(one.record.attr);
        if (one.kind == Kind::RANGE_END && one.record.aux == 1) ended.push_back(one.record.attr);
        if (one.kind == Kind::STEP) {
            steps.push_back(one.record.attr);
            CHECK_EQUAL(one.record.aux, static_cast<u32>(StepSource::MSTX));
        }
        if (one.kind == Kind::RANGE_START && one.record.attr == step) CHECK_EQUAL(one.record.step, before + 1);
    }
    CHECK((started == std::vector<u64>{step, next}));
    CHECK((ended == std::vector<u64>{step, next}));
    CHECK((steps == std::vector<u64>{before + 1, before + 2}));
}

CASE(threads_of_two_cards_keep_both_accounts) {
    new_events();
    constexpr int kThreads = 4, kBlocks = 2000;
    std::vector<std::thread> threads;
    for (u32 number = 0; number < kThreads; ++number)
        threads.emplace_back([number] {
            for (u64 i = 0; i < kBlocks; ++i) {
                const u64 ptr = (u64{number} + 1) << 32 | (i % 64 + 1) << 12;
                pta_malloc(number % 2, ptr, 512, 1 << 20);
                pta_free(number % 2, ptr, 1 << 20);
            }
        });
    for (std::thread& thread : threads) thread.join();
    std::map<u64, int> alive;
    std::size_t blocks = 0;
    for (const Seen& one : new_blocks()) {
        ++blocks;
        CHECK_EQUAL(one.record.device, (one.record.ptr >> 32) % 2 == 1 ? kCard0 : kCard1);
        alive[one.record.ptr] += one.kind == Kind::MALLOC ? 1 : -1;
        CHECK(alive[one.record.ptr] >= 0 && alive[one.record.ptr] <= 1);
    }
    CHECK_EQUAL(blocks, static_cast<std::size_t>(2 * kThreads * kBlocks));
    pta_malloc(0, 0x1000, 512, 4096);
    pta_malloc(1, 0x2000, 512, 4096);
    for (const Seen& one : new_blocks()) CHECK_EQUAL(one.record.used, 512);
    pta_free(0, 0x1000, 4096);
    pta_free(1, 0x2000, 4096);
}

CASE(a_forked_child_goes_on) {
    std::atomic<bool> done{false};
    std::thread busy([&] {  // so that a lock may be held at the fork
        while (!done.load()) {
            pta_malloc(1, 0x999000, 512, 4096);
            pta_free(1, 0x999000, 4096);
            mstxDomainCreateA("not to be found, since the table is full");
        }
    });
    for (int i = 0; i < 20; ++i) {
        const pid_t child = fork();
        if (child == 0) {
            alarm(20);
            for (u64 block = 1; block < 200; ++block) {
                pta_malloc(0, block << 12, 512, 4096);
                pta_free(0, block << 12, 4096);
            }
            mstxDomainCreateA("in the child");
            _exit(own::own_memory_events().size() == 2 * 199 ? 0 : 1);
        }
        int status = -1;
        CHECK_EQUAL(waitpid(child, &status, 0), child);
        CHECK_EQUAL(status, 0);
    }
    done = true;
    busy.join();
    new_events();
}

// In a process of its own, where nobody has watched yet.
static int missed_blocks() {
    pta_malloc(0, 0x1000, 512, 4096);
    memscope_start();
    pta_malloc(0, 0x2000, 512, 8192);
    pta_free(0, 0x1000, 8192);
    const std::vector<Seen> seen = own::own_memory_events();
    CHECK_EQUAL(seen.size(), 1u);
    check_block(seen[0], Kind::MALLOC, Pool::PTA, kCard0, 0x2000, 512, kUnknown, 8192);
    return 0;
}

CASE(what_came_before_anybody_watched_makes_the_sum_unknown) {
    CHECK_EQUAL(std::system("exec \"$MSTX_TEST\" --missed"), 0);
}

int main(int argc, char** argv) {
    setenv("ASCEND_RT_VISIBLE_DEVICES", "4,6", 1);
    setenv("NPUSIM_DEVICES", "8", 1);
    memscope_set_session(own::session_directory().c_str());
    memscope_install_hooks();
    setenv("MSTX_TEST", argv[0], 1);
    const bool is_missed = argc > 1 && strcmp(argv[1], "--missed") == 0;
    const int failed = is_missed ? missed_blocks() : check::run(argc, argv);
    const std::string clean = "rm -rf " + own::session_directory();
    return std::system(clean.c_str()) != 0 || failed;
}
