// Physical memory (handles) and address ranges apart from each other, as expandable segments use them: reserve a
// range, create memory, map it into the range. A range that has no mapping may not be touched. Memory lives while its
// creator has not released it or while it is mapped anywhere.
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "ascend_hal/card_state.h"
#include "ascend_hal/driver_state.h"
#include "calls.h"

struct drv_mem_handle {
    int file;
    uint64_t size;
    drv_mem_prop prop;
    uint32_t mappings;
    bool released;
    uint64_t owner;
};

namespace {

constexpr int kUnmapped = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

// Handles that were created and not released: anything else is refused, as the driver does.
std::map<drv_mem_handle*, bool>& handles() {
    static auto* const all = new std::map<drv_mem_handle*, bool>;
    return *all;
}

int arena_of(const drv_mem_prop& prop) { return prop.side == 1 ? static_cast<int>(prop.devid) : kHostArena; }

void drop_if_unused(DriverState& state, drv_mem_handle* handle) {
    if (!handle->released || handle->mappings != 0) return;
    if (handle->owner == state.generation) card_give(arena_of(handle->prop), {handle->size, handle->size});
    close(handle->file);
    delete handle;
}

// The range that holds [address, address + size), or its end.
std::map<uint64_t, uint64_t>::const_iterator range_around(const DriverState& state, uint64_t address, uint64_t size) {
    auto range = state.ranges.upper_bound(address);
    if (range == state.ranges.begin()) return state.ranges.end();
    --range;
    return address - range->first + size <= range->second ? range : state.ranges.end();
}

bool overlaps_mapping(const DriverState& state, uint64_t address, uint64_t size) {
    const auto next = state.mappings.lower_bound(address);
    if (next != state.mappings.end() && next->first < address + size) return true;
    if (next == state.mappings.begin()) return false;
    const auto before = std::prev(next);
    return before->first + before->second.size > address;
}

}  // namespace

drvError_t halMemCreateInner(drv_mem_handle** handle, size_t size, const drv_mem_prop* prop, uint64_t) {
    DriverState& state = driver();
    if (handle == nullptr || size == 0 || prop == nullptr) return DRV_INVALID_VALUE;
    if (prop->side == 1 && prop->devid >= state.devices) return DRV_INVALID_DEVICE;
    const std::lock_guard<std::mutex> hold(state.lock);
    if ((prop->side == 1 && !allowed_by_knob(size)) || !card_take(arena_of(*prop), {size, size})) {
        npusim_trace("halMemCreate size=%zu -> OUT OF MEMORY", size);
        return DRV_OOM;
    }
    const int file = static_cast<int>(syscall(SYS_memfd_create, "npusim", 1 /* close on exec */));
    if (file < 0 || ftruncate(file, static_cast<off_t>(size)) != 0) {
        if (file >= 0) close(file);
        card_give(arena_of(*prop), {size, size});
        return DRV_OOM;
    }
    *handle = new drv_mem_handle{file, size, *prop, 0, false, state.generation};
    handles()[*handle] = true;
    npusim_trace("halMemCreate size=%zu dev=%u -> %p", size, prop->devid, static_cast<void*>(*handle));
    return DRV_OK;
}

drvError_t halMemReleaseInner(drv_mem_handle* handle) {
    DriverState& state = driver();
    const std::lock_guard<std::mutex> hold(state.lock);
    if (handles().erase(handle) == 0) return DRV_INVALID_HANDLE;
    npusim_trace("halMemRelease %p size=%llu", static_cast<void*>(handle),
                 static_cast<unsigned long long>(handle->size));
    handle->released = true;
    drop_if_unused(state, handle);
    return DRV_OK;
}

drvError_t halMemCreate(drv_mem_handle** handle, size_t size, const drv_mem_prop* prop, uint64_t flag) {
    SIM_CALL(DRV_OOM);
    return halMemCreateInner(handle, size, prop, flag);
}

drvError_t halMemRelease(drv_mem_handle* handle) {
    SIM_CALL(DRV_INVALID_HANDLE);
    return halMemReleaseInner(handle);
}

drvError_t halMemAddressReserve(void** address, size_t size, size_t, void* wanted, uint64_t) {
    SIM_CALL(DRV_OOM);
    if (address == nullptr || size == 0) return DRV_INVALID_VALUE;
    DriverState& state = driver();
    const std::lock_guard<std::mutex> hold(state.lock);
    void* const place = wanted != nullptr ? wanted : reinterpret_cast<void*>(state.reserved_end);
    void* const range = mmap(place, size, PROT_NONE, kUnmapped | MAP_FIXED_NOREPLACE, -1, 0);
    if (range == MAP_FAILED) return DRV_OOM;
    if (wanted == nullptr) state.reserved_end += (size + kGiB - 1) / kGiB * kGiB;
    state.ranges[reinterpret_cast<uint64_t>(range)] = size;
    *address = range;
    npusim_trace("halMemAddressReserve size=%zu -> %p", size, range);
    return DRV_OK;
}

drvError_t halMemAddressFree(void* address) {
    SIM_CALL(DRV_INVALID_VALUE);
    DriverState& state = driver();
    const std::lock_guard<std::mutex> hold(state.lock);
    const auto range = state.ranges.find(reinterpret_cast<uint64_t>(address));
    if (range == state.ranges.end()) return DRV_INVALID_VALUE;
    if (overlaps_mapping(state, range->first, range->second)) return DRV_BUSY;
    munmap(address, range->second);
    state.ranges.erase(range);
    npusim_trace("halMemAddressFree %p", address);
    return DRV_OK;
}

drvError_t halMemMap(void* address, size_t size, size_t offset, drv_mem_handle* handle, uint64_t) {
    SIM_CALL(DRV_INVALID_VALUE);
    DriverState& state = driver();
    const uint64_t start = reinterpret_cast<uint64_t>(address);
    const std::lock_guard<std::mutex> hold(state.lock);
    if (handles().count(handle) == 0) return DRV_INVALID_HANDLE;
    if (size == 0 || offset > handle->size || size > handle->size - offset) return DRV_INVALID_VALUE;
    if (range_around(state, start, size) == state.ranges.end()) return DRV_INVALID_VALUE;
    if (overlaps_mapping(state, start, size)) return DRV_REPEATED;
    constexpr int kAccess = PROT_READ | PROT_WRITE;
    if (mmap(address, size, kAccess, MAP_SHARED | MAP_FIXED, handle->file, static_cast<off_t>(offset)) == MAP_FAILED)
        return DRV_INVALID_VALUE;
    state.mappings[start] = Mapping{size, handle};
    ++handle->mappings;
    npusim_trace("halMemMap %p size=%zu handle=%p", address, size, static_cast<void*>(handle));
    return DRV_OK;
}

drvError_t halMemUnmap(void* address) {
    SIM_CALL(DRV_INVALID_VALUE);
    DriverState& state = driver();
    const std::lock_guard<std::mutex> hold(state.lock);
    const auto mapping = state.mappings.find(reinterpret_cast<uint64_t>(address));
    if (mapping == state.mappings.end()) return DRV_INVALID_VALUE;
    mmap(address, mapping->second.size, PROT_NONE, kUnmapped | MAP_FIXED, -1, 0);
    drv_mem_handle* const handle = mapping->second.handle;
    state.mappings.erase(mapping);
    --handle->mappings;
    drop_if_unused(state, handle);
    npusim_trace("halMemUnmap %p", address);
    return DRV_OK;
}

int npusim_ptr_info(const void* pointer, uint32_t* device, uint64_t* size, uint64_t* flag) {
    DriverState& state = driver();
    const uint64_t address = reinterpret_cast<uint64_t>(pointer);
    const std::lock_guard<std::mutex> hold(state.lock);
    auto block = state.blocks.upper_bound(address);
    if (block != state.blocks.begin() && address - (--block)->first < block->second.mapped) {
        *device = static_cast<uint32_t>(block->second.arena == kHostArena ? 0 : block->second.arena);
        *size = block->second.size;
        *flag = block->second.flag;
        return 1;
    }
    auto mapping = state.mappings.upper_bound(address);
    if (mapping != state.mappings.begin() && address - (--mapping)->first < mapping->second.size) {
        const drv_mem_prop& prop = mapping->second.handle->prop;
        *device = prop.devid;
        *size = mapping->second.size;
        *flag = (prop.side == 1 ? uint64_t{MEMF_DEV} | MEMF_HBM : uint64_t{MEMF_HOST}) |
                (prop.pg_type == 1 ? uint64_t{MEMF_HUGE} : 0);
        return 1;
    }
    return 0;
}
