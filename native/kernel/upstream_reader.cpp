#include "kernel/upstream_reader.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "kernel/cell_text.h"

namespace memscope::kernel {

namespace {

constexpr const char* kNames[] = {
    "ID",        "Event",     "Event Type", "Name", "Timestamp(ns)",      "Process Id",
    "Thread Id", "Device Id", "Ptr",        "Attr", "Call Stack(Python)", "Call Stack(C)"};
constexpr const char* kOpen = "it has no end: a quote is not closed";
constexpr i64 kNoModule = 256;
constexpr u64 kMicroseconds = 100'000'000'000'000'000ull;  // a wall clock that is below is in microseconds: before 1973

// The first line of a text, which loses it.
std::string_view take_line(std::string_view& text) noexcept {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = trimmed(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    return line;
}

// Of one without quotes: the next comma or end of a line; the size where there is none. Eight bytes at a time.
std::size_t end_of_cell(std::string_view text, std::size_t at) noexcept {
    constexpr u64 kOnes = 0x0101010101010101ull, kHighs = 0x8080808080808080ull;
    for (; at + sizeof(u64) <= text.size(); at += sizeof(u64)) {
        u64 word;
        std::memcpy(&word, text.data() + at, sizeof word);
        const u64 commas = word ^ (kOnes * ','), ends = word ^ (kOnes * '\n');
        // The lowest bit is of the first byte that is 0; above it others may be set.
        if (const u64 found = ((commas - kOnes) & ~commas & kHighs) | ((ends - kOnes) & ~ends & kHighs); found != 0)
            return at + static_cast<std::size_t>(__builtin_ctzll(found)) / 8;
    }
    while (at < text.size() && text[at] != ',' && text[at] != '\n') ++at;
    return at;
}

// Does a line of upstream's rows begin with this: an ID and an Event? A line of a call stack does not.
bool begins_row(std::string_view line) noexcept {
    constexpr std::string_view kEvents[] = {"MALLOC", "FREE",   "ACCESS",   "OP_LAUNCH",  "KERNEL_LAUNCH",
                                            "MSTX",   "SYSTEM", "SNAPSHOT", "OOM_DETAIL", "CLEAN_UP"};
    std::size_t at = 0;
    while (at < line.size() && at < 20 && line[at] >= '0' && line[at] <= '9') ++at;
    if (at == 0 || at >= line.size() || line[at] != ',') return false;
    line.remove_prefix(at + 1);
    for (const std::string_view event : kEvents)
        if (line.size() > event.size() && line.substr(0, event.size()) == event && line[event.size()] == ',')
            return true;
    return false;
}

// Where the first row begins from `begin` to `end`, within a cell in quotes, at a line of its own; npos: nowhere.
std::size_t row_within(std::string_view text, std::size_t begin, std::size_t end) noexcept {
    const std::string_view cell = text.substr(0, end);
    while ((begin = cell.find('\n', begin)) != std::string_view::npos) {
        begin += 1;
        if (begins_row(text.substr(begin))) return begin;
    }
    return std::string_view::npos;
}

Pool pool_of(std::string_view type) noexcept {
    if (type == "HAL") return Pool::HAL;
    if (type == "PTA") return Pool::PTA;
    if (type == "PTA_WORKSPACE") return Pool::PTA_WORKSPACE;
    if (type == "MINDSPORE" || type == "MindSpore") return Pool::MINDSPORE;
    if (type == "ATB") return Pool::ATB;
    if (type == "HOST") return Pool::HOST;
    return Pool::NONE;
}

}  // namespace

// ---------------------------------------------------------------------------------------------- rows and cells

UpstreamReader::UpstreamReader(bool keeps_ends, bool defines, const std::vector<std::string>& modules, bool names)
    : keeps_ends_(keeps_ends), defines_(defines), names_(defines || names) {
    for (const std::string& name : modules) modules_.emplace(name, static_cast<i64>(modules_.size()));
}

ImportedTable UpstreamReader::take() {
    ImportedTable taken = std::exchange(table_, {});
#define X(type, name) table_.name.reserve(taken.name.size() + taken.name.size() / 8);
    MEMSCOPE_IMPORTED_COLUMNS(X)
#undef X
    return taken;
}

ImportedDefinitions UpstreamReader::take_definitions() {
    for (auto* known : {&texts_, &frames_, &stack_ids_})
        if (known->size() > kMostKnown) known->clear();
    // A stack that is known has its frames defined; of one that is forgotten they are looked at again.
    for (auto* known : {&python_stacks_, &native_stacks_})
        if (known->size() > kMostKnown) known->clear();
    return std::exchange(definitions_, {});
}

bool UpstreamReader::header(const std::vector<std::string_view>& names) {
    place_of_.fill(-1);
    columns_ = names.size();
    is_in_order_ = columns_ == COLUMNS || columns_ == STACK_PY;
    for (std::size_t at = 0; at < names.size(); ++at)
        for (std::size_t column = 0; column < COLUMNS; ++column)
            if (trimmed(names[at]) == kNames[column]) {
                place_of_[column] = static_cast<int>(at);
                is_in_order_ = is_in_order_ && at == column;
            }
    for (const Column column : {ID, EVENT, TYPE, NAME, TIME, PID, DEVICE, PTR, ATTR})
        if (place_of_[column] < 0) {
            missing_ = kNames[column];
            return false;
        }
    has_header_ = true;
    return true;
}

void UpstreamReader::row(const std::vector<std::string_view>& cells) {
    rows_ += 1;
    if (cells.size() != columns_) return leave_out("its number of cells is not that of the header");
    Cells found{};
    for (std::size_t column = 0; column < COLUMNS; ++column)
        if (place_of_[column] >= 0) found[column] = cells[static_cast<std::size_t>(place_of_[column])];
    use(found);
}

bool UpstreamReader::feed(std::string_view bytes) {
    if (is_broken_) return false;
    // Whole rows are read where they lie; what is cut waits for its rest.
    const std::size_t known = pending_.size();
    pending_.append(bytes);
    if (ends_ == Ends::UNKNOWN) find_ends();
    if (ends_ == Ends::CR)
        std::replace(pending_.begin() + static_cast<std::ptrdiff_t>(known), pending_.end(), '\r', '\n');
    std::string_view left = pending_;
    while (const std::size_t length = record(left, false)) {
        csv_row();
        left.remove_prefix(length);
        if (is_broken_) return false;
    }
    before_pending_ += pending_.size() - left.size();
    pending_.erase(0, pending_.size() - left.size());
    if (pending_.size() > kMostRowBytes) {
        is_broken_ = true;
        rows_ += has_header_ ? 1 : 0;
        line_ = lines_;                                  // where it begins
        const u64 others = std::exchange(left_out_, 0);  // this one is told, whatever was left out before
        leave_out(pending_.find('"') == std::string::npos ? "it is longer than any row of upstream's, and has no end"
                                                          : kOpen);
        left_out_ += others;
    }
    return !is_broken_;
}

bool UpstreamReader::finish() {
    if (is_broken_) return false;
    if (ends_ == Ends::UNKNOWN && !pending_.empty() && pending_.back() == '\r') pending_.pop_back();
    if (!pending_.empty() && record(pending_, true) != 0) csv_row();
    pending_.clear();
    return has_header_ && !is_broken_;
}

// The first end of a line tells those of all.
void UpstreamReader::find_ends() {
    const std::size_t at = pending_.find_first_of("\r\n");
    if (at == std::string::npos || (pending_[at] == '\r' && at + 1 == pending_.size())) return;
    ends_ = pending_[at] == '\r' && pending_[at + 1] != '\n' ? Ends::CR : Ends::LF;
    if (ends_ == Ends::CR) std::replace(pending_.begin(), pending_.end(), '\r', '\n');
}

// Cuts one row into fields_.
std::size_t UpstreamReader::record(std::string_view bytes, bool is_last) {
    std::array<std::string_view, 2 * COLUMNS> first;  // the cells, as far as there is room
    std::size_t cells = 0, at = 0;
    u64 lines = 0;
    fields_.clear();
    is_open_ = false;
    const auto add = [&](std::string_view cell) {
        if (cells == first.size()) {
            fields_.insert(fields_.end(), first.begin(), first.end());
            cells = 0;
        }
        first[cells++] = cell;
    };
    const char* const text = bytes.data();
    for (;;) {
        const std::size_t begin = at;
        std::size_t end = at;
        if (at < bytes.size() && text[at] == '"') {
            // A quote that is not closed ends with one of a later row: what that row says would be this one's.
            std::size_t next = std::string_view::npos, looked = begin;
            for (end = at + 1;; ++end) {
                const void* const quote =
                    end < bytes.size() ? std::memchr(text + end, '"', bytes.size() - end) : nullptr;
                end =
                    quote == nullptr ? bytes.size() : static_cast<std::size_t>(static_cast<const char*>(quote) - text);
                if (is_in_order_) next = row_within(bytes, looked, end);
                if (next != std::string_view::npos || end + 1 >= bytes.size()) break;
                if (text[end + 1] == ',' || text[end + 1] == '\n' || text[end + 1] == '\r') break;
                looked = end;
            }
            if (next != std::string_view::npos) {
                is_open_ = true;
                line_ = lines_;
                lines_ += static_cast<u64>(std::count(text, text + next, '\n'));
                return next;
            }
            if (end + 1 >= bytes.size() && !is_last) return 0;
            add(bytes.substr(begin + 1, end - begin - 1));
            lines += static_cast<u64>(std::count(text + begin, text + end, '\n'));
            at = std::min(end + 1, bytes.size());
        } else {
            end = end_of_cell(bytes, at);
            if (end == bytes.size() && !is_last) return 0;
            add(bytes.substr(begin, end - begin));
            at = end;
        }
        if (at < bytes.size() && text[at] == '\r') at += 1;
        if (at >= bytes.size() && !is_last) return 0;
        if (at >= bytes.size() || text[at] == '\n') break;
        if (text[at] == ',') at += 1;
    }
    fields_.insert(fields_.end(), first.begin(), first.begin() + static_cast<std::ptrdiff_t>(cells));
    line_ = lines_;
    lines_ += lines + 1;
    return std::min(at + 1, bytes.size());
}

void UpstreamReader::csv_row() {
    if (!has_header_) {
        if (!fields_.empty() && fields_[0].substr(0, 3) == "\xef\xbb\xbf") fields_[0].remove_prefix(3);
        is_broken_ = !header(fields_);
        return;
    }
    if (fields_.size() == 1 && trimmed(fields_[0]).empty()) return;
    rows_ += 1;
    if (is_open_) return leave_out(kOpen);
    if (fields_.size() > columns_ && is_in_order_) {
        // A Name with commas: what is too much belongs to it.
        const std::size_t more = fields_.size() - columns_;
        joined_.assign(fields_[NAME]);
        for (std::size_t at = 1; at <= more; ++at) joined_.append(1, ',').append(fields_[NAME + at]);
        fields_.erase(fields_.begin() + NAME + 1, fields_.begin() + NAME + 1 + static_cast<std::ptrdiff_t>(more));
        fields_[NAME] = joined_;
    }
    if (fields_.size() != columns_) return leave_out("its number of cells is not that of the header");
    Cells found{};
    for (std::size_t column = 0; column < COLUMNS; ++column)
        if (place_of_[column] >= 0) found[column] = fields_[static_cast<std::size_t>(place_of_[column])];
    use(found);
}

// ---------------------------------------------------------------------------------------------- events

void UpstreamReader::use(const Cells& cells) {
    Event event;
    event.used = event.total = kUnknown;
    event.module = kNoModule;
    if (!to_number(cells[ID], event.id) || event.id < 0) return leave_out("ID is no number", cells[ID]);
    if (!to_number(cells[TIME], event.ts) || event.ts > u64{1} << 62)
        return leave_out("Timestamp(ns) is no number", cells[TIME]);
    if (event.ts < kMicroseconds) {
        if (event.ts > (u64{1} << 62) / 1000) return leave_out("Timestamp(ns) is no time of today", cells[TIME]);
        event.ts *= 1000;
    }
    if (!to_number(cells[PID], event.pid) || event.pid > std::numeric_limits<i32>::max())
        return leave_out("Process Id is no number", cells[PID]);
    if (const std::string_view tid = trimmed(cells[TID]); !tid.empty() && tid != "N/A") {
        u64 number = 0;  // a pthread_t may be wider than a thread's id
        if (!to_number(tid, number)) return leave_out("Thread Id is no number", tid);
        event.tid = static_cast<u32>(number);
    }
    if (const char* why = place(trimmed(cells[DEVICE]), event)) return leave_out(why, cells[DEVICE]);
    attributes_.read(trimmed(unquoted(trimmed(cells[ATTR]))));
    const std::string_view kind = trimmed(cells[EVENT]);
    const bool is_memory = kind == "MALLOC" || kind == "FREE" || kind == "ACCESS";
    const u64 before = derived_;
    if (const char* why = is_memory ? memory(cells, event) : other(cells, event))
        return leave_out(why, cells[is_memory ? PTR : TYPE]);
    if (derived_ != before) return;
    if (event.kind != static_cast<u8>(Kind::FREE) && defines_) {
        event.stack_py = python_stack(unquoted(cells[STACK_PY]));
        event.stack_c = native_stack(unquoted(cells[STACK_C]));
    }
#define X(type, name) table_.name.push_back(event.name);
    MEMSCOPE_IMPORTED_COLUMNS(X)
#undef X
}

const char* UpstreamReader::place(std::string_view text, Event& event) {
    event.device = kNoDevice;
    if (text == "N/A" || text.empty() || text == "9999") return nullptr;
    if (text == "cpu" || text == "host") {
        event.device_type = static_cast<u8>(DeviceType::CPU);
        event.device = 0;
        return nullptr;
    }
    event.device_type = static_cast<u8>(DeviceType::NPU);
    if (!to_number(text, event.device) || event.device < 0) return "Device Id is neither a number nor cpu";
    return nullptr;
}

const char* UpstreamReader::memory(const Cells& cells, Event& event) {
    const std::string_view kind = trimmed(cells[EVENT]), type = trimmed(cells[TYPE]);
    if (!to_number(cells[PTR], event.ptr) && !to_number(attributes_[RowAttribute::ADDR], event.ptr))
        return "Ptr is no address";
    const std::string_view size = attributes_[RowAttribute::SIZE];
    if (!size.empty() && !to_number(size, event.size)) return "size in Attr is no number, at Ptr";
    if (size.empty() && kind == "MALLOC") return "Attr has no size, at Ptr";
    if (event.size == std::numeric_limits<i64>::min()) return "size in Attr is no number, at Ptr";
    event.minus = event.size < 0;
    event.size = event.size < 0 ? -event.size : event.size;
    if (const std::string_view id = attributes_[RowAttribute::ALLOCATION_ID];
        !id.empty() && !to_number(id, event.allocation_id))
        event.allocation_id = -1;
    if (kind == "ACCESS") {
        event.kind = static_cast<u8>(Kind::ACCESS);
        event.aux = type == "READ" ? 1 : type == "WRITE" ? 2 : 0;
        event.pool = static_cast<u8>(pool_of(attributes_[RowAttribute::TYPE]));
        std::string text(attributes_[RowAttribute::DTYPE]);
        if (const std::string_view shape = attributes_[RowAttribute::SHAPE]; !shape.empty())
            text.append(",").append(shape);
        event.attr = intern(text);
        event.used = event.total = 0;
        return nullptr;
    }
    const bool is_malloc = kind == "MALLOC";
    event.kind = static_cast<u8>(is_malloc ? Kind::MALLOC : Kind::FREE);
    const bool is_pinned = type == "HOST_PINNED" || attributes_[RowAttribute::PINNED] == "true";
    Pool pool = is_pinned ? Pool::HAL : pool_of(type);
    if (pool == Pool::NONE) return "Event Type is no pool, at Ptr";
    // Host memory of the driver is what it pinned, whatever an earlier version calls it.
    if (is_pinned || (pool == Pool::HAL && event.device_type == static_cast<u8>(DeviceType::CPU)))
        event.flags |= static_cast<u8>(Flag::PINNED);
    if (attributes_[RowAttribute::SHADOW] == "true") {
        // The end that upstream gives to a block that was alive: it did not happen.
        if (!is_malloc && !keeps_ends_) {
            derived_ += 1;
            return nullptr;
        }
        event.flags |= static_cast<u8>(Flag::SHADOW);
    }
    event.pool = static_cast<u8>(pool);
    event.used = attributes_.number_or(RowAttribute::USED, kUnknown);
    event.total = pool == Pool::HAL ? kUnknown : attributes_.number_or(RowAttribute::TOTAL, kUnknown);
    if (is_malloc) {
        const std::string_view attr = cells[ATTR];
        if (!pending_.empty()) {
            event.attr_at = before_pending_ + static_cast<u64>(attr.data() - pending_.data());
            event.attr_bytes = static_cast<u32>(attr.size());
        }
        event.is_marked = attributes_.has(RowAttribute::INEFFICIENT);
        event.owner = intern(attributes_[RowAttribute::OWNER]);
        event.module = module_of(attributes_[RowAttribute::OWNER]);
        if (attributes_[RowAttribute::ALLOC_TYPE] == "create") event.flags |= static_cast<u8>(Flag::HANDLE);
        const std::string_view page = attributes_[RowAttribute::PAGE_TYPE];
        event.attr = page == "giant" ? 2 : page == "huge" ? 1 : 0;
    }
    return nullptr;
}

const char* UpstreamReader::other(const Cells& cells, Event& event) {
    const std::string_view kind = trimmed(cells[EVENT]), type = trimmed(cells[TYPE]);
    const auto is = [&event](Kind of, u32 aux = 0) {
        event.kind = static_cast<u8>(of);
        event.aux = aux;
        return nullptr;
    };
    event.name = intern(unquoted(trimmed(cells[NAME])), names_);
    event.used = event.total = kind == "SNAPSHOT" || kind == "OOM_DETAIL" ? kUnknown : 0;
    if (kind == "OP_LAUNCH") {
        if (type == "ATEN_START") return is(Kind::OP_START);
        if (type == "ATEN_END") return is(Kind::OP_END);
        event.attr = intern(attributes_[RowAttribute::PATH]);
        if (type == "ATB_START") return is(Kind::OP_START, 1);
        if (type == "ATB_END") return is(Kind::OP_END, 1);
    } else if (kind == "KERNEL_LAUNCH") {
        event.ptr = static_cast<u64>(attributes_.number_or(RowAttribute::STREAM_ID, 0));
        event.attr = static_cast<u64>(attributes_.number_or(RowAttribute::TASK_ID, 0));
        if (type == "KERNEL_LAUNCH") return is(Kind::KERNEL_LAUNCH);
        if (type == "KERNEL_EXECUTE_START") return is(Kind::KERNEL_START);
        if (type == "KERNEL_EXECUTE_END") return is(Kind::KERNEL_END);
        event.attr = intern(attributes_[RowAttribute::PATH]);
        if (type == "KERNEL_START") return is(Kind::KERNEL_START, 1);
        if (type == "KERNEL_END") return is(Kind::KERNEL_END, 1);
    } else if (kind == "MSTX") {
        if (type == "Mark") return is(Kind::MARK);
        if (type == "Range_start") return is(Kind::RANGE_START);
        if (type == "Range_end") return is(Kind::RANGE_END);
    } else if (kind == "SYSTEM") {
        const bool is_step = type == "STEP";
        event.name = is_step ? event.name : 0;
        if (is_step) return is(Kind::STEP);
        if (type == "ACL_INIT" || type == "acl init") return is(Kind::SYSTEM, static_cast<u32>(SystemEvent::ACL_INIT));
        if (type == "ACL_FINI" || type == "acl fini" || type == "acl finalize")
            return is(Kind::SYSTEM, static_cast<u32>(SystemEvent::ACL_FINI));
        if (type == "START_TRACE") return is(Kind::SYSTEM, static_cast<u32>(SystemEvent::START_TRACE));
        if (type == "STOP_TRACE") return is(Kind::SYSTEM, static_cast<u32>(SystemEvent::STOP_TRACE));
    } else if (kind == "SNAPSHOT") {
        event.used = attributes_.number_or(RowAttribute::ALLOCATED, kUnknown);
        event.total = attributes_.number_or(RowAttribute::RESERVED, kUnknown);
        event.ptr = static_cast<u64>(std::max<i64>(attributes_.number_or(RowAttribute::MAX_ALLOCATED, 0), 0));
        event.size = attributes_.number_or(RowAttribute::MAX_RESERVED, 0);
        event.attr = static_cast<u64>(std::max<i64>(attributes_.number_or(RowAttribute::FREE, 0), 0));
        event.aux = static_cast<u32>(std::clamp<i64>(attributes_.number_or(RowAttribute::TOTAL, 0) >> 10, 0, ~u32{0}));
        return is(Kind::SNAPSHOT, event.aux);
    } else if (kind == "OOM_DETAIL" && type == "OOM_TRIGGER") {
        event.name = intern(attributes_[RowAttribute::FUNC]);
        event.size = attributes_.number_or(RowAttribute::REQ_SIZE, 0);
        event.ptr = static_cast<u64>(attributes_.number_or(RowAttribute::FLAG, 0));
        event.pool = static_cast<u8>(Pool::HAL);
        return is(Kind::OOM);
    } else if (kind == "OOM_DETAIL" || kind == "CLEAN_UP") {
        derived_ += 1;  // blocks that have rows of their own
        return nullptr;
    } else {
        return "Event is not known, of Event Type";
    }
    return "Event Type is not known";
}

// `CANN@HCCL@…`; where it names no module, MID tells the number.
i64 UpstreamReader::module_of(std::string_view owner) const {
    if (const std::size_t at = owner.find('@'); at != std::string_view::npos) {
        const std::string_view behind = owner.substr(at + 1);
        const auto known = modules_.find(std::string(behind.substr(0, behind.find('@'))));
        if (known != modules_.end()) return known->second;
    }
    return attributes_.number_or(RowAttribute::MID, kNoModule);
}

void UpstreamReader::leave_out(const char* why, std::string_view text) {
    if (left_out_++ != 0) return;
    first_left_out_ = "row " + std::to_string(rows_);
    if (lines_ > 1) first_left_out_ += " (line " + std::to_string(line_) + ")";
    first_left_out_.append(": ").append(why);
    if (!text.empty()) first_left_out_.append(": '").append(text.substr(0, 40)).append("'");
}

// ---------------------------------------------------------------------------------------------- definitions

u64 UpstreamReader::intern(std::string_view text, bool defines) {
    text = text.substr(0, kMaxTextBytes);
    if (text.empty() || text == "N/A") return 0;
    const u64 id = text_id(text.data(), text.size());
    if (defines && texts_.try_emplace(id, true).second) definitions_.add_text(id, text);
    return id;
}

// `file(line): function` in each line, the innermost first.
u64 UpstreamReader::python_stack(std::string_view text) {
    if (text.empty() || text == "NA" || text == "N/A") return 0;
    const auto [known, is_new] = python_stacks_.try_emplace(text_id(text.data(), text.size()));
    if (!is_new) return known->second;
    frames_here_.clear();
    while (!text.empty() && frames_here_.size() < kMaxFrames) {
        const std::string_view line = take_line(text);
        const std::size_t close = line.find("): ");
        const std::size_t open = close == std::string_view::npos ? close : line.rfind('(', close);
        u32 number = 0;
        if (open == std::string_view::npos || !to_number(line.substr(open + 1, close - open - 1), number)) {
            if (!line.empty()) frames_here_.push_back(frame(line, line, 0, FrameKind::PYTHON));
            continue;
        }
        frames_here_.push_back(frame(line.substr(0, open), line.substr(close + 3), number, FrameKind::PYTHON));
    }
    return known->second = define_stack(FrameKind::PYTHON);
}

// As backtrace_symbols() writes them: `object(function+0xoffset) [0xaddress]`.
u64 UpstreamReader::native_stack(std::string_view text) {
    if (text.empty() || text == "NA" || text == "N/A") return 0;
    const auto [known, is_new] = native_stacks_.try_emplace(text_id(text.data(), text.size()));
    if (!is_new) return known->second;
    frames_here_.clear();
    while (!text.empty() && frames_here_.size() < kMaxFrames) {
        const std::string_view line = take_line(text);
        if (line.empty()) continue;
        const std::size_t open = line.find('('), close = line.rfind(')'), address = line.rfind('[');
        u64 at = 0;
        if (address != std::string_view::npos && line.back() == ']')
            to_number(line.substr(address + 1, line.size() - address - 2), at);
        const bool is_told = open != std::string_view::npos && close != std::string_view::npos && close > open;
        const std::string_view function = is_told ? line.substr(open + 1, close - open - 1) : std::string_view();
        const std::string_view object = trimmed(line.substr(0, std::min(open, address)));
        frames_here_.push_back(frame(object, function, static_cast<u32>(at), FrameKind::NATIVE));
    }
    return known->second = define_stack(FrameKind::NATIVE);
}

u64 UpstreamReader::frame(std::string_view file, std::string_view function, u32 line, FrameKind kind) {
    const u64 file_id = intern(file), function_id = intern(function);
    const u64 id = frame_id(file_id, function_id, line, static_cast<u64>(kind));
    if (frames_.try_emplace(id, true).second) definitions_.add_frame(id, file_id, function_id, line, kind);
    return id;
}

u64 UpstreamReader::define_stack(FrameKind kind) {
    if (frames_here_.empty()) return 0;
    const u64 id = stack_id(frames_here_.data(), frames_here_.size(), static_cast<u64>(kind));
    if (stack_ids_.try_emplace(id, true).second) definitions_.add_stack(id, frames_here_, kind);
    return id;
}

}  // namespace memscope::kernel
