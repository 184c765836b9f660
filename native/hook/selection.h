// What is wanted: devices (option --device) and sorts of events (--events, --level). One load and one mask per event.
#pragma once

#include <atomic>

#include "hook/settings.h"
#include "record/record.h"

namespace memscope {

// A bit per device index of each type; indices above 31 are recorded with whole types only.
struct Devices {
    std::atomic<u32> cpu{0}, npu{0}, cuda{0};

    // Acquire: who has seen a new selection sees what was stored before it, the earlier one.
    bool has(DeviceType type, i16 device) const noexcept {
        if (type == DeviceType::CPU) return cpu.load(std::memory_order_acquire) != 0;
        const u32 mask = (type == DeviceType::NPU ? npu : cuda).load(std::memory_order_acquire);
        return device >= 0 && device < 32 ? (mask >> device & 1) != 0 : mask == ~0u;
    }
};

struct Selection {
    Devices now{{1}, {~0u}, {~0u}};
    std::atomic<u32> is_auto{1};
    std::atomic<bool> has_narrowed{false};  // when something may have been recorded already
    Devices earlier;                        // all that were selected before that, together
};
extern Selection g_selection;

// Sorts of events that can be switched off. Memory events are always wanted: everything else hangs on them.
enum class Sort : u32 { OPERATORS = 1, KERNELS = 2, ACCESSES = 4, INNER_OPERATORS = 8 };

inline bool is_wanted(Sort sort) noexcept {
    return (g_settings.sorts.load(std::memory_order_relaxed) & static_cast<u32>(sort)) != 0;
}

// True when events of this device are to be recorded. Under `auto` the first event of an accelerator ends the
// recording of CPU tensors: in a process that drives a card they are staging, and not asked for.
inline bool is_selected(DeviceType type, i16 device) noexcept {
    Devices& now = g_selection.now;
    if (type != DeviceType::CPU && g_selection.is_auto.load(std::memory_order_relaxed) != 0) {
        if (now.cpu.load(std::memory_order_relaxed) != 0) now.cpu.store(0, std::memory_order_relaxed);
        return true;
    }
    return now.has(type, device);
}

// Asked about a device for which is_selected() has just said false: true when its events were recorded once.
inline bool was_selected(DeviceType type, i16 device) noexcept {
    return g_selection.has_narrowed.load(std::memory_order_relaxed) && g_selection.earlier.has(type, device);
}

// For settings.cpp. `list`: auto, cpu, npu, npu:N, cuda, cuda:N, separated by commas. Unknown words are ignored: the
// option was checked before it came here.
// Also in the middle of a program: blocks.h says what becomes of those that were recorded under another selection.
void select_devices(const char* list) noexcept;

}  // namespace memscope
