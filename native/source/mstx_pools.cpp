#include "source/mstx_pools.h"

#include <atomic>

#include "hook/blocks.h"
#include "hook/devices.h"
#include "hook/fork.h"
#include "hook/guard.h"
#include "hook/live_table.h"
#include "source/current_stream.h"

namespace memscope::mstx {
namespace {

constexpr u32 kMostDevices = 64;
constexpr u32 kPoolSlots = static_cast<u32>(Pool::ATB) + 1;
constexpr i64 kMostBytes = i64{1} << 48;  // of one block or pool
constexpr std::size_t kMostRegions = 1u << 16;

// One for each pool and device, so that cards do not share a cache line.
struct alignas(64) Account {
    std::atomic<i64> used;
    std::atomic<i64> total_and_one;  // 0: the pool has not said what it reserves
};
Account g_accounts[kPoolSlots][kMostDevices];

LiveTable g_regions;  // key: pool and address; attr: handle, or 0
LiveTable g_handles;  // key: handle of a region; ptr
LiveTable g_heaps;    // key: handle of a heap
std::atomic<u64> g_next_handle{1};
std::atomic<bool> g_missed{false};  // blocks came and went unseen, so `used` is not known

enum class Fault : u32 { FOREIGN_DOMAIN, BAD_BATCH, BAD_RANGE, UNKNOWN_REGION, COUNT };
constexpr const char* kFaultTexts[] = {
    "calls with a handle that is no memory pool's",
    "calls without a batch, or with one of absurd length",
    "blocks without an address, or of an absurd size or device",
    "releases of blocks that were never registered",
};
std::atomic<u64> g_faults[static_cast<u32>(Fault::COUNT)];

void note(Fault fault) noexcept {
    const auto which = static_cast<u32>(fault);
    if (g_faults[which].fetch_add(1, std::memory_order_relaxed) == 0) report_lost("mstx", kFaultTexts[which]);
}

// No address reaches the highest byte; the table mixes its keys itself.
u64 key_of(Pool pool, u64 ptr) noexcept { return ptr ^ static_cast<u64>(pool) << 56; }

// False when nothing is to be done: nobody watches, or this is no pool.
bool is_pool_call(const Domain* domain) noexcept {
    if (!is_watching()) {
        if (!g_missed.load(std::memory_order_relaxed)) g_missed.store(true, std::memory_order_relaxed);
        return false;
    }
    if (domain != nullptr && domain->pool != Pool::NONE) return true;
    note(Fault::FOREIGN_DOMAIN);
    return false;
}

Account* account_of(Pool pool, i16 device) noexcept {
    if (device < 0 || static_cast<u32>(device) >= kMostDevices) return nullptr;
    return &g_accounts[static_cast<u32>(pool)][device];
}

i64 total_bytes(const Account* account) noexcept {
    return account == nullptr ? kUnknown : account->total_and_one.load(std::memory_order_relaxed) - 1;
}

bool is_sound(const VirtualRange& range, i64 least) noexcept {
    return range.ptr != nullptr && range.size >= least && range.size <= kMostBytes && range.device < kMostDevices;
}

// Adds to what the pool has handed out; the sum, or kUnknown.
i64 add_used(Account* account, i64 bytes) noexcept {
    if (account == nullptr) return kUnknown;
    const i64 sum = account->used.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    return g_missed.load(std::memory_order_relaxed) ? kUnknown : sum;
}

Block block_of(const LiveBlock& region, i64 change) noexcept {
    Block block;
    block.pool = static_cast<Pool>(region.pool);
    block.device_type = DeviceType::NPU;
    block.device = region.device;
    block.ptr = region.ptr;
    block.size = region.size;
    Account* account = account_of(block.pool, region.device);
    block.used = add_used(account, change);
    block.total = total_bytes(account);
    return block;
}

// The accounts are kept whether or not this thread is inside something of ours: they must not lose a block.
void end_region(const LiveBlock& region) noexcept {
    const Block block = block_of(region, -region.size);
    if (region.attr != 0) {
        LiveBlock handle;
        g_handles.take(region.attr, handle);
    }
    const Guard guard;
    if (guard) block_freed(block);
}

// device: as the process numbers it.
void begin_region(const LiveBlock& region, i16 device) noexcept {
    Block block = block_of(region, region.size);
    const Guard guard;
    if (!guard) return;
    if (block.pool == Pool::PTA) block.stream = stream_of_allocation(DeviceType::NPU, device);
    block_allocated(block);
}

void register_region(Pool pool, const VirtualRange& range, u64 handle) noexcept {
    LiveBlock region = {};
    region.ptr = reinterpret_cast<u64>(range.ptr);
    region.key = key_of(pool, region.ptr);
    region.size = range.size;
    region.attr = handle;
    region.device = physical_device(static_cast<i16>(range.device));
    region.pool = static_cast<u8>(pool);
    LiveBlock known;
    if (!g_regions.insert(region, &known)) {
        g_missed.store(true, std::memory_order_relaxed);
    } else if (known.key != 0) {
        if (pool == Pool::PTA_WORKSPACE && known.size == region.size && known.device == region.device) return;
        end_region(known);
    }
    if (handle != 0) {
        LiveBlock entry = {};
        entry.key = handle;
        entry.ptr = region.ptr;
        g_handles.insert(entry);
    }
    begin_region(region, static_cast<i16>(range.device));
}

void unregister_region(Pool pool, const RegionRef& ref) noexcept {
    LiveBlock region, handle;
    u64 ptr = reinterpret_cast<u64>(ref.ptr);
    if (pool == Pool::ATB && ref.type == kByHandle) {
        if (!g_handles.find(ptr, handle)) return note(Fault::UNKNOWN_REGION);
        ptr = handle.ptr;
    }
    if (!g_regions.take(key_of(pool, ptr), region)) return note(Fault::UNKNOWN_REGION);
    end_region(region);
}

}  // namespace

void* register_heap(const Domain* domain, const HeapDescription* description) noexcept {
    // Never nullptr: ATB stops telling when it gets that.
    void* const nobody = const_cast<Domain*>(domain);
    if (!is_pool_call(domain)) return nobody;
    if (description == nullptr || description->range == nullptr) {
        note(Fault::BAD_BATCH);
        return nobody;
    }
    const VirtualRange& range = *description->range;
    if (!is_sound(range, 0)) {
        note(Fault::BAD_RANGE);
        return nobody;
    }
    const i16 device = physical_device(static_cast<i16>(range.device));
    Account* account = account_of(domain->pool, device);
    if (domain->pool != Pool::ATB) {
        if (account != nullptr) account->total_and_one.store(range.size + 1, std::memory_order_relaxed);
        return nobody;
    }
    LiveBlock heap = {};
    heap.key = g_next_handle.fetch_add(1, std::memory_order_relaxed);
    heap.size = range.size;
    heap.device = device;
    if (account != nullptr && g_heaps.insert(heap)) {
        i64 none = 0;
        account->total_and_one.compare_exchange_strong(none, 1, std::memory_order_relaxed);
        account->total_and_one.fetch_add(range.size, std::memory_order_relaxed);
    }
    return reinterpret_cast<void*>(heap.key);
}

void unregister_heap(const Domain* domain, void* handle) noexcept {
    if (!is_pool_call(domain) || domain->pool != Pool::ATB) return;
    LiveBlock heap;
    if (!g_heaps.take(reinterpret_cast<u64>(handle), heap)) return note(Fault::UNKNOWN_REGION);
    if (Account* account = account_of(domain->pool, heap.device))
        account->total_and_one.fetch_sub(heap.size, std::memory_order_relaxed);
}

void register_regions(const Domain* domain, const RegionsRegisterBatch* batch) noexcept {
    if (!is_pool_call(domain)) return;
    if (batch == nullptr || batch->regions == nullptr || batch->count > kMostRegions) return note(Fault::BAD_BATCH);
    const bool has_handles = domain->pool == Pool::ATB && batch->garbage_handles_out != nullptr;
    for (std::size_t i = 0; i < batch->count; ++i) {
        const u64 handle = has_handles ? g_next_handle.fetch_add(1, std::memory_order_relaxed) : 0;
        if (has_handles) batch->garbage_handles_out[i] = reinterpret_cast<void*>(handle);
        if (is_sound(batch->regions[i], 1)) {
            register_region(domain->pool, batch->regions[i], handle);
        } else {
            note(Fault::BAD_RANGE);
        }
    }
}

void unregister_regions(const Domain* domain, const RegionsUnregisterBatch* batch) noexcept {
    if (!is_pool_call(domain)) return;
    if (batch == nullptr || batch->refs == nullptr || batch->count > kMostRegions) return note(Fault::BAD_BATCH);
    for (std::size_t i = 0; i < batch->count; ++i) unregister_region(domain->pool, batch->refs[i]);
}

i64 used_bytes(Pool pool, i16 device) noexcept {
    const Account* account = account_of(pool, device);
    if (account == nullptr || g_missed.load(std::memory_order_relaxed)) return kUnknown;
    return account->used.load(std::memory_order_relaxed);
}

namespace {

// The blocks stay known: a card cannot be used in a forked child, but its pool's frees run there at exit.
void begin_anew_in_child() noexcept {
    g_regions.reset_after_fork(false);
    g_handles.reset_after_fork(false);
    g_heaps.reset_after_fork(false);
    for (auto& count : g_faults) count.store(0, std::memory_order_relaxed);
}
MEMSCOPE_AFTER_FORK(begin_anew_in_child);

}  // namespace

}  // namespace memscope::mstx

extern "C" __attribute__((visibility("default"))) unsigned long long memscope_mstx_ignored() {
    unsigned long long sum = 0;
    for (const auto& fault : memscope::mstx::g_faults) sum += fault.load(std::memory_order_relaxed);
    return sum;
}
