// The events of one ring as columns, as the folds read them. The bytes come from messages and files, so they need not
// be aligned.
#pragma once

#include <cstddef>
#include <cstring>

#include "record/record.h"

namespace memscope::kernel {

// Columns of a batch that must be there; those in the second list may be missing, and are 0 then: without `aux` no
// range ends a step, without `attr` the driver's flag words are not known. type, name
#define MEMSCOPE_FOLD_COLUMNS(X) \
    X(u8, kind)                  \
    X(u64, ts)                   \
    X(u64, ptr)                  \
    X(i64, size)                 \
    X(i64, total)                \
    X(u64, stack_py)             \
    X(u64, stack_c)              \
    X(u32, tid)                  \
    X(u32, step)                 \
    X(i16, device)               \
    X(u8, device_type)           \
    X(u8, pool)                  \
    X(u8, flags)
#define MEMSCOPE_FOLD_MORE_COLUMNS(X) \
    X(i64, used)                      \
    X(u64, name)                      \
    X(u64, attr)                      \
    X(u32, aux)

template <typename T>
class Column {
public:
    Column() = default;
    // width: bytes from one value to the next, 0 where one holds for all rows.
    explicit Column(const void* bytes, std::size_t width = sizeof(T)) noexcept
        : bytes_(static_cast<const unsigned char*>(bytes)), width_(width) {}
    T operator[](std::size_t row) const noexcept {
        T value;
        std::memcpy(&value, bytes_ + row * width_, sizeof(T));
        return value;
    }
    bool is_there() const noexcept { return bytes_ != kZero; }

private:
    static constexpr unsigned char kZero[sizeof(T)] = {};

    const unsigned char* bytes_ = kZero;  // without a column
    std::size_t width_ = 0;
};

struct EventColumns {
    std::size_t n = 0;
#define X(type, name) Column<type> name;
    MEMSCOPE_FOLD_COLUMNS(X)
    MEMSCOPE_FOLD_MORE_COLUMNS(X)
#undef X
};

// Larger than the address space of any process we watch: a size beyond is damage, not a block.
inline constexpr i64 kMaxBlockBytes = i64{1} << 47;

inline bool has(u8 flags, Flag flag) noexcept { return (flags & static_cast<u8>(flag)) != 0; }

}  // namespace memscope::kernel
