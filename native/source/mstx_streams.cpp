#include "source/mstx_streams.h"

#include "hook/fork.h"
#include "hook/guard.h"
#include "hook/live_table.h"
#include "hook/patch.h"

namespace memscope {
namespace {

using Status = int;  // aclError; 0 is success

std::atomic<void*> g_create, g_create_with_config, g_create_v2, g_destroy, g_destroy_force, g_get_id;
LiveTable g_streams;

void created(Status status, void* const* stream) noexcept {
    const auto get_id = original_of<Status (*)(void*, std::int32_t*)>(g_get_id);
    std::int32_t id = 0;
    const Guard guard;
    if (!guard || status != 0 || *stream == nullptr || get_id == nullptr || get_id(*stream, &id) != 0) return;
    LiveBlock known = {};
    known.key = reinterpret_cast<u64>(*stream);
    known.attr = static_cast<u64>(id);
    g_streams.insert(known);
}

void destroying(const void* stream) noexcept {
    LiveBlock known;
    g_streams.take(reinterpret_cast<u64>(stream), known);
}

Status create(void** stream) noexcept {
    const Status status = original_of<Status (*)(void**)>(g_create)(stream);
    created(status, stream);
    return status;
}

Status create_with_config(void** stream, std::uint32_t priority, std::uint32_t flag) noexcept {
    const Status status =
        original_of<Status (*)(void**, std::uint32_t, std::uint32_t)>(g_create_with_config)(stream, priority, flag);
    created(status, stream);
    return status;
}

Status create_v2(void** stream, const void* config) noexcept {
    const Status status = original_of<Status (*)(void**, const void*)>(g_create_v2)(stream, config);
    created(status, stream);
    return status;
}

Status destroy(void* stream) noexcept {
    destroying(stream);
    return original_of<Status (*)(void*)>(g_destroy)(stream);
}

Status destroy_force(void* stream) noexcept {
    destroying(stream);
    return original_of<Status (*)(void*)>(g_destroy_force)(stream);
}

const Hook kHooks[] = {
    {"aclrtCreateStream", reinterpret_cast<void*>(create), &g_create},
    {"aclrtCreateStreamWithConfig", reinterpret_cast<void*>(create_with_config), &g_create_with_config},
    {"aclrtCreateStreamV2", reinterpret_cast<void*>(create_v2), &g_create_v2},
    {"aclrtDestroyStream", reinterpret_cast<void*>(destroy), &g_destroy},
    {"aclrtDestroyStreamForce", reinterpret_cast<void*>(destroy_force), &g_destroy_force},
    {"aclrtStreamGetId", nullptr, &g_get_id},
};

void begin_anew_in_child() noexcept { g_streams.reset_after_fork(false); }
MEMSCOPE_AFTER_FORK(begin_anew_in_child);

}  // namespace

namespace mstx {

u64 stream_id(const void* stream) noexcept {
    LiveBlock known;
    const u64 address = reinterpret_cast<u64>(stream);
    return g_streams.find(address, known) ? known.attr : address;
}

}  // namespace mstx

MEMSCOPE_SOURCE("mstx", "CANN", "pools of torch_npu and MindSpore, marks and ranges", kHooks);

}  // namespace memscope
