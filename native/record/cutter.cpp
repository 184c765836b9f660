#include "record/cutter.h"

#include <cstring>

#include "record/ring.h"

namespace memscope {
namespace {

u64 header_word(const Records& records, u64 at) noexcept {
    return __atomic_load_n(reinterpret_cast<const u64*>(records.data + at), __ATOMIC_ACQUIRE);
}

RecordHeader as_header(u64 word) noexcept {
    RecordHeader header;
    std::memcpy(&header, &word, sizeof header);
    return header;
}

template <typename Record>
Record read(const Records& records, u64 at) noexcept {
    Record record;
    std::memcpy(&record, records.data + at, sizeof record);
    return record;
}

// Where to go on after `at`, which holds no record: see the header and kChainLinks.
u64 resume(const Records& records, u64 at) noexcept {
    for (at += 8; at + 8 <= records.bytes; at += 8) {
        u64 next = at;
        u64 word = header_word(records, next);
        u32 links = 0;
        while (links < kChainLinks && word != 0 && is_valid(as_header(word))) {
            next += as_header(word).length;
            ++links;
            if (next + 8 > records.bytes) break;
            word = header_word(records, next);
        }
        if (links == 0) continue;
        if (links == kChainLinks && next <= records.bytes) return at;
        if (next == records.bytes || (next > records.bytes && records.cut_off)) return at;
        if (next < records.bytes && word == 0) return at;
    }
    return records.bytes;
}

// Does the record at `at`, whose header is valid, agree with itself?
bool consistent(const Records& records, u64 at, const RecordHeader& header) noexcept {
    switch (static_cast<Kind>(header.kind)) {
        case Kind::STRING: {
            if (header.length < sizeof(StringRecord)) return false;
            return read<StringRecord>(records, at).bytes <= header.length - sizeof(StringRecord);
        }
        case Kind::FRAME:
            return header.length == sizeof(FrameRecord);
        case Kind::STACK: {
            if (header.length < sizeof(StackRecord)) return false;
            return read<StackRecord>(records, at).count <= (header.length - sizeof(StackRecord)) / 8;
        }
        default:
            return header.kind >= kFirstEventKind && header.length == sizeof(EventRecord);
    }
}

void count(const Records& records, u64 at, const RecordHeader& header, CutSizes& sizes) noexcept {
    switch (static_cast<Kind>(header.kind)) {
        case Kind::STRING:
            ++sizes.strings;
            sizes.text_bytes += read<StringRecord>(records, at).bytes;
            break;
        case Kind::FRAME:
            ++sizes.frames;
            break;
        case Kind::STACK:
            ++sizes.stacks;
            sizes.stack_frames += read<StackRecord>(records, at).count;
            break;
        default:
            ++sizes.events;
    }
}

// How many events stand one after the other at `at`, eight at most: measured with 4 to 256, longer runs make the
// compiler turn the columns' loops into slower gathers (17 against 50 ns an event).
u64 event_run(const Records& records, u64 at, u64 end) noexcept {
    constexpr u64 kMost = 8;
    u64 run = 1;
    for (at += sizeof(EventRecord); run < kMost && at < end; at += sizeof(EventRecord), ++run)
        if (read<RecordHeader>(records, at).kind < kFirstEventKind) break;
    return run;
}

// One column after the other; compares each value with the batch's first on the way.
template <typename T, typename Field>
bool copy_column(const EventRecord* records, u64 n, Field field, T* column, u64 at) noexcept {
    const T first = at == 0 ? field(records[0]) : column[0];
    T* place = column + at;
    T difference = 0;
    for (u64 i = 0; i < n; ++i) {
        const T value = field(records[i]);
        place[i] = value;
        difference = static_cast<T>(difference | (value ^ first));
    }
    return difference != 0;
}

void copy_events(const char* place, u64 n, CutColumns& columns, u64 at) noexcept {
    const auto* records = reinterpret_cast<const EventRecord*>(place);
    bool* varies = columns.varies;
    *varies++ |= copy_column(records, n, [](const EventRecord& r) { return r.header.kind; }, columns.events.kind, at);
    *varies++ |= copy_column(records, n, [](const EventRecord& r) { return r.header.flags; }, columns.events.flags, at);
#define X(type, name) \
    *varies++ |= copy_column(records, n, [](const EventRecord& r) { return r.name; }, columns.events.name, at);
    MEMSCOPE_EVENT_FIELDS(X)
#undef X
}

}  // namespace

CutSizes measure(const Records& records, u64 max_bytes) noexcept {
    CutSizes sizes;
    u64 at = 0;
    while (at < max_bytes && at + 8 <= records.bytes) {
        const u64 word = header_word(records, at);
        if (word == 0 && !records.writer_gone) break;
        const RecordHeader header = as_header(word);
        // The common case by a constant stride: the next load then need not wait for this one.
        if (header.length == sizeof(EventRecord) && header.kind >= kFirstEventKind && is_valid(header) &&
            at + sizeof(EventRecord) <= records.bytes) {
            ++sizes.events;
            at += sizeof(EventRecord);
            continue;
        }
        const bool valid = word != 0 && is_valid(header);
        if (valid && at + header.length > records.bytes && records.cut_off) break;
        if (valid && at + header.length <= records.bytes) {
            if (consistent(records, at, header)) {
                count(records, at, header, sizes);
                at += header.length;
                continue;
            }
            if (sizes.skips == CutSizes::kMaxSkips) break;
            sizes.skip[sizes.skips++] = {at, at + header.length};
            ++sizes.invalid;
            at += header.length;
            continue;
        }
        if (sizes.skips == CutSizes::kMaxSkips) break;
        const u64 next = resume(records, at);
        sizes.skip[sizes.skips++] = {at, next};
        ++(word == 0 ? sizes.holes : sizes.invalid);
        at = next;
    }
    sizes.length = at;
    return sizes;
}

void fill(const Records& records, const CutSizes& sizes, CutColumns& columns) noexcept {
    auto& strings = columns.strings;
    auto& frames = columns.frames;
    auto& stacks = columns.stacks;
    u64 event = 0;
    u32 skipped = 0;
    for (u64 at = 0; at < sizes.length;) {
        if (skipped < sizes.skips && sizes.skip[skipped].from == at) {
            at = sizes.skip[skipped++].to;
            continue;
        }
        const RecordHeader header = read<RecordHeader>(records, at);
        switch (static_cast<Kind>(header.kind)) {
            case Kind::STRING: {
                const auto record = read<StringRecord>(records, at);
                *strings.id++ = record.id;
                *strings.bytes++ = record.bytes;
                std::memcpy(strings.text, records.data + at + sizeof record, record.bytes);
                strings.text += record.bytes;
                break;
            }
            case Kind::FRAME: {
                const auto record = read<FrameRecord>(records, at);
                *frames.id++ = record.id;
                *frames.file++ = record.file;
                *frames.function++ = record.function;
                *frames.line++ = record.line;
                *frames.kind++ = record.kind;
                break;
            }
            case Kind::STACK: {
                const auto record = read<StackRecord>(records, at);
                *stacks.id++ = record.id;
                *stacks.count++ = record.count;
                *stacks.kind++ = record.kind;
                std::memcpy(stacks.frames, records.data + at + sizeof record, record.count * sizeof(u64));
                stacks.frames += record.count;
                break;
            }
            default: {
                const u64 end = skipped < sizes.skips ? sizes.skip[skipped].from : sizes.length;
                const u64 run = event_run(records, at, end);
                copy_events(records.data + at, run, columns, event);
                event += run;
                at += run * sizeof(EventRecord);
                continue;
            }
        }
        at += header.length;
    }
}

u64 whole_records(const Records& records, u64 max_bytes) noexcept {
    u64 at = 0;
    while (at + 8 <= records.bytes) {
        const RecordHeader header = as_header(header_word(records, at));
        if (!is_valid(header) || at + header.length > records.bytes) break;
        if (at + header.length > max_bytes) break;
        at += header.length;
    }
    return at;
}

}  // namespace memscope
