#include "hook/told_events.h"

#include "hook/devices.h"
#include "hook/guard.h"
#include "hook/recorder.h"
#include "record/process.h"
#include "stack/stacks.h"

using namespace memscope;

#define MEMSCOPE_API extern "C" __attribute__((visibility("default")))

MEMSCOPE_API unsigned long long memscope_frame(unsigned long long key, void (*describe)(void*, void*), void* context) {
    const Guard guard;
    if (!guard || !ensure_ring()) return 0;
    if (const u64 id = find_frame(key)) return id;
    memscope_frame_text text;
    describe(context, &text);
    return intern_frame(key, FrameKind::PYTHON, text.file, text.file_bytes, text.function, text.function_bytes,
                        text.line);
}

MEMSCOPE_API unsigned long long memscope_text(const char* text, unsigned long long bytes) {
    const Guard guard;
    return guard && ensure_ring() ? intern_free_text("texts", text, bytes) : 0;
}

MEMSCOPE_API unsigned memscope_thread() { return current_tid(); }

MEMSCOPE_API unsigned long long memscope_now() { return monotonic_ns(); }

MEMSCOPE_API void memscope_call(unsigned kind, unsigned long long name, unsigned long long start_ns, int ended,
                                unsigned tid) {
    const Guard guard;
    if (!guard || name == 0 || !ensure_ring()) return;
    Event event(Kind::CALL);
    if (ended == 0) event.flags = static_cast<u8>(Flag::SYNTHETIC);
    event.record.name = name;
    event.record.attr = start_ns;
    event.record.aux = kind;
    event.record.tid = tid;
    emit(event);
}

MEMSCOPE_API void memscope_mark(unsigned long long name) {
    const Guard guard;
    if (!guard || name == 0 || !is_recording() || !ensure_ring()) return;
    Event event(Kind::MARK);
    event.record.name = name;
    event.record.aux = 1;
    emit(event);
}

MEMSCOPE_API unsigned long long memscope_range_begun(const char* name, unsigned long long bytes) {
    const Guard guard;
    if (!guard || !is_recording() || !ensure_ring()) return monotonic_ns();
    Event event(Kind::CALL);
    event.record.name = intern_free_text("ranges", name, bytes);
    if (event.record.name == 0) return monotonic_ns();  // nor is its end told: memscope_call()
    event.record.aux = static_cast<u32>(CallKind::RANGE_BEGUN);
    emit(event);
    return event.record.ts;
}

namespace {

Event snapshot_event(Kind kind, u64 name, const memscope_snapshot_figures& figures) noexcept {
    Event event(kind);
    event.record.name = name;
    event.record.device_type = static_cast<u8>(figures.device_type);
    const auto device = static_cast<i16>(figures.device);
    event.record.device =
        figures.device_type == static_cast<unsigned>(DeviceType::NPU) ? physical_device(device) : device;
    event.record.pool = static_cast<u8>(figures.pool);
    return event;
}

}  // namespace

MEMSCOPE_API void memscope_snapshot(const char* name, unsigned long long bytes,
                                    const memscope_snapshot_figures* figures) {
    const Guard guard;
    if (!guard || !ensure_ring()) return;
    Event event = snapshot_event(Kind::SNAPSHOT, intern_free_text("snapshots", name, bytes), *figures);
    EventRecord& record = event.record;
    record.used = figures->allocated;
    record.total = figures->reserved;
    record.ptr = static_cast<u64>(figures->max_allocated);
    record.size = figures->max_reserved;
    record.attr = static_cast<u64>(figures->free);
    record.aux = static_cast<u32>(figures->total >> 10);
    emit(event);
}

MEMSCOPE_API void memscope_snapshot_pieces(const char* name, unsigned long long bytes,
                                           const memscope_snapshot_figures* figures,
                                           const memscope_snapshot_piece* pieces, unsigned count) {
    const Guard guard;
    if (!guard || !ensure_ring()) return;
    const u64 id = intern_free_text("snapshots", name, bytes);
    for (const memscope_snapshot_piece* piece = pieces; piece != pieces + count; ++piece) {
        Event event =
            snapshot_event(piece->is_block != 0 ? Kind::SNAPSHOT_BLOCK : Kind::SNAPSHOT_SEGMENT, id, *figures);
        event.record.ptr = piece->ptr;
        event.record.size = piece->size;
        event.record.used = piece->used;
        event.record.total = piece->total;
        event.record.attr = piece->attr;
        event.record.aux = piece->aux;
        emit(event);
    }
}

MEMSCOPE_API int memscope_label_thread(int pushed, unsigned level, const char* text, unsigned long long bytes) {
    const Guard guard;
    if (!guard || !ensure_ring()) return 0;
    Event event(pushed != 0 ? Kind::LABEL_PUSH : Kind::LABEL_POP);
    event.record.name = intern_free_text("labels", text, bytes);
    event.record.aux = level;
    emit(event);
    return 1;
}

MEMSCOPE_API void memscope_label_addresses(unsigned level, const char* text, unsigned long long bytes,
                                           const unsigned long long* addresses, unsigned long long count,
                                           int only_recording) {
    const Guard guard;
    if (!guard || (only_recording != 0 && !is_recording()) || !ensure_ring()) return;
    const u64 name = intern_free_text("labels", text, bytes);
    for (unsigned long long i = 0; i < count; ++i) {
        Event event(Kind::LABEL_ADDR);
        event.record.name = name;
        event.record.aux = level;
        event.record.ptr = addresses[i];
        emit(event);
    }
}
