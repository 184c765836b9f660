#include "source/current_stream.h"

#include <atomic>

namespace memscope {
namespace {

std::atomic<memscope_stream_function> g_ask{nullptr};
std::atomic<u64> g_used_devices{0};  // bit for each on which there was an allocation; of further ones nobody is told

bool is_card(DeviceType type, i16 device) noexcept {
    return (type == DeviceType::NPU || type == DeviceType::CUDA) && device >= 0 && device < 64;
}

u32 ask(DeviceType type, i16 device) noexcept {
    const auto function = g_ask.load(std::memory_order_acquire);
    long long id = 0;
    return function != nullptr && function(static_cast<short>(type), device, &id) != 0 ? told_stream(id) : kNoStream;
}

}  // namespace

void ask_for_streams(memscope_stream_function function) noexcept { g_ask.store(function, std::memory_order_release); }

u32 stream_of_allocation(DeviceType type, i16 device) noexcept {
    if (!is_card(type, device)) return kNoStream;
    const u64 bit = u64{1} << device;
    if ((g_used_devices.load(std::memory_order_relaxed) & bit) == 0)
        g_used_devices.fetch_or(bit, std::memory_order_relaxed);
    return ask(type, device);
}

u32 stream_of_operator(DeviceType type, i16 device) noexcept {
    if (!is_card(type, device) || (g_used_devices.load(std::memory_order_relaxed) >> device & 1) == 0) return kNoStream;
    return ask(type, device);
}

}  // namespace memscope
