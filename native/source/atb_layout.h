// What the Ascend Transformer Boost library (ATB) hands to its own functions, and how to look at it without trusting
// it.
//
// Layouts from ATB's public headers (svector.h, types.h, runner_variant_pack.h) and those of its kernel library Mki
// (tensor.h, SVector.h); all of it is for LP64. ATB says nowhere which version it is, so whoever uses a layout first
// asks looks_like_variant_pack() or measure_launch_tensors(): both copy through the kernel, which refuses where a plain
// read would crash.
#pragma once

#include <cstddef>

#include "record/record.h"

namespace memscope::atb {

inline constexpr u64 kMostItems = 256;   // of an SVector
inline constexpr u64 kInlineItems = 64;  // of an SVector that has no heap
inline constexpr u64 kMostDims = 8;      // of a tensor
inline constexpr u64 kMostBytes = 1ull << 40;

template <typename T>
struct SVector {
    u64 capacity;
    u64 size;
    T storage[kInlineItems + 1];
    const T* heap;  // holds the items when it is not null

    const T* items() const noexcept { return heap != nullptr ? heap : storage; }
    bool is_plausible() const noexcept {
        return size <= (heap != nullptr ? kMostItems : kInlineItems) && capacity <= kMostItems;
    }
};

struct Tensor {
    i32 dtype;
    i32 format;
    i64 dims[kMostDims];
    u64 dim_count;
    u64 device_data;
    u64 host_data;
    u64 bytes;
};
static_assert(sizeof(Tensor) == 104);

// Behind intermediate_bytes the versions differ; nothing there is needed.
struct VariantPack {
    SVector<Tensor> in;
    SVector<Tensor> out;
    SVector<bool> in_can_be_freed;        // as many as `in`
    SVector<bool> out_must_be_allocated;  // as many as `out`
    u64 host_tiling;
    u64 tiling;
    u64 tiling_bytes;
    u64 workspace;
    u64 workspace_bytes;
    u64 intermediate;
    u64 intermediate_bytes;
};
static_assert(sizeof(SVector<bool>) == 96 && offsetof(VariantPack, host_tiling) == 13760);

// An Mki tensor: i32 dtype; i32 format; dims: i64[49], u64 count; since 2024 strides (a std::vector) and an offset;
// u64 data; u64 bytes; u64 host data. So what follows the dims is found from the end.
struct LaunchTensors {
    static constexpr u64 kMost = 48;
    static constexpr u64 kDims = 8, kDimCount = kDims + (kMost + 1) * 8;
    static constexpr u64 kSmall = kDimCount + 8 + 24, kLarge = kSmall + 32;  // sizes of a tensor that we know

    const char* first;
    u64 stride;  // bytes of a tensor

    u64 count() const noexcept { return read<u64>(first + (kMost + 1) * stride); }
    template <typename T>
    T field(u64 index, u64 offset) const noexcept {
        return read<T>(first + index * stride + offset);
    }
    i32 dtype(u64 index) const noexcept { return field<i32>(index, 0); }
    i32 format(u64 index) const noexcept { return field<i32>(index, 4); }
    const i64* dims(u64 index) const noexcept { return reinterpret_cast<const i64*>(first + index * stride + kDims); }
    u64 dim_count(u64 index) const noexcept { return field<u64>(index, kDimCount); }
    u64 data(u64 index) const noexcept { return field<u64>(index, stride - 24); }
    u64 bytes(u64 index) const noexcept { return field<u64>(index, stride - 16); }

private:
    template <typename T>
    static T read(const char* place) noexcept {
        T value;
        __builtin_memcpy(&value, place, sizeof value);
        return value;
    }
};

// EMPTY: no tensor is in it, so nothing can be said.
enum class Likeness { NO, EMPTY, YES };
Likeness looks_like_variant_pack(const void* pack) noexcept;

// A LaunchParam keeps its out tensors right behind its in tensors: their distance is the size of a tensor's vector.
// That size, when we know it and every tensor of both is plausible; otherwise 0.
u64 measure_launch_tensors(const void* in, const void* out) noexcept;

// The text of a std::string, which libstdc++ lays out in two ways: a pointer to characters with their number before
// them
// (_GLIBCXX_USE_CXX11_ABI=0) or beside it (1). The mangled name of a function says which, so this is a plain read.
// False when there are more than 4096 characters.
struct Text {
    const char* start;
    u64 length;
};
enum class StringAbi : u32 { OLD = 0, CXX11 = 1 };
bool read_string(StringAbi abi, const void* string, Text& text) noexcept;

// The word behind ACL_ or TENSOR_DTYPE_, and behind ACL_FORMAT_ or TENSOR_FORMAT_ (values of acl_base_rt.h, the same in
// both); nullptr for a value that has none.
const char* dtype_word(i32 dtype) noexcept;
const char* format_word(i32 format) noexcept;

}  // namespace memscope::atb
