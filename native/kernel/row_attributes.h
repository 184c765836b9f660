// What the Attr of a row of upstream's says, by key.
//
// In: `{k:v,k:v}` of csv or the JSON text of a db. A comma belongs to the value unless a key follows: letters, digits
// and underscores up to a colon. Out: the values, as views into the text, without blanks and quotes around them. Of a
// key that comes twice the first counts.
#pragma once

#include <array>
#include <string_view>

#include "record/record.h"

namespace memscope::kernel {

// name, key. Those of most rows first.
#define MEMSCOPE_ROW_ATTRIBUTES(X)     \
    X(ALLOCATION_ID, "allocation_id")  \
    X(ADDR, "addr")                    \
    X(SIZE, "size")                    \
    X(USED, "used")                    \
    X(TOTAL, "total")                  \
    X(OWNER, "owner")                  \
    X(SHADOW, "shadow")                \
    X(PINNED, "pinned")                \
    X(TYPE, "type")                    \
    X(DTYPE, "dtype")                  \
    X(SHAPE, "shape")                  \
    X(INEFFICIENT, "inefficient_type") \
    X(MID, "MID")                      \
    X(ALLOC_TYPE, "alloc_type")        \
    X(PAGE_TYPE, "page_type")          \
    X(PATH, "path")                    \
    X(STREAM_ID, "streamId")           \
    X(TASK_ID, "taskId")               \
    X(ALLOCATED, "allocated")          \
    X(RESERVED, "reserved")            \
    X(MAX_ALLOCATED, "max_allocated")  \
    X(MAX_RESERVED, "max_reserved")    \
    X(FREE, "free")                    \
    X(FUNC, "func")                    \
    X(REQ_SIZE, "req_size")            \
    X(FLAG, "flag")

enum class RowAttribute : u8 {
#define X(name, key) name,
    MEMSCOPE_ROW_ATTRIBUTES(X)
#undef X
        OTHER
};

class RowAttributes {
public:
    // The text must hold as long as the values are asked for.
    void read(std::string_view text) noexcept;

    bool has(RowAttribute which) const noexcept { return (found_ >> static_cast<u8>(which) & 1) != 0; }
    // Empty where it is not told.
    std::string_view operator[](RowAttribute which) const noexcept {
        return has(which) ? values_[static_cast<std::size_t>(which)] : std::string_view();
    }
    i64 number_or(RowAttribute which, i64 otherwise) const noexcept;

private:
    u64 found_ = 0;
    std::array<std::string_view, static_cast<std::size_t>(RowAttribute::OTHER)> values_{};
};

}  // namespace memscope::kernel
