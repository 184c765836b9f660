// Source: the Ascend driver (libascend_hal.so), as events of pool HAL.
//
// The driver offers some functions twice, as halX and halXInner; which one a caller is bound to, and which exist,
// depends on the driver's version. Signatures, the flag word and drv_mem_prop are those of the driver's public
// interface.
#include <climits>

#include "hook/guard.h"
#include "hook/patch.h"
#include "source/driver_memory.h"
#include "source/hccl_memory.h"
#include "source/outermost.h"

namespace memscope {
namespace {

using Status = int;  // drvError_t; 0 is success
constexpr Status kOutOfMemory = 6;

struct MemoryProperties {  // drv_mem_prop
    u32 side;              // 0 host, 1 device, 2 a NUMA node of the host
    u32 device;
    u32 module;
    u32 page;    // 0 normal, 1 huge, 2 giant
    u32 memory;  // 0 HBM, 1 DDR, 2 P2P HBM, 3 P2P DDR, 4 TS DDR
    u64 reserved;
};
static_assert(sizeof(MemoryProperties) == 32);
constexpr u32 kDeviceSide = 1;

// The flag word of halMemAlloc.
constexpr u64 kDeviceMask = 0x3FF;
constexpr u32 kKindShift = 10;
constexpr u64 kKindMask = 0xFull << kKindShift;
constexpr u64 kKindDevice = 1ull << kKindShift;
constexpr u64 kKindHost = 2ull << kKindShift;
constexpr u64 kHbm = 1ull << 14;
constexpr u64 kHugePage = 1ull << 17;
constexpr u64 kPeerToPeer = 1ull << 25;
constexpr u64 kGiantPage = 1ull << 31;
constexpr u32 kModuleShift = 56;

std::atomic<void*> g_alloc, g_alloc_inner, g_free, g_free_inner, g_create, g_create_inner, g_release, g_release_inner,
    g_reserve, g_unreserve, g_map, g_unmap;

__thread int t_depth = 0;

// What halMemAlloc would have been told for the same memory. DDR of the card's scheduler has no bit of its own.
u64 flag_word_of(const MemoryProperties& properties) noexcept {
    u64 word = (properties.device & kDeviceMask) | static_cast<u64>(properties.module & 0xFF) << kModuleShift;
    word |= properties.side == kDeviceSide ? kKindDevice : kKindHost;
    if (properties.memory == 0 || properties.memory == 2) word |= kHbm;
    if (properties.memory == 2 || properties.memory == 3) word |= kPeerToPeer;
    if (properties.page == 1) word |= kHugePage;
    if (properties.page == 2) word |= kGiantPage;
    return word;
}

i64 bytes_of(u64 size) noexcept { return size > LLONG_MAX ? LLONG_MAX : static_cast<i64>(size); }

Block block_of(u64 ptr, u64 size, u64 word, const char* function) noexcept {
    const bool host = (word & kKindMask) == kKindHost;
    Block block;
    block.pool = Pool::HAL;
    block.device_type = host ? DeviceType::CPU : DeviceType::NPU;
    block.device = host ? i16{0} : static_cast<i16>(word & kDeviceMask);
    block.flags = host ? static_cast<u8>(Flag::PINNED) : u8{0};
    block.ptr = ptr;
    block.size = bytes_of(size);
    block.attr = word;
    block.name = function;
    return block;
}

Block handle_of(u64 handle, u64 size, const MemoryProperties* properties, const char* function) noexcept {
    Block block = block_of(handle, size, properties != nullptr ? flag_word_of(*properties) : 0, function);
    block.flags |= static_cast<u8>(Flag::HANDLE);
    // The word has ten bits for the device: the whole number would name another one.
    if (properties == nullptr || (block.device_type == DeviceType::NPU && properties->device > kDeviceMask))
        block.device = kNoDevice;
    return block;
}

Block range_of(u64 ptr, u64 size, const char* function) noexcept {
    Block block = block_of(ptr, size, 0, function);
    block.device = kNoDevice;
    return block;
}

// --- blocks ----------------------------------------------------------------------------------------------------

Status allocate(const std::atomic<void*>& original, void** out, u64 size, u64 word) noexcept {
    const Outermost call(t_depth);
    const Status status =
        original_of<Status (*)(void**, unsigned long long, unsigned long long)>(original)(out, size, word);
    if (!call || !is_watching() || (status != 0 && status != kOutOfMemory)) return status;
    const Guard guard;
    if (!guard) return status;
    if (status == kOutOfMemory) {
        request_failed(block_of(0, size, word, "halMemAlloc"), kOutOfMemory);
    } else if (out != nullptr && *out != nullptr) {
        const u64 ptr = reinterpret_cast<u64>(*out);
        driver_gave(Named::BLOCK, block_of(ptr, size, word, "halMemAlloc"));
        if (word >> kModuleShift == kHcclModule) t_hccl_call.took(ptr);
    }
    return status;
}

// Tells first, because afterwards the address may be somebody else's, then calls, and takes back what it told when the
// driver refuses.
template <typename Call>
Status release(Named what, const void* ptr, const char* function, const Call& call_original) noexcept {
    const Outermost call(t_depth);
    LiveBlock known;
    bool told = false;
    if (call && is_watching() && ptr != nullptr) {
        const Guard guard;
        told = guard && driver_takes_back(what, reinterpret_cast<u64>(ptr), function, known);
    }
    const Status status = call_original();
    if (status != 0 && told) {
        const Guard guard;
        driver_refused(known);
    }
    return status;
}

Status free_block(const std::atomic<void*>& original, void* ptr) noexcept {
    if (t_hccl_call.is_open) t_hccl_call.gives_back(reinterpret_cast<u64>(ptr));
    return release(Named::BLOCK, ptr, "halMemFree", [&] { return original_of<Status (*)(void*)>(original)(ptr); });
}

Status mem_alloc(void** out, unsigned long long size, unsigned long long word) noexcept {
    return allocate(g_alloc, out, size, word);
}
Status mem_alloc_inner(void** out, unsigned long long size, unsigned long long word) noexcept {
    return allocate(g_alloc_inner, out, size, word);
}
Status mem_free(void* ptr) noexcept { return free_block(g_free, ptr); }
Status mem_free_inner(void* ptr) noexcept { return free_block(g_free_inner, ptr); }

// --- physical memory by handle, and the addresses that lead to it ------------------------------------------------

Status create(const std::atomic<void*>& original, void** handle, std::size_t size, const MemoryProperties* properties,
              u64 flag) noexcept {
    const Outermost call(t_depth);
    const Status status = original_of<Status (*)(void**, std::size_t, const MemoryProperties*, u64)>(original)(
        handle, size, properties, flag);
    if (!call || !is_watching() || (status != 0 && status != kOutOfMemory)) return status;
    const Guard guard;
    if (!guard) return status;
    if (status == kOutOfMemory) {
        request_failed(handle_of(0, size, properties, "halMemCreate"), kOutOfMemory);
    } else if (handle != nullptr && *handle != nullptr) {
        driver_gave(Named::HANDLE, handle_of(reinterpret_cast<u64>(*handle), size, properties, "halMemCreate"));
    }
    return status;
}

Status release_handle(const std::atomic<void*>& original, void* handle) noexcept {
    return release(Named::HANDLE, handle, "halMemRelease",
                   [&] { return original_of<Status (*)(void*)>(original)(handle); });
}

Status mem_create(void** handle, std::size_t size, const MemoryProperties* properties, u64 flag) noexcept {
    return create(g_create, handle, size, properties, flag);
}
Status mem_create_inner(void** handle, std::size_t size, const MemoryProperties* properties, u64 flag) noexcept {
    return create(g_create_inner, handle, size, properties, flag);
}
Status mem_release(void* handle) noexcept { return release_handle(g_release, handle); }
Status mem_release_inner(void* handle) noexcept { return release_handle(g_release_inner, handle); }

Status address_reserve(void** out, std::size_t size, std::size_t alignment, void* wish, u64 flag) noexcept {
    const Outermost call(t_depth);
    const Status status = original_of<Status (*)(void**, std::size_t, std::size_t, void*, u64)>(g_reserve)(
        out, size, alignment, wish, flag);
    if (!call || !is_watching() || status != 0 || out == nullptr || *out == nullptr) return status;
    const Guard guard;
    if (guard) driver_gave(Named::RESERVATION, range_of(reinterpret_cast<u64>(*out), size, "halMemAddressReserve"));
    return status;
}

Status address_free(void* ptr) noexcept {
    return release(Named::RESERVATION, ptr, "halMemAddressFree",
                   [&] { return original_of<Status (*)(void*)>(g_unreserve)(ptr); });
}

Status map(void* ptr, std::size_t size, std::size_t offset, void* handle, u64 flag) noexcept {
    const Outermost call(t_depth);
    const Status status =
        original_of<Status (*)(void*, std::size_t, std::size_t, void*, u64)>(g_map)(ptr, size, offset, handle, flag);
    if (!call || !is_watching() || status != 0 || ptr == nullptr) return status;
    const Guard guard;
    if (!guard) return status;
    Block range = range_of(reinterpret_cast<u64>(ptr), size, "halMemMap");
    range.attr = reinterpret_cast<u64>(handle);
    LiveBlock memory;
    if (driver_has(Named::HANDLE, range.attr, memory)) {
        range.device_type = static_cast<DeviceType>(memory.device_type);
        range.device = memory.device;
    }
    driver_gave(Named::MAPPING, range);
    return status;
}

Status unmap(void* ptr) noexcept {
    return release(Named::MAPPING, ptr, "halMemUnmap", [&] { return original_of<Status (*)(void*)>(g_unmap)(ptr); });
}

const Hook kHooks[] = {
    {"halMemAlloc", reinterpret_cast<void*>(mem_alloc), &g_alloc},
    {"halMemAllocInner", reinterpret_cast<void*>(mem_alloc_inner), &g_alloc_inner},
    {"halMemFree", reinterpret_cast<void*>(mem_free), &g_free},
    {"halMemFreeInner", reinterpret_cast<void*>(mem_free_inner), &g_free_inner},
    {"halMemCreate", reinterpret_cast<void*>(mem_create), &g_create},
    {"halMemCreateInner", reinterpret_cast<void*>(mem_create_inner), &g_create_inner},
    {"halMemRelease", reinterpret_cast<void*>(mem_release), &g_release},
    {"halMemReleaseInner", reinterpret_cast<void*>(mem_release_inner), &g_release_inner},
    {"halMemAddressReserve", reinterpret_cast<void*>(address_reserve), &g_reserve},
    {"halMemAddressFree", reinterpret_cast<void*>(address_free), &g_unreserve},
    {"halMemMap", reinterpret_cast<void*>(map), &g_map},
    {"halMemUnmap", reinterpret_cast<void*>(unmap), &g_unmap},
};

}  // namespace

MEMSCOPE_SOURCE("hal", "CANN", "memory of the Ascend driver", kHooks);

}  // namespace memscope
