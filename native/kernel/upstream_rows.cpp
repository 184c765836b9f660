#include "kernel/upstream_rows.h"

#include <algorithm>
#include <cstdio>

#include "kernel/block_patterns.h"

namespace memscope::kernel {

namespace {

using namespace std::string_view_literals;

constexpr std::string_view kNotApplicable = "N/A"sv;
constexpr std::string_view kCpu = "cpu"sv;
constexpr u64 kHugePages = u64{1} << 17;   // of the driver's flag word: 2 MiB
constexpr u64 kGiantPages = u64{1} << 31;  // 1 GiB
constexpr unsigned kModuleShift = 56;

template <typename Enum>
constexpr bool is(u8 value, Enum wanted) noexcept {
    return value == static_cast<u8>(wanted);
}

constexpr bool has(u8 flags, Flag flag) noexcept { return (flags & static_cast<u8>(flag)) != 0; }

constexpr bool is_memory(u8 kind) noexcept { return is(kind, Kind::MALLOC) || is(kind, Kind::FREE); }

// START_TRACE, STOP_TRACE, ACL_INIT, ACL_FINI
std::string_view system_event(u32 number) noexcept {
#define X(name, value) \
    if (number == (value)) return #name##sv;
    MEMSCOPE_SYSTEM_EVENTS(X)
#undef X
    return kNotApplicable;
}

template <std::size_t N>
std::string_view pick(const std::array<std::string_view, N>& words, u64 index) noexcept {
    return words[static_cast<std::size_t>(std::min<u64>(index, N - 1))];
}

constexpr std::array kAccesses{"UNKNOWN"sv, "READ"sv, "WRITE"sv};
constexpr std::array kOperators{"ATEN_START"sv, "ATEN_END"sv, "ATB_START"sv, "ATB_END"sv};
constexpr std::array kKernels{"KERNEL_LAUNCH"sv, "KERNEL_EXECUTE_START"sv, "KERNEL_EXECUTE_END"sv, "KERNEL_START"sv,
                              "KERNEL_END"sv};
constexpr std::array kMarks{"Mark"sv, "Range_start"sv, "Range_end"sv};
constexpr std::array kOomTypes{"OOM_TRIGGER"sv, "OOM_RECENT_ALLOC"sv, "OOM_TOP_ALLOC"sv};
constexpr std::array kOomNames{"OOM_Trigger"sv, "OOM_RecentAlloc"sv, "OOM_TopAlloc"sv};

// Percent with six decimals, 0 of nothing.
std::string_view percent(i64 part, i64 whole, std::array<char, 64>& text) noexcept {
    if (whole <= 0) return "0.000000"sv;
    const double rate = static_cast<double>(static_cast<__int128>(part) * 100) / static_cast<double>(whole);
    const int length = std::snprintf(text.data(), text.size(), "%.6f", rate);
    return {text.data(), static_cast<std::size_t>(length)};
}

// In the order in which they were seen.
std::string_view pattern_words(u8 bits) noexcept {
    constexpr std::array kWords{""sv,
                                "early_allocation"sv,
                                "late_deallocation"sv,
                                "early_allocation,late_deallocation"sv,
                                "temporary_idleness"sv,
                                "early_allocation,temporary_idleness"sv,
                                "temporary_idleness,late_deallocation"sv,
                                "early_allocation,temporary_idleness,late_deallocation"sv};
    const bool idle_first = (bits & kIdleFirst) != 0;
    if (idle_first && (bits & kUpstreamPatterns) == (early_allocation | temporary_idleness))
        return "temporary_idleness,early_allocation"sv;
    if (idle_first && (bits & kUpstreamPatterns) == kUpstreamPatterns)
        return "temporary_idleness,early_allocation,late_deallocation"sv;
    return kWords[bits & kUpstreamPatterns];
}

i64 difference(i64 a, i64 b) noexcept { return static_cast<i64>(static_cast<u64>(a) - static_cast<u64>(b)); }

}  // namespace

const std::string& Texts::get(TextForm form, u64 id) {
    auto& known = known_[static_cast<std::size_t>(form)];
    const auto found = known.find(id);
    if (found != known.end()) return found->second;
    std::string text = source_(form, id);
    bytes_ += text.size() + 64;
    return known.emplace(id, std::move(text)).first->second;
}

void Texts::trim() {
    if (bytes_ <= limit_) return;
    for (auto& known : known_) known.clear();
    bytes_ = 0;
}

std::string_view event_type(u8 pool, u8 device_type) noexcept {
    if (is(device_type, DeviceType::CPU) &&
        (is(pool, Pool::HAL) || is(pool, Pool::CUDA_DRIVER) || is(pool, Pool::NONE)))
        return "HOST"sv;
    if (is(pool, Pool::NONE)) return kNotApplicable;
#define X(name, value) \
    if (pool == (value)) return #name##sv;
    MEMSCOPE_POOLS(X)
#undef X
    return kNotApplicable;
}

// Attr of one row: `{key:value,...}` in quotes, or a JSON object whose values are texts. Every pair begins with a
// comma; the first of them becomes the brace.
template <bool Json>
class UpstreamRows::Attr {
public:
    explicit Attr(TextOut& out) : out_(out) {
        if constexpr (!Json) out_.put('"');
        begin_ = out_.size();
    }
    Attr(const Attr&) = delete;
    Attr& operator=(const Attr&) = delete;

    template <std::size_t N, std::size_t M>
    void key(const char (&csv)[N], const char (&json)[M]) noexcept {
        if constexpr (Json)
            out_.literal(json);
        else
            out_.literal(csv);
    }
    template <typename Number>
    void number(Number value) noexcept {
        out_.decimal(value);
        end();
    }
    void address(u64 value) noexcept {
        out_.address(value);
        end();
    }
    void words(std::string_view text) noexcept {
        out_.words(text);
        end();
    }
    void value(std::string_view text) {
        out_.text(text);
        end();
    }
    void pairs(std::string_view text) { out_.text(text); }

    void close() {
        out_.room();
        if (out_.size() == begin_) {
            if constexpr (Json)
                out_.literal("{}");
            else
                out_.cut(begin_ - 1);
            return;
        }
        *out_.position(begin_) = '{';
        out_.put('}');
        if constexpr (!Json) out_.put('"');
    }

private:
    void end() noexcept {
        if constexpr (Json) out_.put('"');
    }

    TextOut& out_;
    std::size_t begin_;
};

#define MEMSCOPE_KEY(name) key("," name ":", ",\"" name "\":\"")

template <bool Json>
void UpstreamRows::memory_attr(const RowColumns& c, std::size_t row, TextOut& out) {
    const u8 flags = c.flags[row], pool = c.pool[row];
    const bool on_host = is(c.device_type[row], DeviceType::CPU), is_tensor = is(pool, Pool::HOST);
    const bool shadow = has(flags, Flag::SYNTHETIC) || has(flags, Flag::SHADOW);
    const bool malloc = is(c.kind[row], Kind::MALLOC);
    Attr<Json> attr(out);
    attr.MEMSCOPE_KEY("allocation_id");
    attr.number(c.allocation_id[row]);
    attr.MEMSCOPE_KEY("addr");
    attr.address(c.ptr[row]);
    attr.MEMSCOPE_KEY("size");
    attr.number(c.size[row]);
    if (has(flags, Flag::PINNED) || (on_host && !is_tensor)) {
        attr.MEMSCOPE_KEY("pinned");
        attr.words("true");
    }
    attr.MEMSCOPE_KEY("used");
    attr.number(c.used[row]);
    const i64 total = is_tensor ? c.pool_live[row] : c.total[row];
    if (total >= 0 && !is(pool, Pool::HAL) && !is(pool, Pool::CUDA_DRIVER)) {
        attr.MEMSCOPE_KEY("total");
        attr.number(total);
    }
    // Rows made up or late have no time for a sample.
    if (!shadow && c.process_used[row] >= 0) {
        attr.MEMSCOPE_KEY("process_used");
        attr.number(c.process_used[row]);
    }
    if (!shadow && c.device_used[row] >= 0) {
        attr.MEMSCOPE_KEY("device_used");
        attr.number(c.device_used[row]);
    }
    if (shadow) {
        attr.MEMSCOPE_KEY("shadow");
        attr.words("true");
    }
    const u64 word = c.attr[row];
    if (malloc && options_.owners) {
        const u64 root = u64{pool} << 16 | u64{c.device_type[row]} << 8 | word >> kModuleShift;
        const u64 code = c.owner[row] != 0 ? c.owner[row] : root;
        if (const std::string& owner = texts_.get(TextForm::OWNER, code); !owner.empty()) {
            attr.MEMSCOPE_KEY("owner");
            attr.value(owner);
        }
    }
    if (malloc && (c.inefficient[row] & kUpstreamPatterns) != 0) {
        attr.MEMSCOPE_KEY("inefficient_type");
        attr.value(pattern_words(c.inefficient[row]));
    }
    if (malloc && is(pool, Pool::HAL) && is(c.device_type[row], DeviceType::NPU)) {
        attr.MEMSCOPE_KEY("page_type");
        attr.words((word & kGiantPages) != 0 ? "giant"sv : (word & kHugePages) != 0 ? "huge"sv : "normal"sv);
        attr.MEMSCOPE_KEY("alloc_type");
        attr.words(has(flags, Flag::HANDLE) ? "create"sv : "alloc"sv);
    }
    attr.close();
}

template <bool Json>
void UpstreamRows::access_attr(const RowColumns& c, std::size_t row, TextOut& out) {
    Attr<Json> attr(out);
    if (c.allocation_id[row] > 0) {
        attr.MEMSCOPE_KEY("allocation_id");
        attr.number(c.allocation_id[row]);
    }
    attr.MEMSCOPE_KEY("addr");
    attr.address(c.ptr[row]);
    attr.MEMSCOPE_KEY("size");
    attr.number(c.size[row]);
    attr.MEMSCOPE_KEY("type");
    attr.words(event_type(c.pool[row], c.device_type[row]));
    attr.pairs(texts_.get(TextForm::PAIRS, c.attr[row]));
    attr.close();
}

template <bool Json>
void UpstreamRows::snapshot_attr(const RowColumns& c, std::size_t row, TextOut& out) {
    // One of ours, at a request that failed, has no figure of its own from the device.
    const bool made = has(c.flags[row], Flag::SYNTHETIC);
    const i64 total = c.aux[row] != 0 && !made ? i64{c.aux[row]} << 10 : c.device_total[row];
    const bool told = total >= 0 && (!made || c.device_used[row] >= 0);
    const i64 free = made ? difference(total, c.device_used[row]) : static_cast<i64>(c.attr[row]);
    std::array<char, 64> text{};
    Attr<Json> attr(out);
    attr.MEMSCOPE_KEY("reserved");
    attr.number(c.total[row]);
    attr.MEMSCOPE_KEY("max_reserved");
    attr.number(c.size[row]);
    attr.MEMSCOPE_KEY("allocated");
    attr.number(c.used[row]);
    attr.MEMSCOPE_KEY("max_allocated");
    attr.number(c.ptr[row]);
    if (total >= 0) {
        attr.MEMSCOPE_KEY("total");
        attr.number(total);
    }
    if (!made || told) {
        attr.MEMSCOPE_KEY("free");
        attr.number(free);
    }
    if (told) {
        attr.MEMSCOPE_KEY("device_rate");
        attr.words(percent(difference(total, free), total, text));
    }
    attr.MEMSCOPE_KEY("reserved_rate");
    attr.words(percent(c.used[row], c.total[row], text));
    attr.close();
}

template <bool Json>
void UpstreamRows::oom_attr(const RowColumns& c, std::size_t row, TextOut& out) {
    Attr<Json> attr(out);
    if (c.aux[row] == 0) {
        attr.MEMSCOPE_KEY("func");
        attr.value(texts_.get(TextForm::VALUE, c.name[row]));
        attr.MEMSCOPE_KEY("req_size");
        attr.number(c.size[row]);
        attr.MEMSCOPE_KEY("flag");
        attr.number(c.ptr[row]);
        attr.MEMSCOPE_KEY("ret");
        attr.number(c.attr[row]);
    } else {
        attr.MEMSCOPE_KEY("pool");
        attr.words(event_type(c.pool[row], c.device_type[row]));
        attr.MEMSCOPE_KEY("ptr");
        attr.address(c.ptr[row]);
        attr.MEMSCOPE_KEY("size");
        attr.number(c.size[row]);
        attr.MEMSCOPE_KEY("timestamp");
        attr.number(c.attr[row]);
    }
    attr.close();
}

template <bool Json>
void UpstreamRows::csv_or_json_attr(const RowColumns& c, std::size_t row, TextOut& out) {
    switch (static_cast<Kind>(c.kind[row])) {
        case Kind::MALLOC:
        case Kind::FREE:
            return memory_attr<Json>(c, row, out);
        case Kind::ACCESS:
            return access_attr<Json>(c, row, out);
        case Kind::SNAPSHOT:
            return snapshot_attr<Json>(c, row, out);
        case Kind::OOM:
            return oom_attr<Json>(c, row, out);
        default:
            break;
    }
    const auto kind = static_cast<Kind>(c.kind[row]);
    Attr<Json> attr(out);
    if (kind == Kind::OP_START || kind == Kind::OP_END) {
        if ((c.aux[row] & kLowBits) == 1) attr.pairs(texts_.get(TextForm::PATH, c.attr[row]));
    } else if ((kind == Kind::KERNEL_START || kind == Kind::KERNEL_END) && c.aux[row] == 1) {
        attr.pairs(texts_.get(TextForm::PATH, c.attr[row]));
    } else if (kind == Kind::KERNEL_LAUNCH || kind == Kind::KERNEL_START || kind == Kind::KERNEL_END) {
        attr.MEMSCOPE_KEY("streamId");
        attr.number(c.ptr[row]);
        attr.MEMSCOPE_KEY("taskId");
        attr.number(c.attr[row]);
    } else if (kind == Kind::SYSTEM && c.aux[row] == static_cast<u32>(SystemEvent::START_TRACE) &&
               c.device_total[row] >= 0) {
        attr.MEMSCOPE_KEY("free");
        attr.number(difference(c.device_total[row], c.device_used[row]));
        attr.MEMSCOPE_KEY("total");
        attr.number(c.device_total[row]);
    }
    attr.close();
}

Cells UpstreamRows::head(const RowColumns& c, std::size_t row, std::string_view home) {
    const auto kind = static_cast<Kind>(c.kind[row]);
    const u32 aux = c.aux[row];
    Cells cells;
    cells.name = kNotApplicable;
    switch (kind) {
        case Kind::MALLOC:
        case Kind::FREE:
            cells.event = kind == Kind::FREE ? "FREE"sv : "MALLOC"sv;
            cells.type = event_type(c.pool[row], c.device_type[row]);
            cells.has_ptr = true;
            break;
        case Kind::ACCESS:
            cells.event = "ACCESS"sv;
            cells.type = pick(kAccesses, aux & kLowBits);
            cells.has_ptr = true;
            break;
        case Kind::OP_START:
        case Kind::OP_END:
            cells.event = "OP_LAUNCH"sv;
            cells.type = pick(kOperators, u64{kind == Kind::OP_END} + 2 * u64{(aux & kLowBits) == 1});
            cells.name = texts_.get(TextForm::NAME, c.name[row]);
            break;
        case Kind::KERNEL_LAUNCH:
        case Kind::KERNEL_START:
        case Kind::KERNEL_END: {
            const u64 place = static_cast<u64>(kind) - static_cast<u64>(Kind::KERNEL_LAUNCH);
            cells.event = "KERNEL_LAUNCH"sv;
            cells.type = pick(kKernels, place + 2 * u64{aux == 1 && kind != Kind::KERNEL_LAUNCH});
            cells.name = texts_.get(TextForm::NAME, c.name[row]);
            break;
        }
        case Kind::MARK:
        case Kind::RANGE_START:
            cells.event = "MSTX"sv;
            cells.type = pick(kMarks, static_cast<u64>(kind) - static_cast<u64>(Kind::MARK));
            cells.name = texts_.get(TextForm::MARK, c.name[row]);
            break;
        case Kind::RANGE_END:  // carries only the id of its range; upstream names it like this
            cells.event = "MSTX"sv;
            cells.type = kMarks[2];
            number_ = "Range end from id " + std::to_string(c.attr[row]);
            if (!options_.json) number_ = '"' + number_ + '"';
            cells.name = number_;
            break;
        case Kind::STEP:  // msmemscope.step() ends a step; the event tells which one begins
            cells.event = "SYSTEM"sv;
            cells.type = "STEP"sv;
            number_ = std::to_string(i64{c.step[row]} - 1);
            cells.name = number_;
            break;
        case Kind::SYSTEM:
            cells.event = "SYSTEM"sv;
            cells.type = system_event(aux);
            break;
        case Kind::SNAPSHOT:
            cells.event = cells.type = "SNAPSHOT"sv;
            cells.name = has(c.flags[row], Flag::SYNTHETIC) ? "OOM_Snapshot"sv
                                                            : std::string_view(texts_.get(TextForm::NAME, c.name[row]));
            break;
        case Kind::OOM:
            cells.event = "OOM_DETAIL"sv;
            cells.type = pick(kOomTypes, aux);
            cells.name = pick(kOomNames, aux);
            break;
        default:
            cells.event = cells.type = kNotApplicable;
            break;
    }
    if (kind == Kind::STEP) {
        cells.device = home;
    } else if (kind == Kind::SYSTEM) {  // they belong to the process, also where a card is told
        cells.device = kNotApplicable;
    } else if (is(c.device_type[row], DeviceType::CPU)) {
        cells.device = kCpu;
    } else if (is(c.device_type[row], DeviceType::NONE) || c.device[row] < 0) {
        cells.device = kNotApplicable;
    } else {
        if (device_code_ != c.device[row]) {
            device_code_ = c.device[row];
            device_ = std::to_string(device_code_);
        }
        cells.device = device_;
    }
    // Upstream's STEP rows have no stack; ours is kept for the analysis, which looks for the training loop in it.
    if (kind == Kind::STEP && c.stack_py[row] != 0) return cells;
    if (c.stack_py[row] != 0) {
        cells.python_stack = texts_.get(TextForm::STACK, c.stack_py[row]);
    } else {
        const u8 flags = c.flags[row];
        // The others are those of threads without Python, such as autograd's.
        const bool wanted = options_.python_stacks && is_memory(c.kind[row]) && !has(flags, Flag::SHADOW) &&
                            !has(flags, Flag::SYNTHETIC);
        if (wanted || has(flags, Flag::STACK_LOST)) cells.python_stack = options_.json ? "NA"sv : "\"NA\""sv;
    }
    if (c.stack_c[row] != 0 && kind != Kind::STEP) cells.c_stack = texts_.get(TextForm::STACK, c.stack_c[row]);
    return cells;
}

void UpstreamRows::csv(const RowColumns& columns, const i64* rows, std::size_t count, std::string_view home,
                       TextOut& out) {
    for (std::size_t at = 0; at < count; ++at) line(columns, static_cast<std::size_t>(rows[at]), home, out);
}

void UpstreamRows::csv(const RowColumns& columns, std::size_t first, std::size_t count, std::string_view home,
                       TextOut& out) {
    for (std::size_t at = 0; at < count; ++at) line(columns, first + at, home, out);
}

void UpstreamRows::line(const RowColumns& columns, std::size_t row, std::string_view home, TextOut& out) {
    texts_.trim();
    const Cells cells = head(columns, row, home);
    out.room();
    out.decimal(columns.id[row]);
    out.put(',');
    out.words(cells.event);
    out.put(',');
    out.words(cells.type);
    out.put(',');
    out.text(cells.name);
    out.put(',');
    out.decimal(columns.ts[row]);
    out.put(',');
    out.decimal(options_.pid);
    out.put(',');
    if (columns.tid[row] != 0)
        out.decimal(u64{columns.tid[row]});
    else
        out.words(kNotApplicable);
    out.put(',');
    out.words(cells.device);
    out.put(',');
    if (cells.has_ptr)
        out.address(columns.ptr[row]);
    else
        out.words(kNotApplicable);
    out.put(',');
    csv_or_json_attr<false>(columns, row, out);
    out.put(',');
    out.text(cells.python_stack);
    out.put(',');
    out.text(cells.c_stack);
    out.put('\n');
}

Cells UpstreamRows::cells(const RowColumns& columns, std::size_t row, std::string_view home, TextOut& out) {
    texts_.trim();
    const Cells cells = head(columns, row, home);
    out.room();
    csv_or_json_attr<true>(columns, row, out);
    return cells;
}

}  // namespace memscope::kernel
