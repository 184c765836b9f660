// The twelve cells of upstream's memscope_dump rows, as lines of CSV or as cells of a database (docs/formats.md).
//
// In: columns of events of one process, and which rows of them a file shall have. Out: text. A text behind an id (a
// name, a call stack) is asked for once per id and kept, quoted as the cell wants it.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "kernel/text_out.h"
#include "record/record.h"

namespace memscope::kernel {

// What a row is made of. ts: wall clock; id: number of the row in its process; allocation_id: 0 none; pool_live: live
// bytes of the pool in this file; process_used, device_used, device_total: of the newest sample, -1 unknown; owner: of
// a MALLOC, of tables.h, 0 where the event says it all; inefficient: bits of block_patterns.h, also of a MALLOC. OOM
// rows of blocks that were alive have in attr the wall clock of their allocation. type, name
#define MEMSCOPE_ROW_COLUMNS(X) \
    X(u8, kind)                 \
    X(u8, flags)                \
    X(u8, pool)                 \
    X(u8, device_type)          \
    X(i16, device)              \
    X(u32, tid)                 \
    X(u32, step)                \
    X(u32, aux)                 \
    X(u64, ptr)                 \
    X(i64, size)                \
    X(i64, used)                \
    X(i64, total)               \
    X(u64, name)                \
    X(u64, attr)                \
    X(u64, stack_py)            \
    X(u64, stack_c)             \
    X(i64, ts)                  \
    X(i64, id)                  \
    X(i64, allocation_id)       \
    X(i64, pool_live)           \
    X(i64, process_used)        \
    X(i64, device_used)         \
    X(i64, device_total)        \
    X(u64, owner)               \
    X(u8, inefficient)

struct RowColumns {
    std::size_t n = 0;
#define X(type, name) const type* name = nullptr;
    MEMSCOPE_ROW_COLUMNS(X)
#undef X
};

// How the text behind an id stands in a cell. name, what the id is
#define MEMSCOPE_TEXT_FORMS(X)                                              \
    X(NAME, "string: the cell Name")                                        \
    X(MARK, "string: the same of a mark, always in quotes")                 \
    X(VALUE, "string: a value in Attr")                                     \
    X(PAIRS, "string: pairs of Attr, each behind a comma")                  \
    X(PATH, "string: the same; a text without keys is the value of `path`") \
    X(STACK, "stack: the cell")                                             \
    X(OWNER, "owner of tables.h, or pool << 16 | device type << 8 | module: the value of `owner`, or nothing")

#define X(name, ...) name,
enum class TextForm : u8 { MEMSCOPE_TEXT_FORMS(X) COUNT };
#undef X

// Texts by form and id. At most about `limit` bytes are kept: beyond that, all are asked for again.
class Texts {
public:
    using Source = std::function<std::string(TextForm, u64)>;

    Texts(Source source, std::size_t limit) : source_(std::move(source)), limit_(limit) {}

    // Holds until the next trim().
    const std::string& get(TextForm form, u64 id);
    void trim();

private:
    Source source_;
    std::size_t limit_;
    std::size_t bytes_ = 0;
    std::array<std::unordered_map<u64, std::string>, static_cast<std::size_t>(TextForm::COUNT)> known_;
};

// Event Type of a block: its pool. Page-locked host memory is HOST, whichever driver it came from.
std::string_view event_type(u8 pool, u8 device_type) noexcept;

struct RowOptions {
    bool json = false;           // Attr for a database
    bool owners = false;         // MALLOC rows say whose they are
    bool python_stacks = false;  // they were recorded: a memory row without one says NA
    i64 pid = 0;
};

// One row, cell by cell. Views hold until the next row.
struct Cells {
    std::string_view event, type, device, python_stack, c_stack;
    std::string_view name;
    bool has_ptr = false;
};

class UpstreamRows {
public:
    UpstreamRows(Texts& texts, const RowOptions& options) : texts_(texts), options_(options) {}

    // Appends one line of CSV for each of `count` rows of `columns`: those with the numbers `rows`, or from `first` on.
    // home: Device Id of the file.
    void csv(const RowColumns& columns, const i64* rows, std::size_t count, std::string_view home, TextOut& out);
    void csv(const RowColumns& columns, std::size_t first, std::size_t count, std::string_view home, TextOut& out);

    // The cells of one row without the numbers, and its Attr at the end of `out`.
    Cells cells(const RowColumns& columns, std::size_t row, std::string_view home, TextOut& out);

private:
    template <bool Json>
    class Attr;

    void line(const RowColumns& c, std::size_t row, std::string_view home, TextOut& out);

    template <bool Json>
    void csv_or_json_attr(const RowColumns& c, std::size_t row, TextOut& out);
    template <bool Json>
    void memory_attr(const RowColumns& c, std::size_t row, TextOut& out);
    template <bool Json>
    void access_attr(const RowColumns& c, std::size_t row, TextOut& out);
    template <bool Json>
    void snapshot_attr(const RowColumns& c, std::size_t row, TextOut& out);
    template <bool Json>
    void oom_attr(const RowColumns& c, std::size_t row, TextOut& out);

    Cells head(const RowColumns& c, std::size_t row, std::string_view home);

    Texts& texts_;
    const RowOptions options_;
    std::string number_;  // a text made for one row
    std::string device_;
    i32 device_code_ = -1;  // what device_ is the text of
};

}  // namespace memscope::kernel
