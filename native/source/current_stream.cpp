// Source: torch's streams. Nothing is hooked: the functions are found by the engine, and asked.
//
// Symbols of libc10_cuda.so and libtorch_npu.so; signatures from c10/cuda/CUDAStream.h of torch 2.x and
// torch_npu/csrc/core/npu/NPUStream.h:
//   * c10::cuda::getCurrentCUDAStream(DeviceIndex), c10_npu::getCurrentNPUStream(DeviceIndex): what the allocators ask
//     themselves for whom they allocate, and operators where they launch. Both classes hold a c10::Stream and nothing
//     else, 16 bytes that a function returns in two registers. They throw for a device that is not there.
#include "source/current_stream.h"

#include "hook/patch.h"
#include "hook/recorder.h"

namespace memscope {
namespace {

// c10::Stream.
struct C10Stream {
    signed char type;  // c10::DeviceType
    signed char index;
    std::int64_t id;
};
static_assert(sizeof(C10Stream) == 16);
constexpr signed char kC10Cuda = 1, kC10PrivateUse1 = 20;

std::atomic<void*> g_of_cuda, g_of_npu;
std::atomic<u64> g_used_devices{0};    // bit for each on which there was an allocation; of further ones nobody is told
std::atomic<bool> g_is_unlike{false};  // what came back was no stream of the device

const Hook kHooks[] = {
    {"_ZN3c104cuda20getCurrentCUDAStreamEa", nullptr, &g_of_cuda},
    {"_ZN7c10_npu19getCurrentNPUStreamEa", nullptr, &g_of_npu},
};

bool is_card(DeviceType type, i16 device) noexcept {
    return (type == DeviceType::NPU || type == DeviceType::CUDA) && device >= 0 && device < 64;
}

u32 ask(DeviceType type, i16 device) noexcept {
    const bool is_npu = type == DeviceType::NPU;
    const auto current = original_of<C10Stream (*)(signed char)>(is_npu ? g_of_npu : g_of_cuda);
    if (current == nullptr || g_is_unlike.load(std::memory_order_relaxed)) return kNoStream;
    const C10Stream stream = current(static_cast<signed char>(device));
    if (stream.type == (is_npu ? kC10PrivateUse1 : kC10Cuda) && stream.index == device) return told_stream(stream.id);
    if (!g_is_unlike.exchange(true, std::memory_order_relaxed))
        report_lost("streams", "torch's current stream is no structure that is known");
    return kNoStream;
}

}  // namespace

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

MEMSCOPE_SOURCE("streams", "torch", "the streams of torch's operators and blocks", kHooks);

}  // namespace memscope
