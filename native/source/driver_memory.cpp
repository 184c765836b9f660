#include "source/driver_memory.h"

#include "hook/fork.h"

namespace memscope {
namespace {

LiveTable g_live;
std::atomic<u64> g_unknown_releases{0};

// Live bytes by device number, as wide as the driver's flag word has bits for it, and those on the host. One line of
// the cache each: the threads of different devices do not meet.
constexpr u32 kDevices = 1024;
struct alignas(64) LiveBytes {
    std::atomic<i64> bytes;
};
LiveBytes g_bytes[kDevices + 1];

// Addresses of a process are below 2^60, so different names never meet.
u64 key_of(Named what, u64 ptr) noexcept { return ptr == 0 ? 0 : ptr ^ static_cast<u64>(what) << 60; }

bool is_memory(Named what) noexcept { return what != Named::RESERVATION && what != Named::MAPPING; }

// The live bytes of the device after `change`; unknown when the device is.
i64 change_bytes(u8 device_type, i16 device, i64 change) noexcept {
    const bool host = device_type == static_cast<u8>(DeviceType::CPU);
    if (!host && (device < 0 || static_cast<u32>(device) >= kDevices)) return kUnknown;
    auto& bytes = g_bytes[host ? kDevices : static_cast<u32>(device)].bytes;
    return bytes.fetch_add(change, std::memory_order_relaxed) + change;
}

Block block_of(const LiveBlock& known) noexcept {
    Block block;
    block.pool = static_cast<Pool>(known.pool);
    block.device_type = static_cast<DeviceType>(known.device_type);
    block.device = known.device;
    block.flags = known.flags;
    block.ptr = known.ptr;
    block.size = known.size;
    block.attr = known.attr;
    block.name = known.name;
    return block;
}

Named named(const LiveBlock& known) noexcept { return static_cast<Named>((known.key ^ known.ptr) >> 60); }

Kind begin_of(Named what) noexcept {
    return what == Named::RESERVATION ? Kind::RESERVE : what == Named::MAPPING ? Kind::MAP : Kind::MALLOC;
}

void remember_and_tell(const LiveBlock& known) noexcept {
    const Named what = named(known);
    Block block = block_of(known);
    LiveBlock replaced;
    const bool inserted = g_live.insert(known, &replaced);
    if (!is_memory(what)) return range_began(begin_of(what), block);
    // An address that is handed out again was released where we did not see it. One that the table has no room for will
    // be released without a word, so it does not count as live from the start.
    i64 change = inserted ? known.size : 0;
    if (replaced.key != 0) {
        if (replaced.device == known.device && replaced.device_type == known.device_type)
            change -= replaced.size;
        else
            change_bytes(replaced.device_type, replaced.device, -replaced.size);
    }
    block.used = change_bytes(known.device_type, known.device, change);
    block_allocated(block);
}

// The blocks are the parent's: a child has no use of the card that it had before fork().
void begin_anew_in_child() noexcept {
    g_live.reset_after_fork(true);
    for (LiveBytes& device : g_bytes)
        if (device.bytes.load(std::memory_order_relaxed) != 0) device.bytes.store(0, std::memory_order_relaxed);
}

MEMSCOPE_AFTER_FORK(begin_anew_in_child);

}  // namespace

void driver_gave(Named what, Block block) noexcept {
    LiveBlock known = {};
    known.key = key_of(what, block.ptr);
    known.ptr = block.ptr;
    known.size = block.size;
    known.attr = block.attr;
    known.name = block.name;
    known.device = block.device;
    known.device_type = static_cast<u8>(block.device_type);
    known.pool = static_cast<u8>(block.pool);
    known.flags = block.flags;
    remember_and_tell(known);
}

bool driver_takes_back(Named what, u64 ptr, const char* function, LiveBlock& known) noexcept {
    if (!g_live.take(key_of(what, ptr), known)) {
        g_unknown_releases.fetch_add(1, std::memory_order_relaxed);
        return false;
    }
    Block block = block_of(known);
    block.name = function;
    if (!is_memory(what)) {
        range_ended(begin_of(what), block);
        return true;
    }
    block.used = change_bytes(known.device_type, known.device, -known.size);
    block_freed(block);
    return true;
}

void driver_refused(const LiveBlock& known) noexcept { remember_and_tell(known); }

bool driver_has(Named what, u64 ptr, LiveBlock& known) noexcept { return g_live.find(key_of(what, ptr), known); }

u64 unknown_releases() noexcept { return g_unknown_releases.load(std::memory_order_relaxed); }

}  // namespace memscope
