// Rows of upstream's memscope_dump files as columns of events.
//
// In: the bytes of a csv, piece by piece, or the cells of rows of a db. Out: events with the ID of their row and their
// process, in the order of the file. docs/import.md tells which row becomes which event; msmemscope/export writes the
// same rows the other way round.
//
//   csv      A quote ends a cell only before a comma, the end of the line or of the file: upstream escapes none. Cells
//            in quotes may hold line breaks. A Name that is not quoted may hold commas: a row with more cells than
//            columns gets them back. Lines end as the first one does: with LF, CR LF or CR. A line in a cell that
//            begins as a row does is one: the quote of that cell was not closed.
//   attr     row_attributes.h
//   dialects columns are found by the names of the header; decimal and hexadecimal pointers, sizes below 0 of a FREE,
//            MID in the place of owner, `host` in that of cpu: as earlier versions wrote them.
//   ends     the FREE that upstream gives to a block that was alive at its exit is no event; for whoever asks for
//            them (keeps_ends) it is one with flag SHADOW.
//   texts    for whoever asks for none (defines false) call stacks are left out, and of other texts there is the id
//            alone: memory does not grow with them. names: those in the column Name are defined all the same.
//   damage   a row that cannot be used is left out and counted, the first with its place and why.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kernel/imported_definitions.h"
#include "kernel/row_attributes.h"
#include "record/record.h"

namespace memscope::kernel {

// type, name. owner: string id of what the row says of the owner. module: number of CANN's module, which `CANN@<name>`
// tells, or MID; 256: not told.
// minus: 1 where the file gives the size a sign, as earlier versions did for a FREE.
// allocation_id: of a row of a block; 0: it does not say, -1: it is no number. attr_at, attr_bytes: of a MALLOC of a
// csv, where in the file the text of its Attr lies. is_marked: of a MALLOC, 1 where that has an inefficient_type.
#define MEMSCOPE_IMPORTED_COLUMNS(X) \
    X(u8, kind)                      \
    X(u8, flags)                     \
    X(u64, ts)                       \
    X(u64, ptr)                      \
    X(i64, size)                     \
    X(i64, used)                     \
    X(i64, total)                    \
    X(u64, name)                     \
    X(u64, stack_py)                 \
    X(u64, stack_c)                  \
    X(u64, attr)                     \
    X(u32, tid)                      \
    X(u32, aux)                      \
    X(i16, device)                   \
    X(u8, device_type)               \
    X(u8, pool)                      \
    X(i64, id)                       \
    X(u32, pid)                      \
    X(u64, owner)                    \
    X(i64, module)                   \
    X(u8, minus)                     \
    X(i64, allocation_id)            \
    X(u64, attr_at)                  \
    X(u32, attr_bytes)               \
    X(u8, is_marked)

#define X(type, name) std::vector<type> name;
struct ImportedTable {
    MEMSCOPE_IMPORTED_COLUMNS(X)
};
#undef X

class UpstreamReader {
public:
    static constexpr std::size_t kMostRowBytes = 4u << 20;
    static constexpr std::size_t kMostKnown = 1u << 20;

    // modules: names of CANN's, by number.
    explicit UpstreamReader(bool keeps_ends = false, bool defines = true, const std::vector<std::string>& modules = {},
                            bool names = false);

    // The names of a db's columns; a csv tells its own in the first line. False when one that is needed is missing:
    // `missing` is its name.
    bool header(const std::vector<std::string_view>& names);
    const std::string& missing() const noexcept { return missing_; }

    void row(const std::vector<std::string_view>& cells);  // of a db, in the order of the header

    // The next bytes of a csv. False when the file cannot be read on: no header, or a row without end.
    bool feed(std::string_view bytes);
    bool finish();  // of a csv: there are no more

    u64 rows() const noexcept { return rows_; }
    u64 left_out() const noexcept { return left_out_; }
    u64 derived() const noexcept { return derived_; }  // rows that tell nothing of their own
    const std::string& first_left_out() const noexcept { return first_left_out_; }

    std::size_t waiting() const noexcept { return table_.kind.size(); }  // events until take()
    // What was read since it was asked for last. Of a file with more than kMostKnown texts an id may be defined again.
    ImportedTable take();
    ImportedDefinitions take_definitions();

private:
    enum Column : u8 { ID, EVENT, TYPE, NAME, TIME, PID, TID, DEVICE, PTR, ATTR, STACK_PY, STACK_C, COLUMNS };
    using Cells = std::array<std::string_view, COLUMNS>;
    struct Event {
#define X(type, name) type name = {};
        MEMSCOPE_IMPORTED_COLUMNS(X)
#undef X
    };

    enum class Ends : u8 { UNKNOWN, LF, CR };
    void find_ends();
    std::size_t record(std::string_view bytes, bool is_last);  // its length; 0: it goes on behind the bytes
    void csv_row();
    void use(const Cells& cells);
    const char* memory(const Cells& cells, Event& event);
    const char* other(const Cells& cells, Event& event);
    const char* place(std::string_view text, Event& event);
    i64 module_of(std::string_view owner) const;
    void leave_out(const char* why, std::string_view text = {});

    u64 intern(std::string_view text) { return intern(text, defines_); }
    u64 intern(std::string_view text, bool defines);
    u64 python_stack(std::string_view text);
    u64 native_stack(std::string_view text);
    u64 frame(std::string_view file, std::string_view function, u32 line, FrameKind kind);
    u64 define_stack(FrameKind kind);

    const bool keeps_ends_, defines_, names_;
    u64 before_pending_ = 0;  // bytes of the csv before pending_
    std::unordered_map<std::string, i64> modules_;
    std::array<int, COLUMNS> place_of_{};  // of a column in a row; -1: it is not there
    std::size_t columns_ = 0;
    bool has_header_ = false, is_in_order_ = false, is_broken_ = false;
    Ends ends_ = Ends::UNKNOWN;  // of lines: CR alone is read as LF
    std::string missing_, pending_;
    std::vector<std::string_view> fields_;
    std::string joined_;
    RowAttributes attributes_;
    bool is_open_ = false;  // the row that was cut has a quote that is not closed
    u64 rows_ = 0, lines_ = 1, line_ = 1, left_out_ = 0, derived_ = 0;
    std::string first_left_out_;
    ImportedTable table_;
    ImportedDefinitions definitions_;
    std::unordered_map<u64, bool> texts_, frames_, stack_ids_;    // that are defined
    std::unordered_map<u64, u64> python_stacks_, native_stacks_;  // by id of their text
    std::vector<u64> frames_here_;
};

}  // namespace memscope::kernel
