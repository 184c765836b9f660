// Source: AscendCL: initialisation, page-locked host memory, requests that failed.
//
// aclX of libascendcl forwards to aclXImpl of the implementation library, and components of CANN may be bound to
// either. What these functions allocate the driver hands out, which source hal sees; here only what it cannot see is
// told.
#include <climits>

#include "hook/devices.h"
#include "hook/guard.h"
#include "hook/patch.h"
#include "source/driver_memory.h"
#include "source/launch.h"
#include "source/outermost.h"

namespace memscope {
namespace {

using Status = int;  // aclError; 0 is success
constexpr Status kOutOfMemory = 207001;
constexpr u32 kPinned = 0x10000000;  // flag of aclrtHostRegisterV2
constexpr int kAllMemory = 1;        // aclrtMemAttr ACL_HBM_MEM: of the whole device

std::atomic<void*> g_init, g_init_impl, g_finalize, g_finalize_impl, g_register, g_register_impl, g_unregister,
    g_unregister_impl, g_malloc, g_malloc_impl, g_malloc_align, g_malloc_align_impl, g_malloc_physical,
    g_malloc_physical_impl, g_malloc_host, g_malloc_host_impl, g_get_device, g_get_mem_info;

__thread int t_depth = 0;

void tell_system(SystemEvent what) noexcept {
    if (!is_recording()) return;
    const Guard guard;
    if (!guard || !ensure_ring()) return;
    Event event(Kind::SYSTEM);
    event.record.aux = static_cast<u32>(what);
    emit(event);
}

Block host_block(const void* ptr, u64 size, const char* function) noexcept {
    Block block;
    block.pool = Pool::HAL;
    block.device_type = DeviceType::CPU;
    block.device = 0;
    block.flags = static_cast<u8>(Flag::PINNED);
    block.ptr = reinterpret_cast<u64>(ptr);
    block.size = size > LLONG_MAX ? LLONG_MAX : static_cast<i64>(size);
    block.name = function;
    return block;
}

// The card of the calling thread. AscendCL may be asked in start() and here, where its own call has returned and the
// program itself might ask next; inside the driver's calls nobody knows which locks the runtime holds.
bool ask_card(CardUse& card) noexcept {
    int device = -1;
    const auto get_device = original_of<Status (*)(int*)>(g_get_device);
    if (get_device == nullptr || get_device(&device) != 0) return false;
    card = {physical_device(static_cast<i16>(device)), kUnknown, kUnknown};
    std::size_t available = 0, total = 0;
    const auto get_mem_info = original_of<Status (*)(int, std::size_t*, std::size_t*)>(g_get_mem_info);
    if (get_mem_info != nullptr && get_mem_info(kAllMemory, &available, &total) == 0 && total >= available) {
        card.used = static_cast<i64>(total - available);
        card.total = static_cast<i64>(total);
    }
    return true;
}

__attribute__((constructor)) void offer_card() { g_ask_card.store(ask_card, std::memory_order_release); }

// A request for memory of the thread's current device.
Block device_block(u64 size, const char* function) noexcept {
    Block block = host_block(nullptr, size, function);
    block.device_type = DeviceType::NPU;
    block.device = kNoDevice;
    block.flags = 0;
    if (CardUse card; ask_card(card)) {
        block.device = card.device;
        block.used = card.used;
        block.total = card.total;
    }
    return block;
}

// --- life cycle ------------------------------------------------------------------------------------------------

Status initialise(const std::atomic<void*>& original, const char* config) noexcept {
    const Outermost call(t_depth);
    const Status status = original_of<Status (*)(const char*)>(original)(config);
    if (call && status == 0) tell_system(SystemEvent::ACL_INIT);
    return status;
}

// Blocks that are released later, when the interpreter takes down its last tensors, are told as before.
Status finalise(const std::atomic<void*>& original) noexcept {
    const Outermost call(t_depth);
    if (call) stop_kernel_times();  // while there is a driver to read from
    const Status status = original_of<Status (*)()>(original)();
    if (call && status == 0) tell_system(SystemEvent::ACL_FINI);
    return status;
}

Status init(const char* config) noexcept { return initialise(g_init, config); }
Status init_impl(const char* config) noexcept { return initialise(g_init_impl, config); }
Status finalize() noexcept { return finalise(g_finalize); }
Status finalize_impl() noexcept { return finalise(g_finalize_impl); }

// --- page-locked host memory -----------------------------------------------------------------------------------

Status register_host(const std::atomic<void*>& original, void* ptr, u64 size, u32 flag) noexcept {
    const Outermost call(t_depth);
    const Status status = original_of<Status (*)(void*, u64, u32)>(original)(ptr, size, flag);
    if (!call || status != 0 || (flag & kPinned) == 0 || ptr == nullptr || !is_watching()) return status;
    const Guard guard;
    if (guard) driver_gave(Named::REGISTERED, host_block(ptr, size, "aclrtHostRegisterV2"));
    return status;
}

Status unregister_host(const std::atomic<void*>& original, void* ptr) noexcept {
    const Outermost call(t_depth);
    LiveBlock known;
    bool told = false;
    if (call && ptr != nullptr && is_watching()) {
        const Guard guard;
        told = guard && driver_takes_back(Named::REGISTERED, reinterpret_cast<u64>(ptr), "aclrtHostUnregister", known);
    }
    const Status status = original_of<Status (*)(void*)>(original)(ptr);
    if (status != 0 && told) {
        const Guard guard;
        driver_refused(known);
    }
    return status;
}

Status register_v2(void* ptr, u64 size, u32 flag) noexcept { return register_host(g_register, ptr, size, flag); }
Status register_v2_impl(void* ptr, u64 size, u32 flag) noexcept {
    return register_host(g_register_impl, ptr, size, flag);
}
Status unregister(void* ptr) noexcept { return unregister_host(g_unregister, ptr); }
Status unregister_impl(void* ptr) noexcept { return unregister_host(g_unregister_impl, ptr); }

// --- requests that failed --------------------------------------------------------------------------------------

enum class Where { DEVICE, HOST };

template <typename Call>
Status request(Where where, u64 size, const char* function, const Call& call_original) noexcept {
    const Outermost call(t_depth);
    const Status status = call_original();
    if (!call || status != kOutOfMemory || !is_recording()) return status;
    const Guard guard;
    if (guard)
        request_failed(where == Where::HOST ? host_block(nullptr, size, function) : device_block(size, function),
                       kOutOfMemory);
    return status;
}

Status malloc_with_policy(const std::atomic<void*>& original, const char* function, void** out, std::size_t size,
                          int policy) noexcept {
    return request(Where::DEVICE, size, function,
                   [&] { return original_of<Status (*)(void**, std::size_t, int)>(original)(out, size, policy); });
}

Status malloc_physical_memory(const std::atomic<void*>& original, void** handle, std::size_t size,
                              const void* properties, u64 flags) noexcept {
    return request(Where::DEVICE, size, "aclrtMallocPhysical", [&] {
        return original_of<Status (*)(void**, std::size_t, const void*, u64)>(original)(handle, size, properties,
                                                                                        flags);
    });
}

Status malloc_host_memory(const std::atomic<void*>& original, void** out, std::size_t size) noexcept {
    return request(Where::HOST, size, "aclrtMallocHost",
                   [&] { return original_of<Status (*)(void**, std::size_t)>(original)(out, size); });
}

Status malloc_device(void** out, std::size_t size, int policy) noexcept {
    return malloc_with_policy(g_malloc, "aclrtMalloc", out, size, policy);
}
Status malloc_device_impl(void** out, std::size_t size, int policy) noexcept {
    return malloc_with_policy(g_malloc_impl, "aclrtMalloc", out, size, policy);
}
Status malloc_align(void** out, std::size_t size, int policy) noexcept {
    return malloc_with_policy(g_malloc_align, "aclrtMallocAlign32", out, size, policy);
}
Status malloc_align_impl(void** out, std::size_t size, int policy) noexcept {
    return malloc_with_policy(g_malloc_align_impl, "aclrtMallocAlign32", out, size, policy);
}
Status malloc_physical(void** handle, std::size_t size, const void* properties, u64 flags) noexcept {
    return malloc_physical_memory(g_malloc_physical, handle, size, properties, flags);
}
Status malloc_physical_impl(void** handle, std::size_t size, const void* properties, u64 flags) noexcept {
    return malloc_physical_memory(g_malloc_physical_impl, handle, size, properties, flags);
}
Status malloc_host(void** out, std::size_t size) noexcept { return malloc_host_memory(g_malloc_host, out, size); }
Status malloc_host_impl(void** out, std::size_t size) noexcept {
    return malloc_host_memory(g_malloc_host_impl, out, size);
}

const Hook kHooks[] = {
    {"aclInit", reinterpret_cast<void*>(init), &g_init},
    {"aclInitImpl", reinterpret_cast<void*>(init_impl), &g_init_impl},
    {"aclFinalize", reinterpret_cast<void*>(finalize), &g_finalize},
    {"aclFinalizeImpl", reinterpret_cast<void*>(finalize_impl), &g_finalize_impl},
    {"aclrtHostRegisterV2", reinterpret_cast<void*>(register_v2), &g_register},
    {"aclrtHostRegisterV2Impl", reinterpret_cast<void*>(register_v2_impl), &g_register_impl},
    {"aclrtHostUnregister", reinterpret_cast<void*>(unregister), &g_unregister},
    {"aclrtHostUnregisterImpl", reinterpret_cast<void*>(unregister_impl), &g_unregister_impl},
    {"aclrtMalloc", reinterpret_cast<void*>(malloc_device), &g_malloc},
    {"aclrtMallocImpl", reinterpret_cast<void*>(malloc_device_impl), &g_malloc_impl},
    {"aclrtMallocAlign32", reinterpret_cast<void*>(malloc_align), &g_malloc_align},
    {"aclrtMallocAlign32Impl", reinterpret_cast<void*>(malloc_align_impl), &g_malloc_align_impl},
    {"aclrtMallocPhysical", reinterpret_cast<void*>(malloc_physical), &g_malloc_physical},
    {"aclrtMallocPhysicalImpl", reinterpret_cast<void*>(malloc_physical_impl), &g_malloc_physical_impl},
    {"aclrtMallocHost", reinterpret_cast<void*>(malloc_host), &g_malloc_host},
    {"aclrtMallocHostImpl", reinterpret_cast<void*>(malloc_host_impl), &g_malloc_host_impl},
    {"aclrtGetDevice", nullptr, &g_get_device},
    {"aclrtGetMemInfo", nullptr, &g_get_mem_info},
};

}  // namespace

MEMSCOPE_SOURCE("acl", "CANN", "start and end of ACL, and its errors", kHooks);

}  // namespace memscope
