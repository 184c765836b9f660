#include "hook/blocks.h"

#include "hook/guard.h"
#include "hook/live_table.h"
#include "hook/selection.h"
#include "record/ring.h"
#include "stack/stacks.h"

namespace memscope {
namespace {

LiveTable g_remembered;

// One block may be known to two pools under one address (a segment and the first block in it).
u64 key_of(const Block& block) noexcept {
    return nonzero(
        combine64(block.ptr, static_cast<u64>(block.pool) << 8 | (block.flags & static_cast<u8>(Flag::HANDLE))));
}

// Page-locked memory lies on the host but is the card's driver's: wanted whenever all cards of that sort are, or the
// host is.
bool is_selected(const Block& block) noexcept {
    if ((block.flags & static_cast<u8>(Flag::PINNED)) != 0) {
        const DeviceType driver = block.pool == Pool::HAL ? DeviceType::NPU : DeviceType::CUDA;
        if (is_selected(driver, kNoDevice)) return true;
    }
    return is_selected(block.device_type, block.device);
}

Block selection_of(const LiveBlock& known) noexcept {
    Block block;
    block.pool = static_cast<Pool>(known.pool);
    block.device_type = static_cast<DeviceType>(known.device_type);
    block.device = known.device;
    block.flags = known.flags;
    return block;
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
    if (block.name != nullptr) event.record.name = intern_text(block.name, __builtin_strlen(block.name));
    return event;
}

void record(Kind kind, const Block& block) noexcept {
    if (!ensure_ring()) return;
    Event event = event_of(kind, block);
    if (kind == Kind::MALLOC) {
        event.record.stack_py = capture_python_stack(event.flags);
        event.record.stack_c = capture_native_stack(event.flags);
    }
    emit(event);
}

void record_remembered(const LiveBlock& known) noexcept {
    // What is wanted may only have been said by start(), after the block was remembered.
    if (!is_selected(selection_of(known))) return;
    Event event(Kind::MALLOC);
    event.flags = static_cast<u8>(known.flags | static_cast<u8>(Flag::SHADOW));
    event.record.pool = known.pool;
    event.record.device_type = known.device_type;
    event.record.device = known.device;
    event.record.ptr = known.ptr;
    event.record.size = known.size;
    event.record.ts = known.ts;
    event.record.tid = known.tid;
    event.record.attr = known.attr;
    if (known.name != nullptr) event.record.name = intern_text(known.name, __builtin_strlen(known.name));
    emit(event);
}

}  // namespace

void block_allocated(const Block& block) noexcept {
    if (!is_selected(block)) return;
    if (is_recording()) return record(Kind::MALLOC, block);
    LiveBlock known = {};
    known.key = key_of(block);
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
    g_remembered.insert(known);
    // Recording may have come on since we looked, and its sweep may have passed our shard.
    if (is_recording() && g_remembered.take(known.key, known) && ensure_ring()) record_remembered(known);
}

void block_freed(const Block& block) noexcept {
    if (!is_selected(block)) return;
    LiveBlock known;
    const bool remembered = g_remembered.count() != 0 && g_remembered.take(key_of(block), known);
    if (is_recording()) {
        if (remembered && ensure_ring()) record_remembered(known);  // its sweep has not come to it yet
        return record(Kind::FREE, block);
    }
    if (remembered || !has_ring()) return;
    Block shadow = block;
    shadow.flags |= static_cast<u8>(Flag::SHADOW);
    record(Kind::FREE, shadow);
}

void request_failed(const Block& block, u64 code) noexcept {
    if (!is_recording() || !is_selected(block) || !ensure_ring()) return;
    Event event = event_of(Kind::OOM, block);
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
    if (g_remembered.count() == 0 || !ensure_ring()) return;
    const Guard guard;  // whether or not we are inside one: nothing below calls what is hooked
    g_remembered.drain(record_remembered);
}

void forget_remembered_blocks_after_fork() noexcept { g_remembered.reset_after_fork(true); }

u64 remembered_blocks() noexcept { return g_remembered.count(); }

}  // namespace memscope
