#include "hccl/reduction.h"
#include <cstring>
#include "abi/hccl.h"

namespace {

template <typename T>
T combine(T a, T b, int operation) {
    switch (operation) {
        case HCCL_SUM:
            return static_cast<T>(a + b);
        case HCCL_PROD:
            return static_cast<T>(a * b);
        case HCCL_MAX:
            return a > b ? a : b;
        default:
            return a < b ? a : b;
    }
}

template <typename T>
void reduce_as(void* to, const void* from, uint64_t count, int operation) {
    auto* const result = static_cast<T*>(to);
    const auto* const other = static_cast<const T*>(from);
    for (uint64_t i = 0; i < count; ++i) result[i] = combine<T>(result[i], other[i], operation);
}

float from_bfloat16(uint16_t value) {
    const uint32_t bits = static_cast<uint32_t>(value) << 16;
    float result;
    memcpy(&result, &bits, sizeof result);
    return result;
}

uint16_t to_bfloat16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);  // to the nearest, ties to even
}

void reduce_bfloat16(void* to, const void* from, uint64_t count, int operation) {
    auto* const result = static_cast<uint16_t*>(to);
    const auto* const other = static_cast<const uint16_t*>(from);
    for (uint64_t i = 0; i < count; ++i)
        result[i] = to_bfloat16(combine(from_bfloat16(result[i]), from_bfloat16(other[i]), operation));
}

}  // namespace

size_t element_size(int type) {
    constexpr size_t kSizes[] = {1, 2, 4, 2, 4, 8, 8, 1, 2, 4, 8, 2};
    return type >= 0 && type <= HCCL_BFP16 ? kSizes[type] : 1;
}

void reduce(void* to, const void* from, uint64_t count, int type, int operation) {
    switch (type) {
        case HCCL_INT8:
            return reduce_as<int8_t>(to, from, count, operation);
        case HCCL_INT16:
            return reduce_as<int16_t>(to, from, count, operation);
        case HCCL_INT32:
            return reduce_as<int32_t>(to, from, count, operation);
        case HCCL_FP16:
            return reduce_as<_Float16>(to, from, count, operation);
        case HCCL_FP32:
            return reduce_as<float>(to, from, count, operation);
        case HCCL_INT64:
            return reduce_as<int64_t>(to, from, count, operation);
        case HCCL_UINT64:
            return reduce_as<uint64_t>(to, from, count, operation);
        case HCCL_UINT8:
            return reduce_as<uint8_t>(to, from, count, operation);
        case HCCL_UINT16:
            return reduce_as<uint16_t>(to, from, count, operation);
        case HCCL_UINT32:
            return reduce_as<uint32_t>(to, from, count, operation);
        case HCCL_FP64:
            return reduce_as<double>(to, from, count, operation);
        case HCCL_BFP16:
            return reduce_bfloat16(to, from, count, operation);
        default:
            return;
    }
}
