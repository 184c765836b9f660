// What is wanted: devices (option --device) and sorts of events (--events, --level). One load and one mask per event.
#pragma once

#include <atomic>

#include "record/record.h"

namespace memscope {

// A bit per device index of each type; indices above 31 are recorded with whole types only.
struct Selection {
    std::atomic<u32> cpu{1};
    std::atomic<u32> npu{~0u};
    std::atomic<u32> cuda{~0u};
    std::atomic<u32> is_auto{1};
};
extern Selection g_selection;

// Sorts of events that can be switched off. Memory events are always wanted: everything else hangs on them.
enum class Sort : u32 { OPERATORS = 1, KERNELS = 2, ACCESSES = 4 };
extern std::atomic<u32> g_sorts;

inline bool is_wanted(Sort sort) noexcept {
    return (g_sorts.load(std::memory_order_relaxed) & static_cast<u32>(sort)) != 0;
}

// True when events of this device are to be recorded. Under `auto` the first event of an accelerator ends the
// recording of CPU tensors: in a process that drives a card they are staging, and not asked for.
inline bool is_selected(DeviceType type, i16 device) noexcept {
    if (type == DeviceType::CPU) return g_selection.cpu.load(std::memory_order_relaxed) != 0;
    if (g_selection.is_auto.load(std::memory_order_relaxed) != 0) {
        if (g_selection.cpu.load(std::memory_order_relaxed) != 0) g_selection.cpu.store(0, std::memory_order_relaxed);
        return true;
    }
    const u32 mask = (type == DeviceType::NPU ? g_selection.npu : g_selection.cuda).load(std::memory_order_relaxed);
    return device >= 0 && device < 32 ? (mask >> device & 1) != 0 : mask == ~0u;
}

}  // namespace memscope

// `list`: auto, cpu, npu, npu:N, cuda, cuda:N, separated by commas. Unknown words are ignored: the option was
// checked before it came here.
extern "C" void memscope_set_devices(const char* list);

// Sums of memscope::Sort.
extern "C" void memscope_set_sorts(unsigned sorts);
