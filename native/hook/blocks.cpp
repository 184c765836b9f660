#include "hook/blocks.h"

#include "hook/fork.h"
#include "hook/guard.h"
#include "hook/live_table.h"
#include "hook/selection.h"
#include "record/ring.h"
#include "source/watched_blocks.h"
#include "stack/stacks.h"

namespace memscope {
namespace {

LiveTable g_remembered;         // MALLOC
LiveTable g_remembered_ranges;  // RESERVE, MAP
// Blocks of the host that were recorded under `auto`: the first card ends that, and their releases are recorded still.
LiveTable g_recorded_host;
// Blocks and ranges that came while their device was selected no more: they alone end without a word, for what was
// recorded as allocated is recorded as freed whatever is selected by then.
LiveTable g_skipped;

LiveTable& table_of(Kind begin) noexcept { return begin == Kind::MALLOC ? g_remembered : g_remembered_ranges; }

constexpr Kind end_of(Kind begin) noexcept {
    return begin == Kind::MALLOC ? Kind::FREE : begin == Kind::RESERVE ? Kind::UNRESERVE : Kind::UNMAP;
}

// One block may be known to two pools under one address (a segment and the first block in it), and a range can be both
// reserved and mapped.
u64 key_of(Kind begin, const Block& block) noexcept {
    return nonzero(combine64(block.ptr, static_cast<u64>(begin) << 16 | static_cast<u64>(block.pool) << 8 |
                                            (block.flags & static_cast<u8>(Flag::HANDLE))));
}

// Page-locked memory lies on the host but is the card's driver's: wanted whenever all cards of that sort are, or the
// host is.
template <typename IsOne, typename Owner>
bool holds(IsOne is_one, const Owner& block) noexcept {
    if ((block.flags & static_cast<u8>(Flag::PINNED)) != 0) {
        const DeviceType driver = static_cast<Pool>(block.pool) == Pool::HAL ? DeviceType::NPU : DeviceType::CUDA;
        if (is_one(driver, kNoDevice)) return true;
    }
    return is_one(static_cast<DeviceType>(block.device_type), block.device);
}

template <typename Owner>  // Block or LiveBlock
bool is_selected(const Owner& block) noexcept {
    return holds([](DeviceType type, i16 device) noexcept { return is_selected(type, device); }, block);
}

template <typename Owner>
bool was_selected(const Owner& block) noexcept {
    return holds([](DeviceType type, i16 device) noexcept { return was_selected(type, device); }, block);
}

// The ids of names, which are literals: no hash over the text of each event's. A place belongs to the literal that came
// first; a literal whose place is taken is hashed every time.
struct Name {
    std::atomic<const char*> literal;  // set after the id
    std::atomic<u64> id;
};
Name g_names[256];

u64 id_of_name(const char* literal) noexcept {
    if (literal == nullptr) return 0;
    Name& name = g_names[mix64(reinterpret_cast<u64>(literal)) % (sizeof g_names / sizeof g_names[0])];
    if (name.literal.load(std::memory_order_acquire) == literal) return name.id.load(std::memory_order_relaxed);
    const u64 id = intern_text(literal, __builtin_strlen(literal));
    u64 none = 0;
    if (id != 0 && name.id.compare_exchange_strong(none, id, std::memory_order_relaxed))
        name.literal.store(literal, std::memory_order_release);
    return id;
}

Event event_of(Kind kind, const Block& block) noexcept {
    Event event(kind);
    event.flags = block.flags;
    event.record.pool = static_cast<u8>(block.pool);
    event.record.device_type = static_cast<u8>(block.device_type);
    event.record.device = block.device;
    event.record.ptr = block.ptr;
    event.record.size = block.size;
    event.record.used = block.used;
    event.record.total = block.total;
    event.record.attr = block.attr;
    event.record.name = id_of_name(block.name);
    event.record.aux = stream_word(block.stream);
    return event;
}

void record(Kind kind, const Block& block) noexcept {
    if (!ensure_ring()) return;
    Event event = event_of(kind, block);
    if ((kind == Kind::MALLOC || kind == Kind::FREE) && is_recording()) {
        event.record.stack_py = capture_python_stack(event.flags);
        event.record.stack_c = capture_native_stack(event.flags);
    }
    emit(event);
}

void note_recorded(u64 key, DeviceType type) noexcept {
    if (type != DeviceType::CPU || g_selection.is_auto.load(std::memory_order_relaxed) == 0) return;
    LiveBlock known = {};
    known.key = key;
    g_recorded_host.insert(known);
}

void skip(u64 key) noexcept {
    LiveBlock skipped = {};
    skipped.key = key;
    g_skipped.insert(skipped);
}

// True when it was skipped, which is then forgotten.
bool take_skipped(u64 key) noexcept {
    LiveBlock skipped;
    return g_selection.has_narrowed.load(std::memory_order_relaxed) && g_skipped.take(key, skipped);
}

void record_remembered(const LiveBlock& known) noexcept {
    // It may have been remembered under another selection, or under `auto` before the first card was seen.
    if (!is_selected(known)) {
        if (was_selected(known)) skip(known.key);
        return;
    }
    if (!ensure_ring()) return;
    Event event(static_cast<Kind>(known.kind));
    event.flags = static_cast<u8>(known.flags | static_cast<u8>(Flag::SHADOW));
    event.record.pool = known.pool;
    event.record.device_type = known.device_type;
    event.record.device = known.device;
    event.record.ptr = known.ptr;
    event.record.size = known.size;
    event.record.ts = known.ts;
    event.record.tid = known.tid;
    event.record.attr = known.attr;
    event.record.name = id_of_name(known.name);
    event.record.aux = stream_word(known.stream);
    if (event.kind == Kind::MALLOC) note_recorded(known.key, static_cast<DeviceType>(known.device_type));
    emit(event);
}

void remember(Kind begin, const Block& block) noexcept {
    LiveBlock known = {};
    known.key = key_of(begin, block);
    known.ptr = block.ptr;
    known.size = block.size;
    known.ts = monotonic_ns();
    known.attr = block.attr;
    known.name = block.name;
    known.tid = current_tid();
    known.device = block.device;
    known.device_type = static_cast<u8>(block.device_type);
    known.pool = static_cast<u8>(block.pool);
    known.flags = block.flags;
    known.kind = static_cast<u8>(begin);
    known.stream = block.stream;
    LiveTable& table = table_of(begin);
    table.insert(known);
    // Recording may have come on since we looked. If its sweep had passed our shard, then the shard's lock has shown us
    // that it is on.
    if (is_recording() && table.take(known.key, known)) record_remembered(known);
}

void began(Kind begin, const Block& block) noexcept {
    if (!is_selected(block)) {
        if (was_selected(block)) skip(key_of(begin, block));
        return;
    }
    if (g_selection.has_narrowed.load(std::memory_order_relaxed))
        take_skipped(key_of(begin, block));  // another block of this address, whose end nobody told
    if (!is_recording()) return remember(begin, block);
    if (begin == Kind::MALLOC) note_recorded(key_of(begin, block), block.device_type);
    record(begin, block);
}

void ended(Kind begin, const Block& block) noexcept {
    // Both are asked whatever is selected: the block may have come in while it was.
    const u64 key = key_of(begin, block);
    LiveBlock known;
    const bool remembered = table_of(begin).take(key, known);
    const bool recorded =
        begin == Kind::MALLOC && block.device_type == DeviceType::CPU && g_recorded_host.take(key, known);
    if (take_skipped(key)) return;
    if (!is_selected(block) && !recorded && (remembered || !was_selected(block))) return;
    if (is_recording()) {
        if (remembered) record_remembered(known);  // its sweep has not come to it yet
        return record(end_of(begin), block);
    }
    if (remembered || !has_ring()) return;
    Block shadow = block;
    shadow.flags |= static_cast<u8>(Flag::SHADOW);
    record(end_of(begin), shadow);
}

}  // namespace

void block_allocated(const Block& block) noexcept {
    if (has_watches()) watched_memory_allocated(block);
    began(Kind::MALLOC, block);
}
void block_freed(const Block& block) noexcept {
    if (has_watches()) watched_memory_freed(block);
    ended(Kind::MALLOC, block);
}
void range_began(Kind kind, const Block& block) noexcept { began(kind, block); }
void range_ended(Kind kind, const Block& block) noexcept { ended(kind, block); }

void request_failed(const Block& block, u64 code) noexcept {
    if (!is_recording() || !is_selected(block) || !ensure_ring()) return;
    Event event = event_of(Kind::OOM, block);
    event.record.ptr = block.attr;
    event.record.attr = code;
    event.record.stack_py = capture_python_stack(event.flags, kFailureDepth);
    event.record.stack_c = capture_native_stack(event.flags, kFailureDepth);
    emit(event);
}

void block_event(Kind kind, const Block& block) noexcept {
    if (is_recording() && is_selected(block) && ensure_ring()) {
        Event event = event_of(kind, block);
        emit(event);
    }
}

void promote_remembered_blocks() noexcept {
    // Whatever count() says: a block may be on its way in, and only a shard's lock tells who was first.
    const Guard guard;                      // whether or not we are inside one: nothing below calls what is hooked
    g_remembered.drain(record_remembered);  // handles before what is mapped to them
    g_remembered_ranges.drain(record_remembered);
}

namespace {

void begin_anew_in_child() noexcept {
    for (Name& name : g_names) {  // the child's ring defines its own strings
        name.literal.store(nullptr, std::memory_order_relaxed);
        name.id.store(0, std::memory_order_relaxed);
    }
    g_remembered.reset_after_fork(true);
    g_remembered_ranges.reset_after_fork(true);
    g_recorded_host.reset_after_fork(true);
    g_skipped.reset_after_fork(true);
}
MEMSCOPE_AFTER_FORK(begin_anew_in_child);

}  // namespace

u64 remembered_blocks() noexcept { return g_remembered.count(); }

}  // namespace memscope
