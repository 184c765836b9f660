#include "hook/recorder.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "hook/blocks.h"
#include "hook/devices.h"
#include "hook/fork.h"
#include "hook/guard.h"
#include "hook/identity.h"
#include "hook/interpreter.h"
#include "hook/ring_identity.h"
#include "hook/settings.h"
#include "hook/spin_lock.h"
#include "hook/steps.h"
#include "hook/unwatched.h"
#include "source/watched_blocks.h"
#include "stack/stacks.h"

namespace memscope {

__thread int t_inside = 0;
std::atomic<Watch> g_watch{Watch::OFF};
std::atomic<bool (*)(CardUse&)> g_ask_card{nullptr};

namespace {

enum class State : u32 { CLOSED, OPENING, OPEN, FAILED };

constexpr u32 kStringSlots = 1u << 17;
constexpr u32 kFrameSlots = 1u << 18;
constexpr u32 kStackSlots = 1u << 18;
// A program has a few thousand different stacks, one that recurses may have any number. Each is kilobytes on the way to
// the tables, so there is an end to it; the rest of the table is for shortened ones.
constexpr u32 kMostWholeStacks = 1u << 17;
constexpr u32 kMostFreeTexts = kStringSlots / 2;  // slots; the rest is for names, files and functions

// Plain data without constructors or destructors: usable before main and after exit handlers.
struct Recorder {
    std::atomic<State> state;
    Ring ring;
    std::atomic<const RingHeader*> steps_of;  // whose step counter holds for this process: its own or its parent's
    InternTable strings, frames, stacks;
    char session[256];
    i32 launched_rank;  // what the environment said when the latest ring was made
    int error;
};
Recorder g_recorder = {};

__thread u32 t_tid = 0;

// --- the ring --------------------------------------------------------------------------------------------------

u64 ring_wait_ns() noexcept { return g_settings.ring_wait_ms * 1'000'000ull; }

int open_ring() noexcept {
    Recorder& self = g_recorder;
    if (self.session[0] == 0) return ENOENT;
    if (!self.strings.create(kStringSlots) || !self.frames.create(kFrameSlots) || !self.stacks.create(kStackSlots))
        return ENOMEM;
    const u64 ring_id = new_ring_id();
    char path[512];
    snprintf(path, sizeof path, "%.255s/%016llx.ring", self.session, static_cast<unsigned long long>(ring_id));
    Ring fresh;
    const int error = fresh.create(path, u64{g_settings.ring_mib} << 20);
    if (error != 0) return error;
    fresh.wait_ns = ring_wait_ns();
    const RingHeader* inherited = self.steps_of.load(std::memory_order_relaxed);  // set when we were forked
    fill_identity(*fresh.header, ring_id, self.session);
    const i32 launched = fresh.header->rank;
    if (inherited != nullptr) {
        fresh.header->parent_ring_id = inherited->ring_id;
        if (launched == self.launched_rank) {  // else whoever forked it has made it a rank of its own
            fresh.header->rank = inherited->rank;
            fresh.header->local_rank = inherited->local_rank;
            fresh.header->world_size = inherited->world_size;
            fresh.header->group_rank = inherited->group_rank;
            fresh.header->attempt = inherited->attempt;
        }
    } else {
        if (const RingHeader* const parent = find_parent(*fresh.header, self.session))
            self.steps_of.store(parent, std::memory_order_release);
    }
    if (fresh.header->parent_ring_id == 0) self.steps_of.store(fresh.header, std::memory_order_release);
    self.launched_rank = launched;
    self.ring = fresh;
    return Ring::publish(path);
}

// As start() found the card: START_TRACE may be written later, by whoever makes the ring.
struct {
    std::atomic<i16> device{kNoDevice};
    std::atomic<i64> used{kUnknown}, total{kUnknown};
} g_at_start;

void ask_card() noexcept {
    const Guard guard;
    CardUse card = {kNoDevice, kUnknown, kUnknown};
    const auto ask = g_ask_card.load(std::memory_order_acquire);
    if (!guard || ask == nullptr || !ask(card)) card = {kNoDevice, kUnknown, kUnknown};
    g_at_start.device = card.device;
    g_at_start.used = card.used;
    g_at_start.total = card.total;
}

void emit_system(SystemEvent what) noexcept {
    const Guard guard;  // whether or not we are inside one: emit() itself calls nothing that is hooked
    Event event(Kind::SYSTEM);
    event.record.aux = static_cast<u32>(what);
    if (what == SystemEvent::START_TRACE && g_at_start.device != kNoDevice) {
        event.record.device_type = static_cast<u8>(DeviceType::NPU);
        event.record.device = g_at_start.device;
        event.record.used = g_at_start.used;
        event.record.total = g_at_start.total;
    }
    emit(event);
}

// This process has events and records nothing.
void tell_unwatched(int error) noexcept {
    if (leave_note(g_recorder.session, error)) return;
    // Of the parent that forked this process, if any. See unwatched.h.
    if (const RingHeader* inherited = g_recorder.steps_of.load(std::memory_order_acquire))
        const_cast<RingHeader*>(inherited)->unwatched.fetch_add(1, std::memory_order_relaxed);
}

// --- what sources cannot see -----------------------------------------------------------------------------------

struct Lost {
    std::atomic<const char*> source;  // set last
    const char* what;
    bool stays;  // in a forked child
};
constexpr u32 kMostLost = 64;
Lost g_lost[kMostLost];
std::atomic<u32> g_lost_count{0};

void emit_lost(const Lost& lost) noexcept {
    char key[64];
    const int bytes = snprintf(key, sizeof key, "lost.%s", lost.source.load(std::memory_order_relaxed));
    if (bytes <= 0) return;
    const Guard guard;  // whether or not we are inside one
    emit_meta(key, lost.what);
}

void emit_lost() noexcept {
    for (const Lost& lost : g_lost)
        if (lost.source.load(std::memory_order_acquire) != nullptr) emit_lost(lost);
}

void note_lost(const char* source, const char* what, bool stays) noexcept {
    for (const Lost& known : g_lost) {
        const char* const by = known.source.load(std::memory_order_acquire);
        if (by != nullptr && strcmp(by, source) == 0 && strcmp(known.what, what) == 0) return;
    }
    const u32 place = g_lost_count.fetch_add(1, std::memory_order_relaxed);
    if (place >= kMostLost) return;
    g_lost[place].what = what;
    g_lost[place].stays = stays;
    g_lost[place].source.store(source, std::memory_order_release);
    if (has_ring()) emit_lost(g_lost[place]);
}

// What another thread of the parent was noting at the fork has no source yet, and never will.
void forget_lost_in_child() noexcept {
    u32 count = 0;
    for (Lost& lost : g_lost) {
        const char* const source = lost.source.load(std::memory_order_relaxed);
        lost.source.store(nullptr, std::memory_order_relaxed);
        if (source == nullptr || !lost.stays) continue;
        g_lost[count].what = lost.what;
        g_lost[count].stays = true;
        g_lost[count++].source.store(source, std::memory_order_relaxed);
    }
    g_lost_count.store(count, std::memory_order_relaxed);
}

// Variables of a launcher that are no evidence: what they say is told like what a source cannot see.
void emit_doubts_about_identity() noexcept {
    const Identity identity = identity_of_environment();
    if (identity.complaint[0] == 0) return;
    const Guard guard;  // whether or not we are inside one
    emit_meta("lost.identity", identity.complaint);
}

bool open_once() noexcept {
    Recorder& self = g_recorder;
    for (u32 looks = 0;;) {
        State state = self.state.load(std::memory_order_acquire);
        if (state == State::OPEN) return true;
        if (state == State::FAILED) return false;
        if (state == State::CLOSED &&
            self.state.compare_exchange_strong(state, State::OPENING, std::memory_order_acq_rel)) {
            self.error = open_ring();
            if (self.error != 0) {
                g_watch.store(Watch::OFF, std::memory_order_relaxed);
                tell_unwatched(self.error);
            }
            self.state.store(self.error == 0 ? State::OPEN : State::FAILED, std::memory_order_release);
            if (self.error != 0) return false;
            ask_python_to_attach();
            // start() came before there was a ring to say it in. What the program tells of itself may come without.
            if (is_recording()) emit_system(SystemEvent::START_TRACE);
            emit_lost();
            emit_doubts_about_identity();
            if (const char* devices = visible_devices()) emit_meta("visible_devices", devices);
            return true;
        }
        wait_a_moment(looks);  // another thread is opening it; a few hundred microseconds, once
    }
}

// --- steps -----------------------------------------------------------------------------------------------------

struct Steps {
    std::atomic<bool> locked;
    StepCounter counter;
};
Steps g_steps = {};

// --- fork and exit ---------------------------------------------------------------------------------------------

// The parent's ring stays mapped for its step counter alone.
void begin_anew_in_child() noexcept {
    Recorder& self = g_recorder;
    t_tid = 0;
    g_steps.locked.store(false, std::memory_order_relaxed);
    forget_lost_in_child();
    if (self.state.load(std::memory_order_relaxed) == State::CLOSED) return;
    const RingHeader* parent = self.ring.is_open() ? self.ring.header : nullptr;
    if (parent != nullptr && self.steps_of.load(std::memory_order_relaxed) == parent && self.ring.data != nullptr) {
        // Unmap the data of the parent's ring, keep its header page.
        munmap(self.ring.data, 2 * self.ring.capacity());
    }
    if (self.steps_of.load(std::memory_order_relaxed) == nullptr)
        self.steps_of.store(parent, std::memory_order_relaxed);
    self.ring = Ring();
    self.strings.clear();
    self.frames.clear();
    self.stacks.clear();
    self.state.store(State::CLOSED, std::memory_order_release);
}

MEMSCOPE_AFTER_FORK(begin_anew_in_child);

__attribute__((destructor)) void say_goodbye() {
    if (g_recorder.state.load(std::memory_order_acquire) == State::OPEN)
        g_recorder.ring.header->closed.store(1, std::memory_order_release);
}

}  // namespace

void use_ring_wait() noexcept {
    if (has_ring()) g_recorder.ring.wait_ns = ring_wait_ns();
}

void record_nothing_in_child() noexcept {
    g_watch.store(Watch::OFF, std::memory_order_relaxed);
    if (has_ring()) tell_unwatched(EINTR);
}

bool ensure_ring() noexcept { return open_once(); }
bool has_ring() noexcept { return g_recorder.state.load(std::memory_order_acquire) == State::OPEN; }

u32 current_tid() noexcept {
    if (__builtin_expect(t_tid == 0, 0)) t_tid = static_cast<u32>(syscall(SYS_gettid));
    return t_tid;
}

void emit_meta(const char* key, const char* value) noexcept {
    Event event(Kind::META);
    event.record.name = intern_text(key, strlen(key));
    event.record.attr = intern_text(value, strlen(value));
    emit(event);
}

void report_lost(const char* source, const char* what) noexcept { note_lost(source, what, false); }
void report_blind(const char* source, const char* what) noexcept { note_lost(source, what, true); }

void emit(Event& event) noexcept {
    if (__builtin_expect(g_recorder.state.load(std::memory_order_acquire) != State::OPEN, 0) && !open_once()) return;
    g_recorder.ring.prepare();
    EventRecord& record = event.record;
    if (record.tid == 0) record.tid = current_tid();
    if (record.step == 0)
        record.step = g_recorder.steps_of.load(std::memory_order_relaxed)->step.load(std::memory_order_relaxed);
    if (record.ts == 0) record.ts = monotonic_ns();
    char* place = g_recorder.ring.reserve(sizeof record, static_cast<u8>(event.kind));
    if (__builtin_expect(place == nullptr, 0)) return;
    memcpy(place + sizeof(RecordHeader), reinterpret_cast<const char*>(&record) + sizeof(RecordHeader),
           sizeof record - sizeof(RecordHeader));
    Ring::commit(place, sizeof record, static_cast<u8>(event.kind), event.flags);
}

u64 find_frame(u64 key) noexcept { return g_recorder.frames.find(key); }
u64 find_stack(u64 key) noexcept { return g_recorder.stacks.find(key); }

bool has_room_for_whole_stacks() noexcept {
    if (__builtin_expect(g_recorder.stacks.used() < kMostWholeStacks, 1)) return true;
    report_lost("stacks", "more than 131072 different call stacks: of later ones only the innermost frames are kept");
    return false;
}

namespace {

// Writes a definition: `fixed` and then `bytes` of `tail`, zeros up to a multiple of 8. False: it is lost, and counted.
template <typename Record>
bool define(Kind kind, const Record& fixed, const void* tail, std::size_t bytes) noexcept {
    const u32 length = static_cast<u32>((sizeof fixed + bytes + 7) / 8 * 8);
    char* const place = g_recorder.ring.reserve(length, static_cast<u8>(kind));  // may wait: nothing is locked
    if (place == nullptr) return false;
    memcpy(place + 8, reinterpret_cast<const char*>(&fixed) + 8, sizeof fixed - 8);
    if (bytes != 0) memcpy(place + sizeof fixed, tail, bytes);  // the rest up to `length` is zero already
    Ring::commit(place, length, static_cast<u8>(kind), 0);
    return true;
}

}  // namespace

u64 intern_text(const char* text, std::size_t bytes) noexcept {
    if (bytes > kMaxTextBytes) bytes = kMaxTextBytes;
    const u64 id = text_id(text, bytes);
    if (g_recorder.strings.find(id) != 0) return id;
    if (g_recorder.strings.is_full()) return 0;
    StringRecord record = {};
    record.id = id;
    record.bytes = static_cast<u32>(bytes);
    if (!define(Kind::STRING, record, text, bytes)) return 0;
    g_recorder.strings.insert(id, id);
    return id;
}

u64 intern_text_as(u64 key, const char* text, std::size_t bytes) noexcept {
    const u64 id = intern_text(text, bytes);
    if (id != 0 && !g_recorder.strings.is_full()) g_recorder.strings.insert(key, id);
    return id;
}

u64 find_text(u64 key) noexcept { return g_recorder.strings.find(key); }

bool has_room_for_texts(const char* source) noexcept {
    if (__builtin_expect(g_recorder.strings.used() < kMostFreeTexts, 1)) return true;
    report_lost(source, "too many different texts (marks, labels, shapes of tensors): later ones are left out");
    return false;
}

u64 intern_free_text(const char* source, const char* text, std::size_t bytes) noexcept {
    if (bytes > kMaxTextBytes) bytes = kMaxTextBytes;
    const u64 id = text_id(text, bytes);
    if (g_recorder.strings.find(id) != 0) return id;
    return has_room_for_texts(source) ? intern_text(text, bytes) : 0;
}

u64 intern_frame(u64 key, FrameKind kind, const char* file, std::size_t file_bytes, const char* function,
                 std::size_t function_bytes, u32 line, u64 variant) noexcept {
    if (g_recorder.frames.is_full()) return 0;
    FrameRecord record = {};
    record.file = intern_text(file, file_bytes);
    record.function = intern_text(function, function_bytes);
    if (record.file == 0 || record.function == 0) return 0;
    record.line = line;
    record.kind = static_cast<u32>(kind);
    record.id = frame_id(record.file, record.function, line, variant);
    if (!define(Kind::FRAME, record, nullptr, 0)) return 0;
    g_recorder.frames.insert(key, record.id);
    return record.id;
}

u64 intern_stack(u64 key, FrameKind kind, const u64* frame_ids, u32 count) noexcept {
    if (g_recorder.stacks.is_full()) return 0;
    StackRecord record = {};
    record.count = count;
    record.kind = static_cast<u32>(kind);
    record.id = stack_id(frame_ids, count, 0);
    if (!define(Kind::STACK, record, frame_ids, count * sizeof(u64))) return 0;
    g_recorder.stacks.insert(key, record.id);
    return record.id;
}

}  // namespace memscope

using namespace memscope;

#define MEMSCOPE_API extern "C" __attribute__((visibility("default")))

MEMSCOPE_API int memscope_set_session(const char* directory) {
    if (strlen(directory) >= sizeof g_recorder.session) return ENAMETOOLONG;
    copy_text(g_recorder.session, sizeof g_recorder.session, directory);
    State failed = State::FAILED;
    g_recorder.state.compare_exchange_strong(failed, State::CLOSED);
    return 0;
}

MEMSCOPE_API void memscope_note_unwatched(int error) { tell_unwatched(error); }

MEMSCOPE_API void memscope_start() {
    if (!is_recording()) ask_card();
    if (g_watch.exchange(Watch::RECORDING, std::memory_order_acq_rel) == Watch::RECORDING) return;
    // A process without a ring gets it, and this mark, with its first event: see open_once.
    if (has_ring()) emit_system(SystemEvent::START_TRACE);
    promote_remembered_blocks();
    watch_anew();
    operators_switched();
}

MEMSCOPE_API void memscope_stop() {
    Watch recording = Watch::RECORDING;
    if (!g_watch.compare_exchange_strong(recording, Watch::REMEMBERING, std::memory_order_acq_rel)) return;
    if (has_ring()) emit_system(SystemEvent::STOP_TRACE);
    watch_anew();
    operators_switched();
}

MEMSCOPE_API void memscope_remember() {
    Watch off = Watch::OFF;
    g_watch.compare_exchange_strong(off, Watch::REMEMBERING, std::memory_order_acq_rel);
}

MEMSCOPE_API void memscope_boundary(unsigned source, unsigned long long stepper) {
    Guard guard;
    if (!guard || !is_recording() || source > static_cast<unsigned>(StepSource::OPTIMIZER) || !ensure_ring()) return;
    RingHeader& header = *g_recorder.ring.header;
    u32 step = 0;
    {
        const SpinLock lock(g_steps.locked);
        const u64 place = header.head.load(std::memory_order_relaxed);
        const RingHeader* followed = g_recorder.steps_of.load(std::memory_order_acquire);
        if (followed != nullptr && followed != &header)
            g_steps.counter.go_on_from(followed->step.load(std::memory_order_relaxed));
        step = g_steps.counter.boundary(static_cast<StepSource>(source), stepper, place);
        if (step != 0) header.step.store(step, std::memory_order_relaxed);
    }
    if (step == 0) return;
    // Who counts steps of its own no longer follows those of the process that started it.
    g_recorder.steps_of.store(g_recorder.ring.header, std::memory_order_release);
    Event event(Kind::STEP);
    event.record.step = step;
    event.record.attr = step;
    event.record.aux = source;
    event.record.stack_py = capture_python_stack(event.flags);
    emit(event);
    const SpinLock lock(g_steps.locked);
    g_steps.counter.begins_at(header.head.load(std::memory_order_relaxed));
}

MEMSCOPE_API unsigned memscope_current_step() {
    const RingHeader* header = g_recorder.steps_of.load(std::memory_order_acquire);
    return header == nullptr ? 0 : header->step.load(std::memory_order_relaxed);
}

MEMSCOPE_API void memscope_meta(const char* key, const char* value) {
    Guard guard;
    if (!guard || !is_recording() || !ensure_ring()) return;
    emit_meta(key, value);
}

MEMSCOPE_API int memscope_launched_rank() { return identity_of_environment().rank; }

MEMSCOPE_API void memscope_identify(int rank, int local_rank, int world_size, int group_rank, const char* role) {
    if (!is_recording() || !ensure_ring()) return;
    RingHeader& header = *g_recorder.ring.header;
    const struct {
        const char* key;
        int value;
        i32* field;
    } fields[] = {{"rank", rank, &header.rank},
                  {"local_rank", local_rank, &header.local_rank},
                  {"world_size", world_size, &header.world_size},
                  {"group_rank", group_rank, &header.group_rank}};
    for (const auto& field : fields) {
        if (field.value < 0 || *field.field == field.value) continue;
        *field.field = field.value;
        char text[16];
        snprintf(text, sizeof text, "%d", field.value);
        memscope_meta(field.key, text);
    }
    if (role != nullptr && *role != 0 && strncmp(header.role, role, sizeof header.role - 1) != 0) {
        copy_text(header.role, sizeof header.role, role);
        memscope_meta("role", role);
    }
}

MEMSCOPE_API void memscope_visit_lost(void (*visit)(void*, const char*, const char*), void* context) {
    for (const Lost& lost : g_lost)
        if (const char* source = lost.source.load(std::memory_order_acquire)) visit(context, source, lost.what);
}

MEMSCOPE_API void memscope_get_stats(memscope_stats* out) {
    *out = {};
    out->error = g_recorder.error;
    out->recording = is_recording() ? 1 : 0;
    if (g_recorder.state.load(std::memory_order_acquire) != State::OPEN) return;
    const RingHeader& header = *g_recorder.ring.header;
    out->ring_id = header.ring_id;
    out->head = header.head.load(std::memory_order_relaxed);
    for (const auto& lost : header.lost) out->lost += lost.load(std::memory_order_relaxed);
}
