// Source: torch_npu's own out-of-memory.
//
// torch_npu 2.13 tells no observer of c10 that its pool could not serve a request; it throws. The exception's
// constructor is what can be seen without Python and without a call back into the allocator: c10::OutOfMemoryError(
// SourceLocation, std::string), called by libtorch_npu through its PLT, after the allocator gave its lock back. The
// text says the request rounded to two decimals ("Tried to allocate 20.00 GiB (NPU 0; ..."): the size of the record is
// that, and the driver's failed request just before it has the exact one. The device is the one in the text.
#include <cstdlib>
#include <cstring>

#include "hook/blocks.h"
#include "hook/devices.h"
#include "hook/guard.h"
#include "hook/patch.h"
#include "source/mstx_pools.h"

namespace memscope {
namespace {

std::atomic<void*> g_constructor;

struct SourceLocation {  // c10::SourceLocation
    const char* function;
    const char* file;
    std::uint32_t line;
};
static_assert(sizeof(SourceLocation) == 24);

struct Text {  // the beginning of std::string as libstdc++'s new ABI lays it out
    const char* bytes;
    std::size_t length;
};

constexpr const char kBeginning[] = "NPU out of memory. ";
constexpr const char kRequest[] = "ried to allocate ";  // the workspace's pool begins it small
constexpr const char kDevice[] = " (NPU ";

// Bytes of "1.50 GiB", or 0. The units are those of c10's format_size.
i64 parsed_size(const char* text, const char** rest) noexcept {
    char* end = nullptr;
    const double number = strtod(text, &end);
    if (end == text || *end != ' ' || !(number >= 0) || number > 1e15) return 0;
    *rest = end;
    const struct {
        const char* name;
        double bytes;
    } units[] = {{"bytes", 1}, {"KiB", 1024.0}, {"MiB", 1048576.0}, {"GiB", 1073741824.0}};
    for (const auto& unit : units)
        if (strncmp(end + 1, unit.name, strlen(unit.name)) == 0) return static_cast<i64>(number * unit.bytes);
    return 0;
}

void report(const char* message) noexcept {
    Block block;
    block.pool = strstr(message, "Workspace") == nullptr ? Pool::PTA : Pool::PTA_WORKSPACE;
    block.device_type = DeviceType::NPU;
    block.name = "c10::OutOfMemoryError";
    const char* rest = message;
    if (const char* request = strstr(message, kRequest)) block.size = parsed_size(request + strlen(kRequest), &rest);
    if (const char* device = strstr(rest, kDevice)) {
        block.device = physical_device(static_cast<i16>(strtol(device + strlen(kDevice), nullptr, 10)));
        block.used = mstx::used_bytes(block.pool, block.device);
    }
    request_failed(block, 0);
}

// Not noexcept: the constructor may throw, and that is the program's.
void out_of_memory(void* self, SourceLocation where, const Text* text) {
    if (is_recording() && text != nullptr && text->bytes != nullptr &&
        strncmp(text->bytes, kBeginning, strlen(kBeginning)) == 0) {
        const Guard guard;
        if (guard) report(text->bytes);
    }
    original_of<void (*)(void*, SourceLocation, const Text*)>(g_constructor)(self, where, text);
}

const Hook kHooks[] = {
    {"_ZN3c1016OutOfMemoryErrorC1ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE",
     reinterpret_cast<void*>(out_of_memory), &g_constructor},
};

}  // namespace

MEMSCOPE_SOURCE("torch_npu", "CANN", "memory that torch_npu's pool could not give", kHooks);

}  // namespace memscope
