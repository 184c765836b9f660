// Blocks of memory: halMemAlloc, halMemFree.
#include <pthread.h>
#include <sys/mman.h>
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include "ascend_hal/card_state.h"
#include "ascend_hal/driver_state.h"
#include "calls.h"
#include "knobs.h"

DriverState& driver() {
    static DriverState* const one = [] {
        auto* fresh = new DriverState;
        constexpr int64_t kMost = NPUSIM_MOST_DEVICES;
        fresh->devices = static_cast<uint32_t>(std::clamp<int64_t>(npusim_knob(Knob::DEVICES), 0, kMost));
        // A child must find the lock free; what it inherits is counted for its parent.
        pthread_atfork([] { driver().lock.lock(); }, [] { driver().lock.unlock(); },
                       [] {
                           card_forget_holder();
                           ++driver().generation;
                           driver().lock.unlock();
                       });
        return fresh;
    }();
    return *one;
}

bool allowed_by_knob(uint64_t bytes) {
    static const char* const text = npusim_knob_text(Knob::OOM_AT);
    static uint64_t count = 0;
    if (*text == 0) return true;
    char* rest = nullptr;
    const uint64_t limit = strtoull(text, &rest, 10);
    if (strcmp(rest, "MB") == 0) return card_own_occupied() + bytes <= limit * kMiB;
    ++count;
    return *rest == '+' ? count < limit : count != limit;
}

namespace {

uint64_t page_size(uint64_t flag) {
    return (flag & MEMF_GIANT) != 0 ? kGiB : (flag & MEMF_HUGE) != 0 ? 2 * kMiB : 4096;
}

uint64_t round_up(uint64_t size, uint64_t unit) { return (size + unit - 1) / unit * unit; }

uint64_t take_address(DriverState& state, int arena, uint64_t mapped, uint64_t alignment) {
    std::vector<uint64_t>& freed = state.freed[{arena, mapped}];
    if (!freed.empty()) {
        const uint64_t address = freed.back();
        freed.pop_back();
        return address;
    }
    const uint64_t start =
        arena == kHostArena ? kHostAddresses : kDeviceAddresses + static_cast<uint64_t>(arena) * kDeviceStride;
    const uint64_t offset = round_up(state.arena_ends[arena], alignment);
    state.arena_ends[arena] = offset + mapped;
    return start + offset;
}

}  // namespace

drvError_t halMemAllocInner(void** address, unsigned long long size, unsigned long long flag) {
    DriverState& state = driver();
    const uint64_t kind = flag & MEMF_VIRT_MASK;
    const uint32_t device = static_cast<uint32_t>(flag & MEMF_DEVID);
    if (address == nullptr || size == 0 || kind > MEMF_VIRT_LAST) return DRV_INVALID_VALUE;
    const bool is_host = kind == MEMF_HOST;
    if (!is_host && device >= state.devices) return DRV_INVALID_DEVICE;
    const uint64_t page = page_size(flag), mapped = round_up(size, page);
    const int arena = is_host ? kHostArena : static_cast<int>(device);
    if (mapped < size) return DRV_OOM;  // overflow

    const std::lock_guard<std::mutex> hold(state.lock);
    if ((!is_host && !allowed_by_knob(mapped)) || !card_take(arena, {size, mapped})) {
        npusim_trace("halMemAlloc size=%llu flag=%#llx -> OUT OF MEMORY", size, flag);
        return DRV_OOM;
    }
    // Backed only when touched: 64 GiB of HBM cost nothing until then.
    constexpr int kHow = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
    const uint64_t place = take_address(state, arena, mapped, page);
    void* const block = mmap(reinterpret_cast<void*>(place), mapped, PROT_READ | PROT_WRITE, kHow, -1, 0);
    if (block == MAP_FAILED) {
        card_give(arena, {size, mapped});
        return DRV_OOM;
    }
    state.blocks[place] = Block{size, mapped, flag, arena, state.generation};
    *address = block;
    npusim_trace("halMemAlloc size=%llu flag=%#llx dev=%u -> %p", size, flag, device, block);
    return DRV_OK;
}

drvError_t halMemFreeInner(void* address) {
    DriverState& state = driver();
    const std::lock_guard<std::mutex> hold(state.lock);
    const auto found = state.blocks.find(reinterpret_cast<uint64_t>(address));
    if (found == state.blocks.end()) return DRV_INVALID_VALUE;
    const Block block = found->second;
    state.blocks.erase(found);
    munmap(address, block.mapped);
    if (block.owner == state.generation) card_give(block.arena, {block.size, block.mapped});
    state.freed[{block.arena, block.mapped}].push_back(reinterpret_cast<uint64_t>(address));
    npusim_trace("halMemFree %p size=%llu", address, static_cast<unsigned long long>(block.size));
    return DRV_OK;
}

drvError_t halMemAlloc(void** address, unsigned long long size, unsigned long long flag) {
    SIM_CALL(DRV_OOM);
    return halMemAllocInner(address, size, flag);
}

drvError_t halMemFree(void* address) {
    SIM_CALL(DRV_INVALID_VALUE);
    return halMemFreeInner(address);
}
