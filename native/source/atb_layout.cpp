#include "source/atb_layout.h"

#include <initializer_list>

#include "hook/checked_copy.h"

namespace memscope::atb {
namespace {

constexpr i32 kHighestDtype = 64, kHighestFormat = 64;  // room for values to come

struct Word {
    i32 value;
    const char* text;
};
constexpr Word kDtypes[] = {
    {0, "FLOAT"},        {1, "FLOAT16"},        {2, "INT8"},         {3, "INT32"},        {4, "UINT8"},
    {6, "INT16"},        {7, "UINT16"},         {8, "UINT32"},       {9, "INT64"},        {10, "UINT64"},
    {11, "DOUBLE"},      {12, "BOOL"},          {13, "STRING"},      {16, "COMPLEX64"},   {17, "COMPLEX128"},
    {27, "BF16"},        {29, "INT4"},          {30, "UINT1"},       {33, "COMPLEX32"},   {34, "HIFLOAT8"},
    {35, "FLOAT8_E5M2"}, {36, "FLOAT8_E4M3FN"}, {37, "FLOAT8_E8M0"}, {38, "FLOAT6_E3M2"}, {39, "FLOAT6_E2M3"},
    {40, "FLOAT4_E2M1"}, {41, "FLOAT4_E1M2"},
};
constexpr Word kFormats[] = {
    {0, "NCHW"},
    {1, "NHWC"},
    {2, "ND"},
    {3, "NC1HWC0"},
    {4, "FRACTAL_Z"},
    {12, "NC1HWC0_C04"},
    {16, "HWCN"},
    {27, "NDHWC"},
    {29, "FRACTAL_NZ"},
    {30, "NCDHW"},
    {32, "NDC1HWC0"},
    {33, "FRACTAL_Z_3D"},
    {35, "NC"},
    {47, "NCL"},
    {50, "FRACTAL_NZ_C0_16"},
    {51, "FRACTAL_NZ_C0_32"},
    {52, "FRACTAL_NZ_C0_2"},
    {53, "FRACTAL_NZ_C0_4"},
    {54, "FRACTAL_NZ_C0_8"},
};

template <std::size_t count>
const char* word_of(const Word (&words)[count], i32 value) noexcept {
    for (const Word& word : words)
        if (word.value == value) return word.text;
    return nullptr;
}

bool is_plausible(i32 dtype, i32 format, const i64* dims, u64 dim_count, u64 bytes) noexcept {
    if (dtype < -1 || dtype > kHighestDtype || format < -1 || format > kHighestFormat) return false;
    if (dim_count > kMostDims || bytes > kMostBytes) return false;
    for (u64 i = 0; i < dim_count; ++i)
        if (dims[i] < -1 || static_cast<u64>(dims[i] + 1) > kMostBytes) return false;
    return true;
}

bool are_plausible(const SVector<Tensor>& tensors) noexcept {
    if (!tensors.is_plausible()) return false;
    for (u64 i = 0; i < tensors.size; ++i) {
        Tensor tensor;
        if (!copy_checked(&tensor, tensors.items() + i, sizeof tensor)) return false;
        if (!is_plausible(tensor.dtype, tensor.format, tensor.dims, tensor.dim_count, tensor.bytes)) return false;
    }
    return true;
}

bool are_plausible(const LaunchTensors& tensors) noexcept {
    u64 count = 0;
    if (!copy_checked(&count, tensors.first + (LaunchTensors::kMost + 1) * tensors.stride, sizeof count)) return false;
    if (count > LaunchTensors::kMost) return false;
    alignas(8) char copy[LaunchTensors::kLarge];
    for (u64 i = 0; i < count; ++i) {
        if (!copy_checked(copy, tensors.first + i * tensors.stride, tensors.stride)) return false;
        const LaunchTensors one = {copy, tensors.stride};
        if (!is_plausible(one.dtype(0), one.format(0), one.dims(0), one.dim_count(0), one.bytes(0))) return false;
    }
    return true;
}

}  // namespace

Likeness looks_like_variant_pack(const void* place) noexcept {
    VariantPack pack;
    if (!copy_checked(&pack, place, sizeof pack)) return Likeness::NO;
    if (!are_plausible(pack.in) || !are_plausible(pack.out)) return Likeness::NO;
    // A layout in which anything before them has another size puts these two somewhere else.
    if (!pack.in_can_be_freed.is_plausible() || pack.in_can_be_freed.size != pack.in.size) return Likeness::NO;
    if (!pack.out_must_be_allocated.is_plausible() || pack.out_must_be_allocated.size != pack.out.size)
        return Likeness::NO;
    // A pointer in the place of a size is far above the largest memory.
    for (const u64 bytes : {pack.tiling_bytes, pack.workspace_bytes, pack.intermediate_bytes})
        if (bytes > kMostBytes) return Likeness::NO;
    return pack.in.size + pack.out.size == 0 ? Likeness::EMPTY : Likeness::YES;
}

u64 measure_launch_tensors(const void* in, const void* out) noexcept {
    const u64 distance = reinterpret_cast<u64>(out) - reinterpret_cast<u64>(in);
    for (const u64 stride : {LaunchTensors::kSmall, LaunchTensors::kLarge}) {
        if (distance != (LaunchTensors::kMost + 1) * stride + sizeof(u64)) continue;
        const LaunchTensors ins = {static_cast<const char*>(in), stride},
                            outs = {static_cast<const char*>(out), stride};
        return are_plausible(ins) && are_plausible(outs) ? stride : 0;
    }
    return 0;
}

bool read_string(StringAbi abi, const void* string, Text& text) noexcept {
    text.start = *static_cast<const char* const*>(string);
    const void* const length = abi == StringAbi::CXX11 ? static_cast<const char*>(string) + 8 : text.start - 24;
    text.length = *static_cast<const u64*>(length);
    return text.length <= kMaxTextBytes;
}

const char* dtype_word(i32 dtype) noexcept { return word_of(kDtypes, dtype); }
const char* format_word(i32 format) noexcept { return word_of(kFormats, format); }

}  // namespace memscope::atb
